//! The note a running service leaves for other commands: `serve.json` in its run directory.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::Settings;

use super::{CliError, Exit};

/// Where a service runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    /// Where it listens, or where `reef.served-url` says it is reached.
    pub(crate) url: String,
    /// Its process.
    pub(crate) pid: u32,
}

/// The note as long as the service runs.
#[derive(Debug)]
pub(crate) struct Posted {
    path: PathBuf,
    note: Note,
}

impl Posted {
    /// Where the service is reached.
    pub(crate) fn url(&self) -> &str {
        &self.note.url
    }
}

/// Leaves the note.
pub(crate) fn post(settings: &Settings, url: String) -> Result<Posted, CliError> {
    let path = path(settings);
    let note = Note {
        url,
        pid: std::process::id(),
    };
    let text = serde_json::to_vec(&note).map_err(|error| CliError::from_error(Exit::Unexpected, error))?;
    std::fs::create_dir_all(settings.run_dir())
        .and_then(|()| crate::sys::durable::write(&path, &text))
        .map_err(|error| {
            CliError::new(Exit::Usage, format!("cannot write {}: {error}", path.display()))
                .hint("reef.run-dir names another directory")
        })?;
    Ok(Posted { path, note })
}

/// The service that runs on these files, if one does. A note whose process is gone says nothing.
pub(crate) fn find(settings: &Settings) -> Option<Note> {
    let note: Note = serde_json::from_slice(&std::fs::read(path(settings)).ok()?).ok()?;
    let pid = rustix::process::Pid::from_raw(i32::try_from(note.pid).ok()?)?;
    rustix::process::test_kill_process(pid).is_ok().then_some(note)
}

fn path(settings: &Settings) -> PathBuf {
    settings.run_dir().join("serve.json")
}

impl Drop for Posted {
    fn drop(&mut self) {
        // Another service may have left its own note since.
        let current: Option<Note> = std::fs::read(&self.path)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        if current.as_ref() == Some(&self.note) {
            // A note that stays behind is recognised by its process being gone.
            let _stays = std::fs::remove_file(&self.path);
        }
    }
}
