//! `reef status`

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::scenario;
use crate::cli::client::{Client, ServerArgs};
use crate::cli::context::Store;
use crate::cli::disk::Disk;
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit, format, running};
use crate::dash::{Snapshot, Want, plain_lines};
use crate::domain::ScenarioName;
use crate::experience::{Experience, LoopFacts, Stats};
use crate::scenario::driver_of;

/// Longest wait for the word of a running service.
const PATIENCE: Duration = Duration::from_secs(2);

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
        context.block_on(context.pause(interval))?;
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
    let mut scenarios = scenario::from_files(&store, false)?;
    let total = total(&store)?;
    let database = settings.storage.experience_db();
    let on_disk = std::fs::metadata(&database).map_or(0, |metadata| metadata.len());
    let disk = Disk::of(context, settings, Some(&store));
    let services = running::all(settings);
    let loops = Loops::look(context, &store, &services)?;
    for scenario in &mut scenarios {
        let name = scenario["scenario"].as_str().unwrap_or_default().to_owned();
        scenario["loop"] = json!(loops.of(&name));
    }
    let output = context.output();
    if output.json() {
        output.object(
            "status",
            &json!({
                "disk": disk.json(),
                "dir": settings.storage.dir,
                "service": services.first(),
                "services": services,
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
    let interrupted: u64 = total.interrupted.values().sum();
    let mut lines: Vec<(&str, String)> = services
        .iter()
        .map(|note| ("service", format!("{} (process {})", note.url, note.pid)))
        .collect();
    if lines.is_empty() {
        lines.push(("service", "not running".to_owned()));
    }
    lines.extend([
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
    ]);
    for (what, value) in lines.into_iter().chain(disk.lines()) {
        output.line(&format!("{what:<12} {value}"))?;
    }
    let mut table = Table::new(&["scenario", "mode", "loop", "release", ">exchanges", ">reports"]);
    for scenario in &scenarios {
        let text = |key: &str| scenario.get(key).and_then(Value::as_str).unwrap_or("-").to_owned();
        let count = |key: &str| scenario.get(key).and_then(Value::as_u64).unwrap_or(0).to_string();
        table.row([
            text("scenario"),
            text("training_mode"),
            text("loop"),
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

/// What the loop of each scenario does, in a few words.
struct Loops {
    /// What each running service says of itself.
    services: Vec<Value>,
    facts: BTreeMap<ScenarioName, LoopFacts>,
    run_dir: PathBuf,
}

impl Loops {
    /// Asks the running services, each with little patience: the files say the rest.
    fn look(context: &Context, store: &Experience, services: &[running::Note]) -> Result<Self, CliError> {
        let mut said = Vec::new();
        for note in services {
            let client = Client::new(context, &note.local_url)?;
            let asked =
                context.block_on(async { Ok(tokio::time::timeout(PATIENCE, client.get("/reef/status")).await) })?;
            said.extend(asked.ok().and_then(Result::ok));
        }
        Ok(Self {
            services: said,
            facts: store.loop_facts()?,
            run_dir: context.settings()?.storage.run_dir(),
        })
    }

    fn of(&self, scenario: &str) -> String {
        let name = ScenarioName::new(scenario).ok();
        let driver = name.as_ref().and_then(|name| driver_of(&self.run_dir, name));
        let learning = self.services.iter().find_map(|status| {
            let training = &status["scenarios"][scenario]["training"];
            let phase = training["phase"].as_str()?;
            (phase != "off").then_some(training)
        });
        if let Some(training) = learning {
            return words(training);
        }
        if let Some(driver) = driver {
            return driver;
        }
        let open = name
            .and_then(|name| self.facts.get(&name))
            .and_then(|facts| facts.open.as_ref());
        match (open, self.services.as_slice()) {
            (Some(open), _) => format!("step {} stopped when {}", open.step, open.stage),
            (None, []) => "stopped".to_owned(),
            // A service that learns has not looked at a new scenario yet.
            (None, services) if services.iter().any(|status| status["service"]["recipe"].is_string()) => {
                "idle".to_owned()
            }
            (None, _) => "records only".to_owned(),
        }
    }
}

/// What a service says of a loop that it drives.
fn words(training: &Value) -> String {
    let text = |key: &str| training[key].as_str();
    let mut words = text("phase").unwrap_or("idle").to_owned();
    if let Some(share) = training["progress"].as_f64() {
        words.push_str(&format!(" {:.0}%", share * 100.0));
    }
    let trouble = [("not_live", "not live"), ("error", "failing"), ("blocked", "blocked")];
    if let Some((_, trouble)) = trouble.iter().find(|(key, _)| text(key).is_some()) {
        words.push_str(&format!(", {trouble}"));
    }
    words
}

fn total(store: &Experience) -> Result<Stats, CliError> {
    let mut total = Stats::default();
    for stats in store.stats(None)?.values() {
        total.add(stats);
    }
    Ok(total)
}
