//! What the engine that sampled a turn knows of its tokens; the only source of training values.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::RuntimeLoadId;

/// The tokens of one generation, exact from the engine that sampled them.
///
/// `token_ids`, `logprobs` and (if present) `top_k` have one entry per generated token. A log-probability is taken over
/// the full vocabulary after temperature and before top-k, top-p, min-p and penalties; temperature 0 counts as 1. It is the
/// log-probability the token was sampled with only if [`Sampler::is_plain`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenCapture {
    /// Token ids of the prompt as the model saw it.
    pub prompt_token_ids: Vec<u32>,
    /// Token ids generated, the end-of-sequence token included when sampled.
    pub token_ids: Vec<u32>,
    /// Log-probability of each generated token, natural logarithm.
    pub logprobs: Vec<f32>,
    /// Which load produced which tokens: contiguous half-open ranges from 0 that cover `token_ids`.
    pub spans: Vec<LoadSpan>,
    /// `stop`, `length`, `tool_calls`, …: why generation ended; `length` means truncated.
    pub finish_reason: String,
    /// The sampling temperature that `logprobs` refers to.
    pub temperature: f32,
    /// The most likely tokens at each position, when asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<Vec<Vec<TopKToken>>>,
    /// How the tokens were chosen. Captures of the first version did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampler: Option<Sampler>,
}

/// What a sampler did to the distribution before it drew from it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampler {
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// The most likely tokens that together reach this probability were kept; 1 keeps all.
    pub top_p: f32,
    /// So many of the most likely tokens were kept; 0 keeps all.
    pub top_k: u32,
    /// Tokens at least this share as likely as the most likely one were kept; 0 keeps all.
    pub min_p: f32,
    /// 1 is off.
    pub repetition_penalty: f32,
    /// 0 is off.
    pub presence_penalty: f32,
    /// 0 is off.
    pub frequency_penalty: f32,
    /// Tokens whose logits were moved by the request.
    pub biased_tokens: u32,
    /// A grammar or schema decided which tokens were possible.
    pub constrained: bool,
}

impl Sampler {
    /// Whether the tokens were drawn from the model's own distribution at this temperature, so that the recorded
    /// log-probabilities are those of the policy that sampled.
    pub fn is_plain(&self) -> bool {
        self.temperature > 0.0
            && self.top_p >= 1.0
            && self.top_k == 0
            && self.min_p <= 0.0
            && self.repetition_penalty == 1.0
            && self.presence_penalty == 0.0
            && self.frequency_penalty == 0.0
            && self.biased_tokens == 0
            && !self.constrained
    }
}

impl TokenCapture {
    /// What is worth seeing of it without the tokens themselves.
    pub fn summary(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_token_ids.len(),
            "tokens": self.token_ids.len(),
            "finish_reason": self.finish_reason,
            "temperature": self.temperature,
            "sampler": self.sampler,
            "spans": self.spans,
        })
    }
}

/// Tokens `start..end` came from one load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadSpan {
    /// First token.
    pub start: usize,
    /// One past the last token.
    pub end: usize,
    /// The load that produced them.
    pub runtime_load_id: RuntimeLoadId,
}

/// One of the most likely tokens at a position.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TopKToken {
    /// Token id.
    pub id: u32,
    /// Its log-probability.
    pub logprob: f32,
}
