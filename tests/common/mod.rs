//! Helpers of the integration tests: a scripted upstream, the real program, a small HTTP client. Nothing here sleeps for
//! a fixed time to let something happen; everything waits for what it needs, generously.

#![allow(dead_code, reason = "each test program uses its part")]
#![allow(clippy::print_stderr, reason = "a failed test shows the log of its service")]

pub mod http;
pub mod network;
pub mod reef;
pub mod tried;
pub mod upstream;

use std::time::{Duration, Instant};

/// The longest any wait may take on a slow, loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `probe` gives something.
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
