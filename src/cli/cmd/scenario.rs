//! `reef scenario`

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::cli::client::{Client, ServerArgs, segment};
use crate::cli::context::Store;
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit, begin, format, running};
use crate::domain::{ScenarioName, TrainingMode};
use crate::experience::Experience;

/// List, create, change and delete scenarios
#[derive(Debug, Args)]
pub(crate) struct ScenarioArgs {
    #[command(subcommand)]
    command: ScenarioCommand,
}

#[derive(Debug, Subcommand)]
enum ScenarioCommand {
    /// List the scenarios with their counts
    List(ListArgs),
    /// Create a scenario as its first request would; an existing one is left as it is
    ///
    /// The service that runs on these files creates it, so that it begins with what its deployment file says (a harness
    /// tree, a base, a training mode). Without a running service the settings of this command count: name the deployment
    /// file with -c.
    Create(CreateArgs),
    /// Change what may start a training step
    Set(SetArgs),
    /// Archive a scenario and free its name; records and releases are kept
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Show archived scenarios too
    #[arg(long, conflicts_with = "url")]
    archived: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// The name
    name: ScenarioName,
    /// What may start a training step: auto, manual or hybrid
    #[arg(long, value_name = "MODE")]
    mode: Option<TrainingMode>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct SetArgs {
    /// The name
    name: ScenarioName,
    /// What may start a training step: auto, manual or hybrid
    #[arg(long, value_name = "MODE")]
    mode: TrainingMode,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct DeleteArgs {
    /// The name
    name: ScenarioName,
    /// Do it; without this the command only says what it would do
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(context: &Context, args: ScenarioArgs) -> Result<Exit, CliError> {
    match args.command {
        ScenarioCommand::List(args) => list(context, &args),
        ScenarioCommand::Create(args) => create(context, args),
        ScenarioCommand::Set(args) => set(context, args),
        ScenarioCommand::Delete(args) => delete(context, args),
    }
}

fn list(context: &Context, args: &ListArgs) -> Result<Exit, CliError> {
    let scenarios = match &args.server.url {
        Some(url) => {
            let client = Client::new(context, url)?;
            let body = context.block_on(client.get("/reef/scenarios"))?;
            body.get("scenarios")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        }
        None => from_files(&context.store(Store::Shown)?, args.archived)?,
    };
    let output = context.output();
    if output.json() {
        output.object("scenarios", &json!({"scenarios": scenarios}))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&[
        "scenario",
        "mode",
        "release",
        ">exchanges",
        ">reports",
        "last record",
        "created",
    ]);
    for scenario in &scenarios {
        let text = |key: &str| scenario.get(key).and_then(Value::as_str).unwrap_or("-").to_owned();
        let count = |key: &str| {
            scenario
                .get(key)
                .and_then(Value::as_u64)
                .map_or("-".to_owned(), |n| n.to_string())
        };
        let time = |key: &str| {
            scenario
                .get(key)
                .and_then(Value::as_f64)
                .map_or("-".to_owned(), |seconds| format::utc((seconds * 1e6) as i64))
        };
        let mut name = text("scenario");
        if scenario.get("archived_at").is_some_and(|at| !at.is_null()) {
            name.push_str(" (archived)");
        }
        let release = format::short(&text("release_id"));
        table.row([
            name,
            text("training_mode"),
            release,
            count("exchanges"),
            count("reports"),
            time("last_record_at"),
            time("created_at"),
        ]);
    }
    if table.is_empty() {
        output.note("no scenarios yet; the first request that names one creates it");
        return Ok(Exit::Ok);
    }
    output.text(&table.render(output.colored()))?;
    Ok(Exit::Ok)
}

/// The same shape the service gives, with counts.
pub(crate) fn from_files(store: &Experience, with_archived: bool) -> Result<Vec<Value>, CliError> {
    let stats = store.stats(None)?;
    let seconds = |us: i64| us as f64 / 1e6;
    let scenarios = store.scenarios(with_archived)?;
    Ok(scenarios
        .iter()
        .map(|scenario| {
            let counts = stats.get(&scenario.name).filter(|_| scenario.archived_us.is_none());
            json!({
                "scenario": scenario.name,
                "training_mode": scenario.mode,
                "release_id": scenario.served.as_ref().map(|served| &served.release_id),
                "content_id": scenario.served.as_ref().map(|served| &served.content_id),
                "created_at": seconds(scenario.created_us),
                "archived_at": scenario.archived_us.map(seconds),
                "exchanges": counts.map(|counts| counts.exchanges),
                "reports": counts.map(|counts| counts.reports),
                "last_record_at": counts.and_then(|counts| counts.last_us).map(seconds),
            })
        })
        .collect())
}

fn create(context: &Context, args: CreateArgs) -> Result<Exit, CliError> {
    let name = &args.name;
    let answer = context.block_on(async {
        if let Some(url) = &args.server.url {
            return begin::ask(&Client::new(context, url)?, name, args.mode).await;
        }
        if let Some(answer) = begin::by_service(context, name, args.mode).await? {
            return Ok(answer);
        }
        let publisher = context.publisher(Store::Create)?;
        begin::by_files(context, &publisher, name, args.mode).await
    })?;
    let created = answer.get("created").and_then(Value::as_bool);
    let output = context.output();
    if output.json() {
        output.object("scenario", &answer)?;
        return Ok(Exit::Ok);
    }
    if created == Some(false) {
        output.note(&format!("scenario {name} exists already"));
    } else {
        output.note(&format!("scenario {name} is ready"));
        if args.server.url.is_none() && running::find(context.settings()?).is_none() {
            begin::unread_file(context);
        }
    }
    Ok(Exit::Ok)
}

fn set(context: &Context, args: SetArgs) -> Result<Exit, CliError> {
    let name = args.name.as_str();
    match &args.server.url {
        Some(url) => {
            let client = Client::new(context, url)?;
            let path = format!("/reef/scenarios/{}/update", segment(name));
            context.block_on(client.post(&path, &json!({"training_mode": args.mode})))?;
        }
        None => {
            let store = context.store(Store::MustExist)?;
            context.block_on(async { Ok(store.scenario_set_mode(args.name.clone(), args.mode).await?) })?;
        }
    }
    let output = context.output();
    if output.json() {
        output.object("scenario", &json!({"scenario": name, "training_mode": args.mode}))?;
    } else {
        output.note(&format!("scenario {name} trains in mode {}", args.mode.as_str()));
    }
    Ok(Exit::Ok)
}

fn delete(context: &Context, args: DeleteArgs) -> Result<Exit, CliError> {
    let name = args.name.as_str();
    if !args.yes {
        return Err(CliError::new(
            Exit::Usage,
            format!("this would archive scenario {name} and free its name; records and releases are kept"),
        )
        .hint("add --yes to do it"));
    }
    match &args.server.url {
        Some(url) => {
            let client = Client::new(context, url)?;
            context.block_on(client.delete(&format!("/reef/scenarios/{}", segment(name))))?;
        }
        None => {
            let publisher = context.publisher(Store::MustExist)?;
            context.block_on(async { Ok(publisher.archive(&args.name).await?) })?;
        }
    }
    let output = context.output();
    if output.json() {
        output.object("scenario", &json!({"scenario": name, "archived": true}))?;
    } else {
        output.note(&format!("scenario {name} is archived"));
    }
    Ok(Exit::Ok)
}
