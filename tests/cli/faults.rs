//! Every fault of a configuration names file, line and key, those found after the file is read too.

use super::*;

/// What `serve` says of a deployment file.
fn refused(dir: &Path, text: &str, flags: &[&str]) -> String {
    std::fs::write(dir.join("serve.yaml"), text).unwrap();
    let output = run(dir, &[&["serve", "-c", "serve.yaml"][..], flags].concat());
    let (_, err) = expect(&output, 2);
    err
}

#[test]
fn what_only_shows_when_the_service_starts_names_its_line_too() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.gguf"), "GGUF").unwrap();
    let upstream = "inference:\n  upstream-url: http://127.0.0.1:9\n";
    let with = |rest: &str| format!("{upstream}{rest}");
    let cases = [
        (
            with("reef:\n  port: 0\n  host: nosuch.invalid\n"),
            "serve.yaml:5: reef.host: cannot listen on nosuch.invalid:0",
        ),
        (
            with("reef:\n  port: 0\n  host: 0.0.0.0\n"),
            "serve.yaml:5: reef.host: refusing to listen on 0.0.0.0 without a token",
        ),
        (
            "inference:\n  upstream-url: http://user:pw@127.0.0.1:9\n".to_owned(),
            "serve.yaml:2: inference.upstream-url: upstream url \"127.0.0.1:9\" cannot be used: it holds a user name or password",
        ),
        (
            "reef:\n  upstream_url: http://user:pw@127.0.0.1:9\n".to_owned(),
            "serve.yaml:2: reef.upstream_url: ",
        ),
        (
            with("  fallbacks:\n    - url: http://127.0.0.1:8\n    - url: http://user:pw@127.0.0.1:9\n"),
            "serve.yaml:5: inference.fallbacks[1].url: ",
        ),
        (
            "inference:\n  model-path: nosuch\n".to_owned(),
            "serve.yaml:2: inference.model-path: no model named nosuch",
        ),
        (
            "inference:\n  model-path: model.gguf\n".to_owned(),
            "serve.yaml:2: inference.model-path: ",
        ),
        (
            with("reef:\n  recipe: sao\n  batch_size: 0\n"),
            "serve.yaml:5: reef.batch_size: must be between 1 and 100000",
        ),
        (
            with("reef:\n  recipe: sao\n  batch_sise: 1\n"),
            "serve.yaml:5: reef.batch_sise: unknown key",
        ),
        (
            with("reef:\n  recipe: sft\n"),
            "serve.yaml:4: reef.recipe: recipe sft trains the weights",
        ),
        (
            with("reef:\n  recipe: sao\n  trainer:\n    optimizer:\n      learning_rate: -1\n"),
            "serve.yaml:7: reef.trainer.optimizer.learning_rate: must be a finite number, 0 or more",
        ),
        (
            with("reef:\n  recipe: sao\n  trainer:\n    optimizer:\n      lr: 1\n"),
            "serve.yaml:7: reef.trainer.optimizer.lr: unknown key",
        ),
        (
            with("harness:\n  adapter: nosuch\n"),
            "serve.yaml:4: harness.adapter: there is no harness adapter",
        ),
        (with("harness:\n  seed: nosuch\n"), "serve.yaml:4: harness.seed: "),
        (
            with("release:\n  push: true\n"),
            "serve.yaml:4: release.push: is on and release.remote is not set",
        ),
        (with("release:\n  base: nosuch\n"), "serve.yaml:4: release.base: "),
    ];
    for (text, expected) in cases {
        let said = refused(dir.path(), &text, &[]);
        assert!(said.contains(expected), "{text}\n  said: {said}\n  not:  {expected}");
        assert!(!said.contains("user:pw"), "{said}");
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = port.local_addr().unwrap().port();
    let said = refused(dir.path(), &with(&format!("reef:\n  port: {taken}\n")), &[]);
    assert!(said.contains("serve.yaml:4: reef.port: "), "{said}");
}

#[test]
fn what_a_flag_says_is_told_by_the_flag() {
    let dir = tempfile::tempdir().unwrap();
    let upstream = ["--upstream-url", "http://127.0.0.1:9"];
    for (flags, expected) in [
        (&["--port", "1", "--reef.port", "2"][..], "reef.port: is given twice"),
        (
            &["--upstream-url", "http://user:pw@127.0.0.1:9"],
            "command line --upstream-url: inference.upstream-url: ",
        ),
        (
            &[
                "--upstream-url",
                "http://127.0.0.1:9",
                "--host",
                "0.0.0.0",
                "--port",
                "0",
            ],
            "command line --host: reef.host: refusing to listen",
        ),
        (
            &[
                "--reef.recipe",
                "sao",
                "--reef.batch_size",
                "0",
                "--upstream-url",
                "http://127.0.0.1:9",
            ],
            "command line --reef.batch_size: recipe.config.batch_size: must be between 1",
        ),
        (
            &["--inference.model-path", "Qwen/Qwen2.5-1.5B-Instruct"],
            "hint: reef model pull hf://Qwen/Qwen2.5-1.5B-Instruct",
        ),
    ] {
        let (_, err) = expect(&run(dir.path(), &[&["serve"][..], flags].concat()), 2);
        assert!(err.contains(expected), "{flags:?}\n  said: {err}\n  not:  {expected}");
        assert!(!err.contains("user:pw"), "{err}");
    }
    // A flag corrects nothing in the file; it only counts before it.
    let said = refused(
        dir.path(),
        "reef:\n  port: x\n",
        &[&upstream[..], &["--port", "0"]].concat(),
    );
    assert!(said.contains("serve.yaml:2: reef.port: expected an integer"), "{said}");
    // The recipe's own flag is the setting.
    let recipe = [
        "serve",
        "--print-config",
        "--recipe",
        "reefine",
        "--upstream-url",
        "http://127.0.0.1:9",
    ];
    let (out, _) = expect(&run(dir.path(), &recipe), 0);
    assert!(
        out.contains("recipe.implementation") && out.contains("command line --recipe"),
        "{out}"
    );
    // A model of a known provider at another address is no contradiction.
    let shown = [
        "serve",
        "--print-config",
        "--model",
        "ollama/llama3.2",
        "--upstream-url",
        "http://127.0.0.1:9",
    ];
    let (out, _) = expect(&run(dir.path(), &shown), 0);
    assert!(out.contains("http://127.0.0.1:9"), "{out}");
}
