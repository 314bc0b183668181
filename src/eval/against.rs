//! The sequential test of a candidate against a reference.

use serde_json::{Map, Value, json};

use super::paired::FUTILITY_LEVEL;
use super::reference::TwoSample;
use crate::domain::Outcome;
use crate::recipe::GateSpec;

/// The measurements of the reference that may fail in a row before it is out of reach.
const FAILURES: u32 = 8;

/// The reference, and what was seen of the candidate.
#[derive(Debug, Clone)]
pub(super) struct Against {
    low: f64,
    width: f64,
    threshold: f64,
    wanted: u64,
    asked: u64,
    waiting: u64,
    failures: u32,
    fresh: Vec<(String, f64)>,
    sample: TwoSample,
}

impl Against {
    pub(super) fn new(spec: &GateSpec, tasks: usize, level: f64) -> Self {
        Self {
            low: spec.score_range[0],
            width: spec.score_range[1] - spec.score_range[0],
            threshold: -level.ln(),
            wanted: u64::from(spec.reference),
            asked: 0,
            waiting: 0,
            failures: 0,
            fresh: Vec::new(),
            sample: TwoSample::new(tasks),
        }
    }

    fn scaled(&self, score: f64) -> f64 {
        ((score - self.low) / self.width).clamp(0.0, 1.0)
    }

    /// An earlier run of the served release.
    pub(super) fn served(&mut self, task: usize, score: f64) {
        if score.is_finite() {
            self.sample.observe_served(task, self.scaled(score));
        }
    }

    /// The number of the next run of the served release, while the reference is not complete.
    pub(super) fn next_served(&mut self) -> Option<u64> {
        if self.sample.served_runs() + self.waiting >= self.wanted {
            return None;
        }
        self.waiting += 1;
        self.asked += 1;
        Some(self.asked)
    }

    /// A run of the served release that was asked for.
    pub(super) fn measured(&mut self, task: usize, name: &str, score: Option<f64>) {
        self.waiting = self.waiting.saturating_sub(1);
        match score {
            Some(score) => {
                self.failures = 0;
                self.served(task, score);
                self.fresh.push((name.to_owned(), score));
            }
            None => self.failures += 1,
        }
    }

    pub(super) fn out_of_reach(&self) -> bool {
        self.failures >= FAILURES
    }

    pub(super) fn complete(&self) -> bool {
        self.sample.served_runs() >= self.wanted
    }

    pub(super) fn fresh(&self) -> &[(String, f64)] {
        &self.fresh
    }

    pub(super) fn candidate(&mut self, task: usize, score: f64) {
        self.sample.observe_candidate(task, self.scaled(score));
    }

    pub(super) fn candidate_unmeasured(&mut self, task: usize) {
        self.sample.observe_unmeasured(task);
    }

    fn runs(&self) -> u64 {
        self.sample.candidate_runs()
    }

    fn gain(&self) -> f64 {
        self.sample.gain() * self.width
    }

    /// Decides once the evidence suffices; asked after every run, which the test allows.
    pub(super) fn decision(&self, spec: &GateSpec) -> Option<(Outcome, String)> {
        let (n, gain) = (self.runs(), self.gain());
        if n < u64::from(spec.minimum_pairs) {
            return None;
        }
        if self.sample.log_gain() >= self.threshold && gain >= spec.minimum_effect {
            return Some((
                Outcome::Selected,
                format!(
                    "better by {gain:.4} over {n} runs against {} of the served release, beyond chance",
                    self.sample.served_runs()
                ),
            ));
        }
        if self.sample.log_no_gain(spec.minimum_effect / self.width) >= -FUTILITY_LEVEL.ln() {
            return Some((
                Outcome::Rejected,
                format!(
                    "mean change {gain:.4} over {n} runs: a gain of {} or more is ruled out",
                    spec.minimum_effect
                ),
            ));
        }
        let limit = 2 * u64::from(spec.maximum_pairs);
        if n >= limit / 6 && self.sample.projected(limit) < self.threshold {
            return Some((
                Outcome::Inconclusive,
                format!("mean change {gain:.4} over {n} runs: the runs left are unlikely to decide it"),
            ));
        }
        None
    }

    /// The end of the budget.
    pub(super) fn exhausted(&self, spec: &GateSpec) -> (Outcome, String) {
        let n = self.runs();
        if n < u64::from(spec.minimum_pairs) {
            return (
                Outcome::Invalid,
                format!("only {n} valid runs, at least {} are needed", spec.minimum_pairs),
            );
        }
        (
            Outcome::Inconclusive,
            format!("mean change {:.4} over {n} runs is within chance", self.gain()),
        )
    }

    pub(super) fn figures(&self, figures: &mut Map<String, Value>) {
        let served = self.low + self.sample.served_mean() * self.width;
        figures.insert(
            "reference".into(),
            json!({"runs": self.sample.served_runs(), "fresh": self.fresh.len(), "mean": served}),
        );
        figures.insert("runs".into(), json!(self.runs()));
        figures.insert("current_mean".into(), json!(served));
        figures.insert("effect".into(), json!(self.gain()));
        figures.insert("e_value".into(), json!(self.sample.log_gain().min(700.0).exp()));
        figures.insert("e_value_needed".into(), json!(self.threshold.min(700.0).exp()));
    }
}
