//! `reef harness uninstall`, `reef-NAME uninstall`

use clap::Args;

use super::{Chosen, WhichArgs};
use crate::cli::{CliError, Context, Exit};
use crate::harness::client::uninstall;

/// Remove an installation
///
/// Removes the wrapper, the installed releases, the agent's sessions and settings in them, the receipts and the stored
/// token, and the agent's program if Reef installed it and nothing else uses it. It touches nothing else, and nothing on
/// the service.
#[derive(Debug, Args)]
pub(super) struct UninstallArgs {
    #[command(flatten)]
    pub(super) which: WhichArgs,
    #[command(flatten)]
    pub(super) options: UninstallOptions,
}

#[derive(Debug, Args)]
pub(super) struct UninstallOptions {
    /// Give up reports that have not reached the service
    #[arg(long)]
    discard_reports: bool,
}

pub(super) fn run(context: &Context, chosen: &Chosen, options: &UninstallOptions) -> Result<Exit, CliError> {
    let done = uninstall(&chosen.place, options.discard_reports)?;
    let output = context.output();
    if output.json() {
        output.object("harness_removed", &done)?;
    } else {
        for path in &done.removed {
            output.note(&format!("removed {}", path.display()));
        }
    }
    Ok(Exit::Ok)
}
