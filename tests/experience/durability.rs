//! What is acknowledged is there: after kill -9, beside other processes, on a disk that fails and recovers.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use reef::domain::TrainingMode;
use reef::experience::{ErrorClass, Experience, Health, Insertion, RecordQuery, StoreError, StoreOptions};
use rusqlite::Connection;
use serde_json::Map;

use super::{all, exchange, id, open, report, scenario, store_with};

const FILE: &str = "REEF_TEST_STORE";
const PREFIX: &str = "REEF_TEST_PREFIX";
const COUNT: &str = "REEF_TEST_COUNT";

/// Another process that appends and prints each id once it is acknowledged. Not a test by itself: the tests below run it.
#[test]
#[ignore = "the child process of other tests"]
fn appending_process() {
    let Some(file) = std::env::var_os(FILE) else { return };
    let prefix = std::env::var(PREFIX).unwrap();
    let count: usize = std::env::var(COUNT).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Experience::open(&PathBuf::from(file), StoreOptions::default()).unwrap();
        store
            .scenario_create(scenario("a"), TrainingMode::Auto, Map::new())
            .await
            .unwrap();
        let lanes: Vec<_> = (0..8)
            .map(|lane| {
                let (store, prefix) = (store.clone(), prefix.clone());
                tokio::spawn(async move {
                    for i in 0..count {
                        let receipt = format!("{prefix}-{lane}-{i}");
                        store.append_exchange(exchange("a", &receipt, "hi")).await.unwrap();
                        // One write, so that a kill leaves no half line.
                        std::io::stdout()
                            .write_all(format!("acked {receipt}\n").as_bytes())
                            .unwrap();
                    }
                })
            })
            .collect();
        for lane in lanes {
            lane.await.unwrap();
        }
    });
}

fn appender(file: &Path, prefix: &str, count: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "durability::appending_process", "--ignored", "--nocapture"])
        .env(FILE, file)
        .env(PREFIX, prefix)
        .env(COUNT, count.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn acked(lines: impl Iterator<Item = String>) -> Vec<String> {
    lines
        .filter_map(|line| line.rsplit_once("acked ").map(|(_, receipt)| receipt.to_owned()))
        .collect()
}

#[test]
fn thirty_kills_lose_no_acknowledged_record() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("experience.db");
    let mut receipts = Vec::new();
    for round in 0..30 {
        let mut child = appender(&file, &format!("r{round}"), 100_000);
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        // Kill at another moment each time: after so many acknowledgements, without waiting for a quiet point.
        let before = receipts.len();
        while receipts.len() < before + 1 + round * 7 {
            let line = lines.next().expect("the child ended by itself");
            receipts.extend(acked(std::iter::once(line)));
        }
        child.kill().unwrap();
        receipts.extend(acked(lines));
        child.wait().unwrap();
        if round % 10 == 9 {
            let store = open(dir.path());
            for receipt in &receipts {
                let record = store.record(None, &id(receipt)).unwrap();
                assert!(
                    record.is_some_and(|r| r.bodies.is_some()),
                    "{receipt} was acknowledged and is gone"
                );
            }
        }
    }
    // The counts agree with the rows whatever was cut off.
    let store = open(dir.path());
    let rows = all(&store);
    assert_eq!(store.stats(None).unwrap()[&scenario("a")].exchanges, rows.len() as u64);
    assert!(rows.len() >= receipts.len());
}

#[test]
fn several_processes_share_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("experience.db");
    let children: Vec<Child> = (0..3).map(|i| appender(&file, &format!("p{i}"), 20)).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(acked(text.lines().map(str::to_owned)).len(), 160);
    }
    let store = open(dir.path());
    let rows = all(&store);
    assert_eq!(rows.len(), 480);
    assert!(rows.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
    assert_eq!(store.stats(None).unwrap()[&scenario("a")].exchanges, 480);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_wait_for_an_outside_transaction_and_readers_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    store.append_exchange(exchange("a", "r0", "hi")).await.unwrap();
    let outside = Connection::open(store.path()).unwrap();
    // An old snapshot held open must stop nobody.
    outside.execute_batch("BEGIN; SELECT count(*) FROM record;").unwrap();
    store.append_exchange(exchange("a", "r1", "hi")).await.unwrap();
    outside.execute_batch("COMMIT; BEGIN IMMEDIATE;").unwrap();
    let writers: Vec<_> = (0..64)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move { store.append_exchange(exchange("a", &format!("w{i}"), "hi")).await })
        })
        .collect();
    let begun = Instant::now();
    let reading = store.clone();
    let seen = tokio::task::spawn_blocking(move || all(&reading).len()).await.unwrap();
    assert_eq!(seen, 2);
    tokio::time::sleep(Duration::from_secs(3).saturating_sub(begun.elapsed())).await;
    assert!(writers.iter().all(|writer| !writer.is_finished()));
    outside.execute_batch("COMMIT").unwrap();
    for writer in writers {
        writer.await.unwrap().unwrap();
    }
    assert_eq!(all(&store).len(), 66);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_says_busy_and_loses_nothing_it_took() {
    let dir = tempfile::tempdir().unwrap();
    store_with(dir.path(), &["a"]).await;
    let options = StoreOptions {
        queue_writes: 2,
        patience: Duration::from_millis(200),
        busy_timeout: Duration::from_secs(60),
        ..StoreOptions::default()
    };
    let store = Experience::open(&dir.path().join("experience.db"), options).unwrap();
    let outside = Connection::open(store.path()).unwrap();
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let writers: Vec<_> = (0..20)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move { store.append_exchange(exchange("a", &format!("w{i}"), "hi")).await })
        })
        .collect();
    // At least 20 writes less the queue and one batch of it in the writer's hands are turned away.
    let deadline = Instant::now() + Duration::from_secs(30);
    while writers.iter().filter(|writer| writer.is_finished()).count() < 14 {
        assert!(Instant::now() < deadline, "nobody was turned away");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    outside.execute_batch("COMMIT").unwrap();
    let mut stored = 0;
    for writer in writers {
        match writer.await.unwrap() {
            Ok(_) => stored += 1,
            Err(error) => {
                assert_eq!(error.class(), ErrorClass::Busy, "{error}");
                assert!(error.to_string().contains("queue"), "{error}");
            }
        }
    }
    assert!(stored > 0);
    assert_eq!(all(&store).len(), stored);
}

#[tokio::test]
async fn a_caller_that_stops_waiting_leaves_a_whole_record_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    for i in 0..50 {
        let given = exchange("a", &format!("r{i}"), "hi");
        let append = store.append_exchange(given.clone());
        let outcome = tokio::time::timeout(Duration::from_micros(i * 20), append).await;
        let again = store.append_exchange(given).await.unwrap();
        if outcome.is_ok() {
            assert_eq!(again.outcome, Insertion::AlreadyStored);
        }
    }
    assert_eq!(all(&store).len(), 50);
}

/// Runs in a process whose files may not grow beyond a limit, which acts like a full disk.
#[test]
#[ignore = "the child process of another test"]
fn process_on_a_full_disk() {
    let Some(dir) = std::env::var_os(FILE) else { return };
    let dir = PathBuf::from(dir);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = store_with(&dir, &["a"]).await;
        // Random enough not to compress.
        let mut state = 1_u32;
        let mut noise = || -> String {
            (0..60_000)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    char::from(b'a' + u8::try_from(state >> 28).unwrap())
                })
                .collect()
        };
        let mut stored = Vec::new();
        let refused = loop {
            let receipt = format!("r{}", stored.len());
            match store.append_exchange(exchange("a", &receipt, &noise())).await {
                Ok(_) => stored.push(receipt),
                Err(error) => break error,
            }
            assert!(stored.len() < 1000, "the disk never filled");
        };
        assert!(matches!(refused, StoreError::Sqlite { .. }), "{refused}");
        let Health::Degraded { error, .. } = store.health() else {
            panic!("health does not show the failure")
        };
        assert!(error.contains("failed while"), "{error}");
        // Nothing half-written, reports still refused by what is really there, reads unharmed.
        let missing = format!("r{}", stored.len());
        assert_eq!(all(&store).len(), stored.len());
        assert!(store.record(None, &id(&missing)).unwrap().is_none());
        // Room again: the same record goes in, and health is good.
        rustix::process::setrlimit(
            rustix::process::Resource::Fsize,
            rustix::process::Rlimit {
                current: None,
                maximum: None,
            },
        )
        .unwrap();
        store.append_exchange(exchange("a", &missing, "hi")).await.unwrap();
        store.append_report(report("a", "p", 1.0, &[&missing])).await.unwrap();
        assert_eq!(store.health(), Health::Ok);
        assert_eq!(all(&store).len(), stored.len() + 2);
    });
}

#[test]
fn a_full_disk_is_an_error_and_not_the_end() {
    let dir = tempfile::tempdir().unwrap();
    // A write beyond the limit must fail rather than raise SIGXFSZ; both pass through exec.
    let output = Command::new("sh")
        .arg("-c")
        .arg("trap '' XFSZ; ulimit -S -f 4096; exec \"$0\" \"$@\"")
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "durability::process_on_a_full_disk",
            "--ignored",
            "--nocapture",
        ])
        .env(FILE, dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
async fn a_store_that_was_removed_is_not_silently_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    for suffix in ["", "-wal", "-shm"] {
        let _may_be_absent = std::fs::remove_file(dir.path().join(format!("experience.db{suffix}")));
    }
    // A receipt for a write into a deleted file would be worth nothing.
    for i in 0..3 {
        let error = store
            .append_exchange(exchange("a", &format!("r{i}"), "hi"))
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Open { .. }), "{error}");
    }
    assert!(
        !dir.path().join("experience.db").exists(),
        "an empty store replaced the lost one"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn appends_reports_reads_and_sweeps_go_on_together() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    let until = Instant::now() + Duration::from_secs(3);
    let mut tasks = Vec::new();
    for lane in 0..4 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            let mut i = 0;
            while Instant::now() < until {
                let receipt = format!("r{lane}-{i}");
                store
                    .append_exchange(exchange("a", &receipt, &"x".repeat(2000)))
                    .await
                    .unwrap();
                store
                    .append_report(report("a", &format!("p{lane}-{i}"), 1.0, &[&receipt]))
                    .await
                    .unwrap();
                i += 1;
            }
        }));
    }
    let sweeping = store.clone();
    tasks.push(tokio::spawn(async move {
        while Instant::now() < until {
            let retention = reef::experience::Retention {
                max_bytes: Some(20_000),
                max_age: None,
            };
            sweeping.prune(retention).await.unwrap();
            tokio::task::yield_now().await;
        }
    }));
    let reading = store.clone();
    tasks.push(tokio::task::spawn_blocking(move || {
        while Instant::now() < until {
            let rows = reading
                .full_records(&RecordQuery {
                    limit: 50,
                    ..RecordQuery::default()
                })
                .unwrap();
            // Bodies and rows come from one state of the store, whatever is swept meanwhile.
            assert!(rows.iter().all(|r| r.bodies.is_some() == r.row.pruned_us.is_none()));
        }
    }));
    for task in tasks {
        task.await.unwrap();
    }
    let stats = &store.stats(None).unwrap()[&scenario("a")];
    assert_eq!(stats.exchanges, stats.reports);
    assert_eq!(all(&store).len() as u64, stats.exchanges + stats.reports);
    assert!(stats.exchanges > 10 && stats.pruned_records > 0, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_of_large_and_small_writes_all_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    let outside = Connection::open(store.path()).unwrap();
    // Held up, so that all of them wait together and must be told apart into transactions.
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    let writers: Vec<_> = (0_u32..60)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move {
                let size = if i % 3 == 0 { 10 } else { 400_000 };
                let noise: String = (0..size)
                    .map(|j: u32| char::from(b'a' + (j.wrapping_mul(2_654_435_761).wrapping_add(i) >> 28) as u8))
                    .collect();
                store.append_exchange(exchange("a", &format!("w{i}"), &noise)).await
            })
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(30);
    while store.metrics().queue_depth < 40 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    outside.execute_batch("COMMIT").unwrap();
    for writer in writers {
        writer.await.unwrap().unwrap();
    }
    assert_eq!(all(&store).len(), 60);
    assert!(store.metrics().commits > 2);
}
