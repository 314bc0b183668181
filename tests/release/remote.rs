//! Moving chains between repositories, and what happens when that is cut short.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::rig::{files, reef, reef_json, stock_ok};

/// A machine with a chain of three releases, and an empty bare repository beside it.
pub struct Two {
    pub dir: tempfile::TempDir,
    pub one: PathBuf,
    pub two: PathBuf,
    pub remote: String,
}

impl Two {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let remote = dir.path().join("remote.git");
        for path in [&one, &two] {
            fs::create_dir(path).unwrap();
        }
        stock_ok(
            &dir.path().join("home"),
            dir.path(),
            "git",
            &["init", "-q", "--bare", "remote.git"],
        );
        reef_json(&one, &["scenario", "create", "s"]);
        for n in 0..3 {
            import(&one, &format!("content {n}"));
        }
        Self {
            one,
            two,
            remote: remote.to_str().unwrap().to_owned(),
            dir,
        }
    }

    pub fn push(&self, from: &Path) -> Output {
        reef(from, "", &["release", "push", &self.remote, "--json"])
    }

    pub fn pull(&self, to: &Path, args: &[&str]) -> Output {
        let mut all = vec!["release", "pull", self.remote.as_str(), "--json"];
        all.extend(args);
        reef(to, "", &all)
    }

    pub fn remote_objects(&self) -> Vec<PathBuf> {
        Self::objects_in(Path::new(&self.remote))
    }

    pub fn objects_of(&self, machine: &Path) -> usize {
        Self::objects_in(&machine.join(".reef/artifacts.git")).len()
    }

    pub fn objects_in(repository: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut dirs = vec![repository.join("lfs/objects")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else {
                    found.push(path);
                }
            }
        }
        found
    }
}

pub fn ok(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn import(dir: &Path, text: &str) -> String {
    let tree = dir.join("tree");
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("AGENTS.md"), text).unwrap();
    fs::write(tree.join("w.safetensors"), text.repeat(1000)).unwrap();
    reef_json(dir, &["release", "import", "tree"])["release_id"]
        .as_str()
        .unwrap()
        .to_owned()
}

pub fn chain(dir: &Path) -> Vec<String> {
    let listing = reef_json(dir, &["release", "list", "--all"]);
    let rows = listing["releases"].as_array().unwrap();
    rows.iter()
        .map(|row| row["release_id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_second_machine_gets_the_chain_and_both_go_on() {
    let m = Two::new();
    import(&m.one, "waiting");
    let held = reef_json(&m.one, &["release", "rollback", "head~1"])["release_id"].clone();
    assert!(held.is_string());
    let held = {
        fs::write(m.one.join("tree/AGENTS.md"), "for review").unwrap();
        reef_json(&m.one, &["release", "import", "tree", "--hold"])["release_id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let pushed = ok(&m.push(&m.one));
    assert_eq!(pushed["moved"][0]["scenario"], "s");
    assert_eq!(pushed["held"], 1);
    assert_eq!(ok(&m.push(&m.one))["moved"].as_array().unwrap().len(), 0);

    ok(&m.pull(&m.two, &[]));
    let (here, there) = (chain(&m.one), chain(&m.two));
    let without_held = |ids: &[String]| ids.iter().filter(|id| **id != held).cloned().collect::<Vec<_>>();
    assert_eq!(without_held(&here), without_held(&there));
    assert!(there.contains(&held));
    // Only the newest content came along; older content is one more pull away, or comes by itself on rollback.
    let old = there.last().unwrap();
    let oldest_with_files = &without_held(&there)[there.len() - 3];
    assert!(
        !reef(&m.two, "", &["release", "rollback", oldest_with_files])
            .status
            .success()
    );
    let back = reef(
        &m.two,
        "",
        &[
            "release",
            "rollback",
            oldest_with_files,
            "--release.remote",
            &m.remote,
            "--json",
        ],
    );
    assert_eq!(ok(&back)["appended"], true);
    assert!(old.len() == 40);
    reef_json(&m.two, &["release", "verify"]);

    // The second machine goes on, the first follows.
    reef_json(&m.two, &["release", "promote", &held]);
    ok(&m.push(&m.two));
    ok(&m.pull(&m.one, &["--objects", "all"]));
    assert_eq!(chain(&m.one)[0], chain(&m.two)[0]);
    let listing = reef_json(&m.one, &["release", "list", "--held"]);
    assert_eq!(listing["releases"].as_array().unwrap().len(), 0, "{listing}");
    // A plain clone of the remote is the artifact.
    let home = m.dir.path().join("home");
    stock_ok(
        &home,
        m.dir.path(),
        "git",
        &["clone", "-q", "-b", "s", &m.remote, "clone"],
    );
    let mut cloned = files(&m.dir.path().join("clone"));
    cloned.retain(|(name, _)| name != "reef-artifact.json" && name != ".gitattributes");
    reef_json(&m.one, &["release", "export", "head", "out"]);
    let mut exported = files(&m.one.join("out"));
    exported.retain(|(name, _)| name != "reef-artifact.json");
    assert_eq!(cloned, exported);
}

#[test]
fn chains_that_went_apart_are_never_overwritten_by_accident() {
    let m = Two::new();
    ok(&m.push(&m.one));
    ok(&m.pull(&m.two, &[]));
    let theirs = import(&m.two, "theirs");
    ok(&m.push(&m.two));
    let ours = import(&m.one, "ours");
    for refused in [m.push(&m.one), m.pull(&m.one, &[])] {
        assert_eq!(refused.status.code(), Some(20));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains(&theirs), "{said}");
    }
    assert_eq!(chain(&m.one)[0], ours);
    ok(&reef(&m.one, "", &["release", "push", &m.remote, "--force", "--json"]));
    let fresh = m.dir.path().join("three");
    fs::create_dir(&fresh).unwrap();
    ok(&m.pull(&fresh, &[]));
    assert_eq!(chain(&fresh)[0], ours);
}

#[test]
#[cfg_attr(not(feature = "failpoints"), ignore = "needs the feature failpoints")]
fn a_push_cut_short_leaves_no_ref_without_its_objects() {
    let m = Two::new();
    for (point, is_out) in [
        ("release::push_after_objects", false),
        ("release::push_after_refs", true),
    ] {
        import(&m.one, point);
        let killed = reef(
            &m.one,
            &format!("{point}=return(kill)"),
            &["release", "push", &m.remote],
        );
        assert_eq!(killed.status.signal(), Some(9));
        let home = m.dir.path().join("home");
        let refs = stock_ok(&home, Path::new(&m.remote), "git", &["for-each-ref"]);
        assert_eq!(refs.contains(&chain(&m.one)[0]), is_out, "{refs}");
        let fresh = m.dir.path().join(point);
        fs::create_dir(&fresh).unwrap();
        if is_out {
            ok(&m.pull(&fresh, &["--objects", "all"]));
            reef_json(&fresh, &["release", "verify"]);
        }
        ok(&m.push(&m.one));
        ok(&m.pull(&fresh, &["--objects", "all"]));
        assert_eq!(chain(&fresh), chain(&m.one));
        reef_json(&fresh, &["release", "verify"]);
    }
}

#[test]
#[cfg_attr(not(feature = "failpoints"), ignore = "needs the feature failpoints")]
fn a_pull_cut_short_moves_nothing_and_can_be_repeated() {
    let m = Two::new();
    ok(&m.push(&m.one));
    ok(&m.pull(&m.two, &[]));
    let before = chain(&m.two);
    import(&m.one, "more");
    ok(&m.push(&m.one));
    let killed = reef(
        &m.two,
        "release::pull_before_refs=return(kill)",
        &["release", "pull", &m.remote],
    );
    assert_eq!(killed.status.signal(), Some(9));
    assert_eq!(chain(&m.two), before);
    ok(&m.pull(&m.two, &[]));
    assert_eq!(chain(&m.two), chain(&m.one));
    // Older content can still be asked for when no chain moves.
    let before = m.objects_of(&m.two);
    assert_eq!(ok(&m.pull(&m.two, &["--objects", "all"]))["objects"], 4 - before);
    assert_eq!(m.objects_of(&m.two), 4);
}

#[test]
fn a_pull_whose_objects_are_missing_moves_nothing() {
    let m = Two::new();
    ok(&m.push(&m.one));
    for object in m.remote_objects() {
        fs::remove_file(object).unwrap();
    }
    let refused = m.pull(&m.two, &[]);
    assert!(!refused.status.success());
    let listed = reef(&m.two, "", &["release", "list"]);
    assert!(!listed.status.success(), "no chain came without its objects");
}

#[test]
fn hostile_user_configuration_does_not_reach_push_pull_and_gc() {
    let m = Two::new();
    let home = m.dir.path().join("hostile");
    fs::create_dir_all(home.join("hooks")).unwrap();
    let hook = home.join("hooks/pre-push");
    fs::write(&hook, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(
        home.join(".gitconfig"),
        format!(
            "[core]\n hooksPath = {}/hooks\n autocrlf = true\n[lfs]\n url = http://127.0.0.1:9/nowhere\n\
             [url \"http://127.0.0.1:9/\"]\n insteadOf = file://\n[push]\n gpgSign = true\n[fetch]\n fsckObjects = maybe\n",
            home.display()
        ),
    )
    .unwrap();
    for (dir, args) in [
        (&m.one, vec!["release", "push", m.remote.as_str()]),
        (&m.two, vec!["release", "pull", m.remote.as_str(), "--objects", "all"]),
        (&m.two, vec!["release", "gc", "--grace", "0"]),
        (&m.two, vec!["release", "verify"]),
    ] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_reef"))
            .args(&args)
            .current_dir(dir)
            .env("HOME", &home)
            .env("XDG_CONFIG_HOME", &home)
            .env("GIT_DIR", "/nonexistent")
            .env("GIT_LFS_SKIP_PUSH", "1")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert_eq!(chain(&m.one), chain(&m.two));
}

#[test]
fn a_remote_that_is_not_there_is_said_in_a_line_with_no_credential() {
    let m = Two::new();
    let output = reef(
        &m.one,
        "",
        &["release", "push", "http://user:hunter2@127.0.0.1:9/x.git"],
    );
    assert_eq!(output.status.code(), Some(30));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("hunter2"), "{said}");
    let output = reef(&m.one, "", &["release", "push"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn every_release_is_pushed_where_that_is_configured() {
    let m = Two::new();
    let mirrored = ["--release.push", "true", "--release.remote", m.remote.as_str()];
    let run = |args: &[&str]| {
        let mut all = args.to_vec();
        all.extend(mirrored);
        reef_json(&m.one, &all)
    };
    let released = run(&["release", "import", "tree", "--hold"])["release_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let promoted = run(&["release", "promote", &released])["release_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let home = m.dir.path().join("home");
    let refs = stock_ok(&home, Path::new(&m.remote), "git", &["for-each-ref"]);
    assert!(refs.contains(&format!("{promoted} commit\trefs/heads/s")), "{refs}");
    // A remote that cannot be reached does not stop a release.
    let away = reef(
        &m.one,
        "",
        &[
            "release",
            "rollback",
            "head~2",
            "--release.push",
            "true",
            "--release.remote",
            "/nonexistent/x.git",
        ],
    );
    assert!(away.status.success(), "{}", String::from_utf8_lossy(&away.stderr));
    assert!(String::from_utf8_lossy(&away.stderr).contains("not pushed"));
    ok(&m.push(&m.one));
}

#[test]
fn a_rejection_travels_with_a_push_and_holds_where_it_arrives() {
    let m = Two::new();
    let hold = |dir: &Path, text: &str| {
        let tree = dir.join("tree");
        fs::create_dir_all(&tree).unwrap();
        fs::write(tree.join("AGENTS.md"), text).unwrap();
        let held = reef_json(dir, &["release", "import", "tree", "--hold"]);
        held["release_id"].as_str().unwrap().to_owned()
    };
    let state = |dir: &Path, id: &str| {
        let listing = reef_json(dir, &["release", "list", "--all"]);
        let rows = listing["releases"].as_array().unwrap().clone();
        let row = rows.into_iter().find(|row| row["release_id"] == id);
        row.map(|row| row["state"].as_str().unwrap().to_owned())
    };
    let (refused, waiting) = (hold(&m.one, "no"), hold(&m.one, "perhaps"));
    ok(&m.push(&m.one));
    ok(&m.pull(&m.two, &[]));
    assert_eq!(state(&m.two, &refused).as_deref(), Some("held"));

    reef_json(&m.one, &["release", "reject", &refused, "--note", "worse"]);
    assert_eq!(ok(&m.push(&m.one))["rejected"], 1);
    assert_eq!(ok(&m.push(&m.one))["rejected"], 0);
    // A machine that had it, and one that never did.
    let three = m.dir.path().join("three");
    fs::create_dir(&three).unwrap();
    for machine in [&m.two, &three] {
        assert_eq!(ok(&m.pull(machine, &[]))["rejected"], 1);
        assert_eq!(ok(&m.pull(machine, &[]))["rejected"], 0);
        assert_eq!(state(machine, &refused).as_deref(), Some("rejected"));
        assert_eq!(state(machine, &waiting).as_deref(), Some("held"));
        let output = reef(machine, "", &["release", "promote", &refused]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("is rejected"));
        // Also after the store is lost: the repository knows.
        for entry in fs::read_dir(machine.join(".reef")).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_string_lossy().starts_with("experience.db") {
                fs::remove_file(path).unwrap();
            }
        }
        ok(&m.pull(machine, &[]));
        assert_eq!(state(machine, &refused).as_deref(), Some("rejected"));
        assert_eq!(state(machine, &waiting).as_deref(), Some("held"));
    }
    reef_json(&m.two, &["release", "promote", &waiting]);
    ok(&m.push(&m.two));
    ok(&m.pull(&m.one, &[]));
    assert_eq!(state(&m.one, &refused).as_deref(), Some("rejected"));
    assert_eq!(state(&m.one, &waiting).as_deref(), Some("promoted"));
}

#[test]
fn what_was_held_of_an_archived_chain_is_not_held_of_the_next_one() {
    let m = Two::new();
    fs::write(m.one.join("tree/AGENTS.md"), "waiting").unwrap();
    let held = reef_json(&m.one, &["release", "import", "tree", "--hold"])["release_id"].clone();
    ok(&m.push(&m.one));
    reef_json(&m.one, &["scenario", "delete", "s", "--yes"]);
    reef_json(&m.one, &["scenario", "create", "s"]);
    import(&m.one, "another chain");
    ok(&reef(&m.one, "", &["release", "push", &m.remote, "--force", "--json"]));
    let listing = |dir: &Path| reef_json(dir, &["release", "list", "--held"])["releases"].clone();
    assert_eq!(ok(&m.pull(&m.two, &[]))["held"], 0);
    for dir in [&m.one, &m.two] {
        assert_eq!(listing(dir), Value::Array(Vec::new()));
        let output = reef(dir, "", &["release", "promote", held.as_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
    }
}
