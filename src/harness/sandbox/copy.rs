//! Copying trees in and out, with bounds and without following links.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

/// How many files one output may have.
const MAX_FILES: u64 = 20_000;

/// Where a word of a job lies under `root`; refuses to leave it.
pub(super) fn inside(root: &Path, place: &str, relative_to: &str) -> io::Result<PathBuf> {
    let (base, rest) = match place.strip_prefix('/') {
        Some(rest) => (root.to_path_buf(), rest),
        None => (root.join(relative_to.trim_start_matches('/')), place),
    };
    let mut path = base;
    for part in Path::new(rest).components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            _ => return Err(io::Error::other(format!("{place} leaves the sandbox"))),
        }
    }
    Ok(path)
}

/// Makes a directory and those above it. The ones made belong to `owner`.
pub(super) fn make_directory(path: &Path, owner: Option<u32>) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_directory(parent, owner)?;
    }
    fs::create_dir(path)?;
    give(path, owner)
}

/// Makes an empty directory, whatever was there before.
pub(super) fn fresh_directory(path: &Path, owner: Option<u32>) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path)?,
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    make_directory(path, owner)
}

fn give(path: &Path, owner: Option<u32>) -> io::Result<()> {
    match owner {
        Some(id) => chown(path, Some(id), Some(id)),
        None => Ok(()),
    }
}

/// Copies a file or a tree in. What we are given is ours: links are copied as links.
pub(super) fn copy_in(from: &Path, to: &Path, owner: Option<u32>) -> io::Result<()> {
    let found = fs::symlink_metadata(from)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", from.display())))?;
    if let Some(parent) = to.parent() {
        make_directory(parent, owner)?;
    }
    if found.is_dir() {
        make_directory(to, owner)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy_in(&entry.path(), &to.join(entry.file_name()), owner)?;
        }
        return Ok(());
    }
    if found.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if fs::symlink_metadata(to).is_ok() {
        fs::remove_file(to)?;
    }
    fs::copy(from, to)?;
    let mode = if found.mode() & 0o111 == 0 { 0o644 } else { 0o755 };
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    give(to, owner)
}

/// Copies regular files out of a place that a program could arrange as it liked. Nothing runs there any more.
pub(super) fn copy_out(root: &Path, from: &Path, to: &Path, max_bytes: u64, not_kept: &mut Vec<String>) {
    let mut left = Left {
        files: MAX_FILES,
        bytes: max_bytes,
    };
    if let Err(why) = no_links(root, from) {
        not_kept.push(why);
        return;
    }
    if let Err(error) = take(from, to, &mut left, not_kept) {
        not_kept.push(format!("{}: {error}", from.display()));
    }
}

struct Left {
    files: u64,
    bytes: u64,
}

/// Every directory on the way must be one: a link could lead anywhere.
fn no_links(root: &Path, path: &Path) -> Result<(), String> {
    let mut at = path;
    while at != root {
        match fs::symlink_metadata(at) {
            Ok(found) if found.is_symlink() => return Err(format!("{}: it is a link", at.display())),
            Ok(_) => {}
            Err(error) => return Err(format!("{}: {error}", at.display())),
        }
        at = at.parent().ok_or_else(|| format!("{} is outside", path.display()))?;
    }
    Ok(())
}

fn take(from: &Path, to: &Path, left: &mut Left, not_kept: &mut Vec<String>) -> io::Result<()> {
    let found = fs::symlink_metadata(from)?;
    if found.is_dir() {
        // A program may have locked its own directory away; it is ours to read all the same.
        if found.mode() & 0o700 != 0o700 {
            fs::set_permissions(from, fs::Permissions::from_mode(0o700))?;
        }
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            if let Err(error) = take(&entry.path(), &to.join(entry.file_name()), left, not_kept) {
                note(not_kept, format!("{}: {error}", entry.path().display()));
            }
        }
        return Ok(());
    }
    if !found.is_file() {
        note(not_kept, format!("{}: not a regular file", from.display()));
        return Ok(());
    }
    if left.files == 0 || found.len() > left.bytes {
        note(not_kept, format!("{}: too much to keep", from.display()));
        return Ok(());
    }
    left.files -= 1;
    let mut source = fs::File::open(from)?.take(left.bytes);
    let mut target = fs::File::create(to)?;
    let copied = io::copy(&mut source, &mut target)?;
    left.bytes -= copied;
    if found.mode() & 0o111 != 0 {
        fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn note(not_kept: &mut Vec<String>, what: String) {
    // A program that makes a million links must not make a million messages.
    if not_kept.len() < 100 {
        not_kept.push(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_the_root() {
        let root = Path::new("/r");
        assert_eq!(inside(root, "a/b", "/episode").unwrap(), Path::new("/r/episode/a/b"));
        assert_eq!(inside(root, "/app", "/episode").unwrap(), Path::new("/r/app"));
        assert!(inside(root, "../x", "/episode").is_err());
        assert!(inside(root, "/a/../../x", "/episode").is_err());
    }

    #[test]
    fn links_devices_and_too_much_stay_behind_and_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (root, out) = (dir.path().join("root"), dir.path().join("out"));
        fs::create_dir_all(root.join("work")).unwrap();
        fs::write(root.join("work/a.txt"), "hello").unwrap();
        fs::write(root.join("work/big"), vec![0; 100]).unwrap();
        symlink("/etc/passwd", root.join("work/link")).unwrap();
        let mut not_kept = Vec::new();
        copy_out(&root, &root.join("work"), &out, 50, &mut not_kept);
        assert_eq!(fs::read_to_string(out.join("a.txt")).unwrap(), "hello");
        assert!(!out.join("big").exists() && !out.join("link").exists());
        assert_eq!(not_kept.len(), 2, "{not_kept:?}");
        symlink("/etc", root.join("sneaky")).unwrap();
        let mut not_kept = Vec::new();
        copy_out(
            &root,
            &root.join("sneaky/ssl"),
            &dir.path().join("b"),
            50,
            &mut not_kept,
        );
        assert!(not_kept[0].contains("link"), "{not_kept:?}");
        assert!(!dir.path().join("b").exists());
    }
}
