//! `kill -9` at every named point of a publication, then a restart: one head, a whole chain, nothing left half-done.
//! The fail points exist only with the feature `failpoints`.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use crate::rig::{reef, reef_json, scenario, stock_ok};

/// Every window between two durable states, and whether the release is out when the process dies in it.
const POINTS: [(&str, bool); 7] = [
    ("release::after_intent", false),
    ("release::after_objects", false),
    ("release::after_commit", false),
    ("release::before_ref", false),
    ("release::after_ref", true),
    ("release::after_settle", true),
    ("experience::after_commit", false),
];

fn candidate(dir: &Path, text: &str) {
    fs::create_dir_all(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/AGENTS.md"), text).unwrap();
    fs::write(dir.join("tree/w.safetensors"), text.repeat(1000)).unwrap();
}

/// Chain, index and intents agree; every release is whole.
fn check(dir: &Path) -> Vec<String> {
    let listing = reef_json(dir, &["release", "list", "--all"]);
    let head = listing["head"].as_str().unwrap().to_owned();
    let rows = listing["releases"].as_array().unwrap();
    let current: Vec<_> = rows.iter().filter(|r| r["current"] == true).collect();
    assert_eq!(current.len(), 1, "{rows:?}");
    assert_eq!(current[0]["release_id"], head.as_str());
    for (n, row) in rows.iter().rev().enumerate() {
        assert_eq!(row["step"], n);
        assert_eq!(row["sequence"], n, "{rows:?}");
    }
    let ids: Vec<String> = rows
        .iter()
        .map(|r| r["release_id"].as_str().unwrap().to_owned())
        .collect();
    for pair in rows.windows(2) {
        assert_eq!(pair[0]["parent_release_id"], pair[1]["release_id"]);
    }
    let repository = crate::rig::open(&dir.join(".reef"));
    let chain = repository
        .chain(&repository.head(&scenario("s")).unwrap().unwrap(), None, usize::MAX)
        .unwrap();
    let in_git: Vec<String> = chain.iter().map(|c| c.release_id.to_string()).collect();
    assert_eq!(in_git, ids, "the index differs from the repository");
    let home = dir.join("home");
    stock_ok(&home, repository.path(), "git", &["fsck", "--strict", "--no-dangling"]);
    stock_ok(&home, repository.path(), "git", &["lfs", "fsck"]);
    let conn = rusqlite::Connection::open(dir.join(".reef/experience.db")).unwrap();
    let open: i64 = conn
        .query_row("SELECT count(*) FROM intent WHERE state = 'open'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(open, 0);
    ids
}

#[test]
#[cfg_attr(not(feature = "failpoints"), ignore = "needs the feature failpoints")]
fn a_publication_killed_anywhere_is_settled_or_gone() {
    for (point, is_out) in POINTS {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        reef_json(dir, &["scenario", "create", "s"]);
        candidate(dir, "one");
        reef_json(dir, &["release", "import", "tree"]);
        let before = check(dir);
        candidate(dir, "two");
        let killed = reef(dir, &format!("{point}=return(kill)"), &["release", "import", "tree"]);
        assert_eq!(
            killed.status.signal(),
            Some(9),
            "{point}: {}",
            String::from_utf8_lossy(&killed.stderr)
        );
        let after = check(dir);
        assert_eq!(after.len(), before.len() + usize::from(is_out), "{point}");
        assert_eq!(after[after.len() - before.len()..], before[..], "{point}");
        let again = reef_json(dir, &["release", "import", "tree"]);
        let last = check(dir);
        assert_eq!(again["release_id"], last[0].as_str(), "{point}");
        assert_eq!(last.len(), after.len() + 1, "{point}");
    }
}

#[test]
#[cfg_attr(not(feature = "failpoints"), ignore = "needs the feature failpoints")]
fn a_publication_that_fails_anywhere_says_so_and_can_be_repeated() {
    for (point, is_out) in &POINTS[..5] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        reef_json(dir, &["scenario", "create", "s"]);
        candidate(dir, "one");
        let failed = reef(dir, &format!("{point}=return(error)"), &["release", "import", "tree"]);
        // A failure after the move of the head is no failure: the release is out and settled.
        assert_eq!(failed.status.success(), *is_out, "{point}");
        assert_eq!(check(dir).len(), 1 + usize::from(*is_out), "{point}");
        reef_json(dir, &["release", "import", "tree"]);
        check(dir);
    }
}

#[test]
#[cfg_attr(not(feature = "failpoints"), ignore = "needs the feature failpoints")]
fn a_scenario_killed_while_it_is_created_or_held_is_whole_afterwards() {
    for (point, _) in POINTS {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let killed = reef(dir, &format!("{point}=return(kill)"), &["scenario", "create", "s"]);
        assert_eq!(killed.status.signal(), Some(9), "{point}");
        reef_json(dir, &["scenario", "create", "s"]);
        assert_eq!(check(dir).len(), 1, "{point}");
        candidate(dir, "one");
        let killed = reef(
            dir,
            &format!("{point}=return(kill)"),
            &["release", "import", "tree", "--hold"],
        );
        assert_eq!(killed.status.signal(), Some(9), "{point}");
        let listing = reef_json(dir, &["release", "list", "--held"]);
        let held = listing["releases"].as_array().unwrap();
        if let Some(held) = held.first() {
            let id = held["release_id"].as_str().unwrap();
            reef_json(dir, &["release", "promote", id]);
        } else {
            reef_json(dir, &["release", "import", "tree"]);
        }
    }
}

#[test]
fn without_git_lfs_nothing_is_half_made() {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let git = String::from_utf8(
        Command::new("sh")
            .args(["-c", "command -v git"])
            .output()
            .unwrap()
            .stdout,
    )
    .unwrap();
    std::os::unix::fs::symlink(git.trim(), bin.join("git")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_reef"))
        .args(["scenario", "create", "s"])
        .current_dir(dir.path())
        .env("PATH", &bin)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("git-lfs") && said.contains("apt-get install git-lfs"),
        "{said}"
    );
    assert!(!dir.path().join(".reef/artifacts.git").exists());
}
