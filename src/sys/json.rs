//! JSON as others write it. What came through the gateway is kept byte for byte; whoever looks into it reads it here, so
//! that half an emoji, a `NaN` or deep nesting costs no more than the spot it is in.
//!
//! What strict readers take is read by one. Beyond that this takes text that is not UTF-8 (bad bytes become U+FFFD),
//! half a surrogate pair (likewise), control characters in strings, `NaN` and the infinities and numbers no float holds
//! (as text), and any depth (what lies deeper than [`DEEPEST`] becomes its own text). Of a repeated key the last counts.
//! What comes out can be written and read back by anyone.

use serde_json::{Map, Number, Value};

/// Deeper values are kept as text, so that what wraps them stays below the 128 levels that strict readers take.
pub const DEEPEST: usize = 100;

/// Bytes that are not JSON, however generously read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotJson {
    /// Nothing but white space.
    #[error("it is empty")]
    Empty,
    /// The end came within a value.
    #[error("it ends before its JSON is complete")]
    CutShort,
    /// Something else came where JSON was expected.
    #[error("it is not JSON (at byte {at})")]
    Other {
        /// Offset of the first byte that does not fit.
        at: usize,
    },
}

/// Reads a value.
pub fn read(bytes: &[u8]) -> Result<Value, NotJson> {
    match serde_json::from_slice(bytes) {
        Ok(value) if !is_deeper(&value, DEEPEST) => Ok(value),
        _ => read_generously(bytes),
    }
}

/// Reads an object; `None` if it is none.
pub fn read_object(bytes: &[u8]) -> Option<Map<String, Value>> {
    match read(bytes) {
        Ok(Value::Object(map)) => Some(map),
        _ => None,
    }
}

/// Reads a value, and what is none as text.
pub fn read_or_text(bytes: &[u8]) -> Value {
    read(bytes).unwrap_or_else(|_| Value::from(String::from_utf8_lossy(bytes).as_ref()))
}

/// Whether every strict reader takes this text, also within a few more levels.
pub fn is_plain(text: &str) -> bool {
    serde_json::from_str(text).is_ok_and(|value: Value| !is_deeper(&value, DEEPEST))
}

/// Whether a value that a strict reader took (so that it has an end to its depth) is deeper than so many levels.
fn is_deeper(value: &Value, levels: usize) -> bool {
    let deeper = |item: &Value| is_deeper(item, levels - 1);
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(deeper),
        Value::Object(fields) => levels == 0 || fields.values().any(deeper),
        _ => false,
    }
}

fn read_generously(bytes: &[u8]) -> Result<Value, NotJson> {
    let mut reader = Reader { bytes, at: 0 };
    if bytes.starts_with(b"\xef\xbb\xbf") {
        reader.at = 3;
    }
    reader.space();
    if reader.peek().is_none() {
        return Err(NotJson::Empty);
    }
    let value = reader.value(0)?;
    reader.space();
    match reader.peek() {
        None => Ok(value),
        Some(_) => Err(NotJson::Other { at: reader.at }),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn need(&self) -> Result<u8, NotJson> {
        self.peek().ok_or(NotJson::CutShort)
    }

    fn unfit<T>(&self) -> Result<T, NotJson> {
        Err(NotJson::Other { at: self.at })
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, NotJson> {
        match self.need()? {
            b'{' | b'[' if depth == DEEPEST => self.unread(),
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => self.string().map(Value::String),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, NotJson> {
        let mut map = Map::new();
        self.at += 1;
        self.space();
        if self.need()? == b'}' {
            self.at += 1;
            return Ok(Value::Object(map));
        }
        loop {
            if self.need()? != b'"' {
                return self.unfit();
            }
            let key = self.string()?;
            self.space();
            if self.need()? != b':' {
                return self.unfit();
            }
            self.at += 1;
            self.space();
            map.insert(key, self.value(depth + 1)?);
            if self.ends(b'}')? {
                return Ok(Value::Object(map));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, NotJson> {
        let mut items = Vec::new();
        self.at += 1;
        self.space();
        if self.need()? == b']' {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.ends(b']')? {
                return Ok(Value::Array(items));
            }
        }
    }

    /// Takes what comes after an item: the end, or a comma.
    fn ends(&mut self, close: u8) -> Result<bool, NotJson> {
        self.space();
        let byte = self.need()?;
        if byte != close && byte != b',' {
            return self.unfit();
        }
        self.at += 1;
        self.space();
        Ok(byte == close)
    }

    /// Takes an object or array that lies too deep, as its text. Without recursion, so that no depth is too deep.
    fn unread(&mut self) -> Result<Value, NotJson> {
        let start = self.at;
        let mut open = Vec::new();
        loop {
            match self.need()? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' => open.push(b'}'),
                b'[' => open.push(b']'),
                close @ (b'}' | b']') if open.pop() != Some(close) => return self.unfit(),
                _ => {}
            }
            self.at += 1;
            if open.is_empty() {
                return Ok(Value::from(
                    String::from_utf8_lossy(&self.bytes[start..self.at]).as_ref(),
                ));
            }
        }
    }

    fn string(&mut self) -> Result<String, NotJson> {
        self.at += 1;
        let mut text = Vec::new();
        loop {
            let rest = &self.bytes[self.at..];
            let end = memchr::memchr2(b'"', b'\\', rest).ok_or(NotJson::CutShort)?;
            text.extend_from_slice(&rest[..end]);
            self.at += end + 1;
            if rest[end] == b'"' {
                break;
            }
            let escape = self.need()?;
            self.at += 1;
            match escape {
                b'n' => text.push(b'\n'),
                b't' => text.push(b'\t'),
                b'r' => text.push(b'\r'),
                b'b' => text.push(8),
                b'f' => text.push(12),
                b'u' => {
                    let character = self.escaped()?;
                    text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                other => text.push(other),
            }
        }
        Ok(match String::from_utf8(text) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// The character after `\u`; half a pair is U+FFFD.
    fn escaped(&mut self) -> Result<char, NotJson> {
        let unit = self.unit()?;
        if let Some(character) = char::from_u32(unit) {
            return Ok(character);
        }
        let before = self.at;
        if unit < 0xdc00 && self.bytes[self.at..].starts_with(b"\\u") {
            self.at += 2;
            let low = self.unit()?;
            if (0xdc00..0xe000).contains(&low) {
                let code = 0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            // It stands for itself.
            self.at = before;
        }
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn unit(&mut self) -> Result<u32, NotJson> {
        let mut unit = 0;
        for _ in 0..4 {
            let Some(digit) = char::from(self.need()?).to_digit(16) else {
                return self.unfit();
            };
            unit = unit << 4 | digit;
            self.at += 1;
        }
        Ok(unit)
    }

    /// A number or a name.
    fn word(&mut self) -> Result<Value, NotJson> {
        let start = self.at;
        while matches!(self.peek(), Some(byte) if byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')) {
            self.at += 1;
        }
        let text = std::str::from_utf8(&self.bytes[start..self.at]).unwrap_or("");
        let at_end = self.at == self.bytes.len();
        let value = match text {
            "null" => Value::Null,
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            _ => match number(text) {
                Some(value) => value,
                None if at_end && start > 0 => return Err(NotJson::CutShort),
                None => return Err(NotJson::Other { at: start }),
            },
        };
        Ok(value)
    }
}

/// A number as such where a float holds it, else its text.
fn number(text: &str) -> Option<Value> {
    if let Ok(number) = serde_json::from_str::<Number>(text) {
        return Some(Value::Number(number));
    }
    // What Rust calls a number covers every way in which printers write infinity and what is none.
    let float: f64 = text.parse().ok()?;
    if let Some(number) = Number::from_f64(float) {
        return Some(Value::Number(number));
    }
    let digits = text.bytes().any(|byte| byte.is_ascii_digit());
    Some(Value::from(match float {
        _ if digits => text,
        float if float.is_nan() => "NaN",
        float if float > 0.0 => "Infinity",
        _ => "-Infinity",
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_strict_readers_refuse_costs_only_its_spot() {
        for (text, want) in [
            (&br#"{"a":"fine \ud83d text"}"#[..], json!({"a": "fine \u{fffd} text"})),
            (br#"{"a":"\ud83dA\udc1f"}"#, json!({"a": "\u{fffd}A\u{fffd}"})),
            (br#"["\ud83d\ud83d\udc1f","\ud83d\udc1f"]"#, json!(["\u{fffd}🐟", "🐟"])),
            (br#"{"\udc1f":1,"b":NaN}"#, json!({"\u{fffd}": 1, "b": "NaN"})),
            (
                b"[Infinity,-Infinity,-inf,nan,1e999]",
                json!(["Infinity", "-Infinity", "-Infinity", "NaN", "1e999"]),
            ),
            (
                b"[NaN,123456789012345678901234567890]",
                json!(["NaN", 1.234_567_890_123_456_8e29]),
            ),
            (b"[\"a\xffb\"]", json!(["a\u{fffd}b"])),
            (b"[\"\xed\xa0\xbd\"]", json!(["\u{fffd}\u{fffd}\u{fffd}"])),
            (b"\xef\xbb\xbf{\"a\":\"x\ny\"}", json!({"a": "x\ny"})),
            (b"{\"a\":1,\"a\":NaN}", json!({"a": "NaN"})),
            (b"[NaN,\"\\/\\x\"]", json!(["NaN", "/x"])),
        ] {
            assert_eq!(read(text), Ok(want), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn depth_has_no_limit_and_what_lies_too_deep_is_its_text() {
        for depth in [1, 90, 98, 99, 100, 101, 127, 128, 500, 200_000] {
            let text = "[".repeat(depth) + "\"é]\",{\"a\":\"\\\"[\"}" + &"]".repeat(depth);
            let value = read(text.as_bytes()).unwrap();
            let again: Value = serde_json::from_str(&value.to_string()).unwrap();
            assert_eq!(again, value, "{depth}");
            let mut inner = &value;
            while let Some(next) = inner.get(0) {
                inner = next;
            }
            let kept = inner.as_str().unwrap();
            assert!(
                kept == "é]" || (depth >= DEEPEST && kept.ends_with(&"]".repeat(depth - DEEPEST))),
                "{depth}"
            );
        }
    }

    #[test]
    fn what_is_not_json_is_told_apart() {
        for (bytes, want) in [
            (&b""[..], NotJson::Empty),
            (b" \n", NotJson::Empty),
            (b"{\"a\":[1,2", NotJson::CutShort),
            (b"{\"a\":\"b", NotJson::CutShort),
            (b"{\"a\":\"b\\", NotJson::CutShort),
            (b"{\"a\":\"\\ud8", NotJson::CutShort),
            (b"{\"a\":tr", NotJson::CutShort),
            (b"{", NotJson::CutShort),
            (b"<html>", NotJson::Other { at: 0 }),
            (b"upstream timed out", NotJson::Other { at: 0 }),
            (b"{\"a\":1} x", NotJson::Other { at: 8 }),
            (b"{a:1}", NotJson::Other { at: 1 }),
            (b"[1 2]", NotJson::Other { at: 3 }),
            (b"{\"a\" 1}", NotJson::Other { at: 5 }),
        ] {
            assert_eq!(read(bytes), Err(want), "{}", String::from_utf8_lossy(bytes));
        }
        let crossed = "[".repeat(DEEPEST + 1) + "}" + &"]".repeat(DEEPEST + 1);
        assert_eq!(read(crossed.as_bytes()), Err(NotJson::Other { at: DEEPEST + 1 }));
    }

    #[test]
    fn plain_is_what_everybody_reads() {
        for (text, plain) in [
            (r#"{"a":[1,"[[["]}"#, true),
            (r#"{"a":"\ud83d"}"#, false),
            ("[1e999]", false),
            ("[NaN]", false),
        ] {
            assert_eq!(is_plain(text), plain, "{text}");
        }
        for (depth, plain) in [(DEEPEST, true), (DEEPEST + 1, false), (100_000, false)] {
            assert_eq!(is_plain(&("[".repeat(depth) + &"]".repeat(depth))), plain, "{depth}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            prop::num::f64::NORMAL.prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((".{0,4}", inner), 0..6)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn strict_json_means_the_same_to_both_readers(value in any_json(), pretty: bool) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            prop_assert_eq!(read_generously(text.as_bytes()), Ok(serde_json::from_str(&text).unwrap()));
        }

        #[test]
        fn every_prefix_is_cut_short_or_a_shorter_value(value in any_json(), at in any::<prop::sample::Index>()) {
            let text = value.to_string();
            let cut = at.index(text.len());
            let read = read_generously(&text.as_bytes()[..cut]);
            if value.is_object() || value.is_array() {
                let want = if cut == 0 { NotJson::Empty } else { NotJson::CutShort };
                prop_assert_eq!(read, Err(want));
            }
        }

        #[test]
        fn no_bytes_make_it_panic_and_what_it_reads_anyone_reads(
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..200),
                "[\\[\\]\\{\\}\",:\\\\udDc8-9naNifty.eE+\\- ]{0,80}".prop_map(String::into_bytes),
            ],
        ) {
            if let Ok(value) = read(&bytes) {
                let text = value.to_string();
                prop_assert!(is_plain(&text), "{text}");
                prop_assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
            }
        }

        #[test]
        fn a_damaged_byte_never_makes_it_panic(value in any_json(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = value.to_string().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(strict) = serde_json::from_slice::<Value>(&bytes) {
                prop_assert_eq!(read_generously(&bytes), Ok(strict));
            } else {
                let _either_way = read(&bytes);
            }
        }
    }
}
