//! Reef's own routes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::common::http::{self, Response};
use crate::common::reef::{self, Reef};
use crate::common::upstream::{Upstream, answer};
use crate::turns;

const CHAT: &str = "/v1/chat/completions";

fn upstream() -> Upstream {
    Upstream::start(|seen, _| match seen.method.as_str() {
        "GET" => answer(
            200,
            "application/json",
            r#"{"object":"list","data":[{"id":"a/1","object":"model","owned_by":"them"},{"id":"b","object":"model"}]}"#,
        ),
        _ => answer(200, "application/json", turns::CHAT_BODY),
    })
}

fn receipt(reef: &Reef, scenario: &str) -> String {
    let headers = [("x-reef-scenario", scenario)];
    http::send(reef.address, "POST", CHAT, &headers, b"{}")
        .receipt()
        .unwrap()
}

fn report(reef: &Reef, scenario: &str, body: &Value) -> Response {
    let headers = [("x-reef-scenario", scenario)];
    http::send(
        reef.address,
        "POST",
        "/reef/report",
        &headers,
        body.to_string().as_bytes(),
    )
}

#[test]
fn clients_that_probe_at_start_get_what_they_look_for() {
    let upstream = upstream();
    let reef = Reef::start(&upstream.url(), &["--upstream-model", "conf"]);
    let list = reef.get("/v1/models").json();
    let ids: Vec<&str> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["id"].as_str().unwrap())
        .collect();
    assert_eq!((list["object"].as_str(), ids), (Some("list"), vec!["conf", "a/1", "b"]));
    assert_eq!(reef.get("/v1/models/a/1").json()["owned_by"], "them");
    assert_eq!(reef.get("/v1/models/a%2F1").json()["id"], "a/1");
    let anthropic = [("anthropic-version", "2023-06-01")];
    let list = http::send(reef.address, "GET", "/v1/models?limit=1000", &anthropic, b"").json();
    assert_eq!(
        (list["data"][0]["type"].as_str(), list["first_id"].as_str()),
        (Some("model"), Some("conf"))
    );
    for (method, path, status) in [
        ("HEAD", "/", 200),
        ("GET", "/", 200),
        ("HEAD", "/healthz", 200),
        ("GET", "/v1/models/none", 404),
        ("GET", "/api/v1/models", 404),
        ("POST", "/api/show", 404),
        ("POST", "/v1beta/models/gemini:generateContent", 404),
        ("DELETE", "/v1/models", 405),
        ("POST", "/reef/status", 405),
        ("GET", "/reef/report", 405),
        ("OPTIONS", "/v1/chat/completions", 405),
    ] {
        let mut response = http::send(reef.address, method, path, &[], b"");
        assert_eq!(response.status, status, "{method} {path}");
        if status >= 400 {
            assert!(response.json()["error"]["message"].is_string());
        }
    }
}

#[test]
fn the_list_of_models_does_not_depend_on_the_upstream_being_there() {
    let reef = Reef::start("http://127.0.0.1:9", &["--upstream-model", "conf"]);
    let list = reef.get("/v1/models").json();
    assert_eq!(list["data"][0]["id"], "conf");
}

#[test]
fn tokens_open_every_route_but_health_and_never_show() {
    let upstream = upstream();
    let reef = Reef::start(&upstream.url(), &["--reef.tokens", r#"["one","two"]"#]);
    assert_eq!(reef.get("/healthz").status, 200);
    for path in [
        "/",
        "/v1/models",
        "/reef/status",
        "/metrics",
        "/reef/scenarios",
        "/nothing",
    ] {
        let status = |headers: &[(&str, &str)]| http::send(reef.address, "GET", path, headers, b"").status;
        assert_eq!(status(&[]), 401, "{path}");
        assert_eq!(status(&[("authorization", "Bearer wrong-token-7")]), 401);
        assert_ne!(status(&[("authorization", "Bearer one")]), 401);
        assert_ne!(status(&[("x-api-key", "two")]), 401);
        assert_eq!(
            http::send(reef.address, "GET", &format!("{path}?token=one"), &[], b"").status,
            401
        );
    }
    let page = http::send(reef.address, "GET", "/metrics", &[("x-api-key", "one")], b"").text();
    assert!(!page.contains("reef_refused_tokens_total 0"));
    let log = reef.log();
    assert!(
        !log.contains("wrong-token-7") && !log.contains("Bearer one") && !log.contains("Bearer wrong"),
        "{log}"
    );
}

#[test]
fn an_agent_of_an_episode_adds_nothing_to_the_experience() {
    let upstream = upstream();
    // No token is asked of anybody: what refuses the agent is its own.
    let reef = Reef::start(&upstream.url(), &[]);
    let chat = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    let receipt = reef.post("/v1/chat/completions", chat).receipt().unwrap();
    let before = reef.rows().len();
    let report = format!(r#"{{"score":1,"references":["{receipt}"]}}"#);
    let import = r#"{"agent_record_id":"r-1","request_type":"report","payload":{"score":1}}"#;
    for (path, body) in [
        ("/reef/report", report.as_str()),
        ("/reef/records", import),
        ("/reef/train", r#"{"instruction":"score me higher"}"#),
        ("/reef/harness/proposals", r#"{"reason":"x","mutations":[]}"#),
        ("/v1/chat/completions", chat),
    ] {
        for credential in [
            ("authorization", "Bearer reef-episode-0a1b2c"),
            ("x-api-key", "reef-episode-0a1b2c"),
        ] {
            let mut refused = reef.post_with(path, &[credential], body);
            assert_eq!(refused.status, 403, "{path}");
            assert!(refused.text().contains("episode_token"), "{path}");
        }
    }
    assert_eq!(reef.rows().len(), before);
    assert_eq!(
        reef.post("/reef/report", &report).status,
        200,
        "a person's report of the same exchange counts"
    );
    assert_eq!(reef.rows().len(), before + 1);
}

#[test]
fn an_open_service_beyond_this_machine_must_be_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "serve",
        "--upstream-url",
        "http://127.0.0.1:9",
        "--host",
        "0.0.0.0",
        "--port",
        "0",
    ];
    let output = reef::run(dir.path(), &args);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("without a token") && text.contains("--allow-open"),
        "{text}"
    );
}

#[test]
fn a_busy_port_is_refused_clearly() {
    let upstream = upstream();
    let dir = tempfile::tempdir().unwrap();
    let port = upstream.address.port().to_string();
    let output = reef::run(
        dir.path(),
        &["serve", "--upstream-url", "http://127.0.0.1:9", "--port", &port],
    );
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains(&format!("port {port}")) && text.contains("in use"),
        "{text}"
    );
}

#[test]
fn reports_are_stored_once_and_bad_ones_not_at_all() {
    let upstream = upstream();
    let reef = Reef::start(&upstream.url(), &[]);
    let (first, second, foreign) = (receipt(&reef, "s"), receipt(&reef, "s"), receipt(&reef, "other"));
    let good = json!({"agent_record_id": "rep-1", "score": 1, "feedback": "fine", "references": [first]});
    for body in [
        good.to_string(),
        r#"{"references":["FIRST"],"feedback":"fine",  "score":1.0,"agent_record_id":"rep-1"}"#
            .replace("FIRST", &first),
    ] {
        let mut response = reef.post("/reef/report", body);
        assert_eq!(response.status, 200);
        assert_eq!(
            response.json(),
            json!({"agent_record_id": "rep-1", "scenario": "s", "request_type": "report"})
        );
    }
    let mut conflict = report(
        &reef,
        "s",
        &json!({"agent_record_id": "rep-1", "score": 0, "references": [first]}),
    );
    assert_eq!(conflict.status, 409);
    assert_eq!(conflict.json()["error"]["code"], "conflict");
    let generated = report(&reef, "s", &json!({"score": 0.5, "references": [second]})).json();
    let id = generated["agent_record_id"].as_str().unwrap();
    assert_eq!(reef.record(id)["payload"]["score"], 0.5);
    let before = reef.rows().len();
    let many: Vec<String> = (0..10_000).map(|n| format!("r{n}")).collect();
    for (body, part) in [
        (json!({"references": ["nobody"]}), "\"nobody\""),
        (json!({"references": [""]}), "references[0]"),
        (json!({"references": [first, first]}), "more than once"),
        (json!({"references": [foreign]}), "another scenario"),
        (json!({"references": ["rep-1"]}), "report"),
        (json!({"references": many}), "r"),
        (json!({"references": "x"}), "references"),
        (json!({"references": [1]}), "references[0]"),
        (json!({"score": true}), "score"),
        (json!({"score": "1"}), "score"),
        (json!({"feedback": [1]}), "feedback"),
        (json!({"metadata": []}), "metadata"),
        (json!({"agent_record_id": ""}), "agent_record_id"),
        (json!([]), "JSON object"),
    ] {
        let mut response = report(&reef, "s", &body);
        assert_eq!(response.status, 400, "{body}");
        let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(part), "{message}");
    }
    for raw in [r#"{"score":NaN}"#, r#"{"score":1e999}"#, "", "{"] {
        assert_eq!(reef.post("/reef/report", raw).status, 400, "{raw}");
    }
    assert_eq!(report(&reef, "mistyped", &json!({"references": [first]})).status, 404);
    let missing = http::send(reef.address, "POST", "/reef/report", &[], b"{}");
    assert_eq!(missing.status, 400);
    assert_eq!(reef.rows().len(), before);
    let detail = reef.record(&first);
    assert_eq!(detail["reports"].as_array().unwrap().len(), 1);
}

#[test]
fn scenarios_are_created_changed_described_and_archived() {
    let upstream = upstream();
    let reef = Reef::start(&upstream.url(), &["--reef.allow-implicit-scenario-creation", "false"]);
    let post = |path: &str, body: &Value| http::send(reef.address, "POST", path, &[], body.to_string().as_bytes());
    assert_eq!(reef.post(CHAT, "{}").status, 404);
    let mut created = post("/reef/scenarios", &json!({"scenario": "s", "training_mode": "manual"}));
    assert_eq!(created.status, 201);
    let created = created.json();
    assert!(created["release_id"].is_string() && created["content_id"].is_string());
    assert_eq!(post("/reef/scenarios", &json!({"scenario": "s"})).status, 200);
    let response = reef.post(CHAT, "{}");
    assert_eq!(response.status, 200);
    let frozen = reef.record(&response.receipt().unwrap())["artifact_ref"].clone();
    assert_eq!(frozen["release_id"], created["release_id"]);
    let contract = reef.get("/reef/scenarios/s/contract").json();
    assert_eq!(contract["training_mode"], "manual");
    let update = post("/reef/scenarios/s/update", &json!({"training_mode": "hybrid"})).json();
    assert_eq!(update, json!({"scenario": "s", "training_mode": "hybrid"}));
    let list = reef.get("/reef/scenarios").json();
    assert_eq!(list["scenarios"][0]["training_mode"], "hybrid");
    assert_eq!(list["scenarios"][0]["exchanges"], 1);
    assert_eq!(
        reef.get("/reef/scenarios/s/commits").json()["next_after_step"],
        Value::Null
    );
    for (path, body, status) in [
        ("/reef/scenarios", json!({"scenario": "../x"}), 400),
        ("/reef/scenarios", json!({"scenario": 1}), 400),
        ("/reef/scenarios", json!({}), 400),
        ("/reef/scenarios", json!({"scenario": "t", "colour": "red"}), 400),
        (
            "/reef/scenarios",
            json!({"scenario": "t", "release_id": "unknown"}),
            404,
        ),
        ("/reef/scenarios/s/update", json!({"training_mode": "sometimes"}), 400),
        ("/reef/scenarios/s/update", json!({}), 400),
        ("/reef/scenarios/none/update", json!({"training_mode": "auto"}), 404),
        ("/reef/scenarios/a%2Fb/update", json!({"training_mode": "auto"}), 400),
    ] {
        assert_eq!(post(path, &body).status, status, "{path} {body}");
    }
    let other = reef.post_with(CHAT, &[("x-reef-release-id", "elsewhere")], "{}");
    assert_eq!(other.status, 409);
    let bound = created["release_id"].as_str().unwrap();
    assert_eq!(reef.post_with(CHAT, &[("x-reef-release-id", bound)], "{}").status, 200);
    assert_eq!(
        http::send(reef.address, "DELETE", "/reef/scenarios/s", &[], b"").json()["archived"],
        true
    );
    assert_eq!(reef.get("/reef/scenarios/s/records").status, 404);
    assert_eq!(reef.post(CHAT, "{}").status, 404);
    assert_eq!(
        http::send(reef.address, "DELETE", "/reef/scenarios/s", &[], b"").status,
        404
    );
}

#[test]
fn pages_of_records_cover_everything_once() {
    let upstream = upstream();
    let reef = Reef::start(&upstream.url(), &[]);
    let made: BTreeSet<String> = (0..25).map(|_| receipt(&reef, "s")).collect();
    let mut found = BTreeSet::new();
    let mut after = 0;
    loop {
        let mut response = reef.get(&format!("/reef/scenarios/s/records?limit=10&after_sequence={after}"));
        assert_eq!(response.header("cache-control"), Some("no-store"));
        let page = response.json();
        let rows = page["records"].as_array().unwrap();
        assert!(rows.len() <= 10);
        found.extend(
            rows.iter()
                .map(|row| row["agent_record_id"].as_str().unwrap().to_owned()),
        );
        match page["next_after_sequence"].as_i64() {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(found, made);
    assert_eq!(
        reef.get("/reef/scenarios/s/records?request_type=report").json()["records"],
        json!([])
    );
    for bad in [
        "limit=0",
        "limit=101",
        "limit=x",
        "after_sequence=-1",
        "request_type=all",
        "colour=red",
        "limit=1&limit=2",
    ] {
        assert_eq!(
            reef.get(&format!("/reef/scenarios/s/records?{bad}")).status,
            400,
            "{bad}"
        );
    }
    assert_eq!(reef.get("/reef/scenarios/s/records/none").status, 404);
    assert_eq!(reef.get("/reef/scenarios/none/records").status, 404);
}

#[test]
fn labels_do_not_grow_with_what_clients_send() {
    let upstream = upstream();
    let reef = Reef::start(&upstream.url(), &["--reef.allow-implicit-scenario-creation", "false"]);
    let series = || {
        reef.get("/metrics")
            .text()
            .lines()
            .filter(|line| !line.starts_with('#'))
            .count()
    };
    receipt_free(&reef, "warm-up", "m");
    let before = series();
    for n in 0..200 {
        receipt_free(&reef, &format!("scenario-{n}"), &format!("model-{n}"));
    }
    // Only the class of the refusals may be new.
    assert!(series() <= before + 2, "{} series, before {before}", series());
}

fn receipt_free(reef: &Reef, scenario: &str, model: &str) {
    let headers = [("x-reef-scenario", scenario), ("x-reef-tag-session", model)];
    http::send(
        reef.address,
        "POST",
        CHAT,
        &headers,
        format!("{{\"model\":\"{model}\"}}").as_bytes(),
    );
}

#[test]
fn many_scenarios_share_one_label_beyond_the_first_hundred() {
    let upstream = upstream();
    let reef = Reef::start(&upstream.url(), &[]);
    for n in 0..110 {
        receipt(&reef, &format!("scenario-{n}"));
    }
    let page = reef.get("/metrics").text();
    assert!(
        page.contains("reef_records_total{scenario=\"other\",kind=\"inference\"} 10\n"),
        "{page}"
    );
    assert!(page.contains("reef_scenarios 110\n"));
    assert!(page.contains("reef_receipts_total 110\n"));
    assert!(page.contains("reef_overhead_seconds_count 110\n"));
}

#[test]
fn pages_of_other_origins_are_refused_and_configured_ones_may_call() {
    let upstream = upstream();
    let origin = "https://console.example";
    let reef = Reef::start(
        &upstream.url(),
        &[
            "--reef.token",
            "tok",
            "--reef.console-origins",
            r#"["https://console.example"]"#,
        ],
    );
    let send = |method: &str, headers: &[(&str, &str)]| http::send(reef.address, method, "/reef/status", headers, b"");
    assert_eq!(
        send("GET", &[("origin", "https://evil.example"), ("x-api-key", "tok")]).status,
        403
    );
    let preflight = send(
        "OPTIONS",
        &[("origin", origin), ("access-control-request-method", "GET")],
    );
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), Some(origin));
    let allowed = send("GET", &[("origin", origin), ("x-api-key", "tok")]);
    assert_eq!(
        (allowed.status, allowed.header("access-control-allow-origin")),
        (200, Some(origin))
    );
    let refused = send("GET", &[("origin", origin)]);
    assert_eq!(
        (refused.status, refused.header("access-control-allow-origin")),
        (401, Some(origin))
    );
    assert_eq!(
        send("GET", &[("x-api-key", "tok")]).header("access-control-allow-origin"),
        None
    );
}

/// Without a token, a page in a browser on this machine must not reach the service, not even through a name of its own
/// that it made resolve to this machine.
#[test]
fn a_service_without_a_token_takes_no_calls_from_web_pages() {
    let upstream = upstream();
    let reef = Reef::start(&upstream.url(), &[]);
    let chat = |headers: &[(&str, &str)]| {
        let mut all = vec![("x-reef-scenario", "s")];
        all.extend_from_slice(headers);
        http::send(reef.address, "POST", CHAT, &all, b"{}")
    };
    for (headers, code) in [
        ([("host", "evil.example:8900")], "host_refused"),
        ([("origin", "https://evil.example")], "origin_refused"),
    ] {
        let mut refused = chat(&headers);
        assert_eq!(refused.status, 403);
        assert_eq!(refused.json()["error"]["code"], code);
    }
    assert_eq!(upstream.seen().len(), 0, "nothing went up");
    assert_eq!(chat(&[("host", "localhost:8900")]).status, 200);
    assert_eq!(chat(&[("origin", "http://localhost:3000")]).status, 200);
    // A token tells friends from strangers, whatever name they used.
    let guarded = Reef::start(&upstream.url(), &["--reef.token", "tok"]);
    let headers = [("x-reef-scenario", "s"), ("host", "reef.example"), ("x-api-key", "tok")];
    assert_eq!(http::send(guarded.address, "POST", CHAT, &headers, b"{}").status, 200);
}

#[test]
fn hostile_names_stay_where_they_are() {
    let upstream = upstream();
    let reef = Reef::start(&upstream.url(), &[]);
    let long = "x".repeat(4096);
    for name in [
        "..", "a/b", "a\\b", "a..b", "%2e%2e", "a b", ".hidden", "-x", "x.lock", &long, "é",
    ] {
        let headers = [("x-reef-scenario", name)];
        assert_eq!(
            http::send(reef.address, "POST", CHAT, &headers, b"{}").status,
            400,
            "{name:?}"
        );
    }
    let headers = [("x-reef-scenario", "s"), ("x-reef-tag-session", "../../etc/passwd")];
    let receipt = http::send(reef.address, "POST", CHAT, &headers, b"{}")
        .receipt()
        .unwrap();
    assert_eq!(reef.record(&receipt)["tags"]["session"], "../../etc/passwd");
    assert_eq!(
        report(
            &reef,
            "s",
            &json!({"agent_record_id": "../../x", "references": [receipt]})
        )
        .status,
        200
    );
    let outside: Vec<_> = std::fs::read_dir(&reef.dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(outside, [".reef"]);
}

#[test]
fn experience_from_elsewhere_is_imported_whole_or_not_at_all() {
    let upstream = upstream();
    let reef = Reef::start(&upstream.url(), &[]);
    let inference = |id: &str, text: &str| {
        json!({"agent_record_id": id, "request_type": "inference", "payload": {
            "messages": [{"role": "user", "content": "hi"}], "metadata": {"tags": {"session": "s1"}},
            "response": {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}}})
    };
    let rating = |id: &str, of: &str| json!({"agent_record_id": id, "request_type": "report", "payload": {"score": 1, "references": [of]}});
    let one = reef.post("/reef/records", inference("e1", "one").to_string()).json();
    assert_eq!(
        one,
        json!({"agent_record_id": "e1", "scenario": "s", "request_type": "inference"})
    );
    let batch = json!({"records": [inference("e2", "two"), rating("p2", "e2"), inference("e1", "one")]});
    for _ in 0..2 {
        let mut response = reef.post("/reef/records/batch", batch.to_string());
        assert_eq!(response.status, 200);
        let kinds: Vec<Value> = response.json()["records"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| r["request_type"].clone())
            .collect();
        assert_eq!(kinds, [json!("inference"), json!("report"), json!("inference")]);
    }
    assert_eq!(reef.rows().len(), 3);
    assert_eq!(reef.record("e2")["turn"]["text"], "two");
    assert_eq!(reef.record("e2")["tags"]["session"], "s1");
    assert_eq!(reef.record("e2")["artifact_ref"], Value::Null);
    for (path, body, status, part) in [
        ("/reef/records", inference("e1", "changed"), 409, "e1"),
        (
            "/reef/records",
            json!({"agent_record_id": "x", "request_type": "train", "payload": {}}),
            400,
            "instruction",
        ),
        (
            "/reef/records",
            json!({"agent_record_id": "x", "request_type": "report", "payload": {}, "more": 1}),
            400,
            "more",
        ),
        (
            "/reef/records/batch",
            json!({"records": [inference("e9", "nine"), rating("p9", "nobody")]}),
            400,
            "nobody",
        ),
        (
            "/reef/records/batch",
            json!({"records": [inference("e9", "nine"), {"a": 1}]}),
            400,
            "records[1]",
        ),
        ("/reef/records/batch", json!({"records": []}), 400, "1 to 1000"),
        ("/reef/records/batch", json!({}), 400, "records is missing"),
        (
            "/reef/records",
            json!({"agent_record_id": "x", "request_type": "inference", "payload": {"pad": "x".repeat(1 << 20)}}),
            413,
            "larger",
        ),
    ] {
        let mut response = reef.post(path, body.to_string());
        let text = response.text();
        assert_eq!(response.status, status, "{text}");
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(reef.rows().len(), 3);
    assert!(upstream.seen().is_empty());
}
