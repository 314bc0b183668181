//! Installing a release: staged beside what is there, checked, renamed into place, and only then made current. A crash
//! anywhere leaves the old release or the new one, whole.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::agent::AgentProgram;
use super::error::{ClientError, Kind, at};
use super::files::{lock_installation, point, private_dir, remove_tree, write_json};
use super::layout::{Home, Place, Record};
use super::manifest::Manifest;
use super::release::{clear_parts, damage, prune, renew, stage, versions};
use super::requirement::CheckOffs;
use super::stub;
use crate::domain::ScenarioName;
use crate::harness::adapter::WireApi;
use crate::sys::failpoint::hit;
use crate::sys::{durable, regular};

/// What to install.
#[derive(Clone)]
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

impl fmt::Debug for Request {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("adapter", &self.adapter)
            .field("scenario", &self.scenario)
            .field("url", &self.url)
            .field("release", &self.manifest.release_id)
            .finish_non_exhaustive()
    }
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

/// Why a release cannot be installed, as far as that can be told without changing anything.
pub fn refuse(
    home: &Home,
    adapter: &str,
    scenario: &ScenarioName,
    manifest: &Manifest,
    checked: &CheckOffs,
) -> Result<(), ClientError> {
    if let Some(other) = manifest.adapter.as_ref().filter(|other| **other != adapter) {
        return Err(ClientError::new(
            Kind::Usage,
            format!(
                "the scenario {scenario} is a harness for {}, not for {adapter}; nothing was changed",
                other
                    .chars()
                    .take(60)
                    .flat_map(char::escape_default)
                    .collect::<String>(),
            ),
        )
        .hint("install the other agent, or name another scenario"));
    }
    let unmet = checked.unmet(&manifest.requires);
    if !unmet.is_empty() {
        let list: Vec<String> = unmet.iter().map(|item| item.line()).collect();
        return Err(ClientError::new(
            Kind::Unmet,
            format!(
                "release {} needs what this machine was not checked for; nothing was changed: {}",
                manifest.release_id,
                list.join("; ")
            ),
        )
        .hint("run the same command with --setup to go through the list"));
    }
    let place = home.place(adapter, scenario);
    place.release(manifest.release_id.as_str())?;
    stub::choose(home, adapter, scenario, &place)?;
    Ok(())
}

/// Installs a release and makes it current. On any error what was there before is in use as before.
pub fn install(home: &Home, request: &Request) -> Result<Installed, ClientError> {
    refuse(
        home,
        &request.adapter,
        &request.scenario,
        &request.manifest,
        &request.checked,
    )?;
    let held = home.lock()?;
    let result = install_locked(home, request);
    home.unlock(held);
    result
}

fn install_locked(home: &Home, request: &Request) -> Result<Installed, ClientError> {
    let place = home.place(&request.adapter, &request.scenario);
    home.sweep()?;
    let release = place.release(request.manifest.release_id.as_str())?;
    let wrapper = stub::choose(home, &request.adapter, &request.scenario, &place)?;
    let fresh = !place.dir.join("install.json").exists();
    private_dir(&place.dir)?;
    let _lock = lock_installation(&place.dir)?;
    let before = Before::of(&place, &wrapper, &release)?;
    let result = write(home, request, &place, &release, wrapper);
    if result.is_err() {
        // The first error is the one to tell.
        if fresh {
            before.restore_wrapper();
            let _ignored = remove_tree(&place.dir);
            let _only_if_empty = place.dir.parent().map(fs::remove_dir);
        } else {
            before.restore(&place);
        }
    }
    result
}

/// What an installation that fails puts back.
struct Before {
    /// Bytes by path.
    files: Vec<(PathBuf, Option<Vec<u8>>)>,
    current: Option<PathBuf>,
    wrapper: (PathBuf, Option<Vec<u8>>),
    /// The release, if it is not here yet.
    new: Option<PathBuf>,
}

impl Before {
    fn of(place: &Place, wrapper: &Path, release: &Path) -> Result<Self, ClientError> {
        let bytes = |path: PathBuf| match regular::read(&path) {
            Ok(bytes) => Ok((path, Some(bytes))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok((path, None)),
            Err(error) => Err(at("read", &path)(error)),
        };
        let files = ["install.json", "token", "setup.json"].map(|name| bytes(place.dir.join(name)));
        Ok(Self {
            files: files.into_iter().collect::<Result<_, _>>()?,
            current: fs::read_link(place.dir.join("current")).ok(),
            wrapper: bytes(wrapper.to_path_buf())?,
            new: (!release.exists()).then(|| release.to_path_buf()),
        })
    }

    /// As far as it goes: an error on the way back has nobody left to hear it.
    fn restore(&self, place: &Place) {
        let link = place.dir.join("current");
        if fs::read_link(&link).ok() != self.current {
            let _ignored = match &self.current {
                Some(target) => point(&link, target),
                None => fs::remove_file(&link).map_err(at("remove", &link)),
            };
        }
        for (path, bytes) in &self.files {
            if regular::read(path).ok() != *bytes {
                let _ignored = match bytes {
                    Some(bytes) => durable::write_mode(path, bytes, 0o600),
                    None => fs::remove_file(path),
                };
            }
        }
        self.restore_wrapper();
        if let Some(release) = &self.new {
            let _ignored = remove_tree(release);
        }
    }

    fn restore_wrapper(&self) {
        let (path, bytes) = &self.wrapper;
        if regular::read(path).ok() != *bytes {
            let _ignored = match bytes {
                Some(bytes) => durable::write_mode(path, bytes, 0o755),
                None => fs::remove_file(path),
            };
        }
    }
}

fn write(
    home: &Home,
    request: &Request,
    place: &Place,
    release: &Path,
    wrapper: PathBuf,
) -> Result<Installed, ClientError> {
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
    pass("harness::wrapped", &place.dir)?;
    // The order of releases, and one too many of them, are no reason to undo what is done.
    let _done_anyhow = match &previous {
        Some(previous) if previous != id => renew(release).and_then(|()| prune(place)),
        _ => prune(place),
    };
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
