//! Lines of JSON from elsewhere, of whatever kind: our own export, import envelopes, OpenAI chat examples.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::{Map, Value, json as value};

use super::canonical::{self, FieldHash};
use super::envelope::{Envelope, EnvelopeItem, read_tags, turn_of};
use super::error::StoreError;
use super::export::FORMAT;
use crate::domain::{NewExchange, NewReport, RecordId, ScenarioName, Tags, Timings};
use crate::sys::json;

/// How often each chat example was read: what is there several times is several examples, and the same ones when the
/// files are imported again.
#[derive(Debug, Default)]
pub struct Repeats(HashMap<[u8; 32], u32>);

impl Repeats {
    /// What tells this example from the same one before it.
    fn next(&mut self, content: [u8; 32]) -> String {
        let before = self.0.entry(content).or_default();
        *before += 1;
        let content = hex::encode(&content[..16]);
        match *before {
            1 => content,
            more => format!("{content}-{more}"),
        }
    }
}

impl Envelope {
    /// Reads one line of an import file: usually one record, two for an example that carries its score.
    ///
    /// A line is one of
    /// - a line of `reef records export` (`"format": "reef-record/1"`), which names its scenario;
    /// - an import envelope (`agent_record_id`, `request_type`, `payload`);
    /// - an OpenAI chat example: `messages`, whose answer is `completion`, `response` or the last message; `tools`,
    ///   `model` and whatever else stay part of the request; `tags` become tags, `score` becomes a report.
    ///
    /// The last two need `scenario`. An example without an id gets one from its content and from how often the import has
    /// read the same before, so that importing a file twice changes nothing and repeats in it are kept.
    pub fn from_line(
        line: &str,
        scenario: Option<&ScenarioName>,
        repeats: &mut Repeats,
    ) -> Result<Vec<Self>, StoreError> {
        let value = json::read(line.as_bytes())
            .map_err(|error| StoreError::invalid(format_args!("the line is not JSON: {error}")))?;
        let Value::Object(map) = value else {
            return Err(StoreError::invalid("the line is not a JSON object"));
        };
        if map.get("format").and_then(Value::as_str) == Some(FORMAT) {
            return Ok(vec![Self::from_export(line, scenario)?]);
        }
        let needed = || StoreError::invalid("the line names no scenario; give one with --scenario NAME");
        if map.contains_key("request_type") {
            return Ok(vec![Self::from_contract(
                scenario.ok_or_else(needed)?,
                Value::Object(map),
            )?]);
        }
        if map.contains_key("messages") {
            return example(map, scenario.ok_or_else(needed)?, repeats);
        }
        Err(StoreError::invalid(
            "the line is neither an exported record, nor an import envelope, nor a chat example with `messages`",
        ))
    }
}

fn example(
    mut map: Map<String, Value>,
    scenario: &ScenarioName,
    repeats: &mut Repeats,
) -> Result<Vec<Envelope>, StoreError> {
    let content = FieldHash::new("chat-example")
        .field(&canonical::bytes(&Value::Object(map.clone())))
        .finish();
    let place = repeats.next(content);
    let id = match map.shift_remove("agent_record_id") {
        Some(Value::String(id)) => RecordId::new(id),
        None => RecordId::new(format!("example-{place}")),
        Some(_) => return Err(StoreError::invalid("agent_record_id must be a non-empty string")),
    }
    .map_err(StoreError::invalid)?;
    let tags = match map.shift_remove("tags") {
        None => Tags::new(),
        Some(Value::Object(tags)) => read_tags("tags", &tags)?,
        Some(_) => return Err(StoreError::invalid("tags must be an object of strings")),
    };
    let score = match map.shift_remove("score") {
        None | Some(Value::Null) => None,
        Some(Value::Number(number)) => number.as_f64(),
        Some(_) => return Err(StoreError::invalid("score must be a number")),
    };
    let response = answer(&mut map)?;
    let exchange = NewExchange {
        id: id.clone(),
        scenario: scenario.clone(),
        route: None,
        release: None,
        turn: turn_of(&response),
        request: Bytes::from(Value::Object(map).to_string()),
        response: Bytes::from(response.to_string()),
        streamed: false,
        status: 200,
        tags,
        timings: Timings::default(),
        capture: None,
    };
    let mut envelopes = vec![Envelope {
        item: EnvelopeItem::Exchange(Box::new(exchange)),
        created_us: None,
    }];
    if let Some(score) = score {
        envelopes.push(Envelope {
            item: EnvelopeItem::Report(NewReport {
                id: RecordId::new(format!("score-{place}")).map_err(StoreError::invalid)?,
                scenario: scenario.clone(),
                score: Some(score),
                feedback: None,
                references: vec![id],
                metadata: Map::new(),
            }),
            created_us: None,
        });
    }
    Ok(envelopes)
}

/// Takes the answer out of the example.
fn answer(map: &mut Map<String, Value>) -> Result<Value, StoreError> {
    for key in ["completion", "response"] {
        match map.shift_remove(key) {
            None => {}
            Some(Value::String(text)) => return Ok(completion(&value!({"role": "assistant", "content": text}))),
            Some(Value::Object(object)) if object.contains_key("choices") => return Ok(Value::Object(object)),
            Some(Value::Object(object)) if object.contains_key("content") || object.contains_key("tool_calls") => {
                return Ok(completion(&Value::Object(object)));
            }
            Some(_) => {
                return Err(StoreError::invalid(format_args!(
                    "{key} must be a string, a message or a chat completion"
                )));
            }
        }
    }
    let Some(Value::Array(messages)) = map.get_mut("messages") else {
        return Err(StoreError::invalid("messages must be a list"));
    };
    match messages.pop() {
        Some(last) if last.get("role").and_then(Value::as_str) == Some("assistant") => Ok(completion(&last)),
        _ => Err(StoreError::invalid(
            "the example has no answer: end messages with an assistant message, or add `completion`",
        )),
    }
}

fn completion(message: &Value) -> Value {
    value!({"choices": [{"index": 0, "message": message}]})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Vec<Envelope>, StoreError> {
        Envelope::from_line(line, Some(&ScenarioName::new("a").unwrap()), &mut Repeats::default())
    }

    fn exchange(envelope: &Envelope) -> &NewExchange {
        match &envelope.item {
            EnvelopeItem::Exchange(exchange) => exchange,
            other => panic!("not an exchange: {other:?}"),
        }
    }

    #[test]
    fn chat_examples_are_read_in_their_usual_shapes() {
        for line in [
            r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}"#,
            r#"{"messages":[{"role":"user","content":"q"}],"completion":"a"}"#,
            r#"{"messages":[{"role":"user","content":"q"}],"completion":{"role":"assistant","content":"a"}}"#,
            r#"{"messages":[{"role":"user","content":"q"}],"response":{"choices":[{"message":{"content":"a"}}]}}"#,
        ] {
            let read = read(line).unwrap();
            assert_eq!(read.len(), 1);
            assert_eq!(exchange(&read[0]).turn.text, "a", "{line}");
            assert_eq!(
                &exchange(&read[0]).request[..],
                br#"{"messages":[{"role":"user","content":"q"}]}"#
            );
        }
    }

    #[test]
    fn a_score_becomes_a_report_and_ids_follow_from_content() {
        let line = r#"{"messages":[{"role":"assistant","content":"a"}],"score":0.5,"tags":{"session":"s"}}"#;
        let once = read(line).unwrap();
        let again = read(&line.replace("0.5", "5e-1")).unwrap();
        assert_eq!(once.len(), 2);
        assert_eq!(once[0].id(), again[0].id());
        assert_ne!(once[0].id(), read(&line.replace("0.5", "0.6")).unwrap()[0].id());
        let EnvelopeItem::Report(report) = &once[1].item else {
            panic!("the second is the report")
        };
        assert_eq!(report.references, [once[0].id().clone()]);
        assert_eq!(exchange(&once[0]).tags["session"], "s");
    }

    #[test]
    fn other_lines_are_refused_with_a_reason() {
        for (line, want) in [
            ("", "not JSON"),
            ("[1]", "not a JSON object"),
            ("{}", "neither"),
            (r#"{"messages":[{"role":"user","content":"q"}]}"#, "no answer"),
            (r#"{"messages":"x"}"#, "must be a list"),
            (r#"{"messages":[],"completion":3}"#, "completion must be"),
            (r#"{"format":"reef-record/1"}"#, "missing field"),
        ] {
            let error = read(line).unwrap_err().to_string();
            assert!(error.contains(want), "{line}: {error}");
        }
        let error = Envelope::from_line(r#"{"messages":[]}"#, None, &mut Repeats::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("--scenario"), "{error}");
    }
}
