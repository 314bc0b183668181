//! The program as a person or a script meets it: exit codes, streams, configuration, start and stop of the service.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

mod common;

const PATIENCE: Duration = Duration::from_secs(60);

#[path = "cli/faults.rs"]
mod faults;
#[path = "cli/offers.rs"]
mod offers;
#[path = "cli/provider.rs"]
mod provider;
#[path = "cli/readiness.rs"]
mod readiness;

/// The program in this directory, with nothing of the caller's environment.
fn reef(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reef"));
    command
        .current_dir(dir)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", dir)
        .stdin(Stdio::null());
    command
}

fn run(dir: &Path, args: &[&str]) -> Output {
    output(reef(dir).args(args))
}

/// What a command says and how it ends; one that does not end is a failure, not a hang.
fn output(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let read = |mut stream: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            bytes
        })
    };
    let stdout = read(Box::new(child.stdout.take().unwrap()));
    let stderr = read(Box::new(child.stderr.take().unwrap()));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{command:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Output {
        status,
        stdout: stdout.join().unwrap(),
        stderr: stderr.join().unwrap(),
    }
}

#[track_caller]
fn expect(output: &Output, code: i32) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "stdout:\n{out}\nstderr:\n{err}");
    (out, err)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text.lines().next().unwrap_or_default()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(child: &Child, name: &str) {
    let done = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(done.success());
}

fn exit_of(child: &mut Child) -> Option<i32> {
    wait_for("the program ends", || child.try_wait().unwrap()).code()
}

/// A service that was started for one test; killed if the test fails.
struct Service {
    child: Child,
    address: String,
}

impl Service {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        if line.is_empty() {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("the service did not start: {said}");
        }
        let event = json(&line);
        assert_eq!(event["event"], "listening", "{event}");
        let address = event["address"].as_str().unwrap().to_owned();
        Self { child, address }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Already gone in a test that passed.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn serve(dir: &Path, args: &[&str]) -> Command {
    let mut command = reef(dir);
    command
        .args(["serve", "--json", "--port", "0", "--upstream-url", "http://127.0.0.1:9"])
        .args(args);
    command
}

fn request(address: &str, text: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn every_command_has_help_and_a_mistyped_one_gets_a_suggestion() {
    let dir = tempfile::tempdir().unwrap();
    let (out, _) = expect(&run(dir.path(), &["--help"]), 0);
    let commands: Vec<&str> = out
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .map_while(|line| line.split_whitespace().next())
        .collect();
    assert!(
        commands.contains(&"serve") && commands.contains(&"records"),
        "{commands:?}"
    );
    for command in commands.iter().filter(|command| **command != "help") {
        let (out, _) = expect(&run(dir.path(), &[command, "--help"]), 0);
        assert!(out.contains(&format!("Usage: reef {command}")), "{out}");
    }
    let (_, err) = expect(&run(dir.path(), &["srve"]), 2);
    assert!(err.contains("'serve'"), "{err}");
    let (out, err) = expect(&run(dir.path(), &[]), 2);
    assert!(out.is_empty() && err.contains("Usage: reef"), "{out}{err}");
    let (out, _) = expect(&run(dir.path(), &["--version"]), 0);
    assert_eq!(out, format!("reef {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn errors_are_objects_under_json_and_lines_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["--json", "srve"][..],
        &["--json", "status"],
        &["status", "--json", "--reef.port", "x"],
    ] {
        let (out, err) = expect(&run(dir.path(), args), 2);
        assert!(out.is_empty(), "{out}");
        let error = json(&err);
        assert_eq!(
            (&error["version"], &error["error"]["kind"], &error["error"]["code"]),
            (&1.into(), &"usage".into(), &2.into())
        );
        assert!(!error["error"]["message"].as_str().unwrap().is_empty());
    }
    let (_, err) = expect(&run(dir.path(), &["status"]), 2);
    assert!(
        err.starts_with("error: there is no store at ") && err.contains("\nhint: "),
        "{err}"
    );
    assert!(!err.contains('\u{1b}'), "no color into a pipe");
    assert!(
        !dir.path().join(".reef").exists(),
        "a command that only looks makes no files"
    );
}

#[test]
fn color_is_for_terminals_unless_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (out, _) = expect(&run(dir.path(), &["config", "show"]), 0);
    assert!(!out.contains('\u{1b}'));
    let (out, _) = expect(&run(dir.path(), &["--color=always", "config", "show"]), 0);
    assert!(out.contains('\u{1b}'));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = reef(dir.path())
        .args(["config", "schema"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(exit_of(&mut child), Some(0));
    assert_eq!(said, "");
}

#[test]
fn ctrl_c_ends_a_waiting_command_with_130() {
    let dir = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let mut child = reef(dir.path()).args(["status", "--url", &url]).spawn().unwrap();
    // Once it is connected it waits for an answer that never comes.
    let _held = silent.accept().unwrap();
    signal(&child, "-INT");
    assert_eq!(exit_of(&mut child), Some(130));
}

#[test]
fn exit_codes_tell_failures_apart() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = format!("http://127.0.0.1:{port}");
    let (_, err) = expect(&run(dir.path(), &["scenario", "list", "--url", &nobody]), 30);
    assert!(err.contains("hint: is reef serve running there?"), "{err}");
    let (_, err) = expect(&run(dir.path(), &["scenario", "create", "a", "--dir", "file"]), 40);
    assert!(err.contains("caused by:") || err.contains("file"), "{err}");
    expect(&run(dir.path(), &["scenario", "create", "../x"]), 2);
    expect(&run(dir.path(), &["scenario", "list", "--url", "ftp://x"]), 2);
}

#[test]
fn a_wrong_configuration_stops_everything_before_it_starts() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.yaml"), "reef:\n  artifact_dir: x\n  port: 1\n").unwrap();
    for args in [
        &["serve", "-c", "a.yaml"][..],
        &["serve", "--reef.host.foo", "1", "--upstream-url", "http://127.0.0.1:9"],
        &["serve", "-c", "missing.toml"],
        &["serve", "--no-reef.port", "--upstream-url", "http://127.0.0.1:9"],
        &["serve", "--port", "70000"],
        &["serve"],
        &[
            "serve",
            "--upstream-url",
            "http://127.0.0.1:9",
            "--host",
            "0.0.0.0",
            "--port",
            "0",
        ],
        &[
            "serve",
            "--upstream-url",
            "http://127.0.0.1:9",
            "--upstream-api-key-env",
            "NOT_SET",
        ],
        &["scenario", "create", "a", "-c", "a.yaml"],
    ] {
        let (out, err) = expect(&run(dir.path(), args), 2);
        assert!(out.is_empty() && err.starts_with("error: "), "{args:?}: {out}{err}");
    }
    let (_, err) = expect(&run(dir.path(), &["serve", "-c", "a.yaml"]), 2);
    assert!(err.contains("a.yaml:2: reef.artifact-dir: unknown key"), "{err}");
    std::fs::write(dir.path().join("b.yaml"), "reef:\n  recipe: sao\n  batch_sise: 1\n").unwrap();
    let recipe = [
        "serve",
        "-c",
        "b.yaml",
        "--upstream-url",
        "http://127.0.0.1:9",
        "--port",
        "0",
    ];
    let (_, err) = expect(&run(dir.path(), &recipe), 2);
    assert!(
        err.contains("b.yaml:3: reef.batch_sise: unknown key (did you mean")
            || err.contains("hint: did you mean reef.batch_size?"),
        "{err}"
    );
    let (_, err) = expect(&run(dir.path(), &["man", "--reef.port", "1"]), 2);
    assert!(err.contains("reads no settings"), "{err}");
}

#[test]
fn print_config_shows_sources_and_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().join("below");
    std::fs::create_dir(&below).unwrap();
    std::fs::write(
        dir.path().join("serve.yaml"),
        "reef:\n  recipe: recipes.sao.recipe:SAORecipe\n  batch_size: 1\n  max_staleness: 18\n  tokens: [hunter2]\ninference:\n  upstream-api-key: ${KEY:?}\n",
    )
    .unwrap();
    let args = [
        "serve",
        "-c",
        "../serve.yaml",
        "--print-config",
        "--port",
        "0",
        "--recipe.config.batch-size=2",
    ];
    let shown = output(reef(&below).args(args).env("KEY", "hunter2"));
    let (out, err) = expect(&shown, 0);
    assert!(!out.contains("hunter2") && !err.contains("hunter2"), "{out}{err}");
    let line = |key: &str| {
        out.lines()
            .find(|line| line.starts_with(&format!("{key} ")))
            .unwrap_or_default()
            .to_owned()
    };
    assert!(line("reef.port").ends_with("command line --port"), "{out}");
    assert!(line("reef.host").ends_with("default"), "{out}");
    assert!(line("recipe.implementation").ends_with("../serve.yaml:2"), "{out}");
    assert!(line("inference.upstream-api-key").contains("********"), "{out}");
    assert!(line("recipe.config").contains("\"batch_size\":2"), "{out}");
    let (_, err) = expect(&run(&below, &args), 2);
    assert!(err.contains("needs the environment variable KEY"), "{err}");
    // A relative path starts where the program was started.
    let (out, _) = expect(&run(&below, &["config", "path", "--json"]), 0);
    assert_eq!(
        json(&out)["dir"].as_str().unwrap(),
        below.join(".reef").to_str().unwrap()
    );
}

#[test]
fn a_scaffold_is_a_valid_deployment_and_replaces_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (out, _) = expect(&run(dir.path(), &["init", "--list", "--json"]), 0);
    for template in json(&out)["templates"].as_array().unwrap() {
        let name = template["name"].as_str().unwrap();
        expect(&run(dir.path(), &["init", name, "--into", name]), 0);
        let file = format!("{name}/serve.toml");
        let shown = output(
            reef(dir.path())
                .args(["config", "show", "-c", &file])
                .env("REEF_MODEL", "model"),
        );
        expect(&shown, 0);
        let before = std::fs::read_to_string(dir.path().join(&file)).unwrap();
        std::fs::write(dir.path().join(&file), "mine").unwrap();
        let (_, err) = expect(&run(dir.path(), &["init", name, "--into", name]), 2);
        assert!(err.contains("--force"), "{err}");
        assert_eq!(std::fs::read_to_string(dir.path().join(&file)).unwrap(), "mine");
        expect(&run(dir.path(), &["init", name, "--into", name, "--force"]), 0);
        assert_eq!(std::fs::read_to_string(dir.path().join(&file)).unwrap(), before);
    }
    let (_, err) = expect(&run(dir.path(), &["init", "nonsense"]), 2);
    assert!(err.contains("hint: the templates are "), "{err}");
}

#[test]
fn doctor_names_the_fix_of_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let (out, _) = expect(&run(dir.path(), &["doctor", "--offline", "--port-is-no-flag"]), 2);
    assert!(out.is_empty());
    let (out, _) = expect(
        &run(dir.path(), &["doctor", "--offline", "--json", "--reef.port", "0"]),
        0,
    );
    let checks = json(&out)["checks"].clone();
    let find = |name: &str| {
        checks
            .as_array()
            .unwrap()
            .iter()
            .find(|check| check["check"] == name)
            .cloned()
            .unwrap()
    };
    assert_eq!(find("git")["status"], "ok");
    assert_eq!(find("directory")["status"], "ok");
    // Which limits hold for episodes depends on the machine; that it is told does not.
    let sandbox = find("sandbox")["detail"].as_str().unwrap().to_owned();
    let words = [
        "control groups (version",
        "counted ten times a second",
        "cannot be isolated",
    ];
    assert!(words.iter().any(|words| sandbox.contains(words)), "{sandbox}");
    let (out, _) = expect(
        &run(
            dir.path(),
            &["doctor", "--offline", "--reef.host", "0.0.0.0", "--reef.port", "0"],
        ),
        2,
    );
    assert!(
        out.contains("failed   address") && out.contains("fix: set reef.tokens"),
        "{out}"
    );
    std::fs::create_dir(dir.path().join(".reef")).unwrap();
    std::fs::write(
        dir.path().join(".reef/experience.db"),
        "not a database, but long enough to be read as one",
    )
    .unwrap();
    let (out, _) = expect(&run(dir.path(), &["doctor", "--offline", "--reef.port", "0"]), 2);
    assert!(out.contains("failed   store"), "{out}");
}

#[test]
fn completions_and_manual_pages_are_complete() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (out, _) = expect(&run(dir.path(), &["completions", shell]), 0);
        // The script asks the program what fits.
        assert!(out.contains("REEF_COMPLETE"), "{shell}");
    }
    let (out, _) = expect(&run(dir.path(), &["man"]), 0);
    assert!(out.contains(".TH reef 1"), "{out}");
    expect(&run(dir.path(), &["man", "--out", "pages"]), 0);
    assert!(dir.path().join("pages/reef-serve.1").exists());
}

#[test]
fn scenarios_are_managed_on_the_files_and_through_a_service_alike() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(serve(dir.path(), &[]));
    let url = service.url();
    expect(&run(dir.path(), &["scenario", "create", "math", "--url", &url]), 0);
    expect(
        &run(
            dir.path(),
            &["scenario", "set", "math", "--mode", "manual", "--url", &url],
        ),
        0,
    );
    for args in [
        &["scenario", "list", "--json"][..],
        &["scenario", "list", "--json", "--url", &url],
    ] {
        let (out, _) = expect(&run(dir.path(), args), 0);
        let listed = json(&out);
        assert_eq!(listed["scenarios"][0]["scenario"], "math", "{args:?}: {out}");
        assert_eq!(listed["scenarios"][0]["training_mode"], "manual", "{args:?}: {out}");
    }
    let (_, err) = expect(&run(dir.path(), &["scenario", "delete", "math", "--url", &url]), 2);
    assert!(err.contains("--yes"), "{err}");
    expect(
        &run(dir.path(), &["scenario", "delete", "math", "--yes", "--url", &url]),
        0,
    );
    let (_, err) = expect(
        &run(
            dir.path(),
            &["scenario", "set", "math", "--mode", "auto", "--url", &url],
        ),
        2,
    );
    assert!(err.contains("math"), "{err}");
    expect(&run(dir.path(), &["status", "--url", &url]), 0);
}

#[test]
fn the_service_starts_on_a_free_port_refuses_a_busy_one_and_stops_on_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let mut service = Service::start(serve(dir.path(), &[]));
    let (out, _) = expect(&run(dir.path(), &["status", "--json"]), 0);
    assert_eq!(json(&out)["service"]["url"], service.url(), "{out}");
    assert!(
        request(
            &service.address,
            "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )
        .contains("200 OK")
    );
    let port = service.address.rsplit(':').next().unwrap().to_owned();
    let (_, err) = expect(
        &run(
            dir.path(),
            &["serve", "--upstream-url", "http://127.0.0.1:9", "--port", &port],
        ),
        2,
    );
    assert!(err.contains("in use"), "{err}");
    signal(&service.child, "-TERM");
    assert_eq!(exit_of(&mut service.child), Some(0));
    assert!(
        TcpStream::connect(&service.address).is_err(),
        "nobody is left listening"
    );
    let (out, _) = expect(&run(dir.path(), &["status", "--json"]), 0);
    assert_eq!(json(&out)["service"], Value::Null, "{out}");
    let mut service = Service::start(serve(dir.path(), &[]));
    signal(&service.child, "-INT");
    assert_eq!(exit_of(&mut service.child), Some(0));
}

#[test]
fn no_secret_reaches_a_log_even_at_the_most_talkative_level() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = serve(dir.path(), &["-vv", "--upstream-api-key-env", "KEY"]);
    command.env("KEY", "hunter2-key").env("REEF_TOKEN", "hunter2-token");
    let mut service = Service::start(command);
    let mut stderr = service.child.stderr.take().unwrap();
    let log = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).unwrap();
        text
    });
    let body = r#"{"model":"m","messages":[]}"#;
    for (token, status) in [("hunter2-wrong", "401"), ("hunter2-token", "502")] {
        let answer = request(
            &service.address,
            &format!(
                "POST /v1/chat/completions?q=hunter2-query HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nx-reef-scenario: s\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            ),
        );
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(!answer.contains("127.0.0.1:9"), "an internal address leaves: {answer}");
    }
    signal(&service.child, "-TERM");
    assert_eq!(exit_of(&mut service.child), Some(0));
    let log = log.join().unwrap();
    assert!(!log.is_empty());
    let leak = log.lines().find(|line| line.contains("hunter2"));
    assert_eq!(leak, None, "a secret is logged");
}
