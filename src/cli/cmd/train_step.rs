//! `reef __train-step`, hidden: one training step for a parent process, described and reported over the standard pipes.

use std::io::{self, BufReader};

use clap::Args;

use crate::cli::{CliError, Context, Exit};
use crate::train::serve_child;

/// Make the one training step described on standard input
#[derive(Debug, Args)]
pub(crate) struct TrainStepArgs {}

pub(crate) fn run(_context: &Context, _args: &TrainStepArgs) -> Result<Exit, CliError> {
    serve_child(BufReader::new(io::stdin()), io::stdout())
        .map_err(|error| CliError::from_error(Exit::Unexpected, error))?;
    Ok(Exit::Ok)
}
