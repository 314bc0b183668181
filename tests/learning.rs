//! The real program learns while it serves the embedded model: traffic and reports in, gated releases and hot updates
//! out, and no request fails meanwhile. What a synthetic model learns is no proof of anything; that is measured with the
//! real one by `scripts/quickstart.py`.
#![cfg(feature = "torch")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

mod common;

use std::time::{Duration, Instant};

use common::http;
use common::reef::Reef;
use reef::engine::models::{synthetic_config, write_synthetic};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The program on a synthetic model with a recipe of these settings.
fn serve(recipe: &str) -> (Reef, TempDir) {
    let dir = folder(recipe);
    let args = arguments(&dir);
    let reef = Reef::start_with(dir.path(), &args.iter().map(String::as_str).collect::<Vec<_>>(), |_| {});
    (reef, dir)
}

/// A folder with a synthetic model, a recipe and a task suite.
fn folder(recipe: &str) -> TempDir {
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
    dir
}

/// The settings of a deployment on the synthetic model.
fn model_arguments(dir: &TempDir) -> Vec<String> {
    let model = dir.path().join("tiny").to_str().unwrap().to_owned();
    let pairs = [
        ("--inference.model-path", model.as_str()),
        ("--inference.context", "256"),
        ("--inference.max-batch", "4"),
        ("--inference.threads", "1"),
        ("--training.threads", "1"),
    ];
    pairs
        .iter()
        .flat_map(|(key, value)| [(*key).to_owned(), (*value).to_owned()])
        .collect()
}

fn arguments(dir: &TempDir) -> Vec<String> {
    let recipe = dir.path().join("recipe.toml").to_str().unwrap().to_owned();
    let mut arguments = model_arguments(dir);
    arguments.extend(["--recipe.implementation".to_owned(), recipe]);
    arguments
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
    graded_in(reef, "s", n);
}

fn graded_in(reef: &Reef, scenario: &str, n: u64) {
    let headers = [("x-reef-scenario", scenario), ("content-type", "application/json")];
    let post = |path: &str, body: &Value| http::send(reef.address, "POST", path, &headers, body.to_string().as_bytes());
    let body = json!({
        "messages": [{"role": "user", "content": format!("question {n}")}], "max_tokens": 6, "temperature": 1.0, "seed": n,
    });
    let mut answer = post("/v1/chat/completions", &body);
    let text = answer.text();
    assert_eq!(answer.status, 200, "{text}");
    let receipt = answer.receipt().unwrap();
    let report = json!({"score": (n % 4) as f64 / 3.0, "references": [receipt]});
    let mut reported = post("/reef/report", &report);
    let text = reported.text();
    assert_eq!(reported.status, 200, "{text}");
}

/// The state of scenario `s`, once `enough` holds.
fn wait_for(reef: &Reef, what: &str, enough: impl Fn(&Value) -> bool) -> Value {
    wait_for_in(reef, "s", what, enough)
}

fn wait_for_in(reef: &Reef, scenario: &str, what: &str, enough: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let scenario = reef.status()["scenarios"][scenario].clone();
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

/// Whether a step is committed and what it released is served.
fn live(scenario: &Value, step: u64) -> bool {
    scenario["scenario_step"].as_u64() >= Some(step) && scenario["artifact_head_sync"]["state"] == "synchronized"
}

/// One file of the release that a scenario serves.
fn released(reef: &Reef, scenario: &Value, path: &str) -> Value {
    let release = scenario["release_id"].as_str().unwrap();
    let mut file = reef.get(&format!("/reef/scenarios/s/releases/{release}/artifact?path={path}"));
    let text = file.text();
    assert_eq!(file.status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Runs a command on the files of the service.
fn cli(dir: &TempDir, args: &[&str]) -> std::process::Output {
    common::reef::run(dir.path(), args)
}

#[test]
fn reports_become_releases_that_serve_without_a_failed_request() {
    let (reef, _dir) = serve(RECIPE);
    for n in 0..4 {
        graded(&reef, n);
    }
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

#[test]
fn the_command_of_the_announcement_learns() {
    let dir = folder("");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/sao/examples/sao/serve.yaml");
    let mut args = vec!["-c".to_owned(), file.to_owned()];
    args.extend(model_arguments(&dir));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let reef = Reef::start_with(dir.path(), &args, |_| {});
    graded(&reef, 1);
    let after = wait_for(&reef, "a release from a single rollout", |s| live(s, 1));
    let step = &after["last_committed_step"];
    assert_eq!(
        (&step["outcome"], &step["metrics"]["samples"]),
        (&json!("released"), &json!(1)),
        "{after:#}"
    );
    assert!(
        step["metrics"]["value_loss"].is_number(),
        "the value baseline learns: {step:#}"
    );
}

#[test]
fn scenarios_learn_side_by_side_each_its_own_adapter() {
    let (reef, _dir) = serve(RECIPE);
    for n in 0..4 {
        for scenario in ["s", "other", "idle"] {
            if scenario != "idle" || n == 0 {
                graded_in(&reef, scenario, n);
            }
        }
    }
    let one = wait_for_in(&reef, "s", "a release", |s| live(s, 1));
    let other = wait_for_in(&reef, "other", "a release", |s| live(s, 1));
    assert_eq!(one["last_committed_step"]["outcome"], "released");
    assert_eq!(other["last_committed_step"]["outcome"], "released");
    assert_ne!(
        one["content_id"], other["content_id"],
        "each learnt from its own traffic"
    );
    let idle = reef.status()["scenarios"]["idle"].clone();
    assert_eq!(idle["scenario_step"], 0, "one sample is no batch: {idle:#}");
    for scenario in ["s", "other", "idle"] {
        graded_in(&reef, scenario, 9);
    }
}

#[test]
fn after_a_rollback_of_weights_the_optimizer_goes_on_from_that_time() {
    let (reef, dir) = serve(RECIPE);
    for step in 1..=2 {
        for n in 0..4 {
            graded(&reef, 4 * step + n);
        }
        let after = wait_for(&reef, "a release", |s| live(s, step));
        assert_eq!(released(&reef, &after, "training/step.json")["state"]["steps"], step);
    }
    let back = cli(&dir, &["release", "rollback", "head~1", "--scenario", "s"]);
    assert!(back.status.success(), "{}", String::from_utf8_lossy(&back.stderr));
    let after = wait_for(&reef, "the rollback", |s| live(s, 3));
    assert_eq!(released(&reef, &after, "training/step.json")["state"]["steps"], 1);
    for n in 20..24 {
        graded(&reef, n);
    }
    let after = wait_for(&reef, "a release after the rollback", |s| live(s, 4));
    let manifest = released(&reef, &after, "training/step.json");
    assert_eq!(
        manifest["state"]["steps"], 2,
        "nothing of the step that was rolled back: {manifest:#}"
    );
}

#[test]
fn an_instruction_trains_what_waits_and_eval_measures_the_result() {
    let (reef, dir) = serve(RECIPE);
    graded(&reef, 1);
    graded(&reef, 2);
    let set = cli(&dir, &["scenario", "set", "s", "--mode", "hybrid"]);
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    let asked = cli(&dir, &["instruct", "learn from what there is", "--scenario", "s"]);
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let after = wait_for(&reef, "the step that was asked for", |s| live(s, 1));
    let metrics = &after["last_committed_step"]["metrics"];
    assert_eq!(metrics["samples"], 2, "{after:#}");
    assert_eq!(metrics["training_request"]["text"], "learn from what there is");
    let measure = |more: &[&str]| {
        let mut args: Vec<String> = ["eval", "head", "--suite", "tasks", "--json"]
            .map(str::to_owned)
            .to_vec();
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        args.extend(arguments(&dir));
        let output = cli(&dir, &args.iter().map(String::as_str).collect::<Vec<_>>());
        let code = output.status.code().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let result: Value =
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
        (code, result)
    };
    let (code, alone) = measure(&["--floor", "0"]);
    assert_eq!(code, 0, "{alone:#}");
    assert_eq!(alone["verdict"]["pairs"].as_array().unwrap().len(), 6);
    let (code, same) = measure(&["--against", "head", "--trials", "4"]);
    assert!(
        [10, 11].contains(&code),
        "a release is no better than itself: {code} {same:#}"
    );
    assert_eq!(
        same["verdict"]["figures"]["wins"], same["verdict"]["figures"]["losses"],
        "{same:#}"
    );
    let (code, base) = measure(&["--against", "head~1", "--trials", "4"]);
    let outcome = base["verdict"]["outcome"].as_str().unwrap();
    assert_eq!(
        code,
        match outcome {
            "selected" => 0,
            "rejected" => 10,
            _ => 11,
        }
    );
}
