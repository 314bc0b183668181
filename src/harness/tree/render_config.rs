//! The configuration files of a tree: defaults, allowed settings, hooks and servers, and what must stay as it is.

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::kinds::{ConfigEntry, HookEntry, McpEntry};
use super::refusal::{Refusal, Rule, shown};
use crate::harness::adapter::{Adapter, ConfigTarget, fill, merge, text};

/// Configuration files being put together.
pub(super) struct Configs<'a> {
    adapter: &'a Adapter,
    documents: IndexMap<&'a str, Map<String, Value>>,
}

impl<'a> Configs<'a> {
    pub(super) fn new(adapter: &'a Adapter) -> Self {
        let documents = adapter
            .config
            .iter()
            .map(|(name, target)| (name.as_str(), target.defaults.clone()))
            .collect();
        Self { adapter, documents }
    }

    pub(super) fn merge(&mut self, entry: &ConfigEntry) -> Result<(), Refusal> {
        let Some(target) = self.adapter.config.get(&entry.target) else {
            let known: Vec<&str> = self.adapter.config.keys().map(String::as_str).collect();
            return Err(Refusal::new(
                Rule::Setting,
                format!(
                    "{} has no configuration target \"{}\"; it has {}",
                    self.adapter.title,
                    shown(&entry.target),
                    known.join(", ")
                ),
            ));
        };
        let mut leaves = Vec::new();
        collect(&entry.data, &mut Vec::new(), &mut leaves);
        for leaf in &leaves {
            allowed(self.adapter, target, leaf)?;
        }
        if let Some(document) = self.documents.get_mut(entry.target.as_str()) {
            merge(document, &entry.data);
        }
        Ok(())
    }

    /// Registers a server.
    pub(super) fn server(&mut self, server: &McpEntry) -> Result<(), Refusal> {
        let Some(spec) = &self.adapter.mcp_server else {
            return Err(Refusal::new(Rule::Unsupported, "this agent knows no MCP servers"));
        };
        let template = match (&server.url, &spec.http) {
            (None, _) => &spec.stdio,
            (Some(_), Some(http)) => http,
            (Some(_), None) => {
                return Err(Refusal::new(
                    Rule::Unsupported,
                    format!("{} knows no MCP servers over HTTP; give a command", self.adapter.title),
                ));
            }
        };
        let whole: Vec<&String> = server.command.iter().chain(&server.args).collect();
        let fillers = object(json!({
            "name": server.name, "command": server.command, "args": server.args, "command_and_args": whole,
            "env": server.env, "url": server.url,
        }));
        let value = fill(template, &fillers);
        let (last, above) = match spec.at.split_last() {
            Some((last, above)) => (last, above),
            None => return Err(Refusal::new(Rule::Render, "the descriptor's mcp-server.at is empty")),
        };
        let table = self.table(&spec.target, above, &fillers)?;
        let key = part(last, &fillers);
        if table.contains_key(&key) {
            return Err(Refusal::new(
                Rule::Render,
                format!("there is an MCP server \"{}\" already", shown(&key)),
            ));
        }
        table.insert(key, value);
        Ok(())
    }

    /// Registers a hook and says where its script goes.
    pub(super) fn hook(&mut self, hook: &HookEntry) -> Result<String, Refusal> {
        let Some(spec) = &self.adapter.hook else {
            return Err(Refusal::new(Rule::Unsupported, "this agent has no hooks"));
        };
        if !spec.events.contains(&hook.event) {
            return Err(Refusal::new(
                Rule::Setting,
                format!(
                    "{} has no event \"{}\"; it has {}",
                    self.adapter.title,
                    shown(&hook.event),
                    spec.events.join(", ")
                ),
            ));
        }
        let fillers = object(json!({
            "name": hook.name, "event": hook.event, "matcher": hook.matcher, "timeout_s": hook.timeout_s,
        }));
        let item = fill(&spec.item, &fillers);
        let (last, above) = match spec.at.split_last() {
            Some((last, above)) => (last, above),
            None => return Err(Refusal::new(Rule::Render, "the descriptor's hook.at is empty")),
        };
        let table = self.table(&spec.target, above, &fillers)?;
        let list = table
            .entry(part(last, &fillers))
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(items) = list {
            items.push(item);
        }
        Ok(spec.path.replace("{name}", &hook.name))
    }

    fn table(
        &mut self,
        target: &str,
        at: &[String],
        fillers: &Map<String, Value>,
    ) -> Result<&mut Map<String, Value>, Refusal> {
        let missing = || Refusal::new(Rule::Render, format!("there is no configuration target \"{target}\""));
        let mut table = self.documents.get_mut(target).ok_or_else(missing)?;
        for step in at {
            let below = table
                .entry(part(step, fillers))
                .or_insert_with(|| Value::Object(Map::new()));
            table = below
                .as_object_mut()
                .ok_or_else(|| Refusal::new(Rule::Render, format!("\"{step}\" is a value, not a table")))?;
        }
        Ok(table)
    }

    /// The files, empty ones left out, once everything pinned is as it must be.
    pub(super) fn finish(self) -> Result<Vec<(String, String)>, Refusal> {
        let mut files = Vec::new();
        for (name, document) in &self.documents {
            let Some(target) = self.adapter.config.get(*name) else {
                continue;
            };
            for pinned in &target.pinned {
                let value = pinned
                    .key
                    .split('.')
                    .try_fold(None, |found: Option<&Value>, key| match found {
                        None => document.get(key).map(Some),
                        Some(value) => value.get(key).map(Some),
                    })
                    .flatten();
                if value != Some(&pinned.value) {
                    return Err(Refusal::new(
                        Rule::Setting,
                        format!("{} must stay {}: {}", pinned.key, pinned.value, pinned.because),
                    ));
                }
            }
            if document.is_empty() {
                continue;
            }
            let text = text(target.format, document)
                .map_err(|reason| Refusal::new(Rule::Render, format!("{}: {reason}", target.path)))?;
            files.push((target.path.clone(), text));
        }
        Ok(files)
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn part(template: &str, fillers: &Map<String, Value>) -> String {
    match fill(&Value::String(template.to_owned()), fillers) {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Every value that is set, by the keys that lead to it.
fn collect(table: &Map<String, Value>, path: &mut Vec<String>, leaves: &mut Vec<Vec<String>>) {
    for (key, value) in table {
        path.push(key.clone());
        match value {
            Value::Object(below) if !below.is_empty() => collect(below, path, leaves),
            _ => leaves.push(path.clone()),
        }
        path.pop();
    }
}

/// Whether a tree may set a key: the most specific rule about it decides, and without one it may not.
fn allowed(adapter: &Adapter, target: &ConfigTarget, leaf: &[String]) -> Result<(), Refusal> {
    let allows = target
        .allow
        .iter()
        .filter(|pattern| covers(pattern, leaf))
        .map(|pattern| pattern.split('.').count())
        .max();
    let forbids = target
        .forbid
        .iter()
        .filter(|forbidden| {
            let parts: Vec<&str> = forbidden.key.split('.').collect();
            parts.iter().zip(leaf).all(|(part, key)| part == key)
        })
        .max_by_key(|forbidden| forbidden.key.len());
    let path = shown(&leaf.join("."));
    match (allows, forbids) {
        (Some(allow), Some(forbidden)) if allow > forbidden.key.split('.').count() => Ok(()),
        (_, Some(forbidden)) => Err(Refusal::new(
            Rule::Setting,
            format!("\"{path}\" is not for a tree to set: {}", forbidden.because),
        )),
        (Some(_), None) => Ok(()),
        (None, None) => Err(Refusal::new(
            Rule::Setting,
            format!(
                "\"{path}\" is not among the settings of {} that a tree may set: {}",
                adapter.title,
                if target.allow.is_empty() {
                    "none".to_owned()
                } else {
                    target.allow.join(", ")
                }
            ),
        )),
    }
}

fn covers(pattern: &str, leaf: &[String]) -> bool {
    let parts: Vec<&str> = pattern.split('.').collect();
    match parts.split_last() {
        Some((&"*", above)) => leaf.len() > above.len() && above.iter().zip(leaf).all(|(part, key)| part == key),
        _ => parts.len() == leaf.len() && parts.iter().zip(leaf).all(|(part, key)| part == key),
    }
}
