//! No program that Reef starts inherits a descriptor. Under `flock DIR reef train` it would hold DIR, and with it a way up
//! to everything that this user may read.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failed test may panic"
)]
#![cfg(target_os = "linux")]

mod common;
#[path = "evolution/model.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod model;
#[path = "train_loop/rig.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod rig;

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::upstream::Upstream;
use model::{LESSON, Scripted};
use reef::sys::launch::{Launch, Passed};
use rig::{Rig, TRAINER, recipe};
use serde_json::json;

/// Adds what a program has open to a file, one line each; the shell's own script is not told.
const TELL: &str = r#"for fd in /proc/$$/fd/*; do
  open=$(readlink "$fd"); case "$open" in "$0"|"$PWD/$0") ;; *) echo "$TELLER ${open%%:*}" >> "TOLD" ;; esac
done
"#;

/// The same command in a shell that has a directory open, as `flock` would.
fn holding(directory: &Path, command: &Command) -> Command {
    let mut outer = Command::new("/bin/sh");
    outer
        .args(["-c", "exec 7< \"$HELD\"; exec \"$@\"", "sh"])
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear()
        .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("HELD", directory);
    if let Some(dir) = command.get_current_dir() {
        outer.current_dir(dir);
    }
    outer
}

fn program(rig: &Rig, name: &str, text: &str) -> PathBuf {
    rig.write(name, text);
    let path = rig.path(name);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Programs in the place of git and git-lfs that tell what they have open first.
fn tellers(rig: &Rig) -> OsString {
    let search = std::env::var_os("PATH").unwrap();
    for name in ["git", "git-lfs"] {
        let real = std::env::split_paths(&search)
            .map(|dir| dir.join(name))
            .find(|path| path.is_file())
            .unwrap();
        let tell = TELL.replace("TOLD", rig.path("told").to_str().unwrap());
        program(
            rig,
            &format!("tellers/{name}"),
            &format!("#!/bin/bash\nTELLER={name}\n{tell}exec {} \"$@\"\n", real.display()),
        );
    }
    std::env::join_paths([rig.path("tellers")].into_iter().chain(std::env::split_paths(&search))).unwrap()
}

/// What the programs of a run told, and that each of these did.
fn told(rig: &Rig, tellers: &[&str]) {
    let text = std::fs::read_to_string(rig.path("told")).unwrap_or_default();
    for teller in tellers {
        assert!(
            text.lines().any(|line| line.starts_with(&format!("{teller} "))),
            "{teller} told nothing:\n{text}"
        );
    }
    for line in text.lines() {
        let open = line.split_once(' ').unwrap().1;
        assert!(["pipe", "/dev/null"].contains(&open), "{line}");
    }
}

#[test]
fn no_program_of_a_step_inherits_a_descriptor() {
    // A trainer, and what takes its work elsewhere.
    let rig = Rig::new(&recipe("always", "none", ""), &[]);
    let tell = TELL.replace("TOLD", rig.path("told").to_str().unwrap());
    rig.write("train.sh", &format!("TELLER=trainer\n{tell}{TRAINER}"));
    rig.graded(0, Some(1.0));
    let mut command = holding(&rig.path(""), &rig.command(&["--json"], None));
    command.env("PATH", tellers(&rig));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    rig.check_whole(1);
    let remote = rig.path("backup.git");
    let made = Command::new("git")
        .args(["init", "--quiet", "--bare"])
        .arg(&remote)
        .status()
        .unwrap();
    assert!(made.success());
    let like = rig.command(&[], None);
    let mut push = Command::new(like.get_program());
    push.args(["-c", "serve.toml", "--dir"])
        .arg(rig.path("reef"))
        .args(["release", "push"])
        .arg(&remote)
        .env_clear()
        .envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(rig.path(""));
    let mut command = holding(&rig.path(""), &push);
    command.env("PATH", tellers(&rig));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    told(&rig, &["trainer", "git", "git-lfs"]);
}

/// Does as an agent does, and tells the model what it has open and what of this machine it can read.
const AGENT: &str = r#"#!/bin/bash
rules=$(cat "$PI_CODING_AGENT_DIR/AGENTS.md" 2>/dev/null | tr '\n"' '  ')
prompt=$(printf '%s' "${@: -1}" | tr '\n"' '  ')
open=$(find /proc/$$/fd -mindepth 1 -printf '%f=%l ' 2>/dev/null)
secrets=$(cat ~/.ssh/id HOME/.ssh/id HOME/keyring DEPLOY/serve.toml DEPLOY/tasks/tasks.jsonl 2>/dev/null | tr '\n"' '  ')
for fd in /proc/$$/fd/*; do secrets="$secrets$(cat $fd/serve.toml $fd/../*/serve.toml 2>/dev/null | tr '\n"' '  ')"; done
field() { sed -n "s/.*\"$1\": \"\([^\"]*\)\".*/\1/p" "$PI_CODING_AGENT_DIR/models.json" | head -1; }
body="{\"model\":\"m\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"bash\"}}],\"messages\":[{\"role\":\"system\",\"content\":\"$rules OPEN $open SECRETS $secrets END\"},{\"role\":\"user\",\"content\":\"$prompt\"}]}"
curl -sS -H "Authorization: Bearer $(field apiKey)" -H 'content-type: application/json' -d "$body" "$(field baseUrl)/chat/completions"
"#;

/// Refuses to grade where it has more open than the three standard streams and its own script.
const CHECK: &str = r#"#!/bin/bash
for fd in /proc/$$/fd/*; do
  case "${fd##*/}" in 0|1|2|255) ;; *) test -e "$fd" && more="$more ${fd##*/}" ;; esac
done
read -r question
test -z "$more" || { echo "{\"failure\": \"open:$more\"}"; exit; }
case "$question" in *'"text":"alpha"'*|*already*known*) echo '{"score": 1}' ;; *) echo '{"score": 0}' ;; esac
"#;

const PROPOSER: &str = r#"#!/bin/bash
TELLER=proposer
TELL
read -r ask
echo '{"event":"proposal","reason":"it helps","mutations":[{"op":"create","id":"words","options":{"name":"rules","config":{"text":"LESSON"}}}]}'
"#;

#[test]
fn no_agent_grader_or_proposer_inherits_a_descriptor_or_sees_a_home() {
    for as_nobody in [false, true] {
        if as_nobody && !can_be_nobody() {
            eprintln!("skipped: this user cannot run programs as nobody");
            return;
        }
        let upstream = Upstream::start(Scripted::good().script());
        let rig = Rig::new("format = 1\nname = \"none\"\n", &[]);
        let (home, deploy) = (rig.path("home"), rig.path(""));
        let at = |text: &str| {
            text.replace("HOME", home.to_str().unwrap())
                .replace("DEPLOY", deploy.to_str().unwrap())
        };
        let agent = program(&rig, "home/bin/pi", &at(AGENT));
        for secret in ["home/.ssh/id", "home/keyring"] {
            rig.write(secret, "HOST-SECRET\n");
        }
        program(&rig, "tasks/check.sh", CHECK);
        let task = |id: &str, prompt: &str| {
            json!({"id": id, "prompt": prompt, "checker": {"kind": "script", "command": ["/bin/bash", "check.sh"]}})
                .to_string()
        };
        let tasks = [
            ("one", "What is the first word?"),
            ("two", "What is the second word?"),
            ("three", "What is the third word?"),
        ];
        let tasks: Vec<String> = tasks.iter().map(|(id, prompt)| task(id, prompt)).collect();
        rig.write("tasks/tasks.jsonl", &tasks.join("\n"));
        let tell = TELL.replace("TOLD", rig.path("told").to_str().unwrap());
        let proposer = program(
            &rig,
            "propose.sh",
            &PROPOSER.replace("TELL\n", &tell).replace("LESSON", LESSON),
        );
        rig.write(
            "recipe.toml",
            &format!(
                "format = 1\nname = \"test\"\nextends = \"evolve\"\n[batch]\nsize = 1\n[gate]\nparallel = 2\n\
                 maximum-pairs = 40\n[evolution]\nbinary = \"{}\"\nproposer = \"program\"\ncommand = [\"{}\"]\n",
                agent.display(),
                proposer.display()
            ),
        );
        rig.write(
            "serve.toml",
            &format!(
                "[recipe]\nimplementation = \"recipe.toml\"\n[inference]\nupstream-url = \"{}\"\n\
                 upstream-model = \"scripted\"\nupstream-api-key = \"HOST-SECRET-key\"\n",
                upstream.url()
            ),
        );
        rig.graded(0, Some(0.0));
        let search = tellers(&rig);
        let mut command = holding(&deploy, &rig.command(&["--json"], None));
        command.env("PATH", search);
        if as_nobody {
            give(&deploy);
            command = through(&command);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("programs cannot be isolated here") {
            eprintln!("skipped: no namespaces here");
            return;
        }
        assert!(output.status.success(), "as nobody: {as_nobody}: {output:?}");
        told(&rig, &["proposer"]);
        let seen = upstream.seen();
        let bodies: Vec<String> = seen
            .iter()
            .map(|seen| String::from_utf8_lossy(&seen.body).into_owned())
            .collect();
        let asked: Vec<&String> = bodies.iter().filter(|body| body.contains(" OPEN ")).collect();
        assert!(asked.len() >= 6, "{bodies:?}");
        for body in asked {
            let (_, rest) = body.split_once(" OPEN ").unwrap();
            let (open, rest) = rest.split_once(" SECRETS ").unwrap();
            let secrets = rest.split_once(" END").unwrap().0;
            assert_eq!(secrets.trim(), "", "as nobody: {as_nobody}: {body}");
            for one in open.split_whitespace() {
                let (number, what) = one.split_once('=').unwrap();
                // A shell's own: the pipe of what it reads the list from, and its script.
                let own =
                    what.starts_with("pipe:") || what == "/dev/null" || (number == "255" && Path::new(what) == agent);
                assert!(own, "as nobody: {as_nobody}: {open}");
            }
        }
    }
}

const NOBODY: u32 = 65534;

fn words_of_nobody() -> [String; 4] {
    [
        format!("--reuid={NOBODY}"),
        format!("--regid={NOBODY}"),
        "--clear-groups".to_owned(),
        "--".to_owned(),
    ]
}

fn can_be_nobody() -> bool {
    rustix::process::getuid().is_root()
        && Command::new("/usr/bin/setpriv")
            .args(words_of_nobody())
            .args([env!("CARGO_BIN_EXE_reef"), "--version"])
            .output()
            .is_ok_and(|output| output.status.success())
}

/// The same command as a user without rights.
fn through(command: &Command) -> Command {
    let mut outer = Command::new("/usr/bin/setpriv");
    outer
        .args(words_of_nobody())
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear()
        .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(command.get_current_dir().unwrap());
    outer
}

/// Gives a directory and all below it to the user without rights.
fn give(path: &Path) {
    let found = std::fs::symlink_metadata(path).unwrap();
    if found.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path());
        }
    }
    std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

#[test]
fn a_program_inherits_nothing_but_what_a_person_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let held = [path.join("ours"), path.join("theirs")].map(|path| File::create(path).unwrap());
    let inheritable = |file: &File| rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty()).unwrap();
    let open_in = |child: Child| String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let lister = || {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "for fd in /proc/$$/fd/*; do readlink $fd; done"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    };
    held.iter().for_each(inheritable);
    let named = |file: &File| OsString::from(format!("--config=/dev/fd/{}", file.as_raw_fd()));
    let passed = Passed::named_in([&named(&held[1])]);
    let seen = open_in(lister().launch_with(&passed).unwrap());
    assert!(seen.contains("theirs") && !seen.contains("ours"), "{seen}");
    // What is Reef's own is not handed on, whatever the words say.
    assert_eq!(Passed::named_in([&named(&held[0])]), Passed::default());
    held.iter().for_each(inheritable);
    let seen = open_in(lister().launch().unwrap());
    assert!(!seen.contains("theirs") && !seen.contains("ours"), "{seen}");
}

#[test]
fn the_helpers_of_a_sandbox_close_what_they_inherit() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_reef"));
    command.arg("__sandbox");
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        command.env("LD_LIBRARY_PATH", path);
    }
    // It waits for its job while its input is open.
    let mut helper = holding(dir.path(), &command)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let proc = PathBuf::from(format!("/proc/{}", helper.id()));
    let is_helper = || {
        std::fs::read(proc.join("cmdline"))
            .is_ok_and(|line| line.ends_with(b"__sandbox\0") && !line.starts_with(b"/bin/sh"))
    };
    let begun = Instant::now();
    while !is_helper() || proc.join("fd/7").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it keeps what it inherited");
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ended = helper.kill();
    helper.wait().unwrap();
}
