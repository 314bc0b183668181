//! Words for releases.

use serde::{Deserialize, Serialize};

/// What a release points at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentKind {
    /// A saved artifact in the repository.
    Artifact,
    /// Weights that live only in an engine.
    LiveWeights,
}

/// Why a release was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// The scenario's first release.
    Creation,
    /// A candidate that passed its gate.
    Training,
    /// An older release served again.
    Rollback,
    /// A held release served by a person's decision.
    Promote,
    /// A release adopted while repairing after a crash.
    Recovery,
    /// A release brought in from a directory or a remote.
    Import,
}

impl Operation {
    /// The word stored and sent.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creation => "creation",
            Self::Training => "training",
            Self::Rollback => "rollback",
            Self::Promote => "promote",
            Self::Recovery => "recovery",
            Self::Import => "import",
        }
    }
}
