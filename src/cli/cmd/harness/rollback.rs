//! `reef harness rollback`, `reef-NAME rollback`

use clap::Args;

use super::{Chosen, WhichArgs};
use crate::cli::{CliError, Context, Exit};
use crate::harness::client::rollback;

/// Go back to a release that was installed before
///
/// Needs no service. The service keeps serving what it serves; `update` goes forward again.
#[derive(Debug, Args)]
pub(super) struct RollbackArgs {
    #[command(flatten)]
    pub(super) which: WhichArgs,
    #[command(flatten)]
    pub(super) options: RollbackOptions,
}

#[derive(Debug, Args)]
pub(super) struct RollbackOptions {
    /// The release, or the beginning of its id; the one installed before the current one without it
    #[arg(long, value_name = "RELEASE")]
    release: Option<String>,
}

pub(super) fn run(context: &Context, chosen: &Chosen, options: &RollbackOptions) -> Result<Exit, CliError> {
    let done = rollback(&chosen.place, options.release.as_deref())?;
    let output = context.output();
    if output.json() {
        output.object("harness_installation", &done)?;
    } else {
        if !done.changed {
            output.note("it is in use already");
        }
        output.line(&done.release_id)?;
    }
    Ok(Exit::Ok)
}
