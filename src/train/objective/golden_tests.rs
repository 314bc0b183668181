//! Losses and gradients against golden values. The short tables are stated formulas evaluated in f64; the fixtures are
//! autograd results of PyTorch, made by `scripts/golden/objectives.py`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use tch::{Device, Kind, Tensor};

use super::centering::{RatioWeight, centering_term};
use super::correction::{distillation_weights, sequence_ratio};
use super::divergence::{Divergence, renormalized_top_k, sampled_reverse, top_k_with_tail};
use super::reduce::StepTotals;
use super::surrogate::{explained_variance, off_policy_sequence_mask, value_loss};
use super::{Correction, KlEstimator, Reduction, SequenceMeasure, Surrogate, tensor};
use crate::train::testing::normal;

const OLD: [f64; 6] = [-1.0, -1.0, -1.0, -2.0, -0.5, -1.5];
const NEW: [f64; 6] = [-0.9, -0.6, -1.4, -2.0, -2.5, -0.2];
const ADVANTAGE: [f64; 6] = [1.0, 1.0, -1.0, 0.5, -2.0, -1.0];

fn row(xs: &[f64]) -> Tensor {
    Tensor::from_slice(xs).reshape([1, xs.len() as i64])
}

fn flat(t: &Tensor) -> Vec<f64> {
    Vec::try_from(t.to_kind(Kind::Double).flatten(0, -1)).unwrap()
}

#[track_caller]
fn close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{got:?} vs {want:?}");
    for (g, w) in got.iter().zip(want) {
        // The tables carry ten digits.
        assert!((g - w).abs() <= 6e-10 * w.abs().max(1.0), "{got:?}\n{want:?}");
    }
}

#[track_caller]
fn token_case(surrogate: Surrogate, loss: &[f64], gradient: &[f64]) {
    let current = row(&NEW).set_requires_grad(true);
    let out = surrogate
        .token_loss(&current, &row(&OLD), &row(&ADVANTAGE), &row(&[1.0; 6]))
        .unwrap();
    close(&flat(&out.loss), loss);
    out.loss.sum(Kind::Double).backward();
    close(&flat(&current.grad()), gradient);
}

#[test]
fn token_losses_golden() {
    let ppo = |high, dual_clip| Surrogate::Ppo {
        low: 0.2,
        high,
        dual_clip,
    };
    let ppo_gradient = [-1.105170918, 0.0, 0.0, -0.5, 0.0, 3.669296668];
    token_case(
        ppo(0.2, None),
        &[-1.105170918, -1.2, 0.8, -0.5, 1.6, 3.669296668],
        &ppo_gradient,
    );
    token_case(
        ppo(0.28, None),
        &[-1.105170918, -1.28, 0.8, -0.5, 1.6, 3.669296668],
        &ppo_gradient,
    );
    token_case(
        ppo(0.28, Some(3.0)),
        &[-1.105170918, -1.28, 0.8, -0.5, 1.6, 3.0],
        &[-1.105170918, 0.0, 0.0, -0.5, 0.0, 0.0],
    );
    token_case(
        Surrogate::Cispo { low: 1.0, high: 4.0 },
        &[
            0.9946538263,
            0.8950948186,
            -0.9384480644,
            1.0,
            -0.6766764162,
            -0.7338593335,
        ],
        &[-1.105170918, -1.491824698, 0.670320046, -0.5, 0.2706705665, 3.669296668],
    );
    token_case(
        Surrogate::Cispo { low: 0.2, high: 0.28 },
        &[0.9946538263, 0.768, -1.12, 1.0, -4.0, -0.256],
        &[-1.105170918, -1.28, 0.8, -0.5, 1.6, 1.28],
    );
    token_case(
        Surrogate::Dis { low: 0.3, high: 5.0 },
        &[0.9946538263, 0.8950948186, 0.0, 1.0, 0.0, -0.7338593335],
        &[-1.105170918, -1.491824698, 0.0, -0.5, 0.0, 3.669296668],
    );
    token_case(
        Surrogate::Dis { low: 0.8, high: 3.0 },
        &[0.9946538263, 0.8950948186, -0.9384480644, 1.0, 0.0, -0.7338593335],
        &[-1.105170918, -1.491824698, 0.670320046, -0.5, 0.0, 3.669296668],
    );
    let is = [-1.105170918, -1.491824698, 0.670320046, -0.5, 0.2706705665, 3.669296668];
    token_case(Surrogate::ImportanceSampling, &is, &is);
    let minus_a = ADVANTAGE.map(|a| -a);
    let value: Vec<f64> = NEW.iter().zip(&ADVANTAGE).map(|(l, a)| -l * a).collect();
    token_case(Surrogate::Reinforce, &value, &minus_a);
    token_case(Surrogate::Sft, &NEW.map(|l| -l), &[-1.0; 6]);
}

#[test]
fn gspo_golden() {
    let current = row(&NEW).set_requires_grad(true);
    let gspo = Surrogate::Gspo { low: 0.2, high: 0.28 };
    let out = gspo
        .token_loss(&current, &row(&OLD), &row(&[0.7; 6]), &row(&[1.0; 6]))
        .unwrap();
    close(&flat(&out.loss), &[-0.6333861926; 6]);
    out.loss.sum(Kind::Double).backward();
    close(&flat(&current.grad()), &[-0.6333861926; 6]);
}

#[test]
fn the_hard_mask_is_strict_at_both_edges() {
    // Ratios exactly representable: 0.5 and 2 are outside (0.5, 2), 1 is inside.
    let current = Tensor::from_slice(&[0.0f64, 0.0, 0.0]).reshape([1, 3]);
    let old = Tensor::from_slice(&[0.0f64, 2.0f64.ln(), -(2.0f64.ln())]).reshape([1, 3]);
    let mask = row(&[1.0; 3]);
    let ratio = tensor::ratio(&current, &old, &mask).unwrap();
    let (low, high) = (1.0 - ratio.double_value(&[0, 1]), ratio.double_value(&[0, 2]) - 1.0);
    let out = Surrogate::Dis { low, high }
        .token_loss(&current, &old, &row(&[1.0; 3]), &mask)
        .unwrap();
    assert_eq!(flat(&out.clipped), [0.0, 1.0, 1.0]);
}

#[test]
fn a_finite_difference_disagrees_where_the_ratio_is_detached() {
    // The negative control of the gradient tests: differentiating through a detached factor is wrong for DIS.
    let loss = |shift: f64| {
        let current = row(&[NEW[0] + shift]);
        Surrogate::Dis { low: 0.3, high: 5.0 }
            .token_loss(&current, &row(&[OLD[0]]), &row(&[1.0]), &row(&[1.0]))
            .unwrap()
            .loss
            .double_value(&[0, 0])
    };
    let numeric = (loss(1e-5) - loss(-1e-5)) / 2e-5;
    assert!((numeric - -1.105170918).abs() > 0.5, "{numeric}");
}

#[test]
fn padding_may_hold_anything() {
    let families = [
        Surrogate::Sft,
        Surrogate::Reinforce,
        Surrogate::ImportanceSampling,
        Surrogate::Ppo {
            low: 0.2,
            high: 0.28,
            dual_clip: Some(3.0),
        },
        Surrogate::Cispo { low: 1.0, high: 4.0 },
        Surrogate::Dis { low: 0.3, high: 5.0 },
        Surrogate::Gspo { low: 0.2, high: 0.28 },
    ];
    for surrogate in families {
        let current = row(&[-0.5, f64::NAN]).set_requires_grad(true);
        let out = surrogate
            .token_loss(
                &current,
                &row(&[-0.4, f64::NEG_INFINITY]),
                &row(&[1.0, f64::NAN]),
                &row(&[1.0, 0.0]),
            )
            .unwrap();
        out.loss.sum(Kind::Double).backward();
        let gradient = flat(&current.grad());
        assert!(
            gradient[0].is_finite() && gradient[0] != 0.0,
            "{surrogate:?} {gradient:?}"
        );
        assert_eq!(gradient[1], 0.0, "{surrogate:?}");
        assert_eq!(flat(&out.loss)[1], 0.0, "{surrogate:?}");
        assert!(
            flat(&out.ratio)[0].is_finite() && flat(&out.clipped)[0] == 0.0,
            "{surrogate:?}"
        );
    }
}

#[test]
fn corrections_golden() {
    let sampler = row(&[-1.2, -0.2, -2.4, -2.0, -0.1, -3.0]);
    let mask = row(&[1.0; 6]);
    let weights = |c: Correction| flat(&c.weights(&row(&OLD), &sampler, &mask).unwrap().unwrap());
    let w = [1.221402758, 0.4493289641, 4.055199967, 1.0, 0.670320046, 4.48168907];
    close(&weights(Correction::Token { low: 0.0, high: 1e9 }), &w);
    close(
        &weights(Correction::Token { low: 0.0, high: 2.0 }),
        &[1.221402758, 0.4493289641, 2.0, 1.0, 0.670320046, 2.0],
    );
    close(
        &weights(Correction::IcePop { low: 0.5, high: 2.0 }),
        &[1.221402758, 0.0, 0.0, 1.0, 0.670320046, 0.0],
    );
    close(&weights(Correction::Sequence { high: None }), &[6.68589444228; 6]);
    close(&weights(Correction::Sequence { high: Some(2.0) }), &[2.0; 6]);
    let geometric = sequence_ratio(&row(&OLD), &sampler, &mask, SequenceMeasure::Geometric).unwrap();
    close(&flat(&geometric), &[1.37254498067]);
    let mask_by = |veto| Correction::SequenceMask {
        measure: SequenceMeasure::Geometric,
        low: 0.5,
        high: 2.0,
        veto,
    };
    close(&weights(mask_by(None)), &[1.0; 6]);
    close(&weights(mask_by(Some(0.5))), &[0.0; 6]);
    assert!(Correction::None.weights(&row(&OLD), &sampler, &mask).unwrap().is_none());
}

#[test]
fn distillation_weights_golden() {
    let (p, q) = (row(&[-1.0, -0.2, -3.0]), row(&[-1.5, -1.2, -2.0]));
    let mask = row(&[1.0; 3]);
    let token = distillation_weights(&p, &q, &mask, 2.0, false).unwrap();
    close(&flat(&token), &[1.648721271, 2.0, 0.3678794412]);
    let sequence = distillation_weights(&p, &q, &mask, 2.0, true).unwrap();
    close(&flat(&sequence), &[1.33886690396; 3]);
}

#[test]
fn kl_estimators_golden() {
    let reference = row(&[-1.1, -0.7, -1.0, -2.5, -2.0, -0.3]);
    let mask = row(&[1.0; 6]);
    let k1 = [0.2, 0.1, -0.4, 0.5, -0.5, 0.1];
    let k2 = [0.02, 0.005, 0.08, 0.125, 0.125, 0.005];
    let k3 = [
        0.01873075308,
        0.004837418036,
        0.09182469764,
        0.1065306597,
        0.1487212707,
        0.004837418036,
    ];
    let k3_gradient = [
        0.1812692469,
        0.09516258196,
        -0.4918246976,
        0.3934693403,
        -0.6487212707,
        0.09516258196,
    ];
    for (estimator, value, gradient) in [
        (KlEstimator::K1, k1, [1.0; 6]),
        (KlEstimator::K2, k2, k1),
        (KlEstimator::K3, k3, k3_gradient),
    ] {
        let current = row(&NEW).set_requires_grad(true);
        let kl = estimator.per_token(&current, &reference, &mask).unwrap();
        close(&flat(&kl), &value);
        kl.sum(Kind::Double).backward();
        close(&flat(&current.grad()), &gradient);

        let current = row(&NEW).set_requires_grad(true);
        let kl = estimator.straight_through(&current, &reference, &mask).unwrap();
        close(&flat(&kl), &value);
        kl.sum(Kind::Double).backward();
        close(&flat(&current.grad()), &k1);
    }
}

#[test]
fn divergences_golden() {
    let teacher = Tensor::from_slice(&[1.0f64, 0.2, -0.5, 0.3, -0.8]).log_softmax(-1, Kind::Double);
    let case = |f: &dyn Fn(&Tensor) -> Tensor, value: f64, gradient: &[f64]| {
        let s = Tensor::from_slice(&[0.5f64, -0.3, 1.2, 0.0, -1.0]).set_requires_grad(true);
        let out = f(&s.log_softmax(-1, Kind::Double)).sum(Kind::Double);
        close(&[f64::try_from(&out).unwrap()], &[value]);
        out.backward();
        close(&flat(&s.grad()), gradient);
    };
    case(
        &|s| Divergence::Forward.between(s, &teacher).unwrap(),
        0.3351167882,
        &[
            -0.1954346887,
            -0.08781446623,
            0.3735205002,
            -0.07143807924,
            -0.01883326603,
        ],
    );
    case(
        &|s| Divergence::Reverse.between(s, &teacher).unwrap(),
        0.4666907166,
        &[
            -0.2506290341,
            -0.1126148843,
            0.5273290463,
            -0.1237557707,
            -0.04032935737,
        ],
    );
    case(
        &|s| Divergence::Jsd { beta: 0.5 }.between(s, &teacher).unwrap(),
        0.09291227696,
        &[
            -0.05004799477,
            -0.02248801364,
            0.1004584075,
            -0.02153166143,
            -0.006390737669,
        ],
    );
    case(
        &|s| Divergence::Jsd { beta: 0.3 }.between(s, &teacher).unwrap(),
        0.07419682866,
        &[
            -0.04099874612,
            -0.01842192412,
            0.0807865425,
            -0.01663145419,
            -0.004734418064,
        ],
    );
    let top = Tensor::from_slice(&[2i64, 0]);
    case(
        &|s| {
            let (s, t) = (
                top_k_with_tail(s, &top).unwrap(),
                top_k_with_tail(&teacher, &top).unwrap(),
            );
            Divergence::Jsd { beta: 0.5 }.between(&s, &t).unwrap()
        },
        0.09230951099,
        &[
            -0.04996140571,
            -0.01780163908,
            0.1006327764,
            -0.0240296993,
            -0.00884003235,
        ],
    );
    case(
        &|s| {
            let (s, t) = (
                renormalized_top_k(s, &top).unwrap(),
                renormalized_top_k(&teacher, &top).unwrap(),
            );
            Divergence::Forward.between(&s, &t).unwrap()
        },
        0.5004366185,
        &[-0.4857622484, 0.0, 0.4857622484, 0.0, 0.0],
    );
    case(
        &|s| {
            let y = Tensor::from_slice(&[2i64]);
            let one = Tensor::from_slice(&[1.0f64]);
            let pick = |l: &Tensor| l.gather(-1, &y, false);
            sampled_reverse(&pick(s), &pick(&teacher), &one).unwrap().0
        },
        -1.204121212,
        &[
            -0.3705800699,
            -0.1665123589,
            0.8445481934,
            -0.2247681743,
            -0.08268759034,
        ],
    );
}

#[test]
fn score_centering_golden() {
    let s = Tensor::from_slice(&[0.5f64, -0.3, 1.2, 0.0, -1.0]).set_requires_grad(true);
    let q = Tensor::from_slice(&[0.9f64, -0.1, 0.6, 0.1, -1.2]).log_softmax(-1, Kind::Double);
    let head = Tensor::from_slice(&[0i64, 2]);
    let weight = RatioWeight::Masked { lower: 0.7, upper: 6.0 };
    let current = s.log_softmax(-1, Kind::Double);
    let term = centering_term(
        &current.gather(-1, &head, false),
        &q.gather(-1, &head, false),
        &Tensor::from(1.3f64),
        weight,
        1e-6,
    )
    .unwrap();
    close(&flat(&term), &[0.4412106128]);
    term.backward();
    close(
        &flat(&s.grad()),
        &[-0.2322904984, 0.0316984548, 0.1420626184, 0.0427884384, 0.01574098681],
    );
}

#[test]
fn sequences_that_ran_away_downhill_are_masked() {
    let mask = |a: f64, threshold: f64| {
        flat(
            &off_policy_sequence_mask(
                &row(&NEW),
                &row(&OLD),
                &Tensor::from_slice(&[a]),
                &row(&[1.0; 6]),
                threshold,
            )
            .unwrap(),
        )[0]
    };
    assert_eq!((mask(-1.0, 1e-4), mask(1.0, 1e-4), mask(-1.0, 0.2)), (0.0, 1.0, 1.0));
}

#[test]
fn value_loss_takes_the_worse_of_clipped_and_plain() {
    let (v, old, ret) = (row(&[1.0, 0.3]), row(&[0.0, 0.25]), row(&[2.0, 0.0]));
    close(&flat(&value_loss(&v, &old, &ret, None).unwrap()), &[1.0, 0.09]);
    close(
        &flat(&value_loss(&v, &old, &ret, Some(0.2)).unwrap()),
        &[1.8 * 1.8, 0.09],
    );
    let ev = explained_variance(&row(&[1.0, 2.0, 9.0]), &row(&[1.0, 3.0, 0.0]), &row(&[1.0, 1.0, 0.0]));
    assert!((ev.unwrap().unwrap() - 0.75).abs() < 1e-12);
    assert!(
        explained_variance(&row(&[1.0]), &row(&[1.0]), &row(&[1.0]))
            .unwrap()
            .is_none()
    );
}

struct EndToEnd {
    surrogate: Surrogate,
    reduction: Reduction,
    value: f64,
    l1: [f64; 2],
    first: [f64; 5],
}

/// Two samples of different length, from logits to gradient.
#[test]
fn end_to_end_golden() {
    let seq = Reduction::SeqMeanTokenMean;
    let token = Reduction::TokenMean;
    let ppo = Surrogate::Ppo {
        low: 0.2,
        high: 0.28,
        dual_clip: None,
    };
    let seq_first = [
        0.01713696148,
        -0.1244560722,
        0.05542802054,
        0.03546752543,
        0.01642356474,
    ];
    let token_first = [
        0.02284928197,
        -0.1659414296,
        0.07390402739,
        0.04729003391,
        0.02189808631,
    ];
    let cases = [
        EndToEnd {
            surrogate: ppo,
            reduction: seq,
            value: -0.028010315235,
            l1: [0.4568990739, 0.4538514492],
            first: seq_first,
        },
        EndToEnd {
            surrogate: ppo,
            reduction: token,
            value: -0.207989701067,
            l1: [0.6091987652, 0.3025676328],
            first: token_first,
        },
        EndToEnd {
            surrogate: Surrogate::Dis { low: 0.3, high: 5.0 },
            reduction: seq,
            value: -0.326990502134,
            l1: [0.2489121444, 0.4538514492],
            first: seq_first,
        },
        EndToEnd {
            surrogate: Surrogate::Cispo { low: 1.0, high: 4.0 },
            reduction: token,
            value: 0.270248651723,
            l1: [0.6091987652, 0.3025676328],
            first: token_first,
        },
        EndToEnd {
            surrogate: Surrogate::ImportanceSampling,
            reduction: Reduction::Sum,
            value: -2.68467105767,
            l1: [4.569597281, 1.093539365],
            first: [0.06854784592, -0.4978242887, 0.2217120822, 0.1418701017, 0.06569425894],
        },
    ];
    for case in cases {
        let mut z = Vec::new();
        for i in 0..2 {
            for t in 0..3 {
                for v in 0..5 {
                    z.push((1.3 * f64::from(i) + 0.7 * f64::from(t) + 0.9 * f64::from(v)).sin() + 0.1 * f64::from(v));
                }
            }
        }
        let logits = Tensor::from_slice(&z).reshape([2, 3, 5]).set_requires_grad(true);
        let targets = Tensor::from_slice(&[1i64, 3, 0, 4, 2, 0]).reshape([2, 3]);
        let l = tensor::token_log_probs(&logits, &targets, 1.0).unwrap();
        close(
            &flat(&l)[..5],
            &[-1.386876418, -2.127082157, -1.006273591, -2.606208101, -2.176424416],
        );
        let warm = tensor::token_log_probs(&logits, &targets, 0.6).unwrap();
        close(
            &flat(&warm)[..5],
            &[-1.344726624, -2.597316416, -0.7862126746, -3.44474291, -2.741427185],
        );
        let old = Tensor::from_slice(&[-1.2f64, -1.6, -2.0, -1.0, -2.2, 0.0]).reshape([2, 3]);
        let trained = Tensor::from_slice(&[1.0f64, 1.0, 0.0, 0.0, 1.0, 0.0]).reshape([2, 3]);
        let valid = Tensor::from_slice(&[1.0f64, 1.0, 1.0, 1.0, 1.0, 0.0]).reshape([2, 3]);
        let mask = if case.reduction == Reduction::Sum {
            &valid
        } else {
            &trained
        };
        let a = Tensor::from_slice(&[0.8f64, 0.8, 0.8, -0.5, -0.5, -0.5]).reshape([2, 3]);
        let losses = case.surrogate.token_loss(&l, &old, &a, mask).unwrap().loss;
        let totals = StepTotals::of(&trained).unwrap();
        let value = case.reduction.apply(&losses, mask, totals, None).unwrap();
        close(&[f64::try_from(&value).unwrap()], &[case.value]);
        value.backward();
        let gradient = logits.grad();
        for (i, l1) in case.l1.iter().enumerate() {
            close(
                &[gradient.get(i as i64).abs().sum(Kind::Double).double_value(&[])],
                &[*l1],
            );
        }
        close(&flat(&gradient.get(0).get(0)), &case.first);
    }
}

#[test]
fn micro_batches_add_up_to_the_step() {
    let losses = normal(1, &[4, 7], Kind::Double);
    let mask = normal(2, &[4, 7], Kind::Double).gt(-0.3).to_kind(Kind::Double);
    let totals = StepTotals::of(&mask).unwrap();
    for reduction in [
        Reduction::SeqMeanTokenMean,
        Reduction::TokenMean,
        Reduction::SeqMeanTokenSum,
        Reduction::SeqMeanTokenSumNorm { length: 7.0 },
        Reduction::Sum,
    ] {
        let whole = reduction.apply(&losses, &mask, totals, None).unwrap().double_value(&[]);
        let parts: f64 = [(0, 1), (1, 3)]
            .iter()
            .map(|(start, n)| {
                let (l, m) = (losses.narrow(0, *start, *n), mask.narrow(0, *start, *n));
                reduction.apply(&l, &m, totals, None).unwrap().double_value(&[])
            })
            .sum();
        assert!((whole - parts).abs() < 1e-12, "{reduction:?}");
    }
}

#[test]
fn an_empty_step_has_zero_gradients_not_none() {
    let x = Tensor::ones([2, 3], (Kind::Double, Device::Cpu)).set_requires_grad(true);
    let mask = Tensor::zeros([2, 3], (Kind::Double, Device::Cpu));
    let totals = StepTotals::of(&mask).unwrap();
    for reduction in [Reduction::SeqMeanTokenMean, Reduction::TokenMean] {
        reduction.apply(&x, &mask, totals, None).unwrap().backward();
    }
    assert_eq!(flat(&x.grad()), [0.0; 6]);
}

#[test]
fn entropy_of_uniform_logits_is_log_n() {
    let h = tensor::entropy(&Tensor::zeros([1, 8], (Kind::Double, Device::Cpu)), 0.7).unwrap();
    close(&flat(&h), &[8.0f64.ln()]);
}
