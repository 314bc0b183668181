//! Where a value came from.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The origin of one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A line of the deployment file.
    File {
        /// The file as given.
        file: Arc<Path>,
        /// The line, from 1.
        line: usize,
    },
    /// A flag, as typed.
    CommandLine(String),
    /// A variable of the environment.
    Environment(String),
    /// What the schema says when nobody says anything.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line } => write!(f, "{}:{line}", file.display()),
            Self::CommandLine(flag) => write!(f, "command line {flag}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Default => f.write_str("default"),
        }
    }
}
