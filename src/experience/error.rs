//! What can go wrong in the store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::ErrorCode;

use crate::domain::{BatchId, RecordId, ScenarioName};
use crate::sys::disk;
use crate::sys::task::Lost;

/// A store operation that did not happen. Nothing of it is stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The file or its directory cannot be opened or created.
    #[error("cannot open the experience store {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The file is something else.
    #[error("{path} is an SQLite file of another program; name another directory with --dir")]
    NotAStore {
        /// The file.
        path: PathBuf,
    },
    /// A newer Reef wrote the file.
    #[error(
        "the experience store {path} has format {found} and this reef knows formats up to {known}; use the newer reef"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest format known here.
        known: i64,
    },
    /// An older Reef wrote the file, and this handle may not change it.
    #[error(
        "the experience store {path} has the older format {found}; reef status brings it to format {known}, then try again"
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest format known here.
        known: i64,
    },
    /// Too much is waiting, or another process held the file for too long.
    #[error("the experience store is busy: {what} for {waited:?}; try again")]
    Busy {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
    /// SQLite refused: the disk is full, unwritable or damaged.
    #[error("the experience store failed while {doing}")]
    Sqlite {
        /// The operation.
        doing: &'static str,
        /// SQLite's reason.
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// The store was closed.
    #[error("the experience store is closed")]
    Closed,
    /// Reef itself broke down over it.
    #[error(transparent)]
    Panicked(Lost),
    /// The id is taken by other content.
    #[error(
        "record id {id} is already stored in scenario {scenario} with different content; send the original content again or use a new id"
    )]
    Conflict {
        /// The scenario.
        scenario: ScenarioName,
        /// The id.
        id: RecordId,
    },
    /// A report cites something it may not cite.
    #[error("reference {position} of the report, \"{reference}\", {fault}")]
    Reference {
        /// Which reference, from 0.
        position: usize,
        /// The reference as sent.
        reference: String,
        /// What is wrong with it.
        fault: ReferenceFault,
    },
    /// There is no such scenario.
    #[error("there is no scenario {name}; create it with `reef scenario create {name}`")]
    UnknownScenario {
        /// The name.
        name: ScenarioName,
    },
    /// The record belongs to another batch.
    #[error("record {id} was already consumed by batch {batch}")]
    Consumed {
        /// The record.
        id: RecordId,
        /// The batch that has it.
        batch: BatchId,
    },
    /// What was asked cannot be stored as it is.
    #[error("{what}")]
    Invalid {
        /// What is wrong, and what to do.
        what: String,
    },
    /// One of several writes that go together was refused, and so all were.
    #[error("item {index}: {source}")]
    Item {
        /// Which, from 0.
        index: usize,
        /// Why.
        #[source]
        source: Box<StoreError>,
    },
    /// Stored bytes cannot be read back.
    #[error("the experience store holds damaged data: {what}")]
    Damaged {
        /// What cannot be read.
        what: String,
    },
}

impl From<Lost> for StoreError {
    fn from(lost: Lost) -> Self {
        if lost.panicked() {
            Self::Panicked(lost)
        } else {
            Self::Closed
        }
    }
}

/// Why a reference is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceFault {
    /// Nothing has that id.
    #[error("is not the receipt of any record; quote the x-reef-agent-record-id of a finished exchange")]
    Unknown,
    /// It is an exchange of another scenario.
    #[error("is a receipt of another scenario; report to the scenario that served it")]
    OtherScenario,
    /// It is a report or an instruction.
    #[error("names a {0} record, not an exchange; quote the x-reef-agent-record-id of a finished exchange")]
    NotAnExchange(&'static str),
    /// It occurs twice.
    #[error("occurs more than once; name each exchange once")]
    Duplicate,
    /// The exchange never finished.
    #[error("names an exchange that was interrupted; only finished exchanges can be graded")]
    Interrupted,
    /// One of too many.
    #[error("is one of too many; a report may name at most {0} exchanges")]
    TooMany(usize),
}

/// What kind of failure it was, for whoever turns it into a status or an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The caller sent something wrong.
    Refused,
    /// The caller named something that does not exist.
    NotFound,
    /// The caller contradicts what is stored.
    Conflict,
    /// Overloaded for the moment.
    Busy,
    /// The store itself failed.
    Failed,
}

impl StoreError {
    /// Its kind.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Reference { .. } | Self::Invalid { .. } => ErrorClass::Refused,
            Self::UnknownScenario { .. } => ErrorClass::NotFound,
            Self::Conflict { .. } | Self::Consumed { .. } => ErrorClass::Conflict,
            Self::Busy { .. } => ErrorClass::Busy,
            Self::Item { source, .. } => source.class(),
            Self::Open { .. }
            | Self::NotAStore { .. }
            | Self::Newer { .. }
            | Self::Older { .. }
            | Self::Sqlite { .. }
            | Self::Closed
            | Self::Panicked(_)
            | Self::Damaged { .. } => ErrorClass::Failed,
        }
    }

    /// What the system said of the file or its disk, if that is what failed.
    pub fn of_the_disk(&self) -> Option<std::io::ErrorKind> {
        match self {
            Self::Open { source, .. } => match source.downcast_ref::<std::io::Error>() {
                Some(error) => Some(error.kind()),
                None => full(source.downcast_ref()?),
            },
            Self::Item { source, .. } => source.of_the_disk(),
            Self::Sqlite { source, .. } => full(source),
            _ => None,
        }
    }

    /// A failure to open the file. SQLite says only that it could not; the system says why.
    pub(super) fn opening(path: &Path, error: rusqlite::Error) -> Self {
        let about_the_disk = matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::DiskFull | ErrorCode::SystemIoFailure)
        );
        let reason = about_the_disk.then(|| Self::reason(path)).flatten();
        Self::Open {
            path: path.to_owned(),
            source: match reason {
                Some(reason) => Arc::new(reason),
                None => Arc::new(error),
            },
        }
    }

    /// The same of a step on the way.
    pub(super) fn while_opening(self, path: &Path) -> Self {
        match self {
            Self::Sqlite { source, doing } => match Self::reason(path) {
                Some(reason) => Self::Open {
                    path: path.to_owned(),
                    source: Arc::new(reason),
                },
                None => Self::Sqlite { doing, source },
            },
            other => other,
        }
    }

    /// What the system says of a file that cannot be used, or of its directory, where SQLite makes other files beside it.
    pub(super) fn reason(path: &Path) -> Option<std::io::Error> {
        if path.exists()
            && let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open(path)
        {
            return Some(error);
        }
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        disk::why_unwritable(dir.unwrap_or(Path::new(".")))
    }

    pub(super) fn invalid(what: impl std::fmt::Display) -> Self {
        Self::Invalid { what: what.to_string() }
    }

    pub(super) fn damaged(what: impl std::fmt::Display) -> Self {
        Self::Damaged { what: what.to_string() }
    }
}

fn full(error: &rusqlite::Error) -> Option<std::io::ErrorKind> {
    (error.sqlite_error_code() == Some(ErrorCode::DiskFull)).then_some(std::io::ErrorKind::StorageFull)
}

/// Names the operation an SQLite error interrupted.
pub(super) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, StoreError>;
}

impl<T> Doing<T> for Result<T, rusqlite::Error> {
    fn doing(self, doing: &'static str) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Sqlite {
            doing,
            source: Arc::new(source),
        })
    }
}
