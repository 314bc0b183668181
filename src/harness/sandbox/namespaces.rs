//! Entering namespaces, and the view of the files that one phase has.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind_recursive, mount_change, unmount};
use rustix::process::{getgid, getuid, pivot_root};
use rustix::thread::UnshareFlags;

use super::spec::{Order, Phase};
use super::{proc, readonly};

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

/// The user inside a user namespace of its own.
pub(super) const INNER_USER: u32 = 1000;

/// Makes `root` the root of this process, which is process 1 of its namespace, and forgets the old one.
pub(super) fn move_into(root: &Path) -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // A mount of its own, as a root must be.
    mount_bind_recursive(root, root)?;
    std::env::set_current_dir(root)?;
    proc::mount_in(Path::new("proc"))?;
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
