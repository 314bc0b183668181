//! What a directory offered for import is taken for, and what is refused.

use std::fs;

use serde_json::Value;

use crate::rig::{reef, reef_json};

#[test]
fn an_import_is_what_its_files_or_its_manifest_say_and_nothing_is_guessed_or_lost() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    reef_json(dir, &["scenario", "create", "s"]);
    let head = || reef_json(dir, &["release", "list"])["releases"][0].clone();
    let refused = |source: &str, words: &str| {
        let before = head();
        let output = reef(dir, "", &["release", "import", source]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words) && said.contains(source), "{said}");
        assert_eq!(head(), before);
    };
    fs::create_dir(dir.join("stuff")).unwrap();
    refused("stuff", "--kind");
    fs::write(dir.join("stuff/holiday.txt"), "x").unwrap();
    refused("stuff", "--kind");

    reef_json(dir, &["release", "import", "stuff", "--kind", "routing-policy"]);
    assert_eq!(head()["kind"], "routing-policy");
    reef_json(dir, &["release", "export", "head", "out"]);
    assert!(dir.join("out/reef-artifact.json").exists());
    reef_json(dir, &["release", "import", "out"]);
    assert_eq!(head()["kind"], "routing-policy", "an export knows what it is");

    fs::write(dir.join("stuff/AGENTS.md"), "Be brief.\n").unwrap();
    fs::write(dir.join("stuff/reef-artifact.json"), "{\"mine\": true}").unwrap();
    refused("stuff", "give it another name");
    fs::rename(dir.join("stuff/reef-artifact.json"), dir.join("stuff/mine.json")).unwrap();
    reef_json(dir, &["release", "import", "stuff"]);
    assert_eq!(head()["kind"], "harness-tree");
    let again = reef_json(dir, &["release", "export", "head", "kept"]);
    assert_ne!(again["files"], Value::Null);
    assert!(dir.join("kept/mine.json").exists());
}
