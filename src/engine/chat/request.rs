//! One chat request after its dialect has been understood, and the words its answer is made of.

use serde_json::{Map, Value};

/// A request in the terms of the model: messages as chat templates expect them, and what to sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ChatRequest {
    /// The model asked for, as sent.
    pub(crate) model: Option<String>,
    /// Messages in the form chat templates read: `role`, `content`, `tool_calls`, `reasoning_content`, …
    pub(crate) messages: Vec<Value>,
    /// Tools in the form chat templates read: `{"type": "function", "function": {…}}`.
    pub(crate) tools: Vec<Value>,
    /// Which tools the model may or must call.
    pub(crate) tool_choice: ToolChoice,
    /// Whether several calls in one turn are allowed.
    pub(crate) parallel_tool_calls: bool,
    /// What to sample with; absent values take the model's defaults.
    pub(crate) sampling: SamplingChoice,
    /// Texts that end the answer and do not belong to it.
    pub(crate) stop: Vec<String>,
    /// Most tokens to generate; absent means up to the context length.
    pub(crate) max_tokens: Option<usize>,
    /// How many answers.
    pub(crate) n: usize,
    /// Whether the client wants log-probabilities, and of how many alternatives.
    pub(crate) logprobs: Option<usize>,
    /// The shape the answer must have.
    pub(crate) format: OutputFormat,
    /// Whether to answer as an event stream.
    pub(crate) stream: bool,
    /// Whether a chat stream ends with a usage chunk.
    pub(crate) include_usage: bool,
    /// Extra variables for the chat template (`enable_thinking`, …).
    pub(crate) template_variables: Map<String, Value>,
    /// Request fields that the Responses dialect repeats in its answer.
    pub(crate) echo: Map<String, Value>,
}

/// Which tools the model may or must call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// None may be called.
    None,
    /// At least one must be called.
    Required,
    /// This one must be called.
    Named(String),
}

/// Sampling as the client asked for it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SamplingChoice {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) seed: Option<u64>,
    /// Added to the logits of these tokens.
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Generate this many tokens before an end-of-sequence token may be sampled.
    pub(crate) min_tokens: Option<usize>,
    /// Never end at an end-of-sequence token.
    pub(crate) ignore_eos: bool,
}

/// The shape the answer must have.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum OutputFormat {
    /// Anything.
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that this schema accepts.
    JsonSchema(Value),
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model ended its turn.
    Stop,
    /// One of the client's stop texts appeared.
    StopText(String),
    /// The token limit.
    Length,
    /// The model ended its turn with tool calls.
    ToolCalls,
}

impl Finish {
    /// The word of the token capture and of OpenAI chat.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Stop | Self::StopText(_) => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// Token counts of one exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TokenUsage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
    /// Prompt tokens whose computation was reused.
    pub(crate) cached: usize,
    /// Generated tokens inside reasoning marks.
    pub(crate) reasoning: usize,
}

/// One sampled token with its log-probability and the most likely alternatives.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TokenLogprob {
    /// The bytes the token stands for.
    pub(crate) bytes: Vec<u8>,
    pub(crate) logprob: f32,
    /// Alternatives, most likely first.
    pub(crate) top: Vec<(Vec<u8>, f32)>,
}
