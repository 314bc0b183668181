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

/// For serde, on a field of microseconds that the wire format has in seconds: `#[serde(with = "clock::wire")]`.
pub mod wire {
    use serde::{Deserialize, Deserializer, Serializer};

    /// As seconds.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub fn serialize<S: Serializer>(us: &i64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(super::seconds(*us))
    }

    /// From seconds.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
        // To the nearest: a fraction such as 0.3 is a little less than it says.
        Ok((f64::deserialize(from)? * 1e6).round() as i64)
    }
}
