//! The part of `strftime` that chat templates use, in the C locale.

use std::fmt::Write;

use time::OffsetDateTime;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

/// `format` at `at`. A directive that is not known stays as it stands, as in glibc.
pub(super) fn format(format: &str, at: OffsetDateTime) -> String {
    let mut out = String::with_capacity(format.len() + 16);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let Some(mut directive) = chars.next() else {
            out.push('%');
            break;
        };
        let unpadded = directive == '-';
        if unpadded {
            directive = chars.next().unwrap_or('-');
        }
        push(&mut out, directive, unpadded, at);
    }
    out
}

fn push(out: &mut String, directive: char, unpadded: bool, at: OffsetDateTime) {
    let month = MONTHS[usize::from(u8::from(at.month()) - 1) % 12];
    let day = DAYS[usize::from(at.weekday().number_days_from_monday()) % 7];
    let hour12 = match at.hour() % 12 {
        0 => 12,
        hour => hour,
    };
    // Writing to a string cannot fail.
    let _infallible = match directive {
        'Y' => write!(out, "{}", at.year()),
        'y' => number(out, unsigned(at.year().rem_euclid(100)), 2, unpadded),
        'm' => number(out, u32::from(u8::from(at.month())), 2, unpadded),
        'd' => number(out, u32::from(at.day()), 2, unpadded),
        'e' => write!(out, "{:>2}", at.day()),
        'H' => number(out, u32::from(at.hour()), 2, unpadded),
        'I' => number(out, u32::from(hour12), 2, unpadded),
        'M' => number(out, u32::from(at.minute()), 2, unpadded),
        'S' => number(out, u32::from(at.second()), 2, unpadded),
        'f' => number(out, at.microsecond(), 6, unpadded),
        'j' => number(out, u32::from(at.ordinal()), 3, unpadded),
        'B' => out.write_str(month),
        'b' | 'h' => out.write_str(&month[..3]),
        'A' => out.write_str(day),
        'a' => out.write_str(&day[..3]),
        'p' => out.write_str(if at.hour() < 12 { "AM" } else { "PM" }),
        'F' => write!(out, "{}-{:02}-{:02}", at.year(), u8::from(at.month()), at.day()),
        'T' => write!(out, "{:02}:{:02}:{:02}", at.hour(), at.minute(), at.second()),
        'Z' => out.write_str("UTC"),
        'z' => out.write_str("+0000"),
        '%' => out.write_str("%"),
        other => write!(out, "%{other}"),
    };
}

fn unsigned(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn number(out: &mut String, value: u32, width: usize, unpadded: bool) -> std::fmt::Result {
    if unpadded {
        write!(out, "{value}")
    } else {
        write!(out, "{value:0width$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_match_the_c_locale() {
        let at = time::macros::datetime!(2026-03-05 09:07:03 UTC);
        for (pattern, expected) in [
            ("%d %b %Y", "05 Mar 2026"),
            ("%Y-%m-%d", "2026-03-05"),
            ("%A, %B %-d, %Y %I:%M %p", "Thursday, March 5, 2026 09:07 AM"),
            ("%H:%M:%S 100%%", "09:07:03 100%"),
            ("%j %e %q", "064  5 %q"),
        ] {
            assert_eq!(format(pattern, at), expected, "{pattern}");
        }
    }
}
