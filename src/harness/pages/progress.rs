//! How far an instruction or a proposal has come.

use serde_json::{Map, Value, json};

use crate::experience::{Attempt, AttemptEvent, AttemptState, StepRow};
use crate::sys::clock;

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It waits for its turn.
    Queued,
    /// A proposer thinks.
    Proposing,
    /// The trees are compared.
    Evaluating,
    /// It was decided and is being written down.
    Settling,
    /// It is a release.
    Selected,
    /// A person decides.
    Pending,
    /// It was not better.
    Rejected,
    /// Nothing came of it.
    Skipped,
    /// It went wrong.
    Failed,
}

impl State {
    /// The word sent.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Proposing => "proposing",
            Self::Evaluating => "evaluating",
            Self::Settling => "settling",
            Self::Selected => "selected",
            Self::Pending => "pending",
            Self::Rejected => "rejected",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }

    /// The stages before, for a page.
    pub(super) const STAGES: [Self; 4] = [Self::Queued, Self::Proposing, Self::Evaluating, Self::Settling];

    /// What it means, in a sentence.
    fn meaning(self) -> &'static str {
        match self {
            Self::Queued => "It waits for its turn; one instruction runs at a time.",
            Self::Proposing => "A change of the tree is being written.",
            Self::Evaluating => "The tree with the change and the one without it run the same tasks.",
            Self::Settling => "The decision is being written down.",
            Self::Selected => "The change is released; agents get it with their next update.",
            Self::Pending => "The change passed and waits for a person to promote it.",
            Self::Rejected => "The change was not better by the gate's rule; what is served stays as it is.",
            Self::Skipped => "Nothing came of it; what is served stays as it is.",
            Self::Failed => "It went wrong; what is served stays as it is.",
        }
    }

    /// Of a settled step.
    pub(super) fn of_step(step: &StepRow) -> Self {
        let failure = step
            .metrics
            .get("proposal_notes")
            .and_then(|notes| notes.get("failure"));
        match step.outcome.as_str() {
            "held" => Self::Pending,
            "released" => Self::Selected,
            "rejected" => Self::Rejected,
            _ if step.metrics.contains_key("error") || failure.is_some_and(|failure| !failure.is_null()) => {
                Self::Failed
            }
            _ => Self::Skipped,
        }
    }
}

/// How far a request has come.
#[derive(Debug, Clone)]
pub struct Progress {
    /// The request's record.
    pub request_id: String,
    /// Where it is.
    pub state: State,
    /// The step that settled it.
    pub step: Option<u64>,
    /// What became of it, where it is settled.
    pub outcome: Option<String>,
    /// When work on it began, microseconds since 1970.
    pub started_us: Option<i64>,
    /// Episodes it takes, where known.
    pub episodes_total: Option<u64>,
    /// What was done for it, oldest first.
    pub activity: Vec<AttemptEvent>,
}

impl Progress {
    /// From what the store knows: the attempt that serves the request, what it did, and the step that settled it.
    pub fn of(
        request_id: &str,
        attempt: Option<&Attempt>,
        activity: Vec<AttemptEvent>,
        settled: Option<&StepRow>,
    ) -> Self {
        let state = match (settled, attempt.map(|attempt| attempt.state)) {
            (Some(step), _) => State::of_step(step),
            (None, None | Some(AttemptState::Queued)) => State::Queued,
            (None, Some(AttemptState::Proposing)) => State::Proposing,
            (None, Some(AttemptState::Evaluating)) => State::Evaluating,
            // Its end is decided; the step that says so is not there yet.
            (None, Some(_)) => State::Settling,
        };
        Self {
            request_id: request_id.to_owned(),
            state,
            step: settled.map(|step| step.step),
            outcome: settled
                .and_then(|step| step.reason.clone())
                .or_else(|| attempt.and_then(|attempt| attempt.outcome.clone())),
            started_us: attempt.map(|attempt| attempt.begun_us),
            episodes_total: attempt
                .and_then(|attempt| attempt.notes.get("episodes_total"))
                .and_then(Value::as_u64),
            activity,
        }
    }

    /// Whether nothing more happens.
    pub fn settled(&self) -> bool {
        self.step.is_some()
    }

    /// What its state means, with the reason where there is one.
    pub fn meaning(&self) -> String {
        match self.outcome.as_deref().filter(|_| self.settled()) {
            Some(outcome) if !outcome.is_empty() => format!("{} {outcome}", self.state.meaning()),
            _ => self.state.meaning().to_owned(),
        }
    }

    /// The document sent.
    pub fn to_json(&self) -> Value {
        let mut value = Map::new();
        value.insert("request_id".to_owned(), json!(self.request_id));
        value.insert("settled".to_owned(), json!(self.settled()));
        value.insert("step".to_owned(), json!(self.step));
        value.insert("state".to_owned(), json!(self.state.as_str()));
        value.insert("meaning".to_owned(), json!(self.meaning()));
        if let Some(started) = self.started_us {
            value.insert("started_at".to_owned(), json!(clock::seconds(started)));
        }
        if let Some(episodes) = self.episodes_total {
            value.insert("episodes_total".to_owned(), json!(episodes));
        }
        value.insert("activity".to_owned(), json!(self.activity));
        Value::Object(value)
    }
}
