//! Law: turns a sealed batch into a step and a candidate. Owns objectives (pure functions of tensors), optimizers and
//! checkpoints; never publishes and never changes what is served. State: `work/training`. Fails with a typed error and
//! leaves the incumbent untouched.
//!
//! Door: [`TrainSettings::from_recipe`], [`StepJob`] with its [`TrainBatch`], and [`Backend::run`], which gives a
//! [`StepOutcome`] and obeys a [`Control`]. The mathematics is in [`objective`] and [`optim`].

pub mod objective;
pub mod optim;

mod backend;
mod batch;
pub mod checkpoint;
mod control;
mod error;
mod job;
mod pack;
mod recipe;
mod settings;
mod signal;
#[cfg(feature = "torch")]
mod tensors;
#[cfg(all(test, feature = "torch"))]
mod testing;

pub use backend::{Backend, Trainer, serve_child};
pub use batch::{TrainBatch, TrainRow};
pub use control::{Control, StepEvent};
pub use error::TrainError;
pub use job::{StepJob, StepOutcome, StepResult};
pub use pack::{MicroBatch, Shape, pack, pack_branches, shared_prefix};
pub use recipe::Placement;
pub use settings::{Limits, Method, Precision, TrainSettings};
pub use signal::{Prepared, Signal, Skip, prepare};
