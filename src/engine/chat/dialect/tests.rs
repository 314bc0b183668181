use serde_json::{Value, json};

use super::*;
use crate::engine::chat::request::{OutputFormat, ToolChoice};

fn read(route: Route, body: &Value) -> Result<ChatRequest, RequestFault> {
    parse(route, body.to_string().as_bytes())
}

#[track_caller]
fn refused(route: Route, body: &Value, param: Option<&str>, words: &str) {
    let fault = read(route, body).unwrap_err();
    assert_eq!(fault.param(), param, "{fault}");
    assert!(fault.to_string().contains(words), "{fault}");
}

fn weather_call() -> Value {
    json!({"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}})
}

fn weather_tool() -> Value {
    json!({"type": "function", "function": {
        "name": "get_weather", "description": "Weather", "parameters": {"type": "object", "properties": {}},
    }})
}

/// The same conversation in each dialect is the same conversation to the template.
#[test]
fn one_conversation_in_three_dialects_is_one_prompt() {
    let expected = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather\nin Rome?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Call it.", "tool_calls": [weather_call()]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "user", "content": "And now?"},
    ]);
    let chat = read(Route::ChatCompletions, &json!({
        "model": "m",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "in Rome?"}]},
            {"role": "assistant", "content": "Let me see.", "reasoning_content": "Call it.", "refusal": null,
             "tool_calls": [{"id": "c1", "type": "function",
                             "function": {"name": "get_weather", "arguments": "{\"city\": \"Rome\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "user", "content": "And now?", "unknown": {"deep": 1}},
        ],
        "tools": [weather_tool()],
        "service_tier": "auto",
    })).unwrap();
    let responses = read(Route::Responses, &json!({
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Weather"}, {"type": "input_text", "text": "in Rome?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Call it."}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get_weather", "arguments": "{\"city\": \"Rome\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            {"type": "message", "role": "user", "content": "And now?"},
        ],
        "tools": [
            {"type": "function", "name": "get_weather", "description": "Weather", "strict": true,
             "parameters": {"type": "object", "properties": {}}},
            {"type": "web_search"},
        ],
        "store": true, "include": ["reasoning.encrypted_content"],
    })).unwrap();
    let anthropic = read(Route::Messages, &json!({
        "model": "m",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "in Rome?"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Call it.", "signature": "s"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Rome"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "And now?"},
            ]},
        ],
        "tools": [
            {"name": "get_weather", "description": "Weather", "input_schema": {"type": "object", "properties": {}},
             "defer_loading": true},
            {"type": "bash_20250124", "name": "bash"},
        ],
        "thinking": {"type": "adaptive"}, "context_management": {"edits": []},
    })).unwrap();
    for (name, request) in [("chat", &chat), ("responses", &responses), ("anthropic", &anthropic)] {
        assert_eq!(Value::Array(request.messages.clone()), expected, "{name}");
        assert_eq!(request.tools, [weather_tool()], "{name}");
    }
}

#[test]
fn sampling_fields_are_read_and_checked() {
    let base = |extra: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let request = read(Route::ChatCompletions, &base(json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "seed": -1, "logit_bias": {"5": -100, "7": 2.5},
        "presence_penalty": 1, "frequency_penalty": null, "repetition_penalty": 1.1, "stop": "END", "n": 2,
        "max_tokens": 7.0, "logprobs": true, "top_logprobs": 3, "stream": true, "stream_options": {"include_usage": true},
    }))).unwrap();
    assert_eq!(request.sampling.temperature, Some(0.5));
    assert_eq!(request.sampling.top_k, Some(0));
    assert_eq!(request.sampling.seed, Some(u64::MAX));
    assert_eq!(request.sampling.logit_bias, [(5, -100.0), (7, 2.5)]);
    assert_eq!(request.sampling.frequency_penalty, None);
    assert_eq!(
        (request.stop.as_slice(), request.n, request.max_tokens),
        (["END".to_owned()].as_slice(), 2, Some(7))
    );
    assert_eq!(
        (request.logprobs, request.stream, request.include_usage),
        (Some(3), true, true)
    );
    let both = read(
        Route::ChatCompletions,
        &base(json!({"max_tokens": 1, "max_completion_tokens": 2})),
    )
    .unwrap();
    assert_eq!(both.max_tokens, Some(2));

    for (extra, param) in [
        (json!({"temperature": 2.1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": -0.1}), "top_p"),
        (json!({"n": 0}), "n"),
        (json!({"n": 17}), "n"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"logit_bias": {"1": 101}}), "logit_bias"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"stop": ["a", 1]}), "stop"),
        (json!({"stop": [""]}), "stop"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "no"}}}),
            "tool_choice.function.name",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
            "response_format.schema",
        ),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"tools": [{"type": "custom"}]}), "tools.0.type"),
    ] {
        refused(Route::ChatCompletions, &base(extra), Some(param), "");
    }
}

#[test]
fn what_cannot_be_answered_is_refused_by_name() {
    refused(Route::ChatCompletions, &json!([]), None, "not a JSON object");
    refused(
        Route::ChatCompletions,
        &json!({}),
        Some("messages"),
        "at least one message",
    );
    refused(
        Route::ChatCompletions,
        &json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
        Some("messages.0.content.0.type"),
        "text only",
    );
    refused(
        Route::ChatCompletions,
        &json!({"messages": [{"role": "robot", "content": ""}]}),
        Some("messages.0.role"),
        "",
    );
    refused(
        Route::ChatCompletions,
        &json!({"messages": [{"role": "tool", "content": ""}]}),
        Some("messages.0.tool_call_id"),
        "",
    );
    refused(
        Route::Messages,
        &json!({"messages": [{"role": "user", "content": "x"}]}),
        Some("max_tokens"),
        "missing",
    );
    refused(
        Route::Messages,
        &json!({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
        Some("messages.0.content.0.type"),
        "image",
    );
    refused(
        Route::Messages,
        &json!({"max_tokens": 1, "temperature": 1.5, "messages": []}),
        Some("temperature"),
        "",
    );
    refused(
        Route::Responses,
        &json!({"input": "x", "previous_response_id": "r"}),
        Some("previous_response_id"),
        "whole conversation",
    );
    refused(
        Route::Responses,
        &json!({"input": [{"type": "item_reference", "id": "x"}]}),
        Some("input.0.type"),
        "stored",
    );
    refused(
        Route::Responses,
        &json!({"input": "x", "background": true}),
        Some("background"),
        "",
    );
    let fault = read(Route::Messages, &json!({"max_tokens": "many"})).unwrap_err();
    assert_eq!(
        error_body(Dialect::Anthropic, &fault)["error"]["type"],
        "invalid_request_error"
    );
    let body = error_body(Dialect::OpenaiChat, &fault);
    assert_eq!(body["error"]["param"], "max_tokens");
    assert!(body["error"]["code"].is_string());
}

#[test]
fn choices_of_tools_and_formats_are_understood_in_every_dialect() {
    let request = read(
        Route::Messages,
        &json!({
            "max_tokens": 5, "messages": [{"role": "user", "content": "x"}],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
            "thinking": {"type": "disabled"},
        }),
    )
    .unwrap();
    assert_eq!(
        (request.tool_choice, request.parallel_tool_calls),
        (ToolChoice::Required, false)
    );
    assert_eq!(request.format, OutputFormat::JsonSchema(json!({"type": "object"})));
    assert_eq!(request.template_variables["enable_thinking"], false);
    let request = read(
        Route::Responses,
        &json!({
            "input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "array"}}},
            "tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "f"},
        }),
    )
    .unwrap();
    assert_eq!(request.tool_choice, ToolChoice::Named("f".to_owned()));
    assert_eq!(request.format, OutputFormat::JsonSchema(json!({"type": "array"})));
    let count = read(
        Route::CountTokens,
        &json!({"messages": [{"role": "user", "content": "x"}]}),
    )
    .unwrap();
    assert_eq!(count.max_tokens, None);
}

#[test]
fn later_system_messages_keep_their_place_and_opening_ones_join() {
    let request = read(
        Route::ChatCompletions,
        &json!({"messages": [
            {"role": "system", "content": "a"}, {"role": "developer", "content": "b"},
            {"role": "user", "content": "x"}, {"role": "system", "content": "c"},
        ]}),
    )
    .unwrap();
    assert_eq!(
        Value::Array(request.messages),
        json!([
            {"role": "system", "content": "a\n\nb"},
            {"role": "user", "content": "x"},
            {"role": "system", "content": "c"},
        ])
    );
}

fn meta() -> ReplyMeta {
    ReplyMeta {
        id: "0123abcd".to_owned(),
        created: 1_700_000_000,
        model: "tiny \"m\"".to_owned(),
        fingerprint: "aa:1".to_owned(),
    }
}

fn deltas() -> Vec<Delta> {
    vec![
        Delta::Reasoning("hm".to_owned()),
        Delta::Reasoning(" ok".to_owned()),
        Delta::Text("He".to_owned()),
        Delta::Text("y".to_owned()),
        Delta::CallStart { name: "f".to_owned() },
        Delta::CallArguments("{\"a\":".to_owned()),
        Delta::CallArguments("1}".to_owned()),
        Delta::CallStart { name: "g".to_owned() },
        Delta::CallArguments("{}".to_owned()),
    ]
}

const USAGE: TokenUsage = TokenUsage {
    prompt: 10,
    completion: 9,
    cached: 4,
    reasoning: 2,
};

/// The frames of an answer of these deltas, parsed: (event name, data).
fn frames(route: Route, request: &ChatRequest, deltas: Vec<Delta>, finish: &Finish) -> Vec<(String, Value)> {
    let mut out = String::new();
    let mut stream = ReplyStream::new(route, meta(), request);
    stream.start(
        TokenUsage {
            completion: 0,
            reasoning: 0,
            ..USAGE
        },
        &mut out,
    );
    for delta in deltas {
        let token = TokenLogprob {
            bytes: b"x".to_vec(),
            logprob: -0.5,
            top: vec![(vec![0xff], f32::NEG_INFINITY)],
        };
        stream.push(
            0,
            vec![delta],
            if request.logprobs.is_some() {
                vec![token]
            } else {
                vec![]
            },
            &mut out,
        );
    }
    stream.finish(0, finish, &mut out);
    stream.end(USAGE, &mut out);
    assert!(out.ends_with("\n\n"));
    out.split_terminator("\n\n")
        .map(|frame| {
            let (name, data) = match frame.split_once('\n') {
                Some((name, data)) => (name.strip_prefix("event: ").unwrap(), data),
                None => ("", frame),
            };
            let data = data.strip_prefix("data: ").unwrap();
            let data = if data == "[DONE]" {
                Value::from(data)
            } else {
                serde_json::from_str(data).unwrap()
            };
            if !name.is_empty() {
                assert_eq!(data["type"], name);
            }
            (name.to_owned(), data)
        })
        .collect()
}

fn completed(finish: Finish) -> Completed {
    let mut choice = CompletedChoice::new(false);
    for delta in deltas() {
        choice.push(delta);
    }
    choice.finish = finish;
    Completed {
        choices: vec![choice],
        usage: USAGE,
    }
}

#[test]
fn a_chat_stream_says_what_the_body_says() {
    let request = ChatRequest {
        n: 1,
        include_usage: true,
        logprobs: Some(1),
        ..ChatRequest::default()
    };
    let frames = frames(Route::ChatCompletions, &request, deltas(), &Finish::ToolCalls);
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::<Value>::new());
    for (_, chunk) in &frames[..frames.len() - 2] {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["usage"], Value::Null);
        let delta = &chunk["choices"][0]["delta"];
        text.push_str(delta["content"].as_str().unwrap_or(""));
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or(""));
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            if let Some(open) = calls.get_mut(index) {
                let more = call["function"]["arguments"].as_str().unwrap();
                let all = open["function"]["arguments"].as_str().unwrap().to_owned() + more;
                open["function"]["arguments"] = Value::from(all);
            } else {
                let mut call = call.clone();
                call.as_object_mut().unwrap().shift_remove("index");
                calls.push(call);
            }
        }
    }
    let body = body(Route::ChatCompletions, &meta(), &request, &completed(Finish::ToolCalls));
    let message = &body["choices"][0]["message"];
    assert_eq!(message["content"], text.as_str());
    assert_eq!(message["reasoning_content"], reasoning.as_str());
    assert_eq!(message["tool_calls"], Value::Array(calls));
    let first = &frames[0].1;
    assert_eq!(first["id"], body["id"]);
    assert_eq!(
        first["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let last = &frames[frames.len() - 3].1;
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    let usage = &frames[frames.len() - 2].1;
    assert_eq!((&usage["choices"], &usage["usage"]), (&json!([]), &body["usage"]));
    assert_eq!(frames[frames.len() - 1].1, "[DONE]");
    let logprobs = &frames[3].1["choices"][0]["logprobs"]["content"][0];
    assert_eq!(
        *logprobs,
        json!({
            "token": "x", "logprob": -0.5, "bytes": [120],
            "top_logprobs": [{"token": "\u{fffd}", "logprob": -9999.0, "bytes": [255]}],
        })
    );
}

#[test]
fn an_anthropic_stream_opens_and_closes_every_block_in_order() {
    let request = ChatRequest {
        n: 1,
        ..ChatRequest::default()
    };
    let frames = frames(Route::Messages, &request, deltas(), &Finish::ToolCalls);
    let names: Vec<&str> = frames.iter().map(|(name, _)| name.as_str()).collect();
    let (start, delta, stop) = ("content_block_start", "content_block_delta", "content_block_stop");
    assert_eq!(
        names,
        [
            "message_start",
            start,
            delta,
            delta,
            delta,
            stop,
            start,
            delta,
            delta,
            stop,
            start,
            delta,
            delta,
            stop,
            start,
            delta,
            stop,
            "message_delta",
            "message_stop",
        ]
    );
    let mut blocks: Vec<Value> = Vec::new();
    let mut json_text = String::new();
    for (name, data) in &frames {
        match name.as_str() {
            "content_block_start" => {
                assert_eq!(data["index"], blocks.len());
                blocks.push(data["content_block"].clone());
                json_text.clear();
            }
            "content_block_delta" => {
                let block = blocks.last_mut().unwrap();
                let delta = &data["delta"];
                let (field, more) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", &delta["text"]),
                    "thinking_delta" => ("thinking", &delta["thinking"]),
                    "signature_delta" => ("signature", &delta["signature"]),
                    _ => ("input", &delta["partial_json"]),
                };
                if field == "input" {
                    json_text.push_str(more.as_str().unwrap());
                } else {
                    let all = block[field].as_str().unwrap().to_owned() + more.as_str().unwrap();
                    block[field] = Value::from(all);
                }
            }
            "content_block_stop" if !json_text.is_empty() => {
                blocks.last_mut().unwrap()["input"] = serde_json::from_str(&json_text).unwrap();
            }
            _ => {}
        }
    }
    let body = body(Route::Messages, &meta(), &request, &completed(Finish::ToolCalls));
    assert_eq!(body["content"], Value::Array(blocks));
    assert_eq!(frames[0].1["message"]["usage"]["cache_read_input_tokens"], 4);
    let end = &frames[frames.len() - 2].1;
    assert_eq!(end["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
    assert_eq!(end["usage"], body["usage"]);
    assert_eq!(body["usage"]["input_tokens"], 6);
}

#[test]
fn an_anthropic_stop_text_is_named_and_odd_arguments_are_kept() {
    let mut all = completed(Finish::StopText("END".to_owned()));
    all.choices[0].tool_calls[0].arguments = "{broken".to_owned();
    let body = body(Route::Messages, &meta(), &ChatRequest::default(), &all);
    assert_eq!(
        (&body["stop_reason"], &body["stop_sequence"]),
        (&json!("stop_sequence"), &json!("END"))
    );
    assert_eq!(body["content"][2]["input"], json!({"invalid_arguments": "{broken"}));
}

#[test]
fn a_responses_stream_ends_with_the_body() {
    let request = ChatRequest {
        n: 1,
        echo: json!({"instructions": "i", "temperature": 0.5})
            .as_object()
            .unwrap()
            .clone(),
        ..ChatRequest::default()
    };
    for (finish, last) in [
        (Finish::ToolCalls, "response.completed"),
        (Finish::Length, "response.incomplete"),
    ] {
        let frames = frames(Route::Responses, &request, deltas(), &finish);
        for (number, (_, data)) in frames.iter().enumerate() {
            assert_eq!(data["sequence_number"], number);
        }
        let body = body(Route::Responses, &meta(), &request, &completed(finish));
        let (name, data) = frames.last().unwrap();
        assert_eq!(name, last);
        assert_eq!(data["response"], body);
        assert_eq!(body["instructions"], "i");
        let items: Vec<Value> = frames
            .iter()
            .filter(|(name, _)| name == "response.output_item.done")
            .map(|(_, data)| data["item"].clone())
            .collect();
        assert_eq!(body["output"], Value::Array(items));
        let added = frames
            .iter()
            .filter(|(name, _)| name == "response.output_item.added")
            .count();
        assert_eq!(added, 4);
        let names: Vec<&str> = frames.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[..2], ["response.created", "response.in_progress"]);
    }
}

#[test]
fn an_answer_without_a_word_is_still_an_answer() {
    let request = ChatRequest {
        n: 1,
        ..ChatRequest::default()
    };
    let frames = frames(Route::Responses, &request, Vec::new(), &Finish::Stop);
    let output = &frames.last().unwrap().1["response"]["output"];
    assert_eq!(output[0]["content"][0]["text"], "");
    let mut empty = Completed {
        choices: vec![CompletedChoice::new(false)],
        usage: USAGE,
    };
    let whole = body(Route::Responses, &meta(), &request, &empty);
    assert_eq!(whole["output"], *output);
    empty.choices[0].finish = Finish::Stop;
    let chat = body(Route::ChatCompletions, &meta(), &request, &empty);
    assert_eq!(chat["choices"][0]["message"]["content"], "");
}
