//! File locks between processes, waited for with patience. A lock ends with the process that holds it.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::error::{ReleaseError, io_at};

/// Who else may hold the lock.
#[derive(Debug, Clone, Copy)]
pub(super) enum Share {
    Alone,
    WithOthers,
}

/// Takes the lock on the file `path`, made if absent; tries again at growing pauses, `longest` at most, until `patience`
/// is over.
pub(super) fn take(path: &Path, share: Share, patience: Duration, longest: Duration) -> Result<File, ReleaseError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(io_at("open", path))?;
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_micros(200);
    loop {
        let taken = match share {
            Share::Alone => file.try_lock(),
            Share::WithOthers => file.try_lock_shared(),
        };
        match taken {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                thread::sleep(pause);
                pause = (pause * 2).min(longest);
            }
            Err(TryLockError::WouldBlock) => {
                return Err(ReleaseError::Locked {
                    path: path.to_path_buf(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(io_at("lock", path)(error)),
        }
    }
}
