//! A panic is a fault that somebody sees: told, counted, given to whoever waits, and what has to go on goes on.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::access::{DEPLOYMENT, QUESTION};
use crate::common::reef::Reef;
use crate::common::upstream::{Upstream, answer};
use crate::common::wait_for;

const ANSWER: &str = r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#;

/// A learning service with fail points.
fn learning(dir: &Path, upstream: &Upstream, failpoints: &str) -> Reef {
    for (name, text) in DEPLOYMENT {
        fs::write(dir.join(name), text).unwrap();
    }
    let args = ["-c", "serve.toml", "--upstream-url", &upstream.url()];
    Reef::start_with(dir, &args, |command| {
        command.env("FAILPOINTS", failpoints);
    })
}

fn panics(reef: &Reef) -> (u64, Value) {
    let panics = reef.status()["service"]["panics"].clone();
    (panics["count"].as_u64().unwrap(), panics["last"].clone())
}

/// What is there after so many panics: all the ways to learn of them agree.
fn told(reef: &Reef, count: u64, work: &str) {
    let (seen, last) = panics(reef);
    assert_eq!((seen, &last["work"]), (count, &Value::from(work)));
    assert!(last["place"].as_str().unwrap().contains(".rs:"), "{last}");
    assert_eq!(reef.metric("reef_panics_total"), count as f64);
    let log = reef.log();
    assert!(log.contains("a fault in Reef") && log.contains(work), "{log}");
}

#[test]
fn a_turn_of_the_loop_that_panics_is_tried_again_and_its_scenario_learns() {
    // One fault inside a step, which counts as a failed attempt, and one outside of any.
    for (point, work) in [
        ("loop::before_step", "a step of the loop"),
        ("loop::before_seal", "a turn of the loop"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let upstream = Upstream::always(answer(200, "application/json", ANSWER));
        let reef = learning(dir.path(), &upstream, &format!("{point}=2*panic(on purpose)->off"));
        let receipt = reef.post("/v1/chat/completions", QUESTION).receipt().unwrap();
        reef.post("/reef/report", format!(r#"{{"references":["{receipt}"],"score":1.0}}"#));
        let training = || reef.status()["scenarios"]["s"]["training"].clone();
        wait_for("the fault in the status", || {
            let training = training();
            let error = training["error"].as_str().unwrap_or_default().to_owned();
            (error.contains("on purpose") && training["retry_at"].is_number()).then_some(())
        });
        wait_for("a release all the same", || {
            (training()["last"]["outcome"] == "released").then_some(())
        });
        told(&reef, 2, work);
        assert_eq!(reef.metric("reef_training_failures_total"), 2.0);
        assert_eq!(reef.metric("reef_training_running"), 0.0);
    }
}

#[test]
fn a_record_that_panics_is_an_answer_without_a_receipt_and_the_next_has_one() {
    let upstream = Upstream::always(answer(200, "application/json", ANSWER));
    let own = tempfile::tempdir().unwrap();
    let args = ["--upstream-url", &upstream.url()];
    let reef = Reef::start_with(own.path(), &args, |command| {
        command.env("FAILPOINTS", "serve::before_append=1*panic(on purpose)->off");
    });
    let mut answered = reef.post("/v1/chat/completions", QUESTION);
    assert_eq!((answered.status, answered.text().as_str()), (200, ANSWER));
    assert_eq!(answered.header("x-reef-recorded"), Some("false"));
    told(&reef, 1, "storing a record");
    assert!(reef.post("/v1/chat/completions", QUESTION).receipt().is_some());
    assert_eq!(reef.rows().len(), 1);
}

#[test]
fn a_request_over_which_reef_panics_gets_an_answer_in_its_dialect() {
    let upstream = Upstream::always(answer(200, "application/json", ANSWER));
    let own = tempfile::tempdir().unwrap();
    let args = ["--upstream-url", &upstream.url()];
    let reef = Reef::start_with(own.path(), &args, |command| {
        command.env("FAILPOINTS", "serve::before_engine=2*panic(secret words)->off");
    });
    for (route, kind) in [("/v1/chat/completions", "server_error"), ("/v1/messages", "api_error")] {
        let mut answered = reef.post(route, QUESTION);
        let body = answered.json();
        assert_eq!(
            (answered.status, &body["error"]["type"]),
            (500, &Value::from(kind)),
            "{body}"
        );
        assert!(!body.to_string().contains("secret words"), "{body}");
    }
    told(&reef, 2, "answering a request");
    assert_eq!(reef.post("/v1/chat/completions", QUESTION).status, 200);
    reef.wait_until_idle();
}

#[test]
fn what_goes_on_beside_the_requests_begins_again() {
    let dir = tempfile::tempdir().unwrap();
    let upstream = Upstream::always(answer(200, "application/json", ANSWER));
    // The second breaks the watching itself, not only one look of it.
    let points = "scenario::watch_look=2*panic(on purpose)->off;loop::round=1*panic(on purpose)->off";
    let reef = learning(dir.path(), &upstream, points);
    wait_for("three faults", || (panics(&reef).0 == 3).then_some(()));
    let receipt = reef.post("/v1/chat/completions", QUESTION).receipt().unwrap();
    reef.post("/reef/report", format!(r#"{{"references":["{receipt}"],"score":1.0}}"#));
    wait_for("a release that is served", || {
        let status = reef.status();
        (status["scenarios"]["s"]["artifact_head_sync"]["state"] == "synchronized"
            && status["scenarios"]["s"]["training"]["last"]["outcome"] == "released")
            .then_some(())
    });
}
