//! Re-hashing everything: commits against manifests, manifests against trees, bytes against digests.

use std::collections::{BTreeSet, HashMap, HashSet};

use git2::{ObjectType, Oid};
use sha2::{Digest, Sha256};

use super::error::git_at;
use super::history::{manifest_of, read};
use super::pointer::Pointer;
use super::{MANIFEST_NAME, Manifest, ReleaseError, Repository, attributes};
use crate::domain::{Operation, ReleaseId};

/// Something that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The first release it was met in.
    pub release: String,
    /// The file, where it is one.
    pub path: Option<String>,
    /// What is wrong.
    pub problem: String,
}

/// What a verification found.
#[derive(Debug, Clone, Default)]
pub struct Verified {
    /// Releases looked at.
    pub releases: u64,
    /// Files of theirs, each version once.
    pub files: u64,
    /// Bytes hashed.
    pub bytes: u64,
    /// Releases whose large files are gone as retention decided.
    pub pruned: u64,
    /// Everything that is damaged.
    pub damage: Vec<Damage>,
}

struct Check<'a> {
    repository: &'a Repository,
    git: &'a git2::Repository,
    pruned: &'a HashSet<ReleaseId>,
    /// What a blob turned out to be; equal files of many releases are hashed once.
    blobs: HashMap<Oid, Found>,
    objects: HashMap<String, Option<bool>>,
    found: Verified,
}

#[derive(Clone)]
struct Found {
    sha256: String,
    size: u64,
    pointer: Option<Pointer>,
}

impl Repository {
    /// Verifies releases, or all that any ref reaches. `pruned` are those whose large files retention took.
    /// `progress` is told how many of how many releases are done.
    pub fn verify(
        &self,
        only: Option<&[ReleaseId]>,
        pruned: &HashSet<ReleaseId>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Verified, ReleaseError> {
        let git = self.git()?;
        let mut check = Check {
            repository: self,
            git: &git,
            pruned,
            blobs: HashMap::new(),
            objects: HashMap::new(),
            found: Verified::default(),
        };
        let releases = match only {
            Some(releases) => releases.to_vec(),
            None => check.reachable()?,
        };
        let total = releases.len() as u64;
        for (n, release) in releases.iter().enumerate() {
            check.release(release)?;
            progress(n as u64 + 1, total);
        }
        check.found.releases = total;
        Ok(check.found)
    }
}

impl Check<'_> {
    fn damaged(&mut self, release: &impl ToString, path: Option<&str>, problem: impl Into<String>) {
        self.found.damage.push(Damage {
            release: release.to_string(),
            path: path.map(str::to_owned),
            problem: problem.into(),
        });
    }

    /// Every release any ref reaches, by walking parents by hand: a missing commit is a finding, not the end.
    fn reachable(&mut self) -> Result<Vec<ReleaseId>, ReleaseError> {
        let mut queue = Vec::new();
        for pattern in ["refs/heads/*", "refs/reef/*"] {
            for reference in self.git.references_glob(pattern).map_err(git_at("list refs"))? {
                let reference = reference.map_err(git_at("list refs"))?;
                // An alias of a branch is met as the branch.
                if let Some(oid) = reference.target() {
                    let name = reference.name().unwrap_or("a ref").to_owned();
                    queue.push((oid, format!("{name} points at it, and it")));
                }
            }
        }
        let mut seen = BTreeSet::new();
        let mut releases = Vec::new();
        while let Some((oid, from)) = queue.pop() {
            if !seen.insert(oid) {
                continue;
            }
            match self.git.find_commit(oid) {
                Ok(commit) => {
                    releases.push(super::commit::release_id(oid)?);
                    queue.extend(
                        commit
                            .parent_ids()
                            .map(|id| (id, format!("it comes before {}, and", commit.id()))),
                    );
                }
                Err(_) => self.damaged(&oid, None, format!("{from} is missing or unreadable")),
            }
        }
        Ok(releases)
    }

    fn release(&mut self, release: &ReleaseId) -> Result<(), ReleaseError> {
        let commit = match self.repository.find_commit(self.git, release) {
            Ok(commit) => commit,
            Err(error) => {
                self.damaged(release, None, error.to_string());
                return Ok(());
            }
        };
        let (said, manifest) = match (read(&commit), manifest_of(self.git, &commit)) {
            (Ok(said), Ok(manifest)) => (said, manifest),
            (Err(error), _) | (_, Err(error)) => {
                let problem = match error {
                    ReleaseError::Damaged { problem, .. } => problem,
                    other => other.to_string(),
                };
                self.damaged(release, None, problem);
                return Ok(());
            }
        };
        let agree = said.content_id == manifest.content_id
            && said.scenario == manifest.scenario
            && said.sequence == manifest.sequence
            && said.operation == manifest.operation
            && said.parent == manifest.parent_release_id;
        if !agree {
            self.damaged(release, None, "its commit message and its manifest disagree");
        }
        if let Some(parent) = said.parent.filter(|_| said.operation != Operation::Creation)
            && let Ok(parent) = self.repository.find_commit(self.git, &parent)
            && let Ok(parent) = read(&parent)
            && (parent.sequence + 1 != said.sequence || parent.scenario != said.scenario)
        {
            self.damaged(release, None, format!("it does not follow {}", parent.release_id));
        }
        match commit.tree() {
            Ok(tree) => self.tree(release, &manifest, &tree),
            Err(_) => self.damaged(release, None, "its tree is missing or unreadable"),
        }
        Ok(())
    }

    fn tree(&mut self, release: &ReleaseId, manifest: &Manifest, tree: &git2::Tree<'_>) {
        let mut entries = HashMap::new();
        let walked = tree.walk(git2::TreeWalkMode::PreOrder, |dir, entry| {
            if entry.kind() != Some(ObjectType::Tree) {
                entries.insert(format!("{dir}{}", entry.name().unwrap_or_default()), entry.id());
            }
            git2::TreeWalkResult::Ok
        });
        if walked.is_err() {
            self.damaged(release, None, "a part of its tree is missing or unreadable");
            return;
        }
        let mut gone = false;
        for file in &manifest.content.files {
            let Some(oid) = entries.remove(&file.path) else {
                self.damaged(release, Some(&file.path), "it is in the manifest and not in the tree");
                continue;
            };
            let Some(found) = self.blob(oid) else {
                self.damaged(release, Some(&file.path), "git cannot read it");
                continue;
            };
            if found.sha256 == file.sha256 && found.size == file.size {
                continue;
            }
            match found.pointer {
                Some(pointer) if pointer.oid == file.sha256 && pointer.size == file.size => {
                    match self.object(&pointer) {
                        Some(true) => {}
                        Some(false) => self.damaged(
                            release,
                            Some(&file.path),
                            format!("object {} does not hold what its name says", pointer.oid),
                        ),
                        None if self.pruned.contains(release) => gone = true,
                        None => {
                            self.damaged(release, Some(&file.path), format!("object {} is missing", pointer.oid));
                        }
                    }
                }
                _ => self.damaged(release, Some(&file.path), "it is not what the manifest says"),
            }
        }
        self.found.pruned += u64::from(gone);
        for path in entries.into_keys() {
            if path != MANIFEST_NAME && path != attributes::NAME {
                self.damaged(release, Some(&path), "it is in the tree and not in the manifest");
            }
        }
    }

    fn blob(&mut self, oid: Oid) -> Option<Found> {
        if let Some(found) = self.blobs.get(&oid) {
            return Some(found.clone());
        }
        let blob = self.git.find_blob(oid).ok()?;
        let bytes = blob.content();
        let found = Found {
            sha256: hex::encode(Sha256::digest(bytes)),
            size: bytes.len() as u64,
            pointer: Pointer::parse(bytes),
        };
        self.found.files += 1;
        self.found.bytes += found.size;
        self.blobs.insert(oid, found.clone());
        Some(found)
    }

    /// Whether an object holds what its name says; `None` when it is missing.
    fn object(&mut self, pointer: &Pointer) -> Option<bool> {
        if let Some(known) = self.objects.get(&pointer.oid) {
            return *known;
        }
        // An object that cannot be read is as good as a wrong one.
        let state = self.repository.lfs.verify(pointer).unwrap_or(Some(false));
        if state.is_some() {
            self.found.bytes += pointer.size;
        }
        self.objects.insert(pointer.oid.clone(), state);
        state
    }
}
