//! The trainer's gradients against plain autograd on a tiny decoder.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::path::Path;

use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::policy::Policy;
use super::step::{Moved, Step};
use super::testing::{Tiny, batch, lora, objective, settings};
use crate::engine::torch::model::Model;
use crate::train::checkpoint::AlgorithmState;
use crate::train::objective::{reduce::StepTotals, tensor};
use crate::train::optim::AdamW;
use crate::train::{Control, Limits, Method, Signal, TrainBatch, TrainSettings, prepare};

/// The gradient that plain autograd gives through whole logits, row by row without packing.
fn plain_gradients(dir: &Path, s: &TrainSettings, b: &TrainBatch) -> Vec<(String, Tensor)> {
    let model = Model::load(dir, Kind::Float, Device::Cpu).unwrap();
    let Signal::Train(prepared) = prepare(b, &s.objective).unwrap() else {
        panic!()
    };
    let adapter = match &s.method {
        Method::Full => {
            model.set_trainable().unwrap();
            None
        }
        Method::Lora { .. } => {
            let policy = Policy::new(model.shallow_clone(), &s.method, None).unwrap();
            perturb(&policy.parameters());
            policy.into_adapter()
        }
    };
    let tokens_total: usize = prepared.rows.iter().map(|i| b.rows[*i].trained_tokens()).sum();
    let totals = StepTotals {
        sequences: prepared.rows.len() as f64,
        tokens: tokens_total as f64,
    };
    let mut loss = Tensor::from(0.0f32);
    for (j, row) in prepared.rows.iter().map(|i| &b.rows[*i]).enumerate() {
        let ids: Vec<i64> = row.prompt.iter().chain(&row.response).map(|t| i64::from(*t)).collect();
        let tokens = Tensor::from_slice(&ids).reshape([1, -1]);
        let logits = model.forward_train(&tokens, None, adapter.as_ref()).unwrap();
        let (p, n) = (row.prompt.len() as i64, row.response.len() as i64);
        let targets = tokens.narrow(1, p, n);
        let read = logits.narrow(1, p - 1, n);
        let l = tensor::token_log_probs(&read, &targets, f64::from(row.temperature)).unwrap();
        let h = tensor::entropy(&read, f64::from(row.temperature)).unwrap();
        let mask: Vec<f32> = row.loss_mask.iter().map(|m| f32::from(u8::from(*m))).collect();
        let mask = Tensor::from_slice(&mask).reshape([1, n]);
        let old = Tensor::from_slice(row.log_probs.as_deref().unwrap()).reshape([1, n]);
        let a: Vec<f32> = prepared.advantages[j].iter().map(|a| *a as f32).collect();
        let a = Tensor::from_slice(&a).reshape([1, n]);
        // What the environment said is never trained, whatever the reduction.
        let token = s.objective.surrogate.token_loss(&l, &old, &a, &mask).unwrap().loss;
        loss += s.objective.reduction.apply(&token, &mask, totals, None).unwrap();
        loss -= s.objective.reduction.apply(&h, &mask, totals, None).unwrap() * s.objective.entropy;
    }
    loss.backward();
    let parameters = match &adapter {
        Some(lora) => lora.parameters(),
        None => model.parameters(),
    };
    parameters.into_iter().map(|(n, t)| (n, t.grad())).collect()
}

/// A fresh adapter's B is zero and hides half of the gradients.
fn perturb(parameters: &[(String, Tensor)]) {
    tch::no_grad(|| {
        for (i, (_, t)) in parameters.iter().enumerate() {
            let n = t.numel() as i64;
            let noise = (Tensor::arange(n, (Kind::Float, Device::Cpu)) * 0.37 + i as f64).sin() * 0.05;
            t.shallow_clone().copy_(&(t + noise.reshape(t.size())));
        }
    });
}

/// The gradient that the trainer computes, read off one update without momentum: β₁ = β₂ = 0 gives the sign only, so
/// the optimizer's first moment is read instead.
fn trainer_gradients(dir: &Path, s: &TrainSettings, b: &TrainBatch) -> Vec<(String, Tensor)> {
    let model = Model::load(dir, Kind::Float, Device::Cpu).unwrap();
    let policy = Policy::new(model, &s.method, None).unwrap();
    if matches!(s.method, Method::Lora { .. }) {
        perturb(&policy.parameters());
    }
    let Signal::Train(prepared) = prepare(b, &s.objective).unwrap() else {
        panic!()
    };
    let mut adam = AdamW::new(s.optimizer.clone(), &policy.parameters()).unwrap();
    let control = Control::default();
    let step = Step {
        settings: s,
        batch: b,
        prepared: &prepared,
        policy: &policy,
        reference: None,
        control: &control,
        state: AlgorithmState::default(),
    };
    let moved = step.run(&mut adam, None, &mut |_| {}).unwrap();
    assert!(matches!(moved, Moved::Done(..)));
    let file = tempfile::NamedTempFile::new().unwrap();
    adam.save(file.path()).unwrap();
    let mut saved = crate::train::tensors::read(file.path()).unwrap().tensors;
    policy
        .parameters()
        .into_iter()
        .map(|(n, _)| {
            // m = (1 − β₁) g after the first step.
            let m = saved.remove(&format!("{n}.exp_avg")).unwrap();
            let g = m / (1.0 - s.optimizer.beta1);
            (n, g)
        })
        .collect()
}

#[track_caller]
fn same(got: &[(String, Tensor)], want: &[(String, Tensor)], what: &str) {
    assert_eq!(got.len(), want.len());
    let scale = want
        .iter()
        .map(|(_, t)| t.abs().max().double_value(&[]))
        .fold(0.0, f64::max);
    assert!(scale > 1e-4, "{what}: the reference has no gradient");
    for ((n, g), (m, w)) in got.iter().zip(want) {
        assert_eq!(n, m);
        let error = (g - w).abs().max().double_value(&[]);
        assert!(error <= 2e-5 * scale, "{what} {n}: {error} of {scale}");
    }
}

#[test]
fn gradients_equal_plain_autograd_however_the_work_is_cut() {
    let families = [
        objective("grpo", json!({})),
        objective("dapo", json!({"entropy": 0.01})),
        objective("gspo", json!({"surrogate": {"low": 0.5, "high": 5.0}})),
        objective(
            "sao",
            json!({"advantage": {"estimator": "batch"}, "surrogate": {"low": 0.99, "high": 50.0}}),
        ),
        objective("reinforce", json!({"reduction": {"kind": "sum"}})),
        objective("sft", json!({})),
    ];
    let dir = tempfile::tempdir().unwrap();
    Tiny::default().write(dir.path(), 1);
    for o in families {
        let name = format!("{:?}", o.surrogate);
        let base = settings(o, lora());
        let want = plain_gradients(dir.path(), &base, &batch());
        for (token_budget, head_chunk, recompute) in
            [(1000, 1000, false), (12, 3, false), (20, 1000, true), (1, 2, true)]
        {
            let mut s = base.clone();
            s.limits = Limits {
                token_budget,
                head_chunk,
                recompute,
                ..Limits::default()
            };
            let got = trainer_gradients(dir.path(), &s, &batch());
            same(&got, &want, &format!("{name} {token_budget} {head_chunk} {recompute}"));
        }
    }
}

#[test]
fn full_gradients_equal_plain_autograd_for_every_architecture() {
    for (architecture, tied) in [("llama", true), ("llama", false), ("qwen2", true), ("qwen3", false)] {
        let dir = tempfile::tempdir().unwrap();
        Tiny {
            architecture,
            tied,
            ..Tiny::default()
        }
        .write(dir.path(), 2);
        let base = settings(objective("grpo", json!({"entropy": 0.02})), Method::Full);
        let want = plain_gradients(dir.path(), &base, &batch());
        for recompute in [false, true] {
            let mut s = base.clone();
            s.limits.recompute = recompute;
            s.limits.token_budget = 20;
            let got = trainer_gradients(dir.path(), &s, &batch());
            same(
                &got,
                &want,
                &format!("{architecture} tied {tied} recompute {recompute}"),
            );
        }
    }
}

/// Rows that begin alike run their beginning once; nothing else may change.
#[test]
fn a_shared_prefix_changes_no_gradient() {
    let mut b = batch();
    let system: Vec<u32> = (0..40).map(|i| (i * 7 + 3) % 19).collect();
    for row in &mut b.rows {
        row.prompt.splice(0..0, system.iter().copied());
    }
    for (architecture, method) in [("llama", lora()), ("qwen3", Method::Full)] {
        let dir = tempfile::tempdir().unwrap();
        Tiny {
            architecture,
            ..Tiny::default()
        }
        .write(dir.path(), 3);
        let base = settings(objective("grpo", json!({"entropy": 0.01})), method);
        let want = plain_gradients(dir.path(), &base, &b);
        let lengths: Vec<usize> = b.rows.iter().map(crate::train::TrainRow::len).collect();
        let prompts: Vec<&[u32]> = b.rows.iter().map(|row| row.prompt.as_slice()).collect();
        assert!(
            crate::train::shared_prefix(&prompts, &lengths) >= 40,
            "the prefix is used"
        );
        for (token_budget, recompute) in [(1000, false), (60, false), (1000, true)] {
            let mut s = base.clone();
            s.limits.token_budget = token_budget;
            s.limits.recompute = recompute;
            let got = trainer_gradients(dir.path(), &s, &b);
            same(&got, &want, &format!("{architecture} {token_budget} {recompute}"));
        }
    }
}
