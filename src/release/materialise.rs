//! A release as a directory: read-only in the cache for engines, or a copy for a person.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::error::{git_at, io_at};
use super::inspect::Inspector;
use super::lfs::{copy_hashing, hash_file};
use super::pointer::Pointer;
use super::{FileEntry, MANIFEST_NAME, Manifest, ReleaseError, Repository, TrainingState};
use crate::domain::ReleaseId;
use crate::sys::{access, durable, random};

/// What is done about large files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Large {
    /// Linked to the object, which is read-only and never changed in place.
    Link,
    /// Copied, for a directory that belongs to someone else.
    Copy,
}

impl Repository {
    /// The release as a read-only directory, verified when it was made. Releases of equal content share it.
    pub fn materialise(&self, release: &ReleaseId) -> Result<PathBuf, ReleaseError> {
        let manifest = self.manifest(release)?;
        let target = self.cache().join(copy_name(&manifest));
        let state = self.training_state(release)?;
        let outdated = match (target.is_dir(), state) {
            (false, _) => false,
            // Its training state came back after the copy was made.
            (true, TrainingState::Whole) if !has_state(&target, &manifest) => true,
            (true, _) => return Ok(target),
        };
        fs::create_dir_all(self.cache()).map_err(io_at("create", self.cache()))?;
        let part = self.cache().join(format!(".part-{}", random::hex_token()));
        let result = self
            .write_tree(release, &manifest, &part, Large::Link, state)
            .and_then(|()| {
                if outdated {
                    let away = self.cache().join(format!(".part-{}", random::hex_token()));
                    // Another process may have been first; then there is nothing to put away, and what is there will do.
                    if fs::rename(&target, &away).is_ok() {
                        // What stays is removed by gc.
                        let _stays = fs::remove_dir_all(&away);
                    }
                }
                match fs::rename(&part, &target) {
                    Ok(()) => durable::sync_dir(self.cache()).map_err(io_at("sync", self.cache())),
                    // Another process made the same directory.
                    Err(_) if target.is_dir() => Ok(()),
                    Err(error) => Err(io_at("create", &target)(error)),
                }
            });
        if part.exists() {
            // The first error matters; gc removes what stays.
            let _left_over = fs::remove_dir_all(&part);
        }
        result.map(|()| target)
    }

    /// Writes a copy of a release, its manifest included, into `target`, which must not exist or be empty.
    pub fn export(&self, release: &ReleaseId, target: &Path) -> Result<Manifest, ReleaseError> {
        let manifest = self.manifest(release)?;
        let bad = |problem: &str| ReleaseError::BadContent {
            path: target.to_path_buf(),
            problem: problem.to_owned(),
        };
        let exists = match fs::read_dir(target) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(bad("it is not empty: give a new directory"));
                }
                true
            }
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                return Err(bad("it is not a directory: give a new one"));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(io_at("read", target)(error)),
        };
        if !exists && target.is_symlink() {
            return Err(bad("it is a link to a directory that does not exist: make that first"));
        }
        // What exists is filled, not replaced: it may be a mount point, or a link, and has permissions of its own.
        let parent = if exists {
            target
        } else {
            target
                .parent()
                .filter(|p| !p.as_os_str().is_empty())
                .unwrap_or(Path::new("."))
        };
        access::make_given(parent).map_err(io_at("create", parent))?;
        let part = parent.join(format!(".reef-export-{}", random::hex_token()));
        let state = self.training_state(release)?;
        let result = self
            .write_tree(release, &manifest, &part, Large::Copy, state)
            .and_then(|()| {
                let text = manifest.to_text().map_err(|e| ReleaseError::Damaged {
                    release: release.to_string(),
                    problem: e.to_string(),
                })?;
                let path = part.join(MANIFEST_NAME);
                durable::write(&path, text.as_bytes()).map_err(io_at("write", &path))?;
                access::hand_over(&part).map_err(io_at("write", &part))?;
                if exists {
                    move_entries(&part, target)
                } else {
                    fs::rename(&part, target).map_err(io_at("create", target))
                }
            });
        if part.exists() {
            // The first error matters and names the place.
            let _left_over = fs::remove_dir_all(&part);
        }
        result.map(|()| manifest)
    }

    /// The bytes of one file of a release, verified; `None` when it has no such file.
    pub fn read_file(&self, release: &ReleaseId, path: &str) -> Result<Option<Vec<u8>>, ReleaseError> {
        let manifest = self.manifest(release)?;
        let Some(entry) = manifest.content.files.iter().find(|f| f.path == path) else {
            return Ok(None);
        };
        let git = self.git()?;
        match blob(&self.tree(&git, release)?, &git, release, entry)? {
            Blob::Plain(bytes) => Ok(Some(bytes)),
            Blob::Large(pointer) => {
                let file = self.lfs.path(&pointer.oid);
                let bytes = fs::read(&file).map_err(|_| self.absent(release, path, &pointer))?;
                if hex::encode(Sha256::digest(&bytes)) != entry.sha256 {
                    return Err(damaged(release, entry));
                }
                Ok(Some(bytes))
            }
        }
    }

    fn write_tree(
        &self,
        release: &ReleaseId,
        manifest: &Manifest,
        target: &Path,
        large: Large,
        state: TrainingState,
    ) -> Result<(), ReleaseError> {
        self.check_restorable(release)?;
        let git = self.git()?;
        // Nothing is written of a release that is not what it says.
        Inspector::new(self, &git)?.release(release).sound(release)?;
        fs::create_dir(target).map_err(io_at("create", target))?;
        let tree = self.tree(&git, release)?;
        for entry in &manifest.content.files {
            // A part of the training state would be taken for the whole.
            if matches!(state, TrainingState::Gone { .. }) && manifest.content.is_state(&entry.path) {
                continue;
            }
            let path = target.join(&entry.path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(io_at("create", parent))?;
            }
            match blob(&tree, &git, release, entry)? {
                Blob::Plain(bytes) => {
                    let mode = if entry.executable { 0o555 } else { 0o444 };
                    let mode = if large == Large::Copy { mode | 0o200 } else { mode };
                    let mut file = OpenOptions::new()
                        .write(true)
                        .create_new(true)
                        .mode(mode)
                        .open(&path)
                        .map_err(io_at("write", &path))?;
                    file.write_all(&bytes).map_err(io_at("write", &path))?;
                }
                Blob::Large(pointer) => self.place_large(release, entry, &pointer, &path, large)?,
            }
        }
        Ok(())
    }

    fn place_large(
        &self,
        release: &ReleaseId,
        entry: &FileEntry,
        pointer: &Pointer,
        path: &Path,
        large: Large,
    ) -> Result<(), ReleaseError> {
        let object = self.lfs.path(&pointer.oid);
        if !object.is_file() {
            return Err(self.absent(release, &entry.path, pointer));
        }
        // A link cannot carry its own permissions, so an executable is copied.
        if large == Large::Link && !entry.executable && fs::hard_link(&object, path).is_ok() {
            let found = hash_file(path).map_err(io_at("read", path))?;
            return if found == *pointer {
                Ok(())
            } else {
                Err(damaged(release, entry))
            };
        }
        let mode = match (large, entry.executable) {
            (Large::Link, false) => 0o444,
            (Large::Link, true) => 0o555,
            (Large::Copy, false) => 0o644,
            (Large::Copy, true) => 0o755,
        };
        let found = copy_hashing(&object, path, mode).map_err(io_at("write", path))?;
        if found == *pointer {
            Ok(())
        } else {
            Err(damaged(release, entry))
        }
    }

    /// The tree of a release.
    pub(super) fn tree<'g>(
        &self,
        git: &'g git2::Repository,
        release: &ReleaseId,
    ) -> Result<git2::Tree<'g>, ReleaseError> {
        self.find_commit(git, release)?.tree().map_err(git_at("read a tree"))
    }
}

/// Moves everything in one directory into another, or nothing.
fn move_entries(from: &Path, to: &Path) -> Result<(), ReleaseError> {
    let mut moved = Vec::new();
    let result = (|| {
        for entry in fs::read_dir(from).map_err(io_at("read", from))? {
            let entry = entry.map_err(io_at("read", from))?;
            let (source, target) = (entry.path(), to.join(entry.file_name()));
            fs::rename(&source, &target).map_err(io_at("create", &target))?;
            moved.push((source, target));
        }
        fs::remove_dir(from).map_err(io_at("remove", from))
    })();
    if result.is_err() {
        for (source, target) in moved {
            // The first error matters and names the place.
            let _stays = fs::rename(target, source);
        }
    }
    result
}

/// What git holds for a file: its bytes, verified, or the pointer to them.
pub(super) fn blob(
    tree: &git2::Tree<'_>,
    git: &git2::Repository,
    release: &ReleaseId,
    entry: &FileEntry,
) -> Result<Blob, ReleaseError> {
    let blob = tree
        .get_path(Path::new(&entry.path))
        .and_then(|e| git.find_blob(e.id()))
        .map_err(|_| damaged(release, entry))?;
    let bytes = blob.content();
    if bytes.len() as u64 == entry.size && hex::encode(Sha256::digest(bytes)) == entry.sha256 {
        return Ok(Blob::Plain(bytes.to_vec()));
    }
    match Pointer::parse(bytes) {
        Some(pointer) if pointer.oid == entry.sha256 && pointer.size == entry.size => Ok(Blob::Large(pointer)),
        _ => Err(damaged(release, entry)),
    }
}

/// What git holds for a file.
pub(super) enum Blob {
    /// Its bytes.
    Plain(Vec<u8>),
    /// Where they are.
    Large(Pointer),
}

/// The name of a release's copy in the cache.
pub(super) fn copy_name(manifest: &Manifest) -> String {
    manifest.content_id.as_str().replace(':', "-")
}

/// Whether a copy has its training state.
fn has_state(copy: &Path, manifest: &Manifest) -> bool {
    let mut files = manifest.content.files.iter();
    files
        .find(|entry| manifest.content.is_state(&entry.path))
        .is_none_or(|entry| copy.join(&entry.path).is_file())
}

fn damaged(release: &ReleaseId, entry: &FileEntry) -> ReleaseError {
    ReleaseError::Damaged {
        release: release.to_string(),
        problem: format!("{} is not what its manifest says", entry.path),
    }
}
