//! OpenAI responses, read. The engine keeps no responses, so what refers to an earlier one is refused.

use serde_json::{Map, Value, json};

use super::super::fields::{Fields, Read, RequestFault};
use super::super::request::{ChatRequest, OutputFormat, ToolChoice};
use super::common;

const TEXT: &[&str] = &["input_text", "output_text", "text", "summary_text", "reasoning_text"];
const STATELESS: &str = "send the whole conversation in 'input'";

pub(super) fn parse(body: &[u8]) -> Read<ChatRequest> {
    let map = common::object(body)?;
    let fields = Fields::root(&map);
    for name in ["previous_response_id", "conversation", "prompt"] {
        if fields.get(name).is_some() {
            return fields.unsupported(name, "stored state", STATELESS);
        }
    }
    if fields.boolean("background")? == Some(true) {
        return fields.unsupported(
            "background",
            "an answer in the background",
            "leave it out or set it to false",
        );
    }
    let mut request = ChatRequest {
        model: fields.string("model")?.map(str::to_owned),
        parallel_tool_calls: fields.boolean("parallel_tool_calls")?.unwrap_or(true),
        sampling: common::sampling(&fields, 2.0)?,
        stop: common::stop_texts(&fields, "stop")?,
        max_tokens: fields.count("max_output_tokens", 1)?,
        n: 1,
        logprobs: logprobs(&fields)?,
        format: match fields.get("text") {
            Some(text) => match Fields::of(text, "text")?.get("format") {
                Some(format) => common::output_format(format, "text.format")?,
                None => OutputFormat::Text,
            },
            None => OutputFormat::Text,
        },
        stream: fields.boolean("stream")?.unwrap_or(false),
        include_usage: true,
        template_variables: common::template_variables(&fields)?,
        echo: echo(&map),
        ..ChatRequest::default()
    };
    if let Some(reasoning) = fields.get("reasoning")
        && Fields::of(reasoning, "reasoning")?.string("effort")? == Some("none")
    {
        request
            .template_variables
            .entry("enable_thinking")
            .or_insert(Value::Bool(false));
    }
    if let Some(instructions) = fields.string("instructions")? {
        common::push_message(&mut request, "system", instructions.to_owned());
    }
    match fields.need("input")? {
        Value::String(text) => common::push_message(&mut request, "user", text.clone()),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                push(&mut request, item, index)?;
            }
        }
        _ => return fields.wrong("input", "a string or an array of items"),
    }
    common::need_messages(&request, "input")?;
    tools(&fields, &mut request)?;
    request.tool_choice = tool_choice(&fields, &request)?;
    Ok(request)
}

/// What the answer repeats of the request.
fn echo(map: &Map<String, Value>) -> Map<String, Value> {
    let names = [
        "instructions",
        "max_output_tokens",
        "metadata",
        "parallel_tool_calls",
        "reasoning",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_p",
        "user",
    ];
    names
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), map.get(*name)?.clone())))
        .collect()
}

fn logprobs(fields: &Fields<'_, '_>) -> Read<Option<usize>> {
    let top = fields
        .integer("top_logprobs", 0, 20)?
        .map_or(0, |n| usize::try_from(n).unwrap_or(0));
    let asked = fields
        .array("include")?
        .unwrap_or(&[])
        .iter()
        .any(|name| name.as_str() == Some("message.output_text.logprobs"));
    Ok((asked || top > 0).then_some(top))
}

fn push(request: &mut ChatRequest, item: &Value, index: usize) -> Read<()> {
    let at = format!("input.{index}");
    let fields = Fields::of(item, &at)?;
    match fields.string("type")?.unwrap_or("message") {
        "message" => {
            let content = common::text(fields.need("content")?, &fields.path("content"), TEXT)?;
            match fields.need_string("role")? {
                "system" | "developer" => common::push_message(request, "system", content),
                "user" => common::push_message(request, "user", content),
                "assistant" => {
                    let open = open_assistant(request);
                    let before = open["content"].as_str().unwrap_or("");
                    open["content"] = Value::from(if before.is_empty() {
                        content
                    } else {
                        format!("{before}\n{content}")
                    });
                }
                _ => {
                    return Err(RequestFault::OutOfRange {
                        param: fields.path("role"),
                        rule: "one of 'system', 'developer', 'user', 'assistant'".to_owned(),
                    });
                }
            }
        }
        "function_call" => {
            let call = common::past_call(
                fields.need_string("call_id")?,
                fields.need_string("name")?,
                fields.string("arguments")?.unwrap_or(""),
            );
            push_call(request, call);
        }
        "custom_tool_call" => {
            let input = json!({"input": fields.string("input")?.unwrap_or("")});
            let call = common::past_call(
                fields.need_string("call_id")?,
                fields.need_string("name")?,
                &input.to_string(),
            );
            push_call(request, call);
        }
        "function_call_output" | "custom_tool_call_output" => {
            let content = common::text(fields.need("output")?, &fields.path("output"), TEXT)?;
            request.messages.push(json!({
                "role": "tool",
                "tool_call_id": fields.need_string("call_id")?,
                "content": content,
            }));
        }
        "reasoning" => {
            let text = match fields.get("content") {
                Some(content) => common::text(content, &fields.path("content"), TEXT)?,
                None => match fields.get("summary") {
                    Some(summary) => common::text(summary, &fields.path("summary"), TEXT)?,
                    None => String::new(),
                },
            };
            if !text.is_empty() {
                open_assistant(request)["reasoning_content"] = Value::from(text);
            }
        }
        "item_reference" => return fields.unsupported("type", "a reference to a stored item", STATELESS),
        other => {
            return fields.unsupported(
                "type",
                format!("an input item of type '{other}'"),
                "send messages, function calls and their outputs",
            );
        }
    }
    Ok(())
}

/// The assistant's turn that items belong to, begun if the last message is another's.
fn open_assistant(request: &mut ChatRequest) -> &mut Value {
    let fresh = !request
        .messages
        .last()
        .is_some_and(|message| common::is_role(message, "assistant"));
    if fresh {
        request.messages.push(json!({"role": "assistant", "content": ""}));
    }
    let last = request.messages.len() - 1;
    &mut request.messages[last]
}

fn push_call(request: &mut ChatRequest, call: Value) {
    let open = open_assistant(request);
    match open.get_mut("tool_calls").and_then(Value::as_array_mut) {
        Some(calls) => calls.push(call),
        None => open["tool_calls"] = Value::Array(vec![call]),
    }
}

/// Function tools. Tools that a provider would run itself (web search and the like) cannot be called here and are not
/// shown to the model; agents list them whether or not the provider has them.
fn tools(fields: &Fields<'_, '_>, request: &mut ChatRequest) -> Read<()> {
    for (index, tool) in fields.array("tools")?.unwrap_or(&[]).iter().enumerate() {
        let at = format!("tools.{index}");
        let tool = Fields::of(tool, &at)?;
        if tool.need_string("type")? == "function" {
            tool.object("parameters")?;
            request.tools.push(common::function_tool(
                tool.need_string("name")?,
                tool.string("description")?,
                tool.get("parameters"),
            ));
        }
    }
    Ok(())
}

fn tool_choice(fields: &Fields<'_, '_>, request: &ChatRequest) -> Read<ToolChoice> {
    match fields.get("tool_choice") {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" if !request.tools.is_empty() => Ok(ToolChoice::Required),
            _ => Err(RequestFault::OutOfRange {
                param: "tool_choice".to_owned(),
                rule: "'none', 'auto', 'required' (with function tools) or a named function".to_owned(),
            }),
        },
        Some(value) => {
            let choice = Fields::of(value, "tool_choice")?;
            match choice.need_string("type")? {
                "function" => {
                    let name = choice.need_string("name")?;
                    common::need_named_tool(request, name, "tool_choice.name")?;
                    Ok(ToolChoice::Named(name.to_owned()))
                }
                other => choice.unsupported(
                    "type",
                    format!("a tool choice of type '{other}'"),
                    "choose 'auto', 'none', 'required' or a function",
                ),
            }
        }
    }
}
