//! How the tensor library's threads wait for work.
//!
//! The OpenMP runtime reads its wait policy once, when it is loaded, and it is loaded with the program: by the time
//! `main` runs it is too late to set the variable. By default its threads spin for a while after each parallel region,
//! which on shared cores takes the time of the very thread they wait for (measured: 3.7 instead of 16.5 tokens a second
//! on two busy cores). So a command that is about to use the embedded model starts the program again, once, with the
//! policy in the environment. The process keeps its id, and whoever set a policy keeps it.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::config::{EngineKind, Settings};

use super::{CliError, Context, Exit};

/// Set in the second start, so that there is no third.
const STARTED_AGAIN: &str = "REEF_OPENMP_SETTLED";
/// Any of these means that somebody decided.
const DECIDED: [&str; 3] = ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"];

/// As [`settle`], if these settings have the embedded model answer.
pub(crate) fn settle_for(context: &Context, settings: &Settings) -> Result<(), CliError> {
    if settings.inference.engine() == EngineKind::Torch {
        settle(context)?;
    }
    Ok(())
}

/// Starts the program again with a passive wait policy, unless there is one. To be called before anything is opened.
#[allow(
    clippy::disallowed_methods,
    reason = "the same program goes on, and keeps the lock that `flock` gave it, say"
)]
pub(crate) fn settle(context: &Context) -> Result<(), CliError> {
    let decided = DECIDED
        .iter()
        .chain([&STARTED_AGAIN])
        .any(|name| context.env(name).is_some());
    if decided || cfg!(not(feature = "torch")) {
        return Ok(());
    }
    let mut arguments = std::env::args_os();
    let Some(name) = arguments.next() else { return Ok(()) };
    crate::sys::access::let_go();
    // Only returns when it could not start.
    let error = Command::new("/proc/self/exe")
        .arg0(name)
        .args(arguments)
        .env("OMP_WAIT_POLICY", "PASSIVE")
        .env(STARTED_AGAIN, "1")
        .exec();
    Err(CliError::new(
        Exit::Unexpected,
        format!("cannot start again with OMP_WAIT_POLICY set: {error}"),
    )
    .hint("set OMP_WAIT_POLICY=PASSIVE in the environment"))
}
