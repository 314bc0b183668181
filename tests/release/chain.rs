//! The chain in the repository, seen by Reef and by stock git.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;

use reef::domain::Operation;
use reef::release::{ArtifactKind, ReleaseError, Selector};

use crate::rig::{Rig, draft, files, open, scenario, stock, stock_ok};

#[test]
fn a_release_is_what_stock_git_and_git_lfs_make_of_it() {
    let rig = Rig::new();
    let source = rig.adapter("candidate", 7);
    fs::write(source.join("odd [name] *.txt"), vec![b'x'; 300_000]).unwrap();
    fs::write(source.join("run.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(source.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(source.join("empty.bin"), "").unwrap();
    let release = rig.release(&source, None, "i0");
    rig.repository.advance(&scenario("s"), &release, None).unwrap();

    let home = rig.dir.path().join("home");
    let bare = rig.repository.path().to_str().unwrap().to_owned();
    stock_ok(&home, rig.dir.path(), "git", &["clone", "-q", &bare, "clone"]);
    let clone = rig.dir.path().join("clone");
    stock_ok(&home, &clone, "git", &["lfs", "pull"]);
    let mut cloned = files(&clone);
    cloned.retain(|(name, _)| name != "reef-artifact.json" && name != ".gitattributes");
    assert_eq!(cloned, files(&source));
    assert_eq!(stock_ok(&home, &clone, "git", &["status", "--porcelain"]), "");
    let listed = stock_ok(&home, &clone, "git", &["lfs", "ls-files", "--name-only"]);
    let mut listed: Vec<&str> = listed.lines().collect();
    listed.sort_unstable();
    assert_eq!(listed, ["adapter_model.safetensors", "odd [name] *.txt"]);
    stock_ok(&home, &clone, "git", &["lfs", "fsck"]);
    stock_ok(&home, &clone, "git", &["fsck", "--strict"]);
    stock_ok(&home, rig.repository.path(), "git", &["lfs", "fsck"]);
    let log = stock_ok(&home, &clone, "git", &["log", "--format=%s"]);
    assert_eq!(log, "s: creation (lora-adapter)\n");
    let executable = fs::metadata(clone.join("run.sh")).unwrap().permissions().mode();
    assert_eq!(executable & 0o111, 0o111);

    // By hand, from the clone: the same blobs, so the same tree but for nothing.
    stock_ok(&home, &clone, "git", &["rm", "-rq", "--cached", "."]);
    stock_ok(&home, &clone, "git", &["add", "-A"]);
    let by_hand = stock_ok(&home, &clone, "git", &["write-tree"]);
    assert_eq!(by_hand, stock_ok(&home, &clone, "git", &["rev-parse", "HEAD^{tree}"]));
}

#[test]
fn materialised_and_exported_releases_are_the_candidate() {
    let rig = Rig::new();
    let source = rig.adapter("candidate", 1);
    let release = rig.release(&source, None, "i0");
    let cached = rig.repository.materialise(&release).unwrap();
    assert_eq!(files(&cached), files(&source));
    assert_eq!(rig.repository.materialise(&release).unwrap(), cached);
    let weights = cached.join("adapter_model.safetensors");
    assert_eq!(fs::metadata(&weights).unwrap().permissions().mode() & 0o222, 0);
    let out = rig.dir.path().join("out");
    let manifest = rig.repository.export(&release, &out).unwrap();
    assert_eq!(manifest.content.components["adapter"].kind, ArtifactKind::LoraAdapter);
    let mut exported = files(&out);
    exported.retain(|(name, _)| name != "reef-artifact.json");
    assert_eq!(exported, files(&source));
    // Brought back, it is the same content.
    let again = rig.repository.stage_directory(&out, None).unwrap();
    assert_eq!(again.content_id, manifest.content_id);
    assert!(matches!(
        rig.repository.export(&release, &out),
        Err(ReleaseError::BadContent { .. })
    ));
}

#[test]
fn equal_content_is_stored_once() {
    let rig = Rig::new();
    let first = rig.release(&rig.adapter("a", 3), None, "i0");
    let second = rig.release(&rig.adapter("b", 3), Some(&first), "i1");
    let objects = files(&rig.repository.path().join("lfs/objects"));
    assert_eq!(objects.len(), 1);
    let describe = |id| rig.repository.describe(id).unwrap();
    assert_ne!(first, second);
    assert_eq!(describe(&first).content_id, describe(&second).content_id);
    assert_eq!(describe(&second).sequence, 1);
}

#[test]
fn of_many_who_publish_from_one_parent_one_wins() {
    let rig = Rig::new();
    let mut head = rig.release(&rig.adapter("a", 0), None, "i0");
    rig.repository.advance(&scenario("s"), &head, None).unwrap();
    for round in 0..10u8 {
        let candidates: Vec<_> = (0..8u8)
            .map(|n| {
                let dir = rig.adapter(&format!("c{n}"), 10 + round * 8 + n);
                rig.release(&dir, Some(&head), &format!("i{round}-{n}"))
            })
            .collect();
        let won: Vec<_> = thread::scope(|scope| {
            let tries: Vec<_> = candidates
                .iter()
                .map(|candidate| {
                    let head = &head;
                    let repository = open(rig.dir.path());
                    scope.spawn(move || {
                        repository
                            .advance(&scenario("s"), candidate, Some(head))
                            .map(|()| candidate)
                    })
                })
                .collect();
            tries.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let winners: Vec<_> = won.iter().filter_map(|w| w.as_ref().ok()).collect();
        assert_eq!(winners.len(), 1);
        for lost in won.iter().filter_map(|w| w.as_ref().err()) {
            match lost {
                ReleaseError::Conflict { expected, actual, .. } => {
                    assert_eq!(expected.as_ref(), Some(&head));
                    assert_eq!(actual.as_ref(), Some(*winners[0]));
                }
                other => panic!("{other}"),
            }
        }
        head = (*winners[0]).clone();
    }
    let chain = rig.repository.chain(&head, None, usize::MAX).unwrap();
    assert_eq!(chain.len(), 11);
    assert!(chain.iter().rev().enumerate().all(|(n, c)| c.sequence == n as u64));
}

#[test]
fn releases_are_found_by_what_people_write() {
    let rig = Rig::new();
    let first = rig.release(&rig.adapter("a", 1), None, "i0");
    let second = rig.release(&rig.adapter("b", 2), Some(&first), "i1");
    let s = scenario("s");
    rig.repository.advance(&s, &first, None).unwrap();
    rig.repository.advance(&s, &second, Some(&first)).unwrap();
    let resolve = |text: &str| rig.repository.resolve(&Selector::parse(text), Some(&s));
    assert_eq!(resolve("head").unwrap(), second);
    assert_eq!(resolve("head~1").unwrap(), first);
    assert_eq!(resolve(&first.as_str()[..10]).unwrap(), first);
    assert_eq!(resolve(&format!("git+lfs://{first}")).unwrap(), first);
    for unknown in ["head~2", "base", "zzzz", "abc", "../../etc", &"0".repeat(40), "head~x"] {
        assert!(
            matches!(resolve(unknown), Err(ReleaseError::NotFound { .. })),
            "{unknown}"
        );
    }
}

#[test]
fn an_archived_scenario_frees_its_name_and_keeps_its_chain() {
    let rig = Rig::new();
    let s = scenario("s");
    let first = rig.release(&rig.adapter("a", 1), None, "i0");
    rig.repository.advance(&s, &first, None).unwrap();
    rig.repository.archive(&s, 42).unwrap();
    assert_eq!(rig.repository.head(&s).unwrap(), None);
    assert!(rig.repository.scenarios().unwrap().is_empty());
    let home = rig.dir.path().join("home");
    stock_ok(&home, rig.repository.path(), "git", &["gc", "-q", "--prune=now"]);
    assert!(rig.repository.is_whole(&first).unwrap());
    let second = rig.release(&rig.adapter("b", 2), None, "i1");
    rig.repository.advance(&s, &second, None).unwrap();
    assert_eq!(rig.repository.head(&s).unwrap(), Some(second));
}

#[test]
fn collection_by_a_person_loses_no_release() {
    let rig = Rig::new();
    let s = scenario("s");
    let mut head = rig.release(&rig.adapter("a", 0), None, "i0");
    rig.repository.advance(&s, &head, None).unwrap();
    for n in 1..5u8 {
        let next = rig.release(&rig.adapter("a", n), Some(&head), &format!("i{n}"));
        rig.repository.advance(&s, &next, Some(&head)).unwrap();
        head = next;
    }
    let held = rig.release(&rig.adapter("a", 9), Some(&head), "held");
    rig.repository.keep(&held).unwrap();
    let lost = rig.release(&rig.adapter("a", 10), Some(&head), "lost");
    let home = rig.dir.path().join("home");
    stock_ok(&home, rig.repository.path(), "git", &["gc", "-q", "--prune=now"]);
    stock_ok(&home, rig.repository.path(), "git", &["lfs", "fsck"]);
    fs::remove_dir_all(rig.repository.cache()).ok();
    for commit in rig.repository.chain(&head, None, usize::MAX).unwrap() {
        rig.repository.materialise(&commit.release_id).unwrap();
    }
    rig.repository.materialise(&held).unwrap();
    assert!(!rig.repository.is_whole(&lost).unwrap());
    // Heads live in packed-refs now; they still move by compare-and-swap.
    let next = rig.release(&rig.adapter("a", 11), Some(&head), "next");
    rig.repository.advance(&s, &next, Some(&head)).unwrap();
    assert_eq!(rig.repository.head(&s).unwrap(), Some(next));
}

#[test]
fn the_same_draft_gives_the_same_release() {
    let rig = Rig::new();
    let staged = rig.repository.stage_directory(&rig.adapter("a", 1), None).unwrap();
    let one = rig.repository.commit(&staged, &draft(None, "i")).unwrap();
    let two = rig.repository.commit(&staged, &draft(None, "i")).unwrap();
    assert_eq!(one, two);
    let restaged = rig.repository.stage_release(&one).unwrap();
    let mut again = draft(Some(&one), "j");
    again.operation = Operation::Rollback;
    again.target = Some(one.clone());
    let three = rig.repository.commit(&restaged, &again).unwrap();
    let manifest = rig.repository.manifest(&three).unwrap();
    assert_eq!(manifest.content_id, staged.content_id);
    assert_eq!(manifest.target_release_id, Some(one));
}

#[test]
fn hostile_user_configuration_changes_nothing() {
    let rig = Rig::new();
    let home = rig.dir.path().join("hostile");
    let hooks = home.join("hooks");
    let template = home.join("template/hooks");
    for dir in [&hooks, &template] {
        fs::create_dir_all(dir).unwrap();
        for hook in ["pre-push", "pre-commit", "reference-transaction", "post-checkout"] {
            fs::write(dir.join(hook), "#!/bin/sh\nexit 1\n").unwrap();
            fs::set_permissions(dir.join(hook), fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    let config = format!(
        "[core]\n hooksPath = {h}/hooks\n autocrlf = true\n attributesFile = {h}/attributes\n\
         [init]\n templateDir = {h}/template\n[commit]\n gpgSign = true\n[gpg]\n program = /bin/false\n\
         [lfs]\n url = http://127.0.0.1:9/nowhere\n[filter \"lfs\"]\n clean = false\n smudge = false\n process = false\n required = true\n",
        h = home.display()
    );
    fs::write(home.join(".gitconfig"), config).unwrap();
    fs::write(home.join("attributes"), "* filter=evil text eol=crlf\n").unwrap();
    let exe = std::env::current_exe().unwrap();
    // libgit2 finds the user's files by HOME, which a thread cannot change: another process of this test does it.
    let output = stock(
        &home,
        rig.dir.path(),
        exe.to_str().unwrap(),
        &[
            "chain::materialised_and_exported_releases_are_the_candidate",
            "chain::the_same_draft_gives_the_same_release",
            "--exact",
        ],
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("2 passed"), "{said}");
}
