//! What can be wrong with a configuration. No message holds a configured value: it may be a secret.

use std::fmt;
use std::path::PathBuf;

use super::Source;

/// One thing wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where the value stands.
    pub source: Source,
    /// The dotted key; empty for a fault of the whole file.
    pub key: String,
    /// What is wrong, with what was expected.
    pub problem: String,
    /// What to do.
    pub hint: Option<String>,
}

impl Fault {
    /// A fault at one place.
    pub fn new(source: Source, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            source,
            key: key.into(),
            problem: problem.into(),
            hint: None,
        }
    }

    /// Adds the next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What nobody set stands nowhere.
        if self.source != Source::Default {
            write!(f, "{}: ", self.source)?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.problem)?;
        if let Some(hint) = &self.hint {
            write!(f, " ({hint})")?;
        }
        Ok(())
    }
}

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The file as given.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Something in it, or on the command line, is wrong. Every fault found is listed.
    #[error("{}", list(faults))]
    Invalid {
        /// At least one.
        faults: Vec<Fault>,
    },
}

impl ConfigError {
    /// The faults; none where the file cannot be read at all.
    pub fn into_faults(self) -> Vec<Fault> {
        match self {
            Self::Read { .. } => Vec::new(),
            Self::Invalid { faults } => faults,
        }
    }
}

impl From<Vec<Fault>> for ConfigError {
    fn from(faults: Vec<Fault>) -> Self {
        Self::Invalid { faults }
    }
}

impl From<Fault> for ConfigError {
    fn from(fault: Fault) -> Self {
        Self::Invalid { faults: vec![fault] }
    }
}

fn list(faults: &[Fault]) -> String {
    match faults {
        [only] => only.to_string(),
        several => {
            let mut text = format!("the configuration has {} faults", several.len());
            for fault in several {
                text.push_str("\n  ");
                text.push_str(&fault.to_string());
            }
            text
        }
    }
}
