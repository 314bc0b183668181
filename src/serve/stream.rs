//! An event stream to a client, teed into the record: bytes go on as they come, the terminal event after the commit.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::decode::Decoder;
use super::error::ApiError;
use super::exchange::Exchange;
use super::metrics::Unrecorded;
use super::options::OnStoreFailure;
use super::receipt::with_receipt;
use super::relay::{Completion, Ending, Relay, Step};
use crate::domain::RecordId;
use crate::engine::{ByteStream, EngineError};
use crate::experience::{InterruptionReason, StoreError};
use crate::sys::json;
use crate::sys::task::{self, Task};

const UNRECORDED: &[u8] = b": x-reef-recorded: false\n\n";

/// The body of a streaming response.
pub(super) struct StreamBody {
    exchange: Exchange,
    upstream: Option<ByteStream>,
    relay: Option<Relay>,
    /// For a compressed stream, whose bytes pass as they are and of which a decoded copy is recorded.
    decoder: Option<Decoder>,
    compressed: bool,
    out: VecDeque<Bytes>,
    phase: Phase,
    quiet: Option<Quiet>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

enum Phase {
    /// Bytes pass, the terminal event has not come.
    Streaming,
    /// It has, and waits for the record.
    Storing(Box<Held>),
    /// The record is settled; what else comes is passed on.
    Tail,
    /// Nothing more is to come from upstream.
    Ended,
}

struct Held {
    stored: Task<Result<RecordId, StoreError>>,
    completion: Completion,
    identity: Option<serde_json::Value>,
    sequence: u64,
}

/// When to send a comment into a silent stream.
struct Quiet {
    limit: Duration,
    timer: Pin<Box<Sleep>>,
    waiting: bool,
}

impl StreamBody {
    pub(super) fn new(exchange: Exchange, upstream: ByteStream, decoder: Option<Decoder>, compressed: bool) -> Self {
        let options = &exchange.state.options;
        Self {
            relay: Some(Relay::new(
                exchange.route.dialect(),
                exchange.receipt_in_finish && exchange.record && !compressed,
                options.max_recorded_bytes,
            )),
            quiet: options.keep_alive.filter(|_| !compressed).map(|limit| Quiet {
                limit,
                timer: Box::pin(tokio::time::sleep(limit)),
                waiting: false,
            }),
            cut: Box::pin(exchange.state.cut.clone().cancelled_owned()),
            upstream: Some(upstream),
            decoder,
            compressed,
            out: VecDeque::new(),
            phase: Phase::Streaming,
            exchange,
        }
    }

    /// The next bytes for the client.
    pub(super) fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            while let Some(bytes) = self.out.pop_front() {
                if !bytes.is_empty() {
                    self.exchange.sent += bytes.len() as u64;
                    return Poll::Ready(Some(bytes));
                }
            }
            match &mut self.phase {
                Phase::Storing(held) => match Pin::new(&mut held.stored).poll(cx) {
                    Poll::Ready(result) => self.stored(result.unwrap_or(Err(StoreError::Closed))),
                    Poll::Pending => return Poll::Pending,
                },
                Phase::Ended => return Poll::Ready(None),
                Phase::Streaming | Phase::Tail => {
                    if self.poll_upstream(cx).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    fn poll_upstream(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(upstream) = &mut self.upstream else {
            self.phase = Phase::Ended;
            return Poll::Ready(());
        };
        match upstream.as_mut().poll_next(cx) {
            Poll::Ready(Some(Ok(bytes))) => {
                if let Some(quiet) = &mut self.quiet {
                    quiet.waiting = false;
                }
                self.take(bytes);
                Poll::Ready(())
            }
            Poll::Ready(Some(Err(error))) => {
                self.broke(error);
                Poll::Ready(())
            }
            Poll::Ready(None) => {
                self.upstream = None;
                self.ended();
                Poll::Ready(())
            }
            Poll::Pending => {
                if self.cut.as_mut().poll(cx).is_ready() {
                    self.fail(
                        InterruptionReason::Shutdown,
                        &ApiError::unavailable("stopping", "the service stopped before the response was complete"),
                    );
                    return Poll::Ready(());
                }
                self.poll_quiet(cx)
            }
        }
    }

    /// Sends a comment if the stream has been silent for long enough.
    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (Some(quiet), Phase::Streaming) = (&mut self.quiet, &self.phase) else {
            return Poll::Pending;
        };
        if !std::mem::replace(&mut quiet.waiting, true) {
            quiet.timer.as_mut().reset(Instant::now() + quiet.limit);
        }
        if quiet.timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        quiet.waiting = false;
        if let Some(relay) = &mut self.relay {
            self.out.push_back(relay.let_go());
            self.out.extend(relay.comment().map(Bytes::from_static));
        }
        Poll::Ready(())
    }

    fn take(&mut self, bytes: Bytes) {
        self.exchange.clock.bytes();
        let Some(relay) = self.relay.as_mut().filter(|_| matches!(self.phase, Phase::Streaming)) else {
            self.out.push_back(bytes);
            return;
        };
        if !self.compressed {
            let step = relay.push(bytes);
            self.step(step, None);
            return;
        }
        // What cannot be read cannot be recorded, but it passes all the same.
        let decoded = self.decoder.as_mut().map(|decoder| decoder.push(&bytes));
        match decoded {
            Some(Ok(decoded)) => {
                let step = relay.push(decoded);
                self.step(step, Some(bytes));
            }
            _ => {
                self.out.push_back(bytes);
                self.give_up("the content encoding cannot be decoded");
            }
        }
    }

    /// Acts on what the relay says. `raw` are the compressed bytes to forward in place of the decoded ones.
    fn step(&mut self, step: Step, raw: Option<Bytes>) {
        match (step, raw) {
            (Step::Forward(bytes), None) => self.out.push_back(bytes),
            (Step::Forward(_), Some(raw)) => self.out.push_back(raw),
            (Step::Complete(completion), None) => self.complete(completion),
            (Step::Complete(_), Some(raw)) => self.complete(Completion {
                terminal: raw,
                ..Completion::default()
            }),
        }
    }

    fn complete(&mut self, mut completion: Completion) {
        let Some(relay) = self.relay.take() else { return };
        self.out.push_back(std::mem::take(&mut completion.before));
        if !self.exchange.record {
            self.exchange.settle("opted_out");
            self.out.extend([completion.terminal, completion.rest]);
            self.phase = Phase::Tail;
            return;
        }
        let sequence = relay.events();
        let (response, turn, identity) = relay.into_record();
        let stored = self.exchange.store(response, turn, true);
        self.phase = Phase::Storing(Box::new(Held {
            // A task of its own: once the answer is complete its record does not depend on the client's patience.
            stored: task::track(&self.exchange.state.afterwards, "storing a record", stored),
            completion,
            identity,
            sequence,
        }));
    }

    fn stored(&mut self, result: Result<RecordId, StoreError>) {
        let Phase::Storing(held) = std::mem::replace(&mut self.phase, Phase::Tail) else {
            return;
        };
        let dialect = self.exchange.route.dialect();
        let Completion {
            terminal, rest, place, ..
        } = held.completion;
        match result {
            Ok(id) => {
                let terminal = place
                    .and_then(|place| with_receipt(dialect, place, &terminal, held.identity.as_ref(), &id))
                    .unwrap_or(terminal);
                self.out.extend([terminal, rest]);
            }
            Err(error) => {
                self.exchange.state.metrics.unrecorded(Unrecorded::StoreFailed);
                if self.exchange.state.options.on_store_failure == OnStoreFailure::Refuse && !self.compressed {
                    self.out.push_back(ApiError::from(error).event(dialect, held.sequence));
                    self.upstream = None;
                    self.phase = Phase::Ended;
                    return;
                }
                if place.is_some() {
                    self.out.push_back(Bytes::from_static(UNRECORDED));
                }
                self.out.extend([terminal, rest]);
            }
        }
        if self.upstream.is_none() {
            self.phase = Phase::Ended;
        }
    }

    /// Upstream has sent everything.
    fn ended(&mut self) {
        let step = match (&mut self.relay, &self.phase) {
            (Some(relay), Phase::Streaming) => relay.finish(true),
            _ => {
                self.phase = Phase::Ended;
                return;
            }
        };
        let complete = matches!(step, Step::Complete { .. });
        let raw = self.compressed.then(Bytes::new);
        self.step(step, raw);
        if complete {
            return;
        }
        if self.told() {
            return;
        }
        match self.relay.as_ref().map(Relay::ending) {
            Some(Ending::Empty) => {
                self.exchange
                    .interrupt(InterruptionReason::UpstreamNoAnswer, "the stream held no answer");
                self.phase = Phase::Ended;
            }
            _ => self.fail(
                InterruptionReason::UpstreamClosed,
                &ApiError::new(
                    StatusCode::BAD_GATEWAY,
                    "upstream_closed",
                    "the upstream ended the stream before the response was complete",
                ),
            ),
        }
    }

    /// Whether the provider has told the client of its failure itself; nothing more is to be said then.
    fn told(&mut self) -> bool {
        let Some(Ending::Failed(message)) = self.relay.as_ref().map(Relay::ending) else {
            return false;
        };
        self.exchange.interrupt(InterruptionReason::UpstreamErrorEvent, message);
        self.upstream = None;
        self.phase = Phase::Ended;
        true
    }

    fn broke(&mut self, error: EngineError) {
        if !matches!(self.phase, Phase::Streaming) {
            self.upstream = None;
            self.phase = Phase::Ended;
            return;
        }
        if self.told() {
            return;
        }
        let reason = InterruptionReason::from(&error);
        // What had arrived of an unfinished event goes first, so that every byte the upstream sent passes.
        if let Some(relay) = &mut self.relay {
            let step = relay.finish(false);
            let complete = matches!(step, Step::Complete { .. });
            let raw = self.compressed.then(Bytes::new);
            self.step(step, raw);
            if complete {
                self.upstream = None;
                return;
            }
        }
        self.fail(reason, &error.into());
    }

    /// Ends the stream with an error event in the client's dialect.
    fn fail(&mut self, reason: InterruptionReason, error: &ApiError) {
        self.upstream = None;
        self.phase = Phase::Ended;
        self.remember();
        self.exchange.interrupt(reason, error.message.clone());
        if self.compressed {
            return;
        }
        let dialect = self.exchange.route.dialect();
        if self.relay.as_ref().is_some_and(Relay::bare) {
            self.out.extend([error.body(Some(dialect)), Bytes::from_static(b"\n")]);
            return;
        }
        let (separator, sequence) = self
            .relay
            .as_ref()
            .map_or((&b""[..], 0), |relay| (relay.separator(), relay.events()));
        self.out.push_back(Bytes::from_static(separator));
        self.out.push_back(error.event(dialect, sequence));
    }

    /// A provider that works in the background goes on when its stream does not; another request fetches the answer.
    fn remember(&self) {
        let Some(relay) = &self.relay else { return };
        let Some(answer) = relay.answer() else { return };
        let in_background = || {
            json::read_object(&self.exchange.request)
                .is_some_and(|request| request.get("background") == Some(&serde_json::Value::Bool(true)))
        };
        if self.exchange.record && self.exchange.fetched.is_none() && in_background() {
            self.exchange.wait_for(answer);
        }
    }

    /// Goes on passing bytes without a record.
    fn give_up(&mut self, why: &str) {
        self.exchange.state.metrics.unrecorded(Unrecorded::Undecodable);
        tracing::warn!(id = %self.exchange.id, why, "a stream passes unrecorded");
        self.exchange.settle("unrecorded");
        self.relay = None;
        self.phase = Phase::Tail;
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        // Its client has left.
        if !self.exchange.settled {
            self.remember();
        }
    }
}
