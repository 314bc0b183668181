//! What a user may say about the optimizer.

use serde::{Deserialize, Serialize};

use super::Schedule;
use crate::train::TrainError;

/// AdamW (arXiv 1711.05101) with a schedule and clipping.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimizerSettings {
    /// The learning rate at the top of the schedule.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled decay per step, times the learning rate.
    pub weight_decay: f64,
    /// Largest global norm of the gradient; 0 leaves it as it is.
    pub max_grad_norm: f64,
    /// The learning rate over steps.
    pub schedule: Schedule,
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        Self {
            learning_rate: 1e-5,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            schedule: Schedule::Constant { warmup: 0 },
        }
    }
}

impl OptimizerSettings {
    /// Refuses values no optimizer can use.
    pub fn check(&self) -> Result<(), TrainError> {
        let not_negative = |x: f64| x.is_finite() && x >= 0.0;
        let below_one = |x: f64| (0.0..1.0).contains(&x);
        for (name, ok, rule) in [
            (
                "learning_rate",
                not_negative(self.learning_rate),
                "a finite number, 0 or more",
            ),
            ("beta1", below_one(self.beta1), "at least 0 and below 1"),
            ("beta2", below_one(self.beta2), "at least 0 and below 1"),
            ("epsilon", not_negative(self.epsilon), "a finite number, 0 or more"),
            (
                "weight_decay",
                not_negative(self.weight_decay),
                "a finite number, 0 or more",
            ),
            (
                "max_grad_norm",
                not_negative(self.max_grad_norm),
                "a finite number, 0 or more",
            ),
        ] {
            if !ok {
                return Err(TrainError::setting(
                    format!("optimizer.{name}"),
                    format!("must be {rule}"),
                ));
            }
        }
        self.schedule.check()
    }
}
