//! The way out: proxies, TLS, and why there is no connection, in words.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::common::network::{Proxy, certificate, tcp_server, tls_server};
use crate::common::reef::{Reef, command};
use crate::common::upstream::{Do, Upstream, answer};
use crate::turns;

fn provider() -> Upstream {
    Upstream::always(answer(200, "application/json", turns::CHAT_BODY))
}

/// The same answer for a server that closes after it.
fn tls_answer() -> Vec<u8> {
    let body = turns::CHAT_BODY;
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
        .into_bytes()
}

/// Serves with this provider and these variables.
fn serve(dir: &Path, url: &str, env: &[(&str, &str)], args: &[&str]) -> Reef {
    let all = [&["--upstream-url", url, "--inference.retry-attempts", "1"], args].concat();
    Reef::start_with(dir, &all, |command: &mut Command| {
        command.envs(env.iter().copied());
    })
}

fn chat(reef: &Reef) -> (u16, String) {
    let mut response = reef.post("/v1/chat/completions", "{\"messages\":[]}");
    (response.status, response.text())
}

fn message(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap();
    body["error"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn a_plain_provider_is_reached_through_a_proxy_with_its_credential() {
    let upstream = provider();
    let proxy = Proxy::http(upstream.address, None);
    let url = format!("http://us:p%40ss@{}", proxy.address);
    for name in [
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
        "REEF_NETWORK_PROXY",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let reef = serve(dir.path(), "http://provider.invalid", &[(name, &url)], &[]);
        let (status, body) = chat(&reef);
        assert_eq!(status, 200, "{name}: {body}");
        let head = proxy.asked().pop().unwrap();
        assert!(
            head.starts_with("POST http://provider.invalid/v1/chat/completions HTTP/1.1\r\n"),
            "{name}: {head}"
        );
        let lower = head.to_ascii_lowercase();
        assert!(lower.contains("proxy-authorization: basic dxm6cebzcw==\r\n"), "{head}");
        assert!(lower.contains("host: provider.invalid\r\n"), "{head}");
        assert!(
            !reef.log().contains("p%40ss") && !reef.log().contains("dXM6cEBzcw"),
            "{}",
            reef.log()
        );
    }
}

#[test]
fn a_provider_with_tls_is_reached_through_a_tunnel_and_nothing_else_learns_the_key() {
    let server = tls_server("good.pem", &tls_answer());
    let proxy = Proxy::http(server, None);
    let url = format!("http://us:pw@{}", proxy.address);
    let authority = certificate("authority.pem").display().to_string();
    let dir = tempfile::tempdir().unwrap();
    let env = [
        ("HTTPS_PROXY", url.as_str()),
        ("SSL_CERT_FILE", &authority),
        ("REEF_UPSTREAM_API_KEY", "sk-secret"),
    ];
    let reef = serve(dir.path(), "https://provider.invalid", &env, &[]);
    let (status, body) = chat(&reef);
    assert_eq!(status, 200, "{body}");
    let asked = proxy.asked();
    assert!(
        asked[0].starts_with("CONNECT provider.invalid:443 HTTP/1.1\r\n"),
        "{asked:?}"
    );
    assert!(asked[0].contains("Proxy-Authorization: Basic dXM6cHc="), "{asked:?}");
    assert!(!asked.concat().contains("sk-secret"));
}

#[test]
fn socks_leads_there_too() {
    let upstream = provider();
    let proxy = Proxy::socks(upstream.address, ("us", "pw"));
    let dir = tempfile::tempdir().unwrap();
    let url = format!("socks5h://us:pw@{}", proxy.address);
    let reef = serve(dir.path(), "http://provider.invalid", &[("ALL_PROXY", &url)], &[]);
    assert_eq!(chat(&reef).0, 200);
    assert_eq!(proxy.asked(), ["provider.invalid:80"]);
    assert_eq!(upstream.only().target, "/v1/chat/completions");
}

#[test]
fn loopback_and_what_is_listed_are_reached_directly() {
    let upstream = provider();
    let proxy = Proxy::http(upstream.address, None);
    let url = proxy_url(&proxy);
    let dir = tempfile::tempdir().unwrap();
    let env = [("HTTP_PROXY", url.as_str()), ("NO_PROXY", "")];
    let reef = serve(dir.path(), &upstream.url(), &env, &[]);
    assert_eq!(chat(&reef).0, 200);
    drop(reef);
    for env in [
        [("HTTP_PROXY", url.as_str()), ("NO_PROXY", "other,.invalid")],
        [
            ("HTTP_PROXY", url.as_str()),
            ("REEF_NETWORK_NO_PROXY", "provider.invalid:80"),
        ],
        [("HTTP_PROXY", url.as_str()), ("REEF_NETWORK_PROXY", "none")],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let reef = serve(dir.path(), "http://provider.invalid", &env, &[]);
        let (status, body) = chat(&reef);
        assert_eq!(status, 502, "{body}");
        assert!(message(&body).contains("host name"), "{body}");
    }
    assert_eq!(proxy.asked(), [""; 0]);
}

fn proxy_url(proxy: &Proxy) -> String {
    format!("http://{}", proxy.address)
}

/// A port where nothing listens.
fn closed() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn a_proxy_that_does_not_serve_is_told_as_such() {
    let upstream = provider();
    let refusing = |answer| proxy_url(&Proxy::http(upstream.address, Some(answer)));
    let login = "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n";
    let asks = Upstream::always(answer(407, "text/html", "who are you?"));
    for (target, proxy, words) in [
        (
            "https://provider.invalid",
            refusing(login),
            "the proxy asks for a user name",
        ),
        (
            "https://provider.invalid",
            refusing("HTTP/1.1 403 No\r\n\r\n"),
            "the proxy refused to connect (403)",
        ),
        (
            "https://provider.invalid",
            refusing("SSH-2.0-OpenSSH\r\n\r\n"),
            "does not answer as a proxy",
        ),
        (
            "https://provider.invalid",
            format!("http://{}", closed()),
            "no connection to the proxy: connection refused",
        ),
        (
            "http://provider.invalid",
            format!("http://{}", closed()),
            "no connection to the proxy: connection refused",
        ),
        ("http://provider.invalid", asks.url(), "the proxy asks for a user name"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let authority = certificate("authority.pem").display().to_string();
        let env = [("ALL_PROXY", proxy.as_str()), ("SSL_CERT_FILE", &authority)];
        let reef = serve(dir.path(), target, &env, &[]);
        let (status, body) = chat(&reef);
        assert_eq!(status, 502, "{words}: {body}");
        assert!(message(&body).contains(words), "{words}: {body}");
    }
}

#[test]
fn a_proxy_that_cannot_be_used_is_refused_at_start_by_its_name() {
    for (name, url) in [
        ("HTTPS_PROXY", "socks4://u:hunter2@h"),
        ("all_proxy", "http://"),
        ("REEF_NETWORK_PROXY", "ftp://u:hunter2@h"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let output = command(dir.path())
            .args(["serve", "--upstream-url", "http://127.0.0.1:1", "--reef.port", "0"])
            .env(name, url)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains(name) && said.contains("proxy") && !said.contains("hunter2"),
            "{said}"
        );
    }
}

/// A provider that says this and closes.
fn saying(bytes: impl Into<Vec<u8>>) -> Upstream {
    Upstream::always(vec![Do::Send(bytes.into()), Do::Close])
}

#[test]
fn each_way_to_have_no_answer_has_words_of_its_own() {
    let authority = certificate("authority.pem").display().to_string();
    let tls = |name| format!("https://localhost:{}", tls_server(name, b"").port());
    let silent = Upstream::always(vec![Do::Pause(Duration::from_secs(5))]);
    let plain = tcp_server(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let mute = saying("");
    let lines = saying(format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(40)));
    let large = saying(format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "b".repeat(20_000)));
    let odd = saying("220 mail.example ESMTP\r\n");
    let small = ["--inference.max-head-lines", "32", "--inference.max-head-size", "8KiB"];
    let impatient = ["--inference.timeout-s", "0.2"];
    let cases: Vec<(String, &[&str], &str)> = vec![
        ("http://api.provider.invalid".to_owned(), &[], "host name"),
        (format!("http://{}", closed()), &[], "connection refused"),
        (
            tls("good.pem"),
            &["unknown"],
            "certificate not trusted: signed by an unknown authority",
        ),
        (tls("expired.pem"), &[], "certificate expired"),
        (tls("other.pem"), &[], "certificate is for another host name"),
        (format!("https://{plain}"), &[], "the other side does not speak TLS"),
        (mute.url(), &[], "closed before an answer began"),
        (silent.url(), &impatient, "no response within 0.2 s"),
        (
            lines.url(),
            &small,
            "more than 32 lines or 8192 bytes (inference.max-head-lines",
        ),
        (
            large.url(),
            &small,
            "more than 32 lines or 8192 bytes (inference.max-head-lines",
        ),
        (odd.url(), &[], "does not begin as an HTTP answer does"),
    ];
    for (url, args, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        let known = args != ["unknown"];
        let env: &[(&str, &str)] = if known { &[("SSL_CERT_FILE", &authority)] } else { &[] };
        let reef = serve(dir.path(), &url, env, if known { args } else { &[] });
        for route in ["/v1/chat/completions", "/v1/messages"] {
            let mut response = reef.post(route, "{\"messages\":[]}");
            let body = response.text();
            assert_eq!(response.status, 502, "{words}: {body}");
            assert!(message(&body).contains(words), "{words}: {body}");
            assert!(!body.contains("127.0.0.1") && !body.contains("os error"), "{body}");
        }
        assert!(reef.log().contains(words), "{words}: {}", reef.log());
    }
    // As many as people's gateways send.
    let generous = saying(format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{}\r\n{}",
        turns::CHAT_BODY.len(),
        "a: b\r\n".repeat(400),
        turns::CHAT_BODY
    ));
    let dir = tempfile::tempdir().unwrap();
    let reef = serve(dir.path(), &generous.url(), &[], &[]);
    assert_eq!(chat(&reef).0, 200);
}

#[test]
fn doctor_and_the_commands_say_the_same_words() {
    let dir = tempfile::tempdir().unwrap();
    let authority = certificate("authority.pem").display().to_string();
    let expired = format!("https://localhost:{}", tls_server("expired.pem", b"").port());
    let doctor = |url: &str, env: &[(&str, &str)]| {
        let output = command(dir.path())
            .args(["doctor", "--inference.upstream-url", url, "--reef.port", "0"])
            .env("SSL_CERT_FILE", &authority)
            .envs(env.iter().copied())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = doctor(&expired, &[]);
    assert!(
        said.contains("no connection to localhost:") && said.contains("certificate expired"),
        "{said}"
    );
    let said = doctor(&format!("http://{}", closed()), &[]);
    assert!(said.contains("connection refused"), "{said}");
    let proxy = format!("http://u:hunter2@{}", closed());
    let said = doctor("http://provider.invalid", &[("HTTP_PROXY", &proxy)]);
    assert!(
        said.contains("through the proxy http://127.0.0.1:") && said.contains("(HTTP_PROXY)"),
        "{said}"
    );
    assert!(
        said.contains("no connection to the proxy: connection refused"),
        "{said}"
    );
    assert!(!said.contains("hunter2"), "{said}");

    for (url, words) in [
        (expired.as_str(), "certificate expired"),
        (&format!("http://{}", closed()), "connection refused"),
        ("http://api.reef.invalid", "host name"),
    ] {
        let output = command(dir.path())
            .args(["status", "--url", url])
            .env("SSL_CERT_FILE", &authority)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(30), "{said}");
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn a_model_is_downloaded_through_the_proxy() {
    let hub = Upstream::always(answer(404, "application/json", "{}"));
    let proxy = Proxy::http(hub.address, None);
    let dir = tempfile::tempdir().unwrap();
    let output = command(dir.path())
        .args(["model", "pull", "http://hub.invalid/a.gguf"])
        .env("HTTP_PROXY", proxy_url(&proxy))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("404"), "{said}");
    assert!(
        proxy.asked()[0].starts_with("GET http://hub.invalid/a.gguf HTTP/1.1"),
        "{:?}",
        proxy.asked()
    );
}

#[test]
fn a_remote_is_reached_through_the_proxy_of_the_settings_and_not_another() {
    let remote = Upstream::always(answer(404, "text/plain", ""));
    let proxy = Proxy::http(remote.address, None);
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str], env: &[(&str, &str)]| {
        let output = command(dir.path())
            .args(args)
            .envs(env.iter().copied())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    run(&["scenario", "create", "s"], &[]);
    let url = proxy_url(&proxy);
    let elsewhere = format!("http://{}", closed());
    let said = run(
        &["release", "pull", "http://git.invalid/r.git", "--network.proxy", &url],
        &[("http_proxy", &elsewhere), ("ALL_PROXY", &elsewhere)],
    );
    let asked = proxy.asked();
    assert!(
        asked[0].starts_with("GET http://git.invalid/r.git/info/refs"),
        "{asked:?}; {said}"
    );
    // Loopback is the machine itself, for git too.
    let before = asked.len();
    run(
        &[
            "release",
            "pull",
            &format!("{}/r.git", remote.url()),
            "--network.proxy",
            &url,
        ],
        &[],
    );
    assert_eq!(proxy.asked().len(), before);
}
