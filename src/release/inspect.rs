//! The one reading of a release that believes nothing: its message, its manifest and its tree must say the same, and
//! every file must be what its digest says. A pull, a verification, an export and the index all look through it.

use std::collections::{BTreeSet, HashMap};

use git2::{FileMode, ObjectType, Oid};
use sha2::{Digest, Sha256};

use super::content::MAX_FILES;
use super::error::git_at;
use super::history::{manifest_of, read};
use super::pointer::{MAX_POINTER_BYTES, Pointer};
use super::{Commit, MANIFEST_NAME, Manifest, ReleaseError, Repository, attributes};
use crate::domain::{Operation, ReleaseId};

/// A larger file is never kept in git itself.
pub(super) const LARGEST_PLAIN: u64 = 512 << 20;
/// A manifest of the most files with the longest paths is smaller.
const LARGEST_MANIFEST: usize = 256 << 20;
/// A rule for each file, and the usual ones.
const LARGEST_ATTRIBUTES: usize = LARGEST_MANIFEST;

/// Something about a release that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// The file, where it is one.
    pub path: Option<String>,
    /// What is wrong.
    pub problem: String,
}

/// A file whose bytes are in an LFS object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Large {
    /// Its path.
    pub path: String,
    /// Where its bytes are.
    pub pointer: Pointer,
}

/// What an inspection found.
#[derive(Debug, Default)]
pub(super) struct Inspected {
    /// What its commit says, where that can be read.
    pub said: Option<Commit>,
    /// Its manifest, where that can be read.
    pub manifest: Option<Manifest>,
    /// Its large files; whether their objects are here is for others to see.
    pub large: Vec<Large>,
    /// Everything that is wrong.
    pub faults: Vec<Fault>,
}

impl Inspected {
    fn fault(&mut self, path: Option<&str>, problem: impl Into<String>) {
        self.faults.push(Fault {
            path: path.map(str::to_owned),
            problem: problem.into(),
        });
    }

    /// What it says, if nothing is wrong with it.
    pub(super) fn sound(self, release: &ReleaseId) -> Result<(Commit, Manifest, Vec<Large>), ReleaseError> {
        match (self.faults.into_iter().next(), self.said, self.manifest) {
            (None, Some(said), Some(manifest)) => Ok((said, manifest, self.large)),
            (fault, _, _) => Err(ReleaseError::Damaged {
                release: release.to_string(),
                problem: fault.map_or_else(|| "it cannot be read".to_owned(), |fault| fault.to_string()),
            }),
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.escape_debug())?;
        }
        f.write_str(&self.problem)
    }
}

/// Reads releases of one repository; equal files of many releases are hashed once.
pub(super) struct Inspector<'g> {
    repository: &'g Repository,
    git: &'g git2::Repository,
    odb: git2::Odb<'g>,
    blobs: HashMap<Oid, Option<Found>>,
    /// Files read, each version once.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

#[derive(Clone)]
struct Found {
    sha256: String,
    size: u64,
    pointer: Option<Pointer>,
}

/// One entry of a tree.
struct Entry {
    oid: Oid,
    mode: i32,
}

impl<'g> Inspector<'g> {
    pub(super) fn new(repository: &'g Repository, git: &'g git2::Repository) -> Result<Self, ReleaseError> {
        Ok(Self {
            repository,
            git,
            odb: git.odb().map_err(git_at("open the objects of"))?,
            blobs: HashMap::new(),
            files: 0,
            bytes: 0,
        })
    }

    /// Looks at one release.
    pub(super) fn release(&mut self, release: &ReleaseId) -> Inspected {
        let mut found = Inspected::default();
        let commit = match self.repository.find_commit(self.git, release) {
            Ok(commit) => commit,
            Err(error) => {
                found.fault(None, error.to_string());
                return found;
            }
        };
        let manifest_size = commit
            .tree()
            .ok()
            .and_then(|tree| Some(tree.get_name(MANIFEST_NAME)?.id()))
            .and_then(|oid| Some(self.odb.read_header(oid).ok()?.0));
        if manifest_size.is_some_and(|size| size > LARGEST_MANIFEST) {
            found.fault(Some(MANIFEST_NAME), "it is too large to be a manifest");
            return found;
        }
        match (read(&commit), manifest_of(self.git, &commit)) {
            (Ok(said), Ok(manifest)) => {
                if !agree(&said, &manifest) {
                    found.fault(None, "its commit message and its manifest disagree");
                }
                if let Some(problem) = repeated(commit.message().unwrap_or_default()) {
                    found.fault(None, problem);
                }
                for problem in [self.place(&commit, &said), self.target(&said)].into_iter().flatten() {
                    found.fault(None, problem);
                }
                match commit.tree() {
                    Ok(tree) => self.tree(&mut found, &manifest, &tree),
                    Err(_) => found.fault(None, "its tree is missing or unreadable"),
                }
                found.said = Some(said);
                found.manifest = Some(manifest);
            }
            (Err(error), _) | (_, Err(error)) => {
                let problem = match error {
                    ReleaseError::Damaged { problem, .. } => problem,
                    other => other.to_string(),
                };
                found.fault(None, problem);
            }
        }
        found
    }

    /// Whether it stands where a release of its kind may: one release before it, and the next number.
    fn place(&self, commit: &git2::Commit<'_>, said: &Commit) -> Option<String> {
        if commit.parent_count() > 1 {
            return Some("more than one release comes before it".to_owned());
        }
        let begins = said.operation == Operation::Creation;
        match (&said.parent, &said.scenario) {
            (None, _) if begins && said.sequence == 0 => None,
            (None, _) => Some("nothing comes before it, and it is not the first of a chain".to_owned()),
            (Some(_), None) => Some("it has no scenario, and something comes before it".to_owned()),
            (Some(_), Some(_)) if begins => {
                (said.sequence != 0).then(|| "it is the first of its chain, and its number is not 0".to_owned())
            }
            (Some(parent), Some(_)) => {
                let before = self.repository.find_commit(self.git, parent).ok()?;
                let Ok(before) = read(&before) else {
                    return Some(format!("it does not follow {parent}"));
                };
                if before.scenario != said.scenario || before.sequence.checked_add(1) != Some(said.sequence) {
                    return Some(format!("it does not follow {parent}"));
                }
                before
                    .held
                    .then(|| format!("it is built on {parent}, which was held for review"))
            }
        }
    }

    /// Whether a release that puts another one's content in service has that content.
    fn target(&self, said: &Commit) -> Option<String> {
        let republishes = matches!(said.operation, Operation::Rollback | Operation::Promote);
        match &said.target {
            None if republishes => Some(format!("it does not say what it is a {} of", said.operation.as_str())),
            None => None,
            Some(target) if republishes => {
                // One that is not here was held elsewhere.
                let target = read(&self.repository.find_commit(self.git, target).ok()?).ok()?;
                (target.content_id != said.content_id)
                    .then(|| format!("its content is not that of {}", target.release_id))
            }
            Some(_) => Some("it names another release without being a rollback or a promote of it".to_owned()),
        }
    }

    fn tree(&mut self, found: &mut Inspected, manifest: &Manifest, tree: &git2::Tree<'_>) {
        let mut entries = HashMap::new();
        if !self.walk(found, manifest, tree, &mut entries) {
            found.fault(None, "a part of its tree is missing or unreadable");
            return;
        }
        for file in &manifest.content.files {
            let Some(entry) = entries.remove(&file.path) else {
                found.fault(Some(&file.path), "it is in the manifest and not in the tree");
                continue;
            };
            if (entry.mode == i32::from(FileMode::BlobExecutable)) != file.executable {
                found.fault(
                    Some(&file.path),
                    "its tree and its manifest disagree on whether it may be executed",
                );
            }
            let Some(blob) = self.blob(entry.oid) else {
                found.fault(Some(&file.path), "git cannot read it");
                continue;
            };
            if blob.sha256 == file.sha256 && blob.size == file.size {
                continue;
            }
            match blob.pointer {
                Some(pointer) if pointer.oid == file.sha256 && pointer.size == file.size => {
                    found.large.push(Large {
                        path: file.path.clone(),
                        pointer,
                    });
                }
                _ => found.fault(Some(&file.path), "it is not what the manifest says"),
            }
        }
        match entries.remove(attributes::NAME) {
            None => found.fault(Some(attributes::NAME), "it is not in the tree"),
            Some(entry) => match self.text(entry.oid, LARGEST_ATTRIBUTES) {
                None => found.fault(Some(attributes::NAME), "git cannot read it"),
                Some(text) => {
                    if let Some(problem) = attributes::fault(&text) {
                        found.fault(Some(attributes::NAME), problem);
                    }
                }
            },
        }
        entries.remove(MANIFEST_NAME);
        let mut more: Vec<&String> = entries.keys().collect();
        more.sort();
        for path in more {
            found.fault(Some(path), "it is in the tree and not in the manifest");
        }
    }

    /// The files of a tree. Only directories that the manifest speaks of are looked into, so that a tree that is deep or
    /// wide beyond measure costs nothing. False when a part cannot be read.
    fn walk(
        &self,
        found: &mut Inspected,
        manifest: &Manifest,
        tree: &git2::Tree<'_>,
        entries: &mut HashMap<String, Entry>,
    ) -> bool {
        let known = manifest.content.dirs();
        let mut left = vec![(String::new(), tree.id())];
        let mut seen = 0;
        while let Some((prefix, oid)) = left.pop() {
            let Ok(tree) = self.git.find_tree(oid) else {
                return false;
            };
            for entry in &tree {
                seen += 1;
                if seen > 2 * MAX_FILES {
                    found.fault(None, "its tree has more than 200,000 entries");
                    return true;
                }
                let Ok(name) = entry.name() else {
                    found.fault(None, "a name in its tree is not UTF-8");
                    continue;
                };
                let path = format!("{prefix}{name}");
                let mode = entry.filemode_raw();
                match entry.kind() {
                    Some(ObjectType::Tree) if known.contains(path.as_str()) => {
                        left.push((format!("{path}/"), entry.id()));
                    }
                    Some(ObjectType::Blob) if is_file(mode) => {
                        if entries.contains_key(&path) {
                            found.fault(Some(&path), "it is in the tree twice");
                        }
                        entries.insert(path, Entry { oid: entry.id(), mode });
                    }
                    Some(ObjectType::Tree) => {
                        found.fault(Some(&path), "it is in the tree and not in the manifest");
                    }
                    _ => found.fault(Some(&path), "it is neither a file nor a directory"),
                }
            }
        }
        true
    }

    fn blob(&mut self, oid: Oid) -> Option<Found> {
        if let Some(found) = self.blobs.get(&oid) {
            return found.clone();
        }
        let found = self.hash(oid);
        if let Some(found) = &found {
            self.files += 1;
            self.bytes += found.size;
        }
        self.blobs.insert(oid, found.clone());
        found
    }

    fn hash(&self, oid: Oid) -> Option<Found> {
        let (size, kind) = self.odb.read_header(oid).ok()?;
        if kind != ObjectType::Blob || size as u64 > LARGEST_PLAIN {
            return None;
        }
        let blob = self.git.find_blob(oid).ok()?;
        let bytes = blob.content();
        Some(Found {
            sha256: hex::encode(Sha256::digest(bytes)),
            size: bytes.len() as u64,
            pointer: (size as u64 <= MAX_POINTER_BYTES)
                .then(|| Pointer::parse(bytes))
                .flatten(),
        })
    }

    fn text(&self, oid: Oid, most: usize) -> Option<String> {
        let (size, _) = self.odb.read_header(oid).ok()?;
        if size > most {
            return None;
        }
        String::from_utf8(self.git.find_blob(oid).ok()?.content().to_vec()).ok()
    }
}

fn is_file(mode: i32) -> bool {
    [FileMode::Blob, FileMode::BlobExecutable]
        .into_iter()
        .any(|file| i32::from(file) == mode)
}

fn agree(said: &Commit, manifest: &Manifest) -> bool {
    said.content_id == manifest.content_id
        && said.scenario == manifest.scenario
        && said.sequence == manifest.sequence
        && said.operation == manifest.operation
        && said.parent == manifest.parent_release_id
        && said.target == manifest.target_release_id
        && said.held == manifest.held
        && said.kind == manifest.content.kind()
        && said.bytes == manifest.content.total_bytes()
}

/// A fact that a message states twice is one that two readers may read differently.
fn repeated(message: &str) -> Option<String> {
    let mut seen = BTreeSet::new();
    message
        .lines()
        .filter_map(|line| Some(line.strip_prefix("Reef-")?.split_once(": ")?.0))
        .find(|name| !seen.insert(*name))
        .map(|name| format!("its commit message states Reef-{} twice", name.escape_debug()))
}
