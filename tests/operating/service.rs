//! Run as a service, in a container, under a terminal: signals, the service manager's protocol, process 1.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::access::QUESTION;
use crate::common::reef::{Reef, command};
use crate::common::upstream::{Upstream, answer};
use crate::common::wait_for;

const ANSWER: &str = r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#;
/// The grace of these services, what Reef takes beyond it, and a loaded machine.
const GRACE: &str = "1";
const IN_TIME: Duration = Duration::from_secs(25);

fn upstream() -> Upstream {
    Upstream::always(answer(200, "application/json", ANSWER))
}

fn serving(url: &str, change: impl FnOnce(&mut Command)) -> (tempfile::TempDir, Reef) {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--upstream-url", url, "--reef.drain-timeout", GRACE];
    let reef = Reef::start_with(dir.path(), &args, change);
    (dir, reef)
}

fn alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

#[test]
fn a_hang_up_changes_nothing() {
    let upstream = upstream();
    let (_dir, reef) = serving(&upstream.url(), |_| {});
    for _ in 0..3 {
        reef.signal(Signal::HUP);
    }
    wait_for("the word of it", || reef.log().contains("hang-up").then_some(()));
    assert!(reef.post("/v1/chat/completions", QUESTION).receipt().is_some());
}

#[test]
#[ignore = "the probing keeps one thread free of requests; with a probe every second the service stands still and ends in time"]
fn the_end_comes_within_the_grace_whatever_a_thread_does() {
    let upstream = upstream();
    // Every thread for requests stands still, as one would in a loop that does not yield.
    let (_dir, mut reef) = serving(&upstream.url(), |command| {
        command.env("FAILPOINTS", "serve::before_engine=sleep(120000)");
    });
    let address = reef.address;
    for _ in 0..64 {
        std::thread::spawn(move || {
            use std::io::{Read, Write};
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nx-reef-scenario: s\r\n";
            let _sent = write!(stream, "{head}content-length: {}\r\n\r\n{QUESTION}", QUESTION.len());
            let _ended = stream.read(&mut [0; 1]);
        });
    }
    wait_for("a request at the engine", || (!upstream_untouched(&reef)).then_some(()));
    let told = Instant::now();
    reef.signal(Signal::TERM);
    let status = reef.wait();
    assert!(told.elapsed() < IN_TIME, "{:?}", told.elapsed());
    assert_eq!(status.code(), Some(0), "{status:?}");
}

/// Whether nothing has come yet; a service that stands still does not even say.
fn upstream_untouched(reef: &Reef) -> bool {
    use std::io::{Read, Write};
    let Ok(mut stream) = std::net::TcpStream::connect(reef.address) else {
        return false;
    };
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let _sent = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
    matches!(stream.read(&mut [0; 1]), Ok(1))
}

#[test]
fn a_start_that_hangs_ends_when_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = command(dir.path())
        .args(["serve", "--upstream-url", "http://127.0.0.1:9", "--port", "0"])
        .env("FAILPOINTS", "serve::start=sleep(120000)")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The log is the last thing before the start.
    wait_for("the start", || dir.path().join(".reef/logs").exists().then_some(()));
    let pid = Pid::from_child(&child);
    let told = Instant::now();
    let status = wait_for("its end", || {
        // Before it listens for signals the first one ends it as well.
        let _gone = kill_process(pid, Signal::TERM);
        child.try_wait().unwrap()
    });
    assert!(told.elapsed() < IN_TIME, "{status:?} {:?}", told.elapsed());
}

/// What a service manager is told.
struct Manager {
    socket: UnixDatagram,
    heard: String,
}

impl Manager {
    fn new(dir: &Path) -> Self {
        let socket = UnixDatagram::bind(dir.join("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        Self {
            socket,
            heard: String::new(),
        }
    }

    /// How many lines of everything heard so far begin so.
    fn count(&mut self, line: &str) -> usize {
        let mut buffer = [0; 4096];
        while let Ok(n) = self.socket.recv(&mut buffer) {
            self.heard.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
        }
        self.heard.lines().filter(|heard| heard.starts_with(line)).count()
    }
}

#[test]
fn a_service_manager_hears_of_the_start_of_life_and_of_the_end() {
    let upstream = upstream();
    let place = tempfile::tempdir().unwrap();
    let mut manager = Manager::new(place.path());
    let (_dir, mut reef) = serving(&upstream.url(), |command| {
        command.env("NOTIFY_SOCKET", place.path().join("notify"));
        command.env("WATCHDOG_USEC", "400000");
    });
    wait_for("READY=1", || (manager.count("READY=1") == 1).then_some(()));
    assert_eq!(manager.count("EXTEND_TIMEOUT_USEC="), 1);
    assert!(manager.count("STATUS=serving on http://") > 0, "{}", manager.heard);
    wait_for("signs of life", || (manager.count("WATCHDOG=1") > 3).then_some(()));
    assert_eq!(manager.count("STOPPING=1"), 0);
    reef.signal(Signal::TERM);
    assert!(reef.wait().success());
    assert_eq!(manager.count("STOPPING=1"), 1, "{}", manager.heard);
}

#[test]
fn a_service_that_stands_still_gives_no_sign_of_life() {
    let upstream = upstream();
    let place = tempfile::tempdir().unwrap();
    let mut manager = Manager::new(place.path());
    let (_dir, reef) = serving(&upstream.url(), |command| {
        command.env("NOTIFY_SOCKET", place.path().join("notify"));
        command.env("WATCHDOG_USEC", "200000");
        command.env("FAILPOINTS", "serve::before_engine=sleep(120000)");
    });
    wait_for("signs of life", || (manager.count("WATCHDOG=1") > 1).then_some(()));
    for _ in 0..64 {
        let address = reef.address;
        std::thread::spawn(move || {
            crate::common::http::send(
                address,
                "POST",
                "/v1/chat/completions",
                &[("x-reef-scenario", "s")],
                QUESTION.as_bytes(),
            )
        });
    }
    wait_for("silence", || {
        let before = manager.count("WATCHDOG=1");
        std::thread::sleep(Duration::from_secs(1));
        (manager.count("WATCHDOG=1") == before).then_some(())
    });
}

/// The program as process 1 of a namespace, if this machine has them.
fn as_process_1(dir: &Path) -> Option<Command> {
    let namespaces = [
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
    ];
    let works = Command::new("unshare").args(namespaces).arg("true").status();
    if !works.is_ok_and(|status| status.success()) {
        return None;
    }
    let inner = command(dir);
    let mut outer = Command::new("unshare");
    outer.env_clear().current_dir(dir);
    outer.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer.args(namespaces).arg(inner.get_program());
    Some(outer)
}

/// Processes below this one, with their states and commands.
fn descendants(root: u32) -> Vec<(u32, char, String)> {
    let mut all: Vec<(u32, u32, char, String)> = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((start, rest)) = stat.rsplit_once(") ") else {
            continue;
        };
        let mut fields = rest.split(' ');
        let (state, parent) = (fields.next().unwrap(), fields.next().unwrap());
        let name = start.split_once('(').map_or("", |(_, name)| name).to_owned();
        all.push((pid, parent.parse().unwrap(), state.chars().next().unwrap(), name));
    }
    let mut found = vec![root];
    let mut below = Vec::new();
    while let Some(parent) = found.pop() {
        for (pid, _, state, name) in all.iter().filter(|(_, of, _, _)| *of == parent) {
            found.push(*pid);
            below.push((*pid, *state, name.clone()));
        }
    }
    below
}

#[test]
fn process_1_waits_for_orphans_and_stops_when_told() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in crate::access::DEPLOYMENT {
        fs::write(dir.path().join(name), text).unwrap();
    }
    // Each step leaves a process behind whose parent is gone before it ends.
    let train = fs::read_to_string(dir.path().join("train.sh")).unwrap();
    fs::write(
        dir.path().join("train.sh"),
        format!("(setsid sh -c 'sleep 0.3; echo orphan >> orphans' >/dev/null 2>&1 &)\n{train}"),
    )
    .unwrap();
    let upstream = upstream();
    let args = [
        "-c",
        "serve.toml",
        "--upstream-url",
        &upstream.url(),
        "--reef.drain-timeout",
        GRACE,
    ];
    let mut possible = true;
    let mut reef = Reef::start_with(dir.path(), &args, |command| {
        let Some(mut first) = as_process_1(dir.path()) else {
            possible = false;
            return;
        };
        first
            .args(command.get_args())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        *command = first;
    });
    if !possible {
        assert!(rustix::process::geteuid().as_raw() != 0, "root has namespaces");
        return;
    }
    let receipt = reef.post("/v1/chat/completions", QUESTION).receipt().unwrap();
    reef.post("/reef/report", format!(r#"{{"references":["{receipt}"],"score":1.0}}"#));
    wait_for("the orphan", || dir.path().join("orphans").exists().then_some(()));
    wait_for("nobody unburied", || {
        let below = descendants(reef.pid());
        (below.iter().filter(|(_, _, name)| name == "reef").count() == 2
            && below.iter().all(|(_, state, _)| *state != 'Z'))
        .then_some(())
    });
    // A signal to process 1 reaches the service.
    let first = descendants(reef.pid())
        .into_iter()
        .map(|(pid, _, _)| pid)
        .min()
        .unwrap();
    let told = Instant::now();
    kill_process(Pid::from_raw(i32::try_from(first).unwrap()).unwrap(), Signal::TERM).unwrap();
    let status = reef.wait();
    assert!(told.elapsed() < IN_TIME && status.success(), "{status:?}");
}

#[test]
fn a_step_that_is_told_to_stop_takes_its_trainer_with_it() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in crate::access::DEPLOYMENT {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let upstream = upstream();
    let args = ["--upstream-url", &upstream.url()];
    let mut reef = Reef::start_with(dir.path(), &args, |_| {});
    let receipt = reef.post("/v1/chat/completions", QUESTION).receipt().unwrap();
    reef.post("/reef/report", format!(r#"{{"references":["{receipt}"],"score":1.0}}"#));
    reef.signal(Signal::TERM);
    assert!(reef.wait().success());
    let honest = fs::read_to_string(dir.path().join("train.sh")).unwrap();
    fs::write(
        dir.path().join("train.sh"),
        "echo $$ > trainer; sleep 600 & echo $! >> trainer; wait\n",
    )
    .unwrap();
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut train = command(dir.path());
        train
            .args(["train", "-c", "serve.toml", "--steps", "1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = train.process_group(0).spawn().unwrap();
        let pids: Vec<u32> = wait_for("the trainer", || {
            let text = fs::read_to_string(dir.path().join("trainer")).unwrap_or_default();
            let pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
            (pids.len() == 2).then_some(pids)
        });
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = wait_for("its end", || child.try_wait().unwrap());
        assert_eq!(status.code(), Some(130), "{signal:?}");
        wait_for("the trainer's end", || {
            pids.iter().all(|pid| !alive(*pid)).then_some(())
        });
        fs::remove_file(dir.path().join("trainer")).unwrap();
    }
    // What was stopped goes on.
    fs::write(dir.path().join("train.sh"), honest).unwrap();
    let status = command(dir.path())
        .args(["train", "-c", "serve.toml", "--steps", "1"])
        .status()
        .unwrap();
    assert!(status.success(), "{status:?}");
}
