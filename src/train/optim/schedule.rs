//! Learning-rate schedules as a factor of the top rate. `step` counts optimizer steps from 0.

use serde::{Deserialize, Serialize};

use crate::train::TrainError;

/// The shape of the learning rate over steps. Every shape rises linearly over the first `warmup` steps, the first of
/// which already moves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum Schedule {
    /// Stays at the top.
    Constant {
        /// Steps of warm-up.
        #[serde(default)]
        warmup: u64,
    },
    /// Falls in a line to `floor` at step `total`.
    Linear {
        /// Steps of warm-up.
        #[serde(default)]
        warmup: u64,
        /// The step at which the floor is reached.
        total: u64,
        /// Last factor.
        #[serde(default)]
        floor: f64,
    },
    /// Falls along half a cosine to `floor` at step `total` (arXiv 1608.03983, without restarts).
    Cosine {
        /// Steps of warm-up.
        #[serde(default)]
        warmup: u64,
        /// The step at which the floor is reached.
        total: u64,
        /// Last factor.
        #[serde(default)]
        floor: f64,
    },
    /// `sqrt(warmup / step)` after the warm-up (arXiv 1706.03762).
    InverseSqrt {
        /// Steps of warm-up, at least 1.
        warmup: u64,
    },
}

impl Schedule {
    /// The factor at `step`.
    pub fn factor(&self, step: u64) -> f64 {
        let (Self::Constant { warmup }
        | Self::Linear { warmup, .. }
        | Self::Cosine { warmup, .. }
        | Self::InverseSqrt { warmup }) = *self;
        if step < warmup {
            return (step + 1) as f64 / warmup as f64;
        }
        let progress = |total: u64| {
            let span = total.saturating_sub(warmup).max(1);
            ((step - warmup) as f64 / span as f64).min(1.0)
        };
        match *self {
            Self::Constant { .. } => 1.0,
            Self::Linear { total, floor, .. } => 1.0 - (1.0 - floor) * progress(total),
            Self::Cosine { total, floor, .. } => {
                floor + (1.0 - floor) * 0.5 * (1.0 + (std::f64::consts::PI * progress(total)).cos())
            }
            Self::InverseSqrt { warmup } => (warmup.max(1) as f64 / (step + 1).max(1) as f64).sqrt().min(1.0),
        }
    }

    pub(super) fn check(&self) -> Result<(), TrainError> {
        let fault = match *self {
            Self::Linear { warmup, total, floor } | Self::Cosine { warmup, total, floor } => {
                if total <= warmup {
                    Some(("total", "must be larger than warmup"))
                } else if !(0.0..=1.0).contains(&floor) {
                    Some(("floor", "must be between 0 and 1"))
                } else {
                    None
                }
            }
            Self::InverseSqrt { warmup: 0 } => Some(("warmup", "must be at least 1 for inverse-sqrt")),
            _ => None,
        };
        match fault {
            Some((key, rule)) => Err(TrainError::setting(format!("optimizer.schedule.{key}"), rule)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        let linear = Schedule::Linear {
            warmup: 2,
            total: 12,
            floor: 0.1,
        };
        assert_eq!(linear.factor(0), 0.5);
        assert_eq!(linear.factor(1), 1.0);
        assert_eq!(linear.factor(2), 1.0);
        assert!((linear.factor(7) - 0.55).abs() < 1e-12);
        assert!((linear.factor(12) - 0.1).abs() < 1e-12 && (linear.factor(99) - 0.1).abs() < 1e-12);
        let cosine = Schedule::Cosine {
            warmup: 0,
            total: 10,
            floor: 0.0,
        };
        assert_eq!(cosine.factor(0), 1.0);
        assert!((cosine.factor(5) - 0.5).abs() < 1e-12 && cosine.factor(10).abs() < 1e-12);
        let root = Schedule::InverseSqrt { warmup: 4 };
        assert_eq!(root.factor(3), 1.0);
        assert!((root.factor(15) - 0.5).abs() < 1e-12);
        assert_eq!(Schedule::Constant { warmup: 0 }.factor(0), 1.0);
    }

    #[test]
    fn a_schedule_that_cannot_fall_is_refused() {
        let bad = Schedule::Cosine {
            warmup: 5,
            total: 5,
            floor: 0.0,
        };
        assert!(bad.check().unwrap_err().to_string().contains("schedule.total"));
        assert!(Schedule::InverseSqrt { warmup: 0 }.check().is_err());
    }
}
