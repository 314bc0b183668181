//! What is kept of each run: which receipts it got, so that it can be graded later. Bodies only where they were asked for.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::{ClientError, at};
use super::files::{private_dir, read_json, write_json};
use super::layout::Place;
use super::report;
use crate::sys::clock;

/// Runs older than this are forgotten.
const KEEP_US: i64 = 30 * 24 * 3600 * 1_000_000;
/// Most runs that are kept.
const MAX_RUNS: usize = 500;
/// Most bytes that are kept.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

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
        self.dir.join(format!("{run}.run.json"))
    }

    /// Every run, newest first. A file that cannot be read is left out.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = self
            .files()
            .filter(|path| path.to_string_lossy().ends_with(".run.json"))
            .filter_map(|path| read_json(&path).ok().flatten())
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
        let writer = std::thread::Builder::new()
            .name("reef-spool".to_owned())
            .spawn(move || write_notes(&path, run, &receiver))
            .map_err(at("start a writer for", &self.dir))?;
        Ok(Recorder { notes, writer })
    }

    /// Forgets old runs: after thirty days, or when there are more than fit. Those whose reports wait are kept longest.
    pub(super) fn prune(&self, place: &Place) -> Result<(), ClientError> {
        let waiting: Vec<String> = report::waiting(place)?.into_iter().map(|report| report.run).collect();
        let now = clock::now_us();
        let mut bytes: u64 = self.files().filter_map(|path| Some(path.metadata().ok()?.len())).sum();
        let runs = self.runs();
        let mut left = runs.len();
        for run in runs.iter().rev().filter(|run| !waiting.contains(&run.run)) {
            let old = now - run.started_at_us > KEEP_US;
            if !old && left <= MAX_RUNS && bytes <= MAX_BYTES {
                break;
            }
            let mine: Vec<PathBuf> = self
                .files()
                .filter(|path| {
                    path.file_name()
                        .is_some_and(|name| name.to_string_lossy().starts_with(&run.run))
                })
                .collect();
            for path in mine {
                bytes -= path.metadata().map_or(0, |meta| meta.len()).min(bytes);
                fs::remove_file(&path).map_err(at("remove", &path))?;
            }
            left -= 1;
        }
        Ok(())
    }
}

/// Takes notes of one run.
#[derive(Debug)]
pub(super) struct Recorder {
    notes: mpsc::Sender<Note>,
    writer: JoinHandle<(Run, Option<ClientError>)>,
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
            Err(_) => (None, None),
        }
    }
}

fn write_notes(path: &Path, mut run: Run, notes: &mpsc::Receiver<Note>) -> (Run, Option<ClientError>) {
    let mut fault = None;
    while let Ok(first) = notes.recv() {
        let mut ended = false;
        // Whatever else waits is written with it.
        for note in std::iter::once(first).chain(notes.try_iter()) {
            match note {
                Note::Turn(turn) => run.turns.push(turn),
                Note::WithoutReceipt => run.without_receipt += 1,
                Note::Bodies {
                    receipt,
                    request,
                    response,
                } => {
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
            .replace(".run.json", ".bodies.jsonl"),
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
