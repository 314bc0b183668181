//! `config.json` of a Hugging Face model directory, checked and made explicit.

use std::path::Path;

use serde_json::Value;

use super::error::ModelError;
use super::file;
use super::rope::Rope;

/// The decoder families this engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, SmolLM and SmolLM2.
    Llama,
    /// Qwen2 and Qwen2.5: bias on q, k and v.
    Qwen2,
    /// Qwen3: RMS norm on each head of q and k.
    Qwen3,
}

impl Architecture {
    /// The `model_type` word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

/// The shape of a decoder and the variants it uses.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the gated MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; a divisor of `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Positions the model was made for.
    pub max_positions: usize,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f64,
    /// The output projection is the embedding.
    pub tied_embeddings: bool,
    /// q, k and v have a bias.
    pub qkv_bias: bool,
    /// The attention output has a bias.
    pub output_bias: bool,
    /// The MLP's projections have biases.
    pub mlp_bias: bool,
    /// q and k are normalised per head before rotation.
    pub qk_norm: bool,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Tokens that end a generation, by config.json; generation_config.json may name more.
    pub eos_token_ids: Vec<u32>,
}

impl ModelConfig {
    /// Reads and checks `<dir>/config.json`.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join("config.json");
        let value = file::read_json(&path)?;
        Self::from_value(&value, &path)
    }

    /// Checks a parsed config; `path` names it in errors.
    pub fn from_value(value: &Value, path: &Path) -> Result<Self, ModelError> {
        let keys = Keys { value, path };
        let architecture = architecture(&keys)?;
        refuse_variants(&keys)?;
        let hidden_size = keys.size("hidden_size", None, 1 << 17)?;
        let n_heads = keys.size("num_attention_heads", None, 1 << 12)?;
        let n_kv_heads = keys.size("num_key_value_heads", Some(n_heads), 1 << 12)?;
        let head_dim = keys.size("head_dim", Some((hidden_size / n_heads).max(1)), 1 << 12)?;
        let max_positions = keys.size("max_position_embeddings", Some(2048), 1 << 26)?;
        if n_heads % n_kv_heads != 0 {
            return Err(keys.wrong(format!(
                "num_key_value_heads {n_kv_heads} does not divide num_attention_heads {n_heads}"
            )));
        }
        if head_dim % 2 != 0 {
            return Err(keys.wrong(format!("head_dim {head_dim} is odd; rotation needs pairs")));
        }
        let attention_bias = keys.flag("attention_bias", false)?;
        let (qkv_bias, output_bias) = match architecture {
            Architecture::Qwen2 => (true, false),
            Architecture::Llama | Architecture::Qwen3 => (attention_bias, attention_bias),
        };
        let rms_norm_eps = keys.number("rms_norm_eps", Some(1e-6))?;
        if !(rms_norm_eps > 0.0 && rms_norm_eps < 1.0) {
            return Err(keys.wrong(format!("rms_norm_eps {rms_norm_eps} is outside 0..1")));
        }
        Ok(Self {
            architecture,
            hidden_size,
            intermediate_size: keys.size("intermediate_size", None, 1 << 19)?,
            n_layers: keys.size("num_hidden_layers", None, 1 << 10)?,
            n_heads,
            n_kv_heads,
            head_dim,
            vocab_size: keys.size("vocab_size", None, 1 << 22)?,
            max_positions,
            rms_norm_eps,
            tied_embeddings: keys.flag("tie_word_embeddings", false)?,
            qkv_bias,
            output_bias,
            mlp_bias: architecture == Architecture::Llama && keys.flag("mlp_bias", false)?,
            qk_norm: architecture == Architecture::Qwen3,
            rope: Rope::from_config(value, path, head_dim, max_positions)?,
            eos_token_ids: token_ids(value.get("eos_token_id")),
        })
    }
}

impl ModelConfig {
    /// Name and shape of every tensor of a checkpoint, in the order of computation.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let (q, kv) = (self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, hidden])];
        for i in 0..self.n_layers {
            let mut add = |part: &str, shape: Vec<usize>| all.push((format!("model.layers.{i}.{part}"), shape));
            add("input_layernorm.weight", vec![hidden]);
            for (part, n_out, n_in, bias) in [
                ("self_attn.q_proj", q, hidden, self.qkv_bias),
                ("self_attn.k_proj", kv, hidden, self.qkv_bias),
                ("self_attn.v_proj", kv, hidden, self.qkv_bias),
                ("self_attn.o_proj", hidden, q, self.output_bias),
                ("mlp.gate_proj", inner, hidden, self.mlp_bias),
                ("mlp.up_proj", inner, hidden, self.mlp_bias),
                ("mlp.down_proj", hidden, inner, self.mlp_bias),
            ] {
                add(&format!("{part}.weight"), vec![n_out, n_in]);
                if bias {
                    add(&format!("{part}.bias"), vec![n_out]);
                }
            }
            if self.qk_norm {
                add("self_attn.q_norm.weight", vec![self.head_dim]);
                add("self_attn.k_norm.weight", vec![self.head_dim]);
            }
            add("post_attention_layernorm.weight", vec![hidden]);
        }
        all.push(("model.norm.weight".to_owned(), vec![hidden]));
        if !self.tied_embeddings {
            all.push(("lm_head.weight".to_owned(), vec![self.vocab_size, hidden]));
        }
        all
    }

    /// Number of weights, tied ones counted once.
    pub fn n_parameters(&self) -> u64 {
        let count = |(_, shape): &(String, Vec<usize>)| shape.iter().map(|&n| n as u64).product::<u64>();
        self.tensors().iter().map(count).sum()
    }
}

/// A token id or a list of them, as config files write `eos_token_id`.
pub(crate) fn token_ids(value: Option<&Value>) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(one).collect(),
        Some(other) => one(other).into_iter().collect(),
        None => Vec::new(),
    }
}

fn architecture(keys: &Keys<'_>) -> Result<Architecture, ModelError> {
    let Some(model_type) = keys.value.get("model_type").and_then(Value::as_str) else {
        return Err(keys.wrong("model_type is missing"));
    };
    match model_type {
        "llama" => Ok(Architecture::Llama),
        "qwen2" => Ok(Architecture::Qwen2),
        "qwen3" => Ok(Architecture::Qwen3),
        other => Err(ModelError::unsupported(
            format!("the architecture {other:?}"),
            "the embedded engine runs llama (with SmolLM2), qwen2 and qwen3; serve others through an upstream engine",
        )),
    }
}

/// Variants that would give silently wrong numbers.
fn refuse_variants(keys: &Keys<'_>) -> Result<(), ModelError> {
    let refuse = |what: &str| {
        Err(ModelError::unsupported(
            what.to_owned(),
            "serve this model through an upstream engine",
        ))
    };
    if keys.flag("use_sliding_window", false)? {
        return refuse("sliding-window attention (use_sliding_window)");
    }
    let layer_types = keys.value.get("layer_types").and_then(Value::as_array);
    if layer_types.is_some_and(|types| types.iter().any(|t| t.as_str() != Some("full_attention"))) {
        return refuse("attention other than full_attention (layer_types)");
    }
    if keys.value.get("quantization_config").is_some_and(|v| !v.is_null()) {
        return refuse("a quantised checkpoint (quantization_config)");
    }
    match keys.value.get("hidden_act").and_then(Value::as_str) {
        None | Some("silu" | "swish") => Ok(()),
        Some(other) => refuse(&format!("the activation {other:?}")),
    }
}

/// Typed access to the keys of a config, with errors that name file and key.
pub(super) struct Keys<'a> {
    pub(super) value: &'a Value,
    pub(super) path: &'a Path,
}

impl Keys<'_> {
    pub(super) fn wrong(&self, reason: impl Into<String>) -> ModelError {
        ModelError::malformed(self.path, reason)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.value.get(key).filter(|v| !v.is_null())
    }

    fn size(&self, key: &str, default: Option<usize>, most: usize) -> Result<usize, ModelError> {
        match (self.get(key), default) {
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.wrong(format!("{key} is missing"))),
            (Some(v), _) => v
                .as_u64()
                .and_then(|n| usize::try_from(n).ok())
                .filter(|n| (1..=most).contains(n))
                .ok_or_else(|| self.wrong(format!("{key} must be a whole number from 1 to {most}, not {v}"))),
        }
    }

    pub(super) fn number(&self, key: &str, default: Option<f64>) -> Result<f64, ModelError> {
        match (self.get(key), default) {
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.wrong(format!("{key} is missing"))),
            (Some(v), _) => v
                .as_f64()
                .filter(|n| n.is_finite())
                .ok_or_else(|| self.wrong(format!("{key} must be a number, not {v}"))),
        }
    }

    pub(super) fn optional_number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.get(key).map(|_| self.number(key, None)).transpose()
    }

    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v
                .as_bool()
                .ok_or_else(|| self.wrong(format!("{key} must be true or false, not {v}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn smollm2() -> Value {
        json!({
            "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
            "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5, "rope_theta": 100000, "tie_word_embeddings": true, "eos_token_id": [2, 0]
        })
    }

    fn parse(value: &Value) -> Result<ModelConfig, ModelError> {
        ModelConfig::from_value(value, Path::new("config.json"))
    }

    #[test]
    fn smollm2_has_its_published_size() {
        let config = parse(&smollm2()).unwrap();
        assert_eq!(config.head_dim, 64);
        assert_eq!(config.n_parameters(), 134_515_008);
        assert_eq!(config.eos_token_ids, [2, 0]);
    }

    #[test]
    fn qwen2_has_qkv_bias_only_and_qwen3_has_head_norms() {
        let mut value = smollm2();
        value["model_type"] = "qwen2".into();
        let qwen2 = parse(&value).unwrap();
        assert!(qwen2.qkv_bias && !qwen2.output_bias && !qwen2.qk_norm);
        value["model_type"] = "qwen3".into();
        let qwen3 = parse(&value).unwrap();
        assert!(!qwen3.qkv_bias && qwen3.qk_norm);
    }

    #[test]
    fn variants_that_would_be_wrong_are_refused() {
        for (key, bad) in [
            ("use_sliding_window", json!(true)),
            ("layer_types", json!(["full_attention", "sliding_attention"])),
            ("quantization_config", json!({"bits": 4})),
            ("hidden_act", json!("gelu")),
            ("model_type", json!("mamba")),
        ] {
            let mut value = smollm2();
            value[key] = bad;
            let error = parse(&value).unwrap_err();
            assert!(matches!(error, ModelError::Unsupported { .. }), "{key}: {error}");
        }
    }

    #[test]
    fn impossible_sizes_name_the_key() {
        for (key, bad) in [
            ("hidden_size", json!(-4)),
            ("vocab_size", json!(1u64 << 40)),
            ("num_key_value_heads", json!(2)),
            ("head_dim", json!(63)),
            ("rms_norm_eps", json!("small")),
        ] {
            let mut value = smollm2();
            value[key] = bad;
            let error = parse(&value).unwrap_err().to_string();
            assert!(error.contains(key), "{key}: {error}");
        }
    }
}
