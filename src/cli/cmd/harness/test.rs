//! `reef harness test`

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::tree::{Trees, write_below};
use crate::cli::cmd::release::chain::ScenarioOption;
use crate::cli::harness::{adapters, policy, usual};
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit};
use crate::domain::Content;
use crate::harness::adapter::Adapter;
use crate::harness::tree::{Refusal, Rendered, Tree, check};
use crate::sys::clock;

/// Check a tree as admission does, and render it, without a service
///
/// Runs everything a seed or a proposal has to pass: the rules of each kind, the credential and directive screens, the
/// settings the agent allows, and the rendering of the whole tree. Exit code 2 when an agent refuses it.
#[derive(Debug, Args)]
pub(super) struct TestArgs {
    /// A tree's file or directory, or a release
    #[arg(value_name = "PATH|RELEASE")]
    tree: String,
    /// For this agent; may be given several times [default: the one the tree or the deployment names]
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    adapter: Vec<String>,
    /// For every agent
    #[arg(long)]
    all: bool,
    /// Write what it renders to for one agent into this new directory
    #[arg(long, value_name = "DIR", conflicts_with = "all")]
    write: Option<PathBuf>,
    #[command(flatten)]
    scenario: ScenarioOption,
}

pub(super) fn run(context: &Context, args: &TestArgs) -> Result<Exit, CliError> {
    let settings = context.settings()?;
    let known = adapters(settings)?;
    let found = Trees::new(context, &args.scenario).read(&args.tree)?;
    let chosen: Vec<&Adapter> = if args.all {
        known.iter().collect()
    } else if args.adapter.is_empty() {
        let name = found.tree.adapter.as_deref().unwrap_or(usual(settings));
        vec![known.get(name)?]
    } else {
        args.adapter
            .iter()
            .map(|name| known.get(name))
            .collect::<Result<_, _>>()?
    };
    let policy = policy(settings);
    let results: Vec<(&Adapter, Result<Rendered, Refusal>)> = chosen
        .into_iter()
        .map(|adapter| {
            // A tree is asked whether it could serve another agent too.
            let tree = Tree {
                adapter: None,
                ..found.tree.clone()
            };
            (adapter, check(&tree, adapter, &policy, clock::now_us()))
        })
        .collect();
    if let Some(dir) = &args.write {
        let [(_, Ok(rendered))] = results.as_slice() else {
            return refused(context, &results);
        };
        write_below(dir, &found.tree, rendered)?;
    }
    let output = context.output();
    if output.json() {
        let rows: Vec<Value> = results
            .iter()
            .map(|(adapter, result)| match result {
                Ok(rendered) => json!({
                    "adapter": adapter.name, "admitted": true, "files": rendered.files.keys().collect::<Vec<_>>(),
                    "executable": rendered.executable,
                }),
                Err(refusal) => json!({"adapter": adapter.name, "admitted": false, "refusal": refusal}),
            })
            .collect();
        let value = json!({"tree": found.name, "digest": found.tree.digest(), "adapters": rows});
        output.object("tree-test", &value)?;
    } else if let [(_, Ok(rendered))] = results.as_slice() {
        let mut table = Table::new(&["file", ">bytes", ""]);
        for (path, content) in &rendered.files {
            let mark = match content {
                Content::Binary(_) => "binary",
                Content::Text(_) if rendered.executable.contains(path) => "executable",
                Content::Text(_) => "",
            };
            table.row([path.clone(), content.as_bytes().len().to_string(), mark.to_owned()]);
        }
        if !table.is_empty() {
            output.text(&table.render(output.colored()))?;
        }
    } else {
        let mut table = Table::new(&["adapter", "admitted", ">files", "why not"]);
        for (adapter, result) in &results {
            let (word, files, why) = match result {
                Ok(rendered) => ("yes", rendered.files.len().to_string(), String::new()),
                Err(refusal) => ("no", "-".to_owned(), refusal.to_string()),
            };
            table.row([adapter.name.clone(), word.to_owned(), files, why]);
        }
        output.text(&table.render(output.colored()))?;
    }
    refused(context, &results)
}

/// Exit code 2 as soon as one agent refuses.
fn refused(context: &Context, results: &[(&Adapter, Result<Rendered, Refusal>)]) -> Result<Exit, CliError> {
    let refusals: Vec<String> = results
        .iter()
        .filter_map(|(adapter, result)| Some(format!("{}: {}", adapter.name, result.as_ref().err()?)))
        .collect();
    match refusals.first() {
        None => {
            context.output().note(&format!(
                "admitted for {}",
                results
                    .iter()
                    .map(|(adapter, _)| adapter.title.as_str())
                    .collect::<Vec<_>>()
                    .join(", ")
            ));
            Ok(Exit::Ok)
        }
        Some(first) if refusals.len() == 1 => Err(CliError::new(Exit::Usage, first.clone())),
        Some(_) => Err(CliError::new(
            Exit::Usage,
            format!("{} of {} agents refuse the tree", refusals.len(), results.len()),
        )),
    }
}
