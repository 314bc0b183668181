//! What is found again, and what is refused, when a part of the files is lost.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::rig::{reef, reef_json, stock_ok};

fn import(dir: &Path, text: &str, args: &[&str]) -> String {
    let tree = dir.join("tree");
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("AGENTS.md"), text).unwrap();
    fs::write(tree.join("w.safetensors"), text.repeat(1000)).unwrap();
    let mut words = vec!["release", "import", "tree"];
    words.extend(args);
    reef_json(dir, &words)["release_id"].as_str().unwrap().to_owned()
}

fn chain(dir: &Path) -> Vec<Value> {
    let listing = reef_json(dir, &["release", "list", "--all"]);
    let rows = listing["releases"].as_array().unwrap();
    rows.iter().map(|row| row["release_id"].clone()).collect()
}

#[test]
fn a_chain_whose_refs_are_lost_is_put_back_and_never_begun_anew() {
    for lost in [
        &["refs/heads/s"][..],
        &["refs/reef/scenarios/s"],
        &["refs/heads/s", "refs/reef/scenarios/s"],
    ] {
        for command in [
            &["scenario", "create", "s"][..],
            &["release", "list"],
            &["release", "verify"],
        ] {
            let dir = tempfile::tempdir().unwrap();
            let dir = dir.path();
            reef_json(dir, &["scenario", "create", "s"]);
            let head = import(dir, "one", &[]);
            let before = chain(dir);
            for path in lost {
                let path = dir.join(".reef/artifacts.git").join(path);
                if path.is_dir() {
                    fs::remove_dir_all(path).unwrap();
                } else {
                    fs::remove_file(path).unwrap();
                }
            }
            if command[1] == "verify" {
                // It only looks; what comes next puts the refs back.
                reef(dir, "", command);
            } else {
                reef_json(dir, command);
            }
            assert_eq!(chain(dir), before, "{lost:?} {command:?}");
            let created = reef_json(dir, &["scenario", "create", "s"]);
            assert_eq!(created["created"], false, "{lost:?} {command:?}");
            assert_eq!(created["release_id"], head.as_str());
            let home = dir.join("home");
            let repository = dir.join(".reef/artifacts.git");
            let refs = stock_ok(&home, &repository, "git", &["for-each-ref"]);
            assert!(!refs.contains("refs/reef/archived/"), "{refs}");
            import(dir, "two", &[]);
        }
    }
}

#[test]
fn an_archived_chain_is_not_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    reef_json(dir, &["scenario", "create", "s"]);
    let head = import(dir, "one", &[]);
    reef_json(dir, &["scenario", "delete", "s", "--yes"]);
    let created = reef_json(dir, &["scenario", "create", "s"]);
    assert_eq!(created["created"], true);
    assert!(!chain(dir).contains(&Value::from(head)));
}

#[test]
fn a_lost_chain_is_refused_until_it_is_pulled_or_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let remote = dir.path().join("remote.git");
    let home = dir.path().join("home");
    stock_ok(&home, dir.path(), "git", &["init", "-q", "--bare", "remote.git"]);
    let dir = &dir.path().join("one");
    fs::create_dir(dir).unwrap();
    reef_json(dir, &["scenario", "create", "s"]);
    import(dir, "one", &[]);
    let before = chain(dir);
    reef_json(dir, &["release", "push", remote.to_str().unwrap()]);
    let lose = || fs::remove_dir_all(dir.join(".reef/artifacts.git")).unwrap();
    let refused = || {
        for words in [&["scenario", "create", "s"][..], &["release", "list", "-s", "s"]] {
            let output = reef(dir, "", words);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(40), "{words:?}: {said}");
            assert!(
                said.contains("release pull") && said.contains("scenario delete s"),
                "{said}"
            );
        }
    };
    lose();
    refused();
    reef_json(dir, &["release", "pull", remote.to_str().unwrap()]);
    assert_eq!(chain(dir), before);
    lose();
    refused();
    reef_json(dir, &["scenario", "delete", "s", "--yes"]);
    let created = reef_json(dir, &["scenario", "create", "s"]);
    assert_eq!(created["created"], true);
    assert_eq!(chain(dir).len(), 1);
}

#[test]
fn a_lost_store_finds_held_releases_again_and_what_became_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    reef_json(dir, &["scenario", "create", "s"]);
    let promoted = import(dir, "promoted", &["--hold"]);
    let refused = import(dir, "refused", &["--hold"]);
    let waiting = import(dir, "waiting", &["--hold"]);
    reef_json(dir, &["release", "promote", &promoted]);
    reef_json(dir, &["release", "reject", &refused]);
    let lose = || {
        for entry in fs::read_dir(dir.join(".reef")).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_string_lossy().starts_with("experience.db") {
                fs::remove_file(path).unwrap();
            }
        }
    };
    let state = |id: &str| {
        let listing = reef_json(dir, &["release", "list", "--all"]);
        let rows = listing["releases"].as_array().unwrap().clone();
        rows.iter().find(|row| row["release_id"] == id).unwrap()["state"].clone()
    };
    lose();
    let held = reef_json(dir, &["release", "list", "--held"])["releases"].clone();
    assert_eq!(held.as_array().unwrap().len(), 1, "{held}");
    assert_eq!(held[0]["release_id"], waiting.as_str());
    assert_eq!(
        (state(&promoted), state(&refused)),
        ("promoted".into(), "rejected".into())
    );
    lose();
    let again = reef(dir, "", &["release", "promote", &refused]);
    assert_eq!(again.status.code(), Some(2));
    let released = reef_json(dir, &["release", "promote", &waiting]);
    assert_eq!(released["appended"], true);
    assert_eq!(chain(dir)[0], released["release_id"]);
}

/// A copy of the store from before is the same loss in part.
#[test]
fn an_older_store_finds_the_held_releases_that_came_since() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    reef_json(dir, &["scenario", "create", "s"]);
    let (store, copy) = (dir.join(".reef/experience.db"), dir.join("copy.db"));
    fs::copy(&store, &copy).unwrap();
    let waiting = import(dir, "waiting", &["--hold"]);
    for end in ["-wal", "-shm"] {
        // They are there only while the store is open.
        let _absent = fs::remove_file(dir.join(format!(".reef/experience.db{end}")));
    }
    fs::copy(&copy, &store).unwrap();
    // What starts a service, or looks at everything, recovers first.
    reef_json(dir, &["release", "gc"]);
    let held = reef_json(dir, &["release", "list", "--held"])["releases"].clone();
    assert_eq!(held[0]["release_id"], waiting.as_str(), "{held}");
}
