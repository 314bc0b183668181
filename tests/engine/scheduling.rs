//! Who runs, who waits, who is given up.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use reef::domain::Route;
use reef::engine::EngineError;
use reef::engine::torch::TorchStatus;
use serde_json::json;

use crate::rig::{Rig, all, chat, runtime, scenario};

fn endless(text: &str) -> serde_json::Value {
    chat(text, &json!({"max_tokens": 400, "ignore_eos": true, "stream": true}))
}

#[test]
fn many_at_once_all_get_their_answers() {
    let rig = Arc::new(Rig::new(|_| {}));
    runtime().block_on(async {
        let bodies = (0..24)
            .map(|n| {
                (
                    scenario(&format!("s{}", n % 3)),
                    chat(&format!("request {n}"), &json!({"seed": n})),
                )
            })
            .collect();
        for answer in all(&rig, bodies).await {
            assert!(!answer.unwrap().capture.token_ids.is_empty());
        }
        let counts = |status: &TorchStatus| (status.finished, status.failed, status.cancelled);
        rig.until("all counted", |status| counts(status) == (24, 0, 0)).await;
        rig.until("idle", |status| status.running == 0 && status.waiting == 0)
            .await;
    });
}

#[test]
fn a_client_that_leaves_frees_its_slot() {
    let rig = Rig::new(|options| options.max_batch = 1);
    runtime().block_on(async {
        for _ in 0..3 {
            let (mut stream, slot) = rig.begin(&scenario("s"), &endless("on and on"), None).await.unwrap();
            stream.next().await.unwrap().unwrap();
            stream.next().await.unwrap().unwrap();
            drop(stream);
            assert!(slot.get().is_none(), "an unfinished answer is no capture");
        }
        // The only slot is free again for this one.
        rig.answer(&chat("short", &json!({"max_tokens": 2}))).await;
        rig.until("given up", |status| status.cancelled == 3 && status.running == 0)
            .await;
        rig.until("finished", |status| status.finished == 1).await;
    });
}

#[test]
fn a_client_that_leaves_the_queue_is_gone_from_it() {
    let rig = Arc::new(Rig::new(|options| options.max_batch = 1));
    runtime().block_on(async {
        let (stream, _slot) = rig.begin(&scenario("s"), &endless("hold"), None).await.unwrap();
        let waiting = {
            let rig = Arc::clone(&rig);
            tokio::spawn(async move { rig.answer(&chat("wait", &json!({}))).await })
        };
        rig.until("queued", |status| status.waiting == 1).await;
        waiting.abort();
        rig.until("left", |status| status.waiting == 0 && status.cancelled == 1)
            .await;
        drop(stream);
    });
}

#[test]
fn a_full_queue_says_so_at_once() {
    let rig = Arc::new(Rig::new(|options| {
        options.max_batch = 1;
        options.max_waiting = 2;
        options.max_waiting_per_scenario = 2;
    }));
    runtime().block_on(async {
        let (stream, _slot) = rig.begin(&scenario("s"), &endless("hold"), None).await.unwrap();
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                let rig = Arc::clone(&rig);
                tokio::spawn(async move { rig.answer(&chat("wait", &json!({"max_tokens": 2}))).await })
            })
            .collect();
        rig.until("queued", |status| status.waiting == 2).await;
        let refused = rig.answer_in(&scenario("s"), &chat("late", &json!({})), None).await;
        assert!(matches!(refused, Err(EngineError::Overloaded { .. })), "{refused:?}");
        // Two answers to one request are taken or refused together.
        let refused = rig
            .answer_in(&scenario("t"), &chat("late", &json!({"n": 2})), None)
            .await;
        assert!(matches!(refused, Err(EngineError::Overloaded { .. })), "{refused:?}");
        drop(stream);
        for answer in waiting {
            answer.await.unwrap();
        }
        rig.until("idle", |status| status.running == 0 && status.waiting == 0)
            .await;
    });
}

#[test]
fn patience_with_the_queue_has_an_end() {
    let rig = Rig::new(|options| {
        options.max_batch = 1;
        options.queue_timeout = Duration::from_millis(200);
    });
    runtime().block_on(async {
        let (mut stream, _slot) = rig.begin(&scenario("s"), &endless("hold"), None).await.unwrap();
        let mut refused = false;
        // The holder may be done before the wait is over on a fast machine; then it holds again.
        for _ in 0..20 {
            if let Err(error) = rig
                .answer_in(&scenario("s"), &chat("late", &json!({"max_tokens": 1})), None)
                .await
            {
                assert!(matches!(error, EngineError::Overloaded { .. }), "{error}");
                refused = true;
                break;
            }
            stream = rig.begin(&scenario("s"), &endless("hold"), None).await.unwrap().0;
        }
        drop(stream);
        assert!(refused);
    });
}

#[test]
fn a_quiet_scenario_is_served_before_a_busy_one_has_had_all_its_turns() {
    let rig = Arc::new(Rig::new(|options| options.max_batch = 1));
    runtime().block_on(async {
        let (stream, _slot) = rig.begin(&scenario("busy"), &endless("hold"), None).await.unwrap();
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for n in 0..6 {
            let name = if n == 5 { "quiet" } else { "busy" };
            let (mine, sender) = (Arc::clone(&rig), sender.clone());
            tokio::spawn(async move {
                let body = chat(&format!("{name} {n}"), &json!({"max_tokens": 20, "ignore_eos": true}));
                mine.answer_in(&scenario(name), &body, None).await.unwrap();
                sender.send(name).unwrap();
            });
            let queued = n + 1;
            rig.until("queued", |status| status.waiting == queued).await;
        }
        drop(stream);
        let first = order.recv().await.unwrap();
        let second = order.recv().await.unwrap();
        assert!(first == "quiet" || second == "quiet", "{first} {second}");
    });
}

#[test]
fn a_prompt_beyond_the_context_is_refused_in_dialect() {
    let rig = Rig::new(|options| options.max_context = Some(64));
    runtime().block_on(async {
        let long = "word ".repeat(200);
        let (status, body) = rig.refusal(Route::ChatCompletions, &chat(&long, &json!({}))).await;
        assert_eq!(status.as_u16(), 400);
        assert_eq!(body["error"]["code"], "context_length_exceeded");
        assert!(
            body["error"]["message"]
                .as_str()
                .unwrap()
                .contains("maximum context length is 64 tokens")
        );
        let (status, body) = rig.refusal(Route::Messages, &chat(&long, &json!({}))).await;
        assert_eq!(
            (status.as_u16(), &body["error"]["type"]),
            (400, &json!("invalid_request_error"))
        );
        assert!(
            body["error"]["message"]
                .as_str()
                .unwrap()
                .starts_with("prompt is too long: "),
            "{body}"
        );
    });
}
