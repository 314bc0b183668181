//! Why a measurement could not even begin.

use std::io;
use std::path::PathBuf;

/// A suite or a program that cannot be used. What goes wrong during a measurement is a verdict, not an error.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// A file of a suite cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file of a suite says something that makes no sense.
    #[error("{}{}: {fault}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    Suite {
        /// The file.
        path: PathBuf,
        /// The line, where there is one.
        line: Option<usize>,
        /// What is wrong and what is possible.
        fault: String,
    },
    /// An external program failed or broke its protocol.
    #[error("the program of the gate failed: {fault}")]
    Program {
        /// What happened.
        fault: String,
        /// The cause.
        #[source]
        source: Option<io::Error>,
    },
    /// No more may be spent.
    #[error("{reason}")]
    Budget {
        /// Which budget.
        reason: String,
    },
    /// Episodes cannot be run here at all.
    #[error("{reason}")]
    Sandbox {
        /// Why.
        reason: String,
    },
    /// Somebody asked it to stop.
    #[error("stopped")]
    Stopped,
}

impl EvalError {
    pub(super) fn program(fault: impl Into<String>) -> Self {
        Self::Program {
            fault: fault.into(),
            source: None,
        }
    }
}

impl From<io::Error> for EvalError {
    fn from(source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::Interrupted {
            return Self::Stopped;
        }
        Self::Program {
            fault: source.to_string(),
            source: Some(source),
        }
    }
}
