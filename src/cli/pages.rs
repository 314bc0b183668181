//! Pages for a browser that commands write: `--plot`, `--report`, `--html`.

use std::path::Path;

use super::cmd::dash::source;
use super::context::Store;
use super::{CliError, Context, Exit};
use crate::dash::{
    Evidence, Fault, Focus, Snapshot, Source, Want, chain_page, record_facts, records_page, training_page,
};
use crate::domain::ScenarioName;
use crate::experience::{Order, RecordQuery};
use crate::sys::{access, durable};

/// The newest records of a scenario that are drawn.
const RECORDS: usize = 20_000;
/// The newest steps whose evidence is written.
const JUDGED: usize = 200;

/// What was recorded.
pub(crate) fn records(context: &Context, path: &Path, only: Option<&ScenarioName>) -> Result<(), CliError> {
    let store = context.store(Store::Shown)?;
    let snapshot = source(context, None)?
        .snapshot(&Want::default())
        .map_err(CliError::from)?;
    let mut scenarios = Vec::new();
    for name in names(&snapshot, only) {
        let rows = store.records(&RecordQuery {
            scenario: Some(ScenarioName::new(name.clone()).map_err(|error| CliError::from_error(Exit::Store, error))?),
            order: Order::NewestFirst,
            limit: RECORDS,
            ..RecordQuery::default()
        })?;
        scenarios.push((name, rows.iter().map(record_facts).collect()));
    }
    write(context, path, &records_page(&snapshot, &scenarios)?)
}

/// How training went.
pub(crate) fn training(context: &Context, path: &Path, only: &[ScenarioName]) -> Result<(), CliError> {
    let mut source = source(context, None)?;
    let mut snapshot = source.snapshot(&Want::default())?;
    let wanted: Vec<String> = if only.is_empty() {
        names(&snapshot, None)
    } else {
        only.iter().map(ScenarioName::to_string).collect()
    };
    let mut scenarios = Vec::new();
    for name in wanted {
        let (now, focus, evidence) = look_into(source.as_mut(), &name)?;
        snapshot = now;
        scenarios.push((focus, evidence));
    }
    write(context, path, &training_page(&snapshot, &scenarios)?)
}

/// The chain of one scenario.
pub(crate) fn chain(context: &Context, path: &Path, scenario: &ScenarioName) -> Result<(), CliError> {
    let mut source = source(context, None)?;
    let (snapshot, focus, evidence) = look_into(source.as_mut(), scenario.as_str())?;
    write(context, path, &chain_page(&snapshot, &focus, &evidence)?)
}

/// Whether a page can be written there, for work that takes long before it has one.
pub(crate) fn check(path: &Path) -> Result<(), CliError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let probe = parent
        .unwrap_or(Path::new("."))
        .join(format!(".reef-page-{}", crate::sys::random::hex_token()));
    if path.is_dir() {
        return Err(unwritable(
            path,
            &std::io::Error::from(std::io::ErrorKind::IsADirectory),
        ));
    }
    std::fs::write(&probe, b"").map_err(|error| unwritable(path, &error))?;
    // Nothing depends on it being gone.
    let _ignored = std::fs::remove_file(&probe);
    Ok(())
}

fn unwritable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::new(Exit::Usage, format!("cannot write {}: {error}", path.display()))
        .hint("name a file in a directory that exists and can be written to")
}

fn names(snapshot: &Snapshot, only: Option<&ScenarioName>) -> Vec<String> {
    let all = snapshot.scenarios.iter().map(|facts| facts.name.clone());
    all.filter(|name| only.is_none_or(|only| only.as_str() == name))
        .collect()
}

fn look_into(source: &mut dyn Source, name: &str) -> Result<(Snapshot, Focus, Vec<Evidence>), CliError> {
    let snapshot = source.snapshot(&Want {
        scenario: Some(name.to_owned()),
        ..Want::default()
    })?;
    let focus = snapshot
        .focus
        .clone()
        .filter(|focus| focus.scenario == name)
        .ok_or_else(|| {
            CliError::new(Exit::Usage, format!("there is no scenario {name}"))
                .hint("reef scenario list shows the scenarios there are")
        })?;
    let mut evidence = Vec::new();
    for step in focus.steps.iter().filter(|step| step.batch.is_some()).take(JUDGED) {
        evidence.push(source.evidence(name, step.step)?);
    }
    Ok((snapshot, focus, evidence))
}

fn write(context: &Context, path: &Path, page: &str) -> Result<(), CliError> {
    // A page is made for a person, who may want to publish it: its mode is that of any file they make.
    let mode = 0o666 & !access::given_umask();
    durable::write_mode(path, page.as_bytes(), mode).map_err(|error| unwritable(path, &error))?;
    // With --json the command says so itself, within what else it prints.
    context.output().note(&format!("wrote {}", path.display()));
    Ok(())
}

impl From<Fault> for CliError {
    fn from(fault: Fault) -> Self {
        let error = Self::new(Exit::Usage, fault.message);
        match fault.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}
