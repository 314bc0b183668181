//! `/reef/scenarios`: list, create, change, describe, archive.

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::receive;
use super::reply::{ReplyBody, json};
use super::report::{invalid, object};
use super::state::State;
use crate::domain::{ReleaseId, ScenarioName, TrainingMode};
use crate::experience::Stats;
use crate::scenario::{OnMissing, ScenarioHandle};
use crate::sys::clock;

/// `GET /reef/scenarios`
pub(super) async fn list(state: &Arc<State>) -> Result<Response<ReplyBody>, ApiError> {
    let handles = state.directory.list().await?;
    let stats = state.read(|experience| experience.stats(None)).await?;
    let rows: Vec<Value> = handles
        .iter()
        .map(|handle| {
            let none = Stats::default();
            row(handle, stats.get(handle.name()).unwrap_or(&none))
        })
        .collect();
    Ok(json(StatusCode::OK, &json!({"scenarios": rows})))
}

pub(super) fn row(handle: &ScenarioHandle, stats: &Stats) -> Value {
    let served = handle.served();
    json!({
        "scenario": handle.name(),
        "loaded": true,
        "training_mode": handle.mode(),
        "release_id": served.release_id,
        "content_id": served.content_id,
        "created_at": clock::seconds(handle.created_us()),
        "exchanges": stats.exchanges,
        "reports": stats.reports,
        "last_record_at": stats.last_us.map(clock::seconds),
    })
}

/// `POST /reef/scenarios`
pub(super) async fn create(
    state: &Arc<State>,
    request: Request<&mut Incoming>,
) -> Result<Response<ReplyBody>, ApiError> {
    let mut fields = body(state, request).await?;
    let name = match fields.remove("scenario").or_else(|| fields.remove("name")) {
        Some(Value::String(name)) => ScenarioName::new(name.trim())?,
        Some(other) => return Err(invalid("scenario", "must be a string", &other)),
        None => {
            return Err(ApiError::bad_request(
                "invalid_request",
                "scenario is missing; send {\"scenario\": \"<name>\"}",
            ));
        }
    };
    let base = match fields.remove("release_id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) => Some(ReleaseId::new(id)?),
        Some(other) => return Err(invalid("release_id", "must be a string", &other)),
    };
    let mode = mode(&mut fields)?;
    let implicit = match fields.remove("implicit") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(implicit)) => implicit,
        Some(other) => return Err(invalid("implicit", "must be true or false", &other)),
    };
    no_more(&fields, "scenario, release_id, training_mode and implicit")?;
    if implicit && !state.options.implicit_scenarios {
        // Whoever only uses a scenario may not make one here.
        existing(state, &name).await?;
    }
    let (handle, created) = state.directory.create(&name, base.as_ref()).await?;
    if let (true, Some(mode)) = (created, mode) {
        state.directory.set_mode(&handle, mode).await?;
    }
    let served = handle.served();
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(json(
        status,
        &json!({
            "scenario": name, "release_id": served.release_id, "content_id": served.content_id,
            "training_mode": handle.mode(), "created": created,
        }),
    ))
}

/// `POST /reef/scenarios/{scenario}/update`
pub(super) async fn update(
    state: &Arc<State>,
    name: &ScenarioName,
    request: Request<&mut Incoming>,
) -> Result<Response<ReplyBody>, ApiError> {
    let mut fields = body(state, request).await?;
    let mode = mode(&mut fields)?;
    no_more(&fields, "training_mode")?;
    let handle = existing(state, name).await?;
    let Some(mode) = mode else {
        return Err(ApiError::bad_request(
            "invalid_request",
            "nothing to change; send {\"training_mode\": \"auto\" | \"manual\" | \"hybrid\"}",
        ));
    };
    state.directory.set_mode(&handle, mode).await?;
    Ok(json(StatusCode::OK, &json!({"scenario": name, "training_mode": mode})))
}

/// `GET /reef/scenarios/{scenario}/contract`
pub(super) async fn contract(state: &Arc<State>, name: &ScenarioName) -> Result<Response<ReplyBody>, ApiError> {
    let handle = existing(state, name).await?;
    Ok(json(
        StatusCode::OK,
        &json!({
            "scenario": name,
            "processor": null,
            "required_request_types": ["inference", "report"],
            "training_mode": handle.mode(),
            "status": {"state": "ready"},
            "release_id": handle.served().release_id,
        }),
    ))
}

/// `DELETE /reef/scenarios/{scenario}`
pub(super) async fn archive(state: &Arc<State>, name: &ScenarioName) -> Result<Response<ReplyBody>, ApiError> {
    existing(state, name).await?;
    state.directory.archive(name).await?;
    Ok(json(StatusCode::OK, &json!({"scenario": name, "archived": true})))
}

/// A scenario that must exist.
pub(super) async fn existing(state: &Arc<State>, name: &ScenarioName) -> Result<Arc<ScenarioHandle>, ApiError> {
    Ok(state.directory.resolve(name, OnMissing::Refuse, None).await?)
}

pub(super) async fn body(state: &Arc<State>, request: Request<&mut Incoming>) -> Result<Map<String, Value>, ApiError> {
    let bytes = receive::body(request.into_body(), super::SMALL_BODY, state.options.client_timeout).await?;
    object(&bytes)
}

fn mode(fields: &mut Map<String, Value>) -> Result<Option<TrainingMode>, ApiError> {
    match fields.remove("training_mode") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(mode)) => match mode.parse() {
            Ok(mode) => Ok(Some(mode)),
            Err(message) => Err(ApiError::bad_request("invalid_request", message)),
        },
        Some(other) => Err(invalid("training_mode", "must be a string", &other)),
    }
}

pub(super) fn no_more(fields: &Map<String, Value>, known: &str) -> Result<(), ApiError> {
    match fields.keys().next() {
        None => Ok(()),
        Some(key) => Err(ApiError::bad_request(
            "unknown_field",
            format!("unknown field \"{}\"; this route takes {known}", key.escape_default()),
        )),
    }
}
