//! Why a tree or a proposal is not admitted.

use std::fmt;

use serde::Serialize;

/// The rule that was broken, as a word for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// An id the program keeps for itself.
    ReservedId,
    /// Not an id, or not a name.
    InvalidName,
    /// The shape of an entry or a mutation.
    Shape,
    /// A kind nobody knows.
    UnknownKind,
    /// A group of entries.
    Group,
    /// An id that is there already.
    DuplicateId,
    /// An id that is not there.
    MissingId,
    /// An update that changes the kind.
    KindChange,
    /// Something is larger than allowed.
    TooLarge,
    /// Text that looks like a credential, or a key that names one.
    Credential,
    /// Text that looks like an instruction to override instructions.
    Directive,
    /// Writing to the terminal from inside the agent.
    ConsoleWrite,
    /// The agent has no place for it.
    Unsupported,
    /// A setting that no tree may set.
    Setting,
    /// The tree as a whole does not render.
    Render,
}

impl Rule {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReservedId => "reserved_id",
            Self::InvalidName => "invalid_name",
            Self::Shape => "shape",
            Self::UnknownKind => "unknown_kind",
            Self::Group => "group",
            Self::DuplicateId => "duplicate_id",
            Self::MissingId => "missing_id",
            Self::KindChange => "kind_change",
            Self::TooLarge => "too_large",
            Self::Credential => "credential",
            Self::Directive => "directive",
            Self::ConsoleWrite => "console_write",
            Self::Unsupported => "unsupported",
            Self::Setting => "setting",
            Self::Render => "render",
        }
    }
}

/// One reason. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The rule.
    pub rule: Rule,
    /// The mutation, counted from 0, where a proposal is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutation: Option<usize>,
    /// The entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
    /// What is wrong, and what to do. Never repeats a credential.
    pub reason: String,
}

impl Refusal {
    pub(super) fn new(rule: Rule, reason: impl Into<String>) -> Self {
        Self {
            rule,
            mutation: None,
            entry: None,
            reason: reason.into(),
        }
    }

    pub(super) fn entry(mut self, id: &str) -> Self {
        if self.entry.is_none() {
            self.entry = Some(shown(id));
        }
        self
    }

    pub(super) fn mutation(mut self, at: usize) -> Self {
        self.mutation = Some(at);
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.mutation {
            write!(f, "mutation {at}, ")?;
        }
        if let Some(entry) = &self.entry {
            write!(f, "entry \"{entry}\": ")?;
        }
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Refusal {}

/// Foreign text inside a message: short and printable.
pub(super) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(60).flat_map(char::escape_default).collect();
    if text.chars().count() > 60 {
        shown.push('…');
    }
    shown
}
