//! The three wire dialects: requests in, answers out, whole or as event streams. The receipt is not theirs to add.

mod anthropic;
mod anthropic_reply;
mod chat_reply;
mod common;
mod openai_chat;
mod responses;
mod responses_reply;

use serde_json::{Value, json};

use super::fields::RequestFault;
use super::output::Delta;
use super::request::{ChatRequest, Finish, TokenLogprob, TokenUsage};
use crate::domain::{Dialect, Route, ToolCall};

/// Understands a request of the route's dialect.
pub(crate) fn parse(route: Route, body: &[u8]) -> Result<ChatRequest, RequestFault> {
    match route {
        Route::ChatCompletions => openai_chat::parse(body),
        Route::Responses => responses::parse(body),
        Route::Messages => anthropic::parse(body, anthropic::Purpose::Answer),
        Route::CountTokens => anthropic::parse(body, anthropic::Purpose::Count),
        Route::Completions => Err(RequestFault::Unsupported {
            param: "prompt".to_owned(),
            what: "a prompt without messages".to_owned(),
            next: "send messages to /v1/chat/completions",
        }),
    }
}

/// What identifies an answer.
#[derive(Debug, Clone)]
pub(crate) struct ReplyMeta {
    /// Hex digits; each dialect puts its own prefix before them.
    pub(crate) id: String,
    /// Seconds since the Unix epoch.
    pub(crate) created: i64,
    /// The model that answers.
    pub(crate) model: String,
    /// Which load of which weights answers.
    pub(crate) fingerprint: String,
}

/// A whole answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Completed {
    pub(crate) choices: Vec<CompletedChoice>,
    pub(crate) usage: TokenUsage,
}

/// One of its choices.
#[derive(Debug, Clone)]
pub(crate) struct CompletedChoice {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) tool_calls: Vec<ToolCall>,
    pub(crate) finish: Finish,
    /// Present where the client asked for them.
    pub(crate) logprobs: Option<Vec<TokenLogprob>>,
}

impl CompletedChoice {
    pub(crate) fn new(logprobs: bool) -> Self {
        Self {
            text: String::new(),
            reasoning: String::new(),
            tool_calls: Vec::new(),
            finish: Finish::Stop,
            logprobs: logprobs.then(Vec::new),
        }
    }

    /// Adds a piece.
    pub(crate) fn push(&mut self, delta: Delta) {
        match delta {
            Delta::Text(text) => self.text.push_str(&text),
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::CallStart { name } => self.tool_calls.push(ToolCall {
                name,
                ..ToolCall::default()
            }),
            Delta::CallArguments(text) => {
                if let Some(call) = self.tool_calls.last_mut() {
                    call.arguments.push_str(&text);
                }
            }
        }
    }
}

/// The body of a whole answer.
pub(crate) fn body(route: Route, meta: &ReplyMeta, request: &ChatRequest, completed: &Completed) -> Value {
    match route {
        Route::ChatCompletions | Route::Completions => chat_reply::body(meta, completed),
        Route::Responses => responses_reply::body(meta, request, completed),
        Route::Messages | Route::CountTokens => anthropic_reply::body(meta, completed),
    }
}

/// The answer to a token count.
pub(crate) fn usage_of_count(tokens: usize) -> Value {
    json!({"input_tokens": tokens})
}

/// Writes the event stream of one answer.
pub(crate) enum ReplyStream {
    Chat(chat_reply::Stream),
    Responses(Box<responses_reply::Stream>),
    Messages(anthropic_reply::Stream),
}

impl ReplyStream {
    pub(crate) fn new(route: Route, meta: ReplyMeta, request: &ChatRequest) -> Self {
        match route {
            Route::ChatCompletions | Route::Completions => Self::Chat(chat_reply::Stream::new(meta, request)),
            Route::Responses => Self::Responses(Box::new(responses_reply::Stream::new(meta, request))),
            Route::Messages | Route::CountTokens => Self::Messages(anthropic_reply::Stream::new(meta)),
        }
    }

    /// The frames before any token. `usage` holds the prompt's counts.
    pub(crate) fn start(&mut self, usage: TokenUsage, out: &mut String) {
        match self {
            Self::Chat(stream) => stream.start(out),
            Self::Responses(stream) => stream.start(out),
            Self::Messages(stream) => stream.start(usage, out),
        }
    }

    /// The frames of what one or more tokens added to a choice.
    pub(crate) fn push(&mut self, choice: usize, deltas: Vec<Delta>, logprobs: Vec<TokenLogprob>, out: &mut String) {
        match self {
            Self::Chat(stream) => stream.push(choice, deltas, logprobs, out),
            Self::Responses(stream) => stream.push(deltas, logprobs, out),
            Self::Messages(stream) => stream.push(deltas, out),
        }
    }

    /// The frames that end a choice.
    pub(crate) fn finish(&mut self, choice: usize, finish: &Finish, out: &mut String) {
        match self {
            Self::Chat(stream) => stream.finish(choice, finish, out),
            Self::Responses(stream) => stream.finish(finish, out),
            Self::Messages(stream) => stream.finish(finish, out),
        }
    }

    /// The frames that end the answer.
    pub(crate) fn end(&mut self, usage: TokenUsage, out: &mut String) {
        match self {
            Self::Chat(stream) => stream.end(usage, out),
            Self::Responses(stream) => stream.end(usage, out),
            Self::Messages(stream) => stream.end(usage, out),
        }
    }
}

/// The body of a refusal in the dialect's shape; its status is 400 where the client could do better, else 502.
pub(crate) fn error_body(dialect: Dialect, fault: &RequestFault) -> Value {
    let kind = match (fault.is_the_clients(), dialect) {
        (true, _) => "invalid_request_error",
        (false, Dialect::Anthropic) => "api_error",
        (false, _) => "server_error",
    };
    match dialect {
        Dialect::Anthropic => {
            // Clients of this dialect know an overlong prompt by these words, and then shorten the conversation.
            let message = match fault {
                RequestFault::ContextLength { prompt, limit, .. } => {
                    format!("prompt is too long: {prompt} tokens > {limit} maximum")
                }
                other => other.to_string(),
            };
            json!({"type": "error", "error": {"type": kind, "message": message}})
        }
        Dialect::OpenaiChat | Dialect::OpenaiResponses => json!({
            "error": {
                "message": fault.to_string(),
                "type": kind,
                "param": fault.param(),
                "code": fault.code(),
            },
        }),
    }
}

/// One server-sent event with a name.
fn event(out: &mut String, name: &str, data: &Value) {
    out.push_str("event: ");
    out.push_str(name);
    out.push_str("\ndata: ");
    out.push_str(&data.to_string());
    out.push_str("\n\n");
}

#[cfg(test)]
mod tests;
