//! Numbers and moments for people.

use time::OffsetDateTime;
use time::macros::format_description;

/// A moment as `2026-11-30 06:22:15` in UTC.
pub fn moment(us: i64) -> String {
    let layout = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(us) * 1_000)
        .ok()
        .and_then(|moment| moment.format(&layout).ok())
        .unwrap_or_else(|| "-".to_owned())
}

/// The same, saying that it is UTC: `2026-11-30 06:22:15Z`.
pub fn utc(us: i64) -> String {
    format!("{}Z", moment(us))
}

/// A size as `1.5 GiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut size = count as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

/// The first part of a long id, enough for a table.
pub fn short(id: &str) -> String {
    let id = id.strip_prefix("sha256:").unwrap_or(id);
    id.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_moments_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(20 << 30), "20.0 GiB");
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
        assert_eq!(moment(1_700_000_000_000_000), "2023-11-14 22:13:20");
        assert_eq!(moment(i64::MAX), "-");
        assert_eq!(short("sha256:0123456789abcdef"), "0123456789ab");
    }
}
