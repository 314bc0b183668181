//! `POST /reef/records` and `/reef/records/batch`: experience that happened elsewhere. Nothing is asked of the engine.

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::error::ApiError;
use super::headers;
use super::receive;
use super::reply::{ReplyBody, json};
use super::report::{invalid, object};
use super::state::State;
use crate::domain::ScenarioName;
use crate::experience::{Envelope, EnvelopeItem};
use crate::scenario::OnMissing;

/// Imports one record.
pub(super) async fn one(state: &Arc<State>, request: Request<&mut Incoming>) -> Result<Response<ReplyBody>, ApiError> {
    let (scenario, body) = receive(state, request).await?;
    let envelope = Envelope::from_contract(&scenario, Value::Object(object(&body)?))?;
    let receipts = store(state, &scenario, vec![envelope]).await?;
    Ok(json(StatusCode::OK, receipts.first().unwrap_or(&Value::Null)))
}

/// Imports many records, all or none; a report may cite an exchange before it in the list.
pub(super) async fn many(state: &Arc<State>, request: Request<&mut Incoming>) -> Result<Response<ReplyBody>, ApiError> {
    let (scenario, body) = receive(state, request).await?;
    let mut fields = object(&body)?;
    let items = match fields.remove("records") {
        Some(Value::Array(items)) => items,
        Some(other) => return Err(invalid("records", "must be a list", &other)),
        None => {
            return Err(ApiError::bad_request(
                "invalid_request",
                "records is missing; send {\"records\": [{\"agent_record_id\", \"request_type\", \"payload\"}, …]}",
            ));
        }
    };
    let envelopes = items
        .into_iter()
        .enumerate()
        .map(|(index, item)| {
            Envelope::from_contract(&scenario, item).map_err(|error| {
                let error = ApiError::from(error);
                ApiError {
                    message: format!("records[{index}]: {}", error.message),
                    ..error
                }
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let receipts = store(state, &scenario, envelopes).await?;
    Ok(json(StatusCode::OK, &json!({"records": receipts})))
}

async fn receive(
    state: &Arc<State>,
    request: Request<&mut Incoming>,
) -> Result<(ScenarioName, bytes::Bytes), ApiError> {
    let (parts, incoming) = request.into_parts();
    let scenario = headers::scenario(&parts.headers)?;
    let body = receive::body(incoming, super::SMALL_BODY, state.options.client_timeout).await?;
    Ok((scenario, body))
}

async fn store(state: &Arc<State>, scenario: &ScenarioName, envelopes: Vec<Envelope>) -> Result<Vec<Value>, ApiError> {
    let kinds: Vec<&str> = envelopes
        .iter()
        .map(|envelope| match envelope.item {
            EnvelopeItem::Report(_) => "report",
            _ => "inference",
        })
        .collect();
    let on_missing = if state.options.implicit_scenarios {
        OnMissing::Create
    } else {
        OnMissing::Refuse
    };
    state.directory.resolve(scenario, on_missing, None).await?;
    let appended = state.experience.import(envelopes).await?;
    Ok(appended
        .iter()
        .zip(kinds)
        .map(|(appended, kind)| json!({"agent_record_id": appended.id, "scenario": scenario, "request_type": kind}))
        .collect())
}
