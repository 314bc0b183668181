//! `reef release list` and `reef release log`

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::chain::{Chain, ScenarioOption};
use crate::cli::table::{Table, printable};
use crate::cli::{CliError, Context, Exit, format, pages};
use crate::domain::{Operation, ReleaseId};
use crate::experience::{ReleaseState, StepQuery, StepRow};
use crate::scenario::catalog_row;

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    scenario: ScenarioOption,
    /// Show at most so many steps
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    limit: u32,
    /// Show every step
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Only releases that wait for a decision
    #[arg(long)]
    held: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    #[command(flatten)]
    list: ListArgs,
    /// Draw it into this HTML file instead, with the evidence of every step; the file needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

struct Listing {
    chain: Chain,
    steps: Vec<StepRow>,
    more: bool,
}

fn read(context: &Context, args: &ListArgs) -> Result<Listing, CliError> {
    let chain = context.block_on(Chain::open(context, &args.scenario))?;
    let limit = (!args.all && !args.held).then(|| args.limit.saturating_add(1));
    let query = StepQuery {
        limit,
        ..StepQuery::default()
    };
    let mut steps = chain.publisher.experience().steps(&chain.scenario, &query)?;
    if args.held {
        steps.retain(is_held);
    }
    let more = !args.all && steps.len() > args.limit as usize;
    if more {
        steps.truncate(args.limit as usize);
    }
    Ok(Listing { chain, steps, more })
}

fn is_held(step: &StepRow) -> bool {
    step.outcome == "held" && step.release.state == ReleaseState::Held
}

pub(crate) fn list(context: &Context, args: &ListArgs) -> Result<Exit, CliError> {
    let Listing { chain, steps, more } = read(context, args)?;
    let output = context.output();
    if output.json() {
        let releases: Vec<_> = steps.iter().map(|step| catalog_row(step, Some(&chain.head))).collect();
        output.object(
            "releases",
            &json!({"scenario": chain.scenario, "head": chain.head, "more": more, "releases": releases}),
        )?;
        return Ok(Exit::Ok);
    }
    if steps.is_empty() {
        output.note(&format!(
            "no release of scenario {} waits for a decision",
            chain.scenario
        ));
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&[
        "",
        ">step",
        "release",
        "when",
        "operation",
        "kind",
        ">size",
        "state",
        "detail",
    ]);
    for step in &steps {
        let made = made_release(step);
        table.row([
            if made && step.release.release_id == chain.head {
                "*"
            } else {
                ""
            }
            .to_owned(),
            step.step.to_string(),
            if made {
                format::short(step.release.release_id.as_str())
            } else {
                "-".to_owned()
            },
            format::utc(step.at_us),
            step.operation.as_str().to_owned(),
            if made { step.release.kind.clone() } else { String::new() },
            if made {
                format::bytes(step.release.bytes)
            } else {
                String::new()
            },
            state(step).to_owned(),
            detail(step),
        ]);
    }
    output.text(&table.render(output.colored()))?;
    if more {
        output.note("older steps are not shown: --all shows every one");
    }
    Ok(Exit::Ok)
}

pub(crate) fn log(context: &Context, args: &LogArgs) -> Result<Exit, CliError> {
    let Listing { chain, steps, more } = read(context, &args.list)?;
    if let Some(path) = &args.html {
        pages::chain(context, path, &chain.scenario)?;
        if context.output().json() {
            let page = json!({"scenario": chain.scenario, "file": path});
            context.output().object("page", &page)?;
        }
        return Ok(Exit::Ok);
    }
    let output = context.output();
    if output.json() {
        for step in &steps {
            output.json_line(&catalog_row(step, Some(&chain.head)))?;
        }
        return Ok(Exit::Ok);
    }
    output.text(&graph(&steps, &chain.head, more, output.colored()))?;
    Ok(Exit::Ok)
}

/// The chain as a line of `*`, with what was held or rejected beside it.
fn graph(steps: &[StepRow], head: &ReleaseId, more: bool, color: bool) -> String {
    let bold = |text: &str| {
        if color {
            format!("\u{1b}[1m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    };
    let mut text = String::new();
    for step in steps {
        let made = made_release(step);
        let (mark, line) = match step.outcome.as_str() {
            "released" => ("*", "|"),
            "held" if step.release.state == ReleaseState::Held => ("|\\", "| ?"),
            "held" => ("|\\", "| o"),
            _ => ("| x", "|"),
        };
        let mut words = Vec::new();
        if made {
            words.push(bold(&format::short(step.release.release_id.as_str())));
            words.push(format!("step {} {}", step.step, step.operation.as_str()));
            words.push(printable(step.release.kind.clone()));
            words.push(format::bytes(step.release.bytes));
        } else {
            words.push(format!("step {} {}", step.step, step.outcome));
        }
        words.push(format::utc(step.at_us));
        if made && step.release.release_id == *head {
            words.push(bold("(head)"));
        }
        if step.outcome == "held" {
            words.push(format!("({})", state(step)));
            text.push_str(mark);
            text.push('\n');
            text.push_str(line);
        } else {
            text.push_str(mark);
        }
        text.push(' ');
        text.push_str(&words.join("  "));
        text.push('\n');
        let detail = detail(step);
        if !detail.is_empty() {
            text.push_str("|    ");
            text.push_str(&printable(detail));
            text.push('\n');
        }
    }
    if more {
        text.push_str(":\n");
    }
    text
}

fn made_release(step: &StepRow) -> bool {
    matches!(step.outcome.as_str(), "released" | "held")
}

fn state(step: &StepRow) -> &str {
    match step.outcome.as_str() {
        "held" => step.release.state.as_str(),
        "released" if !step.release.restorable => "absent",
        other => other,
    }
}

fn detail(step: &StepRow) -> String {
    let mut parts = Vec::new();
    if let Some(target) = step.release.target.as_ref().filter(|_| made_release(step)) {
        let short = format::short(target.as_str());
        match step.operation {
            Operation::Rollback => parts.push(format!("back to {short}")),
            Operation::Promote => parts.push(format!("of {short}")),
            _ => {}
        }
    }
    parts.extend(step.reason.clone());
    if made_release(step) {
        parts.extend(step.release.note.clone());
    }
    parts.join("; ")
}
