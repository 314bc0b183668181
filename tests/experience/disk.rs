//! A disk that takes nothing: the reason and the next step are told.

use std::path::Path;
use std::process::{Command, Output};

/// A script as root of a user namespace, with a small disk of its own at `disk`; nothing where none can be made.
fn on_a_small_disk(dir: &Path, script: &str) -> Option<Output> {
    let inside = |script: &str| {
        Command::new("unshare")
            .args(["-rm", "sh", "-ec", script, env!("CARGO_BIN_EXE_reef")])
            .current_dir(dir)
            .env("HOME", dir)
            .output()
    };
    std::fs::create_dir_all(dir.join("disk")).unwrap();
    let mount = "mount -t tmpfs -o size=1m tmpfs disk";
    if !inside(mount).is_ok_and(|output| output.status.success()) {
        eprintln!("no disk of its own can be made here, so a full one is not tested");
        return None;
    }
    Some(inside(&format!("{mount}\n{script}")).unwrap())
}

#[test]
fn a_store_that_cannot_be_opened_says_why_and_what_to_do() {
    let stats = "exec \"$0\" --dir disk/reef records stats";
    let import = "\"$0\" --dir disk/reef records import /dev/null";
    let fill = "dd if=/dev/zero of=disk/filler bs=4k 2>/dev/null || true";
    let read_only = "mount -o remount,ro disk";
    for (script, reason, step) in [
        // A new store, and one that is there.
        (format!("{fill}\nexec {import}"), "No space left", "make room"),
        (
            format!("{import} || true\n{fill}\n{stats}"),
            "No space left",
            "make room",
        ),
        (
            format!("{read_only}\nexec {import}"),
            "Read-only file system",
            "mount it for writing",
        ),
        (
            format!("{import} || true\n{read_only}\n{stats}"),
            "Read-only file system",
            "mount it for writing",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let Some(output) = on_a_small_disk(dir.path(), &script) else {
            return;
        };
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(40), "{script}\n{said}");
        assert!(said.contains("experience.db"), "{script}\n{said}");
        assert!(said.contains(reason), "{script}\n{said}");
        assert!(
            said.contains("hint: ") && said.contains(step) && said.contains("--dir"),
            "{script}\n{said}"
        );
    }
}
