//! Verification, collection, comparison.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::rig::{reef, reef_json, stock_ok};

/// Nothing older than the newest few.
const NO_OLDER: &str = "--release.retention-older=none";

fn import(dir: &Path, seed: u8, kib: usize) -> String {
    let tree = dir.join("tree");
    fs::create_dir_all(&tree).unwrap();
    let noise: Vec<u8> = (0..kib * 1024)
        .scan(u32::from(seed) + 1, |state, _| {
            *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Some((*state >> 24) as u8)
        })
        .collect();
    fs::write(tree.join("weights.bin"), noise).unwrap();
    fs::write(tree.join("AGENTS.md"), format!("# Agent\nrule {seed}\nend\n")).unwrap();
    reef_json(dir, &["release", "import", "tree"])["release_id"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn size_of(dir: &Path) -> u64 {
    let mut total = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        total += if metadata.is_dir() {
            size_of(&entry.path())
        } else {
            metadata.len()
        };
    }
    total
}

fn objects(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.join(".reef/artifacts.git/lfs/objects")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// However long the work takes, a script finds one object on standard output; what is said meanwhile is elsewhere.
#[test]
#[cfg_attr(not(feature = "failpoints"), ignore = "needs the feature failpoints")]
fn slow_work_says_so_on_standard_error_alone() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    reef_json(dir, &["scenario", "create", "s"]);
    import(dir, 1, 1);
    fs::write(dir.join("tree/AGENTS.md"), "another\n").unwrap();
    let output = reef(
        dir,
        "release::after_intent=sleep(600)",
        &["release", "import", "tree", "--json"],
    );
    let slow: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.success(), &slow["kind"]),
        (true, &Value::from("published"))
    );
    let said = String::from_utf8(output.stderr).unwrap();
    let progress: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&progress["event"], &progress["what"]),
        (&Value::from("progress"), &Value::from("publishing"))
    );
}

#[test]
fn collection_takes_back_what_retention_does_not_keep() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    reef_json(dir, &["scenario", "create", "s"]);
    let releases: Vec<String> = (0..20).map(|n| import(dir, n, 512)).collect();
    reef_json(dir, &["release", "export", "head~5", "cached"]);
    let before = size_of(&dir.join(".reef"));
    let planned = reef_json(dir, &["release", "gc", "--keep", "3", NO_OLDER, "--dry-run"]);
    assert_eq!(planned["pruned"].as_array().unwrap().len(), 16);
    assert_eq!(
        size_of(&dir.join(".reef/artifacts.git/lfs")),
        20 * 512 * 1024,
        "a dry run removes nothing"
    );
    reef_json(dir, &["release", "gc", "--keep", "3", NO_OLDER, "--grace", "0"]);
    let after = size_of(&dir.join(".reef"));
    // Four releases of half a MiB, and the history of all.
    assert!(before > 10 << 20 && after < 4 << 20, "{before} -> {after}");
    for (n, release) in releases.iter().enumerate() {
        let output = reef(dir, "", &["release", "export", release, &format!("out-{n}")]);
        assert_eq!(output.status.success(), n >= 16, "{n}");
    }
    let refused = reef(dir, "", &["release", "rollback", &releases[3]]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("cannot be restored"), "{said}");
    reef_json(dir, &["release", "rollback", &releases[16]]);
    let verified = reef_json(dir, &["release", "verify"]);
    assert_eq!(verified["damaged"], Value::Array(Vec::new()));
    assert_eq!(verified["pruned"], 16);
    let rows = reef_json(dir, &["release", "list", "--all"]);
    let restorable = rows["releases"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|r| r["restorable"] == true)
        .count();
    assert_eq!(restorable, 6, "creation, four kept, one rollback");
    let home = dir.join("home");
    stock_ok(&home, &dir.join(".reef/artifacts.git"), "git", &["fsck", "--strict"]);
}

#[test]
#[cfg_attr(not(feature = "failpoints"), ignore = "needs the feature failpoints")]
fn a_collection_killed_half_way_is_finished_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    reef_json(dir, &["scenario", "create", "s"]);
    for n in 0..6 {
        import(dir, n, 64);
    }
    let args = ["release", "gc", "--keep", "1", NO_OLDER, "--grace", "0"];
    let killed = reef(dir, "release::gc_before_delete=return(kill)", &args);
    assert_eq!(killed.status.signal(), Some(9));
    reef_json(dir, &["release", "verify"]);
    reef_json(dir, &args);
    assert_eq!(objects(dir).len(), 2);
    import(dir, 9, 64);
    reef_json(dir, &["release", "verify"]);
}

#[test]
fn verification_names_what_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    reef_json(dir, &["scenario", "create", "s"]);
    let first = import(dir, 1, 64);
    let second = import(dir, 2, 64);
    reef_json(dir, &["release", "verify"]);
    let all = objects(dir);
    assert_eq!(all.len(), 2);
    let damaged = |args: &[&str]| {
        let mut words = vec!["release", "verify", "--json"];
        words.extend(args);
        let output = reef(dir, "", &words);
        assert_eq!(output.status.code(), Some(40));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        found["damaged"].clone()
    };
    // One bit of one object.
    let mut bytes = fs::read(&all[0]).unwrap();
    bytes[1000] ^= 1;
    fs::remove_file(&all[0]).unwrap();
    fs::write(&all[0], &bytes).unwrap();
    let found = damaged(&[]);
    assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
    assert_eq!(found[0]["path"], "weights.bin");
    let hurt = found[0]["release_id"].as_str().unwrap().to_owned();
    let whole = if hurt == first { &second } else { &first };
    reef_json(dir, &["release", "verify", whole]);
    damaged(&[&hurt]);
    // Damaged content is never handed out.
    assert!(!reef(dir, "", &["release", "export", &hurt, "out"]).status.success());
    assert!(!dir.join("out").exists());
    // Both objects gone.
    for object in &all {
        fs::remove_file(object).unwrap();
    }
    let found = damaged(&[]);
    assert_eq!(found.as_array().unwrap().len(), 2, "{found}");
    assert!(found[0]["problem"].as_str().unwrap().contains("missing"), "{found}");
}

#[test]
fn a_damaged_git_object_is_named_too() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    reef_json(dir, &["scenario", "create", "s"]);
    let release = import(dir, 1, 1);
    let home = dir.join("home");
    let repository = dir.join(".reef/artifacts.git");
    let blob = stock_ok(
        &home,
        &repository,
        "git",
        &["rev-parse", &format!("{release}:AGENTS.md")],
    );
    let blob = blob.trim();
    fs::remove_file(repository.join("objects").join(&blob[..2]).join(&blob[2..])).unwrap();
    let output = reef(dir, "", &["release", "verify", "--json"]);
    assert_eq!(output.status.code(), Some(40));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["damaged"][0]["path"], "AGENTS.md", "{found}");
}

/// A safetensors file with the given tensors of shape `[1, n]`.
fn safetensors(tensors: &[(&str, &[f32])]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, values) in tensors {
        let from = data.len();
        data.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        header.insert(
            (*name).to_owned(),
            serde_json::json!({"dtype": "F32", "shape": [1, values.len()], "data_offsets": [from, data.len()]}),
        );
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

#[test]
fn differences_are_lines_of_text_and_rows_of_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    reef_json(dir, &["scenario", "create", "s"]);
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("skills")).unwrap();
    let write = |rule: &str, values: &[f32]| {
        fs::write(tree.join("AGENTS.md"), format!("# Agent\n{rule}\nend\n")).unwrap();
        let file = safetensors(&[("q.lora_A.weight", values), ("q.lora_B.weight", &[1.0])]);
        fs::write(tree.join("adapter_model.safetensors"), file).unwrap();
    };
    write("be brief", &[3.0, 4.0]);
    fs::write(tree.join("skills/old.md"), "old\n").unwrap();
    reef_json(dir, &["release", "import", "tree"]);
    write("be kind", &[4.0, 3.0]);
    fs::remove_file(tree.join("skills/old.md")).unwrap();
    fs::write(tree.join("skills/new.md"), "new\n").unwrap();
    reef_json(dir, &["release", "import", "tree"]);
    let diff = reef(dir, "", &["release", "diff"]);
    let text = String::from_utf8(diff.stdout).unwrap();
    for expected in [
        "--- a/AGENTS.md\n+++ b/AGENTS.md\n@@ -1,3 +1,3 @@\n # Agent\n-be brief\n+be kind\n end\n",
        "--- /dev/null\n+++ b/skills/new.md\n@@ -0,0 +1 @@\n+new\n",
        "--- a/skills/old.md\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n",
        "adapter_model.safetensors: 1 tensors differ, 1 are equal\n",
    ] {
        assert!(text.contains(expected), "{expected}\nis not in\n{text}");
    }
    let row = text.lines().find(|line| line.starts_with("q.lora_A.weight")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[1], "F32");
    assert_eq!(cells[cells.len() - 4..], ["1", "1.414e0", "2.828e-1", "0.9600"]);
    let json = reef_json(dir, &["release", "diff", "--stat"]);
    assert_eq!(json["files"].as_array().unwrap().len(), 4);
}

/// A provider cannot be given the weights of a release: that is a fault of the settings, told as one.
#[test]
fn eval_without_the_embedded_model_says_what_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    reef_json(dir, &["scenario", "create", "s"]);
    let task = serde_json::json!({"id": "t", "prompt": "say a", "checker": {"kind": "regex", "pattern": "a"}});
    fs::write(dir.join("tasks.jsonl"), format!("{task}\n")).unwrap();
    let provider = [
        "--inference.upstream-url=http://127.0.0.1:9",
        "--inference.upstream-model=m",
    ];
    for against in [&[][..], &["--against", "base"]] {
        let mut words = vec!["eval", "head", "--suite", "tasks.jsonl"];
        words.extend(against);
        words.extend(provider);
        let output = reef(dir, "", &words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("inference.model-path"), "{said}");
    }
}

/// `reef serve` would start on what is left and serve less than there was: the doctor has to say so.
#[test]
fn what_was_lost_of_a_deployment_is_named_with_its_fix() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    fs::create_dir(&whole).unwrap();
    reef_json(&whole, &["scenario", "create", "s"]);
    import(&whole, 1, 512);
    let said = |dir: &Path, args: &[&str]| {
        let output = reef(dir, "", args);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), text)
    };
    let doctor = ["doctor", "--offline", "--reef.port", "0"];
    let (code, text) = said(&whole, &doctor);
    assert_eq!((code, text.contains("ok       heads")), (Some(0), true), "{text}");
    let empty = |dir: &Path| {
        fs::remove_dir_all(dir).unwrap();
        fs::create_dir(dir).unwrap();
    };
    let broken = |name: &str, breaking: &dyn Fn(&Path)| {
        let copy = dir.path().join(name);
        stock_ok(&dir.path().join("home"), dir.path(), "cp", &["-a", "whole", name]);
        breaking(&copy.join(".reef"));
        let (code, text) = said(&copy, &doctor);
        assert_eq!(
            (code, text.contains("failed   heads")),
            (Some(2), true),
            "{name}: {text}"
        );
        assert!(
            text.contains("fix: restore ") || text.contains("fix: reef release pull"),
            "{text}"
        );
        (copy, text)
    };
    let (_, text) = broken("repository", &|dir| {
        fs::rename(dir.join("artifacts.git"), dir.join("away")).unwrap();
    });
    assert!(text.contains("there is no artifact repository"), "{text}");
    let (_, text) = broken("store", &|dir| {
        for name in ["experience.db", "experience.db-wal", "experience.db-shm"] {
            let _absent = fs::remove_file(dir.join(name));
        }
    });
    assert!(text.contains("experience.db is gone"), "{text}");
    let (copy, text) = broken("branches", &|dir| empty(&dir.join("artifacts.git/refs/heads")));
    assert!(text.contains("the chain of s, which ended in "), "{text}");
    let (code, text) = said(&copy, &["release", "verify"]);
    assert_eq!(code, Some(40), "{text}");
    assert!(text.contains("it is the head of s, and no ref says so"), "{text}");
    // A command about the chain puts its refs back: the commits are there.
    let (code, text) = said(&copy, &["release", "verify", "-s", "s"]);
    assert_eq!((code, text.contains("are put back")), (Some(0), true), "{text}");
    let (_, text) = said(&copy, &["release", "verify"]);
    assert!(
        text.contains("refs/reef/base") && !text.contains("refs/heads/s"),
        "{text}"
    );
    let (copy, text) = broken("objects", &|dir| empty(&dir.join("artifacts.git/objects")));
    assert!(text.contains("the chain of s cannot be read"), "{text}");
    for args in [
        &["release", "verify"][..],
        &["release", "verify", "-s", "s"],
        &["release", "verify", "head", "-s", "s"],
        &["release", "show", "-s", "s"],
    ] {
        let (code, text) = said(&copy, args);
        assert_eq!(code, Some(40), "{args:?}: {text}");
        assert!(
            text.contains("missing or unreadable") || text.contains("is not in this repository"),
            "{args:?}: {text}"
        );
    }
    let (_, text) = broken("large", &|dir| empty(&dir.join("artifacts.git/lfs/objects")));
    assert!(text.contains("lacks its file weights.bin"), "{text}");
}

/// A number beside a release is its step, wherever it is shown.
#[test]
fn a_release_has_one_number_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    reef_json(dir, &["scenario", "create", "s"]);
    import(dir, 1, 1);
    for text in ["one\n", "two\n"] {
        fs::write(dir.join("tree/AGENTS.md"), text).unwrap();
        reef_json(dir, &["release", "import", "tree", "--hold"]);
    }
    import(dir, 2, 1);
    let listed = reef_json(dir, &["release", "list", "--all"]);
    let log = String::from_utf8(reef(dir, "", &["release", "log"]).stdout).unwrap();
    for (n, row) in listed["releases"].as_array().unwrap().iter().rev().enumerate() {
        let id = row["release_id"].as_str().unwrap();
        assert_eq!(row["step"], n, "{listed}");
        let line = log.lines().find(|line| line.contains(&id[..12])).unwrap();
        assert!(line.contains(&format!("step {n} ")), "{log}");
        assert_eq!(reef_json(dir, &["release", "show", id])["step"], n);
        let shown = String::from_utf8(reef(dir, "", &["release", "show", id]).stdout).unwrap();
        assert!(shown.contains(&format!("\nstep        {n}\n")), "{shown}");
    }
    assert!(!log.contains('#'), "{log}");
}

/// Without grace git takes every object that no ref reaches, so a publication waits until it has.
#[test]
#[cfg_attr(not(feature = "failpoints"), ignore = "needs the feature failpoints")]
fn a_publication_waits_for_a_collection_without_grace() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    reef_json(dir, &["scenario", "create", "s"]);
    import(dir, 1, 1);
    // Without waiting, the objects written here are gone when the commit is made of them.
    let mut collector = std::process::Command::new(env!("CARGO_BIN_EXE_reef"))
        .args(["release", "gc", "--grace", "0"])
        .current_dir(dir)
        .env("FAILPOINTS", "release::gc_before_pack=sleep(3000)")
        .spawn()
        .unwrap();
    let lock = dir.join(".reef/artifacts.git/reef-gc.lock");
    while fs::File::open(&lock).is_ok_and(|lock| lock.try_lock_shared().is_ok()) {
        assert!(collector.try_wait().unwrap().is_none(), "it never kept others away");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let began = std::time::Instant::now();
    let released = import(dir, 2, 1);
    assert!(
        began.elapsed() > std::time::Duration::from_millis(2500),
        "the release came about while objects were being taken"
    );
    assert!(collector.wait().unwrap().success());
    assert_eq!(reef_json(dir, &["release", "list"])["head"], released.as_str());
    reef_json(dir, &["release", "verify"]);
}
