//! `reef harness doctor`, `reef-NAME doctor`

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::{Chosen, WhichArgs, path, token};
use crate::cli::table::printable;
use crate::cli::{CliError, Context, Exit};
use crate::harness::client::{Kind, Known, Service, check_release, effective_token, unmet};

/// Check an installation: program, service, token, release
///
/// One line for each; exits with 1 if any is wrong.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    pub(super) which: WhichArgs,
    #[command(flatten)]
    pub(super) options: DoctorOptions,
}

#[derive(Debug, Args)]
pub(super) struct DoctorOptions {}

struct Line {
    name: &'static str,
    good: bool,
    said: String,
}

pub(super) fn run(context: &Context, chosen: &Chosen, _options: &DoctorOptions) -> Result<Exit, CliError> {
    let record = &chosen.record;
    let command = record.command();
    let mut lines = Vec::new();
    let mut add = |name, good: bool, said: String| lines.push(Line { name, good, said });

    let program = record.program.display();
    if record.program.exists() {
        add("program", true, format!("{program}, {}", record.program_version));
    } else {
        add("program", false, format!("{program} is gone; run {command} update"));
    }
    for tool in &chosen.adapter()?.client.tools {
        let found = std::env::split_paths(&path()).any(|dir| dir.join(tool).is_file());
        let said = if found {
            "found"
        } else {
            "not on PATH; the agent works, but better with it"
        };
        add("helper", true, format!("{tool}: {said}"));
    }
    let current = chosen.place.current()?;
    match check_release(&chosen.place)? {
        None => add(
            "release",
            true,
            format!("{} is whole", current.clone().unwrap_or_default()),
        ),
        Some(fault) => add(
            "release",
            false,
            format!("{fault}; run {command} update or {command} rollback"),
        ),
    }
    let open = unmet(&chosen.place)?;
    if !open.is_empty() {
        let names: Vec<&str> = open.iter().map(|item| item.name.as_str()).collect();
        add(
            "setup",
            false,
            format!("{} to do; run {command} setup", names.join(", ")),
        );
    }
    let token = effective_token(&chosen.place, token(context).as_deref())?;
    let service = Service::new(&record.url, token, record.scenario.clone())?;
    let served = context.block_on(async { Ok(service.served(Duration::from_secs(10)).await) })?;
    match served {
        Err(error) => {
            let name = if error.kind() == Kind::Unavailable {
                "service"
            } else {
                "token"
            };
            add(name, false, error.to_string());
        }
        Ok(Known::NoTree) => add(
            "service",
            true,
            format!("{} answers; it serves no tree for {}", record.url, record.scenario),
        ),
        Ok(Known::Release(head)) => {
            add("service", true, format!("{} answers and takes the token", record.url));
            if current.as_deref() == Some(&head) {
                add("update", true, "the served release is installed".to_owned());
            } else {
                add(
                    "update",
                    true,
                    format!("{head} is served; run {command} update to use it"),
                );
            }
        }
    }
    let held: Vec<String> = context
        .block_on(async { Ok(service.releases().await.unwrap_or_default()) })?
        .iter()
        .filter(|row| row["pending"] == true)
        .filter_map(|row| row["release_id"].as_str().map(str::to_owned))
        .collect();
    if !held.is_empty() {
        add("review", true, format!("held for review: {}", held.join(", ")));
    }
    let waiting = chosen.place.waiting_reports()?;
    if waiting > 0 {
        add(
            "reports",
            true,
            format!("{waiting} wait for the service; they are sent with the next run"),
        );
    }
    for file in chosen.place.unreadable_reports()? {
        let said = format!("{} cannot be read and is never sent; remove it", file.display());
        add("reports", false, said);
    }

    let output = context.output();
    let all_good = lines.iter().all(|line| line.good);
    if output.json() {
        let checks: Vec<_> = lines
            .iter()
            .map(|line| json!({"name": line.name, "ok": line.good, "message": line.said}))
            .collect();
        output.object("harness_doctor", &json!({"ok": all_good, "checks": checks}))?;
    } else {
        for line in &lines {
            let mark = if line.good { "ok  " } else { "FAIL" };
            output.line(&format!("{mark} {:<8} {}", line.name, printable(line.said.clone())))?;
        }
    }
    Ok(if all_good { Exit::Ok } else { Exit::Unexpected })
}
