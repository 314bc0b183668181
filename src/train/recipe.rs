//! A recipe's tables become training settings. Hyphens and underscores in keys are equal; an unknown key is an error that
//! lists the known ones.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::objective::ObjectiveSettings;
use super::{Limits, Method, Precision, TrainError, TrainSettings};
use crate::recipe::{Recipe, SurfaceKind};

/// Where steps are made, as a recipe or a deployment says it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// On a thread of the serving process.
    #[default]
    Inline,
    /// In a child process.
    Process,
}

impl TrainSettings {
    /// The settings of a recipe that trains with the embedded trainer:
    ///
    /// - `[objective] family` and `[objective.settings]`: [`ObjectiveSettings::from_family`];
    /// - `[trainer.optimizer]`: [`super::optim::OptimizerSettings`];
    /// - `[surface] kind`: an adapter, shaped by `[trainer.lora]`, or every weight;
    /// - `[trainer.settings]`: `precision`, `placement` and the keys of [`Limits`].
    pub fn from_recipe(recipe: &Recipe) -> Result<(Self, Placement), TrainError> {
        let trainer = &recipe.trainer;
        let objective = ObjectiveSettings::from_family(
            &recipe.objective.family,
            &keys("objective.settings", &recipe.objective.settings)?,
        )?;
        let lora = keys("trainer.lora", &trainer.lora)?;
        let method = match recipe.surface.kind {
            SurfaceKind::LoraAdapter => {
                let mut table = lora;
                table.insert("kind".to_owned(), "lora".into());
                parse("trainer.lora", table)?
            }
            SurfaceKind::Checkpoint if lora.is_empty() => Method::Full,
            SurfaceKind::Checkpoint => {
                return Err(TrainError::settings(
                    "trainer.lora has no meaning with surface.kind = \"checkpoint\", which trains every weight",
                ));
            }
            SurfaceKind::None | SurfaceKind::Harness => {
                return Err(TrainError::settings(
                    "the embedded trainer makes adapters and checkpoints: set surface.kind to \"lora-adapter\" or \"checkpoint\"",
                ));
            }
        };
        let mut rest = keys("trainer.settings", &trainer.settings)?;
        let mut take = |key: &str| rest.remove(key).unwrap_or(Value::Null);
        let precision: Option<Precision> = value("trainer.settings.precision", take("precision"))?;
        let placement: Option<Placement> = value("trainer.settings.placement", take("placement"))?;
        let limits: Limits = parse("trainer.settings", rest)?;
        let settings = Self {
            objective,
            optimizer: parse("trainer.optimizer", keys("trainer.optimizer", &trainer.optimizer)?)?,
            method,
            precision: precision.unwrap_or_default(),
            limits,
        };
        settings.check()?;
        Ok((settings, placement.unwrap_or_default()))
    }
}

fn keys(at: &str, table: &impl Serialize) -> Result<Map<String, Value>, TrainError> {
    match serde_json::to_value(table) {
        Ok(Value::Object(map)) => Ok(underscored(map)),
        Ok(other) => Err(TrainError::settings(format!("{at} must be a table, not {other}"))),
        Err(error) => Err(TrainError::settings(format!("{at}: {error}"))),
    }
}

fn underscored(map: Map<String, Value>) -> Map<String, Value> {
    map.into_iter()
        .map(|(key, value)| {
            let value = match value {
                Value::Object(inner) => Value::Object(underscored(inner)),
                other => other,
            };
            (key.replace('-', "_"), value)
        })
        .collect()
}

fn parse<T: DeserializeOwned>(at: &str, table: Map<String, Value>) -> Result<T, TrainError> {
    value(at, Value::Object(table))
}

fn value<T: DeserializeOwned>(at: &str, value: Value) -> Result<T, TrainError> {
    serde_json::from_value(value).map_err(|error| TrainError::settings(format!("{at}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::objective::{AdvantageSettings, CriticSettings, Surrogate};

    fn recipe(text: &str) -> Recipe {
        toml::from_str(text).unwrap()
    }

    const BASE: &str = "format = 1\nname = \"r\"\n[surface]\nkind = \"lora-adapter\"\n";

    #[test]
    fn every_table_arrives_in_either_spelling() {
        let text = format!(
            "{BASE}[objective]\nfamily = \"sao\"\n[objective.settings.critic]\nwarmup-steps = 3\n\
             [objective.settings.surrogate]\nhigh = 3\n[trainer.optimizer]\nlearning-rate = 1e-4\nmax_grad_norm = 0.5\n\
             schedule = {{ kind = \"cosine\", warmup = 2, total = 50 }}\n[trainer.lora]\nrank = 8\nalpha = 16\n\
             [trainer.settings]\nprecision = \"bf16\"\nplacement = \"process\"\ntoken-budget = 256\nrecompute = true\n"
        );
        let (settings, placement) = TrainSettings::from_recipe(&recipe(&text)).unwrap();
        assert_eq!(placement, Placement::Process);
        assert_eq!(settings.objective.surrogate, Surrogate::Dis { low: 0.3, high: 3.0 });
        let critic = CriticSettings {
            warmup_steps: 3,
            ..CriticSettings::default()
        };
        assert_eq!(settings.objective.critic, Some(critic));
        assert!(matches!(
            settings.objective.advantage,
            AdvantageSettings::Gae {
                length_alpha: Some(1.5),
                ..
            }
        ));
        assert_eq!(
            (settings.optimizer.learning_rate, settings.optimizer.max_grad_norm),
            (1e-4, 0.5)
        );
        assert!(matches!(
            settings.method,
            Method::Lora {
                rank: 8,
                alpha: 16.0,
                ..
            }
        ));
        assert!(
            settings.precision == Precision::Bf16 && settings.limits.recompute && settings.limits.token_budget == 256
        );
    }

    #[test]
    fn mistakes_name_their_table() {
        for (text, want) in [
            (format!("{BASE}[objective]\nfamily = \"grop\"\n"), "known are sft"),
            (
                format!("{BASE}[objective]\nfamily = \"grpo\"\n[trainer.optimizer]\nlr = 1\n"),
                "trainer.optimizer: unknown field `lr`",
            ),
            (
                format!("{BASE}[objective]\nfamily = \"grpo\"\n[trainer.lora]\nr = 1\n"),
                "trainer.lora: unknown field `r`",
            ),
            (
                format!("{BASE}[objective]\nfamily = \"grpo\"\n[trainer.settings]\nbudget = 1\n"),
                "trainer.settings: unknown field `budget`",
            ),
            (
                format!("{BASE}[objective]\nfamily = \"grpo\"\n[trainer.settings]\nprecision = \"f16\"\n"),
                "trainer.settings.precision",
            ),
            (
                "format = 1\nname = \"r\"\n[objective]\nfamily = \"grpo\"\n".to_owned(),
                "lora-adapter",
            ),
        ] {
            let error = TrainSettings::from_recipe(&recipe(&text)).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn the_built_in_recipes_that_train_here_are_valid() {
        for name in ["sao", "grpo", "sft"] {
            let path = format!("{}/recipes/{name}/recipe.toml", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            TrainSettings::from_recipe(&recipe(&text)).unwrap();
        }
    }
}
