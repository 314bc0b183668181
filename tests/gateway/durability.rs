//! A receipt means durable; stopping is bounded; a store that cannot write is told.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::common::http;
use crate::common::reef::Reef;
use crate::common::upstream::{Do, Seen, Upstream, answer, chunked, stream_head};
use crate::common::wait_for;
use crate::turns::{self, STREAMS};

const CHAT: &str = "/v1/chat/completions";

/// Streams to those who ask for it.
fn either(seen: &Seen) -> Vec<Do> {
    if seen.body == br#"{"stream":true}"# {
        chunked(&turns::events(turns::CHAT))
    } else {
        answer(200, "application/json", turns::CHAT_BODY)
    }
}

/// One exchange, every other one a stream; its receipt, if one came before the connection died.
fn exchange(address: std::net::SocketAddr, n: usize) -> Option<String> {
    let headers = [("x-reef-scenario", "s")];
    if n.is_multiple_of(2) {
        return http::try_send(address, "POST", CHAT, &headers, b"{}").ok()?.receipt();
    }
    let mut response = http::try_send(address, "POST", CHAT, &headers, br#"{"stream":true}"#).ok()?;
    let mut text = Vec::new();
    while let Ok(Some(piece)) = response.piece() {
        text.extend_from_slice(&piece);
    }
    let text = String::from_utf8(text).ok()?;
    let (_, rest) = text.split_once("\"agent_record_id\":\"")?;
    Some(rest.split_once('"')?.0.to_owned())
}

#[test]
fn thirty_kills_lose_no_receipt() {
    let upstream = Upstream::start(|seen, _| either(seen));
    let dir = tempfile::tempdir().unwrap();
    let receipts: Arc<Mutex<Vec<String>>> = Arc::default();
    for round in 0..30u64 {
        let mut reef = Reef::start_in(dir.path(), &upstream.url(), &[]);
        let stop = Arc::new(AtomicBool::new(false));
        let enough = receipts.lock().unwrap().len() + 1 + (round as usize * 7) % 23;
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let (stop, receipts, address) = (Arc::clone(&stop), Arc::clone(&receipts), reef.address);
                std::thread::spawn(move || {
                    let mut n = client;
                    while !stop.load(Ordering::Relaxed) {
                        let Some(receipt) = exchange(address, n) else { return };
                        receipts.lock().unwrap().push(receipt);
                        n += 1;
                    }
                })
            })
            .collect();
        // After a varying number of receipts, and then a little, so that the moment falls anywhere in an exchange.
        wait_for("some receipts", || {
            (receipts.lock().unwrap().len() >= enough).then_some(())
        });
        std::thread::sleep(Duration::from_micros(round * 997 % 5000));
        reef.kill();
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
    }
    let reef = Reef::start_in(dir.path(), &upstream.url(), &[]);
    let stored: HashSet<String> = reef
        .rows()
        .iter()
        .map(|row| row["agent_record_id"].as_str().unwrap().to_owned())
        .collect();
    let receipts = receipts.lock().unwrap();
    let lost: Vec<&String> = receipts.iter().filter(|receipt| !stored.contains(*receipt)).collect();
    assert!(lost.is_empty(), "{} of {} receipts lost", lost.len(), receipts.len());
    assert!(receipts.len() >= 30);
    // And they can be reported on, bodies and all.
    let last = receipts.last().unwrap();
    assert_eq!(reef.record(last)["turn"]["text"], turns::TEXT);
    let report = reef.post("/reef/report", json!({"score": 1, "references": [last]}).to_string());
    assert_eq!(report.status, 200);
}

#[test]
fn feedback_sent_at_once_always_finds_its_exchange() {
    let upstream = Upstream::start(|seen, _| either(seen));
    let reef = Reef::start(&upstream.url(), &[]);
    let address = reef.address;
    let clients: Vec<_> = (0..16)
        .map(|client| {
            std::thread::spawn(move || {
                for n in 0..12 {
                    let receipt = exchange(address, client + n).unwrap();
                    let body = json!({"score": n, "references": [receipt]}).to_string();
                    let headers = [("x-reef-scenario", "s")];
                    let mut response = http::send(address, "POST", "/reef/report", &headers, body.as_bytes());
                    let text = response.text();
                    assert_eq!(response.status, 200, "{text}");
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    assert_eq!(reef.rows().len(), 16 * 12 * 2);
    assert_eq!(reef.metric("reef_receipts_total"), 192.0);
}

/// A service whose files may grow to about a megabyte, so that its disk is soon full for it.
fn short_of_space(dir: &std::path::Path, url: &str, args: &[&str]) -> Reef {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    Reef::start_with(dir, &[], |command| {
        let program = command.get_program().to_owned();
        let rest: Vec<_> = command.get_args().map(std::ffi::OsStr::to_owned).collect();
        let mut shell = crate::common::reef::command(dir);
        let mut shell_command = std::process::Command::new("sh");
        shell_command
            .env_clear()
            .envs(shell.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .current_dir(dir)
            .args(["-c", "ulimit -f 2048; trap '' XFSZ; exec \"$0\" \"$@\""])
            .arg(program)
            .args(rest)
            .args(["--upstream-url", url])
            .args(&args)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        shell = shell_command;
        *command = shell;
    })
}

/// Text that does not compress.
fn noise(seed: u64) -> String {
    let mut state = seed | 1;
    (0..150_000)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            char::from(b'a' + (state % 26) as u8)
        })
        .collect()
}

fn fill(reef: &Reef) {
    for n in 0..60 {
        let response = reef.post(CHAT, format!("{{\"noise\":\"{}\"}}", noise(n)));
        if response.receipt().is_none() {
            return;
        }
    }
    panic!("the store never filled");
}

#[test]
fn an_answer_that_cannot_be_stored_still_arrives_and_says_so() {
    let upstream = Upstream::start(|seen, _| either(seen));
    let dir = tempfile::tempdir().unwrap();
    let reef = short_of_space(dir.path(), &upstream.url(), &[]);
    fill(&reef);
    let mut response = reef.post(CHAT, format!("{{\"noise\":\"{}\"}}", noise(1000)));
    assert_eq!((response.status, response.receipt()), (200, None));
    assert_eq!(response.header("x-reef-recorded"), Some("false"));
    assert_eq!(response.text(), turns::CHAT_BODY);
    assert_eq!(reef.get("/healthz").json()["status"], "degraded");
    let status = reef.status();
    assert_eq!(status["status"], "degraded");
    assert!(status["store"]["error"].is_string());
    assert_eq!(reef.metric("reef_store_healthy"), 0.0);
    let rows = reef.rows();
    assert!(!rows.is_empty());
    drop(reef);
    // What had a receipt is there for the next process, which has room.
    let reef = Reef::start_in(dir.path(), &upstream.url(), &[]);
    assert_eq!(reef.rows(), rows);
    assert!(reef.post(CHAT, "{}").receipt().is_some());
}

#[test]
fn a_service_told_to_refuse_gives_503_when_it_cannot_store() {
    let upstream = Upstream::start(|seen, _| either(seen));
    let dir = tempfile::tempdir().unwrap();
    let reef = short_of_space(dir.path(), &upstream.url(), &["--storage.on-failure", "refuse"]);
    fill(&reef);
    let mut response = reef.post(CHAT, format!("{{\"noise\":\"{}\"}}", noise(1000)));
    assert_eq!((response.status, response.receipt()), (503, None));
    let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(!message.contains(dir.path().to_str().unwrap()), "{message}");
}

#[cfg(feature = "failpoints")]
#[test]
fn a_stream_that_cannot_be_stored_ends_with_a_comment_or_an_error() {
    for (refuse, path, text, terminal) in STREAMS
        .into_iter()
        .flat_map(|(path, text, terminal)| [(false, path, text, terminal), (true, path, text, terminal)])
    {
        let upstream = Upstream::always(chunked(&turns::events(text)));
        let dir = tempfile::tempdir().unwrap();
        let url = upstream.url();
        let policy = if refuse { "refuse" } else { "serve" };
        let reef = Reef::start_with(
            dir.path(),
            &["--upstream-url", &url, "--storage.on-failure", policy],
            |command| {
                command.env("FAILPOINTS", "serve::before_append=return(error)");
            },
        );
        let got = reef
            .post_with(path, &[("x-reef-stream-receipt", "chunk")], r#"{"stream":true}"#)
            .text();
        assert!(!got.contains("agent_record_id"));
        let start = text.rfind(terminal).unwrap();
        if refuse {
            assert!(
                got.starts_with(&text[..start]) && got.contains("error") && !got.contains(terminal),
                "{got}"
            );
        } else {
            assert_eq!(
                got,
                format!("{}: x-reef-recorded: false\n\n{}", &text[..start], &text[start..])
            );
        }
        assert!(reef.rows().is_empty());
    }
}

/// The answer was whole: the exchange happened, and its record does not depend on who still waits for it.
#[test]
fn an_answer_whose_client_leaves_while_it_is_stored_is_recorded() {
    let upstream = Upstream::always(answer(200, "application/json", turns::CHAT_BODY));
    let dir = tempfile::tempdir().unwrap();
    let reef = Reef::start_with(dir.path(), &["--upstream-url", &upstream.url()], |command| {
        command.env("FAILPOINTS", "serve::before_append=sleep(1500)");
    });
    let stream = std::net::TcpStream::connect(reef.address).unwrap();
    std::io::Write::write_all(
        &mut &stream,
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-reef-scenario: s\r\ncontent-length: 2\r\n\r\n{}",
    )
    .unwrap();
    wait_for("the request to reach the upstream", || {
        (upstream.seen().len() == 1).then_some(())
    });
    std::thread::sleep(Duration::from_millis(500));
    drop(stream);
    wait_for("the record", || (reef.rows().len() == 1).then_some(()));
    reef.wait_until_idle();
    assert_eq!(reef.status()["service"]["interrupted"]["client_gone"], 0);
}

#[test]
fn stopping_lets_requests_finish_and_takes_no_new_ones() {
    let upstream = Upstream::always(vec![
        Do::Gate,
        answer(200, "application/json", turns::SMALL_CHAT).remove(0),
    ]);
    let dir = tempfile::tempdir().unwrap();
    let mut reef = Reef::start_in(dir.path(), &upstream.url(), &["--reef.drain-timeout", "60"]);
    let address = reef.address;
    let waiting = std::thread::spawn(move || {
        let mut response = http::send(address, "POST", CHAT, &[("x-reef-scenario", "s")], b"{}");
        (response.receipt(), response.text())
    });
    wait_for("the request to reach the upstream", || {
        (upstream.seen().len() == 1).then_some(())
    });
    reef.signal(Signal::TERM);
    wait_for("new connections to be refused", || {
        std::net::TcpStream::connect(address).is_err().then_some(())
    });
    upstream.open_gate();
    let (receipt, body) = waiting.join().unwrap();
    assert_eq!(body, turns::SMALL_CHAT);
    assert_eq!(reef.wait().code(), Some(0));
    let reef = Reef::start_in(dir.path(), &upstream.url(), &[]);
    assert_eq!(reef.rows()[0]["agent_record_id"], receipt.unwrap());
}

#[test]
fn a_stream_that_never_ends_is_cut_after_the_grace_and_counted() {
    for (path, text, _) in STREAMS {
        let first = turns::events(text)[..3].concat();
        let upstream = Upstream::always(vec![
            stream_head(),
            Do::Send(first.clone().into_bytes()),
            Do::WaitForClose,
        ]);
        let dir = tempfile::tempdir().unwrap();
        let mut reef = Reef::start_in(dir.path(), &upstream.url(), &["--reef.drain-timeout", "0.5"]);
        let mut response = reef.post(path, r#"{"stream":true}"#);
        response.until(first.trim_end());
        reef.signal(Signal::INT);
        let end = String::from_utf8_lossy(&response.bytes()).into_owned();
        assert!(end.contains("error") && end.contains("stopped"), "{end}");
        reef.wait();
        let reef = Reef::start_in(dir.path(), &upstream.url(), &[]);
        assert_eq!(reef.status()["scenarios"]["s"]["interrupted"]["shutdown"], 1);
        assert!(reef.rows().is_empty());
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let upstream = Upstream::always(vec![stream_head(), Do::Send(b": open\n\n".to_vec()), Do::WaitForClose]);
    let mut reef = Reef::start(&upstream.url(), &["--reef.drain-timeout", "600"]);
    let mut response = reef.post("/v1/messages", r#"{"stream":true}"#);
    response.until(": open");
    let address = reef.address;
    reef.signal(Signal::TERM);
    wait_for("new connections to be refused", || {
        std::net::TcpStream::connect(address).is_err().then_some(())
    });
    let start = Instant::now();
    reef.signal(Signal::TERM);
    assert_eq!(reef.wait().code(), Some(130));
    assert!(start.elapsed() < Duration::from_secs(30));
}
