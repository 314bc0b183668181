//! The group of a job, seen from inside the sandbox: process 1 opens its files before it loses sight of them, puts each
//! program in before it runs, and asks whether the kernel killed it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::table::number;

/// The open files of a group.
#[derive(Debug, Default)]
pub(in super::super) struct Ground {
    enter: Vec<File>,
    /// Kills everything in it at once; from Linux 5.14 on.
    kill: Option<File>,
    memory: Option<File>,
    /// How often version 1 reached the limit.
    failures: Option<File>,
    peak: Option<File>,
    processes: Option<File>,
    /// Where it can be removed from.
    names: Vec<(File, OsString)>,
}

/// What a group has counted since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in super::super) struct Counts {
    /// Processes killed for want of memory, of the group or of the machine.
    killed: u64,
    /// Times that the group was at its limit.
    at_limit: u64,
    /// Processes that were refused for their number.
    refused: u64,
}

impl Counts {
    /// Whether something was killed since then because the group was at its limit of memory.
    pub(in super::super) fn out_of_memory_since(self, before: Self) -> bool {
        self.killed > before.killed && self.at_limit > before.at_limit
    }

    /// Whether a process was refused since then.
    pub(in super::super) fn refused_since(self, before: Self) -> bool {
        self.refused > before.refused
    }
}

impl Ground {
    /// Opens a group that lies in one directory, or in one for each controller. Nothing is no group.
    pub(in super::super) fn open(dirs: &[PathBuf]) -> io::Result<Self> {
        let mut ground = Self::default();
        for dir in dirs {
            let enter = dir.join("cgroup.procs");
            let opened = OpenOptions::new().write(true).open(&enter);
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", enter.display()));
            ground.enter.push(opened.map_err(named)?);
            let optional = |name: &str| File::open(dir.join(name)).ok();
            let version_1 = optional("memory.oom_control");
            ground.failures = ground.failures.or_else(|| optional("memory.failcnt"));
            ground.memory = ground.memory.or_else(|| optional("memory.events")).or(version_1);
            ground.peak = ground
                .peak
                .or_else(|| optional("memory.peak"))
                .or_else(|| optional("memory.max_usage_in_bytes"));
            ground.processes = ground.processes.or_else(|| optional("pids.events"));
            let kill = OpenOptions::new().write(true).open(dir.join("cgroup.kill"));
            ground.kill = ground.kill.or(kill.ok());
            if let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) {
                ground.names.push((File::open(parent)?, name.to_owned()));
            }
        }
        Ok(ground)
    }

    /// What a process writes 0 to in order to be in the group.
    pub(in super::super) fn doors(&self) -> Vec<RawFd> {
        self.enter.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// What was counted so far.
    pub(in super::super) fn counts(&self) -> Counts {
        let memory = self.memory.as_ref().map(read).unwrap_or_default();
        let at_limit = match &self.failures {
            Some(failures) => read(failures).trim().parse().ok(),
            None => number(&memory, "oom"),
        };
        Counts {
            killed: number(&memory, "oom_kill").unwrap_or(0),
            at_limit: at_limit.unwrap_or(0),
            refused: self
                .processes
                .as_ref()
                .and_then(|file| number(&read(file), "max"))
                .unwrap_or(0),
        }
    }

    /// The most memory the group held, what is cached of files included.
    pub(in super::super) fn peak(&self) -> u64 {
        let text = self.peak.as_ref().map(read).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Kills everything in the group, where the kernel can do so at once.
    pub(in super::super) fn kill(&self) {
        // Without it they are killed one by one.
        let _one_by_one = self.kill.as_ref().map(|file| file.write_at(b"1", 0));
    }

    /// Removes the group, for whoever made it may be dead.
    pub(in super::super) fn remove(&self) {
        let give_up = Instant::now() + Duration::from_secs(1);
        for (parent, name) in &self.names {
            while rustix::fs::unlinkat(parent, Path::new(name), AtFlags::REMOVEDIR) == Err(Errno::BUSY)
                && Instant::now() < give_up
            {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// A file from its beginning; all of these are short.
fn read(file: &File) -> String {
    let mut buffer = [0; 1024];
    let n = file.read_at(&mut buffer, 0).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..n]).into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn lay(dir: &Path, files: &[(&str, &str)]) -> PathBuf {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
        dir.to_owned()
    }

    #[test]
    fn only_a_kill_at_the_limit_of_the_group_is_for_its_memory() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("cgroup.procs", ""),
            ("memory.events", "oom 0\noom_kill 0\n"),
            ("memory.peak", "4096\n"),
            ("pids.events", "max 0\n"),
        ];
        let group = lay(&dir.path().join("g"), &files);
        let ground = Ground::open(std::slice::from_ref(&group)).unwrap();
        let before = ground.counts();
        assert_eq!((before, ground.peak()), (Counts::default(), 4096));
        // The machine was out of memory, not the group.
        fs::write(group.join("memory.events"), "oom 0\noom_kill 1\n").unwrap();
        assert!(!ground.counts().out_of_memory_since(before));
        fs::write(group.join("memory.events"), "oom 1\noom_kill 2\n").unwrap();
        fs::write(group.join("pids.events"), "max 3\n").unwrap();
        let now = ground.counts();
        assert!(now.out_of_memory_since(before) && now.refused_since(before));
        assert!(!now.out_of_memory_since(now) && !now.refused_since(now));
    }

    #[test]
    fn version_1_counts_in_other_files_of_two_hierarchies() {
        let dir = tempfile::tempdir().unwrap();
        let memory = [
            ("cgroup.procs", ""),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
            ("memory.failcnt", "12\n"),
            ("memory.max_usage_in_bytes", "77\n"),
        ];
        let groups = [
            lay(&dir.path().join("memory"), &memory),
            lay(
                &dir.path().join("pids"),
                &[("cgroup.procs", ""), ("pids.events", "max 2\n")],
            ),
        ];
        let ground = Ground::open(&groups).unwrap();
        let expected = Counts {
            killed: 1,
            at_limit: 12,
            refused: 2,
        };
        assert_eq!(
            (ground.counts(), ground.peak(), ground.doors().len()),
            (expected, 77, 2)
        );
        assert!(Ground::open(&[dir.path().join("none")]).is_err());
        assert_eq!(Ground::open(&[]).unwrap().counts(), Counts::default());
    }
}
