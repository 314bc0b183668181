//! `reef model` through the real binary: import, list, show, and downloads from a server that breaks off.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::{fs, thread};

use assert_cmd::Command;
use reef::engine::models::{synthetic_config, write_synthetic};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn reef(dir: &Path, args: &[&str]) -> Output {
    reef_with(dir, args, &[])
}

fn reef_with(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_reef"))
        .env_clear()
        .envs(env.iter().copied())
        .current_dir(dir)
        .args(args)
        .output()
        .unwrap()
}

fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn failure(output: &Output, code: i32) -> String {
    assert_eq!(
        output.status.code(),
        Some(code),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_folder_is_imported_listed_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("tiny");
    write_synthetic(&source, &synthetic_config(), 1).unwrap();
    fs::write(source.join("notes.txt"), "left behind").unwrap();
    let path = ok(&reef(dir.path(), &["model", "import", "tiny"]));
    let model = dir.path().join(path.trim());
    assert_eq!(
        fs::read(model.join("model.safetensors")).unwrap(),
        fs::read(source.join("model.safetensors")).unwrap()
    );
    assert!(!model.join("notes.txt").exists());
    let table = ok(&reef(dir.path(), &["model", "list"]));
    assert!(table.contains("tiny") && table.contains("llama"), "{table}");
    let shown: Value = serde_json::from_str(&ok(&reef(dir.path(), &["model", "show", "tiny", "--json"]))).unwrap();
    assert_eq!(shown["layers"], 4);
    assert_eq!(shown["chat_template"], true);
    // The same name again is refused and changes nothing.
    let error = failure(&reef(dir.path(), &["model", "import", "tiny"]), 2);
    assert!(error.contains("already there"), "{error}");
    let error = failure(&reef(dir.path(), &["model", "show", "absent"]), 2);
    assert!(error.contains("reef model list"), "{error}");
}

/// Without any variable in the environment the program starts itself again with a wait policy, once.
#[test]
fn a_model_is_measured_or_the_build_says_why_not() {
    let dir = tempfile::tempdir().unwrap();
    write_synthetic(&dir.path().join("tiny"), &synthetic_config(), 1).unwrap();
    let args = [
        "bench",
        "model",
        "./tiny",
        "--json",
        "--tokens",
        "4",
        "--prompt",
        "32",
        "--repeats",
        "1",
        "--batch",
        "1,3",
    ];
    let output = reef(dir.path(), &args);
    if cfg!(feature = "torch") {
        let report: Value = serde_json::from_str(&ok(&output)).unwrap();
        for rate in [&report["prefill"], &report["decode"][0][1], &report["decode"][1][1]] {
            assert!(rate.as_f64().unwrap() > 0.0, "{report}");
        }
        assert_eq!(report["decode"][1][0], 3);
    } else {
        assert!(failure(&output, 60).contains("--features torch"));
    }
}

/// A server of files that honours ranges and closes the connection after `limit` bytes of body, `breaks` times.
struct Files {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Files {
    fn serve(files: Vec<(String, Vec<u8>)>, limit: usize, breaks: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, left) = (Arc::clone(&requests), AtomicUsize::new(breaks));
        // Ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(&stream, &files, limit, &left, &log);
            }
        });
        Self { address, requests }
    }

    fn ranges(&self) -> usize {
        let requests = self.requests.lock().unwrap();
        requests
            .iter()
            .filter(|r| r.to_lowercase().contains("\nrange:"))
            .count()
    }
}

fn answer(
    mut stream: &TcpStream,
    files: &[(String, Vec<u8>)],
    limit: usize,
    left: &AtomicUsize,
    log: &Mutex<Vec<String>>,
) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while reader.read_line(&mut head).is_ok_and(|n| n > 2) {}
    let path = head.split_whitespace().nth(1).unwrap_or("/").to_owned();
    let from: usize = head
        .lines()
        .find_map(|l| l.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned))
        .and_then(|r| r.trim_end_matches('-').parse().ok())
        .unwrap_or(0);
    log.lock().unwrap().push(head);
    let Some((_, body)) = files.iter().find(|(name, _)| path.split('?').next() == Some(name)) else {
        let _gone = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        return;
    };
    let rest = &body[from.min(body.len())..];
    let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
    let range = format!("content-range: bytes {from}-{}/{}\r\n", body.len() - 1, body.len());
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\netag: \"one\"\r\n{}connection: close\r\n\r\n",
        rest.len(),
        if from > 0 { range.as_str() } else { "" }
    );
    let _gone = stream.write_all(head.as_bytes());
    let cut = rest.len() > limit && left.load(Ordering::SeqCst) > 0;
    if cut {
        left.fetch_sub(1, Ordering::SeqCst);
    }
    let _gone = stream.write_all(if cut { &rest[..limit] } else { rest });
    let _gone = stream.flush();
    // Drain what the client still says, so that closing does not reset the connection under its feet.
    let _gone = stream.shutdown(std::net::Shutdown::Write);
    let _gone = stream.set_read_timeout(Some(std::time::Duration::from_secs(5)));
    let _gone = stream.read(&mut [0; 1]);
}

#[test]
fn a_hub_folder_is_pulled_resumed_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    write_synthetic(&source, &synthetic_config(), 1).unwrap();
    let mut files = Vec::new();
    let mut listing = Vec::new();
    for entry in fs::read_dir(&source).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = fs::read(&path).unwrap();
        let mut item = json!({ "type": "file", "path": name, "size": bytes.len(), "oid": "x" });
        if name.ends_with(".safetensors") {
            item["lfs"] = json!({ "oid": hex::encode(Sha256::digest(&bytes)), "size": bytes.len() });
        }
        listing.push(item);
        files.push((format!("/org/tiny/resolve/main/{name}"), bytes));
    }
    listing.push(json!({ "type": "file", "path": "../../escape.safetensors", "size": 1 }));
    listing.push(json!({ "type": "directory", "path": "onnx" }));
    let list = serde_json::to_vec(&listing).unwrap();
    files.push(("/api/models/org/tiny/tree/main".to_owned(), list));
    let server = Files::serve(files, 1 << 20, 2);
    let env = [("HF_ENDPOINT", server.address.as_str())];
    let path = ok(&reef_with(dir.path(), &["model", "pull", "hf://org/tiny"], &env));
    let model = dir.path().join(path.trim());
    for name in ["model.safetensors", "config.json", "tokenizer.json"] {
        assert_eq!(
            fs::read(model.join(name)).unwrap(),
            fs::read(source.join(name)).unwrap(),
            "{name}"
        );
    }
    assert_eq!(server.ranges(), 2, "each break is followed by a resumed request");
    let models = model.parent().unwrap();
    let scratch = fs::read_dir(models.join(".download")).unwrap().count();
    assert_eq!(scratch, 0, "nothing of the download is left");
}

#[test]
fn a_wrong_checksum_is_refused_and_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let server = Files::serve(
        vec![("/m.gguf".to_owned(), b"GGUF but not really".to_vec())],
        usize::MAX,
        0,
    );
    let url = format!("{}/m.gguf?secret=1", server.address);
    let args = ["model", "pull", &url, "--sha256", &"0".repeat(64)];
    let error = failure(&reef(dir.path(), &args), 30);
    assert!(error.contains("SHA-256") && !error.contains("secret"), "{error}");
    let error = failure(&reef(dir.path(), &args[..3]), 2);
    assert!(error.contains("GGUF version"), "{error}");
    // The damaged download is not kept: the next try fetches it anew.
    let scratch = fs::read_dir(dir.path().join(".reef/models/.download")).unwrap();
    assert_eq!(scratch.count(), 0);
    let error = failure(
        &reef(
            dir.path(),
            &["model", "pull", &format!("{}/absent.gguf", server.address)],
        ),
        30,
    );
    assert!(error.contains("404"), "{error}");
    assert_eq!(ok(&reef(dir.path(), &["model", "list"])), "");
}

/// A folder that serving would take, to be spoiled.
fn sound(dir: &Path) -> std::path::PathBuf {
    let source = dir.join("guest");
    let _none_yet = fs::remove_dir_all(&source);
    write_synthetic(&source, &synthetic_config(), 1).unwrap();
    source
}

#[test]
fn what_serving_would_refuse_is_refused_when_it_comes_in() {
    let dir = tempfile::tempdir().unwrap();
    let pointer = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{:064}\nsize 269060552\n",
        0
    );
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}";
    let doubling =
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}";
    let weights = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(sound(dir.path()).join("model.safetensors")).unwrap();
        change(&mut bytes);
        bytes
    };
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("chat_template.jinja", loops.into(), "instructions"),
        ("chat_template.jinja", doubling.into(), "instructions"),
        ("chat_template.jinja", "{% if %}".into(), "does not parse"),
        (
            "chat_template.jinja",
            "{{ messages[0].content | frobnicate }}".into(),
            "frobnicate",
        ),
        (
            "chat_template.jinja",
            "always the same".into(),
            "does not hold what is said",
        ),
        ("model.safetensors", pointer.clone().into(), "git lfs pull"),
        (
            "model.safetensors",
            weights(&|bytes| bytes.truncate(bytes.len() - 100)),
            "bytes of tensors",
        ),
        (
            "model.safetensors",
            weights(&|bytes| bytes.truncate(20)),
            "longer than the file",
        ),
        (
            "model.safetensors",
            weights(&|bytes| {
                let end = bytes.len();
                bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
            }),
            "not finite",
        ),
        (
            "model.safetensors",
            weights(&|bytes| {
                let at = bytes.windows(6).position(|name| name == b"q_proj").unwrap();
                bytes[at] = b'x';
            }),
            "q_proj",
        ),
        ("tokenizer.json", pointer.clone().into(), "git lfs pull"),
        ("tokenizer.json", "{\"model\": 7}".into(), "tokenizer"),
        ("tokenizer.json", "junk".into(), "tokenizer"),
        ("config.json", pointer.clone().into(), "git lfs pull"),
    ];
    for (file, bytes, word) in cases {
        let source = sound(dir.path());
        fs::write(source.join(file), bytes).unwrap();
        let begun = std::time::Instant::now();
        let error = failure(&reef(dir.path(), &["model", "import", "guest", "--name", "g"]), 2);
        assert!(error.contains(word), "{file}: {error}");
        assert!(error.contains("guest") && !error.contains(".part-"), "{file}: {error}");
        assert!(begun.elapsed().as_secs() < 30, "{file}: {:?}", begun.elapsed());
        let left = fs::read_dir(dir.path().join(".reef/models")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{file}: nothing of it stays");
    }
    fs::write(dir.path().join("x.gguf"), &pointer).unwrap();
    let error = failure(&reef(dir.path(), &["model", "import", "x.gguf"]), 2);
    assert!(error.contains("git lfs pull"), "{error}");
    fs::remove_file(sound(dir.path()).join("tokenizer.json")).unwrap();
    failure(&reef(dir.path(), &["model", "import", "guest"]), 2);
    sound(dir.path());
    ok(&reef(dir.path(), &["model", "import", "guest"]));
}
