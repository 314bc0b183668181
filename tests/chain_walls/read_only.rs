//! A directory that may only be read: another user's, or one on a disk that is mounted read-only.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::rig::reef_json;

/// How a directory is made read-only for the program.
#[derive(Debug, Clone, Copy)]
enum How {
    /// The file system is mounted so, which binds root as well.
    Mounted,
    /// It is an ordinary user's command on root's files.
    Another,
}

/// Runs `reef` on files that it cannot write to; `None` where this machine does not let a test arrange that.
fn run(how: How, dir: &Path, args: &[&str]) -> Option<Output> {
    let program = env!("CARGO_BIN_EXE_reef");
    let mut command = match how {
        How::Mounted => {
            let mut command = Command::new("unshare");
            command.args(["--map-root-user", "--mount", "sh", "-c"]);
            command.arg("mount --bind \"$DIR/.reef\" \"$DIR/.reef\" && mount -o remount,bind,ro \"$DIR/.reef\" || exit 99; exec \"$@\"");
            command.arg("sh").arg(program);
            command
        }
        How::Another => {
            let mut command = Command::new("setpriv");
            command
                .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
                .arg(program);
            command
        }
    };
    let output = command
        .args(args)
        .current_dir(dir)
        .env("DIR", dir)
        .env("HOME", "/nonexistent")
        .output()
        .ok()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = ["unshare:", "setpriv:", "mount:"]
        .iter()
        .any(|program| said.starts_with(program));
    (!refused && output.status.code() != Some(99)).then_some(output)
}

fn ok(how: How, dir: &Path, args: &[&str]) -> Option<Value> {
    let output = run(how, dir, args)?;
    assert!(
        output.status.success(),
        "{how:?} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Every file below a directory with its bytes and the moment of its last change.
fn state(dir: &Path) -> Vec<(std::path::PathBuf, std::time::SystemTime, u64)> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                dirs.push(entry.path());
            }
            found.push((entry.path(), metadata.modified().unwrap(), metadata.len()));
        }
    }
    found.sort();
    found
}

#[test]
fn what_may_only_be_read_is_listed_verified_and_exported() {
    for how in [How::Mounted, How::Another] {
        let own = tempfile::tempdir().unwrap();
        let dir = own.path();
        reef_json(dir, &["scenario", "create", "s"]);
        std::fs::create_dir(dir.join("tree")).unwrap();
        std::fs::write(dir.join("tree/AGENTS.md"), "one").unwrap();
        std::fs::write(dir.join("tree/w.safetensors"), "weights".repeat(100)).unwrap();
        let made = reef_json(dir, &["release", "import", "tree"]);
        std::fs::create_dir(dir.join("out")).unwrap();
        open_up(dir);
        let before = state(&dir.join(".reef"));
        let Some(listing) = ok(how, dir, &["release", "list", "--json"]) else {
            continue;
        };
        assert_eq!(listing["head"], made["release_id"]);
        assert_eq!(listing["releases"].as_array().unwrap().len(), 2);
        for args in [
            &["release", "verify", "--json"][..],
            &["release", "show", "head", "--json"],
            &["release", "diff", "head~1", "head", "--json"],
            &["release", "export", "head", "out/x", "--json"],
            &["scenario", "list", "--json"],
            &["train", "show", "--json"],
        ] {
            ok(how, dir, args).unwrap();
        }
        assert_eq!(std::fs::read(dir.join("out/x/AGENTS.md")).unwrap(), b"one");
        assert_eq!(std::fs::read(dir.join("out/x/w.safetensors")).unwrap().len(), 700);
        // What would write is refused in words.
        for args in [
            &["release", "rollback", "head~1"][..],
            &["release", "gc"],
            &["scenario", "delete", "s", "--yes"],
        ] {
            let refused = run(how, dir, args).unwrap();
            assert!(!refused.status.success(), "{how:?} {args:?}");
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(!said.contains("panicked"), "{said}");
        }
        let refused = run(how, dir, &["release", "rollback", "head~1"]).unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            said.contains("opened for reading") && said.contains("belongs to"),
            "{how:?}: {said}"
        );
        assert_eq!(state(&dir.join(".reef")), before, "{how:?}");
    }
}

/// Lets others read what Reef keeps to its owner, and write where the export goes.
fn open_up(dir: &Path) {
    for args in [&["-R", "a+rX", "."][..], &["a+rwx", "out"]] {
        let done = Command::new("chmod").args(args).current_dir(dir).status().unwrap();
        assert!(done.success());
    }
}
