//! Many processes and many clients that create, release, roll back and archive at once, while others look. What each of
//! them reads of git and of the store is of two moments; nobody takes that for a loss.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use reef::domain::{Operation, ReleaseId, ScenarioName, TrainingMode};
use reef::experience::{Experience, StepQuery, StoreError, StoreOptions};
use reef::release::{Provenance, ReleaseError, Repository, RepositoryOptions, Scope, Source};
use reef::scenario::{Ailment, Candidate, PublishError, Publisher, check_up};

use crate::common::http;
use crate::common::reef::Reef;
use crate::common::upstream::{Upstream, answer};

const NAMES: [&str; 3] = ["a", "b", "c"];
const PROCESSES: usize = 3;
const CLIENTS: usize = 6;
const ANSWER: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;

/// Operations of each process; more on demand.
fn rounds() -> usize {
    std::env::var("REEF_STORM_ROUNDS").map_or(25, |n| n.parse().unwrap())
}

fn publisher(dir: &Path) -> Publisher {
    let files = dir.join(".reef");
    let experience = Experience::open(&files.join("experience.db"), StoreOptions::default()).unwrap();
    Publisher::open(
        &files.join("artifacts.git"),
        &files.join("cache"),
        &files.join("run"),
        experience,
        RepositoryOptions::default(),
    )
    .unwrap()
}

fn name(n: usize) -> ScenarioName {
    ScenarioName::new(NAMES[n % NAMES.len()]).unwrap()
}

/// A way of ending that is an answer: somebody else was first, or it is not there any more.
fn is_an_answer(error: &PublishError) -> bool {
    error.is_conflict()
        || matches!(
            error,
            PublishError::UnknownScenario { .. }
                | PublishError::NotHeld { .. }
                | PublishError::NeverServed { .. }
                | PublishError::Store(StoreError::UnknownScenario { .. })
                | PublishError::Release(ReleaseError::NotFound { .. })
        )
}

/// The same numbers on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

async fn act(publisher: &Publisher, tree: &Path, dice: &mut Dice, round: usize) -> Result<(), PublishError> {
    let s = name(dice.roll(NAMES.len()));
    match dice.roll(10) {
        0..=1 => publisher.create(&s, TrainingMode::Auto, None).await.map(drop),
        2..=5 => {
            let expected = publisher.head(&s).await?;
            std::fs::write(tree.join("AGENTS.md"), format!("{} in round {round}", tree.display())).unwrap();
            let candidate = Candidate {
                scenario: s.clone(),
                dir: tree.to_path_buf(),
                components: None,
                expected,
                operation: Operation::Import,
                held: dice.roll(4) == 0,
                source: Source::Training,
                provenance: Provenance::default(),
                batch: None,
            };
            let made = publisher.publish(candidate).await?;
            if made.held {
                publisher.promote(&s, &made.release_id, None, None).await?;
            }
            Ok(())
        }
        6..=7 => {
            let steps = publisher.experience().steps(&s, &StepQuery::default())?;
            let Some(step) = steps.get(dice.roll(steps.len().max(1))) else {
                return Ok(());
            };
            let target: ReleaseId = step.release.release_id.clone();
            publisher.rollback(&s, &target, None, None).await.map(drop)
        }
        8 => publisher.archive(&s).await,
        _ => publisher.recover().await,
    }
}

/// One of the processes; run by the test below.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a part of nobody_takes_a_moment_for_a_loss"]
async fn child() {
    let Some(dir) = std::env::var_os("REEF_STORM_DIR").map(PathBuf::from) else {
        return;
    };
    let number: u64 = std::env::var("REEF_STORM_CHILD").unwrap().parse().unwrap();
    let publisher = publisher(&dir);
    let tree = dir.join(format!("tree-{number}"));
    std::fs::create_dir_all(&tree).unwrap();
    let mut dice = Dice(number);
    let mut done = 0;
    for round in 0..rounds() {
        match act(&publisher, &tree, &mut dice, round).await {
            Ok(()) => done += 1,
            Err(error) => assert!(is_an_answer(&error), "round {round}: {error}: {error:?}"),
        }
    }
    println!("done {done}");
}

fn spawn(dir: &Path, number: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["storm::child", "--exact", "--ignored", "--nocapture"])
        .env("REEF_STORM_DIR", dir)
        .env("REEF_STORM_CHILD", (number + 1).to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What whoever looks finds wrong.
fn look(dir: &Path, everything: bool) -> Vec<String> {
    let files = dir.join(".reef");
    let options = RepositoryOptions::default();
    let repository = Repository::open_existing(&files.join("artifacts.git"), &files.join("cache"), options).unwrap();
    let store = Experience::open_read_only(&files.join("experience.db"), StoreOptions::default()).unwrap();
    let (found, _) = check_up(&repository, &store).unwrap();
    let mut found: Vec<String> = found
        .iter()
        .map(|(name, ailment): &(ScenarioName, Ailment)| format!("{name}: {ailment:?}"))
        .collect();
    if everything {
        let verified = publisher(dir).verify(&Scope::Everything, &mut |_, _| {}).unwrap();
        found.extend(verified.damage.iter().map(|damage| format!("{damage:?}")));
    }
    found
}

#[test]
fn nobody_takes_a_moment_for_a_loss() {
    let upstream = Upstream::start(|_, _| answer(200, "application/json", ANSWER));
    let own = tempfile::tempdir().unwrap();
    let dir = own.path();
    let service = Reef::start_in(dir, &upstream.url(), &["--upstream-model", "m"]);
    let over = AtomicBool::new(false);
    let wrong = Mutex::new(Vec::new());
    let note = |what: String| wrong.lock().unwrap().push(what);
    let mut done = 0;
    std::thread::scope(|scope| {
        let (over, note, address) = (&over, &note, service.address);
        for client in 0..CLIENTS {
            scope.spawn(move || {
                for n in client.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let headers = [
                        ("x-reef-scenario", NAMES[n % NAMES.len()]),
                        ("content-type", "application/json"),
                    ];
                    let body = br#"{"model":"m","messages":[]}"#;
                    let mut response = http::send(address, "POST", "/v1/chat/completions", &headers, body);
                    // 404: it was archived while it was asked.
                    if !matches!(response.status, 200 | 404) {
                        let said = response.text();
                        note(format!("a client got {}: {said}", response.status));
                    }
                }
            });
        }
        scope.spawn(move || {
            for n in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                for found in look(dir, n % 4 == 0) {
                    note(format!("a look found {found}"));
                }
                let mut status = http::send(address, "GET", "/reef/status", &[], b"");
                if status.status != 200 || status.text().contains("is gone") {
                    note(format!("the status is {}", status.status));
                }
            }
        });
        let children: Vec<Child> = (0..PROCESSES).map(|number| spawn(dir, number)).collect();
        for child in children {
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            if !output.status.success() {
                note(format!("{said}{}", String::from_utf8_lossy(&output.stderr)));
            }
            done += said
                .lines()
                .filter_map(|line| line.strip_prefix("done ")?.parse::<usize>().ok())
                .sum::<usize>();
        }
        over.store(true, Ordering::Relaxed);
    });
    let log = service.log();
    for line in log.lines() {
        if ["is gone", "were lost", "\"ERROR\"", "is damaged", "panicked"]
            .iter()
            .any(|word| line.contains(word))
        {
            wrong.lock().unwrap().push(format!("the log says {line}"));
        }
    }
    drop(service);
    let wrong = wrong.into_inner().unwrap();
    assert!(
        wrong.is_empty(),
        "{} wrong, such as\n{}",
        wrong.len(),
        wrong.iter().take(5).cloned().collect::<Vec<_>>().join("\n")
    );
    assert!(done > PROCESSES, "only {done} operations came through");
    assert_eq!(look(dir, true), Vec::<String>::new());
    assert!(publisher(dir).experience().open_intents(None).unwrap().is_empty());
}
