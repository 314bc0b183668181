//! OpenAI chat completions, written.

use std::fmt::Write;

use serde_json::{Value, json};

use super::common::derived_id;
use super::{Completed, CompletedChoice, ReplyMeta};
use crate::engine::chat::output::Delta;
use crate::engine::chat::request::{ChatRequest, Finish, TokenLogprob, TokenUsage};

/// Tool calls one choice may hold before ids would run into the next choice's.
const CALLS_PER_CHOICE: usize = 64;

pub(super) fn body(meta: &ReplyMeta, completed: &Completed) -> Value {
    let choices: Vec<Value> = completed
        .choices
        .iter()
        .enumerate()
        .map(|(index, choice)| choice_body(meta, index, choice))
        .collect();
    json!({
        "id": format!("chatcmpl-{}", meta.id),
        "object": "chat.completion",
        "created": meta.created,
        "model": meta.model,
        "choices": choices,
        "usage": usage(completed.usage),
        "system_fingerprint": meta.fingerprint,
    })
}

fn choice_body(meta: &ReplyMeta, index: usize, choice: &CompletedChoice) -> Value {
    let no_text = choice.text.is_empty() && !choice.tool_calls.is_empty();
    let mut message = json!({
        "role": "assistant",
        "content": if no_text { Value::Null } else { Value::from(choice.text.as_str()) },
        "refusal": null,
    });
    if !choice.reasoning.is_empty() {
        message["reasoning_content"] = Value::from(choice.reasoning.as_str());
    }
    if !choice.tool_calls.is_empty() {
        let calls = choice.tool_calls.iter().enumerate().map(|(number, call)| {
            json!({
                "id": call_id(meta, index, number),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })
        });
        message["tool_calls"] = Value::Array(calls.collect());
    }
    json!({
        "index": index,
        "message": message,
        "logprobs": choice.logprobs.as_deref().map(logprobs),
        "finish_reason": choice.finish.as_str(),
    })
}

fn call_id(meta: &ReplyMeta, choice: usize, number: usize) -> String {
    derived_id("call_", &meta.id, choice * CALLS_PER_CHOICE + number)
}

pub(super) fn usage(usage: TokenUsage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}

fn logprobs(tokens: &[TokenLogprob]) -> Value {
    let content: Vec<Value> = tokens.iter().map(token_logprob).collect();
    json!({"content": content, "refusal": null})
}

pub(super) fn token_logprob(token: &TokenLogprob) -> Value {
    let one = |bytes: &[u8], logprob: f32| {
        json!({
            "token": String::from_utf8_lossy(bytes),
            "logprob": finite(logprob),
            "bytes": bytes,
        })
    };
    let mut value = one(&token.bytes, token.logprob);
    let top: Vec<Value> = token.top.iter().map(|(bytes, logprob)| one(bytes, *logprob)).collect();
    value["top_logprobs"] = Value::Array(top);
    value
}

/// JSON has no infinity; OpenAI's own stand-in for "as good as impossible" is -9999.
fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

/// The event stream of one answer.
pub(crate) struct Stream {
    meta: ReplyMeta,
    /// Everything of a chunk before its choices.
    head: String,
    include_usage: bool,
    choices: Vec<ChoiceState>,
}

#[derive(Default)]
struct ChoiceState {
    calls: usize,
    /// Log-probabilities of tokens that have not been shown yet; `None` where the client asked for none.
    held: Option<Vec<TokenLogprob>>,
}

impl Stream {
    pub(super) fn new(meta: ReplyMeta, request: &ChatRequest) -> Self {
        let head = format!(
            "data: {{\"id\":\"chatcmpl-{}\",\"object\":\"chat.completion.chunk\",\"created\":{},\"model\":{},\
             \"system_fingerprint\":{},\"choices\":[",
            meta.id,
            meta.created,
            Value::from(meta.model.as_str()),
            Value::from(meta.fingerprint.as_str()),
        );
        let choices = (0..request.n.max(1))
            .map(|_| ChoiceState {
                calls: 0,
                held: request.logprobs.map(|_| Vec::new()),
            })
            .collect();
        Self {
            meta,
            head,
            include_usage: request.include_usage,
            choices,
        }
    }

    pub(super) fn start(&mut self, out: &mut String) {
        for choice in 0..self.choices.len() {
            self.chunk(choice, &json!({"role": "assistant", "content": ""}), None, out);
        }
    }

    pub(super) fn push(&mut self, choice: usize, deltas: Vec<Delta>, logprobs: Vec<TokenLogprob>, out: &mut String) {
        if let Some(held) = self.choices.get_mut(choice).and_then(|state| state.held.as_mut()) {
            held.extend(logprobs);
        }
        for delta in deltas {
            let delta = match delta {
                Delta::Text(text) => json!({"content": text}),
                Delta::Reasoning(text) => json!({"reasoning_content": text}),
                Delta::CallStart { name } => {
                    let number = self.open_call(choice);
                    json!({"tool_calls": [{
                        "index": number,
                        "id": call_id(&self.meta, choice, number),
                        "type": "function",
                        "function": {"name": name, "arguments": ""},
                    }]})
                }
                Delta::CallArguments(text) => {
                    let number = self
                        .choices
                        .get(choice)
                        .map_or(0, |state| state.calls.saturating_sub(1));
                    json!({"tool_calls": [{"index": number, "function": {"arguments": text}}]})
                }
            };
            self.chunk(choice, &delta, None, out);
        }
    }

    fn open_call(&mut self, choice: usize) -> usize {
        self.choices.get_mut(choice).map_or(0, |state| {
            state.calls += 1;
            state.calls - 1
        })
    }

    pub(super) fn finish(&mut self, choice: usize, finish: &Finish, out: &mut String) {
        self.chunk(choice, &json!({}), Some(finish.as_str()), out);
    }

    pub(super) fn end(&mut self, total: TokenUsage, out: &mut String) {
        if self.include_usage {
            out.push_str(&self.head);
            // Writing to a string cannot fail.
            let _infallible = write!(out, "],\"usage\":{}}}\n\n", usage(total));
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn chunk(&mut self, choice: usize, delta: &Value, finish: Option<&str>, out: &mut String) {
        let held = self
            .choices
            .get_mut(choice)
            .and_then(|state| state.held.as_mut())
            .filter(|held| !held.is_empty())
            .map(std::mem::take);
        let logprobs = held.map_or(Value::Null, |tokens| logprobs(&tokens));
        out.push_str(&self.head);
        let _infallible = write!(
            out,
            "{{\"index\":{choice},\"delta\":{delta},\"logprobs\":{logprobs},\"finish_reason\":{}}}]",
            Value::from(finish),
        );
        out.push_str(if self.include_usage {
            ",\"usage\":null}\n\n"
        } else {
            "}\n\n"
        });
    }
}
