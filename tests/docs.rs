//! The generated reference is in step with the program (`REEF_UPDATE_DOCS=1 cargo test --test docs` rewrites it), every
//! command in the documentation is one the program takes. What the guides say is typed by `tests/first_steps.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use reef::cli::EXIT_CODES;
use reef::experience::InterruptionReason;

const PAGES: [&str; 4] = [
    "cli.md",
    "configuration.md",
    "exit-codes.md",
    "configuration.schema.json",
];

#[test]
fn the_generated_reference_is_in_step() {
    let fresh = tempfile::tempdir().unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_reef"))
        .args(["docs", "--out"])
        .arg(fresh.path())
        .status()
        .unwrap();
    assert!(status.success());
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference");
    let mut stale = Vec::new();
    for page in PAGES {
        let now = fs::read_to_string(fresh.path().join(page)).unwrap();
        if fs::read_to_string(kept.join(page)).unwrap_or_default() == now {
            continue;
        }
        if std::env::var_os("REEF_UPDATE_DOCS").is_some() {
            fs::create_dir_all(&kept).unwrap();
            fs::write(kept.join(page), now).unwrap();
        } else {
            stale.push(page);
        }
    }
    assert!(
        stale.is_empty(),
        "docs/reference is behind the program in {stale:?}; run REEF_UPDATE_DOCS=1 cargo test --test docs"
    );
}

/// The words between backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_reasons_of_interruptions_are_those_of_the_program() {
    let known: BTreeSet<&str> = InterruptionReason::ALL.iter().map(|reason| reason.as_str()).collect();
    let page = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    for name in ["docs/reference/http.md", "docs/reference/metrics.md"] {
        let text = page(name);
        let row = text
            .lines()
            .find(|line| line.contains("reef_interrupted_total"))
            .unwrap();
        let told: BTreeSet<&str> = quoted(row)
            .into_iter()
            .filter(|word| !matches!(*word, "reef_interrupted_total" | "reason"))
            .collect();
        assert_eq!(told, known, "{name}");
    }
    let text = page("docs/troubleshooting.md");
    let section = text.split("### `exchange interrupted`").nth(1).unwrap();
    let section = section.split("###").next().unwrap();
    let told: BTreeSet<&str> = section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .filter_map(|line| quoted(line).first().copied())
        .collect();
    assert_eq!(told, known);
    let quiet: BTreeSet<&str> = InterruptionReason::ALL
        .iter()
        .filter(|reason| !reason.is_failure())
        .map(|reason| reason.as_str())
        .collect();
    let sentence = section
        .lines()
        .find(|line| line.contains("are warnings in the log"))
        .unwrap();
    assert_eq!(quoted(sentence).into_iter().collect::<BTreeSet<&str>>(), quiet);
}

/// The design page shows rooms that exist, and engines that do; what is only planned is called that.
#[test]
fn the_design_page_shows_what_is_there() {
    let page = fs::read_to_string(root().join("docs/design/architecture.md")).unwrap();
    let tree = page.split("```").nth(1).unwrap();
    let rooms = tree.split("src/\n").nth(1).unwrap().split("crates/\n").next().unwrap();
    for line in rooms.lines().filter(|line| !line.trim().is_empty()) {
        for name in line
            .split_whitespace()
            .take_while(|word| word.ends_with("/") || word.ends_with("/,") || word.ends_with(".rs"))
        {
            let name = name.trim_end_matches(',');
            assert!(root().join("src").join(name).exists(), "src/{name} is not there");
        }
    }
    let engines = rooms
        .lines()
        .find(|line| line.trim_start().starts_with("engine/"))
        .unwrap();
    let (there, planned) = engines.split_once("Planned: ").unwrap();
    for engine in ["upstream", "torch"] {
        assert!(
            there.contains(engine) && root().join("src/engine").join(engine).is_dir(),
            "{engine}"
        );
    }
    for engine in ["vLLM", "SGLang", "llama.cpp"] {
        assert!(!there.contains(engine) && planned.contains(engine), "{engine}");
    }
    for name in ["NCCL", "Ray", "PostgreSQL"] {
        for line in page.lines().filter(|line| line.contains(name)) {
            assert!(
                line.to_lowercase().contains("planned"),
                "{name} is not called planned: {line}"
            );
        }
    }
}

#[test]
fn the_guides_exit_codes_are_those_of_the_program() {
    let text = fs::read_to_string(root().join("docs/guides/ci.md")).unwrap();
    let told: Vec<u8> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok())
        .collect();
    assert!(told.len() > 6, "{told:?}");
    for code in told {
        assert!(EXIT_CODES.iter().any(|(_, known, _)| *known == code), "{code}");
    }
}

/// One table of a page that is otherwise written by hand.
#[test]
fn the_table_of_the_providers_routes_is_in_step() {
    let fresh = tempfile::tempdir().unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_reef"))
        .args(["docs", "--out"])
        .arg(fresh.path())
        .status()
        .unwrap();
    assert!(status.success());
    let table = fs::read_to_string(fresh.path().join("http.md.provider-routes")).unwrap();
    let path = root().join("docs/reference/http.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once("<!-- generated: provider routes -->\n").unwrap();
    let (kept, after) = rest.split_once("<!-- end -->").unwrap();
    if kept == table {
        return;
    }
    assert!(
        std::env::var_os("REEF_UPDATE_DOCS").is_some(),
        "the table in docs/reference/http.md is behind the program; run REEF_UPDATE_DOCS=1 cargo test --test docs"
    );
    fs::write(
        &path,
        format!("{before}<!-- generated: provider routes -->\n{table}<!-- end -->{after}"),
    )
    .unwrap();
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every page a person reads.
fn pages() -> Vec<PathBuf> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, out);
            } else if path.extension().is_some_and(|end| end == "md") {
                out.push(path);
            }
        }
    }
    let mut out = vec![root().join("README.md"), root().join("SECURITY.md")];
    walk(&root().join("docs"), &mut out);
    walk(&root().join("recipes"), &mut out);
    // The reference of commands shows what each may be given, not what to type.
    out.retain(|path| !path.ends_with("docs/reference/cli.md"));
    out
}

/// The lines of the shell blocks of a page.
fn blocks(page: &str) -> Vec<Vec<String>> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if matches!(line.trim(), "```sh" | "```bash" | "```console") {
            let body: Vec<String> = lines
                .by_ref()
                .take_while(|line| line.trim() != "```")
                .map(str::to_owned)
                .collect();
            blocks.push(body);
        }
    }
    blocks
}

/// The commands of one line of shell that call `reef`, each as its words.
fn commands(line: &str) -> Vec<Vec<String>> {
    let line = line.trim().trim_start_matches("$ ");
    let mut words = Vec::new();
    let mut word = String::new();
    let (mut quote, mut has_word) = (None, false);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => (quote, has_word) = (Some(c), true),
            (None, '#') if word.is_empty() && !has_word => break,
            (None, ' ') => {
                if !word.is_empty() || has_word {
                    words.push(std::mem::take(&mut word));
                }
                has_word = false;
            }
            (None, c) => word.push(c),
        }
    }
    if !word.is_empty() || has_word {
        words.push(word);
    }
    let mut found = Vec::new();
    for part in words.split(|word| matches!(word.as_str(), "|" | "||" | "&&" | ";" | "&" | "then" | "do")) {
        // A variable before the command, or a substitution around it.
        let Some(at) = part.iter().position(|word| {
            let word = word.trim_start_matches("$(").trim_start_matches('(');
            matches!(word, "reef" | "./target/release/reef" | "target/release/reef") || word.ends_with("=$(reef")
        }) else {
            continue;
        };
        let set = part[..at]
            .iter()
            .all(|word| word.contains('=') || matches!(word.as_str(), "if" | "!" | "exec" | "time"));
        let rest: Vec<String> = part[at + 1..]
            .iter()
            .take_while(|word| !word.starts_with(['>', '<']) && !word.starts_with("2>"))
            .map(|word| word.trim_end_matches([')', ';']).to_owned())
            .collect();
        if set && !rest.iter().any(|word| word.contains('…') || word.contains("...")) {
            found.push(rest);
        }
    }
    found
}

#[test]
fn every_command_in_the_documentation_is_one_the_program_takes() {
    let mut checked = 0;
    let mut wrong = Vec::new();
    for path in pages() {
        for lines in blocks(&fs::read_to_string(&path).unwrap()) {
            let whole = lines.join("\n").replace("\\\n", " ");
            for command in whole.lines().flat_map(commands) {
                // What stands for a value the reader has is given one of its shape; --help ends the run before any work.
                let args = command
                    .iter()
                    .map(|word| if word.starts_with('$') { "0" } else { word.as_str() });
                let output = Command::new(env!("CARGO_BIN_EXE_reef"))
                    .args(args)
                    .arg("--help")
                    .output()
                    .unwrap();
                checked += 1;
                if !output.status.success() {
                    let said = String::from_utf8_lossy(&output.stderr).into_owned();
                    wrong.push(format!("{}: reef {}\n{said}", path.display(), command.join(" ")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 40, "only {checked} commands were found");
}

/// The headings of the troubleshooting page are words of the program.
#[test]
fn troubleshooting_goes_by_messages_that_exist() {
    fn sources(dir: &Path, out: &mut String) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, out);
            } else if path.extension().is_some_and(|end| end == "rs") {
                out.push_str(&fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut program = String::new();
    sources(&root().join("src"), &mut program);
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    assert!(headings.len() > 20);
    for heading in headings {
        let words = heading.trim_matches('`');
        assert!(program.contains(words), "no message says: {words}");
    }
}

/// The tests that a page names, as `file::name`.
fn named_tests(page: &str) -> Vec<(&str, &str)> {
    page.split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|word| word.split_once(".rs::"))
        .collect()
}

/// Whether a source holds a test of this name.
fn holds_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let called = [format!("fn {name}("), format!("async fn {name}(")];
    lines.iter().enumerate().any(|(at, line)| {
        called.iter().any(|start| line.starts_with(start.as_str()))
            && lines[..at]
                .iter()
                .rev()
                .take_while(|line| line.starts_with("#[") || line.starts_with("//"))
                .any(|line| *line == "#[test]" || line.starts_with("#[tokio::test"))
    })
}

#[test]
fn every_wall_is_held_by_tests_that_exist() {
    let page = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let mut faults = Vec::new();
    for (file, name) in named_tests(&page) {
        match fs::read_to_string(root().join(format!("{file}.rs"))) {
            Ok(source) if holds_test(&source, name) => {}
            Ok(_) => faults.push(format!("{file}.rs has no test {name}")),
            Err(error) => faults.push(format!("{file}.rs: {error}")),
        }
    }
    let rows = page
        .lines()
        .filter(|line| line.starts_with('|') && !line.starts_with("|---") && !line.starts_with("| what it could try"));
    for row in rows {
        if named_tests(row).is_empty() {
            faults.push(format!("a wall without a test: {row}"));
        }
    }
    assert!(faults.is_empty(), "SECURITY.md:\n{}", faults.join("\n"));
    assert!(named_tests(&page).len() > 30);
    assert!(!holds_test("fn a() {}\n#[test]\nfn b() {}", "a") && holds_test("#[test]\n#[cfg(x)]\nfn b() {}", "b"));
}
