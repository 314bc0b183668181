//! Time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch.
pub fn now_us() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX))
}

/// The instant in RFC 3339, in UTC, to the second.
pub fn rfc3339(us: i64) -> Option<String> {
    time::OffsetDateTime::from_unix_timestamp(us.div_euclid(1_000_000))
        .ok()?
        .format(&time::format_description::well_known::Rfc3339)
        .ok()
}

/// Seconds since the Unix epoch, as the wire format has it.
pub fn seconds(us: i64) -> f64 {
    us as f64 / 1e6
}
