//! The way a service is told to stop, and that it does: signals come to a thread of their own, which nothing busy or
//! blocked elsewhere holds up, and which ends the process where the rest does not.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::sys::{leave, task};

/// After the grace for open requests: how long records of answers already given may take to reach the disk, a step to
/// stop, and the process to end.
pub(super) const SETTLE: Duration = Duration::from_secs(3);
/// The most that all of it takes beyond the grace. Then the process is ended from outside of what holds it up.
pub const LAST: Duration = Duration::from_secs(5);
/// How an end that had to be forced is told: as interrupted.
const FORCED: u8 = 130;

/// The two ways to stop.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Cancel to stop taking requests and let those in flight finish.
    pub drain: CancellationToken,
    /// Cancel to stop at once.
    pub now: CancellationToken,
    /// Milliseconds that open requests get.
    grace: Arc<AtomicU64>,
}

impl Shutdown {
    /// Drains on the first SIGTERM or SIGINT, stops at once on the second; SIGHUP changes nothing. Whatever happens, the
    /// process ends within the grace and [`LAST`].
    pub fn on_signals() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let mut signals = Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        };
        drop(entered);
        let shutdown = Self::default();
        let told = shutdown.clone();
        let _waiting = task::thread("reef-signals", move || {
            runtime.block_on(async {
                signals.wait().await;
                told.drain.cancel();
                let grace = Duration::from_millis(told.grace.load(Ordering::Relaxed));
                let again = tokio::time::timeout(grace.saturating_add(LAST), signals.wait()).await;
                let mut status = 0;
                if again.is_ok() {
                    told.now.cancel();
                    status = FORCED;
                    tokio::time::sleep(LAST).await;
                }
                end(status);
            });
        })?;
        Ok(shutdown)
    }

    /// Gives open requests so long from the moment it is told to stop. Before it is called there are none.
    pub fn allow(&self, grace: Duration) {
        let millis = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.grace.store(millis, Ordering::Relaxed);
    }
}

/// Ends the process. Even the log may be what holds it up.
fn end(status: u8) -> ! {
    let (done, told) = std::sync::mpsc::channel();
    let _saying = task::thread("reef-last", move || {
        tracing::error!("what did not stop is cut off; the next start repairs it");
        let _nobody = done.send(());
    });
    let _in_time = told.recv_timeout(Duration::from_millis(200));
    leave::at_once(status)
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Until one says stop.
    async fn wait(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => {
                    tracing::info!("hang-up: the service goes on; what is configured is read at its start");
                }
            }
        }
    }
}
