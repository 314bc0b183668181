//! `evaluation`

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Table, section};

section! {
    /// How candidates are measured.
    pub Evaluation in "evaluation" {
        /// Directory of the task suite.
        suite: Option<PathBuf>;
        /// Repetitions of each task.
        trials: u32 = 1, min 1.0;
        /// Tasks measured at once.
        concurrency: u32 = 4, min 1.0;
        /// Longest time for one task.
        task_timeout_s: Duration = 600.0, min 0.1;
        /// Options of the evaluator.
        config: Table = {};
    }
}
