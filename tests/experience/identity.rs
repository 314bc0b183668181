//! Who is who: retries, conflicts, references, pages, scenarios.

use reef::domain::{NewReport, RequestType, Route, TrainingMode};
use reef::experience::{
    ErrorClass, Health, Insertion, Interruption, InterruptionReason, Order, RecordQuery, ReferenceFault, StoreError,
};
use serde_json::{Map, Value, json};

use super::{all, exchange, fault, id, open, report, scenario, store_with};

#[tokio::test]
async fn what_is_appended_is_read_back_exactly_also_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    let long = exchange("a", "r2", &"long text ".repeat(500));
    for given in [exchange("a", "r1", "hi"), long] {
        let appended = store.append_exchange(given.clone()).await.unwrap();
        assert_eq!(appended.outcome, Insertion::Inserted);
        let record = store.record(Some(&scenario("a")), &given.id).unwrap().unwrap();
        let bodies = record.bodies.unwrap();
        assert_eq!(bodies.request, given.request);
        assert_eq!(bodies.response.unwrap(), given.response);
        assert_eq!(bodies.turn.unwrap(), given.turn);
        assert_eq!(record.row.sequence, appended.sequence);
        assert_eq!(record.row.tags, given.tags);
        assert_eq!(record.row.timings, given.timings);
        assert_eq!(record.row.route, given.route);
    }
    let before = all(&store);
    assert_eq!(before.len(), 2);
    drop(store);
    assert_eq!(all(&open(dir.path())), before);
}

#[tokio::test]
async fn a_report_names_its_first_bad_reference_and_stores_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a", "b"]).await;
    for (name, receipt) in [("a", "r1"), ("a", "r2"), ("b", "other")] {
        store.append_exchange(exchange(name, receipt, "hi")).await.unwrap();
    }
    store.append_report(report("a", "p1", 1.0, &["r1"])).await.unwrap();
    store
        .note_interruption(Interruption {
            id: Some(id("cut")),
            scenario: scenario("a"),
            route: Route::ChatCompletions,
            reason: InterruptionReason::ClientGone,
            detail: String::new(),
            at_us: 1,
            bytes: 3,
        })
        .await
        .unwrap();
    let many: Vec<String> = (0..10_000).map(|i| format!("x{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (references, want) in [
        (vec!["r1", "nowhere"], (1, ReferenceFault::Unknown)),
        (vec!["other"], (0, ReferenceFault::OtherScenario)),
        (vec!["r1", "r2", "r1"], (2, ReferenceFault::Duplicate)),
        (vec!["p1"], (0, ReferenceFault::NotAnExchange("report"))),
        (vec!["cut"], (0, ReferenceFault::Interrupted)),
        (many, (1000, ReferenceFault::TooMany(1000))),
    ] {
        let error = store
            .append_report(report("a", "bad", 1.0, &references))
            .await
            .unwrap_err();
        assert_eq!(error.class(), ErrorClass::Refused);
        assert_eq!(fault(error), want);
    }
    let stats = &store.stats(None).unwrap()[&scenario("a")];
    assert_eq!((stats.exchanges, stats.reports, stats.scores), (2, 1, 1));
    assert_eq!(stats.interrupted, [("client_gone".to_owned(), 1)].into());
    assert!(store.record(None, &id("bad")).unwrap().is_none());
    assert!(store.record(None, &id("cut")).unwrap().is_none());
}

#[tokio::test]
async fn a_retry_is_recognised_whatever_its_spelling_and_other_content_conflicts() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a", "b"]).await;
    store.append_exchange(exchange("a", "r1", "hi")).await.unwrap();
    let with = |text: &str, score: f64| NewReport {
        metadata: serde_json::from_str::<Map<String, Value>>(text).unwrap(),
        ..report("a", "p1", score, &["r1"])
    };
    let first = store
        .append_report(with(r#"{"x": 1, "y": {"b": 2.0, "a": [1e1]}}"#, 1.0))
        .await
        .unwrap();
    let again = store
        .append_report(with(r#"{"y":{"a":[10],"b":2},"x":1.0}"#, 1.0))
        .await
        .unwrap();
    assert_eq!(again.outcome, Insertion::AlreadyStored);
    assert_eq!(again.sequence, first.sequence);
    for other in [
        with(r#"{"x": 1, "y": {"b": 2.0, "a": [1e1]}}"#, 0.5),
        with(r#"{"x": 1}"#, 1.0),
        NewReport {
            references: vec![],
            ..with(r#"{"x": 1, "y": {"b": 2.0, "a": [1e1]}}"#, 1.0)
        },
        NewReport {
            feedback: Some(json!("no")),
            ..with(r#"{"x": 1, "y": {"b": 2.0, "a": [1e1]}}"#, 1.0)
        },
    ] {
        let error = store.append_report(other).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Conflict);
    }
    // A divergent retry leaves no trace: the honest one still succeeds.
    assert_eq!(
        store
            .append_report(with(r#"{"x":1,"y":{"a":[10],"b":2}}"#, 1.0))
            .await
            .unwrap()
            .outcome,
        Insertion::AlreadyStored
    );
    // Another scenario has its own ids.
    store.append_report(report("b", "p1", 0.0, &[])).await.unwrap();
    assert_eq!(store.health(), Health::Ok);
}

#[tokio::test]
async fn pages_go_both_ways_and_filter() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a", "b"]).await;
    for i in 0..10 {
        store
            .append_exchange(exchange("a", &format!("a{i}"), "x"))
            .await
            .unwrap();
        store
            .append_exchange(exchange("b", &format!("b{i}"), "x"))
            .await
            .unwrap();
    }
    store.append_report(report("a", "p", 0.5, &["a3", "a1"])).await.unwrap();
    let ids = |query: RecordQuery| -> Vec<String> {
        store
            .records(&query)
            .unwrap()
            .iter()
            .map(|row| row.id.to_string())
            .collect()
    };
    let of_a = RecordQuery {
        scenario: Some(scenario("a")),
        limit: 3,
        ..RecordQuery::default()
    };
    assert_eq!(ids(of_a.clone()), ["a0", "a1", "a2"]);
    let third = store.records(&of_a).unwrap()[2].sequence;
    assert_eq!(
        ids(RecordQuery {
            cursor: Some(third),
            ..of_a.clone()
        }),
        ["a3", "a4", "a5"]
    );
    assert_eq!(
        ids(RecordQuery {
            order: Order::NewestFirst,
            ..of_a.clone()
        }),
        ["p", "a9", "a8"]
    );
    let reports = RecordQuery {
        kind: Some(RequestType::Report),
        ..of_a.clone()
    };
    let rows = store.records(&reports).unwrap();
    assert_eq!(rows[0].references, [id("a3"), id("a1")]);
    assert_eq!(rows[0].score, Some(0.5));
    assert_eq!(store.reports_on(&scenario("a"), &id("a1")).unwrap().len(), 1);
    assert_eq!(store.reports_on(&scenario("a"), &id("a2")).unwrap().len(), 0);
    let unknown = RecordQuery {
        scenario: Some(scenario("c")),
        ..of_a
    };
    assert_eq!(store.records(&unknown).unwrap_err().class(), ErrorClass::NotFound);
}

#[tokio::test]
async fn scenarios_keep_mode_and_settings_and_archiving_frees_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    store.append_exchange(exchange("a", "r1", "old")).await.unwrap();
    let again = store
        .scenario_create(scenario("a"), TrainingMode::Manual, Map::new())
        .await
        .unwrap();
    assert!(!again.created);
    assert_eq!(again.scenario.mode, TrainingMode::Auto);
    store
        .scenario_set_mode(scenario("a"), TrainingMode::Hybrid)
        .await
        .unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(
        store.scenario(&scenario("a")).unwrap().unwrap().mode,
        TrainingMode::Hybrid
    );
    let made = store.scenario(&scenario("a")).unwrap().unwrap().created_us;
    let other = store.scenario_archive(scenario("a"), made - 1).await.unwrap_err();
    assert!(matches!(other, StoreError::UnknownScenario { .. }), "{other}");
    store.scenario_archive(scenario("a"), made).await.unwrap();
    assert!(store.scenario(&scenario("a")).unwrap().is_none());
    let error = store.append_exchange(exchange("a", "r2", "x")).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::NotFound);
    store
        .scenario_create(scenario("a"), TrainingMode::Auto, Map::new())
        .await
        .unwrap();
    // The new scenario does not know the old one's ids.
    let fresh = store.append_exchange(exchange("a", "r1", "new")).await.unwrap();
    assert_eq!(fresh.outcome, Insertion::Inserted);
    assert_eq!(store.scenarios(false).unwrap().len(), 1);
    assert_eq!(store.scenarios(true).unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_writers_each_read_what_they_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    let writers: Vec<_> = (0..64)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for i in 0..10 {
                    let receipt = format!("w{writer}-{i}");
                    store.append_exchange(exchange("a", &receipt, "hi")).await.unwrap();
                    // The receipt is out: feedback on it must be accepted at once.
                    store
                        .append_report(report("a", &format!("p-{receipt}"), 1.0, &[&receipt]))
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let stats = &store.stats(None).unwrap()[&scenario("a")];
    assert_eq!((stats.exchanges, stats.reports), (640, 640));
    let metrics = store.metrics();
    assert_eq!(metrics.writes, 1281);
    assert!(metrics.commits < metrics.writes, "no group commit happened");
    assert_eq!(metrics.queue_depth, 0);
}
