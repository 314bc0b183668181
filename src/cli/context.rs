//! What every command has at hand: how to speak, where the files are, what was configured.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::config::{self, Settings, Sources};
use crate::experience::{Experience, StoreOptions};
use crate::sys::{access, disk, signals};

use super::args::GlobalArgs;
use super::dotted::Override;
use super::output::Output;
use super::{CliError, Exit, OrExit};

/// How long work that was told to stop may take to end.
const LAST: Duration = Duration::from_secs(5);

/// What a missing store means to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// Make it.
    Create,
    /// There is nothing to show; making one would only hide a wrong directory.
    MustExist,
    /// The same for a command that only shows: a directory that may only be read is enough.
    Shown,
}

/// One run of the program.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    output: Output,
    config: Option<PathBuf>,
    overrides: Vec<config::Override>,
    env: BTreeMap<String, String>,
    settings: OnceCell<Settings>,
}

impl Context {
    pub(crate) fn new(global: &GlobalArgs, overrides: Vec<Override>) -> Self {
        let mut overrides: Vec<config::Override> = overrides.into_iter().map(config::Override::from).collect();
        if let Some(dir) = &global.dir {
            overrides.push(given("--dir", "storage.dir", dir.display().to_string()));
        }
        Self {
            output: Output::new(global.output),
            config: global.config.clone(),
            overrides,
            env: std::env::vars_os()
                // What is not UTF-8 is refused where a setting is made of it, not overlooked.
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
                .collect(),
            settings: OnceCell::new(),
        }
    }

    /// How to speak.
    pub(crate) fn output(&self) -> &Output {
        &self.output
    }

    /// A variable of the environment; empty counts as absent.
    pub(crate) fn env(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// What was configured: flags, the environment, the file of `-c`, the defaults.
    pub(crate) fn settings(&self) -> Result<&Settings, CliError> {
        if let Some(settings) = self.settings.get() {
            return Ok(settings);
        }
        let settings = self.settings_with(Vec::new())?;
        Ok(self.settings.get_or_init(|| settings))
    }

    /// The same with a command's own flags, which stand for settings.
    pub(crate) fn settings_with(&self, flags: Vec<config::Override>) -> Result<Settings, CliError> {
        let directory = std::env::current_dir()
            .map_err(|error| CliError::new(Exit::Usage, format!("cannot tell the current directory: {error}")))?;
        let mut overrides = self.overrides.clone();
        overrides.extend(flags);
        config::load(&Sources {
            file: self.config.clone(),
            overrides,
            env: self.env.clone(),
            directory,
        })
        .or_exit(Exit::Usage)
        .map_err(|error| match &self.config {
            Some(file) if !file.exists() => error.hint("reef init writes one; -c names it, from this directory on"),
            Some(_) => error.hint("reef config schema lists every key with its type"),
            None => error,
        })
    }

    /// The deployment file, if one was given.
    pub(crate) fn config_file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// The directory that holds Reef's files.
    pub(crate) fn dir(&self) -> Result<PathBuf, CliError> {
        Ok(self.settings()?.storage.dir.clone())
    }

    /// From here on this process works on these files: what it makes is closed to whom `storage.access` leaves out.
    pub(crate) fn claim(&self, settings: &Settings) {
        access::keep(settings.storage.who());
    }

    /// The same, with the directory made if it is missing.
    pub(crate) fn claim_dir(&self, settings: &Settings) -> Result<(), CliError> {
        self.claim(settings);
        let dir = &settings.storage.dir;
        match access::make_dir(dir, settings.storage.who()) {
            // Why it cannot be made, the store says best.
            Err(error) if dir.is_dir() => Err(CliError::new(
                Exit::Store,
                format!("cannot give {} to its group: {error}", dir.display()),
            )
            .hint("chgrp it to a group of this user, or set storage.access to owner")),
            _ => Ok(()),
        }
    }

    /// The store of experience in that directory.
    pub(crate) fn store(&self, missing: Store) -> Result<Experience, CliError> {
        self.store_of(self.settings()?, missing)
    }

    /// The same for settings that a command made itself.
    pub(crate) fn store_of(&self, settings: &Settings, missing: Store) -> Result<Experience, CliError> {
        let path = settings.storage.experience_db();
        if missing != Store::Create && !path.exists() {
            return Err(
                CliError::new(Exit::Usage, format!("there is no store at {}", path.display()))
                    .hint("reef serve creates it; or name the directory that holds it with --dir or -c"),
            );
        }
        match missing {
            Store::Create => self.claim_dir(settings)?,
            Store::MustExist | Store::Shown => self.claim(settings),
        }
        let options = StoreOptions {
            queue_writes: settings.storage.write_queue as usize,
            ..StoreOptions::default()
        };
        if missing == Store::Shown && read_only(settings) {
            return Ok(Experience::open_read_only(&path, options)?);
        }
        Ok(Experience::open(&path, options)?)
    }

    /// For a command that reads no settings: settings on its command line are a mistake.
    pub(crate) fn refuse_settings(&self, command: &str) -> Result<(), CliError> {
        match self.overrides.first() {
            None => Ok(()),
            Some(first) => Err(CliError::new(
                Exit::Usage,
                format!("reef {command} reads no settings, but {} was given", first.flag),
            )
            .hint(format!("run reef {command} without it"))),
        }
    }

    /// Runs asynchronous work to its end, or until a signal says stop (exit 130): what it started ends with it. `reef serve`
    /// handles signals itself and does not use this.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
        let runtime = self.runtime()?;
        let result = runtime.block_on(async {
            tokio::select! {
                result = work => result,
                told = told_to_stop() => Err(match told {
                    Ok(()) => CliError::interrupted(),
                    Err(error) => CliError::new(Exit::Unexpected, format!("cannot wait for signals: {error}")),
                }),
            }
        });
        if result.is_err() {
            // Work that looks up ends by itself; nobody waits for the rest.
            runtime.shutdown_timeout(LAST);
        }
        result
    }

    /// Waits between two looks of a command that goes on; ends it when nobody reads its output any more.
    pub(crate) async fn pause(&self, how_long: Duration) -> Result<(), CliError> {
        const GLANCE: Duration = Duration::from_millis(200);
        let until = tokio::time::Instant::now() + how_long;
        while !self.output.reader_gone() {
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(left.min(GLANCE)).await;
        }
        Err(CliError::broken_pipe())
    }

    /// A runtime for asynchronous work.
    pub(crate) fn runtime(&self) -> Result<tokio::runtime::Runtime, CliError> {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| CliError::new(Exit::Unexpected, format!("cannot start worker threads: {error}")))
    }
}

/// Whether this user may only read the directory that holds Reef's files.
pub(crate) fn read_only(settings: &Settings) -> bool {
    let storage = &settings.storage;
    [&storage.dir, &storage.experience_db(), &storage.artifacts_git()]
        .into_iter()
        .any(|path| disk::is_read_only(path))
}

/// Until a terminal, a person or a service manager says stop. A command that was started with hang-ups ignored goes on.
async fn told_to_stop() -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let hangup = async {
        if signals::is_ignored(rustix::process::Signal::HUP) {
            std::future::pending::<()>().await;
        }
        signal(SignalKind::hangup())
            .map(|mut hangup| async move { hangup.recv().await })?
            .await;
        Ok(())
    };
    tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        hung_up = hangup => hung_up,
    }
}

/// A command's own flag that stands for a setting.
pub(crate) fn given(flag: &str, key: &str, value: String) -> config::Override {
    config::Override {
        flag: flag.to_owned(),
        key: key.to_owned(),
        value: Some(value),
        negated: false,
    }
}

impl From<Override> for config::Override {
    fn from(typed: Override) -> Self {
        Self {
            flag: format!("--{}{}", if typed.negated { "no-" } else { "" }, typed.key),
            key: typed.key,
            value: typed.value,
            negated: typed.negated,
        }
    }
}
