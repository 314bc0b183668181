//! The inference routes: admit, freeze the release, ask the engine, pass the answer on, and make the record durable
//! before the receipt is given.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::decode::{Decoder, Encoding, decode};
use super::error::ApiError;
use super::exchange::{Exchange, Stopwatch};
use super::headers::{self, Instructions, RECEIPT, RECORDED};
use super::metrics::Unrecorded;
use super::options::OnStoreFailure;
use super::receive;
use super::reply::ReplyBody;
use super::sniff::{self, Shape, Told};
use super::state::State;
use super::stream::StreamBody;
use crate::domain::{FrozenRelease, RecordId, Route, ScenarioName};
use crate::engine::sse::{Answer, answer_of_body};
use crate::engine::{ByteStream, EngineReply, EngineRequest, RequestOutline};
use crate::experience::{InterruptionReason, StoreError};
use crate::scenario::OnMissing;
use crate::sys::{failpoint, task};
use crate::telemetry::TRACES;

/// Bytes of an upstream's error that are quoted in Reef's own.
const QUOTED: usize = 400;

/// Serves one inference request.
pub(super) async fn infer(
    state: &Arc<State>,
    route: Route,
    request: Request<&mut Incoming>,
) -> Result<Response<ReplyBody>, ApiError> {
    let on_missing = if state.options.implicit_scenarios {
        OnMissing::Create
    } else {
        OnMissing::Refuse
    };
    infer_in(state, route, request, on_missing).await
}

/// Serves a request of an evaluation: the path names a scenario that exists, and nothing is recorded.
pub(super) async fn evaluate(
    state: &Arc<State>,
    route: Route,
    scenario: &ScenarioName,
    mut request: Request<&mut Incoming>,
) -> Result<Response<ReplyBody>, ApiError> {
    let headers = request.headers_mut();
    let name = HeaderValue::from_str(scenario.as_str())
        .map_err(|_| ApiError::bad_request("invalid_request", "the name of the scenario cannot be sent in a header"))?;
    headers.insert(headers::SCENARIO, name);
    headers.insert(headers::RECORD, HeaderValue::from_static("false"));
    headers.remove(headers::RELEASE);
    infer_in(state, route, request, OnMissing::Refuse).await
}

async fn infer_in(
    state: &Arc<State>,
    route: Route,
    request: Request<&mut Incoming>,
    on_missing: OnMissing,
) -> Result<Response<ReplyBody>, ApiError> {
    let clock = Stopwatch::start();
    let (mut parts, incoming) = request.into_parts();
    let instructions = Instructions::read(&parts.headers)?;
    let permit = state.admission.enter()?;
    let body = receive::body(incoming, state.options.max_body_bytes, state.options.client_timeout)
        .await
        .inspect_err(|error| {
            if error.status == StatusCode::PAYLOAD_TOO_LARGE {
                state.metrics.too_large_requests.fetch_add(1, Ordering::Relaxed);
            }
        })?;
    let (outline, plain) = read_body(&parts.headers, &body, state.options.max_body_bytes)?;
    let scenario = state
        .directory
        .resolve(&instructions.scenario, on_missing, instructions.release.as_ref())
        .await?;
    let (id, release) = (State::fresh_id(), (*scenario.served()).clone());
    let span = trace(route, &instructions.scenario, &id, &release);
    let exchange = Exchange {
        state: Arc::clone(state),
        id,
        scenario: instructions.scenario,
        route,
        record: instructions.record,
        receipt_in_finish: instructions
            .stream_receipt
            .unwrap_or(state.options.stream_receipt)
            .in_finish(&outline),
        fetched: None,
        known: None,
        release,
        request: plain,
        tags: instructions.tags,
        capture: None,
        status: 0,
        clock,
        sent: 0,
        settled: false,
        permit: Some(permit),
        span: span.clone(),
    };
    let answered = answer(exchange, &mut parts, body, outline).await;
    // What the client is told, which is not always what the provider said.
    match &answered {
        Ok(response) => span.record("http.response.status_code", response.status().as_u16()),
        Err(error) => {
            if error.status.is_server_error() {
                span.record("otel.status_description", error.code);
            }
            span.record("http.response.status_code", error.status.as_u16())
        }
    };
    answered
}

/// Asks the engine, and passes on what it says.
async fn answer(
    mut exchange: Exchange,
    parts: &mut Parts,
    body: Bytes,
    outline: RequestOutline,
) -> Result<Response<ReplyBody>, ApiError> {
    let body = if exchange.state.engine.wants_plain_bodies() {
        exchange.request.clone()
    } else {
        body
    };
    let asked = outline.stream;
    // A failure here is told as a panic is; only tests arm it.
    let _armed = failpoint::hit("serve::before_engine");
    let reply = call(&mut exchange, parts, body, outline).await?;
    exchange.status = reply.status.as_u16();
    exchange.capture.clone_from(&reply.capture);
    if !reply.status.is_success() {
        let reason = InterruptionReason::of_status(exchange.status);
        // Without the body: it may repeat the request, or a credential.
        exchange.interrupt(reason, format!("the upstream returned {}", exchange.status));
        if headers::is_kept(reply.status) {
            return Ok(pass(reply, exchange));
        }
        return Err(translated(reply).await);
    }
    pass_on(reply, exchange, asked).await
}

/// Passes on a success: a stream as it comes, a document when it is stored.
pub(super) async fn pass_on(
    mut reply: EngineReply,
    mut exchange: Exchange,
    asked: bool,
) -> Result<Response<ReplyBody>, ApiError> {
    let told = Told {
        declared: headers::is_event_stream(&reply.headers),
        asked,
        encoding: Encoding::of(&reply.headers),
    };
    let (shape, body) = sniff::shape(told, reply.body)
        .await
        .inspect_err(|error| exchange.interrupt(error.into(), error.to_string()))?;
    reply.body = body;
    if shape == Shape::Stream {
        return Ok(stream(reply, exchange));
    }
    if !exchange.record {
        exchange.state.metrics.opted_out.fetch_add(1, Ordering::Relaxed);
        exchange.settle("opted_out");
        return Ok(pass(reply, exchange));
    }
    whole(reply, exchange).await
}

/// The trace of one exchange.
pub(super) fn trace(route: Route, scenario: &ScenarioName, id: &RecordId, release: &FrozenRelease) -> Span {
    tracing::info_span!(
        target: TRACES,
        "exchange",
        otel.kind = "server",
        otel.status_description = Empty,
        http.route = route.path(),
        http.response.status_code = Empty,
        reef.scenario = %scenario,
        reef.exchange = %id,
        reef.receipt = Empty,
        reef.outcome = Empty,
        reef.release = %release.release_id,
    )
}

/// What routing needs of the body, and the body as the record shows it: decoded, if the client compressed it.
fn read_body(headers: &HeaderMap, body: &Bytes, limit: usize) -> Result<(RequestOutline, Bytes), ApiError> {
    let encoding = Encoding::of(headers);
    let plain = decode(encoding, body, limit).map_err(|error| {
        ApiError::bad_request(
            "invalid_encoding",
            format!("the request body cannot be decoded as its content-encoding says: {error}"),
        )
    })?;
    let outline =
        RequestOutline::read(&plain).map_err(|error| ApiError::bad_request("invalid_json", error.to_string()))?;
    Ok((outline, plain))
}

async fn call(
    exchange: &mut Exchange,
    parts: &mut Parts,
    body: Bytes,
    outline: RequestOutline,
) -> Result<EngineReply, ApiError> {
    let mut headers = std::mem::take(&mut parts.headers);
    headers::keep_for_engine(&mut headers);
    let request = EngineRequest {
        route: exchange.route,
        query: parts.uri.query().map(str::to_owned),
        headers,
        body,
        outline: Some(outline),
        scenario: exchange.scenario.clone(),
        release: exchange.release.clone(),
    };
    exchange.clock.called();
    let engine = Arc::clone(&exchange.state.engine);
    let span = tracing::info_span!(
        target: TRACES,
        parent: &exchange.span,
        "engine",
        otel.kind = "client",
        otel.status_description = Empty,
        http.response.status_code = Empty,
    );
    match engine.call(request).instrument(span.clone()).await {
        Ok(mut reply) => {
            span.record("http.response.status_code", reply.status.as_u16());
            if !reply.status.is_success() {
                span.record("otel.status_description", "the upstream answered with an error");
            }
            headers::keep_for_client(&mut reply.headers);
            Ok(reply)
        }
        Err(error) => {
            let reason = InterruptionReason::from(&error);
            span.record("otel.status_description", reason.as_str());
            exchange.interrupt(reason, error.to_string());
            Err(error.into())
        }
    }
}

/// An answer that passes unrecorded: an error as the provider sent it, or what a client opted out of recording.
fn pass(reply: EngineReply, exchange: Exchange) -> Response<ReplyBody> {
    let body = ReplyBody::Pass(None, reply.body, Box::new(exchange));
    with_head(reply.status, reply.headers, body)
}

fn stream(mut reply: EngineReply, exchange: Exchange) -> Response<ReplyBody> {
    let encoding = Encoding::of(&reply.headers);
    let compressed = encoding != Encoding::Identity;
    let decoder = Decoder::new(encoding, exchange.state.options.max_recorded_bytes).ok();
    if !exchange.record {
        exchange.state.metrics.opted_out.fetch_add(1, Ordering::Relaxed);
    }
    reply.headers.remove(CONTENT_LENGTH);
    let body = StreamBody::new(exchange, reply.body, decoder, compressed);
    with_head(reply.status, reply.headers, ReplyBody::Stream(Box::new(body)))
}

/// An answer that is not a stream: its receipt is a header, so it is stored before its head is sent.
async fn whole(reply: EngineReply, mut exchange: Exchange) -> Result<Response<ReplyBody>, ApiError> {
    let EngineReply {
        status,
        mut headers,
        mut body,
        ..
    } = reply;
    let limit = exchange.state.options.max_recorded_bytes;
    let bytes = match collect(&mut exchange, &mut body, limit).await? {
        Collected::Whole(bytes) => bytes,
        Collected::Larger(start) => return Ok(unrecorded_rest(status, headers, start, body, exchange)),
    };
    drop(body);
    let Ok(plain) = decode(Encoding::of(&headers), &bytes, limit) else {
        return Ok(unrecorded(
            status,
            headers,
            bytes,
            &mut exchange,
            Unrecorded::Undecodable,
        ));
    };
    let turn = match answer_of_body(exchange.route, &plain) {
        Answer::Whole(turn) => *turn,
        // The bytes pass all the same; the client sees what the provider sent.
        other => {
            exchange.unanswered(other);
            headers.remove(CONTENT_LENGTH);
            return Ok(with_head(status, headers, ReplyBody::full(bytes)));
        }
    };
    // A task of its own: once the answer is complete its record does not depend on the client's patience.
    let stored = exchange.store(plain, turn, false);
    let stored = task::track(&exchange.state.afterwards, "storing a record", stored).await;
    match stored.map_err(StoreError::from).flatten() {
        Ok(id) => {
            headers.insert(RECEIPT, headers::value(id.as_str()));
            headers.remove(CONTENT_LENGTH);
            Ok(with_head(status, headers, ReplyBody::full(bytes)))
        }
        Err(error) if exchange.state.options.on_store_failure == OnStoreFailure::Refuse => {
            exchange.state.metrics.unrecorded(Unrecorded::StoreFailed);
            Err(error.into())
        }
        Err(_) => Ok(unrecorded(
            status,
            headers,
            bytes,
            &mut exchange,
            Unrecorded::StoreFailed,
        )),
    }
}

enum Collected {
    Whole(Bytes),
    /// More than the limit: what has come so far.
    Larger(Bytes),
}

async fn collect(exchange: &mut Exchange, body: &mut ByteStream, limit: usize) -> Result<Collected, ApiError> {
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(item) = body.next().await {
        let bytes = item.inspect_err(|error| exchange.interrupt(error.into(), error.to_string()))?;
        exchange.clock.bytes();
        // The usual body comes in one part and is not copied.
        if first.is_empty() && all.is_empty() {
            first = bytes;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&bytes);
        }
        if all.len().max(first.len()) > limit {
            let start = if all.is_empty() { first } else { all.freeze() };
            return Ok(Collected::Larger(start));
        }
    }
    Ok(Collected::Whole(if all.is_empty() { first } else { all.freeze() }))
}

/// The whole answer without a receipt, and marked so.
fn unrecorded(
    status: StatusCode,
    mut headers: HeaderMap,
    bytes: Bytes,
    exchange: &mut Exchange,
    why: Unrecorded,
) -> Response<ReplyBody> {
    exchange.state.metrics.unrecorded(why);
    exchange.settle("unrecorded");
    headers.insert(RECORDED, HeaderValue::from_static("false"));
    headers.remove(CONTENT_LENGTH);
    with_head(status, headers, ReplyBody::full(bytes))
}

/// An answer too large to record passes as it comes.
fn unrecorded_rest(
    status: StatusCode,
    mut headers: HeaderMap,
    start: Bytes,
    rest: ByteStream,
    mut exchange: Exchange,
) -> Response<ReplyBody> {
    exchange.state.metrics.unrecorded(Unrecorded::TooLarge);
    exchange.settle("unrecorded");
    headers.insert(RECORDED, HeaderValue::from_static("false"));
    with_head(status, headers, ReplyBody::Pass(Some(start), rest, Box::new(exchange)))
}

/// An upstream failure in Reef's own words, with the beginning of what the upstream said.
async fn translated(reply: EngineReply) -> ApiError {
    let status = reply.status;
    let encoding = Encoding::of(&reply.headers);
    let retry_after = reply
        .headers
        .get(http::header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let mut text = Vec::new();
    let mut body = reply.body;
    while let Some(Ok(bytes)) = body.next().await {
        text.extend_from_slice(&bytes);
        if text.len() > 64 * 1024 {
            break;
        }
    }
    let text = decode(encoding, &Bytes::from(text), 1 << 20).unwrap_or_default();
    let (to, code) = if status.is_client_error() {
        (StatusCode::BAD_REQUEST, "upstream_refused")
    } else {
        (StatusCode::BAD_GATEWAY, "upstream_failed")
    };
    ApiError {
        retry_after,
        quoted: String::from_utf8_lossy(&text).chars().take(QUOTED).collect(),
        ..ApiError::new(to, code, format!("the upstream returned {}", status.as_u16()))
    }
}

fn with_head(status: StatusCode, mut headers: HeaderMap, body: ReplyBody) -> Response<ReplyBody> {
    if headers.get(CONTENT_ENCODING).is_some_and(HeaderValue::is_empty) {
        headers.remove(CONTENT_ENCODING);
    }
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}
