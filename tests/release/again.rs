//! The incident command may be said again.

use std::fs;
use std::path::Path;

use crate::rig::{reef, reef_json};

/// A chain of a creation and three imports; gives the ids, oldest first.
fn chain(dir: &Path) -> Vec<String> {
    reef_json(dir, &["scenario", "create", "s"]);
    for n in 1..4 {
        fs::create_dir(dir.join(format!("tree{n}"))).unwrap();
        fs::write(dir.join(format!("tree{n}/AGENTS.md")), format!("Rule {n}.\n")).unwrap();
        reef_json(dir, &["release", "import", &format!("tree{n}")]);
    }
    let list = reef_json(dir, &["release", "list"]);
    let rows = list["releases"].as_array().unwrap();
    rows.iter()
        .rev()
        .map(|row| row["release_id"].as_str().unwrap().to_owned())
        .collect()
}

fn served(dir: &Path) -> String {
    let shown = reef_json(dir, &["release", "show", "head"]);
    shown["manifest"]["content_id"].as_str().unwrap().to_owned()
}

#[test]
fn a_rollback_by_head_says_the_same_release_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ids = chain(dir);
    let content = |id: &str| {
        reef_json(dir, &["release", "show", id])["manifest"]["content_id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let back = reef_json(dir, &["release", "rollback", "head~1", "--note", "incident"]);
    assert_eq!((&back["appended"], served(dir)), (&true.into(), content(&ids[2])));
    for _ in 0..2 {
        let again = reef_json(dir, &["release", "rollback", "head~1", "--note", "incident"]);
        assert_eq!(
            (&again["appended"], &again["release_id"]),
            (&false.into(), &back["release_id"])
        );
    }
    // So does the id, and the head that was expected the first time does not stop it.
    let again = reef_json(dir, &["release", "rollback", &ids[2], "--expect", &ids[3]]);
    assert_eq!(again["appended"], false);
    let said = reef(dir, "", &["release", "rollback", "head~1"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("to go further back, name a release by its id"));
    // Further back, and again.
    for appended in [true, false] {
        let further = reef_json(dir, &["release", "rollback", "head~2"]);
        assert_eq!(further["appended"], appended);
        assert_eq!(served(dir), content(&ids[1]));
    }
    // After something new, head~1 is what the new one replaced.
    fs::create_dir(dir.join("tree9")).unwrap();
    fs::write(dir.join("tree9/AGENTS.md"), "Rule 9.\n").unwrap();
    reef_json(dir, &["release", "import", "tree9"]);
    for appended in [true, false] {
        assert_eq!(reef_json(dir, &["release", "rollback", "head~1"])["appended"], appended);
        assert_eq!(served(dir), content(&ids[1]));
    }
    let lost = reef(dir, "", &["release", "rollback", "head~40"]);
    assert_eq!(lost.status.code(), Some(2), "{lost:?}");
}
