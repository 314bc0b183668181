//! Releases over HTTP, and a running service that follows what other processes release.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::rig::{files, reef_json as reef};

/// A running `reef serve` that no request of these tests lets reach its upstream.
struct Service {
    child: Child,
    address: String,
}

impl Service {
    fn start(dir: &Path) -> Self {
        Self::start_with(dir, "")
    }

    fn start_with(dir: &Path, failpoints: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_reef"))
            .args(["serve", "--upstream-url", "http://127.0.0.1:9", "--upstream-model", "m"])
            .args(["--port", "0", "--json"])
            .current_dir(dir)
            .env("FAILPOINTS", failpoints)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let event: Value = serde_json::from_str(&line).unwrap();
        let address = event["address"].as_str().unwrap().to_owned();
        Self { child, address }
    }

    fn raw(&self, method: &str, path: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = head[9..12].parse().unwrap();
        let mut body = answer[end + 4..].to_vec();
        if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            body = dechunk(&body);
        }
        (status, head, body)
    }

    fn json(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let bytes = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let (status, _, body) = self.raw(method, path, &bytes);
        (status, serde_json::from_slice(&body).unwrap())
    }

    fn get(&self, path: &str) -> Value {
        let (status, body) = self.json("GET", path, &Value::Null);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn dechunk(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let line = rest.windows(2).position(|w| w == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        rest = &rest[line + 2..];
        if size == 0 {
            return out;
        }
        out.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
}

fn tree(dir: &Path, text: &str) {
    fs::create_dir_all(dir.join("tree/skills")).unwrap();
    fs::write(dir.join("tree/AGENTS.md"), text).unwrap();
    fs::write(dir.join("tree/skills/one.md"), "same").unwrap();
    fs::write(dir.join("tree/w.safetensors"), text.repeat(50_000)).unwrap();
}

#[test]
fn the_routes_of_the_chain_work_and_refuse_as_documented() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let service = Service::start(dir);
    let (status, created) = service.json("POST", "/reef/scenarios", &json!({"scenario": "s"}));
    assert_eq!(status, 201);
    let first = created["release_id"].as_str().unwrap().to_owned();
    tree(dir, "one");
    let held = reef(dir, &["release", "import", "tree", "--hold"])["release_id"]
        .as_str()
        .unwrap()
        .to_owned();

    let rows = service.get("/reef/scenarios/s/releases");
    let rows = rows["releases"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0]["release_id"], held.as_str());
    assert_eq!(rows[0]["pending"], true);
    assert_eq!(rows[0]["current"], false);
    assert_eq!(rows[1]["current"], true);
    assert_eq!(rows[1]["operation"], "creation");
    // As the contract has it, and the moment all the same.
    assert_eq!(rows[1]["recorded_at"], Value::Null);
    let (made, imported) = (rows[1]["at"].as_f64().unwrap(), rows[0]["at"].as_f64().unwrap());
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    assert!(
        now.as_secs_f64() - made < 600.0 && made <= imported,
        "{made} {imported}"
    );
    assert_eq!(rows[0]["recorded_at"], rows[0]["at"]);

    let decide = |what: &str, body: Value| service.json("POST", &format!("/reef/scenarios/s/{what}"), &body);
    let (status, _) = decide("rollback", json!({"release_id": held}));
    assert_eq!(status, 409, "a held release was never served");
    let (status, _) = decide("promote", json!({"release_id": held, "expected_head": "0".repeat(40)}));
    assert_eq!(status, 409, "another head than expected");
    let (status, promoted) = decide("promote", json!({"release_id": held}));
    assert_eq!(status, 200);
    assert_eq!(promoted["live"], true);
    let head = service.get("/reef/status")["scenarios"]["s"]["release_id"].clone();
    assert_eq!(head, promoted["release_id"]);
    let (status, again) = decide("promote", json!({"release_id": held}));
    assert_eq!(
        (status, &again["appended"], &again["release_id"]),
        (200, &json!(false), &head)
    );
    for (what, body, expected) in [
        ("reject", json!({"release_id": held}), 409),
        ("rollback", json!({"release_id": "f".repeat(40)}), 404),
        ("rollback", json!({"release_id": 7}), 400),
        ("rollback", json!({}), 400),
        ("rollback", json!({"release_id": first, "x": 1}), 400),
    ] {
        let (status, answer) = decide(what, body.clone());
        assert_eq!(status, expected, "{what} {body}: {answer}");
    }
    let (status, again) = decide("rollback", json!({"release_id": "head"}));
    assert_eq!((status, &again["appended"]), (200, &json!(false)));
    let (status, _) = decide("rollback", json!({"release_id": &first[..12]}));
    assert_eq!(status, 200);
    let commits = service.get("/reef/scenarios/s/commits");
    let kinds: Vec<&str> = commits["commits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["operation"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["creation", "import", "promote", "rollback"]);
    let (status, _) = service.json("GET", "/reef/scenarios/none/releases", &Value::Null);
    assert_eq!(status, 404);
}

#[test]
fn an_artifact_comes_down_as_it_was_released() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let service = Service::start(dir);
    service.json("POST", "/reef/scenarios", &json!({"scenario": "s"}));
    tree(dir, "one");
    reef(dir, &["release", "import", "tree"]);
    let (status, head, tar) = service.raw("GET", "/reef/scenarios/s/releases/head/artifact", b"");
    assert_eq!(status, 200);
    assert!(head.contains("application/x-tar"), "{head}");
    let out = dir.join("out");
    tar::Archive::new(tar.as_slice()).unpack(&out).unwrap();
    assert_eq!(files(&out), files(&dir.join("tree")));
    let (status, _, file) = service.raw(
        "GET",
        "/reef/scenarios/s/releases/head/artifact?path=skills%2Fone.md",
        b"",
    );
    assert_eq!((status, file.as_slice()), (200, b"same".as_slice()));
    for path in ["..%2F..%2Fetc%2Fpasswd", "none", "reef-artifact.json"] {
        let (status, _, _) = service.raw(
            "GET",
            &format!("/reef/scenarios/s/releases/head/artifact?path={path}"),
            b"",
        );
        assert_eq!(status, 404, "{path}");
    }
}

#[test]
fn a_running_service_follows_what_another_process_releases() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let service = Service::start(dir);
    service.json("POST", "/reef/scenarios", &json!({"scenario": "s"}));
    let served = || service.get("/reef/status")["scenarios"]["s"]["release_id"].clone();
    let first = served();
    let mut last = first.clone();
    for n in 0..3 {
        tree(dir, &n.to_string());
        let released = match n {
            2 => reef(dir, &["release", "rollback", first.as_str().unwrap()]),
            _ => reef(dir, &["release", "import", "tree"]),
        }["release_id"]
            .clone();
        let deadline = Instant::now() + Duration::from_secs(30);
        while served() != released {
            let now = served();
            assert!(
                now == last || now == released,
                "{now} is neither the old nor the new release"
            );
            assert!(Instant::now() < deadline, "the service never followed");
            std::thread::sleep(Duration::from_millis(20));
        }
        last = released;
    }
    // A person's collection moves every ref into one file; the service goes on following.
    let repository = dir.join(".reef/artifacts.git");
    crate::rig::stock_ok(&dir.join("home"), &repository, "git", &["gc", "-q", "--prune=now"]);
    tree(dir, "after");
    let released = reef(dir, &["release", "import", "tree"])["release_id"].clone();
    let deadline = Instant::now() + Duration::from_secs(30);
    while served() != released {
        assert!(Instant::now() < deadline, "the service never followed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A look at the heads that takes long, on a slow disk or a busy machine, puts the next one off, but not for seconds.
#[test]
#[cfg_attr(not(feature = "failpoints"), ignore = "needs the feature failpoints")]
fn a_service_whose_looks_are_slow_follows_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let service = Service::start_with(dir, "scenario::watch_look=sleep(200)");
    service.json("POST", "/reef/scenarios", &json!({"scenario": "s"}));
    for n in 0..2 {
        tree(dir, &n.to_string());
        let released = reef(dir, &["release", "import", "tree"])["release_id"].clone();
        let began = Instant::now();
        while service.get("/reef/status")["scenarios"]["s"]["release_id"] != released {
            // A fiftieth of the time would be a look every ten seconds.
            assert!(began.elapsed() < Duration::from_secs(4), "the service is far behind");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
