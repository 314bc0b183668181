//! One program under watch, from its start until nothing of it runs any more.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, setrlimit, wait};
use rustix::thread::UnshareFlags;

use super::namespaces::{INNER_USER, unshare};
use super::population::{Population, Whom};
use super::spec::{Ended, Limits, Phase, PhaseOutcome};
use super::{filter, pipes};

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

/// Runs a program to its end. `root` replaces `{root}` in its words.
pub(super) fn run(
    phase: &Phase,
    directory: &Path,
    root: &str,
    limits: &Limits,
    user: User,
    whom: Whom,
) -> PhaseOutcome {
    let mut outcome = PhaseOutcome {
        name: phase.name.clone(),
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
    };
    let begun = Instant::now();
    let mut child = match start(phase, directory, root, limits, user) {
        Ok(child) => child,
        Err(error) => {
            let program = phase.argv.first().map_or("", String::as_str);
            outcome.stderr = format!("{program} cannot be started: {error}");
            return outcome;
        }
    };
    let stdout = child.stdout.take().map(|s| pipes::collect(s, limits.output_bytes));
    let stderr = child.stderr.take().map(|s| pipes::collect(s, limits.output_bytes));
    let program = i32::try_from(child.id()).unwrap_or(0);
    outcome.ended = watch(program, phase, limits, whom, begun, &mut outcome);
    outcome.seconds = begun.elapsed().as_secs_f64();
    note(&mut outcome, whom.count(), limits);
    outcome.left_behind = clear(program, whom);
    outcome.disk_full = full(directory);
    for (stream, text) in [(stdout, &mut outcome.stdout), (stderr, &mut outcome.stderr)] {
        if let Some(stream) = stream {
            let (kept, dropped) = pipes::finish(&stream, limits.output_bytes);
            *text = kept;
            outcome.dropped_bytes += dropped;
        }
    }
    outcome
}

fn start(phase: &Phase, directory: &Path, root: &str, limits: &Limits, user: User) -> io::Result<Child> {
    let words = |text: &String| text.replace("{root}", root);
    let (program, arguments) = phase
        .argv
        .split_first()
        .ok_or_else(|| io::Error::other("the command is empty"))?;
    let mut command = Command::new(words(program));
    command
        .args(arguments.iter().map(words))
        .env_clear()
        .envs(phase.env.iter().map(|(name, value)| (name, words(value))))
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    if let User::Id(id) = user {
        // Taking another id from root drops every capability and supplementary group.
        command.uid(id).gid(id);
    }
    confine(&mut command, limits, user);
    command.spawn()
}

#[allow(
    unsafe_code,
    reason = "limits, the user namespace and the filter are set between fork and exec, which has no safe form"
)]
fn confine(command: &mut Command, limits: &Limits, user: User) {
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
    phase: &Phase,
    limits: &Limits,
    whom: Whom,
    begun: Instant,
    outcome: &mut PhaseOutcome,
) -> Ended {
    let deadline = begun + phase.limit();
    let mut next_count = begun;
    loop {
        // Orphans come to this process, so everybody's end is collected, not only the program's.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid.as_raw_nonzero().get() != program {
                continue;
            }
            if let Some(code) = status.exit_status() {
                return Ended::Exited(code);
            }
            if let Some(signal) = status.terminating_signal() {
                return Ended::Signal(signal);
            }
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
fn kill_all() {
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
