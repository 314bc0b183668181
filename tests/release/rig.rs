//! A repository to try things on, and the stock programs, shut off from the machine's own configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use reef::domain::{Operation, ReleaseId, ScenarioName};
use reef::release::{Draft, Provenance, Repository, RepositoryOptions, Source};
use tempfile::TempDir;

/// A directory with a repository in it.
pub struct Rig {
    pub dir: TempDir,
    pub repository: Repository,
}

impl Rig {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let repository = open(dir.path());
        Self { dir, repository }
    }

    /// A PEFT-like adapter directory whose weights are `seed` repeated.
    pub fn adapter(&self, name: &str, seed: u8) -> PathBuf {
        let dir = self.dir.path().join(name);
        fs::create_dir_all(dir.join("notes")).unwrap();
        fs::write(
            dir.join("adapter_config.json"),
            r#"{"peft_type": "LORA", "r": 8, "base_model_name_or_path": "tiny"}"#,
        )
        .unwrap();
        fs::write(dir.join("adapter_model.safetensors"), weights(seed)).unwrap();
        fs::write(
            dir.join("notes/about the run.md"),
            format!("seed {seed}\r\nsecond line\n"),
        )
        .unwrap();
        dir
    }

    /// Commits a directory on top of `parent`.
    pub fn release(&self, dir: &Path, parent: Option<&ReleaseId>, intent: &str) -> ReleaseId {
        let staged = self.repository.stage_directory(dir, None).unwrap();
        self.repository.commit(&staged, &draft(parent, intent)).unwrap()
    }
}

/// One pair of factors of rank 8, every byte `seed`.
fn weights(seed: u8) -> Vec<u8> {
    let tensor = |shape: [usize; 2], from: usize| serde_json::json!({"dtype": "U8", "shape": shape, "data_offsets": [from, from + 50_000]});
    let header = serde_json::json!({
        "q.lora_A.weight": tensor([8, 6_250], 0),
        "q.lora_B.weight": tensor([6_250, 8], 50_000),
    })
    .to_string();
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &vec![seed; 100_000],
    ]
    .concat()
}

pub fn open(dir: &Path) -> Repository {
    Repository::open(
        &dir.join("artifacts.git"),
        &dir.join("cache"),
        RepositoryOptions::default(),
    )
    .unwrap()
}

pub fn scenario(name: &str) -> ScenarioName {
    ScenarioName::new(name).unwrap()
}

pub fn draft(parent: Option<&ReleaseId>, intent: &str) -> Draft {
    Draft {
        scenario: Some(scenario("s")),
        operation: if parent.is_none() {
            Operation::Creation
        } else {
            Operation::Training
        },
        parent: parent.cloned(),
        target: None,
        held: false,
        source: Source::Training,
        provenance: Provenance::default(),
        intent: intent.to_owned(),
        at_us: 1_790_000_000_000_000,
    }
}

/// Runs a program as a person with a fresh account would, with git-lfs installed for that account.
pub fn stock(home: &Path, dir: &Path, program: &str, args: &[&str]) -> Output {
    let run = |program: &str, args: &[&str]| {
        Command::new(program)
            .args(args)
            .current_dir(dir)
            .env("HOME", home)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env_remove("GIT_CONFIG_GLOBAL")
            .env_remove("XDG_CONFIG_HOME")
            .output()
            .unwrap()
    };
    if !home.join(".gitconfig").exists() {
        fs::create_dir_all(home).unwrap();
        assert!(run("git", &["lfs", "install", "--skip-repo"]).status.success());
    }
    run(program, args)
}

/// As [`stock`], and it must succeed; gives standard output.
pub fn stock_ok(home: &Path, dir: &Path, program: &str, args: &[&str]) -> String {
    let output = stock(home, dir, program, args);
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Every file below a directory with its bytes, `.git` left out.
pub fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    fn walk(root: &Path, dir: &Path, out: &mut Vec<(String, Vec<u8>)>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if path.file_name().unwrap() != ".git" {
                    walk(root, &path, out);
                }
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                out.push((name, fs::read(&path).unwrap()));
            }
        }
    }
    let mut out = Vec::new();
    walk(dir, dir, &mut out);
    out.sort();
    out
}

/// Runs the program in `dir` with fail points armed.
pub fn reef(dir: &Path, failpoints: &str, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_reef"))
        .args(args)
        .current_dir(dir)
        .env("FAILPOINTS", failpoints)
        .output()
        .unwrap()
}

/// As [`reef`] with `--json`, and it must succeed; gives what it printed.
pub fn reef_json(dir: &Path, args: &[&str]) -> serde_json::Value {
    let mut args = args.to_vec();
    args.push("--json");
    let output = reef(dir, "", &args);
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}
