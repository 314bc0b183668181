//! Why the loop could not go on.

use std::path::PathBuf;

use crate::domain::{InvalidName, ScenarioName};
use crate::experience::StoreError;
use crate::scenario::PublishError;
use crate::sys::task::Lost;

/// A failure of the loop. Traffic is served all the same.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// Another process drives the scenario.
    #[error("scenario {scenario} is driven by {holder}; stop it, or let it do the work")]
    LeaseHeld {
        /// The scenario.
        scenario: ScenarioName,
        /// Who holds the lease.
        holder: String,
    },
    /// There is no such scenario.
    #[error("there is no scenario {0}; create it with `reef scenario create {0}`")]
    UnknownScenario(ScenarioName),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The release chain failed.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The recipe cannot be followed with what is configured.
    #[error("the recipe {reason}")]
    Recipe {
        /// What is missing.
        reason: String,
    },
    /// The trainer failed.
    #[error("the training step failed: {reason}")]
    Trainer {
        /// What happened.
        reason: String,
    },
    /// The gate could not measure.
    #[error("the gate could not measure: {reason}")]
    Gate {
        /// What happened.
        reason: String,
    },
    /// The new release could not be loaded.
    #[error("the release could not be loaded into the engine: {reason}")]
    Load {
        /// What happened.
        reason: String,
    },
    /// A file of the loop cannot be read or written.
    #[error("{}: {doing} failed", path.display())]
    Work {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A word of the loop's own is not valid; a fault of Reef.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// Reef itself broke down over it.
    #[error(transparent)]
    Panicked(Lost),
    /// Somebody asked it to stop.
    #[error("stopped")]
    Stopped,
}

impl From<Lost> for LoopError {
    fn from(lost: Lost) -> Self {
        if lost.panicked() {
            Self::Panicked(lost)
        } else {
            Self::Stopped
        }
    }
}
