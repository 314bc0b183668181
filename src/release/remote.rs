//! Moving chains between repositories: large objects first, refs last, and only forward. A push cut short leaves no ref
//! whose objects are missing; a pull moves a head only when everything it needs is here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::error::git_at;
use super::git::without_credentials;
use super::heads::{alias, branch, oid};
use super::materialise::{Blob, blob};
use super::{ReleaseError, Repository};
use crate::domain::{ReleaseId, ScenarioName};
use crate::sys::{failpoint, random};

const BASE: &str = "refs/reef/base";
const RELEASES: &str = "refs/reef/releases/";
const SCENARIOS: &str = "refs/reef/scenarios/";
/// Objects named on one command line.
const OBJECTS_AT_ONCE: usize = 200;

/// A git repository elsewhere.
#[derive(Debug, Clone)]
pub struct Remote {
    url: String,
    lfs_url: Option<String>,
}

/// What happened to one chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The scenario.
    pub scenario: ScenarioName,
    /// Where it ended before.
    pub from: Option<ReleaseId>,
    /// Where it ends now.
    pub to: ReleaseId,
}

/// What a push or a pull did.
#[derive(Debug, Clone, Default)]
pub struct Transfer {
    /// Chains that moved.
    pub moved: Vec<Moved>,
    /// Chains that were the same, or ahead of the source.
    pub unmoved: Vec<ScenarioName>,
    /// Large objects that were offered to the other side, or asked for.
    pub objects: u64,
    /// Releases kept for review that came or went along.
    pub held: u64,
}

/// Which large objects a pull brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objects {
    /// Those of the newest release of each chain, and of held ones.
    Heads,
    /// Those of every release.
    All,
}

impl Remote {
    /// The remote at a URL or path; `lfs_url` where its LFS server is not the one the URL implies.
    pub fn new(url: &str, lfs_url: Option<String>) -> Self {
        let url = if !url.contains("://") && Path::new(url).exists() {
            // git-lfs finds the objects of a directory only by a URL.
            let absolute = std::fs::canonicalize(url).unwrap_or_else(|_| url.into());
            format!("file://{}", absolute.display())
        } else {
            url.to_owned()
        };
        Self { url, lfs_url }
    }

    /// The URL as it may be shown.
    pub fn shown(&self) -> String {
        without_credentials(&self.url)
    }

    fn lfs_settings(&self) -> Vec<String> {
        let mut settings = vec![
            "-c".to_owned(),
            "lfs.locksverify=false".to_owned(),
            "-c".to_owned(),
            "lfs.allowincompletepush=true".to_owned(),
        ];
        if let Some(url) = &self.lfs_url {
            settings.extend(["-c".to_owned(), format!("lfs.url={url}")]);
        }
        settings
    }
}

impl Repository {
    /// Sends chains to a remote. A chain there that is not an ancestor of the one here is left alone, unless `force`
    /// says that the one here replaces what was just seen there.
    pub fn push(
        &self,
        remote: &Remote,
        scenarios: &[(ScenarioName, ReleaseId)],
        held: &[ReleaseId],
        force: bool,
    ) -> Result<Transfer, ReleaseError> {
        let there = self.remote_refs(remote)?;
        let mut transfer = Transfer::default();
        let mut leases = Vec::new();
        let mut specs = Vec::new();
        let mut tips = Vec::new();
        for (scenario, head) in scenarios {
            let names = [branch(scenario), alias(scenario)];
            let found = names.iter().find_map(|name| there.get(name)).cloned();
            if found.as_ref() == Some(head) && names.iter().all(|name| there.contains_key(name)) {
                transfer.unmoved.push(scenario.clone());
                continue;
            }
            if let Some(found) = &found
                && !force
                && !self.is_ancestor(found, head)?
            {
                if self.is_ancestor(head, found)? {
                    transfer.unmoved.push(scenario.clone());
                    continue;
                }
                return Err(diverged(scenario, remote, found));
            }
            for name in &names {
                let expected = there.get(name).map_or("", |id| id.as_str());
                leases.push(format!("--force-with-lease={name}:{expected}"));
                specs.push(format!("{head}:{name}"));
            }
            tips.push(head.clone());
            transfer.moved.push(Moved {
                scenario: scenario.clone(),
                from: found,
                to: head.clone(),
            });
        }
        for release in held {
            let name = format!("{RELEASES}{release}");
            if !there.contains_key(&name) {
                specs.push(format!("{release}:{name}"));
                tips.push(release.clone());
                transfer.held += 1;
            }
        }
        if let Some(base) = self.base()?
            && !there.contains_key(BASE)
        {
            specs.push(format!("{base}:{BASE}"));
            tips.push(base);
        }
        if specs.is_empty() {
            return Ok(transfer);
        }
        let known: Vec<ReleaseId> = there.into_values().collect();
        let objects = self.objects_between(&tips, &known)?;
        transfer.objects = objects.len() as u64;
        self.push_objects(remote, &objects)?;
        self.hit("release::push_after_objects")?;
        let mut args = vec!["push".to_owned(), "--atomic".to_owned(), "--no-verify".to_owned()];
        args.extend(leases);
        args.push(remote.url.clone());
        args.extend(specs);
        self.program()
            .run(&args)
            .map_err(|error| self.push_error(remote, scenarios, error))?;
        self.hit("release::push_after_refs")?;
        Ok(transfer)
    }

    /// Fetches chains from a remote and moves those here that are behind. Gives the held releases that came as well.
    pub fn pull(
        &self,
        remote: &Remote,
        only: &[ScenarioName],
        objects: Objects,
    ) -> Result<(Transfer, Vec<ReleaseId>), ReleaseError> {
        let there = self.remote_refs(remote)?;
        let incoming = format!("refs/reef/incoming/{}", random::hex_token());
        let result = self.pull_into(remote, only, objects, &there, &incoming);
        // What was fetched is reachable by its chains now, or is not wanted.
        if let Ok(git) = self.git()
            && let Ok(refs) = git.references_glob(&format!("{incoming}/*"))
        {
            for mut reference in refs.flatten() {
                if let Err(error) = reference.delete() {
                    tracing::warn!(%error, "a temporary ref stays behind");
                }
            }
        }
        result
    }

    /// Brings the large objects of one release from a remote.
    pub fn fetch_objects(&self, remote: &Remote, releases: &[ReleaseId]) -> Result<(), ReleaseError> {
        let mut args = remote.lfs_settings();
        args.extend(["lfs".to_owned(), "fetch".to_owned(), remote.url.clone()]);
        args.extend(releases.iter().map(ToString::to_string));
        self.program().run(&args)?;
        Ok(())
    }

    fn pull_into(
        &self,
        remote: &Remote,
        only: &[ScenarioName],
        objects: Objects,
        there: &BTreeMap<String, ReleaseId>,
        incoming: &str,
    ) -> Result<(Transfer, Vec<ReleaseId>), ReleaseError> {
        let chains: Vec<(ScenarioName, ReleaseId)> = there
            .iter()
            .filter_map(|(name, id)| {
                let name = name.strip_prefix(SCENARIOS)?.strip_suffix("/head")?;
                Some((ScenarioName::new(name).ok()?, id.clone()))
            })
            .filter(|(name, _)| only.is_empty() || only.contains(name))
            .collect();
        if let Some(absent) = only.iter().find(|name| !chains.iter().any(|(found, _)| found == *name)) {
            return Err(ReleaseError::NotFound {
                what: format!("scenario {absent} at {}", remote.shown()),
            });
        }
        let held: Vec<&ReleaseId> = there
            .iter()
            .filter(|(name, _)| name.starts_with(RELEASES))
            .map(|(_, id)| id)
            .collect();
        let mut specs: Vec<String> = chains
            .iter()
            .map(|(name, _)| format!("{}:{incoming}/scenarios/{name}", alias(name)))
            .collect();
        specs.extend(held.iter().map(|id| format!("{RELEASES}{id}:{incoming}/releases/{id}")));
        if there.contains_key(BASE) {
            specs.push(format!("{BASE}:{incoming}/base"));
        }
        let mut transfer = Transfer::default();
        if specs.is_empty() {
            return Ok((transfer, Vec::new()));
        }
        let mut args = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--atomic"]
            .map(str::to_owned)
            .to_vec();
        args.push(remote.url.clone());
        args.extend(specs);
        self.program().run(&args)?;
        let mut moves = Vec::new();
        let mut wanted = Vec::new();
        for (name, theirs) in chains {
            let ours = self.head(&name)?;
            if objects == Objects::All {
                wanted.extend(
                    self.chain(&theirs, None, usize::MAX)?
                        .into_iter()
                        .map(|commit| commit.release_id),
                );
            }
            match &ours {
                Some(ours) if self.is_ancestor(&theirs, ours)? => transfer.unmoved.push(name),
                Some(ours) if !self.is_ancestor(ours, &theirs)? => return Err(diverged(&name, remote, &theirs)),
                _ => {
                    // A chain that is not made of releases is refused before anything moves.
                    self.chain(&theirs, ours.as_ref(), usize::MAX)?;
                    wanted.push(theirs.clone());
                    moves.push((name, ours, theirs));
                }
            }
        }
        let held = self.held_of(&held, only)?;
        wanted.extend(held.iter().cloned());
        let absent: Vec<ReleaseId> = wanted
            .iter()
            .filter_map(|id| match self.missing_object(id) {
                Ok(None) => None,
                Ok(Some(_)) => Some(Ok(id.clone())),
                Err(error) => Some(Err(error)),
            })
            .collect::<Result<_, _>>()?;
        for some in absent.chunks(OBJECTS_AT_ONCE) {
            self.fetch_objects(remote, some)?;
        }
        transfer.objects = absent.len() as u64;
        for (_, _, theirs) in &moves {
            if let Some(entry) = self.missing_object(theirs)? {
                return Err(ReleaseError::NotRestorable {
                    release: theirs.clone(),
                    reason: format!("{} does not have the object of {}", remote.shown(), entry.path),
                });
            }
        }
        self.hit("release::pull_before_refs")?;
        if let Some(base) = there.get(BASE) {
            self.set_base(base)?;
        }
        for (scenario, ours, theirs) in moves {
            self.advance(&scenario, &theirs, ours.as_ref())?;
            transfer.moved.push(Moved {
                scenario,
                from: ours,
                to: theirs,
            });
        }
        for release in &held {
            self.keep(release)?;
        }
        transfer.held = held.len() as u64;
        Ok((transfer, held))
    }

    /// Held releases of the wanted scenarios that are not kept here yet.
    fn held_of(&self, held: &[&ReleaseId], only: &[ScenarioName]) -> Result<Vec<ReleaseId>, ReleaseError> {
        let kept: BTreeSet<ReleaseId> = self.kept()?.into_iter().collect();
        let mut found = Vec::new();
        for id in held {
            let scenario = self.describe(id)?.scenario;
            let wanted = scenario.is_some_and(|name| only.is_empty() || only.contains(&name));
            if wanted && !kept.contains(*id) {
                found.push((*id).clone());
            }
        }
        Ok(found)
    }

    /// The refs a remote shows.
    fn remote_refs(&self, remote: &Remote) -> Result<BTreeMap<String, ReleaseId>, ReleaseError> {
        let listed = self
            .program()
            .run(&["ls-remote", "--quiet", &remote.url, "refs/reef/*", "refs/heads/*"])?;
        Ok(listed
            .lines()
            .filter_map(|line| {
                let (id, name) = line.split_once('\t')?;
                Some((name.to_owned(), ReleaseId::new(id).ok()?))
            })
            .filter(|(name, _)| !name.starts_with("refs/reef/incoming/"))
            .collect())
    }

    /// The large objects, present here, of every release that `tips` reach and `known` do not.
    fn objects_between(&self, tips: &[ReleaseId], known: &[ReleaseId]) -> Result<BTreeSet<String>, ReleaseError> {
        let git = self.git()?;
        let mut walk = git.revwalk().map_err(git_at("walk"))?;
        for tip in tips {
            walk.push(oid(tip)?).map_err(git_at("walk"))?;
        }
        for known in known {
            let id = oid(known)?;
            if git.find_commit(id).is_ok() {
                walk.hide(id).map_err(git_at("walk"))?;
            }
        }
        let mut objects = BTreeSet::new();
        for step in walk {
            let release = super::commit::release_id(step.map_err(git_at("walk"))?)?;
            let tree = self.tree(&git, &release)?;
            for entry in &self.manifest(&release)?.content.files {
                if let Blob::Large(pointer) = blob(&tree, &git, &release, entry)?
                    && self.lfs.has(&pointer)
                {
                    objects.insert(pointer.oid);
                }
            }
        }
        Ok(objects)
    }

    fn push_objects(&self, remote: &Remote, objects: &BTreeSet<String>) -> Result<(), ReleaseError> {
        let objects: Vec<&String> = objects.iter().collect();
        for some in objects.chunks(OBJECTS_AT_ONCE) {
            let mut args = remote.lfs_settings();
            args.extend(["lfs", "push", "--object-id"].map(str::to_owned));
            args.push(remote.url.clone());
            args.extend(some.iter().map(|oid| (*oid).clone()));
            self.program().run(&args)?;
        }
        Ok(())
    }

    /// A lost lease is a conflict, not a failure of git.
    fn push_error(
        &self,
        remote: &Remote,
        scenarios: &[(ScenarioName, ReleaseId)],
        error: ReleaseError,
    ) -> ReleaseError {
        let lost = matches!(&error, ReleaseError::Command { output, .. }
            if ["stale info", "fetch first", "non-fast-forward", "cannot lock ref"].iter().any(|word| output.contains(word)));
        if lost && let Ok(there) = self.remote_refs(remote) {
            for (scenario, _) in scenarios {
                if let Some(found) = there.get(&branch(scenario)) {
                    return diverged(scenario, remote, found);
                }
            }
        }
        error
    }

    fn hit(&self, name: &'static str) -> Result<(), ReleaseError> {
        failpoint::hit(name).map_err(|source| ReleaseError::Io {
            action: "transfer releases of",
            path: self.path().to_path_buf(),
            source,
        })
    }
}

fn diverged(scenario: &ScenarioName, remote: &Remote, found: &ReleaseId) -> ReleaseError {
    ReleaseError::Diverged {
        scenario: scenario.clone(),
        remote: remote.shown(),
        found: found.clone(),
    }
}
