//! Law: the command line. One file per command in `cmd/`; this room prints, chooses exit codes and shows progress, and
//! holds no domain logic. Door: [`main`]. Data goes to standard output, talk to standard error. It alone reads the
//! environment and passes on what the other rooms need.

mod args;
mod begin;
mod client;
mod cmd;
mod complete;
mod context;
mod disk;
#[cfg(test)]
mod documented;
mod dotted;
mod engines;
mod error;
mod exit;
mod harness;
mod learning;
mod logging;
mod manager;
mod openmp;
mod output;
mod pages;
mod progress;
mod publishing;
mod readiness;
mod running;
mod table;

pub use exit::{EXIT_CODES, Exit};

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches};

use args::Cli;
use context::Context;
use error::{CliError, OrExit};
use output::Output;

use crate::harness::sandbox;
use crate::sys::{first, format, launch, task};

/// Runs the program, and ends it.
pub fn main() -> ! {
    let argv: Vec<OsString> = std::env::args_os().collect();
    if argv.get(1).is_some_and(|word| word == sandbox::COMMAND) {
        // Before anything is opened, and whoever started it.
        if let Err(error) = launch::close_inherited() {
            let error = CliError::from_error(Exit::Unexpected, error);
            crate::sys::leave::leave(report(&early_output(&argv), &error).code());
        }
    }
    task::watch_panics();
    crate::sys::failpoint::arm_from_env();
    // Work that panics elsewhere is told where it is waited for; here nobody else is left to tell.
    let ended = task::guard("reef", || run(argv));
    crate::sys::leave::leave(ended.unwrap_or(Exit::Unexpected).code())
}

fn run(argv: Vec<OsString>) -> Exit {
    if complete::answer(&argv) {
        return Exit::Ok;
    }
    let early = early_output(&argv);
    let (argv, overrides) = match dotted::split(argv) {
        Ok(split) => split,
        Err(error) => return report(&early, &error),
    };
    let argv = before_help(argv);
    let cli = match Cli::command()
        .try_get_matches_from(&argv)
        .and_then(|matches| Cli::from_arg_matches(&matches))
    {
        Ok(cli) => cli,
        Err(error) => return usage(&early, &without_hidden(error)),
    };
    let context = Context::new(&cli.global, overrides);
    if cli.command.stays()
        && let Err(error) = first::step_aside()
    {
        return report(context.output(), &CliError::from_error(Exit::Unexpected, error));
    }
    if !cli.command.logs_by_itself() {
        logging::for_command(&context);
    }
    match cmd::run(&context, cli.command) {
        Ok(exit) => exit,
        Err(error) => report(context.output(), &error),
    }
}

fn report(output: &Output, error: &CliError) -> Exit {
    output.error(error);
    error.exit()
}

/// Renders what clap says: help and version are data, anything else is an error in usage.
fn usage(output: &Output, error: &clap::Error) -> Exit {
    if error.use_stderr() {
        output.usage_error(error);
        return Exit::Usage;
    }
    let rendered = error.render();
    let text = if output.colored() {
        rendered.ansi().to_string()
    } else {
        rendered.to_string()
    };
    let told = if output.json() {
        output.object("help", &serde_json::json!({"text": rendered.to_string()}))
    } else {
        output.text(&text)
    };
    match told {
        Ok(()) => Exit::Ok,
        Err(error) => report(output, &error),
    }
}

/// The same error. Of the commands it suggests, the nearest one that is not hidden stays.
fn without_hidden(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::Strings(names)) = error.get(ContextKind::SuggestedSubcommand) else {
        return error;
    };
    let typed = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(typed)) => typed.clone(),
        _ => String::new(),
    };
    let offered = Cli::offered();
    let shown = |name: &&String| *name == "help" || offered.find_subcommand(name).is_some();
    // Two letters the wrong way round are one mistake.
    let far = |name: &String| strsim::damerau_levenshtein(&typed, name);
    let mut names: Vec<String> = names.iter().filter(shown).cloned().collect();
    let nearest = names.iter().map(far).min().unwrap_or_default();
    names.retain(|name| far(name) == nearest);
    if names.is_empty() {
        error.remove(ContextKind::SuggestedSubcommand);
    } else {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
    }
    error
}

/// `reef help` takes names of commands and nothing else; options of how to speak are put before it, where they count.
fn before_help(argv: Vec<OsString>) -> Vec<OsString> {
    let is_option = |word: &&OsString| word.to_string_lossy().starts_with('-');
    let Some(at) = argv.iter().skip(1).position(|word| !is_option(&word)) else {
        return argv;
    };
    let at = at + 1;
    if argv[at] != "help" {
        return argv;
    }
    let (options, words): (Vec<OsString>, Vec<OsString>) = argv[at + 1..].iter().cloned().partition(|word| {
        ["--json", "-q", "--quiet", "-v", "-vv", "--verbose"]
            .iter()
            .any(|known| word == known)
    });
    let before = argv[..at].iter().cloned();
    before.chain(options).chain([argv[at].clone()]).chain(words).collect()
}

/// Before the arguments are understood, only `--json` and `--color` can be guessed from them.
fn early_output(argv: &[OsString]) -> Output {
    let words = || argv.iter().take_while(|word| *word != "--");
    Output::new(args::OutputArgs {
        json: words().any(|word| word == "--json"),
        color: if words().any(|word| word == "--color=never") {
            args::ColorChoice::Never
        } else {
            args::ColorChoice::Auto
        },
        ..args::OutputArgs::default()
    })
}
