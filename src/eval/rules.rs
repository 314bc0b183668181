//! Counts over what was measured, and the rules with a fixed plan: `floor` and `win-margin`.

use serde_json::{Map, Value, json};

use super::betting::Capital;
use super::harm::Harm;
use super::score::{Cause, SideScore, Unscored};
use super::trial::TaskRef;
use crate::domain::{Outcome, PairedScore};
use crate::recipe::{GateSpec, SelectorKind};

/// The chance of calling a measurement broken whose failures stay within the limit, or strike both sides alike.
const BROKEN_LEVEL: f64 = 0.05;

/// What was measured of one task.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    pub(super) score: PairedScore,
    /// Which sides the measurement failed on.
    unmeasured: Unmeasured,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unmeasured {
    None,
    Candidate,
    Served,
    Both,
}

impl Measured {
    /// Puts both sides together. A side that was not asked is `None`. A score outside the range is a failure to measure. A
    /// side that alone failed to answer gets the lowest score; what struck both is dropped for both.
    pub(super) fn new(
        spec: &GateSpec,
        task: &TaskRef,
        candidate: Option<SideScore>,
        served: Option<SideScore>,
    ) -> Self {
        let [low, high] = spec.score_range;
        let sound = |score: Option<SideScore>| match score {
            Some(Ok(value)) if !(low..=high).contains(&value) => Some(Err(Unscored::measurement(format!(
                "the score {value} lies outside {low}..{high}"
            )))),
            other => other,
        };
        let (candidate, served) = (sound(candidate), sound(served));
        let failed = |side: &Option<SideScore>| side.as_ref().and_then(|score| score.as_ref().err().cloned());
        let (no_candidate, no_served) = (failed(&candidate), failed(&served));
        let unmeasured = match (&no_candidate, &no_served) {
            (None, None) => Unmeasured::None,
            (Some(_), Some(_)) => Unmeasured::Both,
            (Some(why), None) if why.cause == Cause::Answer => Unmeasured::None,
            (None, Some(why)) if why.cause == Cause::Answer => Unmeasured::None,
            (Some(_), None) => Unmeasured::Candidate,
            (None, Some(_)) => Unmeasured::Served,
        };
        let value = |side: Option<SideScore>| match side {
            Some(Err(why)) if why.cause == Cause::Answer && unmeasured == Unmeasured::None => Some(low),
            side => side.and_then(Result::ok),
        };
        let words = |side: &str, why: &Unscored| {
            let counts = if why.cause == Cause::Answer && unmeasured == Unmeasured::None {
                " (counts as the lowest score)"
            } else {
                ""
            };
            format!("{side}: {why}{counts}")
        };
        let failure = match (&no_candidate, &no_served) {
            (Some(first), Some(second)) => Some(format!("{}; {}", words("candidate", first), words("served", second))),
            (Some(why), None) => Some(words("candidate", why)),
            (None, Some(why)) => Some(words("served", why)),
            (None, None) => None,
        };
        Self {
            score: PairedScore {
                task: task.id.clone(),
                repeat: 0,
                candidate: value(candidate),
                current: value(served),
                protected: task.protected,
                failure,
                ..PairedScore::default()
            },
            unmeasured,
        }
    }
}

/// What a pair says once it is counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Evidence {
    /// Candidate - served.
    Difference(f64),
    /// The candidate's score, measured alone.
    Alone(f64),
    /// Only the candidate could not be measured; the served release scored this, where it was asked.
    CandidateUnmeasured(Option<f64>),
    /// Only the served release could not be measured.
    ServedUnmeasured,
    /// Neither side could be measured.
    Nothing,
}

/// Counts over the pairs in evidence.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    attempted: u64,
    valid: u64,
    unmeasured: [u64; 3],
    wins: u64,
    losses: u64,
    candidate_sum: f64,
    candidate_n: u64,
    current_sum: f64,
    current_n: u64,
    seen: Vec<u32>,
    harm: Vec<Option<Harm>>,
    paired: bool,
    limit: f64,
    /// Against "the share of failed measurements is at most the limit".
    broken: Capital,
    /// Against "failures strike the served release at least as often".
    one_sided: Capital,
    lowest: f64,
    all_lowest: bool,
}

impl Tally {
    pub(super) fn new(spec: &GateSpec, tasks: &[TaskRef]) -> Self {
        let protected = tasks.iter().filter(|task| task.protected).count();
        let width = spec.score_range[1] - spec.score_range[0];
        Self {
            attempted: 0,
            valid: 0,
            unmeasured: [0; 3],
            wins: 0,
            losses: 0,
            candidate_sum: 0.0,
            candidate_n: 0,
            current_sum: 0.0,
            current_n: 0,
            seen: vec![0; tasks.len()],
            harm: tasks
                .iter()
                .map(|task| {
                    task.protected
                        .then(|| Harm::new(task.exact, protected, spec.protected_tolerance, width))
                })
                .collect(),
            paired: false,
            limit: spec.maximum_invalid,
            broken: Capital::new(),
            one_sided: Capital::new(),
            lowest: spec.score_range[0],
            all_lowest: true,
        }
    }

    /// Counts a measurement.
    pub(super) fn add(&mut self, task: usize, measured: &Measured, both: bool) -> Evidence {
        self.attempted += 1;
        self.paired |= both;
        let failed = f64::from(u8::from(measured.unmeasured != Unmeasured::None));
        self.broken
            .observe((failed - self.limit) / self.limit.max(1.0 - self.limit));
        let pair = &measured.score;
        match measured.unmeasured {
            Unmeasured::None => {}
            Unmeasured::Candidate => {
                self.unmeasured[0] += 1;
                if both {
                    self.one_sided.observe(1.0);
                }
                return Evidence::CandidateUnmeasured(pair.current);
            }
            Unmeasured::Served => {
                self.unmeasured[1] += 1;
                self.one_sided.observe(-1.0);
                return Evidence::ServedUnmeasured;
            }
            Unmeasured::Both => {
                self.unmeasured[2] += 1;
                return Evidence::Nothing;
            }
        }
        self.valid += 1;
        self.seen[task] += 1;
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
        let (Some(candidate), Some(current)) = (pair.candidate, pair.current) else {
            return pair.candidate.map_or(Evidence::Nothing, Evidence::Alone);
        };
        let difference = candidate - current;
        if difference > 0.0 {
            self.wins += 1;
        } else if difference < 0.0 {
            self.losses += 1;
        }
        if let Some(harm) = &mut self.harm[task] {
            harm.observe(difference);
        }
        Evidence::Difference(difference)
    }

    fn invalid(&self) -> u64 {
        self.unmeasured.iter().sum()
    }

    /// The measurement itself is broken, beyond chance.
    pub(super) fn broken(&self) -> Option<String> {
        let threshold = -BROKEN_LEVEL.ln();
        if self.broken.log_value() >= threshold {
            return Some(self.invalid_words());
        }
        (self.one_sided.log_value() >= threshold).then(|| {
            let [candidate, served, _] = self.unmeasured;
            format!(
                "the candidate alone could not be measured {candidate} times, the served release alone {served} times: \
                 the failures depend on the side"
            )
        })
    }

    fn invalid_words(&self) -> String {
        format!("{} of {} measurements failed", self.invalid(), self.attempted)
    }

    /// What is known of a protected task.
    pub(super) fn harm(&self, task: usize) -> Option<&Harm> {
        self.harm[task].as_ref()
    }

    /// A protected task that got worse, beyond chance; its position.
    pub(super) fn harmed(&self) -> Option<usize> {
        self.harm.iter().position(|harm| harm.as_ref().is_some_and(Harm::shown))
    }

    /// The first protected task whose mean fell by more than the tolerance, for the rule that counts.
    fn fallen(&self) -> Option<usize> {
        self.harm
            .iter()
            .position(|harm| harm.as_ref().is_some_and(Harm::suspected))
    }

    pub(super) fn harm_words(&self, tasks: &[TaskRef], task: usize) -> String {
        let (mean, pairs) = self.harm[task]
            .as_ref()
            .map_or((0.0, 0), |harm| (harm.mean(), harm.pairs()));
        format!(
            "protected task {} got worse: mean change {mean:.4} over {pairs} pairs",
            tasks[task].id
        )
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
        let [candidate, served, both] = self.unmeasured;
        let mut figures = Map::new();
        figures.insert("measured".into(), json!(self.attempted));
        figures.insert("valid".into(), json!(self.valid));
        figures.insert("invalid".into(), json!(self.invalid()));
        if self.invalid() > 0 {
            figures.insert(
                "unmeasured".into(),
                json!({"candidate": candidate, "served": served, "both": both}),
            );
        }
        figures.insert("candidate_mean".into(), mean(self.candidate_sum, self.candidate_n));
        if self.paired {
            figures.insert("current_mean".into(), mean(self.current_sum, self.current_n));
            figures.insert("wins".into(), json!(self.wins));
            figures.insert("losses".into(), json!(self.losses));
            figures.insert(
                "ties".into(),
                json!(self.current_n.min(self.candidate_n) - self.wins - self.losses),
            );
            figures.insert(
                "distinct_tasks".into(),
                json!(self.seen.iter().filter(|seen| **seen > 0).count()),
            );
        }
        figures
    }
}

/// What the rules with a fixed plan say.
pub(super) fn fixed_verdict(
    spec: &GateSpec,
    tasks: &[TaskRef],
    tally: &Tally,
    pairs: &[PairedScore],
) -> (Outcome, String) {
    let measured = if tally.attempted == 0 {
        "nothing was measured".to_owned()
    } else {
        format!(
            "{} better, {} worse, {} equal, {} not measured",
            tally.wins,
            tally.losses,
            tally.valid.saturating_sub(tally.wins + tally.losses),
            tally.invalid()
        )
    };
    match spec.selector {
        SelectorKind::Always => (
            Outcome::Selected,
            format!("the rule `always` releases every candidate; {measured}"),
        ),
        SelectorKind::Review => (Outcome::Held, format!("a person decides; {measured}")),
        SelectorKind::Floor => floor(spec, tally, pairs),
        SelectorKind::WinMargin | SelectorKind::Paired => win_margin(spec, tasks, tally),
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
    if tally.attempted == 0 || tally.invalid() > 0 {
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

fn win_margin(spec: &GateSpec, tasks: &[TaskRef], tally: &Tally) -> (Outcome, String) {
    if tally.valid == 0 || tally.invalid() as f64 > spec.maximum_invalid * tally.attempted as f64 {
        return (Outcome::Invalid, tally.invalid_words());
    }
    if let Some(task) = tally.fallen() {
        return (Outcome::Rejected, tally.harm_words(tasks, task));
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
