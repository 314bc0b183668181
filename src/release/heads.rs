//! Refs: where each chain ends, what is held, what is archived. A head moves only by compare-and-swap.
//!
//! A chain is a branch, `refs/heads/<scenario>`, so that `git log`, `git clone` and every host of git repositories show
//! it. `refs/reef/scenarios/<scenario>/head` is the same ref by another name (a symbolic ref) and says that the branch is
//! a scenario; `refs/reef/base` names `refs/heads/_base` in the same way.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use git2::{ErrorCode, Oid};

use super::commit::release_id;
use super::error::git_at;
use super::{ReleaseError, Repository};
use crate::domain::{ReleaseId, ScenarioName};
use crate::sys::{clock, failpoint};

const SCENARIOS: &str = "refs/reef/scenarios/";
const RELEASES: &str = "refs/reef/releases/";
const REJECTED: &str = "refs/reef/rejected/";
const ARCHIVED: &str = "refs/reef/archived/";
const PINNED: &str = "refs/reef/pinned/";
pub(super) const BASE: &str = "refs/reef/base";
/// Scenario names begin with a letter or digit, so this branch is free.
const BASE_BRANCH: &str = "refs/heads/_base";

/// A lock file of git older than this, met while Reef's own lock is held, belongs to a process that died.
const STALE_REF_LOCK: Duration = Duration::from_secs(2);
const REF_LOCK_PATIENCE: Duration = Duration::from_secs(15);

/// Changes when a head may have moved; equal stamps mean it did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadStamp {
    ino: u64,
    mtime_ns: i128,
}

pub(super) fn alias(scenario: &ScenarioName) -> String {
    format!("{SCENARIOS}{scenario}/head")
}

pub(super) fn branch(scenario: &ScenarioName) -> String {
    format!("refs/heads/{scenario}")
}

impl Repository {
    /// The newest release of a scenario.
    pub fn head(&self, scenario: &ScenarioName) -> Result<Option<ReleaseId>, ReleaseError> {
        head_of(&self.git()?, scenario)
    }

    /// The artifact new scenarios start from.
    pub fn base(&self) -> Result<Option<ReleaseId>, ReleaseError> {
        read(&self.git()?, BASE)
    }

    /// Every scenario with its head, by name.
    pub fn scenarios(&self) -> Result<Vec<(ScenarioName, ReleaseId)>, ReleaseError> {
        let git = self.git()?;
        let mut found = Vec::new();
        for name in git
            .references_glob(&format!("{SCENARIOS}*"))
            .map_err(git_at("list refs"))?
            .names()
        {
            let name = name.map_err(git_at("list refs"))?;
            let Some(scenario) = name
                .strip_prefix(SCENARIOS)
                .and_then(|name| name.strip_suffix("/head"))
                .and_then(|name| ScenarioName::new(name).ok())
            else {
                continue;
            };
            if let Some(head) = head_of(&git, &scenario)? {
                found.push((scenario, head));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// Releases kept reachable on their own: held and rejected ones.
    pub fn kept(&self) -> Result<Vec<ReleaseId>, ReleaseError> {
        Ok(self
            .refs(&format!("{RELEASES}*"))?
            .into_iter()
            .map(|(_, id)| id)
            .collect())
    }

    /// Held releases that a person refused, here or where they were pulled from.
    pub fn rejected(&self) -> Result<Vec<ReleaseId>, ReleaseError> {
        Ok(self
            .refs(&format!("{REJECTED}*"))?
            .into_iter()
            .map(|(_, id)| id)
            .collect())
    }

    /// Whether a release is known to be refused.
    pub fn is_rejected(&self, release: &ReleaseId) -> Result<bool, ReleaseError> {
        Ok(read(&self.git()?, &format!("{REJECTED}{release}"))?.is_some())
    }

    /// Where all archived chains end.
    pub(super) fn archived_heads(&self) -> Result<Vec<ReleaseId>, ReleaseError> {
        Ok(self
            .refs(&format!("{ARCHIVED}*"))?
            .into_iter()
            .map(|(_, id)| id)
            .collect())
    }

    /// Where the archived chains of a name end.
    pub fn archived(&self, scenario: &ScenarioName) -> Result<Vec<ReleaseId>, ReleaseError> {
        let found = self.refs(&format!("{ARCHIVED}{scenario}/*"))?;
        Ok(found.into_iter().map(|(_, id)| id).collect())
    }

    fn refs(&self, glob: &str) -> Result<Vec<(String, ReleaseId)>, ReleaseError> {
        let git = self.git()?;
        let mut found = Vec::new();
        for reference in git.references_glob(glob).map_err(git_at("list refs"))? {
            let reference = reference.map_err(git_at("list refs"))?;
            if let (Ok(name), Some(oid)) = (reference.name(), reference.target()) {
                found.push((name.to_owned(), release_id(oid)?));
            }
        }
        Ok(found)
    }

    /// Moves a scenario's head from `expected` to `new`. Of several who expect the same, one wins.
    pub fn advance(
        &self,
        scenario: &ScenarioName,
        new: &ReleaseId,
        expected: Option<&ReleaseId>,
    ) -> Result<(), ReleaseError> {
        if expected.is_none() {
            self.prepare_branch(scenario)?;
        }
        self.swap(&branch(scenario), new, expected).map_err(|lost| match lost {
            Swap::Lost(actual) => ReleaseError::Conflict {
                scenario: scenario.clone(),
                expected: expected.cloned(),
                actual,
            },
            Swap::Failed(error) => error,
        })?;
        if expected.is_none() {
            self.point_head();
        }
        Ok(())
    }

    /// Makes a release the base, if there is none; gives the one that is.
    pub fn set_base(&self, new: &ReleaseId) -> Result<ReleaseId, ReleaseError> {
        {
            let _lock = self.lock()?;
            point(&self.git()?, BASE, BASE_BRANCH)?;
        }
        match self.swap(BASE_BRANCH, new, None) {
            Ok(()) => {
                self.point_head();
                Ok(new.clone())
            }
            Err(Swap::Lost(Some(first))) => Ok(first),
            Err(Swap::Lost(None)) => Err(ReleaseError::Locked {
                path: self.path().join(BASE),
            }),
            Err(Swap::Failed(error)) => Err(error),
        }
    }

    /// Keeps a release reachable though no chain holds it.
    pub fn keep(&self, release: &ReleaseId) -> Result<(), ReleaseError> {
        self.name_once(RELEASES, release)
    }

    /// Notes that a person refused a held release, where a push carries it.
    pub fn mark_rejected(&self, release: &ReleaseId) -> Result<(), ReleaseError> {
        self.name_once(REJECTED, release)
    }

    /// Keeps everything of a release from the collector, until [`Self::unpin`].
    pub fn pin(&self, release: &ReleaseId) -> Result<(), ReleaseError> {
        self.name_once(PINNED, release)
    }

    /// Leaves a release to the collector again; false when it was not pinned.
    pub fn unpin(&self, release: &ReleaseId) -> Result<bool, ReleaseError> {
        let _lock = self.lock()?;
        let git = self.git()?;
        let name = format!("{PINNED}{release}");
        let was = read(&git, &name)?.is_some();
        self.delete_ref(&git, &name)?;
        Ok(was)
    }

    /// Releases that a person pinned.
    pub fn pinned(&self) -> Result<Vec<ReleaseId>, ReleaseError> {
        let found = self.refs(&format!("{PINNED}*"))?;
        Ok(found.into_iter().map(|(_, id)| id).collect())
    }

    fn name_once(&self, space: &str, release: &ReleaseId) -> Result<(), ReleaseError> {
        match self.swap(&format!("{space}{release}"), release, None) {
            Ok(()) | Err(Swap::Lost(Some(_))) => Ok(()),
            Err(Swap::Lost(None)) => Err(ReleaseError::Locked {
                path: self.path().join(space),
            }),
            Err(Swap::Failed(error)) => Err(error),
        }
    }

    /// Lets go of a release kept by [`Self::keep`].
    pub fn release_kept(&self, release: &ReleaseId) -> Result<(), ReleaseError> {
        let _lock = self.lock()?;
        self.delete_ref(&self.git()?, &format!("{RELEASES}{release}"))
    }

    /// Puts a scenario's chain away under a name that holds `at_us`, and frees the scenario's name.
    pub fn archive(&self, scenario: &ScenarioName, at_us: i64) -> Result<(), ReleaseError> {
        let Some(head) = self.head(scenario)? else {
            return Err(ReleaseError::NotFound {
                what: format!("scenario {scenario}"),
            });
        };
        let name = format!("{ARCHIVED}{scenario}/{at_us}");
        match self.swap(&name, &head, None) {
            Ok(()) | Err(Swap::Lost(Some(_))) => {}
            Err(Swap::Lost(None)) => {
                return Err(ReleaseError::Locked {
                    path: self.path().join(&name),
                });
            }
            Err(Swap::Failed(error)) => return Err(error),
        }
        {
            let _lock = self.lock()?;
            let git = self.git()?;
            let actual = head_of(&git, scenario)?;
            if actual.as_ref() != Some(&head) {
                self.delete_ref(&git, &name)?;
                return Err(ReleaseError::Conflict {
                    scenario: scenario.clone(),
                    expected: Some(head),
                    actual,
                });
            }
            self.delete_ref(&git, &alias(scenario))?;
            self.delete_ref(&git, &branch(scenario))?;
        }
        self.point_head();
        Ok(())
    }

    /// Makes a branch a scenario's before it exists. A branch that is there without being one, left by an archiving that
    /// was cut short or made by a person, is put away.
    fn prepare_branch(&self, scenario: &ScenarioName) -> Result<(), ReleaseError> {
        let _lock = self.lock()?;
        let git = self.git()?;
        let (alias, branch) = (alias(scenario), branch(scenario));
        if git.find_reference(&alias).is_err()
            && let Some(stray) = read(&git, &branch)?
        {
            let away = format!("{ARCHIVED}{scenario}/{}", clock::now_us());
            git.reference(&away, oid(&stray)?, false, "reef")
                .map_err(git_at("put a branch away"))?;
            self.delete_ref(&git, &branch)?;
        }
        point(&git, &alias, &branch)
    }

    /// Puts back the lost refs of a chain that ended in `head`. False where the release is not here, where the name's
    /// archived chains hold it, or where a branch of the name says something else.
    pub fn restore_chain(&self, scenario: &ScenarioName, head: &ReleaseId) -> Result<bool, ReleaseError> {
        if !self.has(head)? || self.archived_holds(scenario, head)? {
            return Ok(false);
        }
        {
            let _lock = self.lock()?;
            let git = self.git()?;
            if let Some(found) = read(&git, &branch(scenario))? {
                if self.is_ancestor(head, &found)? {
                    point(&git, &alias(scenario), &branch(scenario))?;
                    return Ok(true);
                }
                return Ok(false);
            }
        }
        self.advance(scenario, head, None)?;
        Ok(true)
    }

    /// Whether an archived chain of the name holds a release.
    pub fn archived_holds(&self, scenario: &ScenarioName, release: &ReleaseId) -> Result<bool, ReleaseError> {
        for end in self.archived(scenario)? {
            if self.is_ancestor(release, &end)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A cheap look at whether a head may have moved, for a server that watches it.
    pub fn head_stamp(&self, scenario: &ScenarioName) -> Option<HeadStamp> {
        let loose = fs::metadata(self.path().join(branch(scenario)));
        let metadata = loose.or_else(|_| fs::metadata(self.path().join("packed-refs"))).ok()?;
        Some(HeadStamp {
            ino: metadata.ino(),
            mtime_ns: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
        })
    }

    /// The compare-and-swap itself, under Reef's lock and git's own lock of the ref.
    fn swap(&self, name: &str, new: &ReleaseId, expected: Option<&ReleaseId>) -> Result<(), Swap> {
        let _lock = self.lock()?;
        let git = self.git()?;
        let actual = read(&git, name)?;
        if actual.as_ref() != expected {
            return Err(Swap::Lost(actual));
        }
        failpoint::hit("release::before_ref").map_err(|source| ReleaseError::Io {
            action: "move",
            path: self.path().join(name),
            source,
        })?;
        let new = oid(new)?;
        let old = expected.map(oid).transpose()?;
        let deadline = Instant::now() + REF_LOCK_PATIENCE;
        loop {
            let moved = match old {
                Some(old) => git.reference_matching(name, new, true, old, "reef"),
                None => git.reference(name, new, false, "reef"),
            };
            match moved {
                Ok(_) => return Ok(()),
                Err(error) if matches!(error.code(), ErrorCode::Modified | ErrorCode::Exists) => {
                    return Err(Swap::Lost(read(&git, name)?));
                }
                Err(error) if error.code() == ErrorCode::Locked && Instant::now() < deadline => {
                    self.remove_stale_lock(name);
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(Swap::Failed(git_at("move a head")(error))),
            }
        }
    }

    /// Removes git's lock file of a ref when its maker is gone. Reef's lock is held, so no Reef is inside.
    fn remove_stale_lock(&self, name: &str) {
        let path = self.path().join(format!("{name}.lock"));
        let age = fs::metadata(&path)
            .and_then(|m| m.modified())
            .ok()
            .and_then(|at| SystemTime::now().duration_since(at).ok());
        if age.is_some_and(|age| age > STALE_REF_LOCK) {
            tracing::warn!(path = %path.display(), "removing a ref lock left by a process that died");
            // If it cannot be removed the wait goes on and ends in an error.
            let _still_there = fs::remove_file(&path);
        }
    }

    fn delete_ref(&self, git: &git2::Repository, name: &str) -> Result<(), ReleaseError> {
        match git.find_reference(name) {
            Ok(mut reference) => reference.delete().map_err(git_at("delete a ref")),
            Err(error) if error.code() == ErrorCode::NotFound => Ok(()),
            Err(error) => Err(git_at("read a ref")(error)),
        }
    }

    /// `HEAD` names a chain that exists, a scenario's rather than the base. It is a convenience of `git log` and
    /// `git clone`: the chains stand without it.
    fn point_head(&self) {
        let pointed = || {
            let _lock = self.lock()?;
            let git = self.git()?;
            let current = git.find_reference("HEAD").map_err(git_at("read HEAD"))?;
            let name = current.symbolic_target().ok().flatten().unwrap_or_default().to_owned();
            if name != BASE_BRANCH && git.refname_to_id(&name).is_ok() {
                return Ok(());
            }
            let target = match self.scenarios()?.first() {
                Some((scenario, _)) => branch(scenario),
                None => BASE_BRANCH.to_owned(),
            };
            git.set_head(&target).map_err(git_at("point HEAD"))
        };
        let done: Result<(), ReleaseError> = pointed();
        if let Err(error) = done {
            tracing::warn!(%error, "HEAD of the artifact repository names no chain");
        }
    }
}

/// Makes `name` another name of `target`.
fn point(git: &git2::Repository, name: &str, target: &str) -> Result<(), ReleaseError> {
    let is_so = git
        .find_reference(name)
        .is_ok_and(|found| found.symbolic_target().ok().flatten() == Some(target));
    if !is_so {
        git.reference_symbolic(name, target, true, "reef")
            .map_err(git_at("name a branch"))?;
    }
    Ok(())
}

/// The branch of a scenario, if it is one.
fn head_of(git: &git2::Repository, scenario: &ScenarioName) -> Result<Option<ReleaseId>, ReleaseError> {
    match git.find_reference(&alias(scenario)) {
        Ok(_) => read(git, &branch(scenario)),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
        Err(error) => Err(git_at("read a ref")(error)),
    }
}

enum Swap {
    Lost(Option<ReleaseId>),
    Failed(ReleaseError),
}

impl From<ReleaseError> for Swap {
    fn from(error: ReleaseError) -> Self {
        Self::Failed(error)
    }
}

fn read(git: &git2::Repository, name: &str) -> Result<Option<ReleaseId>, ReleaseError> {
    match git.refname_to_id(name) {
        Ok(oid) => release_id(oid).map(Some),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
        Err(error) => Err(git_at("read a ref")(error)),
    }
}

/// The commit id of a release id.
pub(super) fn oid(release: &ReleaseId) -> Result<Oid, ReleaseError> {
    Oid::from_str(release.as_str()).map_err(|_| ReleaseError::NotFound {
        what: format!("release {release}"),
    })
}
