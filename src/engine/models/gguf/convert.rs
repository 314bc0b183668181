//! One GGUF file to `config.json`, `model.safetensors` and the tokenizer's files.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::super::config::ModelConfig;
use super::super::error::ModelError;
use super::super::safetensors_out::{SafetensorsOut, StoredDtype};
use super::reader::{Gguf, Meta, TensorInfo};
use super::tokenizer;

/// Writes the directory. `dir` exists and is empty; the caller renames it into place afterwards.
pub(crate) fn import(source: &Path, dir: &Path, dtype: StoredDtype) -> Result<ModelConfig, ModelError> {
    let gguf = Gguf::open(source)?;
    let value = config_json(&gguf, dtype)?;
    let config = ModelConfig::from_value(&value, gguf.path())?;
    write_json(&dir.join("config.json"), &value)?;
    tokenizer::write(&gguf, dir)?;
    write_weights(&gguf, &config, &dir.join("model.safetensors"), dtype)?;
    Ok(config)
}

pub(super) fn write_json(path: &Path, value: &Value) -> Result<(), ModelError> {
    let mut text = format!("{value:#}");
    text.push('\n');
    fs::write(path, text).map_err(|e| ModelError::io(path, e))
}

/// The metadata under the architecture's own prefix.
struct Section<'a> {
    gguf: &'a Gguf,
    prefix: &'a str,
}

impl Section<'_> {
    fn get(&self, key: &str) -> Option<&Meta> {
        self.gguf.get(&format!("{}.{key}", self.prefix))
    }

    fn size(&self, key: &str) -> Result<u64, ModelError> {
        self.get(key).and_then(Meta::as_u64).ok_or_else(|| {
            ModelError::malformed(self.gguf.path(), format!("the number {}.{key} is missing", self.prefix))
        })
    }
}

fn config_json(gguf: &Gguf, dtype: StoredDtype) -> Result<Value, ModelError> {
    let architecture = gguf
        .get("general.architecture")
        .and_then(Meta::as_str)
        .ok_or_else(|| ModelError::malformed(gguf.path(), "general.architecture is missing"))?;
    let section = Section {
        gguf,
        prefix: architecture,
    };
    let (hidden, heads) = (section.size("embedding_length")?, section.size("attention.head_count")?);
    let optional = |key: &str| section.get(key).and_then(Meta::as_u64);
    let head_dim = optional("attention.key_length")
        .or_else(|| optional("rope.dimension_count"))
        .or_else(|| hidden.checked_div(heads));
    let embedding = gguf
        .tensors
        .iter()
        .find(|t| t.name == "token_embd.weight")
        .ok_or_else(|| missing(gguf, "token_embd.weight"))?;
    let has = |name: &str| gguf.tensors.iter().any(|t| t.name == name);
    let context = section.size("context_length")?;
    let epsilon = section
        .get("attention.layer_norm_rms_epsilon")
        .and_then(Meta::as_f64)
        .unwrap_or(1e-5);
    let mut config = json!({
        "architectures": [class_name(architecture)],
        "model_type": architecture,
        "hidden_size": hidden,
        "intermediate_size": section.size("feed_forward_length")?,
        "num_hidden_layers": section.size("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": optional("attention.head_count_kv").unwrap_or(heads),
        "head_dim": head_dim,
        "vocab_size": embedding.shape.first(),
        "max_position_embeddings": context,
        // f32 in the file; written as the shortest decimal that reads back as the same f32.
        "rms_norm_eps": shortest(epsilon),
        "rope_theta": section.get("rope.freq_base").and_then(Meta::as_f64).map_or(10_000.0, shortest),
        "tie_word_embeddings": !has("output.weight"),
        "hidden_act": "silu",
        "torch_dtype": dtype.torch_word(),
    });
    if architecture != "qwen2" {
        config["attention_bias"] = has("blk.0.attn_q.bias").into();
    }
    for (ours, theirs) in [("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id")] {
        if let Some(id) = gguf.get(&format!("tokenizer.ggml.{theirs}")).and_then(Meta::as_u64) {
            config[ours] = id.into();
        }
    }
    if let Some(scaling) = rope_scaling(&section, context, head_dim)? {
        config["rope_scaling"] = scaling;
    }
    Ok(config)
}

fn shortest(value: f64) -> f64 {
    format!("{}", value as f32).parse().unwrap_or(value)
}

fn class_name(architecture: &str) -> &'static str {
    match architecture {
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        _ => "LlamaForCausalLM",
    }
}

fn rope_scaling(section: &Section<'_>, context: u64, head_dim: Option<u64>) -> Result<Option<Value>, ModelError> {
    if let Some(tensor) = section.gguf.tensors.iter().find(|t| t.name == "rope_freqs.weight") {
        let factors = section.gguf.read(tensor)?;
        let theta = section.get("rope.freq_base").and_then(Meta::as_f64).unwrap_or(10_000.0);
        return llama3_scaling(&factors, theta, head_dim.unwrap_or(0))
            .map(Some)
            .ok_or_else(|| {
                ModelError::unsupported(
                    "a rope_freqs tensor other than that of Llama 3.1 and later",
                    "import the Hugging Face directory of this model instead",
                )
            });
    }
    let kind = section.get("rope.scaling.type").and_then(Meta::as_str);
    let Some(kind) = kind.filter(|kind| *kind != "none") else {
        return Ok(None);
    };
    let number = |key: &str| section.get(key).and_then(Meta::as_f64);
    let mut scaling = json!({
        "rope_type": kind,
        "factor": number("rope.scaling.factor").unwrap_or(1.0),
        "original_max_position_embeddings":
            section.get("rope.scaling.original_context_length").and_then(Meta::as_u64).unwrap_or(context),
    });
    if let Some(factor) = number("rope.scaling.attn_factor") {
        scaling["attention_factor"] = factor.into();
    }
    Ok(Some(scaling))
}

/// GGUF keeps the resulting factor of each frequency and not the parameters; those of the published models are known.
fn llama3_scaling(factors: &[f32], theta: f64, head_dim: u64) -> Option<Value> {
    let (low, high, original) = (1.0, 4.0, 8192.0);
    let factor = f64::from(factors.iter().copied().fold(1.0, f32::max));
    let expected = |i: usize| {
        let wavelength = std::f64::consts::TAU * theta.powf(2.0 * i as f64 / head_dim as f64);
        if wavelength < original / high {
            1.0
        } else if wavelength > original / low {
            factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    let same = factors.len() as u64 == head_dim / 2
        && factors
            .iter()
            .enumerate()
            .all(|(i, &f)| (f64::from(f) - expected(i)).abs() <= 1e-3 * expected(i));
    same.then(|| {
        json!({ "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                "original_max_position_embeddings": original as u64 })
    })
}

fn missing(gguf: &Gguf, name: &str) -> ModelError {
    ModelError::MissingTensor {
        name: name.to_owned(),
        path: gguf.path().to_owned(),
    }
}

fn write_weights(gguf: &Gguf, config: &ModelConfig, path: &Path, dtype: StoredDtype) -> Result<(), ModelError> {
    let mut plan: Vec<(String, &TensorInfo)> = Vec::new();
    for tensor in &gguf.tensors {
        if let Some(name) = hugging_face_name(&tensor.name) {
            plan.push((name, tensor));
        } else if tensor.name != "rope_freqs.weight" {
            return Err(ModelError::unsupported(
                format!("the tensor {}", tensor.name),
                "this architecture variant is not known; serve the file through llama.cpp as an upstream engine",
            ));
        }
    }
    let announced: Vec<(String, Vec<usize>)> = plan.iter().map(|(n, t)| (n.clone(), t.shape.clone())).collect();
    let mut out = SafetensorsOut::create(path, dtype, &announced)?;
    // Only the llama converter permutes q and k to interleave the halves that rotate together.
    let permuted = config.architecture == super::super::config::Architecture::Llama;
    for (name, tensor) in plan {
        let mut values = gguf.read(tensor)?;
        let heads = match name.rsplit('.').nth(1) {
            Some("q_proj") if permuted => config.n_heads,
            Some("k_proj") if permuted => config.n_kv_heads,
            _ => 0,
        };
        if heads > 0 {
            let rows = tensor.shape.first().copied().unwrap_or(0);
            if rows == 0 || rows % (2 * heads) != 0 {
                return Err(ModelError::malformed(
                    gguf.path(),
                    format!("{} has {rows} rows for {heads} heads", tensor.name),
                ));
            }
            values = unpermute(&values, rows, heads);
        }
        out.write(&values)?;
    }
    out.finish()
}

/// Rows `[head][pair][half]` become `[head][half][pair]`.
fn unpermute(values: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let width = values.len() / rows;
    let half = rows / heads / 2;
    let mut out = Vec::with_capacity(values.len());
    for head in 0..heads {
        for side in 0..2 {
            for pair in 0..half {
                let row = head * 2 * half + 2 * pair + side;
                out.extend_from_slice(&values[row * width..(row + 1) * width]);
            }
        }
    }
    out
}

fn hugging_face_name(name: &str) -> Option<String> {
    let fixed = match name {
        "token_embd.weight" => Some("model.embed_tokens.weight"),
        "output_norm.weight" => Some("model.norm.weight"),
        "output.weight" => Some("lm_head.weight"),
        _ => None,
    };
    if let Some(fixed) = fixed {
        return Some(fixed.to_owned());
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: usize = layer.parse().ok()?;
    let (part, kind) = rest.rsplit_once('.')?;
    let part = match part {
        "attn_norm" => "input_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    };
    matches!(kind, "weight" | "bias").then(|| format!("model.layers.{layer}.{part}.{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpermute_restores_halves() {
        // One head of four rows: pairs (a0,b0),(a1,b1) were interleaved from a0,a1,b0,b1.
        let interleaved = [0.0, 2.0, 1.0, 3.0];
        assert_eq!(unpermute(&interleaved, 4, 1), [0.0, 1.0, 2.0, 3.0]);
    }

    #[test]
    fn names_map_and_unknown_ones_do_not() {
        assert_eq!(
            hugging_face_name("blk.7.attn_output.weight").as_deref(),
            Some("model.layers.7.self_attn.o_proj.weight")
        );
        assert_eq!(hugging_face_name("blk.0.ffn_gate_inp.weight"), None);
        assert_eq!(hugging_face_name("blk.x.attn_q.weight"), None);
    }

    #[test]
    fn llama3_factors_are_recognised_and_others_refused() {
        let (theta, dim) = (500_000.0, 64);
        let factors: Vec<f32> = (0..32)
            .map(|i| {
                let wavelength = std::f64::consts::TAU * f64::powf(theta, 2.0 * f64::from(i) / 64.0);
                let smooth = ((8192.0 / wavelength - 1.0) / 3.0).clamp(0.0, 1.0);
                (1.0 / ((1.0 - smooth) / 32.0 + smooth)) as f32
            })
            .collect();
        let found = llama3_scaling(&factors, theta, dim).unwrap();
        assert_eq!(found["factor"], 32.0);
        assert!(llama3_scaling(&[2.0; 32], theta, dim).is_none());
    }
}
