//! The listener, the connections, and the way to stop.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::options::ServeOptions;
use super::route;
use super::shutdown::{SETTLE, Shutdown};
use super::state::State;
use crate::engine::Engine;
use crate::scenario::{Activate, BaseSeed, Directory, DirectoryError, LoopBoard, Publisher, Supervisor};
use crate::sys::task;

/// A client that takes nothing of what is sent to it for this long is gone.
const STALLED: Duration = Duration::from_secs(300);

/// What goes on beside the requests, as a panic in it is named.
const WATCHING: &str = "watching for new releases";
const LEARNING: &str = "the loop";

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is not one.
    #[error("cannot listen on {host}:{port}: {reason}")]
    Address {
        /// The host as configured.
        host: String,
        /// The port as configured.
        port: u16,
        /// What is wrong.
        reason: String,
    },
    /// Somebody else listens there.
    #[error("port {port} on {host} is in use; stop what listens there or choose another with --reef.port")]
    Busy {
        /// The host as configured.
        host: String,
        /// The port as configured.
        port: u16,
    },
    /// Anyone on the network could call.
    #[error(
        "refusing to listen on {host} without a token: anyone who reaches it could use the upstream credential; set \
         reef.token, listen on 127.0.0.1, or say --allow-open"
    )]
    Open {
        /// The host as configured.
        host: String,
    },
    /// The scenarios cannot be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// How the service stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Everything in flight finished.
    Drained,
    /// So many requests were still open at the end of the grace and were cut.
    Cut(usize),
    /// A second signal ended it at once.
    Forced,
}

/// A service that listens and does not yet answer.
pub struct Server {
    listener: TcpListener,
    state: Arc<State>,
    supervisor: Option<Supervisor>,
}

impl Server {
    /// Binds the address, repairs what a crash left behind and reads the scenarios. New ones are forks of `seed`;
    /// `activate` brings their releases into the engine.
    pub async fn bind(
        options: ServeOptions,
        publisher: Publisher,
        seed: BaseSeed,
        engine: Arc<dyn Engine>,
        activate: Arc<dyn Activate>,
    ) -> Result<Self, ServeError> {
        raise_descriptor_limit();
        let listener = listen(&options).await?;
        let experience = publisher.experience().clone();
        let directory = Arc::new(Directory::open(publisher, options.training_mode, seed, activate).await?);
        Ok(Self {
            listener,
            state: State::new(options, experience, directory, engine),
            supervisor: None,
        })
    }

    /// The scenarios it serves.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.state.directory
    }

    /// What the loop tells its status by.
    pub fn board(&self) -> &Arc<LoopBoard> {
        &self.state.board
    }

    /// Learns while it serves.
    #[must_use]
    pub fn supervised_by(mut self, supervisor: Supervisor) -> Self {
        self.supervisor = Some(supervisor);
        self
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Counts the inference requests that are open.
    pub fn in_flight(&self) -> impl Fn() -> usize + Send + Sync + use<> {
        let state = Arc::clone(&self.state);
        move || state.admission.active()
    }

    /// Answers until told to stop.
    pub async fn run(self, shutdown: Shutdown) -> Stopped {
        let Self {
            listener,
            state,
            supervisor,
        } = self;
        let watched = CancellationToken::new();
        let (directory, stop) = (Arc::clone(&state.directory), watched.clone());
        let watch = move || Arc::clone(&directory).watch(stop.clone());
        let watching = task::spawn(WATCHING, task::keep(WATCHING, watched.clone(), watch));
        let learning = supervisor.map(|supervisor| {
            let (supervisor, stop) = (Arc::new(supervisor), watched.clone());
            let learn = move || {
                let (supervisor, stop) = (Arc::clone(&supervisor), stop.clone());
                async move { supervisor.run(stop).await }
            };
            task::spawn(LEARNING, task::keep(LEARNING, watched.clone(), learn))
        });
        let connections = TaskTracker::new();
        let abort = CancellationToken::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = shutdown.drain.cancelled() => break,
            };
            match accepted {
                Ok((stream, _peer)) => {
                    let serving = connection(stream, Arc::clone(&state), shutdown.drain.clone());
                    let abort = abort.clone();
                    let _serving = task::track(&connections, "a connection", async move {
                        tokio::select! {
                            () = serving => {}
                            () = abort.cancelled() => {}
                        }
                    });
                }
                // Out of descriptors, most likely: connections that close make room.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(listener);
        watched.cancel();
        connections.close();
        state.admission.close();
        let stopped = drain(&state, &connections, &shutdown, &abort).await;
        state.afterwards.close();
        let deadline = tokio::time::Instant::now() + SETTLE;
        if stopped != Stopped::Forced
            && tokio::time::timeout_at(deadline, state.afterwards.wait())
                .await
                .is_err()
        {
            tracing::error!("stopped while records were still being stored; no receipt was given for them");
        }
        // It may be in the middle of loading a release; what it began is repaired at the next start.
        watching.abort();
        if let Some(learning) = learning {
            // A step in progress is stopped, not waited for: it goes on at the next start.
            let abort = learning.abort_handle();
            if stopped == Stopped::Forced || tokio::time::timeout_at(deadline, learning).await.is_err() {
                abort.abort();
            }
        }
        stopped
    }
}

/// Waits for what is in flight, at most for the grace; then cuts what is left.
async fn drain(state: &State, connections: &TaskTracker, shutdown: &Shutdown, abort: &CancellationToken) -> Stopped {
    let grace = state.options.drain;
    tracing::info!(in_flight = state.admission.active(), ?grace, "stopping");
    let stopped = tokio::select! {
        () = connections.wait() => return Stopped::Drained,
        () = shutdown.now.cancelled() => Stopped::Forced,
        () = tokio::time::sleep(grace) => Stopped::Cut(state.admission.active()),
    };
    state.cut.cancel();
    if stopped != Stopped::Forced {
        // Open streams end with an error event; give it a moment to leave.
        let _late = tokio::time::timeout(Duration::from_millis(500), connections.wait()).await;
    }
    abort.cancel();
    let _late = tokio::time::timeout(Duration::from_secs(1), connections.wait()).await;
    stopped
}

/// Two descriptors for every open stream soon exceed the usual soft limit, which exists for programs that use `select`.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files stays");
    }
}

async fn listen(options: &ServeOptions) -> Result<TcpListener, ServeError> {
    let failed = |reason: String| ServeError::Address {
        host: options.host.clone(),
        port: options.port,
        reason,
    };
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((options.host.as_str(), options.port))
        .await
        .map_err(|error| failed(error.to_string()))?
        .collect();
    let open = options.tokens.iter().all(String::is_empty) && !options.allow_open;
    if open && addresses.iter().any(|address| !address.ip().is_loopback()) {
        return Err(ServeError::Open {
            host: options.host.clone(),
        });
    }
    TcpListener::bind(addresses.as_slice()).await.map_err(|error| {
        if error.kind() == std::io::ErrorKind::AddrInUse {
            ServeError::Busy {
                host: options.host.clone(),
                port: options.port,
            }
        } else {
            failed(error.to_string())
        }
    })
}

async fn connection(stream: TcpStream, state: Arc<State>, drain: CancellationToken) {
    let _open = Open::new(&state);
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no delay");
    }
    let client_timeout = state.options.client_timeout;
    // A client that vanished without a word must not hold a stream open for ever.
    let probing = socket2::TcpKeepalive::new().with_time(client_timeout);
    let socket = socket2::SockRef::from(&stream);
    if let Err(error) = socket
        .set_tcp_keepalive(&probing)
        .and_then(|()| socket.set_tcp_user_timeout(Some(STALLED)))
    {
        tracing::debug!(%error, "keep-alive");
    }
    let service = service_fn(|request| {
        let state = Arc::clone(&state);
        async move { Ok::<_, std::convert::Infallible>(route::handle(&state, request).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(client_timeout)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    let mut draining = false;
    loop {
        tokio::select! {
            result = serving.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(%error, "connection ended");
                }
                return;
            }
            () = drain.cancelled(), if !draining => {
                draining = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Counts an open connection.
struct Open(Arc<State>);

impl Open {
    fn new(state: &Arc<State>) -> Self {
        state.metrics.connections.fetch_add(1, Ordering::Relaxed);
        state.metrics.open_connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(state))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.metrics.open_connections.fetch_sub(1, Ordering::Relaxed);
    }
}
