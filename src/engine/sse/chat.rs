//! OpenAI chat completions.

use serde_json::Value;

use super::failure::failure_of;
use super::json::{count, list, set_once, text};
use super::tools::{Piece, ToolCalls, chat_piece};
use crate::domain::{Turn, Usage};

/// The turn of one chat completion under way.
#[derive(Debug, Default)]
pub(super) struct ChatTurn {
    turn: Turn,
    calls: ToolCalls,
    /// Choices that have begun, and whether each has ended.
    choices: Vec<(u64, bool)>,
    /// Whether the last chunk ended a choice; `None` if it had none.
    ended: Option<bool>,
}

/// Choices that are told apart; nobody asks for more.
const MOST_CHOICES: usize = 256;

impl ChatTurn {
    /// Takes a chunk, or a whole completion: `message` is read like `delta`. A failure ends the turn.
    pub(super) fn take(&mut self, chunk: &Value, event: bool) -> Result<(), String> {
        if let Some(failure) = failure_of(chunk, event) {
            return Err(failure);
        }
        set_once(&mut self.turn.response_id, text(chunk, "id"));
        set_once(&mut self.turn.model, text(chunk, "model"));
        if let Some(usage) = chunk.get("usage").and_then(usage) {
            self.turn.usage = Some(usage);
        }
        self.ended = None;
        for (position, choice) in list(chunk, "choices").iter().enumerate() {
            let index = count(choice, "index").unwrap_or(position as u64);
            self.note(index, text(choice, "finish_reason").is_some());
            // Further choices (n > 1) stay in the raw response; the turn is the first.
            if index == 0 {
                self.take_choice(choice);
            }
        }
        Ok(())
    }

    fn note(&mut self, index: u64, ended: bool) {
        self.ended = Some(ended || self.ended == Some(true));
        if let Some((_, before)) = self.choices.iter_mut().find(|(known, _)| *known == index) {
            *before |= ended;
        } else if self.choices.len() < MOST_CHOICES {
            self.choices.push((index, ended));
        }
    }

    /// Whether any part of an answer has come.
    pub(super) fn begun(&self) -> bool {
        !self.choices.is_empty()
    }

    /// Whether the last chunk was the one with which every choice has stopped; `None` if it spoke of no choice.
    pub(super) fn concludes(&self) -> Option<bool> {
        self.ended.map(|ended| ended && self.concluded())
    }

    /// Whether every choice has said why it stopped.
    pub(super) fn concluded(&self) -> bool {
        self.begun() && self.choices.iter().all(|(_, ended)| *ended)
    }

    fn take_choice(&mut self, choice: &Value) {
        let part = choice
            .get("delta")
            .filter(|delta| delta.is_object())
            .or_else(|| choice.get("message"))
            .unwrap_or(&Value::Null);
        push_content(&mut self.turn.text, part.get("content"));
        // Legacy completions.
        self.turn.text.push_str(text(choice, "text").unwrap_or(""));
        if let Some(refusal) = text(part, "refusal") {
            self.turn.text.push_str(refusal);
            note_once(&mut self.turn.notes, "the model refused");
        }
        if let Some(reasoning) = text(part, "reasoning_content").or_else(|| text(part, "reasoning")) {
            self.turn.reasoning.push_str(reasoning);
        }
        for entry in list(part, "tool_calls") {
            let (index, id, name, arguments) = chat_piece(entry);
            self.calls.push(Piece {
                index,
                id,
                name,
                arguments: &arguments,
            });
        }
        if let Some(call) = part.get("function_call").filter(|call| call.is_object()) {
            let arguments = super::tools::arguments_text(call.get("arguments"));
            self.calls.push(Piece {
                index: Some(0),
                id: "",
                name: text(call, "name").unwrap_or(""),
                arguments: &arguments,
            });
        }
        if let Some(reason) = text(choice, "finish_reason") {
            self.turn.stop_reason = Some(reason.to_owned());
        }
    }

    /// Bytes held.
    pub(super) fn len(&self) -> usize {
        self.turn.text.len() + self.turn.reasoning.len() + self.calls.len()
    }

    pub(super) fn finish(mut self) -> Turn {
        self.turn.tool_calls = self.calls.finish(&mut self.turn.notes);
        self.turn
    }
}

/// Text, or a list of parts with text.
fn push_content(into: &mut String, content: Option<&Value>) {
    match content {
        Some(Value::String(piece)) => into.push_str(piece),
        Some(Value::Array(parts)) => {
            for piece in parts.iter().filter_map(|part| text(part, "text")) {
                into.push_str(piece);
            }
        }
        _ => {}
    }
}

pub(super) fn note_once(notes: &mut Vec<String>, note: &str) {
    if !notes.iter().any(|n| n == note) {
        notes.push(note.to_owned());
    }
}

fn usage(value: &Value) -> Option<Usage> {
    let details = |object: &str, key: &str| value.get(object).and_then(|inner| count(inner, key));
    let usage = Usage {
        input_tokens: count(value, "prompt_tokens"),
        output_tokens: count(value, "completion_tokens"),
        cached_tokens: details("prompt_tokens_details", "cached_tokens"),
        reasoning_tokens: details("completion_tokens_details", "reasoning_tokens"),
    };
    (usage != Usage::default()).then_some(usage)
}
