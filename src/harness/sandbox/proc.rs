//! `/proc` inside: of the processes those of the programs, of the kernel what programs need.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind};

use super::readonly;

/// What a program may read and not write. Where it is the only user of its namespace, the kernel would let it.
const READ_ONLY: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];
/// What tells of the machine and of whoever else uses it.
const EMPTY: [&str; 16] = [
    "acpi",
    "asound",
    "config.gz",
    "driver",
    "interrupts",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "latency_stats",
    "pagetypeinfo",
    "pressure",
    "scsi",
    "timer_list",
    "sched_debug",
];

/// Mounts the `/proc` of this process namespace on a directory of a root that can be written to.
pub(super) fn mount_in(place: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Without this, process 1 tells everybody its arguments, which are paths of this machine.
    let others: &CStr = c"hidepid=2";
    match mount("proc", place, "proc", flags, Some(others)) {
        // Some kernels of containers know no options.
        Err(Errno::INVAL) => mount("proc", place, "proc", flags, None::<&CStr>)?,
        result => result?,
    }
    let nothing = place.with_file_name("nothing");
    fs::write(&nothing, "")?;
    for name in EMPTY {
        let path = place.join(name);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => mount("reef", &path, "tmpfs", flags | MountFlags::RDONLY, None::<&CStr>)?,
            Ok(_) => {
                mount_bind(&nothing, &path)?;
                readonly::one(&path)?;
            }
            Err(_) => {}
        }
    }
    fs::remove_file(&nothing)?;
    for name in READ_ONLY {
        let path = place.join(name);
        if path.exists() {
            mount_bind(&path, &path)?;
            readonly::one(&path)?;
        }
    }
    Ok(())
}
