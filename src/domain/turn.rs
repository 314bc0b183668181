//! One assistant turn, assembled the same way from a whole body or a stream, in any dialect.

use serde::{Deserialize, Serialize};

/// What the model said in one exchange.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Turn {
    /// The visible text of the first choice.
    pub text: String,
    /// Reasoning or thinking text, where the provider shows it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// Tool calls in the order the model opened them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The provider's own word for why it stopped.
    pub stop_reason: Option<String>,
    /// Token counts, if the provider gave any.
    pub usage: Option<Usage>,
    /// The model that answered, as the provider names it.
    pub model: Option<String>,
    /// The provider's id of the response.
    pub response_id: Option<String>,
    /// What was odd in the stream (a repeated argument chunk, say); the turn is still usable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// One tool call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The provider's id of the call; empty if it gave none.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments exactly as text; JSON for every known provider.
    pub arguments: String,
}

/// Token counts of one exchange. A count that was absent or null stays `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub input_tokens: Option<u64>,
    /// Tokens generated.
    pub output_tokens: Option<u64>,
    /// Prompt tokens served from the provider's cache.
    pub cached_tokens: Option<u64>,
    /// Generated tokens that were reasoning.
    pub reasoning_tokens: Option<u64>,
}
