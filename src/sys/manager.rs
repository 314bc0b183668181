//! What a service manager is told (`sd_notify(3)`), where one listens. It never holds anything up.

use std::time::Duration;

use sd_notify::NotifyState;

/// It is starting, and may take so long.
pub fn starting(limit: Duration) {
    tell(&[
        NotifyState::Status("starting"),
        NotifyState::ExtendTimeoutUsec(micros(limit)),
    ]);
}

/// It answers from now on.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// It is stopping, and takes no longer than this.
pub fn stopping(limit: Duration) {
    tell(&[
        NotifyState::Stopping,
        NotifyState::Status("stopping: open requests finish"),
        NotifyState::ExtendTimeoutUsec(micros(limit)),
    ]);
}

/// How often a sign of life is wanted, if one is: half of the time after which the manager would act.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
        .map(|limit| limit / 2)
        .filter(|pause| !pause.is_zero())
}

/// A sign of life.
pub fn alive(status: &str) {
    tell(&[NotifyState::Watchdog, NotifyState::Status(status)]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager was not told");
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}
