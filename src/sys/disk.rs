//! Whether a disk takes anything, and how much.

use std::io::{self, Write};
use std::path::Path;

/// The bytes that are free for this process where a path is, or would be; `None` where the system does not say.
pub fn free(path: &Path) -> Option<u64> {
    let there = path.ancestors().find(|path| path.exists())?;
    let space = rustix::fs::statvfs(there).ok()?;
    Some(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Why nothing can be written into a directory: what the system says when a little is written there and taken away again.
/// `None` if that works.
pub fn why_unwritable(dir: &Path) -> Option<io::Error> {
    // An empty file fits on a full disk too, and SQLite begins with two pieces of 32 KiB.
    let little = vec![0x5a; 64 * 1024];
    let probe = dir.join(format!(".reef-probe-{}", super::random::hex_token()));
    let written = std::fs::File::create_new(&probe).and_then(|mut file| {
        file.write_all(&little)?;
        file.sync_all()
    });
    // It may never have been made.
    let _gone = std::fs::remove_file(&probe);
    written.err()
}

/// Whether a file or directory is there and this user may not write to it, because of its permissions or of how its disk
/// is mounted.
pub fn is_read_only(path: &Path) -> bool {
    use rustix::io::Errno;
    matches!(
        rustix::fs::access(path, rustix::fs::Access::WRITE_OK),
        Err(Errno::ACCESS | Errno::ROFS | Errno::PERM)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_takes_something_is_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        assert!(why_unwritable(dir.path()).is_none());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(
            why_unwritable(&dir.path().join("nowhere")).unwrap().kind(),
            io::ErrorKind::NotFound
        );
    }
}
