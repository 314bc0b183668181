//! The one thing an agent in an episode can reach: a gateway that knows one token, one model and one budget. The key of
//! the provider never comes near it; what is asked and answered is written down.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tokio::net::{TcpListener, UnixListener};

use super::meter::Meter;
use crate::domain::{FrozenRelease, Route, ScenarioName, Turn};
use crate::engine::sse::{Assembler, Limits, Scanner, turn_of_body};
use crate::engine::{Engine, EngineRequest};
use crate::harness::sandbox::Isolation;
use crate::sys::net::bearer;
use crate::sys::random;
use crate::sys::task::{self, Task, Tasks};

/// The largest request.
const MAX_BODY: usize = 32 * 1024 * 1024;
/// The longest answer that is kept for the record; more is passed on all the same.
const MAX_KEPT: usize = 8 * 1024 * 1024;
/// Exchanges kept.
const MAX_EXCHANGES: usize = 1000;

/// The model an agent is given.
#[derive(Clone)]
pub struct ModelSource {
    /// Answers.
    pub engine: Arc<dyn Engine>,
    /// Named in every request, whatever the agent asks for.
    pub model: String,
    /// Its context window, where known.
    pub context_window: Option<u64>,
    /// The scenario whose weights answer.
    pub scenario: ScenarioName,
    /// The release that answers.
    pub release: FrozenRelease,
}

/// What one episode may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Calls.
    pub calls: u64,
    /// Tokens in and out.
    pub tokens: u64,
}

/// One question and its answer.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// The route.
    pub route: Route,
    /// Whether the request offered tools; side requests for titles and the like do not.
    pub with_tools: bool,
    /// What was answered.
    pub turn: Turn,
    /// Why there was no answer.
    pub failure: Option<String>,
}

/// What an agent asked in one episode.
#[derive(Debug, Clone, Default)]
pub struct GatewayLog {
    /// In order of their answers.
    pub exchanges: Vec<Exchange>,
    /// Calls that were let through.
    pub calls: u64,
    /// Calls refused because the budget was spent.
    pub refused: u64,
    /// Tokens in.
    pub input_tokens: u64,
    /// Tokens out.
    pub output_tokens: u64,
}

impl GatewayLog {
    /// The agent's own exchanges, without side requests for titles and the like where those can be told.
    fn main(&self) -> impl DoubleEndedIterator<Item = &Exchange> {
        let tools = self.exchanges.iter().any(|exchange| exchange.with_tools);
        self.exchanges
            .iter()
            .filter(move |exchange| !tools || exchange.with_tools)
    }

    /// What the model said last; empty when it never did.
    pub fn answer(&self) -> Turn {
        self.main()
            .rev()
            .find(|exchange| exchange.failure.is_none())
            .map(|exchange| exchange.turn.clone())
            .unwrap_or_default()
    }

    /// Why the last call failed, if it did.
    pub fn failed_last(&self) -> Option<&str> {
        self.main().next_back().and_then(|exchange| exchange.failure.as_deref())
    }

    /// The tools that were called, in order.
    pub fn tools(&self) -> Vec<String> {
        self.main()
            .flat_map(|exchange| exchange.turn.tool_calls.iter().map(|call| call.name.clone()))
            .collect()
    }
}

/// A running gateway.
pub(super) struct Gateway {
    shared: Arc<Shared>,
    socket: Option<PathBuf>,
    port: Option<u16>,
    accepting: Task<()>,
}

/// A connection of an agent, as a panic in it names it.
const CONNECTION: &str = "answering an agent";

struct Shared {
    token: String,
    source: ModelSource,
    budget: Budget,
    meter: Arc<Meter>,
    log: Mutex<GatewayLog>,
}

type Reply = Response<BoxBody<Bytes, io::Error>>;

impl Gateway {
    /// Listens on a Unix socket for an isolated episode, on a loopback port otherwise.
    pub(super) async fn start(
        source: &ModelSource,
        budget: Budget,
        isolation: Isolation,
        meter: &Arc<Meter>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            token: super::token::fresh(),
            source: source.clone(),
            budget,
            meter: Arc::clone(meter),
            log: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let (socket, port, accepting) = match isolation {
            Isolation::Namespaces => {
                let path = std::env::temp_dir().join(format!("reef-{}.sock", random::hex_token()));
                let listener = UnixListener::bind(&path)?;
                let accepting = task::spawn("the gateway of an episode", async move {
                    let mut connections = Tasks::new();
                    while let Ok((stream, _)) = listener.accept().await {
                        connections.spawn(CONNECTION, connection(TokioIo::new(stream), Arc::clone(&serving)));
                        while connections.try_next().is_some() {}
                    }
                });
                (Some(path), None, accepting)
            }
            Isolation::None => {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
                let port = listener.local_addr()?.port();
                let accepting = task::spawn("the gateway of an episode", async move {
                    let mut connections = Tasks::new();
                    while let Ok((stream, _)) = listener.accept().await {
                        connections.spawn(CONNECTION, connection(TokioIo::new(stream), Arc::clone(&serving)));
                        while connections.try_next().is_some() {}
                    }
                });
                (None, Some(port), accepting)
            }
        };
        Ok(Self {
            shared,
            socket,
            port,
            accepting,
        })
    }

    pub(super) fn token(&self) -> &str {
        &self.shared.token
    }

    pub(super) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    pub(super) fn port(&self) -> Option<u16> {
        self.port
    }

    /// Closes it and gives what was asked.
    pub(super) async fn finish(self) -> GatewayLog {
        // The agent is gone; an answer it did not wait for is still being counted for a moment.
        tokio::time::sleep(Duration::from_millis(5)).await;
        self.shared.log.lock().clone()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.accepting.abort();
        if let Some(socket) = &self.socket {
            // A socket file that stays is inert.
            let _stays = std::fs::remove_file(socket);
        }
    }
}

async fn connection<I>(io: TokioIo<I>, shared: Arc<Shared>)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(shared.answer(request).await) }
    });
    if let Err(error) = http1::Builder::new().serve_connection(io, service).await {
        tracing::debug!(%error, "a connection of an episode ended");
    }
}

impl Shared {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Reply {
        if !self.knows(request.headers()) {
            return refusal(
                StatusCode::UNAUTHORIZED,
                "authentication_error",
                "this token is not of this episode",
            );
        }
        let path = request.uri().path().trim_end_matches('/').to_owned();
        if request.method() == Method::GET && (path == "/v1/models" || path.starts_with("/v1/models/")) {
            return self.models(&path);
        }
        match Route::from_path(&path) {
            Some(route) if request.method() == Method::POST => self.infer(route, request).await,
            _ => refusal(
                StatusCode::NOT_FOUND,
                "not_found_error",
                "an episode reaches its model and nothing else",
            ),
        }
    }

    fn knows(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        let key = headers.get("x-api-key").map(HeaderValue::as_bytes);
        [given, key]
            .into_iter()
            .flatten()
            .any(|given| given.ct_eq(self.token.as_bytes()).into())
    }

    fn models(&self, path: &str) -> Reply {
        let card = json!({"id": self.source.model, "object": "model", "created": 0, "owned_by": "reef"});
        let body = if path == "/v1/models" {
            json!({"object": "list", "data": [card]})
        } else {
            card
        };
        whole(StatusCode::OK, &body)
    }

    /// Takes one call out of the budget.
    fn take_call(&self) -> bool {
        let mut log = self.log.lock();
        let spent = log.input_tokens + log.output_tokens;
        if log.calls >= self.budget.calls || spent >= self.budget.tokens {
            log.refused += 1;
            return false;
        }
        log.calls += 1;
        true
    }

    async fn infer(self: Arc<Self>, route: Route, request: Request<Incoming>) -> Reply {
        let (parts, body) = request.into_parts();
        let Ok(body) = Limited::new(body, MAX_BODY).collect().await.map(|body| body.to_bytes()) else {
            return refusal(
                StatusCode::PAYLOAD_TOO_LARGE,
                "invalid_request_error",
                "the request is too large",
            );
        };
        let Some(mut fields) = crate::sys::json::read_object(&body) else {
            return refusal(
                StatusCode::BAD_REQUEST,
                "invalid_request_error",
                "the request is not a JSON object",
            );
        };
        if !self.take_call() {
            return refusal(
                StatusCode::FORBIDDEN,
                "permission_error",
                "the budget of this episode is spent",
            );
        }
        fields.insert("model".to_owned(), Value::String(self.source.model.clone()));
        let streaming = fields.get("stream") == Some(&Value::Bool(true));
        let with_tools = fields
            .get("tools")
            .and_then(Value::as_array)
            .is_some_and(|tools| !tools.is_empty());
        let bytes = Bytes::from(Value::Object(fields).to_string());
        let asked = bytes.len() as u64;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        for name in ["anthropic-version", "anthropic-beta"] {
            if let Some(value) = parts.headers.get(name) {
                headers.insert(name, value.clone());
            }
        }
        let outline = crate::engine::RequestOutline::read(&bytes).ok();
        let call = EngineRequest {
            route,
            query: None,
            headers,
            body: bytes,
            outline,
            scenario: self.source.scenario.clone(),
            release: self.source.release.clone(),
        };
        let mut note = Note {
            shared: Arc::clone(&self),
            route,
            with_tools,
            streaming,
            asked,
            kept: Vec::new(),
            failure: None,
        };
        let mut reply = match self.source.engine.call(call).await {
            Ok(reply) => reply,
            Err(error) => {
                note.failure = Some(error.to_string());
                drop(note);
                return refusal(StatusCode::BAD_GATEWAY, "api_error", "the model did not answer");
            }
        };
        if !reply.status.is_success() {
            note.failure = Some(format!("status {}", reply.status.as_u16()));
        }
        let status = reply.status;
        let kind = reply.headers.get(CONTENT_TYPE).cloned();
        let (send, receive) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, io::Error>>(16);
        let _passing = task::spawn(CONNECTION, async move {
            while let Some(chunk) = reply.body.next().await {
                let item = match chunk {
                    Ok(chunk) => {
                        let room = MAX_KEPT.saturating_sub(note.kept.len()).min(chunk.len());
                        note.kept.extend_from_slice(&chunk[..room]);
                        Ok(Frame::data(chunk))
                    }
                    Err(error) => {
                        note.failure = Some(error.to_string());
                        Err(io::Error::other(error))
                    }
                };
                if send.send(item).await.is_err() {
                    break;
                }
            }
            drop(note);
            drop(send);
        });
        let body = StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(receive));
        let mut response = Response::new(BodyExt::boxed(body));
        *response.status_mut() = status;
        if let Some(kind) = kind {
            response.headers_mut().insert(CONTENT_TYPE, kind);
        }
        response
    }
}

/// Writes an exchange down when it is over, however it ends.
struct Note {
    shared: Arc<Shared>,
    route: Route,
    with_tools: bool,
    streaming: bool,
    asked: u64,
    kept: Vec<u8>,
    failure: Option<String>,
}

impl Drop for Note {
    fn drop(&mut self) {
        let turn = if self.streaming && self.failure.is_none() {
            let mut assembler = Assembler::new(self.route.dialect(), Limits::default());
            let mut scanner = Scanner::default();
            let mut at = 0;
            while at < self.kept.len() {
                at += scanner.advance(&self.kept[at..]);
                if let Some(event) = scanner.event() {
                    let _progress = assembler.take(event);
                }
            }
            assembler.finish()
        } else {
            turn_of_body(self.route, &self.kept)
        };
        let usage = turn.usage.clone().unwrap_or_default();
        // Where a provider does not say, four bytes are about a token; a budget must hold all the same.
        let input = usage.input_tokens.unwrap_or(self.asked / 4);
        let output = usage.output_tokens.unwrap_or(self.kept.len() as u64 / 4);
        self.shared.meter.call(&self.shared.source.model, input, output);
        let mut log = self.shared.log.lock();
        log.input_tokens += input;
        log.output_tokens += output;
        if log.exchanges.len() < MAX_EXCHANGES {
            log.exchanges.push(Exchange {
                route: self.route,
                with_tools: self.with_tools,
                turn,
                failure: self.failure.take(),
            });
        }
    }
}

fn refusal(status: StatusCode, kind: &str, message: &str) -> Reply {
    whole(
        status,
        &json!({"type": "error", "error": {"type": kind, "code": kind, "message": message}}),
    )
}

fn whole(status: StatusCode, body: &Value) -> Reply {
    let bytes = Bytes::from(body.to_string());
    let mut response = Response::new(Full::new(bytes).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
