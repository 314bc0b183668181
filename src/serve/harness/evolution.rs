//! What was tried on a scenario's tree, what waits, and what led to it: attempts, proposals, requests.

use std::sync::Arc;

use http::{HeaderMap, Response};
use serde_json::{Value, json};

use super::pages::named;
use crate::domain::ScenarioName;
use crate::experience::{AttemptStory, Experience, Proposal, StoreError};
use crate::serve::error::ApiError;
use crate::serve::query::{Query, decode};
use crate::serve::reply::{ReplyBody, json_private};
use crate::serve::scenarios::existing;
use crate::serve::state::State;

/// Entries of a list that names no limit.
const USUAL: u32 = 50;
const MOST: u64 = 500;
/// Entries of an attempt's activity that are sent.
const MOST_EVENTS: u32 = 1000;

/// `GET /reef/harness/attempts[?limit=]`, newest first.
pub(super) async fn attempts(
    state: &Arc<State>,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    list(state, headers, query, "attempts", |experience, name, limit| {
        let stories = experience.attempt_stories(name, limit)?;
        Ok(stories.iter().map(AttemptStory::to_json).collect())
    })
    .await
}

/// `GET /reef/harness/proposals[?limit=]`, newest first.
pub(super) async fn proposals(
    state: &Arc<State>,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    list(state, headers, query, "proposals", |experience, name, limit| {
        let proposals = experience.proposals(name, limit)?;
        Ok(proposals.iter().map(Proposal::to_json).collect())
    })
    .await
}

/// `GET /reef/harness/requests[?limit=]`, newest first.
pub(super) async fn requests(
    state: &Arc<State>,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    list(state, headers, query, "requests", |experience, name, limit| {
        let stories = experience.request_stories(name, limit)?;
        Ok(stories.iter().map(|story| json!(story)).collect())
    })
    .await
}

/// `GET /reef/harness/attempts/{id}`: one, with what it did.
pub(super) async fn attempt(
    state: &Arc<State>,
    id: &str,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    let name = named(headers, &Query::parse(query, &["scenario"])?)?;
    existing(state, &name).await?;
    let id = decode(id)?;
    let scenario = name.clone();
    let found = state
        .read(move |experience| {
            let Some(story) = experience.attempt_story(&scenario, &id)? else {
                return Ok(None);
            };
            let events = experience.attempt_events(&id, MOST_EVENTS)?;
            Ok(Some(story.to_json_with(&events)))
        })
        .await?;
    let document =
        found.ok_or_else(|| ApiError::not_found("unknown_attempt", format!("scenario {name} has no such attempt")))?;
    Ok(json_private(&document))
}

async fn list(
    state: &Arc<State>,
    headers: &HeaderMap,
    query: Option<&str>,
    what: &'static str,
    read: impl FnOnce(&Experience, &ScenarioName, u32) -> Result<Vec<Value>, StoreError> + Send + 'static,
) -> Result<Response<ReplyBody>, ApiError> {
    let query = Query::parse(query, &["scenario", "limit"])?;
    let name = named(headers, &query)?;
    let limit = query.number("limit", 1, MOST)?;
    let limit = limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(USUAL);
    existing(state, &name).await?;
    let scenario = name.clone();
    let entries = state.read(move |experience| read(experience, &scenario, limit)).await?;
    Ok(json_private(&json!({"scenario": name, what: entries})))
}
