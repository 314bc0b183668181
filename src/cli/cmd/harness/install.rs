//! `reef harness install`

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use super::{adapter, home, path, setup, token};
use crate::cli::{CliError, Context, Exit};
use crate::domain::ScenarioName;
use crate::harness::adapter::{Adapter, WireApi};
use crate::harness::client::{
    AgentProgram, AgentSource, CheckOffs, Home, Installed, Manifest, Record, Request, Service, effective_token,
    install, obtain, refuse,
};
use crate::sys::random;

/// Install an agent with the tree a service serves for it
///
/// Puts everything into one directory of yours and a wrapper, reef-NAME, into ~/.local/bin. The wrapper runs the agent on
/// the served tree, sends its model calls to the service, and keeps the receipts so that `reef-NAME report` can grade a
/// run. The token (REEF_TOKEN) goes into a file only you can read and into none of the agent's. Run it again to repair or
/// to change something; if anything is missing it says so in one line and changes nothing.
#[derive(Debug, Args)]
pub(super) struct InstallArgs {
    /// The agent: pi, claude, codex, opencode, qwen, openclaw, hermes
    #[arg(long, value_name = "NAME")]
    adapter: String,
    /// The service
    #[arg(
        long,
        value_name = "URL",
        env = "REEF_SERVICE_URL",
        default_value = "http://127.0.0.1:8900"
    )]
    url: String,
    /// The scenario, made if it does not exist yet; without it, a new one of its own
    #[arg(short, long, value_name = "NAME")]
    scenario: Option<ScenarioName>,
    /// A release other than the one served
    #[arg(long, value_name = "RELEASE", conflicts_with = "manifest")]
    release: Option<String>,
    /// Install from this manifest instead of asking the service for one
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// The model the agent asks for; the service's first without it
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The API the agent speaks: openai, responses or anthropic; the service's or the agent's own choice without it
    #[arg(long, value_name = "API", value_parser = api)]
    api: Option<WireApi>,
    /// The agent's program, if it should not be looked for or installed
    #[arg(long, value_name = "FILE")]
    agent_program: Option<PathBuf>,
    /// Never install the agent's program; it has to be here
    #[arg(long, conflicts_with = "agent_program")]
    no_agent_install: bool,
    /// Keep requests and answers of each run on this machine, not only its receipts
    #[arg(long)]
    keep_bodies: bool,
    /// Go through what the release needs on this machine first
    #[arg(long)]
    setup: bool,
}

fn api(text: &str) -> Result<WireApi, String> {
    [WireApi::Openai, WireApi::Responses, WireApi::Anthropic]
        .into_iter()
        .find(|api| api.as_str() == text)
        .ok_or_else(|| "one of openai, responses and anthropic is needed".to_owned())
}

pub(super) fn run(context: &Context, args: InstallArgs) -> Result<Exit, CliError> {
    let adapter = adapter(&args.adapter)?;
    let home = home(context)?;
    let fresh_scenario = args.scenario.is_none();
    let scenario = match args.scenario.clone() {
        Some(scenario) => scenario,
        None => ScenarioName::new(format!("harness-{}", &random::hex_token()[..12]))
            .map_err(|error| CliError::from_error(Exit::Unexpected, error))?,
    };
    let place = home.place(&adapter.name, &scenario);
    let before = place.record().ok();
    let url = outside_a_session(context, &args, before.as_ref())?;
    let base = Service::new(&url, None, scenario.clone())?.base().to_owned();
    // A stored token is for the service it was stored for, whoever asks under the same scenario's name.
    let given = token(context);
    let stored_for_it = before.is_none_or(|record| record.url == base);
    let token = effective_token(&place, given.as_deref())?
        .filter(|token| stored_for_it || given.as_deref().is_some_and(|given| given.trim() == token));
    let service = Service::new(&base, token.clone(), scenario.clone())?;
    let made_scenario = fresh_scenario && args.manifest.is_none();
    if made_scenario {
        context.block_on(async { Ok(service.create_scenario(false).await?) })?;
    }
    let done = (|| -> Result<(Request, Installed), CliError> {
        let (manifest, model) = context.block_on(async {
            let manifest = match &args.manifest {
                Some(file) => from_file(file)?,
                None => {
                    let release = args.release.as_deref();
                    let (manifest, made) = service.manifest_for_installing(&adapter.name, release).await?;
                    if made {
                        context
                            .output()
                            .note(&format!("made the scenario {scenario}, which did not exist yet"));
                    }
                    Manifest::from_json(&manifest)?
                }
            };
            let model = model(args.model.clone(), &manifest, &service).await?;
            Ok((manifest, model))
        })?;
        let api = choose_api(&adapter, args.api, &manifest)?;
        let mut checked = CheckOffs::of(&place)?;
        if args.setup {
            let options = setup::SetupOptions::asking();
            setup::go_through(context, &manifest.requires, &mut checked, &options, None)?;
        }
        // Before the agent's program is installed: a refusal leaves nothing behind.
        refuse(&home, &adapter.name, &scenario, &manifest, &checked)?;
        let source = match (&args.agent_program, args.no_agent_install) {
            (Some(program), _) => AgentSource::Program(program.clone()),
            (None, true) => AgentSource::Present,
            (None, false) => AgentSource::Any,
        };
        let program = find(context, &home, &adapter, &source)?;
        let request = Request {
            adapter: adapter.name.clone(),
            scenario: scenario.clone(),
            url: service.base().to_owned(),
            token: token.clone(),
            manifest,
            api,
            model,
            program,
            bodies: args.keep_bodies,
            reef: this_program()?,
            checked,
        };
        let installed = install(&home, &request)?;
        Ok((request, installed))
    })();
    if made_scenario && done.is_err() {
        // Made for this alone. The first error is the one to tell.
        let _still_there = context.block_on(async { Ok(service.drop_scenario().await) });
    }
    let (request, installed) = done?;
    show(context, &adapter, &request, &installed)?;
    Ok(Exit::Ok)
}

/// The service's address. Inside a session, what the environment names is the session's own, and ends with it.
fn outside_a_session(context: &Context, args: &InstallArgs, before: Option<&Record>) -> Result<String, CliError> {
    let of_session =
        context.env("REEF_HARNESS_SESSION").is_some() && context.env("REEF_SERVICE_URL") == Some(args.url.as_str());
    if !of_session {
        return Ok(args.url.clone());
    }
    before.map(|record| record.url.clone()).ok_or_else(|| {
        CliError::new(
            Exit::Usage,
            "this is a session of an agent, whose address of the service ends with it; nothing was changed",
        )
        .hint("name the service with --url, or install from another shell")
    })
}

fn find(context: &Context, home: &Home, adapter: &Adapter, source: &AgentSource) -> Result<AgentProgram, CliError> {
    let output = context.output();
    let say = |line: &str| output.note(line);
    context.block_on(async { Ok(obtain(home, adapter, source, &path(), &say).await?) })
}

/// Installs another release into an installation that exists.
pub(super) fn again(
    context: &Context,
    record: &Record,
    manifest: Manifest,
    token: Option<String>,
) -> Result<Exit, CliError> {
    let adapter = adapter(&record.adapter)?;
    let home = record.home();
    let place = home.place(&record.adapter, &record.scenario);
    let checked = CheckOffs::of(&place)?;
    refuse(&home, &record.adapter, &record.scenario, &manifest, &checked)?;
    // A program that was named stays; one that Reef looked after follows the adapter's version.
    let private = record.program.starts_with(&record.data);
    let source = if private || !record.program.exists() {
        AgentSource::Any
    } else {
        AgentSource::Program(record.program.clone())
    };
    let program = find(context, &home, &adapter, &source)?;
    let request = Request {
        adapter: record.adapter.clone(),
        scenario: record.scenario.clone(),
        url: record.url.clone(),
        token,
        manifest,
        api: record.api,
        model: record.model.clone(),
        program,
        bodies: record.bodies,
        reef: this_program()?,
        checked,
    };
    let installed = install(&home, &request)?;
    show(context, &adapter, &request, &installed)?;
    Ok(Exit::Ok)
}

async fn model(asked: Option<String>, manifest: &Manifest, service: &Service) -> Result<String, CliError> {
    if let Some(model) = asked.or_else(|| manifest.model.clone()) {
        return Ok(model);
    }
    service.first_model().await?.ok_or_else(|| {
        CliError::new(
            Exit::Usage,
            format!("{} lists no model; nothing was changed", service.base()),
        )
        .hint("name the one the agent should ask for with --model")
    })
}

fn choose_api(adapter: &Adapter, asked: Option<WireApi>, manifest: &Manifest) -> Result<WireApi, CliError> {
    let known = adapter.apis();
    if let Some(api) = asked.or(manifest.api) {
        if known.contains(&api) {
            return Ok(api);
        }
        let list: Vec<&str> = known.iter().map(|api| api.as_str()).collect();
        return Err(CliError::new(
            Exit::Usage,
            format!(
                "{} does not speak the {} API, it speaks {}; nothing was changed",
                adapter.title,
                api.as_str(),
                list.join(", ")
            ),
        )
        .hint("the service has to serve an API the agent speaks; --api names it"));
    }
    known.first().copied().ok_or_else(|| {
        CliError::new(
            Exit::Usage,
            format!("{} speaks no API that is known here", adapter.title),
        )
    })
}

fn from_file(file: &std::path::Path) -> Result<Manifest, CliError> {
    let unreadable = |error: &dyn std::fmt::Display| {
        CliError::new(
            Exit::Usage,
            format!("the manifest {} cannot be read: {error}", file.display()),
        )
    };
    let bytes = std::fs::read(file).map_err(|error| unreadable(&error))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| unreadable(&error))?;
    Ok(Manifest::from_json(&value)?)
}

fn this_program() -> Result<PathBuf, CliError> {
    std::env::current_exe()
        .map_err(|error| CliError::new(Exit::Unexpected, format!("cannot tell where reef itself is: {error}")))
}

fn show(context: &Context, adapter: &Adapter, request: &Request, installed: &Installed) -> Result<(), CliError> {
    let output = context.output();
    if output.json() {
        return output.object("harness_installation", installed);
    }
    let command = installed
        .wrapper
        .file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    if !installed.changed {
        output.note(&format!(
            "release {} is already current; nothing was written",
            installed.release_id
        ));
    } else {
        output.note(&format!(
            "{} {} runs on release {} of {}; the files are in {}",
            adapter.title,
            request.program.version,
            installed.release_id,
            request.scenario,
            installed.dir.display()
        ));
    }
    if let Some(previous) = &installed.previous {
        output.note(&format!("before it was {previous}; `{command} rollback` goes back"));
    }
    for tool in &adapter.client.tools {
        if !std::env::split_paths(&path()).any(|dir| dir.join(tool).is_file()) {
            output.note(&format!(
                "{tool} is not on PATH; {} works better with it",
                adapter.title
            ));
        }
    }
    let bin = installed.wrapper.parent();
    if !std::env::split_paths(&path()).any(|dir| Some(dir.as_path()) == bin) {
        output.warn(&format!(
            "{} is not on PATH; add it, or start the agent as {}",
            bin.map_or_else(String::new, |bin| bin.display().to_string()),
            installed.wrapper.display()
        ));
    }
    output.line(&installed.wrapper.display().to_string())
}
