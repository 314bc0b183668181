//! The dashboard in a real terminal: tmux types the keys, a live service answers, and what stands on the screen is read
//! back. Skipped, aloud, where tmux is not installed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed test may panic; a skipped one says so"
)]

mod common;
#[path = "dash/pane.rs"]
mod pane;

use std::fs;

use common::reef::{self, Reef};
use common::tried;
use common::upstream::{Upstream, answer};
use common::wait_for;
use pane::{Pane, tmux_is_here};
use serde_json::Value;

const CHAT: &str = include_str!("../src/engine/sse/fixtures/chat.json");

/// A service with a few exchanges, a report, and three releases: the first, one served, one held.
fn service() -> (Upstream, Reef, Vec<String>) {
    let upstream = Upstream::always(answer(200, "application/json", CHAT));
    let reef = Reef::start(&upstream.url(), &[]);
    let mut receipts = Vec::new();
    for n in 0..5 {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"question number {n}"}}]}}"#);
        let mut response = reef.post("/v1/chat/completions", body);
        receipts.push(response.receipt().unwrap());
        response.bytes();
    }
    let report = format!(
        r#"{{"agent_record_id":"r-1","score":0.75,"feedback":"nearly right","references":["{}"]}}"#,
        receipts[4]
    );
    let mut sent = reef.post("/reef/report", report);
    let said = sent.text();
    assert_eq!(sent.status, 200, "{said}");
    let files = reef.dir.join("files");
    fs::create_dir_all(files.join("rules")).unwrap();
    for (rule, hold) in [("Be brief.", false), ("Answer with one word.", true)] {
        fs::write(files.join("rules/style.md"), format!("# Style\n{rule}\n")).unwrap();
        let mut args = vec![
            "release",
            "import",
            "files",
            "--kind",
            "harness-tree",
            "-s",
            "s",
            "--note",
            "by hand",
        ];
        args.extend(hold.then_some("--hold"));
        let imported = reef::run(&reef.dir, &args);
        assert!(imported.status.success(), "{imported:?}");
    }
    (upstream, reef, receipts)
}

fn head(reef: &Reef) -> String {
    let listed = reef::run(&reef.dir, &["release", "list", "-s", "s", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    listed["head"].as_str().unwrap().to_owned()
}

#[test]
fn a_day_with_the_dashboard() {
    if !tmux_is_here() {
        return;
    }
    let (_upstream, reef, receipts) = service();
    let pane = Pane::start(120, 40, &reef.dir, "dash", "");
    pane.wait(&["● serving", "scenario", "upstream, 0 in flight"]);
    pane.keys(&["2"]);
    pane.wait(&[&receipts[4][receipts[4].len() - 10..], "report", "0.7500"]);
    // The report is the newest; the exchange it grades comes next.
    pane.keys(&["j", "Enter"]);
    pane.wait(&[&receipts[4], "question number 4", "nearly right", "reports (1)"]);
    pane.escape();
    // A record that arrives shows by itself.
    let mut response = reef.post("/v1/chat/completions", r#"{"model":"m","messages":[]}"#);
    let receipt = response.receipt().unwrap();
    response.bytes();
    pane.wait(&[&receipt[receipt.len() - 10..]]);
    pane.keys(&["/", "r", "-", "1", "Enter"]);
    let filtered = pane.wait(&["filter /r-1"]);
    assert!(!filtered.contains("answer"), "{filtered}");
    pane.keys(&["5"]);
    pane.wait(&["rules/style.md", "waiting: 1 decision", "decision ? held"]);
    pane.keys(&["Enter"]);
    pane.wait(&["Be brief."]);
    pane.keys(&["4"]);
    pane.wait(&["├─ ?", "waits for a decision"]);
    pane.keys(&["d"]);
    pane.wait(&["-Be brief.", "+Answer with one word."]);
    pane.escape();
    // The question is asked, may be left, and is answered.
    let before = head(&reef);
    pane.keys(&["P"]);
    pane.wait(&["promote?", "Enter: promote"]);
    pane.escape();
    assert_eq!(head(&reef), before);
    pane.keys(&["P", "f", "i", "n", "e"]);
    pane.wait(&["why (optional): fine"]);
    pane.keys(&["Enter"]);
    pane.wait(&["published"]);
    let promoted = head(&reef);
    assert_ne!(promoted, before);
    wait_for("the promoted release is served", || {
        (reef.status()["scenarios"]["s"]["release_id"] == promoted.as_str()).then_some(())
    });
    pane.wait(&["promoted", "● "]);
    pane.keys(&["6"]);
    pane.wait(&["lines, INFO and worse"]);
    pane.keys(&["?"]);
    pane.wait(&["previous screen"]);
    // The window shrinks, and grows again.
    pane.tmux(&["resize-window", "-x", "60", "-y", "20"]);
    pane.wait(&[" 1 over ", "previous screen"]);
    pane.tmux(&["resize-window", "-x", "120", "-y", "40"]);
    pane.wait(&[" 1 overview "]);
    pane.keys(&["q"]);
    pane.wait(&["ended-with-0"]);
    pane.given_back();
}

#[test]
fn a_service_on_another_machine_is_seen_and_steered_over_http() {
    if !tmux_is_here() {
        return;
    }
    let (_upstream, reef, receipts) = service();
    let elsewhere = tempfile::tempdir().unwrap();
    let pane = Pane::start(
        120,
        40,
        elsewhere.path(),
        &format!("dash --url http://{}", reef.address),
        "",
    );
    pane.wait(&["● serving", "http://127.0.0.1"]);
    pane.keys(&["2", "j", "Enter"]);
    pane.wait(&[&receipts[4], "question number 4", "nearly right"]);
    pane.keys(&["5"]);
    pane.wait(&["rules/style.md"]);
    pane.keys(&["Enter"]);
    pane.wait(&["Be brief."]);
    pane.keys(&["4", "Enter"]);
    pane.wait(&["no gate judged this step"]);
    pane.escape();
    pane.keys(&["d"]);
    pane.wait(&["+Answer with one word."]);
    pane.escape();
    pane.keys(&["X"]);
    pane.wait(&["reject?"]);
    pane.keys(&["Enter"]);
    pane.wait(&["refused"]);
    let released = head(&reef);
    pane.keys(&["G", "R"]);
    pane.wait(&["rollback?"]);
    pane.keys(&["Enter"]);
    pane.wait(&["now serving", "rollback"]);
    assert_ne!(head(&reef), released);
    assert!(
        fs::read_dir(elsewhere.path()).unwrap().next().is_none(),
        "nothing is written where it runs"
    );
    pane.keys(&["q"]);
    pane.wait(&["ended-with-0"]);
    pane.given_back();
}

/// The same attempts, proposals and requests from the files and over HTTP.
#[test]
fn what_is_tried_on_a_tree_shows_with_the_failures_that_led_to_it() {
    if !tmux_is_here() {
        return;
    }
    let (_upstream, reef, receipts) = service();
    tried::fill(&reef.dir.join(".reef/experience.db"), "s", &head(&reef), &receipts[4]);
    let elsewhere = tempfile::tempdir().unwrap();
    let url = format!("dash --url http://{}", reef.address);
    for (at, command) in [(reef.dir.as_path(), "dash"), (elsewhere.path(), url.as_str())] {
        let pane = Pane::start(120, 40, at, command, "");
        pane.wait(&["● serving"]);
        pane.keys(&["5"]);
        pane.wait(&[
            "rules/style.md",
            "waiting: 1 decision, 1 request, 1 proposal",
            "be kinder to beginners",
            "+lint-rule ← 2 failures (0): never",
        ]);
        // Another list, and in it the attempt that the gate refused: opened, it has the receipt of the failure.
        pane.keys(&["l", "/", "f", "a", "i", "l", "u", "r", "e", "s", "Enter"]);
        pane.wait(&["▌attempt", "✗ rejected"]);
        pane.keys(&["Enter"]);
        let page = pane.wait(&[
            "failures that led to it (2)",
            &receipts[4],
            "never ran the ·[31mlinter",
            "create lint-rule",
            "won 1, lost 5 of 8 pairs",
            "candidate on one: score 0",
        ]);
        assert!(page.contains("worse on"), "{page}");
        pane.escape();
        pane.keys(&["/", "C-u", "c", "i", "-", "7", "Enter"]);
        pane.wait(&["▌proposal", "waiting"]);
        pane.keys(&["Enter"]);
        pane.wait(&["Start the database.", "reef-pi on ci-7", "p-1"]);
        pane.escape();
        pane.keys(&["q"]);
        pane.wait(&["ended-with-0"]);
        pane.given_back();
    }
}

#[test]
fn the_terminal_is_given_back_on_every_signal() {
    if !tmux_is_here() {
        return;
    }
    let (_upstream, reef, _) = service();
    use rustix::process::Signal;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let pane = Pane::start(80, 24, &reef.dir, "dash", "");
        pane.wait(&["serving", "exchanges"]);
        rustix::process::kill_process(pane.pid(), signal).unwrap();
        pane.wait(&["ended-with-130"]);
        pane.given_back();
    }
    // Ended by a key.
    let pane = Pane::start(80, 24, &reef.dir, "dash", "");
    pane.wait(&["serving", "exchanges"]);
    let pid = pane.pid();
    pane.keys(&["C-c"]);
    pane.wait(&["ended-with-0"]);
    pane.given_back();
    // The terminal itself goes: so does the dashboard.
    let pane = Pane::start(80, 24, &reef.dir, "dash", "");
    pane.wait(&["serving", "exchanges"]);
    let gone = pane.pid();
    drop(pane);
    for pid in [pid, gone] {
        wait_for("the dashboard ends", || {
            rustix::process::test_kill_process(pid).is_err().then_some(())
        });
    }
}

#[test]
fn it_stops_for_the_shell_and_goes_on_where_it_was() {
    if !tmux_is_here() {
        return;
    }
    let (_upstream, reef, receipts) = service();
    let pane = Pane::start(80, 24, &reef.dir, "dash", "");
    pane.wait(&["serving", "exchanges"]);
    for _ in 0..2 {
        pane.keys(&["C-z"]);
        let shown = pane.wait(&["shell-first-line", "stopped-by-a-key"]);
        assert!(!shown.contains("exchanges"), "{shown}");
        // The shell's window may have another size by the time it goes on.
        pane.tmux(&["resize-window", "-x", "100", "-y", "30"]);
        pane.keys(&["Enter"]);
        pane.wait(&["serving", "exchanges", "? keys"]);
    }
    pane.keys(&["2"]);
    pane.wait(&[&receipts[4][receipts[4].len() - 10..]]);
    pane.keys(&["q"]);
    pane.wait(&["ended-with-0"]);
    pane.given_back();
}

#[test]
fn a_panic_gives_the_terminal_back_once_and_one_in_the_background_leaves_the_screen() {
    if !tmux_is_here() {
        return;
    }
    let (_upstream, reef, _) = service();
    let pane = Pane::start(80, 24, &reef.dir, "dash", "FAILPOINTS='dash::draw=3*off->panic(boom)'");
    let shown = pane.wait(&["ended-with-1", "panicked at"]);
    assert_eq!(shown.matches("panicked at").count(), 1, "{shown}");
    pane.given_back();
    let pane = Pane::start(
        80,
        24,
        &reef.dir,
        "dash",
        "FAILPOINTS='dash::look=2*off->1*panic(boom)->off'",
    );
    pane.wait(&["a background task broke", "exchanges"]);
    // The next look works.
    pane.wait(&["● serving"]);
    pane.keys(&["q"]);
    pane.wait(&["ended-with-0"]);
    pane.given_back();
}

#[test]
fn without_a_terminal_or_a_store_the_reason_and_the_next_step_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let output = reef::run(dir.path(), &["dash"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("needs a terminal") && said.contains("reef status --watch"),
        "{said}"
    );
    let output = reef::run(dir.path(), &["dash", "--url", "http://127.0.0.1:1"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(30), "{said}");
    assert!(said.contains("is reef serve running there?"), "{said}");
    if !tmux_is_here() {
        return;
    }
    let pane = Pane::start(80, 24, dir.path(), "dash", "");
    pane.wait(&["there is no store at", "reef serve creates it"]);
    // It notices when one appears, and makes none itself.
    assert!(!dir.path().join(".reef").exists());
    let made = reef::run(dir.path(), &["scenario", "create", "later"]);
    assert!(made.status.success(), "{made:?}");
    pane.wait(&["later", "no service"]);
    pane.keys(&["q"]);
    pane.wait(&["ended-with-0"]);
}

#[test]
fn traffic_says_where_it_ends() {
    if !tmux_is_here() {
        return;
    }
    let (_upstream, reef, _) = service();
    let lines: Vec<String> = (0..210)
        .map(|n| {
            serde_json::json!({
                "agent_record_id": format!("e{n}"), "request_type": "inference",
                "payload": {"model": "m", "messages": [{"role": "user", "content": "hello"}],
                    "response": {"id": "r", "model": "m", "choices": [{"index": 0,
                        "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}},
            })
            .to_string()
        })
        .collect();
    fs::write(reef.dir.join("records.jsonl"), lines.join("\n")).unwrap();
    let imported = reef::run(&reef.dir, &["records", "import", "records.jsonl", "--scenario", "s"]);
    assert!(imported.status.success(), "{imported:?}");
    let elsewhere = tempfile::tempdir().unwrap();
    let url = format!("dash --url http://{}", reef.address);
    for (at, command, newest) in [
        (reef.dir.as_path(), "dash", "the newest 200;"),
        (elsewhere.path(), url.as_str(), "the newest 200;"),
    ] {
        let pane = Pane::start(120, 40, at, command, "");
        pane.wait(&["● serving"]);
        pane.keys(&["2"]);
        pane.wait(&[newest, "reef records list", "e209"]);
        pane.keys(&["q"]);
        pane.wait(&["ended-with-0"]);
    }
}

/// What no strict reader takes is shown all the same, but for the spot that is no text.
#[test]
fn bodies_with_half_a_character_are_shown() {
    // Half of a surrogate pair is a character in no text.
    let said = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"half \ud83d"}}]}"#;
    let upstream = Upstream::always(answer(200, "application/json", said));
    let reef = Reef::start(&upstream.url(), &[]);
    let asked = r#"{"model":"m","messages":[{"role":"user","content":"lone \ud83d"}]}"#;
    let mut response = reef.post("/v1/chat/completions", asked);
    let receipt = response.receipt().unwrap();
    assert_eq!(response.text(), said);
    let shown = reef::run(&reef.dir, &["records", "show", &receipt]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("lone \u{fffd}") && shown.contains("half \u{fffd}"),
        "{shown}"
    );
    if !tmux_is_here() {
        return;
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let url = format!("dash --url http://{}", reef.address);
    for (at, command) in [(reef.dir.as_path(), "dash"), (elsewhere.path(), url.as_str())] {
        let pane = Pane::start(120, 40, at, command, "");
        pane.wait(&["● serving"]);
        pane.keys(&["2"]);
        pane.wait(&[&receipt[receipt.len() - 10..]]);
        pane.keys(&["Enter"]);
        pane.wait(&["lone \u{fffd}", "half \u{fffd}"]);
        pane.escape();
        pane.keys(&["q"]);
        pane.wait(&["ended-with-0"]);
    }
}

/// Of a held release that somebody decided on, nothing says any longer that it waits.
#[test]
fn what_a_person_decided_is_no_longer_held() {
    let (_upstream, reef, _) = service();
    let url = format!("http://{}", reef.address);
    let said = |args: &[&str]| {
        let output = reef::run(&reef.dir, args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let watch = ["status", "--watch", "--looks", "1"];
    for from in [&[][..], &["--url", &url][..]] {
        let now = said(&[&watch[..], from].concat());
        assert!(now.contains(" step=2:held"), "{now}");
    }
    let newest = said(&["release", "log", "-s", "s", "--json"]);
    let newest: Value = serde_json::from_str(newest.lines().next().unwrap()).unwrap();
    assert_eq!(newest["outcome"], "held");
    said(&["release", "reject", newest["release_id"].as_str().unwrap(), "-s", "s"]);
    for from in [&[][..], &["--url", &url][..]] {
        let now = said(&[&watch[..], from].concat());
        assert!(now.contains(" step=2:refused"), "{now}");
        let now = said(&[&watch[..], from, &["--json"][..]].concat());
        let now: Value = serde_json::from_str(now.lines().next().unwrap()).unwrap();
        assert_eq!(now["scenarios"][0]["outcome"], "refused");
    }
    if !tmux_is_here() {
        return;
    }
    let pane = Pane::start(120, 40, &reef.dir, "dash", "");
    pane.wait(&["● serving", "✗ refused"]);
    pane.keys(&["3"]);
    let shown = pane.wait(&["loop:", "✗ refused"]);
    assert!(!shown.contains("? held"), "{shown}");
    pane.keys(&["q"]);
    pane.wait(&["ended-with-0"]);
}

/// While the dashboard looks, a writer is never refused and the file is never locked against it.
#[test]
fn a_dashboard_that_looks_holds_no_write_lock() {
    if !tmux_is_here() {
        return;
    }
    let (_upstream, reef, _) = service();
    let pane = Pane::start(80, 24, &reef.dir, "dash --interval 0.1", "");
    pane.wait(&["serving", "exchanges"]);
    let fds = fs::read_dir(format!("/proc/{}/fd", pane.pid().as_raw_nonzero())).unwrap();
    let database = fds
        .map(|entry| entry.unwrap().path())
        .filter(|path| fs::read_link(path).is_ok_and(|target| target.ends_with("experience.db")))
        .map(|path| {
            let number = path.file_name().unwrap().to_str().unwrap().to_owned();
            fs::read_to_string(format!("/proc/{}/fdinfo/{number}", pane.pid().as_raw_nonzero())).unwrap()
        })
        .collect::<Vec<_>>();
    assert!(!database.is_empty());
    for info in database {
        let flags = info
            .lines()
            .find_map(|line| line.strip_prefix("flags:"))
            .unwrap()
            .trim();
        assert_eq!(
            u32::from_str_radix(flags, 8).unwrap() & 3,
            0,
            "opened for writing: {info}"
        );
        assert!(!info.contains("WRITE"), "{info}");
    }
    for _ in 0..20 {
        assert_eq!(
            reef.post("/v1/chat/completions", r#"{"model":"m","messages":[]}"#)
                .status,
            200
        );
    }
    pane.keys(&["q"]);
    pane.wait(&["ended-with-0"]);
}
