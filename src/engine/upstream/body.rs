//! A response body on its way through, bound to its connection.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http_body::Body;
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::pool::Lease;
use crate::engine::EngineError;
use crate::sys::net::Cause;

/// Yields the bytes as they arrive; at the end the connection goes back to its pool, dropped before it closes.
pub(super) struct ProviderBody {
    body: Incoming,
    lease: Option<Lease>,
    idle_timeout: Duration,
    idle: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    ended: bool,
}

impl ProviderBody {
    pub(super) fn new(body: Incoming, lease: Lease, idle_timeout: Duration) -> Self {
        Self {
            body,
            lease: Some(lease),
            idle_timeout,
            idle: None,
            waiting: false,
            ended: false,
        }
    }

    fn end(&mut self) {
        self.ended = true;
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
    }

    fn fail(&mut self, error: EngineError) -> Poll<Option<Result<Bytes, EngineError>>> {
        self.ended = true;
        self.lease = None;
        Poll::Ready(Some(Err(error)))
    }

    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timeout = self.idle_timeout;
        let idle = self.idle.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        if !self.waiting {
            self.waiting = true;
            idle.as_mut().reset(Instant::now() + timeout);
        }
        idle.as_mut().poll(cx)
    }
}

impl Stream for ProviderBody {
    type Item = Result<Bytes, EngineError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        loop {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.waiting = false;
                    let Ok(data) = frame.into_data() else { continue };
                    if self.body.is_end_stream() {
                        self.end();
                    }
                    return Poll::Ready(Some(Ok(data)));
                }
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(%error, "upstream body ended early");
                    let reason = Cause::of(&error).to_string();
                    return self.fail(EngineError::Broken { reason });
                }
                Poll::Ready(None) => {
                    self.end();
                    return Poll::Ready(None);
                }
                Poll::Pending => {
                    if self.poll_idle(cx).is_ready() {
                        let limit = self.idle_timeout;
                        return self.fail(EngineError::Silent { limit });
                    }
                    return Poll::Pending;
                }
            }
        }
    }
}
