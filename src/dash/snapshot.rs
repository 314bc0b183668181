//! Everything the screens show, at one moment. Plain values: the same from files and over HTTP.

use std::collections::BTreeMap;

use serde::Serialize;

use super::evolution::Evolution;
use crate::domain::Verdict;

/// What there was to see at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// When it was taken, microseconds since the Unix epoch.
    pub at_us: i64,
    /// Where it comes from: a directory or a URL.
    pub source: String,
    /// The service on these files, if one runs.
    pub service: Option<Service>,
    /// The store as a whole.
    pub store: StoreFacts,
    /// Every active scenario, by name.
    pub scenarios: Vec<ScenarioFacts>,
    /// More about one of them.
    #[serde(skip)]
    pub focus: Option<Focus>,
}

/// A running service.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Service {
    /// Where it is reached.
    pub url: String,
    /// Its process, when it is on this machine.
    pub pid: Option<u32>,
    /// What it says of itself; nothing when it did not answer.
    pub live: Option<Live>,
}

/// What a service says of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Live {
    /// Its version.
    pub version: String,
    /// The kind of its engine.
    pub engine: String,
    /// Since when it runs, seconds.
    pub uptime_s: f64,
    /// Requests being answered now.
    pub in_flight: u64,
    /// Writes waiting for the store.
    pub queue_depth: u64,
}

/// The store as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct StoreFacts {
    /// Why it cannot be used, if it cannot.
    pub error: Option<String>,
    /// Size of the file, where it is at hand.
    pub file_bytes: Option<u64>,
    /// Bodies as stored.
    pub stored_bytes: u64,
    /// Records whose bodies retention dropped.
    pub pruned: u64,
}

/// One scenario.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ScenarioFacts {
    /// Its name.
    pub name: String,
    /// What may start a step.
    pub mode: String,
    /// The release it serves.
    pub release: Option<String>,
    /// The concrete load, for an engine that loads weights.
    pub load: Option<String>,
    /// The last step.
    pub step: Option<u64>,
    /// What became of it: `released`, `rejected`, `skipped`, `held`, and once a person decided on one that was held,
    /// `promoted` or `refused`.
    pub outcome: Option<String>,
    /// When it ended.
    pub step_us: Option<i64>,
    /// What the loop is doing: `idle`, `training`, `judging`, …; empty when nobody says.
    pub phase: String,
    /// How far that is, 0 to 1.
    pub progress: Option<f64>,
    /// What needs a person's eye: a failed load, a failing step, a reason why nothing begins.
    pub trouble: Option<String>,
    /// Stored exchanges.
    pub exchanges: u64,
    /// Stored reports.
    pub reports: u64,
    /// Exchanges that never finished.
    pub interrupted: u64,
    /// Records used by batches.
    pub consumed: u64,
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Samples that wait for a batch, where a service says.
    pub pending: Option<u64>,
    /// Instructions nobody has followed yet.
    pub instructions: u64,
    /// Records left out of training, by reason.
    pub excluded: BTreeMap<String, u64>,
    /// Mean of all scores.
    pub mean_score: Option<f64>,
    /// Mean reward of the last steps, oldest first.
    pub rewards: Vec<f64>,
    /// When the newest record happened.
    pub last_us: Option<i64>,
}

/// More about one scenario.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Focus {
    /// Its name.
    pub scenario: String,
    /// The newest records, newest first.
    pub records: Vec<RecordFacts>,
    /// The newest steps, newest first.
    pub steps: Vec<StepFacts>,
    /// The newest jobs, newest first: when batches were sealed and how their steps went.
    pub jobs: Vec<JobFacts>,
    /// Files of the served release.
    pub files: Vec<FileFacts>,
    /// What is tried on the tree, and what waits.
    pub evolution: Evolution,
    /// Which of these are only the newest.
    pub newest: Newest,
}

/// Which lists end before all there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Newest {
    /// There may be older records.
    pub records: bool,
    /// There may be older steps.
    pub steps: bool,
    /// There may be older attempts.
    pub attempts: bool,
}

/// One record without its bodies.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordFacts {
    /// Its place in the order of arrival.
    pub sequence: i64,
    /// Its id; for an exchange, the receipt.
    pub id: String,
    /// `inference`, `report` or `train`.
    pub kind: String,
    /// When it happened.
    pub at_us: i64,
    /// HTTP status.
    pub status: Option<u16>,
    /// The route.
    pub route: Option<String>,
    /// The model that answered.
    pub model: Option<String>,
    /// Why it stopped.
    pub stop_reason: Option<String>,
    /// Tokens of the prompt.
    pub input_tokens: Option<u64>,
    /// Tokens generated.
    pub output_tokens: Option<u64>,
    /// Arrival to last byte, microseconds.
    pub total_us: Option<u64>,
    /// The release it was answered by.
    pub release: Option<String>,
    /// The load it was admitted under.
    pub load: Option<String>,
    /// The score of a report.
    pub score: Option<f64>,
    /// The exchanges a report grades.
    pub references: Vec<String>,
    /// Whether it was a stream.
    pub streamed: bool,
    /// Whether tokens were captured.
    pub captured: bool,
    /// Whether retention dropped its bodies.
    pub pruned: bool,
    /// Tags as `name=value`.
    pub tags: Vec<String>,
    /// What was asked and said, in short and on one line; empty where nobody looked.
    pub text: String,
}

/// A record with all there is to it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordDetail {
    /// Without the bodies.
    pub facts: RecordFacts,
    /// The request, JSON indented; as it came, when it is no JSON.
    pub request: Option<String>,
    /// The response, likewise, when no turn could be read from it.
    pub response: Option<String>,
    /// The visible answer.
    pub answer: String,
    /// Reasoning, where the provider shows it.
    pub reasoning: String,
    /// Tool calls as `name(arguments)`.
    pub tool_calls: Vec<String>,
    /// Reports on it, oldest first.
    pub reports: Vec<ReportFacts>,
    /// The batches that used it.
    pub consumed: Vec<String>,
    /// Its tokens.
    pub capture: Option<CaptureFacts>,
}

/// A report on an exchange.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportFacts {
    /// Its id.
    pub id: String,
    /// Its score.
    pub score: Option<f64>,
    /// What it says.
    pub feedback: String,
    /// When.
    pub at_us: i64,
}

/// The tokens of an exchange, in figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CaptureFacts {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens generated.
    pub tokens: usize,
    /// Why it ended.
    pub finish_reason: String,
    /// The sampling temperature.
    pub temperature: f32,
    /// First token, one past the last, and the load that made them.
    pub spans: Vec<(usize, usize, String)>,
}

/// One step with the release it made or kept.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepFacts {
    /// Its number.
    pub step: u64,
    /// The release it made, or that stayed.
    pub release: String,
    /// The release before it.
    pub parent: Option<String>,
    /// Why it was appended.
    pub operation: String,
    /// `released`, `held`, `rejected` or `skipped`.
    pub outcome: String,
    /// What became of the release since: `released`, `held`, `promoted`, `rejected`.
    pub state: String,
    /// `lora-adapter`, `harness-tree`, …
    pub kind: String,
    /// Size of its files.
    pub bytes: u64,
    /// Place in the chain.
    pub sequence: u64,
    /// The release whose content it republishes.
    pub target: Option<String>,
    /// Whether its content can be brought back.
    pub restorable: bool,
    /// What a person said.
    pub note: Option<String>,
    /// The verdict in a sentence.
    pub reason: Option<String>,
    /// When.
    pub at_us: i64,
    /// The batch it used.
    pub batch: Option<String>,
    /// Its numbers.
    pub metrics: BTreeMap<String, f64>,
    /// What was asked for, when an instruction asked.
    pub asked: Option<String>,
    /// The instruction that asked.
    pub asked_by: Option<String>,
}

impl StepFacts {
    /// Whether it made a release of its own.
    pub fn made_release(&self) -> bool {
        matches!(self.outcome.as_str(), "released" | "held")
    }

    /// Whether it waits for a person.
    pub fn waits(&self) -> bool {
        self.became() == "held"
    }

    /// How it ended; of a held one, also what a person decided since.
    pub fn became(&self) -> &str {
        became(&self.outcome, &self.state)
    }
}

/// How a step with this outcome ended, by the state that its release is in now. `refused` is a person's word, `rejected`
/// the gate's.
pub(super) fn became<'a>(outcome: &'a str, state: &str) -> &'a str {
    match (outcome, state) {
        ("held", "promoted") => "promoted",
        ("held", "rejected") => "refused",
        _ => outcome,
    }
}

/// A job: one batch on its way to a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobFacts {
    /// The step it makes.
    pub step: u64,
    /// `sealed`, `trained`, `judged`.
    pub stage: String,
    /// What became of it.
    pub outcome: Option<String>,
    /// Failed attempts at this stage.
    pub attempts: u32,
    /// Why the last one failed.
    pub error: Option<String>,
    /// When its batch was sealed.
    pub sealed_us: i64,
    /// When it ended.
    pub ended_us: Option<i64>,
}

/// One file of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileFacts {
    /// Its path.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

/// One file that differs between two releases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiffFile {
    /// Its path.
    pub path: String,
    /// What differs, line by line; unified where it is text.
    pub lines: Vec<String>,
}

/// The evidence of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    /// The step.
    pub step: u64,
    /// The gate's decision; none when no gate judged it.
    pub verdict: Option<Verdict>,
    /// Records of its batch that were graded worst, with what was said: what led to the candidate.
    pub failures: Vec<(String, f64, String)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_release_is_held_until_a_person_decides() {
        let step = |outcome: &str, state: &str| StepFacts {
            outcome: outcome.to_owned(),
            state: state.to_owned(),
            ..StepFacts::default()
        };
        for (outcome, state, word) in [
            ("held", "held", "held"),
            ("held", "promoted", "promoted"),
            ("held", "rejected", "refused"),
            // These kept a release that somebody had decided on before.
            ("rejected", "promoted", "rejected"),
            ("skipped", "rejected", "skipped"),
            ("released", "released", "released"),
        ] {
            let step = step(outcome, state);
            assert_eq!(
                (step.became(), step.waits()),
                (word, word == "held"),
                "{outcome} {state}"
            );
        }
    }
}
