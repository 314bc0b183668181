//! The pages of steps and requests, and the progress of a request.

use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY};
use http::{HeaderMap, Response, StatusCode};
use serde_json::Value;

use super::{manifest, page_path};
use crate::domain::{RecordId, ReleaseId, RequestType, ScenarioName};
use crate::experience::{Experience, Record, StepRow, StoreError};
use crate::harness::pages::{self, PageError, Progress, StepPage, request_page, step_page};
use crate::harness::tree::{EntryChange, Mutation, Tree, diff, read_release};
use crate::release::Repository;
use crate::scenario::catalog_row;
use crate::serve::error::ApiError;
use crate::serve::headers::SCENARIO;
use crate::serve::query::{Query, decode};
use crate::serve::reply::{ReplyBody, json_private};
use crate::serve::scenarios::existing;
use crate::serve::state::State;
use crate::sys::task;

/// Most entries of an activity that are sent.
const MOST_EVENTS: u32 = 1000;

/// The scenario of a page: named in the header by programs, in the query by browsers.
pub(super) fn scenario(headers: &HeaderMap, query: Option<&str>) -> Result<ScenarioName, ApiError> {
    named(headers, &Query::parse(query, &["scenario", "key"])?)
}

/// The scenario named in the header or in the query; in both it must be the same.
pub(super) fn named(headers: &HeaderMap, query: &Query) -> Result<ScenarioName, ApiError> {
    let Some(named) = query.one("scenario")? else {
        return super::scenario(headers);
    };
    let named = ScenarioName::new(named)?;
    if headers.contains_key(SCENARIO) && super::scenario(headers)? != named {
        return Err(ApiError::bad_request(
            "invalid_scenario",
            "the header and the query name different scenarios",
        ));
    }
    Ok(named)
}

/// `GET /reef/harness/releases/{step}/page`
pub(super) async fn step(
    state: &Arc<State>,
    step: &str,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    let name = scenario(headers, query)?;
    let handle = existing(state, &name).await?;
    let steps = manifest::steps(state, &name).await?;
    let number = Some(step)
        .filter(|step| (1..=9).contains(&step.len()) && step.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|step| step.parse::<u64>().ok());
    let at = number
        .and_then(|number| steps.iter().position(|step| step.step == number))
        .ok_or_else(|| {
            let last = steps.last().map_or(0, |step| step.step);
            ApiError::not_found(
                "unknown_step",
                format!("scenario {name} has no such step; its steps are 0 to {last}"),
            )
        })?;
    let head = handle.head_sync().head;
    let repository = state.directory.publisher().repository().clone();
    let experience = state.experience.clone();
    let links: Vec<String> = steps
        .iter()
        .map(|step| page_path(state, &name, &format!("releases/{}/page", step.step)))
        .collect();
    let made = task::blocking("drawing a page", move || -> Result<String, ApiError> {
        let step = &steps[at];
        let release = &step.release.release_id;
        let made = is_made(step);
        let verdict = experience.step_verdict(&name, step.step)?;
        let request = step
            .metrics
            .get("training_request")
            .and_then(|request| request.get("id"));
        let attempt = match request.and_then(Value::as_str) {
            Some(request) => experience.attempt_of(&name, request)?,
            None if made => experience.attempt_behind(&name, release)?,
            None => None,
        };
        let mutations = step
            .metrics
            .get("mutations")
            .or_else(|| attempt.as_ref().and_then(|attempt| attempt.mutations.as_ref()));
        let changes = changes(&repository, step, mutations);
        let row = serde_json::to_value(catalog_row(step, Some(&head))).unwrap_or_default();
        let page = StepPage {
            scenario: name.as_str(),
            steps: &steps,
            step,
            row: &row,
            head: &head,
            changes: changes.as_deref(),
            verdict: verdict.as_ref(),
            attempt: attempt.as_ref(),
        };
        let link = |number: u64| {
            let at = steps.iter().position(|step| step.step == number);
            at.and_then(|at| links.get(at)).cloned().unwrap_or_default()
        };
        step_page(&page, &link).map_err(|error| failed(&error))
    })
    .await;
    match made {
        Ok(made) => Ok(html(made?)),
        Err(_) => Err(ApiError::unavailable("stopping", "the service is stopping")),
    }
}

fn is_made(step: &StepRow) -> bool {
    matches!(step.outcome.as_str(), "released" | "held")
}

/// What a step's candidate changed: by the trees of the releases, or by the mutations of one that was not released.
fn changes(repository: &Repository, step: &StepRow, mutations: Option<&Value>) -> Option<Vec<EntryChange>> {
    let tree = |release: &ReleaseId| -> Option<Tree> {
        let dir = repository.materialise(release).ok()?;
        read_release(&dir).ok()?
    };
    if is_made(step) {
        let new = tree(&step.release.release_id)?;
        let old = step.release.parent.as_ref().and_then(tree).unwrap_or_default();
        return Some(diff(&old, &new));
    }
    let Some(mutations) = mutations.filter(|mutations| mutations.as_array().is_none_or(|list| !list.is_empty())) else {
        return Some(Vec::new());
    };
    let old = tree(step.base_release_id.as_ref().unwrap_or(&step.release.release_id))?;
    let mutations = Mutation::list(mutations).ok()?;
    let new = Mutation::applied(&mutations, &old).ok()?;
    Some(diff(&old, &new))
}

/// An instruction and how far it has come.
pub(super) struct Request {
    pub(super) record: Record,
    pub(super) progress: Progress,
}

/// Reads an instruction of a scenario. Blocking.
pub(super) fn look_up(
    experience: &Experience,
    name: &ScenarioName,
    id: &RecordId,
) -> Result<Option<Request>, StoreError> {
    let Some(record) = experience.record(Some(name), id)? else {
        return Ok(None);
    };
    if record.row.kind != RequestType::Train {
        return Ok(None);
    }
    let attempt = experience.attempt_of(name, id.as_str())?;
    let events = match &attempt {
        Some(attempt) => experience.attempt_events(&attempt.id, MOST_EVENTS)?,
        None => Vec::new(),
    };
    let query = crate::experience::StepQuery {
        using: vec![id.clone()],
        ..crate::experience::StepQuery::default()
    };
    let settled = experience.steps(name, &query)?.pop();
    let progress = Progress::of(id.as_str(), attempt.as_ref(), events, settled.as_ref());
    Ok(Some(Request { record, progress }))
}

/// Reads an instruction named in a path.
pub(super) async fn find(state: &Arc<State>, name: &ScenarioName, id: &str) -> Result<Request, ApiError> {
    existing(state, name).await?;
    let unknown = || ApiError::not_found("unknown_request", format!("scenario {name} has no such instruction"));
    let id = RecordId::new(decode(id)?).map_err(|_| unknown())?;
    let scenario = name.clone();
    state
        .read(move |experience| look_up(experience, &scenario, &id))
        .await?
        .ok_or_else(unknown)
}

/// `GET /reef/harness/requests/{id}/page`
pub(super) async fn request(
    state: &Arc<State>,
    id: &str,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    let name = scenario(headers, query)?;
    let Request { record, progress } = find(state, &name, id).await?;
    let payload: Option<Value> = record
        .bodies
        .as_ref()
        .and_then(|bodies| crate::sys::json::read(&bodies.request).ok());
    let text = payload
        .as_ref()
        .and_then(|payload| payload.get("text"))
        .and_then(Value::as_str);
    let link = progress
        .step
        .map(|step| page_path(state, &name, &format!("releases/{step}/page")));
    let page = request_page(
        name.as_str(),
        text.unwrap_or("Its text is no longer kept."),
        record.row.created_us,
        &progress,
        link.as_deref(),
    );
    page.map(html).map_err(|error| failed(&error))
}

/// `GET /reef/harness/requests/{id}/progress`
pub(super) async fn progress(
    state: &Arc<State>,
    id: &str,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    let name = scenario(headers, query)?;
    let request = find(state, &name, id).await?;
    Ok(json_private(&request.progress.to_json()))
}

fn failed(error: &PageError) -> ApiError {
    tracing::error!(%error, "a page");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the page cannot be made")
}

fn html(text: String) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::full(text));
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, pages::CONTENT_SECURITY_POLICY),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}
