//! What `reef doctor` and a running service know of settings and of work done beside them, and what they do not show.

use super::*;

#[test]
fn credentials_in_a_text_or_in_the_query_of_a_url_are_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let given = [
        "--release.git-settings=[\"http.extraHeader=Authorization: Bearer hunter2\"]",
        "--release.remote=https://u:hunter2@h/x.git?token=hunter2",
        "--observability.otlp-endpoint=http://h/v1/traces?key=hunter2",
    ];
    for command in [
        &["config", "show"][..],
        &["config", "show", "--json"],
        &["serve", "--print-config"],
    ] {
        let (out, err) = expect(&run(dir.path(), &[command, &given].concat()), 0);
        assert!(out.contains("git-settings") && out.contains("********"), "{out}");
        assert!(!out.contains("hunter2") && !err.contains("hunter2"), "{out}{err}");
    }
    let upstream = [
        "serve",
        "--port",
        "0",
        "--upstream-url",
        "http://127.0.0.1:9/?key=hunter2",
    ];
    let (out, err) = expect(&run(dir.path(), &upstream), 2);
    assert!(err.contains("cannot be used: it must have no query string"), "{err}");
    assert!(!out.contains("hunter2") && !err.contains("hunter2"), "{out}{err}");
}

#[test]
fn doctor_passes_nothing_that_serve_refuses() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    let upstream = "--inference.upstream-url=http://127.0.0.1:9";
    let cases: [(&[&str], &str); 9] = [
        (&[upstream, "--reef.recipe=nosuch"], "recipe"),
        (&[upstream, "--reef.recipe=sft"], "recipe"),
        (&[upstream, "--harness.seed=/nonexistent"], "harness"),
        (&[upstream, "--harness.adapter=nosuch"], "harness"),
        (&[upstream, "--release.push=true"], "releases"),
        (&[upstream, "--release.base=/nonexistent"], "releases"),
        (&["--inference.upstream-url=http://user:pw@127.0.0.1:9"], "engine"),
        (&["--inference.model-path=/nonexistent"], "engine"),
        (&[upstream, "--storage.dir=file"], "directory"),
    ];
    for (settings, check) in cases {
        let with = |command: &[&str]| run(dir.path(), &[command, &["--reef.port=0"], settings].concat());
        let refused = with(&["serve"]);
        assert!(
            matches!(refused.status.code(), Some(2 | 40)),
            "{settings:?}: {refused:?}"
        );
        let (out, _) = expect(&with(&["doctor", "--offline"]), 2);
        let line = format!("failed   {check} ");
        let mut rest = out.lines().skip_while(|shown| !shown.starts_with(&line)).skip(1);
        assert!(
            rest.next().is_some_and(|fix| fix.trim_start().starts_with("fix: ")),
            "{settings:?}: {out}"
        );
        assert!(!out.contains("user:pw"), "{out}");
    }
    let pushed = [
        upstream,
        "--release.push=true",
        "--release.remote=/nonexistent/x.git",
        "--reef.port=0",
    ];
    let (out, _) = expect(
        &run(dir.path(), &[&["doctor", "--offline"][..], &pushed[..]].concat()),
        0,
    );
    assert!(out.contains("warning  remote"), "{out}");
}

#[test]
fn a_service_sees_a_scenario_that_was_made_by_an_import() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(serve(dir.path(), &[]));
    let line = r#"{"messages":[{"role":"user","content":"q"}],"completion":"a","score":1}"#;
    std::fs::write(dir.path().join("records.jsonl"), format!("{line}\n")).unwrap();
    expect(
        &run(
            dir.path(),
            &["records", "import", "records.jsonl", "--scenario", "big2"],
        ),
        0,
    );
    let answer = wait_for("the imported scenario is served", || {
        let answer = request(
            &service.address,
            "GET /reef/status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        );
        answer.contains("\"big2\"").then_some(answer)
    });
    assert!(answer.contains("\"reports\":1"), "{answer}");
}
