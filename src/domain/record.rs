//! What is stored: exchanges, reports, instructions.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ContentId, ContentKind, RecordId, ReleaseId, Route, RuntimeLoadId, ScenarioName, TokenCapture, Turn};

/// Tags of a record (`x-reef-tag-<name>`), names lower-case.
pub type Tags = BTreeMap<String, String>;

/// The kind of a stored record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestType {
    /// One served (or imported) exchange.
    Inference,
    /// Feedback on exchanges.
    Report,
    /// An instruction to train.
    Train,
}

impl RequestType {
    /// The word stored and sent.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Report => "report",
            Self::Train => "train",
        }
    }
}

/// The release a request was admitted under; it stays with the record whatever is released later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenRelease {
    /// Saved artifact or live weights.
    pub kind: ContentKind,
    /// The decision.
    pub release_id: ReleaseId,
    /// The bytes.
    pub content_id: ContentId,
    /// The release before it.
    pub parent_release_id: Option<ReleaseId>,
    /// The load serving it at admission, for an engine that loads weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_load_id: Option<RuntimeLoadId>,
}

/// When things happened in one exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// Arrival, microseconds since the Unix epoch.
    pub started_us: i64,
    /// Arrival to first response byte, microseconds.
    pub first_byte_us: u64,
    /// Arrival to last response byte, microseconds.
    pub total_us: u64,
}

/// A finished exchange on its way into the store.
#[derive(Debug, Clone)]
pub struct NewExchange {
    /// The receipt.
    pub id: RecordId,
    /// The scenario it belongs to.
    pub scenario: ScenarioName,
    /// The route it used; `None` for imported experience of no known dialect.
    pub route: Option<Route>,
    /// The release frozen at admission; `None` for imported experience.
    pub release: Option<FrozenRelease>,
    /// The request body as the engine received it.
    pub request: Bytes,
    /// The response body as the client received it, decoded from its content encoding, without the receipt.
    pub response: Bytes,
    /// Whether the response was an event stream.
    pub streamed: bool,
    /// HTTP status of the response.
    pub status: u16,
    /// The turn assembled from the response.
    pub turn: Turn,
    /// Request tags.
    pub tags: Tags,
    /// Timings.
    pub timings: Timings,
    /// Token-level capture, from an engine that can give it.
    pub capture: Option<TokenCapture>,
}

/// A validated report on its way into the store.
#[derive(Debug, Clone, PartialEq)]
pub struct NewReport {
    /// Its own id, the key of a retry.
    pub id: RecordId,
    /// The scenario.
    pub scenario: ScenarioName,
    /// A finite grade, if one was given. Absent is not zero.
    pub score: Option<f64>,
    /// Free text or an object.
    pub feedback: Option<Value>,
    /// The receipts it grades, in order, without repeats.
    pub references: Vec<RecordId>,
    /// Whatever else the reporter says.
    pub metadata: serde_json::Map<String, Value>,
}
