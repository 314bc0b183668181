//! What the reference says of settings is what the program does with them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::CommandFactory;

use super::args::Cli;
use super::{engines, learning};
use crate::config::{EngineKind, Override, Settings, Sources, load, markdown};
use crate::harness::adapter::Adapters;

/// Settings given as `key=value`.
fn settings(directory: &Path, given: &[&str]) -> Settings {
    let overrides = given.iter().map(|given| {
        let (key, value) = given.split_once('=').unwrap();
        Override {
            flag: format!("--{key}"),
            key: key.to_owned(),
            value: Some(value.to_owned()),
            negated: false,
        }
    });
    load(&Sources {
        file: None,
        overrides: overrides.collect(),
        env: BTreeMap::new(),
        directory: directory.to_owned(),
    })
    .unwrap_or_else(|error| panic!("{error}"))
}

/// The rows of the reference: key and description.
fn rows() -> Vec<(String, String)> {
    let text = markdown();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let (key, rest) = row.split_once("` |").unwrap();
        let description = rest.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        (key.to_owned(), description.to_owned())
    })
    .collect()
}

fn description(key: &str) -> String {
    let row = rows().into_iter().find(|(row, _)| row == key);
    row.unwrap_or_else(|| panic!("{key} is not in the reference")).1
}

fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// A model's directory as far as the settings look into it.
fn model(directory: &Path) -> String {
    let dir = directory.join("tiny");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("config.json"), "{}").unwrap();
    format!("inference.model-path={}", dir.display())
}

#[test]
fn every_default_told_in_words_is_what_happens() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let with_model = model(here);
    let plain = settings(here, &[]);
    let embedded = settings(here, &[&with_model, "inference.dtype=float32"]);
    let options = engines::torch_options(&embedded).unwrap();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let held: BTreeMap<&str, bool> = BTreeMap::from([
        ("reef.run-dir", plain.run_dir() == plain.storage.dir.join("run")),
        (
            "inference.engine",
            plain.inference.engine() == EngineKind::Upstream && embedded.inference.engine() == EngineKind::Torch,
        ),
        (
            "inference.retry-timeout-s",
            settings(here, &["inference.timeout-s=7"])
                .inference
                .retry_timeout()
                .as_secs()
                == 7,
        ),
        (
            "inference.model-name",
            engines::embedded_model(&embedded).unwrap().unwrap().1 == "tiny",
        ),
        ("inference.threads", options.threads == cores),
        ("inference.context", options.max_context.is_none()),
        ("inference.memory", options.memory_budget.is_none()),
        ("inference.sampling-defaults", options.sampling == Default::default()),
        ("inference.tool-call-parser", options.tool_calls.is_none()),
        ("training.threads", {
            let recipe = learning::recipe(&settings(here, &["reef.recipe=sao"]))
                .unwrap()
                .unwrap();
            !recipe.trainer.settings.contains_key("threads")
        }),
    ]);
    let told: BTreeSet<String> = rows()
        .into_iter()
        .filter(|(_, description)| description.contains("[default: "))
        .map(|(key, _)| key)
        .collect();
    let tried: BTreeSet<String> = held.keys().map(|key| (*key).to_owned()).collect();
    assert_eq!(told, tried, "a default that is told in words is tried here");
    for (key, holds) in held {
        assert!(holds, "{key}: {}", description(key));
    }
}

#[test]
fn every_documented_value_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let with_model = model(here);
    let plain = settings(here, &[]);
    assert_eq!(plain.inference.device, "cpu");
    for device in ["cpu", "cuda", "cuda:0", "cuda:3"] {
        let device = format!("inference.device={device}");
        let settings = settings(here, &[&with_model, "inference.dtype=float32", &device]);
        assert!(engines::torch_options(&settings).is_ok(), "{device}");
    }
    for precision in ["float32", "bfloat16"] {
        let precision = format!("inference.dtype={precision}");
        assert!(
            engines::torch_options(&settings(here, &[&with_model, &precision])).is_ok(),
            "{precision}"
        );
    }
    for level in ["error", "warn", "info", "debug", "trace", "info,reef::serve=debug"] {
        assert!(description("observability.log").contains(level), "{level}");
        settings(here, &[&format!("observability.log={level}")]);
    }
    let adapters = Adapters::built_in().unwrap();
    let known: BTreeSet<&str> = adapters.names().into_iter().chain(["harness.adapters"]).collect();
    assert_eq!(quoted(&description("harness.adapter")), known);
    let text = description("recipe.implementation");
    let dotted = quoted(&text).into_iter().find(|word| word.contains(':')).unwrap();
    let named = settings(here, &[&format!("reef.recipe={dotted}")]);
    assert_eq!(learning::recipe(&named).unwrap().unwrap().name, "sao");
    let own = ["inference.upstream-url=http://h:1", "inference.sampling-defaults={}"];
    for (given, key) in [
        ("inference.url=http://h:1", "inference.url"),
        (own[0], "inference.upstream-url"),
    ] {
        assert_eq!(
            settings(here, &[given]).inference.provider_url().map(|url| &**url),
            Some("http://h:1"),
            "{key}"
        );
    }
    // The keys of a table that are listed are the keys that are read.
    let text = description("inference.sampling-defaults");
    for key in quoted(text.split('[').next().unwrap()) {
        let given = format!("inference.sampling-defaults={{{key}: 0.5}}");
        let with = settings(here, &[&with_model, "inference.dtype=float32", &given]);
        assert!(engines::torch_options(&with).is_ok(), "{key}");
    }
    let unknown = settings(
        here,
        &[
            &with_model,
            "inference.dtype=float32",
            "inference.sampling-defaults={heat: 1}",
        ],
    );
    assert!(engines::torch_options(&unknown).is_err());
}

#[test]
fn the_defaults_in_the_help_of_serve_are_those_of_the_settings() {
    let dir = tempfile::tempdir().unwrap();
    let plain = settings(dir.path(), &[]);
    let rows = plain.rows();
    let mut tried = 0;
    let cli = Cli::command();
    let serve = cli.find_subcommand("serve").unwrap();
    for argument in serve.get_arguments() {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let Some(told) = help.split("[default: ").nth(1).and_then(|rest| rest.split(']').next()) else {
            continue;
        };
        let name = argument.get_long().unwrap();
        let row = rows.iter().find(|row| row.key == format!("reef.{name}"));
        if let Some(row) = row {
            let value = row.value.as_str().map_or_else(|| row.value.to_string(), str::to_owned);
            assert_eq!(told, value, "--{name}");
            tried += 1;
        }
    }
    assert_eq!(tried, 2);
}
