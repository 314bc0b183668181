//! The catalog of a scenario's steps as scripts and clients read it: one shape for `reef release list --json` and for
//! `GET /reef/scenarios/{scenario}/releases`.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::domain::{BatchId, ContentId, Operation, ReleaseId};
use crate::experience::{ReleaseState, StepRow};
use crate::sys::clock;

/// One row. It borrows, so that a chain of ten thousand releases is listed without building ten thousand trees.
#[derive(Debug, Serialize)]
pub struct CatalogRow<'a> {
    step: u64,
    release_id: &'a ReleaseId,
    parent_release_id: Option<&'a ReleaseId>,
    content_id: &'a ContentId,
    content_kind: &'static str,
    checkpoint: bool,
    restorable: bool,
    /// None for the creation, as clients of the first Reef expect it; `at` has the moment of every step.
    recorded_at: Option<f64>,
    at: f64,
    operation: Operation,
    outcome: &'a str,
    state: &'a str,
    current: bool,
    kind: &'a str,
    bytes: u64,
    sequence: u64,
    record_progress: Progress,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollback_target_release_id: Option<&'a ReleaseId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    promoted_release_id: Option<&'a ReleaseId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<&'a Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_id: Option<&'a BatchId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_release_id: Option<&'a ReleaseId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Progress {
    high_water_sequence: i64,
    high_water_offset: u32,
}

impl CatalogRow<'_> {
    /// Whether this row's release is the one in service.
    pub fn is_current(&self) -> bool {
        self.current
    }
}

/// The row of a step. `head` is what the scenario serves.
pub fn catalog_row<'a>(step: &'a StepRow, head: Option<&ReleaseId>) -> CatalogRow<'a> {
    let release = &step.release;
    let made = matches!(step.outcome.as_str(), "released" | "held");
    let target = |operation| release.target.as_ref().filter(|_| made && step.operation == operation);
    CatalogRow {
        step: step.step,
        release_id: &release.release_id,
        parent_release_id: release.parent.as_ref(),
        content_id: &release.content_id,
        content_kind: "saved_artifact",
        checkpoint: true,
        restorable: release.restorable,
        recorded_at: (step.operation != Operation::Creation).then(|| clock::seconds(step.at_us)),
        at: clock::seconds(step.at_us),
        operation: step.operation,
        outcome: &step.outcome,
        state: if made { release.state.as_str() } else { &step.outcome },
        current: made && head == Some(&release.release_id),
        kind: &release.kind,
        bytes: release.bytes,
        sequence: release.sequence,
        record_progress: Progress {
            high_water_sequence: step.high_water,
            high_water_offset: 0,
        },
        rollback_target_release_id: target(Operation::Rollback),
        promoted_release_id: target(Operation::Promote),
        pending: (made && release.state == ReleaseState::Held).then_some(true),
        metrics: Some(&step.metrics).filter(|metrics| !metrics.is_empty()),
        reason: step.reason.as_deref(),
        batch_id: step.batch_id.as_ref(),
        base_release_id: step.base_release_id.as_ref(),
        note: release.note.as_deref().filter(|_| made),
    }
}

/// One row of the commit history (`GET /reef/scenarios/{scenario}/commits`).
pub fn commit_row(step: &StepRow, consumed_ids: &[crate::domain::RecordId]) -> Value {
    let release = &step.release;
    let mut row = Map::new();
    row.insert("step".to_owned(), json!(step.step));
    row.insert("operation".to_owned(), json!(step.operation));
    row.insert("operation_verified".to_owned(), json!(true));
    row.insert("recorded_at".to_owned(), json!(clock::seconds(step.at_us)));
    row.insert(
        "artifact_ref".to_owned(),
        json!({
            "kind": "artifact",
            "release_id": release.release_id,
            "content_id": release.content_id,
            "parent_release_id": release.parent,
        }),
    );
    row.insert(
        "pending".to_owned(),
        json!(step.outcome == "held" && release.state == ReleaseState::Held),
    );
    row.insert("outcome".to_owned(), json!(step.outcome));
    row.insert("batch_id".to_owned(), json!(step.batch_id));
    row.insert("consumed_ids".to_owned(), json!(consumed_ids));
    row.insert("metrics".to_owned(), Value::Object(step.metrics.clone()));
    Value::Object(row)
}
