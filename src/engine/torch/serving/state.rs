//! Who runs next. A pure state machine: sequences come in, wait their scenario's turn for a slot, have their prompts
//! computed in chunks, then take part in every step until they end.
//!
//! Fairness is by tokens served: of the scenarios that wait, the one that was served least goes first, and one that
//! comes back after a pause starts level with the others (Sheng et al. 2024, arXiv 2401.00588). Unlike a deficit round
//! robin it needs no guess of an answer's length.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::domain::ScenarioName;

/// One answer being generated, or waiting to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SequenceId(pub(crate) u64);

/// The bounds of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Sequences that run at once.
    pub(crate) slots: usize,
    /// Prompt tokens of one step when nothing else runs.
    pub(crate) prompt_chunk: usize,
    /// Prompt tokens of one step while answers are being generated: the price of a step for those who wait for a token.
    pub(crate) prompt_chunk_beside_answers: usize,
    /// Sequences that may wait, of all scenarios together.
    pub(crate) waiting: usize,
    /// Sequences that may wait of one scenario.
    pub(crate) waiting_per_scenario: usize,
}

/// The queue holds no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full {
    /// How many wait.
    pub(crate) waiting: usize,
}

/// What a generated token weighs against a token of a prompt: it costs a step of its own.
const ANSWER_TOKEN_WEIGHT: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    /// This many tokens of the prompt are computed.
    Prompt(usize),
    Answer,
}

#[derive(Debug)]
struct Entry {
    scenario: ScenarioName,
    prompt: usize,
    /// Another answer to the same prompt, whose computation this one will copy.
    after: Option<SequenceId>,
    phase: Phase,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<SequenceId>,
    running: usize,
    served: u64,
    /// When it last got a slot, counted in slots given; breaks ties.
    last_turn: u64,
}

/// The state.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    entries: HashMap<SequenceId, Entry>,
    queues: BTreeMap<ScenarioName, Queue>,
    /// In the order of admission.
    running: Vec<SequenceId>,
    waiting: usize,
    turns: u64,
}

/// A sequence's share of the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// The next `n` tokens of its prompt; `last` if they complete it.
    Prompt { n: usize, last: bool },
    /// Its newest token.
    Answer,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            queues: BTreeMap::new(),
            running: Vec::new(),
            waiting: 0,
            turns: 0,
        }
    }

    /// Takes a sequence in, to wait. `after` names one with the same prompt.
    pub(crate) fn submit(
        &mut self,
        id: SequenceId,
        scenario: &ScenarioName,
        prompt: usize,
        after: Option<SequenceId>,
    ) -> Result<(), Full> {
        let of_scenario = self.queues.get(scenario).map_or(0, |queue| queue.waiting.len());
        if self.waiting >= self.limits.waiting || of_scenario >= self.limits.waiting_per_scenario {
            return Err(Full { waiting: self.waiting });
        }
        let level = self.queues.values().map(|queue| queue.served).min();
        let queue = self.queues.entry(scenario.clone()).or_default();
        if queue.waiting.is_empty() && queue.running == 0 {
            queue.served = queue.served.max(level.unwrap_or(0));
        }
        queue.waiting.push_back(id);
        self.waiting += 1;
        self.entries.insert(
            id,
            Entry {
                scenario: scenario.clone(),
                prompt,
                after,
                phase: Phase::Waiting,
            },
        );
        Ok(())
    }

    /// The sequence that gets the next free slot, if there is one; tell its start by [`Self::start`].
    pub(crate) fn next(&self) -> Option<SequenceId> {
        if self.running.len() >= self.limits.slots {
            return None;
        }
        self.queues
            .values()
            .filter_map(|queue| {
                let id = queue.waiting.iter().find(|id| self.may_start(**id))?;
                Some((queue.served, queue.last_turn, *id))
            })
            .min()
            .map(|(_, _, id)| id)
    }

    /// Whether what it would copy has been computed, or will never be.
    fn may_start(&self, id: SequenceId) -> bool {
        let leader = self.entries.get(&id).and_then(|entry| entry.after);
        match leader.and_then(|leader| self.entries.get(&leader)) {
            Some(leader) => leader.phase == Phase::Answer,
            None => true,
        }
    }

    /// A waiting sequence has a slot that already holds `reused` tokens of its prompt.
    pub(crate) fn start(&mut self, id: SequenceId, reused: usize) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.phase != Phase::Waiting {
            return;
        }
        // The last token is always computed: its logits give the first token of the answer.
        entry.phase = Phase::Prompt(reused.min(entry.prompt.saturating_sub(1)));
        if let Some(queue) = self.queues.get_mut(&entry.scenario) {
            queue.waiting.retain(|waiting| *waiting != id);
            queue.running += 1;
            self.turns += 1;
            queue.last_turn = self.turns;
        }
        self.waiting -= 1;
        self.running.push(id);
    }

    /// What the next step computes. Every running answer gets its token; what is left of the step is shared evenly
    /// among prompts, so that a long one delays neither answers nor short prompts.
    pub(crate) fn plan(&self) -> Vec<(SequenceId, Work)> {
        let mut work = Vec::with_capacity(self.running.len());
        let mut prompts: Vec<(SequenceId, usize)> = Vec::new();
        for id in &self.running {
            match self.entries.get(id) {
                Some(Entry {
                    phase: Phase::Answer, ..
                }) => work.push((*id, Work::Answer)),
                Some(Entry {
                    phase: Phase::Prompt(done),
                    prompt,
                    ..
                }) => prompts.push((*id, prompt - done)),
                _ => {}
            }
        }
        let mut budget = if work.is_empty() {
            self.limits.prompt_chunk
        } else {
            self.limits.prompt_chunk_beside_answers
        };
        // The shortest first, so that what it leaves of its share goes to the others.
        let mut shares = prompts.clone();
        shares.sort_by_key(|(id, rest)| (*rest, *id));
        for (at, (id, rest)) in shares.iter().enumerate() {
            let n = (budget / (shares.len() - at)).max(1).min(*rest);
            budget = budget.saturating_sub(n);
            work.push((*id, Work::Prompt { n, last: n == *rest }));
        }
        work
    }

    /// A step did this piece of work.
    pub(crate) fn did(&mut self, id: SequenceId, work: Work) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let weight = match (work, entry.phase) {
            (Work::Prompt { n, last }, Phase::Prompt(done)) => {
                entry.phase = if last { Phase::Answer } else { Phase::Prompt(done + n) };
                n as u64 + if last { ANSWER_TOKEN_WEIGHT } else { 0 }
            }
            (Work::Answer, Phase::Answer) => ANSWER_TOKEN_WEIGHT,
            _ => 0,
        };
        if let Some(queue) = self.queues.get_mut(&entry.scenario) {
            queue.served += weight;
        }
    }

    /// A sequence ended or was given up, wherever it stood. True if it had a slot.
    pub(crate) fn remove(&mut self, id: SequenceId) -> bool {
        let Some(entry) = self.entries.remove(&id) else {
            return false;
        };
        let had_slot = entry.phase != Phase::Waiting;
        if let Some(queue) = self.queues.get_mut(&entry.scenario) {
            if had_slot {
                queue.running -= 1;
                self.running.retain(|running| *running != id);
            } else {
                queue.waiting.retain(|waiting| *waiting != id);
                self.waiting -= 1;
            }
            // A scenario without work needs no memory: when it comes back it starts level anyway. Keeping the last
            // one keeps the level.
            if queue.running == 0 && queue.waiting.is_empty() && self.queues.len() > 1 {
                self.queues.remove(&entry.scenario);
            }
        }
        had_slot
    }

    pub(crate) fn n_waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn n_running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests;
