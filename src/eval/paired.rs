//! The sequential test on pairs.

use serde_json::{Map, Value, json};

use super::betting::{Capital, lower_bound};
use crate::domain::Outcome;
use crate::recipe::GateSpec;

/// The chance of stopping early on a candidate whose gain is at least the minimum effect.
pub(super) const FUTILITY_LEVEL: f64 = 0.05;

/// The sequential paired test.
#[derive(Debug, Clone)]
pub(super) struct Paired {
    low: f64,
    width: f64,
    effect: f64,
    threshold: f64,
    observations: Vec<f64>,
    sum: f64,
    squares: f64,
    gain: Capital,
    no_gain: Capital,
    /// Pairs that only the served release could be measured on, less those that only the candidate could be: so many more
    /// of the former are dropped for free.
    unmatched: u64,
}

impl Paired {
    pub(super) fn new(spec: &GateSpec, level: f64) -> Self {
        let width = spec.score_range[1] - spec.score_range[0];
        Self {
            low: spec.score_range[0],
            width,
            effect: spec.minimum_effect / width,
            threshold: -level.ln(),
            observations: Vec::new(),
            sum: 0.0,
            squares: 0.0,
            gain: Capital::new(),
            no_gain: Capital::new(),
            unmatched: 0,
        }
    }

    /// Takes the difference of one pair, in score units.
    pub(super) fn observe(&mut self, difference: f64) {
        let x = difference / self.width;
        self.observations.push(x);
        self.sum += x;
        self.squares += x * x;
        self.gain.observe(x);
        // The opposite hypothesis, that the gain is at least the minimum effect, scaled into [-1, 1].
        self.no_gain.observe((self.effect - x) / (1.0 + self.effect));
    }

    /// The served release could not be measured, the candidate could.
    pub(super) fn served_unmeasured(&mut self) {
        self.unmatched += 1;
    }

    /// The candidate could not be measured where the served release scored `served`. As often as the served release was the
    /// one that failed, the pair is dropped. Beyond that it counts as the lowest score in the evidence for the candidate,
    /// because a failure that depends on the answer would otherwise hide losses; it never counts for a rejection.
    pub(super) fn candidate_unmeasured(&mut self, served: f64) {
        if self.unmatched > 0 {
            self.unmatched -= 1;
        } else {
            self.gain.observe((self.low - served) / self.width);
        }
    }

    fn pairs(&self) -> usize {
        self.observations.len()
    }

    fn mean(&self) -> f64 {
        self.sum / self.pairs().max(1) as f64 * self.width
    }

    /// Decides once the evidence suffices; asked after every pair, which the test allows.
    pub(super) fn decision(&self, spec: &GateSpec) -> Option<(Outcome, String)> {
        let n = self.pairs();
        if n < spec.minimum_pairs as usize {
            return None;
        }
        let mean = self.mean();
        if self.gain.log_value() >= self.threshold && mean >= spec.minimum_effect {
            return Some((
                Outcome::Selected,
                format!("better by {mean:.4} on average over {n} pairs, beyond chance"),
            ));
        }
        if self.no_gain.log_value() >= -FUTILITY_LEVEL.ln() {
            return Some((
                Outcome::Rejected,
                format!(
                    "mean change {mean:.4} over {n} pairs: a gain of {} or more is ruled out",
                    spec.minimum_effect
                ),
            ));
        }
        let left = (spec.maximum_pairs as usize).saturating_sub(n);
        if self.gain.best_after(left) < self.threshold {
            return Some((
                Outcome::Inconclusive,
                format!("mean change {mean:.4} over {n} pairs: the pairs left could not decide it"),
            ));
        }
        if n >= spec.maximum_pairs as usize / 6 && self.projected(spec.maximum_pairs as usize) < self.threshold {
            return Some((
                Outcome::Inconclusive,
                format!("mean change {mean:.4} over {n} pairs: the pairs left are unlikely to decide it"),
            ));
        }
        None
    }

    /// The evidence after `pairs` pairs if the gain were as large as two standard errors above the estimate allow. Stopping
    /// by it costs power, never the error bound.
    fn projected(&self, pairs: usize) -> f64 {
        // As if two more pairs had been seen, one won and one lost, so that nothing but ties leaves hope.
        let n = self.pairs() as f64 + 2.0;
        let mean = self.sum / n;
        let square = (self.squares + 2.0) / n;
        let hope = mean + 2.0 * ((square - mean * mean).max(0.0) / n).sqrt();
        if hope <= 0.0 {
            0.0
        } else {
            pairs as f64 * hope * hope / (2.0 * square)
        }
    }

    /// The end of the budget.
    pub(super) fn exhausted(&self, spec: &GateSpec) -> (Outcome, String) {
        let n = self.pairs();
        if n < spec.minimum_pairs as usize {
            return (
                Outcome::Invalid,
                format!("only {n} valid pairs, at least {} are needed", spec.minimum_pairs),
            );
        }
        (
            Outcome::Inconclusive,
            format!("mean change {:.4} over {n} pairs is within chance", self.mean()),
        )
    }

    pub(super) fn figures(&self, figures: &mut Map<String, Value>) {
        let mirrored: Vec<f64> = self.observations.iter().map(|x| -x).collect();
        let low = lower_bound(&self.observations, FUTILITY_LEVEL) * self.width;
        let high = -lower_bound(&mirrored, FUTILITY_LEVEL) * self.width;
        figures.insert("pairs".into(), json!(self.pairs()));
        figures.insert("effect".into(), json!(self.mean()));
        figures.insert("interval".into(), json!([low, high]));
        figures.insert("interval_level".into(), json!(1.0 - 2.0 * FUTILITY_LEVEL));
        figures.insert("e_value".into(), json!(self.gain.log_value().min(700.0).exp()));
        figures.insert("e_value_needed".into(), json!(self.threshold.min(700.0).exp()));
    }
}
