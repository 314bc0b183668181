//! `reef records` and `reef report` on the files.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use reef::experience::{ErrorClass, Retention};
use serde_json::Value;

use super::{exchange, id, open, report, scenario, store_with};

fn reef(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_reef"))
        .env_clear()
        .arg("--dir")
        .arg(dir)
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn fails(output: &Output, code: i32) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(output.stdout.is_empty());
    error
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&text(output)).unwrap()
}

async fn filled(dir: &Path) {
    let store = store_with(dir, &["a", "b"]).await;
    store.append_exchange(exchange("a", "r1", "hi")).await.unwrap();
    store.append_exchange(exchange("b", "r2", "ho")).await.unwrap();
    store.append_report(report("a", "p1", 0.5, &["r1"])).await.unwrap();
}

#[tokio::test]
async fn list_show_and_stats_tell_what_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;
    let listed = json(&reef(dir.path(), &["--json", "records", "list"]));
    let ids: Vec<&str> = listed["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["agent_record_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["p1", "r2", "r1"]);
    let of_a = json(&reef(
        dir.path(),
        &[
            "--json",
            "records",
            "list",
            "--scenario",
            "a",
            "--after",
            "0",
            "--kind",
            "inference",
        ],
    ));
    assert_eq!(of_a["records"].as_array().unwrap().len(), 1);
    let table = text(&reef(dir.path(), &["records", "list"]));
    assert!(table.contains("on r1") && table.contains("session=s1"), "{table}");

    let shown = json(&reef(dir.path(), &["--json", "records", "show", "r1"]));
    assert_eq!(shown["reports"][0]["payload"]["score"], 0.5);
    assert_eq!(shown["record"]["exchange"]["turn"]["text"], "hi!");
    let shown = text(&reef(dir.path(), &["records", "show", "r1"]));
    assert!(
        shown.contains("report       p1 0.5") && shown.contains("hi!"),
        "{shown}"
    );
    let request = reef(dir.path(), &["records", "show", "r1", "--request"]).stdout;
    assert_eq!(request, exchange("a", "r1", "hi").request);

    let stats = json(&reef(dir.path(), &["--json", "records", "stats"]));
    assert_eq!(stats["scenarios"]["a"]["mean_score"], 0.5);
    assert_eq!(stats["scenarios"]["b"]["mean_score"], Value::Null);
    assert_eq!(stats["total"]["exchanges"], 2);

    fails(&reef(dir.path(), &["records", "show", "nowhere"]), 2);
    fails(&reef(dir.path(), &["records", "list", "--scenario", "nowhere"]), 2);
    fails(&reef(dir.path(), &["records", "stats", "--scenario", "nowhere"]), 2);
    let elsewhere = tempfile::tempdir().unwrap();
    let error = fails(&reef(elsewhere.path(), &["records", "list"]), 2);
    assert!(error.contains("hint:"), "{error}");
    assert!(!elsewhere.path().join("experience.db").exists());
}

#[tokio::test]
async fn export_and_import_carry_a_store_over_beside_an_open_one() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;
    // A service may have the files open.
    let beside = open(dir.path());
    beside.append_exchange(exchange("a", "r3", "late")).await.unwrap();
    let lines = text(&reef(dir.path(), &["records", "export"]));
    assert_eq!(lines.lines().count(), 4);
    text(&reef(dir.path(), &["records", "export", "out.jsonl"]));
    assert_eq!(std::fs::read_to_string(dir.path().join("out.jsonl")).unwrap(), lines);

    let other = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.jsonl");
    let file = file.to_str().unwrap();
    let first = json(&reef(other.path(), &["--json", "records", "import", file]));
    assert_eq!((&first["inserted"], &first["already_stored"]), (&4.into(), &0.into()));
    let again = json(&reef(other.path(), &["--json", "records", "import", file]));
    assert_eq!((&again["inserted"], &again["already_stored"]), (&0.into(), &4.into()));
    assert_eq!(text(&reef(other.path(), &["records", "export"])), lines);
    let one = text(&reef(other.path(), &["records", "export", "--scenario", "b"]));
    assert_eq!(one.lines().count(), 1);

    // The importer's writes are seen by the open store.
    let mut child = Command::new(env!("CARGO_BIN_EXE_reef"))
        .env_clear()
        .arg("--dir")
        .arg(dir.path())
        .args(["records", "import", "-", "--scenario", "new"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let line = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"completion\":\"a\",\"score\":1}\n";
    child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stats = &beside.stats(None).unwrap()[&scenario("new")];
    assert_eq!((stats.exchanges, stats.reports), (1, 1));
}

#[test]
fn with_strict_the_first_bad_line_stops_the_import() {
    let dir = tempfile::tempdir().unwrap();
    let good =
        |i: usize| format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{i}\"}}],\"completion\":\"a\"}}\n");
    let mut lines: String = (1..=600).map(good).collect();
    lines.push_str("{\"messages\":[]}\n");
    std::fs::write(dir.path().join("bad.jsonl"), &lines).unwrap();
    let import = || {
        reef(
            dir.path(),
            &["records", "import", "bad.jsonl", "--scenario", "a", "--strict"],
        )
    };
    for _ in 0..2 {
        let error = fails(&import(), 2);
        assert!(error.contains("bad.jsonl:601: the example has no answer"), "{error}");
        assert!(error.contains("600 records before it are stored"), "{error}");
        assert_eq!(open(dir.path()).stats(None).unwrap()[&scenario("a")].exchanges, 600);
    }
    // A line that only the store can refuse: it grades what is not there.
    let refused = "{\"agent_record_id\":\"p\",\"request_type\":\"report\",\"payload\":{\"references\":[\"no\"]}}\n";
    std::fs::write(dir.path().join("bad.jsonl"), format!("\n{}{refused}", good(0))).unwrap();
    let error = fails(&import(), 2);
    assert!(
        error.contains("bad.jsonl:3: reference 0 of the report, \"no\""),
        "{error}"
    );
    std::fs::write(dir.path().join("bad.jsonl"), (1..=601).map(good).collect::<String>()).unwrap();
    text(&import());
    assert_eq!(open(dir.path()).stats(None).unwrap()[&scenario("a")].exchanges, 602);
    std::fs::write(dir.path().join("bad.jsonl"), b"\xff\xfe{}\n").unwrap();
    assert!(fails(&import(), 2).contains("bad.jsonl:1: the line is not UTF-8"));
}

#[tokio::test]
async fn report_grades_by_receipt_and_says_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;
    let printed = text(&reef(
        dir.path(),
        &["report", "r2", "--score", "-1", "--feedback", "bad"],
    ));
    let store = open(dir.path());
    let stored = store.record(None, &id(printed.trim())).unwrap().unwrap();
    assert_eq!(stored.row.scenario, scenario("b"));
    assert_eq!(stored.row.score, Some(-1.0));
    let retry = ["--json", "report", "r1", "--id", "mine", "--score", "1"];
    assert_eq!(json(&reef(dir.path(), &retry))["inserted"], true);
    assert_eq!(json(&reef(dir.path(), &retry))["inserted"], false);
    let error = fails(&reef(dir.path(), &["report", "r1", "--id", "mine", "--score", "0"]), 20);
    assert!(error.contains("different content"), "{error}");
    for (args, want) in [
        (vec!["report", "r1"], "says nothing"),
        (vec!["report", "r1", "--score", "NaN"], "-1e12 to 1e12"),
        (vec!["report", "r1", "--score", "1e999"], "-1e12 to 1e12"),
        (vec!["report", "r1", "--score", "1e308"], "-1e12 to 1e12"),
        (vec!["report", "r1", "--metadata", "[]", "--score", "1"], "JSON object"),
        (vec!["report", "nowhere", "--score", "1"], "no record nowhere"),
        (vec!["report", "--score", "1"], "names no scenario"),
        (vec!["report", "r1", "r2", "--score", "1"], "another scenario"),
        (vec!["report", "r1", "p1", "--score", "1"], "names a report record"),
        (vec!["report", "r1", "r1", "--score", "1"], "more than once"),
        (vec!["report", "a b", "--score", "1"], "record id"),
    ] {
        let error = fails(&reef(dir.path(), &args), 2);
        assert!(error.contains(want), "{args:?}: {error}");
    }
    let stats = store.stats(None).unwrap();
    assert_eq!(stats[&scenario("a")].reports + stats[&scenario("b")].reports, 3);
}

#[tokio::test]
async fn prune_drops_bodies_now() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;
    fails_quietly(&reef(dir.path(), &["records", "prune"]), 3);
    let pruned = json(&reef(dir.path(), &["--json", "records", "prune", "--max-bytes", "0"]));
    assert_eq!(pruned["records"], 3);
    let shown = text(&reef(dir.path(), &["records", "show", "r1"]));
    assert!(shown.contains("pruned"), "{shown}");
    fails(&reef(dir.path(), &["records", "show", "r1", "--request"]), 3);
    fails(&reef(dir.path(), &["records", "prune", "--max-bytes", "many"]), 2);
    let store = open(dir.path());
    let error = store.append_exchange(exchange("a", "r1", "other")).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
    assert_eq!(store.prune(Retention::default()).await.unwrap().records, 0);
}

fn fails_quietly(output: &Output, code: i32) {
    assert_eq!(
        output.status.code(),
        Some(code),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Killed right before the commit nothing is stored; right after it everything is, though nobody was told. Either way
/// the same command again is the end of it.
#[cfg(feature = "failpoints")]
#[tokio::test]
async fn a_kill_around_the_commit_is_healed_by_a_retry() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;
    for (point, inserted_by_retry) in [("before_commit", true), ("after_commit", false)] {
        let args = ["--json", "report", "r1", "--score", "1", "--id", point];
        let killed = Command::new(env!("CARGO_BIN_EXE_reef"))
            .env_clear()
            .env("FAILPOINTS", format!("experience::{point}=return(kill)"))
            .arg("--dir")
            .arg(dir.path())
            .args(args)
            .output()
            .unwrap();
        assert_eq!(killed.status.code(), None, "the process was not killed");
        assert!(killed.stdout.is_empty());
        assert_eq!(json(&reef(dir.path(), &args))["inserted"], inserted_by_retry, "{point}");
    }
    let stats = &open(dir.path()).stats(None).unwrap()[&scenario("a")];
    assert_eq!((stats.reports, stats.scores), (3, 3));
    // A commit that fails is the caller's to know, with the exit code of the store.
    let failed = Command::new(env!("CARGO_BIN_EXE_reef"))
        .env_clear()
        .env("FAILPOINTS", "experience::before_commit=return(error)")
        .arg("--dir")
        .arg(dir.path())
        .args(["report", "r1", "--score", "1", "--id", "failed"])
        .output()
        .unwrap();
    let error = fails(&failed, 40);
    assert!(error.contains("failed while committing"), "{error}");
    assert!(open(dir.path()).record(None, &id("failed")).unwrap().is_none());
}
