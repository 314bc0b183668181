//! The trainer's twin in a build without libtorch.

use crate::train::{Control, StepEvent, StepJob, StepOutcome, TrainError};

/// Refuses every step, saying how to rebuild.
#[derive(Default)]
pub struct Trainer;

impl Trainer {
    /// The twin.
    pub fn new() -> Self {
        Self
    }

    /// Refuses.
    pub(super) fn run(
        &self,
        _job: &StepJob,
        _control: &Control,
        _events: &mut dyn FnMut(StepEvent),
    ) -> Result<StepOutcome, TrainError> {
        Err(TrainError::NotCompiledIn)
    }
}
