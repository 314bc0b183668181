//! Where control groups of our own may be made. What decides is what the kernel calls delegation: that we may write there.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::table::{self, Mounted};
use super::{NoControl, Version, files};

/// The group that this process itself moves to where its own must be empty for others to be made below it.
const MAIN: &str = "reef-main";
/// The controllers that limit a job.
const WANTED: [&str; 2] = ["memory", "pids"];

/// Directories below which each job gets a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub version: Version,
    pub parents: Vec<PathBuf>,
    /// Needed only by a job whose processor time is shared out.
    pub cpu: Option<PathBuf>,
}

/// Looks for a place. In a hierarchy of version 2 this process may be moved to a group beside those of its jobs.
pub(super) fn find() -> Result<Place, NoControl> {
    let groups = files::text(Path::new("/proc/self/cgroup"))?;
    let mounts = files::text(Path::new("/proc/self/mountinfo"))?;
    in_hierarchies(&groups, mounts.as_bytes(), &family)
}

/// This process and all that it started.
fn family() -> HashSet<i32> {
    let mut family: HashSet<i32> = super::super::population::Whom::Descendants.ids().into_iter().collect();
    family.extend(i32::try_from(std::process::id()));
    family
}

fn in_hierarchies(groups: &str, mounts: &[u8], family: &dyn Fn() -> HashSet<i32>) -> Result<Place, NoControl> {
    let (groups, mounts) = (table::memberships(groups), table::mounted(mounts));
    let second = match table::unified(&groups, &mounts) {
        Some((own, top)) => unified(&own, &top, family),
        None => Err(NoControl::NotMounted),
    };
    match second {
        Ok(parent) => Ok(Place {
            version: Version::V2,
            parents: vec![parent],
            cpu: None,
        }),
        // Controllers that version 1 has taken are missing from version 2, whose refusal then says nothing.
        Err(refusal) => first(&groups, &mounts).map_err(|first| match first {
            NoControl::NotMounted => refusal,
            first => first,
        }),
    }
}

fn unified(own: &Path, top: &Path, family: &dyn Fn() -> HashSet<i32>) -> Result<PathBuf, NoControl> {
    if own.file_name().is_some_and(|name| name == MAIN) {
        return sibling(own, top);
    }
    below(own, family).or_else(|refusal| sibling(own, top).map_err(|_| refusal))
}

/// Below our own group: only processes of ours may be in it, since it must be emptied first.
fn below(own: &Path, family: &dyn Fn() -> HashSet<i32>) -> Result<PathBuf, NoControl> {
    let available = files::words(&own.join("cgroup.controllers"));
    let wanted: Vec<&str> = WANTED
        .into_iter()
        .filter(|name| available.iter().any(|known| known == name))
        .collect();
    if wanted.is_empty() {
        return Err(NoControl::NoControllers { path: own.to_owned() });
    }
    writable(own)?;
    // The root of all groups, which has no type, may hold processes and groups at once.
    if own.join("cgroup.type").exists() {
        make_room(own, family)?;
    }
    enable(own, &wanted)?;
    if available.iter().any(|name| name == "cpu") {
        // Refused where programs with real-time priority run; only a share of the processors depends on it.
        let _without = enable(own, &["cpu"]);
    }
    Ok(own.to_owned())
}

/// Moves this process and what it started from its own group to one below it.
fn make_room(own: &Path, family: &dyn Fn() -> HashSet<i32>) -> Result<(), NoControl> {
    let main = own.join(MAIN);
    // What is started meanwhile is moved in another round.
    for _ in 0..5 {
        let there = files::processes(own)?;
        let ours = family();
        if there.iter().any(|pid| !ours.contains(pid)) {
            return Err(NoControl::Shared { path: own.to_owned() });
        }
        if there.is_empty() {
            break;
        }
        files::make_dir(&main)?;
        for pid in there {
            let moved = files::write(&main.join("cgroup.procs"), &pid.to_string());
            // One that ended by itself is out of the way too.
            if moved.is_err() && family().contains(&pid) {
                return moved;
            }
        }
    }
    Ok(())
}

/// Beside our own group, where that is arranged already and takes us out of no limit of memory.
fn sibling(own: &Path, top: &Path) -> Result<PathBuf, NoControl> {
    let shared = || NoControl::Shared { path: own.to_owned() };
    let parent = own.parent().filter(|_| own != top).ok_or_else(shared)?;
    let limit = fs::read_to_string(own.join("memory.max")).unwrap_or_default();
    let enabled = files::words(&parent.join("cgroup.subtree_control"));
    let arranged = WANTED.iter().any(|name| enabled.iter().any(|known| known == name));
    if !arranged || !matches!(limit.trim(), "" | "max") {
        return Err(shared());
    }
    writable(parent)?;
    // Whoever moves a process must be allowed to write where both groups meet.
    writable(&parent.join("cgroup.procs"))?;
    Ok(parent.to_owned())
}

fn enable(own: &Path, controllers: &[&str]) -> Result<(), NoControl> {
    let file = own.join("cgroup.subtree_control");
    let enabled = files::words(&file);
    let missing: Vec<String> = controllers
        .iter()
        .filter(|name| !enabled.iter().any(|known| known == *name))
        .map(|name| format!("+{name}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    files::write(&file, &missing.join(" "))
}

/// Version 1, where each controller has a hierarchy and any group may hold processes and groups.
fn first(groups: &[table::Membership], mounts: &[Mounted]) -> Result<Place, NoControl> {
    let mut parents: Vec<PathBuf> = Vec::new();
    let mut refusal = NoControl::NotMounted;
    for controller in WANTED {
        let Some(own) = table::of_controller(controller, groups, mounts) else {
            continue;
        };
        // A group below would not count against ours, and leave its limit.
        let apart = controller == "memory" && files::words(&own.join("memory.use_hierarchy")) == ["0"];
        if apart {
            refusal = NoControl::Apart { path: own };
            continue;
        }
        match writable(&own) {
            Ok(()) if !parents.contains(&own) => parents.push(own),
            Ok(()) => {}
            Err(refused) => refusal = refused,
        }
    }
    if parents.is_empty() {
        return Err(refusal);
    }
    let cpu = table::of_controller("cpu", groups, mounts).filter(|own| writable(own).is_ok() && !parents.contains(own));
    Ok(Place {
        version: Version::V1,
        parents,
        cpu,
    })
}

fn writable(path: &Path) -> Result<(), NoControl> {
    rustix::fs::access(path, Access::WRITE_OK).map_err(|error| NoControl::Refused {
        path: path.to_owned(),
        reason: std::io::Error::from(error).to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory laid out like a group of version 2.
    fn group(path: &Path, controllers: &str, enabled: &str, processes: &str) {
        fs::create_dir_all(path).unwrap();
        for (name, text) in [
            ("cgroup.controllers", controllers),
            ("cgroup.subtree_control", enabled),
            ("cgroup.procs", processes),
            ("cgroup.type", "domain\n"),
            ("memory.max", "max\n"),
        ] {
            fs::write(path.join(name), text).unwrap();
        }
    }

    fn read(path: PathBuf) -> String {
        fs::read_to_string(path).unwrap()
    }

    fn mounts(top: &Path) -> Vec<u8> {
        format!("9 8 0:5 / {} rw - cgroup2 none rw\n", top.display()).into_bytes()
    }

    #[test]
    fn a_delegated_group_is_emptied_and_its_controllers_are_given_on() {
        let top = tempfile::tempdir().unwrap();
        let own = top.path().join("reef.service");
        group(&own, "cpuset io memory pids\n", "", "7\n");
        group(&own.join(MAIN), "", "", "");
        let found = in_hierarchies("0::/reef.service\n", &mounts(top.path()), &|| HashSet::from([7]));
        let place = found.unwrap();
        assert_eq!((place.version, place.parents), (Version::V2, vec![own.clone()]));
        assert_eq!(read(own.join(MAIN).join("cgroup.procs")), "7");
        assert_eq!(read(own.join("cgroup.subtree_control")), "+memory +pids");
    }

    #[test]
    fn a_group_that_others_are_in_is_left_alone() {
        let top = tempfile::tempdir().unwrap();
        let own = top.path().join("session.scope");
        group(top.path(), "memory pids\n", "", "");
        group(&own, "memory pids\n", "", "7\n8\n");
        let look = || in_hierarchies("0::/session.scope\n", &mounts(top.path()), &|| HashSet::from([7]));
        let refusal = look().unwrap_err();
        assert!(
            matches!(&refusal, NoControl::Shared { path } if *path == own),
            "{refusal}"
        );
        assert!(!own.join(MAIN).exists() && read(own.join("cgroup.subtree_control")).is_empty());
        // Beside it there is room, where that is arranged and takes nothing out of a limit.
        group(top.path(), "memory pids\n", "memory pids\n", "");
        assert_eq!(look().unwrap().parents, [top.path()]);
        fs::write(own.join("memory.max"), "1000000\n").unwrap();
        assert!(look().is_err());
    }

    #[test]
    fn a_second_process_of_ours_makes_its_groups_beside_the_first() {
        let top = tempfile::tempdir().unwrap();
        let own = top.path().join("x").join(MAIN);
        group(&top.path().join("x"), "memory pids\n", "memory pids\n", "");
        group(&own, "memory pids\n", "", "7\n8\n");
        let path = format!("0::/x/{MAIN}\n");
        let found = in_hierarchies(&path, &mounts(top.path()), &|| HashSet::from([8]));
        assert_eq!(found.unwrap().parents, [top.path().join("x")]);
        assert_eq!(read(own.join("cgroup.procs")), "7\n8\n");
    }

    #[test]
    fn controllers_of_version_1_are_used_where_version_2_has_none() {
        let top = tempfile::tempdir().unwrap();
        let dir = |name: &str| top.path().join(name);
        group(&dir("unified"), "hugetlb\n", "", "");
        fs::create_dir_all(dir("memory/job")).unwrap();
        fs::create_dir_all(dir("cpu")).unwrap();
        fs::write(dir("memory/job/memory.use_hierarchy"), "1\n").unwrap();
        let mounts = ["unified", "memory", "cpu"].map(|name| {
            let kind = if name == "unified" { "cgroup2" } else { "cgroup" };
            format!("9 8 0:5 / {} rw - {kind} none rw,{name}\n", dir(name).display())
        });
        let look = || {
            let groups = "3:cpu:/\n2:memory:/job\n1:pids:/\n0::/\n";
            in_hierarchies(groups, mounts.concat().as_bytes(), &HashSet::new)
        };
        let place = look().unwrap();
        assert_eq!((place.version, place.parents), (Version::V1, vec![dir("memory/job")]));
        assert_eq!(place.cpu, Some(dir("cpu")));
        fs::write(dir("memory/job/memory.use_hierarchy"), "0\n").unwrap();
        assert!(matches!(look(), Err(NoControl::Apart { .. })));
    }

    #[test]
    fn nothing_mounted_is_said_so() {
        assert_eq!(
            in_hierarchies("0::/\n", b"1 1 0:1 / / rw - ext4 disk rw\n", &HashSet::new),
            Err(NoControl::NotMounted)
        );
    }
}
