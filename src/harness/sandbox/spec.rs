//! What is run, and what came of it; the words that the processes of a sandbox exchange.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How much stands between a program and this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Namespaces of its own: files, processes, network, users.
    #[default]
    Namespaces,
    /// A process group and a cleared environment. It can read and change what this user can.
    None,
}

/// What a job may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Limits {
    /// Everything it writes, in bytes.
    pub disk_bytes: u64,
    /// Files and directories it may create.
    pub files: u64,
    /// Resident memory of all its processes, in bytes.
    pub memory_bytes: u64,
    /// Processes and threads at one time.
    pub processes: u64,
    /// Processors that all its processes together may keep busy, where control groups can hold that; any number without.
    pub cpus: Option<f64>,
    /// Seconds of processor time of one process.
    pub cpu_seconds: u64,
    /// What is kept of each of its output streams: the beginning and the end.
    pub output_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            disk_bytes: 512 * 1024 * 1024,
            files: 200_000,
            memory_bytes: 2 * 1024 * 1024 * 1024,
            processes: 256,
            cpus: None,
            cpu_seconds: 600,
            output_bytes: 256 * 1024,
        }
    }
}

/// Files to copy in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// A file or directory of this machine.
    pub from: PathBuf,
    /// Where it goes: relative to the job's root, or absolute inside namespaces.
    pub to: String,
}

/// Files to copy out when all phases are over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Relative to the job's root, or absolute inside namespaces.
    pub from: String,
    /// A directory of this machine that does not exist yet.
    pub to: PathBuf,
}

/// The one way out of the network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bridge {
    /// The Unix socket of the model gateway.
    pub socket: PathBuf,
    /// The loopback port inside.
    pub port: u16,
}

/// One program. `{root}` in its words stands for the job's root. Inside namespaces it may write below the job's root, in
/// `/tmp` and `/dev/shm`, and in the absolute places that this phase or an earlier one names; the rest is read-only.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// What the outcome calls it.
    pub name: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Where it starts; relative to the job's root, or absolute inside namespaces.
    pub directory: String,
    /// Directories made for it before it starts, empty.
    pub directories: Vec<String>,
    /// Files copied in before it starts.
    pub inputs: Vec<Input>,
    /// Seconds it may take.
    pub seconds: f64,
    /// Whether what follows is run only if it ends with status 0.
    #[serde(default)]
    pub must_succeed: bool,
}

impl Phase {
    /// Whether the next phase is run after it ended like this.
    pub(super) fn goes_on(&self, ended: Ended) -> bool {
        match ended {
            Ended::Exited(0) => true,
            Ended::Exited(_) | Ended::Signal(_) => !self.must_succeed,
            Ended::Timeout | Ended::Memory | Ended::NotStarted => false,
        }
    }

    /// How long it may take: what is no time at all is none, and nothing takes longer than a fortnight.
    pub(super) fn limit(&self) -> Duration {
        Duration::try_from_secs_f64(self.seconds.min(1e6)).unwrap_or_default()
    }
}

/// Programs to run one after another on the same files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// How they are kept apart from this machine.
    pub isolation: Isolation,
    /// An existing empty directory of this machine.
    pub scratch: PathBuf,
    /// Paths of this machine that they may read, beside the system's programs.
    pub read_only: Vec<PathBuf>,
    /// Paths of this machine that they must not see, whatever is shown: where one lies below something that is, it looks
    /// empty.
    pub hidden: Vec<PathBuf>,
    /// The programs.
    pub phases: Vec<Phase>,
    /// What is kept.
    pub outputs: Vec<Output>,
    /// The way to the model.
    pub bridge: Option<Bridge>,
    /// What they may use.
    pub limits: Limits,
}

impl Job {
    /// A job with nothing in it.
    pub fn new(scratch: PathBuf) -> Self {
        Self {
            isolation: Isolation::Namespaces,
            scratch,
            read_only: Vec::new(),
            hidden: Vec::new(),
            phases: Vec::new(),
            outputs: Vec::new(),
            bridge: None,
            limits: Limits::default(),
        }
    }
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// By itself, with this status.
    Exited(i32),
    /// By a signal that was not ours.
    Signal(i32),
    /// Its time was up.
    Timeout,
    /// It used more memory than allowed.
    Memory,
    /// It could not be started.
    NotStarted,
}

/// What came of one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseOutcome {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub ended: Ended,
    /// How long it ran.
    pub seconds: f64,
    /// What it wrote, its middle left out when there was too much.
    pub stdout: String,
    /// The same for its errors.
    pub stderr: String,
    /// Bytes left out of both.
    pub dropped_bytes: u64,
    /// The most processes seen at one time.
    pub peak_processes: u64,
    /// It reached the limit of processes.
    pub processes_exhausted: bool,
    /// The most resident memory seen, in bytes.
    pub peak_memory_bytes: u64,
    /// Nothing more could be written.
    pub disk_full: bool,
    /// Processes it left behind, which were killed.
    pub left_behind: u64,
    /// Why the control group that was made for it did not hold it, if so.
    pub loose: Option<String>,
}

/// What held a job as a whole to its limits, beside what the kernel gives each process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// `cgroup-v2`, `cgroup-v1`, or `polling`: memory and processes are counted ten times a second.
    pub by: String,
    /// What a control group limits: `memory`, `processes`, `processors`.
    pub limits: Vec<String>,
    /// Why it is only polling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Held {
    /// By nothing but looks.
    pub(super) fn by_polling(reason: String) -> Self {
        Self {
            by: "polling".to_owned(),
            limits: Vec::new(),
            reason: Some(reason),
        }
    }
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let version = match self.by.as_str() {
            "cgroup-v2" => 2,
            "cgroup-v1" => 1,
            _ => {
                let reason = self.reason.as_deref().unwrap_or("no control group");
                return write!(f, "memory and processes are counted ten times a second ({reason})");
            }
        };
        let limits = self.limits.join(", ");
        write!(
            f,
            "control groups (version {version}) limit {limits}; memory is counted ten times a second too"
        )
    }
}

/// What came of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// One for each phase that ran; the rest is not run after a phase that could not be started, ran out of time, or had to
    /// succeed and did not.
    pub phases: Vec<PhaseOutcome>,
    /// Files that were not copied out, and why.
    pub not_kept: Vec<String>,
    /// What held it to its limits.
    pub held: Held,
}

/// What the stage is asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Task {
    pub job: Job,
    /// The directories of its control group.
    pub group: Vec<PathBuf>,
}

/// What the stage did.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Done {
    pub phases: Vec<PhaseOutcome>,
    pub not_kept: Vec<String>,
}

/// What the stage says at the end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reply {
    Done(Done),
    Unavailable(String),
    Failed(String),
}

/// What the stage asks of process 1.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    pub phase: Phase,
    pub limits: Limits,
    /// The user without rights: an id of this machine, or none in a user namespace.
    pub user: Option<u32>,
    /// Absolute places it may write; everything else is read-only.
    pub writable: Vec<PathBuf>,
    /// What of this machine is shown at its own place.
    pub shown: Vec<PathBuf>,
}
