//! The real program serving the embedded model: every dialect, whole and streamed, with receipts, records and captures.
#![cfg(feature = "torch")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

mod common;

use std::path::Path;

use common::reef::Reef;
use reef::domain::{RecordId, TokenCapture};
use reef::engine::models::{synthetic_config, write_synthetic};
use reef::experience::{Experience, StoreOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The program on a synthetic model. The directory must outlive it.
fn serve(more: &[&str]) -> (Reef, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("tiny");
    write_synthetic(&model, &synthetic_config(), 7).unwrap();
    let model = model.to_str().unwrap().to_owned();
    let args = [
        &[
            "--inference.model-path",
            &model,
            "--inference.context",
            "512",
            "--inference.max-batch",
            "4",
            "--inference.threads",
            "1",
        ],
        more,
    ]
    .concat();
    let reef = Reef::start_with(dir.path(), &args, |_| {});
    (reef, dir)
}

/// The tokens stored with a receipt.
fn capture(dir: &Path, receipt: &str) -> TokenCapture {
    let store = Experience::open(&dir.join(".reef/experience.db"), StoreOptions::default()).unwrap();
    let record = store.record(None, &RecordId::new(receipt).unwrap()).unwrap().unwrap();
    record.bodies.unwrap().capture.expect("the record has its tokens")
}

/// The events of a stream: name (or nothing) and data.
fn events(text: &str) -> Vec<(String, Value)> {
    text.split("\n\n")
        .filter(|frame| !frame.trim().is_empty() && !frame.starts_with(':'))
        .map(|frame| {
            let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name));
            let data = field("data: ").unwrap();
            let data = serde_json::from_str(data).unwrap_or_else(|_| Value::from(data));
            (field("event: ").unwrap_or_default().to_owned(), data)
        })
        .collect()
}

const CHAT: &str = "/v1/chat/completions";

fn chat(extra: &Value) -> String {
    let mut body = json!({
        "model": "any", "messages": [{"role": "user", "content": "how long is it"}], "max_tokens": 20, "seed": 3,
    });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body.to_string()
}

#[test]
fn every_dialect_answers_whole_and_streamed_and_both_are_recorded_alike() {
    let (reef, dir) = serve(&[]);
    let messages = json!([{"role": "user", "content": "how long is it"}]);
    let requests = [
        (CHAT, json!({"messages": messages, "max_tokens": 20, "temperature": 0})),
        (
            "/v1/responses",
            json!({"input": "how long is it", "max_output_tokens": 20, "temperature": 0}),
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 20, "temperature": 0}),
        ),
    ];
    let mut tokens = Vec::new();
    for (path, body) in requests {
        let mut whole = reef.post(path, body.to_string());
        let json = whole.json();
        assert_eq!(whole.status, 200, "{json}");
        let receipt = whole.receipt().unwrap();
        let text = match path {
            CHAT => &json["choices"][0]["message"]["content"],
            "/v1/responses" => &json["output"][0]["content"][0]["text"],
            _ => &json["content"][0]["text"],
        };
        let text = text.as_str().unwrap().to_owned();
        assert!(!text.is_empty());

        let mut streaming = body.clone();
        streaming["stream"] = json!(true);
        let mut stream = reef.post(path, streaming.to_string());
        assert_eq!(stream.header("content-type"), Some("text/event-stream; charset=utf-8"));
        let all = events(&stream.text());
        let said: String = all
            .iter()
            .map(|(name, data)| {
                let piece = match (path, name.as_str()) {
                    (CHAT, _) => &data["choices"][0]["delta"]["content"],
                    (_, "response.output_text.delta") => &data["delta"],
                    (_, "content_block_delta") => &data["delta"]["text"],
                    _ => &Value::Null,
                };
                piece.as_str().unwrap_or_default().to_owned()
            })
            .collect();
        assert_eq!(said, text, "{path}");
        let streamed_receipt = all
            .iter()
            .find_map(|(_, data)| data["reef"]["agent_record_id"].as_str())
            .expect("a receipt in the stream")
            .to_owned();
        for receipt in [&receipt, &streamed_receipt] {
            let capture = capture(dir.path(), receipt);
            assert_eq!(capture.logprobs.len(), capture.token_ids.len());
            assert_eq!(capture.spans.last().unwrap().end, capture.token_ids.len());
            tokens.push((capture.prompt_token_ids, capture.token_ids));
            assert_eq!(reef.record(receipt)["has_capture"], true);
        }
    }
    tokens.dedup();
    assert_eq!(tokens.len(), 1, "one prompt and one greedy answer in every dialect");
}

#[test]
fn usage_logprobs_and_choices_are_as_asked() {
    let (reef, _dir) = serve(&[]);
    let body = chat(&json!({"logprobs": true, "top_logprobs": 2, "n": 2, "temperature": 1.0}));
    let json = reef.post(CHAT, body).json();
    for choice in json["choices"].as_array().unwrap() {
        let logprobs = choice["logprobs"]["content"].as_array().unwrap();
        assert!(!logprobs.is_empty());
        for token in logprobs {
            assert!(token["logprob"].as_f64().unwrap() <= 0.0);
            assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
        }
    }
    let n: usize = json["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["logprobs"]["content"].as_array().unwrap().len())
        .sum();
    assert_eq!(json["usage"]["completion_tokens"], n);
    let body = chat(&json!({"stream": true, "stream_options": {"include_usage": true}}));
    let all = events(&reef.post(CHAT, body).text());
    let (_, usage) = &all[all.len() - 3];
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["total_tokens"].as_u64().unwrap() > 20);
    assert_eq!(all.last().unwrap().1, "[DONE]");
}

#[test]
fn a_compressed_request_is_read() {
    let (reef, _dir) = serve(&[]);
    let mut body = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut body, chat(&json!({})).as_bytes()).unwrap();
    let headers = [("content-encoding", "gzip")];
    let mut response = reef.post_with(CHAT, &headers, body.finish().unwrap());
    let text = response.text();
    assert_eq!(response.status, 200, "{text}");
}

#[test]
fn models_and_token_counts_are_told() {
    let (reef, _dir) = serve(&["--inference.model-name", "little"]);
    let models = reef.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "little");
    let body = json!({"messages": [{"role": "user", "content": "how long is it"}]});
    let count = reef.post("/v1/messages/count_tokens", body.to_string()).json();
    let mut answer = body;
    answer["max_tokens"] = json!(1);
    let usage = reef.post("/v1/messages", answer.to_string()).json()["usage"].clone();
    let prompt = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(count["input_tokens"], prompt);
}

#[test]
fn what_is_wrong_is_said_in_dialect_and_not_recorded() {
    let (reef, _dir) = serve(&[]);
    let mut response = reef.post(CHAT, chat(&json!({"temperature": 9})));
    assert_eq!(response.status, 400);
    assert_eq!(response.json()["error"]["param"], "temperature");
    let mut response = reef.post("/v1/messages", r#"{"messages": [{"role": "user", "content": "x"}]}"#);
    assert_eq!(response.status, 400);
    assert_eq!(response.json()["error"]["type"], "invalid_request_error");
    let long = "word ".repeat(2000);
    let mut response = reef.post(
        CHAT,
        chat(&json!({"stream": true, "messages": [{"role": "user", "content": long}]})),
    );
    assert_eq!(
        (response.status, response.header("content-type")),
        (400, Some("application/json"))
    );
    assert_eq!(response.json()["error"]["code"], "context_length_exceeded");
    assert_eq!(reef.rows().len(), 0);
}

#[test]
fn clients_at_once_and_clients_that_leave() {
    let (reef, _dir) = serve(&[]);
    std::thread::scope(|scope| {
        for n in 0..8 {
            let reef = &reef;
            scope.spawn(move || {
                let body = chat(&json!({"seed": n, "stream": n % 2 == 0, "ignore_eos": true}));
                let mut response = reef.post(CHAT, body);
                assert_eq!(response.status, 200);
                assert!(response.text().len() > 20);
            });
        }
        for _ in 0..3 {
            let reef = &reef;
            scope.spawn(move || {
                let body = chat(&json!({"stream": true, "max_tokens": 450, "ignore_eos": true}));
                let mut response = reef.post(CHAT, body);
                response.piece().unwrap().unwrap();
                drop(response);
            });
        }
    });
    reef.wait_until_idle();
    // Whoever left, left no record behind; a fast machine may have finished some of them.
    let rows = reef.rows().len();
    assert!((8..=11).contains(&rows), "{rows}");
    assert_eq!(reef.post(CHAT, chat(&json!({}))).status, 200);
    let serving = &reef.status()["serving"]["torch"];
    assert_eq!(
        (&serving["running"], &serving["failed_total"]),
        (&json!(0), &json!(0)),
        "{serving}"
    );
    assert!(reef.metric("reef_engine_generated_tokens_total") >= 160.0);
    let left = reef.metric("reef_engine_cancelled_total") + reef.metric("reef_engine_finished_total");
    assert!(left >= 12.0, "{left}");
}
