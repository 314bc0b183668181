//! Configuration files of agents: one tree of values, written as JSON, TOML, YAML or a dotenv file.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::AdapterError;

/// How a configuration file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DocumentFormat {
    /// JSON, keys sorted, indented by two.
    Json,
    /// TOML, keys sorted.
    Toml,
    /// YAML, in its JSON form: every YAML 1.2 reader takes it.
    Yaml,
    /// `NAME=value` lines.
    Dotenv,
}

impl DocumentFormat {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Json => "JSON",
            Self::Toml => "TOML",
            Self::Yaml => "YAML in its JSON form",
            Self::Dotenv => "a dotenv file",
        }
    }

    /// Reads a file that [`text`] wrote.
    pub(in crate::harness) fn read(self, path: &str, text: &str) -> Result<Map<String, Value>, AdapterError> {
        let bad = |fault: String| AdapterError::Document {
            path: path.to_owned(),
            format: self.as_str(),
            fault,
        };
        let value: Value = match self {
            Self::Json | Self::Yaml => serde_json::from_str(text).map_err(|error| bad(error.to_string()))?,
            Self::Toml => toml::from_str(text).map_err(|error| bad(error.message().to_owned()))?,
            Self::Dotenv => Value::Object(dotenv(text).map_err(bad)?),
        };
        match value {
            Value::Object(map) => Ok(map),
            _ => Err(bad("the file holds no table".to_owned())),
        }
    }
}

/// The text of a configuration file. Fails with the reason when the format cannot hold the values.
pub(crate) fn text(format: DocumentFormat, data: &Map<String, Value>) -> Result<String, String> {
    let data = sorted(&Value::Object(data.clone()));
    let mut text = match format {
        DocumentFormat::Json | DocumentFormat::Yaml => {
            serde_json::to_string_pretty(&data).map_err(|error| error.to_string())?
        }
        DocumentFormat::Toml => toml::to_string_pretty(&data).map_err(|error| error.to_string())?,
        DocumentFormat::Dotenv => {
            let mut text = String::new();
            for (name, value) in data.as_object().into_iter().flatten() {
                let value = match value {
                    Value::String(text) => text.clone(),
                    Value::Bool(_) | Value::Number(_) => value.to_string(),
                    _ => return Err(format!("{name} must be a text, a number or a truth value")),
                };
                if !is_variable(name) {
                    return Err(format!("{name:?} is not the name of an environment variable"));
                }
                if value.chars().any(char::is_control) {
                    return Err(format!("{name} holds a control character"));
                }
                let quoted = value.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$");
                // Writing to a string cannot fail.
                let _written = writeln!(text, "{name}=\"{quoted}\"");
            }
            text
        }
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

fn dotenv(text: &str) -> Result<Map<String, Value>, String> {
    let mut map = Map::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line
            .split_once('=')
            .filter(|(name, _)| is_variable(name))
            .ok_or_else(|| format!("line {} is not NAME=value", at + 1))?;
        let value = match value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            Some(quoted) => quoted.replace("\\$", "$").replace("\\\"", "\"").replace("\\\\", "\\"),
            None => value.to_owned(),
        };
        map.insert(name.to_owned(), Value::String(value));
    }
    Ok(map)
}

pub(super) fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Puts `from` over `into`: tables are merged, everything else is replaced.
pub(crate) fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => merge(below, above),
            _ => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut pairs: Vec<(&String, &Value)> = map.iter().collect();
            pairs.sort_by_key(|(key, _)| *key);
            Value::Object(
                pairs
                    .into_iter()
                    .map(|(key, value)| (key.clone(), sorted(value)))
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "a test hands over what it just wrote")]
    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn every_format_reads_back_what_it_wrote() {
        let data = map(json!({"b": {"x": 1, "a": [true, "t"]}, "a": "q\"\\$x"}));
        for format in [DocumentFormat::Json, DocumentFormat::Toml, DocumentFormat::Yaml] {
            let text = text(format, &data).unwrap();
            assert!(text.ends_with('\n'));
            assert_eq!(format.read("f", &text).unwrap(), data, "{text}");
        }
        let flat = map(json!({"B": "q\"\\$x", "A_1": "plain words"}));
        let written = text(DocumentFormat::Dotenv, &flat).unwrap();
        assert_eq!(written, "A_1=\"plain words\"\nB=\"q\\\"\\\\\\$x\"\n");
        assert_eq!(DocumentFormat::Dotenv.read("f", &written).unwrap(), flat);
    }

    #[test]
    fn what_a_format_cannot_hold_is_refused() {
        for bad in [json!({"a b": "x"}), json!({"A": {"b": 1}}), json!({"A": "one\ntwo"})] {
            assert!(text(DocumentFormat::Dotenv, &map(bad)).is_err());
        }
        assert!(text(DocumentFormat::Toml, &map(json!({"a": null}))).is_err());
        assert!(DocumentFormat::Json.read("settings.json", "[1]").is_err());
        let error = DocumentFormat::Json.read("settings.json", "{ // no").unwrap_err();
        assert!(
            error.to_string().starts_with("settings.json is not valid JSON"),
            "{error}"
        );
    }

    #[test]
    fn tables_merge_and_lists_are_replaced() {
        let mut below = map(json!({"a": {"x": 1, "y": 2}, "l": [1, 2]}));
        merge(&mut below, &map(json!({"a": {"y": 3}, "l": [9]})));
        assert_eq!(Value::Object(below), json!({"a": {"x": 1, "y": 3}, "l": [9]}));
    }
}
