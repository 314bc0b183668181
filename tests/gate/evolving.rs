//! Forty proposals to one harness: what each rule releases, what of it was wrong, and what was gained.

use std::fmt::Write as _;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reef::domain::Outcome;
use reef::eval::{Draw, Sides, TaskRef, Trial, level};
use reef::recipe::{GateSpec, SelectorKind, Spending};

use super::{TASKS, difficulties, gate};

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

/// A rule under comparison.
struct Contest {
    name: &'static str,
    spec: GateSpec,
    spending: Spending,
    /// The scores of the served tree are kept from candidate to candidate, as `evolution.baseline-hours` does, and a fifth
    /// of them is measured again.
    reuse: bool,
    /// An undecided candidate is the starting point of the next proposal.
    carry: bool,
}

/// Forty proposals to one harness.
fn evolve(contest: &Contest, seed: u64) -> Evolution {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut rates: Vec<f64> = difficulties(&mut rng, TASKS).iter().map(|rate| rate * 0.8).collect();
    let score = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let first = score(&rates);
    let (mut episodes, mut released, mut judged, mut wrong) = (0, 0, 0, 0);
    let mut known: std::collections::HashMap<(usize, u32), f64> = std::collections::HashMap::new();
    let mut reference: Vec<(String, f64)> = Vec::new();
    // A candidate that was not decided stays the starting point of the next one where candidates are carried.
    let mut carried = vec![0.0; TASKS];
    for step in 0..40 {
        let effect = proposal(&mut rng);
        let next: Vec<f64> = rates
            .iter()
            .zip(effect.iter().zip(&carried))
            .map(|(rate, (change, before))| (rate + change + before).clamp(0.0, 1.0))
            .collect();
        let tasks = (0..TASKS)
            .map(|i| TaskRef {
                id: format!("t{i}"),
                protected: false,
                exact: false,
            })
            .collect();
        let level = level(contest.spending, contest.spec.alpha, judged, released);
        let mut trial = Trial::new(
            contest.spec.clone(),
            tasks,
            Draw::Repeated,
            level,
            format!("{seed}-{step}"),
        )
        .with_reference(reference.iter().map(|(task, score)| (task.as_str(), *score)));
        while !trial.is_over() {
            let work = trial.next(1);
            if work.is_empty() {
                break;
            }
            for a in work {
                let mut passes = |rate: f64| {
                    episodes += 1;
                    f64::from(u8::from(rng.random_bool(rate)))
                };
                let candidate = (a.sides != Sides::ServedOnly).then(|| passes(next[a.task]));
                let served = (a.sides != Sides::CandidateOnly).then(|| {
                    let before = known.get(&(a.task, a.repeat)).copied();
                    // A fifth of what is known is measured again.
                    let again = (a.task * 7 + a.repeat as usize + step).is_multiple_of(5);
                    before
                        .filter(|_| contest.reuse && !again)
                        .unwrap_or_else(|| passes(rates[a.task]))
                });
                if let Some(served) = served {
                    known.insert((a.task, a.repeat), served);
                }
                trial.record(a.index, candidate.map(Ok), served.map(Ok));
            }
        }
        judged += 1;
        reference.extend_from_slice(trial.fresh_reference());
        match trial.verdict("suite").outcome {
            Outcome::Selected => {
                released += 1;
                wrong += u64::from(score(&next) <= score(&rates) + 1e-9);
                rates = next;
                known.clear();
                reference.clear();
                carried = vec![0.0; TASKS];
            }
            Outcome::Inconclusive if contest.carry => {
                carried = next.iter().zip(&rates).map(|(next, rate)| next - rate).collect();
            }
            _ => carried = vec![0.0; TASKS],
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
fn evolutions() -> Vec<Contest> {
    let contest = |name, spec, spending| Contest {
        name,
        spec,
        spending,
        reuse: false,
        carry: false,
    };
    let counted = |repeats: u32, margin: i64| GateSpec {
        repeats,
        margin,
        ..gate(SelectorKind::WinMargin)
    };
    let paired = |alpha: f64, maximum_pairs: u32| GateSpec {
        alpha,
        maximum_pairs,
        ..gate(SelectorKind::Paired)
    };
    let reference = |alpha: f64, maximum_pairs: u32, reference: u32| GateSpec {
        reference,
        ..paired(alpha, maximum_pairs)
    };
    let (each, all) = (Spending::Candidate, Spending::Scenario);
    vec![
        contest("wins - losses > 0, 1 repeat", counted(1, 0), each),
        contest("wins - losses > 2, 3 repeats", counted(3, 2), each),
        contest("paired, alpha 0.05 per candidate", paired(0.05, 300), each),
        contest("paired, alpha 0.05 per scenario", paired(0.05, 300), all),
        Contest {
            reuse: true,
            ..contest(
                "paired, alpha 0.05 per scenario, known baselines",
                paired(0.05, 300),
                all,
            )
        },
        Contest {
            carry: true,
            ..contest(
                "paired, alpha 0.05 per scenario, carried candidates",
                paired(0.05, 300),
                all,
            )
        },
        contest("paired, alpha 0.1 per scenario", paired(0.1, 300), all),
        contest("paired, alpha 0.1 per scenario, 900 pairs", paired(0.1, 900), all),
        contest(
            "reference of 1500, alpha 0.05 per scenario",
            reference(0.05, 300, 1500),
            all,
        ),
        contest(
            "reference of 1500, alpha 0.1 per scenario",
            reference(0.1, 300, 1500),
            all,
        ),
        contest(
            "reference of 1500, alpha 0.1 per scenario, 600 pairs",
            reference(0.1, 600, 1500),
            all,
        ),
        contest(
            "reference of 3000, alpha 0.1 per scenario, 600 pairs",
            reference(0.1, 600, 3000),
            all,
        ),
        contest(
            "reference of 3000, alpha 0.1 per candidate, 300 pairs",
            reference(0.1, 300, 3000),
            each,
        ),
    ]
}

#[test]
fn a_loop_that_counts_wins_wanders_and_one_that_tests_climbs() {
    let mean =
        |of: &dyn Fn(&Evolution) -> f64, runs: &[Evolution]| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
    let mut seen = Vec::new();
    for contest in evolutions().iter().take(5) {
        let runs: Vec<Evolution> = (0..4).map(|seed| evolve(contest, seed)).collect();
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
    let mut summary = String::from("\nrule,seeds,mean_episodes,mean_published,mean_wrong,wrong_share,mean_gain\n");
    let seeds: Vec<u64> = (0..20).collect();
    for contest in evolutions() {
        let (name, half) = (contest.name, seeds.len() / 2);
        let runs: Vec<Evolution> = std::thread::scope(|scope| {
            let parts = [&seeds[..half], &seeds[half..]].map(|seeds| {
                let contest = &contest;
                scope.spawn(move || seeds.iter().map(|seed| evolve(contest, *seed)).collect::<Vec<_>>())
            });
            parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
        });
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
            "\"{name}\",20,{:.0},{:.2},{:.2},{:.3},{:+.4}",
            mean(&|run| run.episodes as f64),
            mean(&|run| run.published as f64),
            mean(&|run| run.wrong as f64),
            mean(&|run| run.wrong as f64) / mean(&|run| run.published as f64).max(1e-9),
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
