//! The reference of all settings, and their JSON Schema, from the same declarations that read them.

use std::fmt::Write;

use serde_json::{Map, Value as Json, json};

use super::tree::canonical;
use super::variables::name_of;
use super::{Field, Kind, Settings};

/// The reference as Markdown, one table for each section.
pub fn markdown() -> String {
    let mut text = String::new();
    for (path, about, fields) in Settings::SECTIONS {
        // Writing to a String cannot fail.
        let _infallible = writeln!(text, "## `{path}`\n\n{}\n", paragraph(about));
        if fields.is_empty() {
            continue;
        }
        text.push_str("| key | type | default | environment | |\n|---|---|---|---|---|\n");
        for field in *fields {
            let _infallible = writeln!(
                text,
                "| `{path}.{}` | {} | {} | {} | {} |",
                canonical(field.name),
                field.type_name(),
                default(field),
                format_args!("`{}`", name_of(&format!("{path}.{}", canonical(field.name)), field)),
                description(field).replace('|', "\\|"),
            );
        }
        text.push('\n');
    }
    text
}

fn paragraph(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

fn default(field: &Field) -> String {
    match field.default_json() {
        None => String::new(),
        Some(Json::String(text)) => format!("`{text}`"),
        Some(Json::Array(items)) if items.is_empty() => "none".to_owned(),
        Some(Json::Object(_)) => "none".to_owned(),
        Some(other) => format!("`{other}`"),
    }
}

fn description(field: &Field) -> String {
    let mut text = field.doc_text();
    let bounds = field.min.is_some() || field.max.is_some();
    if bounds || matches!(field.kind, Kind::Choice(_)) {
        let expected = field.expected();
        let _infallible = write!(text, " Expects {expected}.");
    }
    if field.secret {
        text.push_str(" Never shown.");
    }
    text
}

/// A JSON Schema of the deployment file, for editors.
pub fn json_schema() -> Json {
    let mut root = object("Deployment file of Reef");
    for (path, about, fields) in Settings::SECTIONS {
        let mut section = &mut root;
        for part in path.split('.') {
            let properties = &mut section["properties"];
            if properties.get(part).is_none() {
                properties[part] = object(&paragraph(about));
            }
            section = &mut properties[part];
        }
        if let Some(properties) = section["properties"].as_object_mut() {
            for field in *fields {
                add(properties, field);
            }
        }
    }
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    root["properties"]["schema-version"] = json!({"const": 2});
    // Keys beside `reef.recipe` are the recipe's own.
    root["properties"]["reef"]["additionalProperties"] = true.into();
    root
}

fn object(about: &str) -> Json {
    json!({"type": "object", "description": about, "additionalProperties": false, "properties": {}})
}

/// Both spellings, the hyphenated one with its description.
fn add(properties: &mut Map<String, Json>, field: &Field) {
    let schema = field.json_schema();
    let schema = if field.optional {
        let mut schema = schema;
        if let Some(kind) = schema.get_mut("type") {
            let mut kinds = match kind.take() {
                Json::Array(kinds) => kinds,
                one => vec![one],
            };
            kinds.push("null".into());
            *kind = Json::Array(kinds);
        }
        schema
    } else {
        schema
    };
    let name = canonical(field.name).into_owned();
    if name != field.name {
        properties.insert(field.name.to_owned(), schema.clone());
    }
    properties.insert(name, schema);
}
