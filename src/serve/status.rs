//! `GET /reef/status`, `GET /healthz`, `GET /metrics`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::metrics;
use super::reply::{ReplyBody, json, json_private};
use super::state::State;
use super::train;
use crate::experience::{Health, Stats};
use crate::scenario::ScenarioHandle;
use crate::sys::{clock, disk, task};

/// Liveness: the process answers. What is wrong inside is in the body, so that a full disk does not restart a service
/// that still serves.
pub(super) fn healthz(state: &State) -> Response<ReplyBody> {
    let status = match (state.admission.is_open(), state.experience.health()) {
        (false, _) => "stopping",
        (true, Health::Ok) => "ok",
        (true, Health::Degraded { .. }) => "degraded",
    };
    json(StatusCode::OK, &json!({"ok": status != "stopping", "status": status}))
}

/// `GET /reef/status`
pub(super) async fn status(state: &Arc<State>) -> Result<Response<ReplyBody>, ApiError> {
    let stats = state.read(|experience| experience.stats(None)).await;
    let (stats, read_error) = match stats {
        Ok(stats) => (stats, None),
        Err(error) => (std::collections::BTreeMap::new(), Some(error.message)),
    };
    let mut total = Stats::default();
    let mut rows = Vec::new();
    for handle in state.directory.in_use() {
        let none = Stats::default();
        let of = stats.get(handle.name()).unwrap_or(&none);
        total.add(of);
        rows.push((handle.name().clone(), scenario(&handle, of)));
    }
    // Read after what is served, which is never ahead of it.
    let facts = train::facts(state).await;
    let mut scenarios = Map::new();
    for (name, mut row) in rows {
        train::add_status(state, &name, facts.get(&name), &mut row);
        scenarios.insert(name.to_string(), row);
    }
    let store_error = match state.experience.health() {
        Health::Ok => read_error,
        Health::Degraded { error, .. } => Some(error),
    };
    let since = match state.experience.health() {
        Health::Ok => None,
        Health::Degraded { since_us, .. } => Some(clock::seconds(since_us)),
    };
    let interrupted: Map<String, Value> = state
        .metrics
        .interruptions()
        .into_iter()
        .map(|(reason, count)| (reason.to_owned(), count.into()))
        .collect();
    let store = state.experience.metrics();
    let (panics, last_panic) = task::panics();
    Ok(json_private(&json!({
        "status": if store_error.is_some() { "degraded" } else { "ok" },
        "error": store_error,
        "last_drain_at": null,
        "preload_errors": {},
        "scenarios": scenarios,
        "serving": {state.engine.kind(): serving(state)},
        "training_job": null,
        "service": {
            "version": env!("CARGO_PKG_VERSION"),
            "started_at": clock::seconds(state.started_us),
            "uptime_seconds": state.started.elapsed().as_secs_f64(),
            "engine": state.engine.kind(),
            "recipe": state.options.recipe,
            "in_flight": state.admission.active(),
            "open_connections": state.metrics.open_connections.load(Ordering::Relaxed),
            "receipts": state.metrics.receipts.load(Ordering::Relaxed),
            "interrupted": interrupted,
            "panics": {"count": panics, "last": last_panic},
        },
        // Of releases, as of the last thinning.
        "disk": {
            "free_bytes": disk::free(state.directory.publisher().repository().path()),
            "releases": state.directory.publisher().usage().map(|usage| json!({
                "bytes": usage.bytes,
                "kept_bytes": usage.kept_bytes,
                "pinned_bytes": usage.pinned_bytes,
                "releases": usage.releases,
                "releases_kept": usage.kept,
                "with_training_state": usage.with_state,
            })),
        },
        "store": {
            "state": if store_error.is_some() { "degraded" } else { "ok" },
            "error": store_error,
            "since": since,
            "queue_depth": store.queue_depth,
            "queue_capacity": store.queue_capacity,
            "exchanges": total.exchanges,
            "reports": total.reports,
            "instructions": total.instructions,
            "body_bytes": total.body_bytes,
            "stored_bytes": total.stored_bytes,
            "pruned_records": total.pruned_records,
            "interrupted": total.interrupted,
        },
    })))
}

fn serving(state: &State) -> Value {
    let mut serving = json!({
        "in_flight": state.admission.active(),
        "open": state.admission.is_open(),
    });
    for figure in state.engine.figures() {
        serving[figure.name] = Value::from(figure.value);
    }
    serving
}

fn scenario(handle: &ScenarioHandle, stats: &Stats) -> Value {
    let served = handle.served();
    let sync = handle.head_sync();
    json!({
        "scenario_step": 0,
        "last_committed_step": null,
        "artifact_head_sync": {
            "state": if sync.synchronized { "synchronized" } else { "pending" },
            "release_id": sync.head,
            "error": sync.error,
        },
        "release_id": served.release_id,
        "content_id": served.content_id,
        "current_runtime_load_id": served.runtime_load_id,
        "checkpoint_storage": null,
        "batch_ready": false,
        "training_mode": handle.mode(),
        "processor": {},
        "exchanges": stats.exchanges,
        "reports": stats.reports,
        "instructions": stats.instructions,
        "consumed": stats.consumed,
        "input_tokens": stats.input_tokens,
        "output_tokens": stats.output_tokens,
        "mean_score": stats.mean_score(),
        "interrupted": stats.interrupted,
        "record_data_incomplete": stats.pruned_records > 0,
        "evicted_record_count": stats.pruned_records,
        "evicted_body_bytes": stats.pruned_bytes,
        "last_record_at": stats.last_us.map(clock::seconds),
        "last_sequence": stats.last_sequence,
    })
}

/// `GET /metrics`
pub(super) async fn metrics(state: &Arc<State>) -> Result<Response<ReplyBody>, ApiError> {
    let mut stats = state
        .read(|experience| experience.stats(None))
        .await
        .unwrap_or_default();
    let in_order: Vec<(String, Stats)> = state
        .directory
        .in_use()
        .iter()
        .map(|handle| {
            (
                handle.name().to_string(),
                stats.remove(handle.name()).unwrap_or_default(),
            )
        })
        .collect();
    let facts = train::facts(state).await;
    let mut response = Response::new(ReplyBody::full(metrics::render(state, &in_order, &facts)));
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
    );
    Ok(response)
}
