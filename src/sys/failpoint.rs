//! Named places where a crash test makes the process die or an operation fail. They exist only with the feature
//! `failpoints`; otherwise [`hit`] is nothing.
//!
//! `FAILPOINTS="release::before_ref=return(kill)"` kills the process there with SIGKILL; `return(error)` makes [`hit`]
//! return an error; `sleep(MS)` waits. `1*off->return(kill)` lets the first pass go by.

use std::io;

/// Passes the named place.
#[allow(unused_variables, clippy::unnecessary_wraps)]
pub fn hit(name: &'static str) -> io::Result<()> {
    #[cfg(feature = "failpoints")]
    {
        fail::fail_point!(name, |action| {
            if action.as_deref() == Some("kill") {
                // Not abort: nothing may run on the way down, as in a power cut.
                let _unused = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
            Err(io::Error::other(format!("fail point {name}")))
        });
    }
    Ok(())
}

/// Arms the fail points named in `FAILPOINTS`. Call once at start.
pub fn arm_from_env() {
    #[cfg(feature = "failpoints")]
    if let Ok(points) = std::env::var("FAILPOINTS") {
        for point in points.split(';').filter(|p| !p.is_empty()) {
            if let Some((name, action)) = point.split_once('=') {
                // A mistyped action in a test must be seen, but here there is nowhere to report it but the log.
                if let Err(error) = fail::cfg(name, action) {
                    tracing::error!(name, action, error, "fail point refused");
                }
            }
        }
    }
}
