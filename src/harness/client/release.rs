//! The releases that are here: written beside the others, checked, renamed into place, checked again whenever they are used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::error::{ClientError, Kind, at};
use super::files::{read_json, remove_tree, sync_tree, write_json, write_new};
use super::install::Request;
use super::layout::Place;
use super::manifest::{Manifest, Requirement, SIDECAR, sha256};
use crate::domain::Content;
use crate::sys::failpoint::hit;
use crate::sys::{clock, durable, random, regular};

/// How many releases are kept.
const KEPT: usize = 3;

/// Checksums of a release's files and when it came.
const FILES: &str = ".reef-files.json";

/// A release that is here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Version {
    /// The release.
    pub release_id: String,
    /// When it was installed, in microseconds since the Unix epoch.
    pub installed_at_us: i64,
    /// Whether it is in use.
    pub current: bool,
}

/// The files of an installed release.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Installation {
    version: u32,
    installed_at_us: i64,
    /// SHA-256 by path.
    files: BTreeMap<String, String>,
    /// Which of them may be executed.
    #[serde(default)]
    executable: BTreeSet<String>,
    /// SHA-256 of the file that says what the release needs of this machine.
    #[serde(default)]
    sidecar: Option<String>,
}

/// Writes a release and puts it into its place.
pub(super) fn stage(request: &Request, place: &Place, release: &Path) -> Result<(), ClientError> {
    let part = place.dir.join(format!(".part-{}", random::hex_token()));
    let result = (|| {
        fs::create_dir(&part).map_err(at("create", &part))?;
        let manifest = &request.manifest;
        let mut sums = BTreeMap::new();
        for (path, content) in &manifest.files {
            let mode = if manifest.executable.contains(path) {
                0o555
            } else {
                0o444
            };
            write_new(&part.join(path), content.as_bytes(), mode)?;
            sums.insert(path.clone(), sha256(content.as_bytes()));
        }
        let sidecar = json!({
            "release_id": manifest.release_id,
            "content_id": manifest.content_id,
            "files": manifest.files.keys().collect::<Vec<_>>(),
            "requires": manifest.requires,
            "setup": request.checked.setup,
        });
        let path = part.join(SIDECAR);
        write_json(&path, &sidecar)?;
        let files = Installation {
            version: 1,
            installed_at_us: clock::now_us(),
            files: sums,
            executable: executable(manifest),
            sidecar: Some(sha256(&regular::read(&path).map_err(at("read", &path))?)),
        };
        write_json(&part.join(FILES), &files)?;
        sync_tree(&part)?;
        hit("harness::staged").map_err(at("change", &part))?;
        // What was written is what counts, not what was meant.
        if let Some(fault) = damage(&part, Some(manifest)) {
            return Err(ClientError::new(
                Kind::Machine,
                format!("{fault} right after it was written; nothing was changed"),
            )
            .hint("check the disk"));
        }
        if release.exists() {
            // A damaged copy of the same release: exchanged in one step where the file system can.
            if renameat_with(CWD, &part, CWD, release, RenameFlags::EXCHANGE).is_err() {
                remove_tree(release)?;
                fs::rename(&part, release).map_err(at("create", release))?;
            }
        } else {
            fs::rename(&part, release).map_err(at("create", release))?;
        }
        durable::sync_dir(&place.dir).map_err(at("sync", &place.dir))
    })();
    // Gone if it was renamed; otherwise half a release that nobody needs.
    let _ignored = remove_tree(&part);
    result
}

/// A release that was here already is installed again: what comes before it is what was in use until now.
pub(super) fn renew(release: &Path) -> Result<(), ClientError> {
    let path = release.join(FILES);
    if let Some(mut installed) = read_json::<Installation>(&path)? {
        installed.installed_at_us = clock::now_us();
        write_json(&path, &installed)?;
    }
    Ok(())
}

/// The files of a manifest that may be executed; it may name others, which do not matter.
fn executable(manifest: &Manifest) -> BTreeSet<String> {
    let named = manifest.executable.iter();
    named
        .filter(|path| manifest.files.contains_key(*path))
        .cloned()
        .collect()
}

/// What is wrong with an installed release: `None` if every file is there as it was installed (and, with a manifest, as
/// the service has it).
pub(super) fn damage(release: &Path, manifest: Option<&Manifest>) -> Option<String> {
    let Ok(Some(installed)) = read_json::<Installation>(&release.join(FILES)) else {
        return Some(format!("the release in {} is not complete", release.display()));
    };
    if let Some(manifest) = manifest {
        let there = manifest.files.keys().eq(installed.files.keys());
        if !there || executable(manifest) != installed.executable {
            return Some(format!("the release in {} has other files", release.display()));
        }
        if requires(release).as_ref() != Some(&manifest.requires) {
            return Some(format!("the release in {} needs something else", release.display()));
        }
    }
    let changed = |path: &str| Some(format!("{} is not as it was installed", release.join(path).display()));
    // What it needs of this machine is part of what was installed.
    if let Some(sum) = &installed.sidecar
        && regular::read(release.join(SIDECAR))
            .map(|bytes| sha256(&bytes))
            .ok()
            .as_ref()
            != Some(sum)
    {
        return changed(SIDECAR);
    }
    for (path, sum) in &installed.files {
        let file = release.join(path);
        let runs = fs::symlink_metadata(&file)
            .ok()
            .filter(fs::Metadata::is_file)
            .map(|meta| meta.permissions().mode() & 0o100 != 0);
        let bytes = regular::read(&file).ok();
        let as_wanted = manifest.is_none_or(|manifest| {
            manifest
                .files
                .get(path)
                .is_some_and(|content| sha256(content.as_bytes()) == *sum)
        });
        let whole = bytes.map(|bytes| sha256(&bytes)).as_ref() == Some(sum);
        if !whole || !as_wanted || runs != Some(installed.executable.contains(path)) {
            return changed(path);
        }
    }
    None
}

/// What a release that is here needs of this machine.
pub(super) fn requires(release: &Path) -> Option<Vec<Requirement>> {
    #[derive(Deserialize)]
    struct Sidecar {
        #[serde(default)]
        requires: Vec<Requirement>,
    }
    let sidecar: Sidecar = read_json(&release.join(SIDECAR)).ok()??;
    Some(sidecar.requires)
}

/// What is wrong with the release in use, if anything is.
pub fn check_release(place: &Place) -> Result<Option<String>, ClientError> {
    match place.current()? {
        Some(id) => Ok(damage(&place.release(&id)?, None)),
        None => Ok(Some("no release is in use".to_owned())),
    }
}

/// The files of an installed release, each checked against its checksum.
pub(super) fn read_release(release: &Path) -> Result<BTreeMap<String, Content>, ClientError> {
    if let Some(fault) = damage(release, None) {
        return Err(
            ClientError::new(Kind::Machine, fault).hint("`update` installs it again; `rollback` uses an older one")
        );
    }
    let installed: Installation = read_json(&release.join(FILES))?
        .ok_or_else(|| ClientError::new(Kind::Machine, format!("{} is gone", release.display())))?;
    installed
        .files
        .into_keys()
        .map(|path| {
            let file = release.join(&path);
            let bytes = regular::read(&file).map_err(at("read", &file))?;
            Ok((path, Content::from_bytes(bytes)))
        })
        .collect()
}

/// The releases that are here, newest first.
pub fn versions(place: &Place) -> Result<Vec<Version>, ClientError> {
    let current = place.current()?;
    let mut found = Vec::new();
    for entry in fs::read_dir(&place.dir).map_err(at("read", &place.dir))? {
        let entry = entry.map_err(at("read", &place.dir))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "current" || place.release(&name).is_err() {
            continue;
        }
        if let Ok(Some(installed)) = read_json::<Installation>(&entry.path().join(FILES)) {
            found.push(Version {
                current: current.as_deref() == Some(&name),
                release_id: name,
                installed_at_us: installed.installed_at_us,
            });
        }
    }
    found.sort_by_key(|version| std::cmp::Reverse(version.installed_at_us));
    Ok(found)
}

/// Keeps the release in use and the newest others.
pub(super) fn prune(place: &Place) -> Result<(), ClientError> {
    let versions = versions(place)?;
    for old in versions.iter().filter(|version| !version.current).skip(KEPT - 1) {
        remove_tree(&place.release(&old.release_id)?)?;
    }
    Ok(())
}

/// Removes what a crash left half written.
pub(super) fn clear_parts(dir: &Path) -> Result<(), ClientError> {
    for entry in fs::read_dir(dir).map_err(at("read", dir))? {
        let entry = entry.map_err(at("read", dir))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(".part-") {
            remove_tree(&entry.path())?;
        } else if entry.path().is_file() && name.contains(".part-") || name.starts_with(".link-") {
            fs::remove_file(entry.path()).map_err(at("remove", &entry.path()))?;
        }
    }
    Ok(())
}
