//! `reef harness propose`

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};

use crate::cli::client::{Client, ServerArgs};
use crate::cli::context::Store;
use crate::cli::{CliError, Context, Exit, harness, learning};
use crate::domain::ScenarioName;
use crate::harness::tree::LARGEST_FILE;
use crate::scenario::{Inbox, Offer, OfferError};
use crate::sys::regular;

/// Propose a change of a scenario's tree; a step tries it, and the gate decides
///
/// The file holds a list of mutations, or an object with `mutations` and `reason`; - reads standard input. The proposal is
/// admitted or refused at once.
///
/// Exit codes: 0 admitted, 10 refused.
#[derive(Debug, Args)]
pub(crate) struct ProposeArgs {
    /// The file of mutations
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The scenario
    #[arg(short, long, value_name = "NAME")]
    scenario: ScenarioName,
    /// Why it helps
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// The session it comes from
    #[arg(long, value_name = "NAME", default_value = "cli")]
    session: String,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(context: &Context, args: &ProposeArgs) -> Result<Exit, CliError> {
    let body = body(args)?;
    let answer = match &args.server.url {
        Some(url) => {
            let client = Client::new(context, url)?;
            context.block_on(client.send(
                reqwest::Method::POST,
                "/reef/harness/proposals",
                Some(args.scenario.as_str()),
                Some(&Value::Object(body)),
            ))?
        }
        None => to_files(context, args, body)?,
    };
    let admitted = answer["admitted"] == true;
    let output = context.output();
    if output.json() {
        output.object("proposal", &answer)?;
    } else if let Some(id) = answer["proposal_id"].as_str() {
        output.line(id)?;
    }
    if !admitted {
        output.note(&format!(
            "refused: {}",
            answer["reason"].as_str().unwrap_or("no reason given")
        ));
        return Ok(Exit::Rejected);
    }
    Ok(Exit::Ok)
}

fn body(args: &ProposeArgs) -> Result<Map<String, Value>, CliError> {
    let file = if args.file.as_os_str() == "-" {
        Path::new("/dev/stdin")
    } else {
        &args.file
    };
    let text = regular::named_text_at_most(file, LARGEST_FILE);
    let text =
        text.map_err(|error| CliError::new(Exit::Usage, format!("{} cannot be read: {error}", args.file.display())))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| {
        CliError::new(
            Exit::Usage,
            format!("{} is no list of mutations: {error}", args.file.display()),
        )
        .hint("a mutation is {\"op\": \"create\", \"id\": ID, \"options\": {\"name\": KIND, \"config\": {...}}}")
    })?;
    let mut body = match value {
        Value::Object(fields) => fields,
        list => Map::from_iter([("mutations".to_owned(), list)]),
    };
    if let Some(reason) = &args.reason {
        body.insert("reason".to_owned(), json!(reason));
    }
    body.entry("reason").or_insert_with(|| json!("proposed from a shell"));
    body.insert("session".to_owned(), json!(args.session));
    Ok(body)
}

fn to_files(context: &Context, args: &ProposeArgs, body: Map<String, Value>) -> Result<Value, CliError> {
    let settings = context.settings()?;
    let recipe = learning::recipe_needed(context)?;
    let trees = harness::trees(settings)?.ok_or_else(|| {
        CliError::new(Exit::Usage, "this deployment serves no harness trees")
            .hint("set harness.adapter, or name a recipe that evolves them (reef: {recipe: evolve})")
    })?;
    let offer = Offer::read(body).map_err(failed)?;
    context.block_on(async move {
        let inbox = Inbox {
            publisher: context.publisher(Store::MustExist)?,
            adapters: trees.adapters,
            usual: trees.adapter.name,
            policy: trees.policy,
            most_waiting: recipe.evolution.maximum_pending,
        };
        let answer = inbox.offer(&args.scenario, offer).await.map_err(failed)?;
        Ok(json!({
            "proposal_id": answer.proposal_id, "admitted": answer.admitted, "reason": answer.reason,
            "release_id": answer.release_id,
        }))
    })
}

fn failed(error: OfferError) -> CliError {
    match error {
        OfferError::Shape(message) => CliError::new(Exit::Usage, message),
        OfferError::Publish(error) => error.into(),
    }
}
