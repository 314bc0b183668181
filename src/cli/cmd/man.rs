//! `reef man`

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use serde_json::json;

use crate::cli::args::Cli;
use crate::cli::{CliError, Context, Exit};

/// Print the manual page, or write one page for each command
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write reef.1 and one page for each command into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(context: &Context, args: ManArgs) -> Result<Exit, CliError> {
    context.refuse_settings("man")?;
    let command = Cli::command();
    let Some(dir) = args.out else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command)
            .render(&mut page)
            .map_err(|error| CliError::from_error(Exit::Unexpected, error))?;
        let (output, page) = (context.output(), String::from_utf8_lossy(&page));
        if output.json() {
            output.object("manual", &json!({"page": page}))?;
        } else {
            output.text(&page)?;
        }
        return Ok(Exit::Ok);
    };
    std::fs::create_dir_all(&dir)
        .and_then(|()| clap_mangen::generate_to(command, &dir))
        .map_err(|error| {
            CliError::new(
                Exit::Usage,
                format!("cannot write manual pages to {}: {error}", dir.display()),
            )
            .hint("give a directory you may write to with --out")
        })?;
    let output = context.output();
    if output.json() {
        output.object("manual", &json!({"dir": dir}))?;
    } else {
        output.note(&format!("wrote manual pages to {}", dir.display()));
    }
    Ok(Exit::Ok)
}
