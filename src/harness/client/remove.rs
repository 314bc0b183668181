//! Removing an installation: all of it, and nothing else.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;

use super::error::{ClientError, Kind, at};
use super::files::{lock_installation, remove_tree};
use super::layout::{Place, installations};
use super::{report, stub};

/// What was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Files and directories.
    pub removed: Vec<PathBuf>,
}

/// Removes the wrapper, the installation and, if no other installation uses it, the agent's private copy. Refuses while
/// reports wait to be sent, unless they may be `discard`ed.
pub fn uninstall(place: &Place, discard: bool) -> Result<Removed, ClientError> {
    let record = place.record()?;
    let lock = lock_installation(&place.dir)?;
    let waiting = report::waiting(place)?.len();
    if waiting > 0 && !discard {
        return Err(ClientError::new(
            Kind::Machine,
            format!("{waiting} reports have not reached the service yet; nothing was removed"),
        )
        .hint("send them with `report --flush`, or give them up with --discard-reports"));
    }
    let mut removed = Vec::new();
    // The wrapper first: from here on nothing starts on what is about to go.
    if stub::remove(&record.wrapper, place)? {
        removed.push(record.wrapper.clone());
    }
    let record_file = place.dir.join("install.json");
    fs::remove_file(&record_file).map_err(at("remove", &record_file))?;
    remove_tree(&place.dir)?;
    drop(lock);
    removed.push(place.dir.clone());
    let home = record.home();
    let private = home.agents().join(&record.adapter);
    let still_used = installations(&home)
        .iter()
        .any(|(_, other)| other.program.starts_with(&private));
    if !still_used && private.is_dir() {
        remove_tree(&private)?;
        removed.push(private);
    }
    // Directories that held only this.
    for dir in [place.dir.parent(), place.dir.parent().and_then(|dir| dir.parent())]
        .into_iter()
        .flatten()
        .map(PathBuf::from)
        .chain([home.agents(), home.data])
    {
        let _only_if_empty = fs::remove_dir(dir);
    }
    Ok(Removed { removed })
}
