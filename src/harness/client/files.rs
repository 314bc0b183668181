//! Files of an installation: private ones, links changed in one step, whole directories made durable.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{ClientError, Kind, at};
use crate::sys::{durable, random, regular};

/// Reads a JSON file; `None` if there is none.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ClientError> {
    let bytes = match regular::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at("read", path)(error)),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| at("read", path)(io::Error::new(io::ErrorKind::InvalidData, error.to_string())))
}

/// Writes a JSON file, whole or not at all.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), ClientError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| at("write", path)(error.into()))?;
    bytes.push(b'\n');
    write_private(path, &bytes)
}

/// Writes a file that only its owner may read, whole or not at all.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), ClientError> {
    durable::write_mode(path, bytes, 0o600).map_err(at("write", path))
}

/// Makes a directory that only its owner may enter.
pub(super) fn private_dir(path: &Path) -> Result<(), ClientError> {
    fs::create_dir_all(path).map_err(at("create", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(at("protect", path))
}

/// Points a link at `target`, replacing what it pointed at in one step.
pub(super) fn point(link: &Path, target: &Path) -> Result<(), ClientError> {
    let parent = link.parent().unwrap_or(Path::new("."));
    let part = parent.join(format!(".link-{}", random::hex_token()));
    let result = symlink(target, &part)
        .and_then(|()| fs::rename(&part, link))
        .and_then(|()| durable::sync_dir(parent));
    if result.is_err() {
        let _ignored = fs::remove_file(&part);
    }
    result.map_err(at("change", link))
}

/// Writes a file of a directory that is not in use yet: durable, with a mode, without the rename.
pub(super) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), ClientError> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(at("create", parent))?;
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(at("create", path))?;
    file.write_all(bytes)
        // The umask has had its say; what is executable stays so.
        .and_then(|()| file.set_permissions(fs::Permissions::from_mode(mode)))
        .and_then(|()| file.sync_all())
        .map_err(at("write", path))
}

/// Makes the entries of a directory and of all below it durable.
pub(super) fn sync_tree(dir: &Path) -> Result<(), ClientError> {
    for entry in fs::read_dir(dir).map_err(at("read", dir))? {
        let entry = entry.map_err(at("read", dir))?;
        if entry.file_type().map_err(at("read", dir))?.is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    durable::sync_dir(dir).map_err(at("sync", dir))
}

/// Removes a directory that may not exist.
pub(super) fn remove_tree(dir: &Path) -> Result<(), ClientError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at("remove", dir)(error)),
        _ => Ok(()),
    }
}

/// Takes a lock that ends with this process; `None` if another one holds it until patience is over.
pub(super) fn lock(path: &Path, patience: Duration) -> Result<Option<File>, ClientError> {
    let deadline = Instant::now() + patience;
    loop {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path)
            .map_err(at("open", path))?;
        match file.try_lock() {
            // Whoever held it may have removed it: then others lock another file of this name.
            Ok(()) if is_at(&file, path) => return Ok(Some(file)),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(at("lock", path)(error)),
        }
    }
}

/// Whether a path still names this open file.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// The lock on an installation: one process changes it at a time.
pub(super) fn lock_installation(dir: &Path) -> Result<File, ClientError> {
    lock(&dir.join("lock"), Duration::from_secs(30))?.ok_or_else(|| {
        ClientError::new(
            Kind::Busy,
            format!("another process is changing the installation in {}", dir.display()),
        )
        .hint("wait for it to end, then try again")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_was_removed_is_not_held() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = lock(&path, Duration::ZERO).unwrap().unwrap();
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || lock(&path, Duration::from_secs(10)).unwrap().unwrap()
        });
        std::thread::sleep(Duration::from_millis(60));
        fs::remove_file(&path).unwrap();
        drop(held);
        let got = waiting.join().unwrap();
        assert!(is_at(&got, &path));
        assert!(
            lock(&path, Duration::ZERO).unwrap().is_none(),
            "there is one lock of a name"
        );
    }
}
