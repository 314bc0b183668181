//! What every command has at hand: how to speak, where the files are, what was configured.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;

use super::args::GlobalArgs;
use super::dotted::Override;
use super::output::Output;
use super::{CliError, Exit};

/// One run of the program.
#[derive(Debug)]
pub(crate) struct Context {
    output: Output,
    config: Option<PathBuf>,
    dir: Option<PathBuf>,
    overrides: Vec<Override>,
    env: BTreeMap<String, String>,
}

impl Context {
    pub(crate) fn new(global: &GlobalArgs, overrides: Vec<Override>) -> Self {
        Self {
            output: Output::new(global.output),
            config: global.config.clone(),
            dir: global.dir.clone(),
            overrides,
            env: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
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

    /// The directory that holds Reef's files.
    pub(crate) fn dir(&self) -> Result<PathBuf, CliError> {
        Ok(self.dir.clone().unwrap_or_else(|| PathBuf::from(".reef")))
    }

    /// For a command that reads no settings: settings on its command line are a mistake.
    pub(crate) fn refuse_settings(&self, command: &str) -> Result<(), CliError> {
        match self.overrides.first() {
            None => Ok(()),
            Some(first) => Err(CliError::new(
                Exit::Usage,
                format!("reef {command} reads no settings, but --{} was given", first.key),
            )),
        }
    }

    /// Runs asynchronous work to its end, or until Ctrl-C (exit 130). `reef serve` handles signals itself and does not
    /// use this.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
        self.runtime()?.block_on(async {
            tokio::select! {
                result = work => result,
                _ = tokio::signal::ctrl_c() => Err(CliError::interrupted()),
            }
        })
    }

    /// A runtime for asynchronous work.
    pub(crate) fn runtime(&self) -> Result<tokio::runtime::Runtime, CliError> {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| CliError::new(Exit::Unexpected, format!("cannot start worker threads: {error}")))
    }
}
