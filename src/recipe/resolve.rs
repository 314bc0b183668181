//! From a reference and settings to a complete recipe.

use std::fs;
use std::path::Path;

use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use toml::{Table, Value};

use super::{Recipe, RecipeError, registry};

/// How many recipes one may extend in a row.
const MAX_DEPTH: usize = 8;

/// Settings that may stand flat beside `reef.recipe`, and where they belong.
const FLAT: [(&str, &[&str]); 15] = [
    ("batch-size", &["batch", "size"]),
    ("groups-per-step", &["batch", "size"]),
    ("rollouts-per-group", &["batch", "group-size"]),
    ("max-staleness", &["batch", "max-staleness"]),
    ("max-wait-s", &["batch", "max-wait-s"]),
    ("holdout", &["batch", "holdout"]),
    ("training-mode", &["training-mode"]),
    ("session-ttl-s", &["processor", "session-ttl-s"]),
    ("multi-turn", &["processor", "multi-turn"]),
    ("accept-multi-turn-policy-samples", &["processor", "multi-turn"]),
    ("max-score", &["processor", "maximum-score"]),
    ("selection", &["gate", "selector"]),
    ("alpha", &["gate", "alpha"]),
    ("maximum-pairs", &["gate", "maximum-pairs"]),
    ("max-steps", &["budget", "maximum-steps"]),
];

/// Tables of a recipe, in which a setting may also be given in full.
const TABLES: [&str; 8] = [
    "processor",
    "batch",
    "objective",
    "trainer",
    "gate",
    "surface",
    "budget",
    "evolution",
];

/// Tables whose keys belong to the trainer: it spells them with underscores.
const FOREIGN: [&[&str]; 4] = [
    &["objective", "settings"],
    &["trainer", "optimizer"],
    &["trainer", "lora"],
    &["trainer", "settings"],
];

impl Recipe {
    /// The recipe `reference` names, with `settings` over it.
    ///
    /// A reference is the name of a built-in recipe, a dotted upstream reference, or a path to a `recipe.toml` or to the
    /// directory that holds one; a relative path starts at `directory`. A setting is a flat one (`batch_size`), a table
    /// of the recipe (`gate`, with keys inside), or a dotted path (`gate.alpha`). Hyphen and underscore are equal.
    pub fn resolve(
        reference: &str,
        settings: &serde_json::Map<String, Json>,
        directory: &Path,
    ) -> Result<Self, RecipeError> {
        let (mut table, base) = load(reference, directory, 0)?;
        let name = table
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or(reference)
            .to_owned();
        for (key, value) in settings {
            apply(&mut table, &name, key, value)?;
        }
        let mut recipe: Self = Table::try_into(table).map_err(|error: toml::de::Error| RecipeError::Syntax {
            origin: name.clone(),
            fault: one_line(&error.to_string()),
        })?;
        if let Some((key, rule)) = recipe.fault() {
            return Err(RecipeError::Value {
                origin: name,
                key,
                rule,
            });
        }
        recipe.directory = base;
        Ok(recipe)
    }

    /// SHA-256 of the complete recipe, for provenance: it changes when any value does.
    pub fn digest(&self) -> String {
        // Serialising plain tables cannot fail; an empty text would only make the digest useless, not wrong.
        let text = toml::to_string(self).unwrap_or_default();
        hex::encode(Sha256::digest(text.as_bytes()))
    }
}

fn load(reference: &str, directory: &Path, depth: usize) -> Result<(Table, Option<std::path::PathBuf>), RecipeError> {
    if depth == MAX_DEPTH {
        return Err(RecipeError::Value {
            origin: reference.to_owned(),
            key: "extends".to_owned(),
            rule: format!("must not form a chain of more than {MAX_DEPTH} recipes"),
        });
    }
    let (text, origin, base) = if let Some(built_in) = registry::find(reference) {
        (built_in.text.to_owned(), built_in.name.to_owned(), None)
    } else {
        let mut path = directory.join(reference);
        if path.is_dir() {
            path.push("recipe.toml");
        }
        if !path.is_file() {
            return Err(RecipeError::Unknown {
                reference: reference.to_owned(),
                known: registry::names(),
            });
        }
        let text = fs::read_to_string(&path).map_err(|source| RecipeError::Read {
            path: path.clone(),
            source,
        })?;
        let base = path.parent().map(Path::to_path_buf);
        (text, path.display().to_string(), base)
    };
    let mut table: Table = toml::from_str(&text).map_err(|error| RecipeError::Syntax {
        origin: origin.clone(),
        fault: error.to_string(),
    })?;
    normalise(&mut table, &mut Vec::new());
    match table.remove("extends") {
        None => Ok((table, base)),
        Some(Value::String(parent)) => {
            let (mut under, parent_base) = load(&parent, base.as_deref().unwrap_or(directory), depth + 1)?;
            merge(&mut under, table);
            Ok((under, base.or(parent_base)))
        }
        Some(_) => Err(RecipeError::Value {
            origin,
            key: "extends".to_owned(),
            rule: "must be the name or path of a recipe".to_owned(),
        }),
    }
}

/// Lays `over` on `under`: tables are merged, everything else is replaced.
fn merge(under: &mut Table, over: Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

/// Spells every key in one way: hyphens in the tables of a recipe, underscores in those of the trainer.
fn normalise(table: &mut Table, path: &mut Vec<String>) {
    let foreign = FOREIGN
        .iter()
        .any(|prefix| path.len() >= prefix.len() && prefix.iter().zip(path.iter()).all(|(a, b)| a == b));
    let entries: Vec<(String, Value)> = std::mem::take(table).into_iter().collect();
    for (key, mut value) in entries {
        // The names of models are nobody's to spell.
        let key = if *path == ["evolution", "prices"] {
            key
        } else if foreign {
            key.replace('-', "_")
        } else {
            key.replace('_', "-")
        };
        if let Value::Table(inner) = &mut value {
            path.push(key.clone());
            normalise(inner, path);
            path.pop();
        }
        table.insert(key, value);
    }
}

fn apply(table: &mut Table, recipe: &str, key: &str, value: &Json) -> Result<(), RecipeError> {
    let spelled = key.replace('_', "-");
    let unknown = || RecipeError::Setting {
        recipe: recipe.to_owned(),
        key: key.to_owned(),
        known: known_settings(),
    };
    let value = to_toml(value).ok_or_else(|| RecipeError::Value {
        origin: recipe.to_owned(),
        key: key.to_owned(),
        rule: "must not be null; leave it out for the default".to_owned(),
    })?;
    let path: Vec<String> = if let Some((_, path)) = FLAT.iter().find(|(flat, _)| *flat == spelled) {
        path.iter().map(|&part| part.to_owned()).collect()
    } else {
        spelled.split('.').map(str::to_owned).collect()
    };
    let first = path.first().ok_or_else(unknown)?;
    if first != "training-mode" && !TABLES.contains(&first.as_str()) {
        return Err(unknown());
    }
    let mut nested = Table::new();
    let mut inner = value;
    for part in path.iter().rev() {
        let mut wrap = Table::new();
        wrap.insert(part.clone(), inner);
        inner = Value::Table(wrap);
    }
    if let Value::Table(wrap) = inner {
        nested = wrap;
    }
    normalise(&mut nested, &mut Vec::new());
    merge(table, nested);
    Ok(())
}

/// Every setting that may be given beside a recipe.
fn known_settings() -> String {
    FLAT.iter()
        .map(|(flat, _)| flat.replace('-', "_"))
        .chain(TABLES.iter().map(|table| format!("{table}.*")))
        .collect::<Vec<_>>()
        .join(", ")
}

fn to_toml(value: &Json) -> Option<Value> {
    Some(match value {
        Json::Null => return None,
        Json::Bool(value) => Value::Boolean(*value),
        Json::Number(value) => value
            .as_i64()
            .map(Value::Integer)
            .or_else(|| value.as_f64().map(Value::Float))?,
        Json::String(value) => Value::String(value.clone()),
        Json::Array(items) => Value::Array(items.iter().map(to_toml).collect::<Option<_>>()?),
        Json::Object(entries) => Value::Table(
            entries
                .iter()
                .map(|(key, value)| Some((key.clone(), to_toml(value)?)))
                .collect::<Option<_>>()?,
        ),
    })
}

fn one_line(text: &str) -> String {
    text.split('\n')
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::TrainingMode;
    use crate::recipe::{ProcessorKind, SelectorKind, SurfaceKind, TrainerKind};

    fn resolve(reference: &str, settings: Json) -> Result<Recipe, RecipeError> {
        let Json::Object(settings) = settings else {
            panic!("settings are an object")
        };
        Recipe::resolve(reference, &settings, Path::new("/nonexistent"))
    }

    #[test]
    fn every_built_in_recipe_is_whole_and_named_as_its_directory() {
        for built_in in &registry::BUILT_IN {
            let recipe = resolve(built_in.name, json!({})).unwrap();
            assert_eq!(recipe.name, built_in.name);
            assert!(!recipe.summary.is_empty(), "{}", built_in.name);
        }
    }

    #[test]
    fn the_announced_form_means_sao_with_its_flat_settings() {
        let recipe = resolve(
            "recipes.sao.recipe:SAORecipe",
            json!({"batch_size": 1, "max_staleness": 18}),
        )
        .unwrap();
        assert_eq!(recipe.name, "sao");
        assert_eq!((recipe.batch.size, recipe.batch.max_staleness), (1, 18));
        assert_eq!(recipe.processor.kind, ProcessorKind::Reported);
        assert_eq!(recipe.trainer.backend, TrainerKind::Torch);
        assert_eq!(recipe.surface.kind, SurfaceKind::LoraAdapter);
        assert_eq!(
            resolve("recipe", json!({})).unwrap().processor.kind,
            ProcessorKind::None
        );
    }

    #[test]
    fn hyphen_and_underscore_are_equal_and_tables_and_paths_reach_every_setting() {
        let one = resolve("sao", json!({"max-staleness": 3, "gate": {"minimum_effect": 0.1}})).unwrap();
        let other = resolve("sao", json!({"max_staleness": 3, "gate.minimum-effect": 0.1})).unwrap();
        assert_eq!(one, other);
        assert_eq!(one.digest(), other.digest());
        assert_ne!(one.digest(), resolve("sao", json!({})).unwrap().digest());
        let recipe = resolve("sao", json!({"trainer": {"optimizer": {"learning-rate": 0.001}}})).unwrap();
        assert!(recipe.trainer.optimizer.contains_key("learning_rate"));
        assert_eq!(
            resolve("sao", json!({"training_mode": "manual"}))
                .unwrap()
                .training_mode,
            TrainingMode::Manual
        );
    }

    #[test]
    fn unknown_names_keys_and_values_are_told_with_what_is_known() {
        let error = resolve("recipes.unheard.recipe:UnheardRecipe", json!({}))
            .unwrap_err()
            .to_string();
        assert!(error.contains("sao") && error.contains("grpo"), "{error}");
        let error = resolve("sao", json!({"optimization": {}})).unwrap_err().to_string();
        assert!(
            error.contains("optimization") && error.contains("batch_size"),
            "{error}"
        );
        let error = resolve("sao", json!({"batch": {"sise": 2}})).unwrap_err().to_string();
        assert!(error.contains("sise") && error.contains("max-staleness"), "{error}");
        let error = resolve("sao", json!({"batch_size": 0})).unwrap_err().to_string();
        assert!(error.contains("batch.size"), "{error}");
        let error = resolve("sao", json!({"batch_size": "1"})).unwrap_err().to_string();
        assert!(error.contains("size") || error.contains("integer"), "{error}");
        let error = resolve("sao", json!({"batch_size": null})).unwrap_err().to_string();
        assert!(error.contains("null"), "{error}");
    }

    #[test]
    fn a_users_recipe_extends_a_built_in_one_and_its_paths_start_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let text = "format = 1\nname = \"mine\"\nextends = \"grpo\"\n[gate]\nselector = \"paired\"\nevaluator = \"suite\"\nsuite = \"tasks\"\n";
        fs::write(dir.path().join("recipe.toml"), text).unwrap();
        for reference in [".", "recipe.toml"] {
            let recipe = Recipe::resolve(reference, &serde_json::Map::new(), dir.path()).unwrap();
            assert_eq!(
                (recipe.name.as_str(), recipe.gate.selector),
                ("mine", SelectorKind::Paired)
            );
            assert_eq!(recipe.objective.family, "grpo");
            assert_eq!(
                recipe.directory.as_deref().unwrap().canonicalize().unwrap(),
                dir.path().canonicalize().unwrap()
            );
        }
        fs::write(
            dir.path().join("recipe.toml"),
            "format = 1\nname = \"loop\"\nextends = \".\"\n",
        )
        .unwrap();
        let error = Recipe::resolve(".", &serde_json::Map::new(), dir.path())
            .unwrap_err()
            .to_string();
        assert!(error.contains("chain"), "{error}");
    }
}
