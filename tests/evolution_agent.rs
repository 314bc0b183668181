//! The whole circle with a real agent: `reef-pi` fails three tasks, the runs are graded, a change is proposed, the real
//! Pi does the suite's tasks on both trees in sandboxes, the gate releases the change, and the next run of `reef-pi`
//! passes. `scripts/agents.sh` installs Pi; without it the test says so and checks nothing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed test may panic"
)]
#![cfg(target_os = "linux")]

#[path = "evolution/coder.rs"]
mod coder;
mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use coder::{Coder, LESSON};
use common::reef::Reef;
use common::upstream::Upstream;
use serde_json::{Value, json};
use tempfile::TempDir;

const TOKEN: &str = "the-services-own-token";
const PROVIDER_KEY: &str = "the-providers-own-key";

fn agents_dir() -> PathBuf {
    std::env::var_os("REEF_AGENTS_DIR").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache/reef/clients/agents"),
        PathBuf::from,
    )
}

fn pi() -> Option<PathBuf> {
    let dir = agents_dir();
    if dir.join("pi/complete").exists() && dir.join("node/complete").exists() {
        return Some(dir.join("pi/node_modules/.bin/pi"));
    }
    assert!(
        std::env::var_os("REEF_AGENTS").is_none_or(|wanted| wanted != "required"),
        "pi is required but not installed; run scripts/agents.sh"
    );
    eprintln!("skipped: pi is not installed; run scripts/agents.sh pi");
    None
}

/// A program to write, how it is tried, and what it has to print then.
struct Task {
    id: &'static str,
    prompt: &'static str,
    tried: &'static [&'static str],
}

const TASKS: [Task; 3] = [
    Task {
        id: "add",
        prompt: "Write add.sh, which prints the sum of its two arguments.",
        tried: &["add.sh", "5", "2", "3"],
    },
    Task {
        id: "largest",
        prompt: "Write largest.sh, which prints the largest of its arguments.",
        tried: &["largest.sh", "9", "4", "9", "7"],
    },
    Task {
        id: "lines",
        prompt: "Write lines.sh, which prints how many lines the file has that it is given.",
        tried: &["lines.sh", "3", "three-lines.txt"],
    },
];

/// What the agent can do already, and must not lose.
const KNOWN: Task = Task {
    id: "hello",
    prompt: "Write hello.sh, which prints hello.",
    tried: &["hello.sh", "hello"],
};

/// Tries a program: its name, what it has to print, its arguments.
const CHECK: &str = r#"#!/bin/sh
program=$1 wanted=$2
shift 2
cd "$REEF_WORKSPACE" && printf '1\n2\n3\n' > three-lines.txt
printed=$(sh "./$program" "$@" 2>/dev/null)
if [ "$printed" = "$wanted" ]; then echo '{"score": 1}'; else echo '{"score": 0}'; fi
"#;

/// Tells whoever asked for the story (`scripts/experiments/evolve-demo.sh`) what happens.
fn story(text: &str) {
    if std::env::var_os("REEF_STORY").is_some() {
        eprintln!("  {text}");
    }
}

struct Circle {
    reef: Reef,
    home: TempDir,
    pi: PathBuf,
}

impl Circle {
    fn new(upstream: &Upstream, pi: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap().keep();
        let task = |task: &Task, protected: bool| {
            let command: Vec<&str> = ["sh", "check.sh"].iter().chain(task.tried).copied().collect();
            json!({"id": task.id, "prompt": task.prompt, "protected": protected,
                "checker": {"kind": "script", "command": command}})
            .to_string()
        };
        let mut lines: Vec<String> = TASKS.iter().map(|one| task(one, false)).collect();
        lines.push(task(&KNOWN, true));
        std::fs::create_dir(dir.join("tasks")).unwrap();
        std::fs::write(dir.join("tasks/tasks.jsonl"), lines.join("\n")).unwrap();
        std::fs::write(dir.join("tasks/check.sh"), CHECK).unwrap();
        std::fs::write(
            dir.join("recipe.toml"),
            "format = 1\nname = \"programs\"\nextends = \"evolve\"\n[batch]\nsize = 3\n[gate]\nparallel = 2\n\
             maximum-pairs = 24\nprotected-repeats = 1\nspending = \"candidate\"\n",
        )
        .unwrap();
        std::fs::write(
            dir.join("serve.toml"),
            format!(
                "[recipe]\nimplementation = \"recipe.toml\"\n[harness]\nadapter = \"pi\"\nbinary = \"{}\"\n[inference]\n\
                 upstream-url = \"{}\"\nupstream-model = \"scripted\"\nupstream-api-key = \"{PROVIDER_KEY}\"\n",
                pi.display(),
                upstream.url()
            ),
        )
        .unwrap();
        let reef = Reef::start_with(&dir, &["-c", "serve.toml"], |command| {
            command
                .env("REEF_TOKEN", TOKEN)
                .env("PATH", format!("{}:/usr/bin:/bin", node().display()));
        });
        let circle = Self {
            reef,
            home: tempfile::tempdir().unwrap(),
            pi: pi.to_owned(),
        };
        let authorization = format!("Bearer {TOKEN}");
        let headers = [
            ("authorization", authorization.as_str()),
            ("content-type", "application/json"),
        ];
        let created = common::http::send(
            circle.reef.address,
            "POST",
            "/reef/scenarios",
            &headers,
            br#"{"scenario":"s"}"#,
        );
        assert!((200..300).contains(&created.status), "{}", created.status);
        let mut install = circle.command(Path::new(env!("CARGO_BIN_EXE_reef")));
        install
            .args(["harness", "install", "--adapter", "pi", "--scenario", "s"])
            .args(["--url", &format!("http://{}", circle.reef.address)])
            .arg("--agent-program")
            .arg(&circle.pi)
            .env("REEF_TOKEN", TOKEN);
        circle.done(&mut install);
        circle
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", format!("{}:/usr/bin:/bin", node().display()))
            .env("TMPDIR", self.home.path())
            .stdin(Stdio::null());
        if let Ok(value) = std::env::var("LD_LIBRARY_PATH") {
            command.env("LD_LIBRARY_PATH", value);
        }
        command
    }

    fn done(&self, command: &mut Command) -> String {
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{command:?}\n{}\n{}\nthe service's log:\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            self.reef.log()
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs the wrapper in a fresh workspace.
    fn wrapped(&self, args: &[&str]) -> (String, TempDir) {
        let workspace = tempfile::tempdir().unwrap();
        let mut command = self.command(&self.home.path().join(".local/bin/reef-pi"));
        let said = self.done(command.args(args).current_dir(workspace.path()));
        (said, workspace)
    }

    /// Has the wrapped agent do a task, and gives whether its program does what it should.
    fn solves(&self, task: &Task) -> bool {
        let (said, workspace) = self.wrapped(&["-p", task.prompt]);
        assert!(
            workspace.path().join(task.tried[0]).exists(),
            "no program was written: {said}"
        );
        let mut check = self.command(Path::new("/bin/sh"));
        check
            .arg(self.reef.dir.join("tasks/check.sh"))
            .args(task.tried)
            .env("REEF_WORKSPACE", workspace.path());
        let passed = self.done(&mut check).contains("\"score\": 1");
        let program = std::fs::read_to_string(workspace.path().join(task.tried[0])).unwrap();
        story(&format!(
            "reef-pi -p {:?}: wrote `{}`, {}",
            task.prompt,
            program.trim(),
            if passed { "passed" } else { "failed" }
        ));
        passed
    }

    fn get(&self, path: &str) -> Value {
        let authorization = format!("Bearer {TOKEN}");
        let headers = [("authorization", authorization.as_str()), ("x-reef-scenario", "s")];
        common::http::send(self.reef.address, "GET", path, &headers, b"").json()
    }
}

fn node() -> PathBuf {
    agents_dir().join("node/node_modules/node/bin")
}

#[test]
fn an_agent_that_fails_gets_a_tree_it_passes_with() {
    let Some(pi) = pi() else { return };
    let coder = Coder::default();
    let upstream = Upstream::start(coder.clone().script());
    let circle = Circle::new(&upstream, &pi);
    let before = circle.get("/reef/harness")["release_id"].clone();
    for task in &TASKS {
        assert!(!circle.solves(task), "{} passes untaught", task.id);
        let wrong = format!("{} prints something else than {}", task.tried[0], task.tried[1]);
        let (report, _) = circle.wrapped(&["report", "--score", "0", "--feedback", &wrong]);
        story(&format!(
            "reef-pi report --score 0 --feedback {wrong:?}: report {}",
            report.trim()
        ));
    }
    let begun = Instant::now();
    let steps = loop {
        let releases = circle.get("/reef/harness/releases");
        let rows = releases["releases"].as_array().unwrap().clone();
        if rows.len() > 1 {
            break rows;
        }
        if circle.reef.log().contains("programs cannot be isolated here") {
            assert!(
                std::env::var_os("REEF_STORY").is_none(),
                "this machine gives no namespaces; the story cannot be told"
            );
            eprintln!("skipped: no namespaces here");
            return;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(900),
            "no step came; the service's log:\n{}",
            circle.reef.log()
        );
        std::thread::sleep(Duration::from_millis(200));
    };
    let step = steps.last().unwrap();
    assert_ne!(step["release_id"], before, "{step}\n{}", circle.reef.log());
    let figures = &step["metrics"];
    assert_eq!(figures["gate_outcome"], "selected", "{step}");
    story(&format!(
        "released after {:.0} s: {}",
        begun.elapsed().as_secs_f64(),
        step["release_id"]
    ));
    story(&format!("the gate: {figures}"));
    let asked = coder.asked.all();
    assert!(asked[0].contains("add.sh prints something else than 5"), "{}", asked[0]);
    circle.wrapped(&["update"]);
    story("reef-pi update");
    for task in &TASKS {
        assert!(circle.solves(task), "{} fails on the new tree", task.id);
    }
    let manifest = circle.get("/reef/harness");
    assert!(manifest["files"].to_string().contains(LESSON), "{manifest}");
    // Neither the service's token nor the provider's key was ever in reach of an agent of an episode.
    for seen in upstream.seen() {
        let body = String::from_utf8_lossy(&seen.body).into_owned();
        assert!(!body.contains(TOKEN) && !body.contains(PROVIDER_KEY), "{body}");
    }
}
