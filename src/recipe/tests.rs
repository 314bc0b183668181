//! A recipe as a deployment names it: what is wrong, and where it stands.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::json;

use super::*;
use crate::config::{ConfigError, Override, RECIPE_SHORT, RECIPE_TABLES, Settings, Sources, load};

/// Loads a deployment file with flags (`--reef.alpha=1`) and the recipe it names; other files stand beside it.
fn configured(text: &str, flags: &[&str], beside: &[(&str, &str)]) -> Result<Option<Recipe>, String> {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in beside {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    std::fs::write(dir.path().join("serve.yaml"), text).unwrap();
    let given = flags.iter().map(|flag| {
        let (flag, value) = flag.split_once('=').unwrap();
        Override {
            flag: flag.to_owned(),
            key: flag.trim_start_matches("--").to_owned(),
            value: Some(value.to_owned()),
            negated: false,
        }
    });
    let settings: Settings = load(&Sources {
        file: Some(PathBuf::from("serve.yaml")),
        overrides: given.collect(),
        env: BTreeMap::new(),
        directory: dir.path().to_owned(),
    })
    .map_err(|error| error.to_string())?;
    Recipe::configured(&settings)
        .map_err(|error: ConfigError| error.to_string().replace(&format!("{}/", dir.path().display()), ""))
}

#[test]
fn every_fault_of_a_recipe_names_file_line_and_key() {
    let paired = "reef:\n  recipe: sao\n  gate:\n    selector: paired\n";
    let cases = [
        (
            "reef:\n  recipe: sao\n  batch_size: 0\n",
            "serve.yaml:3: reef.batch_size: must be between 1 and 100000",
        ),
        (
            "reef:\n  recipe: sao\n  alpha: 2.0\n",
            "serve.yaml:3: reef.alpha: must lie strictly between 0 and 1",
        ),
        (
            "recipe:\n  implementation: sao\n  config:\n    batch-size: 0\n",
            "serve.yaml:4: recipe.config.batch-size: must be between 1 and 100000",
        ),
        (
            "recipe:\n  implementation: sao\n  config:\n    gate: {alpha: 2}\n",
            "serve.yaml:4: recipe.config.gate.alpha: must lie strictly between 0 and 1",
        ),
        (
            "reef:\n  recipe: sao\n  batch_size: \"1\"\n",
            "serve.yaml:3: reef.batch_size: expected an integer of at least 0, found text",
        ),
        (
            "reef:\n  recipe: sao\n  batch_size: -1\n",
            "serve.yaml:3: reef.batch_size: expected an integer of at least 0",
        ),
        (
            "reef:\n  recipe: sao\n  gate:\n    evaluator: sweet\n",
            "serve.yaml:4: reef.gate.evaluator: expected one of none, suite, holdout, program, episodes",
        ),
        (
            "reef:\n  recipe: sao\n  gate:\n    alfa: 1\n",
            "serve.yaml:4: reef.gate.alfa: unknown key (did you mean reef.gate.alpha?)",
        ),
        (
            "reef:\n  recipe: sao\n  prot: 1\n",
            "serve.yaml:3: reef.prot: unknown key (did you mean reef.port?)",
        ),
        (
            "reef:\n  recipe: sao\n  optimizer: {learning_rate: 1}\n",
            "serve.yaml:3: reef.optimizer: unknown key (did you mean reef.trainer.optimizer?)",
        ),
        (
            "reef:\n  recipe: sao\n  batch_size:\n",
            "serve.yaml:3: reef.batch_size: null is not allowed",
        ),
        (
            "reef:\n  recipe: sao\n  batch_size: 20000\n",
            "serve.yaml:3: reef.batch_size: batch.maximum-pending must hold at least one whole batch",
        ),
        (
            "reef:\n  recipe: nosuch\n",
            "serve.yaml:2: reef.recipe: there is no recipe \"nosuch\"",
        ),
        (
            "recipe:\n  implementation: nosuch\n",
            "serve.yaml:2: recipe.implementation: there is no recipe \"nosuch\"",
        ),
        (
            paired,
            "serve.yaml:4: reef.gate.selector: gate.evaluator is needed by this selector",
        ),
        (
            "reef:\n  recipe: sao\n  alpha: 0.1\n  gate: {alpha: 0.2}\n",
            "serve.yaml:4: reef.gate.alpha: is the same setting as alpha, which is given too",
        ),
    ];
    for (text, expected) in cases {
        let message = configured(text, &[], &[]).unwrap_err();
        assert!(
            message.contains(expected),
            "{text:?}\n  said: {message}\n  not:  {expected}"
        );
    }
}

#[test]
fn all_faults_of_a_recipe_are_told_at_once() {
    let text = "reef:\n  recipe: sao\n  batch_size: 0\n  alpha: 2\n  trainer: {timeout-s: 0}\n";
    let message = configured(text, &[], &[]).unwrap_err();
    assert!(message.starts_with("the configuration has 3 faults\n"), "{message}");
    let text = "reef:\n  recipe: sao\n  batch_size: x\n  alpha: y\n";
    let message = configured(text, &[], &[]).unwrap_err();
    assert!(
        message.contains("serve.yaml:3:") && message.contains("serve.yaml:4:"),
        "{message}"
    );
}

#[test]
fn a_recipe_file_names_its_own_lines() {
    let file = "reef:\n  recipe: recipe.toml\n";
    let mine = |rest: &str| format!("format = 1\nname = \"mine\"\nextends = \"sao\"\n{rest}");
    for (rest, expected) in [
        (
            "[gate]\nalpha = 2.0\n",
            "recipe.toml:5: gate.alpha: must lie strictly between 0 and 1",
        ),
        ("[gate]\nalfa = 2.0\n", "recipe.toml:5: gate.alfa: unknown key"),
        (
            "[batch]\nsize = \"1\"\n",
            "recipe.toml:5: batch.size: expected an integer of at least 0, found text",
        ),
        (
            "[batch]\nsize = 1\nsize = 2\n",
            "recipe.toml:6: size: the key is given twice",
        ),
        ("gate = 5\n", "recipe.toml:4: gate: expected a table, found an integer"),
    ] {
        let message = configured(file, &[], &[("recipe.toml", &mine(rest))]).unwrap_err();
        assert!(
            message.contains(expected),
            "{rest:?}\n  said: {message}\n  not:  {expected}"
        );
    }
    let lost = "format = 1\nname = \"mine\"\nextends = \"nosuch\"\n";
    let message = configured(file, &[], &[("recipe.toml", lost)]).unwrap_err();
    assert!(
        message.contains("recipe.toml:3: extends: there is no recipe \"nosuch\""),
        "{message}"
    );
    // What stands beside the recipe is told by its own place.
    let beside = "reef:\n  recipe: recipe.toml\n  alpha: 3\n";
    let message = configured(beside, &[], &[("recipe.toml", &mine("[gate]\nalpha = 0.1\n"))]).unwrap_err();
    assert!(
        message.contains("serve.yaml:3: reef.alpha: must lie strictly between 0 and 1"),
        "{message}"
    );
}

#[test]
fn a_flag_counts_and_does_not_hide_what_is_wrong_in_the_file() {
    let text = "reef:\n  recipe: sao\n  alpha: 0.1\n  gate: {margin: 3}\n";
    for flag in [
        "--reef.alpha=0.2",
        "--reef.gate.alpha=0.2",
        "--recipe.config.gate.alpha=0.2",
    ] {
        let recipe = configured(text, &[flag], &[]).unwrap().unwrap();
        assert_eq!((recipe.gate.alpha, recipe.gate.margin), (0.2, 3), "{flag}");
    }
    let wrong = "reef:\n  recipe: sao\n  alpha: 2.0\n";
    let message = configured(wrong, &["--reef.alpha=0.2"], &[]).unwrap_err();
    assert!(
        message.contains("serve.yaml:3: reef.alpha: must lie strictly"),
        "{message}"
    );
    let message = configured(text, &["--reef.alpha=5"], &[]).unwrap_err();
    assert!(message.contains("command line --reef.alpha: "), "{message}");
    for twice in [
        ["--reef.alpha=0.2", "--recipe.config.alpha=0.3"],
        ["--reef.alpha=0.2", "--reef.gate.alpha=0.3"],
    ] {
        let message = configured(text, &twice, &[]).unwrap_err();
        assert!(
            message.contains("twice") || message.contains("the same setting"),
            "{message}"
        );
    }
}

/// The keys that a table's struct knows, from what it says of one it does not.
fn known<T: DeserializeOwned>() -> Vec<String> {
    let Err(error) = serde_json::from_value::<T>(json!({"no such key": 1})) else {
        panic!("an unknown key was taken");
    };
    let message = error.to_string();
    let (_, list) = message.split_once(", expected ").unwrap();
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_listed_settings_are_those_that_are_read() {
    let of = |table: &str| -> Vec<String> {
        let (_, keys) = RECIPE_TABLES.iter().find(|(name, _)| *name == table).unwrap();
        keys.iter().map(|key| (*key).to_owned()).collect()
    };
    assert_eq!(of("processor"), known::<ProcessorSpec>());
    assert_eq!(of("batch"), known::<BatchSpec>());
    assert_eq!(of("objective"), known::<ObjectiveSpec>());
    assert_eq!(of("trainer"), known::<TrainerSpec>());
    assert_eq!(of("gate"), known::<GateSpec>());
    assert_eq!(of("surface"), known::<SurfaceSpec>());
    assert_eq!(of("budget"), known::<BudgetSpec>());
    assert_eq!(of("evolution"), known::<EvolutionSpec>());
    assert_eq!(of("evolution.episode"), known::<EpisodeSpec>());
    assert_eq!(of("evolution.budget"), known::<EvolutionBudget>());
    let tables: Vec<String> = known::<Recipe>();
    for (table, _) in RECIPE_TABLES {
        let first = table.split('.').next().unwrap();
        assert!(tables.iter().any(|known| known == first), "{table}");
    }
    for (short, path) in RECIPE_SHORT {
        let known = path
            .split_once('.')
            .is_none_or(|(table, key)| of(table).contains(&key.to_owned()));
        assert!(known, "{short}: {path}");
    }
}
