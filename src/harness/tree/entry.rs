//! One entry: an id, a kind, and what the kind needs.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::is_name;
use super::kinds::Body;
use super::refusal::{Refusal, Rule, shown};

/// The kinds of entries. The words are those of the upstream format where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Settings of the agent.
    Config,
    /// Standing instructions.
    Rules,
    /// A prompt template, called by name.
    AgentCommand,
    /// A bundle of files the agent reads when it needs them.
    Skill,
    /// Code the agent loads into its own process.
    CodeExtension,
    /// A script run at an event of the agent.
    Hook,
    /// An agent that the agent can call.
    Agent,
    /// A server of the Model Context Protocol.
    McpServer,
    /// Facts that were learned.
    Memory,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Config,
        Self::Rules,
        Self::AgentCommand,
        Self::Skill,
        Self::CodeExtension,
        Self::Hook,
        Self::Agent,
        Self::McpServer,
        Self::Memory,
    ];

    /// The word stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Rules => "rules",
            Self::AgentCommand => "agent_command",
            Self::Skill => "skill",
            Self::CodeExtension => "code_extension",
            Self::Hook => "hook",
            Self::Agent => "agent",
            Self::McpServer => "mcp_server",
            Self::Memory => "memory",
        }
    }

    /// The kind with this word, or with one people use for it.
    pub fn from_word(word: &str) -> Option<Self> {
        let word = match word {
            "prompt" | "command" => "agent_command",
            "extension" => "code_extension",
            other => other,
        };
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// Whether it is code that runs with the agent's own rights.
    pub fn runs_code(self) -> bool {
        matches!(self, Self::CodeExtension | Self::Hook | Self::McpServer)
    }
}

/// Who made an entry and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryProvenance {
    /// Who created it: `seed`, `person`, or the id of a proposal, an instruction or a step.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub created_by: String,
    /// Who changed it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<String>,
    /// When it was changed last, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<String>,
    /// Records it rests on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
}

/// One entry of a tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Unique in its tree.
    pub id: String,
    /// What the kind needs.
    pub body: Body,
    /// Kept and validated, but not rendered.
    pub disabled: bool,
    /// Who made it.
    pub provenance: Option<EntryProvenance>,
}

impl Entry {
    /// Reads one entry and holds it to the rules of its kind.
    pub fn from_json(value: &Value) -> Result<Self, Refusal> {
        let Some(fields) = value.as_object() else {
            return Err(Refusal::new(
                Rule::Shape,
                "an entry must be an object {\"id\", \"name\", \"config\"}",
            ));
        };
        let id = match fields.get("id") {
            Some(Value::String(id)) => id.as_str(),
            Some(_) => return Err(Refusal::new(Rule::Shape, "id must be text")),
            None => return Err(Refusal::new(Rule::Shape, "an entry has no id")),
        };
        Self::read(id, fields).map_err(|refusal| refusal.entry(id))
    }

    fn read(id: &str, fields: &Map<String, Value>) -> Result<Self, Refusal> {
        check_id(id)?;
        if fields.contains_key("group") || fields.contains_key("entries") {
            return Err(Refusal::new(
                Rule::Group,
                "groups are not supported; a tree is a flat list",
            ));
        }
        let known = ["id", "name", "kind", "config", "disabled", "provenance"];
        if let Some(key) = fields.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(Refusal::new(
                Rule::Shape,
                format!(
                    "there is no field \"{}\"; the fields are id, name, config, disabled and provenance",
                    shown(key)
                ),
            ));
        }
        let kind = match fields.get("name").or_else(|| fields.get("kind")) {
            Some(Value::String(word)) => kind_of(word)?,
            _ => return Err(Refusal::new(Rule::Shape, format!("name must be a kind: {}", kinds()))),
        };
        let config = match fields.get("config") {
            Some(config @ Value::Object(_)) => config,
            _ => return Err(Refusal::new(Rule::Shape, "config must be an object")),
        };
        let disabled = match fields.get("disabled") {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Bool(true)) => true,
            Some(_) => return Err(Refusal::new(Rule::Shape, "disabled must be true or false")),
        };
        let provenance = match fields.get("provenance") {
            None | Some(Value::Null) => None,
            Some(value) => Some(
                EntryProvenance::deserialize(value)
                    .map_err(|error| Refusal::new(Rule::Shape, format!("provenance: {error}")))?,
            ),
        };
        Ok(Self {
            id: id.to_owned(),
            body: Body::read(kind, config)?,
            disabled,
            provenance,
        })
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.body.kind()
    }

    /// The stored form.
    pub fn to_json(&self) -> Value {
        let mut value = json!({"id": self.id, "name": self.kind().as_str(), "config": self.body.to_json()});
        if self.disabled {
            value["disabled"] = Value::Bool(true);
        }
        if let Some(provenance) = &self.provenance {
            value["provenance"] = serde_json::to_value(provenance).unwrap_or_default();
        }
        value
    }
}

pub(super) fn check_id(id: &str) -> Result<(), Refusal> {
    if is_name(id) {
        return Ok(());
    }
    Err(Refusal::new(
        Rule::InvalidName,
        format!(
            "\"{}\" is not an id: use 1 to {} letters, digits, '.', '_' or '-', a letter or digit first",
            shown(id),
            super::LONGEST_NAME
        ),
    ))
}

pub(super) fn kind_of(word: &str) -> Result<Kind, Refusal> {
    Kind::from_word(word).ok_or_else(|| {
        let reason = if word.starts_with("native_") {
            format!(
                "{} belongs to the upstream project's own agent loop, which Reef has not; the kinds are {}",
                shown(word),
                kinds()
            )
        } else {
            format!("there is no kind \"{}\"; the kinds are {}", shown(word), kinds())
        };
        Refusal::new(Rule::UnknownKind, reason)
    })
}

fn kinds() -> String {
    Kind::ALL.map(Kind::as_str).join(", ")
}
