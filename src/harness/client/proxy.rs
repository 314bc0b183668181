//! The loopback proxy between an agent and the service. The agent holds a key that is good for this session and this
//! machine only; the proxy puts the real token in, says which scenario, session and release a request belongs to, passes
//! every byte through unchanged, and notes the receipts it sees.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::error::{ClientError, Kind};
use super::receipt::{StreamReceipt, graded_route};
use super::service::{http_client, reason};
use super::spool::{Note, Turn};
use crate::domain::{Dialect, Route};
use crate::engine::strip_hop_by_hop;
use crate::sys::net::bearer;
use crate::sys::task;
use crate::sys::{clock, random};

/// The longest request body; the service has a limit of its own.
const MAX_REQUEST: usize = 256 * 1024 * 1024;
/// The longest body that is kept where bodies are.
const MAX_KEPT: usize = 8 * 1024 * 1024;
/// How keys of sessions begin. A token that begins like this is never the service's.
pub(super) const KEY_PREFIX: &str = "reef-session-";

type Body = UnsyncBoxBody<Bytes, reqwest::Error>;

/// Where a request of an agent goes, if it may: what counts is the address as it is sent, after every spelling of `..`
/// was resolved. Everything else of the service (releases above all) is for a person's own hands.
fn destination(base: &str, method: &Method, target: &str) -> Option<reqwest::Url> {
    let base = reqwest::Url::parse(base).ok()?;
    let root = base.path().trim_end_matches('/').to_owned();
    let url = reqwest::Url::parse(&format!("{}{target}", base.as_str().trim_end_matches('/'))).ok()?;
    let lower = url.path().to_ascii_lowercase();
    let plain = !["%2e", "%5c", "\\"].iter().any(|odd| lower.contains(odd));
    let path = url.path().strip_prefix(&root)?;
    (plain && url.origin() == base.origin() && is_for_agents(method, path)).then_some(url)
}

fn is_for_agents(method: &Method, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let under = |prefix: &str| path == prefix || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    let reads = matches!(*method, Method::GET | Method::HEAD);
    under("/v1")
        || (reads && (path.is_empty() || path == "/healthz" || under("/reef/harness")))
        || (*method == Method::POST && matches!(path, "/reef/report" | "/reef/train" | "/reef/harness/proposals"))
}

/// What the proxy adds, and where it sends.
#[derive(Clone)]
pub(super) struct Bridge {
    /// Root of the service.
    pub(super) base: String,
    /// The real token.
    pub(super) token: Option<String>,
    /// The scenario.
    pub(super) scenario: String,
    /// The session's id.
    pub(super) session: String,
    /// The release the agent runs on.
    pub(super) release: String,
    /// The wrapper's name, for messages.
    pub(super) command: String,
    /// Whether bodies are kept.
    pub(super) bodies: bool,
}

struct Shared {
    bridge: Bridge,
    key: String,
    http: reqwest::Client,
    notes: mpsc::Sender<Note>,
    open: AtomicUsize,
}

/// A running proxy.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    /// What the agent presents.
    pub(super) key: String,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

impl Proxy {
    /// Listens on a free loopback port.
    pub(super) async fn start(bridge: Bridge, notes: mpsc::Sender<Note>) -> Result<Self, ClientError> {
        let failed =
            |error: std::io::Error| ClientError::new(Kind::Machine, format!("no loopback port can be opened: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            bridge,
            key: format!("{KEY_PREFIX}{}", random::hex_token()),
            http: http_client(None)?,
            notes,
            open: AtomicUsize::new(0),
        });
        let stop = CancellationToken::new();
        let _accepting = task::spawn("the agent's proxy", accept(listener, Arc::clone(&shared), stop.clone()));
        Ok(Self {
            address,
            key: shared.key.clone(),
            shared,
            stop,
        })
    }

    /// Its root.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops; answers that are still on their way get a moment to end.
    pub(super) async fn stop(self) {
        self.settle(Duration::from_secs(2)).await;
        self.stop.cancel();
        // What is cut off here notes what was seen of it; that is to arrive before the run's file is closed.
        self.settle(Duration::from_secs(1)).await;
    }

    /// Waits until no answer is on its way.
    async fn settle(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while self.shared.open.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, stop: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors: they come back when an exchange ends.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let _slower_without = stream.set_nodelay(true);
        let (shared, stop) = (Arc::clone(&shared), stop.clone());
        let _answering = task::spawn("answering an agent", async move {
            let service = service_fn(move |request| {
                let shared = Arc::clone(&shared);
                async move { Ok::<_, std::convert::Infallible>(answer(shared, request).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                // A connection that breaks off concerns the agent, which sees it too.
                _ended = connection => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let dialect = Route::from_path(path.trim_end_matches('/')).map(Route::dialect);
    let command = &shared.bridge.command;
    if !holds_key(&head.headers, &shared.key) {
        let message = format!("this address belongs to a running {command} session and takes only that session's key");
        return fault(dialect, StatusCode::UNAUTHORIZED, "authentication_error", &message);
    }
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let Some(url) = destination(&shared.bridge.base, &head.method, target) else {
        let message = format!(
            "{} {path} is not for an agent; use the reef command instead",
            head.method
        );
        return fault(dialect, StatusCode::FORBIDDEN, "permission_error", &message);
    };
    let body = match Limited::new(body, MAX_REQUEST).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("the request's body is longer than {MAX_REQUEST} bytes");
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            return fault(dialect, status, "invalid_request_error", &message);
        }
        Err(error) => {
            let message = format!("the request's body cannot be read: {error}");
            return fault(dialect, StatusCode::BAD_REQUEST, "invalid_request_error", &message);
        }
    };
    let mut headers = head.headers;
    if let Err(message) = shared.bridge.sign(&mut headers) {
        return fault(dialect, StatusCode::INTERNAL_SERVER_ERROR, "server_error", &message);
    }
    let graded = graded_route(&path).is_some() && head.method == Method::POST;
    let kept = (graded && shared.bridge.bodies && body.len() <= MAX_KEPT).then(|| body.clone());
    let begun = Begun {
        at: clock::seconds(clock::now_us()),
        start: Instant::now(),
        path,
    };
    let open = Open::new(&shared);
    let sent = shared
        .http
        .request(head.method, url)
        .headers(headers)
        .body(body)
        .send()
        .await;
    let reply = match sent {
        Ok(reply) => reply,
        Err(error) => {
            let message = format!(
                "{command}: no service answers at {} ({})",
                shared.bridge.base,
                reason(&error)
            );
            return fault(dialect, StatusCode::BAD_GATEWAY, "server_error", &message);
        }
    };
    let status = reply.status();
    let mut headers = reply.headers().clone();
    strip_hop_by_hop(&mut headers);
    let watch = (graded && status.is_success()).then(|| Watch::new(Arc::clone(&shared), begun, &headers, kept));
    let body = Passing {
        inner: Box::pin(reply.bytes_stream()),
        watch,
        _open: open,
    };
    let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(
        body.map(|item| item.map(Frame::data)),
    )));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

impl Bridge {
    /// Replaces what the agent said about itself by what is true.
    fn sign(&self, headers: &mut HeaderMap) -> Result<(), String> {
        strip_hop_by_hop(headers);
        // A receipt cannot be seen in an answer that is compressed; what the agent expected has been answered here.
        for name in [HOST, CONTENT_LENGTH, AUTHORIZATION, ACCEPT_ENCODING, EXPECT] {
            headers.remove(name);
        }
        headers.remove("x-api-key");
        let value =
            |what: &str, text: &str| HeaderValue::from_str(text).map_err(|_| format!("{what} cannot be a header"));
        headers.insert("x-reef-scenario", value("the scenario", &self.scenario)?);
        headers.insert("x-reef-tag-session", value("the session", &self.session)?);
        headers.insert("x-reef-tag-release", value("the release", &self.release)?);
        // It binds a scenario to a base release at its creation, which is no agent's business.
        headers.remove("x-reef-release-id");
        if let Some(token) = &self.token {
            let mut value = value("the token", &format!("Bearer {token}"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(())
    }
}

fn holds_key(headers: &HeaderMap, key: &str) -> bool {
    let given = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    let plain = headers.get("x-api-key").map(HeaderValue::as_bytes);
    [given, plain]
        .into_iter()
        .flatten()
        .any(|given| bool::from(given.ct_eq(key.as_bytes())))
}

/// An error in the dialect of its route, honest about whether trying again can help.
fn fault(dialect: Option<Dialect>, status: StatusCode, kind: &str, message: &str) -> Response<Body> {
    let body = match dialect {
        Some(Dialect::Anthropic) => {
            let kind = if kind == "server_error" { "api_error" } else { kind };
            json!({"type": "error", "error": {"type": kind, "message": message}})
        }
        _ => json!({"error": {"message": message, "type": kind, "param": null, "code": null}}),
    };
    let full = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {});
    let mut response = Response::new(full.boxed_unsync());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Counts an exchange that is on its way.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(shared))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Begun {
    at: f64,
    start: Instant,
    path: String,
}

/// Looks at an answer as it passes.
struct Watch {
    shared: Arc<Shared>,
    begun: Begun,
    /// From the header, or found in the stream.
    receipt: Option<String>,
    stream: Option<StreamReceipt>,
    kept: Option<(Bytes, Vec<u8>)>,
    noted: bool,
}

impl Watch {
    fn new(shared: Arc<Shared>, begun: Begun, headers: &HeaderMap, kept: Option<Bytes>) -> Self {
        let is_stream = headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.trim_start().to_ascii_lowercase().starts_with("text/event-stream"));
        let receipt = headers
            .get("x-reef-agent-record-id")
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        Self {
            shared,
            begun,
            receipt,
            stream: is_stream.then(StreamReceipt::default),
            kept: kept.map(|request| (request, Vec::new())),
            noted: false,
        }
    }

    fn pass(&mut self, bytes: &[u8]) {
        if let Some((_, response)) = &mut self.kept
            && response.len() + bytes.len() <= MAX_KEPT
        {
            response.extend_from_slice(bytes);
        }
        if let Some(found) = self.stream.as_mut().and_then(|stream| stream.read(bytes)) {
            self.receipt = Some(found.to_string());
            self.note_turn();
        }
    }

    /// As soon as the receipt is known: the agent may be gone a moment later.
    fn note_turn(&mut self) {
        if self.noted {
            return;
        }
        if let Some(receipt) = self.receipt.clone() {
            self.noted = true;
            let turn = Turn {
                receipt,
                path: self.begun.path.clone(),
                at: self.begun.at,
                duration_ms: u64::try_from(self.begun.start.elapsed().as_millis()).unwrap_or(u64::MAX),
            };
            // The writer outlives every exchange; without it there is nobody left to tell.
            let _gone = self.shared.notes.send(Note::Turn(turn));
        }
    }

    fn end(&mut self) {
        if let Some(found) = self.stream.as_mut().and_then(StreamReceipt::end) {
            self.receipt = Some(found.to_string());
        }
        self.note_turn();
        if !self.noted {
            let _gone = self.shared.notes.send(Note::WithoutReceipt);
        }
        if let (Some((request, response)), Some(receipt)) = (self.kept.take(), self.receipt.clone()) {
            let _gone = self.shared.notes.send(Note::Bodies {
                receipt,
                request: request.to_vec(),
                response,
            });
        }
    }
}

/// A body on its way through.
struct Passing {
    inner: Pin<Box<dyn Stream<Item = Result<Bytes, reqwest::Error>> + Send>>,
    watch: Option<Watch>,
    _open: Open,
}

impl Stream for Passing {
    type Item = Result<Bytes, reqwest::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.inner.as_mut().poll_next(cx);
        match &polled {
            Poll::Ready(Some(Ok(bytes))) => {
                if let Some(watch) = &mut self.watch {
                    watch.pass(bytes);
                }
            }
            Poll::Ready(None) => {
                if let Some(mut watch) = self.watch.take() {
                    watch.end();
                }
            }
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        // The agent left, or the answer broke off: what was seen so far counts.
        if let Some(mut watch) = self.watch.take() {
            watch.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_reaches_models_and_reports_but_no_release() {
        for (method, path) in [
            (Method::POST, "/v1/chat/completions"),
            (Method::GET, "/v1/models/x"),
            (Method::HEAD, "/"),
            (Method::POST, "/reef/report"),
            (Method::GET, "/reef/harness/releases/"),
        ] {
            assert!(is_for_agents(&method, path), "{method} {path}");
        }
        for (method, path) in [
            (Method::POST, "/reef/scenarios/s/promote"),
            (Method::DELETE, "/reef/scenarios/s"),
            (Method::POST, "/reef/records"),
            (Method::GET, "/metrics"),
            (Method::POST, "/reef/harness"),
            (Method::GET, "/v1x"),
        ] {
            assert!(!is_for_agents(&method, path), "{method} {path}");
        }
    }

    #[test]
    fn no_spelling_of_a_path_leads_an_agent_elsewhere() {
        let sent = |base: &str, target: &str| destination(base, &Method::POST, target).map(String::from);
        for base in ["http://reef:8900", "http://reef:8900/team/"] {
            let root = base.trim_end_matches('/');
            let good = "/v1/chat/completions?beta=true";
            assert_eq!(sent(base, good), Some(format!("{root}{good}")));
            assert_eq!(
                sent(base, "/v1/models/org%2Fname"),
                Some(format!("{root}/v1/models/org%2Fname"))
            );
            for bad in [
                "/v1/../reef/scenarios/s/promote",
                "/v1/%2E%2e/reef/scenarios/s/promote",
                "/v1/.%2e/reef/scenarios/s/promote",
                "/v1/%2e./reef/scenarios/s/promote",
                "/v1/..\\reef\\scenarios\\s\\promote",
                "/v1\\..\\reef/scenarios/s/promote",
                "/v1/..%5creef%5cscenarios",
                "/v1/../../other/application",
                "@evil.example/v1/chat/completions",
                ".evil.example/v1/chat/completions",
                ":1/v1/chat/completions",
            ] {
                assert_eq!(sent(base, bad), None, "{base} {bad}");
            }
        }
    }

    #[test]
    fn only_the_sessions_key_opens() {
        let with = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            headers
        };
        assert!(holds_key(&with("authorization", "Bearer k"), "k"));
        assert!(holds_key(&with("authorization", "BEARER  k"), "k"));
        assert!(holds_key(&with("x-api-key", "k"), "k"));
        for headers in [
            HeaderMap::new(),
            with("authorization", "Bearer kk"),
            with("authorization", "k"),
        ] {
            assert!(!holds_key(&headers, "k"));
        }
    }

    #[test]
    fn what_the_agent_says_about_itself_is_replaced() {
        let bridge = Bridge {
            base: "http://x".into(),
            token: Some("real".into()),
            scenario: "s".into(),
            session: "run1".into(),
            release: "r1".into(),
            command: "reef-pi".into(),
            bodies: false,
        };
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer mine"),
            ("x-api-key", "mine"),
            ("x-reef-scenario", "other"),
            ("x-reef-release-id", "zz"),
            ("user-agent", "pi"),
            ("host", "127.0.0.1"),
            ("accept-encoding", "gzip"),
            ("expect", "100-continue"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        bridge.sign(&mut headers).unwrap();
        let get = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(get("authorization"), Some("Bearer real"));
        assert_eq!(get("x-reef-scenario"), Some("s"));
        assert_eq!(get("x-reef-tag-session"), Some("run1"));
        assert_eq!(get("x-reef-tag-release"), Some("r1"));
        assert_eq!(get("user-agent"), Some("pi"));
        assert_eq!(
            (get("x-api-key"), get("x-reef-release-id"), get("host")),
            (None, None, None)
        );
        assert_eq!((get("accept-encoding"), get("expect")), (None, None));
    }
}
