//! How a scenario begins: whatever makes it, it is what its first request would have made.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::common::http;
use crate::common::reef::{Reef, command};
use crate::common::upstream::{Upstream, answer};

const AGENT: &str = "#!/bin/sh\ncase \"$1\" in --version) echo 0.84.2 ;; esac\n";

fn provider() -> Upstream {
    let chat = include_str!("../../src/engine/sse/fixtures/chat.json");
    Upstream::always(answer(200, "application/json", chat))
}

/// A directory after `reef init harness`, with an agent on the path.
fn harness_deployment() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    good(&reef(dir.path(), &["init", "harness"]));
    let agent = dir.path().join("bin/pi");
    fs::create_dir_all(agent.parent().unwrap()).unwrap();
    fs::write(&agent, AGENT).unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn on_path(dir: &Path, mut command: Command) -> Command {
    let path = format!("{}:{}", dir.join("bin").display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).stdin(Stdio::null());
    command
}

fn reef(dir: &Path, args: &[&str]) -> Output {
    on_path(dir, command(dir)).args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn good(output: &Output) -> Value {
    assert!(output.status.success(), "{}", said(output));
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

fn serve(dir: &Path, upstream: &Upstream, args: &[&str]) -> Reef {
    Reef::start_with(
        dir,
        &[&["-c", "serve.toml", "--inference.upstream-url", &upstream.url()], args].concat(),
        |_| {},
    )
}

fn manifest(reef: &Reef, scenario: &str) -> (u16, Value) {
    let headers = [("x-reef-scenario", scenario)];
    let mut response = http::send(reef.address, "GET", "/reef/harness?adapter=pi", &headers, b"");
    (response.status, response.json())
}

fn files(manifest: &Value) -> Vec<&String> {
    manifest["files"].as_object().expect("files").keys().collect()
}

#[test]
fn an_installation_makes_the_scenario_that_its_first_request_would_make() {
    let (dir, upstream) = (harness_deployment(), provider());
    let service = serve(dir.path(), &upstream, &[]);
    let url = format!("http://{}", service.address);
    let install = [
        "harness",
        "install",
        "--adapter",
        "pi",
        "--url",
        &url,
        "--scenario",
        "team",
    ];
    let first = reef(dir.path(), &install);
    good(&first);
    assert!(said(&first).contains("made the scenario team"), "{}", said(&first));
    assert!(dir.path().join(".local/bin/reef-pi").is_file());
    // Once more is a repair of the same scenario.
    let again = reef(dir.path(), &install);
    good(&again);
    assert!(!said(&again).contains("made the scenario"), "{}", said(&again));
    // The same as a request made.
    let asked = http::send(
        service.address,
        "POST",
        "/v1/chat/completions",
        &[("x-reef-scenario", "asked")],
        br#"{"model":"m","messages":[]}"#,
    );
    assert_eq!(asked.status, 200);
    let (team, asked) = (manifest(&service, "team").1, manifest(&service, "asked").1);
    assert_eq!(team["content_id"], asked["content_id"], "{team}\n{asked}");
    assert!(files(&team).iter().any(|path| path.ends_with("AGENTS.md")), "{team}");
}

#[test]
fn the_script_for_a_new_scenario_installs_it() {
    let (dir, upstream) = (harness_deployment(), provider());
    let service = serve(dir.path(), &upstream, &[]);
    let path = "/reef/harness/install?adapter=pi";
    let mut script = http::send(service.address, "GET", path, &[("x-reef-scenario", "other")], b"");
    let text = script.text();
    assert_eq!(script.status, 200, "{text}");
    // Asking for it made nothing.
    assert!(service.status()["scenarios"]["other"].is_null());
    let mut shell = Command::new("sh");
    shell
        .env_clear()
        .env("HOME", dir.path())
        .env("REEF_PROGRAM", env!("CARGO_BIN_EXE_reef"))
        .current_dir(dir.path());
    let output = on_path(dir.path(), shell).args(["-c", &text]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(manifest(&service, "other").0, 200);
    // What the service could not install is told instead of a script.
    let mut refused = http::send(service.address, "GET", "/reef/harness/install?adapter=nope", &[], b"");
    let words = refused.text();
    assert_eq!(refused.status, 404, "{words}");
}

#[test]
fn where_requests_make_no_scenario_an_installation_makes_none() {
    let (dir, upstream) = (harness_deployment(), provider());
    let service = serve(dir.path(), &upstream, &["--no-reef.allow-implicit-scenario-creation"]);
    let url = format!("http://{}", service.address);
    let output = reef(
        dir.path(),
        &[
            "harness",
            "install",
            "--adapter",
            "pi",
            "--url",
            &url,
            "--scenario",
            "typo",
        ],
    );
    assert!(!output.status.success());
    assert!(said(&output).contains("there is no scenario typo"), "{}", said(&output));
    assert!(service.status()["scenarios"]["typo"].is_null());
    let headers = [("x-reef-scenario", "typo")];
    let script = http::send(
        service.address,
        "GET",
        "/reef/harness/install?adapter=pi",
        &headers,
        b"",
    );
    assert_eq!(script.status, 404);
    // Somebody who means to make one does.
    good(&reef(dir.path(), &["scenario", "create", "typo", "--url", &url]));
    assert_eq!(manifest(&service, "typo").0, 200);
}

/// Without the deployment file at hand: the service has it.
#[test]
fn a_scenario_is_created_by_the_service_that_runs_on_the_files() {
    let (dir, upstream) = (harness_deployment(), provider());
    let service = serve(dir.path(), &upstream, &["--training.mode", "hybrid"]);
    let made = good(&reef(dir.path(), &["scenario", "create", "team", "--json"]));
    assert_eq!(
        (&made["created"], &made["training_mode"]),
        (&json!(true), &json!("hybrid")),
        "{made}"
    );
    let made = good(&reef(
        dir.path(),
        &["scenario", "create", "quiet", "--mode", "manual", "--json"],
    ));
    assert_eq!(made["training_mode"], "manual", "{made}");
    let again = good(&reef(dir.path(), &["scenario", "create", "team", "--json"]));
    assert_eq!(again["created"], false, "{again}");
    let (status, tree) = manifest(&service, "team");
    assert_eq!(status, 200, "{tree}");
    // An import into a scenario that is new begins it in the same way.
    fs::write(
        dir.path().join("examples.jsonl"),
        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"completion\":\"a\"}\n",
    )
    .unwrap();
    good(&reef(
        dir.path(),
        &["records", "import", "examples.jsonl", "--scenario", "imported"],
    ));
    let (status, imported) = manifest(&service, "imported");
    assert_eq!(
        (status, &imported["content_id"]),
        (200, &tree["content_id"]),
        "{imported}"
    );
    let status = service.status();
    assert_eq!(status["scenarios"]["imported"]["training_mode"], "hybrid", "{status}");
}

/// One that a service without a harness made is given a tree, instead of being deleted.
#[test]
fn a_scenario_older_than_the_harness_is_given_a_tree() {
    let (dir, upstream) = (harness_deployment(), provider());
    let alone = reef(dir.path(), &["scenario", "create", "team"]);
    good(&alone);
    assert!(said(&alone).contains("-c serve.toml"), "{}", said(&alone));
    let service = serve(dir.path(), &upstream, &[]);
    let (status, refused) = manifest(&service, "team");
    assert_eq!(status, 404, "{refused}");
    let advice = refused["error"]["message"].as_str().unwrap();
    assert!(advice.contains("reef release import DIR --scenario team"), "{advice}");
    let path = service.dir.join("tree");
    good(&reef(
        dir.path(),
        &["release", "import", path.to_str().unwrap(), "--scenario", "team"],
    ));
    let url = format!("http://{}", service.address);
    crate::common::wait_for("the tree to be served", || {
        (manifest(&service, "team").0 == 200).then_some(())
    });
    good(&reef(
        dir.path(),
        &[
            "harness",
            "install",
            "--adapter",
            "pi",
            "--url",
            &url,
            "--scenario",
            "team",
        ],
    ));
}

const TRAINER: &str = r#"read -r ask
out=$(printf '%s' "$ask" | sed -n 's/.*"output":"\([^"]*\)".*/\1/p')
batch=$(printf '%s' "$ask" | sed -n 's/.*"batch":"\([^"]*\)".*/\1/p')
wc -l < "$batch" > "$out/lines.txt"
echo '{"event":"done","metrics":{"loss":0.5}}'
"#;

const RECIPE: &str = r#"
format = 1
name = "counting"
[processor]
kind = "demonstration"
tokens = false
[batch]
size = 4
max-staleness = 100
accept-imported = true
[trainer]
backend = "program"
command = ["sh", "train.sh"]
[gate]
selector = "always"
[surface]
kind = "lora-adapter"
"#;

#[test]
fn what_is_imported_into_a_fresh_directory_trains() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("recipe.toml", RECIPE),
        ("train.sh", TRAINER),
        ("serve.toml", "[reef]\nrecipe = \"recipe.toml\"\n"),
    ] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let lines: String = (0..4)
        .map(|n| format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"q{n}\"}}],\"completion\":\"a\"}}\n"))
        .collect();
    fs::write(dir.path().join("examples.jsonl"), lines).unwrap();
    good(&reef(
        dir.path(),
        &["records", "import", "examples.jsonl", "--scenario", "s"],
    ));
    // What the import made is all that a chain needs.
    assert!(!good(&reef(dir.path(), &["release", "list", "--json"]))["head"].is_null());
    let trained = reef(dir.path(), &["train", "-c", "serve.toml"]);
    assert_eq!(trained.status.code(), Some(0), "{}", said(&trained));
    assert!(said(&trained).contains("s step 1 released"), "{}", said(&trained));
    // A name that is new begins too, and has nothing to train.
    let nothing = reef(dir.path(), &["train", "-c", "serve.toml", "--scenario", "fresh"]);
    assert_eq!(nothing.status.code(), Some(3), "{}", said(&nothing));
    assert!(!good(&reef(dir.path(), &["release", "list", "-s", "fresh", "--json"]))["head"].is_null());
    // A wrong directory is not filled with an empty deployment.
    let wrong = dir.path().join("wrong");
    fs::create_dir(&wrong).unwrap();
    let refused = reef(&wrong, &["train", "--reef.recipe", "../recipe.toml"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(!wrong.join(".reef/experience.db").exists());
}

/// The first of two services goes on being seen when the second stops, and when the first is killed.
#[test]
fn each_of_two_services_is_seen_for_as_long_as_it_runs() {
    let (dir, upstream) = (tempfile::tempdir().unwrap(), provider());
    let mut first = Reef::start_in(dir.path(), &upstream.url(), &[]);
    let mut second = Reef::start_in(dir.path(), &upstream.url(), &[]);
    let services = || {
        let status = good(&reef(dir.path(), &["status", "--json"]));
        let services = status["services"].as_array().unwrap().clone();
        services
            .iter()
            .map(|service| service["pid"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    let (one, two) = (u64::from(first.pid()), u64::from(second.pid()));
    assert_eq!(services(), [one, two]);
    second.signal(rustix::process::Signal::TERM);
    second.wait();
    assert_eq!(services(), [one]);
    let third = Reef::start_in(dir.path(), &upstream.url(), &[]);
    first.kill();
    assert_eq!(services(), [u64::from(third.pid())]);
    let shown = said(&reef(dir.path(), &["status"]));
    assert!(
        shown.contains(&format!("process {}", third.pid())) && shown.contains("http://"),
        "{shown}"
    );
}
