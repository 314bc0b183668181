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

/// A proposal of a simulated proposer: what it does to each task's chance of success.
fn proposal(rng: &mut StdRng) -> Vec<f64> {
    let kind: f64 = rng.random();
    let mut effect = vec![0.0; TASKS];
    if kind < 0.60 {
        // Most proposals are words that change nothing.
        return effect;
    }
    let strength = if kind < 0.80 { 0.15 } else { -0.15 };
    // A useful rule, or a harmful one, reaches half of the tasks.
    for change in &mut effect {
        if rng.random_bool(0.5) {
            *change = strength;
        }
    }
    effect
}

struct Evolution {
    episodes: u64,
    published: u64,
    wrong: u64,
    first: f64,
    last: f64,
}

/// Forty proposals to one harness. `reuse` keeps the scores of the served tree from candidate to candidate, as
/// `evolution.baseline-hours` does, and measures a fifth of them again.
fn evolve(spec: &GateSpec, spending: Spending, reuse: bool, seed: u64) -> Evolution {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut rates: Vec<f64> = difficulties(&mut rng).iter().map(|rate| rate * 0.8).collect();
    let score = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let first = score(&rates);
    let (mut episodes, mut released, mut judged, mut wrong) = (0, 0, 0, 0);
    let mut known: std::collections::HashMap<(usize, u32), f64> = std::collections::HashMap::new();
    for step in 0..40 {
        let effect = proposal(&mut rng);
        let next: Vec<f64> = rates
            .iter()
            .zip(&effect)
            .map(|(rate, change)| (rate + change).clamp(0.0, 1.0))
            .collect();
        let tasks = (0..TASKS)
            .map(|i| TaskRef {
                id: format!("t{i}"),
                protected: false,
            })
            .collect();
        let level = level(spending, spec.alpha, judged, released);
        let mut trial = Trial::new(spec.clone(), tasks, Draw::Repeated, level, format!("{seed}-{step}"));
        while !trial.is_over() {
            let work = trial.next(1);
            if work.is_empty() {
                break;
            }
            for a in work {
                let candidate = f64::from(u8::from(rng.random_bool(next[a.task])));
                episodes += 1;
                let before = known
                    .get(&(a.task, a.repeat))
                    .copied()
                    .filter(|_| reuse && !rng.random_bool(0.2));
                let current = before.unwrap_or_else(|| {
                    episodes += 1;
                    f64::from(u8::from(rng.random_bool(rates[a.task])))
                });
                known.insert((a.task, a.repeat), current);
                trial.record(a.index, Some(candidate), Some(current), None);
            }
        }
        judged += 1;
        if trial.verdict("suite").outcome == Outcome::Selected {
            released += 1;
            wrong += u64::from(score(&next) <= score(&rates) + 1e-9);
            rates = next;
            known.clear();
        }
    }
    Evolution {
        episodes,
        published: released,
        wrong,
        first,
        last: score(&rates),
    }
}

/// The rules that are compared: the upstream project's defaults, its stronger settings, and ours.
fn evolutions() -> Vec<(&'static str, GateSpec, Spending, bool)> {
    let counted = |repeats: u32, margin: i64| GateSpec {
        repeats,
        margin,
        ..gate(SelectorKind::WinMargin)
    };
    vec![
        ("wins - losses > 0, 1 repeat", counted(1, 0), Spending::Candidate, false),
        (
            "wins - losses > 2, 3 repeats",
            counted(3, 2),
            Spending::Candidate,
            false,
        ),
        (
            "paired, alpha per candidate",
            gate(SelectorKind::Paired),
            Spending::Candidate,
            false,
        ),
        (
            "paired, alpha per scenario",
            gate(SelectorKind::Paired),
            Spending::Scenario,
            false,
        ),
        (
            "paired, alpha per scenario, known baselines",
            gate(SelectorKind::Paired),
            Spending::Scenario,
            true,
        ),
    ]
}

#[test]
fn a_loop_that_counts_wins_wanders_and_one_that_tests_climbs() {
    let mean =
        |of: &dyn Fn(&Evolution) -> f64, runs: &[Evolution]| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
    let mut seen = Vec::new();
    for (_, spec, spending, reuse) in evolutions() {
        let runs: Vec<Evolution> = (0..4).map(|seed| evolve(&spec, spending, reuse, seed)).collect();
        seen.push((
            mean(&|run| run.wrong as f64, &runs),
            mean(&|run| run.episodes as f64, &runs),
        ));
    }
    let (counted, tested, reused) = (seen[0], seen[3], seen[4]);
    assert!(counted.0 >= 5.0 && tested.0 <= 1.0, "{seen:?}");
    assert!(reused.1 < 0.8 * tested.1, "known baselines save episodes: {seen:?}");
}

#[test]
#[ignore = "about a minute; scripts/experiments/evolution-loop.sh runs it"]
fn loop_table() {
    let mut csv = String::from("rule,seed,episodes,published,wrong,first_score,final_score\n");
    let mut summary = String::from("\nrule,seeds,mean_episodes,mean_published,mean_wrong,mean_gain\n");
    for (name, spec, spending, reuse) in evolutions() {
        let runs: Vec<Evolution> = (0..20).map(|seed| evolve(&spec, spending, reuse, seed)).collect();
        for (seed, run) in runs.iter().enumerate() {
            writeln!(
                csv,
                "\"{name}\",{seed},{},{},{},{:.4},{:.4}",
                run.episodes, run.published, run.wrong, run.first, run.last
            )
            .unwrap();
        }
        let mean = |of: &dyn Fn(&Evolution) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        writeln!(
            summary,
            "\"{name}\",20,{:.0},{:.2},{:.2},{:+.4}",
            mean(&|run| run.episodes as f64),
            mean(&|run| run.published as f64),
            mean(&|run| run.wrong as f64),
            mean(&|run| run.last - run.first)
        )
        .unwrap();
    }
    csv.push_str(&summary);
    match std::env::var_os("REEF_SIMULATION_OUT") {
        Some(path) => std::fs::write(path, &csv).unwrap(),
        None => print!("{csv}"),
    }
}
