//! `reef harness update`, `reef-NAME update`

use clap::Args;

use super::{Chosen, WhichArgs, install, token};
use crate::cli::{CliError, Context, Exit};
use crate::harness::client::{Manifest, Service, effective_token};

/// Install the release that is served now
///
/// Exits with 3, and changes nothing, while the release needs something that has not been set up.
#[derive(Debug, Args)]
pub(super) struct UpdateArgs {
    #[command(flatten)]
    pub(super) which: WhichArgs,
    #[command(flatten)]
    pub(super) options: UpdateOptions,
}

#[derive(Debug, Args)]
pub(super) struct UpdateOptions {
    /// Another release than the one served
    #[arg(long, value_name = "RELEASE")]
    release: Option<String>,
}

pub(super) fn run(context: &Context, chosen: &Chosen, options: &UpdateOptions) -> Result<Exit, CliError> {
    let record = &chosen.record;
    let token = effective_token(&chosen.place, token(context).as_deref())?;
    let service = Service::new(&record.url, token.clone(), record.scenario.clone())?;
    let manifest = context.block_on(async {
        let value = service.manifest(&record.adapter, options.release.as_deref()).await?;
        Ok(Manifest::from_json(&value)?)
    })?;
    install::again(context, record, manifest, token)
}
