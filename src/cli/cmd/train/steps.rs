//! `reef train show` and `reef train drop`

use clap::Args;
use serde_json::json;

use crate::cli::context::Store;
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit, format, learning};
use crate::domain::ScenarioName;
use crate::experience::Job;
use crate::scenario::{driver_of, drop_step};
use crate::sys::clock;

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// Only this scenario
    #[arg(short, long, value_name = "NAME")]
    scenario: Option<ScenarioName>,
}

#[derive(Debug, Args)]
pub(super) struct DropArgs {
    /// The scenario
    #[arg(short, long, value_name = "NAME")]
    scenario: ScenarioName,
    /// Why; kept with the step
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub(super) fn show(context: &Context, args: &ShowArgs) -> Result<Exit, CliError> {
    let store = context.store(Store::Shown)?;
    let names: Vec<ScenarioName> = match &args.scenario {
        Some(name) => vec![name.clone()],
        None => store.scenarios(false)?.into_iter().map(|found| found.name).collect(),
    };
    let mut jobs = Vec::new();
    for name in &names {
        jobs.extend(store.open_job(name)?);
    }
    let run = context.settings()?.storage.run_dir();
    let output = context.output();
    if output.json() {
        let steps: Vec<_> = jobs
            .iter()
            .map(|job| {
                json!({
                    "scenario": job.scenario,
                    "step": job.step,
                    "batch_id": job.batch,
                    "stage": job.stage.as_str(),
                    "recipe": job.recipe,
                    "base_release_id": job.base,
                    "sealed_at": clock::seconds(job.sealed_us),
                    "attempts": job.attempts,
                    "error": job.error,
                    "retry_at": job.retry_us.map(clock::seconds),
                    "driver": driver_of(&run, &job.scenario),
                })
            })
            .collect();
        output.object("steps", &json!({ "steps": steps }))?;
        return Ok(Exit::Ok);
    }
    if jobs.is_empty() {
        output.note("no step is in progress");
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&[
        "scenario", ">step", "stage", "since", ">failed", "next try", "driver", "error",
    ]);
    for job in &jobs {
        table.row([
            job.scenario.to_string(),
            job.step.to_string(),
            job.stage.as_str().to_owned(),
            format::moment(job.sealed_us),
            job.attempts.to_string(),
            next_try(job),
            driver_of(&run, &job.scenario).unwrap_or_else(|| "-".to_owned()),
            job.error.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    output.text(&table.render(output.colored()))?;
    Ok(Exit::Ok)
}

fn next_try(job: &Job) -> String {
    job.retry_us.map_or_else(|| "-".to_owned(), format::moment)
}

pub(super) fn drop(context: &Context, args: &DropArgs) -> Result<Exit, CliError> {
    let work = learning::work_dir(context.settings()?);
    let publisher = context.publisher(Store::MustExist)?;
    let dropped =
        context.block_on(async { Ok(drop_step(&publisher, &work, &args.scenario, args.reason.as_deref()).await?) })?;
    let output = context.output();
    let Some(dropped) = dropped else {
        output.note(&format!("no step of scenario {} is in progress", args.scenario));
        return Ok(Exit::Nothing);
    };
    if output.json() {
        output.object(
            "dropped",
            &json!({
                "scenario": args.scenario,
                "step": dropped.step,
                "batch_id": dropped.batch,
                "reason": dropped.reason,
            }),
        )?;
    } else {
        output.note(&format!(
            "step {} of scenario {} is given up; its batch is used up",
            dropped.step, args.scenario
        ));
    }
    Ok(Exit::Ok)
}
