//! What is admitted, what waits, what is sealed.

#![allow(
    clippy::needless_pass_by_value,
    clippy::redundant_clone,
    reason = "the helpers take what reads best at the call"
)]

use std::collections::HashSet;
use std::path::Path;

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::config::{Node, Source};
use crate::domain::{
    ContentKind, FrozenRelease, RecordId, ReleaseId, RequestType, Route, RuntimeLoadId, ScenarioName, Timings,
};
use crate::experience::{Bodies, Record, RecordRow};
use crate::recipe::Recipe;

const SECOND: i64 = 1_000_000;

fn id(text: &str) -> RecordId {
    RecordId::new(text).unwrap()
}

fn scenario() -> ScenarioName {
    ScenarioName::new("math").unwrap()
}

fn recipe(name: &str, settings: Value) -> Recipe {
    let settings = Node::from_json(&settings, &Source::Default);
    Recipe::resolve(name, &settings, Path::new(".")).unwrap()
}

fn row(name: &str, kind: RequestType, sequence: i64) -> RecordRow {
    RecordRow {
        sequence,
        id: id(name),
        scenario: scenario(),
        kind,
        created_us: sequence * SECOND,
        stored_us: sequence * SECOND,
        references: vec![],
        release: None,
        route: None,
        status: None,
        streamed: false,
        tags: Default::default(),
        timings: Timings::default(),
        model: None,
        stop_reason: None,
        input_tokens: None,
        output_tokens: None,
        has_capture: false,
        score: None,
        eligible: true,
        body_bytes: 0,
        pruned_us: None,
        content_sha256: [0; 32],
    }
}

fn exchange(name: &str, sequence: i64, load: u64) -> RecordRow {
    RecordRow {
        status: Some(200),
        route: Some(Route::ChatCompletions),
        has_capture: true,
        stop_reason: Some("stop".into()),
        release: Some(FrozenRelease {
            kind: ContentKind::Artifact,
            release_id: ReleaseId::new(format!("r{load}")).unwrap(),
            content_id: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
            parent_release_id: None,
            runtime_load_id: Some(RuntimeLoadId::new("ab", load).unwrap()),
        }),
        ..row(name, RequestType::Inference, sequence)
    }
}

fn report(name: &str, sequence: i64, references: &[&str], score: Option<f64>, metadata: &Value) -> Record {
    let body = json!({"score": score, "metadata": metadata, "feedback": "fine"});
    Record {
        row: RecordRow {
            references: references.iter().map(|name| id(name)).collect(),
            score,
            ..row(name, RequestType::Report, sequence)
        },
        bodies: Some(Bodies {
            request: Bytes::from(body.to_string()),
            response: None,
            turn: None,
            capture: None,
        }),
    }
}

fn serving(load: u64) -> Serving {
    Serving {
        load: Some(RuntimeLoadId::new("ab", load).unwrap()),
        releases: vec![],
    }
}

fn admit(recipe: &Recipe, report: &Record, sources: Vec<Option<RecordRow>>) -> Result<Sample, Exclusion> {
    admit_report(&recipe.processor, report, &sources, |_| false, |_| false)
}

#[test]
fn a_scored_report_is_one_sample_in_the_order_of_its_references() {
    let sao = recipe("sao", json!({}));
    let mut first = exchange("e1", 1, 5);
    first.tags.insert("session".into(), "s".into());
    let sample = admit(
        &sao,
        &report("p", 3, &["e1", "e2"], Some(0.5), &json!({})),
        vec![Some(first), Some(exchange("e2", 2, 5))],
    )
    .unwrap();
    assert_eq!(sample.sources, [id("e1"), id("e2")]);
    assert_eq!((sample.reward, sample.session.as_str()), (Some(0.5), "s"));
    assert_eq!(sample.feedback, Some(json!("fine")));
    assert_eq!(sample.records().count(), 3);
}

#[test]
fn each_exclusion_has_its_own_reason_and_an_absent_score_is_not_zero() {
    let sao = recipe(
        "sao",
        json!({"processor": {"minimum-score": 0.0, "maximum-score": 1.0, "truncated": "drop"}}),
    );
    let good = || vec![Some(exchange("e", 1, 5))];
    let plain = |score| report("p", 2, &["e"], score, &json!({}));
    assert!(admit(&sao, &plain(Some(0.0)), good()).is_ok(), "zero is a score");
    assert_eq!(admit(&sao, &plain(None), good()), Err(Exclusion::NoScore));
    assert_eq!(
        admit(&sao, &plain(Some(1.5)), good()),
        Err(Exclusion::ScoreOutsideWindow)
    );
    assert_eq!(
        admit(&sao, &report("p", 2, &[], Some(1.0), &json!({})), vec![]),
        Err(Exclusion::NoReferences)
    );
    assert_eq!(admit(&sao, &plain(Some(1.0)), vec![None]), Err(Exclusion::SourcePruned));
    let mut ineligible = plain(Some(1.0));
    ineligible.row.eligible = false;
    assert_eq!(admit(&sao, &ineligible, good()), Err(Exclusion::NotEligible));
    let changed = |change: fn(&mut RecordRow)| {
        let mut source = exchange("e", 1, 5);
        change(&mut source);
        admit(&sao, &plain(Some(1.0)), vec![Some(source)])
    };
    assert_eq!(changed(|e| e.has_capture = false), Err(Exclusion::NoTokens));
    assert_eq!(changed(|e| e.status = Some(500)), Err(Exclusion::NotAnAnswer));
    let counted = |e: &mut RecordRow| e.route = Some(Route::CountTokens);
    assert_eq!(changed(counted), Err(Exclusion::NotAnAnswer));
    assert_eq!(changed(|e| e.pruned_us = Some(1)), Err(Exclusion::SourcePruned));
    assert_eq!(
        changed(|e| e.stop_reason = Some("length".into())),
        Err(Exclusion::TruncatedAnswer)
    );
    let single = recipe("sao", json!({"multi_turn": false}));
    let two = report("p", 3, &["e", "f"], Some(1.0), &json!({}));
    let sources = vec![Some(exchange("e", 1, 5)), Some(exchange("f", 2, 5))];
    assert_eq!(admit(&single, &two, sources), Err(Exclusion::SeveralTurns));
    let taken = |trained: bool| admit_report(&sao.processor, &plain(Some(1.0)), &good(), |_| trained, |_| !trained);
    assert_eq!(taken(true), Err(Exclusion::SourceTrained));
    assert_eq!(taken(false), Err(Exclusion::SourceGraded));
}

fn pool_of(recipe: &Recipe, samples: impl IntoIterator<Item = Sample>) -> Pool {
    let mut pool = Pool::new(recipe);
    for sample in samples {
        pool.push(sample);
    }
    pool
}

fn sample(recipe: &Recipe, n: i64, load: u64, score: f64, metadata: &Value) -> Sample {
    let source = format!("e{n}");
    let graded = report(&format!("p{n}"), n, &[source.as_str()], Some(score), metadata);
    admit(recipe, &graded, vec![Some(exchange(&source, n, load))]).unwrap()
}

#[test]
fn a_batch_is_sealed_when_full_and_its_id_depends_on_its_inputs_only() {
    let sao = recipe("sao", json!({"batch_size": 3}));
    let samples: Vec<Sample> = (1..=5)
        .map(|n| sample(&sao, n, 5, 0.1 * n as f64, &json!({})))
        .collect();
    let mut pool = pool_of(&sao, samples[..2].to_vec());
    assert_eq!(pool.seal(&scenario(), Seal::Ready, 9 * SECOND).unwrap(), None);
    assert_eq!(
        pool.seal(&scenario(), Seal::Now, 9 * SECOND)
            .unwrap()
            .unwrap()
            .train
            .len(),
        2
    );
    for sample in &samples[2..] {
        pool.push(sample.clone());
    }
    let sealed = pool.seal(&scenario(), Seal::Ready, 9 * SECOND).unwrap().unwrap();
    assert_eq!(sealed.train, samples[..3]);
    let again = pool_of(&sao, samples.clone())
        .seal(&scenario(), Seal::Ready, 99 * SECOND)
        .unwrap()
        .unwrap();
    assert_eq!(sealed.id, again.id);
    let other = ScenarioName::new("other").unwrap();
    assert_ne!(sealed.id, pool.seal(&other, Seal::Ready, 0).unwrap().unwrap().id);
    pool.remove(&sealed.train);
    assert_eq!(pool.len(), 2);
    assert!(!pool.holds(&id("e1")) && pool.holds(&id("e4")));
}

#[test]
fn a_waiting_sample_seals_a_smaller_batch_in_time() {
    let sao = recipe("sao", json!({"batch_size": 10, "max_wait_s": 30}));
    let pool = pool_of(&sao, [sample(&sao, 10, 5, 1.0, &json!({}))]);
    assert_eq!(pool.seal(&scenario(), Seal::Ready, 39 * SECOND).unwrap(), None);
    assert_eq!(
        pool.seal(&scenario(), Seal::Ready, 40 * SECOND)
            .unwrap()
            .unwrap()
            .train
            .len(),
        1
    );
}

#[test]
fn stale_samples_leave_the_pool_exactly_at_the_bound() {
    let sao = recipe("sao", json!({"batch_size": 4, "max_staleness": 2}));
    let mut pool = pool_of(
        &sao,
        (2..=6).map(|load| sample(&sao, load as i64, load, 1.0, &json!({}))),
    );
    let gone = pool.expire(&serving(6), 0);
    let names: Vec<&str> = gone.iter().map(|(sample, _)| sample.sources[0].as_str()).collect();
    assert_eq!(names, ["e2", "e3"]);
    assert!(
        gone.iter()
            .all(|(_, why)| *why == Exclusion::Stale(StaleReason::LagExceeded))
    );
    assert_eq!(pool.len(), 3);
    let restarted = Serving {
        load: Some(RuntimeLoadId::new("cd", 0).unwrap()),
        ..serving(0)
    };
    let gone = pool.expire(&restarted, 0);
    assert!(gone.iter().all(|(_, why)| why.as_str() == "cross_incarnation"));
    assert!(pool.is_empty());
}

#[test]
fn groups_wait_for_all_their_members_and_equal_ones_teach_nothing() {
    let grpo = recipe("grpo", json!({"batch_size": 1, "rollouts_per_group": 2}));
    let rollout = |n: i64, group: &str, slot: u64, score: f64| {
        sample(&grpo, n, 5, score, &json!({"group": group, "rollout": slot}))
    };
    let mut pool = pool_of(&grpo, [rollout(1, "a", 0, 1.0), rollout(2, "b", 0, 0.0)]);
    assert_eq!(pool.seal(&scenario(), Seal::Now, 0).unwrap(), None);
    let refused = pool.push(rollout(3, "a", 0, 0.0));
    assert_eq!(
        refused[0].1,
        Exclusion::SlotTaken,
        "a retry at the same place counts once"
    );
    pool.push(rollout(4, "a", 1, 0.0));
    pool.push(rollout(5, "b", 1, 0.0));
    let gone = pool.expire(&serving(5), 0);
    assert_eq!(gone.len(), 2);
    assert!(
        gone.iter()
            .all(|(sample, why)| sample.group.as_deref() == Some("b") && *why == Exclusion::EqualScores)
    );
    let sealed = pool.seal(&scenario(), Seal::Ready, 0).unwrap().unwrap();
    assert_eq!(sealed.train.iter().map(|s| s.sequence).collect::<Vec<_>>(), [1, 4]);
    let spec = recipe("grpo", json!({}));
    let nameless = report("p", 2, &["e"], Some(1.0), &json!({}));
    assert_eq!(
        admit(&spec, &nameless, vec![Some(exchange("e", 1, 5))]),
        Err(Exclusion::NoGroup)
    );
}

#[test]
fn an_incomplete_group_is_given_up_after_its_wait() {
    let grpo = recipe(
        "grpo",
        json!({"batch_size": 1, "rollouts_per_group": 2, "max_wait_s": 60}),
    );
    let mut pool = pool_of(&grpo, [sample(&grpo, 10, 5, 1.0, &json!({"group": "a"}))]);
    assert!(pool.expire(&serving(5), 69 * SECOND).is_empty());
    assert_eq!(pool.expire(&serving(5), 70 * SECOND)[0].1, Exclusion::GroupIncomplete);
}

#[test]
fn a_session_is_always_on_the_same_side_of_the_split() {
    let sao = recipe("sao", json!({"batch_size": 1, "holdout": 0.5}));
    let mut pool = Pool::new(&sao);
    for n in 1..=200 {
        let mut one = sample(&sao, n, 5, 1.0, &json!({}));
        one.session = format!("session-{}", n % 40);
        pool.push(one);
    }
    let mut train = HashSet::new();
    let mut holdout = HashSet::new();
    while let Some(sealed) = pool.seal(&scenario(), Seal::Ready, 0).unwrap() {
        train.extend(sealed.train.iter().map(|s| s.session.clone()));
        holdout.extend(sealed.holdout.iter().map(|s| s.session.clone()));
        pool.remove(sealed.train.iter().chain(&sealed.holdout));
    }
    assert!(train.is_disjoint(&holdout));
    assert_eq!(train.len() + holdout.len(), 40);
    assert!(holdout.len() > 8 && holdout.len() < 32, "{}", holdout.len());
}

#[test]
fn a_full_pool_gives_up_its_oldest_and_says_so() {
    let sao = recipe("sao", json!({"batch": {"size": 2, "maximum-pending": 3}}));
    let mut pool = Pool::new(&sao);
    let mut dropped = Vec::new();
    for n in 1..=5 {
        dropped.extend(pool.push(sample(&sao, n, 5, 1.0, &json!({}))));
    }
    assert_eq!(pool.len(), 3);
    let names: Vec<(i64, Exclusion)> = dropped.iter().map(|(s, why)| (s.sequence, *why)).collect();
    assert_eq!(names, [(1, Exclusion::QueueFull), (2, Exclusion::QueueFull)]);
    assert!(!pool.holds(&id("e1")));
}
