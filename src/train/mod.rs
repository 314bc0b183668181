//! Law: turns a sealed batch into a step and a candidate. Owns objectives (pure functions of tensors), optimizers and
//! checkpoints; never publishes and never changes what is served. State: `work/training`. Fails with a typed error and
//! leaves the incumbent untouched.

pub mod objective;
pub mod optim;

mod error;
#[cfg(feature = "torch")]
mod tensors;

pub use error::TrainError;
