//! One program under watch, from its start until nothing of it runs any more.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, setrlimit, wait};
use rustix::thread::UnshareFlags;

use super::control::Ground;
use super::namespaces::{INNER_USER, unshare};
use super::population::{Population, Whom};
use super::spec::{Ended, Limits, Phase, PhaseOutcome};
use super::{filter, pipes};
use crate::sys::launch::{self, Launch};

/// How often the program is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How often everything it started is counted.
const COUNT: Duration = Duration::from_millis(100);

/// Who a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum User {
    /// Whoever runs this.
    Same,
    /// This id, which has no rights.
    Id(u32),
    /// The only user of a new user namespace.
    Inner,
}

/// A program to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Program<'a> {
    pub phase: &'a Phase,
    pub directory: &'a Path,
    /// Replaces `{root}` in its words.
    pub root: &'a str,
    pub limits: &'a Limits,
    pub user: User,
    pub whom: Whom,
    /// The control group it is put in, or why it cannot be.
    pub ground: &'a Result<Ground, String>,
}

impl Program<'_> {
    /// Runs it to its end.
    pub(super) fn run(&self) -> PhaseOutcome {
        let (limits, whom) = (self.limits, self.whom);
        let mut outcome = PhaseOutcome {
            name: self.phase.name.clone(),
            ended: Ended::NotStarted,
            seconds: 0.0,
            stdout: String::new(),
            stderr: String::new(),
            dropped_bytes: 0,
            peak_processes: 0,
            processes_exhausted: false,
            peak_memory_bytes: 0,
            disk_full: false,
            left_behind: 0,
            loose: self.ground.as_ref().err().cloned(),
        };
        let begun = Instant::now();
        let mut ground = self.ground.as_ref().ok();
        let before = ground.map(Ground::counts).unwrap_or_default();
        let mut started = self.start(ground);
        if let (Some(_), Err(refused)) = (ground, &started) {
            // Old kernels let only the user who opened the group move a process. A program that is not there is not
            // there without a group either.
            let reason = format!("it could not be put into its control group: {refused}");
            started = self.start(None);
            if started.is_ok() {
                outcome.loose = Some(reason);
                ground = None;
            }
        }
        let mut child = match started {
            Ok(child) => child,
            Err(error) => {
                let program = self.phase.argv.first().map_or("", String::as_str);
                outcome.stderr = format!("{program} cannot be started: {error}");
                return outcome;
            }
        };
        // Without a thread to read it, a stream counts as one that is held open.
        let stdout = child
            .stdout
            .take()
            .and_then(|s| pipes::collect(s, limits.output_bytes).ok());
        let stderr = child
            .stderr
            .take()
            .and_then(|s| pipes::collect(s, limits.output_bytes).ok());
        let program = i32::try_from(child.id()).unwrap_or(0);
        let starved = || ground.is_some_and(|ground| ground.counts().out_of_memory_since(before));
        outcome.ended = watch(program, self, begun, &starved, &mut outcome);
        outcome.seconds = begun.elapsed().as_secs_f64();
        note(&mut outcome, whom.count(), limits);
        if let Some(ground) = ground {
            outcome.processes_exhausted |= ground.counts().refused_since(before);
            if outcome.ended == Ended::Memory {
                outcome.peak_memory_bytes = outcome.peak_memory_bytes.max(ground.peak());
            }
        }
        outcome.left_behind = clear(program, whom);
        if let Some(ground) = ground {
            // Whoever got away from the line of its parents.
            ground.kill();
        }
        outcome.disk_full = full(self.directory);
        for (stream, text) in [(stdout, &mut outcome.stdout), (stderr, &mut outcome.stderr)] {
            if let Some(stream) = stream {
                let (kept, dropped) = pipes::finish(&stream, limits.output_bytes);
                *text = kept;
                outcome.dropped_bytes += dropped;
            }
        }
        outcome
    }

    fn start(&self, ground: Option<&Ground>) -> io::Result<Child> {
        let words = |text: &String| text.replace("{root}", self.root);
        let (program, arguments) = self
            .phase
            .argv
            .split_first()
            .ok_or_else(|| io::Error::other("the command is empty"))?;
        let mut command = Command::new(words(program));
        command
            .args(arguments.iter().map(words))
            .env_clear()
            .envs(self.phase.env.iter().map(|(name, value)| (name, words(value))))
            .current_dir(self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if let User::Id(id) = self.user {
            // Taking another id from root drops every capability and supplementary group.
            command.uid(id).gid(id);
        }
        confine(&mut command, self.limits, self.user, ground);
        command.launch()
    }
}

#[allow(
    unsafe_code,
    reason = "limits, the user namespace and the filter are set between fork and exec, which has no safe form"
)]
fn confine(command: &mut Command, limits: &Limits, user: User, ground: Option<&Ground>) {
    let doors = ground.map(Ground::doors).unwrap_or_default();
    let (processes, cpu, bytes) = (limits.processes, limits.cpu_seconds, limits.disk_bytes);
    // Beside this machine a program could do the same from outside of it.
    let calls = if user == User::Same {
        Vec::new()
    } else {
        filter::program()
    };
    // SAFETY: between fork and exec only system calls are made, on values prepared before; nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            for door in &doors {
                // Before it can start anything. What counts are the rights of whoever opened the file.
                rustix::io::write(BorrowedFd::borrow_raw(*door), b"0")?;
            }
            if user == User::Inner {
                unshare(UnshareFlags::NEWUSER)?;
                proc_write(c"/proc/self/setgroups", b"deny")?;
                proc_write(c"/proc/self/uid_map", INNER_MAP)?;
                proc_write(c"/proc/self/gid_map", INNER_MAP)?;
            }
            // Where it is the same user as ours, the kernel would count our own processes too.
            let processes = if user == User::Same { None } else { Some(processes) };
            for (resource, limit) in [
                (Resource::Nproc, processes),
                (Resource::Cpu, Some(cpu)),
                (Resource::Fsize, Some(bytes)),
                (Resource::Core, Some(0)),
            ] {
                if limit.is_some() {
                    let both = Rlimit {
                        current: limit,
                        maximum: limit,
                    };
                    setrlimit(resource, both)?;
                }
            }
            // Whatever was opened meanwhile, by another thread or a library.
            launch::end_with_exec();
            rustix::thread::set_no_new_privs(true)?;
            filter::install(&calls)
        });
    }
}

/// The user of the namespace above, as the only user of the new one.
const INNER_MAP: &[u8] = b"1000 0 1";
const _: () = assert!(INNER_USER == 1000);

fn proc_write(path: &std::ffi::CStr, bytes: &[u8]) -> io::Result<()> {
    let file = rustix::fs::open(path, rustix::fs::OFlags::WRONLY, rustix::fs::Mode::empty())?;
    rustix::io::write(&file, bytes)?;
    Ok(())
}

fn watch(
    program: i32,
    work: &Program<'_>,
    begun: Instant,
    starved: &dyn Fn() -> bool,
    outcome: &mut PhaseOutcome,
) -> Ended {
    let (limits, whom) = (work.limits, work.whom);
    let deadline = begun + work.phase.limit();
    let mut next_count = begun;
    loop {
        // Orphans come to this process, so everybody's end is collected, not only the program's.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid.as_raw_nonzero().get() != program {
                continue;
            }
            // However it ended: what the kernel killed was it, or something that it waited for.
            if starved() {
                return Ended::Memory;
            }
            if let Some(code) = status.exit_status() {
                return Ended::Exited(code);
            }
            if let Some(signal) = status.terminating_signal() {
                return Ended::Signal(signal);
            }
        }
        if starved() {
            return Ended::Memory;
        }
        let now = Instant::now();
        if now >= deadline {
            return Ended::Timeout;
        }
        if now >= next_count {
            next_count = now + COUNT;
            note(outcome, whom.count(), limits);
            if outcome.peak_memory_bytes > limits.memory_bytes {
                return Ended::Memory;
            }
        }
        std::thread::sleep(LOOK);
    }
}

fn note(outcome: &mut PhaseOutcome, now: Population, limits: &Limits) {
    outcome.peak_processes = outcome.peak_processes.max(now.processes);
    outcome.peak_memory_bytes = outcome.peak_memory_bytes.max(now.memory_bytes);
    // The kernel refuses the one beyond the limit, so that reaching it is all that can be seen.
    outcome.processes_exhausted |= now.processes >= limits.processes;
}

/// Kills everything that still runs and waits until it is gone. Gives how many there were beside the program itself.
fn clear(program: i32, whom: Whom) -> u64 {
    let mut found = std::collections::HashSet::new();
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        let ids = whom.ids();
        found.extend(ids.iter().copied().filter(|pid| *pid != program && !is_zombie(*pid)));
        match whom {
            Whom::Namespace => kill_all(),
            Whom::Descendants => {
                for pid in ids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
                    // Gone already is as good as killed.
                    let _gone = kill_process(pid, Signal::KILL);
                }
            }
        }
        // Orphans come to this process, which collects them.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        if whom.ids().is_empty() || Instant::now() > give_up {
            return found.len() as u64;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[allow(
    unsafe_code,
    reason = "one call reaches every process of the namespace at once; there is no safe form"
)]
pub(super) fn kill_all() {
    // SAFETY: a plain system call. This process is process 1 of its namespace, which the call spares, and nobody outside
    // of the namespace can be reached.
    let _nobody_left = unsafe { libc::kill(-1, libc::SIGKILL) };
}

fn is_zombie(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z"))
}

fn full(directory: &Path) -> bool {
    rustix::fs::statvfs(directory)
        .is_ok_and(|stat| stat.f_blocks > 0 && (stat.f_bfree == 0 || stat.f_ffree == 0 && stat.f_files > 0))
}
