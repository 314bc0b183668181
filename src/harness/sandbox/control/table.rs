//! Which control groups this process is in, and where their files are, from the words of the kernel.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::super::readonly::unescaped;

/// A line of `/proc/self/cgroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Membership {
    /// The controllers of a hierarchy of version 1; none for version 2.
    pub controllers: Vec<String>,
    /// The group, seen from the root of this cgroup namespace.
    pub path: String,
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mounted {
    /// What its options name, the controllers of version 1 among them; none for version 2.
    pub controllers: Vec<String>,
    /// It is of version 2.
    pub unified: bool,
    /// The group that is shown at the mount point.
    pub root: PathBuf,
    /// The mount point.
    pub at: PathBuf,
}

/// Reads `/proc/self/cgroup`.
pub(super) fn memberships(text: &str) -> Vec<Membership> {
    text.lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            Some(Membership {
                controllers: words(controllers, ','),
                path: path.to_owned(),
            })
        })
        .collect()
}

/// Reads `/proc/self/mountinfo`, leaving out whatever is no hierarchy.
pub(super) fn mounted(table: &[u8]) -> Vec<Mounted> {
    table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            // Any number of optional fields, then a dash, the kind of file system, its source and its options.
            let dash = fields.iter().position(|field| *field == b"-")?;
            let unified = match *fields.get(dash + 1)? {
                b"cgroup2" => true,
                b"cgroup" => false,
                _ => return None,
            };
            let options = String::from_utf8_lossy(fields.get(dash + 3)?).into_owned();
            let path = |field: &[u8]| PathBuf::from(OsString::from_vec(unescaped(field)));
            Some(Mounted {
                controllers: if unified { Vec::new() } else { words(&options, ',') },
                unified,
                root: path(fields.get(3)?),
                at: path(fields.get(4)?),
            })
        })
        .collect()
}

/// The directory of this process's group in the hierarchy of version 2, and its mount point.
pub(super) fn unified(groups: &[Membership], mounts: &[Mounted]) -> Option<(PathBuf, PathBuf)> {
    let group = groups.iter().find(|group| group.controllers.is_empty())?;
    mounts
        .iter()
        .filter(|mount| mount.unified)
        .find_map(|mount| Some((directory(group, mount)?, mount.at.clone())))
}

/// The directory of this process's group in the hierarchy of version 1 that has a controller.
pub(super) fn of_controller(controller: &str, groups: &[Membership], mounts: &[Mounted]) -> Option<PathBuf> {
    let has = |list: &[String]| list.iter().any(|name| name == controller);
    let group = groups.iter().find(|group| has(&group.controllers))?;
    mounts
        .iter()
        .filter(|mount| !mount.unified && has(&mount.controllers))
        .find_map(|mount| directory(group, mount))
}

/// Where a group is, if the mount shows it. A group outside of this namespace has a path that climbs, and none here.
fn directory(group: &Membership, mount: &Mounted) -> Option<PathBuf> {
    let path = Path::new(&group.path);
    if path.components().any(|part| part.as_os_str() == "..") {
        return None;
    }
    let rest = path.strip_prefix(&mount.root).ok()?;
    // Joining nothing would end the path with a slash.
    let nothing = rest.as_os_str().is_empty();
    Some(if nothing { mount.at.clone() } else { mount.at.join(rest) })
}

/// The words of a list.
pub(super) fn words(text: &str, between: char) -> Vec<String> {
    text.trim()
        .split(between)
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The number behind a name in a file of lines `name number`.
pub(super) fn number(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &[u8] = b"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:10 master:2 - cgroup cgroup rw,memory\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn each_controller_leads_to_the_group_of_its_hierarchy() {
        let groups = memberships("9:name=systemd:/init\n4:memory:/jobs/7\n1:cpu,cpuacct:/\n0::/a:b/c\n");
        let mounts = mounted(BOTH);
        assert_eq!(mounts.len(), 4);
        let at = |controller| of_controller(controller, &groups, &mounts);
        assert_eq!(at("memory"), Some("/sys/fs/cgroup/memory/jobs/7".into()));
        assert_eq!(at("cpu"), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(at("pids"), None);
        let own = ("/sys/fs/cgroup/unified/a:b/c".into(), "/sys/fs/cgroup/unified".into());
        assert_eq!(unified(&groups, &mounts), Some(own));
    }

    #[test]
    fn a_mount_that_shows_a_part_shows_only_the_groups_below_it() {
        let part = b"9 8 0:5 /docker/ab /sys/fs/cgroup\\040x rw - cgroup2 none rw\n";
        let mounts = mounted(part);
        let at = |text: &str| unified(&memberships(text), &mounts).map(|(own, _)| own);
        assert_eq!(at("0::/docker/ab"), Some("/sys/fs/cgroup x".into()));
        assert_eq!(at("0::/docker/ab/x"), Some("/sys/fs/cgroup x/x".into()));
        assert_eq!(at("0::/docker/abc"), None);
        assert_eq!(at("0::/"), None);
        assert_eq!(at("0::/docker/ab/../../other"), None);
        assert_eq!(at("nonsense\n0:\n"), None);
    }

    #[test]
    fn a_number_is_found_by_its_whole_name() {
        let events = "low 0\noom 2\noom_kill 3\noom_group_kill 1\n";
        assert_eq!(number(events, "oom"), Some(2));
        assert_eq!(number(events, "oom_kill"), Some(3));
        assert_eq!(number(events, "max"), None);
        assert_eq!(number("max many\n", "max"), None);
        assert_eq!(words(" cpu memory pids\n", ' '), ["cpu", "memory", "pids"]);
    }
}
