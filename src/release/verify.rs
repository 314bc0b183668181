//! Re-hashing everything: commits against manifests, manifests against trees, bytes against digests.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use git2::ErrorCode;

use super::error::{git_at, io_at};
use super::heads::{BASE, branch, oid};
use super::history::read;
use super::incoming::INCOMING;
use super::inspect::{Inspector, Large};
use super::ledger::Ledger;
use super::pointer::Pointer;
use super::{ReleaseError, Repository};
use crate::domain::{Operation, ReleaseId, ScenarioName};

/// A scenario's first release follows its name sooner than this.
const SECOND_LOOK: Duration = Duration::from_millis(500);

/// Something that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The first release it was met in; none for a ref that names no release.
    pub release: Option<String>,
    /// The file or the ref, where it is one.
    pub path: Option<String>,
    /// What is wrong.
    pub problem: String,
    /// It is that a large object is not here.
    pub is_missing_object: bool,
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
    /// Releases that lack large files of their content, which is no damage: retention took them, or they never came.
    pub pruned: u64,
    /// Of those, the ones whose files retention took.
    pub thinned: u64,
    /// Releases that lack their training state in the same way, and nothing else.
    pub stateless: u64,
    /// Everything that is damaged.
    pub damage: Vec<Damage>,
}

impl Verified {
    /// Takes back that objects are missing which retention took.
    pub fn forgive(&mut self, pruned: &HashSet<ReleaseId>) {
        let mut gone = HashSet::new();
        self.damage.retain(|damage| {
            let release = damage.release.as_deref().and_then(|id| ReleaseId::new(id).ok());
            match release.filter(|release| damage.is_missing_object && pruned.contains(release)) {
                Some(release) => {
                    gone.insert(release);
                    false
                }
                None => true,
            }
        });
        self.pruned += gone.len() as u64;
    }
}

/// What the index says there is. It must have been read before the repository is: what is released meanwhile is in the
/// repository first.
#[derive(Debug, Clone, Default)]
pub struct Indexed {
    /// Where the chains of scenarios in use end.
    pub heads: Vec<(ScenarioName, ReleaseId)>,
    /// Every release.
    pub releases: Vec<ReleaseId>,
    /// Releases whose large files retention took.
    pub pruned: HashSet<ReleaseId>,
}

/// Which releases a verification looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All that any ref reaches.
    Everything,
    /// The chain that ends in this release.
    Chain(ReleaseId),
    /// These.
    Releases(Vec<ReleaseId>),
}

struct Check<'a> {
    repository: &'a Repository,
    git: &'a git2::Repository,
    indexed: &'a Indexed,
    inspector: Inspector<'a>,
    objects: HashMap<String, Option<bool>>,
    ledger: Ledger,
    found: Verified,
}

impl Repository {
    /// Verifies the releases of `scope`; of everything, the refs too, all releases that any of them reaches, and that
    /// everything indexed is among those. `progress` is told how many of how many releases are done.
    pub fn verify(
        &self,
        scope: &Scope,
        indexed: &Indexed,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Verified, ReleaseError> {
        let git = self.git()?;
        let mut check = Check {
            repository: self,
            git: &git,
            indexed,
            inspector: Inspector::new(self, &git)?,
            objects: HashMap::new(),
            ledger: self.ledger()?,
            found: Verified::default(),
        };
        let releases = match scope {
            Scope::Releases(releases) => releases.clone(),
            Scope::Chain(head) => check.chain(head)?,
            Scope::Everything => {
                let reachable = check.reachable()?;
                check.base(&reachable);
                check.index(&reachable)?;
                reachable
            }
        };
        let total = releases.len() as u64;
        for (n, release) in releases.iter().enumerate() {
            check.release(release);
            progress(n as u64 + 1, total);
        }
        let mut found = check.found;
        found.releases = total;
        found.files = check.inspector.files;
        found.bytes += check.inspector.bytes;
        Ok(found)
    }
}

impl Check<'_> {
    fn damaged(&mut self, release: &impl ToString, path: Option<&str>, problem: impl Into<String>) {
        self.found.damage.push(Damage {
            release: Some(release.to_string()),
            path: path.map(str::to_owned),
            problem: problem.into(),
            is_missing_object: false,
        });
    }

    fn damaged_ref(&mut self, name: &str, problem: impl Into<String>) {
        self.found.damage.push(Damage {
            release: None,
            path: Some(name.to_owned()),
            problem: problem.into(),
            is_missing_object: false,
        });
    }

    /// Every release any ref reaches, by walking parents by hand: a missing commit is a finding, not the end.
    fn reachable(&mut self) -> Result<Vec<ReleaseId>, ReleaseError> {
        let mut queue = Vec::new();
        self.loose_refs("refs")?;
        for pattern in ["refs/heads/*", "refs/reef/*"] {
            for reference in self.git.references_glob(pattern).map_err(git_at("list refs"))? {
                let reference = match reference {
                    Ok(reference) => reference,
                    // It went since it was listed; an archived chain has another one by now.
                    Err(error) if error.code() == ErrorCode::NotFound => continue,
                    Err(error) => return Err(git_at("list refs")(error)),
                };
                let name = reference.name().unwrap_or("a ref").to_owned();
                // An alias of a branch is met as the branch, and what a pull brings is not let in yet.
                if let Some(oid) = reference.target().filter(|_| !name.starts_with(INCOMING)) {
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

    /// Refs that cannot be read, or that name nothing. libgit2 leaves them out of its lists, so their files are looked for.
    fn loose_refs(&mut self, name: &str) -> Result<(), ReleaseError> {
        let dir = self.repository.path().join(name);
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            // Directories of refs come and go with them.
            Err(error) if error.kind() == ErrorKind::NotFound && name != "refs" => return Ok(()),
            Err(error) => {
                self.damaged_ref(name, format!("it cannot be read ({error})"));
                return Ok(());
            }
        };
        for entry in entries {
            let entry = entry.map_err(io_at("read", &dir))?;
            let file = entry.file_name();
            let Some(file) = file.to_str().filter(|file| !file.ends_with(".lock")) else {
                continue;
            };
            let name = format!("{name}/{file}");
            if entry.path().is_dir() {
                if !name.starts_with(INCOMING) {
                    self.loose_refs(&name)?;
                }
            } else if let Some(problem) = self.ref_fault(&name) {
                self.damaged_ref(&name, problem);
            }
        }
        Ok(())
    }

    /// What is wrong with a ref, looked at twice: a name is given to a chain just before its first release, and a ref may
    /// be gone the moment after it was listed.
    fn ref_fault(&self, name: &str) -> Option<String> {
        let fault = || match self.git.find_reference(name) {
            Ok(reference) => match reference.symbolic_target() {
                Ok(Some(target)) if self.git.refname_to_id(target).is_err() => Some(format!(
                    "it is a name of {target}, which does not exist or cannot be read"
                )),
                _ => None,
            },
            Err(error) if error.code() == ErrorCode::NotFound => None,
            // A ref in an unknown state is damage, not the end of the verification.
            Err(error) => Some(error.message().to_owned()),
        };
        fault()?;
        thread::sleep(SECOND_LOOK);
        fault()
    }

    /// The base has a ref of its own, or scenarios to come begin with another one.
    fn base(&mut self, reachable: &[ReleaseId]) {
        if self.repository.base().ok().flatten().is_some() {
            return;
        }
        for release in reachable {
            let base = self
                .repository
                .describe(release)
                .ok()
                .filter(|said| said.scenario.is_none());
            if let Some(base) = base {
                self.damaged(&base.release_id, Some(BASE), "it is the base, and no ref says so");
            }
        }
    }

    /// What the index knows and no ref reaches.
    fn index(&mut self, reachable: &[ReleaseId]) -> Result<(), ReleaseError> {
        let indexed = self.indexed;
        for (scenario, end) in &indexed.heads {
            let name = branch(scenario);
            // One that was archived since the index was read is not lost.
            let archived = || self.repository.archived_holds(scenario, end);
            match self.repository.head(scenario) {
                Ok(None) if !archived()? => self.damaged(
                    end,
                    Some(&name),
                    format!("it is the head of {scenario}, and no ref says so"),
                ),
                Ok(Some(head)) if !self.repository.is_ancestor(end, &head)? && !archived()? => {
                    self.damaged(
                        end,
                        Some(&name),
                        format!("it was the head of {scenario}; the ref is now at {head}, before it or beside it"),
                    );
                }
                // A ref that cannot be read was named with the refs.
                Ok(_) | Err(_) => {}
            }
        }
        let reached: HashSet<&ReleaseId> = reachable.iter().collect();
        for release in indexed.releases.iter().filter(|release| !reached.contains(release)) {
            let problem = if self.repository.has(release)? {
                "it is indexed, and no ref reaches it: git may collect it"
            } else {
                "it is indexed, and git no longer has it"
            };
            self.damaged(release, None, problem);
        }
        Ok(())
    }

    /// A chain from its end to its creation, by walking parents by hand as well.
    fn chain(&mut self, head: &ReleaseId) -> Result<Vec<ReleaseId>, ReleaseError> {
        let mut releases = Vec::new();
        let mut next = Some((oid(head)?, "the chain ends in it, and it".to_owned()));
        while let Some((at, from)) = next.take() {
            let Ok(commit) = self.git.find_commit(at) else {
                self.damaged(&at, None, format!("{from} is missing or unreadable"));
                break;
            };
            releases.push(super::commit::release_id(at)?);
            let starts = read(&commit).is_ok_and(|said| said.operation == Operation::Creation);
            if !starts && let Ok(parent) = commit.parent_id(0) {
                next = Some((parent, format!("it comes before {at}, and")));
            }
        }
        Ok(releases)
    }

    fn release(&mut self, release: &ReleaseId) {
        let inspected = self.inspector.release(release);
        for fault in inspected.faults {
            self.damaged(release, fault.path.as_deref(), fault.problem);
        }
        let (mut gone, mut thinned, mut stateless) = (false, false, false);
        for Large { path, pointer } in inspected.large {
            let is_state = || {
                inspected
                    .manifest
                    .as_ref()
                    .is_some_and(|manifest| manifest.content.is_state(&path))
            };
            match self.object(&pointer) {
                Some(true) => {}
                Some(false) => self.damaged(
                    release,
                    Some(&path),
                    format!("object {} does not hold what its name says", pointer.oid),
                ),
                None if self.is_excused(release, &pointer.oid) => {
                    if is_state() {
                        stateless = true;
                    } else {
                        gone = true;
                        thinned |= self.ledger.thinned(&pointer.oid);
                    }
                }
                None => self.found.damage.push(Damage {
                    release: Some(release.to_string()),
                    path: Some(path),
                    problem: format!("object {} is missing, and retention did not take it", pointer.oid),
                    is_missing_object: true,
                }),
            }
        }
        self.found.pruned += u64::from(gone);
        self.found.thinned += u64::from(thinned);
        self.found.stateless += u64::from(stateless && !gone);
    }

    /// Whether an object is not here because retention took it, perhaps a moment ago, or because it never came.
    fn is_excused(&mut self, release: &ReleaseId, oid: &str) -> bool {
        if !self.ledger.excuses(oid)
            && let Ok(now) = self.repository.ledger()
        {
            self.ledger = now;
        }
        self.ledger.excuses(oid) || self.indexed.pruned.contains(release)
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
