//! Traces: one tree of spans for an exchange, sent to a collector, and no harm when the collector is away.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed test may panic, and then shows the service's log"
)]

mod common;

use common::reef::{self, Reef};
use common::upstream::{Do, Upstream, answer, stream_head};
use common::wait_for;
use rustix::process::Signal;
use serde_json::Value;

const CHAT: &str = include_str!("../src/engine/sse/fixtures/chat.json");

fn spans(collector: &Upstream) -> Vec<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    collector
        .seen()
        .iter()
        .inspect(|request| assert_eq!(request.target, "/v1/traces"))
        .flat_map(|request| list(&request.json()["resourceSpans"]))
        .flat_map(|resource| list(&resource["scopeSpans"]))
        .flat_map(|scope| list(&scope["spans"]))
        .collect()
}

fn attribute(span: &Value, key: &str) -> Option<Value> {
    let attributes = span["attributes"].as_array()?;
    let found = attributes.iter().find(|attribute| attribute["key"] == key)?;
    found["value"].as_object()?.values().next().cloned()
}

#[test]
fn an_exchange_is_one_trace_with_its_receipt() {
    let upstream = Upstream::always(answer(200, "application/json", CHAT));
    let collector = Upstream::always(answer(200, "application/json", "{}"));
    let mut reef = Reef::start(&upstream.url(), &["--observability.otlp-endpoint", &collector.url()]);
    let mut response = reef.post_with(
        "/v1/chat/completions",
        &[("authorization", "Bearer the-clients-own-secret")],
        r#"{"model":"m","messages":[{"role":"user","content":"words of the client"}]}"#,
    );
    let receipt = response.receipt().unwrap();
    response.bytes();
    // What is left is sent when the service stops.
    reef.signal(Signal::TERM);
    assert!(reef.wait().success());
    let spans = spans(&collector);
    let named = |name: &str| {
        spans
            .iter()
            .find(|span| span["name"] == name)
            .unwrap_or_else(|| panic!("no {name} in {spans:?}"))
    };
    let exchange = named("exchange");
    assert_eq!(attribute(exchange, "reef.receipt").unwrap(), receipt.as_str());
    assert_eq!(attribute(exchange, "reef.scenario").unwrap(), "s");
    assert_eq!(attribute(exchange, "http.route").unwrap(), "/v1/chat/completions");
    assert_eq!(
        attribute(exchange, "http.response.status_code")
            .unwrap()
            .to_string()
            .trim_matches('"'),
        "200"
    );
    for part in ["engine", "record"] {
        assert_eq!(named(part)["traceId"], exchange["traceId"]);
        assert_eq!(named(part)["parentSpanId"], exchange["spanId"], "{part}");
    }
    // Nothing of what was said, and no credential, leaves with a trace.
    let sent: String = collector
        .seen()
        .iter()
        .map(|request| String::from_utf8_lossy(&request.body).into_owned())
        .collect();
    assert!(
        !sent.contains("words of the client") && !sent.contains("secret"),
        "{sent}"
    );
}

/// How an exchange ends without a record: what the upstream does, the status of the client, the reason, and whether it
/// is a failure.
#[test]
fn the_log_the_trace_and_the_record_of_a_failed_exchange_agree() {
    let silent = || vec![Do::WaitForClose];
    let half = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{".to_vec();
    let cases = [
        (answer(500, "text/plain", "secret words"), 502, "upstream_failed", true),
        (answer(301, "text/plain", ""), 502, "upstream_failed", true),
        (answer(401, "text/plain", "secret words"), 401, "upstream_denied", true),
        (answer(429, "text/plain", "secret words"), 429, "upstream_limited", true),
        (
            answer(418, "text/plain", "secret words"),
            400,
            "upstream_refused",
            false,
        ),
        (silent(), 502, "upstream_unavailable", true),
        (vec![Do::Close], 502, "upstream_unavailable", true),
        (vec![Do::Send(half), Do::Close], 502, "upstream_closed", true),
        (vec![stream_head(), Do::Close], 200, "upstream_closed", true),
    ];
    for (what, status, reason, failure) in cases {
        let upstream = Upstream::always(what.clone());
        let collector = Upstream::always(answer(200, "application/json", "{}"));
        let endpoint = collector.url();
        let flags = [
            "--inference.timeout-s",
            "2",
            "--inference.retry-attempts",
            "1",
            "--observability.otlp-endpoint",
            &endpoint,
        ];
        let mut reef = Reef::start(&upstream.url(), &flags);
        let mut response = reef.post("/v1/chat/completions", r#"{"model":"m","messages":[]}"#);
        assert_eq!((response.status, response.receipt()), (status, None), "{reason}");
        response.bytes();
        reef.wait_for_interruptions(reason, 1);
        assert!(reef.rows().is_empty());
        reef.signal(Signal::TERM);
        assert!(reef.wait().success());
        let spans = spans(&collector);
        let exchange = spans.iter().find(|span| span["name"] == "exchange").unwrap();
        let text = |key: &str| {
            attribute(exchange, key)
                .unwrap()
                .to_string()
                .trim_matches('"')
                .to_owned()
        };
        assert_eq!(text("reef.outcome"), reason);
        assert_eq!(text("http.response.status_code"), status.to_string());
        assert_eq!(attribute(exchange, "reef.receipt"), None);
        let code = exchange["status"]["code"].to_string();
        assert_eq!(
            matches!(code.as_str(), "2" | "\"STATUS_CODE_ERROR\""),
            failure,
            "{reason}: {exchange}"
        );
        // One line, with the id that the trace has.
        let log = reef.log();
        let lines: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("exchange interrupted"))
            .collect();
        assert_eq!(lines.len(), 1, "{log}");
        let line: Value = serde_json::from_str(lines[0]).unwrap();
        assert_eq!(
            (line["reason"].as_str(), line["level"].as_str()),
            (Some(reason), Some(if failure { "WARN" } else { "INFO" }))
        );
        assert_eq!(line["id"], text("reef.exchange"));
        // A provider's words may hold a credential: the client gets them, nobody else.
        assert!(!log.contains("secret words"), "{log}");
    }
}

#[test]
fn a_refused_connection_is_logged_and_traced_too() {
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let collector = Upstream::always(answer(200, "application/json", "{}"));
    let endpoint = collector.url();
    let flags = [
        "--observability.otlp-endpoint",
        &endpoint,
        "--inference.retry-attempts",
        "1",
    ];
    let mut reef = Reef::start(&format!("http://{nowhere}"), &flags);
    assert_eq!(reef.post("/v1/messages", "{}").status, 502);
    reef.wait_for_interruptions("upstream_unavailable", 1);
    reef.signal(Signal::TERM);
    assert!(reef.wait().success());
    let spans = spans(&collector);
    let exchange = spans.iter().find(|span| span["name"] == "exchange").unwrap();
    assert_eq!(attribute(exchange, "reef.outcome").unwrap(), "upstream_unavailable");
    assert_eq!(attribute(exchange, "reef.receipt"), None);
    assert!(reef.log().contains("exchange interrupted"), "{}", reef.log());
}

#[test]
fn a_collector_that_is_away_costs_nothing_but_its_traces() {
    let upstream = Upstream::always(answer(200, "application/json", CHAT));
    let mut reef = Reef::start(
        &upstream.url(),
        &["--observability.otlp-endpoint", "http://127.0.0.1:1"],
    );
    for _ in 0..20 {
        let mut response = reef.post("/v1/chat/completions", r#"{"model":"m","messages":[]}"#);
        assert_eq!(response.status, 200);
        response.bytes();
    }
    reef.signal(Signal::TERM);
    assert!(reef.wait().success());
}

#[test]
fn the_log_is_kept_filtered_and_followed() {
    let upstream = Upstream::always(answer(200, "application/json", CHAT));
    let reef = Reef::start(&upstream.url(), &["--observability.log", "info,reef=debug"]);
    let mut response = reef.post("/v1/chat/completions", "not json");
    assert_eq!(response.status, 400);
    response.bytes();
    let logs = |args: &[&str]| {
        let output = reef::run(&reef.dir, &[&["logs"], args].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let refused = wait_for("the refusal in the log", || {
        let shown = logs(&["--grep", "invalid_json", "--json"]);
        shown
            .lines()
            .next()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
    });
    assert_eq!(
        (&refused["event"], &refused["level"]),
        (&Value::from("log"), &Value::from("debug"))
    );
    assert_eq!(refused["fields"]["code"], "invalid_json");
    assert_eq!(logs(&["--level", "error"]), "");
    assert_eq!(logs(&["-n", "1"]).lines().count(), 1);
    let none = reef::run(&reef.dir, &["logs", "-n", "0"]);
    assert_eq!(
        (none.status.code(), none.stdout.len(), none.stderr.len()),
        (Some(0), 0, 0)
    );
    // A follower sees what comes later.
    let out = reef.dir.join("followed");
    let mut follower = reef::command(&reef.dir)
        .args(["logs", "--follow", "-n", "0", "--grep", "invalid_json"])
        .stdout(std::fs::File::create(&out).unwrap())
        .spawn()
        .unwrap();
    wait_for("a followed line", || {
        let mut response = reef.post("/v1/chat/completions", "not json either");
        response.bytes();
        std::fs::read_to_string(&out)
            .unwrap()
            .contains("invalid_json")
            .then_some(())
    });
    follower.kill().unwrap();
    follower.wait().unwrap();
    // What was there before it began is not shown.
    let followed = std::fs::read_to_string(&out).unwrap();
    assert!(
        followed.lines().count() < logs(&["--grep", "invalid_json"]).lines().count(),
        "{followed}"
    );
    let empty = tempfile::tempdir().unwrap();
    let output = reef::run(empty.path(), &["logs"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8(output.stderr).unwrap().contains("there is no log in"));
    assert!(!empty.path().join(".reef").exists());
}
