//! What `reef doctor` says of providers, and of a service beside it.

use super::common::upstream::{Do, Upstream};
use super::*;

fn replies(status: &str, body: &str) -> Vec<Do> {
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    vec![Do::Send(text.into_bytes())]
}

fn doctor(dir: &Path, url: &str, code: i32) -> String {
    let upstream = format!("--inference.upstream-url={url}");
    let args = [
        "doctor",
        "--reef.port=0",
        &upstream,
        "--inference.upstream-api-key=hunter2",
        "--inference.upstream-model=m",
    ];
    let (out, _) = expect(&run(dir, &args), code);
    assert!(!out.contains("hunter2"), "{out}");
    out
}

#[test]
fn doctor_tells_what_a_provider_says_of_the_credential_and_the_model() {
    let dir = tempfile::tempdir().unwrap();
    for (status, body, code, expected) in [
        (
            "401 Unauthorized",
            "{}",
            2,
            "failed   upstream       command line --inference.upstream-api-key: inference.upstream-api-key: the provider refuses the credential: it answers 401",
        ),
        ("429 Too Many Requests", "{}", 0, "warning  upstream"),
        (
            "200 OK",
            r#"{"data": [{"id": "other"}]}"#,
            0,
            "the provider does not list the model m",
        ),
        ("200 OK", r#"{"data": [{"id": "m"}]}"#, 0, "ok       upstream"),
        ("404 Not Found", "nothing", 0, "ok       upstream"),
    ] {
        let provider = Upstream::always(replies(status, body));
        let out = doctor(dir.path(), &provider.url(), code);
        assert!(out.contains(expected), "{status}: {out}");
    }
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let out = doctor(dir.path(), &format!("http://{gone}"), 2);
    assert!(
        out.contains("inference.upstream-url: ") && out.contains("no connection to "),
        "{out}"
    );
}

#[test]
fn a_refused_credential_is_a_warning_in_the_log_and_doctor_knows_of_it_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    // A provider without a list of models: only requests show what it thinks of the credential.
    let provider = Upstream::start(|seen, _| match seen.method.as_str() {
        "GET" => replies("404 Not Found", "nothing"),
        _ => replies("401 Unauthorized", "{}"),
    });
    let mut command = reef(dir.path());
    command.args(["serve", "--json", "--port", "0", "--upstream-url", &provider.url()]);
    let service = Service::start(command);
    let body = r#"{"messages":[{"role":"user","content":"q"}]}"#;
    let asked = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-reef-scenario: s\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    assert!(request(&service.address, &asked).starts_with("HTTP/1.1 401"));
    wait_for("the refusal is in the log", || {
        let (out, _) = expect(&run(dir.path(), &["logs", "--level", "warn", "--lines", "100"]), 0);
        (out.contains("exchange interrupted") && out.contains("upstream_denied")).then_some(())
    });
    let out = wait_for("the refusal is in the store", || {
        let out = run(dir.path(), &["doctor", "--offline"]);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        text.contains("failed   answers").then_some(text)
    });
    assert!(
        out.contains("the provider refused the credential for the last 1 requests"),
        "{out}"
    );
    // The service beside it was started by flags: that is no fault of these files.
    assert!(
        out.contains("ok       engine") && out.contains("was started with its own flags"),
        "{out}"
    );
    assert!(!out.contains("--upstream-url"), "{out}");
}

#[test]
fn the_generated_client_asks_where_its_deployment_listens_and_says_what_is_wrong() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: python3 is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for template in ["upstream", "embedded"] {
        expect(&run(dir.path(), &["init", template, "--into", template]), 0);
        let into = dir.path().join(template);
        let listen_at = |port: u16| {
            let file = into.join("serve.toml");
            let text = std::fs::read_to_string(&file).unwrap();
            let lines = text.lines().map(|line| match line.starts_with("port = ") {
                true => format!("port = {port}\n"),
                false => format!("{line}\n"),
            });
            std::fs::write(&file, lines.collect::<String>()).unwrap();
        };
        let client = |token: Option<&str>| {
            let mut command = Command::new("python3");
            command
                .arg(into.join("client.py"))
                .current_dir(dir.path())
                .env_remove("REEF_URL");
            if let Some(token) = token {
                command.env("REEF_TOKEN", token);
            }
            output(&mut command)
        };
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        listen_at(free);
        let (out, err) = expect(&client(None), 1);
        assert!(
            out.is_empty() && err.contains(&format!("no service answers at http://127.0.0.1:{free}")),
            "{err}"
        );
        assert!(!err.contains("Traceback"), "{err}");
        let service = Upstream::start(|seen, _| match (seen.target.as_str(), seen.header("authorization")) {
            (_, None) => replies("401 Unauthorized", r#"{"error": {"code": "invalid_token"}}"#),
            ("/reef/report", _) => replies("200 OK", r#"{"agent_record_id": "report-1"}"#),
            _ => {
                let body = r#"{"choices": [{"message": {"content": "42"}}]}"#;
                let head = "HTTP/1.1 200 OK\r\nx-reef-agent-record-id: receipt-1\r\ncontent-length";
                vec![Do::Send(format!("{head}: {}\r\n\r\n{body}", body.len()).into_bytes())]
            }
        });
        listen_at(service.address.port());
        let (_, err) = expect(&client(None), 1);
        assert!(
            err.contains("answered 401") && err.contains("invalid_token") && !err.contains("Traceback"),
            "{err}"
        );
        let (out, _) = expect(&client(Some("t")), 0);
        assert!(out.contains("receipt-1") && out.contains("report-1"), "{out}");
    }
}
