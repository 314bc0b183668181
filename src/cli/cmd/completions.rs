//! `reef completions`

use clap::Args;
use clap_complete::Shell;
use serde_json::json;

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
    clap_complete::generate(args.shell, &mut Cli::offered(), "reef", &mut script);
    let (output, script) = (context.output(), String::from_utf8_lossy(&script));
    if output.json() {
        let shell = args.shell.to_string();
        output.object("completions", &json!({"shell": shell, "script": script}))?;
    } else {
        output.text(&script)?;
    }
    Ok(Exit::Ok)
}
