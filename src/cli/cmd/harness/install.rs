//! `reef harness install`

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use super::{adapter, home, path, setup, token};
use crate::cli::{CliError, Context, Exit};
use crate::domain::ScenarioName;
use crate::harness::adapter::{Adapter, WireApi};
use crate::harness::client::{
    AgentProgram, AgentSource, CheckOffs, Installed, Manifest, Record, Request, Service, install, obtain,
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
    /// The scenario; a new one of its own without it
    #[arg(long, value_name = "NAME")]
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
    let token = match token(context) {
        Some(token) => Some(token),
        None => place.token()?,
    };
    let service = Service::new(&args.url, token.clone(), scenario.clone())?;
    let source = match (&args.agent_program, args.no_agent_install) {
        (Some(program), _) => AgentSource::Program(program.clone()),
        (None, true) => AgentSource::Present,
        (None, false) => AgentSource::Any,
    };
    let output = context.output();
    let say = |line: &str| output.note(line);
    let (manifest, api, model, program) = context.block_on(async {
        let manifest = match &args.manifest {
            Some(file) => from_file(file)?,
            None => {
                if fresh_scenario {
                    service.create_scenario().await?;
                }
                Manifest::from_json(&service.manifest(&adapter.name, args.release.as_deref()).await?)?
            }
        };
        // Before a program is fetched that would be of no use.
        let api = choose_api(&adapter, args.api, &manifest)?;
        let model = model(args.model.clone(), &manifest, &service).await?;
        let program: AgentProgram = obtain(&home, &adapter, &source, &path(), &say).await?;
        Ok((manifest, api, model, program))
    })?;
    let mut checked = CheckOffs::of(&place)?;
    if args.setup {
        let options = setup::SetupOptions::asking();
        setup::go_through(context, &manifest.requires, &mut checked, &options, None)?;
    }
    let request = Request {
        adapter: adapter.name.clone(),
        scenario,
        url: service.base().to_owned(),
        token,
        manifest,
        api,
        model,
        program,
        bodies: args.keep_bodies,
        reef: this_program()?,
        checked,
    };
    let installed = install(&home, &request)?;
    show(context, &adapter, &request, &installed)?;
    Ok(Exit::Ok)
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
    let output = context.output();
    let say = |line: &str| output.note(line);
    // A program that was named stays; one that Reef looked after follows the adapter's version.
    let private = record.program.starts_with(&record.data);
    let source = if private || !record.program.exists() {
        AgentSource::Any
    } else {
        AgentSource::Program(record.program.clone())
    };
    let program = context.block_on(async { Ok(obtain(&home, &adapter, &source, &path(), &say).await?) })?;
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
        checked: CheckOffs::of(&place)?,
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
