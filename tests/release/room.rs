//! The disk is bounded by default: what is thinned, what stays whatever the rule says, and how what is gone is named.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::remote::{Two, ok};
use crate::rig::{open, reef, reef_json, scenario};

/// Bytes of an adapter's weights, and of its training state.
const WEIGHTS: usize = 40_000;
const STATE: usize = 80_000;

/// An adapter as the embedded trainer leaves it; every byte of its tensors is `seed`.
fn adapter(dir: &Path, seed: u8) -> PathBuf {
    let tree = dir.join("adapter");
    fs::create_dir_all(tree.join("training")).unwrap();
    fs::write(tree.join("adapter_config.json"), r#"{"peft_type": "LORA", "r": 1}"#).unwrap();
    fs::write(tree.join("adapter_model.safetensors"), tensors(seed, WEIGHTS)).unwrap();
    fs::write(tree.join("training/optimizer.safetensors"), tensors(seed, STATE)).unwrap();
    fs::write(tree.join("training/step.json"), format!("{{\"step\": {seed}}}")).unwrap();
    tree
}

fn tensors(seed: u8, size: usize) -> Vec<u8> {
    let half = size / 2;
    let header = json!({
        "q.lora_A.weight": {"dtype": "U8", "shape": [1, half], "data_offsets": [0, half]},
        "q.lora_B.weight": {"dtype": "U8", "shape": [half, 1], "data_offsets": [half, size]},
    })
    .to_string();
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &vec![seed; size],
    ]
    .concat()
}

fn import(dir: &Path, seed: u8) -> String {
    adapter(dir, seed);
    let made = reef_json(dir, &["release", "import", "adapter"]);
    made["release_id"].as_str().unwrap().to_owned()
}

/// A scenario with `n` releases after its creation, oldest first.
fn chain(dir: &Path, n: u8) -> Vec<String> {
    reef_json(dir, &["scenario", "create", "s"]);
    (0..n).map(|seed| import(dir, seed)).collect()
}

fn gc(dir: &Path, more: &[&str]) -> Value {
    let mut args = vec!["release", "gc", "--grace", "0"];
    args.extend(more);
    reef_json(dir, &args)
}

fn said(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    let output = reef(dir, "", args);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code(), text)
}

fn object(dir: &Path, release: &str, path: &str) -> PathBuf {
    let manifest = &reef_json(dir, &["release", "show", release])["manifest"];
    let files = manifest["content"]["files"].as_array().unwrap();
    let file = files.iter().find(|file| file["path"] == path).unwrap();
    let oid = file["sha256"].as_str().unwrap();
    dir.join(".reef/artifacts.git/lfs/objects")
        .join(&oid[..2])
        .join(&oid[2..4])
        .join(oid)
}

fn states(dir: &Path, releases: &[String]) -> Vec<(bool, String)> {
    let of = |id: &String| {
        let shown = reef_json(dir, &["release", "show", id]);
        (
            shown["restorable"].as_bool().unwrap(),
            shown["training_state"].as_str().unwrap().to_owned(),
        )
    };
    releases.iter().map(of).collect()
}

/// The defaults, without a word of configuration.
#[test]
fn by_default_the_newest_are_whole_and_older_ones_thin_out() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let releases = chain(dir, 40);
    let before = reef_json(dir, &["status"])["disk"]["releases"].clone();
    let of_one = tensors(0, WEIGHTS).len() + tensors(0, STATE).len();
    assert_eq!(before["bytes"], 40 * of_one, "{before}");
    let planned = gc(dir, &["--dry-run"]);
    let done = gc(dir, &[]);
    for key in ["pruned", "without_training_state", "bytes"] {
        assert_eq!(planned[key], done[key], "{key}");
    }
    assert_eq!(before["would_go_bytes"], done["bytes"]);
    let found = states(dir, &releases);
    // Release n is at place n + 1 of 41: ages 0 to 16 are the newest, then one between 17 and 31 and one beyond.
    let whole: Vec<usize> = (0..40).filter(|n| found[*n].0).collect();
    let expected: Vec<usize> = [15].into_iter().chain(23..40).collect();
    assert_eq!(whole, expected, "the creation is place 0 and stands for the oldest");
    for (n, (_, state)) in found.iter().enumerate() {
        assert_eq!(state, if n >= 37 { "whole" } else { "thinned" }, "{n}");
    }
    let after = reef_json(dir, &["status"])["disk"]["releases"].clone();
    assert_eq!(
        (&after["would_go_bytes"], &after["with_training_state"]),
        (&json!(0), &json!(3))
    );
    let bytes = after["bytes"].as_u64().unwrap();
    assert!((960_000..970_000).contains(&bytes), "18 weights and 3 states: {after}");
    let verified = reef_json(dir, &["release", "verify"]);
    assert_eq!(verified["damaged"], json!([]));
    assert_eq!(
        (
            &verified["thinned"],
            &verified["pruned"],
            &verified["without_training_state"]
        ),
        (&json!(22), &json!(22), &json!(15))
    );
    assert_eq!(gc(dir, &[])["objects"], 0, "the rule is at rest");
}

#[test]
fn what_was_thinned_is_named_by_whoever_asks_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let releases = chain(dir, 8);
    // A copy for an engine, made while the training state was there.
    let repository = open(&dir.join(".reef"));
    let id = |n: usize| reef::domain::ReleaseId::new(releases[n].as_str()).unwrap();
    let copy = repository.materialise(&id(5)).unwrap();
    assert!(copy.join("training/optimizer.safetensors").is_file());
    gc(
        dir,
        &[
            "--keep",
            "3",
            "--release.retention-older",
            "none",
            "--release.retention-states",
            "1",
        ],
    );
    // Whole but for its training state.
    assert!(copy.join("adapter_model.safetensors").is_file() && !copy.join("training").exists());
    assert_eq!(repository.materialise(&id(5)).unwrap(), copy);
    let (code, text) = said(dir, &["release", "export", &releases[5], "out"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("training state is not here") && text.contains("fresh optimizer"),
        "{text}"
    );
    assert!(dir.join("out/adapter_config.json").is_file() && !dir.join("out/training").exists());
    let (_, text) = said(dir, &["release", "show", &releases[5]]);
    assert!(text.contains("its training state was taken by retention"), "{text}");
    // What came of it is a release like any other.
    reef_json(dir, &["release", "import", "out"]);
    let (code, text) = said(dir, &["release", "rollback", &releases[5]]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("the next step starts a fresh optimizer"), "{text}");
    assert_eq!(reef_json(dir, &["release", "show"])["training_state"], "thinned");
    // Gone altogether.
    for args in [
        &["release", "rollback", &releases[1]][..],
        &["release", "export", &releases[1], "none"],
        &["release", "diff", &releases[1], "head"],
        &["release", "show", &releases[1]],
        &["release", "pin", &releases[1]],
    ] {
        let (code, text) = said(dir, args);
        let expected = if args[1] == "show" { 0 } else { 2 };
        assert_eq!(code, Some(expected), "{args:?}: {text}");
        assert!(
            text.contains("retention took its adapter_model.safetensors (39.")
                && text.contains("reef release pull --objects all"),
            "{args:?}: {text}"
        );
    }
    assert!(!dir.join("none").exists());
    reef_json(dir, &["release", "verify"]);
}

/// A lost file is damage, also beside thinned ones, and also when the store that knew is gone.
#[test]
fn verification_tells_what_was_lost_from_what_was_taken() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let releases = chain(dir, 6);
    gc(
        dir,
        &[
            "--keep",
            "2",
            "--release.retention-older",
            "none",
            "--release.retention-states",
            "1",
        ],
    );
    let check = |releases_lost: &[&str]| {
        let output = reef(dir, "", &["release", "verify", "--json"]);
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let damaged: Vec<&str> = found["damaged"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d["release_id"].as_str().unwrap())
            .collect();
        assert_eq!(damaged, releases_lost, "{found}");
        assert_eq!(output.status.code(), Some(if damaged.is_empty() { 0 } else { 40 }));
        found
    };
    let found = check(&[]);
    assert_eq!(
        (&found["thinned"], &found["without_training_state"]),
        (&json!(3), &json!(1))
    );
    let lost = object(dir, &releases[4], "training/optimizer.safetensors");
    let bytes = fs::read(&lost).unwrap();
    fs::remove_file(&lost).unwrap();
    let found = check(&[&releases[4]]);
    let problem = found["damaged"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("retention did not take it"), "{problem}");
    fs::write(&lost, &bytes).unwrap();
    for name in ["experience.db", "experience.db-wal", "experience.db-shm"] {
        let _absent = fs::remove_file(dir.join(".reef").join(name));
    }
    // The chain is indexed anew; the list beside the repository still tells.
    reef_json(dir, &["release", "list"]);
    let found = check(&[]);
    assert_eq!(
        (&found["thinned"], &found["without_training_state"]),
        (&json!(3), &json!(1))
    );
}

#[test]
fn what_is_pinned_held_or_in_use_stays() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let releases = chain(dir, 5);
    adapter(dir, 100);
    let held = reef_json(dir, &["release", "import", "adapter", "--hold"])["release_id"].clone();
    let more: Vec<String> = (10..14).map(|seed| import(dir, seed)).collect();
    reef_json(dir, &["release", "pin", &releases[1]]);
    // As a process does that serves it, or measures it.
    let repository = open(&dir.join(".reef"));
    let in_use = repository
        .hold(&reef::domain::ReleaseId::new(releases[2].as_str()).unwrap())
        .unwrap();
    let rule = [
        "--keep",
        "1",
        "--release.retention-older",
        "none",
        "--release.retention-states",
        "1",
    ];
    // A budget of nothing spares them as well.
    let strict = [&rule[..], &["--release.retention-max-bytes", "0"]].concat();
    gc(dir, &strict);
    let found = states(dir, &releases);
    let whole: Vec<usize> = (0..5).filter(|n| found[*n].0).collect();
    assert_eq!(whole, [1, 2]);
    assert_eq!((found[1].1.as_str(), found[2].1.as_str()), ("whole", "whole"));
    let held = held.as_str().unwrap().to_owned();
    assert!(states(dir, std::slice::from_ref(&held))[0].0);
    assert_eq!(
        states(dir, &more[2..]),
        [(true, "thinned".to_owned()), (true, "whole".to_owned())]
    );
    let over = reef(dir, "", &["release", "gc", "--release.retention-max-bytes", "0"]);
    let text = String::from_utf8_lossy(&over.stderr).into_owned();
    assert!(
        text.contains("more than release.retention-max-bytes of 0 B: no step begins"),
        "{text}"
    );
    let doctor = said(
        dir,
        &[
            "doctor",
            "--offline",
            "--reef.port",
            "0",
            "--release.retention-max-bytes",
            "0",
        ],
    );
    assert_eq!(
        (doctor.0, doctor.1.contains("failed   room")),
        (Some(2), true),
        "{}",
        doctor.1
    );
    drop(in_use);
    reef_json(dir, &["release", "unpin", &releases[1]]);
    reef_json(dir, &["release", "reject", &held]);
    let done = gc(dir, &rule);
    assert_eq!(done["pruned"].as_array().unwrap().len(), 3);
    let doctor = said(dir, &["doctor", "--offline", "--reef.port", "0"]);
    assert!(doctor.1.contains("ok       room"), "{}", doctor.1);
    reef_json(dir, &["release", "verify"]);
}

#[test]
fn a_budget_of_bytes_takes_training_state_first_and_the_oldest_first() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let releases = chain(dir, 6);
    // Six contents and two states: the head's, and the one before it.
    gc(
        dir,
        &[
            "--release.retention-states",
            "0",
            "--release.retention-max-bytes",
            "410000",
        ],
    );
    let found = states(dir, &releases);
    assert!(found.iter().all(|(whole, _)| *whole), "{found:?}");
    let with_state: Vec<usize> = (0..6).filter(|n| found[*n].1 == "whole").collect();
    assert_eq!(with_state, [4, 5]);
    gc(dir, &["--release.retention-max-bytes", "210000"]);
    let found = states(dir, &releases);
    let whole: Vec<usize> = (0..6).filter(|n| found[*n].0).collect();
    assert_eq!((whole, found[5].1.as_str()), (vec![3, 4, 5], "whole"));
}

/// A remote that keeps everything gives it back; one that is thinned gives what it has.
#[test]
fn thinned_chains_are_pushed_and_pulled() {
    let m = Two::new();
    let full = m.dir.path().join("full.git");
    crate::rig::stock_ok(
        &m.dir.path().join("home"),
        m.dir.path(),
        "git",
        &["init", "-q", "--bare", "full.git"],
    );
    let full = full.to_str().unwrap().to_owned();
    let releases: Vec<String> = (0..6).map(|seed| import(&m.one, seed)).collect();
    reef_json(&m.one, &["release", "push", &full]);
    gc(
        &m.one,
        &[
            "--keep",
            "2",
            "--release.retention-older",
            "none",
            "--release.retention-states",
            "1",
        ],
    );
    // The head's training state goes too, as after a rollback to a release that was thinned.
    reef_json(&m.one, &["release", "rollback", &releases[3]]);
    ok(&m.push(&m.one));
    let two = ok(&m.pull(&m.two, &["--objects", "all"]));
    assert_eq!(two["moved"][0]["scenario"], "s");
    let head = reef_json(&m.two, &["release", "show"]);
    assert_eq!(
        (&head["restorable"], &head["training_state"]),
        (&json!(true), &json!("absent"))
    );
    reef_json(&m.two, &["release", "verify"]);
    reef_json(&m.two, &["release", "export", "head", "out"]);
    let (code, text) = said(&m.two, &["release", "rollback", &releases[0]]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("was never brought here"), "{text}");
    // Once more from where everything is.
    reef_json(&m.two, &["release", "pull", &full, "--objects", "all"]);
    let found = states(&m.two, &releases);
    assert!(
        found.iter().all(|(whole, state)| *whole && state == "whole"),
        "{found:?}"
    );
    let copy = open(&m.two.join(".reef")).materialise(&reef::domain::ReleaseId::new(releases[3].as_str()).unwrap());
    assert!(copy.unwrap().join("training/optimizer.safetensors").is_file());
    // And what was thinned here comes back here.
    assert!(!states(&m.one, &releases[..1])[0].0);
    reef_json(&m.one, &["release", "pull", &full, "--objects", "all"]);
    assert_eq!(states(&m.one, &releases[..1]), [(true, "whole".to_owned())]);
    reef_json(&m.one, &["release", "rollback", &releases[0]]);
}

#[test]
#[cfg_attr(not(feature = "failpoints"), ignore = "needs the feature failpoints")]
fn a_thinning_killed_anywhere_is_finished_by_the_next() {
    for point in ["gc_before_mark", "gc_before_delete", "gc_each"] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let releases = chain(dir, 5);
        // With the grace of every day: what was to go is known, and does not wait for it.
        let args = [
            "release",
            "gc",
            "--keep",
            "1",
            "--release.retention-older",
            "none",
            "--release.retention-states",
            "1",
        ];
        let action = if point == "gc_each" {
            "2*off->return(kill)"
        } else {
            "return(kill)"
        };
        let killed = reef(dir, &format!("release::{point}={action}"), &args);
        assert_eq!(killed.status.signal(), Some(9), "{point}");
        reef_json(dir, &["release", "verify"]);
        // What is not gone yet may be served again, and is kept then.
        let back = reef(dir, "", &["release", "rollback", &releases[0]]).status.success();
        reef_json(dir, &args);
        let found = states(dir, &releases);
        assert_eq!((found[0].0, found[4].0), (back, true), "{point}");
        assert!(!found[1].0 && !found[2].0, "{point}: {found:?}");
        reef_json(dir, &["release", "verify"]);
        // The two newest with their states; the state of what came back may have been among the first to go.
        let left = Two::objects_in(&dir.join(".reef/artifacts.git")).len();
        let expected = if back && found[0].1 == "thinned" { 3 } else { 4 };
        assert_eq!(left, expected, "{point}: {found:?}");
        assert!(open(&dir.join(".reef")).head(&scenario("s")).unwrap().is_some());
    }
}
