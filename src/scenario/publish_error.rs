//! Why a publication did not come about.

use std::path::PathBuf;

use crate::domain::{ReleaseId, ScenarioName};
use crate::experience::StoreError;
use crate::release::ReleaseError;
use crate::sys::task::Lost;

/// A failure to publish, or to decide on what was published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The repository refused: a conflict, an unknown release, unusable content, …
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no such scenario.
    #[error("there is no scenario {name}; create it with `reef scenario create {name}`")]
    UnknownScenario {
        /// Its name.
        name: ScenarioName,
    },
    /// The store knows the chain of a scenario, and the repository does not have it any more.
    #[error(
        "the chain of scenario {name}, which ended in release {head}, is gone from the artifact repository; nothing new was begun in its place"
    )]
    ChainGone {
        /// Its name.
        name: ScenarioName,
        /// Where it ended, by the store.
        head: ReleaseId,
    },
    /// The scenario is put away and made anew all the time.
    #[error("scenario {name} is archived and made anew over and over by other processes: stop them, or try again")]
    Restless {
        /// Its name.
        name: ScenarioName,
    },
    /// The directory was opened for reading alone.
    #[error("nothing can be written to {}: it was opened for reading, because this user may not write there", .path.display())]
    ReadOnly {
        /// The artifact repository.
        path: PathBuf,
    },
    /// Only held releases can be promoted or rejected.
    #[error("release {release} is {state}, not held: only a held release can be promoted or rejected")]
    NotHeld {
        /// The release.
        release: ReleaseId,
        /// What became of it.
        state: &'static str,
    },
    /// Rollback goes to what was served.
    #[error(
        "release {release} is {state} and was never served itself: use promote on a held one, or roll back to the release a promote made"
    )]
    NeverServed {
        /// The release.
        release: ReleaseId,
        /// What became of it.
        state: &'static str,
    },
    /// The head moved, and the store could not record it; the next operation on the scenario does.
    #[error(
        "release {release} is published, but the store could not record it yet; the next command on this scenario will"
    )]
    Unsettled {
        /// The release.
        release: ReleaseId,
        /// Why.
        #[source]
        source: StoreError,
    },
    /// Reef itself broke down over it; the next operation on the scenario settles what it began.
    #[error(transparent)]
    Panicked(Lost),
    /// The process is shutting down.
    #[error("stopped while publishing; the next start settles it")]
    Stopped,
}

impl From<Lost> for PublishError {
    fn from(lost: Lost) -> Self {
        if lost.panicked() {
            Self::Panicked(lost)
        } else {
            Self::Stopped
        }
    }
}

impl PublishError {
    /// Whether the publisher was stale: the head is not what it expected.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Release(ReleaseError::Conflict { .. }))
    }

    /// Whether what is stored is not what was released; trying again changes nothing.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Release(ReleaseError::Damaged { .. }))
    }
}
