//! Entering namespaces and building the root that programs see.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change, unmount,
};
use rustix::process::{getgid, getuid, pivot_root};
use rustix::thread::UnshareFlags;

use super::readonly;
use super::spec::{Limits, Order, Phase};

/// Where a job's own files are, inside.
pub(super) const EPISODE: &str = "/episode";

/// Users that a program inside may be, when this process is root: high ids that nobody else has.
const FIRST_USER: u32 = 0x7000_0000;

/// Enters new namespaces. Gives the id of the user that programs become; none when a user namespace of their own does
/// that.
pub(super) fn enter() -> io::Result<Option<u32>> {
    let all = UnshareFlags::NEWNS | UnshareFlags::NEWNET | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    let random = u32::from_str_radix(&crate::sys::random::hex_token()[..6], 16).unwrap_or(1);
    let id = FIRST_USER + random;
    // Root needs no user namespace, and without one its programs can be given ids of their own; the root of a container
    // may have too few for that.
    if getuid().is_root() && is_mapped(id) && unshare(all).is_ok() {
        return Ok(Some(id));
    }
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    unshare(all | UnshareFlags::NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    Ok(None)
}

/// Whether this user namespace has an id.
fn is_mapped(id: u32) -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().unwrap_or(0));
        let (first, _outside, count) = (numbers.next(), numbers.next(), numbers.next());
        first
            .zip(count)
            .is_some_and(|(first, count)| (first..first + count).contains(&u64::from(id)))
    })
}

#[allow(
    unsafe_code,
    reason = "unsafe only for shared file descriptor tables, which are not unshared here"
)]
pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: CLONE_FILES is never among the flags, so no other thread can be holding a descriptor that vanishes.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(io::Error::from)
}

/// Builds the root under `scratch` and gives its path. Its size is fixed; nothing in it is on a disk.
pub(super) fn build_root(
    scratch: &Path,
    read_only: &[PathBuf],
    limits: &Limits,
    user: Option<u32>,
) -> io::Result<PathBuf> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let root = scratch.join("root");
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
    for name in ["usr", "bin", "sbin", "lib", "lib32", "lib64", "opt"] {
        system(&root, name)?;
    }
    for path in [
        "/etc/ssl",
        "/etc/alternatives",
        "/etc/ld.so.cache",
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d",
        "/etc/localtime",
    ] {
        show(&root, Path::new(path))?;
    }
    for path in read_only {
        show(&root, path)?;
    }
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

/// Shows a path of this machine, read-only with all that is mounted below it, at the same place.
fn show(root: &Path, path: &Path) -> io::Result<()> {
    let Ok(real) = path.canonicalize() else { return Ok(()) };
    let relative = path.strip_prefix("/").map_err(io::Error::other)?;
    let target = root.join(relative);
    if target.exists() {
        // Part of what is shown already.
        return Ok(());
    }
    if real.is_dir() {
        fs::create_dir_all(&target)?;
    } else {
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&target, "")?;
    }
    // Where mounts below are locked to each other they can only be shown together.
    if mount_bind(&real, &target).is_err() {
        mount_bind_recursive(&real, &target)?;
    }
    readonly::whole(&target)
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

/// The user inside a user namespace of its own.
pub(super) const INNER_USER: u32 = 1000;

/// Makes `root` the root of this process, which is process 1 of its namespace, and forgets the old one.
pub(super) fn move_into(root: &Path) -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // A mount of its own, as a root must be.
    mount_bind_recursive(root, root)?;
    std::env::set_current_dir(root)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "proc", "proc", flags, None::<&std::ffi::CStr>)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")
}

/// Where every program may write, beside what its phase names.
const WRITABLE: [&str; 3] = [EPISODE, "/tmp", "/dev/shm"];
/// Where no program may write, whatever its phase names.
const SYSTEM: [&str; 11] = [
    "usr", "bin", "sbin", "lib", "lib32", "lib64", "opt", "etc", "dev", "proc", "sys",
];

/// Adds the places that a phase may write to `places`, so that none lies below another. What an earlier phase could
/// write a later one can write too.
pub(super) fn add_writable(places: &mut Vec<PathBuf>, phase: &Phase) -> io::Result<()> {
    let targets = phase.inputs.iter().map(|input| &input.to);
    let named = phase.directories.iter().chain([&phase.directory]).chain(targets);
    let mut all: Vec<PathBuf> = WRITABLE.iter().map(PathBuf::from).collect();
    for word in named {
        let path = super::copy::place(word, EPISODE)?;
        let system = path
            .components()
            .nth(1)
            .is_none_or(|top| SYSTEM.iter().any(|name| top.as_os_str() == *name));
        if !system {
            all.push(path);
        }
    }
    for path in all {
        if !places.iter().any(|known| path.starts_with(known)) {
            places.retain(|known| !known.starts_with(&path));
            places.push(path);
        }
    }
    Ok(())
}

/// Gives this thread a view of the files for one phase: all read-only but for its places. What earlier phases left
/// stays where they could write and is nowhere else.
pub(super) fn arrange(order: &Order) -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    for place in &order.writable {
        if !place.exists() {
            // The program will miss it and say so.
            continue;
        }
        if place.canonicalize()? != *place {
            return Err(io::Error::other(format!("{}: a link is in the way", place.display())));
        }
        // With what is shown below it, which stays read-only.
        mount_bind_recursive(place, place)?;
    }
    for shown in &order.shown {
        // The directories that lead to it are no program's either: one that is renamed takes what it shows with it.
        let Some((place, rest)) = order
            .writable
            .iter()
            .find_map(|place| Some((place, shown.strip_prefix(place).ok()?)))
        else {
            continue;
        };
        let Some(first) = rest.components().next().map(|name| place.join(name)) else {
            continue;
        };
        if first.exists() {
            mount_bind_recursive(&first, &first)?;
            readonly::whole(&first)?;
        }
    }
    readonly::one("/")
}
