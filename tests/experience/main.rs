//! The experience store through its door.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed test may panic; a test that cannot run here says so"
)]

mod cli;
mod disk;
mod durability;
mod identity;
mod model;
mod moves;
mod retention;
mod transfer;

use std::path::Path;

use bytes::Bytes;
use reef::domain::{NewExchange, NewReport, RecordId, Route, ScenarioName, Tags, Timings, TrainingMode, Turn};
use reef::experience::{Experience, RecordQuery, RecordRow, ReferenceFault, StoreError, StoreOptions};
use serde_json::Map;

fn scenario(name: &str) -> ScenarioName {
    ScenarioName::new(name).unwrap()
}

fn id(text: &str) -> RecordId {
    RecordId::new(text).unwrap()
}

fn exchange(name: &str, receipt: &str, text: &str) -> NewExchange {
    NewExchange {
        id: id(receipt),
        scenario: scenario(name),
        route: Some(Route::ChatCompletions),
        release: None,
        request: Bytes::from(format!(
            "{{\"messages\": [{{\"role\":\"user\",\"content\":\"{text}\"}}]}}"
        )),
        response: Bytes::from(format!("{{\"choices\":[{{\"message\":{{\"content\":\"{text}!\"}}}}]}}")),
        streamed: false,
        status: 200,
        turn: Turn {
            text: format!("{text}!"),
            ..Turn::default()
        },
        tags: Tags::from([("session".to_owned(), "s1".to_owned())]),
        timings: Timings {
            started_us: 1_700_000_000_000_000,
            first_byte_us: 10,
            total_us: 20,
        },
        capture: None,
    }
}

fn report(name: &str, report_id: &str, score: f64, references: &[&str]) -> NewReport {
    NewReport {
        id: id(report_id),
        scenario: scenario(name),
        score: Some(score),
        feedback: None,
        references: references.iter().map(|r| id(r)).collect(),
        metadata: Map::new(),
    }
}

fn open(dir: &Path) -> Experience {
    Experience::open(&dir.join("experience.db"), StoreOptions::default()).unwrap()
}

async fn store_with(dir: &Path, names: &[&str]) -> Experience {
    let store = open(dir);
    for name in names {
        store
            .scenario_create(scenario(name), TrainingMode::Auto, Map::new())
            .await
            .unwrap();
    }
    store
}

/// Every record, oldest first.
fn all(store: &Experience) -> Vec<RecordRow> {
    store
        .records(&RecordQuery {
            limit: usize::MAX,
            ..RecordQuery::default()
        })
        .unwrap()
}

fn fault(error: StoreError) -> (usize, ReferenceFault) {
    match error {
        StoreError::Reference { position, fault, .. } => (position, fault),
        other => panic!("not a reference error: {other}"),
    }
}
