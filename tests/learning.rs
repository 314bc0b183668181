//! The real program learns while it serves the embedded model: traffic and reports in, gated releases and hot updates
//! out, and no request fails meanwhile. What a synthetic model learns is no proof of anything; that is measured with the
//! real one by `scripts/experiments/quickstart.py`.
#![cfg(feature = "torch")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

mod common;

use std::time::{Duration, Instant};

use common::reef::Reef;
use reef::engine::models::{synthetic_config, write_synthetic};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The program on a synthetic model with a recipe of these settings.
fn serve(recipe: &str) -> (Reef, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    write_synthetic(&dir.path().join("tiny"), &synthetic_config(), 7).unwrap();
    std::fs::write(dir.path().join("recipe.toml"), recipe).unwrap();
    std::fs::create_dir_all(dir.path().join("tasks")).unwrap();
    let tasks: String = (0..6)
        .map(|n| {
            let task = json!({
                "id": format!("t{n}"), "prompt": format!("say {n}"),
                "checker": {"kind": "regex", "pattern": "[a-m]"},
            });
            format!("{task}\n")
        })
        .collect();
    std::fs::write(dir.path().join("tasks/tasks.jsonl"), tasks).unwrap();
    std::fs::write(
        dir.path().join("tasks/suite.toml"),
        "[request]\nmax_tokens = 4\ntemperature = 1.0\n",
    )
    .unwrap();
    let model = dir.path().join("tiny").to_str().unwrap().to_owned();
    let recipe = dir.path().join("recipe.toml").to_str().unwrap().to_owned();
    let args = [
        "--inference.model-path",
        &model,
        "--inference.context",
        "256",
        "--inference.max-batch",
        "4",
        "--inference.threads",
        "1",
        "--training.threads",
        "1",
        "--recipe.implementation",
        &recipe,
    ];
    let reef = Reef::start_with(dir.path(), &args, |_| {});
    (reef, dir)
}

const RECIPE: &str = r#"
format = 1
name = "tiny"
extends = "sao"
[batch]
size = 4
max-staleness = 8
[objective]
family = "reinforce"

[objective.settings.surrogate]
family = "dis"
low = 0.3
high = 5.0
[trainer.optimizer]
learning-rate = 0.01
[trainer.lora]
rank = 4
alpha = 8
"#;

/// One answered and graded question; the grade differs, so that there is something to learn.
fn graded(reef: &Reef, n: u64) {
    let body = json!({
        "messages": [{"role": "user", "content": format!("question {n}")}], "max_tokens": 6, "temperature": 1.0, "seed": n,
    });
    let mut answer = reef.post("/v1/chat/completions", body.to_string());
    let text = answer.text();
    assert_eq!(answer.status, 200, "{text}");
    let receipt = answer.receipt().unwrap();
    let report = json!({"score": (n % 4) as f64 / 3.0, "references": [receipt]});
    let mut reported = reef.post("/reef/report", report.to_string());
    let text = reported.text();
    assert_eq!(reported.status, 200, "{text}");
}

/// The state of the only scenario, once `enough` holds.
fn wait_for(reef: &Reef, what: &str, enough: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let status = reef.status();
        let scenario = status["scenarios"]
            .as_object()
            .unwrap()
            .values()
            .next()
            .cloned()
            .unwrap_or_default();
        if enough(&scenario) {
            return scenario;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(180),
            "waited for {what}: {scenario:#}\n{}",
            reef.log()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn reports_become_releases_that_serve_without_a_failed_request() {
    let (reef, _dir) = serve(RECIPE);
    for n in 0..4 {
        graded(&reef, n);
    }
    let live = |s: &Value, step: u64| {
        // A committed step is followed by the head watcher and then by the load: what serves is the last to change.
        let load = s["current_runtime_load_id"].as_str().unwrap_or_default();
        let synchronized =
            s["artifact_head_sync"]["state"] == "synchronized" && load.ends_with(&format!(":{}", step + 1));
        s["scenario_step"].as_u64() >= Some(step) && synchronized && s["training"]["phase"] == "idle"
    };
    let after = wait_for(&reef, "the first release", |s| live(s, 1));
    assert_eq!(after["last_committed_step"]["outcome"], "released", "{after:#}");
    let load = after["current_runtime_load_id"].as_str().unwrap().to_owned();
    assert!(
        load.ends_with(":2"),
        "the release is the scenario's second load: {load}"
    );
    // Samples of the new load train the next release.
    for n in 4..8 {
        graded(&reef, n);
    }
    let after = wait_for(&reef, "the second release", |s| live(s, 2));
    assert!(after["current_runtime_load_id"].as_str().unwrap().ends_with(":3"));
    let metrics = &after["last_committed_step"]["metrics"];
    assert_eq!(metrics["samples"], 4);
    assert!(
        metrics["loss"].is_number() || metrics["grad_norm"].is_number(),
        "{metrics:#}"
    );
    assert_eq!(metrics["staleness/lag_max"], 0);
}

#[test]
fn a_gate_that_answers_with_the_candidate_judges_every_step() {
    let gate = "[gate]\nselector = \"paired\"\nevaluator = \"suite\"\nsuite = \"tasks\"\nmaximum-pairs = 12\n";
    let (reef, _dir) = serve(&format!("{RECIPE}{gate}"));
    for n in 0..4 {
        graded(&reef, n);
    }
    let after = wait_for(&reef, "a verdict", |s| s["scenario_step"].as_u64() >= Some(1));
    let metrics = &after["last_committed_step"]["metrics"];
    assert!(
        ["selected", "rejected", "inconclusive"].contains(&metrics["gate_outcome"].as_str().unwrap()),
        "{after:#}"
    );
    // Traffic still works after the weights of both sides were loaded and let go.
    graded(&reef, 99);
}
