//! The gate on planted candidates: how often each rule publishes something useless, and how often something good.
//! The short version runs with every test; `scripts/experiments/gate-simulation.sh` runs the long one and writes a table.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::fmt::Write as _;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reef::domain::Outcome;
use reef::eval::{Draw, TaskRef, Trial, level};
use reef::recipe::{EvaluatorKind, GateSpec, SelectorKind, Spending};

const TASKS: usize = 20;

/// A candidate planted with a known effect.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Planted {
    /// The same as what is served.
    Identical,
    /// Some tasks up, some down, nothing on average.
    Reshuffled,
    /// Better by this much on every task.
    Better(f64),
    /// Better by 20 points everywhere but on the one protected task, which it breaks.
    BreaksProtected,
    /// Reports scores outside what the checker can give.
    Tampering,
}

/// Task difficulties: logit-normal around one half, as tasks of mixed difficulty are.
fn difficulties(rng: &mut StdRng) -> Vec<f64> {
    (0..TASKS)
        .map(|_| {
            let normal: f64 = (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
            1.0 / (1.0 + (-normal).exp())
        })
        .collect()
}

fn candidate_rate(planted: Planted, task: usize, base: f64) -> f64 {
    let rate = match planted {
        Planted::Identical | Planted::Tampering => base,
        Planted::Reshuffled => base + if task.is_multiple_of(2) { 0.1 } else { -0.1 },
        Planted::Better(gain) => base + gain,
        Planted::BreaksProtected if task == 0 => 0.0,
        Planted::BreaksProtected => base + 0.2,
    };
    rate.clamp(0.0, 1.0)
}

fn gate(selector: SelectorKind) -> GateSpec {
    GateSpec {
        selector,
        evaluator: EvaluatorKind::Suite,
        suite: Some("tasks".into()),
        repeats: 3,
        maximum_pairs: 300,
        ..GateSpec::default()
    }
}

/// One step of a scenario: the outcome and the pairs it cost.
fn step(spec: &GateSpec, planted: Planted, level: f64, seed: u64) -> (Outcome, usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut rates = difficulties(&mut rng);
    if planted == Planted::BreaksProtected {
        // The served release holds the protected task, otherwise it could not regress.
        rates[0] = 0.95;
    }
    if planted == Planted::Reshuffled {
        rates.iter_mut().for_each(|rate| *rate = rate.clamp(0.1, 0.9));
    }
    let tasks = (0..TASKS)
        .map(|i| TaskRef {
            id: format!("t{i}"),
            protected: i == 0 && planted == Planted::BreaksProtected,
        })
        .collect();
    let mut trial = Trial::new(spec.clone(), tasks, Draw::Repeated, level, seed.to_string());
    while !trial.is_over() {
        let work = trial.next(1);
        if work.is_empty() {
            break;
        }
        for a in work {
            let current = f64::from(u8::from(rng.random_bool(rates[a.task])));
            let mut candidate = f64::from(u8::from(rng.random_bool(candidate_rate(
                planted,
                a.task,
                rates[a.task],
            ))));
            if planted == Planted::Tampering {
                candidate = 1000.0;
            }
            trial.record(a.index, Some(candidate), Some(current), None);
        }
    }
    let pairs = trial.pairs();
    (trial.verdict("suite").outcome, pairs)
}

struct Rates {
    published: f64,
    inconclusive: f64,
    mean_pairs: f64,
}

/// Many single candidates, each judged at the full level.
fn single(selector: SelectorKind, planted: Planted, steps: u64) -> Rates {
    let spec = gate(selector);
    let (mut published, mut inconclusive, mut pairs) = (0u64, 0u64, 0usize);
    for seed in 0..steps {
        let (outcome, spent) = step(&spec, planted, spec.alpha, seed);
        published += u64::from(outcome == Outcome::Selected);
        inconclusive += u64::from(outcome == Outcome::Inconclusive);
        pairs += spent;
    }
    Rates {
        published: published as f64 / steps as f64,
        inconclusive: inconclusive as f64 / steps as f64,
        mean_pairs: pairs as f64 / steps as f64,
    }
}

/// Scenarios of fifty steps, most candidates useless: the share of useless releases among all releases, averaged over
/// scenarios, and how many of the good candidates were released.
fn scenarios(spending: Spending, good_every: u64, runs: u64) -> (f64, f64) {
    let spec = gate(SelectorKind::Paired);
    let (mut false_share, mut good_released, mut good_seen) = (0.0, 0u64, 0u64);
    for run in 0..runs {
        let (mut released, mut useless, mut judged) = (0u64, 0u64, 0u64);
        for k in 0..50 {
            let good = good_every > 0 && k % good_every == 0;
            let planted = if good { Planted::Better(0.2) } else { Planted::Identical };
            let level = level(spending, spec.alpha, judged, released);
            let (outcome, _) = step(&spec, planted, level, run * 1000 + k);
            judged += 1;
            if outcome == Outcome::Selected {
                released += 1;
                useless += u64::from(!good);
                good_released += u64::from(good);
            }
            good_seen += u64::from(good);
        }
        false_share += useless as f64 / released.max(1) as f64;
    }
    (
        false_share / runs as f64,
        good_released as f64 / good_seen.max(1) as f64,
    )
}

#[test]
fn the_paired_rule_holds_its_level_and_its_power_on_planted_candidates() {
    let identical = single(SelectorKind::Paired, Planted::Identical, 300);
    // Ville's bound is 0.05; three binomial standard errors above it would be 0.088.
    assert!(identical.published <= 0.06, "{}", identical.published);
    let better = single(SelectorKind::Paired, Planted::Better(0.2), 100);
    assert!(better.published >= 0.8, "{}", better.published);
    let counted = single(SelectorKind::WinMargin, Planted::Identical, 300);
    assert!(
        counted.published > 0.3,
        "the plain count publishes noise: {}",
        counted.published
    );
}

#[test]
fn neither_tampering_nor_a_protected_regression_is_ever_published() {
    for seed in 0..200 {
        let spec = gate(SelectorKind::Paired);
        let (outcome, _) = step(&spec, Planted::Tampering, spec.alpha, seed);
        assert_eq!(outcome, Outcome::Invalid);
        let (outcome, _) = step(&spec, Planted::BreaksProtected, spec.alpha, seed);
        assert_eq!(outcome, Outcome::Rejected);
    }
}

#[test]
#[ignore = "about a minute; scripts/experiments/gate-simulation.sh runs it"]
fn simulation_table() {
    let steps = 2000;
    let mut csv = String::from("rule,candidate,steps,published,inconclusive,mean_pairs\n");
    for selector in [SelectorKind::Paired, SelectorKind::WinMargin] {
        for (name, planted) in [
            ("identical", Planted::Identical),
            ("reshuffled", Planted::Reshuffled),
            ("better by 10 points", Planted::Better(0.1)),
            ("better by 20 points", Planted::Better(0.2)),
            ("breaks a protected task", Planted::BreaksProtected),
            ("tampers with the score", Planted::Tampering),
        ] {
            let rates = single(selector, planted, steps);
            writeln!(
                csv,
                "{},{name},{steps},{:.4},{:.4},{:.1}",
                selector.as_str(),
                rates.published,
                rates.inconclusive,
                rates.mean_pairs
            )
            .unwrap();
        }
    }
    csv.push_str(
        "\nspending,good candidates,scenarios of 50 steps,mean share of useless releases,good candidates released\n",
    );
    for (name, spending) in [("scenario", Spending::Scenario), ("candidate", Spending::Candidate)] {
        for good_every in [0, 10, 3] {
            let (share, power) = scenarios(spending, good_every, 40);
            let good = if good_every == 0 {
                "none".to_owned()
            } else {
                format!("one in {good_every}")
            };
            writeln!(csv, "{name},{good},40,{share:.4},{power:.4}").unwrap();
        }
    }
    match std::env::var_os("REEF_SIMULATION_OUT") {
        Some(path) => std::fs::write(path, &csv).unwrap(),
        None => print!("{csv}"),
    }
}
