//! Time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch.
pub fn now_us() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX))
}

/// Seconds since the Unix epoch, as the wire format has it.
pub fn seconds(us: i64) -> f64 {
    us as f64 / 1e6
}
