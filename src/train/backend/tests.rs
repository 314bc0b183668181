//! The trainer's conduct with files on a tiny decoder, and whole steps against peft's.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::path::{Path, PathBuf};

use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::policy::Policy;
use super::testing::{Tiny, batch, lora, objective, settings};
use super::torch::Trainer;
use crate::domain::RecordId;
use crate::engine::torch::model::Model;
use crate::train::checkpoint::{self, digest};
use crate::train::optim::OptimizerSettings;
use crate::train::{
    Control, Method, Skip, StepJob, StepOutcome, StepResult, TrainBatch, TrainError, TrainRow, TrainSettings,
};

fn values(parameters: &[(String, Tensor)]) -> Vec<(String, Vec<f32>)> {
    parameters
        .iter()
        .map(|(n, t)| (n.clone(), Vec::try_from(t.detach().flatten(0, -1)).unwrap()))
        .collect()
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Tiny::default().write(&dir.path().join("base"), 3);
        Self { dir }
    }

    fn job(&self, step: u64, parent: Option<PathBuf>, settings: TrainSettings) -> StepJob {
        StepJob {
            step,
            batch: batch(),
            base: self.dir.path().join("base"),
            base_name: "tiny".into(),
            parent,
            output: self.dir.path().join("work").join(format!("step-{step}")),
            settings,
        }
    }

    fn digests(&self, dir: &Path) -> Vec<(String, String)> {
        let mut out = Vec::new();
        let mut todo = vec![dir.to_path_buf()];
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    todo.push(path);
                } else {
                    out.push((path.display().to_string(), digest(&path).unwrap()));
                }
            }
        }
        out.sort();
        out
    }

    fn leftovers(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("work")).map_or(0, Iterator::count)
    }
}

fn run(trainer: &Trainer, job: &StepJob) -> StepOutcome {
    trainer.run(job, &Control::default(), &mut |_| {}).unwrap()
}

#[track_caller]
fn trained(outcome: StepOutcome) -> StepResult {
    match outcome {
        StepOutcome::Trained(result) => result,
        StepOutcome::Skipped { skip } => panic!("skipped: {}", skip.reason()),
    }
}

#[test]
fn a_job_is_done_once_and_a_chain_of_steps_continues_the_optimizer() {
    let place = Place::new();
    let trainer = Trainer::new();
    let s = settings(objective("grpo", json!({})), lora());
    let first = trained(run(&trainer, &place.job(1, None, s.clone())));
    assert!(!first.reused && first.candidate.join("adapter_model.safetensors").is_file());
    assert_eq!(first.metrics["optimizer_restored"], 0.0);
    assert!(first.metrics["grad_norm"] > 0.0 && first.metrics["tokens"] > 0.0);
    let again = trained(run(&Trainer::new(), &place.job(1, None, s.clone())));
    assert!(again.reused && again.job_id == first.job_id);
    let second = trained(run(&trainer, &place.job(2, Some(first.candidate.clone()), s.clone())));
    assert_eq!(second.metrics["optimizer_restored"], 1.0);
    let state = checkpoint::read_manifest(&second.candidate).unwrap().unwrap().state;
    assert_eq!(state.steps, 2);
    // Other settings are another job, and take the place of the first.
    let mut other = s.clone();
    other.optimizer.learning_rate = 0.02;
    let replaced = trained(run(&trainer, &place.job(1, None, other)));
    assert!(!replaced.reused && replaced.job_id != first.job_id && replaced.candidate == first.candidate);
    // An adapter of another shape is not continued in silence.
    let mut wide = s;
    wide.method = Method::Lora {
        rank: 5,
        alpha: 8.0,
        targets: vec!["q_proj".into()],
        seed: 0,
    };
    let error = trainer
        .run(
            &place.job(3, Some(second.candidate), wide),
            &Control::default(),
            &mut |_| {},
        )
        .unwrap_err();
    assert!(error.to_string().contains("another rank"), "{error}");
}

#[test]
fn two_steps_in_one_process_equal_two_steps_in_two() {
    let place = Place::new();
    let s = settings(objective("grpo", json!({})), lora());
    let chain = |fresh: bool, work: &str| {
        let shared = Trainer::new();
        let mut parent = None;
        for step in 1..=3 {
            let own = Trainer::new();
            let mut job = place.job(step, parent.take(), s.clone());
            job.output = place.dir.path().join(work).join(step.to_string());
            let result = trained(run(if fresh { &own } else { &shared }, &job));
            parent = Some(result.candidate);
        }
        digest(&parent.unwrap().join("adapter_model.safetensors")).unwrap()
    };
    assert_eq!(chain(false, "one"), chain(true, "two"));
}

#[test]
fn the_incumbent_is_never_touched() {
    let place = Place::new();
    let trainer = Trainer::new();
    let s = settings(objective("grpo", json!({})), lora());
    let incumbent = trained(run(&trainer, &place.job(1, None, s.clone()))).candidate;
    let before = (place.digests(&incumbent), place.digests(&place.dir.path().join("base")));
    // Three candidates nobody publishes, one that is cancelled, one that blows up, one without signal.
    for step in 2..5 {
        trained(run(&trainer, &place.job(step, Some(incumbent.clone()), s.clone())));
    }
    let cancelled = Control::default();
    let outcome = trainer.run(
        &place.job(5, Some(incumbent.clone()), s.clone()),
        &cancelled,
        &mut |_| cancelled.cancel(),
    );
    assert!(matches!(outcome, Err(TrainError::Cancelled)), "{outcome:?}");
    // A penalty that takes the loss beyond what f32 can hold.
    let wild_kl = objective("grpo", json!({"kl": {"coefficient": 1e300}}));
    let wild = place.job(6, Some(incumbent.clone()), settings(wild_kl, lora()));
    assert_eq!(run(&trainer, &wild), StepOutcome::Skipped { skip: Skip::NotFinite });
    let mut flat = place.job(7, Some(incumbent.clone()), s);
    for row in &mut flat.batch.rows {
        row.reward = Some(1.0);
    }
    assert_eq!(
        run(&trainer, &flat),
        StepOutcome::Skipped {
            skip: Skip::ZeroVariance
        }
    );
    assert_eq!(
        (place.digests(&incumbent), place.digests(&place.dir.path().join("base"))),
        before
    );
    // The incumbent and the three finished candidates; nothing half.
    assert_eq!(place.leftovers(), 4);
}

#[test]
fn sao_keeps_its_critic_and_warms_it_up() {
    let place = Place::new();
    let trainer = Trainer::new();
    let o = objective("sao", json!({"critic": {"warmup_steps": 1, "hidden": 4}}));
    let s = settings(o, lora());
    let mut job = place.job(1, None, s.clone());
    job.batch.rows.truncate(1);
    let first = trained(run(&trainer, &job));
    assert_eq!(first.metrics["actor_updated"], 0.0);
    assert!(first.candidate.join(checkpoint::CRITIC_OPTIMIZER).is_file());
    let fresh = Policy::new(Model::load(&job.base, Kind::Float, Device::Cpu).unwrap(), &lora(), None).unwrap();
    let kept = Policy::new(
        Model::load(&job.base, Kind::Float, Device::Cpu).unwrap(),
        &lora(),
        Some(&first.candidate),
    )
    .unwrap();
    assert_eq!(values(&fresh.parameters()), values(&kept.parameters()));
    let second = trained(run(&trainer, &place.job(2, Some(first.candidate), s)));
    assert_eq!(second.metrics["actor_updated"], 1.0);
    assert!(second.metrics.contains_key("value_loss"));
}

#[test]
fn every_family_makes_a_step() {
    let place = Place::new();
    let trainer = Trainer::new();
    let mut wide = batch();
    // Three rollouts in each set, as the entropic estimator asks.
    wide.rows.push(wide.rows[3].clone());
    wide.rows[5].reward = Some(0.25);
    wide.rows[0].reward = Some(0.5);
    for (i, name) in crate::train::objective::FAMILIES.iter().enumerate() {
        let mut job = place.job(i as u64 + 1, None, settings(objective(name, json!({})), lora()));
        job.batch = wide.clone();
        let result = trained(run(&trainer, &job));
        assert!(
            result.metrics["grad_norm"].is_finite() && result.metrics["grad_norm"] > 0.0,
            "{name}"
        );
    }
    let extras = json!({
        "old": "recompute", "correction": {"kind": "token", "low": 0.0, "high": 2.0}, "epochs": 2, "mini_batch": 3,
        "kl": {"coefficient": 0.05, "controller": {"rule": "verl", "target": 0.1, "horizon": 1000.0, "clip": 0.2}},
    });
    let mut job = place.job(40, None, settings(objective("grpo", extras), lora()));
    job.batch = wide.clone();
    let result = trained(run(&trainer, &job));
    assert_eq!(result.metrics["updates"], 4.0);
    let state = checkpoint::read_manifest(&result.candidate).unwrap().unwrap().state;
    assert_ne!(state.kl.unwrap().coefficient, 0.05, "{state:?}");
    let reward_kl = json!({"kl": {"coefficient": 0.05, "place": "reward"}});
    let mut job = place.job(41, None, settings(objective("reinforce++", reward_kl), lora()));
    job.batch = wide;
    assert!(trained(run(&trainer, &job)).metrics.contains_key("kl"));
}

#[test]
fn full_fine_tuning_writes_a_model_that_loads() {
    let place = Place::new();
    let trainer = Trainer::new();
    let s = settings(objective("sft", json!({})), Method::Full);
    let first = trained(run(&trainer, &place.job(1, None, s.clone())));
    let before = first.metrics["loss"];
    let model = Model::load(&first.candidate, Kind::Float, Device::Cpu).unwrap();
    assert_eq!(model.config().hidden_size, 16);
    let second = trained(run(&trainer, &place.job(2, Some(first.candidate), s)));
    assert!(second.metrics["loss"] < before);
}

#[test]
fn what_cannot_fit_or_be_read_is_refused_before_anything_runs() {
    let place = Place::new();
    let trainer = Trainer::new();
    let s = settings(objective("grpo", json!({})), lora());
    let refuse = |job: StepJob| {
        trainer
            .run(&job, &Control::default(), &mut |_| {})
            .unwrap_err()
            .to_string()
    };
    let mut job = place.job(1, None, s.clone());
    job.batch.rows[1].response[0] = 19;
    assert!(refuse(job).contains("token 19 is not in"));
    let mut job = place.job(1, None, s.clone());
    job.settings.limits.max_tokens = 4;
    assert!(refuse(job).contains("4 are allowed"));
    let mut job = place.job(1, None, s.clone());
    job.settings.limits.memory_mib = Some(0);
    assert!(refuse(job).contains("MiB"));
    let mut job = place.job(1, None, s);
    job.base = place.dir.path().join("nowhere");
    assert!(refuse(job).contains("loading weights"));
    let mut clipped = settings(objective("grpo", json!({})), lora());
    clipped.method = Method::Lora {
        rank: 2,
        alpha: 2.0,
        targets: vec!["w_pack".into()],
        seed: 0,
    };
    assert!(refuse(place.job(1, None, clipped)).contains("w_pack"));
}

#[test]
fn a_bf16_base_trains_an_f32_adapter_to_nearly_the_same_gradient() {
    let place = Place::new();
    let mut s = settings(objective("sft", json!({})), lora());
    let wide = trained(run(&Trainer::new(), &place.job(1, None, s.clone())));
    s.precision = crate::train::Precision::Bf16;
    s.limits.recompute = true;
    let narrow = trained(run(&Trainer::new(), &place.job(2, None, s)));
    for name in ["loss", "grad_norm"] {
        let (a, b) = (wide.metrics[name], narrow.metrics[name]);
        assert!(a != b && (a - b).abs() < 0.03 * a, "{name}: {a} {b}");
    }
    let saved = crate::train::tensors::read(&narrow.candidate.join("adapter_model.safetensors")).unwrap();
    assert!(saved.tensors.values().all(|t| t.kind() == Kind::Float));
    let state = crate::train::tensors::read(&narrow.candidate.join(checkpoint::OPTIMIZER)).unwrap();
    assert!(state.tensors.values().all(|t| t.kind() == Kind::Float));
}

/// Loss, gradient norm and every parameter after three steps, against PyTorch + peft + torch.optim.AdamW
/// (`scripts/golden/train_step.py`).
#[test]
fn three_steps_equal_peft() {
    #[derive(serde::Deserialize)]
    struct Golden {
        rows: Vec<GoldenRow>,
        losses: Vec<f64>,
        norms: Vec<f64>,
    }
    #[derive(serde::Deserialize)]
    struct GoldenRow {
        prompt: Vec<u32>,
        response: Vec<u32>,
        mask: Vec<u8>,
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/training");
    let golden: Golden = serde_json::from_slice(&std::fs::read(fixtures.join("step.json")).unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut s = settings(
        objective("sft", json!({"epochs": 3})),
        Method::Lora {
            rank: 4,
            alpha: 8.0,
            targets: [
                "q_proj",
                "k_proj",
                "v_proj",
                "o_proj",
                "gate_proj",
                "up_proj",
                "down_proj",
            ]
            .map(str::to_owned)
            .to_vec(),
            seed: 0,
        },
    );
    s.optimizer = OptimizerSettings {
        learning_rate: 0.01,
        beta2: 0.95,
        epsilon: 1e-6,
        weight_decay: 0.05,
        max_grad_norm: 0.5,
        ..OptimizerSettings::default()
    };
    let rows = golden
        .rows
        .iter()
        .map(|row| TrainRow {
            sources: vec![RecordId::new("r").unwrap()],
            prompt: row.prompt.clone(),
            response: row.response.clone(),
            loss_mask: row.mask.iter().map(|m| *m == 1).collect(),
            action_mask: None,
            log_probs: None,
            temperature: 1.0,
            reward: None,
            group: None,
            spans: Vec::new(),
            truncated: false,
        })
        .collect();
    let job = StepJob {
        step: 1,
        batch: TrainBatch { rows, ..batch() },
        base: fixtures.join("base"),
        base_name: "tiny".into(),
        parent: Some(fixtures.join("before")),
        output: dir.path().join("candidate"),
        settings: s,
    };
    let result = trained(run(&Trainer::new(), &job));
    let loss = golden.losses.iter().sum::<f64>() / 3.0;
    let norm = golden.norms.iter().copied().fold(0.0, f64::max);
    assert!(
        (result.metrics["loss"] - loss).abs() < 1e-5 * loss,
        "{:?}",
        result.metrics
    );
    assert!(
        (result.metrics["grad_norm"] - norm).abs() < 1e-5 * norm,
        "{:?}",
        result.metrics
    );
    let read = |dir: &Path| {
        crate::train::tensors::read(&dir.join("adapter_model.safetensors"))
            .unwrap()
            .tensors
    };
    let (got, want, before) = (
        read(&result.candidate),
        read(&fixtures.join("after")),
        read(&fixtures.join("before")),
    );
    assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
    for (name, tensor) in &want {
        let moved = (tensor - &before[name]).abs().max().double_value(&[]);
        let error = (&got[name] - tensor).abs().max().double_value(&[]);
        assert!(
            moved > 5e-3 && error < 1e-3 * moved,
            "{name}: moved {moved}, off by {error}"
        );
    }
}
