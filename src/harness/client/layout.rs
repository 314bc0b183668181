//! Where an installation lives and what is written down about it.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::{ClientError, Kind, at};
use super::files::{self, read_json};
use crate::domain::ScenarioName;
use crate::harness::adapter::WireApi;
use crate::sys::regular;

/// Names inside an installation that no release may take.
const RESERVED: [&str; 9] = [
    "current",
    "env",
    "install.json",
    "lock",
    "runs",
    "setup.json",
    "state",
    "token",
    "root",
];

/// The lock beside the installations.
const LOCK: &str = ".lock";
/// How the name of an installation begins that is being removed.
pub(super) const REMOVED: &str = ".removed-";
/// How long to wait for another process that installs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The user's directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// `$XDG_DATA_HOME/reef` or `~/.local/share/reef`.
    pub data: PathBuf,
    /// Where wrappers go: `~/.local/bin`.
    pub bin: PathBuf,
}

impl Home {
    /// From `HOME` and `XDG_DATA_HOME`. A relative `XDG_DATA_HOME` counts as absent, as its specification says.
    pub fn new(home: Option<&str>, xdg_data: Option<&str>) -> Result<Self, ClientError> {
        let home = home.map(Path::new).filter(|path| path.is_absolute());
        let data = xdg_data.map(PathBuf::from).filter(|path| path.is_absolute());
        let Some(home) = home else {
            return Err(ClientError::new(
                Kind::Machine,
                "HOME does not name a directory, so there is no place to install to",
            )
            .hint("set HOME to your home directory"));
        };
        let data = data.unwrap_or_else(|| home.join(".local/share")).join("reef");
        // The directory's name becomes a line of the wrapper.
        if data.to_string_lossy().chars().any(char::is_control) {
            return Err(ClientError::new(
                Kind::Machine,
                "the name of the directory to install to holds a control character",
            )
            .hint("set XDG_DATA_HOME or HOME to another one"));
        }
        Ok(Self {
            data,
            bin: home.join(".local/bin"),
        })
    }

    /// Where vendors' programs go.
    pub(super) fn agents(&self) -> PathBuf {
        self.data.join("agents")
    }

    pub(super) fn installs(&self) -> PathBuf {
        self.data.join("harness")
    }

    /// The lock on everything that is installed: which wrapper belongs to whom is decided by one process at a time.
    pub(super) fn lock(&self) -> Result<File, ClientError> {
        let dir = self.installs();
        let path = dir.join(LOCK);
        loop {
            files::private_dir(&dir)?;
            match files::lock(&path, PATIENCE) {
                Ok(Some(held)) => return Ok(held),
                Ok(None) => {
                    return Err(
                        ClientError::new(Kind::Busy, "another process is installing or removing an agent")
                            .hint("wait for it to end, then try again"),
                    );
                }
                // Whoever had it removed the last installation, and the directory with it.
                Err(ClientError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives the lock back; where nothing is installed, nothing stays.
    pub(super) fn unlock(&self, held: File) {
        let dir = self.installs();
        let names = fs::read_dir(&dir).into_iter().flatten().flatten();
        if names.map(|entry| entry.file_name()).all(|name| name == LOCK) {
            let _gone_already = fs::remove_file(dir.join(LOCK));
            for dir in [dir, self.agents(), self.data.clone()] {
                let _only_if_empty = fs::remove_dir(dir);
            }
        }
        drop(held);
    }

    /// Removes what removals left that were interrupted. The caller holds the lock.
    pub(super) fn sweep(&self) -> Result<(), ClientError> {
        for adapter in subdirectories(&self.installs()) {
            for entry in fs::read_dir(&adapter).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with(REMOVED) {
                    files::remove_tree(&entry.path())?;
                }
            }
            let _only_if_empty = fs::remove_dir(&adapter);
        }
        Ok(())
    }

    /// Whether another installation may run a program below this directory; one that cannot be read may.
    pub(super) fn uses(&self, dir: &Path) -> bool {
        let places = subdirectories(&self.installs())
            .into_iter()
            .flat_map(|dir| subdirectories(&dir));
        places.filter(|place| place.join("install.json").exists()).any(|place| {
            Place { dir: place }.record().map_or(true, |record| {
                std::iter::once(&record.program)
                    .chain(&record.path)
                    .any(|path| path.starts_with(dir))
            })
        })
    }

    /// The place of one scenario of one agent.
    pub fn place(&self, adapter: &str, scenario: &ScenarioName) -> Place {
        Place {
            dir: self.installs().join(adapter).join(scenario.as_str()),
        }
    }
}

/// One installation's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub dir: PathBuf,
}

/// What is written down about an installation. It holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The format of this file.
    pub version: u32,
    /// The agent.
    pub adapter: String,
    /// The scenario.
    pub scenario: ScenarioName,
    /// Root of the service.
    pub url: String,
    /// The API the agent speaks to it.
    pub api: WireApi,
    /// The model the agent asks for.
    pub model: String,
    /// The wrapper that runs it.
    pub wrapper: PathBuf,
    /// The agent's program.
    pub program: PathBuf,
    /// Its version.
    pub program_version: String,
    /// Directories its helpers live in, put first into `PATH`.
    pub path: Vec<PathBuf>,
    /// The user's directories, as they were.
    pub data: PathBuf,
    /// Whether runs keep requests and answers, not only receipts.
    #[serde(default)]
    pub bodies: bool,
}

impl Record {
    /// The user's directories, as they were at the time of the installation.
    pub fn home(&self) -> Home {
        Home {
            data: self.data.clone(),
            bin: self.wrapper.parent().unwrap_or(Path::new("/")).to_path_buf(),
        }
    }

    /// The wrapper's name.
    pub fn command(&self) -> String {
        self.wrapper
            .file_name()
            .map_or_else(|| "reef".to_owned(), |name| name.to_string_lossy().into_owned())
    }
}

impl Place {
    /// What is installed here.
    pub fn record(&self) -> Result<Record, ClientError> {
        let path = self.dir.join("install.json");
        let record: Record = read_json(&path)?.ok_or_else(|| {
            ClientError::new(Kind::Nothing, format!("nothing is installed in {}", self.dir.display()))
                .hint("reef harness list shows what is installed; reef harness install installs")
        })?;
        if record.version != 1 {
            return Err(
                ClientError::new(Kind::Machine, format!("{} was written by a newer reef", path.display()))
                    .hint("update reef, or install again with this one"),
            );
        }
        Ok(record)
    }

    /// The directory of a release. Its id comes from the service and becomes a name here, so it has to be a plain one.
    pub(super) fn release(&self, id: &str) -> Result<PathBuf, ClientError> {
        let plain = !id.is_empty()
            && id.len() <= 200
            && !id.starts_with(['.', '-'])
            && id
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if !plain || RESERVED.contains(&id) || id.starts_with("root-") {
            let shown: String = id.chars().take(60).flat_map(char::escape_default).collect();
            return Err(ClientError::new(
                Kind::Machine,
                format!("the service names the release \"{shown}\", which cannot be the name of a directory"),
            ));
        }
        Ok(self.dir.join(id))
    }

    /// The release in use.
    pub fn current(&self) -> Result<Option<String>, ClientError> {
        let link = self.dir.join("current");
        match fs::read_link(&link) {
            Ok(target) => Ok(target.file_name().map(|name| name.to_string_lossy().into_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at("read", &link)(error)),
        }
    }

    /// The stored token.
    pub fn token(&self) -> Result<Option<String>, ClientError> {
        let path = self.dir.join("token");
        match regular::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at("read", &path)(error)),
        }
    }

    pub(super) fn store_token(&self, token: Option<&str>) -> Result<(), ClientError> {
        let path = self.dir.join("token");
        match token {
            Some(token) => files::write_private(&path, token.as_bytes()),
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(at("remove", &path)(error)),
                _ => Ok(()),
            },
        }
    }

    /// How many reports have not reached the service.
    pub fn waiting_reports(&self) -> Result<usize, ClientError> {
        Ok(super::report::waiting(self)?.len())
    }

    /// Reports that cannot be read, and so are never sent.
    pub fn unreadable_reports(&self) -> Result<Vec<PathBuf>, ClientError> {
        super::report::unreadable(self)
    }

    pub(super) fn runs(&self) -> PathBuf {
        self.dir.join("runs")
    }

    pub(super) fn state(&self) -> PathBuf {
        self.dir.join("state")
    }
}

/// Everything installed, by agent and scenario. What cannot be read is left out.
pub fn installations(home: &Home) -> Vec<(Place, Record)> {
    let mut found = Vec::new();
    for adapter in subdirectories(&home.installs()) {
        for dir in subdirectories(&adapter) {
            let place = Place { dir };
            if let Ok(record) = place.record() {
                found.push((place, record));
            }
        }
    }
    found
}

pub(super) fn subdirectories(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.is_dir()
                && !path
                    .file_name()
                    .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
        })
        .collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directories_follow_the_base_directory_specification() {
        let home = Home::new(Some("/home/u"), None).unwrap();
        assert_eq!(home.data, Path::new("/home/u/.local/share/reef"));
        let home = Home::new(Some("/home/u"), Some("/data")).unwrap();
        assert_eq!(home.data, Path::new("/data/reef"));
        assert_eq!(
            Home::new(Some("/home/u"), Some("data")).unwrap().data,
            Path::new("/home/u/.local/share/reef")
        );
        assert!(Home::new(None, Some("/data")).is_err());
        assert!(Home::new(Some("/home/u\nid"), None).is_err());
    }

    #[test]
    fn what_cannot_be_read_may_still_use_a_program() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(Some(dir.path().to_str().unwrap()), None).unwrap();
        let place = home.place("pi", &ScenarioName::new("s").unwrap());
        let agents = home.agents().join("pi");
        assert!(!home.uses(&agents));
        fs::create_dir_all(&place.dir).unwrap();
        fs::write(place.dir.join("install.json"), "{\"version\": 9}").unwrap();
        assert!(home.uses(&agents));
        fs::remove_file(place.dir.join("install.json")).unwrap();
        assert!(!home.uses(&agents));
    }

    #[test]
    fn a_release_never_leaves_its_directory_or_takes_a_name_of_ours() {
        let place = Place { dir: "/x".into() };
        assert_eq!(place.release("ab12").unwrap(), Path::new("/x/ab12"));
        for bad in [
            "", ".", "..", "../a", "a/b", "current", "token", "root-1", "-x", "a b", "a\n", "ä",
        ] {
            assert!(place.release(bad).is_err(), "{bad:?}");
        }
    }
}
