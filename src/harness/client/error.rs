//! How work on a user's machine fails.

use std::io;
use std::path::{Path, PathBuf};

use crate::sys::task::Lost;

/// What a failure means to whoever started the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Asked for in a wrong way.
    Usage,
    /// Something on this machine is missing or in the way.
    Machine,
    /// Something the release needs has not been set up.
    Unmet,
    /// The service cannot be reached.
    Unavailable,
    /// Another process is at work.
    Busy,
    /// Nothing to do it with.
    Nothing,
}

/// A failure. What was there before is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A fault in one sentence, with the next step.
    #[error("{message}")]
    Told {
        /// What it means.
        kind: Kind,
        /// What was wrong and where.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
    /// The system refused.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// The verb.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The agent's adapter.
    #[error(transparent)]
    Adapter(#[from] crate::harness::adapter::AdapterError),
}

impl ClientError {
    /// A fault of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self::Told {
            kind,
            message: message.into(),
            hint: None,
        }
    }

    /// Adds the next step.
    #[must_use]
    pub fn hint(mut self, text: impl Into<String>) -> Self {
        if let Self::Told { hint, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }

    /// What it means.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Told { kind, .. } => *kind,
            Self::Io { .. } => Kind::Machine,
            Self::Adapter(_) => Kind::Usage,
        }
    }

    /// What to do.
    pub fn next_step(&self) -> Option<&str> {
        match self {
            Self::Told { hint, .. } => hint.as_deref(),
            _ => None,
        }
    }
}

impl From<Lost> for ClientError {
    fn from(lost: Lost) -> Self {
        Self::new(Kind::Machine, lost.to_string())
    }
}

/// Puts a place to an error of the system.
pub(super) fn at<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> ClientError + 'a {
    move |source| ClientError::Io {
        what,
        path: path.to_path_buf(),
        source,
    }
}
