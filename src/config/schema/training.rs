//! `training`

use std::time::Duration;

use crate::config::{choice, section};
use crate::domain::TrainingMode;

choice! {
    /// What may start a training step.
    pub TrainingModeChoice {
        /// The recipe's batching.
        Auto = "auto",
        /// A queued instruction only.
        Manual = "manual",
        /// Instructions first, else as auto.
        Hybrid = "hybrid",
    }
}

section! {
    /// Where and how training steps run.
    pub Training in "training" {
        /// Drive training inside `reef serve`; `reef train` drives it otherwise.
        enabled: bool = true;
        /// What may start a training step in a new scenario: `auto` (the recipe's batching), `manual` (an instruction) or
        /// `hybrid` (both).
        mode: TrainingModeChoice = "auto";
        /// Longest time for one step.
        timeout_s: Option<Duration>, min 0.1;
        /// Threads for training [default: as many as libtorch starts, usually one a core].
        threads: Option<u32>, min 1.0;
    }
}

impl Training {
    /// The mode of new scenarios.
    pub fn mode(&self) -> TrainingMode {
        match self.mode {
            TrainingModeChoice::Auto => TrainingMode::Auto,
            TrainingModeChoice::Manual => TrainingMode::Manual,
            TrainingModeChoice::Hybrid => TrainingMode::Hybrid,
        }
    }
}
