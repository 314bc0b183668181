//! `training`

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Table, choice, section};

choice! {
    /// Where training steps run.
    pub TrainingBackend {
        /// In this process, on libtorch.
        Torch = "torch",
        /// As a job on a Ray cluster.
        Ray = "ray",
    }
}

section! {
    /// Where and how training steps run.
    pub Training in "training" {
        /// Drive training inside `reef serve`; `reef train` drives it otherwise.
        enabled: bool = true;
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
