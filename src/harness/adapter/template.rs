//! Placeholders in descriptors: `{name}` in a text, or as the whole of a value, which then keeps its type.

use serde_json::{Map, Value};

/// Fills every `{placeholder}` of a template. A value that is one placeholder takes the filler as it is; a filler of
/// null, or an empty list or table, takes its key along. Words in braces that are no placeholder stay.
pub(crate) fn fill(template: &Value, fillers: &Map<String, Value>) -> Value {
    match template {
        Value::String(text) => fill_text(text, fillers),
        Value::Array(items) => {
            let filled = items.iter().map(|item| fill(item, fillers));
            Value::Array(filled.filter(|item| !item.is_null()).collect())
        }
        Value::Object(entries) => {
            let mut filled = Map::new();
            for (key, value) in entries {
                let value = fill(value, fillers);
                let Value::String(key) = fill_text(key, fillers) else {
                    continue;
                };
                if !value.is_null() {
                    filled.insert(key, value);
                }
            }
            Value::Object(filled)
        }
        other => other.clone(),
    }
}

fn fill_text(text: &str, fillers: &Map<String, Value>) -> Value {
    if let Some(name) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'))
        && let Some(value) = fillers.get(name)
    {
        return match value {
            Value::Array(items) if items.is_empty() => Value::Null,
            Value::Object(entries) if entries.is_empty() => Value::Null,
            value => value.clone(),
        };
    }
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        filled.push_str(&rest[..open]);
        rest = &rest[open..];
        let found = rest.find('}').and_then(|close| {
            let value = fillers.get(&rest[1..close])?;
            Some((close, value))
        });
        match found {
            Some((close, value)) => {
                match value {
                    Value::String(text) => filled.push_str(text),
                    Value::Null => {}
                    other => filled.push_str(&other.to_string()),
                }
                rest = &rest[close + 1..];
            }
            None => {
                filled.push('{');
                rest = &rest[1..];
            }
        }
    }
    filled.push_str(rest);
    Value::String(filled)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn placeholders_keep_their_type_and_absent_ones_take_their_key() {
        let fillers = json!({"model": "m", "window": 8, "none": null, "list": ["a", "b"], "empty": []});
        let template = json!({
            "{model}": {"id": "x/{model}", "window": "{window}", "gone": "{none}", "args": "{list}", "no": "{empty}"},
            "kept": ["{other}", "a{model}b", "{"],
        });
        assert_eq!(
            fill(&template, fillers.as_object().unwrap()),
            json!({
                "m": {"id": "x/m", "window": 8, "args": ["a", "b"]},
                "kept": ["{other}", "amb", "{"],
            })
        );
    }
}
