//! The files of a control group.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use super::{NoControl, table};

/// What the group of a job is called; whoever finds one that nobody holds may remove it.
const PREFIX: &str = "reef-sandbox-";
/// How often a group is asked whether it is empty.
const PAUSE: Duration = Duration::from_millis(5);

pub(super) fn text(path: &Path) -> Result<String, NoControl> {
    let bytes = fs::read(path).map_err(refused(path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The words of a file; none if it cannot be read.
pub(super) fn words(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    table::words(&text, ' ')
}

/// The processes of a group. One that this process namespace does not show is 0.
pub(super) fn processes(group: &Path) -> Result<Vec<i32>, NoControl> {
    let text = text(&group.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
}

/// Writes to a file that is there: the kernel takes a value as one write.
pub(super) fn write(path: &Path, value: &str) -> Result<(), NoControl> {
    let mut file = OpenOptions::new().write(true).open(path).map_err(refused(path))?;
    file.write_all(value.as_bytes()).map_err(refused(path))
}

pub(super) fn make_dir(path: &Path) -> Result<(), NoControl> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(refused(path)(error)),
        _ => Ok(()),
    }
}

fn refused(path: &Path) -> impl Fn(std::io::Error) -> NoControl {
    let path = path.to_owned();
    move |error| NoControl::Refused {
        path: path.clone(),
        reason: error.to_string(),
    }
}

/// A group of ours, which is removed by whoever can lock it when the process that made it is gone.
#[derive(Debug)]
pub(super) struct Group {
    pub path: PathBuf,
    _lock: File,
}

/// Makes a group below a directory.
pub(super) fn make_group(parent: &Path) -> Result<Group, NoControl> {
    let mut last = None;
    for _ in 0..5 {
        let path = parent.join(format!("{PREFIX}{}", crate::sys::random::hex_token()));
        fs::create_dir(&path).map_err(refused(&path))?;
        match lock(&path) {
            // Another process may have removed it before it was locked.
            Ok(lock) if path.exists() => return Ok(Group { path, _lock: lock }),
            Ok(_) => {}
            Err(error) => last = Some(refused(&path)(error)),
        }
    }
    Err(last.unwrap_or_else(|| NoControl::Shared {
        path: parent.to_owned(),
    }))
}

fn lock(path: &Path) -> std::io::Result<File> {
    let dir = File::open(path)?;
    flock(dir.as_fd(), FlockOperation::NonBlockingLockExclusive)?;
    Ok(dir)
}

/// Removes the groups that processes left behind which were killed, and whatever runs in them.
pub(super) fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        if let Ok(_lock) = lock(&entry.path()) {
            remove(&entry.path(), Duration::from_secs(1));
        }
    }
}

/// Kills whatever runs in a group and removes it. Gives whether it is gone.
pub(super) fn remove(group: &Path, patience: Duration) -> bool {
    let give_up = Instant::now() + patience;
    loop {
        match fs::remove_dir(group) {
            Ok(()) => return true,
            Err(error) if error.kind() == ErrorKind::NotFound => return true,
            Err(_) if Instant::now() > give_up => return false,
            Err(_) => {}
        }
        kill(group);
        std::thread::sleep(PAUSE);
    }
}

fn kill(group: &Path) {
    if write(&group.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    // Version 1, or a kernel before 5.14.
    for pid in processes(group).unwrap_or_default() {
        if let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) {
            // Gone already is as good as killed.
            let _gone = kill_process(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_nobody_holds_is_swept_away_and_no_other() {
        let parent = tempfile::tempdir().unwrap();
        let held = make_group(parent.path()).unwrap();
        let left = parent.path().join(format!("{PREFIX}left"));
        let foreign = parent.path().join("foreign");
        fs::create_dir(&left).unwrap();
        fs::create_dir(&foreign).unwrap();
        sweep(parent.path());
        assert!(held.path.exists() && foreign.exists() && !left.exists());
        let path = held.path.clone();
        drop(held);
        sweep(parent.path());
        assert!(!path.exists() && foreign.exists());
    }

    #[test]
    fn a_group_that_cannot_be_removed_is_killed_by_its_own_file() {
        let parent = tempfile::tempdir().unwrap();
        let group = make_group(parent.path()).unwrap();
        // A directory of a disk with a file in it stays, as a group with a process in it does.
        fs::write(group.path.join("cgroup.kill"), "").unwrap();
        assert!(!remove(&group.path, Duration::from_millis(20)));
        assert_eq!(fs::read_to_string(group.path.join("cgroup.kill")).unwrap(), "1");
    }

    #[test]
    fn what_is_not_there_is_named() {
        let error = write(Path::new("/nonexistent/memory.max"), "1").unwrap_err();
        assert!(error.to_string().contains("/nonexistent/memory.max"), "{error}");
    }
}
