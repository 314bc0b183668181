//! `reef serve`

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::config;
use crate::cli::context::{Store, given};
use crate::cli::progress::Spinner;
use crate::cli::publishing::{base_seed, room};
use crate::cli::{CliError, Context, Exit, engines, harness, learning, logging, manager, openmp, readiness, running};
use crate::config::{EngineKind, OnFailure, Override, Settings, StreamReceipt as ReceiptChoice};
use crate::experience::Retention;
use crate::recipe::{Recipe, SelectorKind, TrainerKind};
use crate::scenario::{Activate, DirectoryError, Driver, Hands, Live, ServeAsIs, Supervisor, TorchLive};
use crate::serve::{OnStoreFailure, ServeError, ServeOptions, Server, Shutdown, Stopped, StreamReceipt};
use crate::sys::access::Open;
use crate::sys::{failpoint, task};

/// The providers of `--model`, by whose address they are reached.
const PROVIDERS: [&str; 3] = ["ollama", "openai", "anthropic"];
/// Time between two looks for bodies that retention does not keep.
const RETENTION_INTERVAL: Duration = Duration::from_secs(60);
/// Time between two collections of releases that retention does not keep.
const COLLECTION_INTERVAL: Duration = Duration::from_secs(3600);

/// What goes on beside the requests, as a panic in it is named.
const COLLECTING: &str = "collecting releases";
const PRUNING: &str = "pruning records";

/// Answer requests and record them, until a signal says stop
///
/// Runs in the foreground. SIGTERM or Ctrl-C stops accepting and lets open requests finish for reef.drain-timeout; a
/// second signal exits at once. With --json, an event `listening` on standard output says where.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Base URL of the provider that answers, with or without /v1
    #[arg(long, value_name = "URL", help_heading = "Provider")]
    upstream_url: Option<String>,
    /// The model requested when a client names none
    #[arg(long, value_name = "MODEL", help_heading = "Provider")]
    upstream_model: Option<String>,
    /// The API the provider speaks: openai, responses or anthropic
    #[arg(long, value_name = "API", help_heading = "Provider")]
    upstream_api: Option<String>,
    /// Credential for the provider; other users of this machine can see it in the process list, so prefer the next one
    #[arg(
        long,
        value_name = "KEY",
        help_heading = "Provider",
        conflicts_with = "upstream_api_key_env"
    )]
    upstream_api_key: Option<String>,
    /// The environment variable that holds the credential [default: REEF_UPSTREAM_API_KEY]
    #[arg(long, value_name = "VAR", help_heading = "Provider")]
    upstream_api_key_env: Option<String>,
    /// A model of a known provider (ollama/…, openai/…, anthropic/…), or the path of a model to serve from this process
    #[arg(
        long,
        value_name = "[PROVIDER/]MODEL",
        help_heading = "Provider",
        conflicts_with = "upstream_model"
    )]
    model: Option<String>,
    /// The recipe to learn by: a built-in one, or the path of a recipe.toml
    #[arg(long, value_name = "RECIPE")]
    recipe: Option<String>,
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Port to listen on; 0 takes a free one [default: 8900]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Listen beyond this machine without any token
    #[arg(long)]
    allow_open: bool,
    /// Print every setting with its source and exit
    #[arg(long)]
    print_config: bool,
}

pub(crate) fn run(context: &Context, args: ServeArgs) -> Result<Exit, CliError> {
    let settings = context.settings_with(flags(context, &args)?)?;
    if let Some(model) = &args.model {
        addressed(&settings, model)?;
    }
    if args.print_config {
        return config::show(context, &settings, false, "");
    }
    openmp::settle_for(context, &settings)?;
    let _tracing = logging::for_service(context, &settings);
    warn_of_open_files(&settings);
    // Faults are told before anything starts.
    readiness::check(&settings)?;
    let recipe = learning::followed(&settings)?;
    let shutdown = Shutdown::on_signals()
        .map_err(|error| CliError::new(Exit::Unexpected, format!("cannot wait for signals: {error}")))?;
    manager::starting(settings.reef.ready_timeout);
    let learns = recipe.clone();
    let runtime = context.runtime()?;
    let ended = runtime.block_on(async {
        let server = tokio::select! {
            started = tokio::time::timeout(settings.reef.ready_timeout, start(context, &settings, recipe, &shutdown)) => {
                started.map_err(|_| too_slow(&settings))??
            }
            () = shutdown.drain.cancelled() => return Err(CliError::interrupted()),
        };
        let grace = settings.reef.drain_timeout;
        shutdown.allow(grace);
        let posted = announce(context, &settings, &server, learns.as_ref())?;
        if let Some(url) = posted.as_ref().map(|posted| posted.url().to_owned()) {
            let attending = manager::attend(url, server.in_flight(), shutdown.clone());
            let _attending = task::spawn("telling the service manager", attending);
        }
        let run = async {
            let stopped = server.run(shutdown.clone()).await;
            // However it came to stop.
            shutdown.drain.cancel();
            stopped
        };
        let (stopped, ()) = tokio::join!(run, manager::stopping(&shutdown, grace));
        Ok(match stopped {
            Stopped::Drained => Exit::Ok,
            Stopped::Cut(open) => {
                context
                    .output()
                    .warn(&format!("{open} requests were still open and were cut"));
                Exit::Ok
            }
            Stopped::Forced => Exit::Interrupted,
        })
    });
    // What a thread is still about, a model that loads or a step that does not look up, nobody waits for.
    runtime.shutdown_background();
    ended
}

/// Says when other users can reach what an older version left open. A look at everything would hold up the start.
fn warn_of_open_files(settings: &Settings) {
    let (storage, who) = (&settings.storage, settings.storage.who());
    let mut open = Open::default();
    for path in [
        storage.dir.clone(),
        storage.experience_db(),
        storage.artifacts_git(),
        storage.log_dir(),
    ] {
        // What cannot be looked at is told by whoever needs it.
        let _unread = open.note(&path, who);
    }
    // Behind a closed directory nothing can be reached.
    if let Some((dir, mode)) = open.paths.first().filter(|(path, _)| *path == storage.dir)
        && open.paths.len() > 1
        && mode & who.denied() != 0
    {
        tracing::warn!(
            dir = %dir.display(),
            "other users of this machine may use files of this deployment; reef doctor --fix closes them"
        );
    }
}

/// Everything up to the first request: engine, releases, store, address.
async fn start(
    context: &Context,
    settings: &Settings,
    recipe: Option<Recipe>,
    shutdown: &Shutdown,
) -> Result<Server, CliError> {
    // A failure here is told as a panic is; only tests arm it.
    let _armed = failpoint::hit("serve::start");
    let wanted = settings.clone();
    // Loading a model takes long and does not yield.
    let spinner = (settings.inference.engine() == EngineKind::Torch)
        .then(|| Spinner::start(context.output(), "loading the model"));
    let built = task::blocking("loading the engine", move || engines::build(&wanted))
        .await
        .map_err(|error| CliError::from_error(Exit::Unexpected, error))??;
    drop(spinner);
    let followed = recipe.as_ref().map(|recipe| recipe.name.clone());
    let learner = match recipe {
        Some(recipe) => Some((learning::hands(settings, &recipe, Some(&built))?, recipe)),
        None => None,
    };
    let publisher = context.publisher_of(settings, Store::Create)?;
    publisher.keep_within(room(context, settings));
    let store = publisher.experience().clone();
    let activate: Arc<dyn Activate> = match &built.torch {
        Some(torch) => Arc::new(TorchLive::new(torch.clone(), publisher.clone())),
        None => Arc::new(ServeAsIs),
    };
    let engine = Arc::clone(&built.engine);
    let collecting = publisher.clone();
    let mut options = options(settings);
    options.recipe = followed;
    options.harness = harness::trees(settings)?.map(|trees| Arc::new(trees.options(settings)));
    let bound = Server::bind(options, publisher, base_seed(settings), engine, activate).await;
    let mut server = bound.map_err(|error| refused(settings, error))?;
    if let Some((hands, recipe)) = learner {
        let supervisor = supervisor(settings, &server, recipe, hands);
        server = server.supervised_by(supervisor);
    }
    let stop = shutdown.drain.clone();
    let collect = move || collecting.clone().keep_collected(COLLECTION_INTERVAL, stop.clone());
    let _collecting = task::spawn(COLLECTING, task::keep(COLLECTING, shutdown.drain.clone(), collect));
    let (keep, stop) = (retention(settings), shutdown.drain.clone());
    let prune = move || store.clone().keep_pruned(keep, RETENTION_INTERVAL, stop.clone());
    let _pruning = task::spawn(PRUNING, task::keep(PRUNING, shutdown.drain.clone(), prune));
    Ok(server)
}

fn too_slow(settings: &Settings) -> CliError {
    CliError::new(
        Exit::Unavailable,
        format!(
            "the service was not ready within {} s",
            settings.reef.ready_timeout.as_secs_f64()
        ),
    )
    .hint("raise reef.ready-timeout: a large model or a slow disk needs longer")
}

fn supervisor(settings: &Settings, server: &Server, recipe: Recipe, hands: Hands) -> Supervisor {
    let directory = Arc::clone(server.directory());
    // The embedded trainer makes one step at a time; external ones may overlap.
    let turns = if recipe.trainer.backend == TrainerKind::Torch {
        1
    } else {
        2
    };
    Supervisor {
        driver: Driver::new(
            directory.publisher().clone(),
            recipe,
            Live::Serving(Arc::clone(&directory)),
            hands,
            learning::work_dir(settings),
        ),
        directory,
        run_dir: settings.storage.run_dir(),
        turns,
        board: Arc::clone(server.board()),
    }
}

fn announce(
    context: &Context,
    settings: &Settings,
    server: &Server,
    recipe: Option<&Recipe>,
) -> Result<Option<running::Posted>, CliError> {
    let Some(address) = server.address() else {
        return Ok(None);
    };
    let url = settings
        .reef
        .served_url
        .clone()
        .map_or_else(|| format!("http://{address}"), String::from);
    let posted = running::post(settings, url.clone(), local_url(address))?;
    tracing::info!(url, version = env!("CARGO_PKG_VERSION"), "listening");
    let output = context.output();
    if output.json() {
        let event = json!({
            "url": url, "address": address, "pid": std::process::id(), "recipe": recipe.map(|recipe| &recipe.name),
        });
        output.event("listening", &event)?;
    }
    if let Some(warning) = recipe.and_then(unmeasured) {
        output.warn(&warning);
    }
    if output.json() {
        return Ok(Some(posted));
    }
    let answers = match (settings.inference.engine(), settings.inference.provider_url()) {
        (EngineKind::Upstream, Some(upstream)) => format!("answered by {}", without_credentials(upstream)),
        _ => "answered by the embedded model".to_owned(),
    };
    output.note(&format!(
        "reef listens on {url}, {answers}; records in {}",
        settings.storage.dir.display()
    ));
    output.note(&match (recipe, &settings.recipe.implementation) {
        (Some(recipe), _) => format!("learning by recipe {}", recipe.name),
        (None, Some(name)) if !settings.training.enabled => {
            format!("recording only: recipe {name} is set, and training.enabled is false")
        }
        (None, Some(name)) => format!("recording only: recipe {name} trains nothing"),
        (None, None) => "recording only: no recipe is set, so nothing is learned from reports (reef.recipe)".to_owned(),
    });
    Ok(Some(posted))
}

/// What to say of a recipe whose releases nobody measures.
fn unmeasured(recipe: &Recipe) -> Option<String> {
    (recipe.gate.selector == SelectorKind::Always).then(|| {
        format!(
            "recipe {} releases every step without measuring it: one report can change what is served. Set \
             gate.selector = paired and a task suite to compare first",
            recipe.name
        )
    })
}

/// Where this machine reaches a listener: one on every address is on loopback too.
fn local_url(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

fn without_credentials(url: &str) -> String {
    match (url.split_once("://"), url.rfind('@')) {
        (Some((scheme, _)), Some(at)) => format!("{scheme}://{}", &url[at + 1..]),
        _ => url.to_owned(),
    }
}

/// The command's own flags as settings.
fn flags(context: &Context, args: &ServeArgs) -> Result<Vec<Override>, CliError> {
    let mut flags = Vec::new();
    let mut set = |flag: &str, key: &str, value: Option<String>| {
        if let Some(value) = value {
            flags.push(given(flag, key, value));
        }
    };
    if let Some(model) = &args.model {
        // What is said on its own counts before what the provider's name implies.
        let own = [
            ("inference.upstream-url", args.upstream_url.is_some()),
            ("inference.upstream-api", args.upstream_api.is_some()),
            (
                "inference.upstream-api-key",
                args.upstream_api_key.is_some() || args.upstream_api_key_env.is_some(),
            ),
        ];
        model_flags(context, model, &mut |flag, key, value| {
            if !own.contains(&(key, true)) {
                set(flag, key, value);
            }
        })?;
    }
    set("--upstream-url", "inference.upstream-url", args.upstream_url.clone());
    set(
        "--upstream-model",
        "inference.upstream-model",
        args.upstream_model.clone(),
    );
    set("--upstream-api", "inference.upstream-api", args.upstream_api.clone());
    set(
        "--upstream-api-key",
        "inference.upstream-api-key",
        args.upstream_api_key.clone(),
    );
    if let Some(name) = &args.upstream_api_key_env {
        let Some(key) = context.env(name) else {
            return Err(
                CliError::new(Exit::Usage, format!("the environment variable {name} is not set"))
                    .hint("--upstream-api-key-env names the variable that holds the provider's credential"),
            );
        };
        set(
            "--upstream-api-key-env",
            "inference.upstream-api-key",
            Some(key.to_owned()),
        );
    }
    set("--recipe", "recipe.implementation", args.recipe.clone());
    set("--host", "reef.host", args.host.clone());
    set("--port", "reef.port", args.port.map(|port| port.to_string()));
    set(
        "--allow-open",
        "reef.allow-open",
        args.allow_open.then(|| "true".to_owned()),
    );
    Ok(flags)
}

/// `ollama/llama3.2`, `openai/gpt-5`, `anthropic/claude-…`; any other prefix is part of the model's id. A path that
/// exists is a model for the embedded engine.
fn model_flags(
    context: &Context,
    model: &str,
    set: &mut dyn FnMut(&str, &str, Option<String>),
) -> Result<(), CliError> {
    let flag = "--model";
    let provider = |name: &str| model.strip_prefix(name).and_then(|rest| rest.strip_prefix('/'));
    let key = |variable: &str| {
        context
            .env("REEF_UPSTREAM_API_KEY")
            .or_else(|| context.env(variable))
            .map(str::to_owned)
    };
    if model.trim().is_empty() {
        return Err(CliError::new(Exit::Usage, "--model is empty").hint("for example --model ollama/llama3.2"));
    }
    let (url, api, key, id) = if let Some(id) = provider("ollama") {
        ("http://127.0.0.1:11434", "openai", Some("ollama".to_owned()), id)
    } else if let Some(id) = provider("openai") {
        ("https://api.openai.com", "openai", key("OPENAI_API_KEY"), id)
    } else if let Some(id) = provider("anthropic") {
        ("https://api.anthropic.com", "anthropic", key("ANTHROPIC_API_KEY"), id)
    } else if std::path::Path::new(model).exists() {
        set(flag, "inference.model-path", Some(model.to_owned()));
        return Ok(());
    } else {
        set(flag, "inference.upstream-model", Some(model.to_owned()));
        return Ok(());
    };
    set(flag, "inference.upstream-url", Some(url.to_owned()));
    set(flag, "inference.upstream-api", Some(api.to_owned()));
    set(flag, "inference.upstream-api-key", key);
    set(flag, "inference.upstream-model", Some(id.to_owned()));
    Ok(())
}

/// Whether somebody answers for the model of `--model`: a name alone says nothing of where.
fn addressed(settings: &Settings, model: &str) -> Result<(), CliError> {
    let inference = &settings.inference;
    if inference.provider_url().is_some() || inference.model_path.is_some() {
        return Ok(());
    }
    if model.starts_with(['.', '/', '~']) || model.ends_with(".gguf") {
        return Err(CliError::new(Exit::Usage, format!("there is no model at {model}"))
            .hint("reef model import brings a model in; reef model list shows those that are here"));
    }
    let address = format!("for a provider at another address: --upstream-url URL --upstream-model {model}");
    let Some((provider, id)) = model.split_once('/') else {
        return Err(CliError::new(
            Exit::Usage,
            format!("--model {model} names no provider, and no address is configured"),
        )
        .hint(format!(
            "for example --model openai/{model}, or the provider's address: --upstream-url URL --upstream-model {model}"
        )));
    };
    let near = PROVIDERS
        .iter()
        .filter(|known| strsim::jaro_winkler(known, provider) > 0.8)
        .map(|known| format!("did you mean --model {known}/{id}?"));
    let error = CliError::new(
        Exit::Usage,
        format!("{provider} is no provider that --model knows, and no address is configured"),
    );
    let error = near.fold(error, CliError::hint);
    Err(error
        .hint(format!("--model knows {}", PROVIDERS.join(", ")))
        .hint(address))
}

fn retention(settings: &Settings) -> Retention {
    Retention {
        max_bytes: Some(settings.storage.retention_max_bytes.0),
        max_age: settings
            .storage
            .retention_days
            .and_then(|days| Duration::try_from_secs_f64(days * 86_400.0).ok()),
    }
}

fn options(settings: &Settings) -> ServeOptions {
    let reef = &settings.reef;
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    ServeOptions {
        host: reef.host.clone(),
        port: reef.port,
        tokens: settings
            .tokens()
            .iter()
            .map(|token| token.expose().to_owned())
            .collect(),
        allow_open: reef.allow_open,
        console_origins: reef.console_origins.clone(),
        implicit_scenarios: reef.allow_implicit_scenario_creation,
        training_mode: settings.training.mode(),
        max_body_bytes: size(reef.max_body.0),
        max_recorded_bytes: size(settings.storage.max_recorded_body.0),
        on_store_failure: match settings.storage.on_failure {
            OnFailure::Serve => OnStoreFailure::Serve,
            OnFailure::Refuse => OnStoreFailure::Refuse,
        },
        provider_api: reef.provider_api,
        stream_receipt: match reef.stream_receipt {
            ReceiptChoice::Auto => StreamReceipt::Auto,
            ReceiptChoice::Finish => StreamReceipt::Finish,
            ReceiptChoice::Chunk => StreamReceipt::Chunk,
        },
        keep_alive: Some(settings.inference.keep_alive_s).filter(|interval| !interval.is_zero()),
        drain: reef.drain_timeout,
        client_timeout: reef.client_timeout,
        max_in_flight: reef.max_in_flight as usize,
        run_dir: Some(settings.storage.run_dir()),
        recipe: None,
        harness: None,
    }
}

/// A service that cannot start, at the place of the setting that says so.
fn refused(settings: &Settings, error: ServeError) -> CliError {
    let key = match &error {
        ServeError::Busy { .. } => "reef.port",
        ServeError::Address { .. } | ServeError::Open { .. } => "reef.host",
        ServeError::Directory(_) => "storage.dir",
    };
    match error {
        ServeError::Directory(DirectoryError::Publish(error)) => error.into(),
        ServeError::Directory(_) => CliError::from_error(Exit::Store, error),
        error => CliError::from_error(Exit::Usage, error).of_setting(settings, key),
    }
}
