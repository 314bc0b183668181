//! The laws of the house that a compiler does not check: who may import whom, and how files are kept.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Every room may use `domain`, `sys` and `telemetry`; this lists what else it may use (docs/design/architecture.md §3).
fn allowed() -> BTreeMap<&'static str, Vec<&'static str>> {
    let everything = vec![
        "config",
        "experience",
        "release",
        "engine",
        "recipe",
        "train",
        "eval",
        "harness",
        "scenario",
        "serve",
        "dash",
    ];
    BTreeMap::from([
        ("domain", vec![]),
        ("sys", vec![]),
        ("telemetry", vec![]),
        ("config", vec![]),
        ("experience", vec![]),
        ("release", vec![]),
        ("engine", vec![]),
        ("recipe", vec!["config"]),
        ("eval", vec!["engine", "experience", "recipe", "harness"]),
        ("train", vec!["engine", "experience", "recipe"]),
        ("harness", vec!["engine", "experience", "recipe"]),
        (
            "scenario",
            vec![
                "config",
                "experience",
                "engine",
                "release",
                "recipe",
                "eval",
                "train",
                "harness",
            ],
        ),
        (
            "serve",
            vec!["config", "engine", "experience", "release", "harness", "scenario"],
        ),
        ("dash", vec!["experience", "release"]),
        ("cli", everything),
    ])
}

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for dir in ["src", "tests", "crates"] {
        rust_files(&root.join(dir), &mut files);
    }
    files
        .into_iter()
        .map(|p| {
            (
                p.strip_prefix(root).unwrap().to_path_buf(),
                fs::read_to_string(root.join(&p)).unwrap(),
            )
        })
        .collect()
}

/// The rooms named by `crate::room` in a file, comments left out.
fn rooms_used(text: &str) -> Vec<String> {
    let mut used = Vec::new();
    for line in text.lines().filter(|l| !l.trim_start().starts_with("//")) {
        for (at, _) in line.match_indices("crate::") {
            let rest = &line[at + "crate::".len()..];
            if let Some(list) = rest.strip_prefix('{') {
                let inner = list.split('}').next().unwrap_or("");
                used.extend(
                    inner
                        .split(',')
                        .filter_map(|part| part.trim().split("::").next())
                        .map(str::to_owned),
                );
            } else {
                used.push(
                    rest.chars()
                        .take_while(|c| c.is_ascii_lowercase() || *c == '_')
                        .collect(),
                );
            }
        }
    }
    used
}

#[test]
fn rooms_import_only_what_their_law_allows() {
    let table = allowed();
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let mut parts = path.components().map(|c| c.as_os_str().to_str().unwrap());
        if parts.next() != Some("src") {
            continue;
        }
        let room = parts.next().unwrap().trim_end_matches(".rs").to_owned();
        let Some(may) = table.get(room.as_str()) else { continue };
        for used in rooms_used(&text) {
            let known = table.contains_key(used.as_str());
            let free = used == room || ["domain", "sys", "telemetry"].contains(&used.as_str());
            if known && !free && !may.contains(&used.as_str()) {
                faults.push(format!("{}: {room} may not use {used}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_room_opens_with_its_law() {
    for room in allowed().keys() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("src")
            .join(room)
            .join("mod.rs");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(
            text.starts_with("//! Law:"),
            "{} must open with `//! Law:`",
            path.display()
        );
    }
}

#[test]
fn files_hold_one_idea() {
    let long: Vec<String> = sources()
        .iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > 600)
        .map(|(path, lines)| format!("{}: {lines} lines, at most 600", path.display()))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn nothing_is_left_unfinished() {
    for (path, text) in sources() {
        if path.ends_with("tidy.rs") {
            continue;
        }
        for word in ["todo!(", "unimplemented!(", "FIXME", "XXX"] {
            assert!(!text.contains(word), "{} holds {word}", path.display());
        }
    }
}

#[test]
fn the_import_reader_sees_every_form() {
    let text = "use crate::domain::X;\nuse crate::{engine::Y, serve};\nlet a = crate::cli::z();\n// crate::dash\n";
    assert_eq!(rooms_used(text), ["domain", "engine", "serve", "cli"]);
}

/// A setting that nobody reads would be a promise without a keeper.
#[test]
fn every_setting_is_read_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schema = Path::new("src/config/schema");
    let sources = sources();
    let code: Vec<String> = sources
        .iter()
        .filter(|(path, _)| !path.starts_with("src/config") && path.starts_with("src"))
        .map(|(_, text)| text.lines().map(str::trim).collect())
        .collect();
    let mut unread = Vec::new();
    for (path, text) in sources.iter().filter(|(path, _)| path.starts_with(schema)) {
        let (declared, methods) = text.split_once("\nimpl ").unwrap_or((text, ""));
        for line in declared
            .lines()
            .filter(|line| line.starts_with("        ") && line.ends_with(';'))
        {
            let Some((name, _)) = line.trim().split_once(": ") else {
                continue;
            };
            let read = |text: &str| {
                let field = format!(".{name}");
                text.match_indices(&field).any(|(at, _)| {
                    let after = text[at + field.len()..].chars().next();
                    !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
                })
            };
            let in_settings = fs::read_to_string(root.join("src/config/settings.rs")).unwrap();
            if !read(methods) && !read(&in_settings) && !code.iter().any(|text| read(text)) {
                unread.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(unread.is_empty(), "settings that nothing reads:\n{}", unread.join("\n"));
}

/// The repository speaks of the project alone: nothing in it depends on where one machine keeps it.
#[test]
fn no_tracked_build_file_names_a_path_of_one_machine() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let here = root.to_str().unwrap();
    for name in [
        ".cargo/config.toml",
        "Cargo.toml",
        "build.rs",
        "scripts/setup.sh",
        "scripts/test.sh",
    ] {
        let text = fs::read_to_string(root.join(name)).unwrap();
        for path in [here, "/home/", "/root/", "/work/"] {
            assert!(!text.contains(path), "{name} names {path}");
        }
    }
}
