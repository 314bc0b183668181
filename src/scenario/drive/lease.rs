//! One driver per scenario. A lock on a file decides; the file says who holds it. The lock goes with the process, so a
//! crash leaves nothing to clean up.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::LoopError;
use crate::domain::ScenarioName;

/// The right to drive a scenario, for as long as this lives.
#[derive(Debug)]
pub struct Lease {
    scenario: ScenarioName,
    _file: File,
}

impl Lease {
    /// Takes the lease, or fails at once naming the holder. `who` describes this process to whoever comes second.
    pub fn take(run: &Path, scenario: &ScenarioName, who: &str) -> Result<Self, LoopError> {
        let dir = run.join("drivers");
        let path = dir.join(format!("{scenario}.lock"));
        let io = |source| LoopError::Work {
            path: path.clone(),
            doing: "taking the lease",
            source,
        };
        fs::create_dir_all(&dir).map_err(io)?;
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Who it is helps, but is not needed to know that it is taken.
                let _unread = file.read_to_string(&mut holder);
                return Err(LoopError::LeaseHeld {
                    scenario: scenario.clone(),
                    holder: if holder.trim().is_empty() {
                        "another process".to_owned()
                    } else {
                        holder.trim().to_owned()
                    },
                });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        file.set_len(0).map_err(io)?;
        file.rewind().map_err(io)?;
        file.write_all(holder_text(who).as_bytes()).map_err(io)?;
        Ok(Self {
            scenario: scenario.clone(),
            _file: file,
        })
    }

    /// The scenario.
    pub fn scenario(&self) -> &ScenarioName {
        &self.scenario
    }
}

/// How this process calls itself to others.
fn holder_text(who: &str) -> String {
    format!("{who} (process {})", std::process::id())
}

/// Who drives a scenario now, for status; `None` when nobody does.
pub fn driver_of(run: &Path, scenario: &ScenarioName) -> Option<String> {
    let path: PathBuf = run.join("drivers").join(format!("{scenario}.lock"));
    let mut file = File::open(path).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            file.read_to_string(&mut holder).ok()?;
            Some(holder.trim().to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_driver_learns_who_is_first_and_the_lease_ends_with_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (ScenarioName::new("one").unwrap(), ScenarioName::new("two").unwrap());
        let lease = Lease::take(dir.path(), &one, "reef serve").unwrap();
        let error = Lease::take(dir.path(), &one, "reef train").unwrap_err();
        assert!(
            matches!(&error, LoopError::LeaseHeld { holder, .. } if holder.contains("reef serve")),
            "{error}"
        );
        assert!(
            Lease::take(dir.path(), &two, "reef train").is_ok(),
            "another scenario is free"
        );
        assert!(driver_of(dir.path(), &one).unwrap().contains("reef serve"));
        drop(lease);
        assert_eq!(driver_of(dir.path(), &one), None);
        assert!(Lease::take(dir.path(), &one, "reef train").is_ok());
    }
}
