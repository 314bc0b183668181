//! Real coding agents from their registries, wrapped by the program: Pi, Codex, Claude Code, opencode, Qwen Code, Hermes
//! Agent, and OpenClaw where it is there. `scripts/agents.sh` installs them, pinned; without that (and without
//! `REEF_AGENTS=required`) the tests say so and check nothing.
//!
//! Each agent is installed with `reef harness install`, runs a turn of text and a turn with a tool through its wrapper
//! against `reef serve` in front of a scripted provider, and is graded with `reef-NAME report`.

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
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use common::reef::Reef;
use common::upstream::Upstream;

const TOKEN: &str = "the-services-own-token";

fn agents_dir() -> PathBuf {
    std::env::var_os("REEF_AGENTS_DIR").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache/reef/clients/agents"),
        PathBuf::from,
    )
}

/// Large and slow to install, or of a Python that not every machine has: nothing requires them.
const OPTIONAL: [&str; 2] = ["openclaw", "hermes"];

/// The agent's program, or `None` after saying why not.
fn installed(name: &str) -> Option<PathBuf> {
    let dir = agents_dir();
    if dir.join(name).join("complete").exists() && dir.join("node/complete").exists() {
        let bin = if name == "hermes" { "bin" } else { "node_modules/.bin" };
        return Some(dir.join(name).join(bin).join(name));
    }
    assert!(
        OPTIONAL.contains(&name) || std::env::var_os("REEF_AGENTS").is_none_or(|wanted| wanted != "required"),
        "{name} is required but not installed; run scripts/agents.sh"
    );
    #[allow(clippy::print_stderr, reason = "a test that checks nothing must say so")]
    {
        eprintln!("skipped: {name} is not installed; run scripts/agents.sh {name}");
    }
    None
}

/// A service, a provider behind it, and a user's home.
struct Stage {
    provider: Upstream,
    reef: Reef,
    home: tempfile::TempDir,
    name: &'static str,
}

impl Stage {
    fn start(name: &'static str, more: &[&str]) -> Self {
        let provider = Upstream::start(provider::script);
        let url = provider.url();
        let dir = tempfile::tempdir().unwrap().keep();
        let args = [&["--upstream-url", &url, "--upstream-api-key-env", "KEY"], more].concat();
        let reef = Reef::start_with(&dir, &args, |command| {
            command.env("KEY", provider::KEY).env("REEF_TOKEN", TOKEN);
        });
        Self {
            provider,
            reef,
            home: tempfile::tempdir().unwrap(),
            name,
        }
    }

    /// Installs these files from a manifest.
    fn new(name: &'static str, program: &Path, api: &str, files: &Value) -> Self {
        let stage = Self::start(name, &[]);
        let manifest = stage.home.path().join("manifest.json");
        std::fs::write(&manifest, json!({"release_id": "r1", "files": files}).to_string()).unwrap();
        let mut install = stage.command(Path::new(env!("CARGO_BIN_EXE_reef")));
        install
            .args(["harness", "install", "--adapter", name, "--scenario", "s", "--api", api])
            .args(["--model", "text", "--url", &format!("http://{}", stage.reef.address)])
            .arg("--manifest")
            .arg(&manifest)
            .arg("--agent-program")
            .arg(program)
            .env("REEF_TOKEN", TOKEN);
        stage.done(&mut install);
        stage
    }

    /// A clean environment: no token, and a PATH that knows the agent's Node only at the time of the installation.
    fn command(&self, program: &Path) -> Command {
        let node = agents_dir().join("node/node_modules/node/bin");
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", format!("{}:/usr/bin:/bin", node.display()))
            .env("TMPDIR", self.home.path())
            .stdin(Stdio::null());
        for name in ["LD_LIBRARY_PATH", "LIBTORCH"] {
            if let Ok(value) = std::env::var(name) {
                command.env(name, value);
            }
        }
        command
    }

    fn wrapper(&self) -> PathBuf {
        self.home.path().join(".local/bin").join(format!("reef-{}", self.name))
    }

    /// Runs the wrapper in a fresh workspace.
    fn wrapped(&self, args: &[&str]) -> (Output, tempfile::TempDir) {
        let workspace = tempfile::tempdir().unwrap();
        let mut command = self.command(&self.wrapper());
        command
            .env("PATH", "/usr/bin:/bin")
            .args(args)
            .current_dir(workspace.path());
        (self.done(&mut command), workspace)
    }

    fn done(&self, command: &mut Command) -> Output {
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{command:?}\n{}\n{}\nthe service's log:\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            self.reef.log()
        );
        output
    }

    fn get(&self, path: &str) -> Value {
        let authorization = format!("Bearer {TOKEN}");
        let headers = [("authorization", authorization.as_str())];
        common::http::send(self.reef.address, "GET", path, &headers, b"").json()
    }

    fn runs(&self) -> Vec<Value> {
        let (output, _) = self.wrapped(&["report", "--list", "--json"]);
        let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
        listed["runs"].as_array().unwrap().clone()
    }

    /// A text turn and a tool turn, both recorded, spooled and graded.
    fn works(&self, headless: impl Fn(&str) -> Vec<String>) {
        let args = headless("Say the number, then write the file.");
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (output, workspace) = self.wrapped(&args);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            said.contains("the tool says"),
            "{said}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let made = std::fs::read_to_string(workspace.path().join("made-by-agent.txt"));
        assert_eq!(made.unwrap(), "reef", "{said}");

        let runs = self.runs();
        assert_eq!(runs.len(), 1, "{runs:?}");
        let turns = runs[0]["turns"].as_array().unwrap();
        assert!(turns.len() >= 2 && runs[0]["exit_code"] == 0, "{runs:?}");
        for turn in turns {
            let record = self.get(&format!(
                "/reef/scenarios/s/records/{}",
                turn["receipt"].as_str().unwrap()
            ));
            assert_eq!(record["tags"]["session"], runs[0]["run"], "{record}");
            assert_eq!(record["tags"]["release"], runs[0]["release_id"], "{record}");
        }

        let (output, _) = self.wrapped(&["report", "--score", "1", "--feedback", "well done"]);
        let report = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let last = turns.last().unwrap()["receipt"].as_str().unwrap();
        let record = self.get(&format!("/reef/scenarios/s/records/{last}"));
        let reports = record["reports"].to_string();
        assert!(reports.contains(&report), "{record}");
        // The same grade again is the same report.
        let (again, _) = self.wrapped(&["report", "--score", "1", "--feedback", "well done"]);
        assert_eq!(String::from_utf8_lossy(&again.stdout).trim(), report);

        self.no_secret();
    }

    /// The token is in its own file and nowhere else; the provider saw neither it nor the session's key.
    fn no_secret(&self) {
        let mut seen = 0;
        each_file(self.home.path(), &mut |path, bytes| {
            if path.ends_with("token") {
                seen += 1;
                return;
            }
            assert!(!holds(bytes, TOKEN), "{} holds the token", path.display());
        });
        assert_eq!(seen, 1);
        for seen in self.provider.seen() {
            let sent = format!("{:?}", seen.headers);
            assert!(!sent.contains(TOKEN) && !sent.contains("reef-session-"), "{sent}");
        }
        let log = self.reef.log();
        assert!(!log.contains(TOKEN), "{log}");
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn each_file(dir: &Path, look: &mut dyn FnMut(&Path, &[u8])) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let kind = std::fs::symlink_metadata(&path).unwrap();
        if kind.is_dir() {
            each_file(&path, look);
        } else if kind.is_file() {
            look(&path, &std::fs::read(&path).unwrap());
        }
    }
}

fn words(args: &[&str]) -> Vec<String> {
    args.iter().map(|&arg| arg.to_owned()).collect()
}

#[test]
fn pi_over_chat_completions() {
    let Some(program) = installed("pi") else { return };
    let files = json!({
        "pi-agent/AGENTS.md": "Answer in one line.\n",
        "pi-agent/skills/count/SKILL.md": "---\nname: count\ndescription: Counts things when asked to count.\n---\nCount.\n",
        "pi-agent/settings.json": "{\n  \"quietStartup\": true\n}\n",
    });
    let stage = Stage::new("pi", &program, "openai", &files);
    stage.works(|prompt| words(&["-p", prompt]));
    let asked = stage.provider.seen()[0].json().to_string();
    assert!(
        asked.contains("Answer in one line.") && asked.contains("Counts things"),
        "{asked}"
    );
}

#[test]
fn pi_over_every_other_api() {
    let Some(program) = installed("pi") else { return };
    for api in ["responses", "anthropic"] {
        let stage = Stage::new(
            "pi",
            &program,
            api,
            &json!({"pi-agent/AGENTS.md": "Answer in one line.\n"}),
        );
        stage.works(|prompt| words(&["-p", prompt]));
    }
}

#[test]
fn codex_over_responses() {
    let Some(program) = installed("codex") else { return };
    let files = json!({"codex/AGENTS.md": "Answer in one line.\n"});
    let stage = Stage::new("codex", &program, "responses", &files);
    stage.works(|prompt| {
        words(&[
            "exec",
            "--json",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            prompt,
        ])
    });
    let asked = stage.provider.seen()[0].json().to_string();
    assert!(asked.contains("Answer in one line."), "{asked}");
}

#[test]
fn claude_code_over_messages() {
    let Some(program) = installed("claude") else { return };
    let files = json!({
        "claude/CLAUDE.md": "Answer in one line.\n",
        "claude/commands/greet.md": "Say hello to $ARGUMENTS.\n",
    });
    let stage = Stage::new("claude", &program, "anthropic", &files);
    stage.works(|prompt| {
        words(&[
            "-p",
            prompt,
            "--output-format",
            "json",
            "--permission-mode",
            "acceptEdits",
            "--allowedTools",
            "Bash",
        ])
    });
    let asked: String = stage
        .provider
        .seen()
        .iter()
        .map(|seen| seen.json().to_string())
        .collect();
    assert!(asked.contains("Answer in one line."), "{asked}");
}

#[test]
fn opencode_over_chat_completions() {
    let Some(program) = installed("opencode") else { return };
    let files = json!({"opencode/AGENTS.md": "Answer in one line.\n"});
    let stage = Stage::new("opencode", &program, "openai", &files);
    stage.works(|prompt| words(&["run", "--format", "json", prompt]));
    let asked: String = stage
        .provider
        .seen()
        .iter()
        .map(|seen| seen.json().to_string())
        .collect();
    assert!(asked.contains("Answer in one line."), "{asked}");
}

#[test]
fn qwen_code_over_chat_completions() {
    let Some(program) = installed("qwen") else { return };
    let files = json!({
        "qwen/QWEN.md": "Answer in one line.\n",
        "qwen/settings.json": "{\n  \"general\": {\"enableAutoUpdate\": false},\n  \"hooks\": {\"PreToolUse\": [{\"matcher\": \"run_shell_command\", \"hooks\": [{\"type\": \"command\", \"command\": \"sh \\\"$QWEN_HOME/hooks/seen.sh\\\"\"}]}]},\n  \"memory\": {\"enableManagedAutoMemory\": false},\n  \"privacy\": {\"usageStatisticsEnabled\": false}\n}\n",
        "qwen/hooks/seen.sh": "#!/bin/sh\ntouch \"$HOME/hook-ran\"\n",
        "qwen/skills/count/SKILL.md": "---\nname: count\ndescription: Counts things when asked to count.\n---\nCount.\n",
    });
    let stage = Stage::new("qwen", &program, "openai", &files);
    stage.works(|prompt| words(&["--approval-mode", "yolo", "-o", "json", "-p", prompt]));
    let asked = stage.provider.seen()[0].json().to_string();
    assert!(
        asked.contains("Answer in one line.") && asked.contains("Counts things"),
        "{asked}"
    );
    assert!(stage.home.path().join("hook-ran").exists(), "the hook did not run");
    let sessions = stage
        .home
        .path()
        .join(".local/share/reef/harness/qwen/s/state/runtime/projects");
    assert!(sessions.is_dir(), "no session was kept in {}", sessions.display());
}

#[test]
fn hermes_agent_over_chat_completions() {
    let Some(program) = installed("hermes") else { return };
    let files = json!({
        "hermes/SOUL.md": "Answer in one line.\n",
        "hermes/config.yaml": "{\n  \"sessions\": {\n    \"write_json_snapshots\": true\n  }\n}\n",
        "hermes/.no-bundled-skills": "REASON=\"a release holds all skills\"\n",
        "hermes/skills/count/SKILL.md": "---\nname: count\ndescription: Counts things when asked to count.\n---\nCount.\n",
    });
    let stage = Stage::new("hermes", &program, "openai", &files);
    stage.works(|prompt| words(&["--yolo", "-z", prompt]));
    let asked = stage.provider.seen()[0].json().to_string();
    assert!(
        asked.contains("Answer in one line.") && asked.contains("Counts things"),
        "{asked}"
    );
    let sessions = stage
        .home
        .path()
        .join(".local/share/reef/harness/hermes/s/root-0/hermes/sessions");
    let kept = std::fs::read_dir(&sessions).unwrap().count();
    assert!(kept > 0, "no session was kept in {}", sessions.display());
}

/// `scripts/agents.sh` installs it only when it is named.
#[test]
fn openclaw_over_chat_completions() {
    let Some(program) = installed("openclaw") else { return };
    let files = json!({
        "openclaw/openclaw.json": "{\"agents\": {\"defaults\": {\"cwd\": \".\", \"skipBootstrap\": true}}}\n",
        "openclaw/workspace/AGENTS.md": "Answer in one line.\n",
        "openclaw/skills/count/SKILL.md": "---\nname: count\ndescription: Counts things when asked to count.\n---\nCount.\n",
    });
    let stage = Stage::new("openclaw", &program, "openai", &files);
    stage.works(|prompt| words(&["agent", "--local", "--agent", "main", "--json", "-m", prompt]));
    let asked = stage.provider.seen()[0].json().to_string();
    assert!(
        asked.contains("Answer in one line.") && asked.contains("Counts things"),
        "{asked}"
    );
}

/// The way a person meets it: one line from the service, piped into a shell.
#[test]
fn pi_installed_by_the_line_the_service_gives() {
    let Some(program) = installed("pi") else { return };
    let seed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/harness/trees/portable.json");
    let seed = seed.to_str().unwrap();
    let stage = Stage::start(
        "pi",
        &[
            "--harness.adapter",
            "pi",
            "--harness.seed",
            seed,
            "--upstream-model",
            "text",
        ],
    );
    let body = json!({"scenario": "s"}).to_string();
    let authorization = format!("Bearer {TOKEN}");
    let headers = [("authorization", authorization.as_str())];
    let created = common::http::send(stage.reef.address, "POST", "/reef/scenarios", &headers, body.as_bytes());
    assert_eq!(created.status, 201);
    let line = format!(
        "curl -fsS -H \"Authorization: Bearer $REEF_TOKEN\" -H 'x-reef-scenario: s' \
         'http://{}/reef/harness/install?adapter=pi' | sh -s -- --agent-program '{}'",
        stage.reef.address,
        program.display()
    );
    let mut shell = stage.command(Path::new("/bin/sh"));
    shell
        .args(["-c", &line])
        .env("REEF_TOKEN", TOKEN)
        .env("REEF_PROGRAM", env!("CARGO_BIN_EXE_reef"));
    stage.done(&mut shell);
    stage.works(|prompt| words(&["-p", prompt]));
    let asked = stage.provider.seen()[0].json().to_string();
    assert!(asked.contains("House rules"), "{asked}");
    let (doctor, _) = stage.wrapped(&["doctor"]);
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains("the served release is installed"), "{doctor}");
}
