//! Control groups: the kernel's own limit on all processes of a job together, behind the looks of `population`, which
//! are ten times a second and see no burst between two of them.
//!
//! This process makes a group for each job and removes it; process 1 inside puts each program into it before it runs and
//! stays outside itself, so that it can tell how a program ended that the kernel killed.

mod files;
mod ground;
mod place;
mod table;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

pub(super) use ground::Ground;
use place::Place;

use super::spec::{Held, Limits};
use crate::sys::task;

/// The versions of the kernel's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// Why there are no control groups for jobs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoControl {
    #[error("no hierarchy of control groups with memory or pids is mounted")]
    NotMounted,
    #[error("{path}: neither memory nor pids can be limited below this control group; start reef with Delegate=yes")]
    NoControllers { path: PathBuf },
    #[error(
        "{path}: other programs are in this control group too; start reef in one of its own: \
         systemd-run --user --scope -p Delegate=yes reef …"
    )]
    Shared { path: PathBuf },
    #[error("{path}: memory of groups below does not count here (memory.use_hierarchy is 0)")]
    Apart { path: PathBuf },
    #[error("{path}: {reason}; let this user write there: Delegate=yes and User= of a systemd unit do")]
    Refused { path: PathBuf, reason: String },
    #[error("the search for control groups broke down")]
    Broken,
}

/// The group of one job. It goes with this value, and what runs in it is killed.
#[derive(Debug)]
pub(super) struct Leaf {
    groups: Vec<files::Group>,
    version: Version,
    limits: Vec<String>,
}

impl Leaf {
    /// Makes a group with these limits.
    pub(super) fn make(limits: &Limits) -> Result<Self, NoControl> {
        // Asked once: this process may have to move for it, and what is left over is swept away.
        static PLACE: OnceLock<Result<Place, NoControl>> = OnceLock::new();
        let place = PLACE.get_or_init(|| {
            let place = place::find()?;
            place
                .parents
                .iter()
                .chain(&place.cpu)
                .for_each(|parent| files::sweep(parent));
            Ok(place)
        });
        let place = place.as_ref().map_err(Clone::clone)?;
        let cpu = place.cpu.iter().filter(|_| limits.cpus.is_some());
        let mut leaf = Self {
            groups: Vec::new(),
            version: place.version,
            limits: Vec::new(),
        };
        for parent in place.parents.iter().chain(cpu) {
            let group = files::make_group(parent)?;
            let set = set(&group.path, limits);
            leaf.groups.push(group);
            leaf.limits.extend(set?);
        }
        Ok(leaf)
    }

    /// Removes it and waits for that. Blocking.
    pub(super) fn end(mut self) {
        remove(&std::mem::take(&mut self.groups));
    }

    /// Where its files are.
    pub(super) fn dirs(&self) -> Vec<PathBuf> {
        self.groups.iter().map(|group| group.path.clone()).collect()
    }

    /// What it limits.
    pub(super) fn held(&self) -> Held {
        Held {
            by: match self.version {
                Version::V1 => "cgroup-v1".to_owned(),
                Version::V2 => "cgroup-v2".to_owned(),
            },
            limits: self.limits.clone(),
            reason: None,
        }
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        let groups = std::mem::take(&mut self.groups);
        if !groups.is_empty() {
            // Whoever drops it cannot wait. Without a thread the next start removes it.
            let _thread = task::thread("reef-groups", move || remove(&groups));
        }
    }
}

fn remove(groups: &[files::Group]) {
    for group in groups {
        if !files::remove(&group.path, Duration::from_secs(5)) {
            tracing::warn!(path = %group.path.display(), "a control group stays; the next start removes it");
        }
    }
}

/// Writes the limits that a group has files for, and names them.
fn set(group: &Path, limits: &Limits) -> Result<Vec<String>, NoControl> {
    // Files of the sandbox are memory too and have a limit of their own; memory that is needed beside them is counted by
    // the looks. Swapping would only put it off.
    let bytes = limits.memory_bytes.saturating_add(limits.disk_bytes).to_string();
    let quota = limits.cpus.map(|cpus| (cpus * PERIOD_US).max(1000.0) as u64);
    let there = |name: &str| group.join(name).exists();
    let put = |name: &str, value: &str| files::write(&group.join(name), value);
    let optional = |name: &str, value: &str| if there(name) { put(name, value) } else { Ok(()) };
    let mut held = Vec::new();
    let mut hold = |what: &str| held.push(what.to_owned());
    if there("memory.max") {
        put("memory.max", &bytes)?;
        optional("memory.swap.max", "0")?;
        optional("memory.oom.group", "1")?;
        hold("memory");
    } else if there("memory.limit_in_bytes") {
        put("memory.limit_in_bytes", &bytes)?;
        // Not a limit of memory and swap together: the kernel asks that one first and then counts no failure here.
        optional("memory.swappiness", "0")?;
        hold("memory");
    }
    if there("pids.max") {
        put("pids.max", &limits.processes.to_string())?;
        hold("processes");
    }
    if let Some(quota) = quota {
        if there("cpu.max") {
            put("cpu.max", &format!("{quota} {PERIOD_US}"))?;
            hold("processors");
        } else if there("cpu.cfs_quota_us") {
            optional("cpu.cfs_period_us", &PERIOD_US.to_string())?;
            put("cpu.cfs_quota_us", &quota.to_string())?;
            hold("processors");
        }
    }
    Ok(held)
}

/// In what time a share of the processors may be used up, in microseconds.
const PERIOD_US: f64 = 100_000.0;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn group(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in files {
            fs::write(dir.path().join(name), "").unwrap();
        }
        dir
    }

    fn limits(cpus: Option<f64>) -> Limits {
        Limits {
            memory_bytes: 1000,
            disk_bytes: 24,
            processes: 40,
            cpus,
            ..Limits::default()
        }
    }

    fn values(dir: &tempfile::TempDir, files: &[&str]) -> Vec<String> {
        let read = |name: &&str| fs::read_to_string(dir.path().join(name)).unwrap();
        files.iter().map(read).collect()
    }

    #[test]
    fn limits_of_version_2_are_written() {
        let files = [
            "memory.max",
            "memory.swap.max",
            "memory.oom.group",
            "pids.max",
            "cpu.max",
        ];
        let dir = group(&files);
        let held = set(dir.path(), &limits(Some(1.5))).unwrap();
        assert_eq!(held, ["memory", "processes", "processors"]);
        assert_eq!(values(&dir, &files), ["1024", "0", "1", "40", "150000 100000"]);
        let dir = group(&files);
        assert_eq!(set(dir.path(), &limits(None)).unwrap(), ["memory", "processes"]);
        assert_eq!(values(&dir, &files), ["1024", "0", "1", "40", ""]);
        // Kernels without swap have no file for it; a group without a controller has none of its files.
        let dir = group(&["memory.max"]);
        assert_eq!(set(dir.path(), &limits(Some(0.001))).unwrap(), ["memory"]);
    }

    #[test]
    fn limits_of_version_1_are_written() {
        let files = [
            "memory.limit_in_bytes",
            "memory.swappiness",
            "pids.max",
            "cpu.cfs_period_us",
            "cpu.cfs_quota_us",
        ];
        let dir = group(&files);
        let held = set(dir.path(), &limits(Some(0.25))).unwrap();
        assert_eq!(held, ["memory", "processes", "processors"]);
        assert_eq!(values(&dir, &files), ["1024", "0", "40", "100000", "25000"]);
    }
}
