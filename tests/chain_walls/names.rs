//! One rule of names, held against git's own.

use std::cell::Cell;
use std::path::Path;

use git2::{ObjectType, Repository};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use reef::domain::{name_fault, path_fault};
use reef::harness::adapter::Adapters;
use reef::harness::tree::{Mutation, Origin, Policy, Tree, admit, write_release};
use reef::release::Repository as Releases;
use serde_json::json;

use crate::rig::{Rig, stock};

/// Pieces that names of git's own, and their disguises, are made of.
fn a_name() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just(".git"),
        Just(".GIT"),
        Just("git"),
        Just("~1"),
        Just("~"),
        Just("modules"),
        Just("attributes"),
        Just("Ignore"),
        Just("gi7eba"),
        Just("GI7D29"),
        Just("gitmod"),
        Just("lfsconfig"),
        Just("."),
        Just(" "),
        Just(":"),
        Just("::$INDEX_ALLOCATION"),
        Just("\u{200c}"),
        Just("\u{feff}"),
        Just("\u{206a}"),
        Just("1"),
        Just("0"),
        Just("a"),
        Just("\u{17f}"),
    ];
    let made = prop::collection::vec(piece, 1..5).prop_map(|pieces| pieces.concat());
    prop_oneof![5 => made, 1 => "\\PC{1,8}"]
}

fn cases() -> u32 {
    std::env::var("REEF_FUZZ_CASES").map_or(24, |n| n.parse().unwrap())
}

/// What the rule lets through, git lets through on every file system: libgit2 builds a tree of it, and `git fsck` with
/// everything protected finds nothing in one that was written byte by byte.
#[test]
fn what_the_rule_lets_through_git_lets_through() {
    let rig = Rig::new();
    let path = rig.repository.path();
    let git = Repository::open_bare(path).unwrap();
    let blob = git.blob(b"x").unwrap();
    let mut runner = TestRunner::new(Config {
        cases: cases(),
        failure_persistence: None,
        ..Config::default()
    });
    runner
        .run(&prop::collection::btree_set(a_name(), 40..120), |names| {
            let passed: Vec<&String> = names
                .iter()
                .filter(|name| !name.contains('/') && name_fault(name).is_none())
                .collect();
            let mut builder = git.treebuilder(None).unwrap();
            let mut bytes = Vec::new();
            for name in &passed {
                let built = builder.insert(name.as_str(), blob, 0o100_644);
                prop_assert!(built.is_ok(), "libgit2 refuses {name:?}");
                bytes.extend(format!("100644 {name}\0").into_bytes());
                bytes.extend(blob.as_bytes());
            }
            let tree = git.odb().unwrap().write(ObjectType::Tree, &bytes).unwrap();
            let commit = format!("tree {tree}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n");
            let commit = git.odb().unwrap().write(ObjectType::Commit, commit.as_bytes()).unwrap();
            git.reference("refs/heads/names", commit, true, "x").unwrap();
            let said = fsck(&rig, path);
            prop_assert!(said.is_empty(), "{said}\n{passed:?}");
            Ok(())
        })
        .unwrap();
}

fn fsck(rig: &Rig, path: &Path) -> String {
    let args = [
        "-c",
        "core.protectHFS=true",
        "-c",
        "core.protectNTFS=true",
        "fsck",
        "--strict",
        "--no-dangling",
        "refs/heads/names",
    ];
    let output = stock(&rig.dir.path().join("home"), path, "git", &args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = said
        .lines()
        .filter(|line| line.contains("error") || line.contains("warning"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whatever a proposal names its files, admission and publication agree: what one takes the other takes.
#[test]
fn admission_and_publication_take_the_same_names() {
    let adapters = Adapters::built_in().unwrap();
    let adapter = adapters.get("pi").unwrap();
    let rig = Rig::new();
    let (admitted, refused) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(Config {
        cases: cases() * 8,
        failure_persistence: None,
        ..Config::default()
    });
    let path = prop::collection::vec(a_name(), 1..4).prop_map(|parts| parts.join("/"));
    runner
        .run(&path, |path| {
            let skill = json!([{"op": "create", "id": "a", "options": {"name": "skill", "config": {
                "name": "a", "text": "---\nname: a\ndescription: what it does\n---\nDo it.\n", "files": {path.clone(): "x\n"},
            }}}]);
            let mutations = Mutation::list(&skill).unwrap();
            match admit(&Tree::default(), &mutations, adapter, &Policy::default(), &Origin::default(), 0) {
                Ok(made) => {
                    admitted.set(admitted.get() + 1);
                    let dir = tempfile::tempdir().unwrap();
                    write_release(&dir.path().join("x"), &made.tree, &made.rendered).unwrap();
                    Releases::check_directory(&dir.path().join("x"), None).map_err(|error| TestCaseError::fail(error.to_string()))?;
                    let staged = rig.repository.stage_directory(&dir.path().join("x"), None);
                    prop_assert!(staged.is_ok(), "{path:?}: {:?}", staged.err());
                }
                Err(refusal) => {
                    refused.set(refused.get() + 1);
                    // Whatever no release takes is refused for its name, by a person's words.
                    prop_assert!(!refusal.to_string().is_empty());
                }
            }
            if path_fault(&path).is_some() {
                let again = admit(&Tree::default(), &mutations, adapter, &Policy::default(), &Origin::default(), 0);
                prop_assert!(again.is_err(), "{path:?} was admitted");
            }
            Ok(())
        })
        .unwrap();
    let seen = (admitted.get(), refused.get());
    assert!(seen.0 > 0 && seen.1 > 0, "admitted and refused: {seen:?}");
}
