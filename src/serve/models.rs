//! `GET /v1/models`: what clients probe when they start.

use std::sync::Arc;

use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use super::error::ApiError;
use super::reply::{ReplyBody, json};
use super::state::State;
use crate::engine::ModelCard;

/// Lists the engine's models, in the shape of the dialect the client shows by its headers.
pub(super) async fn list(state: &Arc<State>, headers: &HeaderMap) -> Result<Response<ReplyBody>, ApiError> {
    let models = state.engine.models().await?;
    let cards: Vec<Value> = models.iter().map(|model| card(model, is_anthropic(headers))).collect();
    let mut list = json!({"object": "list", "data": cards});
    if is_anthropic(headers) {
        let id = |model: Option<&ModelCard>| model.map(|model| model.id.clone());
        list = json!({
            "data": cards, "has_more": false, "first_id": id(models.first()), "last_id": id(models.last()),
        });
    }
    Ok(json(StatusCode::OK, &list))
}

/// One model.
pub(super) async fn one(state: &Arc<State>, headers: &HeaderMap, id: &str) -> Result<Response<ReplyBody>, ApiError> {
    let models = state.engine.models().await?;
    let model = models.iter().find(|model| model.id == id).ok_or_else(|| {
        ApiError::not_found(
            "model_not_found",
            format!("there is no model \"{}\"; see GET /v1/models", id.escape_default()),
        )
    })?;
    Ok(json(StatusCode::OK, &card(model, is_anthropic(headers))))
}

fn is_anthropic(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

fn card(model: &ModelCard, anthropic: bool) -> Value {
    if anthropic {
        // The creation time is required by the clients' models, and unknown.
        json!({"type": "model", "id": model.id, "display_name": model.id, "created_at": "1970-01-01T00:00:00Z"})
    } else {
        json!({"id": model.id, "object": "model", "created": 0, "owned_by": model.owned_by})
    }
}
