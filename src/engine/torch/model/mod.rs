//! The network itself: weights, cache, forward passes for serving and for training, adapters, tokenizer.
//!
//! Everything returns an error instead of panicking. A [`Model`], a [`KvCache`] and adapters belong to one thread at a
//! time; [`Model::shallow_clone`] gives another thread the same storage.

mod bench;
mod cache;
mod checkpoint;
mod forward;
mod gradient;
mod kernels;
mod lora;
mod peft;
mod rotary;

mod tensor;
mod tensor_file;
mod tokenizer;
mod train;
mod weights;

pub use bench::bench_model;
pub use cache::KvCache;
pub use checkpoint::full_training_bytes;
pub use forward::{ForwardRow, Logits, LogitsOf, Model};
pub use lora::{Lora, LoraPair, LoraSpec, ServingLora, Target};
pub use tokenizer::{GenerationDefaults, TextStream, Tokenizer};
pub use train::TrainContext;
pub use weights::Weights;
