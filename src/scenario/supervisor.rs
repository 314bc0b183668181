//! Driving every scenario of a service beside its traffic: one task looks for something new, a bounded number of turns
//! run at a time, and every scenario with something to do gets its turn before one gets a second.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Ask, Directory, Driver, Ended, Lease, LoopError, LoopEvent, Turn};
use crate::domain::{RequestType, ScenarioName, TrainingMode};
use crate::experience::{RecordQuery, StoreError};
use crate::recipe::ProcessorKind;
use crate::sys::task::{self, Tasks};
use crate::sys::{clock, failpoint};

/// How often the store is asked for news by other processes.
const LOOK: Duration = Duration::from_millis(500);
/// How often every scenario gets a turn even without news: batches are due by time, budgets come back.
const ROUND: Duration = Duration::from_secs(5);
/// How long a scenario driven by another process, or one whose store failed, is left alone.
const STEP_BACK: Duration = Duration::from_secs(5);
/// A turn, as a panic in it names it.
const TURN: &str = "a turn of the loop";
/// News read at a time.
const PAGE: usize = 1000;

/// What the loop of one scenario is doing, for status.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LoopState {
    /// `idle`, `training`, `judging`, `waiting`, `elsewhere`.
    pub phase: &'static str,
    /// Samples that wait for a batch.
    pub pending: usize,
    /// Why nothing begins although something could.
    pub blocked: Option<String>,
    /// Why the last attempt failed, while it is being tried again.
    pub error: Option<String>,
    /// When it is tried again, seconds since the Unix epoch.
    pub retry_at: Option<f64>,
    /// How far the phase is, between 0 and 1.
    pub progress: Option<f64>,
    /// The last step that ended in this process.
    pub last: Option<LastStep>,
    /// Published, but the engine still serves the old release; the reason.
    pub not_live: Option<String>,
}

/// The last step that ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LastStep {
    /// Its number.
    pub step: Option<u64>,
    /// What became of it.
    pub outcome: &'static str,
    /// Why.
    pub reason: String,
    /// When, seconds since the Unix epoch.
    pub ended_at: f64,
}

/// Counters of the loop, for metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopCounters {
    /// Steps that ended, by outcome.
    pub steps: BTreeMap<&'static str, u64>,
    /// Attempts that failed.
    pub failures: u64,
    /// Turns running now.
    pub running: u64,
}

/// What the loop tells status and metrics.
#[derive(Debug, Default)]
pub struct LoopBoard {
    states: Mutex<BTreeMap<ScenarioName, LoopState>>,
    counters: Mutex<LoopCounters>,
    news: Notify,
}

impl LoopBoard {
    /// What the loop of a scenario is doing; `None` before its first turn.
    pub fn state(&self, scenario: &ScenarioName) -> Option<LoopState> {
        self.states.lock().get(scenario).cloned()
    }

    /// The counters.
    pub fn counters(&self) -> LoopCounters {
        self.counters.lock().clone()
    }

    /// Something was reported or asked for: look now.
    pub fn wake(&self) {
        self.news.notify_one();
    }

    fn set(&self, scenario: &ScenarioName, change: impl FnOnce(&mut LoopState)) {
        change(self.states.lock().entry(scenario.clone()).or_default());
    }
}

/// Drives the scenarios of a directory until stopped.
pub struct Supervisor {
    /// Makes the turns.
    pub driver: Driver,
    /// The scenarios.
    pub directory: Arc<Directory>,
    /// Where leases lie.
    pub run_dir: PathBuf,
    /// Turns at one time.
    pub turns: usize,
    /// What it tells.
    pub board: Arc<LoopBoard>,
}

/// Scenarios that are left alone for a while.
#[derive(Debug, Default)]
struct Rests {
    until: HashMap<ScenarioName, tokio::time::Instant>,
    /// Turns that failed in a row.
    failures: HashMap<ScenarioName, u32>,
}

/// Scenarios in the order of their turns.
#[derive(Debug, Default)]
struct Queue {
    order: VecDeque<ScenarioName>,
    queued: HashSet<ScenarioName>,
    running: HashSet<ScenarioName>,
    /// Something arrived while its turn was running.
    again: HashSet<ScenarioName>,
}

impl Queue {
    fn push(&mut self, scenario: &ScenarioName) {
        if self.running.contains(scenario) {
            self.again.insert(scenario.clone());
        } else if self.queued.insert(scenario.clone()) {
            self.order.push_back(scenario.clone());
        }
    }

    fn start(&mut self) -> Option<ScenarioName> {
        let scenario = self.order.pop_front()?;
        self.queued.remove(&scenario);
        self.running.insert(scenario.clone());
        Some(scenario)
    }

    fn end(&mut self, scenario: &ScenarioName, more: bool) {
        self.running.remove(scenario);
        if self.again.remove(scenario) || more {
            self.push(scenario);
        }
    }
}

impl Supervisor {
    /// Runs until `stop`. A turn in progress is stopped and goes on at the next start.
    pub async fn run(&self, stop: CancellationToken) {
        let mut queue = Queue::default();
        let mut leases: HashMap<ScenarioName, Arc<Lease>> = HashMap::new();
        let mut rests = Rests::default();
        let mut turns: Tasks<(ScenarioName, Result<Turn, LoopError>)> = Tasks::new();
        let mut cursor = None;
        let mut round = tokio::time::Instant::now();
        loop {
            let now = tokio::time::Instant::now();
            // A failure here is told as a panic is; only tests arm it.
            let _armed = failpoint::hit("loop::round");
            if now >= round {
                round = now + ROUND;
                for handle in self.directory.in_use() {
                    queue.push(handle.name());
                }
            }
            match self.news(&mut cursor).await {
                Ok(named) => named.iter().for_each(|scenario| queue.push(scenario)),
                Err(error) => tracing::warn!(%error, "the loop cannot read the store"),
            }
            rests.until.retain(|_, until| *until > now);
            let mut skipped = Vec::new();
            while turns.len() < self.turns {
                let Some(scenario) = queue.start() else { break };
                if rests.until.contains_key(&scenario) {
                    queue.running.remove(&scenario);
                    skipped.push(scenario);
                    continue;
                }
                match self.lease(&mut leases, &scenario) {
                    Ok(lease) => {
                        let (driver, board, stop) = (self.driver.clone(), Arc::clone(&self.board), stop.clone());
                        self.board.counters.lock().running += 1;
                        turns.spawn(TURN, async move {
                            let watch = |event: &LoopEvent| hear(&board, lease.scenario(), event);
                            // Whatever happens in it, its scenario comes back from it.
                            let turn = driver.turn(&lease, Ask::Automatic, &stop, &watch);
                            let result = task::caught(TURN, turn).await.unwrap_or_else(|lost| Err(lost.into()));
                            (lease.scenario().clone(), result)
                        });
                    }
                    Err(error) => {
                        queue.end(&scenario, false);
                        rests.until.insert(scenario.clone(), now + STEP_BACK);
                        self.board.set(&scenario, |state| {
                            state.phase = "elsewhere";
                            state.blocked = Some(error.to_string());
                        });
                    }
                }
            }
            // Those that rest come back with the next round.
            drop(skipped);
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.board.news.notified() => {}
                () = tokio::time::sleep(LOOK) => {}
                Some(done) = turns.next(), if !turns.is_empty() => {
                    if let Ok((scenario, result)) = done {
                        self.board.counters.lock().running -= 1;
                        let more = self.note(&scenario, result, &mut rests);
                        queue.end(&scenario, more);
                    }
                }
            }
        }
        while turns.next().await.is_some() {}
    }

    /// Scenarios that got a report or an instruction since the last look.
    async fn news(&self, cursor: &mut Option<i64>) -> Result<HashSet<ScenarioName>, StoreError> {
        let experience = self.directory.publisher().experience().clone();
        let from = *cursor;
        // Recipes that grade traffic by itself have news with every exchange.
        let traffic = matches!(
            self.driver.recipe().processor.kind,
            ProcessorKind::Computed | ProcessorKind::Demonstration
        );
        let read = task::blocking("looking for news", move || -> Result<_, StoreError> {
            let Some(from) = from else {
                // The first round looks at every scenario anyway.
                let newest = experience.records(&RecordQuery {
                    order: crate::experience::Order::NewestFirst,
                    limit: 1,
                    ..RecordQuery::default()
                })?;
                return Ok((newest.first().map_or(0, |row| row.sequence), HashSet::new()));
            };
            let page = experience.records(&RecordQuery {
                cursor: Some(from),
                limit: PAGE,
                ..RecordQuery::default()
            })?;
            let last = page.last().map_or(from, |row| row.sequence);
            let named = page
                .into_iter()
                .filter(|row| traffic || row.kind != RequestType::Inference)
                .map(|row| row.scenario)
                .collect();
            Ok((last, named))
        });
        let (last, named) = read.await??;
        *cursor = Some(last);
        Ok(named)
    }

    fn lease(
        &self,
        leases: &mut HashMap<ScenarioName, Arc<Lease>>,
        scenario: &ScenarioName,
    ) -> Result<Arc<Lease>, LoopError> {
        if let Some(lease) = leases.get(scenario) {
            return Ok(Arc::clone(lease));
        }
        let lease = Arc::new(Lease::take(&self.run_dir, scenario, "reef serve")?);
        leases.insert(scenario.clone(), Arc::clone(&lease));
        Ok(lease)
    }

    /// Puts a turn on the board; whether its scenario may have more to do at once.
    fn note(&self, scenario: &ScenarioName, result: Result<Turn, LoopError>, rests: &mut Rests) -> bool {
        if result.is_ok() {
            rests.failures.remove(scenario);
        }
        match result {
            Ok(Turn::Ended(ended)) => {
                self.ended(scenario, &ended);
                true
            }
            Ok(Turn::Idle { pending, blocked }) => {
                self.board.set(scenario, |state| {
                    *state = LoopState {
                        phase: "idle",
                        pending,
                        blocked,
                        last: state.last.take(),
                        not_live: state.not_live.take(),
                        ..LoopState::default()
                    };
                });
                false
            }
            Ok(Turn::Waiting { until_us, error }) => {
                let pause = u64::try_from(until_us - clock::now_us()).unwrap_or(0);
                rests.until.insert(
                    scenario.clone(),
                    tokio::time::Instant::now() + Duration::from_micros(pause),
                );
                self.board.counters.lock().failures += 1;
                self.board.set(scenario, |state| {
                    state.phase = "waiting";
                    state.progress = None;
                    state.error = Some(error);
                    state.retry_at = Some(clock::seconds(until_us));
                });
                false
            }
            Err(LoopError::Stopped) => false,
            Err(error) => {
                let failures = rests.failures.entry(scenario.clone()).or_default();
                *failures += 1;
                let pause = task::pause(*failures).max(STEP_BACK);
                tracing::warn!(%scenario, %error, ?pause, "the loop of a scenario stands still; it is tried again");
                rests
                    .until
                    .insert(scenario.clone(), tokio::time::Instant::now() + pause);
                self.board.counters.lock().failures += 1;
                self.board.set(scenario, |state| {
                    state.phase = "waiting";
                    state.progress = None;
                    state.error = Some(error.to_string());
                    state.retry_at = Some(clock::seconds(clock::now_us()) + pause.as_secs_f64());
                });
                false
            }
        }
    }

    fn ended(&self, scenario: &ScenarioName, ended: &Ended) {
        tracing::info!(
            %scenario,
            step = ended.step,
            outcome = ended.outcome,
            reason = ended.reason,
            release = ended.release.as_ref().map(tracing::field::display),
            "step ended"
        );
        *self.board.counters.lock().steps.entry(ended.outcome).or_default() += 1;
        self.board.set(scenario, |state| {
            state.phase = "idle";
            state.progress = None;
            state.error = None;
            state.retry_at = None;
            state.not_live = ended.not_live.clone();
            state.last = Some(LastStep {
                step: ended.step,
                outcome: ended.outcome,
                reason: ended.reason.clone(),
                ended_at: clock::seconds(clock::now_us()),
            });
        });
    }
}

fn hear(board: &LoopBoard, scenario: &ScenarioName, event: &LoopEvent) {
    board.set(scenario, |state| match event {
        LoopEvent::Sealed { .. } => {
            state.phase = "training";
            state.progress = Some(0.0);
            state.blocked = None;
        }
        LoopEvent::FreshState { .. } => {}
        LoopEvent::Training { fraction, .. } => {
            state.phase = "training";
            state.progress = Some(*fraction);
        }
        LoopEvent::Trained { .. } => {
            state.phase = "judging";
            state.progress = Some(0.0);
        }
        LoopEvent::Judging { pairs, of } => {
            state.phase = "judging";
            state.progress = Some(*pairs as f64 / (*of).max(1) as f64);
        }
        LoopEvent::Judged { .. } => state.progress = None,
        LoopEvent::Failed { error } => state.error = Some(error.clone()),
    });
}

/// The training modes a recipe can follow.
pub fn supports(recipe: &crate::recipe::Recipe, mode: TrainingMode) -> bool {
    mode == TrainingMode::Auto || recipe.learns()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ScenarioName {
        ScenarioName::new(text).unwrap()
    }

    #[test]
    fn a_busy_scenario_goes_behind_the_others() {
        let mut queue = Queue::default();
        for scenario in ["hot", "hot", "cold"] {
            queue.push(&name(scenario));
        }
        assert_eq!(queue.start(), Some(name("hot")));
        queue.push(&name("hot"));
        queue.end(&name("hot"), true);
        assert_eq!(queue.start(), Some(name("cold")), "the cold one is not starved");
        assert_eq!(queue.start(), Some(name("hot")));
        assert_eq!(queue.start(), None, "a scenario is queued once");
    }

    #[test]
    fn what_arrives_during_a_turn_is_not_lost() {
        let mut queue = Queue::default();
        queue.push(&name("a"));
        queue.start();
        queue.push(&name("a"));
        assert_eq!(queue.start(), None, "one turn of a scenario at a time");
        queue.end(&name("a"), false);
        assert_eq!(queue.start(), Some(name("a")));
    }
}
