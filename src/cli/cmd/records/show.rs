//! `reef records show`

use std::fmt::Write;

use clap::Args;
use serde_json::Value;

use crate::cli::context::Store;
use crate::cli::table::printable;
use crate::cli::{CliError, Context, Exit, OrExit, format};
use crate::domain::{RecordId, RequestType, ScenarioName};
use crate::experience::{Consumed, Experience, Record};
use crate::sys::json;

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// The record: a receipt, or the id of a report or an instruction; a part that fits no other is enough
    id: String,
    /// Its scenario, where several scenarios use the id
    #[arg(short, long, value_name = "NAME")]
    scenario: Option<ScenarioName>,
    /// Write the request body to standard output, byte for byte, and nothing else
    #[arg(long, conflicts_with = "response")]
    request: bool,
    /// Write the response body to standard output, byte for byte, and nothing else
    #[arg(long)]
    response: bool,
}

pub(super) fn run(context: &Context, args: &ShowArgs) -> Result<Exit, CliError> {
    let store = context.store(Store::Shown)?;
    let id = named(&store, args.scenario.as_ref(), &args.id)?;
    let record = store
        .record(args.scenario.as_ref(), &id)?
        .ok_or_else(|| unknown(format!("there is no record {id}")))?;
    let output = context.output();
    if args.request || args.response {
        let bodies = record.bodies.as_ref().ok_or_else(|| {
            CliError::new(
                Exit::Nothing,
                format!("retention has dropped the bodies of record {id}"),
            )
        })?;
        let body = if args.request {
            Some(&bodies.request)
        } else {
            bodies.response.as_ref()
        };
        let body = body.ok_or_else(|| CliError::new(Exit::Nothing, format!("record {id} has no response")))?;
        output.passage_of(body)?;
        return Ok(Exit::Ok);
    }
    let scenario = &record.row.scenario;
    let reports = store.reports_on(scenario, &id)?;
    let consumed = store.consumed_by(scenario, &id)?;
    if output.json() {
        let mut value = record.row.to_json();
        // The export's form, which holds every byte.
        let exported: Value = json::read(record.to_export()?.as_bytes()).or_exit(Exit::Unexpected)?;
        value["record"] = exported;
        value["reports"] = reports
            .iter()
            .map(|report| {
                let mut value = report.row.to_json();
                value["payload"] = payload(report);
                value
            })
            .collect();
        value["consumed"] = consumed.iter().map(Consumed::to_json).collect();
        output.object("record", &value)?;
        return Ok(Exit::Ok);
    }
    output.text(&for_people(&record, &reports, &consumed))?;
    Ok(Exit::Ok)
}

/// The record that a person names by its id or a part of it.
pub(in crate::cli) fn named(
    store: &Experience,
    scenario: Option<&ScenarioName>,
    text: &str,
) -> Result<RecordId, CliError> {
    RecordId::new(text.trim_matches('…')).or_exit(Exit::Usage)?;
    store.record_named(scenario, text)?.only(text).map_err(unknown)
}

fn unknown(message: String) -> CliError {
    CliError::new(Exit::Usage, message)
        .hint("reef records list shows the newest records; --dir names the store to look in")
}

/// What a report or an instruction says.
fn payload(record: &Record) -> Value {
    let bodies = record.bodies.as_ref();
    bodies
        .and_then(|bodies| json::read(&bodies.request).ok())
        .unwrap_or(Value::Null)
}

fn for_people(record: &Record, reports: &[Record], consumed: &[Consumed]) -> String {
    let row = &record.row;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            // Writing to a String cannot fail.
            let _infallible = writeln!(text, "{name:<12} {}", printable(value));
        }
    };
    let ids: Vec<&str> = row.references.iter().map(RecordId::as_str).collect();
    let tags: Vec<String> = row.tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let number = |value: Option<u64>| value.map_or(String::new(), |n| n.to_string());
    line("record", row.id.to_string());
    line("kind", row.kind.as_str().to_owned());
    line("scenario", row.scenario.to_string());
    line("sequence", row.sequence.to_string());
    line("time", format::utc(row.created_us));
    line(
        "route",
        row.route.map_or(String::new(), |route| route.path().to_owned()),
    );
    line("status", row.status.map_or(String::new(), |status| status.to_string()));
    line("model", row.model.clone().unwrap_or_default());
    line("stopped", row.stop_reason.clone().unwrap_or_default());
    line("tokens in", number(row.input_tokens));
    line("tokens out", number(row.output_tokens));
    if let Some(release) = &row.release {
        line("release", release.release_id.to_string());
        line("content", release.content_id.to_string());
    }
    if row.kind == RequestType::Inference {
        line("took", format!("{:.1} ms", row.timings.total_us as f64 / 1e3));
    }
    line("tags", tags.join(" "));
    line("score", row.score.map_or(String::new(), |score| score.to_string()));
    line("grades", ids.join(" "));
    line("body", format::bytes(row.body_bytes));
    line("captured", if row.has_capture { "tokens" } else { "" }.to_owned());
    if let Some(at) = row.pruned_us {
        line("pruned", format::utc(at));
    }
    for used in consumed {
        let step = used.step.map_or(String::new(), |step| format!(", step {step}"));
        line(
            "consumed",
            format!("{} by batch {}{step}: {}", used.consumer, used.batch, used.outcome),
        );
    }
    for report in reports {
        let said = payload(report);
        let feedback = match said.get("feedback") {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        let score = report
            .row
            .score
            .map_or("no score".to_owned(), |score| score.to_string());
        line(
            "report",
            format!("{} {score} {feedback}", report.row.id).trim_end().to_owned(),
        );
    }
    if let Some(bodies) = &record.bodies {
        section(
            &mut text,
            if row.kind == RequestType::Inference {
                "request"
            } else {
                "says"
            },
            &bodies.request,
        );
        let silent = bodies
            .turn
            .as_ref()
            .is_none_or(|turn| turn.text.is_empty() && turn.reasoning.is_empty() && turn.tool_calls.is_empty());
        if silent {
            // Nothing could be read from it, so it is shown as it came.
            section(&mut text, "response", bodies.response.as_deref().unwrap_or_default());
        }
        if let Some(turn) = &bodies.turn {
            section(&mut text, "reasoning", turn.reasoning.as_bytes());
            section(&mut text, "answer", turn.text.as_bytes());
            for call in &turn.tool_calls {
                section(
                    &mut text,
                    "tool call",
                    format!("{}({})", call.name, call.arguments).as_bytes(),
                );
            }
        }
    }
    text
}

/// A body for reading: JSON is indented, control characters but line ends do not act.
fn section(text: &mut String, title: &str, body: &[u8]) {
    if body.is_empty() {
        return;
    }
    let pretty = json::read(body)
        .ok()
        .filter(|value| value.is_object() || value.is_array())
        .and_then(|value| serde_json::to_string_pretty(&value).ok());
    let shown = pretty.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let _infallible = writeln!(text, "\n{title}");
    for line in shown.lines() {
        let _infallible = writeln!(text, "  {}", printable(line.to_owned()));
    }
}
