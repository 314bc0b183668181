//! The loop of a scenario: a batch is sealed, a step is made, the gate judges, a release is appended, the engine loads
//! it. [`state`] decides what comes next from durable facts; [`Driver`] does it. A step that was cut off anywhere goes on
//! where it was.

mod budget;
mod collect;
mod dropping;
mod embedded;
mod error;
mod evolve;
mod folder;
mod following;
mod hands;
mod judge;
mod lease;
mod live;
mod perform;
mod samples;
mod seal;
mod settle;
mod state;
mod trainer;

pub use dropping::{Dropped, drop_step};
pub use error::LoopError;
pub use evolve::Workshop;
pub use hands::{Answering, BaseModel, Hands};
pub use lease::{Lease, driver_of};
pub use live::Live;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::Publisher;
use super::processor::Pool;
use crate::domain::{BatchId, ReleaseId, ScenarioName, TrainingMode};
use crate::experience::{Experience, Job, StoreError};
use crate::recipe::Recipe;
use crate::sys::{clock, task};
use crate::telemetry::TRACES;

/// The consumer that the loop's own batches are filed under.
pub const CONSUMER: &str = "trainer";

/// Drives scenarios with one recipe. Cheap to clone; the caller holds a [`Lease`] on each scenario it drives.
#[derive(Debug, Clone)]
pub struct Driver {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    publisher: Publisher,
    recipe: Recipe,
    recipe_digest: String,
    live: Live,
    hands: Hands,
    work: PathBuf,
    scenarios: tokio::sync::Mutex<HashMap<ScenarioName, Arc<tokio::sync::Mutex<Waiting>>>>,
}

/// What waits in one scenario.
#[derive(Debug)]
struct Waiting {
    pool: Pool,
    cursor: i64,
    followed: following::Followed,
    /// Whether what dead processes left was looked for.
    swept: bool,
}

/// What a turn may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// What the scenario's training mode and budget allow.
    Automatic,
    /// A person asked for a step now, with whatever is complete.
    Now,
    /// Only finish what was begun.
    FinishOnly,
}

/// What a turn came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// Nothing to do.
    Idle {
        /// Samples that wait for a batch.
        pending: usize,
        /// Why nothing begins although there might be something.
        blocked: Option<String>,
    },
    /// A step failed and is tried again.
    Waiting {
        /// Not before this time, microseconds since the Unix epoch.
        until_us: i64,
        /// What happened.
        error: String,
    },
    /// A step ended.
    Ended(Box<Ended>),
}

/// A step that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// Its number, unless it was dropped without one.
    pub step: Option<u64>,
    /// The batch.
    pub batch: BatchId,
    /// `released`, `held`, `rejected`, `skipped`, `stale`.
    pub outcome: &'static str,
    /// Why.
    pub reason: String,
    /// The release it made.
    pub release: Option<ReleaseId>,
    /// Figures.
    pub metrics: Map<String, Value>,
    /// Published, but the engine still serves the old release; the reason.
    pub not_live: Option<String>,
}

/// Something worth showing while a step is made.
#[derive(Debug, Clone, PartialEq)]
pub enum LoopEvent {
    /// A batch was sealed.
    Sealed {
        /// The batch.
        batch: BatchId,
        /// Its samples.
        samples: usize,
    },
    /// The trainer says how far it is.
    Training {
        /// Between 0 and 1.
        fraction: f64,
        /// In the trainer's words.
        message: String,
    },
    /// The release it goes on from has no training state any more: optimizer and critic begin anew.
    FreshState {
        /// That release.
        release: ReleaseId,
        /// Retention took it; otherwise it never came here.
        thinned: bool,
    },
    /// The candidate is complete.
    Trained {
        /// Figures of the step.
        metrics: Map<String, Value>,
    },
    /// The gate has measured so many pairs.
    Judging {
        /// Pairs in evidence.
        pairs: usize,
        /// The most it may take.
        of: usize,
    },
    /// The gate has spoken.
    Judged {
        /// `selected`, `rejected`, …
        outcome: &'static str,
        /// In a sentence.
        reason: String,
    },
    /// An attempt failed.
    Failed {
        /// What happened.
        error: String,
    },
}

/// Who listens to the events of a turn.
pub type Watch<'a> = &'a (dyn Fn(&LoopEvent) + Send + Sync);

impl Driver {
    /// A driver that publishes through `publisher` and keeps its files under `work`.
    pub fn new(publisher: Publisher, recipe: Recipe, live: Live, hands: Hands, work: PathBuf) -> Self {
        Self {
            inner: Arc::new(Inner {
                recipe_digest: recipe.digest(),
                publisher,
                recipe,
                live,
                hands,
                work,
                scenarios: tokio::sync::Mutex::new(HashMap::new()),
            }),
        }
    }

    /// The recipe in force.
    pub fn recipe(&self) -> &Recipe {
        &self.inner.recipe
    }

    /// Makes at most one step of a scenario, or goes on with one that was cut off.
    pub async fn turn(
        &self,
        lease: &Lease,
        ask: Ask,
        cancel: &CancellationToken,
        watch: Watch<'_>,
    ) -> Result<Turn, LoopError> {
        match task::caught("a turn of the loop", self.whole_turn(lease, ask, cancel, watch)).await {
            Ok(turn) => turn,
            Err(lost) => {
                // What it knew of the samples may be half changed; the store has it all.
                self.inner.scenarios.lock().await.remove(lease.scenario());
                Err(lost.into())
            }
        }
    }

    async fn whole_turn(
        &self,
        lease: &Lease,
        ask: Ask,
        cancel: &CancellationToken,
        watch: Watch<'_>,
    ) -> Result<Turn, LoopError> {
        let scenario = lease.scenario();
        let waiting = self.waiting(scenario).await;
        let mut waiting = waiting.lock().await;
        loop {
            if cancel.is_cancelled() {
                return Err(LoopError::Stopped);
            }
            let open = self.open_job(scenario).await?;
            if !std::mem::replace(&mut waiting.swept, true) {
                self.sweep(scenario, open.as_ref()).await?;
            }
            let job = match open {
                Some(job) => job,
                None if ask == Ask::FinishOnly => {
                    return Ok(Turn::Idle {
                        pending: waiting.pool.len(),
                        blocked: None,
                    });
                }
                None => {
                    self.grade_what_was_followed(scenario, &mut waiting.followed, cancel)
                        .await?;
                    match self.seal(scenario, ask, &mut waiting).await? {
                        seal::Sealing::Begun(job) => {
                            let samples = seal::Manifest::of(&job)?.train.len();
                            watch(&LoopEvent::Sealed {
                                batch: job.batch.clone(),
                                samples,
                            });
                            *job
                        }
                        seal::Sealing::Nothing(blocked) => {
                            return Ok(Turn::Idle {
                                pending: waiting.pool.len(),
                                blocked,
                            });
                        }
                    }
                }
            };
            let span = tracing::info_span!(
                target: TRACES,
                "step",
                reef.scenario = %scenario,
                reef.step = job.step,
                reef.batch = %job.batch,
                reef.stage = job.stage.as_str(),
            );
            // A panic is a failure of the step like any other: counted, and tried again so many times.
            let advanced =
                match task::caught("a step of the loop", self.advance(&job, cancel, watch).instrument(span)).await {
                    Ok(advanced) => advanced?,
                    Err(lost) => Some(self.failed(&job, &lost.into(), watch).await?),
                };
            if let Some(turn) = advanced {
                return Ok(turn);
            }
        }
    }

    /// How many samples wait, as of the last look.
    pub async fn pending(&self, scenario: &ScenarioName) -> usize {
        let waiting = self.waiting(scenario).await;
        // A turn in progress holds it; then the number is not worth waiting for.
        waiting.try_lock().map_or(0, |waiting| waiting.pool.len())
    }

    async fn waiting(&self, scenario: &ScenarioName) -> Arc<tokio::sync::Mutex<Waiting>> {
        let mut scenarios = self.inner.scenarios.lock().await;
        let waiting = scenarios.entry(scenario.clone()).or_insert_with(|| {
            Arc::new(tokio::sync::Mutex::new(Waiting {
                pool: Pool::new(&self.inner.recipe),
                cursor: 0,
                followed: following::Followed::default(),
                swept: false,
            }))
        });
        Arc::clone(waiting)
    }

    async fn open_job(&self, scenario: &ScenarioName) -> Result<Option<Job>, LoopError> {
        let name = scenario.clone();
        self.read(move |experience| experience.open_job(&name)).await
    }

    async fn mode(&self, scenario: &ScenarioName) -> Result<TrainingMode, LoopError> {
        let name = scenario.clone();
        self.read(move |experience| experience.scenario(&name))
            .await?
            .map(|stored| stored.mode)
            .ok_or_else(|| LoopError::UnknownScenario(scenario.clone()))
    }

    fn experience(&self) -> &Experience {
        self.inner.publisher.experience()
    }

    /// The files of one step.
    fn job_dir(&self, job: &Job) -> PathBuf {
        let scenario = self.inner.work.join(job.scenario.as_str());
        scenario.join(folder::name(job.step, &job.batch))
    }

    /// Reads the store off the asynchronous threads.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Experience) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, LoopError> {
        let experience = self.experience().clone();
        self.blocking(move || work(&experience).map_err(LoopError::from)).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, LoopError> + Send + 'static,
    ) -> Result<T, LoopError> {
        task::blocking("work of the loop", work).await?
    }
}

/// Now, in microseconds since the Unix epoch.
fn now_us() -> i64 {
    clock::now_us()
}
