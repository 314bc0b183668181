//! `reef release push` and `reef release pull`

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::cli::context::Store;
use crate::cli::progress::Progress;
use crate::cli::{CliError, Context, Exit, format};
use crate::domain::ScenarioName;
use crate::release::{Objects, Remote, Transfer};

/// Incomplete releases that are named.
const SHOWN_INCOMPLETE: usize = 10;

#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    /// A path, ssh:// or https:// URL of a git repository with LFS [default: release.remote]
    remote: Option<String>,
    /// Only this scenario; may be repeated
    #[arg(short, long = "scenario", value_name = "NAME")]
    scenarios: Vec<ScenarioName>,
    /// Replace a chain that went on differently there, if it is still as it was just seen
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// A path, ssh:// or https:// URL of a git repository with LFS [default: release.remote]
    remote: Option<String>,
    /// Only this scenario; may be repeated
    #[arg(short, long = "scenario", value_name = "NAME")]
    scenarios: Vec<ScenarioName>,
    /// Whose large files to bring
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Which::Heads)]
    objects: Which,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    /// Of the newest release of each chain, and of held ones
    Heads,
    /// Of every release, so that each can be restored here
    All,
}

/// The remote a command names, or the configured one.
pub(super) fn remote(context: &Context, named: Option<&str>) -> Result<Option<Remote>, CliError> {
    let settings = &context.settings()?.release;
    let url = named.or(settings.remote.as_deref());
    Ok(url.map(|url| Remote::new(url, settings.lfs_url.clone())).transpose()?)
}

fn needed(context: &Context, named: Option<&str>) -> Result<Remote, CliError> {
    remote(context, named)?.ok_or_else(|| {
        CliError::new(Exit::Usage, "no remote is named").hint("give a URL or a path, or set release.remote")
    })
}

pub(crate) fn push(context: &Context, args: PushArgs) -> Result<Exit, CliError> {
    let remote = needed(context, args.remote.as_deref())?;
    let shown = remote.shown();
    let publisher = context.publisher(Store::MustExist)?;
    let progress = Progress::start(context.output(), "pushing releases", None);
    let transfer = context.block_on(async { Ok(publisher.push(remote, args.scenarios, args.force).await?) })?;
    drop(progress);
    told(context, "pushed", &shown, &transfer)
}

pub(crate) fn pull(context: &Context, args: PullArgs) -> Result<Exit, CliError> {
    let remote = needed(context, args.remote.as_deref())?;
    let shown = remote.shown();
    let objects = match args.objects {
        Which::Heads => Objects::Heads,
        Which::All => Objects::All,
    };
    let publisher = context.publisher(Store::Create)?;
    let progress = Progress::start(context.output(), "pulling releases", None);
    let transfer = context.block_on(async { Ok(publisher.pull(remote, args.scenarios, objects).await?) })?;
    drop(progress);
    told(context, "pulled", &shown, &transfer)
}

fn told(context: &Context, what: &str, remote: &str, transfer: &Transfer) -> Result<Exit, CliError> {
    let output = context.output();
    warn_of_gaps(context, what, transfer);
    if output.json() {
        let moved: Vec<_> = transfer
            .moved
            .iter()
            .map(|moved| json!({"scenario": moved.scenario, "from": moved.from, "to": moved.to}))
            .collect();
        output.object(
            what,
            &json!({
                "remote": remote, "moved": moved, "unmoved": transfer.unmoved,
                "objects": transfer.objects, "held": transfer.held, "rejected": transfer.rejected,
                "incomplete": transfer.incomplete,
            }),
        )?;
        return Ok(Exit::Ok);
    }
    for moved in &transfer.moved {
        let from = moved
            .from
            .as_ref()
            .map_or("new".to_owned(), |id| format::short(id.as_str()));
        output.note(&format!(
            "{}  {from} -> {}",
            moved.scenario,
            format::short(moved.to.as_str())
        ));
    }
    if transfer.rejected > 0 {
        output.note(&format!("rejections of held releases: {}", transfer.rejected));
    }
    let moved = !transfer.moved.is_empty() || transfer.held > 0 || transfer.rejected > 0;
    if transfer.moved.is_empty() && transfer.unmoved.is_empty() && transfer.held == 0 {
        output.note(&format!("there are no chains to move ({remote})"));
    } else if !moved && transfer.objects == 0 && transfer.incomplete.is_empty() {
        output.note("everything is up to date");
    } else if !moved && what == "pushed" && transfer.incomplete.is_empty() {
        output.note(&format!(
            "everything is up to date: {} large files were offered, and those missing there were sent",
            transfer.objects
        ));
    } else {
        output.note(&format!(
            "{what} ({remote}): chains {}, held releases {}, large files {}",
            transfer.moved.len(),
            transfer.held,
            transfer.objects
        ));
    }
    Ok(Exit::Ok)
}

/// Says which releases stay incomplete, also to a script that reads the rest as JSON.
fn warn_of_gaps(context: &Context, what: &str, transfer: &Transfer) {
    if !transfer.incomplete.is_empty() {
        let shown: Vec<String> = transfer
            .incomplete
            .iter()
            .take(SHOWN_INCOMPLETE)
            .map(|id| format::short(id.as_str()))
            .collect();
        let more = transfer.incomplete.len().saturating_sub(shown.len());
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        context.output().warn(&format!(
            "{} releases are incomplete ({}{more}): large files of theirs {}",
            transfer.incomplete.len(),
            shown.join(", "),
            if what == "pushed" {
                "are not here, so they were not sent: they can be restored from there only if it has them already"
            } else {
                "are not there, so they were not brought"
            }
        ));
    }
}
