//! `reef harness adapters`, `test`, `show` and `diff`, on files alone.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ::reef::eval::Suite;
use serde_json::{Value, json};

use crate::common::reef;
use crate::golden::fixtures;

fn run(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = reef::run(dir, args);
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn json_of(dir: &Path, args: &[&str]) -> Value {
    let (code, out, err) = run(dir, &[args, &["--json"]].concat());
    assert_eq!(code, Some(0), "{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn adapters_are_listed_and_a_deployment_can_add_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, _) = run(dir.path(), &["harness", "adapters"]);
    assert_eq!(code, Some(0));
    for part in [
        "pi",
        "Claude Code",
        "@openai/codex@0.171.0",
        "opencode-ai@1.18.33",
        "@qwen-code/qwen-code@0.24.4",
        "openclaw@2026.9.6",
        "hermes-agent@0.19.0",
    ] {
        assert!(out.contains(part), "{out}");
    }
    let (_, out, _) = run(dir.path(), &["harness", "adapters", "claude"]);
    for part in [
        "claude/hooks/{name}.sh",
        "stays includeCoAuthoredBy = false",
        "code_extension  refused",
    ] {
        assert!(out.contains(part), "{out}");
    }
    let descriptor = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/adapters/pi.toml");
    let text = fs::read_to_string(descriptor)
        .unwrap()
        .replace("name = \"pi\"", "name = \"my-pi\"");
    fs::create_dir(dir.path().join("own")).unwrap();
    fs::write(dir.path().join("own/my-pi.toml"), text).unwrap();
    let list = json_of(dir.path(), &["harness", "adapters", "--harness.adapters", "own"]);
    assert_eq!(list["adapters"].as_array().unwrap().last().unwrap()["name"], "my-pi");
    let (code, _, err) = run(dir.path(), &["harness", "adapters", "emacs"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("known adapters are pi"), "{err}");
}

#[test]
fn a_tree_is_tested_without_a_service() {
    let dir = tempfile::tempdir().unwrap();
    let portable = fixtures().join("trees/portable.json");
    let portable = portable.to_str().unwrap();
    let (code, out, err) = run(dir.path(), &["harness", "test", portable, "--all"]);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(
        err.contains("admitted for Pi, Claude Code, Codex, opencode, Qwen Code, OpenClaw, Hermes Agent"),
        "{err}"
    );
    let (code, out, _) = run(
        dir.path(),
        &["harness", "test", portable, "--adapter", "codex", "--write", "out"],
    );
    assert_eq!(code, Some(0));
    assert!(out.contains("codex/skills/changelog/scripts/commits.sh"), "{out}");
    let written = dir.path().join("out/codex/AGENTS.md");
    assert!(fs::read_to_string(written).unwrap().contains("# House rules"));
    let (code, _, err) = run(
        dir.path(),
        &["harness", "test", portable, "--adapter", "codex", "--write", "out"],
    );
    assert_eq!(code, Some(2));
    assert!(err.contains("is not empty"), "{err}");
    // A tree with an extension serves the agents that load some.
    let pi = fixtures().join("trees/pi.json");
    let (code, out, err) = run(dir.path(), &["harness", "test", pi.to_str().unwrap(), "--all"]);
    assert_eq!(code, Some(2));
    assert!(
        out.contains("Claude Code has no place for entries of kind code_extension")
            || out.contains("settings of Claude Code"),
        "{out}"
    );
    assert!(err.contains("6 of 7 agents refuse the tree"), "{err}");
    let (code, _, err) = run(dir.path(), &["harness", "test", "nowhere/tree"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("nowhere/tree cannot be read"), "{err}");
}

#[test]
fn entries_are_shown_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let entry = |text: &str| json!([{"id": "a", "name": "rules", "config": {"text": text}}]);
    fs::write(dir.path().join("old.json"), entry("one\ntwo\n").to_string()).unwrap();
    fs::write(dir.path().join("new.json"), entry("one\n2\n").to_string()).unwrap();
    let (code, out, _) = run(dir.path(), &["harness", "diff", "old.json", "new.json"]);
    assert_eq!(code, Some(0));
    assert_eq!(out, "updated a (rules)\n@@ text\n one\n-two\n+2\n\n");
    let diff = json_of(dir.path(), &["harness", "diff", "old.json", "new.json"]);
    assert_eq!(diff["entries"][0]["parts"][0]["new"], "one\n2\n");
    let (_, out, _) = run(dir.path(), &["harness", "show", "new.json"]);
    assert!(out.contains("a      rules"), "{out}");
    let (_, out, _) = run(dir.path(), &["harness", "show", "new.json", "--entry", "a"]);
    assert_eq!(
        serde_json::from_str::<Value>(&out).unwrap()["config"]["text"],
        "one\n2\n"
    );
    let (code, _, err) = run(dir.path(), &["harness", "show", "new.json", "--entry", "b"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("its entries are a"), "{err}");
}

/// Waits for a command that may not end, and gives its exit code and what it said.
fn within_a_minute(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    let mut child = reef::command(dir)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("reef {args:?} waits for ever");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn pipe(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        kind,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
}

/// A pipe that nobody writes to would hold whoever opens it; a device has no end.
#[test]
fn a_tree_with_a_pipe_or_a_device_in_it_is_refused_at_once() {
    let places = [
        "AGENTS.md",
        "tree.json",
        "rules/r.md",
        "commands/c.md",
        "extensions/e.ts",
        "skills/s/SKILL.md",
        "skills/s/data/more",
    ];
    for place in places {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tree").join(place);
        pipe(&file);
        if place.ends_with("more") {
            fs::write(
                dir.path().join("tree/skills/s/SKILL.md"),
                "---\nname: s\ndescription: d\n---\ntext\n",
            )
            .unwrap();
        }
        for args in [&["harness", "test", "tree"][..], &["harness", "diff", "tree", "tree"]] {
            let (code, said) = within_a_minute(dir.path(), args);
            assert_eq!(code, Some(2), "{place}: {said}");
            assert!(said.contains(place) && said.contains("a named pipe"), "{place}: {said}");
        }
    }
    // A link to a device is a link; an adapter that is a pipe is named too, and a recipe.
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("tree/AGENTS.md")).unwrap();
    let (code, said) = within_a_minute(dir.path(), &["harness", "test", "tree"]);
    assert!(code == Some(2) && said.contains("a link is not followed"), "{said}");
    pipe(&dir.path().join("own/odd.toml"));
    let (code, said) = within_a_minute(dir.path(), &["harness", "adapters", "--harness.adapters", "own"]);
    assert!(
        code == Some(2) && said.contains("odd.toml") && said.contains("a named pipe"),
        "{said}"
    );
    // A directory that is imported.
    fs::create_dir(dir.path().join("files")).unwrap();
    fs::write(dir.path().join("files/AGENTS.md"), "Be brief.").unwrap();
    pipe(&dir.path().join("files/reef-artifact.json"));
    let (code, said) = within_a_minute(dir.path(), &["release", "import", "files", "-s", "s"]);
    assert!(code != Some(0) && said.contains("a named pipe"), "{code:?}: {said}");
}

#[test]
fn a_suite_with_a_pipe_or_links_in_a_circle_is_read_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let suite = dir.path().join("tasks");
    fs::create_dir_all(suite.join("one/tests")).unwrap();
    fs::create_dir_all(suite.join("one/environment")).unwrap();
    fs::write(suite.join("one/task.toml"), "version = \"1.0\"\n").unwrap();
    fs::write(suite.join("one/instruction.md"), "Do it.").unwrap();
    fs::write(suite.join("one/tests/test.sh"), "exit 0").unwrap();
    // Two of them make 2^40 ways round.
    for name in ["around", "again"] {
        std::os::unix::fs::symlink(".", suite.join("one/environment").join(name)).unwrap();
    }
    let load = |suite: &Path| {
        let error = Suite::load(suite).err()?;
        let source = std::error::Error::source(&error).map(ToString::to_string);
        Some(format!("{error}: {}", source.unwrap_or_default()))
    };
    assert_eq!(load(&suite), None);
    for place in ["one/environment/pipe", "one/tests/pipe", "more.jsonl", "suite.toml"] {
        let file = suite.join(place);
        let before = fs::read(&file).ok();
        if before.is_some() {
            fs::remove_file(&file).unwrap();
        }
        pipe(&file);
        let error = load(&suite).unwrap();
        assert!(error.contains("a named pipe"), "{place}: {error}");
        fs::remove_file(&file).unwrap();
        if let Some(before) = before {
            fs::write(&file, before).unwrap();
        }
    }
}
