//! The real program, serving in a directory of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tempfile::TempDir;

use super::http::{self, Response};
use super::{PATIENCE, wait_for};

/// A running service.
pub struct Reef {
    pub address: SocketAddr,
    pub dir: PathBuf,
    child: Child,
    log: Arc<Mutex<String>>,
    /// Dropped last, unless the directory belongs to the test.
    _own: Option<TempDir>,
}

/// The program with a clean environment; `HOME` is the given directory.
pub fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reef"));
    command
        .env_clear()
        .env("HOME", dir)
        .env("PATH", std::env::var("PATH").unwrap());
    for name in ["LD_LIBRARY_PATH", "LIBTORCH", "FAILPOINTS"] {
        if let Ok(value) = std::env::var(name) {
            command.env(name, value);
        }
    }
    command.current_dir(dir);
    command
}

/// Runs a command to its end.
pub fn run(dir: &Path, args: &[&str]) -> Output {
    command(dir).args(args).output().unwrap()
}

impl Reef {
    /// Serves from a fresh directory, with the upstream at `url` and more arguments.
    pub fn start(url: &str, args: &[&str]) -> Self {
        let own = tempfile::tempdir().unwrap();
        let mut reef = Self::start_in(own.path(), url, args);
        reef._own = Some(own);
        reef
    }

    /// Serves from `dir`.
    pub fn start_in(dir: &Path, url: &str, args: &[&str]) -> Self {
        Self::start_with(dir, &[&["--upstream-url", url], args].concat(), |_| {})
    }

    /// Serves from `dir` with these arguments, after a last change to the command.
    pub fn start_with(dir: &Path, args: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let mut command = command(dir);
        command
            .args(["serve", "--json", "-v", "--reef.port", "0"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let mut stderr = child.stderr.take().unwrap();
        let copy = Arc::clone(&log);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n) = stderr.read(&mut buffer) {
                if n == 0 {
                    return;
                }
                copy.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..n]));
            }
        });
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _gone = sender.send(line);
            }
        });
        let address = loop {
            let line = receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| {
                let _killed = child.kill();
                panic!("no listening line; standard error:\n{}", log.lock().unwrap());
            });
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not JSON: {line}"));
            if event["event"] == "listening" || event["type"] == "listening" {
                break event["address"].as_str().unwrap().parse().unwrap();
            }
        };
        Self {
            address,
            dir: dir.to_owned(),
            child,
            log,
            _own: None,
        }
    }

    /// A POST to an inference route in scenario `s`.
    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Response {
        self.post_with(path, &[], body)
    }

    /// A POST in scenario `s` with more headers.
    pub fn post_with(&self, path: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Response {
        let mut all = vec![("x-reef-scenario", "s"), ("content-type", "application/json")];
        all.extend_from_slice(headers);
        http::send(self.address, "POST", path, &all, body.as_ref())
    }

    pub fn get(&self, path: &str) -> Response {
        http::send(self.address, "GET", path, &[], b"")
    }

    pub fn status(&self) -> Value {
        self.get("/reef/status").json()
    }

    /// The stored record with this receipt.
    pub fn record(&self, id: &str) -> Value {
        let mut response = self.get(&format!("/reef/scenarios/s/records/{id}"));
        let record = response.json();
        assert_eq!(response.status, 200, "{record}");
        record
    }

    /// The rows of scenario `s`, or none if it does not exist.
    pub fn rows(&self) -> Vec<Value> {
        let mut rows = Vec::new();
        let mut after = 0;
        loop {
            let mut response = self.get(&format!("/reef/scenarios/s/records?limit=100&after_sequence={after}"));
            let page = response.json();
            let Some(found) = page["records"].as_array() else {
                return rows;
            };
            rows.extend(found.iter().cloned());
            match page["next_after_sequence"].as_i64() {
                Some(next) => after = next,
                None => return rows,
            }
        }
    }

    /// Waits until so many interruptions of this kind are counted, in memory and in the store.
    pub fn wait_for_interruptions(&self, reason: &str, count: u64) {
        wait_for(&format!("{count} x {reason}"), || {
            let status = self.status();
            let seen = &status["service"]["interrupted"][reason];
            let stored = &status["scenarios"]["s"]["interrupted"][reason];
            (seen.as_u64() == Some(count) && stored.as_f64() == Some(count as f64)).then_some(())
        });
    }

    pub fn wait_until_idle(&self) {
        wait_for("nothing in flight", || {
            (self.status()["service"]["in_flight"] == 0).then_some(())
        });
    }

    /// One figure of the metrics page.
    pub fn metric(&self, series: &str) -> f64 {
        let page = self.get("/metrics").text();
        page.lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or_else(|| panic!("no {series} in:\n{page}"))
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the process to end.
    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the process to end", || self.child.try_wait().unwrap())
    }

    pub fn kill(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Drop for Reef {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            // A failed test shows what the service said.
            let _gone = writeln!(std::io::stderr(), "--- log of the service ---\n{}", self.log());
        }
    }
}
