//! `reef report`

use clap::Args;
use serde_json::{Map, Value, json};

use crate::cli::client::{Client, ServerArgs};
use crate::cli::context::Store;
use crate::cli::{CliError, Context, Exit};
use crate::domain::{RecordId, SCORE_RULE, ScenarioName, is_score};
use crate::experience::{Insertion, parse_report};

/// Give feedback on exchanges
///
/// Names the exchanges by their receipts (`x-reef-agent-record-id`) and prints the report's own id. Sending the same
/// report again changes nothing; a second one that says the same needs an --id of its own.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Receipts of the exchanges it is about
    #[arg(value_name = "RECEIPT")]
    receipts: Vec<RecordId>,
    /// The scenario; without it, that of the first receipt
    #[arg(long, value_name = "NAME")]
    scenario: Option<ScenarioName>,
    /// A grade
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = score)]
    score: Option<f64>,
    /// Feedback in words
    #[arg(long, value_name = "TEXT", conflicts_with = "feedback_json")]
    feedback: Option<String>,
    /// Feedback as a JSON object
    #[arg(long, value_name = "JSON", value_parser = object)]
    feedback_json: Option<Map<String, Value>>,
    /// Whatever else the recipe's reports carry, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = object)]
    metadata: Option<Map<String, Value>>,
    /// The report's id; without it, one made of what the report says
    #[arg(long, value_name = "ID")]
    id: Option<RecordId>,
    #[command(flatten)]
    server: ServerArgs,
}

fn score(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if is_score(number) => Ok(number),
        _ => Err(format!("{SCORE_RULE}, such as 1, 0.5 or -2")),
    }
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("a JSON object is needed, such as {\"task\": \"sum\"}".to_owned()),
        Err(error) => Err(format!("not JSON: {error}")),
    }
}

pub(crate) fn run(context: &Context, args: ReportArgs) -> Result<Exit, CliError> {
    let feedback = match (args.feedback, args.feedback_json) {
        (Some(text), _) => Some(Value::String(text)),
        (None, Some(map)) => Some(Value::Object(map)),
        (None, None) => None,
    };
    if args.score.is_none() && feedback.is_none() && args.metadata.is_none() {
        return Err(CliError::new(Exit::Usage, "the report says nothing")
            .hint("give --score, --feedback, --feedback-json or --metadata"));
    }
    let mut payload = Map::new();
    if let Some(score) = args.score {
        payload.insert("score".to_owned(), json!(score));
    }
    if let Some(feedback) = feedback {
        payload.insert("feedback".to_owned(), feedback);
    }
    if !args.receipts.is_empty() {
        payload.insert("references".to_owned(), json!(args.receipts));
    }
    if let Some(metadata) = args.metadata {
        payload.insert("metadata".to_owned(), Value::Object(metadata));
    }
    let answer = match &args.server.url {
        Some(url) => {
            let scenario = args
                .scenario
                .ok_or_else(|| no_scenario().hint("a service cannot be asked by receipt alone"))?;
            if let Some(id) = &args.id {
                payload.insert("agent_record_id".to_owned(), json!(id));
            }
            let client = Client::new(context, url)?;
            let body = Value::Object(payload);
            context.block_on(client.send(
                reqwest::Method::POST,
                "/reef/report",
                Some(scenario.as_str()),
                Some(&body),
            ))?
        }
        None => to_files(context, args.id, args.scenario, &args.receipts, payload)?,
    };
    let output = context.output();
    if output.json() {
        output.object("report", &answer)?;
    } else {
        output.line(answer.get("agent_record_id").and_then(Value::as_str).unwrap_or("-"))?;
    }
    Ok(Exit::Ok)
}

fn no_scenario() -> CliError {
    CliError::new(Exit::Usage, "the report names no scenario").hint("give one with --scenario NAME")
}

fn to_files(
    context: &Context,
    id: Option<RecordId>,
    scenario: Option<ScenarioName>,
    receipts: &[RecordId],
    payload: Map<String, Value>,
) -> Result<Value, CliError> {
    let store = context.store(Store::MustExist)?;
    let scenario = match (scenario, receipts.first()) {
        (Some(scenario), _) => scenario,
        (None, None) => return Err(no_scenario()),
        (None, Some(first)) => match store.record(None, first)? {
            Some(record) => record.row.scenario,
            None => {
                return Err(
                    CliError::new(Exit::Usage, format!("there is no record {first} in this store"))
                        .hint("reef records list shows the newest records; --dir names the store to look in"),
                );
            }
        },
    };
    let report = parse_report(id, scenario.clone(), payload)?;
    let appended = context.block_on(async { Ok(store.append_report(report).await?) })?;
    Ok(json!({
        "agent_record_id": appended.id,
        "scenario": scenario,
        "sequence": appended.sequence,
        "inserted": appended.outcome == Insertion::Inserted,
    }))
}
