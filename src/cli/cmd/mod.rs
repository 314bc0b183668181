//! The commands. To add one: a file with an `Args` struct (its comment is the help) and `run(&Context, Args) ->
//! Result<Exit, CliError>`, a variant here, and an arm in [`run`]. Keep the variants in alphabetical order.

#![allow(
    clippy::needless_pass_by_value,
    reason = "each command owns its arguments, whether or not it takes them apart"
)]

mod bench;
mod completions;
mod config;
pub(super) mod dash;
mod docs;
mod doctor;
mod eval;
mod harness;
mod init;
mod instruct;
mod logs;
mod man;
mod model;
mod records;
mod release;
mod report;
mod sandbox;
mod scenario;
mod serve;
mod status;
mod train;
mod train_step;

pub(super) use init::templates;

use clap::Subcommand;

use super::{CliError, Context, Exit};

/// Every command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure how fast this machine runs
    Bench(bench::BenchArgs),
    /// Print a shell completion script
    Completions(completions::CompletionsArgs),
    /// Show what is configured and what can be
    Config(config::ConfigArgs),
    /// See and steer everything on one screen
    Dash(dash::DashArgs),
    /// Write the generated reference pages
    #[command(hide = true)]
    Docs(docs::DocsArgs),
    /// Check this machine and this deployment, and say how to fix what is wrong
    Doctor(doctor::DoctorArgs),
    /// Measure a release on a task suite, alone or against another one
    Eval(eval::EvalArgs),
    /// Install and run agents on the trees a service serves, and look at trees
    Harness(harness::HarnessArgs),
    /// Start a deployment: a serve.toml with comments, a client to try it, a README
    Init(init::InitArgs),
    /// Ask a scenario for a training step, in words
    Instruct(instruct::InstructArgs),
    /// Show the newest lines of the log, and follow it
    Logs(logs::LogsArgs),
    /// Print the manual page, or write one page for each command
    Man(man::ManArgs),
    /// Import, download, list and show models for the embedded engine
    Model(model::ModelArgs),
    /// See, move and prune what is stored
    Records(records::RecordsArgs),
    /// List, compare, promote, roll back and move releases
    Release(release::ReleaseArgs),
    /// Give feedback on exchanges
    Report(report::ReportArgs),
    /// Run untrusted programs for a parent process
    #[command(name = "__sandbox", hide = true)]
    Sandbox(sandbox::SandboxArgs),
    /// List, create, change and delete scenarios
    Scenario(scenario::ScenarioArgs),
    /// Answer requests and record them, until a signal says stop
    Serve(serve::ServeArgs),
    /// Show what is stored and served
    Status(status::StatusArgs),
    /// Make training steps from the stored experience
    Train(train::TrainArgs),
    /// Make the one training step described on standard input
    #[command(name = "__train-step", hide = true)]
    TrainStep(train_step::TrainStepArgs),
}

impl Command {
    /// Work that starts programs and may be all that a container runs.
    pub(crate) fn stays(&self) -> bool {
        matches!(self, Self::Serve(_) | Self::Train(_) | Self::Eval(_) | Self::Harness(_))
    }

    /// Work whose log is kept starts logging itself, once it knows its settings; the dashboard has no place for a log.
    pub(crate) fn logs_by_itself(&self) -> bool {
        matches!(self, Self::Serve(_) | Self::Train(_) | Self::Dash(_))
    }
}

/// Runs one command.
pub(crate) fn run(context: &Context, command: Command) -> Result<Exit, CliError> {
    match command {
        Command::Bench(args) => bench::run(context, args),
        Command::Completions(args) => completions::run(context, args),
        Command::Config(args) => config::run(context, args),
        Command::Dash(args) => dash::run(context, args),
        Command::Docs(args) => docs::run(context, args),
        Command::Doctor(args) => doctor::run(context, args),
        Command::Eval(args) => eval::run(context, args),
        Command::Harness(args) => harness::run(context, args),
        Command::Init(args) => init::run(context, args),
        Command::Instruct(args) => instruct::run(context, args),
        Command::Logs(args) => logs::run(context, &args),
        Command::Man(args) => man::run(context, args),
        Command::Model(args) => model::run(context, args),
        Command::Records(args) => records::run(context, args),
        Command::Release(args) => release::run(context, args),
        Command::Report(args) => report::run(context, args),
        Command::Sandbox(args) => sandbox::run(context, args),
        Command::Scenario(args) => scenario::run(context, args),
        Command::Serve(args) => serve::run(context, args),
        Command::Status(args) => status::run(context, args),
        Command::Train(args) => train::run(context, args),
        Command::TrainStep(args) => train_step::run(context, &args),
    }
}
