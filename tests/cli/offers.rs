//! What the program offers, and what it says where there is little to say.

use std::path::Path;

use serde_json::Value;

use super::{expect, json, output, reef, run};

/// Commands that Reef runs itself, or who builds it.
const HIDDEN: [&str; 3] = ["__sandbox", "__train-step", "docs"];

/// What the program answers a shell that asks what fits after these words; the last one is being typed.
fn offered(dir: &Path, words: &[&str]) -> Vec<String> {
    let mut command = reef(dir);
    command.env("REEF_COMPLETE", "fish").arg("--").args(words);
    let (out, _) = expect(&output(&mut command), 0);
    out.lines()
        .map(|line| line.split('\t').next().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn nothing_offers_a_hidden_command() {
    let dir = tempfile::tempdir().unwrap();
    let words = |text: &str| -> Vec<String> {
        let word = |c: char| !(c.is_alphanumeric() || c == '_' || c == '-');
        text.split(word).map(str::to_owned).collect()
    };
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (out, _) = expect(&run(dir.path(), &["completions", shell]), 0);
        let said = words(&out);
        for hidden in HIDDEN {
            // In bash and zsh a command is part of the name of a function, where a hyphen becomes an underscore.
            let mangled = hidden.replace('-', "__");
            let found = said
                .iter()
                .find(|word| *word == hidden || word.ends_with(&format!("__{mangled}")));
            assert_eq!(found, None, "{shell}");
        }
        let (out, _) = expect(&run(dir.path(), &["completions", shell, "--json"]), 0);
        assert_eq!(
            (&json(&out)["kind"], &json(&out)["shell"]),
            (&Value::from("completions"), &Value::from(shell))
        );
    }
    let commands = offered(dir.path(), &["reef", ""]);
    for known in ["doctor", "serve", "help"] {
        assert!(
            commands.iter().any(|command| command == known),
            "{commands:?} lacks {known}"
        );
    }
    for hidden in HIDDEN {
        assert!(!commands.iter().any(|command| command == hidden), "{hidden}");
    }
    let flags = offered(dir.path(), &["reef", "serve", "--"]);
    for known in ["--json", "--print-config"] {
        assert!(flags.iter().any(|flag| flag == known), "{flags:?} lacks {known}");
    }
    for args in [&["--help"][..], &["help"], &["man"]] {
        let (out, _) = expect(&run(dir.path(), args), 0);
        for hidden in HIDDEN {
            assert!(!words(&out).iter().any(|word| word == hidden), "{args:?}: {hidden}");
        }
    }
    for (typed, suggested) in [
        ("doc", "doctor"),
        ("_sandbox", ""),
        ("train-step", "train"),
        ("hel", "help"),
    ] {
        let (_, err) = expect(&run(dir.path(), &[typed]), 2);
        assert!(err.contains(suggested), "{err}");
        assert!(
            !HIDDEN.iter().any(|hidden| err.contains(&format!("'{hidden}'"))),
            "{err}"
        );
    }
    // They are there all the same.
    expect(&run(dir.path(), &["docs", "--out", "reference"]), 0);
}

#[test]
fn a_setting_nobody_declared_is_an_error_that_names_near_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (out, _) = expect(&run(dir.path(), &["config", "show", "inference.up"]), 0);
    assert!(out.contains("inference.upstream-url"), "{out}");
    // Known, but nobody set one.
    expect(&run(dir.path(), &["config", "show", "inference.up", "--changed"]), 0);
    for (typed, near) in [
        ("inference.upstream_ulr", "inference.upstream-url"),
        ("reef.prot", "reef.port"),
        ("port", "reef.port"),
        ("storage.dri", "storage.dir"),
        ("qqqqqq", "reef config show lists every setting"),
    ] {
        let (out, err) = expect(&run(dir.path(), &["config", "show", typed]), 2);
        assert!(out.is_empty() && err.contains(near), "{typed}: {err}");
    }
    let (out, err) = expect(&run(dir.path(), &["config", "show", "nosuch", "--json"]), 2);
    assert!(out.is_empty());
    assert_eq!(json(&err)["error"]["kind"], "usage");
}

#[test]
fn commands_that_write_files_say_so_in_one_object() {
    let dir = tempfile::tempdir().unwrap();
    expect(&run(dir.path(), &["scenario", "create", "s"]), 0);
    for (args, kind, field) in [
        (&["release", "log", "--html", "chain.html"][..], "page", "file"),
        (&["records", "stats", "--plot", "records.html"], "stats", "file"),
        (&["man", "--out", "pages"], "manual", "dir"),
        (&["man"], "manual", "page"),
        (&["docs", "--out", "reference"], "docs", "dir"),
    ] {
        let (out, _) = expect(&run(dir.path(), &[args, &["--json"]].concat()), 0);
        assert_eq!(out.lines().count(), 1, "{args:?}: {out}");
        let said = json(&out);
        assert_eq!(
            (&said["version"], &said["kind"]),
            (&Value::from(1), &Value::from(kind)),
            "{out}"
        );
        assert!(said[field].as_str().is_some_and(|value| !value.is_empty()), "{out}");
    }
}
