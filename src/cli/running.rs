//! The notes that running services leave for other commands: one file for each process in the run directory. A process
//! holds a lock on its note for as long as it lives, so that a note left by a kill says nothing.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::Settings;
use crate::sys::{clock, random};

use super::{CliError, Exit};

/// Where a service runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    /// Where it listens, or where `reef.served-url` says it is reached.
    pub(crate) url: String,
    /// Where this machine reaches it.
    pub(crate) local_url: String,
    /// Its process.
    pub(crate) pid: u32,
    /// When it began to listen, microseconds since the Unix epoch.
    pub(crate) since_us: i64,
}

/// The note as long as the service runs.
#[derive(Debug)]
pub(crate) struct Posted {
    path: PathBuf,
    url: String,
    _lock: File,
}

impl Posted {
    /// Where the service is reached.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

/// Leaves the note.
pub(crate) fn post(settings: &Settings, url: String, local_url: String) -> Result<Posted, CliError> {
    let dir = dir(settings);
    let note = Note {
        url,
        local_url,
        pid: std::process::id(),
        since_us: clock::now_us(),
    };
    let text = serde_json::to_vec(&note).map_err(|error| CliError::from_error(Exit::Unexpected, error))?;
    sweep(&dir);
    let path = dir.join(format!("{}-{}.json", note.pid, random::hex_token()));
    let leave = || -> io::Result<File> {
        fs::create_dir_all(&dir)?;
        // The note has its name only once it is locked: one without a lock is taken for left behind.
        let part = path.with_extension("part");
        let mut file = OpenOptions::new().create_new(true).write(true).open(&part)?;
        file.lock()?;
        file.write_all(&text)?;
        fs::rename(&part, &path)?;
        Ok(file)
    };
    let lock = leave().map_err(|error| {
        CliError::new(Exit::Usage, format!("cannot write {}: {error}", path.display()))
            .hint("reef.run-dir names another directory")
    })?;
    Ok(Posted {
        path,
        url: note.url,
        _lock: lock,
    })
}

/// The service that runs on these files, if one does: of several, the one that has run longest.
pub(crate) fn find(settings: &Settings) -> Option<Note> {
    all(settings).into_iter().next()
}

/// Every service that runs on these files, the one that has run longest first.
pub(crate) fn all(settings: &Settings) -> Vec<Note> {
    let mut notes: Vec<Note> = files(&dir(settings))
        .into_iter()
        .filter_map(|path| live(&path))
        .filter_map(|mut file| {
            let mut text = Vec::new();
            file.read_to_end(&mut text).ok()?;
            serde_json::from_slice(&text).ok()
        })
        .collect();
    notes.sort_by_key(|note: &Note| (note.since_us, note.pid));
    notes
}

/// The note, if its process lives.
fn live(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)).then_some(file)
}

/// Removes the notes of processes that were killed.
fn sweep(dir: &Path) {
    for path in files(dir) {
        if live(&path).is_none() {
            // The next service tries again.
            let _stays = fs::remove_file(&path);
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect()
}

fn dir(settings: &Settings) -> PathBuf {
    settings.run_dir().join("services")
}

impl Drop for Posted {
    fn drop(&mut self) {
        // A note that stays behind holds no lock any more.
        let _stays = fs::remove_file(&self.path);
    }
}
