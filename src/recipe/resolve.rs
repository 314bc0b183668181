//! From a reference and settings to a complete recipe.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};

use super::draft::{Draft, Told};
use super::{Recipe, registry};
use crate::config::{ConfigError, Fault, Node, Settings, Source, Table, read_toml};

/// How many recipes one may extend in a row.
const MAX_DEPTH: usize = 8;

/// Tables whose keys belong to the trainer: it spells them with underscores.
const FOREIGN: [&[&str]; 4] = [
    &["objective", "settings"],
    &["trainer", "optimizer"],
    &["trainer", "lora"],
    &["trainer", "settings"],
];

impl Recipe {
    /// The recipe that a deployment names; `None` when it names none. Every fault has the place of its value.
    pub fn configured(settings: &Settings) -> Result<Option<Self>, ConfigError> {
        let Some(reference) = &settings.recipe.implementation else {
            return Ok(None);
        };
        let directory = settings.file_directory();
        let empty = Node::empty_map(Source::Default);
        let resolve = |config: &Table| Self::resolve(reference, config.node().unwrap_or(&empty), &directory);
        let (config, of_the_file) = (&settings.recipe.config, settings.recipe_of_the_file());
        let recipe = resolve(config);
        // What a flag overrides is held to the rules too.
        let mut faults = match resolve(of_the_file) {
            Err(ConfigError::Invalid { faults }) => faults,
            _ => Vec::new(),
        };
        faults.retain(|fault| is_overridden(fault, config, of_the_file));
        match recipe {
            Ok(recipe) if faults.is_empty() => return Ok(Some(recipe)),
            Ok(_) => {}
            Err(ConfigError::Invalid { faults: more }) => faults.extend(more),
            Err(error) => return Err(error),
        }
        let placed: Vec<Fault> = faults.into_iter().map(|fault| placed(settings, fault)).collect();
        Err(placed.into())
    }

    /// The recipe `reference` names, with `settings` over it.
    ///
    /// A reference is the name of a built-in recipe, a dotted upstream reference, or a path to a `recipe.toml` or to the
    /// directory that holds one; a relative path starts at `directory`. A setting is a flat one (`batch_size`), a table
    /// of the recipe (`gate`, with keys inside), or a dotted path (`gate.alpha`). Hyphen and underscore are equal.
    pub fn resolve(reference: &str, settings: &Node, directory: &Path) -> Result<Self, ConfigError> {
        let (tree, base) = load(reference, None, directory, 0)?;
        let mut draft = Draft::new(tree);
        draft.lay(settings);
        let mut recipe = draft.read(&|tree| spelled(tree, &mut Vec::new()))?;
        recipe.directory = base;
        Ok(recipe)
    }

    /// Something wrong with the value of a key (`trainer.optimizer.learning_rate`), at the place where it stands.
    pub fn fault_at(&self, settings: &Settings, key: &str, problem: &str) -> Fault {
        let told = Told::new(problem, "something else");
        let mut fault = self.places.fault(key, &[], &told.problem);
        fault.hint = told.hint(key);
        placed(settings, fault)
    }

    /// SHA-256 of the complete recipe, for provenance: it changes when any value does.
    pub fn digest(&self) -> String {
        // Serialising plain tables cannot fail; an empty text would only make the digest useless, not wrong.
        let text = toml::to_string(self).unwrap_or_default();
        hex::encode(Sha256::digest(text.as_bytes()))
    }
}

/// Whether a fault of the file stands in a value that a flag replaces. What refers to a variable may need it only where
/// no flag replaces it.
fn is_overridden(fault: &Fault, config: &Table, of_the_file: &Table) -> bool {
    let key = fault.key.strip_prefix("recipe.config.").unwrap_or(&fault.key);
    let written = of_the_file.node().and_then(|node| node.at(key));
    let used = config.node().and_then(|node| node.at(key));
    written.is_some_and(|written| {
        !written.refers()
            && matches!(fault.source, Source::File { .. })
            && used.is_some_and(|used| used.source() != written.source())
    })
}

/// The fault with its key as the deployment file has it. A value that nobody gave is the choice of the recipe.
fn placed(settings: &Settings, fault: Fault) -> Fault {
    let Fault {
        source,
        key,
        problem,
        hint,
    } = fault;
    let mut placed = match source {
        Source::Default => settings.fault("recipe.implementation", format!("{key} {problem}").trim_start()),
        source => settings.fault_at(source, &key, problem),
    };
    placed.hint = hint;
    placed
}

/// The tree of a recipe with those it extends below it, and the directory of the one named. `extends` is where the
/// reference stands, for one in a file.
fn load(
    reference: &str,
    extends: Option<&Source>,
    directory: &Path,
    depth: usize,
) -> Result<(Node, Option<PathBuf>), ConfigError> {
    let refuse = |problem: String| match extends {
        Some(source) => ConfigError::from(Fault::new(source.clone(), "extends", problem)),
        None => Fault::new(Source::Default, "", problem).into(),
    };
    if depth == MAX_DEPTH {
        return Err(refuse(format!("forms a chain of more than {MAX_DEPTH} recipes")));
    }
    let (mut tree, base) = if let Some(built_in) = registry::find(reference) {
        (read_toml(built_in.text, None)?, None)
    } else {
        let mut path = directory.join(reference);
        if path.is_dir() {
            path.push("recipe.toml");
        }
        if !path.is_file() {
            return Err(refuse(format!(
                "there is no recipe \"{reference}\"; built-in recipes are {}, or name a directory that holds recipe.toml",
                registry::names()
            )));
        }
        let text = fs::read_to_string(&path)
            .map_err(|error| refuse(format!("the recipe file {} cannot be read: {error}", path.display())))?;
        let base = path.parent().map(Path::to_path_buf);
        (read_toml(&text, Some(&path))?, base)
    };
    let Some(parent) = tree.remove("extends") else {
        return Ok((tree, base));
    };
    let Json::String(name) = parent.to_json() else {
        let fault = Fault::new(
            parent.source().clone(),
            "extends",
            "expected the name or the path of a recipe",
        );
        return Err(fault.into());
    };
    let from = base.as_deref().unwrap_or(directory);
    let (mut under, parent_base) = load(&name, Some(parent.source()), from, depth + 1)?;
    under.merge(tree);
    Ok((under, base.or(parent_base)))
}

/// The tree with its keys spelled in one way: hyphens in the tables of a recipe, underscores in those of the trainer.
fn spelled(node: &Node, path: &mut Vec<String>) -> Json {
    if node.kind() != "a table" {
        return node.to_json();
    }
    let foreign = FOREIGN
        .iter()
        .any(|prefix| path.len() >= prefix.len() && prefix.iter().zip(path.iter()).all(|(a, b)| a == b));
    // The names of models are nobody's to spell.
    let models = *path == ["evolution", "prices"];
    let mut object = Map::new();
    for (key, child) in node.children() {
        let key = match (models, foreign) {
            (true, _) => key.to_owned(),
            (_, true) => key.replace('-', "_"),
            _ => key.replace('_', "-"),
        };
        path.push(key.clone());
        object.insert(key, spelled(child, path));
        path.pop();
    }
    Json::Object(object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::TrainingMode;
    use crate::recipe::{ProcessorKind, SelectorKind, SurfaceKind, TrainerKind};

    #[allow(clippy::needless_pass_by_value, reason = "it reads best at the call")]
    fn resolve(reference: &str, settings: Json) -> Result<Recipe, ConfigError> {
        let settings = Node::from_json(&settings, &Source::CommandLine("--x".into()));
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
        assert!(error.contains("recipe.config.optimization: unknown key"), "{error}");
        let error = resolve("sao", json!({"batch": {"sise": 2}})).unwrap_err().to_string();
        assert!(error.contains("recipe.config.batch.sise: unknown key"), "{error}");
        let error = resolve("sao", json!({"batch_size": 0})).unwrap_err().to_string();
        assert!(error.contains("recipe.config.batch_size: must be between 1"), "{error}");
        let error = resolve("sao", json!({"batch_size": "1"})).unwrap_err().to_string();
        assert!(
            error.contains("expected an integer of at least 0, found text"),
            "{error}"
        );
        let error = resolve("sao", json!({"batch_size": null})).unwrap_err().to_string();
        assert!(error.contains("null"), "{error}");
    }

    #[test]
    fn a_users_recipe_extends_a_built_in_one_and_its_paths_start_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let text = "format = 1\nname = \"mine\"\nextends = \"grpo\"\n[gate]\nselector = \"paired\"\nevaluator = \"suite\"\nsuite = \"tasks\"\n";
        fs::write(dir.path().join("recipe.toml"), text).unwrap();
        for reference in [".", "recipe.toml"] {
            let recipe = Recipe::resolve(reference, &Node::empty_map(Source::Default), dir.path()).unwrap();
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
        let error = Recipe::resolve(".", &Node::empty_map(Source::Default), dir.path())
            .unwrap_err()
            .to_string();
        assert!(error.contains("chain"), "{error}");
    }
}
