//! `reef harness diff`

use clap::Args;
use serde_json::json;

use super::tree::Trees;
use crate::cli::cmd::release::chain::ScenarioOption;
use crate::cli::table::printable;
use crate::cli::{CliError, Context, Exit};
use crate::harness::tree::{EntryChange, diff};

/// Compare two trees, entry by entry
#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// The older tree: a release, or a tree's file or directory
    #[arg(default_value = "head~1", value_name = "RELEASE|PATH")]
    old: String,
    /// The newer tree
    #[arg(default_value = "head", value_name = "RELEASE|PATH")]
    new: String,
    #[command(flatten)]
    scenario: ScenarioOption,
}

pub(super) fn run(context: &Context, args: &DiffArgs) -> Result<Exit, CliError> {
    let mut trees = Trees::new(context, &args.scenario);
    let (old, new) = (trees.read(&args.old)?, trees.read(&args.new)?);
    let changes = diff(&old.tree, &new.tree);
    let output = context.output();
    if output.json() {
        output.object(
            "tree-diff",
            &json!({"old": old.name, "new": new.name, "entries": changes}),
        )?;
        return Ok(Exit::Ok);
    }
    if changes.is_empty() {
        output.note("no entry differs");
        return Ok(Exit::Ok);
    }
    for change in &changes {
        output.text(&shown(change, output.colored()))?;
    }
    Ok(Exit::Ok)
}

fn shown(change: &EntryChange, color: bool) -> String {
    let paint = |code: &str, text: String| {
        if color {
            format!("\u{1b}[{code}m{text}\u{1b}[0m\n")
        } else {
            format!("{text}\n")
        }
    };
    let head = format!("{} {} ({})", change.change.as_str(), change.id, change.kind);
    let mut text = paint("1", printable(head));
    for part in &change.parts {
        text.push_str(&paint("36", printable(format!("@@ {}", part.path))));
        for (sign, line) in part.lines() {
            let line = printable(line);
            text.push_str(&match sign {
                '+' => paint("32", format!("+{line}")),
                '-' => paint("31", format!("-{line}")),
                '@' => paint("36", "@@".to_owned()),
                _ => paint("0", format!(" {line}")),
            });
        }
    }
    text.push('\n');
    text
}
