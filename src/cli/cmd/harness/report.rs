//! `reef harness report`, `reef-NAME report`

use clap::Args;
use serde_json::json;

use super::{Chosen, WhichArgs, token};
use crate::cli::format::utc;
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit};
use crate::harness::client::{Grade, Service, Spool, effective_token, flush, grades, report};

/// Grade a run
///
/// The grade is attached to every receipt the run got. It is kept on this machine first, so a service that is away gets
/// it later, and never twice.
#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    #[command(flatten)]
    pub(super) which: WhichArgs,
    #[command(flatten)]
    pub(super) options: ReportOptions,
}

#[derive(Debug, Args)]
pub(super) struct ReportOptions {
    /// A grade
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    score: Option<f64>,
    /// Feedback in words
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    feedback: Option<String>,
    /// The run, or the beginning of its id; without it this session, or the run that ended last
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// One report for each receipt rather than one for the run
    #[arg(long)]
    per_receipt: bool,
    /// List the runs instead
    #[arg(long, conflicts_with_all = ["score", "feedback", "run", "per_receipt", "flush"])]
    list: bool,
    /// Send the reports that wait, and nothing new
    #[arg(long, conflicts_with_all = ["score", "feedback", "run", "per_receipt"])]
    flush: bool,
}

pub(super) fn run(context: &Context, chosen: &Chosen, options: ReportOptions) -> Result<Exit, CliError> {
    if options.list {
        return list(context, chosen);
    }
    let output = context.output();
    let record = &chosen.record;
    let token = effective_token(&chosen.place, token(context).as_deref())?;
    let service = Service::new(&record.url, token, record.scenario.clone())?;
    if options.flush {
        let refused = context.block_on(async { Ok(flush(&chosen.place, &service).await?) })?;
        for reason in &refused {
            output.warn(&format!("the service refused the report on {reason}"));
        }
        let left = chosen.place.waiting_reports()?;
        if left > 0 {
            return Err(CliError::new(
                Exit::Unavailable,
                format!("{left} reports still wait for {}", record.url),
            ));
        }
        return Ok(Exit::Ok);
    }
    let grade = Grade {
        score: options.score,
        feedback: options.feedback,
        run: options.run,
        session: context.env("REEF_HARNESS_SESSION").map(str::to_owned),
        per_receipt: options.per_receipt,
    };
    let reported = context.block_on(async { Ok(report(&chosen.place, &service, &grade).await?) })?;
    if output.json() {
        output.object("harness_report", &reported)?;
        return Ok(Exit::Ok);
    }
    output.note(&format!(
        "run {} on release {}, {} receipts",
        reported.run, reported.release_id, reported.receipts
    ));
    if !reported.waiting.is_empty() {
        output.note(&format!(
            "{} has not taken the report; it is kept and sent later",
            record.url
        ));
    }
    for id in reported.sent.iter().chain(&reported.waiting) {
        output.line(id)?;
    }
    Ok(Exit::Ok)
}

fn list(context: &Context, chosen: &Chosen) -> Result<Exit, CliError> {
    let output = context.output();
    let mut table = Table::new(&["run", "began", ">turns", "exit", "release", "reports"]);
    let mut rows = Vec::new();
    for run in Spool::of(&chosen.place).runs() {
        let grades = grades(&chosen.place, &run.run)?;
        let counts = [
            (grades.sent, "sent"),
            (grades.waiting, "waiting"),
            (grades.refused, "refused"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let reports: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
        table.row([
            run.run.clone(),
            utc(run.started_at_us),
            run.turns.len().to_string(),
            run.exit_code.map_or_else(|| "-".to_owned(), |code| code.to_string()),
            crate::cli::format::short(&run.release_id),
            reports.join(", "),
        ]);
        let mut row = serde_json::to_value(&run).map_err(|error| CliError::from_error(Exit::Unexpected, error))?;
        row["reports"] = json!({"sent": grades.sent, "waiting": grades.waiting, "refused": grades.refused});
        rows.push(row);
    }
    if output.json() {
        output.object("harness_runs", &json!({"runs": rows}))?;
    } else if rows.is_empty() {
        output.note("no run is kept");
    } else {
        output.text(&table.render(output.colored()))?;
    }
    Ok(Exit::Ok)
}
