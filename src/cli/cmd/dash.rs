//! `reef dash`

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::release::{self, Decided};
use crate::cli::client::{Client, ServerArgs, segment};
use crate::cli::{CliError, Context, Exit, running};
use crate::config::Settings;
use crate::dash::{
    Choice, DashError, DashOptions, Decision, Fault, Fetch, Files, FilesAt, Outside, Remote, Running, Source, Theme,
};
use crate::domain::ScenarioName;

/// Longest wait for the status of the service on this machine: the files say most of it anyway.
const PATIENCE: Duration = Duration::from_secs(2);

/// See and steer everything on one screen
///
/// Reads the files, with or without a service running on them, and asks that service what only it knows. With --url it
/// reads everything from a service on another machine. It holds no lock and changes nothing unless you promote, reject
/// or roll back a release and confirm it. Press ? for every key.
///
/// Without a terminal, reef status --watch says the same in plain lines.
#[derive(Debug, Args)]
pub(crate) struct DashArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Look into this scenario first
    #[arg(short, long, value_name = "NAME")]
    scenario: Option<ScenarioName>,
    /// Colours for a dark or a light background, or none; auto asks COLORFGBG and NO_COLOR
    #[arg(long, value_enum, value_name = "THEME", default_value_t = ThemeChoice::Auto)]
    theme: ThemeChoice,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ThemeChoice {
    /// What the terminal says of itself
    Auto,
    /// Dark background
    Dark,
    /// Light background
    Light,
    /// No colours
    None,
}

pub(crate) fn run(context: &Context, args: DashArgs) -> Result<Exit, CliError> {
    let interval = interval(args.interval)?;
    let options = DashOptions {
        theme: theme(context, args.theme),
        scenario: args.scenario.map(|name| name.to_string()),
        interval,
    };
    let source = source(context, args.server.url.as_deref())?;
    match crate::dash::run(source, &options) {
        Ok(None) => Ok(Exit::Ok),
        Ok(Some(_)) => Err(CliError::interrupted()),
        Err(error @ DashError::NoTerminal) => {
            Err(CliError::from_error(Exit::Usage, error).hint("reef status --watch shows the same in plain lines"))
        }
        Err(error) => Err(CliError::from_error(Exit::Unexpected, error)),
    }
}

/// A time between two looks that neither spins nor sleeps for ever.
pub(super) fn interval(seconds: f64) -> Result<Duration, CliError> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|interval| (0.1..=3600.0).contains(&interval.as_secs_f64()))
        .ok_or_else(|| CliError::new(Exit::Usage, "--interval must be between 0.1 and 3600 seconds"))
}

/// The files, or the service at a URL.
pub(in crate::cli) fn source(context: &Context, url: Option<&str>) -> Result<Box<dyn Source>, CliError> {
    let runtime = Arc::new(context.runtime()?);
    let Some(url) = url else {
        let settings = context.settings()?.clone();
        context.claim(&settings);
        let storage = &settings.storage;
        let at = FilesAt {
            dir: storage.dir.clone(),
            database: storage.experience_db(),
            artifacts: storage.artifacts_git(),
            cache: storage.cache_dir(),
            logs: storage.log_dir(),
        };
        let here = Here {
            context: context.clone(),
            settings,
            runtime,
            client: None,
        };
        return Ok(Box::new(Files::new(at, here)));
    };
    let client = Client::new(context, url)?;
    // A wrong address should say so before the screen is taken over.
    runtime.block_on(client.get("/reef/status"))?;
    let base = client.base().to_owned();
    Ok(Box::new(Remote::new(base, There { client, runtime })))
}

fn theme(context: &Context, choice: ThemeChoice) -> Theme {
    match choice {
        ThemeChoice::Dark => Theme::Dark,
        ThemeChoice::Light => Theme::Light,
        ThemeChoice::None => Theme::Plain,
        ThemeChoice::Auto if !context.output().colored() => Theme::Plain,
        // `foreground;background`; 7 and 15 are the white ones.
        ThemeChoice::Auto => match context.env("COLORFGBG").and_then(|text| text.rsplit(';').next()) {
            Some("7" | "15") => Theme::Light,
            _ => Theme::Dark,
        },
    }
}

/// What the files of this machine cannot say or do by themselves.
struct Here {
    context: Context,
    settings: Settings,
    runtime: Arc<Runtime>,
    /// Kept while the service stays at its address.
    client: Option<Client>,
}

impl Outside for Here {
    fn running(&mut self) -> Option<Running> {
        let note = running::find(&self.settings)?;
        if self
            .client
            .as_ref()
            .is_none_or(|client| client.base() != note.local_url)
        {
            self.client = Client::new(&self.context, &note.local_url).ok();
        }
        Some(Running {
            url: note.url,
            pid: note.pid,
        })
    }

    fn status(&mut self) -> Option<Value> {
        let client = self.client.as_ref()?;
        let asked = async { tokio::time::timeout(PATIENCE, client.get("/reef/status")).await };
        self.runtime.block_on(asked).ok()?.ok()
    }

    fn decide(&mut self, choice: &Choice) -> Result<String, Fault> {
        let scenario = ScenarioName::new(&choice.scenario).map_err(|error| Fault::of(&error))?;
        let note = (!choice.note.is_empty()).then(|| choice.note.clone());
        let work = release::decide(&self.context, Some(scenario), &choice.release, kind(choice), note);
        Ok(match self.runtime.block_on(work).map_err(fault)? {
            Decided::Rejected { release, .. } => format!("rejected {release}"),
            Decided::Published { published, .. } if !published.appended => "it is served already".to_owned(),
            Decided::Published { published, .. } => format!("published {}", published.release_id),
        })
    }
}

fn kind(choice: &Choice) -> release::Kind {
    let expect = choice.head.clone();
    match choice.decision {
        Decision::Promote => release::Kind::Promote { expect },
        Decision::Reject => release::Kind::Reject,
        Decision::Rollback => release::Kind::Rollback { expect },
    }
}

/// A service on another machine.
struct There {
    client: Client,
    runtime: Arc<Runtime>,
}

impl Fetch for There {
    fn get(&mut self, path: &str) -> Result<Value, Fault> {
        self.runtime.block_on(self.client.get(path)).map_err(fault)
    }

    fn bytes(&mut self, path: &str) -> Result<Vec<u8>, Fault> {
        self.runtime.block_on(self.client.bytes(path)).map_err(fault)
    }

    fn post(&mut self, path: &str, body: &Value) -> Result<Value, Fault> {
        self.runtime.block_on(self.client.post(path, body)).map_err(fault)
    }

    fn segment(&self, text: &str) -> String {
        segment(text)
    }
}

fn fault(error: CliError) -> Fault {
    let mut words = error.message().to_owned();
    for cause in error.causes() {
        words.push_str(": ");
        words.push_str(cause);
    }
    let fault = Fault::new(words);
    match error.hints().first() {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}
