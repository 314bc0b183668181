//! Flags beside a file, and keys in the wrong place.

use super::{load_with, refused};

#[test]
fn a_flag_given_twice_is_a_fault_under_whichever_name() {
    let file = "reef:\n  recipe: sample\n";
    for twice in [
        ["--reef.port=1", "--reef.port=2"],
        ["--reef.port=1", "--reef.port=1"],
        ["--reef.run-dir=a", "--reef.run_dir=b"],
        ["--reef.upstream_url=http://a", "--inference.upstream-url=http://b"],
        ["--reef.batch_size=1", "--recipe.config.batch-size=2"],
        ["--training.enabled", "--no-training.enabled"],
    ] {
        let message = refused("a.yaml", file, &twice);
        let flag = twice[1].split('=').next().unwrap();
        assert!(
            message.starts_with(&format!("command line {flag}: ")) && message.contains("is given twice"),
            "{twice:?}: {message}"
        );
    }
    let both = ["--reef.gate.alpha=1", "--reef.gate.floor=2"];
    assert!(load_with("a.yaml", file, &both, &[]).is_ok());
}

#[test]
fn a_value_that_a_flag_overrides_is_held_to_the_schema_too() {
    for (text, flag, expected) in [
        (
            "reef:\n  port: x\n",
            "--reef.port=1",
            "a.yaml:2: reef.port: expected an integer from 0 to 65535",
        ),
        (
            "reef:\n  upstream_url: ftp://a\n",
            "--inference.upstream-url=http://a",
            "a.yaml:2: reef.upstream_url: expected a URL",
        ),
        (
            "inference:\n  timeout-s: -1\n",
            "--inference.timeout-s=3",
            "a.yaml:2: inference.timeout-s: expected a number of seconds of at least 0.001",
        ),
        (
            "inference:\n  upstream-api: soap\n",
            "--inference.upstream-api=openai",
            "a.yaml:2: inference.upstream-api: expected one of",
        ),
    ] {
        let message = refused("a.yaml", text, &[flag]);
        assert!(message.contains(expected), "{message}");
    }
    // What is right, what is not there, and what refers to a variable that only the file needs are none.
    for text in [
        "reef:\n  port: 2\n",
        "reef:\n  port:\n    \n",
        "reef:\n  port: ${PORT}\n",
        "reef:\n  port: ${PORT:?}\n",
    ] {
        let loaded = load_with("a.yaml", text, &["--reef.port=1"], &[]);
        match loaded {
            Ok(settings) => assert_eq!(settings.reef.port, 1, "{text:?}"),
            Err(error) => assert!(text.contains("port:\n"), "{text:?}: {error}"),
        }
    }
}

#[test]
fn an_unknown_key_names_the_nearest_right_place() {
    for (name, text, expected) in [
        (
            "a.toml",
            "[reef]\nrecipe = \"sao\"\n[recipe.trainer.optimizer]\nlearning_rate = 1\n",
            "a.toml:3: recipe.trainer.optimizer: unknown key (did you mean reef.trainer.optimizer?)",
        ),
        (
            "a.toml",
            "[reef]\nrecipe = \"sao\"\n[trainer.optimizer]\nlearning_rate = 1\n",
            "a.toml:3: trainer.optimizer: unknown key (did you mean reef.trainer.optimizer?)",
        ),
        (
            "a.yaml",
            "reef: {recipe: sao}\nrecipe:\n  batch_size: 1\n",
            "a.yaml:3: recipe.batch-size: unknown key (did you mean reef.batch_size?)",
        ),
        (
            "a.yaml",
            "reef: {recipe: sao}\ngate: {alpha: 1}\n",
            "a.yaml:2: gate: unknown section (did you mean reef.gate?)",
        ),
        (
            "a.yaml",
            "recipe: {gate: {alpha: 1}}\n",
            "recipe.gate: unknown key (did you mean reef.gate? It is a setting of a recipe, and reef.recipe names none)",
        ),
        (
            "a.yaml",
            "port: 1\n",
            "a.yaml:1: port: unknown key (did you mean reef.port?)",
        ),
        (
            "a.yaml",
            "server:\n  port: 1\n  host: h\n",
            "a.yaml:2: server.port: unknown key (did you mean reef.port?)",
        ),
        (
            "a.yaml",
            "inference:\n  port: 1\n",
            "a.yaml:2: inference.port: unknown key (did you mean reef.port?)",
        ),
        (
            "a.yaml",
            "storage:\n  remote: x\n",
            "a.yaml:2: storage.remote: unknown key (did you mean release.remote?)",
        ),
        (
            "a.yaml",
            "recipe:\n  trainer:\n    optimiser: {}\n",
            "recipe.trainer.optimiser: unknown key (did you mean reef.trainer.optimizer?",
        ),
        ("a.yaml", "reef.port: 1\n", "a key of a table stands in that table"),
        (
            "a.yaml",
            "quux:\n  xyzzy: 1\n",
            "a.yaml:1: quux: unknown section (see reef config schema for all keys)",
        ),
    ] {
        let message = refused(name, text, &[]);
        assert!(
            message.contains(expected),
            "{text:?}\n  said: {message}\n  not:  {expected}"
        );
    }
}

#[test]
fn a_value_that_can_do_nothing_is_a_fault_at_its_place() {
    for (text, expected) in [
        (
            "observability:\n  log: inof\n",
            "a.yaml:2: observability.log: holds a word that is no level",
        ),
        (
            "observability:\n  log: reef=bogus\n",
            "a.yaml:2: observability.log: is no filter of log lines",
        ),
        (
            "observability:\n  otlp-endpoint: collector:4318\n",
            "a.yaml:2: observability.otlp-endpoint: expected a URL",
        ),
        (
            "reef:\n  console-origins:\n    - https://a.example\n    - https://b.example/\n",
            "a.yaml:4: reef.console-origins[1]: expected the origin of a page",
        ),
        (
            "release:\n  git-settings: [hunter2]\n",
            "a.yaml:2: release.git-settings[0]: expected a setting of git",
        ),
    ] {
        let message = refused("a.yaml", text, &[]);
        assert!(
            message.contains(expected),
            "{text:?}\n  said: {message}\n  not:  {expected}"
        );
        assert!(!message.contains("hunter2"), "{message}");
    }
    let right = "observability: {log: 'warn,reef::serve=debug', otlp-endpoint: 'http://h:4318/v1/traces'}\n\
                 reef: {console-origins: ['http://localhost:3000']}\n\
                 release: {git-settings: ['http.extraHeader=Authorization: Bearer x', 'credential.helper=']}\n";
    assert!(load_with("a.yaml", right, &[], &[]).is_ok());
    // Other programs read the variable too.
    let shared = [("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")];
    assert!(load_with("a.yaml", "", &[], &shared).is_ok());
}
