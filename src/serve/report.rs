//! `POST /reef/report`: feedback on exchanges.

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::headers;
use super::receive;
use super::reply::{ReplyBody, json};
use super::state::State;
use crate::domain::{NewReport, RecordId, ScenarioName};
use crate::experience::parse_report;
use crate::scenario::OnMissing;
use crate::sys::json as loose;

/// Stores a report.
pub(super) async fn report(
    state: &Arc<State>,
    request: Request<&mut Incoming>,
) -> Result<Response<ReplyBody>, ApiError> {
    let (parts, incoming) = request.into_parts();
    let scenario = headers::scenario(&parts.headers)?;
    let body = receive::body(incoming, state.options.max_body_bytes, state.options.client_timeout).await?;
    let fields = object(&body)?;
    let report = parse(scenario.clone(), fields)?;
    // A report that cites receipts can only concern a scenario that exists; a mistyped name must not create one.
    let on_missing = if state.options.implicit_scenarios && report.references.is_empty() {
        OnMissing::Create
    } else {
        OnMissing::Refuse
    };
    state.directory.resolve(&scenario, on_missing, None).await?;
    let appended = state.experience.append_report(report).await?;
    state.board.wake();
    Ok(json(
        StatusCode::OK,
        &json!({"agent_record_id": appended.id, "scenario": scenario, "request_type": "report"}),
    ))
}

/// The JSON object in a body.
pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match loose::read(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(ApiError::bad_request(
            "invalid_json",
            "the request body must be a JSON object",
        )),
        Err(error) => Err(ApiError::bad_request(
            "invalid_json",
            format!("the request body is not valid JSON: {error}"),
        )),
    }
}

/// Checks each field; the message names the field and what it holds.
pub(super) fn parse(scenario: ScenarioName, mut fields: Map<String, Value>) -> Result<NewReport, ApiError> {
    let id = match fields.remove("agent_record_id") {
        None => None,
        Some(value) => Some(record_id("agent_record_id", &value)?),
    };
    Ok(parse_report(id, scenario, fields)?)
}

pub(super) fn record_id(field: &str, value: &Value) -> Result<RecordId, ApiError> {
    let Some(text) = value.as_str() else {
        return Err(invalid(field, "must be a string", value));
    };
    RecordId::new(text).map_err(|error| ApiError::bad_request("invalid_request", format!("{field}: {error}")))
}

pub(super) fn invalid(field: &str, rule: &str, value: &Value) -> ApiError {
    let mut shown: String = value.to_string().chars().take(60).collect();
    if value.to_string().chars().count() > 60 {
        shown.push('…');
    }
    ApiError::bad_request("invalid_request", format!("{field} {rule}, not {shown}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(body: &str) -> Result<NewReport, String> {
        let scenario = ScenarioName::new("s").unwrap();
        object(body.as_bytes())
            .and_then(|fields| parse(scenario, fields))
            .map_err(|error| error.message)
    }

    #[test]
    fn good_reports_are_read() {
        let report = parsed(
            r#"{"agent_record_id":"r","score":1,"feedback":{"a":1},"references":["x","y"],"metadata":{"m":2},"other":3}"#,
        )
        .unwrap();
        assert_eq!(report.id.as_str(), "r");
        assert_eq!(report.score, Some(1.0));
        assert_eq!(report.references.len(), 2);
        assert_eq!(parsed("{}").unwrap().score, None);
        assert_eq!(
            parsed(r#"{"score":null,"feedback":"text"}"#).unwrap().feedback,
            Some(json!("text"))
        );
    }

    #[test]
    fn bad_reports_are_refused_naming_field_and_value() {
        for (body, message) in [
            (r#"{"score":true}"#, "score must be a number, not a boolean: true"),
            (r#"{"score":"1"}"#, "score must be a number, not a string: \"1\""),
            (
                r#"{"score":1e999}"#,
                "score 1e999: a score is a number from -1e12 to 1e12",
            ),
            (r#"{"score":1e308}"#, "a score is a number from -1e12 to 1e12"),
            (r#"{"score":NaN}"#, "score NaN: a score is a number"),
            (
                r#"{"feedback":[1]}"#,
                "feedback must be a string or an object, not a list: [1]",
            ),
            (
                r#"{"references":"x"}"#,
                "references must be a list of strings, not a string: \"x\"",
            ),
            (
                r#"{"references":["a",""]}"#,
                "references[1] is not a receipt: record id \"\" is not valid",
            ),
            (
                r#"{"references":[1]}"#,
                "references[0] must be a string, not a number: 1",
            ),
            (r#"{"metadata":[]}"#, "metadata must be an object, not a list: []"),
            (r#"{"agent_record_id":""}"#, "agent_record_id: record id"),
            (r#"{"agent_record_id":7}"#, "agent_record_id must be a string, not 7"),
            ("[]", "must be a JSON object"),
            ("", "not valid JSON"),
        ] {
            let error = parsed(body).unwrap_err();
            assert!(error.contains(message), "{body}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in "[\\{\\}\\[\\]\",:a-z0-9. ]{0,80}") {
            let _any = parsed(&body);
        }
    }
}
