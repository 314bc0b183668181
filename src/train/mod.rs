//! Law: turns a sealed batch into a step and a candidate. Owns objectives (pure functions of tensors), optimizers and
//! checkpoints; never publishes and never changes what is served. Door: [`TrainBatch`], [`prepare`],
//! [`objective::ObjectiveSettings`]. State: `work/training`. Fails with a typed error and leaves the incumbent untouched.

pub mod objective;
pub mod optim;

mod batch;
mod error;
mod pack;
mod signal;
#[cfg(feature = "torch")]
mod tensors;

pub use batch::{TrainBatch, TrainRow};
pub use error::TrainError;
pub use pack::{MicroBatch, Shape, pack};
pub use signal::{Prepared, Signal, Skip, prepare};
