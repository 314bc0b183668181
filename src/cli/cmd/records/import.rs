//! `reef records import`

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::cli::context::Store;
use crate::cli::progress::Progress;
use crate::cli::{CliError, Context, Exit, begin};
use crate::domain::ScenarioName;
use crate::experience::{Envelope, Insertion, Repeats, StoreError};
use crate::scenario::Publisher;

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
    #[arg(short, long, value_name = "NAME")]
    scenario: Option<ScenarioName>,
    /// Stop at the first line that is refused; otherwise it is named and the import goes on, to end with exit code 4
    #[arg(long)]
    strict: bool,
}

/// A line that was refused.
#[derive(Debug, Serialize)]
struct Refused {
    file: String,
    line: u64,
    reason: String,
}

#[derive(Debug, Default)]
struct Done {
    inserted: u64,
    already: u64,
    refused: Vec<Refused>,
}

/// Lines on their way into one transaction.
#[derive(Default)]
struct Chunk {
    envelopes: Vec<Envelope>,
    /// The line of each envelope.
    lines: Vec<u64>,
    bytes: usize,
}

/// One import under way.
struct Import<'a> {
    context: &'a Context,
    publisher: &'a Publisher,
    scenario: Option<&'a ScenarioName>,
    strict: bool,
    known: BTreeSet<ScenarioName>,
    repeats: Repeats,
    done: Done,
}

pub(super) fn run(context: &Context, args: &ImportArgs) -> Result<Exit, CliError> {
    let publisher = context.publisher(Store::Create)?;
    let mut progress = Progress::start(context.output(), "importing", None);
    let mut import = Import {
        context,
        publisher: &publisher,
        scenario: args.scenario.as_ref(),
        strict: args.strict,
        known: BTreeSet::new(),
        repeats: Repeats::default(),
        done: Done::default(),
    };
    for path in &args.files {
        import.file(path, &mut progress)?;
    }
    drop(progress);
    let Done {
        inserted,
        already,
        refused,
    } = import.done;
    let output = context.output();
    if output.json() {
        output.object(
            "imported",
            &json!({"inserted": inserted, "already_stored": already, "refused": refused}),
        )?;
    } else {
        let mut text = format!("imported {inserted} records; {already} were there already");
        if !refused.is_empty() {
            let lines = if refused.len() == 1 { "line was" } else { "lines were" };
            text = format!("{text}; {} {lines} refused", refused.len());
        }
        output.note(&text);
    }
    Ok(match (refused.is_empty(), inserted + already) {
        (true, _) => Exit::Ok,
        (false, 0) => Exit::Usage,
        (false, _) => Exit::Partial,
    })
}

impl Import<'_> {
    fn file(&mut self, path: &Path, progress: &mut Progress<'_>) -> Result<(), CliError> {
        let unreadable =
            |error: io::Error| CliError::new(Exit::Usage, format!("cannot read {}: {error}", path.display()));
        let mut reader: Box<dyn BufRead> = if path == Path::new("-") {
            Box::new(io::stdin().lock())
        } else {
            Box::new(BufReader::with_capacity(1 << 20, File::open(path).map_err(unreadable)?))
        };
        let mut chunk = Chunk::default();
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
                return Err(self.stop(path, number, "the line is longer than 512 MiB"));
            }
            match self.read(&line) {
                Ok(envelopes) => {
                    chunk.lines.extend(envelopes.iter().map(|_| number));
                    chunk.envelopes.extend(envelopes);
                    chunk.bytes += line.len();
                }
                Err(reason) => {
                    if self.strict {
                        self.store(path, std::mem::take(&mut chunk))?;
                    }
                    self.refuse(path, number, reason)?;
                }
            }
            let full = chunk.envelopes.len() >= CHUNK || chunk.bytes >= CHUNK_BYTES;
            if full || read == 0 {
                let stored = chunk.envelopes.len() as u64;
                self.store(path, std::mem::take(&mut chunk))?;
                progress.advance(stored);
            }
            if read == 0 {
                return Ok(());
            }
        }
    }

    fn read(&mut self, line: &[u8]) -> Result<Vec<Envelope>, String> {
        let text = std::str::from_utf8(line).map_err(|error| format!("the line is not UTF-8: {error}"))?;
        let text = text.trim_start_matches('\u{feff}').trim();
        if text.is_empty() {
            return Ok(Vec::new());
        }
        Envelope::from_line(text, self.scenario, &mut self.repeats).map_err(|error| error.to_string())
    }

    /// Stores what it can of a chunk. A transaction takes all or nothing, so what comes before a refused line goes first.
    fn store(&mut self, path: &Path, mut chunk: Chunk) -> Result<(), CliError> {
        while !chunk.envelopes.is_empty() {
            let (index, reason) = match self.context.block_on(self.append(chunk.envelopes.clone()))? {
                None => return Ok(()),
                Some(fault) => fault,
            };
            let number = chunk.lines.get(index).copied().unwrap_or(0);
            let starts = chunk.lines.iter().position(|line| *line == number).unwrap_or(index);
            let ends = chunk.lines.iter().rposition(|line| *line == number).unwrap_or(index) + 1;
            if starts > 0 {
                let before = Chunk {
                    envelopes: chunk.envelopes.drain(..starts).collect(),
                    lines: chunk.lines.drain(..starts).collect(),
                    bytes: 0,
                };
                self.store(path, before)?;
            }
            self.refuse(path, number, reason)?;
            chunk.envelopes.drain(..ends - starts);
            chunk.lines.drain(..ends - starts);
        }
        Ok(())
    }

    /// Stores all, or none and says which was refused and why.
    async fn append(&mut self, envelopes: Vec<Envelope>) -> Result<Option<(usize, String)>, CliError> {
        for envelope in &envelopes {
            if self.known.insert(envelope.scenario().clone()) {
                begin::ensure(self.context, self.publisher, envelope.scenario()).await?;
            }
        }
        match self.publisher.experience().import(envelopes).await {
            Ok(appended) => {
                for each in appended {
                    match each.outcome {
                        Insertion::Inserted => self.done.inserted += 1,
                        Insertion::AlreadyStored => self.done.already += 1,
                    }
                }
                Ok(None)
            }
            Err(StoreError::Item { index, source }) => Ok(Some((index, source.to_string()))),
            Err(error) => Err(error.into()),
        }
    }

    fn refuse(&mut self, path: &Path, number: u64, reason: String) -> Result<(), CliError> {
        if self.strict {
            return Err(self.stop(path, number, &reason));
        }
        self.context
            .output()
            .warn(&format!("{}:{number}: {reason}", path.display()));
        self.done.refused.push(Refused {
            file: path.display().to_string(),
            line: number,
            reason,
        });
        Ok(())
    }

    fn stop(&self, path: &Path, number: u64, what: &str) -> CliError {
        let stored = self.done.inserted + self.done.already;
        CliError::new(Exit::Usage, format!("{}:{number}: {what}", path.display())).hint(format!(
            "{stored} records before it are stored; correct the line and import the file again: what is stored is passed over"
        ))
    }
}
