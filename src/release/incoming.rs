//! What a remote sends, before it is believed. It is fetched under names of its own, every object of it is read as the
//! inspection does, and only then do large files come and heads move.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::time::Duration;

use git2::Sort;

use super::error::git_at;
use super::heads::{BASE, alias, oid};
use super::inspect::Inspector;
use super::lock::{self, Share};
use super::{Commit, ReleaseError, Remote, Repository};
use crate::domain::{Operation, ReleaseId, ScenarioName};
use crate::sys::random;

/// Refs of a pull under way.
pub(super) const INCOMING: &str = "refs/reef/incoming";
const RELEASES: &str = "refs/reef/releases/";
/// How long another pull into this repository is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is asked of a remote.
pub(super) struct Asked<'a> {
    pub chains: &'a [ScenarioName],
    pub held: &'a [ReleaseId],
    pub base: bool,
}

/// What came. The names it has in the repository go with it.
pub(super) struct Incoming<'r> {
    repository: &'r Repository,
    space: String,
    /// Where each chain ends.
    pub heads: BTreeMap<ScenarioName, ReleaseId>,
    /// Releases that wait for a decision, or were refused.
    pub held: Vec<ReleaseId>,
    /// The base.
    pub base: Option<ReleaseId>,
    /// Other pulls wait.
    _alone: File,
}

impl Repository {
    /// Fetches what is asked for and looks at every release of it. Nothing but the names under [`INCOMING`] is changed.
    pub(super) fn fetch_incoming(&self, remote: &Remote, asked: &Asked<'_>) -> Result<Incoming<'_>, ReleaseError> {
        let path = self.path().join("reef-pull.lock");
        let alone = lock::take(&path, Share::Alone, PATIENCE, Duration::from_millis(100))?;
        // Whoever left these is gone.
        self.forget_incoming(INCOMING);
        let mut incoming = Incoming {
            repository: self,
            space: format!("{INCOMING}/{}", random::hex_token()),
            heads: BTreeMap::new(),
            held: Vec::new(),
            base: None,
            _alone: alone,
        };
        self.fetch_into(remote, asked, &incoming.space)?;
        let git = self.git()?;
        let at = |name: String| {
            let oid = git.refname_to_id(&name).map_err(git_at("read what was fetched"))?;
            super::commit::release_id(oid)
        };
        let space = incoming.space.clone();
        for name in asked.chains {
            incoming
                .heads
                .insert(name.clone(), at(format!("{space}/scenarios/{name}"))?);
        }
        for id in asked.held {
            let found = at(format!("{space}/releases/{id}"))?;
            if found != *id {
                return Err(refused(remote, id, "its name says that it is another one"));
            }
            incoming.held.push(found);
        }
        if asked.base {
            incoming.base = Some(at(format!("{space}/base"))?);
        }
        self.check(remote, &git, &incoming)?;
        Ok(incoming)
    }

    fn fetch_into(&self, remote: &Remote, asked: &Asked<'_>, space: &str) -> Result<(), ReleaseError> {
        let mut args: Vec<String> = [
            "-c",
            "transfer.fsckObjects=true",
            "-c",
            "fetch.fsckObjects=true",
            "-c",
            "core.protectHFS=true",
            "-c",
            "core.protectNTFS=true",
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-recurse-submodules",
            "--atomic",
            "--",
        ]
        .map(str::to_owned)
        .to_vec();
        args.push(remote.url().to_owned());
        args.extend(
            asked
                .chains
                .iter()
                .map(|name| format!("{}:{space}/scenarios/{name}", alias(name))),
        );
        args.extend(
            asked
                .held
                .iter()
                .map(|id| format!("{RELEASES}{id}:{space}/releases/{id}")),
        );
        if asked.base {
            args.push(format!("{BASE}:{space}/base"));
        }
        match self.program().run(&args) {
            Ok(_) => Ok(()),
            Err(ReleaseError::Command { output, .. }) if output.contains("fsck error") => Err(ReleaseError::Refused {
                remote: remote.shown(),
                release: "(objects)".to_owned(),
                problem: output
                    .lines()
                    .find(|line| line.starts_with("error:"))
                    .unwrap_or("git finds a fault in them")
                    .to_owned(),
            }),
            Err(error) => Err(error),
        }
    }

    /// Looks at every release that is not reachable here yet, the oldest first.
    fn check(&self, remote: &Remote, git: &git2::Repository, incoming: &Incoming<'_>) -> Result<(), ReleaseError> {
        let mut walk = git.revwalk().map_err(git_at("walk"))?;
        walk.set_sorting(Sort::TOPOLOGICAL | Sort::REVERSE)
            .map_err(git_at("walk"))?;
        let tips = incoming
            .heads
            .values()
            .chain(&incoming.held)
            .chain(incoming.base.as_ref());
        for tip in tips {
            walk.push(oid(tip)?)
                .map_err(|_| refused(remote, tip, "it is no commit"))?;
        }
        for reference in git.references().map_err(git_at("list refs"))?.flatten() {
            let name = reference.name().unwrap_or_default();
            if let Some(known) = reference.target().filter(|_| !name.starts_with(INCOMING)) {
                // A ref that names no commit is a finding of the verification.
                let _not_a_commit = walk.hide(known);
            }
        }
        let mut inspector = Inspector::new(self, git)?;
        let mut fresh = HashSet::new();
        for step in walk {
            let release = super::commit::release_id(step.map_err(git_at("walk"))?)?;
            if let Some(fault) = inspector.release(&release).faults.first() {
                return Err(refused(remote, &release, &fault.to_string()));
            }
            fresh.insert(release);
        }
        for (name, head) in &incoming.heads {
            let said = self.describe(head)?;
            if said.scenario.as_ref() != Some(name) {
                let problem = format!("it is offered as the head of scenario {name}, to which it does not belong");
                return Err(refused(remote, head, &problem));
            }
            if said.held {
                return Err(refused(remote, head, "it is the head of a chain, and held for review"));
            }
        }
        for release in &incoming.held {
            if !self.describe(release)?.held {
                return Err(refused(
                    remote,
                    release,
                    "it is offered as held for review, and does not say so",
                ));
            }
        }
        if let Some(base) = &incoming.base
            && !is_base(&self.describe(base)?)
        {
            return Err(refused(remote, base, "it is offered as the base, and is none"));
        }
        tracing::debug!(releases = fresh.len(), "what was fetched is sound");
        Ok(())
    }

    /// Removes names that pulls gave; what they named is reachable by its chains now, or is not wanted.
    fn forget_incoming(&self, space: &str) {
        let Ok(git) = self.git() else { return };
        let Ok(refs) = git.references_glob(&format!("{space}/*")) else {
            return;
        };
        for mut reference in refs.flatten() {
            if let Err(error) = reference.delete() {
                tracing::warn!(%error, "a temporary ref stays behind");
            }
        }
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        self.repository.forget_incoming(&self.space);
    }
}

fn is_base(said: &Commit) -> bool {
    said.scenario.is_none() && said.parent.is_none() && said.operation == Operation::Creation
}

fn refused(remote: &Remote, release: &ReleaseId, problem: &str) -> ReleaseError {
    ReleaseError::Refused {
        remote: remote.shown(),
        release: release.to_string(),
        problem: problem.to_owned(),
    }
}
