//! `GET /reef/harness` and `GET /reef/harness/releases`.

use std::sync::Arc;

use http::header::{ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{HeaderMap, Response, StatusCode};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{HarnessOptions, adapter, options, page_path, private, scenario};
use crate::domain::{ContentId, ReleaseId, ScenarioName};
use crate::experience::{StepQuery, StepRow};
use crate::harness::adapter::{Adapter, WireApi};
use crate::harness::manifest::{Files, Manifest};
use crate::harness::tree::{read_release, render};
use crate::release::ArtifactKind;
use crate::scenario::catalog_row;
use crate::serve::error::ApiError;
use crate::serve::query::Query;
use crate::serve::releases::{blocking, resolve};
use crate::serve::reply::{ReplyBody, json as reply};
use crate::serve::scenarios::existing;
use crate::serve::state::State;
use crate::sys::clock;
use crate::sys::task;

/// A release of a scenario with its harness files.
pub(super) struct Found {
    pub(super) release_id: ReleaseId,
    content_id: ContentId,
    parent: Option<ReleaseId>,
    adapter: String,
    files: Files,
}

/// `GET /reef/harness[?release_id=][&adapter=]`
pub(super) async fn manifest(
    state: &Arc<State>,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    let name = scenario(headers)?;
    let query = Query::parse(query, &["release_id", "adapter"])?;
    let release = query.one("release_id")?.filter(|id| !id.is_empty());
    let options = options(state)?;
    let wanted = query.one("adapter")?.map(|name| adapter(options, name)).transpose()?;
    let found = find(state, &name, release, wanted.cloned()).await?;
    let body = document(options, &found, &steps(state, &name).await?);
    // Of everything the answer says: the steps grow, the deployment's model changes and facts expire under one head.
    let tag = format!("\"{}\"", hex::encode(Sha256::digest(body.to_string())));
    let known = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let mut response = if known.is_some_and(|known| known.split(',').any(|known| known.trim() == tag)) {
        let mut response = Response::new(ReplyBody::full(""));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        reply(StatusCode::OK, &body)
    };
    private(&mut response, "private, no-cache");
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("x-reef-scenario"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    if let Ok(release) = HeaderValue::from_str(found.release_id.as_str()) {
        headers.insert("x-reef-release-id", release);
    }
    Ok(response)
}

fn document(options: &HarnessOptions, found: &Found, steps: &[StepRow]) -> serde_json::Value {
    Manifest {
        release_id: &found.release_id,
        content_id: &found.content_id,
        parent: found.parent.as_ref(),
        adapter: &found.adapter,
        files: &found.files,
        steps,
        model: options.model.as_deref(),
        // `openai` is also what a deployment says that says nothing: an agent that does not speak it tries its own API.
        // What was chosen is told to every agent, and one that does not speak it is refused when it is installed.
        api: options.api.filter(|api| {
            let adapter = options.adapters.get(&found.adapter);
            *api != WireApi::Openai || adapter.is_ok_and(|adapter| adapter.models.contains_key(api))
        }),
    }
    .to_json()
}

/// The files of a release, the served one without a name; for another agent they are rendered anew.
pub(super) async fn find(
    state: &Arc<State>,
    name: &ScenarioName,
    release: Option<&str>,
    wanted: Option<Adapter>,
) -> Result<Found, ApiError> {
    let options = options(state)?;
    let handle = existing(state, name).await?;
    let release_id = match release {
        Some(text) => resolve(state, name, text).await?,
        None => handle.head_sync().head,
    };
    let repository = state.directory.publisher().repository().clone();
    let id = release_id.clone();
    let (manifest, dir) = blocking(move || Ok((repository.manifest(&id)?, repository.materialise(&id)?))).await?;
    let mut components = manifest.content.components.values();
    let Some(component) = components.find(|component| component.kind == ArtifactKind::HarnessTree) else {
        return Err(ApiError::not_found(
            "no_tree",
            format!(
                "release {release_id} of scenario {name} holds no harness tree, because the scenario began before the \
                 service had one; `reef release import DIR --scenario {name}` gives it one"
            ),
        ));
    };
    let root = dir.join(&component.path);
    let prefix = if component.path.is_empty() {
        String::new()
    } else {
        format!("{}/", component.path)
    };
    let paths: Vec<(String, bool)> = manifest
        .content
        .files
        .iter()
        .filter_map(|file| Some((file.path.strip_prefix(&prefix)?.to_owned(), file.executable)))
        .collect();
    let made_for = options.adapter.clone();
    let read = task::blocking("reading a tree", move || {
        let damaged = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "the files of a release cannot be read");
            ApiError::unavailable(
                "release_store_failed",
                "the files of the release cannot be read now; see the service's log and `reef release verify`",
            )
        };
        let tree = read_release(&root).map_err(|error| damaged(&error))?;
        let made_for = tree.as_ref().and_then(|tree| tree.adapter.clone()).unwrap_or(made_for);
        match (wanted, tree) {
            (Some(wanted), Some(tree)) if wanted.name != made_for => {
                let rendered = render(&tree, &wanted, clock::now_us()).map_err(|refusal| {
                    ApiError::new(
                        StatusCode::CONFLICT,
                        "adapter_cannot_render",
                        format!(
                            "the tree was made for {made_for} and cannot serve {}: {refusal}",
                            wanted.name
                        ),
                    )
                })?;
                let files = Files {
                    content: rendered.files,
                    executable: rendered.executable,
                };
                Ok((wanted.name, files))
            }
            (Some(wanted), None) if wanted.name != made_for => Err(ApiError::new(
                StatusCode::CONFLICT,
                "adapter_cannot_render",
                format!(
                    "the release holds files for {made_for} and no tree to render for {}",
                    wanted.name
                ),
            )),
            _ => {
                let paths = paths.iter().map(|(path, executable)| (path.as_str(), *executable));
                let files = Files::read(&root, paths).map_err(|error| damaged(&error))?;
                Ok((made_for, files))
            }
        }
    })
    .await;
    let (adapter, files) = match read {
        Ok(read) => read?,
        Err(_) => return Err(ApiError::unavailable("stopping", "the service is stopping")),
    };
    Ok(Found {
        release_id,
        content_id: manifest.content_id,
        parent: manifest.parent_release_id,
        adapter,
        files,
    })
}

/// Every step of a scenario, oldest first.
pub(super) async fn steps(state: &Arc<State>, name: &ScenarioName) -> Result<Vec<StepRow>, ApiError> {
    let scenario = name.clone();
    let query = StepQuery {
        oldest_first: true,
        ..StepQuery::default()
    };
    state.read(move |experience| experience.steps(&scenario, &query)).await
}

/// `GET /reef/harness/releases`: every step, oldest first, with its page.
pub(super) async fn releases(state: &Arc<State>, headers: &HeaderMap) -> Result<Response<ReplyBody>, ApiError> {
    let name = scenario(headers)?;
    options(state)?;
    let handle = existing(state, &name).await?;
    let head = handle.head_sync().head;
    let steps = steps(state, &name).await?;
    let rows: Vec<serde_json::Value> = steps
        .iter()
        .map(|step| {
            let mut row = serde_json::to_value(catalog_row(step, Some(&head))).unwrap_or_default();
            row["page_path"] = json!(page_path(state, &name, &format!("releases/{}/page", step.step)));
            row
        })
        .collect();
    let mut response = reply(StatusCode::OK, &json!({"scenario": name, "releases": rows}));
    private(&mut response, "no-store");
    Ok(response)
}
