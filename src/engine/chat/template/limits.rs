//! What a chat template may take. It comes with a model, and a model is a guest: its instructions, the strings it makes
//! and its prompt are bounded, by more than the templates of real models need.

use std::fmt::{self, Write as _};
use std::io;

use minijinja::value::Value;
use minijinja::{Error, ErrorKind, State};
use serde_json::Value as Json;

/// Instructions of a template for the shortest request. The templates of real models take a few thousand.
const INSTRUCTIONS: u64 = 400_000;
/// More of them for each byte of a request: a message of 40 bytes takes a few hundred.
const INSTRUCTIONS_PER_BYTE: u64 = 10;
/// The most of them.
const MOST_INSTRUCTIONS: u64 = 40_000_000;
/// Bytes of a prompt beside those of its request.
const PROMPT: u64 = 256 * 1024;
/// Bytes of a prompt for each byte of its request: a template adds marks and an instruction to each message.
const PROMPT_PER_BYTE: u64 = 8;
/// Bytes that cost as much as one instruction.
const BYTES_PER_INSTRUCTION: u64 = 64;
/// The longest source.
pub(super) const SOURCE: usize = 1024 * 1024;
/// The most digits of a width in `str.format`, which pads before anybody counts.
const DIGITS: usize = 4;

/// The limits of one rendering.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) instructions: u64,
    pub(super) prompt: u64,
}

impl Limits {
    /// For a request of so many bytes.
    pub(super) fn of(bytes: u64) -> Self {
        Self {
            instructions: INSTRUCTIONS
                .saturating_add(bytes.saturating_mul(INSTRUCTIONS_PER_BYTE))
                .min(MOST_INSTRUCTIONS),
            prompt: PROMPT.saturating_add(bytes.saturating_mul(PROMPT_PER_BYTE)),
        }
    }
}

/// About the bytes that a value has as JSON.
pub(super) fn size(value: &Json) -> u64 {
    match value {
        Json::Null | Json::Bool(_) | Json::Number(_) => 8,
        Json::String(text) => text.len() as u64 + 2,
        Json::Array(items) => items.iter().map(|item| size(item) + 2).sum(),
        Json::Object(map) => map.iter().map(|(name, item)| name.len() as u64 + size(item) + 4).sum(),
    }
}

/// Pays for `bytes` that are looked at or made.
pub(super) fn pay(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    state.consume_fuel(bytes as u64 / BYTES_PER_INSTRUCTION + 1)
}

/// Pays for a method that looks at all of a value: a string's bytes, a list's items.
pub(super) fn pay_for(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => pay(state, text.len()),
        None => pay(state, value.len().unwrap_or(0).saturating_mul(32)),
    }
}

/// Refuses widths that `str.format` would fill.
pub(super) fn check_format(format: &str) -> Result<(), Error> {
    let digits = format
        .split(|c: char| !c.is_ascii_digit())
        .map(str::len)
        .max()
        .unwrap_or(0);
    if digits > DIGITS {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a number of more than {DIGITS} digits in a format"),
        ));
    }
    Ok(())
}

/// `separator.join(items)`, paid for as it grows.
pub(super) fn join(state: &State<'_, '_>, separator: &str, items: &Value) -> Result<Value, Error> {
    let mut out = String::new();
    for (at, item) in items.try_iter()?.checked().enumerate() {
        let item = item?;
        let before = out.len();
        let mut grown = Growing { state, out: &mut out };
        let written = if at > 0 { grown.write_str(separator) } else { Ok(()) };
        let written = written.and_then(|()| match item.as_str() {
            Some(text) => grown.write_str(text),
            None => write!(grown, "{item}"),
        });
        if written.is_err() {
            return Err(Error::from(ErrorKind::OutOfFuel));
        }
        pay(state, out.len() - before)?;
    }
    Ok(Value::from(out))
}

/// A string that can be no longer than what is left to pay for it.
struct Growing<'a, 's, 'e> {
    state: &'a State<'s, 'e>,
    out: &'a mut String,
}

impl fmt::Write for Growing<'_, '_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.out.len().saturating_add(text.len()) as u64 > room(self.state) {
            return Err(fmt::Error);
        }
        self.out.push_str(text);
        Ok(())
    }
}

/// The bytes that can still be paid for.
pub(super) fn room(state: &State<'_, '_>) -> u64 {
    state
        .fuel_levels()
        .map_or(u64::MAX, |(_, left)| left.saturating_mul(BYTES_PER_INSTRUCTION))
}

/// Bytes up to a limit.
#[derive(Debug)]
pub(super) struct Bounded {
    pub(super) bytes: Vec<u8>,
    limit: u64,
    /// Something did not fit.
    pub(super) over: bool,
}

impl Bounded {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
            over: false,
        }
    }
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len().saturating_add(bytes.len()) as u64 > self.limit {
            self.over = true;
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
