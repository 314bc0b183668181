//! What is kept of each run: which receipts it got, so that it can be graded later. Bodies only where they were asked for.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::{ClientError, at};
use super::files::{private_dir, read_json, write_json};
use super::layout::Place;
use super::report;
use crate::sys::clock;
use crate::sys::task::{self, Thread};

/// Runs older than this are forgotten.
const KEEP_US: i64 = 30 * 24 * 3600 * 1_000_000;
/// Most runs that are kept.
const MAX_RUNS: usize = 500;
/// Most bytes that are kept, also of the bodies of one run.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// Most receipts of one run; what comes after them is only counted.
const MAX_TURNS: usize = 10_000;
const RUN: &str = ".run.json";
const BODIES: &str = ".bodies.jsonl";

/// One exchange with a receipt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The receipt.
    pub receipt: String,
    /// The route.
    pub path: String,
    /// Seconds since the Unix epoch when it began.
    pub at: f64,
    /// How long it took.
    pub duration_ms: u64,
}

/// One run of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The format of this file.
    pub version: u32,
    /// The run's id, also the session its exchanges are tagged with.
    pub run: String,
    /// The scenario.
    pub scenario: String,
    /// Root of the service that gave its receipts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The release it ran on.
    pub release_id: String,
    /// When it began, in microseconds since the Unix epoch.
    pub started_at_us: i64,
    /// When it ended; absent while it runs and after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_us: Option<i64>,
    /// How the agent ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Its exchanges.
    pub turns: Vec<Turn>,
    /// Answers that came without a receipt.
    #[serde(default)]
    pub without_receipt: u64,
}

impl Run {
    /// When something last happened in it, in microseconds since the Unix epoch: its end, or its last exchange.
    pub(super) fn last_us(&self) -> i64 {
        let exchanged = self.turns.last().map_or(self.started_at_us, |turn| {
            (turn.at * 1e6) as i64 + i64::try_from(turn.duration_ms).unwrap_or(0) * 1000
        });
        self.ended_at_us.unwrap_or(exchanged)
    }
}

/// Something worth writing down.
#[derive(Debug)]
pub(super) enum Note {
    Turn(Turn),
    WithoutReceipt,
    Bodies {
        receipt: String,
        request: Vec<u8>,
        response: Vec<u8>,
    },
    Ended(i32),
}

/// The runs of one installation.
#[derive(Debug, Clone)]
pub struct Spool {
    dir: PathBuf,
}

impl Spool {
    /// The spool of an installation.
    pub fn of(place: &Place) -> Self {
        Self { dir: place.runs() }
    }

    fn path(&self, run: &str) -> PathBuf {
        self.dir.join(format!("{run}{RUN}"))
    }

    /// Every run, newest first. A file that cannot be read, or is about another run than its name says, is left out.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = self
            .files()
            .filter(|path| path.to_string_lossy().ends_with(RUN))
            .filter_map(|path| {
                let run: Run = read_json(&path).ok().flatten()?;
                (self.path(&run.run) == path).then_some(run)
            })
            .collect();
        runs.sort_by(|a, b| b.run.cmp(&a.run));
        runs
    }

    fn files(&self) -> impl Iterator<Item = PathBuf> {
        fs::read_dir(&self.dir)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
    }

    /// Begins a run; what is noted about it is on disk a moment later, and all of it once [`Recorder::end`] returns.
    pub(super) fn begin(&self, run: Run) -> Result<Recorder, ClientError> {
        private_dir(&self.dir)?;
        let path = self.path(&run.run);
        write_json(&path, &run)?;
        let (notes, receiver) = mpsc::channel();
        let writer = task::thread("reef-spool", move || write_notes(&path, run, &receiver))
            .map_err(at("start a writer for", &self.dir))?;
        Ok(Recorder { notes, writer })
    }

    /// Forgets what is too old or too much: runs after thirty days, bodies before receipts, the oldest first. Runs whose
    /// reports wait stay, and so does the newest. Another session may be doing the same.
    pub(super) fn prune(&self, place: &Place) -> Result<(), ClientError> {
        let waiting: Vec<String> = report::waiting(place)?.into_iter().map(|report| report.run).collect();
        let now = clock::now_us();
        let size = |path: &Path| path.metadata().map_or(0, |meta| meta.len());
        let mut bytes: u64 = self.files().map(|path| size(&path)).sum();
        let mut runs = self.runs();
        // Oldest first.
        runs.reverse();
        for run in &runs {
            let path = self.path(&run.run).with_file_name(format!("{}{BODIES}", run.run));
            let length = size(&path);
            if bytes <= MAX_BYTES {
                break;
            }
            if length > 0 {
                remove(&path)?;
                bytes -= length.min(bytes);
            }
        }
        let mut left = runs.len();
        let newest = runs.pop();
        for run in runs
            .iter()
            .chain(newest.iter().filter(|run| now - run.started_at_us > KEEP_US))
        {
            let old = now - run.started_at_us > KEEP_US;
            if !old && left <= MAX_RUNS && bytes <= MAX_BYTES {
                break;
            }
            if waiting.contains(&run.run) {
                continue;
            }
            let begins = format!("{}.", run.run);
            for path in self.files() {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if name.starts_with(&begins) {
                    bytes -= size(&path).min(bytes);
                    remove(&path)?;
                }
            }
            left -= 1;
        }
        Ok(())
    }
}

/// Removes a file that somebody else may have removed.
fn remove(path: &Path) -> Result<(), ClientError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Takes notes of one run.
#[derive(Debug)]
pub(super) struct Recorder {
    notes: mpsc::Sender<Note>,
    writer: Thread<(Run, Option<ClientError>)>,
}

impl Recorder {
    pub(super) fn notes(&self) -> mpsc::Sender<Note> {
        self.notes.clone()
    }

    /// Writes down how it ended and waits for the disk. Whoever else holds a sender has to have dropped it.
    pub(super) fn end(self, exit_code: i32) -> (Option<Run>, Option<ClientError>) {
        let _writer_gone = self.notes.send(Note::Ended(exit_code));
        drop(self.notes);
        match self.writer.join() {
            Ok((run, fault)) => (Some(run), fault),
            Err(lost) => (None, Some(lost.into())),
        }
    }
}

fn write_notes(path: &Path, mut run: Run, notes: &mpsc::Receiver<Note>) -> (Run, Option<ClientError>) {
    let mut fault = None;
    let mut bodies = 0;
    while let Ok(first) = notes.recv() {
        let mut ended = false;
        // Whatever else waits is written with it.
        for note in std::iter::once(first).chain(notes.try_iter()) {
            match note {
                Note::Turn(turn) if run.turns.len() < MAX_TURNS => run.turns.push(turn),
                Note::Turn(_) | Note::WithoutReceipt => run.without_receipt += 1,
                Note::Bodies {
                    receipt,
                    request,
                    response,
                } => {
                    bodies += (request.len() + response.len()) as u64;
                    if bodies > MAX_BYTES {
                        continue;
                    }
                    if let Err(error) = append_bodies(path, &receipt, &request, &response) {
                        fault = Some(error);
                    }
                }
                Note::Ended(code) => {
                    run.ended_at_us = Some(clock::now_us());
                    run.exit_code = Some(code);
                    ended = true;
                }
            }
        }
        if let Err(error) = write_json(path, &run) {
            fault = Some(error);
        }
        if ended {
            break;
        }
    }
    (run, fault)
}

fn append_bodies(path: &Path, receipt: &str, request: &[u8], response: &[u8]) -> Result<(), ClientError> {
    let file = path.with_file_name(
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .replace(RUN, BODIES),
    );
    let text = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes).into_owned());
    let mut line = json!({"receipt": receipt, "request": text(request), "response": text(response)}).to_string();
    line.push('\n');
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&file)
        .and_then(|mut out| out.write_all(line.as_bytes()).and_then(|()| out.sync_data()))
        .map_err(at("write", &file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: &str, started_at_us: i64) -> Run {
        Run {
            version: 1,
            run: id.to_owned(),
            scenario: "s".to_owned(),
            url: None,
            release_id: "r".to_owned(),
            started_at_us,
            ended_at_us: None,
            exit_code: None,
            turns: Vec::new(),
            without_receipt: 0,
        }
    }

    /// A spool without runs, in a directory that goes with the first value.
    fn empty() -> (tempfile::TempDir, Place, Spool) {
        let dir = tempfile::tempdir().unwrap();
        let place = Place {
            dir: dir.path().to_path_buf(),
        };
        let spool = Spool::of(&place);
        private_dir(&place.runs()).unwrap();
        (dir, place, spool)
    }

    fn names(spool: &Spool) -> Vec<String> {
        let names = spool
            .files()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_old_goes_and_a_file_that_lies_takes_nothing_with_it() {
        let (_dir, place, spool) = empty();
        let now = clock::now_us();
        for (name, run) in [
            ("a1", run("a1", now - KEEP_US - 1)),
            ("a12", run("a12", now)),
            ("b", run("", 0)),
            ("c", run("a", 0)),
        ] {
            write_json(&spool.path(name), &run).unwrap();
        }
        spool.prune(&place).unwrap();
        assert_eq!(names(&spool), ["a12.run.json", "b.run.json", "c.run.json"]);
        assert_eq!(spool.runs().len(), 1);
    }

    #[test]
    fn bodies_go_before_receipts() {
        let (_dir, place, spool) = empty();
        let now = clock::now_us();
        for id in ["a", "b", "c"] {
            write_json(&spool.path(id), &run(id, now)).unwrap();
            let bodies = fs::File::create(place.runs().join(format!("{id}{BODIES}"))).unwrap();
            bodies.set_len(MAX_BYTES / 2).unwrap();
        }
        spool.prune(&place).unwrap();
        let kept = ["a.run.json", "b.run.json", "c.bodies.jsonl", "c.run.json"];
        assert_eq!(names(&spool), kept);
    }
}
