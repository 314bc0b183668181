//! Streams that end well, badly, or not at all.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::reef::Reef;
use crate::common::upstream::{Do, Upstream, stream, stream_head};
use crate::common::wait_for;
use crate::turns::{self, STREAMS};

const STREAM: &str = r#"{"stream":true}"#;
const CHAT: &str = "/v1/chat/completions";

/// The `event` and parsed `data` of every event.
fn parse(stream: &str) -> Vec<(String, Value)> {
    stream
        .split("\n\n")
        .filter(|event| !event.trim().is_empty())
        .map(|event| {
            let field = |name: &str| {
                let lines = event
                    .lines()
                    .filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                lines.collect::<Vec<_>>().join("\n")
            };
            let data = field("data");
            (field("event"), serde_json::from_str(&data).unwrap_or(Value::from(data)))
        })
        .collect()
}

/// The error that ended a stream, checked to be in the dialect of the path.
fn final_error(path: &str, stream: &str) -> String {
    let events = parse(stream);
    let (name, data) = events.last().unwrap();
    match path {
        "/v1/messages" => {
            assert_eq!((name.as_str(), &data["type"]), ("error", &json!("error")));
            assert_eq!(events.iter().filter(|(name, _)| name == "error").count(), 1);
            assert!(data["error"]["type"].is_string());
            data["error"]["message"].as_str().unwrap().to_owned()
        }
        "/v1/responses" => {
            assert_eq!((name.as_str(), &data["type"]), ("error", &json!("error")));
            assert!(data["sequence_number"].is_u64() && data["code"].is_string());
            data["message"].as_str().unwrap().to_owned()
        }
        _ => {
            assert_eq!(data["error"]["type"], "server_error");
            assert!(!stream.contains("[DONE]"));
            data["error"]["message"].as_str().unwrap().to_owned()
        }
    }
}

#[test]
fn a_last_event_without_its_blank_line_is_kept_and_completed() {
    for (path, text, terminal) in STREAMS {
        let bare = text.trim_end();
        for end in ["", "\n", "\n\n"] {
            let upstream = Upstream::always(stream(&[&format!("{bare}{end}")]));
            let reef = Reef::start(&upstream.url(), &[]);
            let got = reef.post(path, STREAM).text();
            let (id, rest) = turns::take_receipt(path, &got);
            assert_eq!(rest, format!("{bare}\n\n"), "{path} {end:?}");
            assert_eq!(got.matches(terminal).count(), 1);
            assert_eq!(reef.record(&id)["turn"]["text"], turns::TEXT);
        }
    }
}

#[test]
fn both_terminal_events_of_responses_carry_the_receipt() {
    let text = turns::RESPONSES
        .replace("response.completed", "response.incomplete")
        .replace("\"status\":\"completed\"", "\"status\":\"incomplete\"")
        .replace(
            "\"error\":null,\"usage\"",
            "\"error\":null,\"incomplete_details\":{\"reason\":\"max_output_tokens\"},\"usage\"",
        );
    let upstream = Upstream::always(stream(&[&text]));
    let reef = Reef::start(&upstream.url(), &[]);
    let (id, rest) = turns::take_receipt("/v1/responses", &reef.post("/v1/responses", STREAM).text());
    assert_eq!(rest, text);
    assert_eq!(reef.record(&id)["turn"]["stop_reason"], "max_output_tokens");
}

#[test]
fn an_end_without_the_terminal_event_is_told_and_counted_and_not_recorded() {
    for (path, text, _) in STREAMS {
        let events = turns::events(text);
        let upstream = Upstream::always(stream(&events[..5]));
        let reef = Reef::start(&upstream.url(), &[]);
        let got = reef.post(path, STREAM).text();
        assert!(got.starts_with(&events[..5].concat()), "{path}");
        assert!(final_error(path, &got).contains("before the response was complete"));
        assert!(!got.contains("agent_record_id"));
        reef.wait_for_interruptions("upstream_closed", 1);
        reef.wait_until_idle();
        assert!(reef.rows().is_empty());
        assert_eq!(reef.metric("reef_interrupted_total{reason=\"upstream_closed\"}"), 1.0);
        // One attempt only: bytes had reached the client.
        assert_eq!(upstream.seen().len(), 1);
    }
}

#[test]
fn a_broken_connection_in_the_middle_of_an_event_is_told_in_a_frame_of_its_own() {
    for (path, text, _) in STREAMS {
        let cut = turns::events(text)[..6].concat().len() + 40;
        // A promised length that never comes: the connection breaks off.
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100000\r\n\r\n".to_vec();
        let upstream = Upstream::always(vec![
            Do::Send(head),
            Do::Send(text.as_bytes()[..cut].to_vec()),
            Do::Close,
        ]);
        let reef = Reef::start(&upstream.url(), &[]);
        let got = reef.post(path, STREAM).text();
        assert!(got.starts_with(&text[..cut]), "{path}");
        final_error(path, &got);
        reef.wait_for_interruptions("upstream_closed", 1);
    }
}

#[test]
fn a_failure_event_passes_once_and_never_becomes_an_end() {
    let failures = [
        "data: {\"error\":{\"message\":\"slow down\",\"type\":\"rate_limit_error\",\"code\":429}}\n\n",
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"slow down\"}}\n\n",
        "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"rate_limit_exceeded\",\"message\":\"slow down\"}}}\n\n",
    ];
    for ((path, text, _), failure) in STREAMS.into_iter().zip(failures) {
        let events = turns::events(text);
        let sent = format!("{}{failure}", events[..3].concat());
        let upstream = Upstream::always(stream(&[&sent]));
        let reef = Reef::start(&upstream.url(), &[]);
        // The provider's own error, unchanged, and nothing after it.
        assert_eq!(reef.post(path, STREAM).text(), sent);
        reef.wait_for_interruptions("upstream_error_event", 1);
        assert!(reef.rows().is_empty());
        assert_eq!(upstream.seen().len(), 1);
    }
}

#[test]
fn a_client_that_leaves_closes_the_upstream_and_leaves_no_record() {
    for (path, text, _) in STREAMS {
        let mut steps = vec![stream_head()];
        for event in &turns::events(text)[..3] {
            steps.push(Do::Send(event.as_bytes().to_vec()));
        }
        steps.push(Do::WaitForClose);
        let upstream = Upstream::always(steps);
        let reef = Reef::start(&upstream.url(), &[]);
        let mut response = reef.post(path, STREAM);
        response.until(turns::events(text)[2].trim_end());
        let left = Instant::now();
        drop(response);
        let seen = upstream.only();
        let closed = wait_for("the upstream connection to close", || *seen.peer_closed.lock().unwrap());
        assert!(closed - left < Duration::from_secs(20), "{:?}", closed - left);
        reef.wait_for_interruptions("client_gone", 1);
        reef.wait_until_idle();
        assert!(reef.rows().is_empty());
        let report = reef.post("/reef/report", r#"{"score":1,"references":["made-up"]}"#);
        assert_eq!(report.status, 400);
    }
}

#[test]
fn a_client_that_leaves_before_the_answer_begins_closes_the_upstream_too() {
    let upstream = Upstream::always(vec![Do::WaitForClose]);
    let reef = Reef::start(&upstream.url(), &[]);
    let address = reef.address;
    let stream = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(
        &mut &stream,
        b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-reef-scenario: s\r\ncontent-length: 2\r\n\r\n{}",
    )
    .unwrap();
    wait_for("the request to arrive", || (upstream.seen().len() == 1).then_some(()));
    drop(stream);
    let seen = upstream.only();
    wait_for("the upstream connection to close", || *seen.peer_closed.lock().unwrap());
    reef.wait_for_interruptions("client_gone", 1);
    reef.wait_until_idle();
}

#[test]
fn every_frame_arrives_before_the_next_is_sent() {
    for (path, text, _) in STREAMS {
        let events = turns::events(text);
        // The first frames come, and the rest only once the test has seen them.
        let first: String = events[..4].concat();
        let upstream = Upstream::always(vec![
            stream_head(),
            Do::Send(first.clone().into_bytes()),
            Do::Gate,
            Do::Send(events[4..].concat().into_bytes()),
            Do::Close,
        ]);
        let reef = Reef::start(&upstream.url(), &[]);
        let mut response = reef.post(path, STREAM);
        let (seen, _) = response.until(first.trim_end());
        assert_eq!(seen, first);
        upstream.open_gate();
        let rest = response.text();
        assert!(rest.contains("agent_record_id"));
    }
}

#[test]
fn silence_brings_comments_that_the_record_does_not_hold() {
    for (path, text, _) in STREAMS {
        let events = turns::events(text);
        let upstream = Upstream::always(vec![
            stream_head(),
            Do::Send(events[..3].concat().into_bytes()),
            Do::Gate,
            Do::Send(events[3..].concat().into_bytes()),
            Do::Close,
        ]);
        let reef = Reef::start(&upstream.url(), &["--inference.keep-alive-s", "0.1"]);
        let mut response = reef.post(path, STREAM);
        let (mut got, _) = response.until(": keep-alive\n\n");
        upstream.open_gate();
        got.push_str(&response.text());
        let without = got.replace(": keep-alive\n\n", "");
        let (id, rest) = turns::take_receipt(path, &without);
        assert_eq!(rest, text);
        assert_eq!(reef.record(&id)["payload"]["response"]["body"], text);
    }
}

#[test]
fn silence_beyond_the_limit_ends_the_stream_with_an_error() {
    let events = turns::events(turns::CHAT);
    let upstream = Upstream::always(vec![
        stream_head(),
        Do::Send(events[..3].concat().into_bytes()),
        Do::WaitForClose,
    ]);
    let reef = Reef::start(&upstream.url(), &["--inference.idle-timeout-s", "0.3"]);
    let got = reef.post(CHAT, STREAM).text();
    assert!(final_error(CHAT, &got).contains("silent"));
    reef.wait_for_interruptions("idle_timeout", 1);
    let seen = upstream.only();
    wait_for("the upstream connection to close", || *seen.peer_closed.lock().unwrap());
}

#[test]
fn usage_receipt_and_end_come_in_this_order_and_odd_chunks_pass() {
    // No usage, null usage, empty choices, a tool call without index, upstream comments.
    let text = concat!(
        ": welcome\n\n",
        "data: {\"id\":\"\",\"object\":\"\",\"created\":0,\"model\":\"\",\"choices\":[],\"prompt_filter_results\":[]}\n\n",
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\",\"tool_calls\":[{\"id\":\"x\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},\"finish_reason\":null}],\"usage\":null}\n\n",
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n",
        "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":null}}\n\n",
        "data: [DONE]\n\n"
    );
    let upstream = Upstream::always(stream(&[text]));
    let reef = Reef::start(&upstream.url(), &[]);
    let request = r#"{"stream":true,"stream_options":{"include_usage":true}}"#;
    let got = reef.post(CHAT, request).text();
    let (id, rest) = turns::take_receipt(CHAT, &got);
    assert_eq!(rest, text);
    assert!(got.find("prompt_tokens").unwrap() < got.find("agent_record_id").unwrap());
    let turn = &reef.record(&id)["turn"];
    assert_eq!(turn["usage"]["input_tokens"], 3);
    assert_eq!(turn["usage"]["output_tokens"], Value::Null);
    assert_eq!(turn["stop_reason"], "tool_calls");
    assert_eq!(turn["tool_calls"], json!([{"id": "x", "name": "f", "arguments": "{}"}]));
}

#[test]
fn many_large_streams_dropped_together_do_not_delay_health() {
    let piece = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n",
        "z".repeat(60_000)
    );
    let mut steps = vec![stream_head()];
    steps.extend((0..80).map(|_| Do::Send(piece.clone().into_bytes())));
    steps.push(Do::WaitForClose);
    let upstream = Upstream::always(steps);
    let reef = Reef::start(&upstream.url(), &[]);
    let mut open: Vec<_> = (0..30).map(|_| reef.post(CHAT, STREAM)).collect();
    for response in &mut open {
        response.until("data: ");
    }
    drop(open);
    // Bounded generously for a loaded machine; without care this takes tens of seconds.
    for _ in 0..20 {
        let start = Instant::now();
        assert_eq!(reef.get("/healthz").status, 200);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    reef.wait_for_interruptions("client_gone", 30);
    reef.wait_until_idle();
}
