//! What the engine that sampled a turn knows of its tokens; the only source of training values.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::RuntimeLoadId;

/// The tokens of one generation, exact from the engine that sampled them.
///
/// `token_ids`, `logprobs` and (if present) `top_k` have one entry per generated token. A log-probability is taken over
/// the full vocabulary after temperature and before top-k, top-p, min-p and penalties; temperature 0 counts as 1.
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
}

impl TokenCapture {
    /// What is worth seeing of it without the tokens themselves.
    pub fn summary(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_token_ids.len(),
            "tokens": self.token_ids.len(),
            "finish_reason": self.finish_reason,
            "temperature": self.temperature,
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
