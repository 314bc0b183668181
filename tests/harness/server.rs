//! The routes that serve a tree, against the real program.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::http::{self, Response};
use crate::common::reef::{self, Reef};
use crate::common::upstream::{Upstream, answer};
use crate::golden::fixtures;

fn upstream() -> Upstream {
    Upstream::start(|_, _| answer(200, "application/json", "{}"))
}

/// A service whose scenarios start with the seed of the fixtures.
fn serve(upstream: &Upstream, more: &[&str]) -> Reef {
    let seed = fixtures().join("trees/portable.json");
    let seed = seed.to_str().unwrap().to_owned();
    let args = [&["--harness.adapter", "pi", "--harness.seed", &seed], more].concat();
    Reef::start(&upstream.url(), &args)
}

fn get(reef: &Reef, scenario: &str, path: &str, more: &[(&str, &str)]) -> Response {
    let headers = [&[("x-reef-scenario", scenario)], more].concat();
    http::send(reef.address, "GET", path, &headers, b"")
}

fn create(reef: &Reef, scenario: &str) -> Value {
    let body = json!({"scenario": scenario}).to_string();
    http::send(reef.address, "POST", "/reef/scenarios", &[], body.as_bytes()).json()
}

#[test]
fn a_new_scenario_serves_its_seed_and_every_release_stays_addressable() {
    let upstream = upstream();
    let reef = serve(&upstream, &["--upstream-model", "m"]);
    assert_eq!(
        get(&reef, "team", "/reef/harness", &[]).status,
        404,
        "asking creates nothing"
    );
    create(&reef, "team");
    let mut response = get(&reef, "team", "/reef/harness", &[]);
    let manifest = response.json();
    assert_eq!(response.status, 200, "{manifest}");
    assert_eq!(response.header("x-reef-release-id"), manifest["release_id"].as_str());
    assert_eq!((&manifest["adapter"], &manifest["model"]), (&json!("pi"), &json!("m")));
    assert_eq!(
        (&manifest["evaluation"], &manifest["requires"]),
        (&Value::Null, &json!([]))
    );
    let files = manifest["files"].as_object().unwrap();
    assert!(files["pi-agent/AGENTS.md"].as_str().unwrap().contains("# House rules"));
    assert!(!files.contains_key("reef-tree.json") && !files.contains_key("reef-artifact.json"));
    assert_eq!(
        manifest["executable"],
        json!(["pi-agent/skills/changelog/scripts/commits.sh"])
    );
    assert_eq!(manifest["checksums"].as_object().unwrap().len(), files.len());
    let release = manifest["release_id"].as_str().unwrap();
    // The same document by id, by a prefix, and not at all when the client has it.
    assert_eq!(
        get(&reef, "team", &format!("/reef/harness?release_id={release}"), &[]).json(),
        manifest
    );
    let tag = response.header("etag").unwrap().to_owned();
    assert_eq!(
        get(&reef, "team", "/reef/harness", &[("if-none-match", &tag)]).status,
        304
    );
    let head = http::send(
        reef.address,
        "HEAD",
        "/reef/harness",
        &[("x-reef-scenario", "team")],
        b"",
    );
    assert_eq!((head.status, head.header("etag")), (200, Some(tag.as_str())));
    assert_eq!(
        get(&reef, "team", "/reef/harness?release_id=0123456789", &[]).status,
        404
    );
    assert_eq!(http::send(reef.address, "GET", "/reef/harness", &[], b"").status, 400);
    let chain = get(&reef, "team", "/reef/harness/releases", &[]).json();
    assert_eq!(chain["releases"].as_array().unwrap().len(), 1, "{chain}");
    let row = &chain["releases"][0];
    assert_eq!((&row["operation"], &row["current"]), (&json!("creation"), &json!(true)));
    assert_eq!(row["page_path"], "/reef/harness/releases/0/page?scenario=team");
    // Another agent gets the same entries in its own files.
    let codex = get(&reef, "team", "/reef/harness?adapter=codex", &[]).json();
    assert_eq!(codex["adapter"], "codex");
    assert!(
        codex["files"]["codex/AGENTS.md"]
            .as_str()
            .unwrap()
            .contains("# House rules")
    );
    let unknown = get(&reef, "team", "/reef/harness?adapter=emacs", &[]).json();
    assert!(
        unknown["error"]["message"]
            .as_str()
            .unwrap()
            .contains("pi, claude, codex, opencode"),
        "{unknown}"
    );
    let adapters = get(&reef, "team", "/reef/harness/adapters", &[]).json();
    assert_eq!(adapters["adapters"][0]["name"], "pi");
    assert_eq!(
        adapters["adapters"][0]["model_bindings"],
        json!(["openai", "responses", "anthropic"])
    );
    assert_eq!(adapters["adapters"][0]["install"]["version"], "0.84.2");
}

#[test]
fn the_binding_follows_what_the_deployment_says_its_provider_speaks() {
    let upstream = upstream();
    let nothing: &[&str] = &[];
    let anthropic: &[&str] = &["--upstream-api", "anthropic"];
    for (more, adapter, api) in [
        (nothing, "qwen", json!("openai")),
        // Nothing was said, so what the agent speaks is tried.
        (nothing, "codex", Value::Null),
        (anthropic, "claude", json!("anthropic")),
        (anthropic, "qwen", json!("anthropic")),
    ] {
        let reef = serve(&upstream, more);
        create(&reef, "team");
        let path = format!("/reef/harness?adapter={adapter}");
        let mut response = get(&reef, "team", &path, &[]);
        let manifest = response.json();
        assert_eq!(manifest["api"], api, "{adapter}: {manifest}");
        if adapter != "qwen" || api == "openai" {
            continue;
        }
        // An agent that could never reach the model is not installed.
        let home = tempfile::tempdir().unwrap();
        let url = format!("http://{}", reef.address);
        let mut args = vec![
            "harness",
            "install",
            "--adapter",
            "qwen",
            "--scenario",
            "team",
            "--url",
            &url,
        ];
        args.extend(["--model", "m", "--no-agent-install"]);
        let output = reef::run(home.path(), &args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("Qwen Code does not speak the anthropic API, it speaks openai; nothing was changed"),
            "{said}"
        );
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "something was written");
    }
}

#[test]
fn the_tag_of_a_manifest_changes_with_all_that_it_says() {
    let upstream = upstream();
    let dir = tempfile::tempdir().unwrap();
    let url = upstream.url();
    let mut tags = Vec::new();
    for model in ["small", "small", "large"] {
        let args = [
            "--upstream-url",
            &url,
            "--harness.adapter",
            "pi",
            "--upstream-model",
            model,
        ];
        let reef = Reef::start_with(dir.path(), &args, |_| {});
        if tags.is_empty() {
            create(&reef, "team");
        }
        let mut response = get(&reef, "team", "/reef/harness", &[]);
        assert_eq!(response.json()["model"], model);
        tags.push(response.header("etag").unwrap().to_owned());
    }
    assert_eq!(tags[0], tags[1]);
    assert_ne!(tags[1], tags[2], "another model is another manifest");
}

#[test]
fn a_scenario_made_from_a_shell_starts_with_the_seed_too() {
    let upstream = upstream();
    let dir = tempfile::tempdir().unwrap();
    let made = reef::run(dir.path(), &["init", "harness"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let made = reef::run(dir.path(), &["scenario", "create", "shell", "-c", "serve.toml"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let url = upstream.url();
    let reef = Reef::start_with(dir.path(), &["-c", "serve.toml", "--upstream-url", &url], |_| {});
    let manifest = get(&reef, "shell", "/reef/harness", &[]).json();
    let files = manifest["files"].as_object().unwrap_or_else(|| panic!("{manifest}"));
    let paths: Vec<&String> = files.keys().collect();
    assert_eq!(
        paths,
        [
            "pi-agent/AGENTS.md",
            "pi-agent/prompts/review.md",
            "pi-agent/skills/finish-a-task/SKILL.md"
        ]
    );
}

#[test]
fn a_seed_that_is_not_admitted_stops_the_start_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let secret = format!("{}{}", "ghp_", "abcdefghijklmnopqrst12");
    for (seed, part) in [
        (
            json!([{"id": "leak", "name": "rules", "config": {"text": format!("Use {secret}.")}}]),
            "entry \"leak\"",
        ),
        (
            json!([{"id": "s", "name": "config", "config": {"data": {"defaultModel": "x"}}}]),
            "the installer binds",
        ),
        (
            json!([{"id": "h", "name": "hook", "config": {"name": "h", "event": "Stop", "script": "x"}}]),
            "Pi has no place",
        ),
    ] {
        fs::write(dir.path().join("seed.json"), seed.to_string()).unwrap();
        let args = [
            "serve",
            "--upstream-url",
            "http://127.0.0.1:9",
            "--harness.seed",
            "seed.json",
            "--reef.port",
            "0",
        ];
        let output = reef::run(dir.path(), &args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains(part) && said.contains("seed.json") && !said.contains(&secret),
            "{said}"
        );
    }
    let args = [
        "serve",
        "--upstream-url",
        "http://127.0.0.1:9",
        "--harness.adapter",
        "emacs",
        "--reef.port",
        "0",
    ];
    let output = reef::run(dir.path(), &args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("known adapters are pi, claude, codex, opencode"),
        "{said}"
    );
}

/// Runs a script with a `reef` that writes down how it was called.
fn run_script(dir: &Path, script: &str) -> (String, Option<i32>) {
    fs::write(dir.join("reef"), "#!/bin/sh\nprintf '%s\\n' \"$@\" > called\n").unwrap();
    let mut child = Command::new("/bin/sh")
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("REEF_PROGRAM", dir.join("reef"))
        .current_dir(dir)
        .args(["-s", "--", "--no-agent-install"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    {
        use std::io::Write;
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(dir.join("reef"), fs::Permissions::from_mode(0o755)).unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(script.as_bytes()).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let called = fs::read_to_string(dir.join("called")).unwrap_or_default();
    (called, output.status.code())
}

#[test]
fn the_install_script_hands_over_and_hostile_names_are_inert() {
    let upstream = upstream();
    let reef = serve(&upstream, &[]);
    create(&reef, "team");
    let mut response = get(&reef, "team", "/reef/harness/install?adapter=pi", &[]);
    assert_eq!(response.status, 200);
    let script = response.text();
    let dir = tempfile::tempdir().unwrap();
    let (called, code) = run_script(dir.path(), &script);
    let url = format!("http://{}", reef.address);
    let expected = [
        "harness",
        "install",
        "--url",
        &url,
        "--adapter",
        "pi",
        "--scenario",
        "team",
        "--no-agent-install",
    ];
    assert_eq!((called.lines().collect::<Vec<_>>(), code), (expected.to_vec(), Some(0)));
    // A download that breaks off runs nothing, wherever it does.
    let dir = tempfile::tempdir().unwrap();
    for at in (0..script.len() - 30).step_by(37) {
        let (called, _) = run_script(dir.path(), &script[..at]);
        assert_eq!(called, "", "cut at {at}");
    }
    // Behind a proxy the public address is the one that occurs.
    let proxied = [("x-forwarded-host", "reef.example.com"), ("x-forwarded-proto", "https")];
    let script = get(&reef, "team", "/reef/harness/install?adapter=pi", &proxied).text();
    assert!(
        script.contains("'https://reef.example.com'") && !script.contains("127.0.0.1"),
        "{script}"
    );
    for host in ["x'; touch hacked; '", "$(touch hacked)", "`touch hacked`", "a b"] {
        let mut refused = get(
            &reef,
            "team",
            "/reef/harness/install?adapter=pi",
            &[("x-forwarded-host", host)],
        );
        let (status, said) = (refused.status, refused.text());
        assert_eq!(status, 400, "{said}");
    }
    for (scenario, path, status) in [
        ("x'; touch hacked; '", "/reef/harness/install?adapter=pi", 400),
        ("../../etc", "/reef/harness/install?adapter=pi", 400),
        ("team", "/reef/harness/install", 400),
        ("team", "/reef/harness/install?adapter=emacs", 404),
        ("team", "/reef/harness/install?adapter=..%2F..%2Fetc", 404),
        ("team", "/reef/harness/install?adapter=pi&release_id=ffffffff", 404),
        ("nobody", "/reef/harness/install?adapter=pi&release_id=ffffffff", 404),
        // The command that the script starts makes it.
        ("nobody", "/reef/harness/install?adapter=pi", 200),
    ] {
        assert_eq!(get(&reef, scenario, path, &[]).status, status, "{scenario} {path}");
    }
    // Asking changes nothing: without a scenario, the command that the script starts makes one.
    let path = "/reef/harness/install?adapter=claude";
    let scenarios = || http::send(reef.address, "GET", "/reef/scenarios", &[], b"").json();
    let before = scenarios();
    let script = http::send(reef.address, "GET", path, &[], b"").text();
    http::send(reef.address, "HEAD", path, &[], b"");
    assert_eq!(scenarios(), before);
    let dir = tempfile::tempdir().unwrap();
    let (called, code) = run_script(dir.path(), &script);
    let expected = [
        "harness",
        "install",
        "--url",
        &url,
        "--adapter",
        "claude",
        "--no-agent-install",
    ];
    assert_eq!((called.lines().collect::<Vec<_>>(), code), (expected.to_vec(), Some(0)));
    let release = format!("{path}&release_id=ffffffff");
    let mut refused = http::send(reef.address, "GET", &release, &[], b"");
    assert_eq!(
        (refused.status, refused.text().contains("x-reef-scenario")),
        (400, true)
    );
}

#[test]
fn an_adapter_of_the_deployment_serves_files_and_no_script_that_would_fail() {
    let upstream = upstream();
    let own = tempfile::tempdir().unwrap();
    let descriptor = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/adapters/pi.toml");
    let text = fs::read_to_string(descriptor).unwrap();
    fs::write(
        own.path().join("my-pi.toml"),
        text.replace("name = \"pi\"", "name = \"my-pi\""),
    )
    .unwrap();
    let reef = serve(&upstream, &["--harness.adapters", own.path().to_str().unwrap()]);
    create(&reef, "team");
    let manifest = get(&reef, "team", "/reef/harness?adapter=my-pi", &[]).json();
    assert_eq!(manifest["adapter"], "my-pi", "{manifest}");
    let mut refused = get(&reef, "team", "/reef/harness/install?adapter=my-pi", &[]);
    let (status, said) = (refused.status, refused.text());
    assert_eq!(status, 400, "{said}");
    assert!(said.contains("this deployment's own"), "{said}");
}

#[test]
fn a_service_without_trees_says_how_to_have_some() {
    let upstream = upstream();
    let reef = Reef::start(&upstream.url(), &[]);
    create(&reef, "s");
    for path in [
        "/reef/harness",
        "/reef/harness/releases",
        "/reef/harness/adapters",
        "/reef/harness/install?adapter=pi",
    ] {
        let mut response = get(&reef, "s", path, &[]);
        let said = response.json();
        assert_eq!(response.status, 404);
        assert!(
            said["error"]["message"].as_str().unwrap().contains("harness.adapter"),
            "{said}"
        );
    }
    assert_eq!(reef.post("/reef/harness", "").status, 405);
    assert_eq!(get(&reef, "s", "/reef/harness/nothing", &[]).status, 404);
    let open = http::send(reef.address, "GET", "/reef/harness/install?adapter=pi", &[], b"");
    assert_eq!(open.status, 404, "no scenario is made for nothing");
}
