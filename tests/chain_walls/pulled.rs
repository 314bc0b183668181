//! A remote that sends what no Reef would make: whatever it is, nothing moves and nothing is written of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use reef::domain::{Operation, ReleaseId, name_fault};
use reef::release::{Draft, Indexed, Objects, ReleaseError, Remote, Repository, RepositoryOptions, Scope};
use serde::Deserialize;
use serde_json::json;

use crate::forge::{Edit, forge, point, point_chain};
use crate::rig::{Rig, draft, open, scenario, stock_ok};

/// A remote with a sound chain of two releases, and a repository that has pulled it.
struct Two {
    rig: Rig,
    remote: PathBuf,
    here: Repository,
    head: ReleaseId,
}

impl Two {
    fn new() -> Self {
        let rig = Rig::new();
        let base = rig.release(&rig.adapter("a", 1), None, "one");
        let head = rig.release(&rig.adapter("a", 2), Some(&base), "two");
        let s = scenario("s");
        rig.repository.advance(&s, &base, None).unwrap();
        rig.repository.advance(&s, &head, Some(&base)).unwrap();
        let remote = rig.dir.path().join("remote.git");
        stock_ok(
            &rig.dir.path().join("home"),
            rig.dir.path(),
            "git",
            &["init", "-q", "--bare", "remote.git"],
        );
        let here = Repository::open(
            &rig.dir.path().join("here.git"),
            &rig.dir.path().join("here-cache"),
            RepositoryOptions::default(),
        )
        .unwrap();
        let two = Self {
            rig,
            remote,
            here,
            head,
        };
        two.rig
            .repository
            .push(&two.at(), &[(s, two.head.clone())], &[], false)
            .unwrap();
        two.here.pull(&two.at(), &[], Objects::All).unwrap();
        assert_eq!(two.here.head(&scenario("s")).unwrap(), Some(two.head.clone()));
        two
    }

    fn at(&self) -> Remote {
        Remote::new(self.remote.to_str().unwrap(), None).unwrap()
    }

    fn pull(&self) -> Result<(), ReleaseError> {
        self.here.pull(&self.at(), &[], Objects::Heads).map(|_| ())
    }

    /// Every ref of the repository that pulls.
    fn refs(&self) -> String {
        stock_ok(
            &self.rig.dir.path().join("home"),
            self.here.path(),
            "git",
            &["for-each-ref"],
        )
    }

    /// Offers an edited release as the head, and takes it back afterwards.
    fn offer(&self, edits: &[Edit]) -> (ReleaseId, Result<(), ReleaseError>) {
        let release = forge(&self.remote, &self.head, edits);
        point_chain(&self.remote, "s", &release);
        let result = self.pull();
        point_chain(&self.remote, "s", &self.head);
        (release, result)
    }

    /// What is let in is sound in every way, and its files are where an export puts them and nowhere else.
    fn check_taken(&self, release: &ReleaseId) {
        assert_eq!(self.here.head(&scenario("s")).unwrap().as_ref(), Some(release));
        let verified = self
            .here
            .verify(&Scope::Everything, &Indexed::default(), &mut |_, _| {})
            .unwrap();
        assert!(verified.damage.is_empty(), "{:?}", verified.damage);
        let out = tempfile::tempdir().unwrap();
        let manifest = self.here.export(release, &out.path().join("x")).unwrap();
        let listed: BTreeSet<String> = manifest.content.files.into_iter().map(|file| file.path).collect();
        let mut found = BTreeSet::new();
        walk(&out.path().join("x"), "", &mut found);
        assert!(found.remove("reef-artifact.json"));
        assert_eq!(found, listed);
        assert!(
            found
                .iter()
                .all(|path| path.split('/').all(|name| name_fault(name).is_none()))
        );
        point_chain(self.here.path(), "s", &self.head);
    }
}

fn walk(dir: &Path, prefix: &str, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), &format!("{path}/"), found);
        } else {
            found.insert(path);
        }
    }
}

/// A release that was tried, and what came of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    refused: bool,
    /// A part of what is said, where Reef and not git refuses it.
    says: String,
    edits: Vec<Edit>,
}

fn corpus() -> Vec<(String, Case)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chains");
    let mut cases: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = fs::read_to_string(&path).unwrap();
            (
                name.clone(),
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}")),
            )
        })
        .collect();
    cases.sort_by(|a: &(String, Case), b| a.0.cmp(&b.0));
    cases
}

#[test]
fn a_chain_that_is_not_what_it_says_moves_nothing() {
    let two = Two::new();
    let (before, mut unlike) = (two.refs(), Vec::new());
    for (name, case) in corpus() {
        let (release, result) = two.offer(&case.edits);
        match result {
            Ok(()) => {
                assert!(!case.refused, "{name} was taken in");
                two.check_taken(&release);
            }
            Err(error) => {
                assert!(case.refused, "{name}: {error}");
                assert!(matches!(error, ReleaseError::Refused { .. }), "{name}: {error:?}");
            }
        }
        assert_eq!(two.refs(), before, "{name}");
        // The same where git's own look is not: the release is in the repository already.
        let stored = forge(two.here.path(), &two.head, &case.edits);
        let looked = two.here.examine(&stored).map(|_| ());
        if case.refused {
            let error = looked.expect_err(&name).to_string();
            if !error.contains(&case.says) {
                unlike.push(format!("{name}: {error}"));
            }
            let out = two.rig.dir.path().join(format!("out-{name}"));
            two.here.export(&stored, &out).expect_err(&name);
            assert!(!out.exists(), "{name}");
            two.here.materialise(&stored).expect_err(&name);
        } else {
            looked.unwrap();
        }
    }
    let left: Vec<_> = fs::read_dir(two.rig.dir.path().join("here-cache")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(unlike.is_empty(), "said otherwise:\n{}", unlike.join("\n"));
}

#[test]
fn a_bad_release_below_a_good_head_is_found() {
    let two = Two::new();
    let before = two.refs();
    let bad = forge(
        &two.remote,
        &two.head,
        &[Edit::Set {
            at: "/content/files/0/size".to_owned(),
            to: json!(1),
        }],
    );
    let above = forge(
        &two.remote,
        &bad,
        &[Edit::File {
            path: "adapter_config.json".to_owned(),
            text: "{}".to_owned(),
            mode: 0o100_644,
            listed: true,
            stored: true,
        }],
    );
    point_chain(&two.remote, "s", &above);
    let error = two.pull().unwrap_err().to_string();
    assert!(
        error.contains(bad.as_str()) && error.contains("not taken in"),
        "{error}"
    );
    assert_eq!(two.refs(), before);
}

#[test]
fn a_release_is_taken_only_for_what_it_is() {
    let two = Two::new();
    let before = two.refs();
    let held = |to: bool| Edit::Set {
        at: "/held".to_owned(),
        to: json!(to),
    };
    // A held release as the head of a chain, and built upon.
    let waiting = forge(&two.remote, &two.head, &[held(true)]);
    point_chain(&two.remote, "s", &waiting);
    assert!(two.pull().unwrap_err().to_string().contains("held for review"));
    let above = forge(&two.remote, &waiting, &[]);
    point_chain(&two.remote, "s", &above);
    assert!(two.pull().unwrap_err().to_string().contains("held for review"));
    point_chain(&two.remote, "s", &two.head);
    // A release of the chain as one that waits, and a name that says another release.
    let next = forge(&two.remote, &two.head, &[]);
    point(&two.remote, &format!("refs/reef/releases/{next}"), &next);
    assert!(two.pull().unwrap_err().to_string().contains("offered as held"));
    delete(&two.remote, &format!("refs/reef/releases/{next}"));
    point(&two.remote, &format!("refs/reef/releases/{waiting}"), &next);
    two.pull().unwrap();
    delete(&two.remote, &format!("refs/reef/releases/{waiting}"));
    // A release of a chain as the base of scenarios to come.
    point(&two.remote, "refs/reef/base", &next);
    assert!(two.pull().unwrap_err().to_string().contains("offered as the base"));
    delete(&two.remote, "refs/reef/base");
    // The chain of one scenario as that of another.
    let git = git2::Repository::open_bare(&two.remote).unwrap();
    git.reference_symbolic("refs/reef/scenarios/other/head", "refs/heads/other", true, "forged")
        .unwrap();
    point(&two.remote, "refs/heads/other", &two.head);
    let error = two.pull().unwrap_err().to_string();
    assert!(error.contains("scenario other"), "{error}");
    delete(&two.remote, "refs/heads/other");
    assert_eq!(two.refs(), before);
    two.pull().unwrap();
}

/// A rollback that brings other content than that of the release it names.
#[test]
fn a_rollback_brings_what_it_names() {
    let two = Two::new();
    let first = two.here.chain(&two.head, None, 2).unwrap().remove(1).release_id;
    for (target, taken) in [(&two.head, true), (&first, false)] {
        let edits = [
            Edit::Set {
                at: "/operation".to_owned(),
                to: json!("rollback"),
            },
            Edit::Set {
                at: "/target_release_id".to_owned(),
                to: json!(target),
            },
        ];
        let (release, result) = two.offer(&edits);
        match result {
            Ok(()) => {
                assert!(taken);
                two.check_taken(&release);
            }
            Err(error) => assert!(
                !taken && error.to_string().contains("its content is not that of"),
                "{error}"
            ),
        }
    }
}

#[test]
fn what_a_killed_pull_left_goes_with_the_next_one() {
    let two = Two::new();
    point(two.here.path(), "refs/reef/incoming/dead/scenarios/s", &two.head);
    assert!(two.refs().contains("refs/reef/incoming"));
    two.pull().unwrap();
    assert!(!two.refs().contains("refs/reef/incoming"), "{}", two.refs());
}

fn delete(path: &Path, name: &str) {
    let git = git2::Repository::open_bare(path).unwrap();
    git.find_reference(name).unwrap().delete().unwrap();
}

fn a_name() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => "[a-z]{1,6}",
        1 => Just(".git".to_owned()),
        1 => Just("..".to_owned()),
        1 => "\\.?[gG][iI][tT](~1|attributes|modules)?[. ]{0,2}",
        1 => "\\PC{1,4}",
        1 => "[\\x00-\\x1f/\\\\:~]{1,3}",
    ];
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"))
}

fn a_value() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(|b| json!(b)),
        any::<i64>().prop_map(|n| json!(n)),
        any::<u64>().prop_map(|n| json!(n)),
        a_name().prop_map(|text| json!(text)),
        Just(json!([])),
        Just(json!({})),
    ]
}

fn an_edit() -> impl Strategy<Value = Edit> {
    let places = prop::sample::select(vec![
        "/format",
        "/content",
        "/content/components",
        "/content/components/adapter/path",
        "/content/files",
        "/content/files/0/path",
        "/content/files/0/size",
        "/content/files/0/sha256",
        "/content/files/0/executable",
        "/scenario",
        "/operation",
        "/sequence",
        "/parent_release_id",
        "/target_release_id",
        "/held",
        "/source",
        "/provenance",
        "/provenance/verdict",
        "/provenance/metrics",
        "/another",
    ]);
    let trailers = prop::sample::select(vec![
        "Operation",
        "Scenario",
        "Sequence",
        "Content",
        "Kind",
        "Bytes",
        "Target",
        "Held",
        "At",
        "Intent",
    ]);
    let mode = prop::sample::select(vec![0o100_644, 0o100_644, 0o100_755, 0o120_000, 0o160_000]);
    prop_oneof![
        4 => (a_name(), "\\PC{0,20}", mode, any::<bool>(), any::<bool>()).prop_map(|(path, text, mode, listed, stored)| {
            // Where neither has it, both have.
            Edit::File { path: path.replace('\0', ""), text, mode, listed: listed || !stored, stored }
        }),
        3 => (places, a_value()).prop_map(|(at, to)| Edit::Set { at: at.to_owned(), to }),
        2 => (trailers, prop::option::of("[a-z0-9]{0,8}")).prop_map(|(name, to)| Edit::Trailer { name: name.to_owned(), to }),
        1 => "(Reef-[A-Z][a-z]{2,8}: )?[ -~]{0,20}".prop_map(|text| Edit::Line { text }),
        1 => "[ -~\n]{0,60}".prop_map(|text| Edit::Attributes { text }),
        1 => (0usize..2).prop_map(|more| Edit::Parents { more }),
        1 => Just(Edit::Reverse),
        1 => Just(Edit::Double),
        1 => Just(Edit::StaleId),
        2 => (any::<usize>(), any::<u8>()).prop_map(|(at, to)| Edit::Byte { at, to }),
    ]
}

/// How many chains are made up; more on demand.
fn cases() -> u32 {
    std::env::var("REEF_FUZZ_CASES").map_or(24, |n| n.parse().unwrap())
}

#[test]
fn whatever_a_remote_makes_up_is_refused_or_sound() {
    let two = Two::new();
    let before = two.refs();
    let mut runner = TestRunner::new(Config {
        cases: cases(),
        failure_persistence: None,
        ..Config::default()
    });
    runner
        .run(&prop::collection::vec(an_edit(), 0..4), |edits| {
            let (release, result) = two.offer(&edits);
            if result.is_ok() {
                two.check_taken(&release);
            }
            prop_assert_eq!(two.refs(), before.clone());
            // Many more than a pull could try: the reading alone, without git's own look.
            for some in (0..edits.len()).map(|n| &edits[..n]) {
                let stored = forge(two.here.path(), &two.head, some);
                if two.here.examine(&stored).is_ok() {
                    let out = tempfile::tempdir().unwrap();
                    two.here.export(&stored, &out.path().join("x")).unwrap();
                }
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}\nkeep the edits under tests/fixtures/chains"));
}

/// A creation without a base, a held release on its own: the drafts of other tests are sound as well.
#[test]
fn what_reef_makes_is_sound() {
    let rig = Rig::new();
    let first = rig.release(&rig.adapter("a", 1), None, "one");
    let staged = rig.repository.stage_directory(&rig.adapter("a", 2), None).unwrap();
    let held = Draft {
        held: true,
        operation: Operation::Import,
        ..draft(Some(&first), "held")
    };
    let held = rig.repository.commit(&staged, &held).unwrap();
    for release in [&first, &held] {
        rig.repository.examine(release).unwrap();
    }
    drop(open(rig.dir.path()));
}
