//! Where snapshots come from. Two sources exist: the files of this machine and the routes of a service.

use super::evolution::AttemptFacts;
use super::snapshot::{DiffFile, Evidence, RecordDetail, Snapshot};

/// What the screens want to see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Want {
    /// The scenario to look into; the first when none is named.
    pub scenario: Option<String>,
    /// How many of its newest records; the usual number when none is given.
    pub records: Option<usize>,
}

/// A person's decision on a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Serve a held release.
    Promote,
    /// Refuse a held release.
    Reject,
    /// Serve an older release again.
    Rollback,
}

impl Decision {
    /// The word of the command that does it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Promote => "promote",
            Self::Reject => "reject",
            Self::Rollback => "rollback",
        }
    }
}

/// A decision, and what it was made on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What to do.
    pub decision: Decision,
    /// The scenario.
    pub scenario: String,
    /// The release decided on.
    pub release: String,
    /// What the scenario served when the person was asked; nothing is moved when it serves another by now.
    pub head: Option<String>,
    /// Why; may be empty.
    pub note: String,
}

/// Something could not be shown or done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What.
    pub message: String,
    /// The next step.
    pub hint: Option<String>,
}

impl Fault {
    /// A fault told in a sentence.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
        }
    }

    /// Adds the next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// An error with everything that caused it, on one line.
    pub fn of(error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = cause.source();
        }
        Self::new(message)
    }
}

/// A place to read from. Every call blocks; the dashboard calls from a thread of its own.
pub trait Source: Send {
    /// Everything on the screens.
    fn snapshot(&mut self, want: &Want) -> Result<Snapshot, Fault>;
    /// One record, whole.
    fn record(&mut self, scenario: &str, id: &str) -> Result<RecordDetail, Fault>;
    /// Why a step ended as it did.
    fn evidence(&mut self, scenario: &str, step: u64) -> Result<Evidence, Fault>;
    /// One attempt at a better tree, with what it did.
    fn attempt(&mut self, scenario: &str, id: &str) -> Result<AttemptFacts, Fault>;
    /// What differs between two releases.
    fn diff(&mut self, scenario: &str, old: &str, new: &str) -> Result<Vec<DiffFile>, Fault>;
    /// The text of one file of a release.
    fn file(&mut self, scenario: &str, release: &str, path: &str) -> Result<String, Fault>;
    /// The newest lines of the log, oldest first.
    fn logs(&mut self) -> Result<Vec<crate::telemetry::LogLine>, Fault>;
    /// Does what a person decided; says what came of it.
    fn decide(&mut self, choice: &Choice) -> Result<String, Fault>;
}
