//! A session: what passes through, what is put in, what stays.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::common::wait_for;
use crate::rig::{Rig, TOKEN, fails, ok, ok_json, release};

#[test]
fn words_exit_codes_and_the_endings_by_a_signal_pass_through() {
    let rig = Rig::installed("s");
    for code in [0, 1, 3, 42, 255] {
        let status = rig.wrapper(&["exit", &code.to_string()]).status().unwrap();
        assert_eq!(status.code(), Some(code));
    }
    let status = rig.wrapper(&["die", "KILL"]).status().unwrap();
    assert_eq!(status.code(), Some(128 + 9));
    let said = ok(&mut rig.wrapper(&["args", "--json", "--reef.port", "a b", "", "$(x)", "*"]));
    assert_eq!(said, "<--json><--reef.port><a b><><$(x)><*>");
    // A word of the wrapper's own is the agent's after `--`.
    assert_eq!(
        ok(&mut rig.wrapper(&["--", "report", "x"])),
        "the stand-in's own words: report x\n"
    );
    let help = ok(&mut rig.wrapper(&["--help"]));
    assert!(
        help.contains("report") && help.contains("the stand-in's own words: --help"),
        "{help}"
    );
}

#[test]
fn the_agent_has_the_umask_of_whoever_runs_it() {
    let rig = Rig::installed("s");
    for umask in ["0002", "0077"] {
        let script = format!("umask {umask}; exec \"$0\" \"$@\"");
        let wrapper = rig.wrapper(&["umask"]);
        let mut shell = std::process::Command::new("sh");
        shell
            .env_clear()
            .envs(wrapper.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell
            .args(["-c", &script])
            .arg(wrapper.get_program())
            .args(wrapper.get_args());
        assert_eq!(ok(&mut shell).trim(), umask);
    }
}

fn running(rig: &Rig, args: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = rig
        .wrapper(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

fn line(out: &mut impl BufRead) -> String {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    line.trim().to_owned()
}

#[test]
fn signals_go_on_to_the_agent() {
    let rig = Rig::installed("s");
    for (signal, said, code) in [
        (rustix::process::Signal::TERM, "got TERM", 7),
        (rustix::process::Signal::INT, "got INT", 8),
    ] {
        let (mut child, mut out) = running(&rig, &["linger"]);
        assert_eq!(line(&mut out), "ready");
        let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(line(&mut out), said);
        let status = wait_for("the wrapper to end", || child.try_wait().unwrap());
        assert_eq!((status.code(), status.signal()), (Some(code), None));
    }
}

#[test]
fn the_agent_gets_a_key_of_its_session_and_never_the_token() {
    let rig = Rig::installed("s");
    let env = ok(rig.wrapper(&["env"]).env("REEF_TOKEN", TOKEN));
    assert!(!env.contains(TOKEN), "{env}");
    assert!(
        env.contains("REEF_SCENARIO=s") && env.contains("REEF_TOKEN=reef-session-"),
        "{env}"
    );
    assert!(env.contains("REEF_SERVICE_URL=http://127.0.0.1:"), "{env}");
    // What was seen up there is the real token, the scenario, the session and the release.
    let text = ok(&mut rig.wrapper(&["ask", "?beta=true"]));
    assert!(
        text.contains("\"agent_record_id\":\"receipt-0\"") && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );
    let seen = rig.service.upstream.only();
    assert_eq!(seen.target, "/v1/chat/completions?beta=true");
    assert_eq!(seen.header("authorization"), Some(format!("Bearer {TOKEN}").as_str()));
    assert_eq!(seen.header("x-reef-scenario"), Some("s"));
    assert_eq!(seen.header("x-reef-tag-release"), Some("r1"));
    let runs = ok_json(&mut rig.wrapper(&["report", "--list", "--json"]));
    let run = &runs["runs"][0];
    assert_eq!(seen.header("x-reef-tag-session"), run["run"].as_str());
    assert_eq!(run["turns"][0]["receipt"], "receipt-0");
    assert_eq!(run["release_id"], "r1");
}

#[test]
fn the_proxy_takes_only_its_sessions_key_and_passes_on_what_is_for_agents() {
    let rig = Rig::installed("s");
    for (method, path, key, status) in [
        ("GET", "/v1/models", None, "200"),
        ("GET", "/v1/models", Some("reef-session-guess"), "401"),
        ("POST", "/reef/scenarios/s/promote", None, "403"),
        ("GET", "/metrics", None, "403"),
    ] {
        let mut args = vec!["call", method, path];
        args.extend(key);
        assert_eq!(ok(&mut rig.wrapper(&args)), status, "{method} {path}");
    }
}

#[test]
fn without_a_service_the_agent_is_not_started() {
    let mut rig = Rig::installed("s");
    rig.service = crate::rig::Service::start(Value::Null);
    // The address of the first one is closed once it is dropped.
    let said = wait_for("the old address to close", || {
        let output = rig.wrapper(&["exit", "0"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code() == Some(30)).then_some(said)
    });
    assert!(
        said.contains("no service answers") && said.contains("was not started"),
        "{said}"
    );
    let runs = ok_json(&mut rig.wrapper(&["report", "--list", "--json"]));
    assert!(
        runs["runs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|run| run["turns"] == serde_json::json!([]))
    );
}

#[test]
fn what_the_agent_and_its_user_chose_survives_an_update() {
    let rig = Rig::installed("s");
    ok(&mut rig.wrapper(&["exit", "0"]));
    let chosen = r#"{"quietStartup":false,"theme":"mine","defaultModel":"other","lastChangelogVersion":"1"}"#;
    ok(&mut rig.wrapper(&["choose", chosen]));
    rig.service.serve(release("r2"));
    ok(&mut rig.wrapper(&["update"]));
    let settings: Value = serde_json::from_str(&ok(&mut rig.wrapper(&["settings"]))).unwrap();
    assert_eq!(settings["theme"], "mine");
    assert_eq!(settings["lastChangelogVersion"], "1");
    assert_eq!(settings["quietStartup"], true, "what the release sets is the release's");
    assert_eq!(settings["defaultModel"], "m", "the model is the installation's");
    let kept = rig.place("s").join("root-0/pi-agent/auth.json");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "kept\n");
}

#[test]
fn sessions_at_the_same_time_have_roots_of_their_own() {
    let rig = Rig::installed("s");
    let (mut first, mut out) = running(&rig, &["hold"]);
    let root = line(&mut out);
    let (mut second, mut other_out) = running(&rig, &["hold"]);
    let other = line(&mut other_out);
    assert_ne!(root, other);
    // An update in between does not pull the files from under a running session.
    rig.service.serve(release("r2"));
    ok(&mut rig.wrapper(&["update"]));
    assert_eq!(
        std::fs::read_to_string(format!("{root}/AGENTS.md")).unwrap(),
        "Rules of r1.\n"
    );
    assert_eq!(ok(&mut rig.wrapper(&["rules"])), "Rules of r2.\n");
    for child in [&mut first, &mut second] {
        child.stdin.take().unwrap().flush().unwrap();
    }
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    for child in [&mut first, &mut second] {
        assert!(wait_for("a session to end", || child.try_wait().unwrap()).success());
    }
    assert_eq!(ok(&mut rig.wrapper(&["rules"])), "Rules of r2.\n");
}

#[test]
fn a_wrapper_works_in_a_bare_environment_and_names_what_is_gone() {
    let rig = Rig::installed("s");
    let mut bare = std::process::Command::new(rig.path(".local/bin/reef-pi"));
    bare.env_clear().args(["args", "x"]).stdin(Stdio::null());
    for name in ["LD_LIBRARY_PATH", "LIBTORCH"] {
        if let Ok(value) = std::env::var(name) {
            bare.env(name, value);
        }
    }
    assert_eq!(ok(&mut bare), "<x>");
    std::fs::remove_file(rig.path("vendor/pi")).unwrap();
    let said = fails(&mut rig.wrapper(&["args"]), 1);
    assert!(said.contains("is gone"), "{said}");
}

#[test]
fn bodies_are_kept_only_where_that_was_asked_for() {
    let rig = Rig::installed("s");
    ok(&mut rig.wrapper(&["ask"]));
    let bodies = |rig: &Rig| {
        let names = rig.everything();
        names
            .into_iter()
            .find(|(path, _)| path.to_string_lossy().ends_with(".bodies.jsonl"))
    };
    assert!(bodies(&rig).is_none());
    ok(&mut rig.install("s", &["--keep-bodies"]));
    ok(&mut rig.wrapper(&["ask"]));
    let (_, bytes) = bodies(&rig).unwrap();
    let kept: Value = serde_json::from_slice(&bytes).unwrap();
    assert!(kept["request"].as_str().unwrap().contains("\"messages\":[]"), "{kept}");
    assert!(
        kept["response"].as_str().unwrap().ends_with("data: [DONE]\n\n"),
        "{kept}"
    );
}

#[test]
fn bytes_pass_as_they_come() {
    let rig = Rig::installed("s");
    let (mut child, mut out) = running(&rig, &["slow"]);
    // The rest is sent only after this has arrived.
    assert_eq!(line(&mut out), "data: first");
    rig.service.upstream.open_gate();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "\ndata: [DONE]\n\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_killed_wrapper_leaves_its_receipts_to_be_graded() {
    let rig = Rig::installed("s");
    let (mut child, mut out) = running(&rig, &["askhold"]);
    assert_eq!(line(&mut out), "asked");
    let noted = || {
        let runs = ok_json(&mut rig.wrapper(&["report", "--list", "--json"]));
        (runs["runs"][0]["turns"][0]["receipt"] == "receipt-0").then_some(runs)
    };
    wait_for("the receipt on disk", noted);
    child.kill().unwrap();
    child.wait().unwrap();
    ok(&mut rig.wrapper(&["report", "--score", "1"]));
    assert_eq!(rig.service.reports()[0]["references"], serde_json::json!(["receipt-0"]));
    // The agent's root is free again.
    assert_eq!(ok(&mut rig.wrapper(&["rules"])), "Rules of r1.\n");
    assert!(!rig.place("s").join("root-1").exists());
}

#[test]
fn the_terminal_is_the_agents_and_its_keys_reach_it_once() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let rig = Rig::installed("s");
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    // `setsid -c` makes the other end the controlling terminal, as a terminal emulator does.
    let other = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(name.to_str().unwrap())
        .unwrap();
    let mut child = rig
        .command("/usr/bin/setsid")
        .args(["--ctty", "--wait"])
        .arg(rig.path(".local/bin/reef-pi"))
        .arg("tty")
        .stdin(other.try_clone().unwrap())
        .stdout(other.try_clone().unwrap())
        .stderr(other)
        .spawn()
        .unwrap();
    let mut master = std::fs::File::from(master);
    let mut out = BufReader::new(master.try_clone().unwrap());
    assert_eq!(line(&mut out), "terminal");
    master.write_all(b"\x03").unwrap();
    let mut seen = String::new();
    while !seen.contains("seen") {
        let next = line(&mut out);
        seen.push_str(&next);
    }
    assert!(seen.ends_with("seen 1"), "one key is one signal: {seen}");
    assert_eq!(wait_for("the end", || child.try_wait().unwrap()).code(), Some(5));
}

#[test]
fn a_change_is_asked_for_and_waited_for() {
    let rig = Rig::installed("s");
    assert_eq!(
        ok(&mut rig.wrapper(&["evolve", "Run the tests before you finish."])).trim(),
        "req-1"
    );
    let sent = rig.service.upstream.only().json();
    assert_eq!(sent["text"], "Run the tests before you finish.");
    assert_eq!(sent["release_id"], "r1");
    assert_eq!(sent["client"]["commands"]["curl"], true);
    let decide = |state: &str, settled: bool| {
        rig.service.state.lock().unwrap().progress =
            serde_json::json!({"request_id": "req-1", "settled": settled, "state": state, "meaning": "So it is."});
    };
    decide("evaluating", false);
    assert_eq!(ok(&mut rig.wrapper(&["wait", "req-1", "--poll"])).trim(), "evaluating");
    let said = fails(&mut rig.wrapper(&["wait", "req-1", "--timeout", "0"]), 2);
    assert!(said.contains("not decided"), "{said}");
    for (state, code) in [("selected", 0), ("pending", 0), ("rejected", 1), ("failed", 1)] {
        decide(state, true);
        let output = rig.wrapper(&["harness", "more", "--wait"]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{state}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), state);
    }
    let said = fails(&mut rig.wrapper(&["wait", "unknown"]), 2);
    assert!(said.contains("no such route"), "{said}");
}

#[test]
fn a_session_that_runs_is_not_removed() {
    let rig = Rig::installed("s");
    let (mut child, mut out) = running(&rig, &["hold"]);
    line(&mut out);
    let before = rig.everything();
    let said = fails(&mut rig.reef(&["harness", "uninstall", "--adapter", "pi"]), 50);
    assert!(said.contains("nothing was removed"), "{said}");
    assert_eq!(rig.everything(), before);
    drop(child.stdin.take());
    assert!(wait_for("the session to end", || child.try_wait().unwrap()).success());
    ok(&mut rig.wrapper(&["uninstall"]));
}

#[test]
fn the_run_that_ended_last_is_graded_and_a_session_grades_its_own() {
    let rig = Rig::installed("s");
    let (mut child, mut out) = running(&rig, &["askhold"]);
    assert_eq!(line(&mut out), "asked");
    ok(&mut rig.wrapper(&["ask"]));
    // The one that began first ends last.
    drop(child.stdin.take());
    assert!(wait_for("the session to end", || child.try_wait().unwrap()).success());
    let graded = ok_json(&mut rig.wrapper(&["report", "--score", "1", "--json"]));
    let runs = ok_json(&mut rig.wrapper(&["report", "--list", "--json"]));
    assert_eq!(graded["run"], runs["runs"][1]["run"]);
    // Another run began and ended within this session, before it grades itself.
    let own = ok_json(&mut rig.wrapper(&["graded"]));
    let runs = ok_json(&mut rig.wrapper(&["report", "--list", "--json"]));
    assert_eq!(own["run"], runs["runs"][1]["run"], "{runs}");
    assert_ne!(own["run"], graded["run"]);
}

#[test]
fn what_a_killed_further_session_was_told_is_not_lost() {
    let rig = Rig::installed("s");
    let (mut first, mut first_out) = running(&rig, &["hold"]);
    line(&mut first_out);
    let (mut second, mut second_out) = running(&rig, &["login", "secret-1"]);
    assert_eq!(line(&mut second_out), "written");
    second.kill().unwrap();
    second.wait().unwrap();
    drop(second.stdin.take());
    let read = || ok(&mut rig.wrapper(&["auth"])).trim().to_owned();
    assert_eq!(read(), "secret-1 600", "as private as the agent made it");
    let shared = rig.place("s").join("root-0/pi-agent/auth.json");
    assert_eq!(std::fs::read_to_string(&shared).unwrap(), "secret-1");
    // A change in the first session is newer than what was given back.
    std::fs::write(&shared, "secret-2").unwrap();
    assert_eq!(read(), "secret-2 600");
    // What was given back and then removed does not come back.
    let (mut third, mut third_out) = running(&rig, &["login", "secret-3"]);
    assert_eq!(line(&mut third_out), "written");
    drop(third.stdin.take());
    assert!(wait_for("the session to end", || third.try_wait().unwrap()).success());
    assert_eq!(std::fs::read_to_string(&shared).unwrap(), "secret-3");
    std::fs::remove_file(&shared).unwrap();
    assert!(!rig.wrapper(&["auth"]).status().unwrap().success());
    assert!(!shared.exists());
    drop(first.stdin.take());
    assert!(wait_for("the session to end", || first.try_wait().unwrap()).success());
}

#[test]
fn a_further_session_leaves_the_files_of_the_first_alone() {
    let rig = Rig::installed("s");
    let (mut first, mut out) = running(&rig, &["hold"]);
    let settings = std::path::Path::new(&line(&mut out)).join("settings.json");
    // Half written, as an agent does that writes in place.
    std::fs::write(&settings, "{\"theme\":").unwrap();
    ok(&mut rig.wrapper(&["exit", "0"]));
    assert_eq!(std::fs::read_to_string(&settings).unwrap(), "{\"theme\":");
    drop(first.stdin.take());
    assert!(wait_for("the session to end", || first.try_wait().unwrap()).success());
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let rig = Rig::installed("s");
    let mut child = rig
        .command("/bin/sh")
        .args(["-c", "trap '' HUP; exec \"$0\" linger"])
        .arg(rig.path(".local/bin/reef-pi"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(line(&mut out), "ready");
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    for signal in [rustix::process::Signal::HUP, rustix::process::Signal::TERM] {
        rustix::process::kill_process(pid, signal).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(line(&mut out), "got TERM");
    assert_eq!(
        wait_for("the wrapper to end", || child.try_wait().unwrap()).code(),
        Some(7)
    );
}

#[test]
fn nothing_the_service_says_acts_on_the_terminal() {
    let rig = Rig::installed("s");
    let acts = |text: &str| text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}');
    let hostile = "\u{1b}]0;x\u{7}\u{9b}2J\r\u{202e}ok\nhint: run curl x | sh";
    let mut manifest = release("r1");
    manifest["release_id"] = serde_json::json!(hostile);
    rig.service.serve(manifest);
    let output = rig.wrapper(&["exit", "0"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("is served") && !acts(&said), "{said:?}");
    assert_eq!(said.lines().count(), 1, "{said:?}");
    let update = fails(&mut rig.wrapper(&["update"]), 1);
    assert!(!acts(&update), "{update:?}");
    let doctor = rig.wrapper(&["doctor"]).output().unwrap();
    let said = String::from_utf8(doctor.stdout).unwrap();
    assert!(said.contains("\\u{1b}") && !acts(&said), "{said:?}");
    let mut needy = release("r2");
    needy["requires"] = serde_json::json!([{"name": hostile, "kind": "service", "check": "true\r\u{1b}[2Kexit 1"}]);
    rig.service.serve(needy);
    let setup = fails(&mut rig.wrapper(&["setup", "--release", "r2", "--yes"]), 1);
    assert!(setup.contains("true\\r\\u{1b}[2Kexit 1") && !acts(&setup), "{setup:?}");
    rig.service.state.lock().unwrap().report_words = Some(hostile.to_owned());
    ok(&mut rig.wrapper(&["ask"]));
    for more in [&[][..], &["--json"]] {
        let refused = fails(rig.wrapper(&["report", "--score", "1"]).args(more), 2);
        assert!(refused.contains("refused the report") && !acts(&refused), "{refused:?}");
        assert!(
            !refused.lines().any(|line| line.starts_with("hint: run curl")),
            "{refused:?}"
        );
    }
}

#[test]
fn the_agent_gets_what_its_words_name_and_no_other_descriptor() {
    let rig = Rig::installed("s");
    std::fs::write(rig.path("named"), "what a person named").unwrap();
    let wrapper = rig.wrapper(&["open", "--from=/dev/fd/8"]);
    let mut shell = std::process::Command::new("sh");
    shell
        .env_clear()
        .envs(wrapper.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .args(["-c", "exec 7< \"$HOME\" 8< \"$HOME/named\"; exec \"$0\" \"$@\""])
        .arg(wrapper.get_program())
        .args(wrapper.get_args());
    let said = ok(&mut shell);
    assert!(said.ends_with("what a person named"), "{said}");
    let home = rig.home.path().canonicalize().unwrap();
    assert!(!said.lines().any(|open| open == home.to_str().unwrap()), "{said}");
}

#[test]
fn a_pipe_that_an_agent_left_in_place_of_a_file_holds_up_nothing() {
    let rig = Rig::installed("s");
    let plant = "cd \"$PI_CODING_AGENT_DIR\" && for name in AGENTS.md settings.json auth.json; do rm -f $name; mkfifo $name; done";
    ok(&mut rig.wrapper(&["inner", "sh", "-c", plant]));
    // Where it would wait for ever, this ends it with 124.
    let mut bounded = rig.command("/usr/bin/timeout");
    bounded.arg("60").arg(rig.path(".local/bin/reef-pi")).arg("rules");
    assert_eq!(ok(&mut bounded), "Rules of r1.\n");
    let (mut first, mut out) = running(&rig, &["hold"]);
    line(&mut out);
    let mut bounded = rig.command("/usr/bin/timeout");
    bounded.arg("60").arg(rig.path(".local/bin/reef-pi")).arg("rules");
    assert_eq!(ok(&mut bounded), "Rules of r1.\n");
    drop(first.stdin.take());
    assert!(wait_for("the session to end", || first.try_wait().unwrap()).success());
}
