//! Installing a release: staged beside what is there, checked, renamed into place, and only then made current. A crash
//! anywhere leaves the old release or the new one, whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::agent::AgentProgram;
use super::error::{ClientError, Kind, at};
use super::files::{lock_installation, point, private_dir, read_json, remove_tree, sync_tree, write_json, write_new};
use super::layout::{Home, Place, Record};
use super::manifest::{Manifest, SIDECAR, sha256};
use super::requirement::CheckOffs;
use super::stub;
use crate::domain::ScenarioName;
use crate::harness::adapter::WireApi;
use crate::sys::failpoint::hit;
use crate::sys::{clock, random};

/// How many releases are kept.
const KEPT: usize = 3;

/// Checksums of a release's files and when it came.
const FILES: &str = ".reef-files.json";

/// What to install.
#[derive(Debug, Clone)]
pub struct Request {
    /// The agent.
    pub adapter: String,
    /// The scenario.
    pub scenario: ScenarioName,
    /// Root of the service.
    pub url: String,
    /// The service's token.
    pub token: Option<String>,
    /// The release.
    pub manifest: Manifest,
    /// The API to bind.
    pub api: WireApi,
    /// The model to ask for.
    pub model: String,
    /// The agent's program.
    pub program: AgentProgram,
    /// Whether runs keep bodies.
    pub bodies: bool,
    /// The `reef` program the wrapper starts.
    pub reef: PathBuf,
    /// What was checked off before.
    pub checked: CheckOffs,
}

/// What was installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Installed {
    /// The release in use.
    pub release_id: String,
    /// Whether anything was written.
    pub changed: bool,
    /// The release in use before.
    pub previous: Option<String>,
    /// The command that runs the agent.
    pub wrapper: PathBuf,
    /// The installation's directory.
    pub dir: PathBuf,
}

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
}

/// Installs a release and makes it current. On any error what was there before is in use as before.
pub fn install(home: &Home, request: &Request) -> Result<Installed, ClientError> {
    let place = home.place(&request.adapter, &request.scenario);
    if let Some(other) = request
        .manifest
        .adapter
        .as_ref()
        .filter(|other| **other != request.adapter)
    {
        return Err(ClientError::new(
            Kind::Usage,
            format!(
                "the scenario {} is a harness for {}, not for {}; nothing was changed",
                request.scenario,
                other
                    .chars()
                    .take(60)
                    .flat_map(char::escape_default)
                    .collect::<String>(),
                request.adapter
            ),
        )
        .hint("install the other agent, or name another scenario"));
    }
    let unmet = request.checked.unmet(&request.manifest.requires);
    if !unmet.is_empty() {
        let list: Vec<String> = unmet.iter().map(|item| item.line()).collect();
        return Err(ClientError::new(
            Kind::Unmet,
            format!(
                "release {} needs what this machine was not checked for; nothing was changed: {}",
                request.manifest.release_id,
                list.join("; ")
            ),
        )
        .hint("run the same command with --setup to go through the list"));
    }
    let release = place.release(request.manifest.release_id.as_str())?;
    let wrapper = stub::choose(home, &request.adapter, &request.scenario, &place)?;
    let fresh = !place.dir.join("install.json").exists();
    let result = write(home, request, &place, &release, wrapper);
    if fresh && result.is_err() {
        // Nothing of a first installation that failed stays; the first error is the one to tell.
        let _ignored = remove_tree(&place.dir);
        let _only_if_empty = place.dir.parent().map(fs::remove_dir);
    }
    result
}

fn write(
    home: &Home,
    request: &Request,
    place: &Place,
    release: &Path,
    wrapper: PathBuf,
) -> Result<Installed, ClientError> {
    private_dir(&place.dir)?;
    let _lock = lock_installation(&place.dir)?;
    clear_parts(&place.dir)?;
    let previous = place.current()?;
    let mut changed = false;
    if damage(release, Some(&request.manifest)).is_some() {
        stage(request, place, release)?;
        changed = true;
    }
    let record = Record {
        version: 1,
        adapter: request.adapter.clone(),
        scenario: request.scenario.clone(),
        url: request.url.clone(),
        api: request.api,
        model: request.model.clone(),
        wrapper: wrapper.clone(),
        program: request.program.program.clone(),
        program_version: request.program.version.clone(),
        path: request.program.path.clone(),
        data: home.data.clone(),
        bodies: request.bodies,
    };
    if place.token()?.as_deref() != request.token.as_deref() {
        place.store_token(request.token.as_deref())?;
        changed = true;
    }
    if request.checked != CheckOffs::of(place)? {
        request.checked.store(place)?;
        changed = true;
    }
    if place.record().ok().as_ref() != Some(&record) {
        write_json(&place.dir.join("install.json"), &record)?;
        changed = true;
    }
    pass("harness::recorded", &place.dir)?;
    let id = request.manifest.release_id.as_str();
    if previous.as_deref() != Some(id) {
        point(&place.dir.join("current"), Path::new(id))?;
        changed = true;
    }
    pass("harness::switched", &place.dir)?;
    changed |= stub::write(&wrapper, &request.reef, place)?;
    prune(place)?;
    Ok(Installed {
        release_id: id.to_owned(),
        changed,
        previous: previous.filter(|previous| previous != id),
        wrapper,
        dir: place.dir.clone(),
    })
}

fn pass(name: &'static str, dir: &Path) -> Result<(), ClientError> {
    hit(name).map_err(at("change", dir))
}

fn stage(request: &Request, place: &Place, release: &Path) -> Result<(), ClientError> {
    let part = place.dir.join(format!(".part-{}", random::hex_token()));
    let result = (|| {
        fs::create_dir(&part).map_err(at("create", &part))?;
        let manifest = &request.manifest;
        let mut sums = BTreeMap::new();
        for (path, text) in &manifest.files {
            let mode = if manifest.executable.contains(path) {
                0o555
            } else {
                0o444
            };
            write_new(&part.join(path), text.as_bytes(), mode)?;
            sums.insert(path.clone(), sha256(text.as_bytes()));
        }
        let sidecar = json!({
            "release_id": manifest.release_id,
            "content_id": manifest.content_id,
            "files": manifest.files.keys().collect::<Vec<_>>(),
            "requires": manifest.requires,
            "setup": request.checked.setup,
        });
        write_json(&part.join(SIDECAR), &sidecar)?;
        let files = Installation {
            version: 1,
            installed_at_us: clock::now_us(),
            files: sums,
        };
        write_json(&part.join(FILES), &files)?;
        sync_tree(&part)?;
        pass("harness::staged", &part)?;
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
        crate::sys::durable::sync_dir(&place.dir).map_err(at("sync", &place.dir))
    })();
    // Gone if it was renamed; otherwise half a release that nobody needs.
    let _ignored = remove_tree(&part);
    result
}

/// What is wrong with an installed release: `None` if every file is there as it was installed (and, with a manifest, as
/// the service has it).
pub(super) fn damage(release: &Path, manifest: Option<&Manifest>) -> Option<String> {
    let Ok(Some(installed)) = read_json::<Installation>(&release.join(FILES)) else {
        return Some(format!("the release in {} is not complete", release.display()));
    };
    if let Some(manifest) = manifest {
        let wanted: BTreeSet<&String> = manifest.files.keys().collect();
        let there: BTreeSet<&String> = installed.files.keys().collect();
        if wanted != there {
            return Some(format!("the release in {} has other files", release.display()));
        }
    }
    for (path, sum) in &installed.files {
        let bytes = fs::read(release.join(path)).ok();
        let as_wanted = manifest.is_none_or(|manifest| {
            manifest
                .files
                .get(path)
                .is_some_and(|text| sha256(text.as_bytes()) == *sum)
        });
        if bytes.map(|bytes| sha256(&bytes)).as_ref() != Some(sum) || !as_wanted {
            return Some(format!("{} is not as it was installed", release.join(path).display()));
        }
    }
    None
}

/// What is wrong with the release in use, if anything is.
pub fn check_release(place: &Place) -> Result<Option<String>, ClientError> {
    match place.current()? {
        Some(id) => Ok(damage(&place.release(&id)?, None)),
        None => Ok(Some("no release is in use".to_owned())),
    }
}

/// The files of an installed release, each checked against its checksum.
pub(super) fn read_release(release: &Path) -> Result<BTreeMap<String, String>, ClientError> {
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
            let text = fs::read_to_string(&file).map_err(at("read", &file))?;
            Ok((path, text))
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

/// Goes back to the release that was installed before the one in use, or to the one named.
pub fn rollback(place: &Place, to: Option<&str>) -> Result<Installed, ClientError> {
    let record = place.record()?;
    let _lock = lock_installation(&place.dir)?;
    let versions = versions(place)?;
    let previous = place.current()?;
    let nothing = |message: String| {
        let known: Vec<&str> = versions.iter().map(|version| version.release_id.as_str()).collect();
        ClientError::new(Kind::Nothing, message).hint(format!("here are {}", known.join(", ")))
    };
    let target = match to {
        Some(id) => {
            let mut matching = versions.iter().filter(|version| version.release_id.starts_with(id));
            match (matching.next(), matching.next()) {
                (Some(found), None) => found,
                (None, _) => return Err(nothing(format!("no installed release begins with {id:?}"))),
                (Some(_), Some(_)) => return Err(nothing(format!("several installed releases begin with {id:?}"))),
            }
        }
        None => {
            let at = versions.iter().position(|version| version.current);
            at.and_then(|at| versions.get(at + 1))
                .ok_or_else(|| nothing("there is no older release to go back to".to_owned()))?
        }
    };
    let dir = place.release(&target.release_id)?;
    if let Some(fault) = damage(&dir, None) {
        return Err(ClientError::new(Kind::Machine, format!("{fault}; nothing was changed")));
    }
    let changed = previous.as_deref() != Some(&target.release_id);
    if changed {
        point(&place.dir.join("current"), Path::new(&target.release_id))?;
    }
    Ok(Installed {
        release_id: target.release_id.clone(),
        changed,
        previous: previous.filter(|_| changed),
        wrapper: record.wrapper,
        dir: place.dir.clone(),
    })
}

/// Keeps the release in use and the newest others.
fn prune(place: &Place) -> Result<(), ClientError> {
    let versions = versions(place)?;
    for old in versions.iter().filter(|version| !version.current).skip(KEPT - 1) {
        remove_tree(&place.release(&old.release_id)?)?;
    }
    Ok(())
}

/// Removes what a crash left half written.
fn clear_parts(dir: &Path) -> Result<(), ClientError> {
    for entry in fs::read_dir(dir).map_err(at("read", dir))? {
        let entry = entry.map_err(at("read", dir))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(".part-") {
            remove_tree(&entry.path())?;
        } else if name.starts_with(".link-") || (name.starts_with('.') && name.contains(".part-")) {
            fs::remove_file(entry.path()).map_err(at("remove", &entry.path()))?;
        }
    }
    Ok(())
}
