//! OpenAI responses.

use serde_json::Value;

use super::chat::note_once;
use super::failure::{failure_of, words};
use super::json::{count, list, set_once, text};
use super::tools::{Piece, ToolCalls, arguments_text};
use crate::domain::{Turn, Usage};

/// The turn of one response under way.
#[derive(Debug, Default)]
pub(super) struct ResponseTurn {
    turn: Turn,
    calls: ToolCalls,
    /// The terminal event held the whole output, which then decides.
    whole: Option<Turn>,
}

/// What an event means for the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    More,
    Last,
}

impl ResponseTurn {
    /// Takes one event; `kind` is its JSON `type`, or the SSE event name where the JSON has none.
    pub(super) fn take_event(&mut self, kind: &str, event: &Value) -> Result<Step, String> {
        if let Some(failure) = failure_of(event, true) {
            return Err(failure);
        }
        let index = count(event, "output_index");
        match kind {
            "response.created" | "response.in_progress" => {
                if let Some(response) = event.get("response") {
                    self.take_identity(response);
                }
            }
            "response.output_text.delta" => self.turn.text.push_str(text(event, "delta").unwrap_or("")),
            "response.refusal.delta" => {
                self.turn.text.push_str(text(event, "delta").unwrap_or(""));
                note_once(&mut self.turn.notes, "the model refused");
            }
            "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
                self.turn.reasoning.push_str(text(event, "delta").unwrap_or(""));
            }
            "response.output_item.added" => self.open_item(index, event.get("item").unwrap_or(&Value::Null)),
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                self.calls.push(Piece {
                    index,
                    arguments: text(event, "delta").unwrap_or(""),
                    ..Piece::default()
                });
            }
            "response.function_call_arguments.done" | "response.custom_tool_call_input.done" => {
                let whole = text(event, "arguments").or_else(|| text(event, "input"));
                if let (Some(index), Some(whole)) = (index, whole) {
                    self.calls.complete(index, whole);
                }
            }
            "response.completed" | "response.incomplete" => {
                let response = event.get("response").unwrap_or(&Value::Null);
                self.take_identity(response);
                if list(response, "output").is_empty() {
                    self.take_end(response);
                } else {
                    let mut whole = Self::default();
                    whole.take_response(response)?;
                    let mut whole = whole.finish();
                    whole.response_id = whole.response_id.or_else(|| self.turn.response_id.clone());
                    whole.model = whole.model.or_else(|| self.turn.model.clone());
                    self.whole = Some(whole);
                }
                return Ok(Step::Last);
            }
            "response.failed" | "response.cancelled" => {
                let response = event.get("response").unwrap_or(event);
                return Err(response
                    .get("error")
                    .filter(|error| !error.is_null())
                    .map_or_else(|| format!("the provider sent {kind}"), words));
            }
            _ => {}
        }
        Ok(Step::More)
    }

    /// Takes a whole response.
    pub(super) fn take_response(&mut self, response: &Value) -> Result<(), String> {
        if let Some(failure) = failure_of(response, false) {
            return Err(failure);
        }
        self.take_identity(response);
        for (index, item) in list(response, "output").iter().enumerate() {
            match text(item, "type").unwrap_or("") {
                "message" => {
                    for part in list(item, "content") {
                        if let Some(refusal) = text(part, "refusal") {
                            self.turn.text.push_str(refusal);
                            note_once(&mut self.turn.notes, "the model refused");
                        } else {
                            self.turn.text.push_str(text(part, "text").unwrap_or(""));
                        }
                    }
                }
                "reasoning" => {
                    for part in list(item, "content").iter().chain(list(item, "summary")) {
                        self.turn.reasoning.push_str(text(part, "text").unwrap_or(""));
                    }
                }
                _ => self.open_item(Some(index as u64), item),
            }
        }
        self.take_end(response);
        Ok(())
    }

    /// The provider's id of it.
    pub(super) fn id(&self) -> Option<&str> {
        self.turn.response_id.as_deref()
    }

    fn take_identity(&mut self, response: &Value) {
        set_once(&mut self.turn.response_id, text(response, "id"));
        set_once(&mut self.turn.model, text(response, "model"));
    }

    fn open_item(&mut self, index: Option<u64>, item: &Value) {
        let arguments = match text(item, "type").unwrap_or("") {
            "function_call" => arguments_text(item.get("arguments")),
            "custom_tool_call" => arguments_text(item.get("input")),
            _ => return,
        };
        self.calls.push(Piece {
            index,
            id: text(item, "call_id").or_else(|| text(item, "id")).unwrap_or(""),
            name: text(item, "name").unwrap_or(""),
            arguments: &arguments,
        });
    }

    fn take_end(&mut self, response: &Value) {
        let incomplete = response.get("incomplete_details").and_then(|d| text(d, "reason"));
        if let Some(reason) = incomplete.or_else(|| text(response, "status")) {
            self.turn.stop_reason = Some(reason.to_owned());
        }
        if let Some(usage) = response.get("usage").and_then(usage) {
            self.turn.usage = Some(usage);
        }
    }

    /// Bytes held.
    pub(super) fn len(&self) -> usize {
        self.turn.text.len() + self.turn.reasoning.len() + self.calls.len()
    }

    pub(super) fn finish(mut self) -> Turn {
        if let Some(whole) = self.whole {
            return whole;
        }
        self.turn.tool_calls = self.calls.finish(&mut self.turn.notes);
        self.turn
    }
}

fn usage(value: &Value) -> Option<Usage> {
    let details = |object: &str, key: &str| value.get(object).and_then(|inner| count(inner, key));
    let usage = Usage {
        input_tokens: count(value, "input_tokens"),
        output_tokens: count(value, "output_tokens"),
        cached_tokens: details("input_tokens_details", "cached_tokens"),
        reasoning_tokens: details("output_tokens_details", "reasoning_tokens"),
    };
    (usage != Usage::default()).then_some(usage)
}
