//! OpenAI chat completions, read.

use serde_json::{Value, json};

use super::super::fields::{Fields, Read, RequestFault};
use super::super::request::{ChatRequest, OutputFormat, ToolChoice};
use super::common;

const TEXT: &[&str] = &["text", "input_text", "output_text"];

pub(super) fn parse(body: &[u8]) -> Read<ChatRequest> {
    let map = common::object(body)?;
    let fields = Fields::root(&map);
    let mut request = ChatRequest {
        model: fields.string("model")?.map(str::to_owned),
        parallel_tool_calls: fields.boolean("parallel_tool_calls")?.unwrap_or(true),
        sampling: common::sampling(&fields, 2.0)?,
        stop: common::stop_texts(&fields, "stop")?,
        max_tokens: match fields.count("max_completion_tokens", 1)? {
            Some(most) => Some(most),
            None => fields.count("max_tokens", 1)?,
        },
        n: common::answers(&fields)?,
        logprobs: logprobs(&fields)?,
        format: match fields.get("response_format") {
            Some(format) => common::output_format(format, "response_format")?,
            None => OutputFormat::Text,
        },
        stream: fields.boolean("stream")?.unwrap_or(false),
        include_usage: match fields.get("stream_options") {
            Some(options) => Fields::of(options, "stream_options")?
                .boolean("include_usage")?
                .unwrap_or(false),
            None => false,
        },
        template_variables: common::template_variables(&fields)?,
        ..ChatRequest::default()
    };
    if fields.get("audio").is_some() {
        return fields.unsupported("audio", "audio output", common::TEXT_ONLY);
    }
    if fields.string("reasoning_effort")? == Some("none") {
        request
            .template_variables
            .entry("enable_thinking")
            .or_insert(Value::Bool(false));
    }
    for (index, message) in fields.array("messages")?.unwrap_or(&[]).iter().enumerate() {
        push(&mut request, message, index)?;
    }
    common::need_messages(&request, "messages")?;
    tools(&fields, &mut request)?;
    request.tool_choice = tool_choice(&fields, &request)?;
    Ok(request)
}

fn logprobs(fields: &Fields<'_, '_>) -> Read<Option<usize>> {
    let top = fields.integer("top_logprobs", 0, 20)?;
    match (fields.boolean("logprobs")?.unwrap_or(false), top) {
        (true, top) => Ok(Some(top.map_or(0, |n| usize::try_from(n).unwrap_or(0)))),
        (false, Some(1..)) => Err(RequestFault::OutOfRange {
            param: fields.path("top_logprobs"),
            rule: "used together with 'logprobs': true".to_owned(),
        }),
        (false, _) => Ok(None),
    }
}

fn push(request: &mut ChatRequest, message: &Value, index: usize) -> Read<()> {
    let at = format!("messages.{index}");
    let fields = Fields::of(message, &at)?;
    let content = || {
        common::text(
            fields.get("content").unwrap_or(&Value::Null),
            &fields.path("content"),
            TEXT,
        )
    };
    match fields.need_string("role")? {
        "system" | "developer" => common::push_message(request, "system", content()?),
        "user" => {
            fields.need("content")?;
            common::push_message(request, "user", content()?);
        }
        "assistant" => {
            let mut entry = json!({"role": "assistant", "content": content()?});
            let calls = fields.array("tool_calls")?.unwrap_or(&[]);
            let mut past = Vec::with_capacity(calls.len());
            for (number, call) in calls.iter().enumerate() {
                let at = format!("{at}.tool_calls.{number}");
                let call = Fields::of(call, &at)?;
                let path = call.path("function");
                let function = Fields::of(call.need("function")?, &path)?;
                past.push(common::past_call(
                    call.string("id")?.unwrap_or(""),
                    function.need_string("name")?,
                    function.string("arguments")?.unwrap_or(""),
                ));
            }
            if !past.is_empty() {
                entry["tool_calls"] = Value::Array(past);
            }
            let reasoning = match fields.string("reasoning_content")? {
                Some(text) => Some(text),
                None => fields.string("reasoning")?,
            };
            if let Some(text) = reasoning {
                entry["reasoning_content"] = Value::from(text);
            }
            request.messages.push(entry);
        }
        role @ ("tool" | "function") => {
            let mut entry = json!({"role": "tool", "content": content()?});
            if role == "tool" {
                entry["tool_call_id"] = Value::from(fields.need_string("tool_call_id")?);
            }
            if let Some(name) = fields.string("name")? {
                entry["name"] = Value::from(name);
            }
            request.messages.push(entry);
        }
        _ => {
            return Err(RequestFault::OutOfRange {
                param: fields.path("role"),
                rule: "one of 'system', 'developer', 'user', 'assistant', 'tool'".to_owned(),
            });
        }
    }
    Ok(())
}

fn tools(fields: &Fields<'_, '_>, request: &mut ChatRequest) -> Read<()> {
    for (index, tool) in fields.array("tools")?.unwrap_or(&[]).iter().enumerate() {
        let at = format!("tools.{index}");
        let tool = Fields::of(tool, &at)?;
        let kind = tool.need_string("type")?;
        if kind != "function" {
            return tool.unsupported(
                "type",
                format!("a tool of type '{kind}'"),
                "offer tools of type 'function'",
            );
        }
        let path = tool.path("function");
        let function = Fields::of(tool.need("function")?, &path)?;
        function.object("parameters")?;
        request.tools.push(common::function_tool(
            function.need_string("name")?,
            function.string("description")?,
            function.get("parameters"),
        ));
    }
    Ok(())
}

fn tool_choice(fields: &Fields<'_, '_>, request: &ChatRequest) -> Read<ToolChoice> {
    match fields.get("tool_choice") {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" if request.tools.is_empty() => Err(RequestFault::OutOfRange {
                param: "tool_choice".to_owned(),
                rule: "'none' or 'auto' when no tools are offered".to_owned(),
            }),
            "required" => Ok(ToolChoice::Required),
            _ => Err(RequestFault::OutOfRange {
                param: "tool_choice".to_owned(),
                rule: "'none', 'auto', 'required' or a named function".to_owned(),
            }),
        },
        Some(value) => {
            let choice = Fields::of(value, "tool_choice")?;
            let function = Fields::of(choice.need("function")?, "tool_choice.function")?;
            let name = function.need_string("name")?;
            common::need_named_tool(request, name, "tool_choice.function.name")?;
            Ok(ToolChoice::Named(name.to_owned()))
        }
    }
}
