//! Every loss against PyTorch's autograd, from the committed fixtures of `scripts/golden/objectives.py`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tch::{Kind, Tensor};

use super::divergence::{Divergence, renormalized_top_k, top_k_with_tail};
use super::reduce::StepTotals;
use super::{Reduction, Surrogate, tensor};
use crate::train::optim::{AdamW, OptimizerSettings};

#[derive(Deserialize)]
struct Fixture<T> {
    cases: Vec<T>,
}

fn fixture<T: DeserializeOwned>(name: &str) -> Vec<T> {
    let path = format!("{}/tests/fixtures/objectives/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let fixture: Fixture<T> = serde_json::from_str(&text).unwrap();
    assert!(!fixture.cases.is_empty());
    fixture.cases
}

fn matrix(rows: &[Vec<f64>]) -> Tensor {
    Tensor::from_slice(&rows.concat()).reshape([rows.len() as i64, rows[0].len() as i64])
}

fn flat(t: &Tensor) -> Vec<f64> {
    Vec::try_from(t.flatten(0, -1)).unwrap()
}

#[track_caller]
fn close(got: &[f64], want: &[f64], case: usize) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= 1e-10 * w.abs().max(1.0), "case {case}: {g} vs {w}");
    }
}

#[derive(Deserialize)]
struct LossCase {
    logits: Vec<Vec<Vec<f64>>>,
    targets: Vec<Vec<i64>>,
    mask: Vec<Vec<f64>>,
    temperature: f64,
    old: Vec<Vec<f64>>,
    advantage: Vec<Vec<f64>>,
    surrogate: Surrogate,
    reduction: Reduction,
    value: f64,
    gradient: Vec<Vec<Vec<f64>>>,
}

#[test]
fn losses_and_gradients_equal_autograd() {
    for (i, case) in fixture::<LossCase>("losses").iter().enumerate() {
        let shape = [case.logits.len(), case.logits[0].len(), case.logits[0][0].len()].map(|d| d as i64);
        let logits = Tensor::from_slice(&case.logits.concat().concat())
            .reshape(shape)
            .set_requires_grad(true);
        let targets = Tensor::from_slice(&case.targets.concat()).reshape([shape[0], shape[1]]);
        let mask = matrix(&case.mask);
        let l = tensor::token_log_probs(&logits, &targets, case.temperature).unwrap();
        let losses = case
            .surrogate
            .token_loss(&l, &matrix(&case.old), &matrix(&case.advantage), &mask)
            .unwrap()
            .loss;
        let totals = StepTotals::of(&mask).unwrap();
        let value = case.reduction.apply(&losses, &mask, totals, None).unwrap();
        close(&[value.double_value(&[])], &[case.value], i);
        value.backward();
        close(&flat(&logits.grad()), &case.gradient.concat().concat(), i);
    }
}

#[derive(Deserialize)]
struct DivergenceCase {
    student: Vec<Vec<f64>>,
    teacher: Vec<Vec<f64>>,
    divergence: Divergence,
    ids: Option<Vec<Vec<i64>>>,
    mode: String,
    value: f64,
    gradient: Vec<Vec<f64>>,
}

#[test]
fn divergences_and_gradients_equal_autograd() {
    for (i, case) in fixture::<DivergenceCase>("divergences").iter().enumerate() {
        let student = matrix(&case.student).set_requires_grad(true);
        let p = student.log_softmax(-1, Kind::Double);
        let t = matrix(&case.teacher);
        let (p, t) = match &case.ids {
            None => (p, t),
            Some(ids) => {
                let ids = Tensor::from_slice(&ids.concat()).reshape([2, ids[0].len() as i64]);
                let cut = |x: &Tensor| match case.mode.as_str() {
                    "tail" => top_k_with_tail(x, &ids).unwrap(),
                    _ => renormalized_top_k(x, &ids).unwrap(),
                };
                (cut(&p), cut(&t))
            }
        };
        let value = case.divergence.between(&p, &t).unwrap().sum(Kind::Double);
        close(&[value.double_value(&[])], &[case.value], i);
        value.backward();
        close(&flat(&student.grad()), &case.gradient.concat(), i);
    }
}

#[derive(Deserialize)]
struct AdamCase {
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    weight_decay: f64,
    max_grad_norm: f64,
    shapes: Vec<Vec<i64>>,
    start: Vec<Vec<f64>>,
    gradients: Vec<Vec<Vec<f64>>>,
    after: Vec<Vec<Vec<f64>>>,
    norms: Vec<f64>,
}

#[test]
fn the_optimizer_equals_pytorch() {
    for (i, case) in fixture::<AdamCase>("adamw").iter().enumerate() {
        let parameters: Vec<(String, Tensor)> = case
            .start
            .iter()
            .zip(&case.shapes)
            .enumerate()
            .map(|(n, (x, shape))| {
                let t = Tensor::from_slice(x).reshape(shape.as_slice());
                (n.to_string(), t.set_requires_grad(true))
            })
            .collect();
        let settings = OptimizerSettings {
            learning_rate: case.learning_rate,
            beta1: case.beta1,
            beta2: case.beta2,
            epsilon: case.epsilon,
            weight_decay: case.weight_decay,
            max_grad_norm: case.max_grad_norm,
            ..OptimizerSettings::default()
        };
        let mut adam = AdamW::new(settings, &parameters).unwrap();
        for ((gradients, after), norm) in case.gradients.iter().zip(&case.after).zip(&case.norms) {
            for ((_, p), g) in parameters.iter().zip(gradients) {
                // The gradient of Σ p·g with respect to p is g.
                let g = Tensor::from_slice(g).reshape(p.size());
                (p * g).sum(Kind::Double).backward();
            }
            let update = adam.step().unwrap();
            close(&[update.grad_norm], &[*norm], i);
            for ((_, p), want) in parameters.iter().zip(after) {
                close(&flat(p), want, i);
            }
        }
    }
}
