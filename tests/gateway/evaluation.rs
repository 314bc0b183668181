//! Inference for evaluations: as a scenario, and unrecorded.

use serde_json::json;

use crate::common::http;
use crate::common::reef::Reef;
use crate::common::upstream::{Upstream, answer};
use crate::turns;

const CHAT: &str = "/v1/chat/completions";

#[test]
fn an_evaluation_asks_as_a_scenario_and_leaves_no_record() {
    let upstream = Upstream::always(answer(200, "application/json", turns::CHAT_BODY));
    let reef = Reef::start(&upstream.url(), &[]);
    let path = |scenario: &str, route: &str| format!("/reef/scenarios/{scenario}/evaluation{route}");
    let ask = |path: &str, headers: &[(&str, &str)]| http::send(reef.address, "POST", path, headers, b"{}");
    // It makes no scenario.
    let unknown = ask(&path("s", CHAT), &[]);
    assert_eq!(unknown.status, 404);
    assert_eq!(ask(&path("s", "/v1/messages"), &[]).json()["type"], "error");
    let names = reef.get("/reef/scenarios").json();
    assert_eq!(names["scenarios"], json!([]));
    let first = [("x-reef-scenario", "s")];
    assert!(
        http::send(reef.address, "POST", CHAT, &first, b"{}")
            .receipt()
            .is_some()
    );
    // A header of another scenario changes nothing: the path counts.
    let mut answered = ask(&path("s", CHAT), &[("x-reef-scenario", "other"), ("x-reef-tag-a", "b")]);
    assert_eq!((answered.status, answered.receipt()), (200, None));
    assert_eq!(answered.text(), turns::CHAT_BODY);
    let listed = reef.get("/reef/scenarios/s/records").json();
    assert_eq!(listed["records"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(
        reef.get("/reef/scenarios").json()["scenarios"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(ask(&path("s", "/v1/none"), &[]).status, 404);
    assert_eq!(reef.get(&path("s", CHAT)).status, 405);
    let component = "/reef/scenarios/s/components/c/evaluation/v1/chat/completions";
    assert_eq!(ask(component, &[]).status, 404);
}
