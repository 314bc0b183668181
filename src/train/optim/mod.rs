//! Optimizers on tensors. libtorch's own cannot save their state through this binding; ours can, bit for bit.

mod schedule;
mod settings;

#[cfg(feature = "torch")]
mod adamw;

pub use schedule::Schedule;
pub use settings::OptimizerSettings;

#[cfg(feature = "torch")]
pub use adamw::{AdamW, Update, clip_by_global_norm, global_norm};

#[cfg(all(test, feature = "torch"))]
mod tests;
