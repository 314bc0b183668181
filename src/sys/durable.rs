//! Files that are either whole or absent, also after a power cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Writes `bytes` beside `path`, makes them durable, renames into place and makes the rename durable.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_as(path, bytes, None)
}

/// The same with this mode, whatever the umask: under its name the file never has another one, and while it is being
/// written only its owner can read it.
pub fn write_mode(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    write_as(path, bytes, Some(mode))
}

fn write_as(path: &Path, bytes: &[u8], mode: Option<u32>) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a file name is needed"))?;
    let mut part = name.to_os_string();
    part.push(format!(".part-{}", super::random::hex_token()));
    let part = parent.join(part);
    let result = (|| {
        let first = if mode.is_some() { 0o600 } else { 0o666 };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(first)
            .open(&part)?;
        file.write_all(bytes)?;
        if let Some(mode) = mode {
            file.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        file.sync_all()?;
        fs::rename(&part, path)?;
        sync_dir(parent)
    })();
    if result.is_err() {
        // The error that matters is the first; a part file left behind is inert.
        let _ignored = fs::remove_file(&part);
    }
    result
}

/// Makes the entries of a directory durable.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    #[test]
    fn write_replaces_whole_and_leaves_no_part() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        super::write(&path, b"one").unwrap();
        super::write(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_mode_comes_with_the_name() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        for mode in [0o600, 0o755, 0o444, 0o666] {
            super::write_mode(&path, b"x", mode).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
    }
}
