//! `reef harness show`

use clap::Args;
use serde_json::json;

use super::tree::Trees;
use crate::cli::cmd::release::chain::ScenarioOption;
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit, format};
use crate::domain::readable;
use crate::harness::tree::{Body, Entry};
use crate::sys::terminal;

/// Show the entries of a tree
#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// A release (head, head~1, the first digits of an id), or a tree's file or directory
    #[arg(default_value = "head", value_name = "RELEASE|PATH")]
    tree: String,
    /// Print this entry whole, as JSON
    #[arg(long, value_name = "ID")]
    entry: Option<String>,
    #[command(flatten)]
    scenario: ScenarioOption,
}

pub(super) fn run(context: &Context, args: &ShowArgs) -> Result<Exit, CliError> {
    let found = Trees::new(context, &args.scenario).read(&args.tree)?;
    let output = context.output();
    if let Some(id) = &args.entry {
        let entry = found.tree.get(id).ok_or_else(|| {
            let ids: Vec<&str> = found.tree.entries.iter().map(|entry| entry.id.as_str()).collect();
            CliError::new(Exit::Usage, format!("{} has no entry {id:?}", found.name))
                .hint(format!("its entries are {}", ids.join(", ")))
        })?;
        if output.json() {
            output.object("entry", &json!({"tree": found.name, "entry": entry.to_json()}))?;
        } else {
            output.text(&terminal::json(&format!("{:#}\n", readable(&entry.to_json()))))?;
        }
        return Ok(Exit::Ok);
    }
    if output.json() {
        let value = json!({"tree": found.name, "digest": found.tree.digest(), "content": found.tree.to_json()});
        output.object("tree", &value)?;
        return Ok(Exit::Ok);
    }
    if found.tree.entries.is_empty() {
        output.note("the tree has no entries");
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["entry", "kind", ">size", "what", "made by"]);
    for entry in &found.tree.entries {
        let size = entry.body.to_json().to_string().len();
        let kind = entry.kind().as_str();
        let made = entry
            .provenance
            .as_ref()
            .map_or("-", |made| made.changed_by.as_deref().unwrap_or(&made.created_by));
        table.row([
            entry.id.clone(),
            if entry.disabled {
                format!("{kind} (off)")
            } else {
                kind.to_owned()
            },
            format::bytes(size as u64),
            about(entry),
            made.to_owned(),
        ]);
    }
    output.text(&table.render(output.colored()))?;
    Ok(Exit::Ok)
}

/// An entry in a few words.
fn about(entry: &Entry) -> String {
    let first = |text: &str| {
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("");
        let mut short: String = line.chars().take(50).collect();
        if line.chars().count() > 50 {
            short.push('…');
        }
        short
    };
    match &entry.body {
        Body::Rules(entry) => first(&entry.text),
        Body::AgentCommand(entry) => format!("/{}: {}", entry.name, first(&entry.text)),
        Body::Skill(entry) => format!("{}, {} files", entry.name, entry.files.len() + 1),
        Body::CodeExtension(entry) => entry.name.clone(),
        Body::Hook(entry) => format!("{} at {}", entry.name, entry.event),
        Body::Agent(entry) => format!("{}: {}", entry.name, first(&entry.description)),
        Body::McpServer(entry) => {
            let place = entry.url.as_deref().or(entry.command.as_deref()).unwrap_or("");
            format!("{}: {place}", entry.name)
        }
        Body::Memory(entry) => format!("{} facts", entry.facts.len()),
        Body::Config(entry) => {
            let keys: Vec<&str> = entry.data.keys().map(String::as_str).collect();
            format!("{}: {}", entry.target, keys.join(", "))
        }
    }
}
