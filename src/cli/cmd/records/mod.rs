//! `reef records`

mod export;
mod filter;
mod import;
mod list;
mod show;

pub(in crate::cli) use show::named;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use crate::cli::context::{Store, given};
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit, format, pages};
use crate::domain::{RequestType, ScenarioName};
use crate::experience::{Retention, Stats};

/// See, move and prune what is stored
///
/// These commands work on the files, whether or not a service runs on them.
#[derive(Debug, Args)]
pub(crate) struct RecordsArgs {
    #[command(subcommand)]
    command: RecordsCommand,
}

#[derive(Debug, Subcommand)]
enum RecordsCommand {
    /// List records, the newest first
    List(list::ListArgs),
    /// Show one record with its bodies and the reports on it
    Show(show::ShowArgs),
    /// Write records as JSON lines that import reads back
    Export(export::ExportArgs),
    /// Store records from JSON lines: an export, import envelopes or OpenAI chat examples
    Import(import::ImportArgs),
    /// Show counts and sizes
    Stats(StatsArgs),
    /// Drop the bodies of old records now; ids and digests stay
    Prune(PruneArgs),
}

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Exchanges
    Inference,
    /// Reports
    Report,
    /// Instructions
    Train,
}

impl From<Kind> for RequestType {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Inference => Self::Inference,
            Kind::Report => Self::Report,
            Kind::Train => Self::Train,
        }
    }
}

#[derive(Debug, Args)]
struct StatsArgs {
    /// Only this scenario
    #[arg(short, long, value_name = "NAME")]
    scenario: Option<ScenarioName>,
    /// Also draw what was recorded into this HTML file, which needs nothing else
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct PruneArgs {
    /// Keep at most so much, as stored: 500MB, 20GiB [default: storage.retention-max-bytes]
    #[arg(long, value_name = "SIZE")]
    max_bytes: Option<String>,
    /// Keep nothing that has been stored for more than so many days [default: storage.retention-days]
    #[arg(long, value_name = "DAYS")]
    max_age: Option<String>,
}

pub(crate) fn run(context: &Context, args: RecordsArgs) -> Result<Exit, CliError> {
    match args.command {
        RecordsCommand::List(args) => list::run(context, &args),
        RecordsCommand::Show(args) => show::run(context, &args),
        RecordsCommand::Export(args) => export::run(context, &args),
        RecordsCommand::Import(args) => import::run(context, &args),
        RecordsCommand::Stats(args) => stats(context, &args),
        RecordsCommand::Prune(args) => prune(context, args),
    }
}

fn stats(context: &Context, args: &StatsArgs) -> Result<Exit, CliError> {
    let store = context.store(Store::MustExist)?;
    let stats = store.stats(args.scenario.as_ref())?;
    if let (Some(name), true) = (&args.scenario, stats.is_empty()) {
        return Err(CliError::new(Exit::Usage, format!("there is no scenario {name}"))
            .hint("reef scenario list shows the scenarios there are"));
    }
    if let Some(path) = &args.plot {
        pages::records(context, path, args.scenario.as_ref())?;
    }
    let mut total = Stats::default();
    for each in stats.values() {
        total.add(each);
    }
    let output = context.output();
    if output.json() {
        let scenarios: serde_json::Map<_, _> = stats
            .iter()
            .map(|(name, stats)| (name.to_string(), stats_json(stats)))
            .collect();
        let mut said = json!({"scenarios": scenarios, "total": stats_json(&total)});
        if let Some(path) = &args.plot {
            said["file"] = json!(path);
        }
        output.object("stats", &said)?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&[
        "scenario",
        ">exchanges",
        ">reports",
        ">instructions",
        ">interrupted",
        ">mean score",
        ">consumed",
        ">bodies",
        ">stored",
        ">pruned",
        "last record",
    ]);
    let mut row = |name: &str, stats: &Stats| {
        table.row([
            name.to_owned(),
            stats.exchanges.to_string(),
            stats.reports.to_string(),
            stats.instructions.to_string(),
            stats.interrupted.values().sum::<u64>().to_string(),
            stats.mean_score().map_or("-".to_owned(), |mean| format!("{mean:.3}")),
            stats.consumed.to_string(),
            format::bytes(stats.body_bytes),
            format::bytes(stats.stored_bytes),
            stats.pruned_records.to_string(),
            stats.last_us.map_or("-".to_owned(), format::utc),
        ]);
    };
    for (name, stats) in &stats {
        row(name.as_str(), stats);
    }
    if stats.len() != 1 {
        row("total", &total);
    }
    output.text(&table.render(output.colored()))?;
    Ok(Exit::Ok)
}

fn stats_json(stats: &Stats) -> serde_json::Value {
    json!({
        "exchanges": stats.exchanges,
        "reports": stats.reports,
        "instructions": stats.instructions,
        "interrupted": stats.interrupted,
        "scores": stats.scores,
        "mean_score": stats.mean_score(),
        "consumed": stats.consumed,
        "body_bytes": stats.body_bytes,
        "stored_bytes": stats.stored_bytes,
        "pruned_records": stats.pruned_records,
        "pruned_bytes": stats.pruned_bytes,
        "input_tokens": stats.input_tokens,
        "output_tokens": stats.output_tokens,
        "last_sequence": stats.last_sequence,
        "last_record_at": stats.last_us.map(crate::sys::clock::seconds),
    })
}

fn prune(context: &Context, args: PruneArgs) -> Result<Exit, CliError> {
    let mut flags = Vec::new();
    if let Some(size) = args.max_bytes {
        flags.push(given("--max-bytes", "storage.retention-max-bytes", size));
    }
    if let Some(days) = args.max_age {
        flags.push(given("--max-age", "storage.retention-days", days));
    }
    let storage = context.settings_with(flags)?.storage;
    let retention = Retention {
        max_bytes: Some(storage.retention_max_bytes.0),
        max_age: storage
            .retention_days
            .map(|days| std::time::Duration::try_from_secs_f64(days * 86_400.0).unwrap_or(std::time::Duration::MAX)),
    };
    let store = context.store(Store::MustExist)?;
    let pruned = context.block_on(async { Ok(store.prune(retention).await?) })?;
    let output = context.output();
    if output.json() {
        output.object("pruned", &json!({"records": pruned.records, "bytes": pruned.bytes}))?;
    } else {
        output.note(&format!(
            "dropped the bodies of {} records, {}",
            pruned.records,
            format::bytes(pruned.bytes)
        ));
    }
    Ok(if pruned.records == 0 { Exit::Nothing } else { Exit::Ok })
}
