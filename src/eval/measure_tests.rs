//! Contests between engines that answer by rule.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::domain::{ContentKind, FrozenRelease, Outcome, ReleaseId, Route, ScenarioName, Verdict};
use crate::engine::{BoxFuture, Engine, EngineError, EngineReply, EngineRequest, ModelCard};
use crate::recipe::{EvaluatorKind, GateSpec, SelectorKind};

/// An engine whose answer depends on the scenario that asks.
struct Rule {
    calls: AtomicUsize,
    answer: fn(&str, usize, &Value) -> Result<String, EngineError>,
}

impl Engine for Rule {
    fn call(&self, request: EngineRequest) -> BoxFuture<'_, Result<EngineReply, EngineError>> {
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let text = (self.answer)(request.scenario.as_str(), n, &body);
        Box::pin(async move {
            let reply =
                json!({"choices": [{"message": {"role": "assistant", "content": text?}, "finish_reason": "stop"}]});
            Ok(EngineReply {
                status: StatusCode::OK,
                headers: HeaderMap::new(),
                body: Box::pin(futures_util::stream::iter([Ok(Bytes::from(reply.to_string()))])),
                capture: None,
            })
        })
    }

    fn models(&self) -> BoxFuture<'_, Result<Vec<ModelCard>, EngineError>> {
        Box::pin(async { Ok(vec![]) })
    }

    fn kind(&self) -> &'static str {
        "torch"
    }
}

fn side(engine: &Arc<Rule>, name: &str) -> Side {
    Side {
        engine: Arc::clone(engine) as Arc<dyn Engine>,
        scenario: ScenarioName::new(name).unwrap(),
        release: FrozenRelease {
            kind: ContentKind::Artifact,
            release_id: ReleaseId::new(name).unwrap(),
            content_id: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
            parent_release_id: None,
            runtime_load_id: None,
        },
    }
}

fn questions() -> Vec<Question> {
    (0..6)
        .map(|n| Question {
            id: format!("q{n}"),
            protected: n == 0,
            route: Route::ChatCompletions,
            request: json!({"messages": [{"role": "user", "content": format!("{n}")}]})
                .as_object()
                .unwrap()
                .clone(),
            grading: Grading::Checker(
                serde_json::from_value(json!({"kind": "exact", "answers": ["right"]})).unwrap(),
                ".".into(),
            ),
        })
        .collect()
}

async fn hold(answer: fn(&str, usize, &Value) -> Result<String, EngineError>) -> Verdict {
    let engine = Arc::new(Rule {
        calls: AtomicUsize::new(0),
        answer,
    });
    let contest = Contest {
        candidate: side(&engine, "candidate"),
        current: Some(side(&engine, "current")),
        judge: None,
    };
    let spec = GateSpec {
        selector: SelectorKind::Paired,
        evaluator: EvaluatorKind::Suite,
        suite: Some("x".into()),
        maximum_pairs: 60,
        parallel: 3,
        ..GateSpec::default()
    };
    let terms = Terms {
        spec: &spec,
        level: 0.05,
        seed: "s",
        draw: Draw::Repeated,
        evaluator: "suite",
    };
    judge_by_answers(&terms, &questions(), &contest, &CancellationToken::new(), &|_| {})
        .await
        .unwrap()
}

#[tokio::test]
async fn the_better_side_wins_and_pairs_are_kept() {
    let verdict = hold(|who, _, _| Ok(if who == "candidate" { "right" } else { "wrong" }.to_owned())).await;
    assert_eq!(verdict.outcome, Outcome::Selected, "{}", verdict.reason);
    assert!(
        verdict
            .pairs
            .iter()
            .all(|pair| pair.candidate == Some(1.0) && pair.current == Some(0.0))
    );
    assert!(
        verdict.pairs[..3].iter().all(|pair| pair.task == "q0"),
        "the protected task is measured first"
    );
}

#[tokio::test]
async fn both_sides_of_a_pair_sample_with_the_same_seed() {
    // An engine that answers by seed alone: identical sides tie on every pair.
    let verdict = hold(|_, _, body| {
        let right = body["seed"].as_u64().unwrap() % 2 == 0;
        Ok(if right { "right" } else { "wrong" }.to_owned())
    })
    .await;
    assert_eq!(verdict.figures["ties"], verdict.figures["valid"]);
    let scores: std::collections::BTreeSet<_> = verdict.pairs.iter().map(|p| p.candidate.map(|s| s as i64)).collect();
    assert_eq!(scores.len(), 2, "different pairs have different seeds");
}

#[tokio::test]
async fn an_outage_is_invalid_and_an_empty_answer_is_wrong() {
    let outage = hold(|_, n, _| {
        if n % 2 == 0 {
            Err(EngineError::Overloaded { reason: "full".into() })
        } else {
            Ok("right".into())
        }
    })
    .await;
    assert_eq!(outage.outcome, Outcome::Invalid, "{}", outage.reason);
    assert!(
        outage
            .pairs
            .iter()
            .any(|pair| pair.failure.as_deref().is_some_and(|why| why.contains("capacity")))
    );
    let empty = hold(|who, _, _| Ok(if who == "candidate" { "" } else { "right" }.to_owned())).await;
    assert_eq!(empty.outcome, Outcome::Rejected, "{}", empty.reason);
}
