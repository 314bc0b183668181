//! What a push or a pull does about large files that are missing or damaged, here or there.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::remote::{Two, chain, import, ok};
use crate::rig::{reef, reef_json, stock_ok};

/// A second bare repository beside the first.
fn another(m: &Two, name: &str) -> String {
    let home = m.dir.path().join("home");
    stock_ok(&home, m.dir.path(), "git", &["init", "-q", "--bare", name]);
    m.dir.path().join(name).to_str().unwrap().to_owned()
}

fn machine(m: &Two, name: &str) -> PathBuf {
    let dir = m.dir.path().join(name);
    fs::create_dir(&dir).unwrap();
    dir
}

/// Other bytes of the same size in the object of a machine's newest release; gives its path and what it held.
fn damage_head(machine: &Path) -> (PathBuf, Vec<u8>) {
    let good = fs::read(machine.join("tree/w.safetensors")).unwrap();
    let path = Two::objects_in(&machine.join(".reef/artifacts.git"))
        .into_iter()
        .find(|path| fs::read(path).unwrap() == good)
        .unwrap();
    let mut bad = good.clone();
    bad[7] ^= 1;
    // A new file: the old one may be linked to elsewhere.
    fs::remove_file(&path).unwrap();
    fs::write(&path, bad).unwrap();
    (path, good)
}

fn incomplete(told: &Value) -> usize {
    told["incomplete"].as_array().unwrap().len()
}

#[test]
fn an_incomplete_push_says_so_and_the_next_complete_one_fills_the_gaps() {
    let m = Two::new();
    let backup = another(&m, "backup.git");
    ok(&m.push(&m.one));
    ok(&m.pull(&m.two, &[]));
    assert_eq!(m.objects_of(&m.two), 1);
    let pushed = reef(&m.two, "", &["release", "push", &backup, "--json"]);
    let said = String::from_utf8_lossy(&pushed.stderr).into_owned();
    assert!(said.contains("2 releases are incomplete"), "{said}");
    assert_eq!(incomplete(&ok(&pushed)), 2);
    // The remote that has them is complete, whoever pushes.
    assert_eq!(incomplete(&ok(&m.push(&m.two))), 0);

    // What there is of an incomplete backup can be had, and the rest is named.
    let third = machine(&m, "third");
    let pulled = ok(&reef(
        &third,
        "",
        &["release", "pull", &backup, "--objects", "all", "--json"],
    ));
    assert_eq!(pulled["moved"].as_array().unwrap().len(), 1);
    assert_eq!((incomplete(&pulled), &pulled["objects"]), (2, &Value::from(1)));
    assert_eq!(chain(&third), chain(&m.one));
    reef_json(&third, &["release", "export", "head", "out"]);

    // The refs there are those of here already; the objects are not.
    let pushed = ok(&reef(&m.one, "", &["release", "push", &backup, "--json"]));
    assert_eq!((pushed["moved"].as_array().unwrap().len(), incomplete(&pushed)), (0, 0));
    assert_eq!(Two::objects_in(Path::new(&backup)).len(), 3);
    let pulled = ok(&reef(
        &third,
        "",
        &["release", "pull", &backup, "--objects", "all", "--json"],
    ));
    assert_eq!((incomplete(&pulled), &pulled["objects"]), (0, &Value::from(2)));
    reef_json(&third, &["release", "verify"]);
}

#[test]
fn a_push_gives_back_what_a_remote_lost() {
    let m = Two::new();
    ok(&m.push(&m.one));
    for object in m.remote_objects() {
        fs::remove_file(object).unwrap();
    }
    ok(&m.push(&m.one));
    assert_eq!(m.remote_objects().len(), 3);
    ok(&m.pull(&m.two, &["--objects", "all"]));
    reef_json(&m.two, &["release", "verify"]);
}

#[test]
fn a_push_after_a_collection_names_what_retention_took() {
    let m = Two::new();
    reef_json(&m.one, &["release", "gc", "--keep", "1", "--grace", "0"]);
    assert_eq!(incomplete(&ok(&m.push(&m.one))), 1);
    assert_eq!(m.remote_objects().len(), 2);
}

#[test]
fn damage_of_the_right_size_is_healed_by_a_pull_and_by_an_import() {
    let m = Two::new();
    ok(&m.push(&m.one));
    let damaged = || reef(&m.one, "", &["release", "verify"]).status.code() == Some(40);
    let (object, good) = damage_head(&m.one);
    // A copy for engines made before the damage is a link to the same bytes.
    let copy = m.one.join(".reef/cache/sha256-copy");
    fs::create_dir_all(&copy).unwrap();
    fs::hard_link(&object, copy.join("w.safetensors")).unwrap();
    assert!(damaged());
    assert_eq!(ok(&m.pull(&m.one, &[]))["objects"], 1);
    assert!(!damaged());
    assert_eq!(fs::read(&object).unwrap(), good);
    assert!(!copy.exists(), "the copy held the damage");

    damage_head(&m.one);
    assert!(damaged());
    fs::write(m.one.join("tree/AGENTS.md"), "other words, the same weights").unwrap();
    reef_json(&m.one, &["release", "import", "tree"]);
    assert!(!damaged());

    // Where no remote has better bytes, the damage stays a finding.
    let (object, _) = damage_head(&m.one);
    let bad = fs::read(&object).unwrap();
    for object in m.remote_objects() {
        fs::remove_file(object).unwrap();
    }
    let pulled = ok(&m.pull(&m.one, &["--objects", "all"]));
    assert!(incomplete(&pulled) > 0);
    assert_eq!(fs::read(&object).unwrap(), bad);
}

#[test]
fn damage_is_not_sent_and_not_taken() {
    let m = Two::new();
    let (object, good) = damage_head(&m.one);
    let refused = m.push(&m.one);
    assert_eq!(refused.status.code(), Some(40));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("w.safetensors") && said.contains("not sent"), "{said}");
    // What is whole is safe there; no ref says that the rest is.
    assert_eq!(m.remote_objects().len(), 2);
    let home = m.dir.path().join("home");
    assert_eq!(stock_ok(&home, Path::new(&m.remote), "git", &["for-each-ref"]), "");
    fs::remove_file(&object).unwrap();
    fs::write(&object, &good).unwrap();
    ok(&m.push(&m.one));

    // A remote whose own object is damaged gives an error, and a later good one is taken.
    let name = object.file_name().unwrap();
    let theirs = m
        .remote_objects()
        .into_iter()
        .find(|path| path.file_name() == Some(name))
        .unwrap();
    fs::remove_file(&theirs).unwrap();
    fs::write(&theirs, "x".repeat(good.len())).unwrap();
    assert_eq!(m.pull(&m.two, &[]).status.code(), Some(2));
    fs::remove_file(&theirs).unwrap();
    ok(&m.push(&m.one));
    ok(&m.pull(&m.two, &[]));
    reef_json(&m.two, &["release", "export", "head", "out"]);
}

#[test]
fn a_remote_is_never_an_option() {
    let m = Two::new();
    let sign = m.dir.path().join("sign");
    for url in [
        format!("--upload-pack=touch {}", sign.display()),
        format!("--receive-pack=touch {}", sign.display()),
        format!("-oProxyCommand=touch {}", sign.display()),
        format!("ssh://-oProxyCommand=touch%20{}/x", sign.display()),
        format!("me@-oProxyCommand=touch {}:x", sign.display()),
        "a\nb".to_owned(),
        String::new(),
    ] {
        for way in ["push", "pull"] {
            let named = reef(&m.one, "", &["release", way, "--", &url]);
            let set = reef(&m.one, "", &["release", way, &format!("--release.remote={url}")]);
            let mut outputs = vec![named, set];
            // An empty address of the LFS server is none.
            if !url.is_empty() {
                let lfs = format!("--release.lfs-url={url}");
                outputs.push(reef(&m.one, "", &["release", way, &m.remote, &lfs]));
            }
            for output in outputs {
                assert_eq!(output.status.code(), Some(2), "{way} {url:?}");
            }
        }
    }
    let set = ["--release.push", "true", "--release.remote", "--upload-pack=x"];
    let mut import = vec!["release", "import", "tree"];
    import.extend(set);
    assert_eq!(reef(&m.one, "", &import).status.code(), Some(2));
    assert!(!sign.exists());
    // A directory of such a name is one.
    let home = m.dir.path().join("home");
    stock_ok(&home, &m.one, "git", &["init", "-q", "--bare", "./-odd@-name"]);
    ok(&reef(&m.one, "", &["release", "push", "--json", "--", "-odd@-name"]));
}

#[test]
fn chains_that_parted_are_joined_as_the_hint_says() {
    let m = Two::new();
    ok(&m.push(&m.one));
    ok(&m.pull(&m.two, &[]));
    let theirs = import(&m.two, "theirs");
    ok(&m.push(&m.two));
    let ours = import(&m.one, "ours");
    let refused = m.pull(&m.one, &[]);
    let hint = String::from_utf8_lossy(&refused.stderr).into_owned();
    for step in ["push --force", "scenario delete", "release pull", "release export"] {
        assert!(hint.contains(step), "{hint}");
    }
    reef_json(&m.one, &["release", "export", "head", "kept"]);
    assert!(reef(&m.one, "", &["scenario", "delete", "s", "--yes"]).status.success());
    ok(&m.pull(&m.one, &[]));
    assert_eq!(chain(&m.one)[0], theirs);
    assert_ne!(reef_json(&m.one, &["release", "import", "kept"])["release_id"], ours);
    ok(&m.push(&m.one));
}

#[test]
fn exits_tell_what_kind_of_failure_it_was() {
    let m = Two::new();
    let code = |args: &[&str]| reef(&m.one, "", args).status.code();
    assert_eq!(code(&["release", "push", "http://127.0.0.1:9/x.git"]), Some(30));
    assert_eq!(code(&["release", "pull", "/nonexistent/x.git"]), Some(2));
    ok(&m.push(&m.one));
    for object in m.remote_objects() {
        fs::remove_file(object).unwrap();
    }
    assert_eq!(m.pull(&m.two, &[]).status.code(), Some(2));

    fs::write(m.one.join("a-file"), "x").unwrap();
    for source in ["nowhere", "a-file"] {
        assert_eq!(code(&["release", "import", source]), Some(2), "{source}");
    }
    let before = chain(&m.one);
    for name in [
        ".git".to_owned(),
        "git~1".to_owned(),
        "GIT~1".to_owned(),
        ".git.".to_owned(),
        ".g\u{200c}it".to_owned(),
        ["d"; 600].join("/"),
    ] {
        let tree = m.one.join("odd");
        fs::create_dir_all(tree.join(&name)).unwrap();
        fs::write(tree.join(&name).join("f"), "x").unwrap();
        let output = reef(&m.one, "", &["release", "import", "odd"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name:?}: {said}");
        fs::remove_dir_all(&tree).unwrap();
    }
    assert_eq!(chain(&m.one), before);
}

#[test]
fn an_export_fills_a_directory_that_is_there_and_leaves_it_what_it_is() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    let m = Two::new();
    let there = m.one.join("there");
    fs::create_dir(&there).unwrap();
    fs::set_permissions(&there, fs::Permissions::from_mode(0o711)).unwrap();
    let before = fs::metadata(&there).unwrap();
    symlink("there", m.one.join("link")).unwrap();
    reef_json(&m.one, &["release", "export", "head", "link"]);
    let after = fs::metadata(&there).unwrap();
    assert_eq!(after.ino(), before.ino(), "a mount point could not have been replaced");
    assert_eq!(after.permissions().mode() & 0o777, 0o711);
    assert!(fs::symlink_metadata(m.one.join("link")).unwrap().is_symlink());
    let mut names: Vec<_> = fs::read_dir(&there).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["AGENTS.md", "reef-artifact.json", "w.safetensors"]);
    symlink("nothing", m.one.join("dangling")).unwrap();
    fs::write(m.one.join("file"), "x").unwrap();
    for target in ["there", "dangling", "file"] {
        let refused = reef(&m.one, "", &["release", "export", "head", target]);
        assert_eq!(refused.status.code(), Some(2), "{target}");
    }
}
