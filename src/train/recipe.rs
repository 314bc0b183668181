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
    ///
    /// A fault names the key of the recipe.
    pub fn from_recipe(recipe: &Recipe) -> Result<(Self, Placement), TrainError> {
        Self::read(recipe).map_err(|error| match error {
            TrainError::Settings { key, fault } => TrainError::setting(key_of_a_recipe(&key), fault),
            error => error,
        })
    }

    fn read(recipe: &Recipe) -> Result<(Self, Placement), TrainError> {
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
                return Err(TrainError::setting(
                    "trainer.lora",
                    "has no meaning with surface.kind = \"checkpoint\", which trains every weight",
                ));
            }
            SurfaceKind::None | SurfaceKind::Harness => {
                return Err(TrainError::setting(
                    "surface.kind",
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

/// The key that a recipe has for a setting of the trainer.
fn key_of_a_recipe(key: &str) -> String {
    const HOMES: [(&str, &str); 4] = [
        ("optimizer.", "trainer.optimizer."),
        ("method.", "trainer.lora."),
        ("limits.", "trainer.settings."),
        ("precision", "trainer.settings.precision"),
    ];
    let of_a_recipe = ["objective.", "trainer.", "surface."];
    if key.is_empty() || of_a_recipe.iter().any(|table| key.starts_with(table)) {
        return key.to_owned();
    }
    HOMES
        .iter()
        .find_map(|(own, home)| key.strip_prefix(own).map(|rest| format!("{home}{rest}")))
        .unwrap_or_else(|| format!("objective.settings.{key}"))
}

fn keys(at: &str, table: &impl Serialize) -> Result<Map<String, Value>, TrainError> {
    match serde_json::to_value(table) {
        Ok(Value::Object(map)) => Ok(underscored(map)),
        Ok(other) => Err(TrainError::setting(at, format!("must be a table, not {other}"))),
        Err(error) => Err(TrainError::setting(at, error.to_string())),
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
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let key = match path.as_str() {
            "." => at.to_owned(),
            path => format!("{at}.{path}"),
        };
        TrainError::setting(key, error.into_inner().to_string())
    })
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
                "trainer.optimizer.lr: unknown field `lr`",
            ),
            (
                format!("{BASE}[objective]\nfamily = \"grpo\"\n[trainer.lora]\nr = 1\n"),
                "trainer.lora: unknown field `r`",
            ),
            (
                format!("{BASE}[objective]\nfamily = \"grpo\"\n[trainer.settings]\nbudget = 1\n"),
                "trainer.settings.budget: unknown field `budget`",
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
    fn the_listed_settings_of_the_trainer_are_those_that_are_read() {
        for (table, keys) in crate::recipe::trainer_tables() {
            let base = format!("{BASE}[objective]\nfamily = \"grpo\"\n[{table}]\n");
            let error = TrainSettings::from_recipe(&recipe(&format!("{base}no_such_key = 1\n"))).unwrap_err();
            let message = error.to_string();
            let mut known: Vec<&str> = message.split('`').skip(1).step_by(2).skip(1).collect();
            if table == "trainer.settings" {
                known.extend(["precision", "placement"]);
            }
            for key in &known {
                assert!(keys.contains(key) || *key == "kind", "{table}.{key} is not listed");
            }
            for key in keys {
                let text = format!("{base}{key} = \"of the wrong kind\"\n");
                let unknown = TrainSettings::from_recipe(&recipe(&text))
                    .is_err_and(|error| error.to_string().contains("unknown field"));
                assert!(!unknown, "{table}.{key} is listed and not known");
            }
        }
    }

    #[test]
    fn faults_name_the_key_of_the_recipe() {
        for (text, key) in [
            (
                "[trainer.optimizer]\nlearning_rate = -1.0\n",
                "trainer.optimizer.learning_rate",
            ),
            (
                "[trainer.optimizer]\nlearning_rate = \"x\"\n",
                "trainer.optimizer.learning_rate",
            ),
            ("[trainer.lora]\nrank = 0\n", "trainer.lora.rank"),
            (
                "[trainer.settings]\ntoken_budget = 0\n",
                "trainer.settings.token_budget",
            ),
            ("[objective.settings]\nepochs = 0\n", "objective.settings.epochs"),
        ] {
            let text = format!("{BASE}{text}").replace("[trainer", "[objective]\nfamily = \"grpo\"\n[trainer");
            let text = text.replace(
                "[objective.settings]",
                "[objective]\nfamily = \"grpo\"\n[objective.settings]",
            );
            let Err(TrainError::Settings { key: named, .. }) = TrainSettings::from_recipe(&recipe(&text)) else {
                panic!("{text}");
            };
            assert_eq!(named, key, "{text}");
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
