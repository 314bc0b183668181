//! What may be typed before and after every command.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, ValueEnum};

use super::cmd::Command;

/// An inference server that is also a learner
#[derive(Debug, Parser)]
#[command(
    name = "reef",
    version,
    long_about = "An inference server that is also a learner: it records what your agents do, takes feedback, \
                  turns both into candidate updates, and releases the ones that pass a gate.",
    after_help = "Any setting of the deployment file can be given as --SECTION.KEY VALUE, --SECTION.KEY=VALUE or \
                  --no-SECTION.KEY on every command that reads it.",
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = false,
    max_term_width = 110
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The program as it is offered: without commands that are hidden, because it starts them itself or they are for
    /// who builds it. Not for parsing.
    pub(crate) fn offered() -> clap::Command {
        let whole = Self::command();
        let shown = whole.get_subcommands().filter(|command| !command.is_hide_set());
        clap::Command::new("reef")
            .version(env!("CARGO_PKG_VERSION"))
            .args(whole.get_arguments())
            .subcommands(shown.cloned())
    }
}

/// Options of every command.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GlobalArgs {
    /// Read the deployment from this TOML or YAML file; without it only defaults, environment and flags count
    #[arg(short, long, value_name = "FILE", global = true, help_heading = "Global options")]
    pub(crate) config: Option<PathBuf>,
    /// Keep Reef's files in this directory [default: .reef]
    #[arg(long, value_name = "DIR", global = true, help_heading = "Global options")]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How a command speaks.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct OutputArgs {
    /// Print data, events and errors as JSON
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Say nothing but data and errors
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        help_heading = "Global options"
    )]
    pub(crate) quiet: bool,
    /// Log more to standard error: -v for debug, -vv for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Global options")]
    pub(crate) verbose: u8,
    /// When to use color; NO_COLOR turns it off too
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        global = true,
        hide_possible_values = false,
        help_heading = "Global options"
    )]
    pub(crate) color: ColorChoice,
}

/// When to use color.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal
    #[default]
    Auto,
    /// Also into a pipe
    Always,
    /// Never
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each(command: &clap::Command, look: &mut impl FnMut(&clap::Command)) {
        look(command);
        for below in command.get_subcommands() {
            each(below, look);
        }
    }

    /// `-n` and `-s` mean one thing, wherever they are taken.
    #[test]
    fn a_short_option_means_the_same_everywhere() {
        each(&Cli::command(), &mut |command| {
            for option in command.get_opts() {
                let long = option.get_long();
                for (short, wanted) in [('n', "limit"), ('s', "scenario")] {
                    if long == Some(wanted) || option.get_short() == Some(short) {
                        assert_eq!(
                            (option.get_short(), long),
                            (Some(short), Some(wanted)),
                            "{}",
                            command.get_name()
                        );
                    }
                }
            }
        });
    }
}
