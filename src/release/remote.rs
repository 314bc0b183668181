//! Moving chains between repositories: large objects first, refs last, and only forward. A push cut short leaves no ref
//! whose objects are missing; a pull moves a head only when everything it needs is here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::error::{Trouble, git_at};
use super::git::without_credentials;
use super::heads::{BASE, alias, branch, oid};
use super::incoming::{Asked, INCOMING};
use super::lfs::LfsStore;
use super::pointer::Pointer;
use super::{ReleaseError, Repository};
use crate::domain::{ReleaseId, ScenarioName};
use crate::sys::failpoint;

const RELEASES: &str = "refs/reef/releases/";
const REJECTED: &str = "refs/reef/rejected/";
const SCENARIOS: &str = "refs/reef/scenarios/";

/// A git repository elsewhere.
#[derive(Debug, Clone)]
pub struct Remote {
    url: String,
    lfs_url: Option<String>,
    /// A push offers the objects of new releases alone.
    follows: bool,
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
    /// Large objects that were offered to the other side, or that came.
    pub objects: u64,
    /// Releases that stay incomplete where they went: some of their large files are neither here nor there.
    pub incomplete: BTreeSet<ReleaseId>,
    /// Releases kept for review that came or went along.
    pub held: u64,
    /// Decisions against held releases that became known to the other side, or here.
    pub rejected: u64,
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
    pub fn new(url: &str, lfs_url: Option<String>) -> Result<Self, ReleaseError> {
        let url = if !url.contains("://") && Path::new(url).exists() {
            // git-lfs finds the objects of a directory only by a URL.
            let absolute = std::fs::canonicalize(url).unwrap_or_else(|_| url.into());
            format!("file://{}", absolute.display())
        } else {
            url.to_owned()
        };
        for text in [Some(&url), lfs_url.as_ref()].into_iter().flatten() {
            if let Some(problem) = url_fault(text) {
                return Err(ReleaseError::BadRemote {
                    url: without_credentials(text),
                    problem,
                });
            }
        }
        Ok(Self {
            url,
            lfs_url,
            follows: false,
        })
    }

    /// One that gets every release as it is made: a push to it offers the large objects of releases it does not have, and
    /// does not ask after those it was given before.
    #[must_use]
    pub fn that_follows(self) -> Self {
        Self { follows: true, ..self }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Whether the remote has an object, where that can be seen: it is a directory.
    fn is_known_to_have(&self, pointer: &Pointer) -> bool {
        let Some(path) = self.url.strip_prefix("file://").filter(|_| self.lfs_url.is_none()) else {
            return false;
        };
        [Path::new(path).to_path_buf(), Path::new(path).join(".git")]
            .into_iter()
            .any(|dir| LfsStore::new(&dir, Path::new("")).has(pointer))
    }

    /// The URL as it may be shown.
    pub fn shown(&self) -> String {
        without_credentials(&self.url)
    }

    pub(super) fn lfs_settings(&self) -> Vec<String> {
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
        for release in self.rejected()? {
            let name = format!("{REJECTED}{release}");
            // Where the release itself never went there is nothing to refuse.
            if there.contains_key(&format!("{RELEASES}{release}"))
                && !there.contains_key(&name)
                && let Some(of) = self.describe(&release)?.scenario
                && scenarios.iter().any(|(scenario, _)| *scenario == of)
            {
                specs.push(format!("{release}:{name}"));
                transfer.rejected += 1;
            }
        }
        if let Some(base) = self.base()?
            && !there.contains_key(BASE)
        {
            specs.push(format!("{base}:{BASE}"));
            tips.push(base);
        }
        if specs.is_empty() && remote.follows {
            return Ok(transfer);
        }
        let known: Vec<ReleaseId> = if remote.follows {
            there.into_values().collect()
        } else {
            // Objects may be missing there though the refs agree: their loss, or a push that could not send them.
            tips = scenarios.iter().map(|(_, head)| head.clone()).collect();
            tips.extend(held.iter().cloned());
            tips.extend(self.base()?);
            Vec::new()
        };
        let stock = self.stock(&self.releases_between(&tips, &known)?)?;
        transfer.objects = stock.whole.len() as u64;
        self.push_objects(remote, &stock.whole)?;
        // Damage is never sent; what is whole is safe there by now.
        if let Some((pointer, release, path)) = stock.damaged.values().next() {
            return Err(ReleaseError::Damaged {
                release: release.to_string(),
                problem: format!(
                    "object {} of {path} does not hold what its name says, and is not sent: `reef release pull \
                     --objects all` brings it from a remote that has it, and so does an import of the file",
                    pointer.oid
                ),
            });
        }
        let absent = |oid: &String| {
            let pointer = stock.absent.get(oid);
            pointer.is_some_and(|pointer| !remote.is_known_to_have(pointer))
        };
        transfer.incomplete = stock
            .lacking
            .iter()
            .filter(|(_, objects)| objects.iter().any(absent))
            .map(|(release, _)| release.clone())
            .collect();
        if specs.is_empty() {
            return Ok(transfer);
        }
        self.hit("release::push_after_objects")?;
        let mut args = vec!["push".to_owned(), "--atomic".to_owned(), "--no-verify".to_owned()];
        args.extend(leases);
        args.push("--".to_owned());
        args.push(remote.url.clone());
        args.extend(specs);
        self.program()
            .run(&args)
            .map_err(|error| self.push_error(remote, scenarios, error))?;
        self.hit("release::push_after_refs")?;
        Ok(transfer)
    }

    /// Fetches chains from a remote, looks at all of it and moves those here that are behind. Gives the held releases that came as well.
    pub fn pull(
        &self,
        remote: &Remote,
        only: &[ScenarioName],
        objects: Objects,
    ) -> Result<(Transfer, Vec<ReleaseId>), ReleaseError> {
        let there = self.remote_refs(remote)?;
        let chains: Vec<ScenarioName> = there
            .keys()
            .filter_map(|name| {
                let name = name.strip_prefix(SCENARIOS)?.strip_suffix("/head")?;
                ScenarioName::new(name).ok()
            })
            .filter(|name| only.is_empty() || only.contains(name))
            .collect();
        if let Some(absent) = only.iter().find(|name| !chains.contains(name)) {
            return Err(ReleaseError::NotFound {
                what: format!("scenario {absent} at {}", remote.shown()),
            });
        }
        let held: Vec<ReleaseId> = there
            .iter()
            .filter(|(name, id)| name.strip_prefix(RELEASES) == Some(id.as_str()))
            .map(|(_, id)| id.clone())
            .collect();
        let base = there.contains_key(BASE);
        let mut transfer = Transfer::default();
        if chains.is_empty() && held.is_empty() && !base {
            return Ok((transfer, Vec::new()));
        }
        let asked = Asked {
            chains: &chains,
            held: &held,
            base,
        };
        let incoming = self.fetch_incoming(remote, &asked)?;
        let refused: BTreeSet<&ReleaseId> = held
            .iter()
            .filter(|id| there.contains_key(&format!("{REJECTED}{id}")))
            .collect();
        let mut moves = Vec::new();
        let mut wanted = Vec::new();
        for (name, theirs) in incoming.heads.clone() {
            let ours = self.head(&name)?;
            if objects == Objects::All {
                wanted.extend(
                    self.chain(&theirs, None, usize::MAX)?
                        .into_iter()
                        .map(|commit| commit.release_id),
                );
            }
            match &ours {
                Some(ours) if self.is_ancestor(&theirs, ours)? => {
                    if *ours == theirs {
                        // A head that is here may have lost large files, or have damaged ones.
                        wanted.push(theirs);
                    }
                    transfer.unmoved.push(name);
                }
                Some(ours) if !self.is_ancestor(ours, &theirs)? => return Err(diverged(&name, remote, &theirs)),
                _ => {
                    wanted.push(theirs.clone());
                    moves.push((name, ours, theirs));
                }
            }
        }
        let held = self.held_of(&incoming.held, &incoming.heads)?;
        // What was refused comes as evidence, without its large files.
        let waiting = held.iter().filter(|id| !refused.contains(id));
        let waiting_count = waiting.clone().count() as u64;
        wanted.extend(waiting.cloned());
        let brought = self.bring(remote, &wanted)?;
        transfer.objects = brought.objects;
        if let Some((_, _, theirs)) = moves.iter().find(|(_, _, theirs)| brought.incomplete.contains(theirs)) {
            return Err(self.not_brought(remote, theirs, brought.trouble)?);
        }
        if let Some(error) = brought.trouble.filter(|error| error.trouble() != Some(Trouble::Other)) {
            return Err(error);
        }
        transfer.incomplete = brought.incomplete;
        self.hit("release::pull_before_refs")?;
        if let Some(base) = &incoming.base {
            self.set_base(base)?;
        }
        // Before a release can be taken for one that waits.
        for release in refused {
            let is_of = self
                .describe(release)?
                .scenario
                .is_some_and(|of| incoming.heads.contains_key(&of));
            if is_of && !self.is_rejected(release)? {
                self.mark_rejected(release)?;
                transfer.rejected += 1;
            }
        }
        for release in &held {
            self.keep(release)?;
        }
        // The heads go last: what they are built on and what belongs to them is here.
        for (scenario, ours, theirs) in moves {
            self.advance(&scenario, &theirs, ours.as_ref())?;
            transfer.moved.push(Moved {
                scenario,
                from: ours,
                to: theirs,
            });
        }
        transfer.held = waiting_count;
        Ok((transfer, held))
    }

    /// Held releases built on the wanted chains that are not kept here yet.
    fn held_of(
        &self,
        held: &[ReleaseId],
        ends: &BTreeMap<ScenarioName, ReleaseId>,
    ) -> Result<Vec<ReleaseId>, ReleaseError> {
        let kept: BTreeSet<ReleaseId> = self.kept()?.into_iter().collect();
        let mut found = Vec::new();
        for id in held {
            let commit = self.describe(id)?;
            let Some(head) = commit.scenario.as_ref().and_then(|name| ends.get(name)) else {
                continue;
            };
            if !kept.contains(id) && self.is_built_on(&commit, head)? {
                found.push(id.clone());
            }
        }
        Ok(found)
    }

    /// The refs a remote shows.
    fn remote_refs(&self, remote: &Remote) -> Result<BTreeMap<String, ReleaseId>, ReleaseError> {
        let listed = self
            .program()
            .run(&["ls-remote", "--quiet", "--", &remote.url, "refs/reef/*", "refs/heads/*"])?;
        Ok(listed
            .lines()
            .filter_map(|line| {
                let (id, name) = line.split_once('\t')?;
                Some((name.to_owned(), ReleaseId::new(id).ok()?))
            })
            .filter(|(name, _)| !name.starts_with(INCOMING))
            .collect())
    }

    /// Every release that `tips` reach and `known` do not.
    fn releases_between(&self, tips: &[ReleaseId], known: &[ReleaseId]) -> Result<Vec<ReleaseId>, ReleaseError> {
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
        walk.map(|step| super::commit::release_id(step.map_err(git_at("walk"))?))
            .collect()
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

/// Why a text may not name a remote. git and git-lfs take words that begin with a hyphen for options, some of which run
/// programs; a host name that does is one for ssh.
fn url_fault(text: &str) -> Option<&'static str> {
    if text.trim().is_empty() {
        return Some("it is empty");
    }
    if text.chars().any(char::is_control) {
        return Some("it holds a control character");
    }
    let host = text.split_once("://").map_or(text, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or_default();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    (text.starts_with('-') || host.starts_with('-'))
        .then_some("it begins with a hyphen and would be read as an option; write a directory of that name as ./NAME")
}
