//! Records that come from elsewhere: the import envelope of the HTTP interface, and what a report may contain.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::append::{Appended, NewInstruction, Prepared};
use super::canonical;
use super::error::StoreError;
use super::records::RecordRow;
use super::store::Experience;
use super::writer::Care;
use crate::domain::{
    NewExchange, NewReport, RecordId, SCORE_RULE, ScenarioName, Tags, Timings, ToolCall, Turn, Usage, is_score,
};
use crate::sys::{random, task};

/// At most so many envelopes go into one import.
pub const MAX_IMPORT: usize = 1000;

/// A record that comes from elsewhere.
#[derive(Debug, Clone)]
pub struct Envelope {
    /// The record.
    pub item: EnvelopeItem,
    /// When it happened, if that is known.
    pub created_us: Option<i64>,
}

/// What an envelope holds.
#[derive(Debug, Clone)]
pub enum EnvelopeItem {
    /// A finished exchange.
    Exchange(Box<NewExchange>),
    /// A report; it may grade exchanges earlier in the same import.
    Report(NewReport),
    /// An instruction.
    Instruction(NewInstruction),
    /// A record whose bodies were dropped before it was exported.
    WithoutBodies(Box<RecordRow>),
}

impl Envelope {
    /// The record's id.
    pub fn id(&self) -> &RecordId {
        match &self.item {
            EnvelopeItem::Exchange(exchange) => &exchange.id,
            EnvelopeItem::Report(report) => &report.id,
            EnvelopeItem::Instruction(instruction) => &instruction.id,
            EnvelopeItem::WithoutBodies(row) => &row.id,
        }
    }

    /// The record's scenario.
    pub fn scenario(&self) -> &ScenarioName {
        match &self.item {
            EnvelopeItem::Exchange(exchange) => &exchange.scenario,
            EnvelopeItem::Report(report) => &report.scenario,
            EnvelopeItem::Instruction(instruction) => &instruction.scenario,
            EnvelopeItem::WithoutBodies(row) => &row.scenario,
        }
    }

    /// Reads `{"agent_record_id", "request_type", "payload"}`, exactly these keys. An inference payload is the request
    /// with `response` in it; its `metadata.tags` become the record's tags.
    pub fn from_contract(scenario: &ScenarioName, value: Value) -> Result<Self, StoreError> {
        let Value::Object(mut map) = value else {
            return Err(StoreError::invalid("an import envelope must be a JSON object"));
        };
        if let Some(key) = map
            .keys()
            .find(|key| !["agent_record_id", "request_type", "payload"].contains(&key.as_str()))
        {
            return Err(StoreError::invalid(format_args!(
                "unknown key \"{}\" in an import envelope; it holds agent_record_id, request_type and payload",
                key.escape_default()
            )));
        }
        let id = match map.remove("agent_record_id") {
            Some(Value::String(id)) => RecordId::new(id).map_err(StoreError::invalid)?,
            _ => return Err(StoreError::invalid("agent_record_id must be a non-empty string")),
        };
        let Some(Value::Object(payload)) = map.remove("payload") else {
            return Err(StoreError::invalid("payload must be a JSON object"));
        };
        let item = match map.get("request_type").and_then(Value::as_str) {
            Some("inference") => EnvelopeItem::Exchange(Box::new(exchange(id, scenario, payload)?)),
            Some("report") => EnvelopeItem::Report(parse_report(id, scenario.clone(), payload)?),
            Some("train") => {
                return Err(StoreError::invalid(
                    "an instruction cannot be imported; send it to /reef/train or use `reef instruct`",
                ));
            }
            _ => return Err(StoreError::invalid("request_type must be \"inference\" or \"report\"")),
        };
        Ok(Self { item, created_us: None })
    }

    fn prepare(self) -> Result<Prepared, StoreError> {
        match self.item {
            EnvelopeItem::Exchange(exchange) => Prepared::exchange(&exchange, self.created_us),
            EnvelopeItem::Report(report) => Prepared::report(&report, self.created_us),
            EnvelopeItem::Instruction(instruction) => Ok(Prepared::instruction(instruction, self.created_us)),
            EnvelopeItem::WithoutBodies(row) => Prepared::without_bodies(*row),
        }
    }
}

impl Experience {
    /// Stores 1 to [`MAX_IMPORT`] records in one transaction: all, or none and the first that was refused
    /// ([`StoreError::Item`]). Records that are already there count as stored.
    pub async fn import(&self, envelopes: Vec<Envelope>) -> Result<Vec<Appended>, StoreError> {
        if envelopes.is_empty() || envelopes.len() > MAX_IMPORT {
            return Err(StoreError::invalid(format_args!(
                "an import holds 1 to {MAX_IMPORT} records, not {}; send it in parts",
                envelopes.len()
            )));
        }
        let prepared: Vec<Prepared> = task::blocking("preparing an import", move || {
            let numbered = envelopes.into_iter().enumerate();
            numbered
                .map(|(index, envelope)| envelope.prepare().map_err(|error| at(index, error)))
                .collect::<Result<_, _>>()
        })
        .await??;
        let bytes = prepared.iter().map(Prepared::bytes).sum();
        self.write(Care::Undo, bytes, move |tx| {
            let numbered = prepared.iter().enumerate();
            numbered
                .map(|(index, prepared)| prepared.apply(tx).map_err(|error| at(index, error)))
                .collect()
        })
        .await
    }
}

/// Failures of the store itself concern no one item.
fn at(index: usize, source: StoreError) -> StoreError {
    if matches!(source, StoreError::Sqlite { .. }) {
        return source;
    }
    StoreError::Item {
        index,
        source: Box::new(source),
    }
}

/// Reads the four stored fields of a report; other keys are ignored.
///
/// Without an id, a report on exchanges has one made of what it says: the same report sent again is the same report. A
/// report on none has a fresh one, because nothing tells a repetition from a second opinion.
pub fn parse_report(
    id: impl Into<Option<RecordId>>,
    scenario: ScenarioName,
    mut payload: Map<String, Value>,
) -> Result<NewReport, StoreError> {
    let score = match payload.remove("score") {
        None | Some(Value::Null) => None,
        Some(Value::Number(number)) => Some(
            number
                .as_f64()
                .filter(|score| is_score(*score))
                .ok_or_else(|| StoreError::invalid(format_args!("score {number}: {SCORE_RULE}")))?,
        ),
        // As the reader of loose JSON gives what no float holds.
        Some(Value::String(text)) if text.parse().is_ok_and(|score: f64| !score.is_finite()) => {
            return Err(StoreError::invalid(format_args!("score {text}: {SCORE_RULE}")));
        }
        Some(other) => return Err(wrong("score", "a number", &other)),
    };
    let feedback = match payload.remove("feedback") {
        None | Some(Value::Null) => None,
        Some(feedback @ (Value::String(_) | Value::Object(_))) => Some(feedback),
        Some(other) => return Err(wrong("feedback", "a string or an object", &other)),
    };
    let metadata = match payload.remove("metadata") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(metadata)) => metadata,
        Some(other) => return Err(wrong("metadata", "an object", &other)),
    };
    let references = match payload.remove("references") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items
            .into_iter()
            .enumerate()
            .map(|(position, item)| match item {
                Value::String(text) => RecordId::new(text).map_err(|error| {
                    StoreError::invalid(format_args!("references[{position}] is not a receipt: {error}"))
                }),
                other => Err(wrong(&format!("references[{position}]"), "a string", &other)),
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(wrong("references", "a list of strings", &other)),
    };
    let mut report = NewReport {
        id: random::record_id(),
        scenario,
        score,
        feedback,
        references,
        metadata,
    };
    match id.into() {
        Some(id) => report.id = id,
        None if report.references.is_empty() => {}
        None => report.id = id_of(&report),
    }
    Ok(report)
}

/// The id of a report that came without one.
fn id_of(report: &NewReport) -> RecordId {
    let said = json!({
        "score": report.score, "feedback": report.feedback, "references": report.references,
        "metadata": report.metadata,
    });
    let mut hash = Sha256::new();
    hash.update(report.scenario.as_str());
    hash.update([0]);
    hash.update(canonical::bytes(&said));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    RecordId::from_uuid(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

fn wrong(field: &str, wanted: &str, found: &Value) -> StoreError {
    let mut value: String = found.to_string().chars().take(41).collect();
    if value.chars().count() > 40 {
        value = format!("{}…", value.chars().take(40).collect::<String>());
    }
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    StoreError::invalid(format_args!("{field} must be {wanted}, not {found}: {value}"))
}

fn exchange(id: RecordId, scenario: &ScenarioName, mut payload: Map<String, Value>) -> Result<NewExchange, StoreError> {
    let response = match payload.shift_remove("response") {
        Some(response @ Value::Object(_)) => response,
        Some(other) => return Err(wrong("payload.response", "an object", &other)),
        None => {
            return Err(StoreError::invalid(
                "payload.response is missing; an inference record holds its response",
            ));
        }
    };
    let tags = match payload.get("metadata").and_then(|metadata| metadata.get("tags")) {
        None | Some(Value::Null) => Tags::new(),
        Some(Value::Object(tags)) => read_tags("payload.metadata.tags", tags)?,
        Some(other) => return Err(wrong("payload.metadata.tags", "an object", other)),
    };
    Ok(NewExchange {
        id,
        scenario: scenario.clone(),
        route: None,
        release: None,
        streamed: false,
        status: 200,
        turn: turn_of(&response),
        request: Bytes::from(Value::Object(payload).to_string()),
        response: Bytes::from(response.to_string()),
        tags,
        timings: Timings::default(),
        capture: None,
    })
}

pub(super) fn read_tags(field: &str, tags: &Map<String, Value>) -> Result<Tags, StoreError> {
    tags.iter()
        .map(|(name, value)| match value {
            Value::String(text) => Ok((name.to_lowercase(), text.clone())),
            other => Err(wrong(&format!("{field}.{}", name.escape_default()), "a string", other)),
        })
        .collect()
}

/// What an imported response says, in the shapes traces come in: a chat completion, a bare message, Anthropic's content
/// blocks. A response in no known shape gives an empty turn; it is stored as it is all the same.
pub(super) fn turn_of(response: &Value) -> Turn {
    let choice = response.get("choices").and_then(|choices| choices.get(0));
    let message = choice
        .and_then(|choice| choice.get("message"))
        .or_else(|| response.get("message"))
        .unwrap_or(response);
    let text_of = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let mut turn = Turn {
        stop_reason: choice
            .and_then(|choice| text_of(choice, "finish_reason"))
            .or_else(|| text_of(response, "stop_reason")),
        model: text_of(response, "model"),
        response_id: text_of(response, "id"),
        reasoning: text_of(message, "reasoning_content").unwrap_or_default(),
        usage: response.get("usage").map(|usage| {
            let count = |a: &str, b: &str| usage.get(a).or_else(|| usage.get(b)).and_then(Value::as_u64);
            Usage {
                input_tokens: count("prompt_tokens", "input_tokens"),
                output_tokens: count("completion_tokens", "output_tokens"),
                ..Usage::default()
            }
        }),
        ..Turn::default()
    };
    match message.get("content") {
        Some(Value::String(text)) => turn.text.clone_from(text),
        Some(Value::Array(blocks)) => {
            for block in blocks {
                match block.get("type").and_then(Value::as_str) {
                    Some("text" | "output_text") => turn.text.push_str(&text_of(block, "text").unwrap_or_default()),
                    Some("thinking") => turn.reasoning.push_str(&text_of(block, "thinking").unwrap_or_default()),
                    Some("tool_use") => turn.tool_calls.push(ToolCall {
                        id: text_of(block, "id").unwrap_or_default(),
                        name: text_of(block, "name").unwrap_or_default(),
                        arguments: block.get("input").map(Value::to_string).unwrap_or_default(),
                    }),
                    _ => {}
                }
            }
        }
        _ => {}
    }
    for call in message
        .get("tool_calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let function = call.get("function").unwrap_or(call);
        turn.tool_calls.push(ToolCall {
            id: text_of(call, "id").unwrap_or_default(),
            name: text_of(function, "name").unwrap_or_default(),
            arguments: match function.get("arguments") {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => String::new(),
            },
        });
    }
    turn
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(payload: Value) -> Result<NewReport, StoreError> {
        let Value::Object(payload) = payload else {
            panic!("not an object")
        };
        parse_report(RecordId::new("p").unwrap(), ScenarioName::new("a").unwrap(), payload)
    }

    #[test]
    fn a_report_without_an_id_is_the_same_when_it_says_the_same() {
        let id = |scenario: &str, payload: Value| {
            let Value::Object(payload) = payload else {
                panic!("not an object")
            };
            let report = parse_report(None, ScenarioName::new(scenario).unwrap(), payload).unwrap();
            report.id.to_string()
        };
        let said = json!({"references": ["r"], "score": 1, "feedback": {"a": 1, "b": 2}});
        let again = json!({"feedback": {"b": 2, "a": 1.0}, "score": 1.0, "references": ["r"], "metadata": null});
        assert_eq!(id("s", said.clone()), id("s", again));
        for other in [
            json!({"references": ["r"], "score": 0, "feedback": {"a": 1, "b": 2}}),
            json!({"references": ["q"], "score": 1, "feedback": {"a": 1, "b": 2}}),
            json!({"references": ["r"], "score": 1, "feedback": {"a": 1, "b": 2}, "metadata": {"by": "someone else"}}),
        ] {
            assert_ne!(id("s", said.clone()), id("s", other));
        }
        assert_ne!(id("s", said.clone()), id("t", said));
        let general = json!({"score": 1});
        assert_ne!(id("s", general.clone()), id("s", general));
    }

    #[test]
    fn reports_with_wrong_values_are_refused_by_field() {
        for (payload, want) in [
            (json!({"score": true}), "score must be a number, not a boolean"),
            (json!({"score": "1"}), "score must be a number, not a string"),
            (json!({"score": []}), "score must be a number, not a list"),
            (
                json!({"feedback": []}),
                "feedback must be a string or an object, not a list",
            ),
            (
                json!({"feedback": 1}),
                "feedback must be a string or an object, not a number",
            ),
            (
                json!({"references": "r1"}),
                "references must be a list of strings, not a string",
            ),
            (
                json!({"references": ["r1", 2]}),
                "references[1] must be a string, not a number",
            ),
            (json!({"references": ["r1", ""]}), "references[1] is not a receipt"),
            (json!({"metadata": []}), "metadata must be an object, not a list"),
        ] {
            let error = parse(payload.clone()).unwrap_err().to_string();
            assert!(error.starts_with(want), "{payload}: {error}");
        }
        // JSON has no NaN, and a number too large for a float is no number to serde_json either.
        assert!(serde_json::from_str::<Value>(r#"{"score": 1e999}"#).is_err());
        assert!(serde_json::from_str::<Value>(r#"{"score": NaN}"#).is_err());
    }

    #[test]
    fn absent_is_not_zero() {
        let report = parse(json!({"unknown": 1})).unwrap();
        assert_eq!(report.score, None);
        assert_eq!(parse(json!({"score": 0})).unwrap().score, Some(0.0));
    }

    #[test]
    fn envelopes_hold_exactly_three_keys() {
        let scenario = ScenarioName::new("a").unwrap();
        let read = |value: Value| Envelope::from_contract(&scenario, value);
        let good = json!({"agent_record_id": "r", "request_type": "inference", "payload": {
            "messages": [], "metadata": {"tags": {"Session": "s"}}, "response": {"choices": [
                {"finish_reason": "tool_calls", "message": {"content": "hi", "tool_calls": [
                    {"id": "c", "function": {"name": "f", "arguments": "{}"}}]}}]}}});
        let EnvelopeItem::Exchange(exchange) = read(good.clone()).unwrap().item else {
            panic!("an exchange was given")
        };
        assert_eq!(exchange.turn.text, "hi");
        assert_eq!(exchange.turn.tool_calls[0].name, "f");
        assert_eq!(exchange.turn.stop_reason.as_deref(), Some("tool_calls"));
        assert_eq!(exchange.tags["session"], "s");
        for (key, value) in [
            ("extra", json!(1)),
            ("agent_record_id", json!("")),
            ("agent_record_id", json!(null)),
            ("request_type", json!("train")),
            ("request_type", json!("other")),
            ("payload", json!([])),
            ("payload", json!({"messages": []})),
        ] {
            let mut bad = good.clone();
            bad[key] = value;
            assert!(matches!(read(bad.clone()), Err(StoreError::Invalid { .. })), "{bad}");
        }
    }
}
