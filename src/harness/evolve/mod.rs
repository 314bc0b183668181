//! Proposing a better tree: from what went wrong, or from what a person asked for, to a list of mutations. Everything a
//! proposer says passes admission; nothing it says is run here.

mod digest;
mod model;
mod program;
mod reflect;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use digest::mutations_digest;
pub use model::ProposerModel;
pub use program::propose_by_program;
pub use reflect::propose_by_reflection;

use super::adapter::Adapter;
use super::tree::{Admitted, Mutation, Op, Origin, Policy, Tree, admit};
use crate::sys::random;

/// Something that went wrong, as it was served and reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// The exchange.
    pub record: String,
    /// What was reported.
    pub score: Option<f64>,
    /// In the reporter's words.
    pub feedback: Option<Value>,
    /// The conversation, newest part last.
    pub conversation: String,
    /// What was answered.
    pub answer: String,
}

/// An earlier attempt and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Past {
    /// `rejected`, `skipped`, `published`, …
    pub state: String,
    /// What it changed.
    pub mutations: Value,
    /// Why it was proposed.
    pub reason: Option<String>,
    /// What became of it.
    pub outcome: Option<String>,
    /// Tasks the candidate failed at the gate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failing: Vec<String>,
}

/// What a proposer is told.
#[derive(Debug, Clone)]
pub struct Context<'a> {
    /// The scenario.
    pub scenario: &'a str,
    /// The tree as it is served.
    pub tree: &'a Tree,
    /// The agent it is for.
    pub adapter: &'a Adapter,
    /// Kinds it may touch.
    pub kinds: &'a [String],
    /// What went wrong.
    pub traces: &'a [Trace],
    /// What a person or an agent asked for.
    pub instruction: Option<&'a str>,
    /// Earlier attempts, newest first.
    pub past: &'a [Past],
    /// What admission goes by.
    pub policy: &'a Policy,
    /// Now, in microseconds since 1970.
    pub at_us: i64,
}

/// What a proposer came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Proposed {
    /// A change.
    Change(Proposal),
    /// Nothing; why.
    Nothing(String),
}

/// A change of a tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// What changes.
    pub mutations: Vec<Mutation>,
    /// Why.
    pub reason: String,
    /// Further notes for the page: the design, what was left out.
    pub notes: Map<String, Value>,
}

/// Why there is no proposal.
#[derive(Debug, thiserror::Error)]
pub enum ProposerError {
    /// The proposer's model could not be asked.
    #[error("the proposer's model did not answer: {reason}")]
    Model {
        /// What happened.
        reason: String,
    },
    /// What it said is no proposal, also when asked again.
    #[error("malformed proposal: {reason}")]
    Malformed {
        /// What is wrong with it.
        reason: String,
    },
    /// The program failed.
    #[error("the proposer's program failed: {reason}")]
    Program {
        /// What happened.
        reason: String,
    },
    /// No more calls may be made.
    #[error("{reason}")]
    Budget {
        /// Which budget.
        reason: String,
    },
    /// Somebody asked it to stop.
    #[error("stopped")]
    Stopped,
}

impl Context<'_> {
    /// Checks a change as the step will; for proposers that want to know before they finish.
    pub fn check(&self, mutations: &[Mutation]) -> Result<Admitted, String> {
        if let Some(kind) = self.kind_refused(mutations) {
            return Err(format!(
                "entries of kind {kind} are not for this proposer; the kinds are {}",
                self.kinds.join(", ")
            ));
        }
        admit(
            self.tree,
            mutations,
            self.adapter,
            self.policy,
            &Origin::default(),
            self.at_us,
        )
        .map_err(|refusal| refusal.to_string())
    }

    fn kind_refused(&self, mutations: &[Mutation]) -> Option<String> {
        let kinds: BTreeSet<&str> = self.kinds.iter().map(String::as_str).collect();
        mutations.iter().find_map(|mutation| {
            let named = || {
                let word = mutation.options.get("name").or_else(|| mutation.options.get("kind"))?;
                Some(word.as_str()?.to_owned())
            };
            let kind = match mutation.op {
                Op::Create => named(),
                Op::Update | Op::Remove => self
                    .tree
                    .get(&mutation.id)
                    .map(|entry| entry.kind().as_str().to_owned()),
            }?;
            let kind = super::tree::Kind::from_word(&kind).map_or(kind, |kind| kind.as_str().to_owned());
            (!kinds.contains(kind.as_str())).then_some(kind)
        })
    }

    /// Everything, for an external program.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "scenario": self.scenario,
            "adapter": self.adapter.name,
            "kinds": self.kinds,
            "entries": self.tree.entries_json(),
            "traces": self.traces,
            "instruction": self.instruction,
            "past": self.past,
            "untrusted": ["traces", "instruction"],
        })
    }
}

/// Puts text of strangers between lines it cannot forge, so that it stays data.
pub(crate) fn fenced(label: &str, text: &str) -> String {
    let token = random::hex_token();
    format!("<<<{label} {token}\n{text}\n{label} {token}>>>")
}

/// At most `most` characters, the middle left out.
pub(crate) fn clipped(text: &str, most: usize) -> String {
    let n = text.chars().count();
    if n <= most {
        return text.to_owned();
    }
    let half = most / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().skip(n - half).collect();
    format!("{head}\n[{} characters left out]\n{tail}", n - 2 * half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_cannot_be_forged_and_differs_each_time() {
        let (one, two) = (fenced("TRACE", "x"), fenced("TRACE", "x"));
        assert_ne!(one, two);
        assert!(one.contains("\nx\n"));
    }

    #[test]
    fn clipping_keeps_both_ends() {
        let text: String = (0..1000).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
        let clip = clipped(&text, 100);
        assert!(
            clip.starts_with("abc") && clip.contains("900 characters left out"),
            "{clip}"
        );
        assert_eq!(clipped("short", 100), "short");
    }
}
