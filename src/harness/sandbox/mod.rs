//! Running a program that nobody trusts: on files of its own, under limits, with no network but one bridge to the model
//! gateway, and with nothing left running afterwards.
//!
//! Three processes take part. This one starts `reef __sandbox` (the stage), which enters new namespaces, builds a root
//! in memory of a fixed size and copies files in and out. The stage starts `reef __sandbox --init`, which is process 1 of
//! the new process namespace: it starts the programs one after another as a user without rights, watches them, and kills
//! whatever they leave behind. When either end of a pipe between them goes away, everything inside dies. Where control
//! groups can be had, the programs are in one.

mod bridge;
mod control;
mod copy;
mod filter;
mod namespaces;
mod phase;
mod pipes;
mod population;
mod proc;
mod readonly;
mod root;
mod spec;
mod stage;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::sys::task;
use control::Leaf;
use spec::Task;
pub use spec::{Bridge, Ended, Held, Input, Isolation, Job, Limits, Outcome, Output, Phase, PhaseOutcome};
pub use stage::{serve_init, serve_stage};

use crate::sys::launch::Launch;

/// The hidden command of the stage.
pub const COMMAND: &str = "__sandbox";
/// What the stage may take on top of its phases.
const GRACE: Duration = Duration::from_secs(20);
/// The most that is read of what the stage says.
const MAX_REPLY: u64 = 64 * 1024 * 1024;

/// Why a job could not be run. What the programs in it did is an outcome, not an error.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// This machine gives no namespaces.
    #[error(
        "programs cannot be isolated here: {reason}; allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
         user.max_user_namespaces > 0; with AppArmor a profile for reef that allows userns), or run as root"
    )]
    Unavailable {
        /// What was refused.
        reason: String,
    },
    /// The sandbox itself failed.
    #[error("the sandbox failed: {reason}")]
    Failed {
        /// What happened.
        reason: String,
    },
    /// Somebody asked it to stop.
    #[error("stopped")]
    Stopped,
}

/// Runs jobs.
#[derive(Debug, Clone)]
pub struct Sandbox {
    program: PathBuf,
}

impl Sandbox {
    /// A sandbox whose helpers are started from `program`, this very program.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
        }
    }

    /// Whether programs can be isolated on this machine, and what then holds them to their limits; the reason when not.
    pub async fn available(&self, scratch: &Path) -> Result<Held, SandboxError> {
        self.probe(scratch, Isolation::Namespaces).await
    }

    /// What holds programs that are isolated like this to their limits, found out by running one.
    pub async fn probe(&self, scratch: &Path, isolation: Isolation) -> Result<Held, SandboxError> {
        let job = Job {
            isolation,
            phases: vec![Phase {
                name: "probe".to_owned(),
                argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), "exit 0".to_owned()],
                seconds: 20.0,
                ..Phase::default()
            }],
            ..Job::new(scratch.to_path_buf())
        };
        let outcome = self.run(&job, &CancellationToken::new()).await?;
        match outcome.phases.first() {
            Some(phase) if phase.ended == Ended::Exited(0) => Ok(outcome.held),
            Some(phase) => Err(SandboxError::Unavailable {
                reason: format!("a shell inside ended with {:?}: {}", phase.ended, phase.stderr.trim()),
            }),
            None => Err(SandboxError::Unavailable {
                reason: "nothing ran inside".to_owned(),
            }),
        }
    }

    /// Runs a job to its end. Dropping the future kills everything in it.
    pub async fn run(&self, job: &Job, cancel: &CancellationToken) -> Result<Outcome, SandboxError> {
        let limits = job.limits.clone();
        let made = task::blocking("making a control group", move || Leaf::make(&limits)).await;
        let made = made.unwrap_or(Err(control::NoControl::Broken));
        let (leaf, mut held) = match made {
            Ok(leaf) => {
                let held = leaf.held();
                (Some(leaf), held)
            }
            Err(refusal) => (None, Held::by_polling(refusal.to_string())),
        };
        let task = Task {
            job: job.clone(),
            group: leaf.as_ref().map(Leaf::dirs).unwrap_or_default(),
        };
        let done = self.stage(&task, cancel).await;
        if let Some(leaf) = leaf {
            // Everything in it is dead or dying, and it is gone before anybody learns the result.
            let _gone = task::blocking("removing a control group", move || leaf.end()).await;
        }
        let spec::Done { phases, not_kept } = done?;
        if let Some(reason) = phases.iter().find_map(|phase| phase.loose.clone()) {
            held = Held::by_polling(reason);
        }
        Ok(Outcome { phases, not_kept, held })
    }

    /// Has the stage do it, which is dead when this returns.
    async fn stage(&self, task: &Task, cancel: &CancellationToken) -> Result<spec::Done, SandboxError> {
        let failed = |reason: String| SandboxError::Failed { reason };
        let limit = task.job.phases.iter().fold(GRACE, |all, phase| all + phase.limit());
        let mut line = serde_json::to_vec(task).map_err(|error| failed(error.to_string()))?;
        line.push(b'\n');
        let mut child = Command::new(&self.program)
            .arg(COMMAND)
            .env_clear()
            // The loader needs it where libraries are not on its own path; nothing of it reaches the programs inside.
            .envs(std::env::vars_os().filter(|(name, _)| name == "LD_LIBRARY_PATH"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .launch()
            .map_err(|error| failed(format!("{} cannot be started: {error}", self.program.display())))?;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed("the stage has no pipes".to_owned()));
        };
        let work = async {
            stdin.write_all(&line).await?;
            stdin.flush().await?;
            let (mut said, mut words) = (Vec::new(), Vec::new());
            let (mut stdout, mut stderr) = (stdout.take(MAX_REPLY), stderr.take(64 * 1024));
            tokio::try_join!(stdout.read_to_end(&mut said), stderr.read_to_end(&mut words))?;
            child.wait().await?;
            Ok::<_, std::io::Error>((said, words))
        };
        let done = tokio::select! {
            done = tokio::time::timeout(limit, work) => match done {
                Ok(done) => done.map_err(|error| failed(error.to_string())),
                Err(_) => Err(failed(format!("it did not end within {} s", limit.as_secs()))),
            },
            () = cancel.cancelled() => Err(SandboxError::Stopped),
        };
        if done.is_err() {
            // It may be dead already.
            let _dead = child.kill().await;
        }
        let (said, words) = done?;
        // The stage keeps its pipe open until here: closing it earlier would have ended the job.
        drop(stdin);
        match serde_json::from_slice::<spec::Reply>(&said) {
            Ok(spec::Reply::Done(done)) => Ok(done),
            Ok(spec::Reply::Unavailable(reason)) => Err(SandboxError::Unavailable { reason }),
            Ok(spec::Reply::Failed(reason)) => Err(failed(reason)),
            Err(error) => Err(failed(format!(
                "the stage gave no result ({error}): {}",
                String::from_utf8_lossy(&words).trim()
            ))),
        }
    }
}
