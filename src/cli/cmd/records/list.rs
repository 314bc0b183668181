//! `reef records list`

use clap::Args;
use serde_json::json;

use super::Kind;
use super::filter::FilterArgs;
use crate::cli::context::Store;
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit, format};
use crate::domain::RequestType;
use crate::experience::{Order, RecordQuery, RecordRow};

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only this kind
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// The oldest first, from the one after this sequence; 0 for the beginning
    #[arg(long, value_name = "SEQUENCE", conflicts_with = "before")]
    after: Option<i64>,
    /// The newest first, from the one before this sequence
    #[arg(long, value_name = "SEQUENCE")]
    before: Option<i64>,
    /// Only records that no batch of this consumer has used
    #[arg(long, value_name = "CONSUMER")]
    unused_by: Option<String>,
    /// At most so many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

pub(super) fn run(context: &Context, args: &ListArgs) -> Result<Exit, CliError> {
    let store = context.store(Store::Shown)?;
    let rows = store.records(&RecordQuery {
        scenario: args.filter.scenario.clone(),
        kind: args.kind.map(RequestType::from),
        cursor: args.after.or(args.before),
        order: if args.after.is_some() {
            Order::OldestFirst
        } else {
            Order::NewestFirst
        },
        limit: args.limit,
        not_consumed_by: args.unused_by.clone(),
        filter: args.filter.filter(),
    })?;
    let output = context.output();
    if output.json() {
        let rows: Vec<_> = rows.iter().map(RecordRow::to_json).collect();
        output.object("records", &json!({"records": rows}))?;
        return Ok(Exit::Ok);
    }
    if rows.is_empty() {
        output.note(if args.filter.is_given() {
            "no record fits"
        } else {
            "no records"
        });
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&[
        ">sequence",
        "record",
        "kind",
        "scenario",
        "time",
        "outcome",
        ">tokens",
        ">score",
        "about",
    ]);
    for row in &rows {
        table.row([
            row.sequence.to_string(),
            row.id.to_string(),
            row.kind.as_str().to_owned(),
            row.scenario.to_string(),
            format::utc(row.created_us),
            outcome(row),
            row.output_tokens.map_or("-".to_owned(), |n| n.to_string()),
            row.score.map_or("-".to_owned(), |score| score.to_string()),
            about(row),
        ]);
    }
    output.text(&table.render(output.colored()))?;
    Ok(Exit::Ok)
}

fn outcome(row: &RecordRow) -> String {
    match (&row.stop_reason, row.status, row.pruned_us) {
        (_, _, Some(_)) => "pruned".to_owned(),
        (Some(reason), _, None) => reason.clone(),
        (None, Some(status), None) => status.to_string(),
        (None, None, None) => "-".to_owned(),
    }
}

fn about(row: &RecordRow) -> String {
    if row.kind == RequestType::Report {
        return match row.references.as_slice() {
            [] => "no exchange".to_owned(),
            [one] => format!("on {one}"),
            [first, rest @ ..] => format!("on {first} and {} more", rest.len()),
        };
    }
    let mut parts: Vec<String> = row.model.iter().cloned().collect();
    parts.extend(row.tags.iter().map(|(name, value)| format!("{name}={value}")));
    parts.join(" ")
}
