//! The commands. To add one: a file with an `Args` struct (its comment is the help) and `run(&Context, Args) ->
//! Result<Exit, CliError>`, a variant here, and an arm in [`run`]. Keep the variants in alphabetical order.

mod completions;
mod config;
mod man;

use clap::Subcommand;

use super::{CliError, Context, Exit};

/// Every command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print a shell completion script
    Completions(completions::CompletionsArgs),
    /// Show what is configured and what can be
    Config(config::ConfigArgs),
    /// Print the manual page, or write one page for each command
    Man(man::ManArgs),
}

/// Runs one command.
pub(crate) fn run(context: &Context, command: Command) -> Result<Exit, CliError> {
    match command {
        Command::Completions(args) => completions::run(context, args),
        Command::Config(args) => config::run(context, args),
        Command::Man(args) => man::run(context, args),
    }
}
