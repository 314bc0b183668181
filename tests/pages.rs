//! The pages that commands write for a browser: whole in themselves, and drawn by a real headless Chromium where one is
//! installed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed test may panic; a skipped one says so"
)]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{reef, wait_for};

fn run(dir: &Path, args: &[&str]) -> String {
    let output = reef::run(dir, args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).unwrap() + &said
}

/// A store with graded exchanges and a chain of three releases, one of which carries markup in its note.
fn deployment() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (0..60)
        .flat_map(|n| {
            let exchange = serde_json::json!({
                "agent_record_id": format!("e{n}"), "request_type": "inference",
                "payload": {"model": "m", "messages": [{"role": "user", "content": "hello"}],
                    "response": {"id": "r", "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
                        "usage": {"prompt_tokens": 5, "completion_tokens": 7}}},
            });
            let report = serde_json::json!({
                "agent_record_id": format!("r{n}"), "request_type": "report",
                "payload": {"score": f64::from(n % 10) / 10.0, "references": [format!("e{n}")]},
            });
            [exchange.to_string(), report.to_string()]
        })
        .collect();
    fs::write(dir.path().join("records.jsonl"), lines.join("\n")).unwrap();
    run(dir.path(), &["scenario", "create", "s"]);
    run(dir.path(), &["records", "import", "records.jsonl", "--scenario", "s"]);
    fs::create_dir(dir.path().join("files")).unwrap();
    for (n, note) in ["first", "<script>document.title='hacked'</script>"].iter().enumerate() {
        fs::write(dir.path().join("files/rules.md"), format!("rule {n}\n")).unwrap();
        run(
            dir.path(),
            &[
                "release",
                "import",
                "files",
                "--kind",
                "harness-tree",
                "-s",
                "s",
                "--note",
                note,
            ],
        );
    }
    dir
}

/// What a browser makes of a page: its document after everything ran, or nothing where none is installed.
fn in_a_browser(page: &Path) -> Option<String> {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        // Nothing a page asks for could be reached, and asking would show.
        .arg("--host-resolver-rules=MAP * ~NOTFOUND")
        .arg(format!("file://{}", page.display()))
        .output();
    match output {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
            assert!(!said.contains("ERR_NAME_NOT_RESOLVED"), "{said}");
            Some(String::from_utf8(output.stdout).unwrap())
        }
        Err(_) => {
            let required = std::env::var_os("REEF_CHROMIUM").is_some_and(|wanted| wanted == "required");
            assert!(!required, "chromium is not installed");
            eprintln!("skipped in a browser: chromium is not installed");
            None
        }
    }
}

fn whole_in_itself(page: &str) {
    assert!(page.starts_with("<!doctype html>"));
    for word in ["src=", "<link", "@import", "url(", "<script", "https://"] {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn a_plot_of_the_records_a_report_on_training_and_the_chain_stand_alone_in_a_browser() {
    let dir = deployment();
    let at = |name: &str| dir.path().join(name);
    let stats = run(dir.path(), &["records", "stats", "--plot", "records.html"]);
    assert!(
        stats.contains("wrote records.html") && stats.contains("MEAN SCORE"),
        "{stats}"
    );
    run(dir.path(), &["release", "log", "-s", "s", "--html", "chain.html"]);
    let page = |name: &str| fs::read_to_string(at(name)).unwrap();
    whole_in_itself(&page("records.html"));
    whole_in_itself(&page("chain.html"));
    assert!(page("chain.html").contains("&lt;script&gt;document.title"));
    if let Some(document) = in_a_browser(&at("records.html")) {
        assert!(document.contains("<title>Records · Reef</title>"));
        // Sixty scores: a dot and a point of the moving mean for each.
        assert!(document.matches("class=\"dot s0\"").count() >= 60, "{document}");
        assert!(document.contains("class=\"bar s0\""), "{document}");
    }
    if let Some(document) = in_a_browser(&at("chain.html")) {
        assert!(document.contains("<title>Releases · s</title>"));
        assert_eq!(document.matches("<li class=\"").count(), 3, "{document}");
        assert!(document.contains("class=\"served\""), "{document}");
    }
}

#[test]
fn a_page_that_cannot_be_written_says_where_and_leaves_nothing() {
    let dir = deployment();
    let output = reef::run(dir.path(), &["records", "stats", "--plot", "nowhere/records.html"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("cannot write nowhere/records.html") && said.contains("name a file in a directory"),
        "{said}"
    );
    let output = reef::run(dir.path(), &["release", "log", "-s", "other", "--html", "chain.html"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!dir.path().join("chain.html").exists());
}

#[test]
fn status_goes_on_in_plain_lines_and_in_events() {
    let dir = deployment();
    let lines = run(dir.path(), &["status", "--watch", "--looks", "2", "--interval", "0.2"]);
    assert!(
        lines.contains("service not running") && lines.contains("exchanges=60"),
        "{lines}"
    );
    // Nothing changed between the two looks.
    assert_eq!(lines.matches("exchanges=60").count(), 1, "{lines}");
    let events = run(
        dir.path(),
        &["status", "--watch", "--looks", "2", "--interval", "0.2", "--json"],
    );
    let events: Vec<serde_json::Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 2);
    assert_eq!(events[0]["event"], "status");
    assert_eq!(events[1]["scenarios"][0]["reports"], 60);
}

/// An open file outlives its name: what was removed, or replaced, must not be shown for ever.
#[test]
fn status_notices_a_store_that_goes_and_another_that_takes_its_place() {
    for json in [false, true] {
        let dir = deployment();
        let mut watch = reef::command(dir.path())
            .args(["status", "--watch", "--interval", "0.1", "--looks", "600"])
            .args(json.then_some("--json"))
            .stdout(fs::File::create(dir.path().join("out")).unwrap())
            .stderr(fs::File::create(dir.path().join("err")).unwrap())
            .spawn()
            .unwrap();
        let said = |file: &str, text: &str| {
            wait_for(text, || {
                let said = fs::read_to_string(dir.path().join(file)).unwrap();
                said.contains(text).then_some(said)
            })
        };
        said("out", "60");
        fs::rename(dir.path().join(".reef"), dir.path().join("gone")).unwrap();
        fs::remove_dir_all(dir.path().join("gone")).unwrap();
        said("err", "there is no store at");
        // Nothing is told of what is gone.
        let lines = fs::read_to_string(dir.path().join("out")).unwrap().lines().count();
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert_eq!(
            fs::read_to_string(dir.path().join("out")).unwrap().lines().count(),
            lines
        );
        run(dir.path(), &["scenario", "create", "another"]);
        said("out", "another");
        if !json {
            said("out", " s is gone");
        }
        // Replaced between two looks.
        run(dir.path(), &["--dir", "beside", "scenario", "create", "third"]);
        fs::rename(dir.path().join(".reef"), dir.path().join("old")).unwrap();
        fs::rename(dir.path().join("beside"), dir.path().join(".reef")).unwrap();
        said("out", "third");
        watch.kill().unwrap();
        watch.wait().unwrap();
    }
}
