//! What was tried on a tree, what waits and what led to it: over HTTP and from a shell, the same.

use serde_json::{Value, json};

use crate::common::http::{self, Response};
use crate::common::reef::{self, Reef};
use crate::common::tried::{self, REJECTED, RUNNING};
use crate::common::upstream::{Upstream, answer};

fn get(reef: &Reef, path: &str) -> Response {
    http::send(reef.address, "GET", path, &[("x-reef-scenario", "team")], b"")
}

#[test]
fn attempts_proposals_and_requests_are_told_with_what_led_to_them() {
    let upstream = Upstream::start(|_, _| answer(200, "application/json", "{}"));
    let reef = Reef::start(&upstream.url(), &["--harness.adapter", "pi"]);
    let body = json!({"scenario": "team"}).to_string();
    http::send(reef.address, "POST", "/reef/scenarios", &[], body.as_bytes()).json();
    for (path, list) in [
        ("attempts", "attempts"),
        ("proposals", "proposals"),
        ("requests", "requests"),
    ] {
        let empty = get(&reef, &format!("/reef/harness/{path}")).json();
        assert_eq!(empty, json!({"scenario": "team", list: []}));
    }
    let head = get(&reef, "/reef/harness").json()["release_id"]
        .as_str()
        .unwrap()
        .to_owned();
    tried::fill(&reef.dir.join(".reef/experience.db"), "team", &head, "e-1");

    let mut response = get(&reef, "/reef/harness/attempts");
    assert_eq!(response.header("cache-control"), Some("no-store"));
    let told = response.json();
    let attempts = told["attempts"].as_array().unwrap();
    let ids: Vec<&Value> = attempts.iter().map(|attempt| &attempt["attempt_id"]).collect();
    assert_eq!(ids, [RUNNING, REJECTED], "newest first");
    assert_eq!(
        (&attempts[0]["state"], &attempts[0]["asked"], &attempts[0]["session"]),
        (&json!("evaluating"), &json!("be kinder to beginners"), &json!("ana"))
    );
    let rejected = &attempts[1];
    assert_eq!(
        rejected["failures"],
        json!([
            {"report": "r-1", "receipts": ["e-1"], "score": 0.0, "feedback": "never ran the \u{1b}[31mlinter"},
            {"report": "r-2", "receipts": ["e-1"], "score": 0.5, "feedback": "half right"},
        ]),
        "the worst first"
    );
    assert_eq!(
        (
            &rejected["state"],
            &rejected["base_release_id"],
            &rejected["failures_total"]
        ),
        (&json!("rejected"), &json!(head), &json!(2))
    );
    assert_eq!(
        (
            &rejected["verdict"]["outcome"],
            &rejected["worse_on"],
            &rejected["notes"]
        ),
        (&json!("rejected"), &json!(["one"]), &json!({"design": "a rule"}))
    );
    assert_eq!(rejected["mutations"][0]["id"], "lint-rule");
    assert!(rejected.get("activity").is_none());

    let one = get(
        &reef,
        &format!("/reef/harness/attempts/{}", REJECTED.replace(':', "%3A")),
    )
    .json();
    assert_eq!(one["failures"], rejected["failures"]);
    assert_eq!(
        (&one["activity"][0]["kind"], &one["activity"][0]["failed"]),
        (&json!("trial"), &json!(true))
    );
    let limited = get(&reef, "/reef/harness/attempts?limit=1").json();
    assert_eq!(limited["attempts"].as_array().unwrap().len(), 1);

    let proposals = get(&reef, "/reef/harness/proposals").json();
    let states: Vec<(&Value, &Value)> = proposals["proposals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|proposal| (&proposal["proposal_id"], &proposal["state"]))
        .collect();
    assert!(states.contains(&(&json!("p-1"), &json!("waiting"))), "{proposals}");
    assert!(states.contains(&(&json!("p-2"), &json!("refused"))), "{proposals}");
    assert_eq!(proposals["proposals"][0]["session"], "reef-pi on ci-7");

    let requests = get(&reef, "/reef/harness/requests").json();
    assert_eq!(requests["requests"].as_array().unwrap().len(), 1, "{requests}");
    let request = &requests["requests"][0];
    assert_eq!(
        (
            &request["request_id"],
            &request["text"],
            &request["state"],
            &request["attempt_id"]
        ),
        (
            &json!("ask-1"),
            &json!("be kinder to beginners"),
            &json!("evaluating"),
            &json!(RUNNING)
        )
    );
    assert_eq!(request["step"], Value::Null);

    // The scenario may be named in the query; nothing of another one is told.
    let named = http::send(reef.address, "GET", "/reef/harness/attempts?scenario=team", &[], b"").json();
    assert_eq!(named, told);
    http::send(
        reef.address,
        "POST",
        "/reef/scenarios",
        &[],
        br#"{"scenario": "other"}"#,
    )
    .json();
    let other = [("x-reef-scenario", "other")];
    let elsewhere = http::send(reef.address, "GET", "/reef/harness/attempts", &other, b"").json();
    assert_eq!(elsewhere["attempts"], json!([]));
    let of_team = format!("/reef/harness/attempts/{RUNNING}");
    assert_eq!(http::send(reef.address, "GET", &of_team, &other, b"").status, 404);
    for (path, status) in [
        ("/reef/harness/attempts/nothing", 404),
        ("/reef/harness/attempts?scenario=nobody", 400),
        ("/reef/harness/attempts?limit=0", 400),
        ("/reef/harness/attempts?key=k", 400),
        ("/reef/harness/requests/ask-1", 404),
    ] {
        assert_eq!(get(&reef, path).status, status, "{path}");
    }
    let nobody = http::send(reef.address, "GET", "/reef/harness/attempts?scenario=nobody", &[], b"");
    assert_eq!(nobody.status, 404);
    let deleted = http::send(reef.address, "DELETE", "/reef/harness/proposals", &other, b"");
    assert_eq!((deleted.status, deleted.header("allow")), (405, Some("GET, POST")));

    // The command says the same, from the files and from the service.
    let url = format!("http://{}", reef.address);
    for more in [&[][..], &["--url", &url]] {
        for (args, document) in [(&[][..], &told), (&[REJECTED][..], &one)] {
            let command = [&["harness", "attempts", "-s", "team", "--json"], args, more].concat();
            let output = reef::run(&reef.dir, &command);
            let mut said: Value = serde_json::from_slice(&output.stdout).unwrap();
            let fields = said.as_object_mut().unwrap();
            assert_eq!(fields.remove("version"), Some(json!(1)));
            fields.remove("kind").unwrap();
            assert_eq!(&said, document);
        }
    }
    let table = reef::run(&reef.dir, &["harness", "attempts", "-s", "team"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("create lint-rule") && table.contains("won 1, lost 5"),
        "{table}"
    );
    let unknown = reef::run(&reef.dir, &["harness", "attempts", "nothing", "-s", "team"]);
    let said = String::from_utf8(unknown.stderr).unwrap();
    assert_eq!(unknown.status.code(), Some(2), "{said}");
    assert!(said.contains("reef harness attempts -s team lists them"), "{said}");
}
