//! Every block of commands in the README, the guides and what `reef init` writes, typed as it stands and in order into a
//! terminal on a fresh directory, with a real service and a provider on loopback.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use reef::engine::models::{synthetic_config, write_synthetic};

use super::shell::Shell;
use crate::common::upstream::{Upstream, answer};

/// Blocks that are not typed, by page and first line, and why.
const NOT_TYPED: &[(&str, &str, &str)] = &[
    (
        "README.md",
        "./scripts/quickstart.sh",
        "builds the program and downloads a model",
    ),
    ("README.md", "cargo build --release", "builds the program"),
    ("README.md", "./scripts/setup.sh &&", "builds the program"),
    (
        "docs/quickstart.md",
        "./scripts/quickstart.sh",
        "builds the program and downloads a model",
    ),
    (
        "docs/quickstart.md",
        "reef --dir RUN release log",
        "looks at what the script left",
    ),
    (
        "docs/quickstart.md",
        "reef eval head --against base",
        "looks at what the script left",
    ),
    ("docs/quickstart.md", "./scripts/setup.sh", "builds the program"),
    (
        "docs/guides/agents.md",
        "reef-pi evolve",
        "asks a model for a change and runs the agent: tests/evolution_agent.rs",
    ),
    (
        "docs/guides/ci.md",
        "set -eu",
        "measures with the embedded model: tests/learning.rs",
    ),
    (
        "docs/guides/embedded-model.md",
        "reef serve --inference.model-path",
        "needs the embedded engine: tests/embedded.rs",
    ),
    (
        "docs/guides/embedded-model.md",
        "curl http://127.0.0.1:8900",
        "needs the embedded engine: tests/embedded.rs",
    ),
    (
        "docs/guides/models.md",
        "reef model pull",
        "downloads: tests/model_cli.rs",
    ),
    ("docs/guides/models.md", "reef bench model", "needs the embedded engine"),
    (
        "templates/init/embedded/README.md",
        "export REEF_MODEL",
        "needs the embedded engine: tests/embedded.rs",
    ),
    (
        "templates/init/embedded/README.md",
        "python3 client.py",
        "needs the embedded engine: tests/embedded.rs",
    ),
];

/// What stands for something the reader has, and the command that says it here.
const PLACEHOLDERS: &[(&str, &str)] = &[
    (
        "RECEIPT",
        "reef records list --kind inference -n 1 --json | jq -r '.records[0].agent_record_id'",
    ),
    (
        "--run RUN",
        "echo --run $(reef-pi report --list --json | jq -r '.runs[0].run')",
    ),
    ("SmolLM2-135M-Instruct.Q4_1.gguf", "echo tiny"),
    ("FILE.gguf", "echo tiny"),
];

/// Pages that begin where a reader already has something.
const BEFORE: &[(&str, &str)] = &[("docs/guides/ci.md", CI), ("docs/guides/operate.md", OPERATING)];

const CI: &str = r#"
reef init
mkdir -p build/adapter earlier
printf '# Rules\n\n- Be brief.\n' >earlier/AGENTS.md
printf '# Rules\n\n- Be brief.\n- Be kind.\n' >build/adapter/AGENTS.md
reef release import earlier --scenario support
git init -q --bare remote.git
export JOB=1 REMOTE="$PWD/remote.git"
"#;

/// A deployment that learns, by a program, with a release and some traffic.
const OPERATING: &str = r#"
mkdir -p recipe earlier
cat >recipe/recipe.toml <<'END'
format = 1
name = "by-hand"
[processor]
kind = "reported"
tokens = false
[batch]
size = 1000
[trainer]
backend = "program"
command = ["false"]
[gate]
selector = "review"
[surface]
kind = "lora-adapter"
END
printf '# Rules\n' >earlier/AGENTS.md
reef release import earlier --scenario support
reef serve --model ollama/llama3.2 --reef.recipe ./recipe
"#;

const OPERATED: &str = r#"
curl -fsS http://127.0.0.1:8900/v1/chat/completions -H 'x-reef-scenario: support' -d '{"messages": []}'
"#;

const AGENT: &str = r#"#!/bin/sh
case "$1" in
--version) echo 0.84.2 ;;
*) exec curl -fsS -H "authorization: Bearer $REEF_TOKEN" "$REEF_SERVICE_URL/v1/chat/completions" -d '{"messages": []}' ;;
esac
"#;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every page with commands that a reader types, relative to the repository.
fn pages() -> Vec<String> {
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
    for dir in ["docs", "recipes", "templates/init"] {
        walk(&root().join(dir), &mut out);
    }
    out.sort();
    let names = out
        .iter()
        .map(|path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
    // These tell how the program is made, and what may be typed; they lead nobody through anything.
    names
        .filter(|page| !page.starts_with("docs/design/") && !page.starts_with("docs/reference/"))
        .collect()
}

/// The blocks of commands of a page.
fn blocks(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.trim().strip_prefix("```") else {
            continue;
        };
        let body: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "```").collect();
        let commands = matches!(language, "sh" | "bash" | "console" | "shell");
        assert!(
            commands
                || !body
                    .iter()
                    .any(|line| line.starts_with("reef ") || line.starts_with("$ ")),
            "{page}: a block of commands is marked as {language:?}: {body:?}"
        );
        if commands {
            blocks.push(body.join("\n"));
        }
    }
    blocks
}

fn not_typed(page: &str, block: &str) -> Option<usize> {
    NOT_TYPED
        .iter()
        .position(|(of, first, _)| *of == page && block.trim_start().starts_with(first))
}

#[test]
fn what_is_not_typed_is_named_with_its_reason() {
    let mut used = BTreeSet::new();
    for page in pages() {
        for block in blocks(&page) {
            used.extend(not_typed(&page, &block));
        }
    }
    let stale: Vec<_> = (0..NOT_TYPED.len())
        .filter(|at| !used.contains(at))
        .map(|at| NOT_TYPED[at])
        .collect();
    assert!(stale.is_empty(), "no block begins like this any more: {stale:?}");
}

#[test]
#[ignore = "the shell it types into may stand still after a block; run it by hand until that is understood"]
fn every_block_of_commands_works_as_it_stands() {
    let this = std::env::current_exe().unwrap();
    let inside = ["--exact", "walk::in_a_network_of_its_own", "--ignored", "--nocapture"];
    let apart = ["-rn", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""];
    let can_be_apart = Command::new("unshare")
        .args(["-rn", "ip", "link", "set", "lo", "up"])
        .output()
        .is_ok_and(|output| output.status.success());
    let mut command = if can_be_apart {
        let mut command = Command::new("unshare");
        command.args(apart).arg(&this);
        command
    } else {
        // The ports of the documentation are then the machine's own.
        eprintln!("no network of its own can be made here; this needs the ports 8900 and 11434 to be free");
        Command::new(&this)
    };
    let output = command.args(inside).output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
#[ignore = "started by another test, with the ports of the documentation to itself"]
fn in_a_network_of_its_own() {
    let chat = include_str!("../../src/engine/sse/fixtures/chat.json");
    // Where an Ollama would be.
    let _provider = Upstream::start_on(11434, move |_, _| answer(200, "application/json", chat));
    let only = std::env::var("REEF_PAGE").ok();
    let (mut typed, mut faults) = (0, Vec::new());
    for page in pages() {
        if only.as_ref().is_some_and(|only| !page.contains(only.as_str())) {
            continue;
        }
        match walk(&page) {
            Ok(blocks) => typed += blocks,
            Err(fault) => faults.push(fault),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    assert!(only.is_some() || typed > 30, "only {typed} blocks were typed");
}

/// Types the blocks of a page; gives how many.
fn walk(page: &str) -> Result<usize, String> {
    let blocks = blocks(page);
    if blocks.is_empty() {
        return Ok(0);
    }
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("work");
    let bin = home.path().join("bin");
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("pi"), AGENT).unwrap();
    fs::set_permissions(bin.join("pi"), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["tiny", "Qwen2.5-0.5B-Instruct"] {
        write_synthetic(&dir.join(name), &synthetic_config(), 1).unwrap();
    }
    let program = Path::new(env!("CARGO_BIN_EXE_reef")).parent().unwrap();
    let path = format!(
        "{}:{}:{}:{}",
        program.display(),
        bin.display(),
        home.path().join(".local/bin").display(),
        std::env::var("PATH").unwrap()
    );
    let mut shell = Shell::start(&dir, &[("PATH", path), ("HOME", home.path().display().to_string())]);
    let fault = |block: &str, said: &str| {
        let service = fs::read_to_string(dir.join("service.log")).unwrap_or_default();
        format!("{page}: this block fails:\n{block}\n\nit says:\n{said}\nand the service:\n{service}")
    };
    if let Some(template) = page
        .strip_prefix("templates/init/")
        .and_then(|rest| rest.split('/').next())
    {
        // The reader has what `reef init` wrote, and the page among it.
        let init = format!("reef init {template}");
        shell.block(&init).map_err(|said| fault(&init, &said))?;
        let written = fs::read_to_string(dir.join("README.md")).unwrap();
        assert_eq!(written, fs::read_to_string(root().join(page)).unwrap());
    }
    if let Some((_, before)) = BEFORE.iter().find(|(of, _)| *of == page) {
        shell.block(before).map_err(|said| fault(before, &said))?;
        if *before == OPERATING {
            shell.block(OPERATED).map_err(|said| fault(OPERATED, &said))?;
        }
    }
    let mut typed = 0;
    for block in &blocks {
        if not_typed(page, block).is_some() {
            continue;
        }
        let mut filled = block.clone();
        for (placeholder, says) in PLACEHOLDERS {
            if filled.contains(placeholder) {
                filled = filled.replace(placeholder, &shell.ask(says));
            }
        }
        shell.block(&filled).map_err(|said| fault(&filled, &said))?;
        typed += 1;
    }
    Ok(typed)
}
