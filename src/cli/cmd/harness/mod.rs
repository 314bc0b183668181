//! `reef harness`

mod adapters;
mod attempts;
mod diff;
mod doctor;
mod evolve;
mod install;
mod list;
mod propose;
mod report;
mod rollback;
mod run;
mod setup;
mod show;
mod test;
mod tree;
mod uninstall;
mod update;
mod versions;

use clap::{Args, Subcommand};

use crate::cli::{CliError, Context, Exit};
use crate::domain::ScenarioName;
use crate::harness::adapter::{Adapter, Adapters};
use crate::harness::client::{ClientError, Home, Kind, Place, Record, TOKEN_VARIABLE, installations};

/// Install and run agents on the trees a service serves, and look at trees
#[derive(Debug, Args)]
pub(crate) struct HarnessArgs {
    #[command(subcommand)]
    command: HarnessCommand,
}

#[derive(Debug, Subcommand)]
enum HarnessCommand {
    /// List the agents there are adapters for, or show one
    Adapters(adapters::AdaptersArgs),
    /// List what was tried on a scenario's tree, or show one attempt
    Attempts(attempts::AttemptsArgs),
    /// Compare two trees, entry by entry
    Diff(diff::DiffArgs),
    /// Check an installation: program, service, token, release
    Doctor(doctor::DoctorArgs),
    /// Install an agent with the tree a service serves for it
    Install(install::InstallArgs),
    /// List what is installed on this machine
    List(list::ListArgs),
    /// Propose a change of a scenario's tree
    Propose(propose::ProposeArgs),
    /// Grade a run
    Report(report::ReportArgs),
    /// Go back to a release that was installed before
    Rollback(rollback::RollbackArgs),
    /// Run an installed agent; its wrapper does this
    Run(run::RunArgs),
    /// Go through what the release needs on this machine
    Setup(setup::SetupArgs),
    /// Show the entries of a tree
    Show(show::ShowArgs),
    /// Check a tree as admission does, and render it, without a service
    Test(test::TestArgs),
    /// Remove an installation
    Uninstall(uninstall::UninstallArgs),
    /// Install the release that is served now
    Update(update::UpdateArgs),
    /// List the releases that are installed
    Versions(versions::VersionsArgs),
}

pub(crate) fn run(context: &Context, args: HarnessArgs) -> Result<Exit, CliError> {
    // These read a deployment's files; the others are about what is installed on this machine.
    let reads_files = matches!(
        args.command,
        HarnessCommand::Adapters(_)
            | HarnessCommand::Attempts(_)
            | HarnessCommand::Diff(_)
            | HarnessCommand::Propose(_)
            | HarnessCommand::Show(_)
            | HarnessCommand::Test(_)
    );
    if !reads_files {
        context.refuse_settings("harness")?;
    }
    match args.command {
        HarnessCommand::Adapters(args) => adapters::run(context, &args),
        HarnessCommand::Attempts(args) => attempts::run(context, &args),
        HarnessCommand::Diff(args) => diff::run(context, &args),
        HarnessCommand::Propose(args) => propose::run(context, &args),
        HarnessCommand::Show(args) => show::run(context, &args),
        HarnessCommand::Test(args) => test::run(context, &args),
        HarnessCommand::Doctor(args) => doctor::run(context, &args.which.find(context)?, &args.options),
        HarnessCommand::Install(args) => install::run(context, args),
        HarnessCommand::List(args) => list::run(context, args),
        HarnessCommand::Report(args) => report::run(context, &args.which.find(context)?, args.options),
        HarnessCommand::Rollback(args) => rollback::run(context, &args.which.find(context)?, &args.options),
        HarnessCommand::Run(args) => run::run(context, args),
        HarnessCommand::Setup(args) => setup::run(context, &args.which.find(context)?, &args.options),
        HarnessCommand::Uninstall(args) => uninstall::run(context, &args.which.find(context)?, &args.options),
        HarnessCommand::Update(args) => update::run(context, &args.which.find(context)?, &args.options),
        HarnessCommand::Versions(args) => versions::run(context, &args.which.find(context)?),
    }
}

/// Which installation is meant.
#[derive(Debug, Clone, Args)]
pub(super) struct WhichArgs {
    /// The agent: pi, claude, codex, opencode, qwen, openclaw, hermes
    #[arg(long, value_name = "NAME")]
    adapter: String,
    /// The scenario, if the agent is installed for several
    #[arg(short, long, value_name = "NAME")]
    scenario: Option<ScenarioName>,
}

/// One installation and what is written down about it.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) place: Place,
    pub(super) record: Record,
}

impl WhichArgs {
    fn find(&self, context: &Context) -> Result<Chosen, CliError> {
        let mut found: Vec<(Place, Record)> = installations(&home(context)?)
            .into_iter()
            .filter(|(_, record)| record.adapter == self.adapter)
            .filter(|(_, record)| {
                self.scenario
                    .as_ref()
                    .is_none_or(|scenario| *scenario == record.scenario)
            })
            .collect();
        if found.len() > 1 {
            let scenarios: Vec<&str> = found.iter().map(|(_, record)| record.scenario.as_str()).collect();
            return Err(CliError::new(
                Exit::Usage,
                format!(
                    "{} is installed for several scenarios: {}",
                    self.adapter,
                    scenarios.join(", ")
                ),
            )
            .hint("name one with --scenario"));
        }
        found
            .pop()
            .map(|(place, record)| Chosen { place, record })
            .ok_or_else(|| {
                CliError::new(Exit::Nothing, format!("{} is not installed here", self.adapter))
                    .hint("reef harness list shows what is; reef harness install installs")
            })
    }
}

impl Chosen {
    /// Its adapter.
    pub(super) fn adapter(&self) -> Result<Adapter, CliError> {
        adapter(&self.record.adapter)
    }
}

/// The user's directories.
pub(super) fn home(context: &Context) -> Result<Home, CliError> {
    Ok(Home::new(context.env("HOME"), context.env("XDG_DATA_HOME"))?)
}

/// An adapter by name.
pub(super) fn adapter(name: &str) -> Result<Adapter, CliError> {
    let adapters = Adapters::built_in().map_err(ClientError::from)?;
    Ok(adapters.get(name).map_err(ClientError::from)?.clone())
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        let exit = match error.kind() {
            Kind::Usage => Exit::Usage,
            Kind::Machine => Exit::Unexpected,
            Kind::Unmet | Kind::Nothing => Exit::Nothing,
            Kind::Unavailable => Exit::Unavailable,
            Kind::Busy => Exit::LeaseHeld,
        };
        let failure = Self::from_error(exit, &error);
        match error.next_step() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// The environment's token, if it names one.
pub(super) fn token(context: &Context) -> Option<String> {
    context.env(TOKEN_VARIABLE).map(str::to_owned)
}

/// The environment's `PATH`.
pub(super) fn path() -> std::ffi::OsString {
    std::env::var_os("PATH").unwrap_or_default()
}
