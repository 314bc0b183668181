//! One trial of a candidate: which task to run next on which side, and when enough is known. Pure: assignments out,
//! paired scores in, a verdict at the end. The rules themselves are in `rules`.

use std::collections::BTreeMap;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::against::Against;
use super::paired::Paired;
use super::rules::{Evidence, Measured, Tally, fixed_verdict};
use super::score::SideScore;
use crate::domain::{Outcome, PairedScore, Verdict};
use crate::recipe::{GateSpec, SelectorKind};

/// Below this many tasks, a suite that is answered greedily says little about tasks it does not hold.
const FEW_GREEDY_TASKS: usize = 100;

/// A task as the gate sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRef {
    /// Its id in the suite.
    pub id: String,
    /// It may not get worse.
    pub protected: bool,
    /// Its answers cannot come out differently (greedy decoding by fixed weights, scored by a rule), so that one pair tells
    /// all there is to know of it.
    pub exact: bool,
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
    /// The served release alone, for the reference.
    ServedOnly,
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

/// What a measurement is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A rule with a fixed plan.
    Plan,
    /// The reference of the served release.
    Reference,
    /// A protected task.
    Protected,
    /// Evidence for the sequential test.
    Draw,
}

/// The sequential test in use.
#[derive(Debug, Clone)]
enum Test {
    Pairs(Box<Paired>),
    Reference(Box<Against>),
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
    protected_issued: Vec<u32>,
    /// The evidence suffices; only suspected protected tasks are still looked at.
    winning: Option<String>,
    issued: u64,
    drawn: u64,
    applied: u64,
    waiting: BTreeMap<u64, (usize, Purpose, Measured)>,
    asked: BTreeMap<u64, (usize, Purpose)>,
    pairs: Vec<PairedScore>,
    tally: Tally,
    test: Test,
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
                .map(|(index, task)| (index, if task.exact { 1 } else { spec.protected_repeats }))
                .collect()
        } else {
            Vec::new()
        };
        let test = if spec.reference > 0 && draw == Draw::Repeated && spec.selector == SelectorKind::Paired {
            Test::Reference(Box::new(Against::new(&spec, tasks.len(), level)))
        } else {
            Test::Pairs(Box::new(Paired::new(&spec, level)))
        };
        Self {
            repeats: vec![0; tasks.len()],
            applied_repeats: vec![0; tasks.len()],
            protected_issued: vec![0; tasks.len()],
            tally: Tally::new(&spec, &tasks),
            protected_left,
            winning: None,
            order,
            level,
            issued: 0,
            drawn: 0,
            applied: 0,
            waiting: BTreeMap::new(),
            asked: BTreeMap::new(),
            pairs: Vec::new(),
            test,
            ended: None,
            spec,
            tasks,
            draw,
            seed,
        }
    }

    /// With earlier scores of the served release, each of a run of its own: they are part of the reference. Tasks that the
    /// trial does not know are passed over. Does nothing unless the gate has a reference.
    #[must_use]
    pub fn with_reference<'a>(mut self, known: impl IntoIterator<Item = (&'a str, f64)>) -> Self {
        if let Test::Reference(against) = &mut self.test {
            let place: BTreeMap<&str, usize> = self
                .tasks
                .iter()
                .enumerate()
                .map(|(i, task)| (task.id.as_str(), i))
                .collect();
            for (task, score) in known {
                if let Some(task) = place.get(task) {
                    against.served(*task, score);
                    // A repetition is one run for ever: the next one samples anew.
                    self.repeats[*task] += 1;
                }
            }
        }
        self
    }

    /// Up to `n` further assignments; none when the trial is over or waits for results.
    pub fn next(&mut self, n: usize) -> Vec<Assignment> {
        let mut out = Vec::new();
        while out.len() < n && self.ended.is_none() {
            let Some((task, purpose)) = self.choose() else { break };
            let repeat = self.repeats[task];
            self.repeats[task] += 1;
            let index = self.issued;
            self.issued += 1;
            self.asked.insert(index, (task, purpose));
            out.push(Assignment {
                index,
                task,
                repeat,
                sides: match (&self.test, purpose) {
                    (_, Purpose::Reference) => Sides::ServedOnly,
                    (Test::Reference(_), Purpose::Draw) => Sides::CandidateOnly,
                    _ if self.spec.selector == SelectorKind::Floor => Sides::CandidateOnly,
                    _ => Sides::Both,
                },
                candidate_first: index.is_multiple_of(2),
            });
        }
        out
    }

    fn choose(&mut self) -> Option<(usize, Purpose)> {
        if self.tasks.is_empty() {
            return None;
        }
        if self.spec.selector != SelectorKind::Paired {
            let total = self.tasks.len() as u64 * u64::from(self.spec.repeats);
            return (self.issued < total).then(|| {
                let task = usize::try_from(self.issued / u64::from(self.spec.repeats)).unwrap_or(0);
                (task, Purpose::Plan)
            });
        }
        if let Some((task, left)) = self.protected_left.first_mut() {
            let task = *task;
            *left -= 1;
            if *left == 0 {
                self.protected_left.remove(0);
            }
            self.protected_issued[task] += 1;
            return Some((task, Purpose::Protected));
        }
        // The protected tasks must be known to hold, and the reference complete, before anything is spent on the rest.
        let waits = self.applied < self.issued;
        if self.winning.is_some() || (self.drawn == 0 && waits && !self.measures_reference()) {
            return None;
        }
        if let Test::Reference(against) = &mut self.test {
            if let Some(number) = against.next_served() {
                let known: u32 = self.repeats.iter().sum();
                let word = random(&self.seed, "reference", number + u64::from(known));
                return Some((
                    usize::try_from(word % self.tasks.len() as u64).unwrap_or(0),
                    Purpose::Reference,
                ));
            }
            if !against.complete() {
                return None;
            }
        }
        if self.drawn >= self.limit() {
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
        Some((task, Purpose::Draw))
    }

    fn measures_reference(&self) -> bool {
        matches!(&self.test, Test::Reference(against) if !against.complete() && self.protected_left.is_empty())
    }

    /// Draws that may be spent on the sequential test. A candidate that is measured alone costs half a pair.
    fn limit(&self) -> u64 {
        let pairs = u64::from(self.spec.maximum_pairs);
        match (&self.test, self.draw) {
            (Test::Reference(_), _) => 2 * pairs,
            (Test::Pairs(_), Draw::Repeated) => pairs,
            (Test::Pairs(_), Draw::Once) => pairs.min(self.tasks.len() as u64),
        }
    }

    /// Takes one result; a side that was not asked is `None`. Results may arrive in any order; they become evidence in the
    /// order of their assignments.
    pub fn record(&mut self, index: u64, candidate: Option<SideScore>, served: Option<SideScore>) {
        let Some((task, purpose)) = self.asked.remove(&index) else {
            return;
        };
        let measured = Measured::new(&self.spec, &self.tasks[task], candidate, served);
        self.waiting.insert(index, (task, purpose, measured));
        while let Some((task, purpose, measured)) = self.waiting.remove(&self.applied) {
            self.applied += 1;
            if self.ended.is_none() {
                self.apply(task, purpose, measured);
            }
        }
    }

    fn apply(&mut self, task: usize, purpose: Purpose, mut measured: Measured) {
        if purpose == Purpose::Reference {
            if let Test::Reference(against) = &mut self.test {
                against.measured(task, &measured.score.task, measured.score.current);
                if against.out_of_reach() {
                    let reason = format!("the served release could not be measured: {}", words(&measured.score));
                    self.ended = Some((Outcome::Invalid, reason));
                }
            }
            self.after_protected();
            return;
        }
        let both = match (&self.test, purpose) {
            (Test::Reference(_), Purpose::Draw) => false,
            _ => self.spec.selector != SelectorKind::Floor,
        };
        measured.score.repeat = self.applied_repeats[task];
        self.applied_repeats[task] += 1;
        let evidence = self.tally.add(task, &measured, both);
        self.pairs.push(measured.score);
        if self.spec.selector == SelectorKind::Paired {
            self.after_pair(task, purpose, evidence);
        }
    }

    fn after_pair(&mut self, task: usize, purpose: Purpose, evidence: Evidence) {
        let counts = purpose == Purpose::Draw && self.winning.is_none();
        if counts {
            match (&mut self.test, evidence) {
                (Test::Pairs(paired), Evidence::Difference(difference)) => paired.observe(difference),
                (Test::Pairs(paired), Evidence::CandidateUnmeasured(Some(served))) => {
                    paired.candidate_unmeasured(served);
                }
                (Test::Pairs(paired), Evidence::ServedUnmeasured) => paired.served_unmeasured(),
                (Test::Reference(against), Evidence::Alone(score)) => against.candidate(task, score),
                (Test::Reference(against), Evidence::CandidateUnmeasured(_)) => against.candidate_unmeasured(task),
                _ => {}
            }
        }
        if let Some(task) = self.tally.harmed() {
            self.ended = Some((Outcome::Rejected, self.tally.harm_words(&self.tasks, task)));
            return;
        }
        if purpose == Purpose::Protected || self.winning.is_some() {
            self.after_protected();
            return;
        }
        if let Some(reason) = self.tally.broken() {
            self.ended = Some((Outcome::Invalid, reason));
            return;
        }
        let decision = match &self.test {
            Test::Pairs(paired) => paired.decision(&self.spec),
            Test::Reference(against) => against.decision(&self.spec),
        };
        match decision {
            Some((Outcome::Selected, reason)) => {
                self.winning = Some(reason);
                self.after_protected();
            }
            Some(ended) => self.ended = Some(ended),
            None if self.applied == self.issued && self.nothing_left() => self.ended = Some(self.exhausted()),
            None => {}
        }
    }

    /// Looks at the protected tasks once nothing of theirs is under way: what could not be measured, or seems to have got
    /// worse, is run again. A win that waits for them is decided when there is no doubt left.
    fn after_protected(&mut self) {
        if self.ended.is_some() || !self.protected_left.is_empty() || self.applied < self.issued {
            return;
        }
        let (repeats, maximum) = (
            self.spec.protected_repeats,
            self.spec.protected_maximum.max(self.spec.protected_repeats),
        );
        for (index, task) in self.tasks.iter().enumerate() {
            let Some(harm) = self.tally.harm(index) else { continue };
            let wanted = if task.exact { 1 } else { repeats };
            let missing = wanted.saturating_sub(harm.pairs());
            let more = if missing > 0 {
                missing
            } else if harm.settled(maximum) {
                continue;
            } else {
                1
            };
            if self.protected_issued[index] >= 3 * if missing > 0 { wanted } else { maximum } {
                self.ended = Some((
                    Outcome::Invalid,
                    format!("protected task {} could not be measured often enough", task.id),
                ));
                return;
            }
            self.protected_left.push((index, more));
        }
        if self.protected_left.is_empty()
            && let Some(reason) = self.winning.take()
        {
            self.ended = Some((Outcome::Selected, reason));
        }
    }

    fn nothing_left(&self) -> bool {
        let whole = match &self.test {
            Test::Reference(against) => against.complete(),
            Test::Pairs(_) => true,
        };
        whole && self.protected_left.is_empty() && self.drawn >= self.limit()
    }

    fn exhausted(&self) -> (Outcome, String) {
        match &self.test {
            Test::Pairs(paired) => paired.exhausted(&self.spec),
            Test::Reference(against) => against.exhausted(&self.spec),
        }
    }

    /// Whether the verdict is known or everything planned has been measured.
    pub fn is_over(&self) -> bool {
        self.ended.is_some()
            || self.tasks.is_empty()
            || (self.spec.selector != SelectorKind::Paired
                && self.applied == self.tasks.len() as u64 * u64::from(self.spec.repeats))
    }

    /// Measurements in evidence so far, the reference left out.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// The runs of the served release that this trial added to the reference: task and score.
    pub fn fresh_reference(&self) -> &[(String, f64)] {
        match &self.test {
            Test::Reference(against) => against.fresh(),
            Test::Pairs(_) => &[],
        }
    }

    /// The verdict on what has been measured. An unfinished trial gives what its rule says of the measurements so far,
    /// which for `paired` is `inconclusive`.
    pub fn verdict(mut self, evaluator: &str) -> Verdict {
        let (outcome, reason) = match self.ended.take() {
            Some(ended) => ended,
            None if self.spec.selector == SelectorKind::Paired && self.tasks.is_empty() => {
                (Outcome::Invalid, "there is no task to measure".to_owned())
            }
            None if self.spec.selector == SelectorKind::Paired => self.exhausted(),
            None => fixed_verdict(&self.spec, &self.tasks, &self.tally, &self.pairs),
        };
        let reason = match self.tally.suspicion() {
            Some(suspicion) => format!("{reason}; {suspicion}"),
            None => reason,
        };
        let mut figures = self.tally.figures();
        if self.spec.selector == SelectorKind::Paired {
            match &self.test {
                Test::Pairs(paired) => paired.figures(&mut figures),
                Test::Reference(against) => against.figures(&mut figures),
            }
            figures.insert("level".into(), json!(self.level));
            figures.insert("alpha".into(), json!(self.spec.alpha));
            figures.insert("minimum_effect".into(), json!(self.spec.minimum_effect));
            figures.insert("maximum_pairs".into(), json!(self.spec.maximum_pairs));
            figures.insert("claim".into(), json!(self.claim()));
            let exact = self.tasks.iter().filter(|task| task.exact).count();
            if self.draw == Draw::Repeated && 2 * exact > self.tasks.len() && self.tasks.len() < FEW_GREEDY_TASKS {
                figures.insert(
                    "warning".into(),
                    json!(format!(
                        "most of the {} tasks are answered greedily: the verdict says little about other tasks; sample the \
                         answers (temperature above 0), or use at least {FEW_GREEDY_TASKS} tasks",
                        self.tasks.len()
                    )),
                );
            }
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

    /// What the error bound is about.
    fn claim(&self) -> String {
        match self.draw {
            Draw::Repeated => format!("the mean over these {} tasks", self.tasks.len()),
            Draw::Once => "the population that the prompts come from".to_owned(),
        }
    }
}

fn words(score: &PairedScore) -> &str {
    score.failure.as_deref().unwrap_or("no reason was given")
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
