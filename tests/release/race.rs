//! Sixteen processes that publish on the same head: in every round exactly one wins, and the chain is one line.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use reef::domain::TrainingMode;

use crate::publish::{candidate, publisher_at};
use crate::rig::{Rig, scenario};

const PROCESSES: usize = 16;

/// 50 rounds here; `scripts/bench/release.sh` asks for 1,000.
fn rounds() -> u64 {
    std::env::var("REEF_RACE_ROUNDS").map_or(50, |n| n.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_sixteen_processes_one_wins_each_round() {
    let rig = Rig::new();
    let dir = rig.dir.path().to_path_buf();
    let rounds = rounds();
    let publisher = publisher_at(&dir);
    let s = scenario("s");
    publisher.create(&s, TrainingMode::Auto, None).await.unwrap();
    let children: Vec<_> = (0..PROCESSES)
        .map(|n| {
            Command::new(std::env::current_exe().unwrap())
                .args(["race::child", "--exact", "--ignored", "--nocapture"])
                .env("REEF_RACE_DIR", &dir)
                .env("REEF_RACE_CHILD", n.to_string())
                .env("REEF_RACE_ROUNDS", rounds.to_string())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut wins = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        wins += said.lines().filter(|line| line.ends_with("won")).count() as u64;
    }
    assert_eq!(wins, rounds);
    let repository = publisher.repository();
    let head = repository.head(&s).unwrap().unwrap();
    let chain = repository.chain(&head, None, usize::MAX).unwrap();
    assert_eq!(chain.len() as u64, rounds + 1);
    publisher.sync(&s).await.unwrap();
    assert!(publisher.experience().open_intents(None).unwrap().is_empty());
    let steps = publisher.experience().steps(&s, &Default::default()).unwrap();
    assert_eq!(steps.len(), chain.len());
    assert!(
        steps
            .iter()
            .zip(&chain)
            .all(|(step, commit)| step.release.release_id == commit.release_id)
    );
    // Nothing but the one head: no other ref was left behind by the losers.
    assert_eq!(repository.scenarios().unwrap().len(), 1);
    assert!(repository.kept().unwrap().is_empty());
}

/// One of the sixteen; run by the test above.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a part of of_sixteen_processes_one_wins_each_round"]
async fn child() {
    let Some(dir) = std::env::var_os("REEF_RACE_DIR").map(PathBuf::from) else {
        return;
    };
    let number = std::env::var("REEF_RACE_CHILD").unwrap();
    let publisher = publisher_at(&dir);
    let tree = dir.join(format!("tree-{number}"));
    std::fs::create_dir_all(&tree).unwrap();
    for round in 0..rounds() {
        let head = wait_for(&publisher, round).await;
        std::fs::write(tree.join("a.txt"), format!("{number} in round {round}")).unwrap();
        match publisher.publish(candidate(tree.clone(), &head, false)).await {
            Ok(published) => {
                assert!(published.appended);
                println!("{round} won");
            }
            Err(error) => assert!(error.is_conflict(), "{error}"),
        }
    }
}

/// The head once the chain has grown to this round; later heads when this process is behind.
async fn wait_for(publisher: &reef::scenario::Publisher, round: u64) -> reef::domain::ReleaseId {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let head = publisher.repository().head(&scenario("s")).unwrap().unwrap();
        if publisher.repository().describe(&head).unwrap().sequence >= round {
            // A process that is behind publishes on the head of its round and loses, as a stale publisher does.
            let chain = publisher.repository().chain(&head, None, usize::MAX).unwrap();
            return chain.into_iter().find(|c| c.sequence == round).unwrap().release_id;
        }
        assert!(Instant::now() < deadline, "round {round} never came");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_sees_only_the_old_or_the_new_release_while_one_is_promoted() {
    let rig = Rig::new();
    let dir: &Path = rig.dir.path();
    let publisher = publisher_at(dir);
    let s = scenario("s");
    let mut head = publisher.create(&s, TrainingMode::Auto, None).await.unwrap().release_id;
    for n in 0..5u8 {
        let held = publisher
            .publish(candidate(rig.adapter("a", n), &head, true))
            .await
            .unwrap();
        let reading = publisher.clone();
        let before = head.clone();
        let reader = thread::spawn(move || {
            let s = scenario("s");
            let mut seen = Vec::new();
            let deadline = Instant::now() + Duration::from_secs(60);
            loop {
                let served = reading.served(&s).unwrap().unwrap();
                let manifest = reading.repository().manifest(&served.release_id).unwrap();
                assert_eq!(manifest.content_id, served.content_id);
                let moved = served.release_id != before;
                if seen.last() != Some(&served.release_id) {
                    seen.push(served.release_id);
                }
                if moved || Instant::now() > deadline {
                    return seen;
                }
            }
        });
        let promoted = publisher.promote(&s, &held.release_id, None, None).await.unwrap();
        let seen = reader.join().unwrap();
        assert_eq!(*seen.last().unwrap(), promoted.release_id);
        assert!(seen.len() <= 2, "{seen:?}");
        head = promoted.release_id;
        let steps = publisher.experience().steps(&s, &Default::default()).unwrap();
        let current = steps
            .iter()
            .filter(|step| reef::scenario::catalog_row(step, Some(&head)).is_current())
            .count();
        assert_eq!(current, 1);
    }
}
