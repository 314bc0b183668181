//! The catalog of a scenario's steps as scripts and clients read it: one shape for `reef release list --json` and for
//! `GET /reef/scenarios/{scenario}/releases`.

use serde_json::{Map, Value, json};

use crate::domain::{Operation, ReleaseId};
use crate::experience::{ReleaseState, StepRow};
use crate::sys::clock;

/// One row. `head` is what the scenario serves.
pub fn catalog_row(step: &StepRow, head: Option<&ReleaseId>) -> Value {
    let release = &step.release;
    let made = matches!(step.outcome.as_str(), "released" | "held");
    let current = made && head == Some(&release.release_id);
    let mut row = json!({
        "step": step.step,
        "release_id": release.release_id,
        "parent_release_id": release.parent,
        "content_id": release.content_id,
        "content_kind": "saved_artifact",
        "checkpoint": true,
        "restorable": release.restorable,
        "recorded_at": (step.operation != Operation::Creation).then(|| clock::seconds(step.at_us)),
        "operation": step.operation,
        "outcome": step.outcome,
        "state": if made { release.state.as_str() } else { step.outcome.as_str() },
        "current": current,
        "kind": release.kind,
        "bytes": release.bytes,
        "sequence": release.sequence,
        "record_progress": {"high_water_sequence": step.high_water, "high_water_offset": 0},
    });
    if let Value::Object(row) = &mut row {
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                row.insert(name.to_owned(), value);
            }
        };
        let target = |operation| {
            (made && step.operation == operation)
                .then(|| release.target.as_ref().map(|t| json!(t)))
                .flatten()
        };
        put("rollback_target_release_id", target(Operation::Rollback));
        put("promoted_release_id", target(Operation::Promote));
        put(
            "pending",
            (made && release.state == ReleaseState::Held).then(|| json!(true)),
        );
        put(
            "metrics",
            (!step.metrics.is_empty()).then(|| Value::Object(step.metrics.clone())),
        );
        put("reason", step.reason.as_ref().map(|r| json!(r)));
        put("batch_id", step.batch_id.as_ref().map(|b| json!(b)));
        put("base_release_id", step.base_release_id.as_ref().map(|b| json!(b)));
        put("note", release.note.as_ref().filter(|_| made).map(|n| json!(n)));
    }
    row
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
