//! What the collector took, and what never came: a list of objects beside the repository, so that a file that retention
//! took is told from one that was lost, also when the store is new.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use super::error::{Missing, Why, io_at};
use super::pointer::{Pointer, is_sha256};
use super::{ReleaseError, Repository};
use crate::sys::durable;

const NAME: &str = "reef-thinned";
const THINNED: &str = "thinned";
const ABSENT: &str = "absent";

/// Objects that are not here for a reason.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    thinned: HashSet<String>,
    absent: HashSet<String>,
}

impl Ledger {
    fn parse(text: &str) -> Self {
        let mut ledger = Self::default();
        // A line cut short by a crash says nothing.
        for (word, oid) in text.lines().filter_map(|line| line.split_once(' ')) {
            match word {
                _ if !is_sha256(oid) => {}
                THINNED => {
                    ledger.thinned.insert(oid.to_owned());
                }
                ABSENT => {
                    ledger.absent.insert(oid.to_owned());
                }
                _ => {}
            }
        }
        ledger
    }

    fn text(&self) -> String {
        let mut lines: Vec<String> = self.thinned.iter().map(|oid| format!("{THINNED} {oid}\n")).collect();
        lines.extend(self.absent.iter().map(|oid| format!("{ABSENT} {oid}\n")));
        lines.sort();
        lines.concat()
    }

    /// Whether retention took an object.
    pub(super) fn thinned(&self, oid: &str) -> bool {
        self.thinned.contains(oid)
    }

    /// Whether an object is known to be elsewhere, or nowhere any more.
    pub(super) fn excuses(&self, oid: &str) -> bool {
        self.thinned(oid) || self.absent.contains(oid)
    }

    /// Why a file is not here.
    pub(super) fn missing(&self, path: &str, pointer: &Pointer) -> Missing {
        Missing {
            path: path.to_owned(),
            bytes: pointer.size,
            why: if self.thinned(&pointer.oid) {
                Why::Thinned
            } else {
                Why::NotHere
            },
        }
    }
}

impl Repository {
    /// What is known to be gone.
    pub(super) fn ledger(&self) -> Result<Ledger, ReleaseError> {
        let path = self.ledger_path();
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Ledger::parse(&text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Ledger::default()),
            Err(error) => Err(io_at("read", &path)(error)),
        }
    }

    /// Notes objects that are about to be taken, durably. `here` are objects that are here to stay: what was said of them
    /// before is over.
    pub(super) fn note_thinned<'o>(
        &self,
        going: impl IntoIterator<Item = &'o String>,
        here: impl IntoIterator<Item = &'o String>,
    ) -> Result<(), ReleaseError> {
        let _lock = self.lock()?;
        let mut ledger = self.ledger()?;
        let mut over = false;
        for oid in here {
            over |= ledger.thinned.remove(oid) | ledger.absent.remove(oid);
        }
        let going: Vec<&String> = going.into_iter().filter(|oid| !ledger.thinned(oid)).collect();
        if over {
            ledger.thinned.extend(going.into_iter().cloned());
            let path = self.ledger_path();
            return durable::write(&path, ledger.text().as_bytes()).map_err(io_at("write", &path));
        }
        self.append(THINNED, &going)
    }

    /// Notes objects that did not come with their releases.
    pub fn note_absent(&self, objects: &[String]) -> Result<(), ReleaseError> {
        if objects.is_empty() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let ledger = self.ledger()?;
        let news: Vec<&String> = objects.iter().filter(|oid| !ledger.excuses(oid)).collect();
        self.append(ABSENT, &news)
    }

    fn append(&self, word: &str, objects: &[&String]) -> Result<(), ReleaseError> {
        if objects.is_empty() {
            return Ok(());
        }
        let path = self.ledger_path();
        // It begins with a line end: the last line may have been cut short by a crash.
        let mut text = String::from("\n");
        for oid in objects {
            text.push_str(word);
            text.push(' ');
            text.push_str(oid);
            text.push('\n');
        }
        let is_new = !path.exists();
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(io_at("open", &path))?;
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| if is_new { durable::sync_dir(self.path()) } else { Ok(()) })
            .map_err(io_at("write", &path))
    }

    fn ledger_path(&self) -> PathBuf {
        self.path().join(NAME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::RepositoryOptions;

    #[test]
    fn what_was_taken_is_known_until_it_is_back() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::open(
            &dir.path().join("artifacts.git"),
            &dir.path().join("cache"),
            RepositoryOptions::default(),
        )
        .unwrap();
        let oids: Vec<String> = ["aa", "bb", "cc"].iter().map(|pair| pair.repeat(32)).collect();
        repository.note_thinned(&oids[..2], []).unwrap();
        repository.note_absent(&oids[1..]).unwrap();
        // A crash in the middle of a line.
        let path = repository.ledger_path();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}thinned dddd")).unwrap();
        repository.note_thinned(&["ee".repeat(32)], []).unwrap();
        let ledger = repository.ledger().unwrap();
        assert_eq!((ledger.thinned.len(), ledger.absent.len()), (3, 1));
        assert!(ledger.thinned(&"ee".repeat(32)) && !ledger.thinned(&oids[2]) && ledger.excuses(&oids[2]));
        repository.note_thinned([], &oids[..1]).unwrap();
        let ledger = repository.ledger().unwrap();
        assert!(!ledger.excuses(&oids[0]) && ledger.thinned(&oids[1]));
    }
}
