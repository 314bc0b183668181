//! Copying trees in and out, with bounds. What lies inside was arranged by a program that nobody trusts, and this
//! process has more rights than it: every step goes from one open directory to the next and never through a link.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, chmodat, chownat, fchmod, mkdirat, open, openat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use crate::sys::regular;

/// How many files one output may have.
const MAX_FILES: u64 = 20_000;
/// How deep an output may be: each level holds a directory open.
const MAX_DEPTH: usize = 100;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Where a word of a job lies, as an absolute path inside; refuses to leave it.
pub(super) fn place(word: &str, relative_to: &str) -> io::Result<PathBuf> {
    let (base, rest) = match word.strip_prefix('/') {
        Some(rest) => ("/", rest),
        None => (relative_to, word),
    };
    let mut path = Path::new("/").join(base);
    for part in Path::new(rest).components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            _ => return Err(io::Error::other(format!("{word} leaves the sandbox"))),
        }
    }
    Ok(path)
}

/// The names of a place.
fn names(place: &Path) -> impl Iterator<Item = &OsStr> {
    place.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    })
}

/// The files of a job, from outside.
pub(super) struct Files {
    root: OwnedFd,
    /// Whom what is made belongs to.
    owner: Option<u32>,
    /// Whether a program could write at the top: then what lies there is its doing.
    open_top: bool,
}

impl Files {
    /// The files below `root`.
    pub(super) fn open(root: &Path, owner: Option<u32>, open_top: bool) -> io::Result<Self> {
        Ok(Self {
            root: open(root, OFlags::PATH | DIRECTORY, Mode::empty())?,
            owner,
            open_top,
        })
    }

    /// Makes an empty directory, whatever was there before.
    pub(super) fn fresh_directory(&self, place: &Path) -> io::Result<()> {
        let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
            return Err(io::Error::other("the root cannot be made anew"));
        };
        let parent = self.make(parent)?;
        clear(parent.as_fd(), name)?;
        self.make_one(parent.as_fd(), name)?;
        Ok(())
    }

    /// Copies a file or a tree in. What we are given is ours: links in it are copied as links. What is in its way inside
    /// goes.
    pub(super) fn copy_in(&self, from: &Path, place: &Path) -> io::Result<()> {
        let found = fs::symlink_metadata(from)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", from.display())))?;
        if found.is_dir() {
            let into = self.make(place)?;
            return self.fill(from, into.as_fd());
        }
        let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
            return Err(io::Error::other(format!("{} is not a directory", from.display())));
        };
        let parent = self.make(parent)?;
        self.put(from, &found, parent.as_fd(), name)
    }

    fn fill(&self, from: &Path, into: BorrowedFd<'_>) -> io::Result<()> {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            let found = fs::symlink_metadata(&path)?;
            if found.is_dir() {
                let below = self.step(into, &name, true)?;
                self.fill(&path, below.as_fd())?;
            } else {
                self.put(&path, &found, into, &name)?;
            }
        }
        Ok(())
    }

    /// Puts a file or a link at a name, in place of whatever has it.
    fn put(&self, from: &Path, found: &fs::Metadata, into: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        clear(into, name)?;
        if found.is_symlink() {
            symlinkat(fs::read_link(from)?, into, name)?;
            return Ok(());
        }
        if !found.is_file() {
            let what = regular::name_of(found.file_type());
            return Err(io::Error::other(format!("{}: {what}, not a file", from.display())));
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut target = File::from(openat(into, name, flags, Mode::RUSR | Mode::WUSR)?);
        io::copy(&mut regular::open(from)?, &mut target)?;
        let mode = if found.mode() & 0o111 == 0 { 0o644 } else { 0o755 };
        fchmod(&target, Mode::from_raw_mode(mode))?;
        match self.owner {
            Some(id) => fchown(&target, Some(id), Some(id)),
            None => Ok(()),
        }
    }

    /// Opens a directory, made with those above it where there is none. A link or a file on the way is a program's doing
    /// and goes.
    fn make(&self, place: &Path) -> io::Result<OwnedFd> {
        let mut at = self.root.try_clone()?;
        for (depth, name) in names(place).enumerate() {
            at = self
                .step(at.as_fd(), name, self.open_top || depth > 0)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", name.display())))?;
        }
        Ok(at)
    }

    fn step(&self, dir: BorrowedFd<'_>, name: &OsStr, may_replace: bool) -> io::Result<OwnedFd> {
        match openat(dir, name, OFlags::PATH | DIRECTORY, Mode::empty()) {
            Ok(below) => Ok(below),
            Err(Errno::NOENT) => self.make_one(dir, name),
            Err(Errno::NOTDIR | Errno::LOOP) if may_replace => {
                clear(dir, name)?;
                self.make_one(dir, name)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn make_one(&self, dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
        mkdirat(dir, name, Mode::from_raw_mode(0o755))?;
        if let Some(id) = self.owner {
            let (user, group) = (Some(Uid::from_raw(id)), Some(Gid::from_raw(id)));
            chownat(dir, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(openat(dir, name, OFlags::PATH | DIRECTORY, Mode::empty())?)
    }

    /// Copies regular files out of a place that a program could arrange as it liked. Nothing runs there any more.
    pub(super) fn copy_out(&self, place: &Path, to: &Path, max_bytes: u64, not_kept: &mut Vec<String>) {
        let mut keeper = Keeper {
            files: MAX_FILES,
            bytes: max_bytes,
            not_kept,
        };
        match self.existing(place) {
            Ok(Some((parent, name))) => keeper.take(parent.as_fd(), name, place, to, 0),
            // What was never written cannot be kept; whoever wants it will miss it.
            Ok(None) => {}
            Err(why) => keeper.note(why),
        }
    }

    /// The directory that holds a place, and its name there.
    fn existing<'a>(&self, place: &'a Path) -> Result<Option<(OwnedFd, &'a OsStr)>, String> {
        let Some(name) = place.file_name() else {
            return Err("the root is not copied out".to_owned());
        };
        let mut at = self.root.try_clone().map_err(|error| error.to_string())?;
        let parent = place.parent().unwrap_or(place);
        for part in names(parent) {
            at = match openat(&at, part, OFlags::PATH | DIRECTORY, Mode::empty()) {
                Ok(below) => below,
                Err(Errno::NOENT) => return Ok(None),
                // A link could lead anywhere.
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    return Err(format!("{}: {} is a link or a file", place.display(), part.display()));
                }
                Err(error) => return Err(format!("{}: {error}", place.display())),
            };
        }
        match statat(&at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(Some((at, name))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(format!("{}: {error}", place.display())),
        }
    }
}

/// Removes whatever has a name in a directory; nothing having it is fine.
fn clear(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    // The standard library removes a tree without following links, but wants a path: this one begins at the open directory.
    fs::remove_dir_all(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}

struct Keeper<'a> {
    files: u64,
    bytes: u64,
    not_kept: &'a mut Vec<String>,
}

impl Keeper<'_> {
    fn note(&mut self, what: String) {
        // A program that makes a million links must not make a million messages.
        if self.not_kept.len() < 100 {
            self.not_kept.push(what);
        }
    }

    fn take(&mut self, dir: BorrowedFd<'_>, name: &OsStr, shown: &Path, to: &Path, depth: usize) {
        if let Err(error) = self.try_take(dir, name, shown, to, depth) {
            self.note(format!("{}: {error}", shown.display()));
        }
    }

    fn try_take(&mut self, dir: BorrowedFd<'_>, name: &OsStr, shown: &Path, to: &Path, depth: usize) -> io::Result<()> {
        let found = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory if depth >= MAX_DEPTH => Err(io::Error::other("too deep to keep")),
            FileType::Directory => {
                // A program may have locked its own directory away; it is ours to read all the same.
                if found.st_mode & 0o700 != 0o700 {
                    chmodat(dir, name, Mode::RWXU, AtFlags::empty())?;
                }
                let below = openat(dir, name, OFlags::RDONLY | DIRECTORY, Mode::empty())?;
                DirBuilder::new().recursive(true).mode(0o700).create(to)?;
                for entry in Dir::read_from(&below)? {
                    let entry = entry?;
                    let name = OsStr::from_bytes(entry.file_name().to_bytes());
                    if name != "." && name != ".." {
                        self.take(below.as_fd(), name, &shown.join(name), &to.join(name), depth + 1);
                    }
                }
                Ok(())
            }
            FileType::RegularFile => {
                // What it is was asked before; a pipe put there since must not make this wait.
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let source = File::from(openat(dir, name, flags, Mode::empty())?);
                let found = source.metadata()?;
                if self.files == 0 || found.len() > self.bytes {
                    return Err(io::Error::other("too much to keep"));
                }
                self.files -= 1;
                // What is kept of an episode is private, whatever the modes inside were.
                let mode = if found.mode() & 0o111 == 0 { 0o600 } else { 0o700 };
                let mut target = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(mode)
                    .open(to)?;
                self.bytes -= io::copy(&mut source.take(self.bytes), &mut target)?;
                Ok(())
            }
            FileType::Symlink => Err(io::Error::other("it is a link")),
            _ => Err(io::Error::other("not a regular file")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_leaves_the_root() {
        assert_eq!(place("a/b", "/episode").unwrap(), Path::new("/episode/a/b"));
        assert_eq!(place("", "/episode").unwrap(), Path::new("/episode"));
        assert_eq!(place("/app", "/episode").unwrap(), Path::new("/app"));
        assert!(place("../x", "/episode").is_err());
        assert!(place("/a/../../x", "/episode").is_err());
    }

    #[test]
    fn links_devices_and_too_much_stay_behind_and_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (root, out) = (dir.path().join("root"), dir.path().join("out"));
        fs::create_dir_all(root.join("work")).unwrap();
        fs::write(root.join("work/a.txt"), "hello").unwrap();
        fs::write(root.join("work/big"), vec![0; 100]).unwrap();
        symlink("/etc/passwd", root.join("work/link")).unwrap();
        let files = Files::open(&root, None, true).unwrap();
        let keep = |place: &str, to: &Path| {
            let mut not_kept = Vec::new();
            files.copy_out(Path::new(place), to, 50, &mut not_kept);
            not_kept
        };
        let not_kept = keep("/work", &out);
        assert_eq!(fs::read_to_string(out.join("a.txt")).unwrap(), "hello");
        assert!(!out.join("big").exists() && !out.join("link").exists());
        assert_eq!(not_kept.len(), 2, "{not_kept:?}");
        symlink("/etc", root.join("sneaky")).unwrap();
        for place in ["/sneaky/ssl", "/sneaky"] {
            let not_kept = keep(place, &dir.path().join("b"));
            assert!(not_kept[0].contains("link"), "{not_kept:?}");
        }
        assert!(!dir.path().join("b").exists());
        assert_eq!(keep("/never/written", &dir.path().join("b")), Vec::<String>::new());
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (root, elsewhere, given) = (
            dir.path().join("root"),
            dir.path().join("elsewhere"),
            dir.path().join("given"),
        );
        for path in [&root, &elsewhere, &given.join("sub")] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(elsewhere.join("kept"), "as it was").unwrap();
        fs::write(given.join("sub/kept"), "new").unwrap();
        let files = Files::open(&root, None, true).unwrap();
        // As a directory on the way, as the directory itself, as a directory of the tree, and as the file.
        symlink(&elsewhere, root.join("a")).unwrap();
        files.copy_in(&given.join("sub/kept"), Path::new("/a/kept")).unwrap();
        symlink(&elsewhere, root.join("b")).unwrap();
        files.copy_in(&given.join("sub"), Path::new("/b")).unwrap();
        fs::create_dir(root.join("c")).unwrap();
        symlink(&elsewhere, root.join("c/sub")).unwrap();
        files.copy_in(&given, Path::new("/c")).unwrap();
        fs::create_dir(root.join("d")).unwrap();
        symlink(elsewhere.join("kept"), root.join("d/kept")).unwrap();
        files.copy_in(&given.join("sub"), Path::new("/d")).unwrap();
        symlink(&elsewhere, root.join("e")).unwrap();
        files.fresh_directory(Path::new("/e/deep")).unwrap();
        symlink(&elsewhere, root.join("f")).unwrap();
        files.fresh_directory(Path::new("/f")).unwrap();
        assert_eq!(fs::read_to_string(elsewhere.join("kept")).unwrap(), "as it was");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1);
        for place in ["a/kept", "b/kept", "c/sub/kept", "d/kept"] {
            assert_eq!(fs::read_to_string(root.join(place)).unwrap(), "new", "{place}");
        }
        assert!(root.join("e/deep").is_dir() && root.join("f").is_dir());
    }

    #[test]
    fn a_link_of_ours_at_the_top_stays() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("usr")).unwrap();
        symlink("usr", dir.path().join("bin")).unwrap();
        let files = Files::open(dir.path(), None, false).unwrap();
        let error = files.fresh_directory(Path::new("/bin/x")).unwrap_err();
        assert!(error.to_string().starts_with("bin: "), "{error}");
        assert!(fs::symlink_metadata(dir.path().join("bin")).unwrap().is_symlink());
    }
}
