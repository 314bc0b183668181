//! `reef harness adapters`

use clap::Args;
use serde_json::{Value, json};

use crate::cli::harness::adapters;
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit};
use crate::harness::adapter::Adapter;

/// List the agents there are adapters for, or show one
#[derive(Debug, Args)]
pub(super) struct AdaptersArgs {
    /// Show this one
    name: Option<String>,
}

pub(super) fn run(context: &Context, args: &AdaptersArgs) -> Result<Exit, CliError> {
    let adapters = adapters(context.settings()?)?;
    let output = context.output();
    if let Some(name) = &args.name {
        let adapter = adapters.get(name)?;
        if output.json() {
            output.object("adapter", &json!({"adapter": adapter}))?;
            return Ok(Exit::Ok);
        }
        return output.passage(&one(adapter)).map(|()| Exit::Ok);
    }
    if output.json() {
        let list: Vec<&Adapter> = adapters.iter().collect();
        output.object("adapters", &json!({"adapters": list}))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["adapter", "agent", "program", "package", "apis"]);
    for adapter in adapters.iter() {
        table.row([
            adapter.name.clone(),
            adapter.title.clone(),
            adapter.binary.clone(),
            package(adapter),
            apis(adapter),
        ]);
    }
    output.text(&table.render(output.colored()))?;
    Ok(Exit::Ok)
}

fn package(adapter: &Adapter) -> String {
    adapter.install.as_ref().map_or("-".to_owned(), |install| {
        format!("{}@{}", install.package, install.version)
    })
}

fn apis(adapter: &Adapter) -> String {
    let apis: Vec<&str> = adapter.apis().iter().map(|api| api.as_str()).collect();
    apis.join(", ")
}

/// Where everything goes, and what a tree may set.
fn one(adapter: &Adapter) -> String {
    let mut text = format!(
        "{} ({})\n\nprogram   {}\npackage   {}\napis      {}\nrun       {} {}\n\n",
        adapter.title,
        adapter.name,
        adapter.binary,
        package(adapter),
        apis(adapter),
        adapter.binary,
        adapter.argv.join(" ")
    );
    let mut kinds = Table::new(&["kind", "file"]);
    let files = &adapter.files;
    let mut kind = |name: &str, path: Option<&String>| {
        kinds.row([name.to_owned(), path.cloned().unwrap_or_else(|| "refused".to_owned())]);
    };
    kind("rules", Some(&files.rules));
    kind("memory", files.memory.as_ref());
    kind("agent_command", files.agent_command.as_ref());
    kind("skill", Some(&format!("{}/SKILL.md", files.skill)));
    kind("code_extension", files.code_extension.as_ref());
    kind("hook", adapter.hook.as_ref().map(|hook| &hook.path));
    kind("agent", adapter.agent.as_ref().map(|agent| &agent.path));
    let server = adapter.mcp_server.as_ref();
    kind(
        "mcp_server",
        server
            .and_then(|server| adapter.config.get(&server.target))
            .map(|target| &target.path),
    );
    text.push_str(&kinds.render(false));
    for (name, target) in &adapter.config {
        let allowed = if target.allow.is_empty() {
            "nothing".to_owned()
        } else {
            target.allow.join(", ")
        };
        text.push_str(&format!("\nconfig {name}: {}\n  may be set: {allowed}\n", target.path));
        for pinned in &target.pinned {
            text.push_str(&format!(
                "  stays {} = {}: {}\n",
                pinned.key,
                shown(&pinned.value),
                pinned.because
            ));
        }
    }
    text
}

fn shown(value: &Value) -> String {
    value.to_string()
}
