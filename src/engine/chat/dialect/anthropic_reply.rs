//! Anthropic messages, written.

use serde_json::{Value, json};

use super::common::derived_id;
use super::{Completed, CompletedChoice, ReplyMeta, event};
use crate::engine::chat::output::Delta;
use crate::engine::chat::request::{Finish, TokenUsage};

/// Clients send a thinking block back only with a signature. There is nothing to sign here: the text is the model's.
const SIGNATURE: &str = "unsigned";

pub(super) fn body(meta: &ReplyMeta, completed: &Completed) -> Value {
    let empty = CompletedChoice::new(false);
    let choice = completed.choices.first().unwrap_or(&empty);
    let mut content = Vec::new();
    if !choice.reasoning.is_empty() {
        content.push(json!({"type": "thinking", "thinking": choice.reasoning, "signature": SIGNATURE}));
    }
    if !choice.text.is_empty() {
        content.push(json!({"type": "text", "text": choice.text}));
    }
    for (number, call) in choice.tool_calls.iter().enumerate() {
        content.push(json!({
            "type": "tool_use",
            "id": derived_id("toolu_", &meta.id, number),
            "name": call.name,
            "input": input(&call.arguments),
        }));
    }
    let (reason, text) = stop_reason(&choice.finish);
    json!({
        "id": format!("msg_{}", meta.id),
        "type": "message",
        "role": "assistant",
        "model": meta.model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": text,
        "usage": usage(completed.usage),
    })
}

/// The dialect carries arguments as an object. What the model wrote instead of one is kept under a name of its own,
/// so that the client sees it and nothing is invented.
fn input(arguments: &str) -> Value {
    match serde_json::from_str(arguments) {
        Ok(value @ Value::Object(_)) => value,
        _ if arguments.trim().is_empty() => json!({}),
        _ => json!({"invalid_arguments": arguments}),
    }
}

fn stop_reason(finish: &Finish) -> (&'static str, Option<&str>) {
    match finish {
        Finish::Stop => ("end_turn", None),
        Finish::StopText(text) => ("stop_sequence", Some(text)),
        Finish::Length => ("max_tokens", None),
        Finish::ToolCalls => ("tool_use", None),
    }
}

/// In this dialect the input count leaves out what was read from the cache.
fn usage(usage: TokenUsage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Text,
    Thinking,
    ToolUse,
}

/// The event stream of one answer.
pub(crate) struct Stream {
    meta: ReplyMeta,
    open: Option<Block>,
    /// Index of the next block.
    next: usize,
    calls: usize,
    finish: Finish,
}

impl Stream {
    pub(super) fn new(meta: ReplyMeta) -> Self {
        Self {
            meta,
            open: None,
            next: 0,
            calls: 0,
            finish: Finish::Stop,
        }
    }

    pub(super) fn start(&mut self, prompt: TokenUsage, out: &mut String) {
        let message = json!({
            "id": format!("msg_{}", self.meta.id),
            "type": "message",
            "role": "assistant",
            "model": self.meta.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage(prompt),
        });
        event(
            out,
            "message_start",
            &json!({"type": "message_start", "message": message}),
        );
    }

    pub(super) fn push(&mut self, deltas: Vec<Delta>, out: &mut String) {
        for delta in deltas {
            match delta {
                Delta::Text(text) => {
                    self.enter(Block::Text, || json!({"type": "text", "text": ""}), out);
                    self.delta(&json!({"type": "text_delta", "text": text}), out);
                }
                Delta::Reasoning(text) => {
                    let block = || json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.enter(Block::Thinking, block, out);
                    self.delta(&json!({"type": "thinking_delta", "thinking": text}), out);
                }
                Delta::CallStart { name } => {
                    self.close(out);
                    let id = derived_id("toolu_", &self.meta.id, self.calls);
                    self.calls += 1;
                    let block = || json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                    self.enter(Block::ToolUse, block, out);
                }
                Delta::CallArguments(text) => {
                    self.delta(&json!({"type": "input_json_delta", "partial_json": text}), out);
                }
            }
        }
    }

    pub(super) fn finish(&mut self, finish: &Finish, out: &mut String) {
        self.close(out);
        self.finish = finish.clone();
    }

    pub(super) fn end(&mut self, total: TokenUsage, out: &mut String) {
        let (reason, text) = stop_reason(&self.finish);
        let data = json!({
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": text},
            "usage": usage(total),
        });
        event(out, "message_delta", &data);
        event(out, "message_stop", &json!({"type": "message_stop"}));
    }

    /// Makes sure that a block of this kind is open.
    fn enter(&mut self, kind: Block, block: impl FnOnce() -> Value, out: &mut String) {
        if self.open == Some(kind) {
            return;
        }
        self.close(out);
        let data = json!({"type": "content_block_start", "index": self.next, "content_block": block()});
        event(out, "content_block_start", &data);
        self.open = Some(kind);
        self.next += 1;
    }

    fn delta(&self, delta: &Value, out: &mut String) {
        let index = self.next.saturating_sub(1);
        let data = json!({"type": "content_block_delta", "index": index, "delta": delta});
        event(out, "content_block_delta", &data);
    }

    fn close(&mut self, out: &mut String) {
        if self.open == Some(Block::Thinking) {
            self.delta(&json!({"type": "signature_delta", "signature": SIGNATURE}), out);
        }
        if self.open.take().is_some() {
            let index = self.next.saturating_sub(1);
            event(
                out,
                "content_block_stop",
                &json!({"type": "content_block_stop", "index": index}),
            );
        }
    }
}
