//! Models as files: configuration, memory, GGUF import, the directory of installed models. No tensors, so that
//! `reef model` works in every build.

mod bench;
mod check;
mod config;
mod error;
pub(crate) mod file;
mod gguf;
mod memory;
mod prompt;
mod pull;
mod rope;
mod safetensors_out;
mod store;
mod synthetic;

pub use bench::{BenchPlan, BenchReport};
pub use config::{Architecture, ModelConfig};
pub use error::ModelError;
pub use memory::{MemoryEstimate, MemoryPlan};
pub use prompt::SpecialTokens;
pub use pull::{OnProgress, PullOptions, PullSource, pull};
pub use rope::{Rope, Scaling};
pub use safetensors_out::StoredDtype;
pub use store::{ModelStore, ModelSummary};
pub use synthetic::{synthetic_config, write_synthetic};

#[cfg(feature = "torch")]
pub(crate) use config::token_ids;
#[cfg(feature = "torch")]
pub(crate) use prompt::read as prompt_files;
#[cfg(feature = "torch")]
pub(crate) use store::weight_files;
