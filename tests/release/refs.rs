//! Verification of what holds releases together: refs, and the index that knows what there was.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::remote::{chain, import};
use crate::rig::{reef, reef_json, stock_ok};

/// A scenario `m` of three imports and a held one, before a test does its damage. Gives the held one.
fn deployment(dir: &Path) -> String {
    reef_json(dir, &["scenario", "create", "m"]);
    for n in 0..3 {
        import(dir, &format!("content {n}"));
    }
    fs::write(dir.join("tree/AGENTS.md"), "for review").unwrap();
    let held = reef_json(dir, &["release", "import", "tree", "--hold"])["release_id"].clone();
    reef_json(dir, &["release", "verify"]);
    held.as_str().unwrap().to_owned()
}

fn damage(dir: &Path) -> Vec<Value> {
    let output = reef(dir, "", &["release", "verify", "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let damage = found["damaged"].as_array().unwrap().clone();
    assert_eq!(
        output.status.code(),
        Some(if damage.is_empty() { 0 } else { 40 }),
        "{found}"
    );
    damage
}

fn names(damage: &[Value], key: &str, value: &str) -> bool {
    damage.iter().any(|row| row[key] == value)
}

#[test]
fn a_ref_that_is_lost_or_cannot_be_read_is_damage() {
    for (name, content) in [
        ("refs/heads/m", Some("")),
        ("refs/heads/m", Some("garbage\n")),
        ("refs/heads/m", None),
        ("refs/reef/scenarios/m/head", None),
        ("refs/reef/scenarios/m/head", Some("garbage\n")),
        ("refs/reef/base", Some("garbage\n")),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        deployment(dir);
        let path = dir.join(".reef/artifacts.git").join(name);
        match content {
            Some(content) => fs::write(path, content).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
        let found = damage(dir);
        let wanted = if name.ends_with("/head") && content.is_none() {
            "refs/heads/m"
        } else {
            name
        };
        assert!(names(&found, "path", wanted), "{name} {content:?}: {found:?}");
    }
}

#[test]
fn everything_indexed_is_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let held = deployment(dir);
    let repository = dir.join(".reef/artifacts.git");
    let home = dir.join("home");
    let git = |args: &[&str]| stock_ok(&home, &repository, "git", args);
    let kept = repository.join("refs/reef/releases").join(&held);
    fs::remove_file(&kept).unwrap();
    assert!(names(&damage(dir), "release_id", &held));
    fs::write(&kept, format!("{held}\n")).unwrap();
    assert!(damage(dir).is_empty());

    // A head that was moved back.
    let head = git(&["rev-parse", "refs/heads/m"]).trim().to_owned();
    git(&["update-ref", "refs/heads/m", "refs/heads/m~1"]);
    assert!(names(&damage(dir), "release_id", &head));
    git(&["update-ref", "refs/heads/m", &head]);
    assert!(damage(dir).is_empty());

    // The base.
    let base = git(&["rev-parse", "refs/heads/_base"]).trim().to_owned();
    fs::remove_file(repository.join("refs/reef/base")).unwrap();
    fs::remove_file(repository.join("refs/heads/_base")).unwrap();
    assert!(names(&damage(dir), "release_id", &base));
    git(&["update-ref", "refs/heads/_base", &base]);
    git(&["symbolic-ref", "refs/reef/base", "refs/heads/_base"]);
    assert!(damage(dir).is_empty());

    // Rules for stock git.
    let blob = git(&["rev-parse", "refs/heads/m:.gitattributes"]).trim().to_owned();
    fs::remove_file(repository.join("objects").join(&blob[..2]).join(&blob[2..])).unwrap();
    assert!(names(&damage(dir), "path", ".gitattributes"));
}

#[test]
fn what_is_archived_rejected_and_packed_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let held = deployment(dir);
    reef_json(dir, &["release", "reject", &held]);
    assert!(damage(dir).is_empty());
    reef_json(dir, &["release", "gc", "--keep", "1", "--grace", "0"]);
    assert!(damage(dir).is_empty());
    assert!(reef(dir, "", &["scenario", "delete", "m", "--yes"]).status.success());
    assert!(damage(dir).is_empty());
    reef_json(dir, &["scenario", "create", "m"]);
    assert!(damage(dir).is_empty());
    assert_eq!(chain(dir).len(), 1);
}
