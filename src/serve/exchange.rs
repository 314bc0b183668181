//! One exchange from admission to its record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tracing::{Instrument, Span};

use super::admission::Permit;
use super::answers::{Asked, known_as};
use super::state::State;
use crate::domain::{FrozenRelease, NewExchange, RecordId, Route, ScenarioName, Tags, Timings, Turn};
use crate::engine::sse::Answer;
use crate::engine::{CaptureSlot, EngineError};
use crate::experience::{ErrorClass, Interruption, InterruptionReason, StoreError};
use crate::sys::clock;
use crate::telemetry::TRACES;

/// What is known of an exchange while it goes on. Dropped before it is settled, it counts as left by its client.
pub(super) struct Exchange {
    pub(super) state: Arc<State>,
    pub(super) id: RecordId,
    pub(super) scenario: ScenarioName,
    pub(super) route: Route,
    pub(super) record: bool,
    /// Whether the receipt of a chat's stream goes into its finish chunk rather than a chunk of its own.
    pub(super) receipt_in_finish: bool,
    /// What the answer is known by, if this request only fetches it.
    pub(super) fetched: Option<String>,
    /// The record that the answer has already.
    pub(super) known: Option<RecordId>,
    pub(super) release: FrozenRelease,
    pub(super) request: Bytes,
    pub(super) tags: Tags,
    pub(super) capture: Option<CaptureSlot>,
    pub(super) status: u16,
    pub(super) clock: Stopwatch,
    /// Response bytes that went to the client.
    pub(super) sent: u64,
    pub(super) settled: bool,
    /// Held until the exchange is over.
    pub(super) permit: Option<Permit>,
    /// Its trace, where one is collected; it ends with the exchange.
    pub(super) span: Span,
}

/// When the steps of an exchange happened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch {
    started_us: i64,
    arrived: Instant,
    called: Option<Instant>,
    first_byte: Option<Instant>,
    last_byte: Option<Instant>,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self {
            started_us: clock::now_us(),
            arrived: Instant::now(),
            called: None,
            first_byte: None,
            last_byte: None,
        }
    }

    pub(super) fn called(&mut self) {
        self.called = Some(Instant::now());
    }

    pub(super) fn bytes(&mut self) {
        let now = Instant::now();
        self.first_byte.get_or_insert(now);
        self.last_byte = Some(now);
    }

    fn since(&self, moment: Option<Instant>) -> Duration {
        moment.map_or_else(|| self.arrived.elapsed(), |moment| moment.duration_since(self.arrived))
    }

    fn timings(&self) -> Timings {
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Timings {
            started_us: self.started_us,
            first_byte_us: us(self.since(self.first_byte)),
            total_us: us(self.since(self.last_byte)),
        }
    }

    /// What Reef itself took: before the call, and from the last byte until now.
    fn overhead(&self) -> Duration {
        let before = self.since(self.called);
        let after = self.last_byte.map_or(Duration::ZERO, |last| last.elapsed());
        before + after
    }
}

impl Exchange {
    /// Makes the record durable. The exchange is settled whatever comes of it.
    pub(super) fn store(
        &mut self,
        response: Bytes,
        turn: Turn,
        streamed: bool,
    ) -> impl Future<Output = Result<RecordId, StoreError>> + Send + 'static + use<> {
        self.settled = true;
        let exchange = NewExchange {
            id: self.id.clone(),
            scenario: self.scenario.clone(),
            route: Some(self.route),
            release: Some(self.release.clone()),
            request: self.request.clone(),
            response,
            streamed,
            status: self.status,
            turn,
            tags: std::mem::take(&mut self.tags),
            timings: self.clock.timings(),
            capture: self.capture.take().and_then(|slot| slot.get().cloned()),
        };
        let state = Arc::clone(&self.state);
        let known = self.known.take();
        let fetched = self.fetched.clone();
        let answer = fetched
            .clone()
            .or_else(|| Some(known_as(self.route, exchange.turn.response_id.as_deref()?)))
            .filter(|_| fetched.is_some() || self.route == Route::Responses);
        let (clock, span) = (self.clock, self.span.clone());
        let recording = tracing::info_span!(target: TRACES, parent: &self.span, "record");
        async move {
            if let Some(id) = known {
                span.record("reef.receipt", id.as_str());
                span.record("reef.outcome", "recorded_before");
                return Ok(id);
            }
            let (scenario, id) = (exchange.scenario.clone(), exchange.id.clone());
            let appended = match crate::sys::failpoint::hit("serve::before_append") {
                Ok(()) => state.experience.append_exchange(exchange).instrument(recording).await,
                Err(_) => Err(StoreError::Closed),
            };
            match &appended {
                Ok(appended) => {
                    if let Some(answer) = answer {
                        state.answers.recorded(&scenario, &answer, &appended.id);
                    }
                    span.record("reef.receipt", appended.id.as_str());
                    span.record("reef.outcome", "recorded");
                    add(&state.metrics.receipts);
                    let timings = clock.timings();
                    state.metrics.finished(
                        clock.overhead(),
                        Duration::from_micros(timings.first_byte_us),
                        Duration::from_micros(timings.total_us),
                    );
                }
                // It was fetched before a restart, and its provider words it otherwise now; the first record stays.
                Err(error) if fetched.is_some() && error.class() == ErrorClass::Conflict => {
                    span.record("reef.receipt", id.as_str());
                    span.record("reef.outcome", "recorded_before");
                    return Ok(id);
                }
                // Another process archived it; the next request reads the store again.
                Err(StoreError::UnknownScenario { .. }) => {
                    span.record("reef.outcome", "unrecorded");
                    state.directory.forget(&scenario).await;
                }
                Err(error) => {
                    failed(&span, InterruptionReason::StoreFailed.as_str());
                    tracing::error!(%error, cause = ?std::error::Error::source(error), "an exchange was not stored");
                }
            }
            appended.map(|appended| appended.id)
        }
    }

    /// What came is no answer, or not yet; the client has it all the same.
    pub(super) fn unanswered(&mut self, answer: Answer) {
        let first = |exchange: &Self| {
            let id = exchange.fetched.as_deref();
            id.is_none_or(|id| exchange.state.answers.give_up(&exchange.scenario, id))
        };
        match answer {
            Answer::NotYet { id: Some(id), .. } if self.fetched.is_none() && self.record => {
                self.wait_for(&id);
                self.settle("not_yet");
            }
            // Of an answer that is asked for again and again, its failure counts once.
            Answer::Failed(words) if first(self) => self.interrupt(InterruptionReason::UpstreamErrorEvent, words),
            Answer::Nothing(why) if self.fetched.is_none() => {
                self.interrupt(InterruptionReason::UpstreamNoAnswer, why);
            }
            _ => self.settle("not_yet"),
        }
    }

    /// Keeps what was asked until the answer is fetched.
    pub(super) fn wait_for(&self, answer: &str) {
        let asked = Asked {
            request: self.request.clone(),
            release: self.release.clone(),
            tags: self.tags.clone(),
        };
        self.state
            .answers
            .wait(&self.scenario, &known_as(self.route, answer), asked);
    }

    /// The exchange did not finish: its log line, its count, its trace and its row in the store say the same.
    pub(super) fn interrupt(&mut self, reason: InterruptionReason, detail: impl Into<String>) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        // A trace leaves this machine: the words of a provider stay here.
        if reason.is_failure() {
            failed(&self.span, reason.as_str());
        } else {
            self.span.record("reef.outcome", reason.as_str());
        }
        let interruption = Interruption {
            id: Some(self.id.clone()),
            scenario: self.scenario.clone(),
            route: self.route,
            reason,
            detail: detail.into(),
            at_us: clock::now_us(),
            bytes: self.sent,
        };
        self.state.interrupted(interruption, self.record);
    }

    /// An answer that passes unrecorded broke off on its way; the client sees its connection end.
    pub(super) fn broke_off(&self, error: &EngineError) {
        let reason = InterruptionReason::from(error);
        self.span.record("otel.status_description", reason.as_str());
        tracing::warn!(
            id = self.id.as_str(),
            scenario = %self.scenario,
            route = self.route.path(),
            reason = reason.as_str(),
            detail = %error,
            "an unrecorded answer broke off"
        );
    }

    /// The exchange is over and leaves no record, as it should; `outcome` is for its trace.
    pub(super) fn settle(&mut self, outcome: &'static str) {
        if !std::mem::replace(&mut self.settled, true) {
            self.span.record("reef.outcome", outcome);
            // It may go on for long, and this is needed no more.
            self.request = Bytes::new();
        }
    }
}

fn failed(span: &Span, outcome: &'static str) {
    span.record("reef.outcome", outcome);
    span.record("otel.status_description", outcome);
}

impl From<&EngineError> for InterruptionReason {
    fn from(error: &EngineError) -> Self {
        match error {
            EngineError::Refused { .. } => Self::UpstreamRefused,
            EngineError::Unavailable { .. } | EngineError::Overloaded { .. } => Self::UpstreamUnavailable,
            EngineError::Silent { .. } => Self::IdleTimeout,
            EngineError::Broken { .. } => Self::UpstreamClosed,
        }
    }
}

fn add(counter: &std::sync::atomic::AtomicU64) {
    counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.state.cut.is_cancelled() {
            self.interrupt(InterruptionReason::Shutdown, "the service stopped");
        } else {
            self.interrupt(InterruptionReason::ClientGone, "the client closed its connection");
        }
        drop(self.permit.take());
    }
}
