//! What the dialects' readers share: text out of content parts, tools, stop texts, sampling ranges.

use serde_json::{Map, Value, json};

use super::super::fields::{Fields, Read, RequestFault};
use super::super::request::{ChatRequest, OutputFormat, SamplingChoice};

pub(super) const TEXT_ONLY: &str = "this model reads text only, so send text parts";
/// Most answers to one request: each takes a place in the batch.
const MAX_N: i64 = 16;

/// The body as an object.
pub(super) fn object(body: &[u8]) -> Read<Map<String, Value>> {
    match crate::sys::json::read(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(RequestFault::NotJson {
            reason: "it is another kind of JSON value".to_owned(),
        }),
        Err(error) => Err(RequestFault::NotJson {
            reason: error.to_string(),
        }),
    }
}

/// The text of a message's content: a string, or text parts joined by line breaks. `kinds` are the part types that
/// hold text in this dialect.
pub(super) fn text(content: &Value, at: &str, kinds: &[&str]) -> Read<String> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let mut texts = Vec::with_capacity(parts.len());
            for (index, part) in parts.iter().enumerate() {
                if let Value::String(text) = part {
                    texts.push(text.as_str());
                    continue;
                }
                let path = format!("{at}.{index}");
                let fields = Fields::of(part, &path)?;
                let kind = fields.need_string("type")?;
                if kind == "refusal" {
                    texts.push(fields.need_string("refusal")?);
                } else if kinds.contains(&kind) {
                    texts.push(fields.need_string("text")?);
                } else {
                    return fields.unsupported("type", format!("content of type '{kind}'"), TEXT_ONLY);
                }
            }
            Ok(texts.join("\n"))
        }
        _ => Err(RequestFault::WrongType {
            param: at.to_owned(),
            expected: "a string or an array of parts",
        }),
    }
}

/// A function as templates see it.
pub(super) fn function_tool(name: &str, description: Option<&str>, parameters: Option<&Value>) -> Value {
    let mut function = Map::new();
    function.insert("name".to_owned(), Value::from(name));
    if let Some(description) = description {
        function.insert("description".to_owned(), Value::from(description));
    }
    function.insert(
        "parameters".to_owned(),
        parameters
            .cloned()
            .unwrap_or_else(|| json!({"type": "object", "properties": {}})),
    );
    json!({"type": "function", "function": function})
}

/// A call as templates see it: arguments as an object where they are one, else the text the model once wrote.
pub(super) fn past_call(id: &str, name: &str, arguments: &str) -> Value {
    let arguments = if arguments.trim().is_empty() {
        json!({})
    } else {
        crate::sys::json::read_object(arguments.as_bytes()).map_or_else(|| Value::from(arguments), Value::Object)
    };
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// Stop texts: a string or an array of them.
pub(super) fn stop_texts(fields: &Fields<'_, '_>, name: &str) -> Read<Vec<String>> {
    let texts = match fields.get(name) {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(items)) => {
            let mut texts = Vec::with_capacity(items.len());
            for item in items {
                match item {
                    Value::String(text) => texts.push(text.clone()),
                    _ => return fields.wrong(name, "a string or an array of strings"),
                }
            }
            texts
        }
        Some(_) => return fields.wrong(name, "a string or an array of strings"),
    };
    if texts.len() > 16 || texts.iter().any(String::is_empty) {
        return Err(RequestFault::OutOfRange {
            param: fields.path(name),
            rule: "at most 16 texts, none of them empty".to_owned(),
        });
    }
    Ok(texts)
}

/// Sampling fields that every dialect spells the same, the customary extensions of local engines included.
pub(super) fn sampling(fields: &Fields<'_, '_>, max_temperature: f64) -> Read<SamplingChoice> {
    let top_k = fields.integer("top_k", -1, i64::MAX)?;
    Ok(SamplingChoice {
        temperature: fields.number("temperature", 0.0, max_temperature)?,
        top_p: fields.number("top_p", 0.0, 1.0)?,
        // Both -1 and 0 say "off" in the field.
        top_k: top_k.map(|k| usize::try_from(k).unwrap_or(0)),
        min_p: fields.number("min_p", 0.0, 1.0)?,
        repetition_penalty: positive(fields, "repetition_penalty")?,
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?,
        frequency_penalty: fields.number("frequency_penalty", -2.0, 2.0)?,
        seed: fields.integer("seed", i64::MIN, i64::MAX)?.map(i64::cast_unsigned),
        logit_bias: logit_bias(fields)?,
        min_tokens: fields.count("min_tokens", 0)?,
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
    })
}

fn positive(fields: &Fields<'_, '_>, name: &str) -> Read<Option<f32>> {
    match fields.number(name, 0.0, 10.0)? {
        Some(value) if value <= 0.0 => Err(RequestFault::OutOfRange {
            param: fields.path(name),
            rule: "above 0 and at most 10".to_owned(),
        }),
        value => Ok(value),
    }
}

fn logit_bias(fields: &Fields<'_, '_>) -> Read<Vec<(u32, f32)>> {
    let Some(map) = fields.object("logit_bias")? else {
        return Ok(Vec::new());
    };
    map.iter()
        .map(|(token, bias)| {
            let id: Option<u32> = token.parse().ok();
            match (id, bias.as_f64()) {
                (Some(id), Some(bias)) if (-100.0..=100.0).contains(&bias) => Ok((id, bias as f32)),
                _ => Err(RequestFault::OutOfRange {
                    param: fields.path("logit_bias"),
                    rule: "a map from token ids to numbers between -100 and 100".to_owned(),
                }),
            }
        })
        .collect()
}

pub(super) fn answers(fields: &Fields<'_, '_>) -> Read<usize> {
    Ok(fields
        .integer("n", 1, MAX_N)?
        .map_or(1, |n| usize::try_from(n).unwrap_or(1)))
}

/// `{"type": "text" | "json_object" | "json_schema", …}`; the schema lies in the object itself or under `json_schema`.
pub(super) fn output_format(value: &Value, at: &str) -> Read<OutputFormat> {
    let fields = Fields::of(value, at)?;
    match fields.need_string("type")? {
        "text" => Ok(OutputFormat::Text),
        "json_object" => Ok(OutputFormat::JsonObject),
        "json_schema" => {
            let nested = fields.object("json_schema")?.and_then(|inner| inner.get("schema"));
            match nested.or_else(|| fields.get("schema")) {
                Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(OutputFormat::JsonSchema(schema.clone())),
                Some(_) => fields.wrong("schema", "a JSON schema"),
                None => Err(RequestFault::Missing {
                    param: fields.path("schema"),
                }),
            }
        }
        other => fields.unsupported(
            "type",
            format!("output format '{other}'"),
            "use 'text', 'json_object' or 'json_schema'",
        ),
    }
}

/// `chat_template_kwargs`, which local engines take in every dialect.
pub(super) fn template_variables(fields: &Fields<'_, '_>) -> Read<Map<String, Value>> {
    let mut variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    for own in ["messages", "tools", "add_generation_prompt"] {
        variables.remove(own);
    }
    Ok(variables)
}

/// Joins the system messages that open a conversation into one: many templates read only the first.
pub(super) fn push_message(request: &mut ChatRequest, role: &str, content: String) {
    let opening_system = role == "system" && request.messages.len() == 1 && is_role(&request.messages[0], "system");
    if opening_system {
        let joined = match request.messages[0].get("content").and_then(Value::as_str) {
            Some(before) if !before.is_empty() => format!("{before}\n\n{content}"),
            _ => content,
        };
        request.messages[0] = json!({"role": "system", "content": joined});
    } else {
        request.messages.push(json!({"role": role, "content": content}));
    }
}

pub(super) fn is_role(message: &Value, role: &str) -> bool {
    message.get("role").and_then(Value::as_str) == Some(role)
}

/// A message list must hold something to answer.
pub(super) fn need_messages(request: &ChatRequest, param: &str) -> Read<()> {
    if request.messages.is_empty() {
        return Err(RequestFault::OutOfRange {
            param: param.to_owned(),
            rule: "a list of at least one message".to_owned(),
        });
    }
    Ok(())
}

/// A tool that is named must be among those offered.
pub(super) fn need_named_tool(request: &ChatRequest, name: &str, param: &str) -> Read<()> {
    if tool_names(&request.tools).any(|tool| tool == name) {
        return Ok(());
    }
    Err(RequestFault::OutOfRange {
        param: param.to_owned(),
        rule: "the name of a function in 'tools'".to_owned(),
    })
}

pub(super) fn tool_names(tools: &[Value]) -> impl Iterator<Item = &str> {
    tools
        .iter()
        .filter_map(|tool| tool.get("function")?.get("name")?.as_str())
}

/// An id such as `call_5f…`, from the id of the answer so that it needs no randomness of its own.
pub(super) fn derived_id(prefix: &str, reply_id: &str, number: usize) -> String {
    let stem = reply_id.rsplit(['-', '_']).next().unwrap_or(reply_id);
    format!("{prefix}{stem}{number:02x}")
}
