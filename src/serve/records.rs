//! `/reef/scenarios/{scenario}/records` and `/commits`: what happened, page by page.

use std::sync::Arc;

use http::Response;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::query::Query;
use super::reply::{ReplyBody, json_private};
use super::scenarios::existing;
use super::state::State;
use crate::domain::{RecordId, RequestType, SCORE_RULE, ScenarioName, TokenCapture, is_score};
use crate::experience::{Bodies, Consumed, Named, Order, Record, RecordFilter, RecordQuery, RecordRow, StepQuery};
use crate::scenario::commit_row;
use crate::sys::clock;
use crate::sys::json::read_or_text;

const LARGEST_PAGE: u64 = 100;
const PAGE: u64 = 50;
/// Characters of what was asked and said, at most.
const LONGEST_GIST: u64 = 1000;

/// `GET /reef/scenarios/{scenario}/records`
pub(super) async fn page(
    state: &Arc<State>,
    name: &ScenarioName,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    let query = Query::parse(
        query,
        &[
            "after_sequence",
            "before_sequence",
            "limit",
            "order",
            "request_type",
            "min_score",
            "max_score",
            "tag",
            "since",
            "until",
            "text",
            "gist",
        ],
    )?;
    let order = match query.one("order")? {
        None | Some("oldest") => Order::OldestFirst,
        Some("newest") => Order::NewestFirst,
        Some(other) => {
            return Err(ApiError::bad_request(
                "invalid_request",
                format!("order \"{}\" is not oldest or newest", other.escape_default()),
            ));
        }
    };
    let cursor = match order {
        Order::OldestFirst => query.number("after_sequence", 0, i64::MAX as u64)?,
        Order::NewestFirst => query.number("before_sequence", 0, i64::MAX as u64)?,
    };
    let limit = query.number("limit", 1, LARGEST_PAGE)?.unwrap_or(PAGE) as usize;
    let kind = match query.one("request_type")? {
        None => None,
        Some("inference") => Some(RequestType::Inference),
        Some("report") => Some(RequestType::Report),
        Some("train") => Some(RequestType::Train),
        Some(other) => {
            return Err(ApiError::bad_request(
                "invalid_request",
                format!(
                    "request_type \"{}\" is not inference, report or train",
                    other.escape_default()
                ),
            ));
        }
    };
    existing(state, name).await?;
    let wanted = RecordQuery {
        scenario: Some(name.clone()),
        kind,
        cursor: cursor.and_then(|cursor| i64::try_from(cursor).ok()),
        order,
        limit,
        filter: filter(&query)?,
        ..RecordQuery::default()
    };
    let rows: Vec<Value> = match query.number("gist", 1, LONGEST_GIST)? {
        None => {
            let rows = state.read(move |experience| experience.records(&wanted)).await?;
            rows.iter().map(row_json).collect()
        }
        Some(most) => {
            let records = state.read(move |experience| experience.full_records(&wanted)).await?;
            records.iter().map(|record| with_gist(record, most as usize)).collect()
        }
    };
    let next = (rows.len() == limit)
        .then(|| rows.last().map(|row| row["sequence"].clone()))
        .flatten();
    Ok(json_private(&match order {
        Order::OldestFirst => json!({"scenario": name, "records": rows, "next_after_sequence": next}),
        Order::NewestFirst => json!({"scenario": name, "records": rows, "next_before_sequence": next}),
    }))
}

/// What a page of records is limited to.
fn filter(query: &Query) -> Result<RecordFilter, ApiError> {
    let bad = |name: &str, wanted: &str| ApiError::bad_request("invalid_request", format!("{name} must be {wanted}"));
    let score = |name: &str| match query.one(name)? {
        None => Ok(None),
        Some(text) => match text.parse::<f64>() {
            Ok(score) if is_score(score) => Ok(Some(score)),
            _ => Err(bad(name, SCORE_RULE)),
        },
    };
    let now = clock::now_us();
    let moment = |name: &str| match query.one(name)? {
        None => Ok(None),
        Some(text) => match text.parse::<f64>() {
            Ok(seconds) => Ok(Some((seconds * 1e6) as i64)),
            Err(_) => clock::moment_of(text, now).map(Some).ok_or_else(|| {
                bad(
                    name,
                    "seconds since the Unix epoch, a time such as 2026-11-30T06:22:15Z, or how long ago, such as 2h",
                )
            }),
        },
    };
    Ok(RecordFilter {
        min_score: score("min_score")?,
        max_score: score("max_score")?,
        tags: query
            .all("tag")
            .into_iter()
            .map(|tag| match tag.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (tag, None),
            })
            .collect(),
        since_us: moment("since")?,
        until_us: moment("until")?,
        texts: query.all("text"),
    })
}

/// A row with the beginning of what was asked and said.
fn with_gist(record: &Record, most: usize) -> Value {
    let short = |text: &str| text.chars().take(most).collect::<String>();
    let gist = record.gist();
    let mut row = row_json(&record.row);
    row["gist"] = json!({"asked": short(&gist.asked), "said": short(&gist.said)});
    row
}

/// The record of a scenario that a text names by its id or a part of it.
pub(super) async fn named(state: &Arc<State>, name: &ScenarioName, text: &str) -> Result<RecordId, ApiError> {
    let (scenario, wanted) = (name.clone(), text.to_owned());
    let found = state
        .read(move |experience| experience.record_named(Some(&scenario), &wanted))
        .await?;
    let several = matches!(found, Named::Several(_));
    let shown: String = text.chars().take(80).flat_map(char::escape_default).collect();
    found.only(&shown).map_err(|message| {
        if several {
            ApiError::bad_request("ambiguous_record", message)
        } else {
            ApiError::not_found("unknown_record", format!("scenario {name} has no record {shown}"))
        }
    })
}

/// `GET /reef/scenarios/{scenario}/records/{record_id}`
pub(super) async fn one(state: &Arc<State>, name: &ScenarioName, id: &str) -> Result<Response<ReplyBody>, ApiError> {
    existing(state, name).await?;
    let id = named(state, name, id).await?;
    let (scenario, wanted) = (name.clone(), id.clone());
    let (record, reports, consumed) = state
        .read(move |experience| {
            let record = experience.record(Some(&scenario), &wanted)?;
            let reports = experience.reports_on(&scenario, &wanted)?;
            let consumed = experience.consumed_by(&scenario, &wanted)?;
            Ok((record, reports, consumed))
        })
        .await?;
    let record =
        record.ok_or_else(|| ApiError::not_found("unknown_record", format!("scenario {name} has no record {id}")))?;
    let Some(bodies) = &record.bodies else {
        return Err(ApiError::not_found(
            "record_pruned",
            format!("the bodies of record {id} were dropped by retention; its row is in the list of records"),
        ));
    };
    let mut out = row_json(&record.row);
    out["payload"] = payload(&record.row, bodies);
    out["turn"] = serde_json::to_value(&bodies.turn).unwrap_or(Value::Null);
    out["reports"] = reports.iter().map(report_json).collect();
    out["consumed"] = consumed.iter().map(Consumed::to_json).collect();
    out["capture"] = bodies.capture.as_ref().map_or(Value::Null, TokenCapture::summary);
    Ok(json_private(&out))
}

fn report_json(record: &Record) -> Value {
    let mut out = row_json(&record.row);
    out["payload"] = record
        .bodies
        .as_ref()
        .map_or(Value::Null, |bodies| read_or_text(&bodies.request));
    out
}

/// A row without bodies, as every list shows it.
pub(super) fn row_json(row: &RecordRow) -> Value {
    json!({
        "sequence": row.sequence,
        "agent_record_id": row.id,
        "request_type": row.kind.as_str(),
        "created_at": clock::seconds(row.created_us),
        "references": row.references,
        "artifact_ref": row.release,
        "score": row.score,
        "route": row.route.map(crate::domain::Route::path),
        "status": row.status,
        "streamed": row.streamed,
        "tags": row.tags,
        "model": row.model,
        "stop_reason": row.stop_reason,
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
        "duration_seconds": (row.kind == RequestType::Inference).then(|| row.timings.total_us as f64 / 1e6),
        "has_capture": row.has_capture,
        "eligible": row.eligible,
        "body_bytes": row.body_bytes,
        "pruned_at": row.pruned_us.map(clock::seconds),
    })
}

/// The request with the response in it and the tags under `metadata.tags`. A stream's response shows its events as
/// they came, and the message they make.
fn payload(row: &RecordRow, bodies: &Bodies) -> Value {
    let mut payload = match read_or_text(&bodies.request) {
        Value::Object(fields) => fields,
        other => Map::from_iter([("body".to_owned(), other)]),
    };
    if row.kind != RequestType::Inference {
        return Value::Object(payload);
    }
    if !row.tags.is_empty() {
        let metadata = payload.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            let tags = metadata.entry("tags").or_insert_with(|| json!({}));
            if let Some(tags) = tags.as_object_mut() {
                tags.extend(
                    row.tags
                        .iter()
                        .map(|(name, value)| (name.clone(), Value::from(value.as_str()))),
                );
            }
        }
    }
    let response = bodies.response.clone().unwrap_or_default();
    let response = if row.streamed {
        let text = bodies.turn.as_ref().filter(|turn| turn.tool_calls.is_empty());
        json!({
            "stream": true,
            "status": row.status,
            "complete": true,
            "body": String::from_utf8_lossy(&response),
            "message": text.map(|turn| json!({"role": "assistant", "content": turn.text})),
        })
    } else {
        read_or_text(&response)
    };
    payload.insert("response".to_owned(), response);
    Value::Object(payload)
}

/// `GET /reef/scenarios/{scenario}/commits`
pub(super) async fn commits(
    state: &Arc<State>,
    name: &ScenarioName,
    query: Option<&str>,
) -> Result<Response<ReplyBody>, ApiError> {
    let query = Query::parse(query, &["after_step", "limit", "record_id"])?;
    let ids = query.all("record_id");
    if ids.len() as u64 > LARGEST_PAGE {
        return Err(ApiError::bad_request(
            "invalid_request",
            format!("at most {LARGEST_PAGE} record_id filters, not {}", ids.len()),
        ));
    }
    let limit = query.number("limit", 1, LARGEST_PAGE)?.unwrap_or(PAGE);
    let wanted = StepQuery {
        after: query.number("after_step", 0, i64::MAX as u64)?,
        oldest_first: true,
        limit: u32::try_from(limit).ok(),
        using: ids.into_iter().map(RecordId::new).collect::<Result<_, _>>()?,
        ..StepQuery::default()
    };
    existing(state, name).await?;
    let scenario = name.clone();
    let rows = state
        .read(move |experience| {
            let steps = experience.steps(&scenario, &wanted)?;
            steps
                .into_iter()
                .map(|step| {
                    let consumed = match &step.batch_id {
                        Some(batch) => experience.batch_records(batch)?,
                        None => Vec::new(),
                    };
                    Ok(commit_row(&step, &consumed))
                })
                .collect::<Result<Vec<_>, _>>()
        })
        .await?;
    let next = (rows.len() as u64 == limit)
        .then(|| rows.last().map(|row| row["step"].clone()))
        .flatten();
    Ok(json_private(
        &json!({"scenario": name, "commits": rows, "next_after_step": next}),
    ))
}

/// `GET /reef/scenarios/{scenario}/steps/{step}/verdict`: the evidence of a step; null when no gate judged it.
pub(super) async fn verdict(
    state: &Arc<State>,
    name: &ScenarioName,
    step: &str,
) -> Result<Response<ReplyBody>, ApiError> {
    let number: u64 = step.parse().map_err(|_| {
        ApiError::bad_request(
            "invalid_request",
            format!("step \"{}\" is not a number", step.escape_default()),
        )
    })?;
    existing(state, name).await?;
    let scenario = name.clone();
    let verdict = state
        .read(move |experience| experience.step_verdict(&scenario, number))
        .await?;
    Ok(json_private(
        &json!({"scenario": name, "step": number, "verdict": verdict}),
    ))
}
