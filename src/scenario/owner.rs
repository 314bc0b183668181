//! Who is publishing: each process holds a lock on a file of its own for as long as it lives, so that another one can
//! tell an unfinished publication from one whose process died.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
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
    /// Makes the mark under `run`.
    pub(super) fn new(run: &Path) -> io::Result<Self> {
        let dir = run.join("publishers");
        fs::create_dir_all(&dir)?;
        let token = format!("{}-{}", std::process::id(), random::hex_token());
        let lock = OpenOptions::new().create_new(true).write(true).open(dir.join(&token))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::Error(error) => error,
            TryLockError::WouldBlock => io::Error::other("a fresh lock is taken"),
        })?;
        Ok(Self {
            dir,
            token,
            _lock: lock,
        })
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
        fs::write(dir.path().join("publishers/dead"), "").unwrap();
        assert!(!one.is_alive("dead"));
    }
}
