//! `training`

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Table, choice, section};
use crate::domain::TrainingMode;

choice! {
    /// Where training steps run.
    pub TrainingBackend {
        /// In this process, on libtorch.
        Torch = "torch",
        /// As a job on a Ray cluster.
        Ray = "ray",
    }
}

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
        /// Where steps run.
        backend: TrainingBackend = "torch";
        /// Longest wait for the backend to start.
        ready_timeout: Duration = 3600.0, min 0.1;
        /// Longest time for one step.
        timeout_s: Option<Duration>, min 0.1;
        /// Threads for training [default: the number of cores].
        threads: Option<u32>, min 1.0;
        /// Checkpoints and optimizer state [default: `checkpoints` in `storage.dir`].
        checkpoint_dir: Option<PathBuf>;
        /// Checkpoints kept for each scenario.
        checkpoint_retention: u32 = 2, min 1.0;
        /// Address of the Ray cluster's job API.
        ray_address: Option<String>, env "RAY_ADDRESS";
        /// Options of the backend: learning rate, optimizer, LoRA rank and such.
        options: Table = {};
        /// Values handed to the training program as they are.
        config: Table = {};
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
