//! What a release needs on this machine, and what of it was checked off. Checks run when a person asks for them, never
//! while installing or running.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::{ClientError, at};
use super::files::{read_json, write_json, write_private};
use super::layout::Place;
use super::manifest::Requirement;
use crate::sys::launch::Launch;
use crate::sys::{clock, terminal};

/// Longest time a check may take.
const CHECK_TIME: Duration = Duration::from_secs(60);

/// What was checked off.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckOffs {
    /// By the order of checking.
    #[serde(default)]
    pub setup: Vec<CheckOff>,
}

/// One requirement that was found to be met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckOff {
    /// The requirement.
    pub name: String,
    /// Seconds since the Unix epoch.
    pub checked_at: f64,
    /// The check that was passed; another check counts as unmet.
    #[serde(default)]
    pub check: Option<String>,
}

/// How a check went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// It is met.
    Met,
    /// It is not, and why.
    Unmet(String),
}

impl CheckOffs {
    /// What was checked off for an installation.
    pub fn of(place: &Place) -> Result<Self, ClientError> {
        Ok(read_json(&place.dir.join("setup.json"))?.unwrap_or_default())
    }

    /// Keeps it.
    pub fn store(&self, place: &Place) -> Result<(), ClientError> {
        write_json(&place.dir.join("setup.json"), self)
    }

    /// Checks one off.
    pub fn add(&mut self, requirement: &Requirement) {
        self.setup.retain(|off| off.name != requirement.name);
        self.setup.push(CheckOff {
            name: requirement.name.clone(),
            checked_at: clock::seconds(clock::now_us()),
            check: requirement.check.clone(),
        });
    }

    /// What is left to do.
    pub fn unmet<'a>(&self, requires: &'a [Requirement]) -> Vec<&'a Requirement> {
        requires
            .iter()
            .filter(|requirement| {
                !self
                    .setup
                    .iter()
                    .any(|off| off.name == requirement.name && off.check == requirement.check)
            })
            .collect()
    }
}

impl Requirement {
    /// One line for a person.
    pub fn line(&self) -> String {
        let mut line = format!("{} ({})", self.name, self.kind);
        if let Some(prompt) = &self.prompt {
            line.push_str(": ");
            line.push_str(prompt);
        }
        terminal::line(&line).into_owned()
    }

    /// What will be run to check it, for the person to see first: every character of it, on one line.
    pub fn shown_check(&self) -> String {
        let check = match (self.kind.as_str(), &self.check) {
            ("env", check) => format!("the variable {} is set", check.as_deref().unwrap_or(&self.name)),
            ("binary", None) => format!("the program {} is on PATH", self.name),
            (_, Some(check)) => check.clone(),
            (_, None) => "nothing to run; you say whether it is done".to_owned(),
        };
        terminal::line(&check).into_owned()
    }

    /// Whether a person has to say so because nothing can be run.
    pub fn needs_word(&self) -> bool {
        self.check.is_none() && !matches!(self.kind.as_str(), "env" | "binary")
    }

    /// Checks it. `env` holds the variables to check with.
    pub async fn check(&self, env: &BTreeMap<String, String>) -> Result<Check, ClientError> {
        if self.kind == "env" {
            let name = self.check.as_deref().unwrap_or(&self.name);
            return Ok(match env.get(name) {
                Some(value) if !value.is_empty() => Check::Met,
                _ => Check::Unmet(format!("the variable {name} is not set")),
            });
        }
        if self.kind == "binary" && self.check.is_none() {
            let found = env
                .get("PATH")
                .is_some_and(|path| std::env::split_paths(path).any(|dir| dir.join(&self.name).is_file()));
            return Ok(if found {
                Check::Met
            } else {
                Check::Unmet(format!("{} is not on PATH", self.name))
            });
        }
        let Some(check) = &self.check else {
            return Ok(Check::Unmet("nobody has said that it is done".to_owned()));
        };
        let mut command = tokio::process::Command::new("/bin/sh");
        command
            .args(["-c", check])
            .env_clear()
            .envs(env)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.launch().map_err(at("run", Path::new("/bin/sh")))?;
        match tokio::time::timeout(CHECK_TIME, child.wait()).await {
            Ok(status) => {
                let status = status.map_err(at("run", Path::new("/bin/sh")))?;
                Ok(if status.success() {
                    Check::Met
                } else {
                    Check::Unmet(format!("its check ended with {status}"))
                })
            }
            Err(_) => Ok(Check::Unmet(format!(
                "its check took longer than {} s",
                CHECK_TIME.as_secs()
            ))),
        }
    }
}

/// Keeps variables for every run, where only their owner can read them.
pub fn set_env(place: &Place, variables: &[(String, String)]) -> Result<(), ClientError> {
    let mut env = stored_env(place)?;
    env.extend(variables.iter().cloned());
    let text = serde_json::to_vec(&env).map_err(|error| at("write", &place.dir)(error.into()))?;
    write_private(&place.dir.join("env"), &text)
}

/// Variables that `setup` was told, for every run.
pub fn stored_env(place: &Place) -> Result<BTreeMap<String, String>, ClientError> {
    Ok(read_json(&place.dir.join("env"))?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, kind: &str, check: Option<&str>) -> Requirement {
        Requirement {
            name: name.to_owned(),
            kind: kind.to_owned(),
            check: check.map(str::to_owned),
            prompt: None,
        }
    }

    #[test]
    fn a_changed_check_counts_as_unmet() {
        let mut offs = CheckOffs::default();
        let first = item("KEY", "env", None);
        assert_eq!(offs.unmet(std::slice::from_ref(&first)).len(), 1);
        offs.add(&first);
        assert!(offs.unmet(std::slice::from_ref(&first)).is_empty());
        assert_eq!(offs.unmet(&[item("KEY", "env", Some("OTHER"))]).len(), 1);
    }

    #[test]
    fn nothing_of_a_check_is_hidden_from_the_person_who_allows_it() {
        let hiding = item("s\u{1b}[8m", "service", Some("true\r\u{1b}[2Kcurl x | sh\n\u{202e}"));
        assert_eq!(hiding.shown_check(), "true\\r\\u{1b}[2Kcurl x | sh\\n\\u{202e}");
        assert_eq!(hiding.line(), "s\\u{1b}[8m (service)");
    }

    #[tokio::test]
    async fn each_kind_is_checked_in_its_way() {
        let env = BTreeMap::from([
            ("SET".to_owned(), "x".to_owned()),
            ("EMPTY".to_owned(), String::new()),
            ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
        ]);
        for (requirement, met) in [
            (item("SET", "env", None), true),
            (item("EMPTY", "env", None), false),
            (item("x", "env", Some("SET")), true),
            (item("sh", "binary", None), true),
            (item("no-such-program-here", "binary", None), false),
            (item("s", "service", Some("test \"$SET\" = x")), true),
            (item("s", "service", Some("exit 3")), false),
            (item("s", "permission", None), false),
        ] {
            let found = requirement.check(&env).await.unwrap();
            assert_eq!(found == Check::Met, met, "{requirement:?}: {found:?}");
        }
    }
}
