//! One run of a real agent on a rendered tree: in a sandbox, on a fresh workspace, with a model it reaches only through
//! a gateway of its own. Nothing here knows whether the tree is a candidate or what is served.

mod agent;
mod gateway;
mod meter;
mod package;
mod private;
mod token;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use agent::{Agent, AgentError};
pub use gateway::{Budget, Exchange, GatewayLog, ModelSource};
pub use meter::{Meter, Price, Prices};
pub use private::Private;
pub use token::is_episode_token;

use super::adapter::ModelBinding;
use super::sandbox::{
    Bridge, Ended, Input, Isolation, Job, Limits, Output, Phase, PhaseOutcome, Sandbox, SandboxError,
};
use super::tree::Rendered;
use crate::domain::{Content, Turn};
use crate::sys::{random, task};

/// The port of the gateway as the agent sees it.
const PORT: u16 = 8900;

/// What an episode may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct EpisodeLimits {
    /// Seconds the agent may take.
    pub timeout_s: f64,
    /// Calls of the model.
    pub calls: u64,
    /// Tokens in and out.
    pub tokens: u64,
    /// Files, memory, processes.
    pub sandbox: Limits,
}

impl Default for EpisodeLimits {
    fn default() -> Self {
        Self {
            timeout_s: 600.0,
            calls: 60,
            tokens: 2_000_000,
            sandbox: Limits::default(),
        }
    }
}

/// An episode to run.
#[derive(Debug, Clone)]
pub struct Episode<'a> {
    /// The rendered tree.
    pub rendered: &'a Rendered,
    /// What is asked.
    pub prompt: &'a str,
    /// What the workspace holds at the beginning.
    pub workspace: Option<&'a Path>,
    /// Further files.
    pub inputs: Vec<Input>,
    /// Further variables.
    pub env: BTreeMap<String, String>,
    /// Where the agent starts: `workspace`, or an absolute path inside namespaces.
    pub directory: &'a str,
    /// Programs that set the files up before the agent begins. The first that fails ends the episode.
    pub before: Vec<Phase>,
    /// Programs that run on the same files after the agent, the verifier of a task say.
    pub after: Vec<Phase>,
    /// What is copied out: place inside, directory here.
    pub outputs: Vec<Output>,
}

/// What came of an episode.
#[derive(Debug, Clone)]
pub struct EpisodeOutcome {
    /// What the agent said last.
    pub answer: Turn,
    /// How the agent ended, or the program before it that failed.
    pub agent: PhaseOutcome,
    /// What ran after it.
    pub after: Vec<PhaseOutcome>,
    /// What it asked the model.
    pub log: GatewayLog,
    /// Why it measures nothing, if it does: the machinery failed, not the agent.
    pub invalid: Option<String>,
    /// What deserves to be told: limits that were reached, processes left behind.
    pub notes: Vec<String>,
}

/// Where episodes run, with which agent and model.
#[derive(Clone)]
pub struct Stage {
    /// The agent.
    pub agent: Agent,
    /// The model behind it.
    pub source: ModelSource,
    /// What one episode may use.
    pub limits: EpisodeLimits,
    /// How it is kept apart.
    pub isolation: Isolation,
    /// Runs it.
    pub sandbox: Sandbox,
    /// Holds the files of running episodes.
    pub work: PathBuf,
    /// Counts what all episodes cost.
    pub meter: Arc<Meter>,
}

impl Stage {
    /// Runs an episode. Only a stop or a broken sandbox is an error.
    pub async fn run(&self, episode: &Episode<'_>, cancel: &CancellationToken) -> Result<EpisodeOutcome, SandboxError> {
        let scratch = Scratch::new(&self.work)?;
        let result = self.run_in(scratch.path(), episode, cancel).await;
        if result.is_ok() {
            self.meter.episode();
        }
        result
    }

    async fn run_in(
        &self,
        scratch: &Path,
        episode: &Episode<'_>,
        cancel: &CancellationToken,
    ) -> Result<EpisodeOutcome, SandboxError> {
        let failed = |reason: String| SandboxError::Failed { reason };
        let budget = Budget {
            calls: self.limits.calls,
            tokens: self.limits.tokens,
        };
        // A socket path may have a hundred bytes only, and scratch directories can be deep.
        let gateway = gateway::Gateway::start(&self.source, budget, self.isolation, &self.meter)
            .await
            .map_err(|error| failed(format!("the episode's gateway: {error}")))?;
        let base_url = match gateway.port() {
            Some(port) => format!("http://127.0.0.1:{port}"),
            None => format!("http://127.0.0.1:{PORT}"),
        };
        let binding = ModelBinding {
            base_url,
            api_key: gateway.token().to_owned(),
            model: self.source.model.clone(),
            context_window: self.source.context_window,
            max_output_tokens: None,
        };
        let agent::Dressed { files, mut env } = self
            .agent
            .dress(episode.rendered, &binding)
            .map_err(|error| failed(error.to_string()))?;
        let rendered = scratch.join("tree");
        let executable = episode.rendered.executable.clone();
        let target = rendered.clone();
        task::blocking("writing a tree", move || write_tree(&target, &files, &executable))
            .await
            .map_err(|error| failed(error.to_string()))?
            .map_err(|error| failed(format!("writing the tree: {error}")))?;
        for (name, value) in &episode.env {
            env.entry(name.clone()).or_insert_with(|| value.clone());
        }
        env.insert("PATH".to_owned(), self.agent.path());
        env.entry("HOME".to_owned()).or_insert_with(|| "{root}/home".to_owned());
        env.insert("TMPDIR".to_owned(), "{root}/tmp".to_owned());
        env.insert("TERM".to_owned(), "dumb".to_owned());
        let mut inputs = vec![Input {
            from: rendered,
            to: String::new(),
        }];
        inputs.extend(episode.workspace.map(|from| Input {
            from: from.to_path_buf(),
            to: episode.directory.to_owned(),
        }));
        inputs.extend(episode.inputs.iter().cloned());
        let mut phase = Phase {
            name: "agent".to_owned(),
            argv: self.agent.command(episode.rendered, episode.prompt),
            env,
            directory: episode.directory.to_owned(),
            directories: vec![episode.directory.to_owned()],
            inputs,
            seconds: self.limits.timeout_s,
            must_succeed: false,
        };
        let mut phases = episode.before.clone();
        // What was set up is not made anew: the first phase makes the places of all.
        if !phases.is_empty() {
            phase.directories.clear();
        }
        phases.push(phase);
        if let Some(first) = phases.first_mut() {
            let places = ["home", "tmp", "state"].map(str::to_owned);
            first.directories.extend(places);
        }
        phases.extend(episode.after.iter().cloned());
        std::fs::create_dir_all(scratch.join("sandbox")).map_err(|error| failed(error.to_string()))?;
        let job = Job {
            isolation: self.isolation,
            scratch: scratch.join("sandbox"),
            read_only: self.agent.read_only(),
            hidden: self.agent.hidden(),
            phases,
            outputs: episode.outputs.clone(),
            bridge: gateway.socket().map(|socket| Bridge {
                socket: socket.to_path_buf(),
                port: PORT,
            }),
            limits: self.limits.sandbox.clone(),
        };
        let outcome = self.sandbox.run(&job, cancel).await?;
        let log = gateway.finish().await;
        let mut phases = outcome.phases.into_iter();
        for phase in phases.by_ref().take(episode.before.len()) {
            if phase.ended != Ended::Exited(0) {
                return Ok(unprepared(phase, log));
            }
        }
        let agent = phases
            .next()
            .ok_or_else(|| failed("the agent left no trace".to_owned()))?;
        Ok(judge(agent, phases.collect(), log, episode.after.len()))
    }
}

/// The files could not be set up, which says nothing of the tree.
fn unprepared(phase: PhaseOutcome, log: GatewayLog) -> EpisodeOutcome {
    let said = format!("{}{}", phase.stdout, phase.stderr);
    let skip = said.chars().count().saturating_sub(400);
    let end: String = said.chars().skip(skip).collect();
    let ended = match phase.ended {
        Ended::Exited(status) => format!("ended with status {status}"),
        Ended::Signal(signal) => format!("was ended by signal {signal}"),
        Ended::Timeout => format!("took more than {:.0} s", phase.seconds),
        Ended::Memory => "used too much memory".to_owned(),
        Ended::NotStarted => "could not be started".to_owned(),
    };
    EpisodeOutcome {
        answer: log.answer(),
        invalid: Some(format!(
            "the task cannot be set up: {} {ended}: {}",
            phase.name,
            end.trim()
        )),
        agent: phase,
        after: Vec::new(),
        log,
        notes: Vec::new(),
    }
}

/// Tells a failure of the machinery from one of the agent.
fn judge(agent: PhaseOutcome, after: Vec<PhaseOutcome>, log: GatewayLog, wanted_after: usize) -> EpisodeOutcome {
    let answer = log.answer();
    // A model that cannot be reached says nothing of the tree, unless the agent got over it.
    let invalid = match (&agent.ended, log.failed_last()) {
        (Ended::NotStarted, _) => Some(format!("the agent did not start: {}", agent.stderr)),
        (_, Some(failure)) => Some(format!("the model did not answer: {failure}")),
        _ if after.len() < wanted_after && matches!(agent.ended, Ended::Exited(_) | Ended::Signal(_)) => {
            Some("the verifier did not run".to_owned())
        }
        _ => None,
    };
    let mut notes = Vec::new();
    for phase in std::iter::once(&agent).chain(&after) {
        let mut note = |what: String| notes.push(format!("{}: {what}", phase.name));
        match phase.ended {
            Ended::Timeout => note(format!("stopped after {:.0} s", phase.seconds)),
            Ended::Memory => note("stopped for its memory".to_owned()),
            Ended::Exited(code) if code != 0 => note(format!("exit status {code}")),
            Ended::Signal(signal) => note(format!("ended by signal {signal}")),
            _ => {}
        }
        if phase.processes_exhausted {
            note(format!("reached the limit of processes ({})", phase.peak_processes));
        }
        if phase.disk_full {
            note("filled its disk".to_owned());
        }
        if phase.left_behind > 0 {
            note(format!(
                "left {} processes behind, which were killed",
                phase.left_behind
            ));
        }
    }
    if log.refused > 0 {
        notes.push(format!(
            "{} calls of the model refused: its budget was spent",
            log.refused
        ));
    }
    EpisodeOutcome {
        answer,
        agent,
        after,
        log,
        invalid,
        notes,
    }
}

fn write_tree(
    target: &Path,
    files: &BTreeMap<String, Content>,
    executable: &std::collections::BTreeSet<String>,
) -> std::io::Result<()> {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::create_dir_all(target)?;
    for (path, content) in files {
        let file = target.join(path);
        if let Some(parent) = file.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let mode = if executable.contains(path) { 0o777 } else { 0o666 };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(file)?;
        file.write_all(content.as_bytes())?;
    }
    Ok(())
}

/// A directory that goes with the episode.
struct Scratch(PathBuf);

impl Scratch {
    fn new(work: &Path) -> Result<Self, SandboxError> {
        let path = work.join(format!("episode-{}", random::hex_token()));
        std::fs::create_dir_all(&path).map_err(|error| SandboxError::Failed {
            reason: format!("{}: {error}", path.display()),
        })?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "the files of an episode stay");
        }
    }
}
