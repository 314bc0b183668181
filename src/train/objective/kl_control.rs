//! The coefficient of a KL penalty, steered so that the measured KL stays near a target. Pure; the state is part of the
//! candidate's checkpoint, so a rejected candidate takes its update with it.

use serde::{Deserialize, Serialize};

/// Which rule moves the coefficient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "rule", deny_unknown_fields)]
pub enum KlController {
    /// Never moves.
    Fixed,
    /// Multiplies by `exp(gain (ema/target − 1))`, at most by `max_ratio` either way. With the default gain it
    /// oscillates, because the average adds lag to an integral controller; 0.01 is stable.
    #[serde(alias = "reef")]
    Smoothed {
        /// KL wanted.
        target: f64,
        /// Gain η.
        gain: f64,
        /// Decay of the moving average of KL.
        decay: f64,
        /// Largest change of one update.
        max_ratio: f64,
    },
    /// Ziegler et al., arXiv 1909.08593: `β (1 + clip(kl/target − 1, ±clip) · samples/horizon)`.
    #[serde(alias = "verl")]
    Proportional {
        /// KL wanted.
        target: f64,
        /// Samples over which a full error doubles β.
        horizon: f64,
        /// Bound of the relative error.
        clip: f64,
    },
}

/// What an update leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KlState {
    /// The coefficient β for the next batch.
    pub coefficient: f64,
    /// The moving average, once something was observed.
    #[serde(default)]
    pub average: Option<f64>,
}

/// β never leaves this range.
pub const COEFFICIENT_RANGE: (f64, f64) = (1e-6, 10.0);

impl KlController {
    /// The state after a step that measured `kl` over `samples` rollouts. A measurement that is not finite (an empty
    /// mask, a failed step) changes nothing; a negative one only means something to `Proportional`.
    #[must_use]
    pub fn update(&self, state: KlState, kl: f64, samples: usize) -> KlState {
        if !kl.is_finite() {
            return state;
        }
        match *self {
            Self::Fixed => state,
            Self::Smoothed {
                target,
                gain,
                decay,
                max_ratio,
            } => {
                if kl < 0.0 {
                    return state;
                }
                let average = state.average.map_or(kl, |a| decay * a + (1.0 - decay) * kl);
                let beta = state.coefficient;
                let moved = (beta * (gain * (average / target - 1.0)).exp()).clamp(beta / max_ratio, beta * max_ratio);
                KlState {
                    coefficient: moved.clamp(COEFFICIENT_RANGE.0, COEFFICIENT_RANGE.1),
                    average: Some(average),
                }
            }
            Self::Proportional { target, horizon, clip } => {
                let error = (kl / target - 1.0).clamp(-clip, clip);
                let moved = state.coefficient * (1.0 + error * samples as f64 / horizon);
                KlState {
                    coefficient: moved.clamp(COEFFICIENT_RANGE.0, COEFFICIENT_RANGE.1),
                    average: state.average,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KL: [f64; 6] = [0.05, 0.2, 0.4, 0.1, 0.02, 0.3];
    const START: KlState = KlState {
        coefficient: 0.05,
        average: None,
    };

    fn run(controller: KlController, samples: usize) -> Vec<KlState> {
        let mut state = START;
        KL.iter()
            .map(|kl| {
                state = controller.update(state, *kl, samples);
                state
            })
            .collect()
    }

    #[test]
    fn smoothed_golden() {
        let states = run(
            KlController::Smoothed {
                target: 0.1,
                gain: 0.05,
                decay: 0.9,
                max_ratio: 2.0,
            },
            1,
        );
        let average = [0.05, 0.065, 0.0985, 0.09865, 0.090785, 0.1117065];
        let beta = [
            0.0487654956,
            0.04791952328,
            0.04788359711,
            0.04785128659,
            0.04763131892,
            0.04791093447,
        ];
        for (s, (a, b)) in states.iter().zip(average.iter().zip(beta)) {
            assert!((s.average.unwrap() - a).abs() < 1e-12, "{s:?}");
            assert!((s.coefficient - b).abs() < 1e-11, "{s:?}");
        }
    }

    #[test]
    fn proportional_golden() {
        let states = run(
            KlController::Proportional {
                target: 0.1,
                horizon: 1e4,
                clip: 0.2,
            },
            64,
        );
        let beta = [
            0.049936,
            0.04999991808,
            0.05006391798,
            0.05006391798,
            0.04999983616,
            0.05006383595,
        ];
        for (s, b) in states.iter().zip(beta) {
            assert!((s.coefficient - b).abs() < 1e-11, "{s:?}");
        }
    }

    #[test]
    fn a_failed_measurement_changes_nothing() {
        for controller in [
            KlController::Smoothed {
                target: 0.1,
                gain: 0.05,
                decay: 0.9,
                max_ratio: 2.0,
            },
            KlController::Proportional {
                target: 0.1,
                horizon: 1e4,
                clip: 0.2,
            },
        ] {
            assert_eq!(controller.update(START, f64::NAN, 8), START);
            assert_eq!(controller.update(START, f64::INFINITY, 8), START);
        }
    }
}
