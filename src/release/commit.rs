//! Making a release: first its bytes (durable, reachable from nothing), then the commit that is the release. Moving a
//! head to it is the business of `heads`.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use git2::{FileMode, Oid, Signature, Time};
use sha2::{Digest, Sha256};

use super::error::{git_at, unreadable};
use super::inspect::LARGEST_PLAIN;
use super::manifest::{component_fault, dirs_of};
use super::pointer::{MAX_POINTER_BYTES, Pointer};
use super::{
    Component, Content, FileEntry, MANIFEST_NAME, Manifest, Provenance, ReleaseError, Repository, Source, attributes,
    content, weights,
};
use crate::domain::{ContentId, Operation, ReleaseId, ScenarioName};

/// Content whose bytes are in the repository, ready to be released.
#[derive(Debug, Clone)]
pub struct Staged {
    /// What it consists of.
    pub content: Content,
    /// Its id.
    pub content_id: ContentId,
    /// The entries of its tree, the manifest left out.
    entries: Vec<(String, Oid, FileMode)>,
}

/// Everything about a release but its bytes.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The scenario; none for the base.
    pub scenario: Option<ScenarioName>,
    /// Why it is appended.
    pub operation: Operation,
    /// The release it is built on.
    pub parent: Option<ReleaseId>,
    /// The release whose content is restored or promoted.
    pub target: Option<ReleaseId>,
    /// Held for review.
    pub held: bool,
    /// Where the content came from.
    pub source: Source,
    /// How it came to be.
    pub provenance: Provenance,
    /// The intent that publishes it, by which recovery knows it again.
    pub intent: String,
    /// When, in microseconds since the Unix epoch. The same draft gives the same release.
    pub at_us: i64,
}

/// git-lfs would take it for the object itself, and the release would hold what it does not show.
fn refuse_pointer(path: &Path, bytes: &[u8]) -> Result<(), ReleaseError> {
    match Pointer::parse(bytes) {
        None => Ok(()),
        Some(_) => Err(ReleaseError::BadContent {
            path: path.to_owned(),
            problem: "it is a git-lfs pointer, not the file itself: run `git lfs pull` there first".to_owned(),
        }),
    }
}

impl Repository {
    /// Holds a directory to what every artifact has to pass, and stores nothing. `components` says what it holds; without
    /// it, its look decides.
    pub fn check_directory(dir: &Path, components: Option<&BTreeMap<String, Component>>) -> Result<(), ReleaseError> {
        let found = content::scan(dir)?;
        checked_components(dir, &found, components)?;
        for file in found.iter().filter(|file| file.size < MAX_POINTER_BYTES) {
            let bytes = fs::read(&file.absolute).map_err(unreadable(&file.absolute))?;
            refuse_pointer(&file.absolute, &bytes)?;
        }
        Ok(())
    }

    /// What a directory holds, by its manifest if a release was exported there, else by its look; refused where neither
    /// tells.
    pub fn recognise(dir: &Path) -> Result<BTreeMap<String, Component>, ReleaseError> {
        content::recognise(dir)
    }

    /// Stores the files of a directory. `components` says what it holds; without it, its look decides.
    pub fn stage_directory(
        &self,
        dir: &Path,
        components: Option<&BTreeMap<String, Component>>,
    ) -> Result<Staged, ReleaseError> {
        let git = self.git()?;
        let found = content::scan(dir)?;
        check_names(&git, &found)?;
        let components = checked_components(dir, &found, components)?;
        let mut files = Vec::with_capacity(found.len());
        let mut entries = Vec::with_capacity(found.len() + 1);
        let mut large = Vec::new();
        for file in &found {
            let mode = if file.executable {
                FileMode::BlobExecutable
            } else {
                FileMode::Blob
            };
            let threshold = self.options.lfs_threshold.min(LARGEST_PLAIN);
            let is_large = file.size > 0 && attributes::is_large(&file.path, file.size, threshold);
            let small = if file.size < MAX_POINTER_BYTES || !is_large {
                Some(fs::read(&file.absolute).map_err(unreadable(&file.absolute))?)
            } else {
                None
            };
            if let Some(bytes) = &small {
                refuse_pointer(&file.absolute, bytes)?;
            }
            let (blob, sha256, size) = match small {
                Some(bytes) if !is_large => (
                    git.blob(&bytes).map_err(git_at("store a file"))?,
                    hex::encode(Sha256::digest(&bytes)),
                    bytes.len() as u64,
                ),
                _ => {
                    let pointer = self.lfs.put(&file.absolute)?;
                    let text = pointer.to_text();
                    let blob = git.blob(text.as_bytes()).map_err(git_at("store a pointer"))?;
                    large.push(file.path.as_str());
                    (blob, pointer.oid, pointer.size)
                }
            };
            entries.push((file.path.clone(), blob, mode));
            files.push(FileEntry {
                executable: file.executable,
                path: file.path.clone(),
                sha256,
                size,
            });
        }
        let text = attributes::render(large.into_iter());
        let blob = git.blob(text.as_bytes()).map_err(git_at("store attributes"))?;
        entries.push((attributes::NAME.to_owned(), blob, FileMode::Blob));
        let content = Content { components, files };
        if let Some((path, problem)) = content.fault() {
            return Err(ReleaseError::BadContent {
                path: dir.join(path),
                problem,
            });
        }
        Ok(Staged {
            content_id: content.id()?,
            content,
            entries,
        })
    }

    /// The content of a release that exists, to be released again; no byte is copied.
    pub fn stage_release(&self, release: &ReleaseId) -> Result<Staged, ReleaseError> {
        let git = self.git()?;
        let manifest = self.manifest(release)?;
        let tree = self.tree(&git, release)?;
        let paths = manifest.content.files.iter().map(|file| file.path.as_str());
        let mut entries = Vec::with_capacity(manifest.content.files.len() + 1);
        for path in paths.chain([attributes::NAME]) {
            let entry = tree.get_path(Path::new(path)).map_err(|_| ReleaseError::Damaged {
                release: release.to_string(),
                problem: format!("{path} is in the manifest and not in the tree"),
            })?;
            let mode = if entry.filemode() == i32::from(FileMode::BlobExecutable) {
                FileMode::BlobExecutable
            } else {
                FileMode::Blob
            };
            entries.push((path.to_owned(), entry.id(), mode));
        }
        Ok(Staged {
            content: manifest.content,
            content_id: manifest.content_id,
            entries,
        })
    }

    /// Writes the commit of a release. Nothing refers to it yet.
    pub fn commit(&self, staged: &Staged, draft: &Draft) -> Result<ReleaseId, ReleaseError> {
        let git = self.git()?;
        let parent = match &draft.parent {
            Some(id) => Some(self.find_commit(&git, id)?),
            None => None,
        };
        let sequence = match (&draft.scenario, &draft.parent) {
            // The creation of a scenario begins its numbers; its parent is the base or a release of another scenario.
            (Some(_), Some(_)) if draft.operation == Operation::Creation => 0,
            (_, Some(parent)) => self.describe(parent)?.sequence + 1,
            (_, None) => 0,
        };
        let manifest = Manifest {
            format: Manifest::format_name(),
            content_id: staged.content_id.clone(),
            content: staged.content.clone(),
            scenario: draft.scenario.clone(),
            operation: draft.operation,
            sequence,
            parent_release_id: draft.parent.clone(),
            target_release_id: draft.target.clone(),
            held: draft.held,
            source: draft.source.clone(),
            provenance: draft.provenance.clone(),
        };
        let text = manifest.to_text().map_err(|e| ReleaseError::Damaged {
            release: "(new)".to_owned(),
            problem: e.to_string(),
        })?;
        let blob = git.blob(text.as_bytes()).map_err(git_at("store the manifest"))?;
        let tree = tree_of(&git, staged, blob)?;
        let time = Time::new(draft.at_us.div_euclid(1_000_000), 0);
        let signature = Signature::new("Reef", "reef@localhost", &time).map_err(git_at("sign"))?;
        let parents: Vec<&git2::Commit<'_>> = parent.iter().collect();
        let id = git
            .commit(
                None,
                &signature,
                &signature,
                &message(&manifest, draft),
                &git.find_tree(tree).map_err(git_at("read a tree"))?,
                &parents,
            )
            .map_err(git_at("write a commit"))?;
        release_id(id)
    }

    /// Whether every object of a release's own commit is in the repository. A `git gc --prune=now` by a person can
    /// take objects between their writing and the move of the head; the publisher then writes them again.
    pub fn is_whole(&self, release: &ReleaseId) -> Result<bool, ReleaseError> {
        let git = self.git()?;
        let Ok(commit) = self.find_commit(&git, release) else {
            return Ok(false);
        };
        let Ok(tree) = commit.tree() else { return Ok(false) };
        let odb = git.odb().map_err(git_at("open the objects of"))?;
        let mut whole = true;
        let walked = tree.walk(git2::TreeWalkMode::PreOrder, |_, entry| {
            whole &= odb.exists(entry.id());
            git2::TreeWalkResult::Ok
        });
        Ok(whole && walked.is_ok())
    }
}

/// The components of a directory, said or seen, each where its files are and with weights that can be loaded.
fn checked_components(
    dir: &Path,
    found: &[content::Found],
    said: Option<&BTreeMap<String, Component>>,
) -> Result<BTreeMap<String, Component>, ReleaseError> {
    let paths: Vec<&str> = found.iter().map(|file| file.path.as_str()).collect();
    let components = said.cloned().unwrap_or_else(|| content::detect(&paths));
    if let Some((path, problem)) = component_fault(&components, &dirs_of(paths.iter().copied())) {
        return Err(ReleaseError::BadContent {
            path: dir.join(path),
            problem,
        });
    }
    weights::check(dir, &components, found)?;
    Ok(components)
}

/// Holds every name to what git takes into a tree: it refuses more than `.git`, such as what another file system would
/// read as that.
fn check_names(git: &git2::Repository, found: &[content::Found]) -> Result<(), ReleaseError> {
    let empty = git.blob(&[]).map_err(git_at("store a file"))?;
    let mut names = git.treebuilder(None).map_err(git_at("write a tree"))?;
    let mut seen = HashSet::new();
    for file in found {
        for name in file.path.split('/').filter(|name| seen.insert(*name)) {
            if let Err(error) = names.insert(name, empty, i32::from(FileMode::Blob)) {
                return Err(ReleaseError::BadContent {
                    path: file.absolute.clone(),
                    problem: format!(
                        "git takes no file or directory of the name {name:?} ({})",
                        error.message()
                    ),
                });
            }
        }
    }
    Ok(())
}

/// A release id from a commit id.
pub(super) fn release_id(oid: Oid) -> Result<ReleaseId, ReleaseError> {
    ReleaseId::new(oid.to_string()).map_err(|e| ReleaseError::Damaged {
        release: oid.to_string(),
        problem: e.to_string(),
    })
}

fn tree_of(git: &git2::Repository, staged: &Staged, manifest: Oid) -> Result<Oid, ReleaseError> {
    let empty = git
        .treebuilder(None)
        .and_then(|b| b.write())
        .map_err(git_at("write a tree"))?;
    let empty = git.find_tree(empty).map_err(git_at("read a tree"))?;
    let mut update = git2::build::TreeUpdateBuilder::new();
    for (path, oid, mode) in &staged.entries {
        update.upsert(path, *oid, *mode);
    }
    update.upsert(MANIFEST_NAME, manifest, FileMode::Blob);
    update.create_updated(git, &empty).map_err(git_at("write a tree"))
}

/// What `git log` shows: one line for people, then the facts that listing a chain needs without opening a tree. The line
/// has no number: a release's number is its step, which it is given when it is settled; `Reef-Sequence` is the place of
/// the commit in its line.
fn message(manifest: &Manifest, draft: &Draft) -> String {
    let mut text = String::new();
    let who = manifest.scenario.as_ref().map_or("base", |s| s.as_str());
    let held = if manifest.held { ", held" } else { "" };
    // Writing to a String cannot fail.
    let _infallible = write!(
        text,
        "{who}: {} ({}{held})\n\n",
        manifest.operation.as_str(),
        manifest.content.kind()
    );
    if let Some(verdict) = &manifest.provenance.verdict {
        let _infallible = write!(text, "{}\n\n", one_line(&verdict.reason));
    }
    if let Some(note) = &manifest.provenance.note {
        let _infallible = write!(text, "{}\n\n", one_line(note));
    }
    let mut trailer = |name: &str, value: &str| {
        let _infallible = writeln!(text, "Reef-{name}: {value}");
    };
    trailer("Operation", manifest.operation.as_str());
    if let Some(scenario) = &manifest.scenario {
        trailer("Scenario", scenario.as_str());
    }
    trailer("Sequence", &manifest.sequence.to_string());
    trailer("Content", manifest.content_id.as_str());
    trailer("Kind", manifest.content.kind());
    trailer("Bytes", &manifest.content.total_bytes().to_string());
    if let Some(target) = &manifest.target_release_id {
        trailer("Target", target.as_str());
    }
    if manifest.held {
        trailer("Held", "true");
    }
    trailer("At", &draft.at_us.to_string());
    trailer("Intent", &draft.intent);
    text
}

/// Text of a verdict or a person on one line, so that it cannot look like a trailer.
fn one_line(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.starts_with("Reef-") {
        format!("> {line}")
    } else {
        line
    }
}
