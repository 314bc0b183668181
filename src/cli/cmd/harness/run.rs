//! `reef harness run`: what a wrapper starts. Its own commands are recognised by the first word; everything else is the
//! agent's.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use super::{Chosen, doctor, evolve, path, report, rollback, setup, token, uninstall, update, versions};
use crate::cli::args::{GlobalArgs, OutputArgs};
use crate::cli::output::Output;
use crate::cli::{CliError, Context, Exit};
use crate::domain::ScenarioName;
use crate::harness::client::{Place, RunOptions, program_help, run as run_agent};

/// Run an installed agent; its wrapper does this
///
/// Words after `--` are the agent's, unless the first is a command of the wrapper: report, evolve, wait, update, rollback,
/// versions, setup, doctor, uninstall. A further `--` before it gives even that word to the agent.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The installation's directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["adapter", "scenario"], required_unless_present = "adapter")]
    place: Option<PathBuf>,
    /// The agent: pi, claude, codex, opencode, qwen, openclaw, hermes
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// The scenario, if the agent is installed for several
    #[arg(short, long, value_name = "NAME", requires = "adapter")]
    scenario: Option<ScenarioName>,
    /// The agent's words
    #[arg(last = true, value_name = "WORDS", allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// The wrapper's own commands.
#[derive(Debug, Parser)]
#[command(subcommand_required = true, disable_help_subcommand = true, max_term_width = 110)]
struct Wrapper {
    #[command(flatten)]
    output: OutputArgs,
    #[command(subcommand)]
    command: WrapperCommand,
}

#[derive(Debug, Subcommand)]
enum WrapperCommand {
    /// Check the installation: program, service, token, release
    Doctor(doctor::DoctorOptions),
    /// Ask for a change of the harness, in words
    #[command(alias = "harness")]
    Evolve(evolve::EvolveOptions),
    /// Grade a run
    Report(report::ReportOptions),
    /// Go back to a release that was installed before
    Rollback(rollback::RollbackOptions),
    /// Go through what the release needs on this machine
    Setup(setup::SetupOptions),
    /// Remove the installation
    Uninstall(uninstall::UninstallOptions),
    /// Install the release that is served now
    Update(update::UpdateOptions),
    /// List the releases that are installed
    Versions,
    /// Wait for a request that was made before
    Wait(evolve::WaitOptions),
}

pub(super) fn run(context: &Context, args: RunArgs) -> Result<Exit, CliError> {
    let chosen = match (args.place, args.adapter) {
        (Some(dir), _) => {
            let place = Place { dir };
            let record = place.record()?;
            Chosen { place, record }
        }
        (None, Some(adapter)) => super::WhichArgs {
            adapter,
            scenario: args.scenario,
        }
        .find(context)?,
        (None, None) => return Err(CliError::new(Exit::Usage, "--place or --adapter is needed")),
    };
    let mut words = args.words;
    let first = words
        .first()
        .and_then(|word| word.to_str())
        .unwrap_or_default()
        .to_owned();
    let own = Wrapper::command();
    let is_own =
        |command: &clap::Command| command.get_name() == first || command.get_all_aliases().any(|name| name == first);
    if own.get_subcommands().any(is_own) {
        return wrapper_command(&chosen, words);
    }
    if words.len() == 1 && matches!(first.as_str(), "--help" | "-h" | "help") {
        return help(context, &chosen, &words);
    }
    if first == "--" {
        words.remove(0);
    }
    agent(context, &chosen, words)
}

fn wrapper_command(chosen: &Chosen, words: Vec<OsString>) -> Result<Exit, CliError> {
    let name = chosen.record.command();
    let argv = std::iter::once(OsString::from(&name)).chain(words);
    let parsed = Wrapper::command()
        .name(name.clone())
        .bin_name(name)
        .try_get_matches_from(argv)
        .and_then(|matches| Wrapper::from_arg_matches(&matches));
    let wrapper = match parsed {
        Ok(wrapper) => wrapper,
        Err(error) => {
            let output = Output::new(OutputArgs::default());
            return Ok(crate::cli::usage(&output, &error));
        }
    };
    let context = Context::new(
        &GlobalArgs {
            output: wrapper.output,
            ..GlobalArgs::default()
        },
        Vec::new(),
    );
    let result = match wrapper.command {
        WrapperCommand::Doctor(options) => doctor::run(&context, chosen, &options),
        WrapperCommand::Evolve(options) => evolve::run(&context, chosen, &options),
        WrapperCommand::Report(options) => report::run(&context, chosen, options),
        WrapperCommand::Rollback(options) => rollback::run(&context, chosen, &options),
        WrapperCommand::Setup(options) => setup::run(&context, chosen, &options),
        WrapperCommand::Uninstall(options) => uninstall::run(&context, chosen, &options),
        WrapperCommand::Update(options) => update::run(&context, chosen, &options),
        WrapperCommand::Versions => versions::run(&context, chosen),
        WrapperCommand::Wait(options) => evolve::run_wait(&context, chosen, &options),
    };
    // Rendered as these options ask, not as those of the command that started the wrapper.
    Ok(result.unwrap_or_else(|error| crate::cli::report(context.output(), &error)))
}

fn help(context: &Context, chosen: &Chosen, words: &[OsString]) -> Result<Exit, CliError> {
    let name = chosen.record.command();
    let help = Wrapper::command()
        .name(name.clone())
        .bin_name(name.clone())
        .about(format!(
            "Runs {} on the tree of scenario {}, served by {}",
            chosen.record.adapter, chosen.record.scenario, chosen.record.url
        ))
        .override_usage(format!("{name} [AGENT'S OWN WORDS]\n       {name} COMMAND [OPTIONS]"))
        .render_help();
    context.output().text(&format!("{help}\n"))?;
    let code = context.block_on(async { Ok(program_help(&chosen.record, words, &path()).await?) })?;
    Ok(Exit::Agent(code))
}

fn agent(context: &Context, chosen: &Chosen, words: Vec<OsString>) -> Result<Exit, CliError> {
    let adapter = chosen.adapter()?;
    let options = RunOptions {
        args: words,
        token: token(context),
        path: path(),
    };
    let output = context.output();
    let say = |line: &str| output.note(line);
    // Not the runtime of other commands: Ctrl-C is the agent's here.
    let runtime = context.runtime()?;
    let finished = runtime.block_on(run_agent(&chosen.place, &chosen.record, &adapter, options, &say))?;
    if let Some(fault) = finished.fault {
        output.warn(&format!("not everything about this run could be kept: {fault}"));
    }
    for reason in finished.refused {
        output.warn(&format!("the service refused the report on {reason}"));
    }
    // Connections that the agent left open must not hold up the end.
    runtime.shutdown_background();
    Ok(Exit::Agent(u8::try_from(finished.code).unwrap_or(1)))
}
