//! The pages of steps and requests, and who may open them.

use std::fs;
use std::io::Write as _;

use ::reef::domain::ScenarioName;
use ::reef::scenario::Lease;
use serde_json::{Value, json};

use crate::common::http::{self, Response};
use crate::common::reef::{self, Reef};
use crate::common::upstream::{Upstream, answer};
use crate::common::wait_for;

const TOKEN: &str = "a token for this test";
const AUTHORIZATION: (&str, &str) = ("authorization", "Bearer a token for this test");

struct Rig {
    reef: Reef,
    dir: tempfile::TempDir,
    _upstream: Upstream,
}

fn rig() -> Rig {
    let upstream = Upstream::start(|_, _| answer(200, "application/json", "{}"));
    let dir = tempfile::tempdir().unwrap();
    let mut file = fs::File::create(dir.path().join("serve.toml")).unwrap();
    write!(
        file,
        "[reef]\ntoken = \"{TOKEN}\"\n[inference]\nupstream-url = \"{}\"\n[harness]\nseed = \"tree\"\n[training]\nmode = \"manual\"\n",
        upstream.url()
    )
    .unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("tree/AGENTS.md"), "Be brief.\n").unwrap();
    let reef = Reef::start_with(dir.path(), &["-c", "serve.toml"], |_| {});
    Rig {
        reef,
        dir,
        _upstream: upstream,
    }
}

impl Rig {
    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        http::send(self.reef.address, "GET", path, headers, b"")
    }

    fn ours(&self, path: &str) -> Response {
        self.get(path, &[("x-reef-scenario", "team"), AUTHORIZATION])
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let headers = [("x-reef-scenario", "team"), AUTHORIZATION];
        let mut response = http::send(self.reef.address, "POST", path, &headers, body.to_string().as_bytes());
        let (status, said) = (response.status, response.json());
        assert!(status < 300, "{said}");
        said
    }

    fn run(&self, args: &[&str]) {
        let output = reef::run(self.dir.path(), args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_step_has_a_page_that_a_browser_opens_with_its_key() {
    let rig = rig();
    rig.post("/reef/scenarios", &json!({"scenario": "team"}));
    rig.post("/reef/scenarios", &json!({"scenario": "other"}));
    // A person changes the tree: tested, rendered, released.
    fs::write(rig.dir.path().join("tree/AGENTS.md"), "Be brief.\n<b>Be kind.</b>\n").unwrap();
    rig.run(&["harness", "test", "tree", "--write", "next"]);
    rig.run(&["release", "import", "next", "--scenario", "team", "-c", "serve.toml"]);
    let rows = wait_for("the imported release to be served", || {
        let chain = rig.ours("/reef/harness/releases").json();
        let rows = chain["releases"].as_array()?.clone();
        (rows.len() == 2 && rows[1]["current"] == true).then_some(rows)
    });
    let path = rows[1]["page_path"].as_str().unwrap();
    assert!(
        path.starts_with("/reef/harness/releases/1/page?scenario=team&key="),
        "{path}"
    );
    let mut page = rig.get(path, &[]);
    let html = page.text();
    assert_eq!(page.status, 200, "{html}");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(
        page.header("content-security-policy")
            .unwrap()
            .starts_with("default-src 'none'")
    );
    assert_eq!(page.header("cache-control"), Some("no-store"));
    for part in [
        "Published, served now",
        "+&lt;b&gt;Be kind.&lt;&#x2f;b&gt;",
        "releases&#x2f;0&#x2f;page",
    ] {
        assert!(html.contains(part), "{part} in {html}");
    }
    assert!(
        !html.contains("http://") && !html.contains("https://"),
        "no outside assets: {html}"
    );
    // The same with a token instead, and the first step too.
    assert_eq!(rig.ours("/reef/harness/releases/1/page").status, 200);
    assert!(
        rig.ours("/reef/harness/releases/0/page")
            .text()
            .contains("The scenario started here.")
    );
    for step in ["2", "99999999999", "x", "..%2F1", "-1"] {
        assert_eq!(
            rig.ours(&format!("/reef/harness/releases/{step}/page")).status,
            404,
            "{step}"
        );
    }
    // The key opens these pages of this scenario, and nothing else.
    let (_, key) = path.split_once("&key=").unwrap();
    for (path, status) in [
        (format!("/reef/harness/releases/1/page?scenario=other&key={key}"), 401),
        (format!("/reef/harness/releases/1/page?scenario=team&key={key}0"), 401),
        ("/reef/harness/releases/1/page?scenario=team".to_owned(), 401),
        (
            format!("/reef/harness/releases/1/page?scenario=team&token={TOKEN}").replace(' ', "%20"),
            401,
        ),
        (format!("/reef/harness?scenario=team&key={key}"), 401),
        (format!("/reef/harness/releases?scenario=team&key={key}"), 401),
        (format!("/reef/status?scenario=team&key={key}"), 401),
    ] {
        assert_eq!(rig.get(&path, &[]).status, status, "{path}");
    }
    let other = [("x-reef-scenario", "other")];
    assert_eq!(
        rig.get(path, &other).status,
        400,
        "the header may not name another scenario"
    );
    let post = http::send(rig.reef.address, "POST", path, &[], b"{}");
    assert_eq!(post.status, 401);
}

#[test]
fn an_instruction_shows_how_far_it_is() {
    let rig = rig();
    rig.post(
        "/reef/scenarios",
        &json!({"scenario": "team", "training_mode": "manual"}),
    );
    // Somebody who would follow it, and who does not look yet.
    let team = ScenarioName::new("team").unwrap();
    let _driver = Lease::take(&rig.dir.path().join(".reef/run"), &team, "a test").unwrap();
    let asked = json!({"text": "Be <i>kinder</i>.", "session": "s", "release_id": "r"});
    let told = rig.post("/reef/train", &asked);
    let path = told["page_path"].as_str().unwrap();
    let mut page = rig.get(path, &[]);
    let html = page.text();
    assert_eq!(page.status, 200, "{html}");
    for part in [
        "Be &lt;i&gt;kinder&lt;&#x2f;i&gt;.",
        "http-equiv=\"refresh\"",
        "<li class=\"now\">queued</li>",
    ] {
        assert!(html.contains(part), "{part} in {html}");
    }
    let id = told["agent_record_id"].as_str().unwrap();
    let progress = rig.ours(&format!("/reef/harness/requests/{id}/progress")).json();
    assert_eq!(
        (
            &progress["request_id"],
            &progress["state"],
            &progress["settled"],
            &progress["step"]
        ),
        (&json!(id), &json!("queued"), &json!(false), &Value::Null)
    );
    let mut events = rig.ours(&format!("/reef/harness/requests/{id}/events"));
    assert_eq!(events.header("content-type"), Some("text/event-stream"));
    let first = String::from_utf8(events.piece().unwrap().unwrap()).unwrap();
    assert!(
        first.starts_with("event: progress\ndata: {") && first.ends_with("}\n\n"),
        "{first}"
    );
    drop(events);
    let nobody = "0196f0a0-0000-7000-8000-000000000000";
    for (what, id) in [
        ("page", nobody),
        ("progress", nobody),
        ("events", nobody),
        ("page", "..%2F..%2Fx"),
    ] {
        assert_eq!(
            rig.ours(&format!("/reef/harness/requests/{id}/{what}")).status,
            404,
            "{what} {id}"
        );
    }
}
