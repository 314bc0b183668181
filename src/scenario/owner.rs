//! Who is publishing: each process holds a lock on a file of its own for as long as it lives, so that another one can
//! tell an unfinished publication from one whose process died.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::sys::random;

/// The mark of this process.
#[derive(Debug)]
pub(super) struct Owner {
    dir: PathBuf,
    token: String,
    _lock: File,
}

impl Owner {
    /// Makes the mark under `run`, and removes those of processes that were killed.
    pub(super) fn new(run: &Path) -> io::Result<Self> {
        let dir = run.join("publishers");
        fs::create_dir_all(&dir)?;
        sweep(&dir);
        loop {
            let token = format!("{}-{}", std::process::id(), random::hex_token());
            let path = dir.join(&token);
            let lock = OpenOptions::new().create_new(true).write(true).open(&path)?;
            let taken = match lock.try_lock() {
                Ok(()) => true,
                // Another process found it before it was locked, and removes it.
                Err(TryLockError::WouldBlock) => false,
                Err(TryLockError::Error(error)) => return Err(error),
            };
            if taken && is_at(&lock, &path) {
                return Ok(Self {
                    dir,
                    token,
                    _lock: lock,
                });
            }
        }
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Whether the process with this mark lives.
    pub(super) fn is_alive(&self, token: &str) -> bool {
        if token == self.token {
            return true;
        }
        let Ok(file) = File::open(self.dir.join(token)) else {
            return false;
        };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }
}

/// Removes the marks that nobody holds. What cannot be removed stays, and counts as that of a dead process all the same.
fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if let Ok(file) = File::open(&path)
            && file.try_lock().is_ok()
        {
            let _stays = fs::remove_file(&path);
        }
    }
}

/// Whether an open file still has its name.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), fs::metadata(path)), (Ok(held), Ok(named)) if id(&held) == id(&named))
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Without the file the process counts as gone, which it nearly is.
        let _already_gone = fs::remove_file(self.dir.join(&self.token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_lasts_as_long_as_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let one = Owner::new(dir.path()).unwrap();
        let two = Owner::new(dir.path()).unwrap();
        assert!(one.is_alive(two.token()) && one.is_alive(one.token()));
        let token = two.token().to_owned();
        drop(two);
        assert!(!one.is_alive(&token));
        // A killed process leaves its file but not its lock.
        let dead = dir.path().join("publishers/dead");
        fs::write(&dead, "").unwrap();
        assert!(!one.is_alive("dead"));
        let three = Owner::new(dir.path()).unwrap();
        assert!(!dead.exists(), "the next process removes it");
        assert!(three.is_alive(one.token()) && one.is_alive(three.token()));
    }

    #[test]
    fn many_that_begin_at_once_do_not_take_each_other_for_dead() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            let owners: Vec<Owner> = std::thread::scope(|scope| {
                let begun: Vec<_> = (0..16)
                    .map(|_| scope.spawn(|| Owner::new(dir.path()).unwrap()))
                    .collect();
                begun.into_iter().map(|owner| owner.join().unwrap()).collect()
            });
            for one in &owners {
                assert!(owners.iter().all(|other| one.is_alive(other.token())));
                assert!(dir.path().join("publishers").join(one.token()).exists());
            }
        }
        assert_eq!(fs::read_dir(dir.path().join("publishers")).unwrap().count(), 0);
    }
}
