//! Anthropic messages and token counting, read.

use serde_json::{Value, json};

use super::super::fields::{Fields, Read, RequestFault};
use super::super::request::{ChatRequest, OutputFormat, ToolChoice};
use super::common;

const TEXT: &[&str] = &["text"];

/// Whether an answer is wanted or only a count of the prompt's tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Answer,
    Count,
}

pub(super) fn parse(body: &[u8], purpose: Purpose) -> Read<ChatRequest> {
    let map = common::object(body)?;
    let fields = Fields::root(&map);
    let max_tokens = fields.count("max_tokens", 1)?;
    if purpose == Purpose::Answer && max_tokens.is_none() {
        fields.need("max_tokens")?;
    }
    let mut request = ChatRequest {
        model: fields.string("model")?.map(str::to_owned),
        parallel_tool_calls: true,
        sampling: common::sampling(&fields, 1.0)?,
        stop: common::stop_texts(&fields, "stop_sequences")?,
        max_tokens,
        n: 1,
        format: format(&fields)?,
        stream: fields.boolean("stream")?.unwrap_or(false),
        include_usage: true,
        template_variables: common::template_variables(&fields)?,
        ..ChatRequest::default()
    };
    if let Some(thinking) = fields.get("thinking") {
        // "adaptive" and "enabled" leave the choice to the template's own default.
        if Fields::of(thinking, "thinking")?.need_string("type")? == "disabled" {
            request
                .template_variables
                .entry("enable_thinking")
                .or_insert(Value::Bool(false));
        }
    }
    if let Some(system) = fields.get("system") {
        let text = common::text(system, "system", TEXT)?;
        if !text.is_empty() {
            common::push_message(&mut request, "system", text);
        }
    }
    let messages = fields.array("messages")?.unwrap_or(&[]);
    if messages.is_empty() {
        return Err(RequestFault::OutOfRange {
            param: "messages".to_owned(),
            rule: "a list of at least one message".to_owned(),
        });
    }
    for (index, message) in messages.iter().enumerate() {
        push(&mut request, message, index)?;
    }
    tools(&fields, &mut request)?;
    tool_choice(&fields, &mut request)?;
    Ok(request)
}

fn format(fields: &Fields<'_, '_>) -> Read<OutputFormat> {
    if let Some(format) = fields.get("output_format") {
        return common::output_format(format, "output_format");
    }
    match fields.object("output_config")?.and_then(|config| config.get("format")) {
        Some(format) if !format.is_null() => common::output_format(format, "output_config.format"),
        _ => Ok(OutputFormat::Text),
    }
}

fn push(request: &mut ChatRequest, message: &Value, index: usize) -> Read<()> {
    let at = format!("messages.{index}");
    let fields = Fields::of(message, &at)?;
    let content = fields.need("content")?;
    match fields.need_string("role")? {
        "system" => {
            let text = common::text(content, &fields.path("content"), TEXT)?;
            common::push_message(request, "system", text);
        }
        "user" => user(request, content, &fields.path("content"))?,
        "assistant" => assistant(request, content, &fields.path("content"))?,
        _ => {
            return Err(RequestFault::OutOfRange {
                param: fields.path("role"),
                rule: "'user' or 'assistant'".to_owned(),
            });
        }
    }
    Ok(())
}

fn blocks<'a>(content: &'a Value, at: &str) -> Read<&'a [Value]> {
    match content {
        Value::Array(blocks) => Ok(blocks),
        _ => Err(RequestFault::WrongType {
            param: at.to_owned(),
            expected: "a string or an array of content blocks",
        }),
    }
}

/// A user's turn: tool results become messages of their own, in order, then the text.
fn user(request: &mut ChatRequest, content: &Value, at: &str) -> Read<()> {
    if let Value::String(text) = content {
        common::push_message(request, "user", text.clone());
        return Ok(());
    }
    let mut texts: Vec<&str> = Vec::new();
    for (index, block) in blocks(content, at)?.iter().enumerate() {
        let path = format!("{at}.{index}");
        let fields = Fields::of(block, &path)?;
        match fields.need_string("type")? {
            "text" => texts.push(fields.need_string("text")?),
            "tool_result" => {
                let result = match fields.get("content") {
                    Some(content) => common::text(content, &fields.path("content"), TEXT)?,
                    None => String::new(),
                };
                let failed = fields.boolean("is_error")? == Some(true);
                request.messages.push(json!({
                    "role": "tool",
                    "tool_call_id": fields.need_string("tool_use_id")?,
                    "content": if failed { format!("Error: {result}") } else { result },
                }));
            }
            "document" => {
                let source_at = fields.path("source");
                let source = Fields::of(fields.need("source")?, &source_at)?;
                if source.need_string("type")? != "text" {
                    return source.unsupported("type", "a document that is not plain text", common::TEXT_ONLY);
                }
                texts.push(source.need_string("data")?);
            }
            other => return fields.unsupported("type", format!("content of type '{other}'"), common::TEXT_ONLY),
        }
    }
    if !texts.is_empty() {
        common::push_message(request, "user", texts.join("\n"));
    }
    Ok(())
}

fn assistant(request: &mut ChatRequest, content: &Value, at: &str) -> Read<()> {
    if let Value::String(text) = content {
        common::push_message(request, "assistant", text.clone());
        return Ok(());
    }
    let mut texts: Vec<&str> = Vec::new();
    let mut reasoning: Vec<&str> = Vec::new();
    let mut calls = Vec::new();
    for (index, block) in blocks(content, at)?.iter().enumerate() {
        let path = format!("{at}.{index}");
        let fields = Fields::of(block, &path)?;
        match fields.need_string("type")? {
            "text" => texts.push(fields.need_string("text")?),
            "thinking" => reasoning.push(fields.need_string("thinking")?),
            // Another provider's sealed reasoning: nothing a model here could read.
            "redacted_thinking" => {}
            "tool_use" => calls.push(json!({
                "id": fields.need_string("id")?,
                "type": "function",
                "function": {
                    "name": fields.need_string("name")?,
                    "arguments": fields.object("input")?.cloned().unwrap_or_default(),
                },
            })),
            other => return fields.unsupported("type", format!("content of type '{other}'"), common::TEXT_ONLY),
        }
    }
    let mut entry = json!({"role": "assistant", "content": texts.join("\n")});
    if !reasoning.is_empty() {
        entry["reasoning_content"] = Value::from(reasoning.join("\n"));
    }
    if !calls.is_empty() {
        entry["tool_calls"] = Value::Array(calls);
    }
    request.messages.push(entry);
    Ok(())
}

/// The client's own tools. Tools that a provider would run itself carry a dated type and are not shown to the model.
fn tools(fields: &Fields<'_, '_>, request: &mut ChatRequest) -> Read<()> {
    for (index, tool) in fields.array("tools")?.unwrap_or(&[]).iter().enumerate() {
        let at = format!("tools.{index}");
        let tool = Fields::of(tool, &at)?;
        let own = tool.string("type")?.is_none_or(|kind| kind == "custom");
        if own {
            tool.object("input_schema")?;
            request.tools.push(common::function_tool(
                tool.need_string("name")?,
                tool.string("description")?,
                tool.get("input_schema"),
            ));
        }
    }
    Ok(())
}

fn tool_choice(fields: &Fields<'_, '_>, request: &mut ChatRequest) -> Read<()> {
    let Some(value) = fields.get("tool_choice") else {
        return Ok(());
    };
    let choice = Fields::of(value, "tool_choice")?;
    if choice.boolean("disable_parallel_tool_use")? == Some(true) {
        request.parallel_tool_calls = false;
    }
    request.tool_choice = match choice.need_string("type")? {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" if !request.tools.is_empty() => ToolChoice::Required,
        "tool" => {
            let name = choice.need_string("name")?;
            common::need_named_tool(request, name, "tool_choice.name")?;
            ToolChoice::Named(name.to_owned())
        }
        _ => {
            return Err(RequestFault::OutOfRange {
                param: "tool_choice.type".to_owned(),
                rule: "'auto', 'any' (with tools), 'tool' or 'none'".to_owned(),
            });
        }
    };
    Ok(())
}
