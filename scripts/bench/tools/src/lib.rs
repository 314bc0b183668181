//! What both tools need: arguments and the head of an HTTP message.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// `--name value` pairs.
pub struct Args(HashMap<String, String>);

impl Args {
    /// Reads the command line.
    pub fn read() -> Self {
        let mut map = HashMap::new();
        let mut words = std::env::args().skip(1).peekable();
        while let Some(word) = words.next() {
            let name = word.trim_start_matches('-').to_owned();
            let value = match words.peek() {
                Some(next) if !next.starts_with("--") => words.next().unwrap_or_default(),
                _ => "true".to_owned(),
            };
            map.insert(name, value);
        }
        Self(map)
    }

    /// A value as text.
    pub fn text(&self, name: &str, default: &str) -> String {
        self.0.get(name).cloned().unwrap_or_else(|| default.to_owned())
    }

    /// A value as a number.
    pub fn number(&self, name: &str, default: f64) -> f64 {
        match self.0.get(name) {
            Some(value) => value.parse().unwrap_or_else(|_| panic!("--{name} {value}: not a number")),
            None => default,
        }
    }

    /// Whether it is there.
    pub fn is(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// Where the head ends, just after the blank line.
pub fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// The value of a header in a head, compared without case.
pub fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    head.split(|byte| *byte == b'\n').find_map(|line| {
        let line = std::str::from_utf8(line).ok()?.trim_end();
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// Nanoseconds since the epoch: mock and generator run on one machine, so their clocks are one.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}
