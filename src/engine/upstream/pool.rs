//! Connections to one provider, kept and reused, last used first.
//!
//! Reef keeps its own pool rather than a general client's because it needs to know whether a connection was used
//! before (a reused one that dies without an answer was stale, and only then may the request go again), and to close
//! the socket the moment a client leaves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sys::task;
use bytes::Bytes;
use http::header::PROXY_AUTHORIZATION;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use super::HeadLimits;
use crate::sys::net::{DialError, Dialer};

pub(super) struct Pool {
    uri: Uri,
    dialer: Dialer,
    /// Requests go to a proxy as they are, in absolute form, with its credential.
    forward: Option<Option<HeaderValue>>,
    head: HeadLimits,
    idle_timeout: Duration,
    max_idle: usize,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    task: AbortHandle,
}

/// One connection, held for one exchange. Dropped without [`Lease::give_back`] it closes at once.
pub(super) struct Lease {
    connection: Option<Connection>,
    pool: Arc<Pool>,
    pub(super) reused: bool,
}

impl Pool {
    pub(super) fn new(
        uri: Uri,
        dialer: Dialer,
        head: HeadLimits,
        idle_timeout: Duration,
        max_idle: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            forward: dialer.forwards(&uri).map(|proxy| proxy.authorization()),
            uri,
            dialer,
            head,
            idle_timeout,
            max_idle,
            idle: Mutex::new(Vec::new()),
        })
    }

    /// A usable connection: a kept one, or with `fresh` or none kept, a new one.
    pub(super) async fn lease(self: &Arc<Self>, fresh: bool) -> Result<Lease, DialError> {
        while let (false, Some(mut idle)) = (fresh, self.pop()) {
            // Just given back, it may need a moment to finish its last exchange; a closed one fails here.
            let ready = idle.connection.sender.is_ready()
                || tokio::time::timeout(Duration::from_millis(100), idle.connection.sender.ready())
                    .await
                    .is_ok_and(|ready| ready.is_ok());
            if ready {
                return Ok(Lease {
                    connection: Some(idle.connection),
                    pool: Arc::clone(self),
                    reused: true,
                });
            }
        }
        let connection = self.connect().await?;
        Ok(Lease {
            connection: Some(connection),
            pool: Arc::clone(self),
            reused: false,
        })
    }

    fn pop(&self) -> Option<Idle> {
        let mut idle = self.idle.lock();
        while let Some(last) = idle.pop() {
            if last.since.elapsed() < self.idle_timeout && !last.connection.sender.is_closed() {
                return Some(last);
            }
            last.connection.task.abort();
        }
        None
    }

    async fn connect(&self) -> Result<Connection, DialError> {
        let stream = self.dialer.dial(&self.uri).await?;
        let (sender, connection) = http1::Builder::new()
            .max_headers(self.head.lines)
            .max_buf_size(self.head.bytes)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(DialError::from)?;
        let task = task::spawn("a connection to the provider", async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "upstream connection ended");
            }
        });
        Ok(Connection {
            sender,
            task: task.abort_handle(),
        })
    }

    fn put(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        let expired = idle
            .iter()
            .take_while(|i| i.since.elapsed() >= self.idle_timeout)
            .count();
        for old in idle.drain(..expired) {
            old.connection.task.abort();
        }
        if idle.len() < self.max_idle {
            idle.push(Idle {
                connection,
                since: Instant::now(),
            });
        } else {
            connection.task.abort();
        }
    }
}

impl Lease {
    /// Sends a request on the connection; its target is a path of the provider's. An error without the request in it
    /// means that it went out.
    pub(super) async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        if let Some(credential) = &self.pool.forward {
            if let Some(absolute) = absolute(&self.pool.uri, request.uri()) {
                *request.uri_mut() = absolute;
            }
            if let Some(credential) = credential {
                request.headers_mut().insert(PROXY_AUTHORIZATION, credential.clone());
            }
        }
        // Only `give_back` and `drop` take the connection, and both end the lease.
        match &mut self.connection {
            Some(connection) => connection.sender.try_send_request(request).await,
            None => std::future::pending().await,
        }
    }

    /// Whether it is a proxy that answers first.
    pub(super) fn forwarded(&self) -> bool {
        self.pool.forward.is_some()
    }

    /// Keeps the connection for the next exchange; this one has been read to its end.
    pub(super) fn give_back(mut self) {
        if let Some(connection) = self.connection.take()
            && !connection.sender.is_closed()
        {
            self.pool.put(connection);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.task.abort();
        }
    }
}

/// A path of the provider's with the provider's address before it.
fn absolute(base: &Uri, target: &Uri) -> Option<Uri> {
    let mut parts = base.clone().into_parts();
    parts.path_and_query = target
        .path_and_query()
        .cloned()
        .or(Some(PathAndQuery::from_static("/")));
    Uri::from_parts(parts).ok()
}
