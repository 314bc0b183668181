//! Samples that wait for a batch, and when there is one.

use std::collections::{HashSet, VecDeque};

use sha2::{Digest, Sha256};

use super::{Exclusion, Sample, Serving};
use crate::domain::{BatchId, InvalidName, RecordId, ScenarioName};
use crate::recipe::{BatchSpec, ProcessorKind, ProcessorSpec, Recipe};

/// What counts as one in `batch.size`: a sample, or a complete group.
#[derive(Debug, Clone, PartialEq)]
pub struct Unit {
    /// Its samples, in order of arrival.
    pub samples: Vec<Sample>,
}

/// A batch, decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Sealed {
    /// The same inputs give the same id.
    pub id: BatchId,
    /// What trains.
    pub train: Vec<Sample>,
    /// What is kept for the gate.
    pub holdout: Vec<Sample>,
}

/// Whether a batch may be sealed before it is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    /// By the recipe's batching.
    Ready,
    /// With whatever is complete: a person asked for a step.
    Now,
}

/// Samples that wait.
#[derive(Debug, Clone)]
pub struct Pool {
    processor: ProcessorSpec,
    batch: BatchSpec,
    waiting: VecDeque<Sample>,
    sources: HashSet<RecordId>,
}

impl Pool {
    /// An empty pool of a recipe.
    pub fn new(recipe: &Recipe) -> Self {
        Self {
            processor: recipe.processor.clone(),
            batch: recipe.batch.clone(),
            waiting: VecDeque::new(),
            sources: HashSet::new(),
        }
    }

    /// Whether an exchange is part of a waiting sample.
    pub fn holds(&self, source: &RecordId) -> bool {
        self.sources.contains(source)
    }

    /// How many samples wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the oldest waiting sample arrived.
    pub fn oldest_us(&self) -> Option<i64> {
        self.waiting.front().map(|sample| sample.arrived_us)
    }

    /// Takes a sample in order of arrival; what it displaces is returned with the reason.
    pub fn push(&mut self, sample: Sample) -> Vec<(Sample, Exclusion)> {
        let taken = sample.slot.is_some()
            && self
                .waiting
                .iter()
                .any(|other| other.group == sample.group && other.slot == sample.slot);
        if taken {
            return vec![(sample, Exclusion::SlotTaken)];
        }
        self.sources.extend(sample.sources.iter().cloned());
        self.waiting.push_back(sample);
        let mut out = Vec::new();
        while self.waiting.len() > self.batch.maximum_pending {
            let Some(oldest) = self.waiting.pop_front() else { break };
            out.push((oldest, Exclusion::QueueFull));
        }
        self.forget(&out);
        out
    }

    /// Removes what can no longer train: too old for the window, or part of a group that will not be complete.
    pub fn expire(&mut self, serving: &Serving, now_us: i64) -> Vec<(Sample, Exclusion)> {
        let mut out = Vec::new();
        let waiting = std::mem::take(&mut self.waiting);
        for sample in waiting {
            let stale = if self.processor.kind == ProcessorKind::Demonstration {
                None
            } else {
                serving.admit(&sample.produced, &self.batch).err()
            };
            match stale {
                Some(reason) => out.push((sample, Exclusion::Stale(reason))),
                None => self.waiting.push_back(sample),
            }
        }
        if self.processor.kind == ProcessorKind::Grouped && self.batch.max_wait_s > 0.0 {
            let complete: HashSet<String> = self.complete_groups().into_iter().collect();
            let waiting = std::mem::take(&mut self.waiting);
            for sample in waiting {
                let whole = sample.group.as_ref().is_some_and(|group| complete.contains(group));
                if !whole && self.waited(&sample, now_us) {
                    out.push((sample, Exclusion::GroupIncomplete));
                } else {
                    self.waiting.push_back(sample);
                }
            }
        }
        if self.processor.kind == ProcessorKind::Grouped && self.processor.skip_equal_scores {
            for group in self.complete_groups() {
                let members: Vec<&Sample> = self.members(&group).collect();
                let first = members.first().and_then(|sample| sample.reward);
                if members.iter().all(|sample| sample.reward == first) {
                    let (equal, rest) = std::mem::take(&mut self.waiting)
                        .into_iter()
                        .partition::<Vec<_>, _>(|sample| sample.group.as_deref() == Some(group.as_str()));
                    self.waiting = rest.into();
                    out.extend(equal.into_iter().map(|sample| (sample, Exclusion::EqualScores)));
                }
            }
        }
        self.forget(&out);
        out
    }

    /// The next batch, if there is one. It stays in the pool until [`Pool::remove`].
    pub fn seal(&self, scenario: &ScenarioName, seal: Seal, now_us: i64) -> Result<Option<Sealed>, InvalidName> {
        let (train, holdout): (Vec<Unit>, Vec<Unit>) = self
            .units()
            .into_iter()
            .partition(|unit| !held_out(&unit.samples[0].session, self.batch.holdout));
        let waited = train
            .iter()
            .flat_map(|unit| &unit.samples)
            .any(|sample| self.batch.max_wait_s > 0.0 && self.waited(sample, now_us));
        let enough = train.len() >= self.batch.size || (!train.is_empty() && (waited || seal == Seal::Now));
        if !enough {
            return Ok(None);
        }
        let flatten = |units: Vec<Unit>| units.into_iter().flat_map(|unit| unit.samples).collect::<Vec<_>>();
        let train = flatten(train.into_iter().take(self.batch.size).collect());
        // Held-out samples that arrived with the batch go with it, so that they are settled too.
        let holdout = flatten(holdout);
        Ok(Some(Sealed {
            id: batch_id(scenario, &train, &holdout)?,
            train,
            holdout,
        }))
    }

    /// Forgets the samples of a batch, or ones that turned out not to train.
    pub fn remove<'a>(&mut self, samples: impl IntoIterator<Item = &'a Sample>) {
        let gone: HashSet<i64> = samples.into_iter().map(|sample| sample.sequence).collect();
        self.waiting.retain(|sample| !gone.contains(&sample.sequence));
        self.sources = self
            .waiting
            .iter()
            .flat_map(|sample| sample.sources.iter().cloned())
            .collect();
    }

    /// Units that are complete, oldest first.
    fn units(&self) -> Vec<Unit> {
        if self.processor.kind != ProcessorKind::Grouped {
            return self
                .waiting
                .iter()
                .map(|sample| Unit {
                    samples: vec![sample.clone()],
                })
                .collect();
        }
        self.complete_groups()
            .iter()
            .map(|group| Unit {
                samples: self.members(group).take(self.batch.group_size).cloned().collect(),
            })
            .collect()
    }

    /// Names of groups with all their members, by the arrival of their last needed member.
    fn complete_groups(&self) -> Vec<String> {
        let mut counts: std::collections::HashMap<&str, usize> = std::collections::HashMap::new();
        let mut complete = Vec::new();
        for group in self.waiting.iter().filter_map(|sample| sample.group.as_deref()) {
            let count = counts.entry(group).or_default();
            *count += 1;
            if *count == self.batch.group_size {
                complete.push(group.to_owned());
            }
        }
        complete
    }

    fn members<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.waiting
            .iter()
            .filter(move |sample| sample.group.as_deref() == Some(group))
    }

    fn waited(&self, sample: &Sample, now_us: i64) -> bool {
        (now_us - sample.arrived_us) as f64 / 1e6 >= self.batch.max_wait_s
    }

    fn forget(&mut self, gone: &[(Sample, Exclusion)]) {
        if !gone.is_empty() {
            self.sources = self
                .waiting
                .iter()
                .flat_map(|sample| sample.sources.iter().cloned())
                .collect();
        }
    }
}

/// Whether a session is kept for the gate: the same session always is or never is.
fn held_out(session: &str, share: f64) -> bool {
    let digest = Sha256::digest(session.as_bytes());
    let mut word = [0u8; 8];
    word.copy_from_slice(&digest[..8]);
    (u64::from_be_bytes(word) as f64 / u64::MAX as f64) < share
}

fn batch_id(scenario: &ScenarioName, train: &[Sample], holdout: &[Sample]) -> Result<BatchId, InvalidName> {
    let mut hash = Sha256::new();
    hash.update(scenario.as_str());
    for (name, samples) in [("train", train), ("holdout", holdout)] {
        for sample in samples {
            hash.update([0]);
            hash.update(name);
            for record in sample.records() {
                hash.update([0]);
                hash.update(record.as_str());
            }
            hash.update(sample.reward.map_or([0; 8], f64::to_le_bytes));
        }
    }
    BatchId::new(format!("batch-{}", &hex::encode(hash.finalize())[..24]))
}
