//! `reef harness adapters`, `test`, `show` and `diff`, on files alone.

use std::fs;
use std::path::Path;

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
