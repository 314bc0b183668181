//! What each rule does with each kind of evidence.

use super::score::{SideScore, Unscored};
use super::*;
use crate::domain::{Outcome, Verdict};
use crate::recipe::{EvaluatorKind, GateSpec, SelectorKind};

fn tasks(n: usize, protected: &[usize]) -> Vec<TaskRef> {
    (0..n)
        .map(|i| TaskRef {
            id: format!("t{i}"),
            protected: protected.contains(&i),
            exact: false,
        })
        .collect()
}

fn spec(selector: SelectorKind) -> GateSpec {
    GateSpec {
        selector,
        evaluator: EvaluatorKind::Suite,
        suite: Some("tasks".into()),
        ..GateSpec::default()
    }
}

type Sided = (Option<f64>, Option<f64>);

/// A side's score; `None` is a failure to measure.
fn side(score: Option<f64>) -> SideScore {
    score.ok_or_else(|| Unscored::measurement("the engine is down"))
}

/// Records what both sides scored, as far as they were asked.
fn record(trial: &mut Trial, a: &Assignment, (candidate, served): Sided) {
    let asked = |wanted: bool, score| wanted.then(|| side(score));
    trial.record(
        a.index,
        asked(a.sides != Sides::ServedOnly, candidate),
        asked(a.sides != Sides::CandidateOnly, served),
    );
}

/// Runs a trial to its end with a measuring function.
fn run(spec: GateSpec, tasks: Vec<TaskRef>, mut measure: impl FnMut(&Assignment) -> Sided) -> Verdict {
    let level = spec.alpha;
    let mut trial = Trial::new(spec, tasks, Draw::Repeated, level, "seed");
    while !trial.is_over() {
        let work = trial.next(4);
        if work.is_empty() {
            break;
        }
        for assignment in work {
            let sided = measure(&assignment);
            record(&mut trial, &assignment, sided);
        }
    }
    trial.verdict("suite")
}

#[test]
fn a_better_candidate_is_selected_and_a_worse_one_rejected() {
    let better = run(spec(SelectorKind::Paired), tasks(10, &[]), |_| (Some(1.0), Some(0.0)));
    assert_eq!(better.outcome, Outcome::Selected, "{}", better.reason);
    assert!(
        better.pairs.len() >= 8 && better.pairs.len() < 20,
        "{}",
        better.pairs.len()
    );
    assert_eq!(better.figures["wins"], better.figures["pairs"]);
    let worse = run(spec(SelectorKind::Paired), tasks(10, &[]), |_| (Some(0.0), Some(1.0)));
    assert_eq!(worse.outcome, Outcome::Rejected);
    assert!(
        worse.pairs.len() < 20,
        "futility must stop early: {}",
        worse.pairs.len()
    );
}

#[test]
fn an_identical_deterministic_candidate_is_never_selected_and_stops_before_the_budget() {
    let verdict = run(spec(SelectorKind::Paired), tasks(10, &[]), |_| (Some(0.5), Some(0.5)));
    assert_eq!(verdict.outcome, Outcome::Inconclusive);
    assert_eq!(verdict.figures["ties"], verdict.figures["pairs"]);
    assert!(verdict.pairs.len() < 200, "{}", verdict.pairs.len());
}

#[test]
fn a_gain_below_the_minimum_effect_is_rejected() {
    let spec = GateSpec {
        minimum_effect: 0.2,
        maximum_pairs: 2000,
        ..spec(SelectorKind::Paired)
    };
    let verdict = run(spec, tasks(10, &[]), |_| (Some(0.55), Some(0.5)));
    assert_eq!(verdict.outcome, Outcome::Rejected, "{}", verdict.reason);
    assert!(verdict.reason.contains("ruled out"), "{}", verdict.reason);
}

#[test]
fn a_protected_regression_rejects_whatever_else_was_gained() {
    let verdict = run(spec(SelectorKind::Paired), tasks(20, &[3]), |a| {
        if a.task == 3 {
            (Some(0.0), Some(1.0))
        } else {
            (Some(1.0), Some(0.0))
        }
    });
    assert_eq!(verdict.outcome, Outcome::Rejected);
    assert!(verdict.reason.contains("t3"), "{}", verdict.reason);
    assert!(
        verdict.pairs.len() <= 8,
        "nothing else is spent: {}",
        verdict.pairs.len()
    );
    let counted = GateSpec {
        repeats: 2,
        ..spec(SelectorKind::WinMargin)
    };
    let verdict = run(counted, tasks(20, &[3]), |a| {
        if a.task == 3 {
            (Some(0.0), Some(1.0))
        } else {
            (Some(1.0), Some(0.0))
        }
    });
    assert_eq!(verdict.outcome, Outcome::Rejected, "the counting rule protects too");
}

#[test]
fn an_exact_protected_task_is_decided_by_one_pair() {
    let mut tasks = tasks(20, &[3]);
    tasks[3].exact = true;
    let verdict = run(spec(SelectorKind::Paired), tasks, |a| {
        if a.task == 3 {
            (Some(0.0), Some(1.0))
        } else {
            (Some(1.0), Some(0.0))
        }
    });
    assert_eq!((verdict.outcome, verdict.pairs.len()), (Outcome::Rejected, 1));
}

#[test]
fn a_side_that_alone_does_not_answer_gets_the_lowest_score() {
    let late = || Err(Unscored::answer("no answer within 5 s"));
    let mut trial = Trial::new(spec(SelectorKind::Paired), tasks(10, &[]), Draw::Repeated, 0.05, "s");
    while !trial.is_over() {
        for a in trial.next(1) {
            trial.record(a.index, Some(late()), Some(Ok(1.0)));
        }
    }
    let verdict = trial.verdict("suite");
    assert_eq!(verdict.outcome, Outcome::Rejected, "{}", verdict.reason);
    assert_eq!(verdict.pairs[0].candidate, Some(0.0));
    assert_eq!(
        verdict.pairs[0].failure.as_deref(),
        Some("candidate: no answer within 5 s (counts as the lowest score)")
    );
    // What struck both says nothing of either.
    let mut trial = Trial::new(spec(SelectorKind::Paired), tasks(10, &[]), Draw::Repeated, 0.05, "s");
    while !trial.is_over() {
        for a in trial.next(1) {
            trial.record(a.index, Some(late()), Some(late()));
        }
    }
    let verdict = trial.verdict("suite");
    assert_eq!(verdict.outcome, Outcome::Invalid, "{}", verdict.reason);
    assert_eq!(verdict.figures["losses"], 0);
}

#[test]
fn failures_that_strike_the_candidate_alone_are_noticed() {
    let mut n = 0;
    let spec = GateSpec {
        maximum_invalid: 0.9,
        ..spec(SelectorKind::Paired)
    };
    let verdict = run(spec, tasks(10, &[]), |_| {
        n += 1;
        // The grader crashes on every third answer of the candidate: on those that would have lost.
        if n % 3 == 0 {
            (None, Some(1.0))
        } else {
            (Some(1.0), Some(1.0))
        }
    });
    assert_eq!(verdict.outcome, Outcome::Invalid, "{}", verdict.reason);
    assert!(verdict.reason.contains("depend on the side"), "{}", verdict.reason);
}

#[test]
fn a_share_of_failures_within_the_limit_does_not_end_a_trial_by_chance() {
    // One failure in seven against a limit of one in five: by counting, many trials would end at some moment.
    let ended = (0..100u32)
        .filter(|seed| {
            let mut n = *seed;
            let verdict = run(spec(SelectorKind::Paired), tasks(10, &[]), |_| {
                n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let (fails, up) = ((n >> 16) % 7 == 0, (n >> 24) % 2 == 0);
                if fails {
                    (None, None)
                } else {
                    (Some(f64::from(u8::from(up))), Some(0.5))
                }
            });
            verdict.outcome == Outcome::Invalid
        })
        .count();
    assert!(ended <= 8, "{ended} of 100");
}

#[test]
fn an_invalid_pair_after_a_loss_does_not_count_the_loss_again() {
    // 23 ties and a loss, then nothing but failures: the evidence against the candidate stays that of one loss.
    let mut trial = Trial::new(spec(SelectorKind::Paired), tasks(10, &[]), Draw::Repeated, 0.05, "s");
    let mut n = 0;
    while !trial.is_over() {
        for a in trial.next(1) {
            let sided = match n {
                0..23 => (Some(1.0), Some(1.0)),
                23 => (Some(0.0), Some(1.0)),
                _ => (None, None),
            };
            n += 1;
            record(&mut trial, &a, sided);
        }
    }
    let verdict = trial.verdict("suite");
    assert_eq!(verdict.outcome, Outcome::Invalid, "{}", verdict.reason);
}

#[test]
fn a_reference_is_measured_once_and_the_candidate_alone_against_it() {
    let gate = GateSpec {
        reference: 400,
        ..spec(SelectorKind::Paired)
    };
    let passes = |a: &Assignment, of_ten: u32| {
        let word = (a.task as u32 * 31 + a.repeat * 17 + a.repeat / 3) % 10;
        Some(f64::from(u8::from(word < of_ten)))
    };
    let mut trial = Trial::new(gate.clone(), tasks(10, &[]), Draw::Repeated, 0.05, "s");
    let mut served = 0;
    while !trial.is_over() {
        for a in trial.next(3) {
            assert_ne!(a.sides, Sides::Both);
            served += u32::from(a.sides == Sides::ServedOnly);
            let sided = (passes(&a, 9), passes(&a, 5));
            record(&mut trial, &a, sided);
        }
    }
    assert_eq!((served, trial.fresh_reference().len()), (400, 400));
    let known = trial.fresh_reference().to_vec();
    let verdict = trial.verdict("suite");
    assert_eq!(verdict.outcome, Outcome::Selected, "{}", verdict.reason);
    assert_eq!(verdict.figures["reference"]["runs"], 400);
    assert!(verdict.pairs.iter().all(|pair| pair.current.is_none()));
    // The next candidate pays nothing for it, and one that is no better is not selected.
    let mut trial = Trial::new(gate, tasks(10, &[]), Draw::Repeated, 0.05, "t")
        .with_reference(known.iter().map(|(task, score)| (task.as_str(), *score)));
    while !trial.is_over() {
        for a in trial.next(3) {
            assert_eq!(a.sides, Sides::CandidateOnly);
            let sided = (passes(&a, 5), None);
            record(&mut trial, &a, sided);
        }
    }
    assert!(trial.fresh_reference().is_empty());
    assert_ne!(trial.verdict("suite").outcome, Outcome::Selected);
}

#[test]
fn failures_drop_the_pair_for_both_sides_and_many_of_them_are_invalid() {
    let mut n = 0;
    let half = run(spec(SelectorKind::Paired), tasks(10, &[]), |_| {
        n += 1;
        if n % 2 == 0 {
            (None, Some(1.0))
        } else {
            (Some(1.0), Some(0.0))
        }
    });
    assert_eq!(half.outcome, Outcome::Invalid, "{}", half.reason);
    let mut n = 0;
    let some = run(spec(SelectorKind::Paired), tasks(10, &[]), |_| {
        n += 1;
        if n % 10 == 0 {
            (None, Some(1.0))
        } else {
            (Some(1.0), Some(0.0))
        }
    });
    assert_eq!(some.outcome, Outcome::Selected);
    assert_eq!(some.figures["losses"], 0, "an unmeasured candidate has not lost");
}

#[test]
fn a_protected_task_that_cannot_be_measured_is_invalid_not_passed() {
    let spec = GateSpec {
        protected_repeats: 2,
        ..spec(SelectorKind::Paired)
    };
    let verdict = run(spec, tasks(20, &[3]), |a| {
        if a.task == 3 {
            (None, None)
        } else {
            (Some(1.0), Some(0.0))
        }
    });
    assert_eq!(verdict.outcome, Outcome::Invalid, "{}", verdict.reason);
    assert!(verdict.reason.contains("t3"));
}

#[test]
fn a_score_outside_the_range_is_not_evidence() {
    let verdict = run(spec(SelectorKind::Paired), tasks(10, &[]), |_| (Some(1e6), Some(0.0)));
    assert_eq!(verdict.outcome, Outcome::Invalid);
    assert!(verdict.pairs[0].failure.as_deref().unwrap().contains("outside"));
    let verdict = run(spec(SelectorKind::Paired), tasks(10, &[]), |_| {
        (Some(f64::NAN), Some(0.0))
    });
    assert_eq!(verdict.outcome, Outcome::Invalid);
}

#[test]
fn too_few_pairs_are_invalid() {
    let mut trial = Trial::new(spec(SelectorKind::Paired), tasks(3, &[]), Draw::Once, 0.05, "s");
    for assignment in trial.next(100) {
        record(&mut trial, &assignment, (Some(1.0), Some(0.0)));
    }
    assert!(trial.is_over());
    assert_eq!(trial.verdict("suite").outcome, Outcome::Invalid);
    let none = Trial::new(spec(SelectorKind::Paired), vec![], Draw::Once, 0.05, "s");
    assert!(none.is_over());
    assert_eq!(none.verdict("suite").outcome, Outcome::Invalid);
}

#[test]
fn drift_in_time_favours_neither_side() {
    // An upstream whose quality falls with every call (field finding E7): identical sides must not differ.
    let mut calls = 0.0;
    let mut quality = || {
        calls += 1.0;
        1.0 - calls / 1000.0
    };
    let verdict = run(spec(SelectorKind::Paired), tasks(5, &[]), |a| {
        let (first, second) = (quality(), quality());
        if a.candidate_first {
            (Some(first), Some(second))
        } else {
            (Some(second), Some(first))
        }
    });
    assert_ne!(verdict.outcome, Outcome::Selected);
    let effect = verdict.figures["effect"].as_f64().unwrap();
    assert!(effect.abs() < 1e-3, "{effect}");
}

#[test]
fn results_in_any_order_give_the_same_verdict() {
    let score = |a: &Assignment| {
        let up = (a.task * 7 + a.repeat as usize * 3) % 10 < 7;
        (Some(f64::from(u8::from(up))), Some(0.3))
    };
    let verdict = |shuffle: bool| {
        let mut trial = Trial::new(spec(SelectorKind::Paired), tasks(10, &[1]), Draw::Repeated, 0.05, "s");
        while !trial.is_over() {
            let mut work = trial.next(7);
            if work.is_empty() {
                break;
            }
            if shuffle {
                work.reverse();
            }
            for a in work {
                record(&mut trial, &a, score(&a));
            }
        }
        trial.verdict("suite")
    };
    assert_eq!(verdict(false), verdict(true));
}

#[test]
fn floor_wants_every_task_and_counts_an_unmeasured_one_as_unknown() {
    let ok = run(spec(SelectorKind::Floor), tasks(5, &[]), |a| {
        assert_eq!(a.sides, Sides::CandidateOnly);
        (Some(1.0), None)
    });
    assert_eq!(ok.outcome, Outcome::Selected);
    let low = run(spec(SelectorKind::Floor), tasks(5, &[]), |a| {
        (Some(if a.task == 2 { 0.9 } else { 1.0 }), None)
    });
    assert_eq!(low.outcome, Outcome::Rejected);
    assert!(low.reason.contains("t2"));
    let missing = run(spec(SelectorKind::Floor), tasks(5, &[]), |a| {
        ((a.task != 2).then_some(1.0), None)
    });
    assert_eq!(missing.outcome, Outcome::Invalid);
}

#[test]
fn win_margin_is_the_plain_count() {
    let three_two = |a: &Assignment| {
        if a.task < 3 {
            (Some(1.0), Some(0.0))
        } else {
            (Some(0.0), Some(1.0))
        }
    };
    let verdict = run(spec(SelectorKind::WinMargin), tasks(5, &[]), three_two);
    assert_eq!(
        verdict.outcome,
        Outcome::Selected,
        "one net win is enough for this rule: {}",
        verdict.reason
    );
    let strict = GateSpec {
        margin: 1,
        ..spec(SelectorKind::WinMargin)
    };
    assert_eq!(run(strict, tasks(5, &[]), three_two).outcome, Outcome::Rejected);
}

#[test]
fn always_and_review_say_what_they_did_not_decide() {
    let worse = |_: &Assignment| (Some(0.0), Some(1.0));
    let always = run(spec(SelectorKind::Always), tasks(3, &[]), worse);
    assert_eq!(always.outcome, Outcome::Selected);
    assert!(always.reason.contains("3 worse"), "{}", always.reason);
    assert_eq!(
        run(spec(SelectorKind::Review), tasks(3, &[]), worse).outcome,
        Outcome::Held
    );
    assert_eq!(run(GateSpec::default(), vec![], worse).outcome, Outcome::Selected);
}

#[test]
fn draws_once_visit_every_task_once_and_repeated_draws_depend_on_the_seed_only() {
    let once = |seed: &str| -> Vec<usize> {
        Trial::new(spec(SelectorKind::Paired), tasks(30, &[]), Draw::Once, 0.05, seed)
            .next(100)
            .iter()
            .map(|a| a.task)
            .collect()
    };
    let mut seen = once("a");
    assert_ne!(seen, once("b"));
    assert_eq!(seen, once("a"));
    seen.sort_unstable();
    assert_eq!(seen, (0..30).collect::<Vec<_>>());
}
