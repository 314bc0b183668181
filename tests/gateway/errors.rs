//! Failures of every kind: the right status, the route's own envelope, an honest type, and retries only where they are safe.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::http;
use crate::common::reef::Reef;
use crate::common::upstream::{Do, Upstream, answer, answer_with, stream};
use crate::turns;

const ROUTES: [&str; 5] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
];

/// Checks the envelope of the route and gives type and message.
fn envelope(path: &str, body: &Value) -> (String, String) {
    let error = &body["error"];
    if path.starts_with("/v1/messages") {
        assert_eq!(body["type"], "error", "{body}");
        assert!(error.get("code").is_none(), "{body}");
    } else {
        assert!(body.get("type").is_none(), "{body}");
        assert!(error["code"].is_string() && error.get("param").is_some(), "{body}");
    }
    let text = |key: &str| error[key].as_str().unwrap_or_else(|| panic!("{body}")).to_owned();
    (text("type"), text("message"))
}

/// Headers, body, and the status, type and part of the message expected.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [u8], u16, &'a str, &'a str);

/// A port where nothing listens.
fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn own_errors_come_in_the_envelope_of_the_route() {
    let upstream = nowhere();
    let reef = Reef::start(
        &upstream,
        &[
            "--reef.token",
            "tok",
            "--reef.allow-implicit-scenario-creation",
            "false",
            "--inference.retry-attempts",
            "1",
        ],
    );
    let token = ("authorization", "Bearer tok");
    http::send(
        reef.address,
        "POST",
        "/reef/scenarios",
        &[token],
        br#"{"scenario":"s"}"#,
    );
    for path in ROUTES {
        let scenario = ("x-reef-scenario", "s");
        let cases: [Case<'_>; 9] = [
            (&[scenario], b"{}", 401, "authentication_error", "no service token"),
            (
                &[("x-api-key", "no"), scenario],
                b"{}",
                401,
                "authentication_error",
                "invalid service token",
            ),
            (&[token], b"{}", 400, "invalid_request_error", "x-reef-scenario"),
            (
                &[token, ("x-reef-scenario", " ")],
                b"{}",
                400,
                "invalid_request_error",
                "x-reef-scenario",
            ),
            (
                &[token, ("x-reef-scenario", "../etc")],
                b"{}",
                400,
                "invalid_request_error",
                "scenario name",
            ),
            (
                &[token, ("x-reef-scenario", "other")],
                b"{}",
                404,
                "not_found_error",
                "reef scenario create other",
            ),
            (
                &[token, scenario],
                b"{\"a\":",
                400,
                "invalid_request_error",
                "not valid JSON",
            ),
            (
                &[token, scenario],
                b"[]",
                400,
                "invalid_request_error",
                "must be a JSON object",
            ),
            (&[token, scenario], b"{}", 502, "", "connection refused"),
        ];
        for (headers, body, status, kind, part) in cases {
            let mut response = http::send(reef.address, "POST", path, headers, body);
            assert_eq!(response.status, status, "{path} {headers:?}");
            assert_eq!(response.receipt(), None);
            let (found, message) = envelope(path, &response.json());
            if !kind.is_empty() {
                assert_eq!(found, kind, "{path} {headers:?}");
            }
            assert!(message.contains(part), "{path}: {message}");
            // Nothing internal reaches a client.
            assert!(!message.contains(upstream.trim_start_matches("http://")), "{message}");
            assert!(!message.contains("127.0.0.1"), "{message}");
        }
        let mut wrong = http::send(reef.address, "PUT", path, &[token], b"");
        assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
        envelope(path, &wrong.json());
    }
    let rows = http::send(reef.address, "GET", "/reef/scenarios/s/records", &[token], b"").json();
    assert_eq!(rows["records"], serde_json::json!([]));
}

#[test]
fn upstream_statuses_reach_the_client_by_the_table_streaming_or_not() {
    let table = [
        (400, 400),
        (401, 401),
        (403, 403),
        (404, 404),
        (408, 408),
        (409, 409),
        (422, 422),
        (429, 429),
        (402, 400),
        (418, 400),
        (301, 502),
        (500, 502),
        (503, 502),
        (529, 502),
    ];
    let upstream = Upstream::start(|seen, _| {
        let status = seen.header("x-want").unwrap().parse().unwrap();
        answer_with(
            status,
            &[
                ("content-type", "application/json"),
                ("retry-after", "7"),
                ("request-id", "q"),
            ],
            r#"{"error": {"message":"as sent"}}"#,
        )
    });
    let reef = Reef::start(&upstream.url(), &["--inference.retry-attempts", "1"]);
    for path in ROUTES {
        for (from, to) in table {
            for body in ["{}", r#"{"stream":true}"#] {
                let mut response = reef.post_with(path, &[("x-want", &from.to_string())], body);
                assert_eq!(response.status, to, "{path} {from} {body}");
                assert_eq!(response.header("retry-after"), Some("7"));
                assert_eq!(response.receipt(), None);
                if from == to {
                    assert_eq!(response.header("request-id"), Some("q"));
                    assert_eq!(response.text(), r#"{"error": {"message":"as sent"}}"#);
                } else {
                    let (_, message) = envelope(path, &response.json());
                    assert!(message.contains(&format!("the upstream returned {from}")), "{message}");
                    assert!(message.contains("as sent"), "{message}");
                }
            }
        }
    }
    assert!(reef.rows().is_empty());
    reef.wait_until_idle();
}

#[test]
fn an_error_that_cannot_be_cured_by_trying_again_never_says_so() {
    let upstream = Upstream::always(answer(418, "application/json", "{}"));
    let reef = Reef::start(&upstream.url(), &[]);
    let body = reef.post("/v1/chat/completions", "{}").json();
    assert_eq!(body["error"]["type"], "invalid_request_error");
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn busy_answers_are_tried_again_before_the_first_byte_and_relayed_in_the_end() {
    for status in [429, 503] {
        let upstream = Upstream::start(move |_, before| {
            if before < 2 {
                answer(status, "application/json", "{}")
            } else {
                answer(200, "application/json", turns::CHAT_BODY)
            }
        });
        let reef = Reef::start(&upstream.url(), &[]);
        let response = reef.post("/v1/chat/completions", "{}");
        assert_eq!(response.status, 200);
        assert!(response.receipt().is_some());
        assert_eq!(upstream.seen().len(), 3);
        assert_eq!(reef.rows().len(), 1);
    }
    let upstream = Upstream::always(answer(429, "application/json", "{\"busy\":1}"));
    let reef = Reef::start(&upstream.url(), &[]);
    let mut response = reef.post("/v1/chat/completions", "{}");
    assert_eq!((response.status, response.text().as_str()), (429, "{\"busy\":1}"));
    assert_eq!(upstream.seen().len(), 3);
}

#[test]
fn retry_after_is_honoured_within_the_deadline_and_not_beyond_it() {
    let upstream = Upstream::start(|_, before| {
        if before == 0 {
            answer_with(429, &[("retry-after", "1")], "{}")
        } else {
            answer(200, "application/json", "{}")
        }
    });
    let reef = Reef::start(&upstream.url(), &[]);
    let start = Instant::now();
    assert_eq!(reef.post("/v1/chat/completions", "{}").status, 200);
    assert!(start.elapsed() >= Duration::from_secs(1));
    let upstream = Upstream::always(answer_with(429, &[("retry-after", "3000")], "{}"));
    let reef = Reef::start(&upstream.url(), &["--inference.retry-timeout-s", "5"]);
    let response = reef.post("/v1/chat/completions", "{}");
    assert_eq!((response.status, response.header("retry-after")), (429, Some("3000")));
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn an_answer_that_breaks_off_is_not_tried_again() {
    let upstream = Upstream::always(vec![
        Do::Send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"half\":".to_vec(),
        ),
        Do::Close,
    ]);
    let reef = Reef::start(&upstream.url(), &[]);
    let mut response = reef.post("/v1/messages", "{}");
    assert_eq!(response.status, 502);
    envelope("/v1/messages", &response.json());
    assert_eq!(upstream.seen().len(), 1);
    reef.wait_for_interruptions("upstream_closed", 1);
    assert!(reef.rows().is_empty());
}

#[test]
fn connections_the_upstream_closes_while_idle_cause_no_error_and_no_second_call() {
    let upstream = Upstream::always(answer(200, "application/json", "{}"));
    let idle = Duration::from_millis(100);
    upstream.close_idle_after(idle);
    let reef = Reef::start(&upstream.url(), &[]);
    for n in 0..40u32 {
        assert_eq!(reef.post("/v1/chat/completions", "{}").status, 200, "request {n}");
        // Around the moment the upstream closes.
        std::thread::sleep(idle.mul_f64(0.9 + 0.2 * f64::from(n % 10) / 10.0));
    }
    assert_eq!(upstream.seen().len(), 40);
}

#[test]
fn connections_are_kept_and_used_again() {
    let upstream = Upstream::always(answer(200, "application/json", "{}"));
    let reef = Reef::start(&upstream.url(), &[]);
    for _ in 0..20 {
        assert_eq!(reef.post("/v1/chat/completions", "{}").status, 200);
    }
    let most = upstream.seen().iter().map(|seen| seen.connection).max().unwrap();
    assert!(most < 3, "{most} connections for 20 requests in a row");
}

#[test]
fn an_upstream_that_does_not_answer_in_time_is_given_up() {
    let upstream = Upstream::always(vec![Do::WaitForClose]);
    let reef = Reef::start(&upstream.url(), &["--inference.timeout-s", "0.3"]);
    let mut response = reef.post("/v1/messages", r#"{"stream":true}"#);
    assert_eq!(response.status, 502);
    let (kind, message) = envelope("/v1/messages", &response.json());
    assert_eq!(kind, "api_error");
    assert!(message.contains("no response within"), "{message}");
    assert_eq!(upstream.seen().len(), 1);
    reef.wait_until_idle();
}

#[test]
fn fallbacks_answer_in_order_with_their_own_model_and_credential() {
    let broken = nowhere();
    let failing = Upstream::always(answer(503, "application/json", "{}"));
    let last = Upstream::always(stream(&[turns::CHAT]));
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("serve.toml");
    std::fs::write(
        &config,
        format!(
            "[inference]\nupstream-url = \"{broken}\"\nupstream-api-key = \"first\"\nretry-attempts = 1\n\
             [[inference.fallbacks]]\nurl = \"{}\"\n\
             [[inference.fallbacks]]\nurl = \"{}/v1\"\nmodel = \"other\"\nmodel-override = true\napi-key = \"third\"\n",
            failing.url(),
            last.url()
        ),
    )
    .unwrap();
    let reef = Reef::start_with(dir.path(), &["-c", config.to_str().unwrap()], |_| {});
    let mut response = reef.post("/v1/chat/completions", r#"{"model":"mine","stream":true}"#);
    assert!(response.text().contains("agent_record_id"));
    assert_eq!(failing.only().header("authorization"), None);
    assert_eq!(last.only().body, br#"{"model":"other","stream":true}"#);
    assert_eq!(last.only().header("authorization"), Some("Bearer third"));
    assert_eq!(last.only().target, "/v1/chat/completions");
}

#[test]
fn more_requests_than_the_service_takes_are_refused_and_may_come_again() {
    let upstream = Upstream::always(vec![
        Do::Gate,
        Do::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".to_vec()),
    ]);
    let reef = Reef::start(&upstream.url(), &["--reef.max-in-flight", "2"]);
    let address = reef.address;
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            std::thread::spawn(move || {
                http::send(address, "POST", "/v1/messages", &[("x-reef-scenario", "s")], b"{}").status
            })
        })
        .collect();
    crate::common::wait_for("two requests in flight", || (upstream.seen().len() == 2).then_some(()));
    let mut refused = reef.post("/v1/messages", "{}");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(envelope("/v1/messages", &refused.json()).0, "overloaded_error");
    upstream.open_gate();
    for request in waiting {
        assert_eq!(request.join().unwrap(), 200);
    }
    reef.wait_until_idle();
    assert_eq!(reef.post("/v1/messages", "{}").status, 200);
}

#[test]
fn a_refusal_is_seen_also_by_a_client_that_is_still_sending() {
    let upstream = Upstream::always(answer(200, "application/json", "{}"));
    let reef = Reef::start(&upstream.url(), &["--reef.token", "tok", "--reef.max-body", "1MiB"]);
    let body = format!("{{\"pad\":\"{}\"}}", "x".repeat(6 << 20));
    for (token, status) in [("no", 401), ("tok", 413)] {
        // Sent in full before the answer is looked at; the connection must not be reset meanwhile, and goes on.
        let mut stream = std::net::TcpStream::connect(reef.address).unwrap();
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-reef-scenario: s\r\nx-api-key: {token}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        for _ in 0..2 {
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(body.as_bytes()).unwrap();
            let mut seen = Vec::new();
            while !String::from_utf8_lossy(&seen).ends_with("}}") {
                let mut buffer = [0; 4096];
                let n = stream.read(&mut buffer).unwrap();
                assert!(n > 0, "{}", String::from_utf8_lossy(&seen));
                seen.extend_from_slice(&buffer[..n]);
            }
            assert!(
                seen.starts_with(format!("HTTP/1.1 {status}").as_bytes()),
                "{}",
                String::from_utf8_lossy(&seen)
            );
        }
    }
    assert!(upstream.seen().is_empty());
}
