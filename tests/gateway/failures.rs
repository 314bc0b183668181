//! Failures inside a success, answers without their end, streams under any header: the body decides, never the header.

use std::io::Write;

use serde_json::{Value, json};

use crate::common::reef::Reef;
use crate::common::upstream::{Do, Upstream, answer, answer_with, chunked, stream};
use crate::turns::{self, STREAMS};

const CHAT: &str = "/v1/chat/completions";
const STREAM: &str = r#"{"stream":true}"#;

/// What a header says, and a stream's bytes; the stream ends with its connection.
fn under(content_type: Option<&str>, pieces: &[&str]) -> Vec<Do> {
    let head = content_type.map_or(String::new(), |kind| format!("content-type: {kind}\r\n"));
    let mut steps = vec![Do::Send(
        format!("HTTP/1.1 200 OK\r\n{head}connection: close\r\n\r\n").into_bytes(),
    )];
    steps.extend(pieces.iter().map(|piece| Do::Send(piece.as_bytes().to_vec())));
    steps.push(Do::Close);
    steps
}

#[test]
fn a_failure_in_a_stream_is_one_in_whatever_shape() {
    let begun = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let shapes = [
        "data: {\"error\":{\"message\":\"no memory\",\"type\":\"server_error\",\"code\":500}}\n\n",
        "data: {\"error\":\"no memory\",\"error_type\":\"validation\"}\n\n",
        "data: {\"object\":\"error\",\"message\":\"no memory\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}\n\n",
        "data: {\"detail\":\"no memory\"}\n\n",
        "data: [{\"error\":{\"code\":503,\"message\":\"no memory\",\"status\":\"UNAVAILABLE\"}}]\n\n",
        "data: {\"code\":\"Throttling\",\"message\":\"no memory\",\"request_id\":\"r\"}\n\n",
        "data: {\"base_resp\":{\"status_code\":1002,\"status_msg\":\"no memory\"}}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"error\",\"error\":{\"code\":502,\"message\":\"no memory\"}}]}\n\n",
        "error: {\"code\":500,\"message\":\"no memory\",\"type\":\"server_error\"}\n\n",
        "event: error\ndata: {\"message\":\"no memory\"}\n\n",
        "event: error\ndata: no memory\n\n",
        "{\"error\":\"no memory\"}\n",
    ];
    let upstream = Upstream::start(move |_, before| {
        let start = if before % 2 == 0 { "" } else { begun };
        stream(&[start, shapes[before / 2], "data: [DONE]\n\n"])
    });
    let reef = Reef::start(&upstream.url(), &[]);
    for shape in shapes {
        for start in ["", begun] {
            let got = reef.post(CHAT, STREAM).text();
            assert_eq!(got, format!("{start}{shape}data: [DONE]\n\n"));
        }
    }
    reef.wait_for_interruptions("upstream_error_event", 2 * shapes.len() as u64);
    assert!(reef.rows().is_empty());
    assert_eq!(reef.log().matches("no memory").count(), 2 * shapes.len());
}

#[test]
fn a_success_without_an_answer_passes_without_a_receipt_and_is_counted() {
    let error = |path: &str| {
        if path.starts_with("/v1/messages") {
            r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#
        } else {
            r#"{"error":{"message":"busy","code":503}}"#
        }
    };
    let failed = [
        "",
        r#"{"object":"error","message":"busy"}"#,
        r#"{"detail":"busy"}"#,
        r#"[{"error":{"message":"busy"}}]"#,
    ];
    let nothing = [
        "",
        "<html><body>Bad gateway</body></html>",
        "upstream timed out",
        "{\"choices\":[{\"mess",
        "{}",
        "[]",
        "null",
    ];
    let paths = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
    ];
    let upstream = Upstream::start(move |seen, _| {
        let body = seen.header("x-body").unwrap().to_owned();
        answer(200, seen.header("x-type").unwrap(), body)
    });
    let reef = Reef::start(&upstream.url(), &[]);
    let (mut failures, mut nothings) = (0, 0);
    for path in paths {
        for (bodies, count) in [(&failed[..], &mut failures), (&nothing[..], &mut nothings)] {
            for body in bodies {
                let is_failed = std::ptr::eq(bodies.as_ptr(), failed.as_ptr());
                let body = if is_failed && body.is_empty() {
                    error(path)
                } else {
                    *body
                };
                let kind = if body.starts_with('<') {
                    "text/html"
                } else {
                    "application/json"
                };
                for request in ["{}", STREAM] {
                    let mut response = reef.post_with(path, &[("x-body", body), ("x-type", kind)], request);
                    assert_eq!((response.status, response.receipt()), (200, None), "{path} {body:?}");
                    assert_eq!(response.header("content-type"), Some(kind));
                    assert_eq!(response.text(), body);
                    *count += 1;
                }
            }
        }
    }
    reef.wait_for_interruptions("upstream_error_event", failures);
    reef.wait_for_interruptions("upstream_no_answer", nothings);
    assert!(reef.rows().is_empty());
    assert_eq!(
        reef.metric("reef_interrupted_total{reason=\"upstream_no_answer\"}"),
        nothings as f64
    );
    let log = reef.log();
    for words in [
        "busy",
        "a page of HTML",
        "is empty",
        "cut short",
        "is not JSON",
        "is not what /v1/messages answers",
    ] {
        assert!(log.contains(words), "{words}");
    }
}

#[test]
fn a_failure_under_the_header_of_a_stream_passes_as_it_is() {
    for (body, reason) in [
        ("{\"error\":{\"message\":\"busy\"}}", "upstream_error_event"),
        (
            "{\n  \"error\": {\n    \"message\": \"busy\"\n  }\n}",
            "upstream_error_event",
        ),
        ("<html>busy</html>", "upstream_no_answer"),
    ] {
        let upstream = Upstream::always(under(Some("text/event-stream"), &[body]));
        let reef = Reef::start(&upstream.url(), &[]);
        let mut response = reef.post(CHAT, STREAM);
        assert_eq!(response.receipt(), None);
        assert_eq!(response.text(), body);
        reef.wait_for_interruptions(reason, 1);
    }
    // Of an empty one the client is told, for it waits for events.
    let upstream = Upstream::always(under(Some("text/event-stream"), &[]));
    let reef = Reef::start(&upstream.url(), &[]);
    assert!(
        reef.post(CHAT, STREAM)
            .text()
            .contains("before the response was complete")
    );
    reef.wait_for_interruptions("upstream_closed", 1);
    // And a whole answer in one piece is one, whatever was asked for and whatever its header says.
    let upstream = Upstream::always(under(Some("text/event-stream"), &[turns::CHAT_BODY]));
    let reef = Reef::start(&upstream.url(), &[]);
    let mut response = reef.post(CHAT, STREAM);
    let receipt = response.receipt().unwrap();
    assert_eq!(response.text(), turns::CHAT_BODY);
    assert_eq!(reef.record(&receipt)["turn"]["text"], turns::TEXT);
}

#[test]
fn a_stream_under_any_header_passes_piece_by_piece_and_is_understood() {
    for (path, text, _) in STREAMS {
        let events = turns::events(text);
        for kind in [
            Some("text/plain"),
            Some("application/json"),
            Some("application/octet-stream"),
            None,
        ] {
            let mut steps = under(kind, &[&events[0][..3], &events[0][3..]]);
            let close = steps.pop().unwrap();
            steps.extend([Do::Gate, Do::Send(events[1..].concat().into_bytes()), close]);
            let upstream = Upstream::always(steps);
            let reef = Reef::start(&upstream.url(), &[]);
            let mut response = reef.post(path, STREAM);
            assert_eq!(response.header("content-type"), kind);
            let (mut got, _) = response.until(events[0].trim_end());
            upstream.open_gate();
            got.push_str(&response.text());
            let (id, rest) = turns::take_receipt(path, &got);
            assert_eq!(rest, text, "{path} {kind:?}");
            assert_eq!(reef.record(&id)["turn"]["text"], turns::TEXT);

            let upstream = Upstream::always(under(kind, &events[..5]));
            let reef = Reef::start(&upstream.url(), &[]);
            let got = reef.post(path, STREAM).text();
            assert!(!got.contains("agent_record_id") && got.contains("before the response was complete"));
            reef.wait_for_interruptions("upstream_closed", 1);
        }
    }
}

#[test]
fn a_compressed_stream_under_another_header_is_recorded() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(turns::CHAT.as_bytes()).unwrap();
    let bytes = gzip.finish().unwrap();
    let upstream = Upstream::always(answer_with(
        200,
        &[("content-type", "text/plain"), ("content-encoding", "gzip")],
        &bytes,
    ));
    let reef = Reef::start(&upstream.url(), &[]);
    assert_eq!(reef.post(CHAT, STREAM).bytes(), bytes);
    assert_eq!(reef.rows()[0]["stop_reason"], "tool_calls");
}

#[test]
fn lines_of_json_pass_one_by_one_and_are_recorded() {
    let lines = [
        "{\"id\":\"c\",\"choices\":[{\"delta\":{\"content\":\"he\"}}]}\n",
        "{\"id\":\"c\",\"choices\":[{\"delta\":{\"content\":\"llo\"},\"finish_reason\":\"stop\"}]}\n",
    ];
    let upstream = Upstream::always(under(Some("application/x-ndjson"), &lines));
    let reef = Reef::start(&upstream.url(), &[]);
    assert_eq!(reef.post(CHAT, STREAM).text(), lines.concat());
    let row = &reef.rows()[0];
    let record = reef.record(row["agent_record_id"].as_str().unwrap());
    assert_eq!(
        (&record["turn"]["text"], &record["streamed"]),
        (&json!("hello"), &json!(true))
    );
}

#[test]
fn a_whole_answer_without_its_closing_event_is_recorded_and_closed() {
    for (path, text, terminal) in &STREAMS[..2] {
        let body = &text[..text.rfind(terminal).unwrap()];
        for place in ["finish", "chunk"] {
            for sent in [body, body.trim_end()] {
                for framing in [stream(&[sent]), chunked(&[sent])] {
                    let upstream = Upstream::always(framing);
                    let reef = Reef::start(&upstream.url(), &[]);
                    let got = reef.post_with(path, &[("x-reef-stream-receipt", place)], STREAM).text();
                    let (id, rest) = turns::take_receipt(path, &got);
                    assert_eq!(rest.trim_end(), text.trim_end(), "{path} {place}");
                    let record = reef.record(&id);
                    assert_eq!(record["turn"]["text"], turns::TEXT);
                    assert_eq!(record["payload"]["response"]["body"], *sent);
                }
            }
        }
        // Nothing is added for a client that opted out.
        let upstream = Upstream::always(stream(&[body]));
        let reef = Reef::start(&upstream.url(), &[]);
        assert_eq!(reef.post_with(path, &[("x-reef-record", "false")], STREAM).text(), body);
        // Without a reason it is cut off; so is a response without its completed event, whatever came before.
        let cut = turns::events(text)[..4].concat();
        let upstream = Upstream::always(chunked(&[&cut]));
        let reef = Reef::start(&upstream.url(), &[]);
        assert!(
            reef.post(path, STREAM)
                .text()
                .contains("before the response was complete")
        );
        reef.wait_for_interruptions("upstream_closed", 1);
        assert!(reef.rows().is_empty());
    }
    let (path, text, terminal) = STREAMS[2];
    let upstream = Upstream::always(chunked(&[&text[..text.rfind(terminal).unwrap()]]));
    let reef = Reef::start(&upstream.url(), &[]);
    assert!(
        reef.post(path, STREAM)
            .text()
            .contains("before the response was complete")
    );
    assert!(reef.rows().is_empty());
}

#[test]
fn a_connection_that_breaks_after_the_reason_to_stop_is_no_clean_end() {
    let (path, text, terminal) = STREAMS[0];
    let body = &text[..text.rfind(terminal).unwrap()];
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100000\r\n\r\n".to_vec();
    let upstream = Upstream::always(vec![Do::Send(head), Do::Send(body.as_bytes().to_vec()), Do::Close]);
    let reef = Reef::start(&upstream.url(), &[]);
    let got = reef.post(path, STREAM).text();
    assert!(got.starts_with(body) && !got.contains("agent_record_id"), "{got}");
    reef.wait_for_interruptions("upstream_closed", 1);
}

#[test]
fn two_answers_at_once_are_not_run_together() {
    let chunk = |index: u32, text: &str, finish: Value| {
        let chunk =
            json!({"id": "c", "choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]});
        format!("data: {chunk}\n\n")
    };
    let null = Value::Null;
    let text = [
        chunk(0, "r", null.clone()),
        chunk(1, "bl", null.clone()),
        chunk(1, "ue", null.clone()),
        chunk(0, "ed", null),
        chunk(1, "", json!("length")),
        chunk(0, "", json!("stop")),
    ]
    .concat();
    for end in ["data: [DONE]\n\n", ""] {
        let upstream = Upstream::always(chunked(&[&text, end]));
        let reef = Reef::start(&upstream.url(), &[]);
        let (id, _) = turns::take_receipt(CHAT, &reef.post(CHAT, r#"{"stream":true,"n":2}"#).text());
        let turn = &reef.record(&id)["turn"];
        assert_eq!((&turn["text"], &turn["stop_reason"]), (&json!("red"), &json!("stop")));
    }
    // One of two has not said why it stopped: that is cut off.
    let upstream = Upstream::always(chunked(&[&text.replace("\"length\"", "null")]));
    let reef = Reef::start(&upstream.url(), &[]);
    assert!(
        reef.post(CHAT, STREAM)
            .text()
            .contains("before the response was complete")
    );
}

#[test]
fn the_receipt_of_a_chat_stands_where_the_client_wants_it() {
    let upstream = Upstream::always(stream(&turns::events(turns::CHAT)));
    let usage = r#"{"stream":true,"stream_options":{"include_usage":true}}"#;
    // In a chunk of its own: setting, header, request, and whether it is.
    for (setting, header, request, own) in [
        ("auto", None, STREAM, false),
        ("auto", None, usage, true),
        ("auto", Some("finish"), usage, false),
        ("finish", None, usage, false),
        ("finish", Some("auto"), usage, true),
        ("chunk", None, STREAM, true),
        ("chunk", Some("finish"), STREAM, false),
    ] {
        let reef = Reef::start(&upstream.url(), &["--reef.stream-receipt", setting]);
        let headers: Vec<(&str, &str)> = header
            .map(|value| ("x-reef-stream-receipt", value))
            .into_iter()
            .collect();
        let got = reef.post_with(CHAT, &headers, request).text();
        let (id, rest) = turns::take_receipt(CHAT, &got);
        assert_eq!(rest, turns::CHAT);
        assert_eq!(reef.record(&id)["turn"]["text"], turns::TEXT);
        let chunks: Vec<Value> = turns::events(&got)
            .iter()
            .filter_map(|event| serde_json::from_str(event.trim().strip_prefix("data: ")?).ok())
            .collect();
        let receipt = chunks.iter().find(|chunk| chunk.get("reef").is_some()).unwrap();
        let choices = receipt["choices"].as_array().unwrap();
        assert_eq!(choices.is_empty(), own, "{setting} {header:?}");
        assert_eq!(receipt["id"], chunks[0]["id"]);
        if !own {
            assert_eq!(choices[0]["finish_reason"], "tool_calls");
            // What a loop over `chunk.choices[0]` meets is what the provider sent.
            let empty = chunks
                .iter()
                .filter(|chunk| chunk["choices"].as_array().unwrap().is_empty());
            assert_eq!(empty.count(), turns::CHAT.matches("\"choices\":[]").count());
        }
    }
    let reef = Reef::start(&upstream.url(), &[]);
    let mut refused = reef.post_with(CHAT, &[("x-reef-stream-receipt", "nowhere")], STREAM);
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("auto, finish or chunk"));
}

#[test]
fn a_stream_that_hangs_after_its_reason_to_stop_is_not_held_back() {
    let events = turns::events(turns::CHAT);
    let done = events.len() - 1;
    let mut steps = vec![
        crate::common::upstream::stream_head(),
        Do::Send(events[..done].concat().into_bytes()),
    ];
    steps.extend([Do::Gate, Do::Send(events[done].as_bytes().to_vec()), Do::Close]);
    let upstream = Upstream::always(steps);
    let reef = Reef::start(&upstream.url(), &["--inference.keep-alive-s", "0.1"]);
    let mut response = reef.post(CHAT, STREAM);
    let (mut got, _) = response.until("prompt_tokens");
    upstream.open_gate();
    got.push_str(&response.text());
    let got = got.replace(": keep-alive\n\n", "");
    let (id, rest) = turns::take_receipt(CHAT, &got);
    assert_eq!(rest, turns::CHAT);
    assert!(got.contains("\"choices\":[],\"reef\""), "{got}");
    reef.record(&id);
}
