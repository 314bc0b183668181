//! The engine thread: it alone touches weights and cache. It takes commands, asks the scheduler what to compute,
//! computes it, samples, and tells the replies. Everything it decides is decided in `state`, `slots` and `loads`.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::RwLock;
use tch::{Device, Tensor};
use tokio::sync::{mpsc, oneshot};

use super::constraint::Constraint;
use super::loads::{Load, LoadRefusal, Loads};
use super::sampler::seed_of_choice;
use super::sequence::{GenerationEvent, Goal, Progress, Refusal, Sequence};
use super::slots::{CacheKey, Slots};
use super::state::{Limits, Scheduler, SequenceId, Work};
use super::vocabulary::Vocabulary;
use crate::domain::{RuntimeLoadId, ScenarioName};
use crate::engine::torch::model::{ForwardRow, KvCache, LogitsOf, Model, ServingLora};
use crate::engine::torch::{OnSwap, Residency};
use crate::sys::failpoint;
use crate::sys::task::{self, Lost};

/// What a load serves with. Belongs to the engine thread.
#[derive(Debug, Clone)]
pub(crate) struct Weights {
    model: Rc<Model>,
    adapter: Option<Rc<ServingLora>>,
}

pub(crate) type ServingLoad = Load<Weights>;

/// A request, ready to generate.
pub(crate) struct Submission {
    pub(crate) scenario: ScenarioName,
    pub(crate) frozen: Option<RuntimeLoadId>,
    pub(crate) goal: Goal,
    pub(crate) n: usize,
    pub(crate) constraint: Option<Constraint>,
    pub(crate) events: mpsc::Sender<GenerationEvent>,
}

/// New weights on their way in.
pub(crate) enum Incoming {
    /// An adapter beside the base model.
    Adapter(ServingLora),
    /// A whole model.
    Full(Box<Model>),
    /// Back to the base model.
    Base,
}

/// What the engine thread is told.
pub(crate) enum Command {
    Submit(Box<Submission>),
    Install {
        scenario: ScenarioName,
        weights: Incoming,
        reply: oneshot::Sender<Result<RuntimeLoadId, LoadRefusal>>,
    },
    Stop,
}

/// What others may see of the engine without asking it.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The current load of each scenario that has had another than its first.
    pub(crate) current: RwLock<HashMap<ScenarioName, RuntimeLoadId>>,
    pub(crate) residency: RwLock<Residency>,
    pub(crate) running: AtomicU64,
    pub(crate) waiting: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) reused_tokens: AtomicU64,
    pub(crate) generated_tokens: AtomicU64,
    pub(crate) finished: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) swaps: AtomicU64,
    pub(crate) longest_swap_us: AtomicU64,
}

/// Everything the engine thread starts with.
pub(crate) struct Start {
    pub(crate) model: Model,
    pub(crate) cache: KvCache,
    pub(crate) vocabulary: Arc<Vocabulary>,
    pub(crate) limits: Limits,
    pub(crate) capacity: usize,
    pub(crate) on_swap: OnSwap,
    pub(crate) process: String,
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: mpsc::Receiver<Command>,
}

/// Runs until told to stop, or until nobody is left to tell anything.
pub(crate) fn run(start: Start) {
    let base = Weights {
        model: Rc::new(start.model),
        adapter: None,
    };
    let width = start.vocabulary.len();
    let mut engine = EngineThread {
        slots: Slots::new(start.cache.n_slots()),
        cache: start.cache,
        loads: Loads::new(start.process, base, start.capacity),
        scheduler: Scheduler::new(start.limits),
        limits: start.limits,
        sequences: HashMap::new(),
        vocabulary: start.vocabulary,
        on_swap: start.on_swap,
        shared: start.shared,
        next_id: 0,
        line: vec![0.0; width],
    };
    let mut commands = start.commands;
    loop {
        if engine.scheduler.is_idle() {
            match commands.blocking_recv() {
                Some(Command::Stop) | None => return,
                Some(command) => engine.obey(command),
            }
        }
        loop {
            match commands.try_recv() {
                Ok(Command::Stop) | Err(mpsc::error::TryRecvError::Disconnected) => return,
                Ok(command) => engine.obey(command),
                Err(mpsc::error::TryRecvError::Empty) => break,
            }
        }
        let done = task::guard("a step of the engine", || {
            engine.drop_abandoned();
            engine.admit();
            engine.step();
        });
        if let Err(lost) = done {
            engine.start_over(&lost);
        }
        engine.publish_counts();
    }
}

struct EngineThread {
    cache: KvCache,
    slots: Slots,
    loads: Loads<Weights>,
    scheduler: Scheduler,
    limits: Limits,
    sequences: HashMap<SequenceId, Sequence>,
    vocabulary: Arc<Vocabulary>,
    on_swap: OnSwap,
    shared: Arc<Shared>,
    next_id: u64,
    /// One line of logits.
    line: Vec<f32>,
}

impl EngineThread {
    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(*submission),
            Command::Install {
                scenario,
                weights,
                reply,
            } => {
                // Whoever asked may have stopped waiting; the swap holds all the same.
                let begin = Instant::now();
                let installed = self.install(&scenario, weights);
                let took = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.shared.longest_swap_us.fetch_max(took, Ordering::Relaxed);
                let _gone = reply.send(installed);
            }
            Command::Stop => {}
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission {
            scenario,
            frozen,
            goal,
            n,
            constraint,
            events,
        } = submission;
        let refuse = |refusal| {
            let _gone = events.try_send(GenerationEvent::Refused(refusal));
        };
        let Ok(load) = self.loads.lease(&scenario, frozen.as_ref()) else {
            refuse(Refusal::LoadGone);
            return;
        };
        let goal = Arc::new(goal);
        let mut ids = Vec::with_capacity(n);
        for choice in 0..n {
            let id = SequenceId(self.next_id);
            self.next_id += 1;
            let first = ids.first().copied();
            if let Err(full) = self.scheduler.submit(id, &scenario, goal.prompt.len(), first) {
                for id in ids {
                    self.remove(id);
                }
                refuse(Refusal::Full { waiting: full.waiting });
                return;
            }
            let sequence = Sequence::new(
                Arc::clone(&goal),
                choice,
                seed_of_choice(goal.sampling.seed, choice),
                events.clone(),
                Rc::clone(&load),
                constraint.clone(),
                self.vocabulary.decode(),
            );
            self.sequences.insert(id, sequence);
            ids.push(id);
        }
    }

    /// Swaps between two steps: nothing here computes anything.
    fn install(&mut self, scenario: &ScenarioName, weights: Incoming) -> Result<RuntimeLoadId, LoadRefusal> {
        let payload = match weights {
            Incoming::Base => None,
            Incoming::Adapter(adapter) => {
                let base = self.loads.lease(scenario, None)?;
                Some(Weights {
                    model: Rc::clone(&base.payload.model),
                    adapter: Some(Rc::new(adapter)),
                })
            }
            Incoming::Full(model) => Some(Weights {
                model: Rc::new(*model),
                adapter: None,
            }),
        };
        if payload.is_some() {
            let gone = self.loads.make_room()?;
            self.forget(gone);
        }
        let load = self.loads.install(scenario, payload)?;
        self.shared.current.write().insert(scenario.clone(), load.id.clone());
        self.shared.swaps.fetch_add(1, Ordering::Relaxed);
        if self.on_swap == OnSwap::Switch {
            for sequence in self.sequences.values_mut() {
                if sequence.load.id.incarnation() == load.id.incarnation() {
                    sequence.load = Rc::clone(&load);
                }
            }
        }
        self.sweep();
        Ok(load.id.clone())
    }

    fn forget(&mut self, gone: Vec<CacheKey>) {
        for key in gone {
            self.slots.forget_load(key);
        }
    }

    fn sweep(&mut self) {
        let gone = self.loads.sweep();
        self.forget(gone);
        *self.shared.residency.write() = self.loads.residency();
    }

    /// Gives up the answers that nobody waits for.
    fn drop_abandoned(&mut self) {
        let abandoned: Vec<SequenceId> = self
            .sequences
            .iter()
            .filter(|(_, sequence)| sequence.events.is_closed())
            .map(|(id, _)| *id)
            .collect();
        for id in abandoned {
            self.shared.cancelled.fetch_add(1, Ordering::Relaxed);
            self.remove(id);
        }
    }

    fn remove(&mut self, id: SequenceId) {
        let had_slot = self.scheduler.remove(id);
        if let Some(sequence) = self.sequences.remove(&id) {
            if had_slot {
                self.slots.release(sequence.slot);
            }
            let was_replaced = sequence.load.is_replaced();
            drop(sequence);
            if was_replaced {
                self.sweep();
            }
        }
    }

    fn admit(&mut self) {
        while let Some(id) = self.scheduler.next() {
            let Some(sequence) = self.sequences.get_mut(&id) else {
                self.scheduler.remove(id);
                continue;
            };
            let Some(placement) = self.slots.place(id, &sequence.goal.prompt, sequence.load.key) else {
                return;
            };
            let mut reused = placement.reused;
            match placement.copy_from {
                Some(from) => {
                    if let Err(error) = self.cache.copy_prefix(from, placement.slot, reused) {
                        tracing::warn!(%error, "a cached prefix could not be copied; it is computed again");
                        self.slots.forget(placement.slot);
                        self.cache.truncate(placement.slot, 0);
                        reused = 0;
                    }
                }
                None => self.cache.truncate(placement.slot, reused),
            }
            sequence.slot = placement.slot;
            sequence.computed = reused;
            sequence.tell(GenerationEvent::Admitted {
                cached: reused,
                load: sequence.load.id.clone(),
            });
            self.scheduler.start(id, reused);
            self.shared.reused_tokens.fetch_add(reused as u64, Ordering::Relaxed);
        }
    }

    /// One step: every running answer's next token and a chunk of the prompts that are being computed.
    fn step(&mut self) {
        // A failure here is told as a panic is; only tests arm it.
        let _armed = failpoint::hit("engine::step");
        let plan = self.scheduler.plan();
        // One forward call for each set of base weights; almost always there is one.
        let mut groups: Vec<(*const Model, Vec<(SequenceId, Work)>)> = Vec::new();
        for (id, work) in plan {
            let Some(sequence) = self.sequences.get(&id) else {
                continue;
            };
            let model = Rc::as_ptr(&sequence.load.payload.model);
            match groups.iter_mut().find(|(of, _)| *of == model) {
                Some((_, group)) => group.push((id, work)),
                None => groups.push((model, vec![(id, work)])),
            }
        }
        for (_, group) in groups {
            if let Err(reason) = self.forward(&group) {
                tracing::error!(reason, sequences = group.len(), "a step of the model failed");
                for (id, _) in group {
                    self.fail(id, reason.clone());
                }
            }
        }
    }

    fn forward(&mut self, group: &[(SequenceId, Work)]) -> Result<(), String> {
        let mut rows = Vec::with_capacity(group.len());
        let mut model = None;
        for (id, work) in group {
            let Some(sequence) = self.sequences.get(id) else {
                continue;
            };
            let weights = &sequence.load.payload;
            model.get_or_insert_with(|| Rc::clone(&weights.model));
            let (tokens, logits) = match work {
                Work::Prompt { n, last } => (
                    sequence.goal.prompt.get(sequence.computed..sequence.computed + n),
                    if *last { LogitsOf::Last } else { LogitsOf::Nothing },
                ),
                Work::Answer => (sequence.newest().map(std::slice::from_ref), LogitsOf::Last),
            };
            rows.push(ForwardRow {
                slot: sequence.slot,
                tokens: tokens.ok_or("the scheduler asked for tokens that do not exist")?,
                adapter: weights.adapter.as_deref(),
                logits,
            });
        }
        let Some(model) = model else { return Ok(()) };
        let logits = model
            .forward(&rows, &mut self.cache)
            .map_err(|error| error.to_string())?;
        let values = host(&logits.values)?;
        let lines: Vec<Option<usize>> = logits.rows.iter().map(|lines| lines.clone().next_back()).collect();
        drop(rows);
        for ((id, work), line) in group.iter().zip(lines) {
            self.account(*id, *work);
            if let Some(line) = line {
                self.sample(*id, &values, line);
            }
        }
        Ok(())
    }

    /// What a step computed is in its slot now.
    fn account(&mut self, id: SequenceId, work: Work) {
        self.scheduler.did(id, work);
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let key = sequence.load.key;
        match work {
            Work::Prompt { n, .. } => {
                let tokens = &sequence.goal.prompt[sequence.computed..sequence.computed + n];
                self.slots.computed(sequence.slot, tokens, key);
                sequence.computed += n;
                self.shared.prompt_tokens.fetch_add(n as u64, Ordering::Relaxed);
            }
            Work::Answer => {
                if let Some(token) = sequence.newest() {
                    self.slots.computed(sequence.slot, std::slice::from_ref(token), key);
                }
            }
        }
    }

    fn sample(&mut self, id: SequenceId, values: &Tensor, line: usize) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let progress =
            read_line(values, line, &mut self.line).and_then(|()| sequence.advance(&mut self.line, &self.vocabulary));
        match progress {
            Ok(Progress::GoesOn) => {
                self.shared.generated_tokens.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Progress::Ended) => {
                self.shared.generated_tokens.fetch_add(1, Ordering::Relaxed);
                self.shared.finished.fetch_add(1, Ordering::Relaxed);
                self.remove(id);
            }
            Err(reason) => self.fail(id, reason),
        }
    }

    fn fail(&mut self, id: SequenceId, reason: String) {
        self.shared.failed.fetch_add(1, Ordering::Relaxed);
        if let Some(sequence) = self.sequences.get(&id) {
            sequence.tell(GenerationEvent::Failed { reason });
            self.slots.forget(sequence.slot);
        }
        self.remove(id);
    }

    /// A step broke down in the middle: the answers in it are given up, the loads stay.
    fn start_over(&mut self, lost: &Lost) {
        for (_, sequence) in self.sequences.drain() {
            self.shared.failed.fetch_add(1, Ordering::Relaxed);
            sequence.tell(GenerationEvent::Failed {
                reason: lost.to_string(),
            });
        }
        self.scheduler = Scheduler::new(self.limits);
        self.slots = Slots::new(self.cache.n_slots());
        for slot in 0..self.cache.n_slots() {
            self.cache.truncate(slot, 0);
        }
        self.sweep();
    }

    fn publish_counts(&self) {
        let store = |place: &AtomicU64, n: usize| place.store(n as u64, Ordering::Relaxed);
        store(&self.shared.running, self.scheduler.n_running());
        store(&self.shared.waiting, self.scheduler.n_waiting());
    }
}

/// The logits where the sampler can read them.
fn host(values: &Tensor) -> Result<Tensor, String> {
    values
        .f_to_device(Device::Cpu)
        .and_then(|values| values.f_contiguous())
        .map_err(|error| error.to_string())
}

fn read_line(values: &Tensor, line: usize, out: &mut Vec<f32>) -> Result<(), String> {
    let line = i64::try_from(line).map_err(|error| error.to_string())?;
    let row = values.f_select(0, line).map_err(|error| error.to_string())?;
    out.resize(row.numel(), 0.0);
    let n = out.len();
    row.f_copy_data(out, n).map_err(|error| error.to_string())
}
