//! What the embedded engine is started with, and how that can fail.

use std::path::PathBuf;
use std::time::Duration;

use super::actor::OnSwap;
use crate::engine::models::ModelError;

/// The number format of weights, activations and cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit brain floats: half the memory, faster where the processor knows them.
    Bf16,
}

impl Dtype {
    pub(super) fn kind(self) -> tch::Kind {
        match self {
            Self::F32 => tch::Kind::Float,
            Self::Bf16 => tch::Kind::BFloat16,
        }
    }

    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Settings of the embedded engine.
#[derive(Debug, Clone)]
pub struct TorchOptions {
    /// The model's folder, in Hugging Face layout.
    pub model_dir: PathBuf,
    /// The name it is served under.
    pub model_name: String,
    /// Number format.
    pub dtype: Dtype,
    /// Threads of one forward pass.
    pub threads: usize,
    /// Answers generated at once.
    pub max_batch: usize,
    /// Positions of one conversation; the model's own maximum bounds it.
    pub max_context: usize,
    /// Bytes that weights, cache and activations may take; `None` leaves it to the machine.
    pub memory_budget: Option<u64>,
    /// Prompt tokens computed in one step when no answer is being generated.
    pub prompt_chunk: usize,
    /// Prompt tokens computed in one step beside answers.
    pub prompt_chunk_beside_answers: usize,
    /// Requests that may wait, of all scenarios together.
    pub max_waiting: usize,
    /// Requests that may wait, of one scenario.
    pub max_waiting_per_scenario: usize,
    /// How long a request may wait for a slot.
    pub queue_timeout: Duration,
    /// Adapters and whole models resident beside the base model.
    pub max_loads: usize,
    /// What running answers do when their load is replaced.
    pub on_swap: OnSwap,
    /// Most likely tokens recorded at each position; 0 for none.
    pub capture_top_k: usize,
}

impl TorchOptions {
    /// Settings for a model folder, everything else as documented.
    pub fn new(model_dir: impl Into<PathBuf>, model_name: impl Into<String>) -> Self {
        Self {
            model_dir: model_dir.into(),
            model_name: model_name.into(),
            dtype: Dtype::default(),
            threads: 1,
            max_batch: 8,
            max_context: 4096,
            memory_budget: None,
            prompt_chunk: 512,
            prompt_chunk_beside_answers: 64,
            max_waiting: 256,
            max_waiting_per_scenario: 128,
            queue_timeout: Duration::from_secs(120),
            max_loads: 16,
            on_swap: OnSwap::default(),
            capture_top_k: 0,
        }
    }
}

/// Why the embedded engine cannot start or take new weights.
#[derive(Debug, thiserror::Error)]
pub enum TorchError {
    /// The model, adapter or memory budget does not do.
    #[error(transparent)]
    Model {
        /// What is wrong.
        #[from]
        source: ModelError,
    },
    /// No chat template.
    #[error(
        "the model in {} has no chat template, so it cannot answer chats; put one in chat_template.jinja beside config.json",
        dir.display()
    )]
    NoChatTemplate {
        /// The model's folder.
        dir: PathBuf,
    },
    /// A chat template that does not parse.
    #[error("the chat template of {} cannot be used: {reason}", dir.display())]
    ChatTemplate {
        /// The model's folder.
        dir: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokens cannot be used.
    #[error("the tokenizer of {} cannot be used: {reason}", dir.display())]
    Vocabulary {
        /// The model's folder.
        dir: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A setting outside its range.
    #[error("{setting} must be {rule}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// What it must be.
        rule: &'static str,
    },
    /// No thread.
    #[error("the engine's thread could not be started")]
    Thread {
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// New weights gave no usable numbers; the old ones still serve.
    #[error("the weights in {} fail their probe: {reason}; the load before them still serves", dir.display())]
    Probe {
        /// Their folder.
        dir: PathBuf,
        /// What the probe found.
        reason: String,
    },
    /// Everything resident is in use.
    #[error(
        "no room for another load: {resident} of at most {capacity} are resident, each current for a scenario or in \
         use; retry when requests have ended, or raise inference.max-loads"
    )]
    NoRoom {
        /// Loads resident.
        resident: usize,
        /// How many may be.
        capacity: usize,
    },
    /// The new model has another shape.
    #[error("the model in {} differs from the one served in {field}; start a server of its own for it", dir.display())]
    OtherShape {
        /// Its folder.
        dir: PathBuf,
        /// What differs.
        field: &'static str,
    },
    /// The engine's thread is gone.
    #[error("the embedded engine has stopped; restart the server")]
    Stopped,
}
