//! `reef completions`

use clap::Args;
use clap_complete::Shell;
use serde_json::json;

use crate::cli::{CliError, Context, Exit, complete};

/// Print a shell completion script
///
/// The script asks reef, which must be on PATH, for what fits: commands, options, and the names of scenarios, releases,
/// records and models in the files at hand.
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
    let shell = args.shell.to_string();
    let script = complete::script(&shell).ok_or_else(|| {
        CliError::new(Exit::Usage, format!("there is no completion for {shell}"))
            .hint("there is one for bash, elvish, fish, powershell and zsh")
    })?;
    let output = context.output();
    if output.json() {
        output.object("completions", &json!({"shell": shell, "script": script}))?;
    } else {
        output.text(&script)?;
    }
    Ok(Exit::Ok)
}
