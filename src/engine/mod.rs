//! Law: answers a request. Owns connections to providers and the embedded model; knows nothing of records, scenarios'
//! learning or HTTP routing. Door: [`Engine`], [`EngineRequest`], [`EngineReply`], [`EngineError`]. State: sockets, loaded
//! weights. Fails with a typed error before the first byte; after it, the body stream ends with an error.

#[cfg_attr(
    not(feature = "torch"),
    allow(
        dead_code,
        unused_imports,
        reason = "without the embedded engine only its templates are checked"
    )
)]
mod chat;
pub mod models;
mod outline;
pub mod sse;
pub mod torch;
pub mod upstream;

pub use outline::{OutlineError, RequestOutline};

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderName, StatusCode};

use crate::domain::{Dialect, FrozenRelease, Route, ScenarioName, TokenCapture};

/// One request, frozen at admission.
#[derive(Debug, Clone)]
pub struct EngineRequest {
    /// The route.
    pub route: Route,
    /// The query string as sent, without `?`.
    pub query: Option<String>,
    /// The client's headers, without credentials meant for Reef, `x-reef-*` and hop-by-hop ones.
    pub headers: HeaderMap,
    /// The body as sent.
    pub body: Bytes,
    /// What is known of the body, if it has been read already.
    pub outline: Option<RequestOutline>,
    /// The scenario, for fairness and for its adapter.
    pub scenario: ScenarioName,
    /// The release that must answer.
    pub release: FrozenRelease,
}

/// A request for the rest of a provider's API, passed on as it is.
#[derive(Debug, Clone)]
pub struct PassRequest {
    /// The method.
    pub method: http::Method,
    /// The path from `/v1` on, as sent.
    pub path: String,
    /// The query string as sent, without `?`.
    pub query: Option<String>,
    /// The client's headers, without credentials meant for Reef, `x-reef-*` and hop-by-hop ones.
    pub headers: HeaderMap,
    /// The body as sent.
    pub body: Bytes,
    /// Whose API it is of; it decides how Reef proves itself.
    pub dialect: Dialect,
}

/// Bytes of a response as they come. Dropping it stops the work behind it at once.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, EngineError>> + Send>>;

/// The beginning of an answer.
pub struct EngineReply {
    /// Status, as the engine gave it.
    pub status: StatusCode,
    /// Headers without hop-by-hop ones.
    pub headers: HeaderMap,
    /// The body; an event stream where `content-type` says so.
    pub body: ByteStream,
    /// Filled by an engine that samples tokens itself, before `body` gives its last bytes: of a stream, before the
    /// terminal event.
    pub capture: Option<CaptureSlot>,
}

/// Where an engine leaves the tokens of one generation before it ends the body.
pub type CaptureSlot = Arc<std::sync::OnceLock<TokenCapture>>;

/// Why there is no answer, or no more of it. The message is for the client and names no internal address; the source
/// is for the log.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The request cannot be answered as asked: 400-class, in the words of `message`.
    #[error("{message}")]
    Refused {
        /// Status to answer with.
        status: StatusCode,
        /// What was wrong and what to do.
        message: String,
    },
    /// The engine cannot be reached or did not begin to answer in time.
    #[error("the model engine is unavailable: {reason}")]
    Unavailable {
        /// `connection refused`, `no response within 60 s`, …
        reason: String,
        /// The cause.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// Too much is waiting already.
    #[error("the model engine is at capacity: {reason}")]
    Overloaded {
        /// What is full, and when to come back.
        reason: String,
    },
    /// The answer stopped coming after it had begun.
    #[error("the model engine was silent for {limit:?}")]
    Silent {
        /// The longest silence allowed.
        limit: std::time::Duration,
    },
    /// The answer broke off after it had begun.
    #[error("the response broke off: {reason}")]
    Broken {
        /// What happened.
        reason: String,
    },
}

/// What `GET /v1/models` lists and status shows.
#[derive(Debug, Clone)]
pub struct ModelCard {
    /// The model's id.
    pub id: String,
    /// Who provides it.
    pub owned_by: String,
}

/// One number an engine tells about itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Its name in status; `reef_engine_<name>` among the metrics.
    pub name: &'static str,
    /// What it means.
    pub help: &'static str,
    /// Whether it only grows.
    pub counts: bool,
    /// Its value now.
    pub value: u64,
}

/// A boxed future, so that engines of different kinds fit one slot.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Something that answers requests. Two kinds exist: a provider reached over HTTP and the embedded model.
pub trait Engine: Send + Sync {
    /// Begins an answer. Returning an error means that no byte was produced and nothing is running any more.
    fn call(&self, request: EngineRequest) -> BoxFuture<'_, Result<EngineReply, EngineError>>;

    /// Passes on a request for the rest of a provider's API, if there is a provider.
    fn pass(&self, request: PassRequest) -> BoxFuture<'_, Result<EngineReply, EngineError>> {
        Box::pin(async move {
            Err(EngineError::Refused {
                status: StatusCode::NOT_FOUND,
                message: format!(
                    "the embedded model does not answer {} {}; it answers /v1/chat/completions, /v1/responses and /v1/messages",
                    request.method, request.path
                ),
            })
        })
    }

    /// The models it can answer with.
    fn models(&self) -> BoxFuture<'_, Result<Vec<ModelCard>, EngineError>>;

    /// One word for status and logs: `upstream`, `torch`.
    fn kind(&self) -> &'static str;

    /// Whether it reads bodies itself and wants them decoded from their content encoding. A provider gets the client's
    /// bytes.
    fn wants_plain_bodies(&self) -> bool {
        false
    }

    /// What it tells about itself in status and metrics.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }
}

/// Removes the headers that belong to one connection, and those that `connection` names.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if let Some(connection) = headers.remove(http::header::CONNECTION)
        && let Ok(names) = connection.to_str()
    {
        for name in names.split(',').map(str::trim) {
            if let Ok(name) = HeaderName::try_from(name) {
                headers.remove(name);
            }
        }
    }
    for name in [
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ] {
        headers.remove(name);
    }
}
