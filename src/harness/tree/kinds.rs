//! What each kind of entry needs, and the rules it is held to.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::entry::Kind;
use super::frontmatter;
use super::refusal::{Refusal, Rule, shown};
use super::{LONGEST_BINARY, LONGEST_CODE, LONGEST_FACT, LONGEST_TEXT, MOST_FACTS, MOST_SKILL_FILES, is_name};
use crate::domain::{Content, path_fault, readable};
use crate::harness::adapter::is_safe;

/// What an entry holds, by kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// Settings.
    Config(ConfigEntry),
    /// Standing instructions.
    Rules(RulesEntry),
    /// A prompt template.
    AgentCommand(CommandEntry),
    /// A bundle of files.
    Skill(SkillEntry),
    /// Code in the agent's process.
    CodeExtension(ExtensionEntry),
    /// A script at an event.
    Hook(HookEntry),
    /// A callable agent.
    Agent(AgentEntry),
    /// A server of the Model Context Protocol.
    McpServer(McpEntry),
    /// Learned facts.
    Memory(MemoryEntry),
}

/// `config`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigEntry {
    /// The adapter's configuration file.
    #[serde(default = "primary")]
    pub target: String,
    /// What is merged into it.
    pub data: Map<String, Value>,
}

fn primary() -> String {
    "primary".to_owned()
}

/// `rules`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RulesEntry {
    /// Markdown.
    pub text: String,
}

/// `agent_command`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandEntry {
    /// What it is called by.
    pub name: String,
    /// One line about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The prompt, with frontmatter of the agent's own if need be.
    pub text: String,
}

/// `skill`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkillEntry {
    /// Its directory.
    pub name: String,
    /// The whole `SKILL.md`.
    pub text: String,
    /// Further files by path: `scripts/…`, `references/…`, `assets/…`. A text that begins with `#!` is executable.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, Content>,
}

/// `code_extension`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtensionEntry {
    /// Its file.
    pub name: String,
    /// The source.
    pub code: String,
}

/// `hook`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookEntry {
    /// Its script.
    pub name: String,
    /// The agent's event.
    pub event: String,
    /// What of the event, in the agent's own pattern language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matcher: Option<String>,
    /// A POSIX shell script.
    pub script: String,
    /// Seconds it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
}

/// `agent`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentEntry {
    /// What it is called by.
    pub name: String,
    /// When to call it.
    pub description: String,
    /// Its instructions.
    pub prompt: String,
    /// The tools it may use; all without it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
}

/// `mcp_server`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpEntry {
    /// Its name.
    pub name: String,
    /// The program, for a server that is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its variables; a credential as a reference such as `${NAME}`.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub env: IndexMap<String, String>,
    /// The address, for a server that runs elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// `memory`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryEntry {
    /// Facts by key. A key is a name like an entry's id.
    pub facts: BTreeMap<String, Fact>,
}

/// One learned fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// The fact.
    pub text: String,
    /// Where it was learned: record ids, a person, a document.
    pub source: String,
    /// When it was learned, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned_at: Option<String>,
    /// When it stops being rendered, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

impl Fact {
    /// Whether it is over at an instant.
    pub fn expired(&self, at: OffsetDateTime) -> bool {
        self.expires_at
            .as_deref()
            .and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok())
            .is_some_and(|end| end <= at)
    }
}

impl Body {
    pub(super) fn read(kind: Kind, config: &Value) -> Result<Self, Refusal> {
        let body = match kind {
            Kind::Config => Self::Config(typed(kind, config)?),
            Kind::Rules => Self::Rules(typed(kind, config)?),
            Kind::AgentCommand => Self::AgentCommand(typed(kind, config)?),
            Kind::Skill => Self::Skill(typed(kind, config)?),
            Kind::CodeExtension => Self::CodeExtension(typed(kind, config)?),
            Kind::Hook => Self::Hook(typed(kind, config)?),
            Kind::Agent => Self::Agent(typed(kind, config)?),
            Kind::McpServer => Self::McpServer(typed(kind, config)?),
            Kind::Memory => Self::Memory(typed(kind, config)?),
        };
        body.check()?;
        Ok(body)
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Config(_) => Kind::Config,
            Self::Rules(_) => Kind::Rules,
            Self::AgentCommand(_) => Kind::AgentCommand,
            Self::Skill(_) => Kind::Skill,
            Self::CodeExtension(_) => Kind::CodeExtension,
            Self::Hook(_) => Kind::Hook,
            Self::Agent(_) => Kind::Agent,
            Self::McpServer(_) => Kind::McpServer,
            Self::Memory(_) => Kind::Memory,
        }
    }

    /// The stored form.
    pub fn to_json(&self) -> Value {
        let value = match self {
            Self::Config(entry) => serde_json::to_value(entry),
            Self::Rules(entry) => serde_json::to_value(entry),
            Self::AgentCommand(entry) => serde_json::to_value(entry),
            Self::Skill(entry) => serde_json::to_value(entry),
            Self::CodeExtension(entry) => serde_json::to_value(entry),
            Self::Hook(entry) => serde_json::to_value(entry),
            Self::Agent(entry) => serde_json::to_value(entry),
            Self::McpServer(entry) => serde_json::to_value(entry),
            Self::Memory(entry) => serde_json::to_value(entry),
        };
        // Texts, lists and maps with text keys always have a JSON form.
        value.unwrap_or_default()
    }

    /// The form people and models see, and the screens look at: files that are no text stand there as their size. Only a
    /// skill has such files; what looks like one elsewhere is a setting like any other.
    pub fn to_readable(&self) -> Value {
        match self {
            Self::Skill(_) => readable(&self.to_json()),
            _ => self.to_json(),
        }
    }

    fn check(&self) -> Result<(), Refusal> {
        match self {
            Self::Config(entry) => name("target", &entry.target),
            Self::Rules(entry) => text("text", &entry.text, LONGEST_TEXT),
            Self::AgentCommand(entry) => {
                name("name", &entry.name)?;
                if let Some(description) = &entry.description {
                    line("description", description)?;
                }
                text("text", &entry.text, LONGEST_TEXT)
            }
            Self::Skill(entry) => skill(entry),
            Self::CodeExtension(entry) => {
                name("name", &entry.name)?;
                text("code", &entry.code, LONGEST_CODE)?;
                console(&entry.code)
            }
            Self::Hook(entry) => {
                name("name", &entry.name)?;
                name("event", &entry.event)?;
                if let Some(matcher) = &entry.matcher {
                    line("matcher", matcher)?;
                }
                if entry.timeout_s.is_some_and(|seconds| !(1..=3600).contains(&seconds)) {
                    return Err(shape("timeout_s must be between 1 and 3600"));
                }
                text("script", &entry.script, LONGEST_CODE)
            }
            Self::Agent(entry) => {
                name("name", &entry.name)?;
                line("description", &entry.description)?;
                entry.tools.iter().try_for_each(|tool| line("tools", tool))?;
                text("prompt", &entry.prompt, LONGEST_TEXT)
            }
            Self::McpServer(entry) => mcp(entry),
            Self::Memory(entry) => memory(entry),
        }
    }
}

fn typed<T: DeserializeOwned>(kind: Kind, config: &Value) -> Result<T, Refusal> {
    T::deserialize(config).map_err(|error| shape(format!("config of kind {}: {error}", kind.as_str())))
}

fn shape(reason: impl Into<String>) -> Refusal {
    Refusal::new(Rule::Shape, reason)
}

fn name(what: &str, value: &str) -> Result<(), Refusal> {
    if is_name(value) {
        return Ok(());
    }
    Err(Refusal::new(
        Rule::InvalidName,
        format!(
            "{what} \"{}\" must be 1 to {} letters, digits, '.', '_' or '-', a letter or digit first",
            shown(value),
            super::LONGEST_NAME
        ),
    ))
}

fn text(what: &str, value: &str, most: usize) -> Result<(), Refusal> {
    if value.trim().is_empty() {
        return Err(shape(format!("{what} is empty")));
    }
    if value.len() > most {
        return Err(Refusal::new(
            Rule::TooLarge,
            format!("{what} has {} bytes; at most {most} are allowed", value.len()),
        ));
    }
    if value.contains('\0') {
        return Err(shape(format!("{what} holds a NUL character")));
    }
    Ok(())
}

fn line(what: &str, value: &str) -> Result<(), Refusal> {
    text(what, value, 1024)?;
    if value.chars().any(char::is_control) {
        return Err(shape(format!("{what} must be one line")));
    }
    Ok(())
}

fn skill(entry: &SkillEntry) -> Result<(), Refusal> {
    if !is_skill_name(&entry.name) {
        return Err(Refusal::new(
            Rule::InvalidName,
            format!(
                "skill name \"{}\" must be 1 to 64 lower-case letters, digits and single hyphens, none at an end",
                shown(&entry.name)
            ),
        ));
    }
    text("text", &entry.text, LONGEST_TEXT)?;
    frontmatter::check_skill(&entry.name, &entry.text)?;
    if entry.files.len() > MOST_SKILL_FILES {
        return Err(Refusal::new(
            Rule::TooLarge,
            format!(
                "the skill has {} files; at most {MOST_SKILL_FILES} are allowed",
                entry.files.len()
            ),
        ));
    }
    for (path, content) in &entry.files {
        let shown = shown(path);
        if !is_safe(path) || path.eq_ignore_ascii_case("SKILL.md") {
            return Err(Refusal::new(
                Rule::InvalidName,
                format!("files: \"{shown}\" must be a relative path without '..', other than SKILL.md"),
            ));
        }
        if let Some(problem) = path_fault(path) {
            return Err(Refusal::new(
                Rule::InvalidName,
                format!("files: \"{shown}\" cannot be released: {problem}"),
            ));
        }
        match content {
            Content::Text(content) => text(&format!("files \"{shown}\""), content, LONGEST_CODE)?,
            Content::Binary(bytes) => binary(&shown, path, bytes)?,
        }
    }
    Ok(())
}

/// What agents and people read as text has to be text, which is screened.
const TEXTS: [&str; 19] = [
    "bash", "c", "css", "csv", "html", "js", "json", "md", "mjs", "py", "rb", "sh", "svg", "toml", "ts", "txt", "xml",
    "yaml", "yml",
];

fn binary(shown: &str, path: &str, bytes: &[u8]) -> Result<(), Refusal> {
    if bytes.len() > LONGEST_BINARY {
        return Err(Refusal::new(
            Rule::TooLarge,
            format!(
                "files \"{shown}\" has {} bytes; at most {LONGEST_BINARY} are allowed",
                bytes.len()
            ),
        ));
    }
    let extension = path
        .rsplit_once('.')
        .map(|(_, extension)| extension.to_ascii_lowercase());
    if extension.is_some_and(|extension| TEXTS.contains(&extension.as_str())) || bytes.starts_with(b"#!") {
        return Err(shape(format!(
            "files \"{shown}\" must be UTF-8 text without NUL characters, by its name or its first line"
        )));
    }
    Ok(())
}

pub(super) fn is_skill_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

/// A write to the terminal from inside a full-screen agent destroys its screen, so one must ask first whether there is
/// a screen: the line, or the one before it, mentions `hasUI`.
fn console(code: &str) -> Result<(), Refusal> {
    let writes = [
        "console.log",
        "console.error",
        "console.warn",
        "console.info",
        "console.debug",
        "process.stdout",
        "process.stderr",
    ];
    let mut before = "";
    for (at, line) in code.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.is_empty() {
            continue;
        }
        let comment = trimmed.starts_with("//") || trimmed.starts_with('*') || trimmed.starts_with("/*");
        let guarded = line.contains("hasUI") || before.contains("hasUI");
        if !comment && !guarded && writes.iter().any(|write| line.contains(write)) {
            return Err(Refusal::new(
                Rule::ConsoleWrite,
                format!(
                    "line {} writes to the terminal, which destroys the agent's screen; ask for hasUI on that line or \
                     the one before, or use the agent's own notices",
                    at + 1
                ),
            ));
        }
        before = line;
    }
    Ok(())
}

fn mcp(entry: &McpEntry) -> Result<(), Refusal> {
    name("name", &entry.name)?;
    match (&entry.command, &entry.url) {
        (Some(command), None) => line("command", command)?,
        (None, Some(url)) => {
            let parsed: Option<http::Uri> = url.parse().ok();
            let fine = parsed.is_some_and(|uri| {
                matches!(uri.scheme_str(), Some("http" | "https"))
                    && uri
                        .authority()
                        .is_some_and(|authority| !authority.as_str().contains('@'))
            });
            if !fine {
                return Err(shape(
                    "url must start with http:// or https:// and hold no user or password",
                ));
            }
            if !entry.args.is_empty() || !entry.env.is_empty() {
                return Err(shape("args and env belong to a server that is started with command"));
            }
        }
        _ => return Err(shape("give either command or url")),
    }
    for argument in &entry.args {
        if argument.len() > 4096 || argument.contains('\0') {
            return Err(shape(
                "args: an argument is longer than 4096 bytes or holds a NUL character",
            ));
        }
    }
    entry.env.iter().try_for_each(|(key, value)| {
        name("env", key)?;
        if value.len() > 4096 || value.chars().any(char::is_control) {
            return Err(shape(format!("env {key}: must be one line of at most 4096 bytes")));
        }
        Ok(())
    })
}

fn memory(entry: &MemoryEntry) -> Result<(), Refusal> {
    if entry.facts.is_empty() {
        return Err(shape("facts is empty"));
    }
    if entry.facts.len() > MOST_FACTS {
        return Err(Refusal::new(
            Rule::TooLarge,
            format!(
                "there are {} facts; at most {MOST_FACTS} are allowed",
                entry.facts.len()
            ),
        ));
    }
    for (key, fact) in &entry.facts {
        name("facts", key)?;
        text(&format!("facts.{key}.text"), &fact.text, LONGEST_FACT * 4)?;
        if fact.text.chars().count() > LONGEST_FACT {
            return Err(Refusal::new(
                Rule::TooLarge,
                format!("facts.{key}.text has more than {LONGEST_FACT} characters"),
            ));
        }
        line(&format!("facts.{key}.source"), &fact.source)?;
        for (what, at) in [("learned_at", &fact.learned_at), ("expires_at", &fact.expires_at)] {
            if at
                .as_deref()
                .is_some_and(|at| OffsetDateTime::parse(at, &Rfc3339).is_err())
            {
                return Err(shape(format!(
                    "facts.{key}.{what} must be a date and time such as 2026-01-31T12:00:00Z"
                )));
            }
        }
    }
    Ok(())
}
