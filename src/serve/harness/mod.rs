//! `/reef/harness`: the tree a scenario serves, its releases, and what installs it.

mod events;
mod evolution;
mod install;
mod key;
mod manifest;
mod pages;
mod proposals;

pub(super) use proposals::propose;

use std::sync::Arc;

use http::header::{CACHE_CONTROL, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::error::ApiError;
use super::query::Query;
use super::reply::{self, ReplyBody};
use super::state::State;
use crate::domain::ScenarioName;
use crate::harness::adapter::{Adapter, AdapterError, Adapters, WireApi};
use crate::harness::tree::Policy;
use crate::sys::clock;

/// What a deployment that serves trees says about them.
#[derive(Debug, Clone)]
pub struct HarnessOptions {
    /// Every adapter.
    pub adapters: Adapters,
    /// The one trees are made for.
    pub adapter: String,
    /// The address clients reach the service at, where it is not the one they ask at.
    pub url: Option<String>,
    /// The model agents are bound to, where the deployment names one.
    pub model: Option<String>,
    /// What a person allowed in trees.
    pub policy: Policy,
    /// How many proposals may wait; none where the recipe evolves no tree.
    pub most_proposals: Option<u32>,
    /// The API the engine speaks, where it is one only.
    pub api: Option<WireApi>,
}

/// Answers what is below `/reef/harness`; `None` for a path that is not there.
pub(super) async fn answer(
    state: &Arc<State>,
    parts: &[&str],
    request: &Request<&mut Incoming>,
) -> Option<Result<Response<ReplyBody>, ApiError>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return None;
    }
    let head_only = request.method() == Method::HEAD;
    let (headers, query) = (request.headers(), request.uri().query());
    Some(match parts {
        [] => manifest::manifest(state, headers, query).await,
        ["releases"] => manifest::releases(state, headers).await,
        ["adapters"] => adapters(state),
        ["install"] => install::script(state, headers, query).await,
        ["attempts"] => evolution::attempts(state, headers, query).await,
        ["attempts", id] => evolution::attempt(state, id, headers, query).await,
        ["proposals"] => evolution::proposals(state, headers, query).await,
        ["requests"] => evolution::requests(state, headers, query).await,
        ["releases", step, "page"] => pages::step(state, step, headers, query).await,
        ["requests", id, "page"] => pages::request(state, id, headers, query).await,
        ["requests", id, "progress"] => pages::progress(state, id, headers, query).await,
        ["requests", id, "events"] if !head_only => events::events(state, id, headers, query).await,
        _ => return None,
    })
}

/// The methods of a path below `/reef/harness`.
pub(super) fn methods(parts: &[&str]) -> &'static [&'static str] {
    match parts {
        []
        | ["releases" | "adapters" | "install" | "attempts" | "requests"]
        | ["attempts", _]
        | ["releases", _, "page"]
        | ["requests", _, "page" | "progress" | "events"] => &["GET"],
        ["proposals"] => &["GET", "POST"],
        _ => &[],
    }
}

/// Whether a request without a token is for a page of a scenario that its key opens.
pub(super) fn opened_by_key(state: &State, request: &Request<&mut Incoming>) -> bool {
    let path: Vec<&str> = request.uri().path().trim_end_matches('/').split('/').skip(1).collect();
    let page = matches!(
        path.as_slice(),
        ["reef", "harness", "releases", _, "page"] | ["reef", "harness", "requests", _, "page" | "progress" | "events"]
    );
    if !page || !matches!(*request.method(), Method::GET | Method::HEAD) {
        return false;
    }
    let Ok(query) = Query::parse(request.uri().query(), &["scenario", "key"]) else {
        return false;
    };
    let (Ok(Some(scenario)), Ok(Some(key))) = (query.one("scenario"), query.one("key")) else {
        return false;
    };
    ScenarioName::new(scenario)
        .is_ok_and(|scenario| key::opens(state.tokens.digests(), &scenario, key, clock::now_us()))
}

/// The address of a page, with what opens it in a browser; `below` is a path below `/reef/harness/`.
pub(super) fn page_path(state: &State, scenario: &ScenarioName, below: &str) -> String {
    // A scenario's name needs no escape in a query.
    let path = format!("/reef/harness/{below}?scenario={scenario}");
    match state.tokens.digests().first() {
        Some(digest) => format!("{path}&key={}", key::make(digest, scenario, clock::now_us())),
        None => path,
    }
}

fn options(state: &State) -> Result<&HarnessOptions, ApiError> {
    state.options.harness.as_deref().ok_or_else(|| {
        ApiError::not_found(
            "no_harness",
            "this service serves no harness trees; set harness.adapter in its deployment file",
        )
    })
}

fn adapter<'a>(options: &'a HarnessOptions, name: &str) -> Result<&'a Adapter, ApiError> {
    options
        .adapters
        .get(name)
        .map_err(|error: AdapterError| ApiError::not_found("unknown_adapter", error.to_string()))
}

/// `GET /reef/harness/adapters`
fn adapters(state: &State) -> Result<Response<ReplyBody>, ApiError> {
    let options = options(state)?;
    let adapters: Vec<Value> = options
        .adapters
        .iter()
        .map(|adapter| {
            json!({
                "name": adapter.name,
                "title": adapter.title,
                "binary": adapter.binary,
                "trajectory_format": adapter.trajectory.format,
                "model_bindings": adapter.apis(),
                "install": adapter.install,
                "served": adapter.name == options.adapter,
            })
        })
        .collect();
    Ok(reply::json(StatusCode::OK, &json!({"adapters": adapters})))
}

/// The scenario named in the header; unlike inference, asking for a tree creates none.
fn scenario(headers: &HeaderMap) -> Result<ScenarioName, ApiError> {
    super::headers::scenario(headers)
}

/// Marks a response that differs by scenario and caller.
fn private(response: &mut Response<ReplyBody>, how: &'static str) {
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static(how));
}
