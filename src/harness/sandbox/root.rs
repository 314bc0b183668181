//! Building the root that programs see: nothing of this machine but the system's programs and what a job names.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change};

use super::namespaces::{EPISODE, INNER_USER};
use super::readonly;
use super::spec::Job;

/// Directories of the system that are shown as they are.
const SYSTEM: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "opt"];

/// Builds the root under `scratch` and gives its path. Its size is fixed; nothing in it is on a disk.
pub(super) fn build_root(job: &Job, user: Option<u32>) -> io::Result<PathBuf> {
    let limits = &job.limits;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let root = job.scratch.join("root");
    fs::create_dir_all(&root)?;
    let options = format!("size={},nr_inodes={},mode=0755", limits.disk_bytes, limits.files);
    let options = std::ffi::CString::new(options)?;
    mount(
        "reef",
        &root,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        Some(options.as_c_str()),
    )?;
    // Before anything is shown below them.
    for (name, mode) in [("tmp", 0o1777), ("episode", 0o755)] {
        let dir = root.join(name);
        fs::create_dir(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode))?;
    }
    if let Some(id) = user {
        chown(root.join("episode"), Some(id), Some(id))?;
    }
    for name in SYSTEM {
        system(&root, name)?;
    }
    for path in [
        "/etc/ssl/certs",
        "/etc/ssl/openssl.cnf",
        "/etc/alternatives",
        "/etc/ld.so.cache",
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d",
        "/etc/localtime",
    ] {
        show(&root, Path::new(path))?;
    }
    // What lies in a directory of the system and is no part of it. A package there is shown all the same.
    let mut covers = Covers::new(&root, &job.hidden)?;
    covers.below(&SYSTEM.map(|name| Path::new("/").join(name)))?;
    for path in &job.read_only {
        show(&root, path)?;
    }
    covers.below(&job.read_only)?;
    covers.close()?;
    etc(&root.join("etc"), user)?;
    dev(&root)?;
    fs::create_dir_all(root.join("proc"))?;
    Ok(root)
}

/// Shows a directory of the system as it is laid out here: a link stays a link.
fn system(root: &Path, name: &str) -> io::Result<()> {
    let path = Path::new("/").join(name);
    match fs::symlink_metadata(&path) {
        Ok(found) if found.is_symlink() => symlink(fs::read_link(&path)?, root.join(name)),
        Ok(found) if found.is_dir() => show(root, &path),
        _ => Ok(()),
    }
}

/// Shows a path of this machine, read-only with all that is mounted below it, at the same place. What leads by links to
/// something that is shown already leads there by a link.
fn show(root: &Path, path: &Path) -> io::Result<()> {
    let Ok(real) = path.canonicalize() else { return Ok(()) };
    if found(root, path)? != Found::Nothing {
        // Part of what is shown already.
        return Ok(());
    }
    let target = below(root, path)?;
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    if real != path && found(root, &real)? == Found::There {
        return symlink(&real, &target);
    }
    if real.is_dir() {
        fs::create_dir(&target)?;
    } else {
        fs::write(&target, "")?;
    }
    // Where mounts below are locked to each other they can only be shown together.
    if mount_bind(&real, &target).is_err() {
        mount_bind_recursive(&real, &target)?;
    }
    readonly::whole(&target)
}

fn below(root: &Path, path: &Path) -> io::Result<PathBuf> {
    Ok(root.join(path.strip_prefix("/").map_err(io::Error::other)?))
}

/// What is at a place of the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    There,
    /// A link is it, or is on the way: from outside it would lead to a place of this machine.
    Link,
}

fn found(root: &Path, path: &Path) -> io::Result<Found> {
    let mut at = root.to_path_buf();
    for part in below(root, path)?.strip_prefix(root).unwrap_or(path).components() {
        at.push(part);
        match fs::symlink_metadata(&at) {
            Ok(found) if found.is_symlink() => return Ok(Found::Link),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(error) => return Err(error),
        }
    }
    Ok(Found::There)
}

/// Covers of what must not be seen.
struct Covers<'a> {
    root: &'a Path,
    hidden: &'a [PathBuf],
    /// An empty file to lie over others.
    nothing: PathBuf,
    covered: Vec<PathBuf>,
}

impl<'a> Covers<'a> {
    fn new(root: &'a Path, hidden: &'a [PathBuf]) -> io::Result<Self> {
        let nothing = root.join("nothing");
        fs::write(&nothing, "")?;
        Ok(Self {
            root,
            hidden,
            nothing,
            covered: Vec::new(),
        })
    }

    /// Covers what lies at or below these.
    fn below(&mut self, shown: &[PathBuf]) -> io::Result<()> {
        for path in self.hidden {
            let is_below = |tops: &[PathBuf]| tops.iter().any(|top| path.starts_with(top));
            if !is_below(shown) || is_below(&self.covered) || found(self.root, path)? != Found::There {
                continue;
            }
            let target = below(self.root, path)?;
            if target.is_dir() {
                let flags = MountFlags::NOSUID | MountFlags::NODEV;
                mount("reef", &target, "tmpfs", flags, Some(c"size=1m,mode=0755"))?;
            } else {
                mount_bind(&self.nothing, &target)?;
                readonly::one(&target)?;
            }
            self.covered.push(path.clone());
        }
        Ok(())
    }

    /// Nothing more is put in place.
    fn close(self) -> io::Result<()> {
        for path in &self.covered {
            readonly::one(below(self.root, path)?)?;
        }
        fs::remove_file(&self.nothing)
    }
}

/// The little of `/etc` that programs ask for; nothing of this machine's accounts or network.
fn etc(etc: &Path, user: Option<u32>) -> io::Result<()> {
    fs::create_dir_all(etc)?;
    let id = user.unwrap_or(INNER_USER);
    for (name, text) in [
        (
            "passwd",
            format!("root:x:0:0:root:/nonexistent:/bin/false\nagent:x:{id}:{id}:agent:{EPISODE}:/bin/sh\n"),
        ),
        ("group", format!("root:x:0:\nagent:x:{id}:\n")),
        ("hosts", "127.0.0.1 localhost\n".to_owned()),
        ("hostname", "episode\n".to_owned()),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files\n".to_owned(),
        ),
        ("resolv.conf", String::new()),
    ] {
        fs::write(etc.join(name), text)?;
    }
    Ok(())
}

fn dev(root: &Path) -> io::Result<()> {
    let dev = root.join("dev");
    fs::create_dir_all(&dev)?;
    for name in ["null", "zero", "full", "random", "urandom"] {
        fs::write(dev.join(name), "")?;
        mount_bind(Path::new("/dev").join(name), dev.join(name))?;
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, dev.join(name))?;
    }
    // Shared memory counts against the same size as everything else.
    let shm = dev.join("shm");
    fs::create_dir(&shm)?;
    fs::set_permissions(&shm, fs::Permissions::from_mode(0o1777))
}
