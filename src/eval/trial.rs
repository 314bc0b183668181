//! One trial of a candidate: which task to run next on which side, and when enough is known. Pure: assignments out,
//! paired scores in, a verdict at the end. The rules themselves are in `rules`.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::rules::{Paired, Tally, fixed_verdict};
use crate::domain::{Outcome, PairedScore, Verdict};
use crate::recipe::{GateSpec, SelectorKind};

/// A task as the gate sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRef {
    /// Its id in the suite.
    pub id: String,
    /// It may not get worse.
    pub protected: bool,
}

/// How tasks are drawn by the paired rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Draw {
    /// Independently and uniformly, with repetition: the claim is about these tasks.
    Repeated,
    /// Each once, in random order: the claim is about the population that the tasks were drawn from.
    Once,
}

/// Which sides an assignment runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sides {
    /// Candidate and served release.
    Both,
    /// The candidate alone.
    CandidateOnly,
}

/// One thing to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Its place in the order of evidence.
    pub index: u64,
    /// Position of the task in the suite.
    pub task: usize,
    /// Which repetition of that task, from 0.
    pub repeat: u32,
    /// Which sides to run.
    pub sides: Sides,
    /// Run the candidate before the served release. It alternates, so that drift in time favours neither.
    pub candidate_first: bool,
}

/// A candidate under judgement.
#[derive(Debug, Clone)]
pub struct Trial {
    spec: GateSpec,
    tasks: Vec<TaskRef>,
    draw: Draw,
    seed: String,
    level: f64,
    order: Vec<usize>,
    repeats: Vec<u32>,
    applied_repeats: Vec<u32>,
    protected_left: Vec<(usize, u32)>,
    protected_retries: u32,
    issued: u64,
    drawn: u64,
    applied: u64,
    waiting: BTreeMap<u64, (usize, bool, PairedScore)>,
    drawn_index: BTreeMap<u64, (usize, bool)>,
    pairs: Vec<PairedScore>,
    tally: Tally,
    paired: Paired,
    ended: Option<(Outcome, String)>,
}

impl Trial {
    /// A trial over `tasks`. `level` is the error probability given to this candidate ([`super::level`]); `seed` fixes
    /// the draws, so that a repeated evaluation of the same candidate is the same.
    pub fn new(spec: GateSpec, tasks: Vec<TaskRef>, draw: Draw, level: f64, seed: impl Into<String>) -> Self {
        let seed = seed.into();
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        if draw == Draw::Once {
            order.sort_by_key(|task| random(&seed, "order", *task as u64));
        }
        let protected_left = if spec.selector == SelectorKind::Paired {
            tasks
                .iter()
                .enumerate()
                .filter(|(_, task)| task.protected)
                .map(|(index, _)| (index, spec.protected_repeats))
                .collect()
        } else {
            Vec::new()
        };
        let paired = Paired::new(&spec, level);
        Self {
            repeats: vec![0; tasks.len()],
            applied_repeats: vec![0; tasks.len()],
            tally: Tally::new(&spec, &tasks),
            protected_left,
            protected_retries: 0,
            order,
            level,
            issued: 0,
            drawn: 0,
            applied: 0,
            waiting: BTreeMap::new(),
            drawn_index: BTreeMap::new(),
            pairs: Vec::new(),
            paired,
            ended: None,
            spec,
            tasks,
            draw,
            seed,
        }
    }

    /// Up to `n` further assignments; none when the trial is over or waits for results.
    pub fn next(&mut self, n: usize) -> Vec<Assignment> {
        let mut out = Vec::new();
        while out.len() < n && self.ended.is_none() {
            let Some((task, counts)) = self.choose() else { break };
            let repeat = self.repeats[task];
            self.repeats[task] += 1;
            let index = self.issued;
            self.issued += 1;
            self.drawn_index.insert(index, (task, counts));
            out.push(Assignment {
                index,
                task,
                repeat,
                sides: if self.spec.selector == SelectorKind::Floor {
                    Sides::CandidateOnly
                } else {
                    Sides::Both
                },
                candidate_first: index.is_multiple_of(2),
            });
        }
        out
    }

    /// The next task, and whether its pair is evidence for the sequential test.
    fn choose(&mut self) -> Option<(usize, bool)> {
        if self.tasks.is_empty() {
            return None;
        }
        if self.spec.selector != SelectorKind::Paired {
            let total = self.tasks.len() as u64 * u64::from(self.spec.repeats);
            return (self.issued < total).then(|| {
                let task = usize::try_from(self.issued / u64::from(self.spec.repeats)).unwrap_or(0);
                (task, false)
            });
        }
        if let Some((task, left)) = self.protected_left.first_mut() {
            let task = *task;
            *left -= 1;
            if *left == 0 {
                self.protected_left.remove(0);
            }
            return Some((task, false));
        }
        // The protected tasks must be known to hold before anything is spent on the rest.
        if self.drawn == 0 && self.applied < self.issued {
            return None;
        }
        if self.drawn >= u64::from(self.spec.maximum_pairs) {
            return None;
        }
        let task = match self.draw {
            Draw::Repeated => {
                let word = random(&self.seed, "draw", self.drawn);
                usize::try_from(word % self.tasks.len() as u64).unwrap_or(0)
            }
            Draw::Once => *self.order.get(usize::try_from(self.drawn).ok()?)?,
        };
        self.drawn += 1;
        Some((task, true))
    }

    /// Takes one result. Results may arrive in any order; they become evidence in the order of their assignments.
    pub fn record(&mut self, index: u64, candidate: Option<f64>, current: Option<f64>, failure: Option<String>) {
        let Some((task, counts)) = self.drawn_index.remove(&index) else {
            return;
        };
        let pair = self.measured(task, candidate, current, failure);
        self.waiting.insert(index, (task, counts, pair));
        while let Some((task, counts, mut pair)) = self.waiting.remove(&self.applied) {
            self.applied += 1;
            if self.ended.is_some() {
                continue;
            }
            pair.repeat = self.applied_repeats[task];
            self.applied_repeats[task] += 1;
            let difference = self.tally.add(task, &pair);
            self.pairs.push(pair);
            if self.spec.selector == SelectorKind::Paired {
                self.after_pair(counts.then_some(difference).flatten(), counts);
            }
        }
    }

    /// Scores a checker cannot give are failures to measure, not evidence.
    fn measured(
        &self,
        task: usize,
        candidate: Option<f64>,
        current: Option<f64>,
        mut failure: Option<String>,
    ) -> PairedScore {
        let [low, high] = self.spec.score_range;
        let mut sound = |side: &str, score: Option<f64>| match score {
            Some(value) if !(low..=high).contains(&value) => {
                failure.get_or_insert_with(|| format!("{side} score {value} lies outside {low}..{high}"));
                None
            }
            other => other,
        };
        PairedScore {
            task: self.tasks[task].id.clone(),
            repeat: 0,
            candidate: sound("candidate", candidate),
            current: sound("served", current),
            protected: self.tasks[task].protected,
            failure,
            ..PairedScore::default()
        }
    }

    fn after_pair(&mut self, evidence: Option<f64>, counts: bool) {
        if let Some(difference) = evidence {
            self.paired.observe(difference);
        }
        if let Some(reason) = self.tally.too_many_invalid(&self.spec) {
            self.ended = Some((Outcome::Invalid, reason));
            return;
        }
        if !counts {
            self.after_protected();
            return;
        }
        self.ended = self.paired.decision(&self.spec, &self.tally);
        if self.ended.is_none() && self.applied == self.issued && self.nothing_left() {
            self.ended = Some(self.paired.exhausted(&self.spec));
        }
    }

    /// When the protected tasks have all been run: one that fell ends the trial, one not measured is run again.
    fn after_protected(&mut self) {
        if !self.protected_left.is_empty() || self.applied < self.issued {
            return;
        }
        if let Some(reason) = self.tally.protected_fault(&self.spec) {
            self.ended = Some((Outcome::Rejected, reason));
            return;
        }
        let missing = self.tally.protected_missing(&self.spec);
        if missing.is_empty() {
            return;
        }
        if self.protected_retries == 2 {
            let name = &self.tasks[missing[0].0].id;
            self.ended = Some((
                Outcome::Invalid,
                format!("protected task {name} could not be measured often enough"),
            ));
        } else {
            self.protected_retries += 1;
            self.protected_left = missing;
        }
    }

    fn nothing_left(&self) -> bool {
        let limit = match self.draw {
            Draw::Repeated => u64::from(self.spec.maximum_pairs),
            Draw::Once => u64::from(self.spec.maximum_pairs).min(self.tasks.len() as u64),
        };
        self.protected_left.is_empty() && self.drawn >= limit
    }

    /// Whether the verdict is known or everything planned has been measured.
    pub fn is_over(&self) -> bool {
        self.ended.is_some()
            || self.tasks.is_empty()
            || (self.spec.selector != SelectorKind::Paired
                && self.applied == self.tasks.len() as u64 * u64::from(self.spec.repeats))
    }

    /// Pairs in evidence so far.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// The verdict on what has been measured. An unfinished trial gives what its rule says of the measurements so far,
    /// which for `paired` is `inconclusive`.
    pub fn verdict(mut self, evaluator: &str) -> Verdict {
        let (outcome, reason) = match self.ended.take() {
            Some(ended) => ended,
            None if self.spec.selector == SelectorKind::Paired && self.tasks.is_empty() => {
                (Outcome::Invalid, "there is no task to measure".to_owned())
            }
            None if self.spec.selector == SelectorKind::Paired => self.paired.exhausted(&self.spec),
            None => fixed_verdict(&self.spec, &self.tally, &self.pairs),
        };
        let reason = match self.tally.suspicion() {
            Some(suspicion) => format!("{reason}; {suspicion}"),
            None => reason,
        };
        let mut figures = self.tally.figures();
        if self.spec.selector == SelectorKind::Paired {
            self.paired.figures(&self.spec, self.level, &mut figures);
        }
        Verdict {
            outcome,
            selector: self.spec.selector.as_str().to_owned(),
            reason,
            evaluator: evaluator.to_owned(),
            pairs: self.pairs,
            figures,
        }
    }
}

/// A reproducible random word: the same on every machine and in every version.
fn random(seed: &str, purpose: &str, index: u64) -> u64 {
    let mut hash = Sha256::new();
    hash.update(seed.as_bytes());
    hash.update([0]);
    hash.update(purpose.as_bytes());
    hash.update(index.to_le_bytes());
    let digest = hash.finalize();
    let mut word = [0u8; 8];
    word.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(word)
}
