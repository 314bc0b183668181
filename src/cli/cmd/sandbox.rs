//! `reef __sandbox`: the helper processes of a sandbox. Not for people.

use std::io::{BufReader, stdin, stdout};
use std::path::PathBuf;

use clap::Args;

use crate::cli::{CliError, Context, Exit};
use crate::harness::sandbox;

/// Run the job described on standard input
#[derive(Debug, Args)]
pub(crate) struct SandboxArgs {
    /// Be process 1 inside this root
    #[arg(long, value_name = "ROOT")]
    init: Option<PathBuf>,
    /// A directory of the control group that programs are put in
    #[arg(long, value_name = "DIR")]
    group: Vec<PathBuf>,
}

pub(crate) fn run(_context: &Context, args: SandboxArgs) -> Result<Exit, CliError> {
    // Programs inside find the umask of any fresh system; what the parent keeps of them is private all the same.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let input = BufReader::new(stdin());
    let served = match args.init {
        Some(root) => sandbox::serve_init(&root, &args.group, input, stdout()),
        None => sandbox::serve_stage(input, stdout()),
    };
    served.map_err(|error| CliError::from_error(Exit::Unexpected, error))?;
    Ok(Exit::Ok)
}
