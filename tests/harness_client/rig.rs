//! A user's home, a scripted service, and a stand-in for Pi.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::upstream::{Do, Seen, Upstream, answer, stream, stream_head};

pub const TOKEN: &str = "the-services-own-token";

/// What the stand-in does is chosen by its first word.
const AGENT: &str = r#"#!/bin/sh
case "$1" in
--version) echo 0.84.2 ;;
ask) curl -sS -H "authorization: Bearer $REEF_TOKEN" -H 'content-type: application/json' \
    "$REEF_SERVICE_URL/v1/chat/completions${2:-}" -d '{"model":"m","stream":true,"messages":[]}' ;;
call) curl -sS -o /dev/null -w '%{http_code}' -X "$2" -H "authorization: Bearer ${4:-$REEF_TOKEN}" "$REEF_SERVICE_URL$3" ;;
slow) curl -sSN -H "authorization: Bearer $REEF_TOKEN" "$REEF_SERVICE_URL/v1/chat/completions?slow" -d '{"stream":true}' ;;
askhold) curl -sS -o /dev/null -H "authorization: Bearer $REEF_TOKEN" "$REEF_SERVICE_URL/v1/chat/completions" -d '{}'
    echo asked; exec cat ;;
tty)
    trap 'echo INT; n=$((n+1))' INT
    test -t 0 && test -t 1 && test -t 2 && echo terminal
    while :; do sleep 0.1; test "${n:-0}" -gt 0 && sleep 0.3 && echo "seen $n" && exit 5; done ;;
exit) exit "$2" ;;
die) kill -"$2" $$ ;;
linger)
    trap 'echo got TERM; exit 7' TERM
    trap 'echo got INT; exit 8' INT
    echo ready
    while :; do sleep 0.05; done ;;
inner) shift; exec "$@" ;;
graded)
    curl -sS -o /dev/null -H "authorization: Bearer $REEF_TOKEN" "$REEF_SERVICE_URL/v1/chat/completions" -d '{}'
    env -u REEF_HARNESS_SESSION -u REEF_TOKEN -u REEF_SERVICE_URL "$REEF_HARNESS_WRAPPER" ask >/dev/null
    exec "$REEF_HARNESS_WRAPPER" report --score 0.25 --json ;;
login) (umask 077; printf '%s' "$2" > "$PI_CODING_AGENT_DIR/auth.json"); echo written; cat ;;
auth) cat "$PI_CODING_AGENT_DIR/auth.json"; stat -c ' %a' "$PI_CODING_AGENT_DIR/auth.json" ;;
hold) echo "$PI_CODING_AGENT_DIR"; cat ;;
env) env ;;
umask) umask ;;
open) for fd in /proc/$$/fd/*; do readlink "$fd"; done; cat "${2#--from=}" ;;
args) shift; for word; do printf '<%s>' "$word"; done ;;
rules) cat "$PI_CODING_AGENT_DIR/AGENTS.md" ;;
settings) cat "$PI_CODING_AGENT_DIR/settings.json" ;;
choose) printf '%s' "$2" > "$PI_CODING_AGENT_DIR/settings.json"; echo kept > "$PI_CODING_AGENT_DIR/auth.json" ;;
*) echo "the stand-in's own words: $*" ;;
esac
"#;

/// What the service serves and what it was told.
#[derive(Default)]
pub struct Served {
    pub manifest: Value,
    pub reports: Vec<Value>,
    /// What became of a request.
    pub progress: Value,
    /// Answers reports with this status instead.
    pub report_status: Option<u16>,
    /// Fails over reports with this score.
    pub report_breaks: Option<f64>,
    /// Asks for no token.
    pub any_token: bool,
    /// What came as one.
    pub tokens: Vec<Option<String>>,
    /// Refuses reports in these words.
    pub report_words: Option<String>,
    /// Answers reports as a gateway does that knows no such page.
    pub gateway: bool,
    /// Takes its time over reports.
    pub report_delay: Option<Duration>,
    /// Scenarios that were made.
    pub scenarios: Vec<String>,
}

pub struct Service {
    pub upstream: Upstream,
    pub state: Arc<Mutex<Served>>,
}

impl Service {
    pub fn start(manifest: Value) -> Self {
        let state = Arc::new(Mutex::new(Served {
            manifest,
            ..Served::default()
        }));
        let shared = Arc::clone(&state);
        let upstream = Upstream::start(move |seen, before| reply(&shared, seen, before));
        Self { upstream, state }
    }

    pub fn serve(&self, manifest: Value) {
        self.state.lock().unwrap().manifest = manifest;
    }

    pub fn reports(&self) -> Vec<Value> {
        self.state.lock().unwrap().reports.clone()
    }
}

fn json_answer(status: u16, body: &Value) -> Vec<Do> {
    answer(status, "application/json", body.to_string())
}

fn refusal(status: u16, message: &str) -> Vec<Do> {
    json_answer(
        status,
        &json!({"error": {"message": message, "type": "invalid_request_error"}}),
    )
}

fn reply(state: &Mutex<Served>, seen: &Seen, before: usize) -> Vec<Do> {
    {
        let mut state = state.lock().unwrap();
        let given = seen.header("authorization");
        state.tokens.push(given.map(str::to_owned));
        if !state.any_token && given != Some(&format!("Bearer {TOKEN}")) {
            return refusal(401, "no such token");
        }
    }
    let delay = state.lock().unwrap().report_delay;
    if seen.target == "/reef/report" {
        std::thread::sleep(delay.unwrap_or_default());
    }
    let mut state = state.lock().unwrap();
    let path = seen.target.split('?').next().unwrap();
    match (seen.method.as_str(), path) {
        ("GET", "/reef/harness") if state.manifest.is_null() => refusal(404, "the scenario serves no files"),
        ("GET", "/reef/harness") => json_answer(200, &state.manifest),
        ("GET", "/v1/models") => json_answer(200, &json!({"data": [{"id": "m"}]})),
        ("POST", "/reef/scenarios") => {
            let name = seen.json()["scenario"].as_str().unwrap().to_owned();
            state.scenarios.push(name.clone());
            json_answer(201, &json!({"scenario": name}))
        }
        ("DELETE", _) if path.starts_with("/reef/scenarios/") => {
            state.scenarios.retain(|name| !path.ends_with(&format!("/{name}")));
            json_answer(200, &json!({"archived": true}))
        }
        ("POST", "/reef/report") => {
            if let Some(status) = state.report_status {
                return refusal(status, "not this one");
            }
            if let Some(words) = &state.report_words {
                return refusal(400, words);
            }
            if state.gateway {
                return answer(404, "text/html", "<h1>no such page</h1>");
            }
            let report = seen.json();
            if state.report_breaks.is_some() && report["score"].as_f64() == state.report_breaks {
                return refusal(500, "it broke");
            }
            if !state.reports.contains(&report) {
                state.reports.push(report.clone());
            }
            json_answer(200, &json!({"agent_record_id": report["agent_record_id"]}))
        }
        ("POST", "/v1/chat/completions") if seen.target.ends_with("?slow") => vec![
            stream_head(),
            Do::Send(b"data: first\n\n".to_vec()),
            Do::Gate,
            Do::Send(b"data: [DONE]\n\n".to_vec()),
            Do::Close,
        ],
        ("POST", "/reef/train") => json_answer(200, &json!({"agent_record_id": "req-1", "page_path": "/page"})),
        ("GET", "/reef/harness/requests/req-1/progress") => json_answer(200, &state.progress),
        ("POST", "/v1/chat/completions") => stream(&[
            "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n",
            &format!("data: {{\"choices\":[],\"reef\":{{\"agent_record_id\":\"receipt-{before}\"}}}}\n\n"),
            "data: [DONE]\n\n",
        ]),
        _ => refusal(404, "no such route"),
    }
}

pub fn release(id: &str) -> Value {
    json!({
        "release_id": id,
        "content_id": null,
        "files": {
            "pi-agent/AGENTS.md": format!("Rules of {id}.\n"),
            format!("pi-agent/skills/{id}/SKILL.md"): "---\nname: x\ndescription: y\n---\nz\n",
            "pi-agent/settings.json": "{\"quietStartup\":true}\n",
        },
    })
}

pub struct Rig {
    pub home: tempfile::TempDir,
    pub service: Service,
}

impl Rig {
    /// A home with the stand-in in it and a service that serves `r1`.
    pub fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let agent = home.path().join("vendor/pi");
        std::fs::create_dir_all(agent.parent().unwrap()).unwrap();
        std::fs::write(&agent, AGENT).unwrap();
        std::fs::set_permissions(&agent, PermissionsExt::from_mode(0o755)).unwrap();
        Self {
            home,
            service: Service::start(release("r1")),
        }
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.home.path().join(below)
    }

    pub fn place(&self, scenario: &str) -> PathBuf {
        self.path(".local/share/reef/harness/pi").join(scenario)
    }

    /// A command with a clean environment: no token.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", "/usr/bin:/bin")
            .current_dir(self.home.path())
            .stdin(Stdio::null());
        for name in ["LD_LIBRARY_PATH", "LIBTORCH"] {
            if let Ok(value) = std::env::var(name) {
                command.env(name, value);
            }
        }
        command
    }

    pub fn reef(&self, args: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_reef"));
        command.args(args);
        command
    }

    pub fn install(&self, scenario: &str, more: &[&str]) -> Command {
        let agent = self.path("vendor/pi").display().to_string();
        let url = self.service.upstream.url();
        let mut command = self.reef(&[
            "harness",
            "install",
            "--json",
            "--adapter",
            "pi",
            "--scenario",
            scenario,
        ]);
        command
            .args(["--agent-program", &agent, "--url", &url])
            .args(more)
            .env("REEF_TOKEN", TOKEN);
        command
    }

    pub fn installed(scenario: &str) -> Self {
        let rig = Self::new();
        ok(&mut rig.install(scenario, &[]));
        rig
    }

    pub fn wrapper(&self, args: &[&str]) -> Command {
        self.named("reef-pi", args)
    }

    pub fn named(&self, name: &str, args: &[&str]) -> Command {
        let mut command = self.command(self.path(".local/bin").join(name));
        command.args(args);
        command
    }

    /// Every file below the home with its bytes, and every link with its target.
    pub fn everything(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut all = BTreeMap::new();
        collect(self.home.path(), &mut all);
        all
    }
}

fn collect(dir: &Path, all: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = std::fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            collect(&path, all);
        } else if meta.is_symlink() {
            let target = std::fs::read_link(&path).unwrap();
            all.insert(path, target.display().to_string().into_bytes());
        } else {
            let bytes = std::fs::read(&path).unwrap();
            all.insert(path, bytes);
        }
    }
}

/// Runs a command that has to succeed; gives what it printed.
pub fn ok(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

pub fn ok_json(command: &mut Command) -> Value {
    let text = ok(command);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Runs a command that has to fail in this way; gives what it said.
pub fn fails(command: &mut Command, code: i32) -> String {
    let output: Output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        output.status.code(),
        Some(code),
        "{command:?}\n{}\n{said}",
        String::from_utf8_lossy(&output.stdout)
    );
    said
}
