//! What is tried on a harness tree, what waits, and what led to it, read from the documents of the HTTP interface.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::experience::{AttemptEvent, Failure, RequestStory};

use super::read::{moment, text, whole};
use super::text::figures;
use crate::domain::readable;

/// An attempt at a better tree.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AttemptFacts {
    /// Its id.
    pub id: String,
    /// Where it is, or how it ended.
    pub state: String,
    /// `failures`, `instruction`, `proposal` or `recheck`.
    pub source: String,
    /// The instruction, the proposal or the release behind it.
    pub request: Option<String>,
    /// What was asked for.
    pub asked: Option<String>,
    /// The session that asked.
    pub session: Option<String>,
    /// The release it starts from.
    pub base: String,
    /// The step that records its end.
    pub step: Option<u64>,
    /// What it made.
    pub release: Option<String>,
    /// Why it was proposed.
    pub reason: Option<String>,
    /// What became of it.
    pub outcome: Option<String>,
    /// Its mutations.
    pub edits: Vec<Edit>,
    /// The gate's word and its reason.
    pub verdict: Option<(String, String)>,
    /// The gate's figures.
    pub figures: Vec<(String, String)>,
    /// Tasks the candidate was worse on.
    pub worse_on: Vec<String>,
    /// The failures that led to it, worst first.
    pub failures: Vec<Failure>,
    /// How many there are.
    pub failures_total: u64,
    /// What it did, oldest first, where that was asked for.
    pub activity: Vec<AttemptEvent>,
    /// When it began.
    pub began_us: i64,
    /// When it changed last.
    pub changed_us: i64,
}

/// One mutation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Edit {
    /// `create`, `update` or `remove`.
    pub op: String,
    /// The entry.
    pub entry: String,
    /// What it is given, JSON indented; empty for a removal.
    pub options: String,
}

impl Edit {
    /// In a word: `+id`, `~id`, `-id`.
    pub(super) fn short(&self) -> String {
        let sign = match self.op.as_str() {
            "create" => '+',
            "remove" => '-',
            _ => '~',
        };
        format!("{sign}{}", self.entry)
    }
}

/// A proposal of an agent or a person.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProposalFacts {
    /// Its id.
    pub id: String,
    /// `waiting`, `claimed`, `settled` or `refused`.
    pub state: String,
    /// Why, in the proposer's words.
    pub reason: String,
    /// The session it came from.
    pub session: String,
    /// The release it was admitted against.
    pub release: String,
    /// Its mutations.
    pub edits: Vec<Edit>,
    /// What became of it.
    pub outcome: Option<String>,
    /// When it came.
    pub at_us: i64,
}

impl ProposalFacts {
    /// Whether a step has yet to try it.
    pub(super) fn waits(&self) -> bool {
        matches!(self.state.as_str(), "waiting" | "claimed")
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The items of a list that the store has a type for; what another version sends and this one cannot read is left out.
pub(super) fn known<T: DeserializeOwned>(list: &Value) -> Vec<T> {
    items(list)
        .iter()
        .filter_map(|item| T::deserialize(item).ok())
        .collect()
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn edits(mutations: &Value) -> Vec<Edit> {
    items(mutations)
        .iter()
        .map(|mutation| Edit {
            op: text(mutation, "op").unwrap_or_default(),
            entry: text(mutation, "id").unwrap_or_default(),
            options: mutation
                .get("options")
                .and_then(|options| serde_json::to_string_pretty(&readable(options)).ok())
                .unwrap_or_default(),
        })
        .collect()
}

/// An attempt as `GET /reef/harness/attempts` gives it.
pub(super) fn attempt(of: &Value) -> AttemptFacts {
    let verdict = &of["verdict"];
    AttemptFacts {
        id: text(of, "attempt_id").unwrap_or_default(),
        state: text(of, "state").unwrap_or_default(),
        source: text(of, "source").unwrap_or_default(),
        request: text(of, "request_id"),
        asked: text(of, "asked"),
        session: text(of, "session"),
        base: text(of, "base_release_id").unwrap_or_default(),
        step: whole(of, "step"),
        release: text(of, "release_id"),
        reason: text(of, "reason"),
        outcome: text(of, "outcome"),
        edits: edits(&of["mutations"]),
        verdict: text(verdict, "outcome").map(|word| (word, text(verdict, "reason").unwrap_or_default())),
        figures: verdict["figures"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.clone(), figures(value)))
            .collect(),
        worse_on: items(&of["worse_on"]).iter().map(shown).collect(),
        failures: known(&of["failures"]),
        failures_total: whole(of, "failures_total").unwrap_or(0),
        activity: known(&of["activity"]),
        began_us: moment(of, "began_at").unwrap_or(0),
        changed_us: moment(of, "changed_at").unwrap_or(0),
    }
}

/// A proposal as `GET /reef/harness/proposals` gives it.
pub(super) fn proposal(of: &Value) -> ProposalFacts {
    ProposalFacts {
        id: text(of, "proposal_id").unwrap_or_default(),
        state: text(of, "state").unwrap_or_default(),
        reason: text(of, "reason").unwrap_or_default(),
        session: text(of, "session").unwrap_or_default(),
        release: text(of, "release_id").unwrap_or_default(),
        edits: edits(&of["mutations"]),
        outcome: text(of, "outcome"),
        at_us: moment(of, "received_at").unwrap_or(0),
    }
}

/// What the harness screen lists beside the tree.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evolution {
    /// The newest attempts, newest first.
    pub attempts: Vec<AttemptFacts>,
    /// The newest proposals, newest first.
    pub proposals: Vec<ProposalFacts>,
    /// The newest instructions, newest first.
    pub requests: Vec<RequestStory>,
}
