//! From a tree to the files an agent reads: a pure function of the entries, the adapter and the instant at which facts
//! expire.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use super::document::{TREE_FILE, Tree};
use super::entry::{Entry, Kind};
use super::frontmatter;
use super::kinds::{AgentEntry, Body, CommandEntry, MemoryEntry, SkillEntry, is_skill_name};
use super::refusal::{Refusal, Rule};
use super::render_config::Configs;
use crate::domain::{Content, path_fault};
use crate::harness::adapter::{Adapter, AgentFormat, fill, is_safe, text};

/// Files at the root of a release that are not the agent's.
const RESERVED_FILES: [&str; 2] = [TREE_FILE, "reef-artifact.json"];

/// The files of a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// Content by path.
    pub files: BTreeMap<String, Content>,
    /// The paths that may be executed.
    pub executable: BTreeSet<String>,
}

/// Renders a tree for an agent. `at_us` is the instant at which expired facts are left out, in microseconds since 1970.
pub fn render(tree: &Tree, adapter: &Adapter, at_us: i64) -> Result<Rendered, Refusal> {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at_us) * 1_000)
        .map_err(|error| Refusal::new(Rule::Render, format!("the instant is out of range: {error}")))?;
    let mut output = Output::default();
    let mut configs = Configs::new(adapter);
    let mut rules = Vec::new();
    let mut facts = Vec::new();
    for entry in tree.entries.iter().filter(|entry| !entry.disabled) {
        let named = |refusal: Refusal| refusal.entry(&entry.id);
        supported(adapter, entry.kind()).map_err(named)?;
        match &entry.body {
            Body::Rules(entry) => rules.push(entry.text.trim().to_owned()),
            Body::Memory(memory) => facts.extend(remembered(memory, at)),
            Body::Config(config) => configs.merge(config).map_err(named)?,
            Body::McpServer(server) => configs.server(server).map_err(named)?,
            Body::Hook(hook) => {
                let path = configs.hook(hook).map_err(named)?;
                output.place(entry, path, &hook.script)?;
            }
            Body::AgentCommand(command) => {
                if let Some(template) = &adapter.files.agent_command {
                    let path = named_path(template, &command.name);
                    let text = command_text(command, path.ends_with("/SKILL.md")).map_err(named)?;
                    output.place(entry, path, &text)?;
                }
            }
            Body::Skill(skill) => bundle(&mut output, adapter, entry, skill)?,
            Body::CodeExtension(extension) => {
                if let Some(template) = &adapter.files.code_extension {
                    output.place(entry, named_path(template, &extension.name), &extension.code)?;
                }
            }
            Body::Agent(agent) => {
                let (path, text) = agent_file(adapter, agent).map_err(named)?;
                output.place(entry, path, &text)?;
            }
        }
    }
    write_rules(&mut output, adapter, rules, &facts)?;
    for (path, text) in configs.finish()? {
        output.place_as("a configuration file", path, &text)?;
    }
    Ok(output.rendered)
}

/// Whether the agent has a place for a kind.
pub(super) fn supported(adapter: &Adapter, kind: Kind) -> Result<(), Refusal> {
    let files = &adapter.files;
    let has = match kind {
        Kind::Config | Kind::Rules | Kind::Skill => true,
        Kind::AgentCommand => files.agent_command.is_some(),
        Kind::CodeExtension => files.code_extension.is_some(),
        Kind::Memory => files.memory.is_some(),
        Kind::Hook => adapter.hook.is_some(),
        Kind::Agent => adapter.agent.is_some(),
        Kind::McpServer => adapter.mcp_server.is_some(),
    };
    if has {
        return Ok(());
    }
    Err(Refusal::new(
        Rule::Unsupported,
        format!("{} has no place for entries of kind {}", adapter.title, kind.as_str()),
    ))
}

#[derive(Default)]
struct Output {
    rendered: Rendered,
    owners: BTreeMap<String, String>,
}

impl Output {
    fn place(&mut self, entry: &Entry, path: String, text: &str) -> Result<(), Refusal> {
        self.place_content(entry, path, &text.into())
    }

    fn place_content(&mut self, entry: &Entry, path: String, content: &Content) -> Result<(), Refusal> {
        self.put(&format!("entry \"{}\"", entry.id), path, content)
            .map_err(|refusal| refusal.entry(&entry.id))
    }

    fn place_as(&mut self, owner: &str, path: String, text: &str) -> Result<(), Refusal> {
        self.put(owner, path, &text.into())
    }

    fn put(&mut self, owner: &str, path: String, content: &Content) -> Result<(), Refusal> {
        if !is_safe(&path) {
            return Err(Refusal::new(
                Rule::Render,
                format!("\"{path}\" is not a relative path without '..'"),
            ));
        }
        if let Some(problem) = path_fault(&path) {
            return Err(Refusal::new(
                Rule::Render,
                format!("\"{path}\" cannot be released: {problem}"),
            ));
        }
        if RESERVED_FILES.contains(&path.to_lowercase().as_str()) {
            return Err(Refusal::new(
                Rule::Render,
                format!("\"{path}\" is a file that a release keeps for itself; give it another name"),
            ));
        }
        // The file systems of many users do not tell upper from lower case.
        let key = path.to_lowercase();
        let inside = |other: &str| key.starts_with(&format!("{other}/")) || other.starts_with(&format!("{key}/"));
        if let Some((_, other)) = self.owners.iter().find(|(other, _)| **other == key || inside(other)) {
            return Err(Refusal::new(
                Rule::Render,
                format!("\"{path}\" is written by {other} already; give one of them another name"),
            ));
        }
        if content.is_script() {
            self.rendered.executable.insert(path.clone());
        }
        let mut content = content.clone();
        if let Content::Text(text) = &mut content
            && !text.ends_with('\n')
        {
            text.push('\n');
        }
        self.owners.insert(key, owner.to_owned());
        self.rendered.files.insert(path, content);
        Ok(())
    }
}

fn named_path(template: &str, name: &str) -> String {
    template.replace("{name}", name)
}

fn bundle(output: &mut Output, adapter: &Adapter, entry: &Entry, skill: &SkillEntry) -> Result<(), Refusal> {
    let dir = named_path(&adapter.files.skill, &skill.name);
    output.place(entry, format!("{dir}/SKILL.md"), &skill.text)?;
    for (path, content) in &skill.files {
        output.place_content(entry, format!("{dir}/{path}"), content)?;
    }
    Ok(())
}

fn command_text(command: &CommandEntry, as_skill: bool) -> Result<String, Refusal> {
    let split = frontmatter::split(&command.text).map_err(|reason| Refusal::new(Rule::Shape, reason))?;
    if !as_skill {
        return Ok(match (&command.description, split) {
            (Some(description), None) => {
                frontmatter::write(&[("description", description)]) + command.text.trim_start()
            }
            _ => command.text.clone(),
        });
    }
    if !is_skill_name(&command.name) {
        return Err(Refusal::new(
            Rule::InvalidName,
            "this agent keeps commands as skills, whose names are lower-case letters, digits and single hyphens",
        ));
    }
    let (fields, body) = split.unwrap_or((Map::new(), &command.text));
    let said = match fields.get("description") {
        Some(Value::String(text)) if !text.trim().is_empty() => Some(text.trim().to_owned()),
        _ => command.description.clone(),
    };
    let description = said.unwrap_or_else(|| first_line(body));
    let head = frontmatter::write(&[("name", &command.name), ("description", &description)]);
    Ok(head + body.trim_start())
}

fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("");
    line.trim_start_matches(['#', ' ']).chars().take(200).collect()
}

fn agent_file(adapter: &Adapter, agent: &AgentEntry) -> Result<(String, String), Refusal> {
    let Some(spec) = &adapter.agent else {
        return Err(Refusal::new(Rule::Unsupported, "this agent calls no other agents"));
    };
    let tools = (!agent.tools.is_empty()).then(|| agent.tools.join(", "));
    let fillers = json!({
        "name": agent.name,
        "description": agent.description,
        "tools": agent.tools,
        "tool_names": tools,
        "prompt": agent.prompt.trim(),
    });
    let fillers = fillers.as_object().cloned().unwrap_or_default();
    let Value::Object(fields) = fill(&Value::Object(spec.fields.clone()), &fillers) else {
        return Err(Refusal::new(Rule::Render, "the descriptor's agent fields are no table"));
    };
    let path = named_path(&spec.path, &agent.name);
    let text = match spec.format {
        AgentFormat::Toml => text(crate::harness::adapter::DocumentFormat::Toml, &fields)
            .map_err(|reason| Refusal::new(Rule::Render, reason))?,
        AgentFormat::Markdown => {
            let mut text = String::from("---\n");
            for (key, value) in &fields {
                // A JSON text is a YAML text.
                text.push_str(&format!("{key}: {value}\n"));
            }
            text + "---\n\n" + agent.prompt.trim()
        }
    };
    Ok((path, text))
}

fn remembered(memory: &MemoryEntry, at: OffsetDateTime) -> Vec<String> {
    memory
        .facts
        .values()
        .filter(|fact| !fact.expired(at))
        .map(|fact| {
            let text = fact.text.trim().replace('\n', "\n  ");
            let learned = fact.learned_at.as_deref().and_then(|at| at.get(..10));
            let when = learned.map(|day| format!(", {day}")).unwrap_or_default();
            format!("- {text} (from {}{when})", fact.source)
        })
        .collect()
}

fn write_rules(
    output: &mut Output,
    adapter: &Adapter,
    mut rules: Vec<String>,
    facts: &[String],
) -> Result<(), Refusal> {
    if !facts.is_empty() {
        let section = format!("## Remembered\n\n{}", facts.join("\n"));
        match adapter.files.memory.as_deref() {
            Some(path) if path != adapter.files.rules => {
                output.place_as("the memory", path.to_owned(), &section)?;
            }
            _ => rules.push(section),
        }
    }
    if !rules.is_empty() {
        output.place_as("the rules", adapter.files.rules.clone(), &rules.join("\n\n"))?;
    }
    Ok(())
}
