//! `reef status`

use clap::Args;
use serde_json::{Value, json};

use super::scenario;
use crate::cli::client::{Client, ServerArgs};
use crate::cli::context::Store;
use crate::cli::disk::Disk;
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit, format, running};
use crate::dash::{Snapshot, Want, plain_lines};
use crate::experience::{Experience, Stats};

/// Show what is stored and served
///
/// Without --url it reads the files, with or without a service running on them. With --url it shows what that service
/// reports of itself.
///
/// With --watch it goes on: a line for each scenario that changed, for a log or a script (--json: one event a look).
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Go on looking, until interrupted
    #[arg(short, long)]
    watch: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, requires = "watch")]
    interval: f64,
    /// End after so many looks
    #[arg(long, value_name = "N", requires = "watch")]
    looks: Option<u64>,
}

pub(crate) fn run(context: &Context, args: StatusArgs) -> Result<Exit, CliError> {
    if args.watch {
        return watch(context, &args);
    }
    match args.server.url {
        Some(url) => of_service(context, &url),
        None => of_files(context),
    }
}

/// The overview of the dashboard, as it changes.
fn watch(context: &Context, args: &StatusArgs) -> Result<Exit, CliError> {
    let interval = super::dash::interval(args.interval)?;
    let mut source = super::dash::source(context, args.server.url.as_deref())?;
    let output = context.output();
    let want = Want::default();
    let mut before: Option<Snapshot> = None;
    let mut looks = 0;
    loop {
        match source.snapshot(&want) {
            Ok(now) => {
                if output.json() {
                    output.event("status", &now)?;
                } else {
                    for line in plain_lines(&now, before.as_ref()) {
                        output.line(&line)?;
                    }
                }
                before = Some(now);
            }
            // What was there once may come back; what never was is a mistake. What was seen before is no news now.
            Err(fault) if before.is_some() => output.warn(&fault.message),
            Err(fault) => return Err(fault.into()),
        }
        looks += 1;
        if args.looks.is_some_and(|most| looks >= most) {
            return Ok(Exit::Ok);
        }
        context.block_on(async {
            tokio::time::sleep(interval).await;
            Ok(())
        })?;
    }
}

fn of_service(context: &Context, url: &str) -> Result<Exit, CliError> {
    let client = Client::new(context, url)?;
    let status = context.block_on(client.get("/reef/status"))?;
    let output = context.output();
    if output.json() {
        output.object("status", &status)?;
        return Ok(Exit::Ok);
    }
    output.line(&format!("service  {}", client.base()))?;
    let mut table = Table::new(&["what", "value"]);
    flatten("", &status, &mut table);
    output.text(&table.render(output.colored()))?;
    Ok(Exit::Ok)
}

/// One line for each value that says something.
fn flatten(path: &str, value: &Value, table: &mut Table) {
    let below = |key: &str| {
        if path.is_empty() {
            key.to_owned()
        } else {
            format!("{path}.{key}")
        }
    };
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                flatten(&below(key), value, table);
            }
        }
        Value::Null => {}
        Value::String(text) => table.row([path, text]),
        other => table.row([path.to_owned(), other.to_string()]),
    }
}

fn of_files(context: &Context) -> Result<Exit, CliError> {
    let settings = context.settings()?;
    let store = context.store(Store::Shown)?;
    let scenarios = scenario::from_files(&store, false)?;
    let total = total(&store)?;
    let database = settings.storage.experience_db();
    let on_disk = std::fs::metadata(&database).map_or(0, |metadata| metadata.len());
    let disk = Disk::of(context, settings, Some(&store));
    let output = context.output();
    if output.json() {
        output.object(
            "status",
            &json!({
                "disk": disk.json(),
                "dir": settings.storage.dir,
                "service": running::find(settings),
                "store": {
                    "path": database,
                    "bytes": on_disk,
                    "exchanges": total.exchanges,
                    "reports": total.reports,
                    "instructions": total.instructions,
                    "consumed": total.consumed,
                    "body_bytes": total.body_bytes,
                    "stored_bytes": total.stored_bytes,
                    "pruned_records": total.pruned_records,
                    "interrupted": total.interrupted,
                    "input_tokens": total.input_tokens,
                    "output_tokens": total.output_tokens,
                },
                "scenarios": scenarios,
            }),
        )?;
        return Ok(Exit::Ok);
    }
    let running = running::find(settings);
    let interrupted: u64 = total.interrupted.values().sum();
    let lines = [
        (
            "service",
            running.map_or_else(
                || "not running".to_owned(),
                |note| format!("{} (process {})", note.url, note.pid),
            ),
        ),
        ("directory", settings.storage.dir.display().to_string()),
        (
            "records",
            format!(
                "{} exchanges, {} reports, {} instructions",
                total.exchanges, total.reports, total.instructions
            ),
        ),
        (
            "bodies",
            format!(
                "{}, stored in {}; limit {}",
                format::bytes(total.body_bytes),
                format::bytes(total.stored_bytes),
                format::bytes(settings.storage.retention_max_bytes.0)
            ),
        ),
        ("pruned", format!("{} records", total.pruned_records)),
        ("interrupted", format!("{interrupted} exchanges, none of them a record")),
    ];
    for (what, value) in lines.into_iter().chain(disk.lines()) {
        output.line(&format!("{what:<12} {value}"))?;
    }
    let mut table = Table::new(&["scenario", "mode", "release", ">exchanges", ">reports"]);
    for scenario in &scenarios {
        let text = |key: &str| scenario.get(key).and_then(Value::as_str).unwrap_or("-").to_owned();
        let count = |key: &str| scenario.get(key).and_then(Value::as_u64).unwrap_or(0).to_string();
        table.row([
            text("scenario"),
            text("training_mode"),
            format::short(&text("release_id")),
            count("exchanges"),
            count("reports"),
        ]);
    }
    if !table.is_empty() {
        output.line("")?;
        output.text(&table.render(output.colored()))?;
    }
    Ok(Exit::Ok)
}

fn total(store: &Experience) -> Result<Stats, CliError> {
    let mut total = Stats::default();
    for stats in store.stats(None)?.values() {
        total.add(stats);
    }
    Ok(total)
}
