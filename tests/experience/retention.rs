//! Retention and consumption: bodies go, identities stay, nothing is used twice.

use std::time::Duration;

use reef::domain::{BatchId, NewReport, TrainingMode};
use reef::experience::{Consumption, ErrorClass, Insertion, Pruned, RecordQuery, Retention, StoreError};
use serde_json::Map;
use tokio_util::sync::CancellationToken;

use super::{all, exchange, id, open, report, scenario, store_with};

const EVERYTHING: Retention = Retention {
    max_bytes: Some(0),
    max_age: None,
};

#[tokio::test]
async fn a_retry_and_a_conflict_are_told_apart_after_pruning_and_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    store.append_exchange(exchange("a", "r1", "hi")).await.unwrap();
    store.append_report(report("a", "p1", 1.0, &["r1"])).await.unwrap();
    let pruned = store.prune(EVERYTHING).await.unwrap();
    assert_eq!(pruned.records, 2);
    assert!(store.record(None, &id("r1")).unwrap().unwrap().bodies.is_none());
    for _ in 0..2 {
        let store = open(dir.path());
        let retry = store.append_exchange(exchange("a", "r1", "hi")).await.unwrap();
        assert_eq!(retry.outcome, Insertion::AlreadyStored);
        let retry = store.append_report(report("a", "p1", 1.0, &["r1"])).await.unwrap();
        assert_eq!(retry.outcome, Insertion::AlreadyStored);
        let divergent = [
            store.append_exchange(exchange("a", "r1", "ho")).await,
            store.append_report(report("a", "p1", 0.0, &["r1"])).await,
            store.append_report(report("a", "p1", 1.0, &[])).await,
        ];
        for result in divergent {
            assert_eq!(result.unwrap_err().class(), ErrorClass::Conflict);
        }
    }
    // A late first report on an exchange without bodies is kept: it happened.
    store.append_report(report("a", "late", 0.5, &["r1"])).await.unwrap();
    let rows = all(&store);
    assert_eq!(rows[1].references, [id("r1")]);
    assert_eq!(rows[1].score, Some(1.0));
}

#[tokio::test]
async fn size_drops_the_oldest_first_and_only_as_many_as_needed() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a", "b"]).await;
    for i in 0..10 {
        let name = if i % 2 == 0 { "a" } else { "b" };
        store
            .append_exchange(exchange(name, &format!("r{i}"), "hi"))
            .await
            .unwrap();
    }
    let stored = |store: &reef::experience::Experience| -> u64 {
        store
            .stats(None)
            .unwrap()
            .values()
            .map(|stats| stats.stored_bytes)
            .sum()
    };
    let each = stored(&store) / 10;
    let limit = Retention {
        max_bytes: Some(each * 7),
        max_age: None,
    };
    assert_eq!(
        store.prune(limit).await.unwrap(),
        Pruned {
            records: 3,
            bytes: each * 3
        }
    );
    let gone: Vec<String> = all(&store)
        .iter()
        .filter(|row| row.pruned_us.is_some())
        .map(|row| row.id.to_string())
        .collect();
    assert_eq!(gone, ["r0", "r1", "r2"]);
    assert_eq!(stored(&store), each * 7);
    let stats = store.stats(None).unwrap();
    assert_eq!(stats[&scenario("a")].pruned_records, 2);
    assert_eq!(stats[&scenario("a")].exchanges, 5);
    assert_eq!(store.prune(limit).await.unwrap(), Pruned::default());
    assert_eq!(store.prune(Retention::default()).await.unwrap(), Pruned::default());
}

#[tokio::test]
async fn age_counts_from_arrival_and_a_keeper_sweeps_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    // Its own time is years ago; it arrived just now.
    store.append_exchange(exchange("a", "r1", "hi")).await.unwrap();
    let hour = Retention {
        max_bytes: None,
        max_age: Some(Duration::from_secs(3600)),
    };
    assert_eq!(store.prune(hour).await.unwrap(), Pruned::default());
    let stop = CancellationToken::new();
    let brief = Retention {
        max_bytes: None,
        max_age: Some(Duration::from_millis(20)),
    };
    let keeper = tokio::spawn(
        store
            .clone()
            .keep_pruned(brief, Duration::from_millis(10), stop.clone()),
    );
    tokio::time::timeout(Duration::from_secs(30), async {
        while store.stats(None).unwrap()[&scenario("a")].pruned_records == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("the keeper never swept");
    stop.cancel();
    keeper.await.unwrap();
}

#[tokio::test]
async fn large_sweeps_go_in_small_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    let writes: Vec<_> = (0..600)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move { store.append_exchange(exchange("a", &format!("r{i}"), "hi")).await })
        })
        .collect();
    for write in writes {
        write.await.unwrap().unwrap();
    }
    let before = store.metrics().commits;
    assert_eq!(store.prune(EVERYTHING).await.unwrap().records, 600);
    assert!(store.metrics().commits - before >= 3);
    let stats = &store.stats(None).unwrap()[&scenario("a")];
    assert_eq!(
        (stats.body_bytes, stats.stored_bytes, stats.pruned_records),
        (0, 0, 600)
    );
}

fn batch(name: &str, records: Vec<reef::domain::RecordId>) -> Consumption {
    Consumption {
        scenario: scenario("a"),
        consumer: "policy".to_owned(),
        batch: BatchId::new(name).unwrap(),
        step: Some(3),
        outcome: "committed".to_owned(),
        records,
    }
}

#[tokio::test]
async fn fifteen_hundred_records_are_consumed_at_once_and_only_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    let ids: Vec<_> = (0..1500).map(|i| id(&format!("r{i}"))).collect();
    let writes: Vec<_> = ids
        .iter()
        .map(|receipt| {
            let (store, receipt) = (store.clone(), receipt.to_string());
            tokio::spawn(async move { store.append_exchange(exchange("a", &receipt, "hi")).await })
        })
        .collect();
    for write in writes {
        write.await.unwrap().unwrap();
    }
    store.append_exchange(exchange("a", "last", "hi")).await.unwrap();
    assert_eq!(store.consume(batch("b1", ids.clone())).await.unwrap(), 1500);
    assert_eq!(
        store.consume(batch("b1", ids.clone())).await.unwrap(),
        0,
        "a repeat changes nothing"
    );
    // One taken record refuses the whole batch: nothing of it is marked.
    let error = store
        .consume(batch("b2", vec![id("last"), ids[700].clone()]))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, StoreError::Consumed { id, batch } if *id == ids[700] && batch.as_str() == "b1"),
        "{error}"
    );
    assert_eq!(store.consumed_by(&scenario("a"), &id("last")).unwrap(), []);
    let used = store.consumed_by(&scenario("a"), &ids[0]).unwrap();
    assert_eq!((used[0].step, used[0].outcome.as_str()), (Some(3), "committed"));
    assert_eq!(store.batch_records(&BatchId::new("b1").unwrap()).unwrap().len(), 1500);
    let open_rows = store
        .records(&RecordQuery {
            scenario: Some(scenario("a")),
            not_consumed_by: Some("policy".to_owned()),
            limit: 10,
            ..RecordQuery::default()
        })
        .unwrap();
    assert_eq!(
        open_rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(),
        ["last"]
    );
    // Another consumer has its own view.
    let other = Consumption {
        consumer: "harness".to_owned(),
        ..batch("b3", vec![ids[0].clone()])
    };
    assert_eq!(store.consume(other).await.unwrap(), 1);
    let error = store.consume(batch("b4", vec![id("nowhere")])).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Refused);
}

#[tokio::test]
async fn a_report_may_decline_training_and_that_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    store
        .scenario_create(scenario("b"), TrainingMode::Auto, Map::new())
        .await
        .unwrap();
    store.append_exchange(exchange("a", "r1", "hi")).await.unwrap();
    for (report_id, metadata, eligible) in [
        ("p1", r#"{"training":{"eligible":false}}"#, false),
        ("p2", r#"{"training":{"eligible":true}}"#, true),
        ("p3", r#"{"training":"eligible"}"#, true),
        ("p4", "{}", true),
    ] {
        let given = NewReport {
            metadata: serde_json::from_str(metadata).unwrap(),
            ..report("a", report_id, 1.0, &["r1"])
        };
        store.append_report(given).await.unwrap();
        let row = store.record(None, &id(report_id)).unwrap().unwrap().row;
        assert_eq!(row.eligible, eligible, "{metadata}");
    }
}
