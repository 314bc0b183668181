//! How training fails. Whatever fails, the incumbent's files and the served weights are as before.

use std::path::PathBuf;

/// Any cause.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why there is no step.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A row breaks the rules of training values.
    #[error("row {row} of the batch (record {record}) cannot be trained: {fault}")]
    Row {
        /// Position in the batch, from 0.
        row: usize,
        /// The first record it came from.
        record: String,
        /// The rule it breaks.
        fault: String,
    },
    /// The settings of the objective, the optimizer or the backend make no sense together.
    #[error("{}{fault}", prefix(key))]
    Settings {
        /// The key of the value, dotted; empty where it is about no one value.
        key: String,
        /// What is wrong and what to write instead.
        fault: String,
    },
    /// The step would not fit.
    #[error(
        "a training step needs about {needed_mib} MiB and {budget_mib} MiB are allowed: lower training.token_budget, or raise training.memory_mib"
    )]
    Memory {
        /// The estimate.
        needed_mib: u64,
        /// The limit.
        budget_mib: u64,
    },
    /// Somebody asked it to stop.
    #[error("the training step was cancelled")]
    Cancelled,
    /// Tensor arithmetic refused; a fault of ours or of the model's files.
    #[error("tensor arithmetic failed while {doing}")]
    Tensor {
        /// What was being done.
        doing: &'static str,
        /// What libtorch said.
        #[source]
        source: Cause,
    },
    /// A file of a checkpoint cannot be read or written.
    #[error("{}: {doing} failed", path.display())]
    Checkpoint {
        /// The file or directory.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// Why.
        #[source]
        source: Cause,
    },
    /// The model cannot be loaded or run.
    #[error("the model to train cannot be used: {doing}")]
    Model {
        /// What was being done.
        doing: &'static str,
        /// Why.
        #[source]
        source: Cause,
    },
    /// The training process ended without a result.
    #[error("the training process {fate}; its last words: {last_words}")]
    Process {
        /// `was killed by signal 9`, `exited with code 1`, …
        fate: String,
        /// The end of its standard error.
        last_words: String,
    },
    /// The training process reported an error.
    #[error("the training process: {message}")]
    Child {
        /// Its error with all causes.
        message: String,
    },
    /// The trainer broke.
    #[error("the trainer broke, which is a fault of the program: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },
    /// This binary holds no trainer.
    #[error(
        "this build cannot train: it was made without the feature `torch`; build with `cargo build --features torch`"
    )]
    NotCompiledIn,
}

fn prefix(key: &str) -> String {
    match key {
        "" => "training settings: ".to_owned(),
        key => format!("{key}: "),
    }
}

impl TrainError {
    pub(crate) fn settings(fault: impl Into<String>) -> Self {
        Self::setting("", fault)
    }

    /// Something wrong with the value of one key.
    pub(crate) fn setting(key: impl Into<String>, fault: impl Into<String>) -> Self {
        Self::Settings {
            key: key.into(),
            fault: fault.into(),
        }
    }

    pub(crate) fn checkpoint(path: &std::path::Path, doing: &'static str, source: impl Into<Cause>) -> Self {
        Self::Checkpoint {
            path: path.to_path_buf(),
            doing,
            source: source.into(),
        }
    }
}

/// Names what was being done when tensor arithmetic refused.
#[cfg(feature = "torch")]
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, TrainError>;
}

#[cfg(feature = "torch")]
impl<T> Doing<T> for Result<T, tch::TchError> {
    fn doing(self, doing: &'static str) -> Result<T, TrainError> {
        self.map_err(|source| TrainError::Tensor {
            doing,
            source: Box::new(source),
        })
    }
}
