//! How much memory a model will take, known before anything is loaded.

use super::config::ModelConfig;
use super::error::ModelError;

/// What is to be loaded and served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Bytes of one weight and one cached value.
    pub bytes_per_value: u64,
    /// Slots of the key and value cache.
    pub slots: u64,
    /// Positions of each slot.
    pub max_context: u64,
    /// Most tokens in one forward call.
    pub max_tokens: u64,
}

/// The estimate, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Weights, tied ones once.
    pub weights: u64,
    /// Keys and values when every slot is full.
    pub cache: u64,
    /// The largest activations of one forward call.
    pub activations: u64,
}

impl MemoryEstimate {
    /// By the shape of the model.
    pub fn of(config: &ModelConfig, plan: &MemoryPlan) -> Self {
        let per_position = 2 * (config.n_layers * config.n_kv_heads * config.head_dim) as u64 * plan.bytes_per_value;
        // Of the vectors alive at once in a layer: the residual twice, q k v, gate and up, their product; scores of one
        // prompt chunk against a full slot; logits in f32 for every slot.
        let hidden = config.hidden_size as u64;
        let attention = ((config.n_heads + 2 * config.n_kv_heads) * config.head_dim) as u64;
        let per_token = (2 * hidden + attention + 3 * config.intermediate_size as u64) * plan.bytes_per_value;
        let scores = config.n_heads as u64 * plan.max_tokens * plan.max_context.min(4096) * plan.bytes_per_value;
        let logits = plan.slots * config.vocab_size as u64 * 4;
        // A processor without arithmetic on halves computes prompts with one projection at a time in f32.
        let inner = 2 * config.intermediate_size as u64;
        let widened = match plan.bytes_per_value {
            2 => {
                4 * hidden
                    * inner
                        .max(attention)
                        .max(if plan.slots > 32 { config.vocab_size as u64 } else { 0 })
            }
            _ => 0,
        };
        Self {
            weights: config.n_parameters() * plan.bytes_per_value,
            cache: per_position * plan.slots * plan.max_context,
            activations: plan.max_tokens * per_token + scores + logits + widened,
        }
    }

    /// Everything.
    pub fn total(&self) -> u64 {
        self.weights + self.cache + self.activations
    }

    /// Refuses a plan that does not fit.
    pub fn check(&self, what: &str, budget: u64) -> Result<(), ModelError> {
        const MIB: u64 = 1 << 20;
        if self.total() > budget {
            return Err(ModelError::Budget {
                what: what.to_owned(),
                needed: self.total().div_ceil(MIB),
                budget: budget / MIB,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn smollm2_in_f32_takes_about_what_it_was_seen_to_take() {
        let config = ModelConfig::from_value(
            &serde_json::json!({
                "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
                "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": true
            }),
            Path::new("config.json"),
        )
        .unwrap();
        let plan = MemoryPlan {
            bytes_per_value: 4,
            slots: 8,
            max_context: 2048,
            max_tokens: 512,
        };
        let estimate = MemoryEstimate::of(&config, &plan);
        assert_eq!(estimate.weights, 538_060_032);
        assert_eq!(estimate.cache, 2 * 30 * 3 * 64 * 4 * 8 * 2048);
        assert!(estimate.check("the model", 1 << 30).is_err());
        assert!(estimate.check("the model", 2 << 30).is_ok());
        let halves = MemoryPlan {
            bytes_per_value: 2,
            ..plan
        };
        let logits = 8 * 49_152 * 4;
        assert_eq!(
            MemoryEstimate::of(&config, &halves).activations,
            (estimate.activations - logits) / 2 + logits + 4 * 576 * 3072
        );
    }
}
