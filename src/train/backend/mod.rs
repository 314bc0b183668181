//! What makes a step: the embedded trainer, on a thread of this process or in a child process.

mod child;
mod process;

#[cfg(feature = "torch")]
mod critic;
#[cfg(feature = "torch")]
mod head;
#[cfg(feature = "torch")]
mod policy;
#[cfg(feature = "torch")]
mod rows;
#[cfg(feature = "torch")]
mod step;
#[cfg(feature = "torch")]
mod torch;

#[cfg(not(feature = "torch"))]
mod disabled;

#[cfg(all(test, feature = "torch"))]
mod gradient_tests;
#[cfg(all(test, feature = "torch"))]
mod learning_tests;
#[cfg(all(test, feature = "torch"))]
mod testing;
#[cfg(all(test, feature = "torch"))]
mod tests;

use std::path::PathBuf;

pub use child::serve_child;
#[cfg(not(feature = "torch"))]
pub use disabled::Trainer;
#[cfg(feature = "torch")]
pub use torch::Trainer;

use super::{Control, StepEvent, StepJob, StepOutcome, TrainError};
use crate::sys::task;

/// Where steps are made.
#[cfg_attr(
    feature = "torch",
    expect(clippy::large_enum_variant, reason = "there is one per process")
)]
pub enum Backend {
    /// On a thread of this process, sharing the served base model's memory; slowed by `limits.threads` and
    /// `limits.niceness` so that serving keeps its pace.
    Inline(Trainer),
    /// In a child process, which may die without harm and gives all its memory back after each step. The child is this
    /// program, run as `PROGRAM __train-step`.
    Process {
        /// The program to run.
        program: PathBuf,
    },
}

impl Backend {
    /// Makes one step and returns when it is done, cancelled or refused. Blocks; events arrive on the calling thread
    /// or on the trainer's.
    pub fn run(
        &self,
        job: &StepJob,
        control: &Control,
        events: &mut (dyn FnMut(StepEvent) + Send),
    ) -> Result<StepOutcome, TrainError> {
        match self {
            Self::Inline(trainer) => on_own_thread(job, || trainer.run(job, control, events)),
            Self::Process { program } => process::run(program, job, control, events),
        }
    }
}

/// Runs on a thread made for this step: its priority and its number of compute threads would otherwise stay with a
/// thread that others use, and a panic inside the tensor library would end more than the step.
fn on_own_thread<T: Send>(job: &StepJob, work: impl FnOnce() -> Result<T, TrainError> + Send) -> Result<T, TrainError> {
    let niceness = job.settings.limits.niceness;
    std::thread::scope(|scope| {
        let spawned = task::scoped(scope, "reef-trainer", || {
            lower_priority(niceness);
            work()
        });
        match spawned.map(task::Scoped::join) {
            Ok(Ok(result)) => result,
            Ok(Err(lost)) => Err(TrainError::Panicked {
                message: lost.to_string(),
            }),
            Err(error) => Err(TrainError::Process {
                fate: format!("could not start a thread: {error}"),
                last_words: String::new(),
            }),
        }
    })
}

/// Linux keeps a priority per thread, and the compute threads that this one starts inherit it.
fn lower_priority(niceness: u8) {
    #[cfg(target_os = "linux")]
    if niceness > 0 {
        let priority = i32::from(niceness.min(19));
        if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), priority) {
            tracing::debug!(%error, "the training thread keeps its priority");
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _only_on_linux = niceness;
}
