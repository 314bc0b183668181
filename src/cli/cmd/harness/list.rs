//! `reef harness list`

use clap::Args;
use serde_json::json;

use super::home;
use crate::cli::format::short;
use crate::cli::table::{Table, printable};
use crate::cli::{CliError, Context, Exit};
use crate::harness::client::installations;

/// List what is installed on this machine
#[derive(Debug, Args)]
pub(super) struct ListArgs {}

pub(super) fn run(context: &Context, _args: ListArgs) -> Result<Exit, CliError> {
    let found = installations(&home(context)?);
    let output = context.output();
    let mut rows = Vec::new();
    let mut table = Table::new(&["command", "agent", "scenario", "release", "model", "service"]);
    for (place, record) in &found {
        let current = place.current()?.unwrap_or_default();
        table.row([
            record.command(),
            format!("{} {}", record.adapter, printable(record.program_version.clone())),
            record.scenario.to_string(),
            short(&current),
            printable(record.model.clone()),
            record.url.clone(),
        ]);
        rows.push(json!({
            "command": record.command(), "adapter": record.adapter, "scenario": record.scenario, "release_id": current,
            "model": record.model, "api": record.api, "url": record.url, "dir": place.dir, "program": record.program,
            "program_version": record.program_version,
        }));
    }
    if output.json() {
        output.object("harness_installations", &json!({"installations": rows}))?;
    } else if rows.is_empty() {
        output.note("nothing is installed; reef harness install --adapter NAME installs");
    } else {
        output.text(&table.render(output.colored()))?;
    }
    Ok(Exit::Ok)
}
