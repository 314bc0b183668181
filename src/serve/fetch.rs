//! Requests that fetch an answer another request began: the exchange is recorded now, with what was asked then.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use hyper::body::Incoming;

use super::answers;
use super::error::ApiError;
use super::exchange::{Exchange, Stopwatch};
use super::headers::{Instructions, SCENARIO};
use super::inference::{self, pass_on};
use super::pass;
use super::query::decode;
use super::reply::ReplyBody;
use super::state::State;
use crate::domain::Route;
use crate::scenario::OnMissing;

/// Fetches an answer.
pub(super) async fn fetch(
    state: &Arc<State>,
    route: Route,
    request: Request<&mut Incoming>,
) -> Result<Response<ReplyBody>, ApiError> {
    let clock = Stopwatch::start();
    let (parts, _empty) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let answer = answers::known_as(route, &decode(path.rsplit('/').next().unwrap_or(""))?);
    // Who names no scenario only looks.
    let instructions = match parts.headers.contains_key(SCENARIO) {
        true => Some(Instructions::read(&parts.headers)?),
        false => None,
    };
    let permit = state.admission.enter()?;
    let streamed = parts
        .uri
        .query()
        .is_some_and(|query| query.split('&').any(|part| part == "stream=true"));
    let looks = parts.method != Method::GET;
    let reply = pass::send(state, parts, Bytes::new()).await.inspect_err(|error| {
        tracing::warn!(path, detail = %error, "an answer could not be fetched");
    })?;
    let Some(instructions) = instructions.filter(|_| reply.status.is_success() && !looks) else {
        return Ok(pass::onward(reply, path, permit));
    };
    let on_missing = if state.options.implicit_scenarios {
        OnMissing::Create
    } else {
        OnMissing::Refuse
    };
    let scenario = state
        .directory
        .resolve(&instructions.scenario, on_missing, instructions.release.as_ref())
        .await?;
    let asked = state.answers.asked(&instructions.scenario, &answer);
    let (request, release, mut tags) = match asked {
        Some(asked) => (asked.request, asked.release, asked.tags),
        None => (
            Bytes::from_static(b"{}"),
            (*scenario.served()).clone(),
            instructions.tags.clone(),
        ),
    };
    tags.extend(instructions.tags);
    let id = answers::record_id(&instructions.scenario, &answer).unwrap_or_else(State::fresh_id);
    let span = inference::trace(route, &instructions.scenario, &id, &release);
    let exchange = Exchange {
        state: Arc::clone(state),
        id,
        known: state.answers.receipt(&instructions.scenario, &answer),
        scenario: instructions.scenario,
        route,
        record: instructions.record,
        receipt_in_finish: false,
        fetched: Some(answer),
        release,
        request,
        tags,
        capture: None,
        status: reply.status.as_u16(),
        clock,
        sent: 0,
        settled: false,
        permit: Some(permit),
        span,
    };
    pass_on(reply, exchange, streamed).await
}
