//! The rules of the gate: counts for `floor` and `win-margin`, the sequential test for `paired`.

use serde_json::{Map, Value, json};

use super::betting::{Capital, lower_bound};
use super::trial::TaskRef;
use crate::domain::{Outcome, PairedScore};
use crate::recipe::{GateSpec, SelectorKind};

/// The chance of stopping early on a candidate whose gain is at least the minimum effect.
const FUTILITY_LEVEL: f64 = 0.05;
/// Pairs before the share of invalid ones means anything.
const INVALID_AFTER: u64 = 8;

/// Counts over the pairs in evidence.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    attempted: u64,
    valid: u64,
    invalid: u64,
    wins: u64,
    losses: u64,
    candidate_sum: f64,
    candidate_n: u64,
    current_sum: f64,
    current_n: u64,
    tasks: Vec<TaskTally>,
    candidate_only: bool,
    lowest: f64,
    all_lowest: bool,
}

#[derive(Debug, Clone)]
struct TaskTally {
    id: String,
    protected: bool,
    sum: f64,
    n: u32,
}

impl Tally {
    pub(super) fn new(spec: &GateSpec, tasks: &[TaskRef]) -> Self {
        Self {
            attempted: 0,
            valid: 0,
            invalid: 0,
            wins: 0,
            losses: 0,
            candidate_sum: 0.0,
            candidate_n: 0,
            current_sum: 0.0,
            current_n: 0,
            tasks: tasks
                .iter()
                .map(|task| TaskTally {
                    id: task.id.clone(),
                    protected: task.protected,
                    sum: 0.0,
                    n: 0,
                })
                .collect(),
            candidate_only: spec.selector == SelectorKind::Floor,
            lowest: spec.score_range[0],
            all_lowest: true,
        }
    }

    /// Adds a pair and returns its difference if both sides were measured. A pair with one side missing is dropped for
    /// both.
    pub(super) fn add(&mut self, task: usize, pair: &PairedScore) -> Option<f64> {
        self.attempted += 1;
        let valid = pair.candidate.is_some() && (self.candidate_only || pair.current.is_some());
        if !valid {
            self.invalid += 1;
            return None;
        }
        self.valid += 1;
        let scores = [pair.candidate, pair.current];
        self.all_lowest &= scores.iter().flatten().all(|score| *score <= self.lowest);
        if let Some(score) = pair.candidate {
            self.candidate_sum += score;
            self.candidate_n += 1;
        }
        if let Some(score) = pair.current {
            self.current_sum += score;
            self.current_n += 1;
        }
        let difference = pair.candidate? - pair.current?;
        if difference > 0.0 {
            self.wins += 1;
        } else if difference < 0.0 {
            self.losses += 1;
        }
        self.tasks[task].sum += difference;
        self.tasks[task].n += 1;
        Some(difference)
    }

    pub(super) fn too_many_invalid(&self, spec: &GateSpec) -> Option<String> {
        let share = self.invalid as f64 / self.attempted.max(1) as f64;
        (self.attempted >= INVALID_AFTER && share > spec.maximum_invalid).then(|| self.invalid_words())
    }

    fn invalid_words(&self) -> String {
        format!("{} of {} measurements failed", self.invalid, self.attempted)
    }

    /// The first protected task whose mean fell by more than the tolerance.
    pub(super) fn protected_fault(&self, spec: &GateSpec) -> Option<String> {
        self.tasks.iter().find_map(|task| {
            let mean = task.sum / f64::from(task.n.max(1));
            (task.protected && mean < -spec.protected_tolerance).then(|| {
                format!(
                    "protected task {} got worse: mean change {mean:.4} over {} pairs",
                    task.id, task.n
                )
            })
        })
    }

    /// Protected tasks with fewer valid pairs than asked for, and how many are missing.
    pub(super) fn protected_missing(&self, spec: &GateSpec) -> Vec<(usize, u32)> {
        self.tasks
            .iter()
            .enumerate()
            .filter(|(_, task)| task.protected && task.n < spec.protected_repeats)
            .map(|(index, task)| (index, spec.protected_repeats - task.n))
            .collect()
    }

    /// What to suspect when nothing that was measured tells one answer from another.
    pub(super) fn suspicion(&self) -> Option<String> {
        (self.valid > 0 && self.all_lowest).then(|| {
            format!(
                "every answer scored {}, the lowest there is: look at the answers, the tasks and their checker",
                self.lowest
            )
        })
    }

    pub(super) fn figures(&self) -> Map<String, Value> {
        let mean = |sum: f64, n: u64| if n == 0 { Value::Null } else { json!(sum / n as f64) };
        let mut figures = Map::new();
        figures.insert("measured".into(), json!(self.attempted));
        figures.insert("valid".into(), json!(self.valid));
        figures.insert("invalid".into(), json!(self.invalid));
        figures.insert("candidate_mean".into(), mean(self.candidate_sum, self.candidate_n));
        if !self.candidate_only {
            figures.insert("current_mean".into(), mean(self.current_sum, self.current_n));
            figures.insert("wins".into(), json!(self.wins));
            figures.insert("losses".into(), json!(self.losses));
            figures.insert("ties".into(), json!(self.valid - self.wins - self.losses));
            figures.insert(
                "distinct_tasks".into(),
                json!(self.tasks.iter().filter(|task| task.n > 0).count()),
            );
        }
        figures
    }
}

/// What the rules with a fixed plan say.
pub(super) fn fixed_verdict(spec: &GateSpec, tally: &Tally, pairs: &[PairedScore]) -> (Outcome, String) {
    let measured = if tally.attempted == 0 {
        "nothing was measured".to_owned()
    } else {
        format!(
            "{} better, {} worse, {} equal, {} not measured",
            tally.wins,
            tally.losses,
            tally.valid - tally.wins - tally.losses,
            tally.invalid
        )
    };
    match spec.selector {
        SelectorKind::Always => (
            Outcome::Selected,
            format!("the rule `always` releases every candidate; {measured}"),
        ),
        SelectorKind::Review => (Outcome::Held, format!("a person decides; {measured}")),
        SelectorKind::Floor => floor(spec, tally, pairs),
        SelectorKind::WinMargin | SelectorKind::Paired => win_margin(spec, tally),
    }
}

fn floor(spec: &GateSpec, tally: &Tally, pairs: &[PairedScore]) -> (Outcome, String) {
    let floor = spec.floor_score;
    let below = pairs
        .iter()
        .find(|pair| pair.candidate.is_some_and(|score| score < floor));
    if let Some(pair) = below {
        let score = pair.candidate.unwrap_or_default();
        return (
            Outcome::Rejected,
            format!("task {} scored {score}, below the floor of {floor}", pair.task),
        );
    }
    if tally.attempted == 0 || tally.invalid > 0 {
        // A task that was not measured has not reached the floor, nor has it missed it.
        return (Outcome::Invalid, tally.invalid_words());
    }
    let mean = tally.candidate_sum / tally.candidate_n.max(1) as f64;
    let reason = if floor <= spec.score_range[0] {
        // A floor that nothing can miss decides nothing.
        format!(
            "{} measurements with a mean score of {mean:.3}; no floor was set",
            tally.valid
        )
    } else {
        format!(
            "all {} measurements reach the floor of {floor}; mean score {mean:.3}",
            tally.valid
        )
    };
    (Outcome::Selected, reason)
}

fn win_margin(spec: &GateSpec, tally: &Tally) -> (Outcome, String) {
    if tally.valid == 0 || tally.invalid as f64 > spec.maximum_invalid * tally.attempted as f64 {
        return (Outcome::Invalid, tally.invalid_words());
    }
    if let Some(reason) = tally.protected_fault(spec) {
        return (Outcome::Rejected, reason);
    }
    let (wins, losses, margin) = (tally.wins, tally.losses, spec.margin);
    let net = i64::try_from(wins).unwrap_or(i64::MAX) - i64::try_from(losses).unwrap_or(i64::MAX);
    if net > margin {
        (
            Outcome::Selected,
            format!("{wins} wins - {losses} losses exceed the margin of {margin}"),
        )
    } else {
        (
            Outcome::Rejected,
            format!("{wins} wins - {losses} losses do not exceed the margin of {margin}"),
        )
    }
}

/// The sequential paired test.
#[derive(Debug, Clone)]
pub(super) struct Paired {
    width: f64,
    threshold: f64,
    observations: Vec<f64>,
    sum: f64,
    gain: Capital,
    no_gain: Capital,
}

impl Paired {
    pub(super) fn new(spec: &GateSpec, level: f64) -> Self {
        Self {
            width: spec.score_range[1] - spec.score_range[0],
            threshold: -level.ln(),
            observations: Vec::new(),
            sum: 0.0,
            gain: Capital::new(),
            no_gain: Capital::new(),
        }
    }

    /// Takes the difference of one pair, in score units.
    pub(super) fn observe(&mut self, difference: f64) {
        let x = difference / self.width;
        self.observations.push(x);
        self.sum += x;
        self.gain.observe(x);
    }

    fn mean(&self) -> f64 {
        self.sum / self.observations.len().max(1) as f64 * self.width
    }

    /// Decides once the evidence suffices; asked after every pair, which the test allows.
    pub(super) fn decision(&mut self, spec: &GateSpec, tally: &Tally) -> Option<(Outcome, String)> {
        let n = self.observations.len();
        let effect = spec.minimum_effect / self.width;
        if let Some(x) = self.observations.last() {
            // The opposite hypothesis, that the gain is at least the minimum effect, scaled into [-1, 1].
            self.no_gain.observe((effect - x) / (1.0 + effect));
        }
        if n < spec.minimum_pairs as usize {
            return None;
        }
        let mean = self.mean();
        if self.gain.log_value() >= self.threshold && mean >= spec.minimum_effect {
            return Some(tally.protected_fault(spec).map_or_else(
                || {
                    (
                        Outcome::Selected,
                        format!("better by {mean:.4} on average over {n} pairs, beyond chance"),
                    )
                },
                |reason| (Outcome::Rejected, reason),
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
        None
    }

    /// The end of the budget.
    pub(super) fn exhausted(&self, spec: &GateSpec) -> (Outcome, String) {
        let n = self.observations.len();
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

    pub(super) fn figures(&self, spec: &GateSpec, level: f64, figures: &mut Map<String, Value>) {
        let mirrored: Vec<f64> = self.observations.iter().map(|x| -x).collect();
        let low = lower_bound(&self.observations, FUTILITY_LEVEL) * self.width;
        let high = -lower_bound(&mirrored, FUTILITY_LEVEL) * self.width;
        figures.insert("pairs".into(), json!(self.observations.len()));
        figures.insert("effect".into(), json!(self.mean()));
        figures.insert("interval".into(), json!([low, high]));
        figures.insert("interval_level".into(), json!(1.0 - 2.0 * FUTILITY_LEVEL));
        figures.insert("e_value".into(), json!(self.gain.log_value().min(700.0).exp()));
        figures.insert("e_value_needed".into(), json!(self.threshold.min(700.0).exp()));
        figures.insert("level".into(), json!(level));
        figures.insert("alpha".into(), json!(spec.alpha));
        figures.insert("minimum_effect".into(), json!(spec.minimum_effect));
        figures.insert("maximum_pairs".into(), json!(spec.maximum_pairs));
    }
}
