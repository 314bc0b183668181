//! `reef harness versions`, `reef-NAME versions`

use clap::Args;
use serde_json::json;

use super::{Chosen, WhichArgs};
use crate::cli::format::utc;
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit};
use crate::harness::client::versions;

/// List the releases that are installed
#[derive(Debug, Args)]
pub(super) struct VersionsArgs {
    #[command(flatten)]
    pub(super) which: WhichArgs,
}

pub(super) fn run(context: &Context, chosen: &Chosen) -> Result<Exit, CliError> {
    let versions = versions(&chosen.place)?;
    let output = context.output();
    if output.json() {
        output.object("harness_versions", &json!({"versions": versions}))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["release", "installed", "in use"]);
    for version in &versions {
        table.row([
            version.release_id.clone(),
            utc(version.installed_at_us),
            if version.current {
                "yes".to_owned()
            } else {
                String::new()
            },
        ]);
    }
    output.text(&table.render(output.colored()))?;
    Ok(Exit::Ok)
}
