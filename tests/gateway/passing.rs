//! What goes in comes out: bytes up, bytes down, nothing added but what is documented.

use std::io::Write;

use serde_json::{Value, json};

use crate::common::http;
use crate::common::reef::Reef;
use crate::common::upstream::{Do, Upstream, answer, answer_with, chunked, stream};
use crate::turns::{self, STREAMS};

const CHAT: &str = "/v1/chat/completions";

#[test]
fn request_bytes_query_and_headers_go_up_and_no_credential_does() {
    let upstream = Upstream::always(answer(200, "application/json", "{}"));
    let reef = Reef::start(
        &upstream.url(),
        &[
            "--upstream-api-key",
            "sk-upstream",
            "--upstream-api",
            "anthropic",
            "--reef.token",
            "tok-reef",
        ],
    );
    // Odd spacing, order and unknown fields, all of which must survive.
    let body = r#"{ "zeta" : 1, "model":"m", "thinking":{"type":"adaptive","display":"omitted"},
      "messages":[{"role":"user","content":[{"type":"text","text":"é\u00e9","cache_control":{"type":"ephemeral","ttl":"1h"}}]}],"alpha":[1.0,1e2] }"#;
    for (index, (name, value)) in [("authorization", "Bearer tok-reef"), ("x-api-key", "tok-reef")]
        .into_iter()
        .enumerate()
    {
        let response = reef.post_with(
            "/v1/messages?beta=true&x=%20",
            &[
                (name, value),
                ("anthropic-beta", "new-thing-2030-01-01"),
                ("anthropic-version", "2023-06-01"),
                ("cookie", "session=secret"),
                ("x-custom", "kept"),
                ("accept-encoding", "gzip, br"),
                ("x-reef-tag-client", "c1"),
            ],
            body,
        );
        assert_eq!(response.status, 200);
        let seen = &upstream.seen()[index];
        assert_eq!(seen.body, body.as_bytes());
        assert_eq!(seen.target, "/v1/messages?beta=true&x=%20");
        assert_eq!(seen.header("anthropic-beta"), Some("new-thing-2030-01-01"));
        assert_eq!(seen.header("x-custom"), Some("kept"));
        assert_eq!(seen.header("accept-encoding"), Some("gzip, br"));
        assert_eq!(seen.header("x-api-key"), Some("sk-upstream"));
        assert_eq!(seen.header("authorization"), None);
        assert_eq!(seen.header("cookie"), None);
        assert!(
            !seen
                .headers
                .iter()
                .any(|(name, value)| name.starts_with("x-reef") || value.contains("tok-reef"))
        );
    }
    assert!(!reef.log().contains("sk-upstream") && !reef.log().contains("tok-reef"));
}

#[test]
fn the_configured_model_is_put_in_only_where_there_is_none_unless_it_overrides() {
    let upstream = Upstream::always(answer(200, "application/json", "{}"));
    let reef = Reef::start(&upstream.url(), &["--upstream-model", "conf"]);
    for (body, expected) in [
        (r#"{"a": 1}"#, r#"{"model":"conf","a": 1}"#),
        (r#"{"a": 1, "model" : "mine" }"#, r#"{"a": 1, "model" : "mine" }"#),
    ] {
        reef.post(CHAT, body);
        assert_eq!(upstream.seen().last().unwrap().body, expected.as_bytes());
    }
    let reef = Reef::start(
        &upstream.url(),
        &[
            "--upstream-model",
            "conf",
            "--inference.upstream-model-override",
            "true",
        ],
    );
    reef.post(CHAT, r#"{"a": 1, "model" : "mine" , "b":2}"#);
    let sent = upstream.seen().last().unwrap().body.clone();
    assert_eq!(sent, br#"{"a": 1, "model" : "conf" , "b":2}"#);
}

#[test]
fn response_bytes_and_headers_come_back_and_the_record_holds_them() {
    let body =
        "{ \"choices\" : [ {\"message\":{\"content\":\"h\u{e9}llo\"},\"finish_reason\":\"stop\"} ],\n\"z\":1.0 }";
    let upstream = Upstream::always(answer_with(
        200,
        &[
            ("content-type", "application/json; charset=utf-8"),
            ("x-request-id", "r-1"),
            ("x-reef-agent-record-id", "forged"),
            ("set-cookie", "a=b"),
        ],
        body,
    ));
    let reef = Reef::start(&upstream.url(), &[]);
    let request = r#"{"model":"m","messages":[]}"#;
    let mut response = reef.post_with(CHAT, &[("x-reef-tag-session", "s-1")], request);
    assert_eq!(response.text(), body);
    assert_eq!(response.header("content-type"), Some("application/json; charset=utf-8"));
    assert_eq!(response.header("x-request-id"), Some("r-1"));
    assert_eq!(response.header("set-cookie"), None);
    let receipts = response
        .headers
        .iter()
        .filter(|(name, _)| name == "x-reef-agent-record-id")
        .count();
    assert_eq!(receipts, 1);
    let receipt = response.receipt().unwrap();
    assert_ne!(receipt, "forged");
    let record = reef.record(&receipt);
    assert_eq!(record["turn"]["text"], "h\u{e9}llo");
    assert_eq!(
        record["payload"]["response"],
        serde_json::from_str::<Value>(body).unwrap()
    );
    assert_eq!(record["payload"]["model"], "m");
    assert_eq!(record["payload"]["metadata"]["tags"], json!({"session": "s-1"}));
    assert_eq!(record["artifact_ref"]["kind"], "artifact");
    assert_eq!(record["stop_reason"], "stop");
}

#[test]
fn compressed_answers_pass_as_they_are_and_are_recorded_decoded() {
    let plain = turns::CHAT_BODY.as_bytes();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(plain).unwrap();
    let gzip = gzip.finish().unwrap();
    let mut brotli = Vec::new();
    brotli::CompressorWriter::new(&mut brotli, 4096, 5, 22)
        .write_all(plain)
        .unwrap();
    let zstd = zstd::encode_all(plain, 1).unwrap();
    for (name, bytes) in [("gzip", gzip), ("br", brotli), ("zstd", zstd)] {
        let upstream = Upstream::always(answer_with(
            200,
            &[("content-type", "application/json"), ("content-encoding", name)],
            &bytes,
        ));
        let reef = Reef::start(&upstream.url(), &[]);
        let mut response = reef.post(CHAT, "{}");
        assert_eq!(response.bytes(), bytes, "{name}");
        assert_eq!(response.header("content-encoding"), Some(name));
        let record = reef.record(&response.receipt().unwrap());
        assert_eq!(record["turn"]["text"], turns::TEXT, "{name}");
    }
}

#[test]
fn a_compressed_error_keeps_its_header_and_its_bytes() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(br#"{"error":{"message":"no"}}"#).unwrap();
    let gzip = gzip.finish().unwrap();
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
    let upstream = Upstream::start({
        let gzip = gzip.clone();
        move |_, before| answer_with(if before == 0 { 400 } else { 500 }, &headers, &gzip)
    });
    let reef = Reef::start(&upstream.url(), &[]);
    let mut relayed = reef.post(CHAT, "{}");
    assert_eq!(
        (relayed.status, relayed.header("content-encoding")),
        (400, Some("gzip"))
    );
    assert_eq!(relayed.bytes(), gzip);
    let mut translated = reef.post(CHAT, "{}");
    assert_eq!((translated.status, translated.header("content-encoding")), (502, None));
    assert!(translated.text().contains("the upstream returned 500"));
}

#[test]
fn a_compressed_stream_passes_as_it_is_and_is_recorded_without_a_receipt_in_it() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(turns::CHAT.as_bytes()).unwrap();
    let bytes = gzip.finish().unwrap();
    let mut steps = vec![Do::Send(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n"
            .to_vec(),
    )];
    steps.extend(bytes.chunks(50).map(|chunk| Do::Send(chunk.to_vec())));
    steps.push(Do::Close);
    let upstream = Upstream::always(steps);
    let reef = Reef::start(&upstream.url(), &[]);
    let mut response = reef.post_with(CHAT, &[("accept-encoding", "gzip")], r#"{"stream":true}"#);
    assert_eq!(response.bytes(), bytes);
    // It was asked not to compress; some do all the same.
    assert_eq!(upstream.only().header("accept-encoding"), Some("identity"));
    let rows = reef.rows();
    assert_eq!(rows.len(), 1);
    let record = reef.record(rows[0]["agent_record_id"].as_str().unwrap());
    assert_eq!(record["turn"]["text"], turns::TEXT);
}

#[test]
fn a_compressed_request_passes_as_it_is_and_is_recorded_decoded() {
    let upstream = Upstream::always(answer(200, "application/json", turns::SMALL_RESPONSE));
    let reef = Reef::start(&upstream.url(), &["--upstream-model", "conf"]);
    let bytes = zstd::encode_all(&br#"{"model":"m","messages":[]}"#[..], 1).unwrap();
    let response = reef.post_with("/v1/responses", &[("content-encoding", "zstd")], &bytes);
    assert_eq!(response.status, 200);
    let seen = upstream.only();
    assert_eq!(
        (seen.body.as_slice(), seen.header("content-encoding")),
        (bytes.as_slice(), Some("zstd"))
    );
    assert_eq!(reef.record(&response.receipt().unwrap())["payload"]["model"], "m");
    let mut bad = reef.post_with(CHAT, &[("content-encoding", "gzip")], "{}");
    assert_eq!(bad.status, 400);
    assert!(bad.text().contains("cannot be decoded"));
}

#[test]
fn streams_pass_unchanged_but_for_the_receipt() {
    for (path, text, _) in STREAMS {
        for framing in [stream(&turns::events(text)), chunked(&turns::events(text))] {
            let upstream = Upstream::always(framing);
            let reef = Reef::start(&upstream.url(), &[]);
            let mut response = reef.post(path, r#"{"stream":true}"#);
            assert_eq!(response.header("content-type"), Some("text/event-stream"));
            assert_eq!(response.receipt(), None);
            let (id, rest) = turns::take_receipt(path, &response.text());
            assert_eq!(rest, text, "{path}");
            let record = reef.record(&id);
            assert_eq!(record["turn"]["text"], turns::TEXT);
            assert_eq!(record["turn"]["tool_calls"].as_array().unwrap().len(), 2);
            assert_eq!(record["payload"]["response"]["body"], text);
            assert_eq!(record["streamed"], true);
            assert_eq!(record["input_tokens"], 11);
        }
    }
}

#[test]
fn one_byte_at_a_time_in_every_line_ending_gives_the_same_turn() {
    for (path, text, _) in STREAMS {
        for ending in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', ending);
            let upstream = Upstream::always(vec![
                crate::common::upstream::stream_head(),
                Do::Trickle(text.clone().into_bytes()),
                Do::Close,
            ]);
            let reef = Reef::start(&upstream.url(), &[]);
            let got = reef.post(path, r#"{"stream":true}"#).text();
            let (id, rest) = turns::take_receipt(path, &got);
            assert_eq!(rest, text, "{path} {ending:?}");
            assert_eq!(reef.record(&id)["turn"]["text"], turns::TEXT);
        }
    }
}

#[test]
fn large_bodies_pass_and_larger_ones_get_413_in_dialect() {
    let upstream = Upstream::start(|seen, _| {
        let length = seen.body.len();
        answer(
            200,
            "application/json",
            format!("{{\"type\":\"message\",\"content\":[],\"length\":{length}}}"),
        )
    });
    let reef = Reef::start(&upstream.url(), &["--reef.max-body", "16MiB"]);
    let body = |size: usize| format!("{{\"messages\":\"{}\"}}", "x".repeat(size));
    let mut passed = reef.post("/v1/messages", body(8 << 20));
    assert_eq!(passed.status, 200);
    assert_eq!(passed.json()["length"], (8 << 20) + 15);
    let record = reef.record(&passed.receipt().unwrap());
    assert_eq!(record["payload"]["messages"].as_str().unwrap().len(), 8 << 20);
    let mut refused = reef.post("/v1/messages", body(17 << 20));
    assert_eq!(refused.status, 413);
    let error = refused.json();
    assert_eq!(
        (error["type"].as_str(), error["error"]["type"].as_str()),
        (Some("error"), Some("request_too_large"))
    );
    let mut refused = reef.post(CHAT, body(17 << 20));
    assert_eq!(refused.json()["error"]["code"], "body_too_large");
    assert_eq!(upstream.seen().len(), 1);
    assert_eq!(reef.metric("reef_too_large_requests_total"), 2.0);
}

#[test]
fn an_answer_beyond_the_recording_limit_passes_whole_and_says_it_is_unrecorded() {
    let big = format!("{{\"text\":\"{}\"}}", "y".repeat(3 << 20));
    let upstream = Upstream::always(answer(200, "application/json", &big));
    let reef = Reef::start(&upstream.url(), &["--storage.max-recorded-body", "1MiB"]);
    let mut response = reef.post(CHAT, "{}");
    assert_eq!(response.header("x-reef-recorded"), Some("false"));
    assert_eq!(response.receipt(), None);
    assert_eq!(response.text(), big);
    assert!(reef.rows().is_empty());
    assert_eq!(reef.metric("reef_unrecorded_total{reason=\"too_large\"}"), 1.0);
}

#[test]
fn a_call_may_opt_out_of_recording() {
    let upstream = Upstream::start(|seen, _| {
        if seen.body == b"{}" {
            answer(200, "application/json", turns::CHAT_BODY)
        } else {
            stream(&[turns::CHAT])
        }
    });
    let reef = Reef::start(&upstream.url(), &[]);
    let mut whole = reef.post_with(CHAT, &[("x-reef-record", "false")], "{}");
    assert_eq!((whole.text().as_str(), whole.receipt()), (turns::CHAT_BODY, None));
    let mut streamed = reef.post_with(CHAT, &[("x-reef-record", "false")], r#"{"stream":true}"#);
    assert_eq!(streamed.text(), turns::CHAT);
    let mut invalid = reef.post_with(CHAT, &[("x-reef-record", "maybe")], "{}");
    assert_eq!(invalid.status, 400);
    assert!(invalid.text().contains("x-reef-record"));
    assert!(reef.rows().is_empty());
    assert_eq!(upstream.seen().len(), 2);
    assert_eq!(reef.metric("reef_opted_out_total"), 2.0);
}

#[test]
fn a_request_in_chunks_is_received_like_any_other() {
    let upstream = Upstream::always(answer(200, "application/json", "{}"));
    let reef = Reef::start(&upstream.url(), &[]);
    let mut stream = std::net::TcpStream::connect(reef.address).unwrap();
    stream
        .write_all(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-reef-scenario: s\r\ntransfer-encoding: chunked\r\n\
              connection: close\r\n\r\n8\r\n{\"model\"\r\n5\r\n:\"m\"}\r\n0\r\n\r\n",
        )
        .unwrap();
    let mut response = String::new();
    std::io::Read::read_to_string(&mut stream, &mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert_eq!(upstream.only().body, br#"{"model":"m"}"#);
    assert_eq!(upstream.only().header("transfer-encoding"), None);
    let head = http::send(reef.address, "HEAD", "/", &[], b"");
    assert_eq!(head.status, 200);
}
