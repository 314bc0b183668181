//! Training modes.

use serde::{Deserialize, Serialize};

/// What may start a training step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingMode {
    /// The recipe's batching.
    #[default]
    Auto,
    /// A queued instruction only.
    Manual,
    /// Instructions first, else as auto.
    Hybrid,
}

impl TrainingMode {
    /// The word stored and sent.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Manual => "manual",
            Self::Hybrid => "hybrid",
        }
    }
}

impl std::str::FromStr for TrainingMode {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "manual" => Ok(Self::Manual),
            "hybrid" => Ok(Self::Hybrid),
            other => Err(format!(
                "training mode \"{}\" is not one of auto, manual, hybrid",
                other.escape_default()
            )),
        }
    }
}
