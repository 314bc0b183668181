//! The loader as a whole.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;

use super::load::read_text;
use super::nearest::declared;
use super::*;

mod places;
mod variables;

/// Loads a file of this name and text beside overrides (`--reef.port=1`) and variables.
fn load_with(name: &str, text: &str, flags: &[&str], env: &[(&str, &str)]) -> Result<Settings, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(name), text).unwrap();
    let overrides = flags.iter().map(|flag| {
        let (name, value) = flag
            .split_once('=')
            .map_or((*flag, None), |(name, value)| (name, Some(value)));
        let key = name.trim_start_matches("--");
        Override {
            flag: name.to_owned(),
            key: key.trim_start_matches("no-").to_owned(),
            value: value.map(str::to_owned),
            negated: key.starts_with("no-"),
        }
    });
    load(&Sources {
        file: Some(PathBuf::from(name)),
        overrides: overrides.collect(),
        env: env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        directory: dir.path().to_owned(),
    })
}

fn yaml(text: &str) -> Settings {
    load_with("serve.yaml", text, &[], &[]).unwrap_or_else(|error| panic!("{error}"))
}

fn toml(text: &str) -> Settings {
    load_with("serve.toml", text, &[], &[]).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(name: &str, text: &str, flags: &[&str]) -> String {
    load_with(name, text, flags, &[]).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn every_default_is_a_value_of_its_setting() {
    let settings = load(&Sources::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(settings.rows().len(), declared().count());
    for (key, field) in declared() {
        assert_eq!(
            field.default.is_some(),
            field.default_json().is_some(),
            "{key}: the default is no JSON"
        );
        assert!(
            field.optional || field.default.is_some(),
            "{key} has neither a default nor an Option"
        );
        assert!(
            field.doc_text().ends_with(['.', ']']),
            "{key}: the comment is no sentence"
        );
    }
}

#[test]
fn both_formats_say_the_same() {
    let toml = toml(
        "[reef]\nport = 9000\ntokens = [\"a\", \"b\"]\n[inference]\nupstream_url = \"http://h:1\"\ntimeout-s = 2\n[storage]\nretention-max-bytes = \"1GiB\"\n",
    );
    let yaml = yaml(
        "reef:\n  port: 9000\n  tokens: [a, b]\ninference:\n  upstream-url: http://h:1\n  timeout_s: 2\nstorage:\n  retention_max_bytes: 1GiB\n",
    );
    for settings in [&toml, &yaml] {
        assert_eq!(settings.reef.port, 9000);
        assert_eq!(settings.tokens().len(), 2);
        assert_eq!(settings.inference.timeout_s.as_secs(), 2);
        assert_eq!(settings.storage.retention_max_bytes, Size(1 << 30));
        assert_eq!(settings.inference.engine(), EngineKind::Upstream);
    }
    let values = |settings: &Settings| settings.rows().iter().map(|row| row.value.clone()).collect::<Vec<_>>();
    // Paths differ by the directory of each load only.
    assert_eq!(values(&toml).len(), values(&yaml).len());
}

#[test]
fn a_flag_keeps_what_stands_beside_its_setting() {
    let flags = [
        "--recipe.config.batch_size=2",
        "--no-training.enabled",
        "--reef.tokens=[a, 'b']",
    ];
    let settings = load_with("a.yaml", "recipe:\n  config:\n    other: x\n", &flags, &[]).unwrap();
    assert_eq!(
        settings.recipe.config.to_json(),
        serde_json::json!({"other": "x", "batch_size": 2})
    );
    assert!(!settings.training.enabled);
    assert_eq!(settings.reef.tokens.len(), 2);
}

#[test]
fn flags_win_whichever_spelling_the_file_and_they_use() {
    let file = "reef:\n  recipe: sample\n  batch_size: 1\n  gate: {alpha: 1, floor: 2}\n  upstream_url: http://file\n";
    for flags in [
        [
            "--recipe.config.batch-size=2",
            "--recipe.config.gate.alpha=3",
            "--inference.upstream-url=http://flag",
        ],
        [
            "--reef.batch-size=2",
            "--reef.gate.alpha=3",
            "--reef.upstream_url=http://flag",
        ],
    ] {
        let settings = load_with("a.yaml", file, &flags, &[]).unwrap_or_else(|error| panic!("{error}"));
        let config = settings.recipe.config.to_json();
        assert_eq!(config["batch_size"], 2, "{config}");
        assert_eq!(config["gate"], serde_json::json!({"alpha": 3, "floor": 2}), "{config}");
        assert_eq!(settings.inference.upstream_url.as_deref(), Some("http://flag"));
    }
    let settings = load_with("a.yaml", file, &["--reef.recipe=other"], &[]).unwrap();
    assert_eq!(settings.recipe.implementation.as_deref(), Some("other"));
}

#[test]
fn the_announced_form_is_accepted_as_written() {
    let settings = yaml(
        "# recipes/sao/examples/sao/serve.yaml\nreef:\n  recipe: recipes.sao.recipe:SAORecipe\n  batch_size: 1\n  max_staleness: 18\n",
    );
    assert_eq!(
        settings.recipe.implementation.as_deref(),
        Some("recipes.sao.recipe:SAORecipe")
    );
    assert_eq!(
        settings.recipe.config.to_json(),
        serde_json::json!({"batch_size": 1, "max_staleness": 18})
    );
    let settings = yaml(
        "schema-version: 2\nrecipe:\n  implementation: recipes.sao.recipe:SAORecipe\n  config: {batch-size: 1}\nreef: {port: 8901}\n",
    );
    assert_eq!(settings.recipe.config.get("batch_size"), Some(1.into()));
    assert_eq!(settings.reef.port, 8901);
    let settings = yaml("reef:\n  recipe: recipe\n  upstream_url: http://h\n  upstream_model: m\n");
    assert_eq!(settings.inference.upstream_url.as_deref(), Some("http://h"));
}

#[test]
fn an_empty_file_means_defaults() {
    for text in ["", "# nothing\n", "\u{feff}", "\u{feff}# nothing\n", "\n\n"] {
        assert_eq!(toml(text).reef.port, 8900, "{text:?}");
        assert_eq!(yaml(text).reef.port, 8900, "{text:?}");
    }
    assert_eq!(yaml("---\n").reef.port, 8900);
    assert_eq!(yaml("reef:\n").reef.port, 8900);
    assert_eq!(yaml("\u{feff}reef:\n  port: 1\n").reef.port, 1);
}

#[test]
fn faults_name_file_line_key_and_what_was_expected() {
    let cases = [
        (
            "a.toml",
            "[reef]\nport = \"x\"\n",
            "a.toml:2: reef.port: expected an integer from 0 to 65535",
        ),
        (
            "a.toml",
            "[reef]\n\nport = 70000\n",
            "a.toml:3: reef.port: expected an integer from 0 to 65535",
        ),
        (
            "a.yaml",
            "reef:\n  prot: 1\n",
            "a.yaml:2: reef.prot: unknown key (did you mean reef.port?)",
        ),
        (
            "a.yaml",
            "inferense:\n  x: 1\n",
            "inferense: unknown section (did you mean inference?)",
        ),
        (
            "a.yaml",
            "reef:\n  port: 1\n  port: 2\n",
            "a.yaml:3: reef.port: the key is given twice (it stands first at a.yaml:2; keep one)",
        ),
        (
            "a.yaml",
            "a:\n  b:\n    c: 1\n    c: 1\n",
            "a.yaml:4: a.b.c: the key is given twice",
        ),
        (
            "a.toml",
            "[inference]\nport=1\n[reef]\nport = 1\nport = 2\n",
            "a.toml:5: port: the key is given twice (it stands first on line 4; keep one)",
        ),
        (
            "a.toml",
            "[reef]\n[storage]\n[reef]\n",
            "a.toml:3: reef: the key is given twice (it stands first on line 1; keep one)",
        ),
        (
            "a.yaml",
            "reef:\n  run-dir: a\n  run_dir: b\n",
            "a.yaml:3: reef.run_dir: is the same key as run-dir (run-dir stands at a.yaml:2; keep one)",
        ),
        (
            "a.yaml",
            "reef:\n  port: null\n",
            "a.yaml:2: reef.port: null is not allowed",
        ),
        ("a.yaml", "- a\n- b\n", "a.yaml:1: expected sections, found a list"),
        ("a.yaml", "just text\n", "a.yaml:1: expected sections, found text"),
        ("a.yaml", "reef: text\n", "a.yaml:1: reef: expected a table, found text"),
        ("a.yaml", "reef:\n\tport: 1\n", "a.yaml:2: not valid YAML"),
        ("a.toml", "reef = \n", "a.toml:1: not valid TOML"),
        (
            "a.yaml",
            "reef:\n  host: true\n",
            "a.yaml:2: reef.host: expected text, found a boolean",
        ),
        (
            "a.toml",
            "[reef]\nhost = 5\n",
            "a.toml:2: reef.host: expected text, found an integer",
        ),
        (
            "a.yaml",
            "inference:\n  timeout-s: 0\n",
            "a.yaml:2: inference.timeout-s: expected a number of seconds of at least 0.001",
        ),
        (
            "a.yaml",
            "inference:\n  upstream-api: soap\n",
            "a.yaml:2: inference.upstream-api: expected one of openai, responses, anthropic",
        ),
        (
            "a.yaml",
            "reef:\n  tokens: [a, [b]]\n",
            "a.yaml:2: reef.tokens: expected a list of texts",
        ),
        ("a.yaml", "schema-version: 3\n", "a.yaml:1: schema-version: expected 2"),
        (
            "a.yaml",
            "storage:\n  record-backend: postgres\n",
            "records are kept in SQLite",
        ),
        (
            "a.yaml",
            "reef:\n  upstream_url: http://a\ninference:\n  upstream-url: http://b\n",
            "is the same setting as inference.upstream-url",
        ),
        (
            "a.yaml",
            "inference:\n  upstream-url: ftp://a\n",
            "a.yaml:2: inference.upstream-url: expected a URL",
        ),
        (
            "a.yaml",
            "inference:\n  upstream-url: http://a\n  model-path: m\n",
            "a.yaml:3: inference.model-path: cannot be combined",
        ),
        (
            "a.json",
            "{\"reef\": {\"port\": 1, \"port\": 2}}",
            "reef.port: the key is given twice",
        ),
        ("a.txt", "", "name it .toml, .yaml, .yml or .json"),
        ("a.yaml", "--- 1\n--- 2\n", "more than one YAML document"),
    ];
    for (name, text, expected) in cases {
        let message = refused(name, text, &[]);
        assert!(
            message.contains(expected),
            "{text:?}\n  said: {message}\n  not:  {expected}"
        );
    }
}

#[test]
fn a_flag_never_sets_through_a_scalar() {
    let file = "reef:\n  host: a\nrecipe:\n  config:\n    x: 5\n    y: [1]\n";
    for (flag, through) in [
        ("--reef.host.foo=1", "reef.host"),
        ("--recipe.config.x.z=1", "recipe.config.x"),
        ("--recipe.config.y.0=1", "recipe.config.y"),
        ("--inference.upstream-url.x=1", "inference.upstream-url"),
    ] {
        let message = refused("a.yaml", file, &[flag]);
        assert!(
            message.contains(&format!("cannot be set, because {through} is")),
            "{flag}: {message}"
        );
    }
    assert!(refused("a.yaml", "", &["--reef.port"]).contains("expected an integer from 0 to 65535, found no value"));
    assert!(refused("a.yaml", "", &["--nowhere.x=1"]).contains("nowhere: unknown section"));
}

#[test]
fn all_faults_are_told_at_once() {
    let message = refused(
        "a.yaml",
        "reef:\n  port: x\n  hots: 1\ninference:\n  dtype: int3\n",
        &[],
    );
    assert!(message.starts_with("the configuration has 3 faults\n"), "{message}");
}

#[test]
fn references_take_variables_and_other_settings() {
    let text = "reef:\n  host: 127.0.0.1\n  port: ${PORT}\n  served-url: http://${reef.host}:${reef.port}/${NONE}${NONE:-x}\n\
                inference:\n  upstream-api-key: ${KEY:?}\n  upstream-model: $${PORT}\n  threads: ${NONE}\n";
    let env = [("PORT", "7000"), ("KEY", "hunter2")];
    let settings = load_with("a.yaml", text, &[], &env).unwrap();
    assert_eq!(settings.reef.port, 7000);
    assert_eq!(settings.reef.served_url.as_deref(), Some("http://127.0.0.1:7000/x"));
    assert_eq!(settings.inference.upstream_model.as_deref(), Some("${PORT}"));
    assert_eq!(settings.inference.threads, None);
    assert_eq!(
        settings.inference.upstream_api_key.as_ref().map(Secret::expose),
        Some("hunter2")
    );
    // A flag's value counts where the file refers to it, and a default does too.
    let text = "reef:\n  served-url: http://h:${reef.port}\n";
    let settings = load_with("a.yaml", text, &["--reef.port=1"], &[]).unwrap();
    assert_eq!(settings.reef.served_url.as_deref(), Some("http://h:1"));
    assert_eq!(yaml(text).reef.served_url.as_deref(), Some("http://h:8900"));
}

#[test]
fn bad_references_are_refused_and_every_missing_variable_is_named() {
    let message = refused(
        "a.yaml",
        "reef:\n  token: ${A:?}\ninference:\n  upstream-api-key: ${B:?ask the admin}\n",
        &[],
    );
    assert!(
        message.contains("a.yaml:2: reef.token: needs the environment variable A, which is not set"),
        "{message}"
    );
    assert!(
        message.contains("inference.upstream-api-key: needs the environment variable B"),
        "{message}"
    );
    assert!(message.contains("ask the admin"), "{message}");
    for (text, expected) in [
        ("reef:\n  host: ${reef.host}\n", "refers to itself"),
        (
            "reef:\n  host: ${reef.served-url}\n  served-url: ${reef.host}\n",
            "refers to itself",
        ),
        (
            "reef:\n  host: ${reef.nothing}\n",
            "refers to reef.nothing, which is not set",
        ),
        (
            "reef:\n  host: ${reef.tokens}\n  tokens: [a]\n",
            "refers to reef.tokens, which is a list",
        ),
        ("reef:\n  host: ${\n", "is not closed"),
        ("reef:\n  host: ${a b}\n", "no variable and no setting"),
    ] {
        let message = refused("a.yaml", text, &[]);
        assert!(message.contains(expected), "{text:?}: {message}");
    }
}

#[test]
fn no_message_and_no_row_holds_a_secret() {
    let text = "reef:\n  token: hunter2\n  tokens: [hunter2]\ninference:\n  upstream-url: http://u:hunter2@h/\n  upstream-api-key: hunter2\n  \
                sampling-defaults: {deep: [{api-key: hunter2}]}\n";
    let settings = yaml(text);
    assert!(!format!("{settings:?} {:?} {:?}", settings.rows(), settings.reef).contains("hunter2"));
    for text in [
        "reef:\n  token: [hunter2]\n",
        "reef:\n  token: {a: hunter2}\n",
        "reef:\n  tokens: hunter2\n",
        "reef:\n  port: hunter2\n",
        "reef:\n  tokn: hunter2\n",
        "reef:\n  served-url: http://u:hunter2@h/\n",
        "reef:\n  served-url: \"http://h/'$(hunter2)'\"\n",
        "inference:\n  upstream-api: hunter2\n",
        "storage:\n  on-failure: hunter2\n  retention-max-bytes: hunter2\n",
    ] {
        let message = refused("a.yaml", text, &[]);
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn further_providers_are_a_list_of_strict_tables() {
    let settings = load_with(
        "a.toml",
        "[[inference.fallbacks]]\nurl = \"http://b\"\napi-key-env = \"KEY\"\n[[inference.fallbacks]]\nurl = \"http://c/v1\"\napi = \"anthropic\"\n",
        &[],
        &[("KEY", "hunter2")],
    )
    .unwrap();
    let fallbacks = settings.fallbacks().unwrap();
    assert_eq!(fallbacks.len(), 2);
    assert_eq!(fallbacks[1].api, UpstreamApi::Anthropic);
    let rows = format!("{:?}", settings.rows());
    assert!(!rows.contains("hunter2"));
    for (text, expected) in [
        (
            "inference:\n  fallbacks:\n    - uri: http://b\n",
            "a.yaml:3: inference.fallbacks[0].uri: unknown key (known here: url, model",
        ),
        (
            "inference:\n  fallbacks:\n    - {model: b}\n",
            "inference.fallbacks[0].url: expected a URL",
        ),
        (
            "inference:\n  fallbacks:\n    - {url: http://b, api-key-env: NONE}\n",
            "names the environment variable NONE",
        ),
        ("inference:\n  fallbacks: [http://b]\n", "expected a list of tables"),
    ] {
        let message = refused("a.yaml", text, &[]);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn text_is_never_guessed_to_be_something_else() {
    let settings = yaml("inference:\n  upstream-model: 00123\n  upstream-api-key: 1e3\n");
    assert_eq!(settings.inference.upstream_model.as_deref(), Some("00123"));
    assert_eq!(
        settings.inference.upstream_api_key.as_ref().map(Secret::expose),
        Some("1e3")
    );
    let settings = load_with("a.yaml", "", &["--inference.upstream-model=true"], &[]).unwrap();
    assert_eq!(settings.inference.upstream_model.as_deref(), Some("true"));
}

#[test]
fn relative_paths_start_at_the_launch_directory() {
    let settings = yaml("storage:\n  dir: data\n");
    assert_eq!(settings.storage.dir, settings.directory.join("data"));
    assert_eq!(
        settings.storage.experience_db(),
        settings.directory.join("data/experience.db")
    );
}

#[test]
fn a_small_file_cannot_become_a_large_tree() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..9 {
        let of = format!("*a{}", n - 1);
        text.push_str(&format!("a{n}: &a{n} [{}]\n", [of.as_str(); 10].join(", ")));
    }
    assert!(refused("a.yaml", &text, &[]).contains("aliases expanded"));
    assert!(refused("a.yaml", &format!("a: {}", "[".repeat(10_000)), &[]).contains("a.yaml:1"));
    let _no_crash = refused("a.toml", &format!("a = {}", "[".repeat(10_000)), &[]);
}

section! {
    /// Settings of a recipe, for a test.
    pub Sample in "" {
        /// Units a step.
        batch_size: u32 = 1, min 1.0;
        /// A file.
        prompt: Option<PathBuf>;
    }
}

#[test]
fn another_room_reads_its_own_table_as_strictly() {
    let settings = yaml("reef:\n  recipe: sample\n  batch-size: 4\n  prompt: a.txt\n");
    let (sample, rows) = settings
        .read_table::<Sample>(&settings.recipe.config, "recipe.config")
        .unwrap();
    assert_eq!(
        (sample.batch_size, sample.prompt),
        (4, Some(settings.directory.join("a.txt")))
    );
    assert_eq!(rows[0].key, "recipe.config.batch-size");
    let settings = yaml("reef:\n  recipe: sample\n  batch_sise: 4\n");
    let error = settings
        .read_table::<Sample>(&settings.recipe.config, "recipe.config")
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "serve.yaml:3: recipe.config.batch_sise: unknown key (did you mean batch-size?)"
    );
}

fn load_text(name: &str, text: &str) -> Result<Settings, ConfigError> {
    // Parsing first, so that a failure to write the file cannot hide a crash.
    let _parsed = read_text(text, &Arc::from(Path::new(name)));
    load_with(name, text, &[], &[])
}

fn configuration() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("reef".to_owned()),
        Just("inference".to_owned()),
        Just("port".to_owned()),
        Just("tokens".to_owned()),
        Just("${reef.port}".to_owned()),
        Just("${A:?}".to_owned()),
        Just("&a".to_owned()),
        Just("*a".to_owned()),
        Just("null".to_owned()),
        Just("[".to_owned()),
        Just("]".to_owned()),
        Just("{".to_owned()),
        Just("}".to_owned()),
        Just(":".to_owned()),
        Just(": ".to_owned()),
        Just("=".to_owned()),
        Just("\n".to_owned()),
        Just("\n  ".to_owned()),
        Just("- ".to_owned()),
        Just("\"".to_owned()),
        Just("#".to_owned()),
        "\\PC{0,4}",
        any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(word, 0..40).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_crashes_the_loader_and_every_fault_has_a_place(text in configuration(), json in any::<bool>()) {
        for name in ["f.toml", if json { "f.json" } else { "f.yaml" }] {
            if let Err(ConfigError::Invalid { faults }) = load_text(name, &text) {
                prop_assert!(!faults.is_empty());
                for fault in faults {
                    let Source::File { line, .. } = fault.source else {
                        return Err(TestCaseError::fail(format!("{fault} has no place")));
                    };
                    prop_assert!(line >= 1 && line <= text.split(['\n', '\r']).count() + 1, "{fault}");
                }
            }
        }
    }

    #[test]
    fn no_flag_crashes_the_loader(key in "[a-z.\\-_]{1,30}", value in "\\PC{0,20}") {
        let flag = format!("--reef.{key}={value}");
        let _any = load_with("f.yaml", "recipe: {config: {a: 1}}", &[&flag, &format!("--recipe.config.{key}={value}")], &[]);
    }
}
