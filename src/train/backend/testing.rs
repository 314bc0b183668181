//! A tiny decoder on disk for tests, made of fixed pseudo-random numbers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test may panic"
)]

use std::path::Path;

use serde_json::{Map, Value, json};
use tch::{Device, Kind, Tensor};

use crate::domain::{BatchId, RecordId, ScenarioName};
use crate::train::objective::ObjectiveSettings;
use crate::train::optim::OptimizerSettings;
use crate::train::testing::normal;
use crate::train::{Method, TrainBatch, TrainRow, TrainSettings};

/// The shape of a tiny decoder.
pub(super) struct Tiny {
    pub(super) hidden: i64,
    pub(super) inner: i64,
    pub(super) layers: i64,
    pub(super) heads: i64,
    pub(super) kv_heads: i64,
    pub(super) vocab: i64,
    pub(super) tied: bool,
    pub(super) architecture: &'static str,
    pub(super) scale: f64,
}

impl Default for Tiny {
    fn default() -> Self {
        Self {
            hidden: 16,
            inner: 24,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            vocab: 19,
            tied: true,
            architecture: "llama",
            scale: 0.3,
        }
    }
}

impl Tiny {
    /// Writes config.json and model.safetensors.
    pub(super) fn write(&self, dir: &Path, seed: u64) {
        std::fs::create_dir_all(dir).unwrap();
        let config = json!({
            "model_type": self.architecture, "hidden_size": self.hidden, "intermediate_size": self.inner,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "vocab_size": self.vocab, "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": self.tied, "torch_dtype": "float32",
        });
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
        let mut drawn = seed << 16;
        let mut random = |shape: &[i64]| {
            drawn += 1;
            normal(drawn, shape, Kind::Float) * self.scale
        };
        let ones = |n: i64| Tensor::ones([n], (Kind::Float, Device::Cpu));
        let head = self.hidden / self.heads;
        let (q, kv) = (self.hidden, self.kv_heads * head);
        let mut named = vec![(
            "model.embed_tokens.weight".to_owned(),
            random(&[self.vocab, self.hidden]),
        )];
        for i in 0..self.layers {
            let base = format!("model.layers.{i}");
            for (name, out, input) in [
                ("self_attn.q_proj", q, self.hidden),
                ("self_attn.k_proj", kv, self.hidden),
                ("self_attn.v_proj", kv, self.hidden),
                ("self_attn.o_proj", self.hidden, q),
                ("mlp.gate_proj", self.inner, self.hidden),
                ("mlp.up_proj", self.inner, self.hidden),
                ("mlp.down_proj", self.hidden, self.inner),
            ] {
                named.push((format!("{base}.{name}.weight"), random(&[out, input])));
                if self.architecture == "qwen2" && ["q_proj", "k_proj", "v_proj"].iter().any(|p| name.ends_with(p)) {
                    named.push((format!("{base}.{name}.bias"), random(&[out])));
                }
            }
            if self.architecture == "qwen3" {
                named.push((format!("{base}.self_attn.q_norm.weight"), ones(head) + random(&[head])));
                named.push((format!("{base}.self_attn.k_norm.weight"), ones(head) + random(&[head])));
            }
            named.push((format!("{base}.input_layernorm.weight"), ones(self.hidden)));
            named.push((format!("{base}.post_attention_layernorm.weight"), ones(self.hidden)));
        }
        named.push(("model.norm.weight".to_owned(), ones(self.hidden)));
        if !self.tied {
            named.push(("lm_head.weight".to_owned(), random(&[self.vocab, self.hidden])));
        }
        Tensor::write_safetensors(&named, dir.join("model.safetensors")).unwrap();
    }
}

#[allow(clippy::needless_pass_by_value, reason = "called with json! literals")]
pub(super) fn objective(name: &str, overrides: Value) -> ObjectiveSettings {
    ObjectiveSettings::from_family(name, overrides.as_object().unwrap_or(&Map::new())).unwrap()
}

pub(super) fn lora() -> Method {
    Method::Lora {
        rank: 4,
        alpha: 8.0,
        targets: ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
            .map(str::to_owned)
            .to_vec(),
        seed: 7,
    }
}

pub(super) fn settings(objective: ObjectiveSettings, method: Method) -> TrainSettings {
    TrainSettings {
        method,
        optimizer: OptimizerSettings {
            learning_rate: 0.01,
            max_grad_norm: 0.0,
            ..OptimizerSettings::default()
        },
        ..TrainSettings::new(objective)
    }
}

/// Five rows of two comparison sets, of different lengths, temperatures and masks.
pub(super) fn batch() -> TrainBatch {
    let rows = (0..5u32)
        .map(|i| {
            let prompt: Vec<u32> = (0..3 + i % 2).map(|t| (i + 2 * t) % 19).collect();
            let response: Vec<u32> = (0..2 + i).map(|t| (3 * i + 5 * t + 1) % 19).collect();
            let n = response.len();
            TrainRow {
                sources: vec![RecordId::new(format!("r{i}")).unwrap()],
                prompt,
                loss_mask: (0..n).map(|t| t != 1 || n < 3).collect(),
                action_mask: Some(vec![true; n]),
                log_probs: Some((0..n).map(|t| -2.0 - 0.3 * t as f32).collect()),
                temperature: [1.0, 0.7][i as usize % 2],
                reward: Some(f64::from(i % 3)),
                group: Some(["a", "b"][usize::from(i < 3)].to_owned()),
                spans: Vec::new(),
                truncated: false,
                response,
            }
        })
        .collect();
    TrainBatch {
        id: BatchId::new("batch-1").unwrap(),
        scenario: ScenarioName::new("s").unwrap(),
        rows,
    }
}
