//! `reef completions`

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::args::Cli;
use crate::cli::{CliError, Context, Exit};

/// Print a shell completion script
///
/// For bash: `reef completions bash > ~/.local/share/bash-completion/completions/reef`.
/// For zsh: write it as `_reef` into a directory of `$fpath`. For fish:
/// `reef completions fish > ~/.config/fish/completions/reef.fish`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(context: &Context, args: CompletionsArgs) -> Result<Exit, CliError> {
    context.refuse_settings("completions")?;
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "reef", &mut script);
    context.output().text(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Ok)
}
