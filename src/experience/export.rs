//! One record as a line of JSON that holds everything needed to rebuild it, byte for byte.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::append::NewInstruction;
use super::body;
use super::envelope::{Envelope, EnvelopeItem, parse_report};
use super::error::StoreError;
use super::records::{Record, RecordRow};
use crate::domain::{
    FrozenRelease, NewExchange, RecordId, RequestType, Route, ScenarioName, Tags, Timings, TokenCapture, Turn,
};
use crate::sys::{json, terminal};

/// The format of a line; another one is another format.
pub(super) const FORMAT: &str = "reef-record/1";

/// A body in the first form that keeps its bytes: JSON as it is, if every reader takes it, text, base64.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Body {
    Json(Box<RawValue>),
    Text(String),
    Base64(String),
}

impl Body {
    fn of(bytes: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Self::Base64(BASE64.encode(bytes));
        };
        // A line must stay a line, a terminal writes what acts on it as an escape, and a raw value drops the white space
        // around it.
        if !text.chars().any(terminal::acts)
            && json::is_plain(text)
            && let Ok(raw) = serde_json::from_str::<Box<RawValue>>(text)
            && raw.get() == text
        {
            return Self::Json(raw);
        }
        Self::Text(text.to_owned())
    }

    fn bytes(self) -> Result<Bytes, StoreError> {
        Ok(match self {
            Self::Json(raw) => Bytes::from(String::from(Box::<str>::from(raw))),
            Self::Text(text) => Bytes::from(text),
            Self::Base64(text) => Bytes::from(BASE64.decode(text).map_err(StoreError::invalid)?),
        })
    }
}

/// Token captures as JSON where JSON can hold them; a value that is not finite needs the exact form.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Capture {
    Json(TokenCapture),
    Base64(String),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exchange {
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<Route>,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact_ref: Option<FrozenRelease>,
    status: u16,
    streamed: bool,
    #[serde(default, skip_serializing_if = "Tags::is_empty")]
    tags: Tags,
    timings: Timings,
    request: Body,
    response: Body,
    turn: Turn,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capture: Option<Capture>,
}

/// What remains of a record whose bodies were dropped.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Dropped {
    content_sha256: String,
    pruned_us: i64,
    body_bytes: u64,
    has_capture: bool,
    eligible: bool,
    references: Vec<RecordId>,
    route: Option<Route>,
    artifact_ref: Option<FrozenRelease>,
    status: Option<u16>,
    streamed: bool,
    tags: Tags,
    timings: Timings,
    model: Option<String>,
    stop_reason: Option<String>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    score: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    format: String,
    agent_record_id: RecordId,
    scenario: ScenarioName,
    request_type: RequestType,
    created_us: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exchange: Option<Box<Exchange>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dropped: Option<Box<Dropped>>,
}

impl Record {
    /// The record as one line, without the line end. [`Envelope::from_export`] reads it back.
    pub fn to_export(&self) -> Result<String, StoreError> {
        let row = &self.row;
        let mut line = Line {
            format: FORMAT.to_owned(),
            agent_record_id: row.id.clone(),
            scenario: row.scenario.clone(),
            request_type: row.kind,
            created_us: row.created_us,
            exchange: None,
            payload: None,
            dropped: None,
        };
        match (&self.bodies, row.kind) {
            (None, _) => line.dropped = Some(Box::new(dropped(row))),
            (Some(bodies), RequestType::Inference) => {
                line.exchange = Some(Box::new(Exchange {
                    route: row.route,
                    artifact_ref: row.release.clone(),
                    status: row.status.unwrap_or(200),
                    streamed: row.streamed,
                    tags: row.tags.clone(),
                    timings: row.timings,
                    request: Body::of(&bodies.request),
                    response: Body::of(bodies.response.as_deref().unwrap_or_default()),
                    turn: bodies.turn.clone().unwrap_or_default(),
                    capture: bodies.capture.as_ref().map(capture),
                }));
            }
            (Some(bodies), RequestType::Report | RequestType::Train) => {
                let payload = json::read_object(&bodies.request)
                    .ok_or_else(|| StoreError::damaged("a report or an instruction is no JSON object"))?;
                line.payload = Some(serde_json::value::to_raw_value(&payload).map_err(StoreError::damaged)?);
            }
        }
        serde_json::to_string(&line).map_err(StoreError::damaged)
    }
}

fn capture(capture: &TokenCapture) -> Capture {
    let top_k = capture.top_k.iter().flatten().flatten().map(|token| token.logprob);
    let mut values = capture
        .logprobs
        .iter()
        .copied()
        .chain([capture.temperature])
        .chain(top_k);
    if values.all(f32::is_finite) {
        Capture::Json(capture.clone())
    } else {
        Capture::Base64(BASE64.encode(body::write_capture(capture)))
    }
}

fn dropped(row: &RecordRow) -> Dropped {
    Dropped {
        content_sha256: hex::encode(row.content_sha256),
        pruned_us: row.pruned_us.unwrap_or(0),
        body_bytes: row.body_bytes,
        has_capture: row.has_capture,
        eligible: row.eligible,
        references: row.references.clone(),
        route: row.route,
        artifact_ref: row.release.clone(),
        status: row.status,
        streamed: row.streamed,
        tags: row.tags.clone(),
        timings: row.timings,
        model: row.model.clone(),
        stop_reason: row.stop_reason.clone(),
        input_tokens: row.input_tokens,
        output_tokens: row.output_tokens,
        score: row.score,
    }
}

impl Envelope {
    /// Reads a line that [`Record::to_export`] wrote. `scenario` overrides the one in the line.
    pub fn from_export(line: &str, scenario: Option<&ScenarioName>) -> Result<Self, StoreError> {
        let line: Line = serde_json::from_str(line).map_err(StoreError::invalid)?;
        if line.format != FORMAT {
            return Err(StoreError::invalid(format_args!(
                "format \"{}\" is not {FORMAT}; use the reef that wrote the export",
                line.format.escape_default()
            )));
        }
        let id = line.agent_record_id;
        let scenario = scenario.cloned().unwrap_or(line.scenario);
        let item = match (line.exchange, line.payload, line.dropped, line.request_type) {
            (Some(exchange), None, None, RequestType::Inference) => {
                EnvelopeItem::Exchange(Box::new(exchange.restore(id, scenario, line.created_us)?))
            }
            (None, Some(payload), None, kind @ (RequestType::Report | RequestType::Train)) => {
                let payload = json::read_object(payload.get().as_bytes())
                    .ok_or_else(|| StoreError::invalid("payload must be a JSON object"))?;
                if kind == RequestType::Report {
                    EnvelopeItem::Report(parse_report(id, scenario, payload)?)
                } else {
                    EnvelopeItem::Instruction(NewInstruction { id, scenario, payload })
                }
            }
            (None, None, Some(dropped), kind) => {
                EnvelopeItem::WithoutBodies(Box::new(dropped.restore(id, scenario, kind, line.created_us)?))
            }
            _ => {
                return Err(StoreError::invalid(
                    "a line holds `exchange` for an inference, `payload` for a report or instruction, or `dropped`",
                ));
            }
        };
        Ok(Self {
            item,
            created_us: Some(line.created_us),
        })
    }
}

impl Exchange {
    fn restore(self, id: RecordId, scenario: ScenarioName, created_us: i64) -> Result<NewExchange, StoreError> {
        Ok(NewExchange {
            id,
            scenario,
            route: self.route,
            release: self.artifact_ref,
            request: self.request.bytes()?,
            response: self.response.bytes()?,
            streamed: self.streamed,
            status: self.status,
            turn: self.turn,
            tags: self.tags,
            timings: Timings {
                started_us: created_us,
                ..self.timings
            },
            capture: self
                .capture
                .map(|capture| match capture {
                    Capture::Json(capture) => Ok(capture),
                    Capture::Base64(text) => body::read_capture(&BASE64.decode(text).map_err(StoreError::invalid)?),
                })
                .transpose()?,
        })
    }
}

impl Dropped {
    fn restore(
        self,
        id: RecordId,
        scenario: ScenarioName,
        kind: RequestType,
        created_us: i64,
    ) -> Result<RecordRow, StoreError> {
        let mut content_sha256 = [0; 32];
        hex::decode_to_slice(&self.content_sha256, &mut content_sha256).map_err(StoreError::invalid)?;
        Ok(RecordRow {
            sequence: 0,
            id,
            scenario,
            kind,
            created_us,
            stored_us: 0,
            references: self.references,
            release: self.artifact_ref,
            route: self.route,
            status: self.status,
            streamed: self.streamed,
            tags: self.tags,
            timings: self.timings,
            model: self.model,
            stop_reason: self.stop_reason,
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            has_capture: self.has_capture,
            score: self.score,
            eligible: self.eligible,
            body_bytes: self.body_bytes,
            pruned_us: Some(self.pruned_us),
            content_sha256,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_body_comes_back_and_stays_on_its_line(bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            ".*".prop_map(String::into_bytes),
            r#" ?\{ ?"a" ?: ?[1-9]{1,3}(\.0)? ?[,}\n] ?"#.prop_map(String::into_bytes),
        ]) {
            let line = serde_json::to_string(&Body::of(&bytes)).unwrap();
            prop_assert!(!line.contains('\n'));
            let back: Body = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(back.bytes().unwrap(), bytes);
        }

        #[test]
        fn finite_log_probabilities_survive_json(bits in prop::collection::vec(any::<u32>(), 1..50)) {
            let given = TokenCapture { logprobs: bits.iter().map(|b| f32::from_bits(*b)).collect(), ..TokenCapture::default() };
            let line = serde_json::to_string(&capture(&given)).unwrap();
            let back = match serde_json::from_str(&line).unwrap() {
                Capture::Json(capture) => capture,
                Capture::Base64(text) => body::read_capture(&BASE64.decode(text).unwrap()).unwrap(),
            };
            let back: Vec<u32> = back.logprobs.iter().map(|v| v.to_bits()).collect();
            prop_assert_eq!(back, bits);
        }
    }

    #[test]
    fn json_stays_json_and_readable() {
        let line = serde_json::to_string(&Body::of(br#"{"b": 1.0, "a": [ ]}"#)).unwrap();
        assert_eq!(line, r#"{"json":{"b": 1.0, "a": [ ]}}"#);
    }
}
