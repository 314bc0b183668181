//! `reef-NAME evolve`: asks for a change of the harness, in words, from the machine it is missed on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use super::{Chosen, path, token};
use crate::cli::{CliError, Context, Exit};
use crate::harness::client::{ClientError, Kind, Service, effective_token};
use crate::sys::{random, terminal};

/// How often a request is asked about.
const POLL: Duration = Duration::from_secs(2);
/// Programs whose presence a proposer may want to know of.
const COMMANDS: [&str; 10] = [
    "bash", "curl", "docker", "fd", "git", "jq", "node", "npm", "python3", "rg",
];

/// Ask for a change of the harness, in words
///
/// The scenario must be in training mode manual or hybrid. With --wait it exits with 0 when the change is released or held
/// for review, 1 when nothing came of it, and 2 when time is up.
#[derive(Debug, Args)]
pub(super) struct EvolveOptions {
    /// What should be different
    text: String,
    /// Wait until it is decided
    #[arg(long)]
    wait: bool,
    /// How long to wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    timeout: u64,
}

/// Wait for a request that was made before
#[derive(Debug, Args)]
pub(super) struct WaitOptions {
    /// The request's id
    id: String,
    /// How long to wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    timeout: u64,
    /// Look once and do not wait
    #[arg(long)]
    poll: bool,
}

fn service(context: &Context, chosen: &Chosen) -> Result<Service, CliError> {
    let token = effective_token(&chosen.place, token(context).as_deref())?;
    Ok(Service::new(&chosen.record.url, token, chosen.record.scenario.clone())?)
}

pub(super) fn run(context: &Context, chosen: &Chosen, options: &EvolveOptions) -> Result<Exit, CliError> {
    let service = service(context, chosen)?;
    let commands: BTreeMap<&str, bool> = COMMANDS
        .into_iter()
        .map(|name| (name, std::env::split_paths(&path()).any(|dir| dir.join(name).is_file())))
        .collect();
    let body = json!({
        "agent_record_id": random::record_id(),
        "text": options.text,
        "session": context.env("REEF_HARNESS_SESSION").unwrap_or("wrapper"),
        "release_id": chosen.place.current()?.unwrap_or_default(),
        "client": {"platform": std::env::consts::OS, "arch": std::env::consts::ARCH, "commands": commands},
    });
    let accepted = context.block_on(async { Ok(service.instruct(&body).await?) })?;
    let id = accepted["agent_record_id"].as_str().unwrap_or_default().to_owned();
    let output = context.output();
    if let Some(page) = accepted["page_path"].as_str() {
        output.note(&format!(
            "{}{} shows how far it is",
            service.base(),
            terminal::line(page)
        ));
    }
    if !options.wait {
        if output.json() {
            output.object("harness_request", &accepted)?;
        } else {
            output.line(&id)?;
        }
        return Ok(Exit::Ok);
    }
    wait(context, &service, &id, Duration::from_secs(options.timeout))
}

pub(super) fn run_wait(context: &Context, chosen: &Chosen, options: &WaitOptions) -> Result<Exit, CliError> {
    let service = service(context, chosen)?;
    if options.poll {
        let progress = context.block_on(async { Ok(service.progress(&options.id).await?) })?;
        return told(context, &progress, !settled(&progress));
    }
    wait(context, &service, &options.id, Duration::from_secs(options.timeout))
}

fn settled(progress: &Value) -> bool {
    progress["settled"] == true
}

fn wait(context: &Context, service: &Service, id: &str, timeout: Duration) -> Result<Exit, CliError> {
    let output = context.output();
    let progress = context.block_on(async {
        let deadline = Instant::now() + timeout;
        let mut said = String::new();
        loop {
            // A service that restarts in between is not the end of the wait.
            match service.progress(id).await {
                Err(error) if error.kind() != Kind::Unavailable => return Err(CliError::from(error)),
                Err(_) => {}
                Ok(progress) if settled(&progress) => return Ok(Some(progress)),
                Ok(progress) => {
                    let state = progress["state"].as_str().unwrap_or_default();
                    if state != said {
                        output.note(&terminal::line(state));
                        state.clone_into(&mut said);
                    }
                }
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            context.pause(POLL.min(deadline - Instant::now())).await?;
        }
    })?;
    match progress {
        Some(progress) => told(context, &progress, false),
        None => Err(ClientError::new(
            Kind::Usage,
            format!("{id} is not decided after {} s", timeout.as_secs()),
        )
        .hint(format!("it goes on without you; `wait {id}` waits again"))
        .into()),
    }
}

fn told(context: &Context, progress: &Value, running: bool) -> Result<Exit, CliError> {
    let output = context.output();
    let state = progress["state"].as_str().unwrap_or_default();
    if output.json() {
        output.object("harness_request", progress)?;
    } else {
        if let Some(meaning) = progress["meaning"].as_str() {
            output.note(&crate::cli::table::printable(meaning.to_owned()));
        }
        output.line(&crate::cli::table::printable(state.to_owned()))?;
    }
    Ok(if running || matches!(state, "selected" | "pending") {
        Exit::Ok
    } else {
        Exit::Unexpected
    })
}
