//! What the gate says of a candidate, with its evidence.

use serde::{Deserialize, Serialize};

/// The decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Better by the rule: release it.
    Selected,
    /// Not better by the rule: keep what is served.
    Rejected,
    /// The rule could not decide within its budget.
    Inconclusive,
    /// The measurement itself failed; says nothing of the candidate.
    Invalid,
    /// A person must decide.
    Held,
}

impl Outcome {
    /// The word stored and sent.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Selected => "selected",
            Self::Rejected => "rejected",
            Self::Inconclusive => "inconclusive",
            Self::Invalid => "invalid",
            Self::Held => "held",
        }
    }
}

/// One task measured on both sides. `None` means the side could not be measured, which is never a loss.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PairedScore {
    /// The task's id in its suite.
    pub task: String,
    /// Which repetition of the task.
    pub repeat: u32,
    /// The candidate's score.
    pub candidate: Option<f64>,
    /// The served release's score on the same task and repetition.
    pub current: Option<f64>,
    /// A task that may not get worse.
    #[serde(default)]
    pub protected: bool,
    /// Why a side is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// What the candidate answered, where somebody asked for answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate_answer: Option<String>,
    /// What the served release answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_answer: Option<String>,
}

/// The gate's decision on one candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The decision.
    pub outcome: Outcome,
    /// The rule that made it (`paired`, `floor`, `win-margin`, `always`, `review`).
    pub selector: String,
    /// The decision in a sentence.
    pub reason: String,
    /// What was measured.
    pub evaluator: String,
    /// Task by task.
    pub pairs: Vec<PairedScore>,
    /// Figures of the rule: effect, p-value, wins, losses, …
    #[serde(default)]
    pub figures: serde_json::Map<String, serde_json::Value>,
}
