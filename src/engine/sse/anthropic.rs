//! Anthropic messages.

use serde_json::Value;

use super::failure::failure_of;
use super::json::{count, list, set_once, text};
use super::tools::{Piece, ToolCalls, arguments_text};
use crate::domain::{Turn, Usage};

/// The turn of one message under way.
#[derive(Debug, Default)]
pub(super) struct MessageTurn {
    turn: Turn,
    calls: ToolCalls,
    /// Inputs given whole when their block opened, used if no delta follows.
    opened_inputs: Vec<(u64, String)>,
    begun: bool,
}

/// What an event means for the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    More,
    Last,
}

impl MessageTurn {
    /// Takes one event; `kind` is its JSON `type`, or the SSE event name where the JSON has none.
    pub(super) fn take_event(&mut self, kind: &str, event: &Value) -> Result<Step, String> {
        if let Some(failure) = failure_of(event, true) {
            return Err(failure);
        }
        self.begun |= matches!(
            kind,
            "message_start" | "content_block_start" | "content_block_delta" | "message_delta"
        );
        match kind {
            "message_start" => {
                if let Some(message) = event.get("message") {
                    self.take_message(message);
                }
            }
            "content_block_start" => {
                let index = count(event, "index").unwrap_or(0);
                self.open_block(index, event.get("content_block").unwrap_or(&Value::Null));
            }
            "content_block_delta" => {
                let index = count(event, "index").unwrap_or(0);
                self.take_delta(index, event.get("delta").unwrap_or(&Value::Null));
            }
            "message_delta" => {
                let delta = event.get("delta").unwrap_or(&Value::Null);
                if let Some(reason) = text(delta, "stop_reason") {
                    self.turn.stop_reason = Some(reason.to_owned());
                }
                self.take_usage(event.get("usage"));
            }
            "message_stop" => return Ok(Step::Last),
            _ => {}
        }
        Ok(Step::More)
    }

    /// Takes a whole message, or the beginning of one.
    pub(super) fn take_message(&mut self, message: &Value) {
        set_once(&mut self.turn.response_id, text(message, "id"));
        set_once(&mut self.turn.model, text(message, "model"));
        for (index, block) in list(message, "content").iter().enumerate() {
            self.open_block(index as u64, block);
        }
        if let Some(reason) = text(message, "stop_reason") {
            self.turn.stop_reason = Some(reason.to_owned());
        }
        self.take_usage(message.get("usage"));
    }

    /// Takes the answer of the token counter.
    pub(super) fn take_count(&mut self, body: &Value) {
        self.take_usage(Some(body));
    }

    /// Whether any part of an answer has come.
    pub(super) fn begun(&self) -> bool {
        self.begun
    }

    /// Whether the model has said why it stopped.
    pub(super) fn concluded(&self) -> bool {
        self.begun && self.turn.stop_reason.is_some()
    }

    fn open_block(&mut self, index: u64, block: &Value) {
        match text(block, "type").unwrap_or("") {
            "text" => self.turn.text.push_str(text(block, "text").unwrap_or("")),
            "thinking" => self.turn.reasoning.push_str(text(block, "thinking").unwrap_or("")),
            "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                self.calls.push(Piece {
                    index: Some(index),
                    id: text(block, "id").unwrap_or(""),
                    name: text(block, "name").unwrap_or(""),
                    arguments: "",
                });
                let input = arguments_text(block.get("input"));
                self.opened_inputs
                    .push((index, if input.is_empty() { "{}".to_owned() } else { input }));
            }
            _ => {}
        }
    }

    fn take_delta(&mut self, index: u64, delta: &Value) {
        if let Some(piece) = text(delta, "text") {
            self.turn.text.push_str(piece);
        } else if let Some(piece) = text(delta, "partial_json") {
            self.calls.push(Piece {
                index: Some(index),
                arguments: piece,
                ..Piece::default()
            });
        } else if let Some(piece) = text(delta, "thinking") {
            self.turn.reasoning.push_str(piece);
        }
    }

    /// Counts are cumulative; a later null leaves the earlier count.
    fn take_usage(&mut self, usage: Option<&Value>) {
        let Some(usage) = usage.filter(|u| u.is_object()) else {
            return;
        };
        let mut known = self.turn.usage.take().unwrap_or_default();
        known.input_tokens = count(usage, "input_tokens").or(known.input_tokens);
        known.output_tokens = count(usage, "output_tokens").or(known.output_tokens);
        known.cached_tokens = count(usage, "cache_read_input_tokens").or(known.cached_tokens);
        self.turn.usage = (known != Usage::default()).then_some(known);
    }

    /// Bytes held.
    pub(super) fn len(&self) -> usize {
        self.turn.text.len() + self.turn.reasoning.len() + self.calls.len()
    }

    pub(super) fn finish(mut self) -> Turn {
        for (index, input) in &self.opened_inputs {
            if !self.calls.has_arguments(*index) {
                self.calls.complete(*index, input);
            }
        }
        self.turn.tool_calls = self.calls.finish(&mut self.turn.notes);
        self.turn
    }
}
