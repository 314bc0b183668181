//! What a session runs on: the release's files with the model's address in them, in a directory that stays, so that what
//! the agent itself keeps there (sessions, settings, answers to first-run questions) stays too.
//!
//! Each session that runs at the same time has a directory of its own, because each has its own address. The first one
//! has the agent's own files; the others share them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::{ClientError, Kind, at};
use super::files::{lock, private_dir, read_json, write_json};
use super::layout::Place;
use super::manifest::{SIDECAR, sha256};
use super::release::read_release;
use crate::harness::adapter::{Adapter, ConfigTarget, ModelBinding, StateKind, WireApi, merge, text};
use crate::sys::{durable, regular};

/// Most sessions of one installation at the same time.
const MAX_SESSIONS: usize = 64;
const MOUNTED: &str = ".reef-mounted.json";

/// A root that belongs to this session until it is dropped.
#[derive(Debug)]
pub(super) struct Mounted {
    /// The root.
    pub(super) root: PathBuf,
    /// Files of the release.
    pub(super) files: Vec<String>,
    copies: Vec<Copied>,
    _lock: File,
}

/// A file of the agent's own that a further session got as a copy.
#[derive(Debug)]
struct Copied {
    shared: PathBuf,
    own: PathBuf,
    /// SHA-256 of what was copied.
    before: Option<String>,
}

/// What was last put into a root.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Last {
    release_id: String,
    /// SHA-256 of each file as written.
    files: BTreeMap<String, String>,
    /// Configuration files as written, to see later what the agent changed in them.
    documents: BTreeMap<String, Map<String, Value>>,
    /// SHA-256 of each of the agent's own files that was copied here, for a session that never gave it back.
    #[serde(default)]
    copies: BTreeMap<String, Option<String>>,
}

/// A free root. Its lock ends with the process.
pub(super) fn reserve(place: &Place) -> Result<(PathBuf, File), ClientError> {
    for number in 0..MAX_SESSIONS {
        let root = place.dir.join(format!("root-{number}"));
        private_dir(&root)?;
        if let Some(held) = lock(&root.join(".reef-lock"), Duration::ZERO)? {
            return Ok((root, held));
        }
    }
    Err(ClientError::new(
        Kind::Busy,
        format!("{MAX_SESSIONS} sessions of this installation are running already"),
    )
    .hint("end one of them first"))
}

/// The locks on every root, so that no session runs and none begins; `None` if one runs.
pub(super) fn all_free(place: &Place) -> Result<Option<Vec<File>>, ClientError> {
    let mut all = Vec::new();
    for number in 0..MAX_SESSIONS {
        let root = place.dir.join(format!("root-{number}"));
        if root.is_dir() {
            match lock(&root.join(".reef-lock"), Duration::ZERO)? {
                Some(held) => all.push(held),
                None => return Ok(None),
            }
        }
    }
    Ok(Some(all))
}

/// Puts a release and the binding into a reserved root.
pub(super) fn mount(
    place: &Place,
    adapter: &Adapter,
    (root, held): (PathBuf, File),
    release_id: &str,
    api: WireApi,
    binding: &ModelBinding,
) -> Result<Mounted, ClientError> {
    let release = place.release(release_id)?;
    let mut files = read_release(&release)?;
    adapter.bind(&mut files, api, binding)?;
    private_dir(&place.state())?;

    let last: Last = read_json(&root.join(MOUNTED)).ok().flatten().unwrap_or_default();
    let first = place.dir.join("root-0");
    let mut documents = BTreeMap::new();
    for target in adapter.config.values() {
        let Some(content) = files.get(&target.path) else {
            continue;
        };
        let mut document = target.read(content)?;
        documents.insert(target.path.clone(), document.clone());
        // A further session starts with the choices made in the first.
        let own = last.documents.contains_key(&target.path) || root == first;
        let (seen, before) = if own {
            (root.join(&target.path), last.documents.get(&target.path).cloned())
        } else {
            let of_first: Last = read_json(&first.join(MOUNTED)).ok().flatten().unwrap_or_default();
            (first.join(&target.path), of_first.documents.get(&target.path).cloned())
        };
        let Some(before) = before else { continue };
        let Some(there) = read_document(target, &seen, own) else {
            continue;
        };
        let preferences = preferences(adapter, &target.path);
        if keep_choices(&mut document, &before, &there, &preferences, "") {
            let text = text(target.format, &document).map_err(|fault| {
                ClientError::new(Kind::Machine, format!("{} cannot be written: {fault}", target.path))
            })?;
            files.insert(target.path.clone(), text.into());
        }
    }

    let mut now = Last {
        copies: BTreeMap::new(),
        release_id: release_id.to_owned(),
        files: files
            .iter()
            .map(|(path, content)| (path.clone(), sha256(content.as_bytes())))
            .collect(),
        documents,
    };
    // Until everything is written, the list holds what may be there from either release.
    let wanted: Vec<String> = files.keys().cloned().collect();
    let mut both = Last {
        release_id: String::new(),
        files: last.files.clone(),
        documents: last.documents,
        copies: last.copies.clone(),
    };
    both.files.extend(now.files.clone());
    write_json(&root.join(MOUNTED), &both)?;
    for path in last.files.keys().filter(|path| !files.contains_key(*path)) {
        remove_file_and_empty_parents(&root, path)?;
    }
    for (path, content) in &files {
        let mode = fs::metadata(release.join(path)).map_or(0o644, |meta| meta.permissions().mode() | 0o200);
        place_file(&root, path, content.as_bytes(), mode, last.files.contains_key(path))?;
    }
    let sidecar = release.join(SIDECAR);
    if let Ok(bytes) = regular::read(&sidecar) {
        place_file(&root, SIDECAR, &bytes, 0o644, true)?;
    }
    let copies = if root == first {
        Vec::new()
    } else {
        share(adapter, &first, &root, &last.copies, &mut now.copies)?
    };
    write_json(&root.join(MOUNTED), &now)?;
    Ok(Mounted {
        root,
        files: wanted,
        copies,
        _lock: held,
    })
}

impl Mounted {
    /// Gives the agent's own files back that a further session got as copies.
    pub(super) fn give_back(&self) -> Result<(), ClientError> {
        for copied in &self.copies {
            give(copied)?;
        }
        // From now on what is there is this root's past, and not something to give back.
        let path = self.root.join(MOUNTED);
        if let Some(mut last) = read_json::<Last>(&path)?.filter(|last| !last.copies.is_empty()) {
            last.copies.clear();
            write_json(&path, &last)?;
        }
        Ok(())
    }
}

/// Gives one file back if this session changed it. Where another one did so too, the later change counts.
fn give(copied: &Copied) -> Result<(), ClientError> {
    let Copied { shared, own, before } = copied;
    let Ok(bytes) = regular::read(own) else { return Ok(()) };
    let sum = Some(sha256(&bytes));
    let there = regular::read(shared).ok().map(|bytes| sha256(&bytes));
    if sum == *before || sum == there {
        return Ok(());
    }
    let when = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    if there == *before || when(own) > when(shared) {
        copy(own, shared, &bytes)?;
    }
    Ok(())
}

/// Writes what was read from a file into another one, with its mode: credentials stay private.
fn copy(from: &Path, to: &Path, bytes: &[u8]) -> Result<(), ClientError> {
    let mode = fs::metadata(from).map_or(0o600, |meta| meta.permissions().mode() & 0o777);
    durable::write_mode(to, bytes, mode).map_err(at("write", to))
}

fn preferences<'a>(adapter: &'a Adapter, path: &str) -> Vec<&'a str> {
    let entries = adapter.client.state.iter().filter(|state| state.path == path);
    entries
        .flat_map(|state| state.preferences.iter().map(String::as_str))
        .collect()
}

/// A configuration file as the agent left it. One of this session's `own` that it (or a person) made unreadable is moved
/// aside, not lost; that of another session may be half written.
fn read_document(target: &ConfigTarget, path: &Path, own: bool) -> Option<Map<String, Value>> {
    let text = regular::read_to_string(path).ok()?;
    match target.format.read(&target.path, &text) {
        Ok(document) => Some(document),
        Err(_) if !own => None,
        Err(_) => {
            let mut aside = path.as_os_str().to_os_string();
            aside.push(".unreadable");
            // It stays where it is if it cannot be moved, and is overwritten then.
            let _ignored = fs::rename(path, aside);
            None
        }
    }
}

/// Carries over what changed in a file since it was written: what the new release does not set, and preferences. Gives
/// whether anything was.
fn keep_choices(
    into: &mut Map<String, Value>,
    before: &Map<String, Value>,
    there: &Map<String, Value>,
    preferences: &[&str],
    above: &str,
) -> bool {
    let mut kept = false;
    for (key, value) in there {
        let dotted = if above.is_empty() {
            key.clone()
        } else {
            format!("{above}.{key}")
        };
        if before.get(key) == Some(value) {
            continue;
        }
        if let (Value::Object(value), Some(Value::Object(below))) = (value, into.get_mut(key)) {
            let empty = Map::new();
            let before = before.get(key).and_then(Value::as_object).unwrap_or(&empty);
            kept |= keep_choices(below, before, value, preferences, &dotted);
        } else if !into.contains_key(key) || preferences.contains(&dotted.as_str()) {
            merge(into, &Map::from_iter([(key.clone(), value.clone())]));
            kept = true;
        }
    }
    kept
}

/// Writes one file of the release where the agent looks for it. A file of the agent's or a person's own in its place is
/// moved aside.
fn place_file(root: &Path, path: &str, bytes: &[u8], mode: u32, ours: bool) -> Result<(), ClientError> {
    let file = root.join(path);
    let mode = mode & 0o755;
    match regular::read(&file) {
        Ok(there) if there == bytes => {
            let meta = fs::metadata(&file).map_err(at("read", &file))?;
            if meta.permissions().mode() & 0o777 == mode {
                return Ok(());
            }
        }
        Ok(_) if !ours => {
            let mut aside = file.as_os_str().to_os_string();
            aside.push(".before-reef");
            fs::rename(&file, aside).map_err(at("move aside", &file))?;
        }
        _ => {}
    }
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent).map_err(at("create", parent))?;
    }
    durable::write_mode(&file, bytes, mode).map_err(at("write", &file))
}

fn remove_file_and_empty_parents(root: &Path, path: &str) -> Result<(), ClientError> {
    let file = root.join(path);
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at("remove", &file)(error)),
        _ => {}
    }
    let mut parent = file.parent();
    while let Some(dir) = parent.filter(|dir| *dir != root && dir.starts_with(root)) {
        if fs::remove_dir(dir).is_err() {
            break;
        }
        parent = dir.parent();
    }
    Ok(())
}

/// Lets a further session use what the agent keeps: directories and databases are the same ones, files are copies that
/// are given back.
fn share(
    adapter: &Adapter,
    first: &Path,
    root: &Path,
    unreturned: &BTreeMap<String, Option<String>>,
    noted: &mut BTreeMap<String, Option<String>>,
) -> Result<Vec<Copied>, ClientError> {
    let mut copies = Vec::new();
    for state in &adapter.client.state {
        if adapter.config.values().any(|target| target.path == state.path) {
            continue;
        }
        let (shared, own) = (first.join(&state.path), root.join(&state.path));
        for parent in [shared.parent(), own.parent()].into_iter().flatten() {
            fs::create_dir_all(parent).map_err(at("create", parent))?;
        }
        match state.kind {
            StateKind::File => {
                let mut copied = Copied {
                    shared,
                    own,
                    before: None,
                };
                // The session before this one was killed: what it had changed (a login, say) is not lost.
                if let Some(before) = unreturned.get(&state.path) {
                    copied.before.clone_from(before);
                    give(&copied)?;
                }
                let shared = regular::read(&copied.shared).ok();
                copied.before = shared.as_deref().map(sha256);
                match shared {
                    Some(bytes) => copy(&copied.shared, &copied.own, &bytes)?,
                    None => match fs::remove_file(&copied.own) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => {
                            return Err(at("remove", &copied.own)(error));
                        }
                        _ => {}
                    },
                }
                noted.insert(state.path.clone(), copied.before.clone());
                copies.push(copied);
            }
            StateKind::Directory | StateKind::Sqlite => {
                if state.kind == StateKind::Directory {
                    fs::create_dir_all(&shared).map_err(at("create", &shared))?;
                }
                if fs::read_link(&own).ok().as_ref() != Some(&shared) {
                    match fs::symlink_metadata(&own) {
                        Ok(meta) if meta.is_dir() => {
                            let _only_if_empty = fs::remove_dir(&own);
                        }
                        Ok(_) => fs::remove_file(&own).map_err(at("remove", &own))?,
                        Err(_) => {}
                    }
                    if fs::symlink_metadata(&own).is_err() {
                        symlink(&shared, &own).map_err(at("create", &own))?;
                    }
                }
            }
        }
    }
    Ok(copies)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: &Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn choices_survive_and_the_release_wins_where_it_speaks() {
        let mut document = map(&json!({"model": "new", "theme": "light", "tui": {"a": 1}}));
        let before = map(&json!({"model": "old", "theme": "light", "gone": 1, "tui": {"a": 0}}));
        let there = map(&json!({
            "model": "mine", "theme": "dark", "gone": 1, "projects": {"/x": {"trust": true}}, "tui": {"a": 9, "b": 2}
        }));
        assert!(keep_choices(&mut document, &before, &there, &["theme"], ""));
        assert_eq!(
            Value::Object(document),
            json!({"model": "new", "theme": "dark", "tui": {"a": 1, "b": 2}, "projects": {"/x": {"trust": true}}})
        );
    }

    #[test]
    fn an_untouched_file_changes_nothing() {
        let before = map(&json!({"a": 1}));
        let mut document = map(&json!({"a": 2}));
        assert!(!keep_choices(&mut document, &before, &before, &["a"], ""));
        assert_eq!(Value::Object(document), json!({"a": 2}));
    }
}
