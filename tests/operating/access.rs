//! Prompts and answers are private: no other user of the machine reads or changes what Reef keeps.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::reef::{Reef, command, run};
use crate::common::upstream::{Upstream, answer};
use crate::common::wait_for;

/// A learning deployment: every report becomes a release.
pub const DEPLOYMENT: [(&str, &str); 3] = [
    (
        "recipe.toml",
        r#"
format = 1
name = "scripted"
[processor]
kind = "reported"
tokens = false
[batch]
size = 1
max-staleness = 100
[trainer]
backend = "program"
command = ["sh", "train.sh"]
[gate]
selector = "always"
evaluator = "none"
[surface]
kind = "lora-adapter"
"#,
    ),
    (
        "train.sh",
        r#"
read -r ask
out=$(printf '%s' "$ask" | sed -n 's/.*"output":"\([^"]*\)".*/\1/p')
printf '{"peft_type": "LORA", "r": 1}' > "$out/adapter_config.json"
{
  printf '\216\000\000\000\000\000\000\000'
  printf '%s' '{"q.lora_A.weight":{"dtype":"U8","shape":[1,34],"data_offsets":[0,34]},"q.lora_B.weight":{"dtype":"U8","shape":[34,1],"data_offsets":[34,68]}}'
  date +%N | sha256sum
} | head -c 218 > "$out/adapter_model.safetensors"
head -c 300000 /dev/urandom > "$out/notes.safetensors.bin"
echo '{"event":"done","metrics":{"loss":0.5}}'
"#,
    ),
    ("serve.toml", "[recipe]\nimplementation = \"recipe.toml\"\n"),
];

/// What is asked.
pub const QUESTION: &str = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;

/// A command under a umask of its own: nothing of this process changes.
fn under(umask: &str, dir: &Path, args: &[&str]) -> Command {
    let mut shell = command(dir);
    let program = shell.get_program().to_owned();
    shell = in_place_of(&shell, "sh");
    shell
        .args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\"")])
        .arg(program)
        .args(args);
    shell
}

/// The same directory and environment for another program.
fn in_place_of(command: &Command, program: &str) -> Command {
    let mut other = Command::new(program);
    other.env_clear().current_dir(command.get_current_dir().unwrap());
    other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    other
}

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Everything below a directory, itself first.
fn below(dir: &Path) -> Vec<PathBuf> {
    let mut all = vec![dir.to_owned()];
    let mut next = 0;
    while next < all.len() {
        if fs::symlink_metadata(&all[next]).is_ok_and(|metadata| metadata.is_dir()) {
            all.extend(fs::read_dir(&all[next]).unwrap().map(|entry| entry.unwrap().path()));
        }
        next += 1;
    }
    all
}

fn open_to_others(dir: &Path, denied: u32) -> Vec<String> {
    below(dir)
        .iter()
        .filter(|path| !path.is_symlink() && mode(path) & denied != 0)
        .map(|path| format!("{:o} {}", mode(path), path.display()))
        .collect()
}

/// Serves, learns once, and stops; gives the directory.
fn lived(umask: &str, args: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in DEPLOYMENT {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let upstream = Upstream::always(answer(
        200,
        "application/json",
        r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#,
    ));
    let url = upstream.url();
    let words = [&["-c", "serve.toml", "--upstream-url", &url], args].concat();
    let mut reef = Reef::start_with(dir.path(), &words, |command| {
        let args: Vec<_> = command.get_args().map(|arg| arg.to_str().unwrap().to_owned()).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut shell = under(umask, dir.path(), &args);
        shell
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        *command = shell;
    });
    let receipt = reef.post("/v1/chat/completions", QUESTION).receipt().unwrap();
    let reported = reef.post("/reef/report", format!(r#"{{"references":["{receipt}"],"score":1.0}}"#));
    assert!(reported.status < 300, "{}", reported.status);
    wait_for("a release", || {
        let status = reef.status();
        (status["scenarios"]["s"]["training"]["last"]["outcome"] == "released").then_some(())
    });
    reef.signal(rustix::process::Signal::TERM);
    assert!(reef.wait().success());
    dir
}

#[test]
fn whatever_the_umask_only_the_owner_gets_at_what_reef_keeps() {
    let dir = lived("000", &[]);
    let files = dir.path().join(".reef");
    assert_eq!(mode(&files), 0o700);
    let known: Vec<_> = below(&files);
    for part in [
        "experience.db",
        "artifacts.git/lfs/objects",
        "logs/reef.jsonl",
        "run",
        "work",
    ] {
        assert!(
            known.iter().any(|path| path.starts_with(files.join(part))),
            "{part} is there"
        );
    }
    assert_eq!(open_to_others(&files, 0o077), Vec::<String>::new());

    // What a person asks for follows their own umask; what was said stays private.
    let out = under("022", dir.path(), &["release", "export", "head", "out/here"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    assert_eq!(mode(dir.path().join("out")), 0o755);
    for path in below(&dir.path().join("out/here")) {
        let wanted = if path.is_dir() { 0o755 } else { 0o644 };
        assert_eq!(mode(&path), wanted, "{}", path.display());
    }
    let out = under("000", dir.path(), &["records", "export", "records.jsonl"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    assert_eq!(mode(dir.path().join("records.jsonl")), 0o600);
    let out = under("027", dir.path(), &["release", "log", "--html", "chain.html"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    assert_eq!(mode(dir.path().join("chain.html")), 0o640);
    assert_eq!(open_to_others(&files, 0o077), Vec::<String>::new());
}

#[test]
fn a_group_shares_the_files_when_the_deployment_says_so() {
    let dir = lived("077", &["--storage.access", "group"]);
    let files = dir.path().join(".reef");
    assert_eq!(mode(&files), 0o2770);
    assert_eq!(open_to_others(&files, 0o007), Vec::<String>::new());
    for name in ["experience.db", "logs/reef.jsonl", "artifacts.git/config"] {
        assert_eq!(mode(files.join(name)), 0o660, "{name}");
    }
    for path in below(&files).iter().filter(|path| path.is_dir()) {
        assert_eq!(mode(path) & 0o2070, 0o2070, "{} is the group's too", path.display());
    }
}

fn doctor(dir: &Path, args: &[&str]) -> (i32, Vec<Value>) {
    let out = run(dir, &[&["doctor", "--offline", "--json"][..], args].concat());
    let said: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{out:?}"));
    (out.status.code().unwrap(), said["checks"].as_array().unwrap().clone())
}

fn finding(checks: &[Value], name: &str) -> Value {
    checks
        .iter()
        .find(|check| check["check"] == name)
        .cloned()
        .unwrap_or_default()
}

#[test]
fn the_doctor_names_and_closes_what_an_older_version_left_open() {
    let dir = lived("022", &[]);
    let files = dir.path().join(".reef");
    let installed = dir.path().join(".local/share/reef/harness/pi/s");
    fs::create_dir_all(installed.join("runs")).unwrap();
    fs::write(installed.join("token"), "secret").unwrap();
    fs::write(installed.join("runs/1.bodies.jsonl"), "{}").unwrap();
    let elsewhere = dir.path().join("elsewhere");
    fs::write(&elsewhere, "").unwrap();
    std::os::unix::fs::symlink(&elsewhere, files.join("work/link")).unwrap();
    for path in [below(&files), below(&installed), vec![elsewhere.clone()]].concat() {
        if !path.is_symlink() {
            let wide = if path.is_dir() { 0o777 } else { 0o666 };
            fs::set_permissions(&path, Permissions::from_mode(wide)).unwrap();
        }
    }
    let (_, checks) = doctor(dir.path(), &[]);
    for (name, first) in [
        ("permissions", files.as_path()),
        ("agents' files", installed.ancestors().nth(2).unwrap()),
    ] {
        let found = finding(&checks, name);
        assert_eq!(found["status"], "failed", "{found}");
        assert!(
            found["detail"].as_str().unwrap().contains(first.to_str().unwrap()),
            "{found}"
        );
        assert!(found["fix"].as_str().unwrap().contains("reef doctor --fix"), "{found}");
    }
    assert_ne!(open_to_others(&files, 0o077).len(), 0, "nothing changes unasked");

    let (_, checks) = doctor(dir.path(), &["--fix"]);
    assert_eq!(finding(&checks, "permissions")["status"], "ok");
    assert_eq!(open_to_others(&files, 0o077), Vec::<String>::new());
    assert_eq!(open_to_others(&installed, 0o077), Vec::<String>::new());
    assert_eq!(mode(&elsewhere), 0o666, "a link leads nowhere");
    let (_, checks) = doctor(dir.path(), &[]);
    assert_eq!(finding(&checks, "permissions")["status"], "ok");
    assert_eq!(finding(&checks, "store")["status"], "ok");
}
