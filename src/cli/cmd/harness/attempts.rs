//! `reef harness attempts`

use clap::Args;
use serde_json::{Value, json};

use crate::cli::client::{Client, ServerArgs, segment};
use crate::cli::context::Store;
use crate::cli::table::{Table, printable};
use crate::cli::{CliError, Context, Exit, format};
use crate::domain::{ScenarioName, readable};
use crate::experience::AttemptStory;
use crate::sys::terminal;

/// Entries of an attempt's activity that are shown.
const MOST_EVENTS: u32 = 1000;

/// List what was tried on a scenario's tree, or show one attempt
///
/// Each attempt tells its state, what it changes, and the failures, the instruction or the proposal that led to it. One
/// alone is shown whole: the receipts of the failures, the mutations, the verdict, what it did.
#[derive(Debug, Args)]
pub(super) struct AttemptsArgs {
    /// Show this one whole
    #[arg(value_name = "ID")]
    attempt: Option<String>,
    /// The scenario
    #[arg(short, long, value_name = "NAME")]
    scenario: ScenarioName,
    /// Show at most so many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
    limit: u32,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(context: &Context, args: &AttemptsArgs) -> Result<Exit, CliError> {
    let found = match &args.server.url {
        Some(url) => from_service(context, url, args)?,
        None => from_files(context, args)?,
    };
    let output = context.output();
    if args.attempt.is_some() {
        if output.json() {
            output.object("harness_attempt", &found)?;
        } else {
            output.text(&terminal::json(&format!("{:#}\n", readable(&found))))?;
        }
        return Ok(Exit::Ok);
    }
    if output.json() {
        output.object("harness_attempts", &found)?;
        return Ok(Exit::Ok);
    }
    let attempts = found["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
    if attempts.is_empty() {
        output.note("nothing was tried yet");
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["attempt", "began", "state", "from", ">failures", "changes", "outcome"]);
    for attempt in attempts {
        let word = |key: &str| attempt[key].as_str().unwrap_or_default().to_owned();
        let began = attempt["began_at"].as_f64().unwrap_or_default();
        table.row([
            word("attempt_id"),
            format::utc((began * 1e6) as i64),
            word("state"),
            word("source"),
            attempt["failures_total"].to_string(),
            changes(&attempt["mutations"]),
            word("outcome"),
        ]);
    }
    output.text(&table.render(output.colored()))?;
    Ok(Exit::Ok)
}

fn changes(mutations: &Value) -> String {
    let mutations = mutations.as_array().map(Vec::as_slice).unwrap_or_default();
    let each = mutations.iter().map(|mutation| {
        let word = |key: &str| mutation[key].as_str().unwrap_or_default();
        format!("{} {}", word("op"), word("id"))
    });
    printable(each.collect::<Vec<_>>().join(", "))
}

fn from_service(context: &Context, url: &str, args: &AttemptsArgs) -> Result<Value, CliError> {
    let client = Client::new(context, url)?;
    let path = match &args.attempt {
        Some(id) => format!("/reef/harness/attempts/{}?scenario={}", segment(id), args.scenario),
        None => format!("/reef/harness/attempts?scenario={}&limit={}", args.scenario, args.limit),
    };
    context.block_on(client.get(&path))
}

fn from_files(context: &Context, args: &AttemptsArgs) -> Result<Value, CliError> {
    let store = context.store(Store::Shown)?;
    let scenario = &args.scenario;
    if store.scenario(scenario)?.is_none() {
        return Err(CliError::new(Exit::Usage, format!("there is no scenario {scenario}"))
            .hint("reef scenario list shows the scenarios there are"));
    }
    let Some(id) = &args.attempt else {
        let stories = store.attempt_stories(scenario, args.limit)?;
        let attempts: Vec<Value> = stories.iter().map(AttemptStory::to_json).collect();
        return Ok(json!({"scenario": scenario, "attempts": attempts}));
    };
    let story = store.attempt_story(scenario, id)?.ok_or_else(|| {
        CliError::new(Exit::Usage, format!("scenario {scenario} has no attempt {id:?}"))
            .hint(format!("reef harness attempts -s {scenario} lists them"))
    })?;
    Ok(story.to_json_with(&store.attempt_events(id, MOST_EVENTS)?))
}
