//! What every request shares.

use std::sync::Arc;
use std::time::Instant;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admission::Admission;
use super::answers::Answers;
use super::auth::Tokens;
use super::error::ApiError;
use super::metrics::Metrics;
use super::options::ServeOptions;
use crate::domain::RecordId;
use crate::engine::Engine;
use crate::experience::{Experience, Interruption, StoreError};
use crate::scenario::{Directory, LoopBoard};
use crate::sys::{clock, task};

/// The service's shared parts.
pub(super) struct State {
    pub(super) options: ServeOptions,
    pub(super) tokens: Tokens,
    pub(super) experience: Experience,
    pub(super) directory: Arc<Directory>,
    pub(super) engine: Arc<dyn Engine>,
    /// What the loop tells; empty where none runs in this process.
    pub(super) board: Arc<LoopBoard>,
    pub(super) admission: Arc<Admission>,
    pub(super) metrics: Metrics,
    pub(super) answers: Answers,
    pub(super) started: Instant,
    pub(super) started_us: i64,
    /// Cancelled when open streams must end.
    pub(super) cut: CancellationToken,
    /// Work that outlives its request: storing what a client no longer waits for.
    pub(super) afterwards: TaskTracker,
}

impl State {
    pub(super) fn new(
        options: ServeOptions,
        experience: Experience,
        directory: Arc<Directory>,
        engine: Arc<dyn Engine>,
    ) -> Arc<Self> {
        Arc::new(Self {
            tokens: Tokens::new(&options.tokens),
            board: Arc::default(),
            admission: Admission::new(options.max_in_flight),
            experience,
            directory,
            engine,
            metrics: Metrics::default(),
            answers: Answers::default(),
            started: Instant::now(),
            started_us: clock::now_us(),
            cut: CancellationToken::new(),
            afterwards: TaskTracker::new(),
            options,
        })
    }

    /// Counts and logs an exchange that did not finish, and notes it in the store if it was to be recorded.
    pub(super) fn interrupted(&self, interruption: Interruption, noted: bool) {
        self.metrics.interrupted(interruption.reason);
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    id = interruption.id.as_ref().map(RecordId::as_str),
                    scenario = %interruption.scenario,
                    route = interruption.route.path(),
                    reason = interruption.reason.as_str(),
                    detail = interruption.detail,
                    bytes = interruption.bytes,
                    "exchange interrupted"
                )
            };
        }
        if interruption.reason.is_failure() {
            log!(warn);
        } else {
            log!(info);
        }
        if !noted {
            return;
        }
        let experience = self.experience.clone();
        let _noting = task::track(&self.afterwards, "noting an interruption", async move {
            if let Err(error) = experience.note_interruption(interruption).await {
                tracing::warn!(%error, "an interruption was counted but not stored");
            }
        });
    }

    /// Reads the store off the asynchronous threads.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Experience) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let experience = self.experience.clone();
        Ok(task::blocking("reading the store", move || work(&experience)).await??)
    }

    /// A fresh record id.
    pub(super) fn fresh_id() -> RecordId {
        crate::sys::random::record_id()
    }
}
