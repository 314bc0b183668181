//! Who runs, and how much memory they hold, from `/proc`.

use std::collections::HashMap;
use std::fs;

/// Processes and what they use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Population {
    /// Processes and threads.
    pub processes: u64,
    /// Resident bytes.
    pub memory_bytes: u64,
}

/// Whom to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whom {
    /// Everybody but this process, which is process 1 of its namespace.
    Namespace,
    /// Those who descend from this process.
    Descendants,
}

impl Whom {
    /// Their process ids.
    pub(super) fn ids(self) -> Vec<i32> {
        let me = i32::try_from(std::process::id()).unwrap_or(0);
        let all: Vec<i32> = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| *pid != me)
            .collect();
        match self {
            Self::Namespace => all,
            Self::Descendants => descendants(me, &all),
        }
    }

    /// How many they are and what they hold.
    pub(super) fn count(self) -> Population {
        let mut sum = Population::default();
        for pid in self.ids() {
            let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
                continue;
            };
            let field = |name: &str| -> Option<u64> {
                let line = status.lines().find_map(|line| line.strip_prefix(name))?;
                line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
            };
            sum.processes += field("Threads").unwrap_or(1).max(1);
            sum.memory_bytes += 1024 * field("VmRSS").unwrap_or(0);
        }
        sum
    }
}

fn stat(pid: i32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, closing parentheses too.
    let rest = text.rsplit_once(") ")?.1;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

fn descendants(me: i32, all: &[i32]) -> Vec<i32> {
    let parents: HashMap<i32, i32> = all
        .iter()
        .filter_map(|pid| Some((*pid, stat(*pid)?.get(1)?.parse().ok()?)))
        .collect();
    all.iter()
        .copied()
        .filter(|pid| {
            let mut at = *pid;
            // Bounded: the table was read while processes came and went.
            for _ in 0..64 {
                match parents.get(&at) {
                    Some(parent) if *parent == me => return true,
                    Some(parent) => at = *parent,
                    None => return false,
                }
            }
            false
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grandchild_is_counted() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 30 & echo up; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 3];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let ids = Whom::Descendants.ids();
        let below: Vec<i32> = descendants(pid, &Whom::Namespace.ids());
        assert!(
            ids.contains(&pid) && below.len() == 1 && ids.contains(&below[0]),
            "{ids:?} {below:?}"
        );
        assert!(Whom::Descendants.count().memory_bytes > 0);
        for id in below {
            rustix::process::kill_process(
                rustix::process::Pid::from_raw(id).unwrap(),
                rustix::process::Signal::KILL,
            )
            .unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
