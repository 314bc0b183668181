//! Connections to one provider, kept and reused, last used first.
//!
//! Reef keeps its own pool rather than a general client's because it needs to know whether a connection was used
//! before (a reused one that dies without an answer was stale, and only then may the request go again), and to close
//! the socket the moment a client leaves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sys::task;
use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tower::Service;

pub(super) type Connector = HttpsConnector<HttpConnector>;

/// How a connection failed to come about, in words without addresses.
#[derive(Debug)]
pub(super) struct ConnectError {
    pub(super) reason: String,
    pub(super) source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

pub(super) struct Pool {
    uri: Uri,
    connector: Connector,
    connect_timeout: Duration,
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
        connector: Connector,
        connect_timeout: Duration,
        idle_timeout: Duration,
        max_idle: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            uri,
            connector,
            connect_timeout,
            idle_timeout,
            max_idle,
            idle: Mutex::new(Vec::new()),
        })
    }

    /// A usable connection: a kept one, or with `fresh` or none kept, a new one.
    pub(super) async fn lease(self: &Arc<Self>, fresh: bool) -> Result<Lease, ConnectError> {
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
        let connection = tokio::time::timeout(self.connect_timeout, self.connect())
            .await
            .unwrap_or_else(|_| {
                Err(ConnectError {
                    reason: format!("no connection within {} s", self.connect_timeout.as_secs_f32()),
                    source: None,
                })
            })?;
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

    async fn connect(&self) -> Result<Connection, ConnectError> {
        // A clone, because connecting needs `&mut`; it shares everything inside.
        let mut connector = self.connector.clone();
        let stream = connector.call(self.uri.clone()).await.map_err(|source| ConnectError {
            reason: reason(source.as_ref()),
            source: Some(source),
        })?;
        let (sender, connection) = http1::handshake(stream).await.map_err(|source| ConnectError {
            reason: "the connection could not be set up".to_owned(),
            source: Some(source.into()),
        })?;
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
    /// The connection.
    pub(super) fn sender(&mut self) -> Option<&mut SendRequest<Full<Bytes>>> {
        self.connection.as_mut().map(|connection| &mut connection.sender)
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

/// The kind of a connection failure, without the address the system's own message may hold.
fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = Some(error);
    while let Some(current) = cause {
        if let Some(io) = current.downcast_ref::<std::io::Error>() {
            // A TLS failure hides inside an i/o error of no particular kind.
            if let Some(inner) = io.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                return match inner {
                    rustls::Error::InvalidCertificate(_) => "its certificate is not trusted".to_owned(),
                    _ => "the TLS handshake failed".to_owned(),
                };
            }
            if io.kind() != std::io::ErrorKind::Other {
                return io.kind().to_string();
            }
        }
        cause = current.source();
    }
    "the connection failed".to_owned()
}
