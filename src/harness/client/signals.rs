//! Signals that reach the wrapper go on to the agent. What the terminal sends to everything in the foreground has reached
//! the agent already and is not sent twice.

use std::io;

use crate::sys::signals;
use crate::sys::task::{self, Task};
use rustix::process::{Pid, Signal, getpgrp, kill_process};
use tokio::signal::unix::{SignalKind, signal};

/// What is passed on: the signal, and whether a terminal sends it to its whole foreground group.
const PASSED: [(SignalKind, Signal, bool); 6] = [
    (SignalKind::interrupt(), Signal::INT, true),
    (SignalKind::quit(), Signal::QUIT, true),
    (SignalKind::hangup(), Signal::HUP, true),
    (SignalKind::terminate(), Signal::TERM, false),
    (SignalKind::user_defined1(), Signal::USR1, false),
    (SignalKind::user_defined2(), Signal::USR2, false),
];

/// Signals that are caught. Taken before the agent starts, so that none is lost and the wrapper outlives it.
#[derive(Debug)]
pub(super) struct Caught(Vec<(tokio::signal::unix::Signal, Signal, bool)>);

/// Catches from now on what [`Caught::pass_on`] will pass on.
pub(super) fn catch() -> io::Result<Caught> {
    let hangup_ignored = signals::is_ignored(Signal::HUP);
    let caught = PASSED
        .into_iter()
        // Under nohup it is ignored here and, left alone, by the agent too, which inherits that.
        .filter(|(_, number, _)| !(hangup_ignored && *number == Signal::HUP))
        .map(|(kind, number, from_terminal)| Ok((signal(kind)?, number, from_terminal)));
    Ok(Caught(caught.collect::<io::Result<_>>()?))
}

impl Caught {
    /// Passes signals on to `child` until the guard is dropped.
    pub(super) fn pass_on(self, child: Pid) -> Guard {
        let tasks = self.0.into_iter().map(|(mut stream, number, from_terminal)| {
            task::spawn("passing on a signal", async move {
                while stream.recv().await.is_some() {
                    if !(from_terminal && in_foreground()) {
                        // Gone already is as good as told.
                        let _gone = kill_process(child, number);
                    }
                }
            })
        });
        Guard(tasks.collect())
    }
}

/// Whether a terminal's keys reach this process and its child.
fn in_foreground() -> bool {
    let Ok(terminal) = std::fs::File::open("/dev/tty") else {
        return false;
    };
    rustix::termios::tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp())
}

#[derive(Debug)]
pub(super) struct Guard(Vec<Task<()>>);

impl Drop for Guard {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}
