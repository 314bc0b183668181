//! JSON as Python's `json.dumps` writes it.

use std::fmt::Write;

use serde_json::Value;

/// The arguments of `json.dumps` that templates use.
#[derive(Debug, Default)]
pub(super) struct Style {
    pub(super) indent: Option<usize>,
    pub(super) ascii_only: bool,
    pub(super) sort_keys: bool,
    /// Between items, and between key and value.
    pub(super) separators: Option<Vec<String>>,
}

/// What a byte costs of what is written: it is looked at a few times, and grows by escapes and indentation.
pub(super) const COST: u64 = 16;
/// The widest indentation, and the longest separator. Templates use four and two.
const WIDEST: usize = 16;

impl Style {
    /// Refuses what would make much of little.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.indent.is_some_and(|width| width > WIDEST) {
            return Err("an indentation of more than 16 columns");
        }
        let long = |words: &Vec<String>| words.iter().any(|word| word.len() > WIDEST);
        if self.separators.as_ref().is_some_and(long) {
            return Err("a separator of more than 16 bytes");
        }
        Ok(())
    }
}

pub(super) fn write(value: &Value, style: &Style) -> String {
    let item_separator = if style.indent.is_some() { "," } else { ", " };
    let (item, key) = match style.separators.as_deref() {
        Some([item, key]) => (item.as_str(), key.as_str()),
        _ => (item_separator, ": "),
    };
    let mut writer = Writer {
        out: String::new(),
        style,
        item,
        key,
    };
    writer.value(value, 0);
    writer.out
}

struct Writer<'a> {
    out: String,
    style: &'a Style,
    item: &'a str,
    key: &'a str,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(true) => self.out.push_str("true"),
            Value::Bool(false) => self.out.push_str("false"),
            Value::Number(number) => match number.as_f64() {
                Some(float) if number.is_f64() => self.out.push_str(&python_float(float)),
                _ => self.out.push_str(&number.to_string()),
            },
            Value::String(text) => self.string(text),
            Value::Array(items) if items.is_empty() => self.out.push_str("[]"),
            Value::Array(items) => {
                self.out.push('[');
                for (at, item) in items.iter().enumerate() {
                    self.separate(at, depth + 1);
                    self.value(item, depth + 1);
                }
                self.new_line(depth);
                self.out.push(']');
            }
            Value::Object(map) if map.is_empty() => self.out.push_str("{}"),
            Value::Object(map) => {
                self.out.push('{');
                let mut entries: Vec<_> = map.iter().collect();
                if self.style.sort_keys {
                    entries.sort_by_key(|(name, _)| name.as_str());
                }
                for (at, (name, item)) in entries.into_iter().enumerate() {
                    self.separate(at, depth + 1);
                    self.string(name);
                    self.out.push_str(self.key);
                    self.value(item, depth + 1);
                }
                self.new_line(depth);
                self.out.push('}');
            }
        }
    }

    fn separate(&mut self, at: usize, depth: usize) {
        if at > 0 {
            self.out.push_str(self.item);
        }
        self.new_line(depth);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(width) = self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', width * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' => self.escape(u16::try_from(u32::from(c)).unwrap_or(0)),
                c if self.style.ascii_only && !c.is_ascii() => {
                    let mut units = [0_u16; 2];
                    for unit in c.encode_utf16(&mut units).iter() {
                        self.escape(*unit);
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, unit: u16) {
        // Writing to a string cannot fail.
        let _infallible = write!(self.out, "\\u{unit:04x}");
    }
}

/// A float as `repr` writes it: shortest digits, an exponent outside 1e-4..1e16, and always a sign of being a float.
fn python_float(value: f64) -> String {
    if value == 0.0 {
        return if value.is_sign_negative() { "-0.0" } else { "0.0" }.to_owned();
    }
    let magnitude = value.abs();
    if (1e-4..1e16).contains(&magnitude) {
        let text = value.to_string();
        return if text.contains('.') { text } else { format!("{text}.0") };
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, number) = match exponent.strip_prefix('-') {
                Some(number) => ('-', number),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{number:0>2}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_strings_are_written_as_python_writes_them() {
        let json: Value =
            serde_json::from_str(r#"[1, 1.0, 0.1, 1e16, 1.5e-7, 123456789.25, -0.0, "é\u0007\n\"😀", {}, []]"#)
                .unwrap();
        assert_eq!(
            write(&json, &Style::default()),
            r#"[1, 1.0, 0.1, 1e+16, 1.5e-07, 123456789.25, -0.0, "é\u0007\n\"😀", {}, []]"#
        );
        let ascii = Style {
            ascii_only: true,
            ..Style::default()
        };
        assert_eq!(write(&Value::from("é😀"), &ascii), r#""\u00e9\ud83d\ude00""#);
    }

    #[test]
    fn indentation_and_separators_follow_python() {
        let json = serde_json::json!({"b": [1, {"c": null}], "a": true});
        let pretty = Style {
            indent: Some(4),
            ..Style::default()
        };
        assert_eq!(
            write(&json, &pretty),
            "{\n    \"b\": [\n        1,\n        {\n            \"c\": null\n        }\n    ],\n    \"a\": true\n}"
        );
        let compact = Style {
            separators: Some(vec![",".to_owned(), ":".to_owned()]),
            sort_keys: true,
            ..Style::default()
        };
        assert_eq!(write(&json, &compact), r#"{"a":true,"b":[1,{"c":null}]}"#);
    }
}
