//! The whole of the provider's API: what is recorded, what passes, which path was meant.

use serde_json::{Value, json};

use crate::common::http;
use crate::common::reef::Reef;
use crate::common::upstream::{Do, Seen, Upstream, answer, answer_with, stream};
use crate::turns;

const QUEUED: &str =
    r#"{"id":"resp_1","object":"response","status":"queued","background":true,"output":[],"model":"m"}"#;

fn completed(id: &str, text: &str) -> String {
    json!({"id": id, "object": "response", "status": "completed", "model": "m", "output": [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]})
    .to_string()
}

/// A provider that has everything.
fn provider(seen: &Seen) -> Vec<Do> {
    let path = seen.target.split('?').next().unwrap();
    let body = match (seen.method.as_str(), path) {
        ("POST", "/v1/chat/completions") => turns::SMALL_CHAT.to_owned(),
        ("GET", "/v1/chat/deferred-completion/x1") => turns::SMALL_CHAT.to_owned(),
        ("POST", "/v1/responses") => turns::SMALL_RESPONSE.to_owned(),
        ("GET", "/v1/responses/x1") => completed("x1", "hi"),
        ("POST", "/v1/messages") => r#"{"type":"message","content":[],"stop_reason":"end_turn"}"#.to_owned(),
        ("POST", "/v1/messages/count_tokens") => r#"{"input_tokens":3}"#.to_owned(),
        ("POST", "/v1/completions") => r#"{"choices":[{"text":"on","finish_reason":"stop"}]}"#.to_owned(),
        ("GET", "/v1/models") => r#"{"data":[{"id":"x1"},{"id":"org/x2"}]}"#.to_owned(),
        (method, _) => json!({"seen": format!("{method} {}", seen.target), "bytes": seen.body.len()}).to_string(),
    };
    answer_with(
        200,
        &[("content-type", "application/json"), ("x-from", "provider")],
        body,
    )
}

/// The lines of the table in the reference: method, path, whether it is recorded.
fn table() -> Vec<(String, String, String)> {
    let page = include_str!("../../docs/reference/http.md");
    let table = page.split("<!-- generated: provider routes -->").nth(1).unwrap();
    let lines = table.split("<!-- end -->").next().unwrap().lines().skip(3);
    lines
        .flat_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let route = cells[1].trim_matches('`');
            let (methods, path) = route
                .rsplit_once(' ')
                .unwrap_or(("GET, POST, PUT, PATCH, DELETE", route));
            let recorded = cells[2].to_owned();
            let path = path.replace("{id}", "x1").replace("/*", "/x1/y%20z");
            let methods: Vec<String> = methods.split(", ").map(str::to_owned).collect();
            methods
                .into_iter()
                .map(move |method| (method, path.clone(), recorded.clone()))
        })
        .collect()
}

#[test]
fn every_route_of_the_table_does_what_the_table_says() {
    let upstream = Upstream::start(|seen, _| provider(seen));
    let reef = Reef::start(
        &upstream.url(),
        &[
            "--upstream-api-key",
            "sk-upstream",
            "--upstream-model",
            "conf",
            "--reef.token",
            "tok",
        ],
    );
    let lines = table();
    assert!(lines.len() > 100, "{}", lines.len());
    let body = br#"{"odd" : "\ud83d", "stream":false}"#;
    let mut receipts = 0;
    for (method, path, recorded) in lines {
        let before = upstream.requests().len();
        let target = format!("{path}?a=%20b&c");
        let sent: &[u8] = if method == "GET" { b"" } else { body };
        let mut response = http::send(
            reef.address,
            &method,
            &target,
            &[
                ("authorization", "Bearer tok"),
                ("x-reef-scenario", "s"),
                ("openai-beta", "kept"),
                ("cookie", "secret=1"),
            ],
            sent,
        );
        let what = format!("{method} {path}");
        if path.starts_with("/v1/models") && method == "GET" {
            assert_eq!(response.header("x-from"), None, "{what}");
            continue;
        }
        assert_eq!(response.status, 200, "{what}");
        let receipt = response.receipt();
        assert_eq!(response.header("x-from"), Some("provider"), "{what}");
        let all = upstream.requests();
        assert_eq!(all.len(), before + 1, "{what}");
        let seen = all.last().unwrap();
        assert_eq!(
            (seen.method.as_str(), seen.target.as_str()),
            (method.as_str(), target.as_str())
        );
        assert_eq!(seen.header("authorization"), Some("Bearer sk-upstream"), "{what}");
        assert_eq!(seen.header("openai-beta"), Some("kept"));
        assert!(seen.header("cookie").is_none() && seen.header("x-reef-scenario").is_none());
        match recorded.as_str() {
            "no" => {
                assert_eq!(receipt, None, "{what}");
                assert_eq!(seen.body, sent, "{what}");
                assert_eq!(response.json()["seen"], format!("{method} {target}"), "{what}");
            }
            "yes" => {
                // The configured model goes into a turn that names none, and into nothing else.
                assert!(seen.body.starts_with(b"{\"model\":\"conf\","), "{what}");
                receipts += u32::from(receipt.is_some());
                assert!(receipt.is_some(), "{what}");
            }
            "once it is there" => {
                receipts += u32::from(receipt.is_some());
                assert!(receipt.is_some(), "{what}");
            }
            other => panic!("{other}"),
        }
    }
    let token = [("authorization", "Bearer tok")];
    let rows = http::send(reef.address, "GET", "/reef/scenarios/s/records?limit=100", &token, b"").json();
    assert_eq!(rows["records"].as_array().unwrap().len(), receipts as usize);
    let refused = http::send(reef.address, "POST", "/v1/embeddings", &[], b"{}");
    assert_eq!(refused.status, 401);
}

#[test]
fn what_passes_passes_as_it_is() {
    let upstream = Upstream::start(|seen, _| match seen.target.as_str() {
        "/v1/files/f/content" => answer_with(200, &[("content-type", "application/octet-stream")], b"\x00\xff\xfe"),
        "/v1/files/gone" => answer(404, "application/json", r#"{"error":{"message":"no such file"}}"#),
        "/v1/images/edits" => answer(507, "text/plain", "full"),
        "/v1/containers/c/content" => answer_with(302, &[("location", "https://elsewhere.example/x")], ""),
        "/v1/audio/speech" => stream(&[
            "data: {\"type\":\"speech.audio.delta\"}\n\n",
            "data: {\"type\":\"speech.audio.done\"}\n\n",
        ]),
        _ => provider(seen),
    });
    let reef = Reef::start(&upstream.url(), &[]);
    // No scenario is needed for what is not recorded.
    let send = |method: &str, path: &str, body: &[u8]| {
        http::send(
            reef.address,
            method,
            path,
            &[("content-type", "multipart/form-data; boundary=x")],
            body,
        )
    };
    assert_eq!(send("GET", "/v1/files/f/content", b"").bytes(), b"\x00\xff\xfe");
    let mut gone = send("GET", "/v1/files/gone", b"");
    assert_eq!(
        (gone.status, gone.text().as_str()),
        (404, r#"{"error":{"message":"no such file"}}"#)
    );
    let upload = [b"--x\r\n\r\n".as_slice(), &[0xff; 70_000], b"\r\n--x--\r\n"].concat();
    let mut full = send("POST", "/v1/images/edits", &upload);
    assert_eq!((full.status, full.text().as_str()), (507, "full"));
    let seen = upstream.requests().pop().unwrap();
    assert_eq!(
        (
            seen.body,
            seen.headers.iter().any(|(_, value)| value.contains("boundary=x"))
        ),
        (upload, true)
    );
    let moved = send("GET", "/v1/containers/c/content", b"");
    assert_eq!(
        (moved.status, moved.header("location")),
        (302, Some("https://elsewhere.example/x"))
    );
    assert!(send("POST", "/v1/audio/speech", b"{}").text().ends_with("done\"}\n\n"));
    let head = send("HEAD", "/v1/files/f/content", b"");
    assert_eq!(head.status, 200);
    for path in ["/v1/../admin", "/v1/files/%2e%2e/%2e%2e/admin", "/v1/x/..%2f..%2fadmin"] {
        assert_eq!(send("GET", path, b"").status, 404, "{path}");
    }
    assert!(upstream.requests().iter().all(|seen| !seen.target.contains("admin")));
    assert_eq!(
        reef.metric("reef_responses_total{route=\"passed\",status=\"5xx\"}"),
        1.0
    );
    assert!(reef.status()["scenarios"].as_object().unwrap().is_empty());

    // Nothing of it where the service does not allow it; turns go on.
    let reef = Reef::start(&upstream.url(), &["--reef.provider-api", "false"]);
    let mut refused = reef.post("/v1/embeddings", "{}");
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str()),
        (404, Some("not_passed"))
    );
    assert_eq!(reef.post("/v1/chat/completions", "{}").status, 200);
    assert!(reef.post("/v1/completions", "{}").receipt().is_some());
}

#[test]
fn a_provider_that_cannot_be_reached_is_told_in_the_dialect_of_the_caller() {
    let upstream = Upstream::always(vec![Do::Close]);
    let reef = Reef::start(&upstream.url(), &[]);
    let mut chat = reef.post("/v1/embeddings", "{}");
    assert_eq!(
        (chat.status, chat.json()["error"]["type"].as_str()),
        (502, Some("server_error"))
    );
    let mut anthropic = reef.post_with("/v1/files", &[("anthropic-version", "2023-06-01")], "{}");
    assert_eq!(
        (anthropic.status, anthropic.json()["type"].as_str()),
        (502, Some("error"))
    );
    // What might have been done is not done twice.
    assert_eq!(upstream.requests().len(), 2);
}

#[test]
fn an_answer_that_is_not_there_yet_is_recorded_by_the_request_that_fetches_it() {
    let upstream = Upstream::start(|seen, _| {
        let polls = seen.header("x-poll").unwrap_or("");
        match (seen.method.as_str(), polls) {
            ("POST", _) => answer(200, "application/json", QUEUED),
            ("GET", "working") => answer(200, "application/json", QUEUED.replace("queued", "in_progress")),
            ("GET", "again") => answer(
                200,
                "application/json",
                completed("resp_1", "hello").replace("{\"id\"", "{ \"id\""),
            ),
            _ => answer(200, "application/json", completed("resp_1", "hello")),
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let reef = Reef::start_in(dir.path(), &upstream.url(), &[]);
    let asked = r#"{"model":"m","input":"hi","background":true}"#;
    let queued = reef.post_with("/v1/responses", &[("x-reef-tag-session", "a")], asked);
    assert_eq!((queued.status, queued.receipt()), (200, None));
    let get = |reef: &Reef, poll: &str| {
        let headers = [("x-reef-scenario", "s"), ("x-poll", poll), ("x-reef-tag-poll", "b")];
        http::send(reef.address, "GET", "/v1/responses/resp_1", &headers, b"")
    };
    assert_eq!(get(&reef, "working").receipt(), None);
    assert!(reef.rows().is_empty());
    let mut done = get(&reef, "");
    let receipt = done.receipt().unwrap();
    assert_eq!(done.text(), completed("resp_1", "hello"));
    let record = reef.record(&receipt);
    assert_eq!(
        (&record["turn"]["text"], &record["route"]),
        (&json!("hello"), &json!("/v1/responses"))
    );
    assert_eq!(
        (&record["payload"]["input"], &record["tags"]),
        (&json!("hi"), &json!({"session": "a", "poll": "b"}))
    );
    // Again, worded otherwise; by a look without a scenario; and after a restart: the same receipt or none, one record.
    assert_eq!(get(&reef, "again").receipt().as_ref(), Some(&receipt));
    assert_eq!(reef.get("/v1/responses/resp_1").receipt(), None);
    drop(reef);
    let reef = Reef::start_in(dir.path(), &upstream.url(), &[]);
    for poll in ["", "again"] {
        assert_eq!(get(&reef, poll).receipt().as_ref(), Some(&receipt));
    }
    assert_eq!(reef.rows().len(), 1);
    let report = reef.post("/reef/report", format!(r#"{{"score":1,"references":["{receipt}"]}}"#));
    assert_eq!(report.status, 200);
    // A response that had its receipt at once keeps it.
    let upstream = Upstream::always(answer(200, "application/json", completed("resp_2", "hi")));
    let reef = Reef::start(&upstream.url(), &[]);
    let first = reef.post("/v1/responses", "{}").receipt().unwrap();
    let scenario = [("x-reef-scenario", "s")];
    let again = http::send(reef.address, "GET", "/v1/responses/resp_2", &scenario, b"");
    assert_eq!((again.receipt(), reef.rows().len()), (Some(first), 1));
}

#[test]
fn a_failed_answer_counts_once_however_often_it_is_fetched() {
    let failed = r#"{"id":"resp_1","object":"response","status":"failed","error":{"code":"server_error","message":"gone"},"output":[]}"#;
    let upstream = Upstream::start(move |seen, _| {
        answer(
            200,
            "application/json",
            if seen.method == "POST" { QUEUED } else { failed },
        )
    });
    let reef = Reef::start(&upstream.url(), &[]);
    reef.post("/v1/responses", r#"{"background":true}"#);
    for _ in 0..3 {
        let mut response = http::send(
            reef.address,
            "GET",
            "/v1/responses/resp_1",
            &[("x-reef-scenario", "s")],
            b"",
        );
        assert_eq!((response.receipt(), response.text().as_str()), (None, failed));
    }
    reef.wait_for_interruptions("upstream_error_event", 1);
    assert!(reef.rows().is_empty());
    // An answer that the provider does not have is no exchange of this service.
    let upstream = Upstream::always(answer(404, "application/json", "{}"));
    let reef = Reef::start(&upstream.url(), &[]);
    let response = http::send(
        reef.address,
        "GET",
        "/v1/responses/none",
        &[("x-reef-scenario", "s")],
        b"",
    );
    assert_eq!(response.status, 404);
}

#[test]
fn a_background_stream_that_was_left_is_recorded_by_the_one_that_goes_on() {
    let events = turns::events(turns::RESPONSES);
    let (first, all) = (events[..4].concat(), turns::RESPONSES.to_owned());
    let upstream = Upstream::start(move |seen, _| stream(&[if seen.method == "POST" { &first } else { &all }]));
    let reef = Reef::start(&upstream.url(), &[]);
    let got = reef
        .post("/v1/responses", r#"{"input":"hi","background":true,"stream":true}"#)
        .text();
    assert!(got.contains("before the response was complete"));
    reef.wait_for_interruptions("upstream_closed", 1);
    let path = "/v1/responses/resp_1?stream=true&starting_after=3";
    let got = http::send(reef.address, "GET", path, &[("x-reef-scenario", "s")], b"").text();
    let (id, rest) = turns::take_receipt("/v1/responses", &got);
    assert_eq!(rest, turns::RESPONSES);
    assert_eq!(upstream.requests().pop().unwrap().target, path);
    let record = reef.record(&id);
    assert_eq!(
        (&record["payload"]["input"], &record["turn"]["text"]),
        (&json!("hi"), &json!(turns::TEXT))
    );
    // The same stream once more, the same receipt.
    let got = http::send(reef.address, "GET", path, &[("x-reef-scenario", "s")], b"").text();
    assert_eq!(
        (turns::take_receipt("/v1/responses", &got).0, reef.rows().len()),
        (id, 1)
    );
}

#[test]
fn a_deferred_completion_is_recorded_when_it_is_fetched() {
    let upstream = Upstream::start(|seen, _| match (seen.method.as_str(), seen.header("x-poll")) {
        ("POST", _) => answer(200, "application/json", r#"{"request_id":"d-1"}"#),
        (_, Some("early")) => answer(202, "application/json", ""),
        _ => answer(200, "application/json", turns::CHAT_BODY),
    });
    let reef = Reef::start(&upstream.url(), &[]);
    assert_eq!(
        reef.post("/v1/chat/completions", r#"{"deferred":true,"messages":[]}"#)
            .receipt(),
        None
    );
    let get = |poll: &str| {
        let headers = [("x-reef-scenario", "s"), ("x-poll", poll)];
        http::send(reef.address, "GET", "/v1/chat/deferred-completion/d-1", &headers, b"")
    };
    assert_eq!((get("early").status, get("early").receipt()), (202, None));
    let record = reef.record(&get("").receipt().unwrap());
    assert_eq!(
        (&record["turn"]["text"], &record["payload"]["deferred"]),
        (&json!(turns::TEXT), &json!(true))
    );
    assert_eq!(reef.status()["service"]["interrupted"]["upstream_no_answer"], 0);
}

#[test]
fn websockets_are_refused_in_words() {
    let upstream = Upstream::start(|seen, _| provider(seen));
    let reef = Reef::start(&upstream.url(), &[]);
    for path in ["/v1/responses", "/v1/realtime?model=m"] {
        let headers = [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("x-reef-scenario", "s"),
        ];
        let mut response = http::send(reef.address, "GET", path, &headers, b"");
        assert_eq!(response.status, 426);
        assert!(response.header("upgrade").is_some());
        let error = response.json();
        assert_eq!(error["error"]["code"], "websocket_refused");
        assert!(error["error"]["message"].as_str().unwrap().contains("over HTTP"));
    }
    assert!(upstream.requests().is_empty());
}

#[test]
fn a_base_url_with_a_part_too_many_or_too_few_is_served_or_told_the_right_one() {
    let upstream = Upstream::start(|seen, _| provider(seen));
    let reef = Reef::start(&upstream.url(), &[]);
    for (path, meant) in [
        ("/v1/v1/messages", "/v1/messages"),
        ("//v1/messages?beta=true", "/v1/messages?beta=true"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("//v1//chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("/v1/messages/v1/messages", "/v1/messages"),
        ("/responses", "/v1/responses"),
    ] {
        let response = reef.post(path, "{}");
        assert_eq!(response.status, 200, "{path}");
        assert!(response.receipt().is_some(), "{path}");
        assert_eq!(upstream.seen().last().unwrap().target, meant, "{path}");
    }
    assert_eq!(reef.post("/embeddings", "{}").status, 200);
    assert_eq!(reef.get("/models").json()["data"][0]["id"], "x1");
    assert_eq!(reef.get("/v1/models/org/x2").json()["id"], "org/x2");
    for (path, right, anthropic) in [
        ("/api/v1/chat/completions", "the route is /v1/chat/completions", false),
        ("/V1/Chat/Completions", "the route is /v1/chat/completions", false),
        ("/anthropic/v1/messages", "the route is /v1/messages", true),
        (
            "/v2/messages/count_tokens",
            "the route is /v1/messages/count_tokens",
            true,
        ),
        ("/nothing/like/it", "there is no POST /nothing/like/it", false),
    ] {
        let mut response = reef.post(path, "{}");
        assert_eq!(response.status, 404, "{path}");
        let error: Value = response.json();
        assert_eq!(error["type"] == "error", anthropic, "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains(right), "{error}");
    }
    let mut wrong = http::send(reef.address, "GET", "/v1/v1/messages", &[], b"");
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
    assert_eq!(wrong.json()["type"], "error");
}
