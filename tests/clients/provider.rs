//! A provider in every dialect, for real clients: text, tools, usage, errors, chosen by the requested model.
//!
//! `text` answers "forty-two"; with tools offered it calls `weather` (or, of an agent's tools, its shell) first and then
//! repeats the tool's result. `talker` never calls a tool. `limited` says 429, `broken` 500, `bad` 400, `flaky` 503 once per connection and then answers.

use serde_json::{Value, json};

use crate::common::upstream::{Do, Seen, answer_with, chunked};

/// The credential the provider expects, and nothing else.
pub const KEY: &str = "provider-key";

/// Answers one request.
pub fn script(seen: &Seen, before: usize) -> Vec<Do> {
    let bearer = seen.header("authorization") == Some(&format!("Bearer {KEY}"));
    let key = seen.header("x-api-key") == Some(KEY);
    let path = seen.target.split('?').next().unwrap_or_default();
    if !bearer && !key {
        return error(path, 401, "authentication_error", "no credential of the provider");
    }
    if seen.method == "GET" {
        let models = json!({"object": "list", "data": [{"id": "text", "object": "model", "created": 1, "owned_by": "scripted"}]});
        return whole(&models);
    }
    let body = seen.json();
    match body["model"].as_str().unwrap_or_default() {
        "limited" => return error(path, 429, "rate_limit_error", "slow down"),
        "broken" => return error(path, 500, "server_error", "out of order"),
        "bad" => return error(path, 400, "invalid_request_error", "the scripted fault"),
        "flaky" if before.is_multiple_of(2) => return error(path, 503, "server_error", "for a moment"),
        _ => {}
    }
    let stream = body["stream"] == true;
    match path {
        "/v1/chat/completions" => chat(&body, stream),
        "/v1/responses" => responses(&body, stream),
        "/v1/messages" => messages(&body, stream),
        "/v1/messages/count_tokens" => whole(&json!({"input_tokens": 11})),
        _ => error(path, 404, "not_found_error", "no such route"),
    }
}

fn whole(body: &Value) -> Vec<Do> {
    answer_with(200, &[("content-type", "application/json")], body.to_string())
}

fn error(path: &str, status: u16, kind: &str, message: &str) -> Vec<Do> {
    let body = if path.starts_with("/v1/messages") {
        json!({"type": "error", "error": {"type": kind, "message": message}})
    } else {
        json!({"error": {"message": message, "type": kind, "param": null, "code": null}})
    };
    let headers = [("content-type", "application/json"), ("retry-after", "0")];
    answer_with(status, &headers, body.to_string())
}

/// What the model says: a text, or a call of a tool.
enum Says {
    Text(String),
    Call { name: String, arguments: String },
}

/// What an agent's shell is asked to do.
pub const SHELL: &str = "printf reef > made-by-agent.txt && cat made-by-agent.txt";

fn says(body: &Value, result: Option<String>) -> Says {
    match result {
        Some(result) => Says::Text(format!("the tool says {result}")),
        None if body["model"] == "talker" => Says::Text("forty-two".to_owned()),
        None => call(body).unwrap_or_else(|| Says::Text("forty-two".to_owned())),
    }
}

/// A call of one of the tools that are offered.
fn call(body: &Value) -> Option<Says> {
    let offered: Vec<&str> = body["tools"]
        .as_array()?
        .iter()
        .filter_map(|tool| tool["function"]["name"].as_str().or(tool["name"].as_str()))
        .collect();
    let plain = json!({"command": SHELL, "description": "writes a file"}).to_string();
    let known = [
        ("weather", ARGUMENTS.to_owned()),
        ("bash", plain.clone()),
        ("Bash", plain),
        ("exec_command", json!({"cmd": SHELL}).to_string()),
        ("shell_command", json!({"command": SHELL}).to_string()),
        ("shell", json!({"command": ["sh", "-c", SHELL]}).to_string()),
        (
            "run_shell_command",
            json!({"command": SHELL, "is_background": false}).to_string(),
        ),
        ("exec", json!({"command": SHELL}).to_string()),
        ("terminal", json!({"command": SHELL}).to_string()),
    ];
    known
        .into_iter()
        .find(|(name, _)| offered.contains(name))
        .map(|(name, arguments)| Says::Call {
            name: name.to_owned(),
            arguments,
        })
}

/// The text of a tool's result, whether it came as a text or in parts.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

fn halves(text: &str) -> [&str; 2] {
    let (left, right) = text.split_at(text.len() / 2);
    [left, right]
}

const ARGUMENTS: &str = r#"{"city": "Paris"}"#;

fn chat(body: &Value, stream: bool) -> Vec<Do> {
    // Some agents tell of themselves in a user's message after a tool's result.
    let result = body["messages"]
        .as_array()
        .and_then(|messages| messages.iter().rfind(|message| message["role"] != "user"))
        .filter(|message| message["role"] == "tool")
        .map(|message| text_of(&message["content"]));
    let says = says(body, result);
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12});
    let base = |object: &str| json!({"id": "chatcmpl-1", "object": object, "created": 1_700_000_000, "model": "text"});
    if !stream {
        let (message, reason) = match &says {
            Says::Text(text) => (json!({"role": "assistant", "content": text}), "stop"),
            Says::Call { name, arguments } => {
                let call =
                    json!({"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}});
                (
                    json!({"role": "assistant", "content": null, "tool_calls": [call]}),
                    "tool_calls",
                )
            }
        };
        let mut reply = base("chat.completion");
        reply["choices"] = json!([{"index": 0, "message": message, "finish_reason": reason, "logprobs": null}]);
        reply["usage"] = usage;
        return whole(&reply);
    }
    let event = |delta: Value, reason: Option<&str>| {
        let mut chunk = base("chat.completion.chunk");
        chunk["choices"] = json!([{"index": 0, "delta": delta, "finish_reason": reason}]);
        format!("data: {chunk}\n\n")
    };
    let mut events = vec![event(json!({"role": "assistant", "content": ""}), None)];
    let reason = match &says {
        Says::Text(text) => {
            events.extend(halves(text).map(|half| event(json!({"content": half}), None)));
            "stop"
        }
        Says::Call { name, arguments } => {
            let opened =
                json!([{"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": ""}}]);
            events.push(event(json!({"tool_calls": opened}), None));
            for half in halves(arguments) {
                events.push(event(
                    json!({"tool_calls": [{"index": 0, "function": {"arguments": half}}]}),
                    None,
                ));
            }
            "tool_calls"
        }
    };
    events.push(event(json!({}), Some(reason)));
    if body["stream_options"]["include_usage"] == true {
        let mut chunk = base("chat.completion.chunk");
        chunk["choices"] = json!([]);
        chunk["usage"] = usage;
        events.push(format!("data: {chunk}\n\n"));
    }
    events.push("data: [DONE]\n\n".to_owned());
    send(&events)
}

fn input(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap()
}

fn messages(body: &Value, stream: bool) -> Vec<Do> {
    let result = body["messages"]
        .as_array()
        .and_then(|messages| messages.iter().rfind(|message| message["role"] == "user"))
        .and_then(|message| {
            message["content"]
                .as_array()?
                .iter()
                .find(|block| block["type"] == "tool_result")
        })
        .map(|block| text_of(&block["content"]));
    let says = says(body, result);
    let mut message = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "text", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 9, "output_tokens": 1},
    });
    let (block, reason) = match &says {
        Says::Text(text) => (json!({"type": "text", "text": text}), "end_turn"),
        Says::Call { name, arguments } => (
            json!({"type": "tool_use", "id": "toolu_1", "name": name, "input": input(arguments)}),
            "tool_use",
        ),
    };
    if !stream {
        message["content"] = json!([block]);
        message["stop_reason"] = reason.into();
        message["usage"] = json!({"input_tokens": 9, "output_tokens": 3});
        return whole(&message);
    }
    let event = |data: Value| format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default());
    let mut events = vec![event(json!({"type": "message_start", "message": message}))];
    let (opened, deltas): (Value, Vec<Value>) = match &says {
        Says::Text(text) => (
            json!({"type": "text", "text": ""}),
            halves(text)
                .map(|half| json!({"type": "text_delta", "text": half}))
                .to_vec(),
        ),
        Says::Call { name, arguments } => (
            json!({"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}),
            halves(arguments)
                .map(|half| json!({"type": "input_json_delta", "partial_json": half}))
                .to_vec(),
        ),
    };
    events.push(event(
        json!({"type": "content_block_start", "index": 0, "content_block": opened}),
    ));
    events.push(event(json!({"type": "ping"})));
    for delta in deltas {
        events.push(event(
            json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        ));
    }
    events.push(event(json!({"type": "content_block_stop", "index": 0})));
    let delta = json!({"stop_reason": reason, "stop_sequence": null});
    events.push(event(
        json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}}),
    ));
    events.push(event(json!({"type": "message_stop"})));
    send(&events)
}

fn responses(body: &Value, stream: bool) -> Vec<Do> {
    let result = body["input"]
        .as_array()
        .and_then(|items| items.last())
        .filter(|item| item["type"] == "function_call_output")
        .map(|item| text_of(&item["output"]));
    let item = match says(body, result) {
        Says::Text(text) => json!({
            "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }),
        Says::Call { name, arguments } => json!({
            "id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1", "name": name,
            "arguments": arguments,
        }),
    };
    let reply = |status: &str, output: Value| {
        json!({
            "id": "resp_1", "object": "response", "created_at": 1_700_000_000, "status": status, "model": "text",
            "output": output, "parallel_tool_calls": true, "tool_choice": "auto", "tools": [], "error": null,
            "incomplete_details": null, "instructions": null, "metadata": {}, "temperature": 1.0, "top_p": 1.0,
            "usage": {
                "input_tokens": 9, "output_tokens": 3, "total_tokens": 12,
                "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
            },
        })
    };
    if !stream {
        return whole(&reply("completed", json!([item])));
    }
    let mut number = 0;
    let mut event = |mut data: Value| {
        data["sequence_number"] = number.into();
        number += 1;
        format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default())
    };
    let mut events = vec![event(
        json!({"type": "response.created", "response": reply("in_progress", json!([]))}),
    )];
    if item["type"] == "message" {
        let text = item["content"][0]["text"].as_str().unwrap_or_default();
        let mut opened = item.clone();
        opened["content"] = json!([]);
        opened["status"] = "in_progress".into();
        let part = json!({"type": "output_text", "text": "", "annotations": []});
        events.push(event(
            json!({"type": "response.output_item.added", "output_index": 0, "item": opened}),
        ));
        events.push(event(json!({
            "type": "response.content_part.added", "output_index": 0, "content_index": 0, "item_id": "msg_1", "part": part,
        })));
        for half in halves(text) {
            events.push(event(json!({
                "type": "response.output_text.delta", "output_index": 0, "content_index": 0, "item_id": "msg_1",
                "delta": half, "logprobs": [],
            })));
        }
        events.push(event(json!({
            "type": "response.output_text.done", "output_index": 0, "content_index": 0, "item_id": "msg_1", "text": text,
            "logprobs": [],
        })));
        events.push(event(json!({
            "type": "response.content_part.done", "output_index": 0, "content_index": 0, "item_id": "msg_1",
            "part": item["content"][0],
        })));
    } else {
        let mut opened = item.clone();
        opened["arguments"] = "".into();
        opened["status"] = "in_progress".into();
        events.push(event(
            json!({"type": "response.output_item.added", "output_index": 0, "item": opened}),
        ));
        let arguments = item["arguments"].as_str().unwrap_or_default();
        for half in halves(arguments) {
            events.push(event(json!({
                "type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "fc_1", "delta": half,
            })));
        }
        events.push(event(json!({
            "type": "response.function_call_arguments.done", "output_index": 0, "item_id": "fc_1",
            "name": item["name"], "arguments": arguments,
        })));
    }
    events.push(event(
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
    ));
    events.push(event(
        json!({"type": "response.completed", "response": reply("completed", json!([item]))}),
    ));
    send(&events)
}

fn send(events: &[String]) -> Vec<Do> {
    let pieces: Vec<&str> = events.iter().map(String::as_str).collect();
    chunked(&pieces)
}
