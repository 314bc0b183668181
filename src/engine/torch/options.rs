//! What the embedded engine is started with, what it says of itself, and how it can fail; the same in a build without it.

use std::path::PathBuf;
use std::time::Duration;

use crate::engine::models::ModelError;
use crate::sys::task::Lost;

/// The number format of weights, activations and cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit brain floats: half the memory, faster where the processor knows them.
    Bf16,
}

/// Where the embedded engine computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ComputeDevice {
    /// The processor.
    #[default]
    Cpu,
    /// The CUDA device of this number.
    Cuda(usize),
}

/// What running answers do when their scenario's load is replaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnSwap {
    /// They finish on the load they were admitted with.
    #[default]
    Finish,
    /// They go on with the new one from the next token; keys and values computed before stay, and the record's spans
    /// say which token came from which load.
    Switch,
}

/// What the engine is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TorchStatus {
    /// Answers being generated.
    pub running: u64,
    /// Answers waiting for a slot.
    pub waiting: u64,
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Prompt tokens whose computation was reused.
    pub reused_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Answers finished.
    pub finished: u64,
    /// Answers given up because their client went away.
    pub cancelled: u64,
    /// Answers that failed.
    pub failed: u64,
    /// Loads swapped in.
    pub swaps: u64,
    /// The longest the engine's thread took to swap one in, microseconds.
    pub longest_swap_us: u64,
    /// Loads resident.
    pub residency: Residency,
}

/// How many loads are resident.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Residency {
    /// Loads with weights of their own that are resident.
    pub resident: usize,
    /// How many may be.
    pub capacity: usize,
    /// Replaced ones among them that requests still use.
    pub draining: usize,
}

/// How a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCallFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`.
    Hermes,
    /// `{"name": …, "parameters": …}` as the whole answer.
    Llama3Json,
}

/// Sampling values for requests that give none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingDefaults {
    /// Temperature.
    pub temperature: Option<f32>,
    /// Nucleus.
    pub top_p: Option<f32>,
    /// Most likely tokens kept; 0 keeps all.
    pub top_k: Option<usize>,
    /// Least likelihood relative to the most likely token.
    pub min_p: Option<f32>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f32>,
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
    /// Where it computes.
    pub device: ComputeDevice,
    /// Threads of one forward pass.
    pub threads: usize,
    /// Answers generated at once.
    pub max_batch: usize,
    /// Positions of one conversation; `None` for as many as the model was made for and the cache has room for.
    pub max_context: Option<usize>,
    /// Bytes for the keys and values of all conversations together.
    pub cache_bytes: u64,
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
    /// Sampling values for requests that give none; what is absent here is as the model's folder has it.
    pub sampling: SamplingDefaults,
    /// How the model writes tool calls; `None` finds it from the chat template.
    pub tool_calls: Option<ToolCallFormat>,
}

impl TorchOptions {
    /// Settings for a model folder, everything else as documented.
    pub fn new(model_dir: impl Into<PathBuf>, model_name: impl Into<String>) -> Self {
        Self {
            model_dir: model_dir.into(),
            model_name: model_name.into(),
            dtype: Dtype::default(),
            device: ComputeDevice::default(),
            threads: 1,
            max_batch: 8,
            max_context: None,
            cache_bytes: 1 << 30,
            memory_budget: None,
            prompt_chunk: 512,
            prompt_chunk_beside_answers: 64,
            max_waiting: 256,
            max_waiting_per_scenario: 128,
            queue_timeout: Duration::from_secs(120),
            max_loads: 16,
            on_swap: OnSwap::default(),
            capture_top_k: 0,
            sampling: SamplingDefaults::default(),
            tool_calls: None,
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
    /// This build has no embedded engine.
    #[error("this build has no embedded engine")]
    NotCompiled,
    /// No such device.
    #[error("there is no CUDA device {index} that this build's libtorch can use; set inference.device to cpu")]
    NoDevice {
        /// Its number.
        index: usize,
    },
    /// The cache is too small.
    #[error(
        "the key-value cache of {have} bytes has no room for {slots} conversations of {positions} tokens, which need \
         {need}; raise inference.cache-size, or lower inference.max-batch or inference.context"
    )]
    CacheTooSmall {
        /// Bytes allowed.
        have: u64,
        /// Bytes needed.
        need: u64,
        /// Conversations.
        slots: usize,
        /// Tokens of each.
        positions: usize,
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
         use; retry when requests have ended, or raise inference.max-adapters"
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
    /// Reef itself broke down over it.
    #[error(transparent)]
    Panicked(Lost),
    /// The engine's thread is gone.
    #[error("the embedded engine has stopped; restart the server")]
    Stopped,
}

impl From<Lost> for TorchError {
    fn from(lost: Lost) -> Self {
        if lost.panicked() {
            Self::Panicked(lost)
        } else {
            Self::Stopped
        }
    }
}
