//! JSON Schemas of what people and programs write: trees and mutations. The rules that a schema cannot say (frontmatter,
//! screens, an adapter's settings) are those of admission.

use serde_json::{Value, json};

use super::entry::Kind;
use super::{
    LONGEST_BINARY, LONGEST_CODE, LONGEST_FACT, LONGEST_NAME, LONGEST_TEXT, MOST_ENTRIES, MOST_FACTS, MOST_SKILL_FILES,
};

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Every schema with its file name.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        ("harness-tree.schema.json", tree()),
        ("harness-mutations.schema.json", mutations()),
    ]
}

fn tree() -> Value {
    json!({
        "$schema": DRAFT,
        "title": "Harness tree",
        "description": "The entries an agent's files are rendered from. A bare list of entries is accepted too.",
        "anyOf": [
            {"$ref": "#/$defs/entries"},
            {
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "format": {"const": "reef-tree/1"},
                    "adapter": {"type": "string", "description": "The adapter the tree was made for."},
                    "entries": {"$ref": "#/$defs/entries"},
                },
            },
        ],
        "$defs": definitions(),
    })
}

fn mutations() -> Value {
    json!({
        "$schema": DRAFT,
        "title": "Mutations of a harness tree",
        "description": "One proposal: applied in order, all of them or none.",
        "type": "array",
        "minItems": 1,
        "maxItems": MOST_ENTRIES,
        "items": {
            "type": "object",
            "additionalProperties": false,
            "required": ["op", "id"],
            "properties": {
                "op": {"enum": ["create", "update", "remove"]},
                "id": {"$ref": "#/$defs/name"},
                "options": {
                    "type": "object",
                    "description": "create: name, config, disabled. update: what is merged into the entry, null taking a key away.",
                },
            },
            "oneOf": [
                {
                    "properties": {
                        "op": {"const": "create"},
                        "options": {
                            "required": ["name", "config"],
                            "properties": {"name": {"$ref": "#/$defs/kind"}, "config": {"type": "object"}, "disabled": {"type": "boolean"}},
                        },
                    },
                    "required": ["options"],
                },
                {"properties": {"op": {"const": "update"}, "options": {"minProperties": 1}}, "required": ["options"]},
                {"properties": {"op": {"const": "remove"}, "options": {"maxProperties": 0}}},
            ],
        },
        "$defs": {"name": name(), "kind": {"enum": Kind::ALL.map(Kind::as_str)}},
    })
}

fn name() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$", "maxLength": LONGEST_NAME})
}

fn definitions() -> Value {
    let entry = |kind: Kind, about: &str, config: Value| {
        json!({
            "type": "object",
            "description": about,
            "additionalProperties": false,
            "required": ["id", "name", "config"],
            "properties": {
                "id": {"$ref": "#/$defs/name"},
                "name": {"const": kind.as_str()},
                "config": config,
                "disabled": {"type": "boolean", "description": "Kept and checked, but not rendered."},
                "provenance": {"$ref": "#/$defs/provenance"},
            },
        })
    };
    let object = |required: &[&str], properties: Value| {
        json!({
            "type": "object", "additionalProperties": false, "required": required, "properties": properties,
        })
    };
    let text = json!({"type": "string", "minLength": 1, "maxLength": LONGEST_TEXT});
    let code = json!({"type": "string", "minLength": 1, "maxLength": LONGEST_CODE});
    let file = json!({"anyOf": [code, object(
        &["encoding", "data"],
        json!({
            "encoding": {"const": "base64"},
            "data": {"type": "string", "contentEncoding": "base64", "maxLength": LONGEST_BINARY.div_ceil(3) * 4},
        }),
    )]});
    let line = json!({"type": "string", "minLength": 1, "maxLength": 1024});
    let instant = json!({"type": "string", "format": "date-time"});
    let named = json!({"$ref": "#/$defs/name"});
    let entries = [
        entry(
            Kind::Config,
            "Settings, merged into a configuration file of the agent; each adapter says which it allows.",
            object(&["data"], json!({"target": named, "data": {"type": "object"}})),
        ),
        entry(
            Kind::Rules,
            "Standing instructions, appended to the agent's rules file.",
            object(&["text"], json!({"text": text})),
        ),
        entry(
            Kind::AgentCommand,
            "A prompt template, called by name.",
            object(
                &["name", "text"],
                json!({"name": named, "description": line, "text": text}),
            ),
        ),
        entry(
            Kind::Skill,
            "A bundle of files the agent reads when it needs them. text is the whole SKILL.md, whose frontmatter holds name and description.",
            object(
                &["name", "text"],
                json!({
                    "name": {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$", "maxLength": 64},
                    "text": text,
                    "files": {"type": "object", "maxProperties": MOST_SKILL_FILES, "additionalProperties": file},
                }),
            ),
        ),
        entry(
            Kind::CodeExtension,
            "Code the agent loads into its own process.",
            object(&["name", "code"], json!({"name": named, "code": code})),
        ),
        entry(
            Kind::Hook,
            "A shell script run at an event of the agent.",
            object(
                &["name", "event", "script"],
                json!({
                    "name": named, "event": named, "matcher": line, "script": code,
                    "timeout_s": {"type": "integer", "minimum": 1, "maximum": 3600},
                }),
            ),
        ),
        entry(
            Kind::Agent,
            "An agent that the agent can call.",
            object(
                &["name", "description", "prompt"],
                json!({"name": named, "description": line, "prompt": text, "tools": {"type": "array", "items": line}}),
            ),
        ),
        entry(
            Kind::McpServer,
            "A server of the Model Context Protocol: started with command, or reached at url.",
            object(
                &["name"],
                json!({
                    "name": named, "command": line, "args": {"type": "array", "items": {"type": "string"}},
                    "env": {"type": "object", "additionalProperties": {"type": "string"}},
                    "url": {"type": "string", "pattern": "^https?://"},
                }),
            ),
        ),
        entry(
            Kind::Memory,
            "Facts that were learned, by key.",
            object(
                &["facts"],
                json!({
                    "facts": {
                        "type": "object",
                        "minProperties": 1,
                        "maxProperties": MOST_FACTS,
                        "additionalProperties": object(
                            &["text", "source"],
                            json!({
                                "text": {"type": "string", "minLength": 1, "maxLength": LONGEST_FACT},
                                "source": line, "learned_at": instant, "expires_at": instant,
                            }),
                        ),
                    },
                }),
            ),
        ),
    ];
    json!({
        "name": name(),
        "provenance": object(&[], json!({
            "created_by": {"type": "string"},
            "changed_by": {"type": "string"},
            "changed_at": instant,
            "evidence": {"type": "array", "items": {"type": "string"}},
        })),
        "entries": {"type": "array", "maxItems": MOST_ENTRIES, "items": {"oneOf": entries}},
    })
}
