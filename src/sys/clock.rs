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

/// The moment that a person writes: RFC 3339, a day or a moment in UTC as tables show it, or how long ago it was (`90s`,
/// `30m`, `2h`, `7d`, `2w`).
pub fn moment_of(text: &str, now_us: i64) -> Option<i64> {
    use time::format_description::well_known::Rfc3339;
    let text = text.trim();
    if let Some((number, unit)) = text.char_indices().next_back().map(|(at, unit)| (&text[..at], unit))
        && let Ok(number) = number.parse::<u32>()
    {
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 7 * 86_400,
            _ => return None,
        };
        return Some(now_us - i64::from(number) * seconds * 1_000_000);
    }
    let whole = match text.len() {
        10 => format!("{text}T00:00:00Z"),
        19 => format!("{text}Z"),
        _ => text.to_owned(),
    };
    // Tables have a space where the standard has a T.
    let at = time::OffsetDateTime::parse(&whole.replacen(' ', "T", 1), &Rfc3339).ok()?;
    i64::try_from(at.unix_timestamp_nanos() / 1_000).ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_taken_as_people_write_it() {
        let now = 1_800_000_000_000_000;
        for (text, want) in [
            ("90s", Some(now - 90_000_000)),
            ("2h", Some(now - 7_200_000_000)),
            ("7d", Some(now - 604_800_000_000)),
            ("1970-01-02", Some(86_400_000_000)),
            ("1970-01-01 00:00:01", Some(1_000_000)),
            ("1970-01-01 00:00:01Z", Some(1_000_000)),
            ("1970-01-01T01:00:00+01:00", Some(0)),
            ("", None),
            ("7", None),
            ("7x", None),
            ("ä", None),
            ("1970-13-01", None),
            ("yesterday", None),
        ] {
            assert_eq!(moment_of(text, now), want, "{text}");
        }
    }
}
