//! What a command fails with. It is rendered once, by [`super::output`].

use std::error::Error;
use std::fmt;
use std::io::ErrorKind;

use crate::config::{ConfigError, Fault, Settings};
use crate::experience::{ErrorClass, StoreError};

use super::Exit;

/// A failure: how to exit, what happened, and what to do about it.
#[derive(Debug)]
pub(crate) struct CliError {
    exit: Exit,
    message: String,
    causes: Vec<String>,
    hints: Vec<String>,
    quiet: bool,
}

impl CliError {
    /// A failure told in a sentence: lower-case, no full stop, naming what was wrong and where.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            causes: Vec::new(),
            hints: Vec::new(),
            quiet: false,
        }
    }

    /// A failure of another room with its chain of causes.
    pub(crate) fn from_error(exit: Exit, error: impl Error) -> Self {
        let mut failure = Self::new(exit, error.to_string());
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Many errors repeat their source in their own words; saying it twice helps nobody.
            if !failure.message.contains(&text) && !failure.causes.contains(&text) {
                failure.causes.push(text);
            }
            source = cause.source();
        }
        failure
    }

    /// Adds the next step: a command to run, a flag to give, a place to look.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Names the setting that the failure comes from, and where its value stands.
    #[must_use]
    pub(crate) fn of_setting(mut self, settings: &Settings, key: &str) -> Self {
        self.message = settings.fault(key, self.message).to_string();
        self
    }

    /// The reader of a pipe went away. Not an error, but there is no one left to work for.
    pub(crate) fn broken_pipe() -> Self {
        Self {
            quiet: true,
            ..Self::new(Exit::Ok, "the reader of the output is gone")
        }
    }

    /// The person pressed Ctrl-C.
    pub(crate) fn interrupted() -> Self {
        Self {
            quiet: true,
            ..Self::new(Exit::Interrupted, "interrupted")
        }
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn causes(&self) -> &[String] {
        &self.causes
    }

    pub(crate) fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Nothing needs to be said.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Turns another room's error into a command's failure: `store.get(id).or_exit(Exit::Store)?`.
pub(crate) trait OrExit<T> {
    /// Exits in this way on error.
    fn or_exit(self, exit: Exit) -> Result<T, CliError>;
}

impl<T, E: Error> OrExit<T> for Result<T, E> {
    fn or_exit(self, exit: Exit) -> Result<T, CliError> {
        self.map_err(|error| CliError::from_error(exit, error))
    }
}

/// What to do about a disk that takes nothing, where its failure tells.
pub(crate) fn disk_step(kind: ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::ReadOnlyFilesystem => {
            Some("this file system is mounted read-only: mount it for writing, or name another directory with --dir")
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Some("the disk is full (df -h shows it): make room, or name a directory on another disk with --dir")
        }
        ErrorKind::PermissionDenied => {
            Some("this user may not write there: run as the owner of the files, or name another directory with --dir")
        }
        _ => None,
    }
}

/// A configuration that cannot be used. One fault is told with its next step apart, several as a list.
impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Invalid { faults } => match <[Fault; 1]>::try_from(faults) {
                Ok([fault]) => fault.into(),
                Err(faults) => Self::from_error(Exit::Usage, ConfigError::Invalid { faults }),
            },
            error => Self::from_error(Exit::Usage, error),
        }
    }
}

/// A setting that cannot be used.
impl From<Fault> for CliError {
    fn from(mut fault: Fault) -> Self {
        let hint = fault.hint.take();
        let failure = Self::new(Exit::Usage, fault.to_string());
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        let exit = match error.class() {
            ErrorClass::Refused | ErrorClass::NotFound => Exit::Usage,
            ErrorClass::Conflict => Exit::Conflict,
            ErrorClass::Failed if matches!(error, StoreError::Panicked(_)) => Exit::Unexpected,
            ErrorClass::Busy | ErrorClass::Failed => Exit::Store,
        };
        let mut failure = Self::from_error(exit, &error);
        if let Some(step) = error.of_the_disk().and_then(disk_step) {
            failure = failure.hint(step);
        }
        match error {
            StoreError::UnknownScenario { .. } => failure.hint("reef scenario list shows the scenarios there are"),
            _ => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the store")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn a_disk_that_takes_nothing_has_a_next_step() {
        for (code, words) in [(30, "read-only"), (28, "full"), (122, "full"), (13, "owner")] {
            let step = disk_step(std::io::Error::from_raw_os_error(code).kind()).unwrap();
            assert!(step.contains(words) && step.contains("--dir"), "{step}");
        }
        assert_eq!(disk_step(ErrorKind::Other), None);
    }

    #[test]
    fn causes_are_kept_in_order_and_not_repeated() {
        let error =
            CliError::from_error(Exit::Store, Outer(std::io::Error::other("disk full"))).hint("free some space");
        assert_eq!(error.exit(), Exit::Store);
        assert_eq!(error.causes(), ["disk full"]);
        assert_eq!(error.hints(), ["free some space"]);
        let plain = CliError::from_error(Exit::Store, std::io::Error::other("disk full"));
        assert!(plain.causes().is_empty(), "{:?}", plain.causes());
    }
}
