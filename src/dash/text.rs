//! Text for narrow places.

use serde_json::Value;

use crate::sys::format;
pub(super) use crate::sys::format::bytes;

use crate::sys::terminal;

/// Text from outside may hold control characters and marks that turn the direction of writing; on a terminal they must
/// not act.
pub(super) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' => ' ',
            c if terminal::acts(c) => '·',
            c => c,
        })
        .collect()
}

/// The telling part of an id: the first digits of a digest, the last of a record id, whose first digits are its time.
pub(super) fn short(id: &str) -> String {
    clean(&format::short(id))
}

/// The end of a record id, or all of a short one.
pub(super) fn short_record(id: &str) -> String {
    let count = id.chars().count();
    if count <= 12 {
        return clean(id);
    }
    let end: String = id.chars().skip(count - 10).collect();
    format!("…{}", clean(&end))
}

/// How long ago, in the largest sensible unit.
pub(super) fn ago(then_us: i64, now_us: i64) -> String {
    let s = (now_us - then_us).max(0) / 1_000_000;
    match s {
        0..=1 => "now".to_owned(),
        2..=99 => format!("{s} s"),
        100..=5999 => format!("{} min", s / 60),
        6000..=172_799 => format!("{} h", s / 3600),
        _ => format!("{} d", s / 86_400),
    }
}

/// A time of day, UTC.
pub(super) fn clock(us: i64) -> String {
    format::moment(us).get(11..).unwrap_or("-").to_owned()
}

/// A day and a time of day, UTC.
pub(super) fn moment(us: i64) -> String {
    format::moment(us).get(5..).unwrap_or("-").to_owned()
}

/// A count that stays short: `1234`, `56.7k`, `8.9M`.
pub(super) fn count(n: u64) -> String {
    match n {
        0..=9999 => n.to_string(),
        10_000..=999_999 => format!("{:.1}k", n as f64 / 1e3),
        1_000_000..=999_999_999 => format!("{:.1}M", n as f64 / 1e6),
        _ => format!("{:.1}G", n as f64 / 1e9),
    }
}

/// A figure with about four digits.
pub(super) fn figure(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if !value.is_finite() {
        "n/a".to_owned()
    } else if value.fract() == 0.0 && size < 1e6 {
        format!("{value:.0}")
    } else if !(1e-3..1e6).contains(&size) {
        format!("{value:.2e}")
    } else if size < 1.0 {
        format!("{value:.4}")
    } else if size < 100.0 {
        format!("{value:.3}")
    } else {
        format!("{value:.0}")
    }
}

/// A figure as the gate or a program gave it: a number, or several.
pub(super) fn figures(value: &Value) -> String {
    match value {
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), figure),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(figures).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let entries: Vec<String> = entries
                .iter()
                .map(|(name, value)| format!("{name} {}", figures(value)))
                .collect();
            entries.join(", ")
        }
        other => other.to_string(),
    }
}

/// A rate in few digits.
pub(super) fn figure_short(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.1}")
    } else {
        count(value as u64)
    }
}

/// A duration of an exchange.
pub(super) fn took(us: u64) -> String {
    match us {
        0..=9_999 => format!("{:.1} ms", us as f64 / 1e3),
        10_000..=999_999 => format!("{} ms", us / 1000),
        1_000_000..=99_999_999 => format!("{:.2} s", us as f64 / 1e6),
        _ => format!("{} s", us / 1_000_000),
    }
}

/// The longest text of a record that is shown on its line.
pub(super) const GIST: usize = 160;

/// What was asked and said on one line.
pub(super) fn gist(asked: &str, said: &str) -> String {
    let line = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.join(" ").chars().take(GIST).collect::<String>()
    };
    let parts: Vec<String> = [asked, said]
        .iter()
        .map(|text| line(text))
        .filter(|text| !text.is_empty())
        .collect();
    clean(&parts.join(" → "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        let shown = [0.0, 0.12345, 4.0, 56.789, 1234.5, 3.2e-7, 2.5e9].map(figure);
        assert_eq!(shown, ["0", "0.1235", "4", "56.789", "1234", "3.20e-7", "2.50e9"]);
        assert_eq!([7, 12_345, 6_700_000].map(count), ["7", "12.3k", "6.7M"]);
        assert_eq!(
            [900, 45_000, 2_340_000, 123_000_000].map(took),
            ["0.9 ms", "45 ms", "2.34 s", "123 s"]
        );
        assert_eq!(ago(0, 65_000_000), "65 s");
        assert_eq!(ago(5, 0), "now");
    }

    #[test]
    fn text_from_outside_cannot_act_on_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\tc\u{202e}d"), "a·[31mb c·d");
        assert_eq!(short_record("0193aabbccddeeff0011223344556677"), "…3344556677");
        assert_eq!(short("sha256:0123456789abcdef"), "0123456789ab");
    }
}
