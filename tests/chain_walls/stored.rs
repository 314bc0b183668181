//! A chain whose end got past an older version, or was pushed straight into the repository: everything before it goes on
//! being served and listed, and whoever looks is told.

use std::fs;
use std::path::Path;

use reef::domain::ReleaseId;
use serde_json::{Value, json};

use crate::common::reef::Reef;
use crate::common::upstream::{Upstream, answer};
use crate::forge::{Edit, forge, point};
use crate::rig::{reef, reef_json};

const ANSWER: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;

fn import(dir: &Path, text: &str) -> ReleaseId {
    fs::create_dir_all(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/AGENTS.md"), text).unwrap();
    let made = reef_json(dir, &["release", "import", "tree", "-s", "s"]);
    ReleaseId::new(made["release_id"].as_str().unwrap()).unwrap()
}

fn attacks() -> Vec<(&'static str, Edit)> {
    vec![
        (
            "equence",
            Edit::Set {
                at: "/sequence".to_owned(),
                to: json!(u64::MAX),
            },
        ),
        (
            ".git/config",
            Edit::File {
                path: ".git/config".to_owned(),
                text: "[core]\n\tfsmonitor = touch owned\n".to_owned(),
                mode: 0o100_644,
                listed: true,
                stored: true,
            },
        ),
        (
            "CLAUDE.md",
            Edit::File {
                path: "CLAUDE.md".to_owned(),
                text: "not in the manifest".to_owned(),
                mode: 0o100_644,
                listed: false,
                stored: true,
            },
        ),
    ]
}

fn ids(listing: &Value) -> Vec<String> {
    let rows = listing["releases"].as_array().unwrap();
    rows.iter()
        .map(|row| row["release_id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_chain_that_cannot_be_read_to_its_end_is_served_up_to_there_and_named() {
    let upstream = Upstream::start(|_, _| answer(200, "application/json", ANSWER));
    for (named, edit) in attacks() {
        let own = tempfile::tempdir().unwrap();
        let dir = own.path();
        let repository = dir.join(".reef/artifacts.git");
        reef_json(dir, &["scenario", "create", "s"]);
        reef_json(dir, &["scenario", "create", "other"]);
        let good = import(dir, "one");
        let before = ids(&reef_json(dir, &["release", "list", "-s", "s"]));
        let bad = forge(&repository, &good, &[edit]);
        let above = forge(&repository, &bad, &[]);
        point(&repository, "refs/heads/s", &above);

        // It is listed up to the last release that can be read, with a word on why no further.
        let listed = reef(dir, "", &["release", "list", "-s", "s", "--json"]);
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        let listing: Value = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!(ids(&listing), before);
        assert_eq!(listing["head"], good.as_str());
        let said = String::from_utf8_lossy(&listed.stderr).into_owned();
        assert!(said.contains("the last release that can be read"), "{said}");
        // Verification and doctor name it.
        let verified = reef(dir, "", &["release", "verify", "--json"]);
        assert_eq!(verified.status.code(), Some(40));
        let found: Value = serde_json::from_slice(&verified.stdout).unwrap();
        let damaged = found["damaged"].to_string();
        assert!(damaged.contains(bad.as_str()) && damaged.contains(named), "{damaged}");
        let doctor = reef(dir, "", &["doctor", "--offline", "--json"]);
        let checks: Value = serde_json::from_slice(&doctor.stdout).unwrap();
        let heads: Vec<_> = checks["checks"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|check| check["check"] == "heads")
            .collect();
        assert_eq!(heads.len(), 1, "{heads:?}");
        assert_eq!(heads[0]["status"], "failed", "{heads:?}");
        assert!(heads[0].to_string().contains(bad.as_str()), "{heads:?}");
        // Nothing of it is written out, and nothing is built on it.
        for release in [&bad, &above] {
            let exported = reef(dir, "", &["release", "export", release.as_str(), "out", "-s", "s"]);
            if release == &bad {
                assert_eq!(
                    exported.status.code(),
                    Some(40),
                    "{}",
                    String::from_utf8_lossy(&exported.stderr)
                );
            }
            assert!(!dir.join("out/.git").exists());
            let _sound_alone = fs::remove_dir_all(dir.join("out"));
        }
        let appended = reef(dir, "", &["release", "import", "tree", "-s", "s"]);
        assert_eq!(
            appended.status.code(),
            Some(40),
            "{}",
            String::from_utf8_lossy(&appended.stderr)
        );
        // A service starts, answers, and says what is wrong; the other scenario does not notice.
        let service = Reef::start_in(dir, &upstream.url(), &["--upstream-model", "m"]);
        for scenario in ["s", "other"] {
            let mut answer = service.post_with(
                "/v1/chat/completions",
                &[("x-reef-scenario", scenario)],
                r#"{"model":"m","messages":[]}"#,
            );
            let said = answer.text();
            assert_eq!(answer.status, 200, "{scenario}: {said}");
        }
        crate::common::wait_for("the status names what is wrong", || {
            let status = service.get("/reef/status").json();
            let shown = &status["scenarios"]["s"];
            assert_eq!(shown["release_id"], good.as_str());
            shown.to_string().contains("damaged").then_some(())
        });
        drop(service);
        // The name can be freed, and so the scenario begins again.
        reef_json(dir, &["scenario", "delete", "s", "--yes"]);
        assert_eq!(reef_json(dir, &["scenario", "create", "s"])["created"], true);
    }
}

#[test]
fn the_last_good_release_put_back_mends_it() {
    let own = tempfile::tempdir().unwrap();
    let dir = own.path();
    let repository = dir.join(".reef/artifacts.git");
    reef_json(dir, &["scenario", "create", "s"]);
    let good = import(dir, "one");
    let (_, edit) = attacks().remove(0);
    let bad = forge(&repository, &good, &[edit]);
    point(&repository, "refs/heads/s", &bad);
    assert_eq!(
        reef(dir, "", &["release", "import", "tree", "-s", "s"]).status.code(),
        Some(40)
    );
    point(&repository, "refs/heads/s", &good);
    import(dir, "two");
    reef_json(dir, &["release", "verify"]);
}
