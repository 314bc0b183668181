//! `reef records import`

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::cli::context::Store;
use crate::cli::progress::Progress;
use crate::cli::{CliError, Context, Exit};
use crate::domain::{ScenarioName, TrainingMode};
use crate::experience::{Envelope, Experience, Insertion, StoreError};

/// Records in one transaction, at most; a line gives one or two.
const CHUNK: usize = 500;
/// And so many bytes of lines.
const CHUNK_BYTES: usize = 16 * 1024 * 1024;
/// A longer line is taken for a file of another kind.
const MAX_LINE: u64 = 512 * 1024 * 1024;

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// Files of JSON lines; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The scenario to import into; needed unless every line is of an export, which names its own
    #[arg(long, value_name = "NAME")]
    scenario: Option<ScenarioName>,
}

#[derive(Debug, Default)]
struct Done {
    inserted: u64,
    already: u64,
}

/// Lines on their way into one transaction.
#[derive(Default)]
struct Chunk {
    envelopes: Vec<Envelope>,
    /// The line of each envelope.
    lines: Vec<u64>,
    bytes: usize,
}

pub(super) fn run(context: &Context, args: &ImportArgs) -> Result<Exit, CliError> {
    let store = context.store(Store::Create)?;
    let mut progress = Progress::start(context.output(), "importing", None);
    let mut done = Done::default();
    for path in &args.files {
        file(context, &store, path, args.scenario.as_ref(), &mut done, &mut progress)?;
    }
    drop(progress);
    let output = context.output();
    if output.json() {
        output.object(
            "imported",
            &json!({"inserted": done.inserted, "already_stored": done.already}),
        )?;
    } else {
        output.note(&format!(
            "imported {} records; {} were there already",
            done.inserted, done.already
        ));
    }
    Ok(Exit::Ok)
}

fn file(
    context: &Context,
    store: &Experience,
    path: &Path,
    scenario: Option<&ScenarioName>,
    done: &mut Done,
    progress: &mut Progress<'_>,
) -> Result<(), CliError> {
    let unreadable = |error: io::Error| CliError::new(Exit::Usage, format!("cannot read {}: {error}", path.display()));
    let mut reader: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::with_capacity(1 << 20, File::open(path).map_err(unreadable)?))
    };
    let mut chunk = Chunk::default();
    let mut known = BTreeSet::new();
    let mut number = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader
            .by_ref()
            .take(MAX_LINE)
            .read_until(b'\n', &mut line)
            .map_err(unreadable)?;
        number += 1;
        if read as u64 == MAX_LINE {
            return Err(bad_line(path, number, "the line is longer than 512 MiB", done));
        }
        if read > 0 {
            let text = std::str::from_utf8(&line)
                .map_err(|error| bad_line(path, number, &format!("the line is not UTF-8: {error}"), done))?;
            let text = text.trim_start_matches('\u{feff}').trim();
            if !text.is_empty() {
                let read = Envelope::from_line(text, scenario)
                    .map_err(|error| bad_line(path, number, &error.to_string(), done))?;
                chunk.lines.extend(read.iter().map(|_| number));
                chunk.envelopes.extend(read);
                chunk.bytes += text.len();
            }
        }
        let full = chunk.envelopes.len() >= CHUNK || chunk.bytes >= CHUNK_BYTES;
        if (full || read == 0) && !chunk.envelopes.is_empty() {
            let stored = chunk.envelopes.len() as u64;
            context.block_on(flush(store, path, std::mem::take(&mut chunk), &mut known, done))?;
            progress.advance(stored);
        }
        if read == 0 {
            return Ok(());
        }
    }
}

async fn flush(
    store: &Experience,
    path: &Path,
    chunk: Chunk,
    known: &mut BTreeSet<ScenarioName>,
    done: &mut Done,
) -> Result<(), CliError> {
    for envelope in &chunk.envelopes {
        if known.insert(envelope.scenario().clone()) {
            store
                .scenario_create(
                    envelope.scenario().clone(),
                    TrainingMode::default(),
                    serde_json::Map::new(),
                )
                .await?;
        }
    }
    let lines = chunk.lines;
    match store.import(chunk.envelopes).await {
        Ok(appended) => {
            for each in appended {
                match each.outcome {
                    Insertion::Inserted => done.inserted += 1,
                    Insertion::AlreadyStored => done.already += 1,
                }
            }
            Ok(())
        }
        Err(StoreError::Item { index, source }) => {
            let number = lines.get(index).copied().unwrap_or(0);
            Err(bad_line(path, number, &source.to_string(), done))
        }
        Err(error) => Err(error.into()),
    }
}

fn bad_line(path: &Path, number: u64, what: &str, done: &Done) -> CliError {
    let stored = done.inserted + done.already;
    CliError::new(Exit::Usage, format!("{}:{number}: {what}", path.display())).hint(format!(
        "{stored} records before it are stored; correct the line and import the file again: what is stored is passed over"
    ))
}
