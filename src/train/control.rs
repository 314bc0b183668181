//! Pausing and stopping a step from another thread, and hearing how far it is.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::TrainError;

/// A handle to a running step. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct Control {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    paused: bool,
    cancelled: bool,
}

impl Control {
    /// Stops the step at its next check; it leaves nothing behind. Cannot be taken back.
    pub fn cancel(&self) {
        self.shared.state.lock().cancelled = true;
        self.shared.changed.notify_all();
    }

    /// Holds the step at its next check, between two micro-batches.
    pub fn pause(&self) {
        self.shared.state.lock().paused = true;
    }

    /// Lets a held step go on.
    pub fn resume(&self) {
        self.shared.state.lock().paused = false;
        self.shared.changed.notify_all();
    }

    /// Whether it is held.
    pub fn is_paused(&self) -> bool {
        self.shared.state.lock().paused
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.shared.state.lock().cancelled
    }

    /// Waits while paused; an error once cancelled.
    pub fn check(&self) -> Result<(), TrainError> {
        let mut state = self.shared.state.lock();
        while state.paused && !state.cancelled {
            let _timed_out = self.shared.changed.wait_for(&mut state, Duration::from_secs(1));
        }
        if state.cancelled {
            return Err(TrainError::Cancelled);
        }
        Ok(())
    }
}

/// How far a step is.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum StepEvent {
    /// The work is known.
    Started {
        /// Rows that train.
        rows: usize,
        /// Tokens of their prompts and responses.
        tokens: usize,
        /// Micro-batches of all passes.
        micro_batches: usize,
    },
    /// One micro-batch is through.
    MicroBatch {
        /// Micro-batches done.
        done: usize,
    },
    /// The optimizer moved.
    Update {
        /// Optimizer updates of this step so far.
        done: usize,
        /// Gradient norm before clipping.
        grad_norm: f64,
    },
    /// The candidate is being written.
    Saving,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_step_waits_and_a_cancelled_one_ends() {
        let control = Control::default();
        control.check().unwrap();
        control.pause();
        let held = {
            let control = control.clone();
            std::thread::spawn(move || control.check())
        };
        std::thread::sleep(Duration::from_millis(30));
        assert!(!held.is_finished());
        control.resume();
        held.join().unwrap().unwrap();
        control.pause();
        control.cancel();
        assert!(matches!(control.check(), Err(TrainError::Cancelled)));
    }
}
