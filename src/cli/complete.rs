//! What a shell completes: commands and options from the definition, and names from the files of the deployment at hand
//! (scenarios, releases, records, models). It reads only, and where it cannot read it offers nothing.

use std::ffi::OsString;
use std::path::PathBuf;

use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};

use super::args::{Cli, GlobalArgs};
use super::{Context, format};
use crate::domain::ScenarioName;
use crate::engine::models::ModelStore;
use crate::experience::{Experience, Order, RecordQuery, StepQuery, StoreOptions};
use crate::harness::adapter::Adapters;

/// The variable by which a shell asks.
const VARIABLE: &str = "REEF_COMPLETE";
/// The newest releases and records that are offered.
const OFFERED: u32 = 50;

/// Answers a shell that asks for completions; false when this run is no such question.
pub(super) fn answer(argv: &[OsString]) -> bool {
    CompleteEnv::with_factory(commands)
        .var(VARIABLE)
        .bin("reef")
        .completer("reef")
        .try_complete(argv.iter().cloned(), std::env::current_dir().ok().as_deref())
        .unwrap_or(false)
}

/// The script that makes a shell ask.
pub(super) fn script(shell: &str) -> Option<String> {
    let shells = Shells::builtins();
    let shell = shells.completer(shell)?;
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "reef", "reef", "reef", &mut script)
        .ok()?;
    Some(String::from_utf8_lossy(&script).into_owned())
}

fn commands() -> clap::Command {
    attach(Cli::offered(), "")
}

fn attach(command: clap::Command, above: &str) -> clap::Command {
    let name = command.get_name().to_owned();
    let (of, parent) = (name.clone(), above.to_owned());
    command
        .mut_args(move |arg| {
            let Some(offers) = offers(&parent, &of, arg.get_id().as_str()) else {
                return arg;
            };
            arg.add(ArgValueCandidates::new(offers))
        })
        .mut_subcommands(move |below| attach(below, &name))
}

/// What an argument takes, where it is one of the names that the files know.
fn offers(parent: &str, command: &str, argument: &str) -> Option<fn() -> Vec<CompletionCandidate>> {
    Some(match (parent, command, argument) {
        ("scenario", "set" | "delete", "name") | (_, _, "scenario" | "scenarios") => scenarios,
        ("records", "show", "id") | (_, "report", "receipts") => records,
        ("harness", "install", "release") | (_, _, "release" | "releases" | "expect" | "against") => releases,
        ("release", "diff", "old" | "new") => releases,
        ("model", "show", "name") | ("bench", "model", "model") => models,
        (_, "serve", "model") => answering,
        (_, _, "adapter") | ("harness", "adapters", "name") => adapters,
        (_, _, "api" | "upstream_api") => || named(["openai", "responses", "anthropic"]),
        (_, "init", "template") => || super::cmd::templates().map(|(name, about)| told(name, about)).collect(),
        _ => return None,
    })
}

fn named<const N: usize>(names: [&str; N]) -> Vec<CompletionCandidate> {
    names.iter().map(CompletionCandidate::new).collect()
}

fn told(value: impl Into<OsString>, about: impl Into<String>) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(about.into().into()))
}

fn scenarios() -> Vec<CompletionCandidate> {
    let found = || store()?.scenarios(false).ok();
    let scenarios = found().unwrap_or_default();
    scenarios
        .into_iter()
        .map(|scenario| told(scenario.name.as_str(), format!("mode {}", scenario.mode.as_str())))
        .collect()
}

fn releases() -> Vec<CompletionCandidate> {
    let found = || {
        let store = store()?;
        let only: Vec<ScenarioName> = match typed(&["--scenario", "-s"]) {
            Some(name) => vec![ScenarioName::new(name).ok()?],
            None => store
                .scenarios(false)
                .ok()?
                .into_iter()
                .map(|found| found.name)
                .collect(),
        };
        let mut releases = vec![
            told("head", "the release that is served"),
            told("head~1", "the one before it"),
            told("base", "the one that scenarios start from"),
        ];
        for name in only {
            let query = StepQuery {
                limit: Some(OFFERED),
                ..StepQuery::default()
            };
            let steps = store.steps(&name, &query).ok()?;
            let made = steps
                .iter()
                .filter(|step| matches!(step.outcome.as_str(), "released" | "held"));
            releases.extend(made.map(|step| {
                let about = format!(
                    "{name} step {} {}, {}",
                    step.step,
                    step.outcome,
                    format::utc(step.at_us)
                );
                told(format::short(step.release.release_id.as_str()), about)
            }));
        }
        Some(releases)
    };
    found().unwrap_or_default()
}

fn records() -> Vec<CompletionCandidate> {
    let found = || {
        let query = RecordQuery {
            scenario: typed(&["--scenario", "-s"]).and_then(|name| ScenarioName::new(name).ok()),
            order: Order::NewestFirst,
            limit: OFFERED as usize,
            ..RecordQuery::default()
        };
        store()?.records(&query).ok()
    };
    let rows = found().unwrap_or_default();
    rows.iter()
        .map(|row| {
            let about = format!(
                "{} {}, {}",
                row.scenario,
                row.kind.as_str(),
                format::utc(row.created_us)
            );
            told(row.id.as_str(), about)
        })
        .collect()
}

fn models() -> Vec<CompletionCandidate> {
    let found = || {
        let dir = match typed(&["--models"]) {
            Some(dir) => PathBuf::from(dir),
            None => context().settings().ok()?.storage.dir.join("models"),
        };
        ModelStore::new(dir).list().ok()
    };
    let models = found().unwrap_or_default();
    models
        .into_iter()
        .map(|model| CompletionCandidate::new(model.name))
        .collect()
}

/// What answers requests: an imported model, or one of a known provider.
fn answering() -> Vec<CompletionCandidate> {
    let mut found = models();
    found.extend(["ollama/", "openai/", "anthropic/"].map(CompletionCandidate::new));
    found
}

fn adapters() -> Vec<CompletionCandidate> {
    let adapters = Adapters::built_in().ok();
    let found = adapters.as_ref().map(Adapters::iter).into_iter().flatten();
    found
        .map(|adapter| told(adapter.name.as_str(), adapter.title.as_str()))
        .collect()
}

fn store() -> Option<Experience> {
    let path = context().settings().ok()?.storage.experience_db();
    let options = StoreOptions {
        readers: 1,
        ..StoreOptions::default()
    };
    Experience::open_read_only(&path, options).ok()
}

/// The deployment that the line so far is about.
fn context() -> Context {
    let global = GlobalArgs {
        config: typed(&["--config", "-c"]).map(PathBuf::from),
        dir: typed(&["--dir"]).map(PathBuf::from),
        ..GlobalArgs::default()
    };
    Context::new(&global, Vec::new())
}

/// The value of an option on the line that is being completed.
fn typed(options: &[&str]) -> Option<String> {
    let words: Vec<String> = std::env::args().collect();
    words.iter().enumerate().find_map(|(at, word)| {
        let whole = options.iter().any(|option| word == option);
        if whole {
            return words.get(at + 1).cloned();
        }
        options
            .iter()
            .find_map(|option| word.strip_prefix(option)?.strip_prefix('=').map(str::to_owned))
    })
}
