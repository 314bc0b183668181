//! What the service tells the manager that started it: that it answers, that it lives, that it stops.

use std::time::Duration;

use crate::serve::{LAST, Shutdown};
use crate::sys::{manager, task};

/// How long it may take from here until it answers.
pub(crate) fn starting(limit: Duration) {
    manager::starting(limit.saturating_add(LAST));
}

/// Tells all there is to tell while the service runs. The sign of life comes by the threads that requests need: one that
/// cannot be given is missed by the manager.
pub(crate) async fn attend(url: String, in_flight: impl Fn() -> usize, shutdown: Shutdown) {
    let status = || format!("serving on {url}, {} requests in flight", in_flight());
    manager::ready(&status());
    let Some(pause) = manager::watchdog() else { return };
    loop {
        tokio::select! {
            () = shutdown.drain.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
        if task::blocking("a sign of life", || ()).await.is_ok() {
            manager::alive(&status());
        }
    }
    // Stopping takes its time too.
    loop {
        tokio::time::sleep(pause).await;
        manager::alive("stopping: open requests finish");
    }
}

/// Tells that the service stops as soon as it is told to. The service waits for this: a stop with nothing in flight is over
/// before another task would wake.
pub(crate) async fn stopping(shutdown: &Shutdown, grace: Duration) {
    shutdown.drain.cancelled().await;
    manager::stopping(grace.saturating_add(LAST));
}
