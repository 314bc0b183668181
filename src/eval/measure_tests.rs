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
    hold_of(answer, &questions(), None).await
}

async fn hold_of(
    answer: fn(&str, usize, &Value) -> Result<String, EngineError>,
    questions: &[Question],
    answers: Option<&Answers>,
) -> Verdict {
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
        answers,
        reference: None,
    };
    judge_by_answers(&terms, questions, &contest, &CancellationToken::new(), &|_| {})
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

/// One question that a program grades.
fn graded(command: &[&str], directory: &std::path::Path) -> Vec<Question> {
    let checker = json!({"kind": "script", "command": command, "answer": 42});
    let request = json!({"messages": [{"role": "user", "content": "17 + 25"}]});
    vec![Question {
        id: "sum".into(),
        protected: false,
        route: Route::ChatCompletions,
        request: request.as_object().unwrap().clone(),
        grading: Grading::Checker(serde_json::from_value(checker).unwrap(), directory.into()),
    }]
}

#[tokio::test]
async fn a_script_grader_gets_what_the_guide_says() {
    let dir = tempfile::tempdir().unwrap();
    let command = [
        "sh",
        "-c",
        "cat > part.$$ && mv part.$$ seen.json; echo '{\"score\": 1}'",
    ];
    let questions = graded(&command, dir.path());
    let verdict = hold_of(|_, _, _| Ok("42".to_owned()), &questions, None).await;
    assert!(verdict.pairs.iter().all(|pair| pair.candidate == Some(1.0)));
    let seen: Value = serde_json::from_slice(&std::fs::read(dir.path().join("seen.json")).unwrap()).unwrap();
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guides/recipes.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let shown = guide
        .lines()
        .find(|line| line.starts_with("{\"version\": 1, \"task\""))
        .unwrap();
    let shown: Value = serde_json::from_str(shown).unwrap();
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(keys(&seen), keys(&shown));
    assert_eq!(keys(&seen["response"]), keys(&shown["response"]));
    assert_eq!((&seen["task"], &seen["answer"]), (&json!("sum"), &json!(42)));
    assert_eq!(seen["response"]["text"], "42");
    assert_eq!(seen["request"]["messages"], shown["request"]["messages"]);
}

#[tokio::test]
async fn a_grader_that_fails_every_time_measures_nothing_and_lowest_scores_are_suspected() {
    let dir = tempfile::tempdir().unwrap();
    let broken = graded(&["sh", "-c", "echo no module named grade >&2; exit 1"], dir.path());
    let verdict = hold_of(|_, _, _| Ok("42".to_owned()), &broken, None).await;
    assert_eq!(verdict.outcome, Outcome::Invalid, "{}", verdict.reason);
    let failure = verdict.pairs[0].failure.as_deref().unwrap();
    assert!(failure.contains("no module named grade"), "{failure}");
    let hopeless = hold(|_, _, _| Ok("wrong".to_owned())).await;
    assert!(
        hopeless.reason.contains("every answer scored 0, the lowest there is"),
        "{}",
        hopeless.reason
    );
    let half = hold(|who, _, _| Ok(if who == "candidate" { "wrong" } else { "right" }.to_owned())).await;
    assert!(!half.reason.contains("every answer"), "{}", half.reason);
}

#[tokio::test]
async fn answers_are_kept_where_somebody_asks_for_them() {
    let answers = Answers::default();
    let say: fn(&str, usize, &Value) -> Result<String, EngineError> =
        |who, _, _| Ok(if who == "candidate" { "right" } else { "wrong" }.to_owned());
    let mut verdict = hold_of(say, &questions(), Some(&answers)).await;
    assert!(verdict.pairs[0].candidate_answer.is_none());
    answers.put_into(&mut verdict);
    for pair in &verdict.pairs {
        assert_eq!(pair.candidate_answer.as_deref(), Some("right"));
        assert_eq!(pair.current_answer.as_deref(), Some("wrong"));
    }
    assert!(hold(say).await.pairs[0].candidate_answer.is_none());
}
