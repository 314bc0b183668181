//! Releases that processes work with: the collector leaves them alone. A hold is a locked file, and ends with its process.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::PathBuf;

use super::error::io_at;
use super::{ReleaseError, Repository};
use crate::domain::ReleaseId;
use crate::sys::random;

const DIR: &str = "reef-holds";

/// Keeps a release from the collector for as long as it lives.
#[derive(Debug)]
pub struct Hold {
    release: ReleaseId,
    place: Option<(PathBuf, File)>,
}

impl Hold {
    /// The release.
    pub fn release(&self) -> &ReleaseId {
        &self.release
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.place {
            // Without its lock it counts as gone; the collector removes it.
            let _stays = fs::remove_file(path);
        }
    }
}

impl Repository {
    /// Keeps a release from the collector. Where nothing can be written there is no collector either.
    pub fn hold(&self, release: &ReleaseId) -> Result<Hold, ReleaseError> {
        match self.hold_durably(release) {
            Ok(place) => Ok(Hold {
                release: release.clone(),
                place: Some(place),
            }),
            Err(ReleaseError::Io { source, .. })
                if matches!(
                    source.kind(),
                    ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied
                ) =>
            {
                Ok(Hold {
                    release: release.clone(),
                    place: None,
                })
            }
            Err(error) => Err(error),
        }
    }

    fn hold_durably(&self, release: &ReleaseId) -> Result<(PathBuf, File), ReleaseError> {
        // No collection is half way while the hold comes about.
        let _quiet = self.publication_guard()?;
        let dir = self.path().join(DIR);
        fs::create_dir_all(&dir).map_err(io_at("create", &dir))?;
        let path = dir.join(format!("{release}.{}", random::hex_token()));
        let file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(&path)
            .map_err(io_at("create", &path))?;
        match file.try_lock() {
            Ok(()) => Ok((path, file)),
            Err(TryLockError::Error(error)) => Err(io_at("lock", &path)(error)),
            Err(TryLockError::WouldBlock) => Err(ReleaseError::Locked { path }),
        }
    }

    /// The releases that living processes hold. `sweep` removes what dead ones left; the caller keeps others from making
    /// holds meanwhile.
    pub(super) fn held_by_processes(&self, sweep: bool) -> Result<HashSet<ReleaseId>, ReleaseError> {
        let dir = self.path().join(DIR);
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(HashSet::new()),
            Err(error) => return Err(io_at("read", &dir)(error)),
        };
        let mut held = HashSet::new();
        for entry in entries {
            let path = entry.map_err(io_at("read", &dir))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let release = name.split('.').next().and_then(|id| ReleaseId::new(id).ok());
            // One that is gone by now was let go of.
            let Ok(file) = File::open(&path) else { continue };
            match (file.try_lock_shared(), release) {
                (Err(TryLockError::WouldBlock), Some(release)) => {
                    held.insert(release);
                }
                (Ok(()), _) if sweep => {
                    // What stays is looked at again.
                    let _stays = fs::remove_file(&path);
                }
                _ => {}
            }
        }
        Ok(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::RepositoryOptions;

    #[test]
    fn a_hold_lasts_as_long_as_it_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::open(
            &dir.path().join("artifacts.git"),
            &dir.path().join("cache"),
            RepositoryOptions::default(),
        )
        .unwrap();
        let release = ReleaseId::new("ab".repeat(20)).unwrap();
        let (one, two) = (repository.hold(&release).unwrap(), repository.hold(&release).unwrap());
        drop(one);
        // What a killed process leaves is a file without a lock.
        let dead = repository.path().join(DIR).join(format!("{}.dead", "cd".repeat(20)));
        fs::write(&dead, "").unwrap();
        let held = repository.held_by_processes(true).unwrap();
        assert_eq!(held, HashSet::from([release]));
        assert!(!dead.exists());
        drop(two);
        assert!(repository.held_by_processes(true).unwrap().is_empty());
        assert_eq!(fs::read_dir(repository.path().join(DIR)).unwrap().count(), 0);
    }
}
