//! The types a setting may have.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::Kind;
use super::tree::{Node, Value};
use super::yaml::{self, Origin};

/// A type that a setting may have.
pub trait Setting: Sized {
    /// What it accepts.
    const KIND: Kind;
    /// May be absent.
    const OPTIONAL: bool = false;
    /// Never shown.
    const SECRET: bool = false;

    /// The value of a node; `None` when the node holds something else. A relative path starts at `directory`.
    fn from_node(node: &Node, directory: &Path) -> Option<Self>;

    /// The value for `--print-config`.
    fn show(&self) -> Json;

    /// The value of a setting nobody gave; only an optional one has it.
    fn absent() -> Option<Self> {
        None
    }

    /// The value as a number, to be held against the bounds of the field.
    fn number(&self) -> Option<f64> {
        None
    }

    /// What is wrong with a value of the right type; never the value itself.
    fn unfit(&self) -> Option<&'static str> {
        None
    }
}

/// Text that must not be shown. `Debug` hides it; nothing prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// A secret as it comes out of a file or a variable: the line ends at its end are the file's.
    pub fn from_outside(text: &str) -> Self {
        Self::new(text.trim_end_matches(['\r', '\n']))
    }

    /// The text, for the one place that must send or compare it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(********)")
    }
}

/// An address that starts with `http://` or `https://`. A credential in it is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Url(String);

impl From<Url> for String {
    fn from(url: Url) -> Self {
        url.0
    }
}

impl Deref for Url {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_credentials(&self.0))
    }
}

impl Setting for Url {
    const KIND: Kind = Kind::Url;

    fn from_node(node: &Node, _: &Path) -> Option<Self> {
        let text = text_of(node)?.trim();
        let uri: http::Uri = text.parse().ok()?;
        let named = uri.host().is_some_and(|host| !host.is_empty());
        (named && matches!(uri.scheme_str(), Some("http" | "https"))).then(|| Self(text.to_owned()))
    }

    fn show(&self) -> Json {
        without_credentials(&self.0).into()
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    /// Reads `1048576`, `64MiB`, `20 GB`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let split = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1_000,
            "kib" => 1 << 10,
            "m" | "mb" => 1_000_000,
            "mib" => 1 << 20,
            "g" | "gb" => 1_000_000_000,
            "gib" => 1 << 30,
            "t" | "tb" => 1_000_000_000_000,
            "tib" => 1 << 40,
            _ => return None,
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Self);
        }
        let bytes = number.parse::<f64>().ok()? * factor as f64;
        (bytes.is_finite() && (0.0..9e18).contains(&bytes)).then_some(Self(bytes as u64))
    }
}

/// A table whose keys belong to someone else: a recipe's settings, an engine's options.
#[derive(Debug, Clone)]
pub struct Table(Option<Node>);

impl Table {
    pub(super) fn new(node: Option<Node>) -> Self {
        Self(node)
    }

    /// The tree, unless it is absent.
    pub fn node(&self) -> Option<&Node> {
        self.0.as_ref()
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().and_then(Node::entries).is_none_or(<[_]>::is_empty)
    }

    /// The table as JSON; keys as written.
    pub fn to_json(&self) -> Json {
        self.0.as_ref().map_or_else(|| json!({}), Node::to_json)
    }

    /// Where an entry stands.
    pub fn source_of(&self, key: &str) -> Option<&super::Source> {
        self.0.as_ref()?.at(key).map(Node::source)
    }

    /// One entry as JSON, whichever way its key is spelled.
    pub fn get(&self, key: &str) -> Option<Json> {
        self.0.as_ref()?.get(key).map(Node::to_json)
    }
}

/// The text of a node that may stand for text: quoted, or a word that is no boolean and no null.
pub fn text_of(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Text(text) => Some(text),
        Value::Word(word) if !matches!(node.kind(), "a boolean" | "null") => Some(word),
        // What a flag or a variable says is text, whatever it looks like.
        Value::Word(word) if !matches!(node.source, super::Source::File { .. }) => Some(word),
        _ => None,
    }
}

impl Setting for String {
    const KIND: Kind = Kind::Text;

    fn from_node(node: &Node, _: &Path) -> Option<Self> {
        text_of(node).map(str::to_owned)
    }

    fn show(&self) -> Json {
        without_credentials(self).into()
    }
}

impl Setting for Secret {
    const KIND: Kind = Kind::Text;
    const SECRET: bool = true;

    fn from_node(node: &Node, _: &Path) -> Option<Self> {
        text_of(node).map(Self::from_outside)
    }

    fn show(&self) -> Json {
        "********".into()
    }

    fn unfit(&self) -> Option<&'static str> {
        let control = self.0.bytes().any(|byte| byte < 0x20 || byte == 0x7f);
        control.then_some("holds a line end or another control character")
    }
}

impl Setting for PathBuf {
    const KIND: Kind = Kind::Path;

    fn from_node(node: &Node, directory: &Path) -> Option<Self> {
        text_of(node)
            .filter(|text| !text.is_empty() && !text.contains('\0'))
            .map(|text| directory.join(text))
    }

    fn show(&self) -> Json {
        self.display().to_string().into()
    }
}

impl Setting for bool {
    const KIND: Kind = Kind::Bool;

    fn from_node(node: &Node, _: &Path) -> Option<Self> {
        match &node.value {
            Value::Bool(value) => Some(*value),
            Value::Word(word) => match word.as_str() {
                "true" | "True" | "TRUE" => Some(true),
                "false" | "False" | "FALSE" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    fn show(&self) -> Json {
        (*self).into()
    }
}

macro_rules! integer {
    ($($ty:ty = $min:expr, $max:expr;)+) => {$(
        impl Setting for $ty {
            const KIND: Kind = Kind::Integer { min: $min, max: $max };

            fn from_node(node: &Node, _: &Path) -> Option<Self> {
                match &node.value {
                    Value::Int(value) => Self::try_from(*value).ok(),
                    Value::Word(word) => word.parse().ok(),
                    _ => None,
                }
            }

            fn show(&self) -> Json {
                (*self).into()
            }

            fn number(&self) -> Option<f64> {
                Some(*self as f64)
            }
        }
    )+};
}

integer! {
    u16 = 0, 65_535;
    u32 = 0, 4_294_967_295;
    u64 = 0, i64::MAX;
    i64 = i64::MIN, i64::MAX;
    usize = 0, i64::MAX;
}

impl Setting for f64 {
    const KIND: Kind = Kind::Number;

    fn from_node(node: &Node, _: &Path) -> Option<Self> {
        let number = match &node.value {
            Value::Int(value) => *value as Self,
            Value::Float(value) => *value,
            Value::Word(word) => word.parse().ok()?,
            _ => return None,
        };
        number.is_finite().then_some(number)
    }

    fn show(&self) -> Json {
        if self.fract() == 0.0 && self.abs() < 1e15 {
            (*self as i64).into()
        } else {
            (*self).into()
        }
    }

    fn number(&self) -> Option<Self> {
        Some(*self)
    }
}

impl Setting for Duration {
    const KIND: Kind = Kind::Seconds;

    fn from_node(node: &Node, directory: &Path) -> Option<Self> {
        f64::from_node(node, directory).and_then(|seconds| Self::try_from_secs_f64(seconds).ok())
    }

    fn show(&self) -> Json {
        self.as_secs_f64().show()
    }

    fn number(&self) -> Option<f64> {
        Some(self.as_secs_f64())
    }
}

impl Setting for Size {
    const KIND: Kind = Kind::Size;

    fn from_node(node: &Node, _: &Path) -> Option<Self> {
        match &node.value {
            Value::Int(value) => u64::try_from(*value).ok().map(Self),
            Value::Text(text) | Value::Word(text) => Self::parse(text),
            _ => None,
        }
    }

    fn show(&self) -> Json {
        self.0.into()
    }

    fn number(&self) -> Option<f64> {
        Some(self.0 as f64)
    }
}

/// A list of a scalar type. On the command line it is one quoted JSON or YAML list.
macro_rules! list {
    ($($ty:ty)+) => {$(
        impl Setting for Vec<$ty> {
            const KIND: Kind = Kind::TextList;
            const SECRET: bool = <$ty as Setting>::SECRET;

            fn from_node(node: &Node, directory: &Path) -> Option<Self> {
                match &node.value {
                    Value::List(items) => items.iter().map(|item| <$ty>::from_node(item, directory)).collect(),
                    _ => match &container(node)?.value {
                        Value::List(items) => items.iter().map(|item| <$ty>::from_node(item, directory)).collect(),
                        _ => None,
                    },
                }
            }

            fn show(&self) -> Json {
                self.iter().map(Setting::show).collect()
            }

            fn unfit(&self) -> Option<&'static str> {
                self.iter().find_map(Setting::unfit)
            }
        }
    )+};
}

list! { String Secret PathBuf }

impl Setting for Table {
    const KIND: Kind = Kind::Table;

    fn from_node(node: &Node, _: &Path) -> Option<Self> {
        let node = match &node.value {
            Value::Map(_) => node.clone(),
            _ => container(node)?,
        };
        node.entries().is_some().then(|| Self::new(Some(node)))
    }

    fn show(&self) -> Json {
        let mut json = self.to_json();
        mask(&mut json);
        json
    }
}

/// A list of tables: providers in order, say. Each is read with [`Settings::read_table`](super::Settings::read_table).
#[derive(Clone, Default)]
pub struct TableList(Vec<Table>);

impl TableList {
    /// The tables in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Table> {
        self.0.iter()
    }
}

impl Setting for TableList {
    const KIND: Kind = Kind::TableList;

    fn from_node(node: &Node, directory: &Path) -> Option<Self> {
        let node = match &node.value {
            Value::List(_) => node.clone(),
            _ => container(node)?,
        };
        let Value::List(items) = &node.value else { return None };
        let tables = items.iter().map(|item| Table::from_node(item, directory));
        tables.collect::<Option<Vec<_>>>().map(Self)
    }

    fn show(&self) -> Json {
        self.iter().map(Setting::show).collect()
    }
}

impl<T: Setting> Setting for Option<T> {
    const KIND: Kind = T::KIND;
    const OPTIONAL: bool = true;
    const SECRET: bool = T::SECRET;

    fn from_node(node: &Node, directory: &Path) -> Option<Self> {
        T::from_node(node, directory).map(Some)
    }

    fn show(&self) -> Json {
        self.as_ref().map_or(Json::Null, T::show)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }

    fn number(&self) -> Option<f64> {
        self.as_ref().and_then(T::number)
    }

    fn unfit(&self) -> Option<&'static str> {
        self.as_ref().and_then(T::unfit)
    }
}

/// A container given as one word of text on the command line or in a variable.
fn container(node: &Node) -> Option<Node> {
    let (Value::Word(text) | Value::Text(text)) = &node.value else {
        return None;
    };
    if matches!(node.source, super::Source::File { .. }) {
        return None;
    }
    yaml::read(text, Origin::Value(&node.source)).ok().flatten()
}

/// Hides, at any depth, whatever is named like a credential.
pub(super) fn mask(json: &mut Json) {
    match json {
        Json::Object(entries) => {
            for (key, value) in entries.iter_mut() {
                if names_a_secret(key) && !value.is_null() {
                    *value = "********".into();
                } else {
                    mask(value);
                }
            }
        }
        Json::Array(items) => items.iter_mut().for_each(mask),
        Json::String(text) => *text = without_credentials(text),
        _ => {}
    }
}

fn names_a_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase().replace('-', "_");
    let counts_tokens = ["max_tokens", "tokens_per", "num_tokens", "tokenizer"]
        .iter()
        .any(|word| key.contains(word));
    !counts_tokens
        && !key.ends_with("_env")
        && [
            "token",
            "key",
            "password",
            "passwd",
            "secret",
            "authorization",
            "credential",
            "headers",
            "database_url",
        ]
        .iter()
        .any(|word| key.contains(word))
}

/// A URL's user and password are credentials, and what follows a name in its query may be one.
fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (mask, rest) = match rest[..end].rfind('@') {
        Some(at) => ("********", &rest[at..]),
        None => ("", rest),
    };
    let Some((before, query)) = rest.split_once('?') else {
        return format!("{scheme}://{mask}{rest}");
    };
    let (query, fragment) = query.find('#').map_or((query, ""), |at| query.split_at(at));
    let masked: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, _)) => format!("{name}=********"),
            None => pair.to_owned(),
        })
        .collect();
    format!("{scheme}://{mask}{before}?{}{fragment}", masked.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_decimal_and_binary_units() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("64MiB", 64 << 20),
            ("20 GB", 20_000_000_000),
            ("1.5kib", 1536),
        ] {
            assert_eq!(Size::parse(text), Some(Size(bytes)), "{text}");
        }
        for text in ["", "MiB", "-1", "1.2.3", "1 parsec", "99999999999TiB"] {
            assert_eq!(Size::parse(text), None, "{text}");
        }
    }

    #[test]
    fn credentials_are_masked_at_any_depth() {
        let mut json = json!({
            "model": "m", "max_tokens": 7, "nested": [{"api-key": "hunter2", "url": "https://u:hunter2@h/p?q#f"}],
            "headers": {"x": "hunter2"}, "api_key_env": "NAME",
        });
        mask(&mut json);
        assert!(!json.to_string().contains("hunter2"), "{json}");
        assert_eq!(json["max_tokens"], 7);
        assert_eq!(json["api_key_env"], "NAME");
        assert_eq!(json["nested"][0]["url"], "https://********@h/p?q#f");
        for (text, shown) in [
            ("https://h/p?key=hunter2&n=1#f", "https://h/p?key=********&n=********#f"),
            ("https://u:hunter2@h?key=hunter2", "https://********@h?key=********"),
            ("plain ? a=b", "plain ? a=b"),
        ] {
            assert_eq!(without_credentials(text), shown);
        }
    }
}
