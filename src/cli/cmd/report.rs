//! `reef report`

use clap::Args;
use serde_json::{Map, Value, json};

use super::records;
use crate::cli::client::{Client, ServerArgs, segment};
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
    /// Receipts of the exchanges it is about; of each, a part that fits no other is enough
    #[arg(value_name = "RECEIPT")]
    receipts: Vec<String>,
    /// The scenario; without it, that of the first receipt
    #[arg(short, long, value_name = "NAME")]
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
            context.block_on(async {
                let mut receipts = Vec::with_capacity(args.receipts.len());
                for receipt in &args.receipts {
                    receipts.push(whole(&client, &scenario, receipt).await?);
                }
                refer(&mut payload, &receipts);
                let body = Value::Object(payload);
                let to = Some(scenario.as_str());
                client
                    .send(reqwest::Method::POST, "/reef/report", to, Some(&body))
                    .await
            })?
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

fn refer(payload: &mut Map<String, Value>, receipts: &[RecordId]) {
    if !receipts.is_empty() {
        payload.insert("references".to_owned(), json!(receipts));
    }
}

/// The receipt that a person names by a part of it; the service knows which. One it does not know goes as it is.
async fn whole(client: &Client, scenario: &ScenarioName, text: &str) -> Result<RecordId, CliError> {
    let path = format!(
        "/reef/scenarios/{}/records/{}",
        segment(scenario.as_str()),
        segment(text)
    );
    let known = client.find(&path).await?;
    let id = known
        .as_ref()
        .and_then(|record| record["agent_record_id"].as_str())
        .unwrap_or(text);
    RecordId::new(id).map_err(|error| CliError::from_error(Exit::Usage, error))
}

fn no_scenario() -> CliError {
    CliError::new(Exit::Usage, "the report names no scenario").hint("give one with --scenario NAME")
}

fn to_files(
    context: &Context,
    id: Option<RecordId>,
    scenario: Option<ScenarioName>,
    receipts: &[String],
    mut payload: Map<String, Value>,
) -> Result<Value, CliError> {
    let store = context.store(Store::MustExist)?;
    let mut ids = Vec::with_capacity(receipts.len());
    for receipt in receipts {
        ids.push(records::named(&store, scenario.as_ref(), receipt)?);
    }
    let scenario = match (scenario, ids.first()) {
        (Some(scenario), _) => scenario,
        (None, None) => return Err(no_scenario()),
        (None, Some(first)) => match store.record(None, first)? {
            Some(record) => record.row.scenario,
            None => return Err(no_scenario()),
        },
    };
    refer(&mut payload, &ids);
    let report = parse_report(id, scenario.clone(), payload)?;
    let appended = context.block_on(async { Ok(store.append_report(report).await?) })?;
    Ok(json!({
        "agent_record_id": appended.id,
        "scenario": scenario,
        "sequence": appended.sequence,
        "inserted": appended.outcome == Insertion::Inserted,
    }))
}
