//! Process 1 of a container. Every process whose parent is gone becomes its child and stays a zombie until it is waited
//! for, and the kernel gives it no signal that it has no handler for. Both are kept away from the program: it goes on as
//! a child, and this process, which never grows, waits for the dead and passes signals on.

use std::io;

use rustix::process::{Pid, WaitOptions, WaitStatus};

use super::leave;

/// Where this is process 1, returns in a child of it. To be called before there are other threads.
pub fn step_aside() -> io::Result<()> {
    if !rustix::process::getpid().is_init() {
        return Ok(());
    }
    let all = every_signal();
    let before = mask(&all)?;
    match fork()? {
        None => mask(&before).map(drop),
        Some(program) => attend(program, &all),
    }
}

/// Waits for whatever ends, until the program does; then ends as it did.
fn attend(program: Pid, all: &libc::sigset_t) -> ! {
    loop {
        let Some((signal, from_the_kernel)) = next_signal(all) else {
            continue;
        };
        if signal == libc::SIGCHLD {
            if let Some(status) = reap(program) {
                leave::at_once(status);
            }
        } else if !from_the_kernel && let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
            // What the kernel sends (a key of the terminal, a hang-up) it sends to the program as well.
            let _gone = rustix::process::kill_process(program, signal);
        }
    }
}

/// Takes in everything that has ended; the status of the program, if it has.
fn reap(program: Pid) -> Option<u8> {
    let mut ended = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == program {
            ended = Some(code(status));
        }
    }
    ended
}

fn code(status: WaitStatus) -> u8 {
    let code = status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[allow(unsafe_code, reason = "signal sets have no safe form")]
fn every_signal() -> libc::sigset_t {
    // SAFETY: the set is written whole by sigfillset before anybody reads it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        set
    }
}

/// Replaces the mask of this thread; gives the one before.
#[allow(unsafe_code, reason = "signal masks have no safe form")]
fn mask(new: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    // SAFETY: both sets live for the call, which writes the second one whole.
    unsafe {
        let mut before = std::mem::zeroed();
        match libc::pthread_sigmask(libc::SIG_SETMASK, new, &raw mut before) {
            0 => Ok(before),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The next signal, and whether the kernel sent it; `None` when the wait was broken off.
#[allow(unsafe_code, reason = "waiting for signals has no safe form")]
fn next_signal(all: &libc::sigset_t) -> Option<(i32, bool)> {
    // SAFETY: the set and the place for the answer live for the call, which writes the answer before it succeeds.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let signal = libc::sigwaitinfo(all, &raw mut info);
        (signal > 0).then_some((signal, info.si_code == libc::SI_KERNEL))
    }
}

/// The child, in this process; nothing in the child.
#[allow(unsafe_code, reason = "fork has no safe form")]
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: there is no other thread yet, so the child inherits no lock that nobody would open.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        pid => match Pid::from_raw(pid) {
            Some(pid) if pid.as_raw_nonzero().get() > 0 => Ok(Some(pid)),
            _ => Err(io::Error::last_os_error()),
        },
    }
}
