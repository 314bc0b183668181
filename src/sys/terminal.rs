//! Text from outside on its way to a terminal. What a service, a file or another program says may hold escape sequences,
//! line ends and marks that turn the direction of writing; here they are made visible, so that they cannot act.

use std::borrow::Cow;
use std::fmt::Write;

/// How many columns standard output has: as `COLUMNS` says, else as the terminal does. `None` where it is none.
pub fn columns() -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    said.or_else(|| {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        Some(usize::from(size.ws_col))
    })
    .filter(|columns| *columns > 0)
}

/// Whether a character does more on a terminal than stand there: control characters (the second set too), line and
/// paragraph separators, marks of direction, and characters that nobody sees.
pub fn acts(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200b}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{2069}'
                | '\u{feff}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// One line: whatever acts, line ends included, is written as an escape.
pub fn line(text: &str) -> Cow<'_, str> {
    inert(text, |_| false)
}

/// Several lines: line ends and tabs stay, whatever else acts is written as an escape.
pub fn lines(text: &str) -> Cow<'_, str> {
    inert(text, |c| matches!(c, '\n' | '\t'))
}

fn inert(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(|c| acts(c) && !stays(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if !acts(c) || stays(c) {
            out.push(c);
        } else if c.is_ascii() {
            out.extend(c.escape_default());
        } else {
            out.extend(c.escape_unicode());
        }
    }
    Cow::Owned(out)
}

/// A JSON text of one line, or a pretty one: the same value, with escapes for what acts. A writer of JSON escapes only the
/// first set of control characters.
pub fn json(text: &str) -> Cow<'_, str> {
    let must = |c: char| acts(c) && !c.is_ascii_whitespace();
    if !text.chars().any(must) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut units = [0_u16; 2];
    for c in text.chars() {
        if must(c) {
            for unit in c.encode_utf16(&mut units) {
                // Writing to a String cannot fail.
                let _infallible = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_acts_and_plain_text_is_not_copied() {
        assert!(matches!(line("plain, äöü 日本 👍"), Cow::Borrowed(_)));
        assert_eq!(line("a\u{1b}]0;x\u{7}b"), "a\\u{1b}]0;x\\u{7}b");
        assert_eq!(line("ok\r\nerror: \u{9b}31m"), "ok\\r\\nerror: \\u{9b}31m");
        assert_eq!(lines("a\n\tb\r\u{202e}c"), "a\n\tb\\r\\u{202e}c");
        for c in [
            '\u{0}',
            '\u{7f}',
            '\u{9d}',
            '\u{2028}',
            '\u{2066}',
            '\u{200b}',
            '\u{e0041}',
        ] {
            assert!(!lines(&format!("a{c}b")).contains(c), "{c:?}");
        }
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({"a": "\u{9b}2J\u{202e}x\u{e0041}\u{1b}\n ä"});
        let text = format!("{value:#}");
        let inert = json(&text);
        assert!(!inert.chars().any(|c| acts(c) && c != '\n'), "{inert:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&inert).unwrap(), value);
    }
}
