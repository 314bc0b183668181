//! Real clients, from their registries, against the program: the OpenAI and Anthropic SDKs in Python and JavaScript,
//! LiteLLM, reef-client with its sidecar, and curl. `scripts/clients.sh` installs them, pinned, into `target/clients`;
//! without that (and without `REEF_CLIENTS=required`) the tests say so and check nothing.
//!
//! Each script checks its client's own objects and prints a line `{"receipt": …, "text": …}` or `{"receipt": …,
//! "tool": …}` for every receipt it got; the tests here look each of them up in the store.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

mod common;
#[path = "clients/provider.rs"]
mod provider;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use common::reef::Reef;
use common::upstream::Upstream;

const TOKEN: &str = "reef-token";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where the clients are, or `None` after saying why not.
fn installed() -> Option<PathBuf> {
    let dir = root().join("target/clients");
    if dir.join("complete").exists() {
        return Some(dir);
    }
    assert!(
        std::env::var_os("REEF_CLIENTS").is_none_or(|wanted| wanted != "required"),
        "the real clients are required but not installed; run scripts/clients.sh"
    );
    #[allow(clippy::print_stderr, reason = "a test that checks nothing must say so")]
    {
        eprintln!("skipped: the real clients are not installed; run scripts/clients.sh");
    }
    None
}

struct Stage {
    /// `None` where the embedded model answers.
    provider: Option<Upstream>,
    reef: Reef,
}

fn stage() -> Stage {
    let provider = Upstream::start(provider::script);
    let url = provider.url();
    let dir = tempfile::tempdir().unwrap().keep();
    let args = [
        "--upstream-url",
        &url,
        "--upstream-model",
        "text",
        "--upstream-api-key-env",
        "KEY",
    ];
    let reef = Reef::start_with(&dir, &args, |command| {
        command.env("KEY", provider::KEY).env("REEF_TOKEN", TOKEN);
    });
    Stage {
        provider: Some(provider),
        reef,
    }
}

/// The service answering with an embedded model of its own.
#[cfg(feature = "torch")]
fn embedded() -> Stage {
    use reef::engine::models::{synthetic_config, write_synthetic};
    let dir = tempfile::tempdir().unwrap().keep();
    let model = dir.join("tiny");
    write_synthetic(&model, &synthetic_config(), 7).unwrap();
    let model = model.to_str().unwrap();
    let args = ["--inference.model-path", model, "--inference.threads", "1"];
    let reef = Reef::start_with(&dir, &args, |command| {
        command.env("REEF_TOKEN", TOKEN);
    });
    Stage { provider: None, reef }
}

impl Stage {
    /// Runs a client's script to its end and checks every receipt it printed; gives how many there were.
    fn run(&self, program: &Path, script: &str) -> usize {
        let output = Command::new(program)
            .arg(root().join("tests/clients").join(script))
            .current_dir(root().join("target/clients"))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", &self.reef.dir)
            .env("REEF_URL", format!("http://{}", self.reef.address))
            .env("REEF_TOKEN", TOKEN)
            .env("NODE_PATH", root().join("target/clients/node_modules"))
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(
            output.status.success(),
            "{script}:\n{out}\n{err}\nthe service's log:\n{}",
            self.reef.log()
        );
        let mut receipts = 0;
        for line in out.lines().filter(|line| line.starts_with('{')) {
            self.check(&serde_json::from_str(line).unwrap());
            receipts += 1;
        }
        self.check_secrets();
        receipts
    }

    /// The receipt names a record that holds what the client saw.
    fn check(&self, line: &Value) {
        let id = line["receipt"].as_str().unwrap();
        let mut response = common::http::send(
            self.reef.address,
            "GET",
            &format!("/reef/scenarios/s/records/{id}"),
            &[("authorization", &format!("Bearer {TOKEN}"))],
            b"",
        );
        assert_eq!(response.status, 200, "{line}: no record");
        let text = response.text();
        if let Some(said) = line["text"].as_str() {
            // As it is written within a JSON text.
            let written = serde_json::to_string(said).unwrap();
            assert!(text.contains(&written[1..written.len() - 1]), "{line}: not in {text}");
        }
        if let Some(tool) = line["tool"].as_str() {
            assert!(text.contains(tool) && text.contains("Paris"), "{line}: not in {text}");
        }
    }

    /// The provider never sees the client's credential, and the log shows neither.
    fn check_secrets(&self) {
        for seen in self.provider.iter().flat_map(Upstream::seen) {
            let sent = format!("{:?}", seen.headers);
            assert!(!sent.contains(TOKEN), "the client's token went up: {sent}");
        }
        let log = self.reef.log();
        assert!(!log.contains(TOKEN) && !log.contains(provider::KEY), "{log}");
    }
}

fn python(script: &str, stage: impl FnOnce() -> Stage) -> Option<usize> {
    let dir = installed()?;
    Some(stage().run(&dir.join("venv/bin/python"), script))
}

fn node(script: &str, stage: impl FnOnce() -> Stage) -> Option<usize> {
    let dir = installed()?;
    // A module is looked up beside the script that imports it, so the script goes where the modules are.
    let copy = dir.join(script);
    std::fs::copy(root().join("tests/clients").join(script), &copy).unwrap();
    Some(stage().run(&dir.join("node"), copy.to_str().unwrap()))
}

#[test]
fn openai_for_python() {
    if let Some(receipts) = python("openai_sdk.py", stage) {
        assert_eq!(receipts, 11);
    }
}

#[test]
fn anthropic_for_python() {
    if let Some(receipts) = python("anthropic_sdk.py", stage) {
        assert_eq!(receipts, 6);
    }
}

#[test]
fn litellm_for_python() {
    if let Some(receipts) = python("litellm_sdk.py", stage) {
        assert_eq!(receipts, 2);
    }
}

#[test]
fn reef_client_with_its_sidecar() {
    if let Some(receipts) = python("reef_client_sdk.py", stage) {
        assert_eq!(receipts, 4);
    }
}

#[test]
fn openai_for_javascript() {
    if let Some(receipts) = node("openai_sdk.mjs", stage) {
        assert_eq!(receipts, 5);
    }
}

#[test]
fn anthropic_for_javascript() {
    if let Some(receipts) = node("anthropic_sdk.mjs", stage) {
        assert_eq!(receipts, 4);
    }
}

#[cfg(feature = "torch")]
#[test]
fn python_clients_with_the_embedded_model() {
    if let Some(receipts) = python("embedded_sdk.py", embedded) {
        assert_eq!(receipts, 4);
    }
}

#[cfg(feature = "torch")]
#[test]
fn javascript_clients_with_the_embedded_model() {
    if let Some(receipts) = node("embedded_sdk.mjs", embedded) {
        assert_eq!(receipts, 3);
    }
}

#[test]
fn curl() {
    let stage = stage();
    let url = format!("http://{}/v1/chat/completions", stage.reef.address);
    let run = |args: &[&str]| {
        let output = Command::new("curl")
            .args([
                "-sS",
                "--max-time",
                "60",
                "-H",
                "x-reef-scenario: s",
                "-H",
                "content-type: application/json",
            ])
            .args(["-H", &format!("authorization: Bearer {TOKEN}")])
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let body = r#"{"model":"text","messages":[{"role":"user","content":"hi"}]}"#;
    let answer = run(&["-i", &url, "-d", body]);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let receipt = answer
        .lines()
        .find_map(|line| line.strip_prefix("x-reef-agent-record-id: "))
        .unwrap()
        .trim();
    stage.check(&serde_json::json!({"receipt": receipt, "text": "forty-two"}));
    let streamed = run(&[
        "-N",
        &url,
        "-d",
        &body.replace("\"model\"", "\"stream\":true,\"model\""),
    ]);
    let events: Vec<&str> = streamed.split("\n\n").filter(|event| !event.is_empty()).collect();
    assert_eq!(events.last(), Some(&"data: [DONE]"), "{streamed}");
    // A loop over `choices[0]` meets no chunk without choices.
    let chunks = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap());
    let finish: Vec<Value> = chunks.filter(|chunk: &Value| chunk.get("reef").is_some()).collect();
    assert_eq!(
        (finish.len(), &finish[0]["choices"][0]["finish_reason"]),
        (1, &Value::from("stop"))
    );
    let receipt = finish[0]["reef"]["agent_record_id"].as_str().unwrap();
    stage.check(&serde_json::json!({"receipt": receipt, "text": "forty-two"}));
    let code = run(&["-o", "/dev/null", "-w", "%{http_code}", &url, "-d", "{not json"]);
    assert_eq!(code, "400");
    let report = format!(r#"{{"references":["{receipt}"],"score":1.0}}"#);
    let answer = run(&[&format!("http://{}/reef/report", stage.reef.address), "-d", &report]);
    assert!(answer.contains("\"request_type\":\"report\""), "{answer}");
    stage.check_secrets();
}
