//! What the gateway lets through, its own readers take: half an emoji, any depth, numbers no float holds, odd text.

use std::process::Output;

use serde_json::{Value, json};

use crate::common::reef::{self, Reef};
use crate::common::upstream::{Upstream, answer, stream};
use crate::turns;

const CHAT: &str = "/v1/chat/completions";

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone())
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Request bodies, each an object that strict readers refuse or that is at the edge of what they take.
fn requests() -> Vec<Vec<u8>> {
    let deep = |open: &str, close: &str, depth: usize| {
        format!(
            r#"{{"messages":[],"metadata":{}1{}}}"#,
            open.repeat(depth),
            close.repeat(depth)
        )
        .into_bytes()
    };
    let mut bodies: Vec<Vec<u8>> = [
        r#"{"messages":[{"role":"tool","tool_call_id":"a","content":"cut \ud83d"}]}"#,
        r#"{"messages":[{"role":"user","content":"\udc1f words \ud83d"}],"\ud83d":1}"#,
        r#"{"messages":[],"temperature":1e999,"seed":123456789012345678901234567890,"x":-0.0}"#,
        r#"{"messages":[],"a":1,"a":2,"messages":[{"role":"user","content":"second"}]}"#,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\u{feff}\u{2028}\u{10ffff}\"}]}",
        "{ \"messages\" : [\n] }\n",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    for depth in [98, 99, 100, 125, 126, 127, 128, 200, 5000] {
        bodies.push(deep("[", "]", depth));
    }
    bodies.push(deep("{\"a\":", "}", 200));
    bodies
}

/// Whole answers, with the text of each.
fn answers() -> Vec<(Vec<u8>, &'static str)> {
    let with = |logprobs: &str| {
        format!(r#"{{"choices":[{{"index":0,"message":{{"content":"fine"}},"logprobs":{{"content":[{{"token":"a","logprob":{logprobs}}}]}},"finish_reason":"stop"}}]}}"#).into_bytes()
    };
    let mut bodies = vec![
        (
            br#"{"choices":[{"message":{"content":"fine \ud83d text"},"finish_reason":"stop"}]}"#.to_vec(),
            "fine \u{fffd} text",
        ),
        (
            b"{\"choices\":[{\"message\":{\"content\":\"fine \xff text\"},\"finish_reason\":\"stop\"}]}".to_vec(),
            "fine \u{fffd} text",
        ),
        (
            b"\xef\xbb\xbf{\"choices\":[{\"message\":{\"content\":\"fine\"},\"finish_reason\":\"stop\"}]}".to_vec(),
            "fine",
        ),
        (
            br#"{"choices":1,"choices":[{"message":{"content":"fine"},"finish_reason":"stop"}]}"#.to_vec(),
            "fine",
        ),
    ];
    for value in ["NaN", "-Infinity", "Infinity", "1e999", "-9999999999999999999999999999"] {
        bodies.push((with(value), "fine"));
    }
    bodies.push((with(&("[".repeat(300) + &"]".repeat(300))), "fine"));
    bodies
}

#[test]
fn whatever_was_served_is_shown_exported_and_imported() {
    let answers = answers();
    let upstream = Upstream::start({
        let answers = answers.clone();
        move |seen, before| {
            let (body, _) = &answers[before % answers.len()];
            if seen.body.windows(8).any(|window| window == b"\"stream\"") {
                let text = String::from_utf8_lossy(body).into_owned();
                stream(&[&format!(
                    "data: {}\n\ndata: [DONE]\n\n",
                    text.trim_start_matches('\u{feff}')
                )])
            } else {
                answer(200, "application/json", body)
            }
        }
    });
    let reef = Reef::start(&upstream.url(), &[]);
    let mut receipts = Vec::new();
    for (number, body) in requests()
        .into_iter()
        .chain(answers.iter().map(|_| b"{\"messages\":[]}".to_vec()))
        .enumerate()
    {
        let (sent, text) = &answers[number % answers.len()];
        let mut response = reef.post(CHAT, &body);
        assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&body));
        assert_eq!(&response.bytes(), sent);
        assert_eq!(upstream.seen().last().unwrap().body, body);
        let receipt = response.receipt().unwrap();
        let record = reef.record(&receipt);
        assert_eq!(record["turn"]["text"], *text);
        assert_eq!(record["turn"]["stop_reason"], "stop");
        assert!(record["payload"]["messages"].is_array(), "{record}");
        assert!(record["payload"]["response"]["choices"].is_array(), "{record}");
        receipts.push(receipt);
    }
    for (_, text) in answers.iter().filter(|(body, _)| std::str::from_utf8(body).is_ok()) {
        // The same answers, in turn, as events.
        let got = reef.post(CHAT, r#"{"stream":true,"messages":[]}"#).text();
        let (id, _) = turns::take_receipt(CHAT, &got);
        assert_eq!(reef.record(&id)["turn"]["stop_reason"], "stop", "{text}");
        receipts.push(id);
    }
    let deep = "[".repeat(126) + &"]".repeat(126);
    for report in [
        format!(
            r#"{{"score":1,"feedback":"cut \ud83d","references":["{}"]}}"#,
            receipts[0]
        ),
        format!(r#"{{"feedback":{{"a":{deep}}},"references":["{}"]}}"#, receipts[1]),
    ] {
        let mut response = reef.post("/reef/report", &report);
        let said = response.text();
        assert_eq!(response.status, 200, "{said}");
    }

    let command = |args: &[&str]| reef::run(&reef.dir, &[args, &["--dir", ".reef"]].concat());
    let exported = command(&["records", "export"]);
    // Every line is JSON to everyone.
    let rows = lines(&exported);
    assert_eq!(rows.len(), receipts.len() + 2);
    for receipt in &receipts {
        let shown = lines(&command(&["records", "show", receipt, "--json"]));
        assert_eq!(shown.len(), 1);
        assert!(command(&["records", "show", receipt]).status.success());
    }
    std::fs::write(reef.dir.join("x.jsonl"), &exported.stdout).unwrap();
    let import = |dir: &str| {
        lines(&reef::run(
            &reef.dir,
            &["records", "import", "x.jsonl", "--strict", "--json", "--dir", dir],
        ))[0]["inserted"]
            .clone()
    };
    assert_eq!(import("other"), json!(rows.len()));
    // The same, byte for byte, on the other side, and nothing new on this one.
    assert_eq!(
        reef::run(&reef.dir, &["records", "export", "--dir", "other"]).stdout,
        exported.stdout
    );
    assert_eq!(import(".reef"), json!(0));
}

#[test]
fn an_import_names_each_bad_line_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let good = |n: u32| format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{n}\"}}],\"completion\":\"a\"}}\n");
    let bad = [
        "not json\n",
        "{\"messages\":[]}\n",
        "{\"agent_record_id\":\"p\",\"request_type\":\"report\",\"payload\":{\"references\":[\"no\"]}}\n",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"completion\":\"a\",\"score\":1e300}\n",
    ];
    let mut text = good(1);
    for (n, line) in bad.iter().enumerate() {
        text.push_str(line);
        text.push_str(&good(n as u32 + 2));
    }
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(b"\xff\xfe\n");
    bytes.extend_from_slice(good(9).as_bytes());
    std::fs::write(dir.path().join("x.jsonl"), &bytes).unwrap();
    let import = |more: &[&str]| {
        reef::run(
            dir.path(),
            &[&["records", "import", "x.jsonl", "--scenario", "s", "--dir", "d"], more].concat(),
        )
    };
    for (inserted, already) in [(6, 0), (0, 6)] {
        let output = import(&["--json"]);
        assert_eq!(output.status.code(), Some(4));
        let done: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&done["inserted"], &done["already_stored"]),
            (&json!(inserted), &json!(already))
        );
        let mut refused: Vec<(u64, String)> = done["refused"]
            .as_array()
            .unwrap()
            .iter()
            .map(|each| {
                (
                    each["line"].as_u64().unwrap(),
                    each["reason"].as_str().unwrap().to_owned(),
                )
            })
            .collect();
        refused.sort();
        let words = ["not JSON", "no answer", "reference 0", "score", "not UTF-8"];
        let numbers: Vec<u64> = refused.iter().map(|(line, _)| *line).collect();
        assert_eq!(numbers, [2, 4, 6, 8, 10]);
        for ((_, reason), word) in refused.iter().zip(words) {
            assert!(reason.contains(word), "{reason}");
        }
    }
    let output = import(&[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("x.jsonl:2: ") && said.contains("5 lines were refused"),
        "{said}"
    );
    assert_eq!(import(&["--strict"]).status.code(), Some(2));
    // Nothing of a file that is something else: that is no import at all.
    std::fs::write(dir.path().join("x.jsonl"), "<html>\n").unwrap();
    assert_eq!(import(&[]).status.code(), Some(2));
}
