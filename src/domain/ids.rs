//! Identifiers. Three identities never mix: a [`ReleaseId`] is a decision, a [`ContentId`] is bytes, a
//! [`RuntimeLoadId`] is one load of those bytes into one engine.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A name or id that breaks its rule; the message states the rule and never repeats a long or unprintable value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {shown} is not valid: {rule}")]
pub struct InvalidName {
    what: &'static str,
    shown: String,
    rule: &'static str,
}

impl InvalidName {
    fn new(what: &'static str, value: &str, rule: &'static str) -> Self {
        let mut shown: String = value.chars().take(60).flat_map(char::escape_default).collect();
        if value.chars().count() > 60 {
            shown.push('…');
        }
        Self {
            what,
            shown: format!("\"{shown}\""),
            rule,
        }
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks the rule of this kind of id.
            pub fn new(value: impl Into<String>) -> Result<Self, InvalidName> {
                let value = value.into();
                let check: fn(&str) -> bool = $check;
                if check(&value) { Ok(Self(value)) } else { Err(InvalidName::new($what, &value, $rule)) }
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;
            fn from_str(s: &str) -> Result<Self, InvalidName> {
                Self::new(s)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(s: String) -> Result<Self, InvalidName> {
                Self::new(s)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}

text_id!(
    /// The isolated workload a request belongs to: its records, its learning and its release chain. It becomes part of
    /// a git ref and of paths, hence the narrow alphabet.
    ScenarioName,
    "scenario name",
    "use 1 to 128 letters, digits, '.', '_' or '-', starting with a letter or digit, without '..', a final '.' or a final '.lock'",
    |s| {
        let bytes = s.as_bytes();
        (1..=128).contains(&bytes.len())
            && bytes[0].is_ascii_alphanumeric()
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
            && !s.contains("..")
            && !s.ends_with('.')
            && !s.ends_with(".lock")
    }
);

text_id!(
    /// The id of one stored exchange, report or instruction. For an exchange it is the receipt.
    RecordId,
    "record id",
    "use 1 to 256 printable ASCII characters without spaces",
    |s| (1..=256).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_graphic())
);

text_id!(
    /// One publication decision: the commit in the artifact repository that made it, as hex.
    ReleaseId,
    "release id",
    "use 1 to 256 printable ASCII characters without spaces",
    |s| (1..=256).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_graphic())
);

text_id!(
    /// The bytes of an artifact: `sha256:` and the digest of its canonical manifest as 64 hex digits.
    ContentId,
    "content id",
    "use 'sha256:' and 64 lower-case hex digits",
    |s| s.strip_prefix("sha256:").is_some_and(|h| {
        h.len() == 64 && h.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
);

text_id!(
    /// A sealed batch: the same inputs give the same id.
    BatchId,
    "batch id",
    "use 1 to 256 printable ASCII characters without spaces",
    |s| (1..=256).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_graphic())
);

impl RecordId {
    /// A fresh id: a version 7 UUID as 32 hex digits, so ids sort by time.
    pub fn from_uuid(uuid: uuid::Uuid) -> Self {
        Self(uuid.simple().to_string())
    }
}

/// One load of an artifact into one engine: `<incarnation>:<sequence>`. Loads are ordered within one incarnation of an
/// engine and cannot be compared across two.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RuntimeLoadId {
    incarnation: String,
    sequence: u64,
}

impl RuntimeLoadId {
    /// The `sequence`-th load of the engine process named `incarnation` (hex digits, no ':').
    pub fn new(incarnation: impl Into<String>, sequence: u64) -> Result<Self, InvalidName> {
        let incarnation = incarnation.into();
        if incarnation.is_empty() || incarnation.len() > 64 || !incarnation.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(InvalidName::new("runtime load id", &incarnation, Self::RULE));
        }
        Ok(Self { incarnation, sequence })
    }

    const RULE: &'static str =
        "use '<incarnation>:<sequence>', letters and digits, then a number without leading zeros";

    /// Which process of the engine made the load.
    pub fn incarnation(&self) -> &str {
        &self.incarnation
    }

    /// The number of the load within its incarnation.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// How many loads `self` is behind `serving`; `None` across incarnations or when `self` is newer.
    pub fn lag_behind(&self, serving: &Self) -> Option<u64> {
        if self.incarnation == serving.incarnation {
            serving.sequence.checked_sub(self.sequence)
        } else {
            None
        }
    }
}

impl fmt::Display for RuntimeLoadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.incarnation, self.sequence)
    }
}

impl fmt::Debug for RuntimeLoadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RuntimeLoadId({self})")
    }
}

impl FromStr for RuntimeLoadId {
    type Err = InvalidName;

    fn from_str(s: &str) -> Result<Self, InvalidName> {
        let bad = || InvalidName::new("runtime load id", s, Self::RULE);
        let (incarnation, sequence) = s.split_once(':').ok_or_else(bad)?;
        let number: u64 = sequence.parse().map_err(|_| bad())?;
        if number.to_string() != sequence {
            return Err(bad());
        }
        Self::new(incarnation, number)
    }
}

impl TryFrom<String> for RuntimeLoadId {
    type Error = InvalidName;
    fn try_from(s: String) -> Result<Self, InvalidName> {
        s.parse()
    }
}

impl From<RuntimeLoadId> for String {
    fn from(id: RuntimeLoadId) -> String {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_names_cannot_leave_their_directory_or_break_a_ref() {
        for good in ["a", "math-tutor", "Team.7_x", "0"] {
            assert!(ScenarioName::new(good).is_ok(), "{good}");
        }
        let long = "x".repeat(129);
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "a..b",
            "a.lock",
            "a.",
            "-a",
            "a b",
            "a\0",
            "ä",
            "a\n",
            long.as_str(),
        ] {
            assert!(ScenarioName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn load_ids_are_canonical_and_ordered_within_an_incarnation_only() {
        let a: RuntimeLoadId = "ab12:3".parse().unwrap();
        let b: RuntimeLoadId = "ab12:5".parse().unwrap();
        let c: RuntimeLoadId = "ff:5".parse().unwrap();
        assert_eq!(a.lag_behind(&b), Some(2));
        assert_eq!(b.lag_behind(&a), None);
        assert_eq!(a.lag_behind(&c), None);
        for bad in ["", "a", "a:", ":1", "a:01", "a:-1", "a:1:2", "a b:1"] {
            assert!(bad.parse::<RuntimeLoadId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_refused_name_is_shown_short_and_printable() {
        let error = ScenarioName::new("\u{1b}[31m".repeat(100)).unwrap_err().to_string();
        assert!(error.len() < 700 && !error.contains('\u{1b}'), "{error}");
    }
}
