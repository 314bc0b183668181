//! The proof that it learns: a decoder trained from scratch through the same jobs, files and sampler that a deployment
//! uses, against controls that must fail. The task: three letters in, the same three reversed out; the reward is the
//! share of right letters. `scripts/experiments/reversal.sh` runs the long form over seeds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tch::{Device, Kind};

use super::testing::Tiny;
use super::torch::Trainer;
use crate::domain::{BatchId, RecordId, ScenarioName};
use crate::engine::torch::model::{ForwardRow, LogitsOf, Model};
use crate::train::objective::ObjectiveSettings;
use crate::train::optim::OptimizerSettings;
use crate::train::{Control, Method, StepJob, StepOutcome, TrainBatch, TrainRow, TrainSettings};

const SEPARATOR: u32 = 6;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Reward {
    True,
    Shuffled,
}

struct Run {
    objective: &'static str,
    overrides: Value,
    reward: Reward,
    letters: u32,
    prompts: usize,
    rollouts: usize,
    steps: u64,
    learning_rate: f64,
    seed: u64,
}

/// Mean reward of each step.
fn learn(run: &Run) -> Vec<f64> {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    Tiny {
        hidden: 64,
        inner: 128,
        layers: 2,
        heads: 4,
        kv_heads: 4,
        vocab: 8,
        tied: false,
        scale: 0.1,
        ..Tiny::default()
    }
    .write(&base, run.seed + 100);
    let overrides = run.overrides.as_object().unwrap();
    let mut settings = TrainSettings::new(ObjectiveSettings::from_family(run.objective, overrides).unwrap());
    settings.method = Method::Full;
    settings.limits.token_budget = 4096;
    settings.optimizer = OptimizerSettings {
        learning_rate: run.learning_rate,
        ..OptimizerSettings::default()
    };
    let trainer = Trainer::new();
    let mut random = StdRng::seed_from_u64(run.seed);
    let mut parent: Option<PathBuf> = None;
    let mut curve = Vec::new();
    for step in 1..=run.steps {
        let weights = parent.clone().unwrap_or_else(|| base.clone());
        let mut rows = sample(&weights, run, &mut random);
        curve.push(rows.iter().filter_map(|r| r.reward).sum::<f64>() / rows.len() as f64);
        if run.reward == Reward::Shuffled {
            let mut rewards: Vec<Option<f64>> = rows.iter().map(|r| r.reward).collect();
            rewards.shuffle(&mut random);
            for (row, reward) in rows.iter_mut().zip(rewards) {
                row.reward = reward;
            }
        }
        let job = StepJob {
            step,
            batch: TrainBatch {
                id: BatchId::new(format!("batch-{step}")).unwrap(),
                scenario: ScenarioName::new("reversal").unwrap(),
                rows,
            },
            base: base.clone(),
            base_name: "tiny".into(),
            parent: parent.clone(),
            output: dir.path().join("work").join(format!("step-{step}")),
            settings: settings.clone(),
        };
        match trainer.run(&job, &Control::default(), &mut |_| {}).unwrap() {
            StepOutcome::Trained(result) => {
                if let Some(old) = parent.replace(result.candidate) {
                    std::fs::remove_dir_all(old).unwrap();
                }
            }
            StepOutcome::Skipped { .. } => {}
        }
    }
    curve
}

/// Rollouts of the current weights at temperature 1, with the log-probabilities of the sampler.
fn sample(weights: &Path, run: &Run, random: &mut StdRng) -> Vec<TrainRow> {
    let model = Model::load(weights, Kind::Float, Device::Cpu).unwrap();
    let n = run.prompts * run.rollouts;
    let mut cache = model.new_cache(n, 16).unwrap();
    let prompts: Vec<Vec<u32>> = (0..run.prompts)
        .map(|_| {
            (0..3)
                .map(|_| random.random_range(0..run.letters))
                .chain([SEPARATOR])
                .collect()
        })
        .collect();
    let mut rows: Vec<TrainRow> = (0..n)
        .map(|i| TrainRow {
            sources: vec![RecordId::new(format!("r{i}")).unwrap()],
            prompt: prompts[i / run.rollouts].clone(),
            response: Vec::new(),
            loss_mask: vec![true; 3],
            action_mask: None,
            log_probs: Some(Vec::new()),
            temperature: 1.0,
            reward: None,
            group: Some(format!("g{}", i / run.rollouts)),
            spans: Vec::new(),
            truncated: false,
        })
        .collect();
    for t in 0..3 {
        let forward: Vec<ForwardRow<'_>> = rows
            .iter()
            .enumerate()
            .map(|(slot, row)| ForwardRow {
                slot,
                tokens: if t == 0 { &row.prompt } else { &row.response[t - 1..t] },
                adapter: None,
                logits: LogitsOf::Last,
            })
            .collect();
        let logits = model.forward(&forward, &mut cache).unwrap();
        let log_p = logits.values.log_softmax(-1, Kind::Float);
        let lines = Vec::<Vec<f32>>::try_from(log_p).unwrap();
        for (row, line) in rows.iter_mut().zip(lines) {
            let mut left: f32 = random.random();
            let drawn = line.iter().position(|l| {
                left -= l.exp();
                left < 0.0
            });
            let token = drawn.unwrap_or(line.len() - 1);
            row.response.push(u32::try_from(token).unwrap());
            if let Some(log_probs) = &mut row.log_probs {
                log_probs.push(line[token]);
            }
        }
    }
    for row in &mut rows {
        let right = row
            .response
            .iter()
            .zip(row.prompt[..3].iter().rev())
            .filter(|(a, b)| a == b)
            .count();
        row.reward = Some(right as f64 / 3.0);
    }
    rows
}

fn end(curve: &[f64]) -> f64 {
    let tail = &curve[curve.len() - 10..];
    tail.iter().sum::<f64>() / tail.len() as f64
}

fn grpo(reward: Reward, steps: u64, seed: u64) -> Run {
    Run {
        objective: "dapo",
        overrides: json!({}),
        reward,
        letters: 6,
        prompts: 16,
        rollouts: 8,
        steps,
        learning_rate: 3e-3,
        seed,
    }
}

#[test]
fn group_advantages_learn_and_shuffled_rewards_do_not() {
    let short = |reward| {
        let run = Run {
            overrides: json!({"epochs": 2}),
            ..grpo(reward, 25, 1)
        };
        end(&learn(&run))
    };
    let (learnt, control) = (short(Reward::True), short(Reward::Shuffled));
    println!("learnt {learnt:.3}, control {control:.3}");
    // Chance is 1/8 of the vocabulary, 1/6 once only letters are written.
    assert!(
        learnt > 0.4 && control < 0.28,
        "learnt {learnt:.3}, control {control:.3}"
    );
}

/// The long form: every arm over five seeds, one CSV line per step. Writes where `REEF_REVERSAL_CSV` says.
#[test]
#[ignore = "minutes; run by scripts/experiments/reversal.sh"]
fn reversal_experiment() {
    let path = std::env::var("REEF_REVERSAL_CSV").expect("REEF_REVERSAL_CSV must name the file to write");
    let sao = |rollouts: usize| Run {
        objective: "sao",
        overrides: json!({"critic": {"hidden": 32, "steps": 2, "optimizer": {"learning_rate": 0.01}}}),
        reward: Reward::True,
        letters: 6,
        prompts: 32 / rollouts,
        rollouts,
        steps: 300,
        learning_rate: 1e-3,
        seed: 0,
    };
    let with = |objective: &'static str, overrides: Value, reward: Reward| Run {
        objective,
        overrides,
        learning_rate: 1e-3,
        ..grpo(reward, 150, 0)
    };
    type Arm = (&'static str, Box<dyn Fn() -> Run>);
    let arms: Vec<Arm> = vec![
        ("grpo", Box::new(move || with("grpo", json!({}), Reward::True))),
        ("dapo", Box::new(move || with("dapo", json!({}), Reward::True))),
        ("cispo", Box::new(move || with("cispo", json!({}), Reward::True))),
        ("gspo", Box::new(move || with("gspo", json!({}), Reward::True))),
        ("rloo", Box::new(move || with("rloo", json!({}), Reward::True))),
        (
            "reinforce++",
            Box::new(move || with("reinforce++", json!({}), Reward::True)),
        ),
        (
            "batch baseline, hard mask",
            Box::new(move || with("sao", json!({"advantage": {"estimator": "batch"}}), Reward::True)),
        ),
        ("sao, single rollouts", Box::new(move || sao(1))),
        (
            "shuffled reward (dapo)",
            Box::new(move || with("dapo", json!({}), Reward::Shuffled)),
        ),
        (
            "frozen",
            Box::new(move || Run {
                learning_rate: 0.0,
                ..with("dapo", json!({}), Reward::True)
            }),
        ),
    ];
    let mut csv = String::from("arm,seed,step,mean_reward\n");
    for (name, arm) in &arms {
        for seed in 1..=5 {
            let curve = learn(&Run { seed, ..arm() });
            for (step, reward) in curve.iter().enumerate() {
                writeln!(csv, "\"{name}\",{seed},{},{reward:.4}", step + 1).unwrap();
            }
            println!(
                "{name:28} seed {seed}: first ten {:.3}, last ten {:.3}",
                end(&curve[..10]),
                end(&curve)
            );
        }
    }
    std::fs::write(path, csv).unwrap();
}
