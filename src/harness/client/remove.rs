//! Removing an installation: all of it, and nothing else.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;

use super::error::{ClientError, Kind, at};
use super::files::{lock_installation, remove_tree};
use super::layout::{Home, Place, REMOVED};
use super::{mount, report, stub};
use crate::sys::failpoint::hit;
use crate::sys::random;

/// What was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Files and directories.
    pub removed: Vec<PathBuf>,
}

/// Removes the wrapper, the installation and, if no other installation uses it, the agent's private copy. Refuses while
/// a session runs, and while reports wait to be sent, unless they may be `discard`ed.
pub fn uninstall(place: &Place, discard: bool) -> Result<Removed, ClientError> {
    let home = place.record()?.home();
    let held = home.lock()?;
    let result = uninstall_locked(&home, place, discard);
    home.unlock(held);
    result
}

fn uninstall_locked(home: &Home, place: &Place, discard: bool) -> Result<Removed, ClientError> {
    home.sweep()?;
    let record = place.record()?;
    let _lock = lock_installation(&place.dir)?;
    let _roots = mount::all_free(place)?.ok_or_else(|| {
        ClientError::new(
            Kind::Busy,
            format!("a session of {} is running; nothing was removed", record.command()),
        )
        .hint("end it first")
    })?;
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
    hit("harness::unwrapped").map_err(at("remove", &place.dir))?;
    // Gone in one step: half an installation would keep the token where nobody looks for it.
    let gone = place.dir.with_file_name(format!("{REMOVED}{}", random::hex_token()));
    fs::rename(&place.dir, &gone).map_err(at("remove", &place.dir))?;
    hit("harness::unplaced").map_err(at("remove", &gone))?;
    remove_tree(&gone)?;
    removed.push(place.dir.clone());
    let private = home.agents().join(&record.adapter);
    if private.is_dir() && !home.uses(&private) {
        remove_tree(&private)?;
        removed.push(private);
    }
    if let Some(dir) = place.dir.parent() {
        let _only_if_empty = fs::remove_dir(dir);
    }
    Ok(Removed { removed })
}
