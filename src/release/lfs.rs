//! The LFS objects of the repository: files named by their SHA-256 under `lfs/objects`, laid out as git-lfs does.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::ReleaseError;
use super::error::{io_at, unreadable};
use super::pointer::Pointer;
use crate::sys::{durable, random};

const BUFFER: usize = 1 << 20;

/// The object store of one repository.
#[derive(Debug, Clone)]
pub(super) struct LfsStore {
    root: PathBuf,
    /// Copies of releases, whose large files are links to objects.
    cache: PathBuf,
}

impl LfsStore {
    /// The store inside the bare repository at `repository`.
    pub(super) fn new(repository: &Path, cache: &Path) -> Self {
        Self {
            root: repository.join("lfs"),
            cache: cache.to_path_buf(),
        }
    }

    /// Where objects are.
    pub(super) fn objects(&self) -> PathBuf {
        self.root.join("objects")
    }

    /// Where an object is or would be.
    pub(super) fn path(&self, oid: &str) -> PathBuf {
        let (a, b) = (oid.get(0..2).unwrap_or("00"), oid.get(2..4).unwrap_or("00"));
        self.objects().join(a).join(b).join(oid)
    }

    /// Whether an object is here with the right size: cheap, and blind to bytes that changed in place.
    pub(super) fn has(&self, pointer: &Pointer) -> bool {
        fs::metadata(self.path(&pointer.oid)).is_ok_and(|m| m.is_file() && m.len() == pointer.size)
    }

    /// Whether an object is here and holds what its name says. One that cannot be read is as good as a wrong one.
    pub(super) fn is_whole(&self, pointer: &Pointer) -> bool {
        matches!(self.verify(pointer), Ok(Some(true)))
    }

    /// Stores the file at `source`, durably, once. An object that is already here and whole is not written again; a
    /// damaged one is replaced.
    pub(super) fn put(&self, source: &Path) -> Result<Pointer, ReleaseError> {
        let pointer = hash_file(source).map_err(unreadable(source))?;
        if self.is_whole(&pointer) {
            return Ok(pointer);
        }
        let target = self.path(&pointer.oid);
        let damaged = fs::metadata(&target).ok();
        let fanout = target.parent().unwrap_or(&self.root);
        make_dirs(fanout)?;
        let tmp = self.root.join("tmp");
        fs::create_dir_all(&tmp).map_err(io_at("create", &tmp))?;
        let part = tmp.join(format!("reef-{}", random::hex_token()));
        let written = copy_hashing(source, &part, 0o444).map_err(io_at("copy", source));
        let result = written.and_then(|copied| {
            // The source may have changed between the two readings; what is stored must be what its name says.
            if copied != pointer {
                return Err(ReleaseError::BadContent {
                    path: source.to_path_buf(),
                    problem: "it changed while it was read".to_owned(),
                });
            }
            fs::rename(&part, &target).map_err(io_at("move an object to", &target))?;
            durable::sync_dir(fanout).map_err(io_at("sync", fanout))
        });
        if result.is_err() {
            // The first error matters; a part file left behind is collected by gc.
            let _ignored = fs::remove_file(&part);
        }
        result?;
        if let Some(damaged) = damaged {
            self.discard_copies(&damaged);
        }
        Ok(pointer)
    }

    /// Moves a damaged object out of the way, so that git-lfs, which looks at sizes alone, brings it again.
    pub(super) fn set_aside(&self, pointer: &Pointer) -> Result<Option<Aside>, ReleaseError> {
        let object = self.path(&pointer.oid);
        let Ok(metadata) = fs::metadata(&object) else {
            return Ok(None);
        };
        let tmp = self.root.join("tmp");
        fs::create_dir_all(&tmp).map_err(io_at("create", &tmp))?;
        let path = tmp.join(format!("reef-damaged-{}", random::hex_token()));
        fs::rename(&object, &path).map_err(io_at("move an object from", &object))?;
        Ok(Some(Aside {
            pointer: pointer.clone(),
            path,
            metadata,
        }))
    }

    /// Ends what [`Self::set_aside`] began: the damaged object goes with the copies made of it if a whole one has come,
    /// and is put back if not, so that it stays a finding.
    pub(super) fn settle(&self, aside: &Aside) -> Result<(), ReleaseError> {
        if self.is_whole(&aside.pointer) {
            fs::remove_file(&aside.path).map_err(io_at("remove", &aside.path))?;
            self.discard_copies(&aside.metadata);
            return Ok(());
        }
        let object = self.path(&aside.pointer.oid);
        fs::rename(&aside.path, &object).map_err(io_at("move an object to", &object))
    }

    /// Removes the copies of releases that are linked to a damaged object; they are made again when they are needed.
    fn discard_copies(&self, damaged: &fs::Metadata) {
        let Ok(entries) = fs::read_dir(&self.cache) else { return };
        for entry in entries.flatten() {
            if holds(&entry.path(), damaged)
                && let Err(error) = fs::remove_dir_all(entry.path())
            {
                tracing::warn!(%error, dir = %entry.path().display(), "a damaged copy of a release stays behind");
            }
        }
    }

    /// Whether the object here has the bytes its name promises; `None` when it is missing.
    pub(super) fn verify(&self, pointer: &Pointer) -> Result<Option<bool>, ReleaseError> {
        let path = self.path(&pointer.oid);
        match hash_file(&path) {
            Ok(found) => Ok(Some(found == *pointer)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_at("read", &path)(error)),
        }
    }
}

/// A damaged object out of the way.
pub(super) struct Aside {
    pointer: Pointer,
    path: PathBuf,
    metadata: fs::Metadata,
}

/// Whether a directory holds a link to a file.
fn holds(dir: &Path, file: &fs::Metadata) -> bool {
    fs::read_dir(dir).into_iter().flatten().flatten().any(|entry| {
        entry.metadata().is_ok_and(|found| {
            if found.is_dir() {
                holds(&entry.path(), file)
            } else {
                (found.dev(), found.ino()) == (file.dev(), file.ino())
            }
        })
    })
}

/// Creates a directory and its missing parents, each made durable in its parent.
fn make_dirs(dir: &Path) -> Result<(), ReleaseError> {
    if dir.is_dir() {
        return Ok(());
    }
    let Some(parent) = dir.parent() else { return Ok(()) };
    make_dirs(parent)?;
    match fs::create_dir(dir) {
        Ok(()) => durable::sync_dir(parent).map_err(io_at("sync", parent)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(io_at("create", dir)(error)),
    }
}

/// SHA-256 and size of a file.
pub(super) fn hash_file(path: &Path) -> io::Result<Pointer> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER];
    let mut size = 0;
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        size += n as u64;
    }
    Ok(Pointer {
        oid: hex::encode(hasher.finalize()),
        size,
    })
}

/// Copies to a new file of this mode, hashing what is written, and makes it durable.
pub(super) fn copy_hashing(source: &Path, target: &Path, mode: u32) -> io::Result<Pointer> {
    let mut from = File::open(source)?;
    let mut to = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(target)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER];
    let mut size = 0;
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        to.write_all(&buffer[..n])?;
        size += n as u64;
    }
    to.sync_all()?;
    Ok(Pointer {
        oid: hex::encode(hasher.finalize()),
        size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_stored_once_under_its_digest() {
        let dir = tempfile::tempdir().unwrap();
        let store = LfsStore::new(dir.path(), &dir.path().join("cache"));
        let source = dir.path().join("w.safetensors");
        fs::write(&source, b"weights").unwrap();
        let pointer = store.put(&source).unwrap();
        assert_eq!(pointer.oid, hex::encode(Sha256::digest(b"weights")));
        assert_eq!(store.put(&source).unwrap(), pointer);
        assert!(store.has(&pointer));
        assert_eq!(store.verify(&pointer).unwrap(), Some(true));
        assert_eq!(fs::read_dir(dir.path().join("lfs/tmp")).unwrap().count(), 0);
    }

    #[test]
    fn a_changed_object_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let store = LfsStore::new(dir.path(), &dir.path().join("cache"));
        let source = dir.path().join("w");
        fs::write(&source, b"weights").unwrap();
        let pointer = store.put(&source).unwrap();
        let path = store.path(&pointer.oid);
        fs::remove_file(&path).unwrap();
        assert_eq!(store.verify(&pointer).unwrap(), None);
        fs::write(&path, b"weightz").unwrap();
        assert_eq!(store.verify(&pointer).unwrap(), Some(false));
    }

    #[test]
    fn a_damaged_object_of_the_right_size_is_replaced_with_the_copies_linked_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = LfsStore::new(dir.path(), &dir.path().join("cache"));
        let source = dir.path().join("w");
        fs::write(&source, b"weights").unwrap();
        let pointer = store.put(&source).unwrap();
        let object = store.path(&pointer.oid);
        fs::remove_file(&object).unwrap();
        fs::write(&object, b"weightz").unwrap();
        for name in ["sha256-aa/deep", "sha256-bb"] {
            fs::create_dir_all(dir.path().join("cache").join(name)).unwrap();
        }
        fs::hard_link(&object, dir.path().join("cache/sha256-aa/deep/w")).unwrap();
        assert!(store.has(&pointer) && !store.is_whole(&pointer));
        store.put(&source).unwrap();
        assert!(store.is_whole(&pointer));
        assert!(!dir.path().join("cache/sha256-aa").exists());
        assert!(dir.path().join("cache/sha256-bb").exists());
    }
}
