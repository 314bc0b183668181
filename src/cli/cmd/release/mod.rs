//! `reef release`

pub(super) mod chain;
mod decide;
mod diff;
mod files;
mod list;
mod remote;
mod room;
mod show;
mod upkeep;

use clap::{Args, Subcommand};

pub(super) use decide::{Decided, Kind, decide};

use crate::cli::{CliError, Context, Exit};

/// List, compare, promote, roll back and move releases
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    #[command(subcommand)]
    command: ReleaseCommand,
}

#[derive(Debug, Subcommand)]
enum ReleaseCommand {
    /// List the steps of a scenario, newest first
    List(list::ListArgs),
    /// Draw the chain of a scenario
    Log(list::LogArgs),
    /// Show what a release consists of and how it came to be
    Show(show::ShowArgs),
    /// Compare two releases: text line by line, adapters tensor by tensor
    Diff(diff::DiffArgs),
    /// Put a held release in service
    Promote(decide::PromoteArgs),
    /// Refuse a held release; its evidence is kept
    Reject(decide::RejectArgs),
    /// Put an older release in service again
    Rollback(decide::RollbackArgs),
    /// Write a release into a directory that peft and transformers can load
    Export(files::ExportArgs),
    /// Make a directory a release
    Import(files::ImportArgs),
    /// Re-hash every release and name what is damaged
    Verify(upkeep::VerifyArgs),
    /// Take back the space of content and training state that retention does not keep
    Gc(room::GcArgs),
    /// Keep a release, whatever retention says
    Pin(room::PinArgs),
    /// Leave a pinned release to retention again
    Unpin(room::PinArgs),
    /// Send chains to a git repository with LFS
    Push(remote::PushArgs),
    /// Bring chains from a git repository with LFS
    Pull(remote::PullArgs),
}

pub(crate) fn run(context: &Context, args: ReleaseArgs) -> Result<Exit, CliError> {
    match args.command {
        ReleaseCommand::List(args) => list::list(context, &args),
        ReleaseCommand::Log(args) => list::log(context, &args),
        ReleaseCommand::Show(args) => show::run(context, &args),
        ReleaseCommand::Promote(args) => decide::promote(context, args),
        ReleaseCommand::Reject(args) => decide::reject(context, args),
        ReleaseCommand::Rollback(args) => decide::rollback(context, args),
        ReleaseCommand::Export(args) => files::export(context, &args),
        ReleaseCommand::Import(args) => files::import(context, args),
        ReleaseCommand::Diff(args) => diff::run(context, &args),
        ReleaseCommand::Verify(args) => upkeep::verify(context, &args),
        ReleaseCommand::Gc(args) => room::gc(context, &args),
        ReleaseCommand::Pin(args) => room::pin(context, &args),
        ReleaseCommand::Unpin(args) => room::unpin(context, &args),
        ReleaseCommand::Push(args) => remote::push(context, args),
        ReleaseCommand::Pull(args) => remote::pull(context, args),
    }
}
