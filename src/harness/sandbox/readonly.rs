//! Making mounts read-only: one, or one with all that is mounted below it.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

/// Makes the mount at a path read-only, and every mount below it.
pub(super) fn whole(path: &Path) -> io::Result<()> {
    match set(path, libc::AT_RECURSIVE) {
        Err(error) if is_unknown(&error) => {}
        result => return result,
    }
    let table = fs::read("/proc/self/mountinfo")?;
    for mount in mounts(&table).filter(|mount| mount.starts_with(path)) {
        remount(&mount)?;
    }
    Ok(())
}

/// Makes the mount at a path read-only, not those below it.
pub(super) fn one(path: impl AsRef<Path>) -> io::Result<()> {
    match set(path.as_ref(), 0) {
        Err(error) if is_unknown(&error) => remount(path.as_ref()),
        result => result,
    }
}

/// Kernels before 5.12 do not know the call; some filters of containers refuse what they do not know.
fn is_unknown(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSYS | Errno::PERM))
}

/// `struct mount_attr`, the first version.
#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

const RDONLY: u64 = 1;
const NOSUID: u64 = 2;
const NODEV: u64 = 4;

#[allow(unsafe_code, reason = "the call has no safe form")]
fn set(path: &Path, flags: libc::c_int) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attributes = Attributes {
        set: RDONLY | NOSUID | NODEV,
        clear: 0,
        propagation: 0,
        user_namespace: 0,
    };
    // SAFETY: the path ends with a zero and the structure has the size that is told; the kernel only reads both.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn remount(path: &Path) -> io::Result<()> {
    let found = statvfs(path)?.f_flag;
    let mut keep = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    // In a user namespace these are locked and must be repeated.
    for (bit, flag) in [
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if found.contains(bit) {
            keep |= flag;
        }
    }
    mount_remount(path, keep, c"")?;
    Ok(())
}

/// The mount points of a `mountinfo` table.
fn mounts(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(|field| PathBuf::from(std::ffi::OsString::from_vec(unescaped(field))))
}

/// Spaces and the like are written as a backslash and three octal digits.
pub(super) fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let code = (*byte == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(code);
                rest = &after[3..];
            }
            None => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_odd_names() {
        let table = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
            23 27 0:22 /a /srv/with\\040space/x rw - tmpfs t rw\n";
        let found: Vec<PathBuf> = mounts(table).collect();
        assert_eq!(found, [Path::new("/proc"), Path::new("/srv/with space/x")]);
        assert_eq!(unescaped(b"a\\134b\\9"), b"a\\b\\9");
    }
}
