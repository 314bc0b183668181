//! From a path to its handler.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::header::{ALLOW, EXPECT, HeaderValue, UPGRADE};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use serde_json::json;

use super::api::{self, Kept};
use super::cors::{self, Verdict};
use super::error::ApiError;
use super::query::decode;
use super::receive;
use super::reply::{ReplyBody, json};
use super::state::State;
use super::{
    fetch, harness, import, inference, local, models, pass, records, releases, report, scenarios, status, train,
};
use crate::domain::{Route, ScenarioName};
use crate::sys::task;

/// Answers one request; every error becomes a response in the dialect of its route.
pub(super) async fn handle(state: &Arc<State>, request: Request<Incoming>) -> Response<ReplyBody> {
    let request = as_meant(request);
    let path = request.uri().path();
    let kept = below_v1(path).then(|| api::kept(request.method(), path));
    let dialect = match kept {
        Some(Ok(Kept::Recorded(route) | Kept::Fetched(route))) => Some(route.dialect()),
        Some(_) => Route::from_path(path)
            .map(Route::dialect)
            .or_else(|| api::dialect(path, request.headers())),
        None if is_ours(path) => evaluated(path).map(Route::dialect),
        None => api::dialect(path, request.headers()),
    };
    let (parts, mut body) = request.into_parts();
    // A client that waits to be asked for the body has sent none.
    let sent = !parts.headers.contains_key(EXPECT);
    let request = Request::from_parts(parts, &mut body);
    let verdict = trusted(state, &request).and_then(|()| cors::check(&state.options.console_origins, &request));
    let (result, origin) = match verdict {
        Ok(Verdict::Plain) => (answered(state, kept, request).await, None),
        Ok(Verdict::Allowed(origin)) => (answered(state, kept, request).await, Some(origin)),
        Ok(Verdict::Preflight(origin)) => (Ok(cors::preflight(origin)), None),
        Err(error) => (Err(error), None),
    };
    let mut response = result.unwrap_or_else(|error| {
        tracing::debug!(
            status = error.status.as_u16(),
            code = error.code,
            message = error.message,
            "refused"
        );
        error.response(dialect)
    });
    if response.status() == StatusCode::UPGRADE_REQUIRED {
        response
            .headers_mut()
            .insert(UPGRADE, HeaderValue::from_static("HTTP/1.1"));
    }
    if let Some(origin) = origin {
        cors::allow(response.headers_mut(), origin);
    }
    state.metrics.responded(kept.and_then(Result::ok), response.status());
    if sent && !response.status().is_success() {
        receive::discard(&mut body).await;
    }
    response
}

/// The request for the path that its client meant.
fn as_meant(mut request: Request<Incoming>) -> Request<Incoming> {
    if let Cow::Owned(path) = api::meant(request.method(), request.uri().path()) {
        let whole = match request.uri().query() {
            None => path,
            Some(query) => format!("{path}?{query}"),
        };
        if let Ok(uri) = Uri::try_from(whole) {
            *request.uri_mut() = uri;
        }
    }
    request
}

fn below_v1(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/")
}

/// Whether it is one of Reef's own routes, which have one shape of errors.
fn is_ours(path: &str) -> bool {
    let first = path.split('/').nth(1).unwrap_or("");
    matches!(first, "" | "reef" | "healthz" | "metrics")
}

/// Where no token tells friends from strangers, a browser's request is looked at more closely.
fn trusted<B>(state: &State, request: &Request<B>) -> Result<(), ApiError> {
    let options = &state.options;
    if state.tokens.open() && !options.allow_open {
        local::check(&options.host, &options.console_origins, request)?;
    }
    Ok(())
}

/// A request over which Reef breaks down gets an answer too.
async fn answered(
    state: &Arc<State>,
    kept: Option<Result<Kept, &'static [&'static str]>>,
    request: Request<&mut Incoming>,
) -> Result<Response<ReplyBody>, ApiError> {
    task::caught("answering a request", answer(state, kept, request)).await?
}

async fn answer(
    state: &Arc<State>,
    kept: Option<Result<Kept, &'static [&'static str]>>,
    request: Request<&mut Incoming>,
) -> Result<Response<ReplyBody>, ApiError> {
    if request.uri().path() == "/healthz" && matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(status::healthz(state));
    }
    if !harness::opened_by_key(state, &request) {
        state.tokens.check(request.headers()).inspect_err(|_| {
            state.metrics.refused_tokens.fetch_add(1, Ordering::Relaxed);
        })?;
    }
    let path = request.uri().path();
    if kept.is_some() {
        if wants_websocket(request.headers()) {
            return Err(ApiError::new(
                StatusCode::UPGRADE_REQUIRED,
                "websocket_refused",
                "WebSocket connections are not relayed, because nothing that is said on them could be recorded; send the \
                 request over HTTP, with \"stream\": true for a stream",
            ));
        }
        if api::leads_away(path) {
            return Err(ApiError::not_found(
                "unknown_route",
                "a path below /v1 has no \".\" and no \"..\" in it",
            ));
        }
    }
    match kept {
        Some(Ok(Kept::Recorded(route))) => inference::infer(state, route, request).await,
        Some(Ok(Kept::Fetched(route))) => fetch::fetch(state, route, request).await,
        Some(Ok(Kept::Passed)) => pass::pass(state, request).await,
        Some(Err(methods)) => Ok(not_allowed(methods, Route::from_path(path))),
        Some(Ok(Kept::Answered)) | None => ours(state, request).await,
    }
}

fn wants_websocket(headers: &HeaderMap) -> bool {
    headers
        .get(UPGRADE)
        .is_some_and(|value| value.as_bytes().to_ascii_lowercase().starts_with(b"websocket"))
}

/// Every route that is not inference. Later rooms add theirs here.
async fn ours(state: &Arc<State>, request: Request<&mut Incoming>) -> Result<Response<ReplyBody>, ApiError> {
    let method = request.method().clone();
    let uri = request.uri().clone();
    let path = uri.path().trim_end_matches('/');
    let query = uri.query();
    let get = matches!(method, Method::GET | Method::HEAD);
    let post = method == Method::POST;
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    if let (true, Some(route), ["reef", "scenarios", name, ..]) = (post, evaluated(path), parts.as_slice()) {
        return inference::evaluate(state, route, &scenario(name)?, request).await;
    }
    match parts.as_slice() {
        [] | [""] if get => Ok(json(
            StatusCode::OK,
            &json!({"service": "reef", "version": env!("CARGO_PKG_VERSION")}),
        )),
        ["v1", "models"] if get => models::list(state, request.headers()).await,
        ["v1", "models", id @ ..] if get && !id.is_empty() => {
            models::one(state, request.headers(), &decode(&id.join("/"))?).await
        }
        ["metrics"] if get => status::metrics(state).await,
        ["reef", "status"] if get => status::status(state).await,
        ["reef", "report"] if post => report::report(state, request).await,
        ["reef", "train"] if post => train::train(state, request).await,
        ["reef", "records"] if post => import::one(state, request).await,
        ["reef", "records", "batch"] if post => import::many(state, request).await,
        ["reef", "scenarios"] if get => scenarios::list(state).await,
        ["reef", "scenarios"] if post => scenarios::create(state, request).await,
        ["reef", "scenarios", name] if method == Method::DELETE => scenarios::archive(state, &scenario(name)?).await,
        ["reef", "scenarios", name, "update"] if post => scenarios::update(state, &scenario(name)?, request).await,
        ["reef", "scenarios", name, "contract"] if get => scenarios::contract(state, &scenario(name)?).await,
        ["reef", "scenarios", name, "records"] if get => records::page(state, &scenario(name)?, query).await,
        ["reef", "scenarios", name, "records", id] if get => records::one(state, &scenario(name)?, &decode(id)?).await,
        ["reef", "scenarios", name, "steps", step, "verdict"] if get => {
            records::verdict(state, &scenario(name)?, &decode(step)?).await
        }
        ["reef", "scenarios", name, "commits"] if get => records::commits(state, &scenario(name)?, query).await,
        ["reef", "scenarios", name, "releases"] if get => releases::list(state, &scenario(name)?, query).await,
        ["reef", "scenarios", name, "releases", id, "artifact"] if get => {
            releases::artifact(state, &scenario(name)?, &decode(id)?, query).await
        }
        ["reef", "scenarios", name, "releases", id] if get => {
            releases::one(state, &scenario(name)?, &decode(id)?).await
        }
        [
            "reef",
            "scenarios",
            name,
            decision @ ("promote" | "reject" | "rollback"),
        ] if post => releases::decide(state, &scenario(name)?, decision, request).await,
        ["reef", "harness", "proposals"] if post => harness::propose(state, request).await,
        ["reef", "harness", below @ ..] => match harness::answer(state, below, &request).await {
            Some(answer) => answer,
            None => unknown(&method, &parts, path),
        },
        _ => unknown(&method, &parts, path),
    }
}

fn unknown(method: &Method, parts: &[&str], path: &str) -> Result<Response<ReplyBody>, ApiError> {
    match methods(parts) {
        [] => {
            let mut message = format!("there is no {method} {}", shown(path));
            if let Some(route) = api::nearest(path) {
                message.push_str(&format!(
                    "; the route is {route}: the base URL of an OpenAI client is this service's address with /v1, that of \
                     an Anthropic client the address alone"
                ));
            }
            Err(ApiError::not_found("unknown_route", message))
        }
        methods => Ok(not_allowed(methods, None)),
    }
}

/// The route that an evaluation asks: what stands after `/reef/scenarios/NAME/evaluation`.
fn evaluated(path: &str) -> Option<Route> {
    let (_, below) = path.strip_prefix("/reef/scenarios/")?.split_once('/')?;
    Route::from_path(below.strip_prefix("evaluation")?)
}

/// The methods a known path takes.
fn methods(parts: &[&str]) -> &'static [&'static str] {
    match parts {
        [] | [""] | ["healthz" | "metrics"] | ["v1", "models", ..] | ["reef", "status"] => &["GET"],
        ["reef", "report" | "records" | "train"]
        | ["reef", "records", "batch"]
        | ["reef", "scenarios", _, "update" | "promote" | "reject" | "rollback"] => &["POST"],
        ["reef", "scenarios", _, "evaluation", "v1", below @ ..]
            if Route::from_path(&format!("/v1/{}", below.join("/"))).is_some() =>
        {
            &["POST"]
        }
        ["reef", "scenarios"] => &["GET", "POST"],
        ["reef", "scenarios", _] => &["DELETE"],
        ["reef", "harness", below @ ..] => harness::methods(below),
        ["reef", "scenarios", _, "contract" | "records" | "commits" | "releases"]
        | ["reef", "scenarios", _, "records" | "releases", _]
        | ["reef", "scenarios", _, "releases", _, "artifact"]
        | ["reef", "scenarios", _, "steps", _, "verdict"] => &["GET"],
        _ => &[],
    }
}

fn not_allowed(methods: &[&str], route: Option<Route>) -> Response<ReplyBody> {
    let list = methods.join(", ");
    let error = ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        format!("this route takes {list}"),
    );
    let mut response = error.response(route.map(Route::dialect));
    if let Ok(value) = HeaderValue::from_str(&list) {
        response.headers_mut().insert(ALLOW, value);
    }
    response
}

fn scenario(segment: &str) -> Result<ScenarioName, ApiError> {
    Ok(ScenarioName::new(decode(segment)?)?)
}

fn shown(path: &str) -> String {
    path.chars().take(100).flat_map(char::escape_default).collect()
}
