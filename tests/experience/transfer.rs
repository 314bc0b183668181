//! Export and import: the same rows on the other side, all or none of a chunk.

use bytes::Bytes;
use reef::domain::{LoadSpan, NewExchange, TokenCapture, Turn, Usage};
use reef::experience::{Envelope, ErrorClass, Experience, Insertion, RecordQuery, Repeats, Retention, StoreError};
use serde_json::json;

use super::{all, exchange, id, report, scenario, store_with};

fn captured(receipt: &str) -> NewExchange {
    NewExchange {
        request: Bytes::from_static(b"{\n  \"pretty\": 1.0\n}"),
        response: Bytes::from_static(b"data: {\"x\":1}\r\n\r\ndata: [DONE]\n\n\xff\xfe"),
        streamed: true,
        release: Some(reef::domain::FrozenRelease {
            kind: reef::domain::ContentKind::LiveWeights,
            release_id: "abc".parse().unwrap(),
            content_id: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
            parent_release_id: None,
            runtime_load_id: Some("ab12:7".parse().unwrap()),
        }),
        turn: Turn {
            text: "hi".to_owned(),
            stop_reason: Some("stop".to_owned()),
            model: Some("m".to_owned()),
            usage: Some(Usage {
                input_tokens: Some(3),
                output_tokens: Some(2),
                ..Usage::default()
            }),
            ..Turn::default()
        },
        capture: Some(TokenCapture {
            sampler: None,
            prompt_token_ids: vec![1, 2, 3],
            token_ids: vec![4, u32::MAX],
            logprobs: vec![-0.1, f32::NEG_INFINITY],
            spans: vec![LoadSpan {
                start: 0,
                end: 2,
                runtime_load_id: "ab12:7".parse().unwrap(),
            }],
            finish_reason: "stop".to_owned(),
            temperature: 0.7,
            top_k: None,
        }),
        ..exchange("a", receipt, "hi")
    }
}

fn export(store: &Experience) -> Vec<String> {
    store
        .full_records(&RecordQuery {
            limit: usize::MAX,
            ..RecordQuery::default()
        })
        .unwrap()
        .iter()
        .map(|record| record.to_export().unwrap())
        .collect()
}

fn envelopes(lines: &[String]) -> Vec<Envelope> {
    lines
        .iter()
        .flat_map(|line| Envelope::from_line(line, None, &mut Repeats::default()).unwrap())
        .collect()
}

#[tokio::test]
async fn an_export_rebuilds_the_same_store_and_again_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    store.append_exchange(exchange("a", "gone", "old")).await.unwrap();
    store
        .prune(Retention {
            max_bytes: Some(0),
            max_age: None,
        })
        .await
        .unwrap();
    store.append_exchange(captured("r1")).await.unwrap();
    store.append_exchange(exchange("a", "r2", "hi")).await.unwrap();
    let mut graded = report("a", "p1", 1.0, &["r2", "r1", "gone"]);
    graded.feedback = Some(json!({"why": ["ok", 1.0]}));
    store.append_report(graded).await.unwrap();
    let lines = export(&store);
    assert_eq!(lines.len(), 4);

    let other = tempfile::tempdir().unwrap();
    let copy = store_with(other.path(), &["a"]).await;
    let first = copy.import(envelopes(&lines)).await.unwrap();
    assert!(first.iter().all(|a| a.outcome == Insertion::Inserted));
    assert_eq!(export(&copy), lines);
    for (theirs, ours) in all(&copy).iter().zip(all(&store)) {
        assert_eq!(theirs.content_sha256, ours.content_sha256, "{}", ours.id);
    }
    for store in [&copy, &store] {
        let again = store.import(envelopes(&lines)).await.unwrap();
        assert!(again.iter().all(|a| a.outcome == Insertion::AlreadyStored));
    }
    // What was dropped keeps its identity on the other side too.
    assert_eq!(
        copy.append_exchange(exchange("a", "gone", "old"))
            .await
            .unwrap()
            .outcome,
        Insertion::AlreadyStored
    );
    let error = copy.append_exchange(exchange("a", "gone", "new")).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
}

#[tokio::test]
async fn an_import_is_all_or_nothing_and_names_the_first_bad_item() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    store.append_exchange(exchange("a", "taken", "hi")).await.unwrap();
    let before = store.stats(None).unwrap();
    let inference = |receipt: &str, text: &str| {
        let value = json!({"agent_record_id": receipt, "request_type": "inference",
            "payload": {"messages": [text], "response": {"choices": []}}});
        Envelope::from_contract(&scenario("a"), value).unwrap()
    };
    let grading = |report_id: &str, reference: &str| {
        let value = json!({"agent_record_id": report_id, "request_type": "report",
            "payload": {"score": 1, "references": [reference]}});
        Envelope::from_contract(&scenario("a"), value).unwrap()
    };
    for (items, bad, class) in [
        (vec![inference("i1", "x"), grading("p1", "i2")], 1, ErrorClass::Refused),
        (
            vec![inference("i1", "x"), inference("taken", "x")],
            1,
            ErrorClass::Conflict,
        ),
        (
            vec![inference("i1", "x"), inference("i1", "y")],
            1,
            ErrorClass::Conflict,
        ),
        // A report before the exchange it grades.
        (vec![grading("p1", "i1"), inference("i1", "x")], 0, ErrorClass::Refused),
    ] {
        let error = store.import(items).await.unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        assert!(
            matches!(error, StoreError::Item { index, .. } if index == bad),
            "{error}"
        );
        assert_eq!(store.stats(None).unwrap(), before);
        assert_eq!(all(&store).len(), 1);
    }
    let good = vec![inference("i1", "x"), grading("p1", "i1"), inference("i2", "x")];
    assert_eq!(store.import(good.clone()).await.unwrap().len(), 3);
    assert!(
        store
            .import(good)
            .await
            .unwrap()
            .iter()
            .all(|a| a.outcome == Insertion::AlreadyStored)
    );
    // Nothing failed in the store itself: refusals are the callers'.
    assert_eq!(store.health(), reef::experience::Health::Ok);
    for count in [0, 1001] {
        let items = (0..count).map(|i| inference(&format!("n{i}"), "x")).collect();
        assert_eq!(store.import(items).await.unwrap_err().class(), ErrorClass::Refused);
    }
    let full = (0..1000).map(|i| inference(&format!("n{i}"), "x")).collect();
    assert_eq!(store.import(full).await.unwrap().len(), 1000);
}

#[tokio::test]
async fn an_imported_inference_is_recognised_whatever_its_spelling() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), &["a"]).await;
    let read = |text: &str| Envelope::from_contract(&scenario("a"), serde_json::from_str(text).unwrap()).unwrap();
    let spelled = [
        r#"{"agent_record_id":"i","request_type":"inference","payload":{"t":1.0,"m":["x"],"response":{"a":1,"b":2}}}"#,
        r#"{"payload":{"response":{"b":2.0,"a":1e0},"m":["x"],"t":1},"request_type":"inference","agent_record_id":"i"}"#,
    ];
    let first = store.import(vec![read(spelled[0])]).await.unwrap();
    let again = store.import(vec![read(spelled[1])]).await.unwrap();
    assert_eq!(again[0].sequence, first[0].sequence);
    assert_eq!(again[0].outcome, Insertion::AlreadyStored);
    // The order of keys the sender chose is kept.
    let bodies = store.record(None, &id("i")).unwrap().unwrap().bodies.unwrap();
    assert_eq!(&bodies.request[..], br#"{"t":1.0,"m":["x"]}"#);
}
