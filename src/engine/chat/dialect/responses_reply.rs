//! OpenAI responses, written.

use serde_json::{Map, Value, json};

use super::chat_reply::token_logprob;
use super::common::derived_id;
use super::{Completed, CompletedChoice, ReplyMeta, event};
use crate::engine::chat::output::Delta;
use crate::engine::chat::request::{ChatRequest, Finish, TokenLogprob, TokenUsage};

pub(super) fn body(meta: &ReplyMeta, request: &ChatRequest, completed: &Completed) -> Value {
    let empty = CompletedChoice::new(false);
    let choice = completed.choices.first().unwrap_or(&empty);
    let mut output = Vec::new();
    if !choice.reasoning.is_empty() {
        output.push(reasoning_item(
            &item_id("rs_", meta, output.len()),
            &choice.reasoning,
            "completed",
        ));
    }
    let status = item_status(&choice.finish);
    if !choice.text.is_empty() || choice.tool_calls.is_empty() {
        let logprobs = choice.logprobs.as_deref().unwrap_or(&[]);
        let part = text_part(&choice.text, logprobs);
        let status = if choice.tool_calls.is_empty() {
            status
        } else {
            "completed"
        };
        output.push(message_item(&item_id("msg_", meta, output.len()), &[part], status));
    }
    for (number, call) in choice.tool_calls.iter().enumerate() {
        let last = number + 1 == choice.tool_calls.len();
        let status = if last { status } else { "completed" };
        let id = item_id("fc_", meta, output.len());
        output.push(call_item(
            &id,
            &call_id(meta, number),
            &call.name,
            &call.arguments,
            status,
        ));
    }
    response(
        meta,
        &request.echo,
        Some(&choice.finish),
        &output,
        Some(completed.usage),
    )
}

fn item_id(prefix: &str, meta: &ReplyMeta, index: usize) -> String {
    derived_id(prefix, &meta.id, index)
}

fn call_id(meta: &ReplyMeta, number: usize) -> String {
    derived_id("call_", &meta.id, number)
}

fn item_status(finish: &Finish) -> &'static str {
    match finish {
        Finish::Length => "incomplete",
        Finish::Stop | Finish::StopText(_) | Finish::ToolCalls => "completed",
    }
}

fn text_part(text: &str, logprobs: &[TokenLogprob]) -> Value {
    let logprobs: Vec<Value> = logprobs.iter().map(token_logprob).collect();
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}

fn message_item(id: &str, content: &[Value], status: &str) -> Value {
    json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
}

fn reasoning_item(id: &str, text: &str, status: &str) -> Value {
    let content = if text.is_empty() {
        json!([])
    } else {
        json!([{"type": "reasoning_text", "text": text}])
    };
    json!({"id": id, "type": "reasoning", "summary": [], "content": content, "status": status})
}

fn call_item(id: &str, call_id: &str, name: &str, arguments: &str, status: &str) -> Value {
    json!({
        "id": id,
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    })
}

/// The response object; without a finish it is still in progress.
fn response(
    meta: &ReplyMeta,
    echo: &Map<String, Value>,
    finish: Option<&Finish>,
    output: &[Value],
    usage: Option<TokenUsage>,
) -> Value {
    let (status, incomplete) = match finish {
        None => ("in_progress", Value::Null),
        Some(Finish::Length) => ("incomplete", json!({"reason": "max_output_tokens"})),
        Some(_) => ("completed", Value::Null),
    };
    let mut object = json!({
        "id": format!("resp_{}", meta.id),
        "object": "response",
        "created_at": meta.created,
        "status": status,
        "background": false,
        "error": null,
        "incomplete_details": incomplete,
        "instructions": null,
        "max_output_tokens": null,
        "metadata": {},
        "model": meta.model,
        "output": output,
        "parallel_tool_calls": true,
        "previous_response_id": null,
        "reasoning": {"effort": null, "summary": null},
        "store": false,
        "temperature": null,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": null,
        "truncation": "disabled",
        "usage": usage.map(usage_body),
        "user": null,
    });
    if let Value::Object(object) = &mut object {
        for (name, value) in echo {
            object.insert(name.clone(), value.clone());
        }
    }
    object
}

fn usage_body(usage: TokenUsage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    })
}

enum Item {
    Message {
        id: String,
        text: String,
        logprobs: Vec<TokenLogprob>,
    },
    Reasoning {
        id: String,
        text: String,
    },
    Call {
        id: String,
        call_id: String,
        name: String,
        arguments: String,
    },
}

impl Item {
    fn id(&self) -> &str {
        match self {
            Self::Message { id, .. } | Self::Reasoning { id, .. } | Self::Call { id, .. } => id,
        }
    }
}

/// The event stream of one answer.
pub(crate) struct Stream {
    meta: ReplyMeta,
    echo: Map<String, Value>,
    sequence: u64,
    done: Vec<Value>,
    open: Option<Item>,
    calls: usize,
    held: Vec<TokenLogprob>,
    finish: Finish,
}

impl Stream {
    pub(super) fn new(meta: ReplyMeta, request: &ChatRequest) -> Self {
        Self {
            meta,
            echo: request.echo.clone(),
            sequence: 0,
            done: Vec::new(),
            open: None,
            calls: 0,
            held: Vec::new(),
            finish: Finish::Stop,
        }
    }

    fn emit(&mut self, name: &str, fields: Value, out: &mut String) {
        let mut data = Map::new();
        data.insert("type".to_owned(), Value::from(name));
        data.insert("sequence_number".to_owned(), Value::from(self.sequence));
        if let Value::Object(fields) = fields {
            data.extend(fields);
        }
        self.sequence += 1;
        event(out, name, &Value::Object(data));
    }

    pub(super) fn start(&mut self, out: &mut String) {
        let object = response(&self.meta, &self.echo, None, &[], None);
        self.emit("response.created", json!({"response": object}), out);
        self.emit("response.in_progress", json!({"response": object}), out);
    }

    pub(super) fn push(&mut self, deltas: Vec<Delta>, logprobs: Vec<TokenLogprob>, out: &mut String) {
        self.held.extend(logprobs);
        let index = |stream: &Self| stream.done.len();
        for delta in deltas {
            match delta {
                Delta::Text(text) => {
                    self.enter_message(out);
                    let shown = std::mem::take(&mut self.held);
                    let tokens: Vec<Value> = shown.iter().map(token_logprob).collect();
                    let output_index = index(self);
                    let Some(Item::Message {
                        id,
                        text: all,
                        logprobs,
                    }) = &mut self.open
                    else {
                        continue;
                    };
                    all.push_str(&text);
                    logprobs.extend(shown);
                    let fields = json!({
                        "item_id": id.as_str(), "output_index": output_index, "content_index": 0,
                        "delta": text, "logprobs": tokens,
                    });
                    self.emit("response.output_text.delta", fields, out);
                }
                Delta::Reasoning(text) => {
                    self.enter_reasoning(out);
                    let output_index = index(self);
                    let Some(Item::Reasoning { id, text: all }) = &mut self.open else {
                        continue;
                    };
                    all.push_str(&text);
                    let fields = json!({
                        "item_id": id.as_str(), "output_index": output_index, "content_index": 0, "delta": text,
                    });
                    self.emit("response.reasoning_text.delta", fields, out);
                }
                Delta::CallStart { name } => self.enter_call(name, out),
                Delta::CallArguments(text) => {
                    let output_index = index(self);
                    let Some(Item::Call { id, arguments, .. }) = &mut self.open else {
                        continue;
                    };
                    arguments.push_str(&text);
                    let fields = json!({"item_id": id.as_str(), "output_index": output_index, "delta": text});
                    self.emit("response.function_call_arguments.delta", fields, out);
                }
            }
        }
    }

    fn enter_message(&mut self, out: &mut String) {
        if matches!(self.open, Some(Item::Message { .. })) {
            return;
        }
        self.close("completed", out);
        let id = item_id("msg_", &self.meta, self.done.len());
        self.add(&message_item(&id, &[], "in_progress"), out);
        self.add_part(&id, &text_part("", &[]), out);
        self.open = Some(Item::Message {
            id,
            text: String::new(),
            logprobs: Vec::new(),
        });
    }

    fn enter_reasoning(&mut self, out: &mut String) {
        if matches!(self.open, Some(Item::Reasoning { .. })) {
            return;
        }
        self.close("completed", out);
        let id = item_id("rs_", &self.meta, self.done.len());
        self.add(&reasoning_item(&id, "", "in_progress"), out);
        self.add_part(&id, &json!({"type": "reasoning_text", "text": ""}), out);
        self.open = Some(Item::Reasoning {
            id,
            text: String::new(),
        });
    }

    fn enter_call(&mut self, name: String, out: &mut String) {
        self.close("completed", out);
        let id = item_id("fc_", &self.meta, self.done.len());
        let call_id = call_id(&self.meta, self.calls);
        self.calls += 1;
        self.add(&call_item(&id, &call_id, &name, "", "in_progress"), out);
        self.open = Some(Item::Call {
            id,
            call_id,
            name,
            arguments: String::new(),
        });
    }

    fn add(&mut self, item: &Value, out: &mut String) {
        let fields = json!({"output_index": self.done.len(), "item": item});
        self.emit("response.output_item.added", fields, out);
    }

    fn add_part(&mut self, item_id: &str, part: &Value, out: &mut String) {
        let fields = json!({
            "item_id": item_id, "output_index": self.done.len(), "content_index": 0, "part": part,
        });
        self.emit("response.content_part.added", fields, out);
    }

    fn close(&mut self, status: &str, out: &mut String) {
        let Some(open) = self.open.take() else { return };
        let output_index = self.done.len();
        let place = json!({"item_id": open.id(), "output_index": output_index, "content_index": 0});
        let with = |more: Value| {
            let mut fields = place.clone();
            if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
                fields.extend(more);
            }
            fields
        };
        let item = match open {
            Item::Message { id, text, logprobs } => {
                let part = text_part(&text, &logprobs);
                let done = with(json!({"text": text, "logprobs": part["logprobs"].clone()}));
                self.emit("response.output_text.done", done, out);
                self.emit("response.content_part.done", with(json!({"part": part})), out);
                message_item(&id, &[part], status)
            }
            Item::Reasoning { id, text } => {
                self.emit("response.reasoning_text.done", with(json!({"text": text})), out);
                let part = json!({"type": "reasoning_text", "text": text});
                self.emit("response.content_part.done", with(json!({"part": part})), out);
                reasoning_item(&id, &text, status)
            }
            Item::Call {
                id,
                call_id,
                name,
                arguments,
            } => {
                let done = json!({
                    "item_id": id, "output_index": output_index, "name": name, "arguments": arguments,
                });
                self.emit("response.function_call_arguments.done", done, out);
                call_item(&id, &call_id, &name, &arguments, status)
            }
        };
        let fields = json!({"output_index": output_index, "item": item});
        self.emit("response.output_item.done", fields, out);
        self.done.push(item);
    }

    pub(super) fn finish(&mut self, finish: &Finish, out: &mut String) {
        // An answer always holds a message or a call, even an empty one.
        let said = self.done.iter().any(|item| item["type"] != "reasoning");
        if !said && !matches!(self.open, Some(Item::Message { .. } | Item::Call { .. })) {
            self.enter_message(out);
        }
        self.close(item_status(finish), out);
        self.finish = finish.clone();
    }

    pub(super) fn end(&mut self, usage: TokenUsage, out: &mut String) {
        let done = std::mem::take(&mut self.done);
        let object = response(&self.meta, &self.echo, Some(&self.finish), &done, Some(usage));
        let name = match self.finish {
            Finish::Length => "response.incomplete",
            _ => "response.completed",
        };
        self.emit(name, json!({"response": object}), out);
    }
}
