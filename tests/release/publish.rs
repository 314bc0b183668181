//! Publishing through the store: what is appended, who loses, what is decided.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use reef::domain::{
    BatchId, NewExchange, Operation, RecordId, ReleaseId, Route, ScenarioName, Tags, Timings, TrainingMode, Turn,
};
use reef::experience::{BatchUse, Experience, RecordQuery, StepQuery, StoreOptions};
use reef::release::{Provenance, ReleaseError, RepositoryOptions, Source};
use reef::scenario::{Candidate, PublishError, Publisher};

use crate::rig::{Rig, scenario};

/// A publisher on the files in a rig's directory.
pub fn publisher(rig: &Rig) -> Publisher {
    publisher_at(rig.dir.path())
}

pub fn publisher_at(dir: &Path) -> Publisher {
    let experience = Experience::open(&dir.join("experience.db"), StoreOptions::default()).unwrap();
    Publisher::open(
        &dir.join("artifacts.git"),
        &dir.join("cache"),
        &dir.join("run"),
        experience,
        RepositoryOptions::default(),
    )
    .unwrap()
}

pub fn candidate(dir: PathBuf, expected: &ReleaseId, held: bool) -> Candidate {
    Candidate {
        scenario: scenario("s"),
        dir,
        components: None,
        expected: expected.clone(),
        operation: Operation::Training,
        held,
        source: Source::Training,
        provenance: Provenance::default(),
        batch: None,
    }
}

/// `step:operation:outcome` of every step, oldest first.
fn history(publisher: &Publisher, name: &ScenarioName) -> Vec<String> {
    let query = StepQuery {
        oldest_first: true,
        ..StepQuery::default()
    };
    publisher
        .experience()
        .steps(name, &query)
        .unwrap()
        .iter()
        .map(|s| format!("{}:{}:{}", s.step, s.operation.as_str(), s.outcome))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_grows_by_every_kind_of_decision() {
    let rig = Rig::new();
    let publisher = publisher(&rig);
    let s = scenario("s");
    let created = publisher.create(&s, TrainingMode::Auto, None).await.unwrap();
    assert!(created.appended);
    assert!(!publisher.create(&s, TrainingMode::Auto, None).await.unwrap().appended);
    let one = publisher
        .publish(candidate(rig.adapter("a", 1), &created.release_id, false))
        .await
        .unwrap();
    let stale = publisher
        .publish(candidate(rig.adapter("b", 2), &created.release_id, false))
        .await
        .unwrap_err();
    assert!(stale.is_conflict(), "{stale}");
    let held = publisher
        .publish(candidate(rig.adapter("c", 3), &one.release_id, true))
        .await
        .unwrap();
    assert_eq!(publisher.served(&s).unwrap().unwrap().release_id, one.release_id);
    let unserved = publisher.rollback(&s, &held.release_id, None, None).await.unwrap_err();
    assert!(matches!(unserved, PublishError::NeverServed { .. }));
    let promoted = publisher
        .promote(&s, &held.release_id, Some(&one.release_id), None)
        .await
        .unwrap();
    assert_eq!(promoted.content_id, held.content_id);
    assert_ne!(promoted.release_id, held.release_id);
    // A script that repeats itself, with the head it judged, finds it done.
    for expect in [None, Some(&one.release_id), Some(&promoted.release_id)] {
        let again = publisher.promote(&s, &held.release_id, expect, None).await.unwrap();
        assert_eq!((&again.release_id, again.appended), (&promoted.release_id, false));
    }
    let refused = publisher.reject(&s, &held.release_id, None).await.unwrap_err();
    assert!(matches!(refused, PublishError::NotHeld { state: "promoted", .. }));
    let back = publisher
        .rollback(&s, &one.release_id, None, Some("worse".to_owned()))
        .await
        .unwrap();
    assert_eq!(back.content_id, one.content_id);
    // What it made is not in service any more, so there is something to refuse.
    let late = publisher.promote(&s, &held.release_id, None, None).await.unwrap_err();
    assert!(matches!(late, PublishError::NotHeld { state: "promoted", .. }));
    for target in [&back.release_id, &one.release_id] {
        let noop = publisher.rollback(&s, target, None, None).await.unwrap();
        assert_eq!((&noop.release_id, noop.appended), (&back.release_id, false));
    }
    // Said again with the head that was left, it is done too.
    let expect = Some(&promoted.release_id);
    assert!(
        !publisher
            .rollback(&s, &one.release_id, expect, None)
            .await
            .unwrap()
            .appended
    );
    let unknown = publisher
        .rollback(&s, &ReleaseId::new("0".repeat(40)).unwrap(), None, None)
        .await
        .unwrap_err();
    assert!(matches!(unknown, PublishError::Release(ReleaseError::NotFound { .. })));
    assert_eq!(
        history(&publisher, &s),
        [
            "0:creation:released",
            "1:training:released",
            "2:training:held",
            "3:promote:released",
            "4:rollback:released"
        ]
    );
    let stored = publisher.experience().scenario(&s).unwrap().unwrap();
    assert_eq!(stored.served.unwrap().release_id, back.release_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_release_keeps_its_evidence_and_is_not_served() {
    let rig = Rig::new();
    let publisher = publisher(&rig);
    let s = scenario("s");
    let head = publisher.create(&s, TrainingMode::Auto, None).await.unwrap().release_id;
    let held = publisher
        .publish(candidate(rig.adapter("a", 1), &head, true))
        .await
        .unwrap();
    publisher
        .reject(&s, &held.release_id, Some("too terse".to_owned()))
        .await
        .unwrap();
    // Once more is nothing new, and the first reason stays.
    let note = Some("again".to_owned());
    publisher.reject(&s, &held.release_id, note).await.unwrap();
    let error = publisher.promote(&s, &held.release_id, None, None).await.unwrap_err();
    assert!(
        matches!(error, PublishError::NotHeld { state: "rejected", .. }),
        "{error}"
    );
    let row = publisher.experience().release(&s, &held.release_id).unwrap().unwrap();
    assert_eq!(row.note.as_deref(), Some("too terse"));
    publisher.repository().materialise(&held.release_id).unwrap();
    assert_eq!(publisher.served(&s).unwrap().unwrap().release_id, head);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_scenario_begins_anew_under_its_name() {
    let rig = Rig::new();
    let publisher = publisher(&rig);
    let s = scenario("s");
    let head = publisher.create(&s, TrainingMode::Auto, None).await.unwrap().release_id;
    publisher
        .publish(candidate(rig.adapter("a", 1), &head, false))
        .await
        .unwrap();
    publisher.archive(&s).await.unwrap();
    assert!(publisher.experience().scenario(&s).unwrap().is_none());
    let fresh = publisher.create(&s, TrainingMode::Auto, None).await.unwrap();
    assert!(fresh.appended);
    assert_eq!(history(&publisher, &s), ["0:creation:released"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_decisions_leave_one_line_and_a_row_for_each_winner() {
    let rig = Rig::new();
    let publisher = publisher(&rig);
    let s = scenario("s");
    let first = publisher.create(&s, TrainingMode::Auto, None).await.unwrap().release_id;
    let second = publisher
        .publish(candidate(rig.adapter("a", 1), &first, false))
        .await
        .unwrap()
        .release_id;
    let mut tries = Vec::new();
    for n in 0..24 {
        let (publisher, s) = (publisher.clone(), s.clone());
        let target = if n % 2 == 0 { first.clone() } else { second.clone() };
        tries.push(tokio::spawn(async move {
            publisher.rollback(&s, &target, None, None).await
        }));
    }
    let mut won = 0;
    for task in tries {
        match task.await.unwrap() {
            Ok(published) => won += usize::from(published.appended),
            Err(error) => assert!(error.is_conflict(), "{error}"),
        }
    }
    assert!(won >= 1);
    let head = publisher.repository().head(&s).unwrap().unwrap();
    let chain = publisher.repository().chain(&head, None, usize::MAX).unwrap();
    assert_eq!(chain.len(), 2 + won);
    assert_eq!(history(&publisher, &s).len(), chain.len());
    assert!(publisher.experience().open_intents(None).unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_lost_is_rebuilt_from_the_chain() {
    let rig = Rig::new();
    let s = scenario("s");
    let before = {
        let publisher = publisher(&rig);
        let head = publisher.create(&s, TrainingMode::Auto, None).await.unwrap().release_id;
        let one = publisher
            .publish(candidate(rig.adapter("a", 1), &head, false))
            .await
            .unwrap();
        publisher
            .publish(candidate(rig.adapter("b", 2), &one.release_id, true))
            .await
            .unwrap();
        publisher.rollback(&s, &head, None, None).await.unwrap();
        history(&publisher, &s)
    };
    for name in ["experience.db", "experience.db-wal", "experience.db-shm"] {
        // The log files are there only while the store is open.
        let _absent = std::fs::remove_file(rig.dir.path().join(name));
    }
    let publisher = publisher(&rig);
    publisher.recover().await.unwrap();
    let after = history(&publisher, &s);
    assert_eq!(after.len(), before.len());
    assert_eq!(after[..2], before[..2]);
    assert_eq!(
        publisher.experience().indexed_head(&s).unwrap(),
        publisher.repository().head(&s).unwrap()
    );
}

fn exchange(receipt: &str) -> NewExchange {
    NewExchange {
        id: RecordId::new(receipt).unwrap(),
        scenario: scenario("s"),
        route: Some(Route::ChatCompletions),
        release: None,
        request: Bytes::from_static(b"{\"messages\": []}"),
        response: Bytes::from_static(b"{}"),
        streamed: false,
        status: 200,
        turn: Turn::default(),
        tags: Tags::new(),
        timings: Timings::default(),
        capture: None,
    }
}

fn batch(id: &str, records: &[&str]) -> BatchUse {
    BatchUse {
        batch_id: BatchId::new(id).unwrap(),
        consumer: "policy".to_owned(),
        records: records.iter().map(|r| RecordId::new(*r).unwrap()).collect(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_consumed_by_the_release_it_became_and_by_no_other() {
    let rig = Rig::new();
    let publisher = publisher(&rig);
    let s = scenario("s");
    let head = publisher.create(&s, TrainingMode::Auto, None).await.unwrap().release_id;
    for receipt in ["r1", "r2", "r3"] {
        publisher.experience().append_exchange(exchange(receipt)).await.unwrap();
    }
    let with = |dir: PathBuf, expected: &ReleaseId, batch: BatchUse| Candidate {
        batch: Some(batch),
        ..candidate(dir, expected, false)
    };
    // A publication that fails leaves the batch as it was.
    let link = rig.adapter("broken", 9);
    std::os::unix::fs::symlink("/etc/passwd", link.join("x")).unwrap();
    publisher
        .publish(with(link, &head, batch("b1", &["r1", "r2"])))
        .await
        .unwrap_err();
    let unused = RecordQuery {
        scenario: Some(s.clone()),
        not_consumed_by: Some("policy".to_owned()),
        limit: 100,
        ..RecordQuery::default()
    };
    assert_eq!(publisher.experience().records(&unused).unwrap().len(), 3);
    let released = publisher
        .publish(with(rig.adapter("a", 1), &head, batch("b1", &["r1", "r2"])))
        .await
        .unwrap();
    assert_eq!(publisher.experience().records(&unused).unwrap().len(), 1);
    // The same batch again is the same release, though its head is old by now.
    let again = publisher
        .publish(with(rig.adapter("a", 1), &head, batch("b1", &["r1", "r2"])))
        .await
        .unwrap();
    assert_eq!((again.release_id, again.appended), (released.release_id.clone(), false));
    // A record of one batch cannot go into another, and the head does not move over it.
    for (id, records) in [("b2", vec!["r2", "r3"]), ("b3", vec!["r3", "unknown"])] {
        let error = publisher
            .publish(with(rig.adapter("c", 2), &released.release_id, batch(id, &records)))
            .await
            .unwrap_err();
        assert!(matches!(error, PublishError::Store(_)), "{error}");
    }
    assert_eq!(publisher.repository().head(&s).unwrap(), Some(released.release_id));
    let row = &publisher.experience().steps(&s, &StepQuery::default()).unwrap()[0];
    assert_eq!(row.high_water, 2);
    assert_eq!(row.batch_id, Some(BatchId::new("b1").unwrap()));
}
