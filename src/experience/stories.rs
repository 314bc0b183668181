//! What was tried on a harness tree, what waits to be tried, and what led to it: as people look at it.

use std::collections::HashMap;

use rusqlite::params;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::attempts::{Attempt, AttemptEvent};
use super::error::{Doing, StoreError};
use super::proposals::Proposal;
use super::records::{Order, Record, RecordQuery, scenario_id};
use super::releases::StepQuery;
use super::store::Experience;
use crate::domain::{RecordId, RequestType, ScenarioName};
use crate::sys::clock;

/// Failures told of one attempt; the worst come first.
const FAILURES: usize = 20;

/// Something that went wrong and that an attempt learns from, as it is sent and shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The report that said so.
    pub report: Option<RecordId>,
    /// The receipts of the exchanges it is about.
    #[serde(default)]
    pub receipts: Vec<RecordId>,
    /// The grade.
    pub score: Option<f64>,
    /// What was said about it.
    #[serde(default)]
    pub feedback: String,
}

/// An attempt and what led to it.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptStory {
    /// The attempt.
    pub attempt: Attempt,
    /// What was asked for, by an instruction or a proposal.
    pub asked: Option<String>,
    /// The session that asked.
    pub session: Option<String>,
    /// The failures it learns from, worst first.
    pub failures: Vec<Failure>,
    /// How many there are.
    pub failures_total: usize,
}

/// An instruction and what became of it, as it is sent and shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestStory {
    /// Its record.
    #[serde(rename = "request_id")]
    pub id: RecordId,
    /// Its words; none once retention dropped them.
    pub text: Option<String>,
    /// The session it came from.
    pub session: Option<String>,
    /// `queued`, then the state of its attempt, then the outcome of its step.
    pub state: String,
    /// The attempt that follows it.
    #[serde(rename = "attempt_id")]
    pub attempt: Option<String>,
    /// The step that settled it.
    pub step: Option<u64>,
    /// What became of it, in a sentence.
    pub outcome: Option<String>,
    /// When it came, microseconds since the Unix epoch.
    #[serde(rename = "created_at", with = "clock::wire")]
    pub at_us: i64,
}

/// What a batch was sealed on, as far as it is told here.
#[derive(Deserialize)]
struct Sealed {
    #[serde(default)]
    train: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    report: Option<RecordId>,
    #[serde(default)]
    sources: Vec<RecordId>,
    reward: Option<f64>,
    feedback: Option<Value>,
}

impl Sample {
    fn told(self) -> Failure {
        Failure {
            report: self.report,
            receipts: self.sources,
            score: self.reward,
            feedback: match self.feedback {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text,
                Some(other) => other.to_string(),
            },
        }
    }
}

impl Experience {
    /// The newest attempts of a scenario with what led to each, newest first.
    pub fn attempt_stories(&self, scenario: &ScenarioName, limit: u32) -> Result<Vec<AttemptStory>, StoreError> {
        let attempts = self.attempts(scenario, limit)?;
        self.told(scenario, attempts)
    }

    /// One attempt with what led to it.
    pub fn attempt_story(&self, scenario: &ScenarioName, id: &str) -> Result<Option<AttemptStory>, StoreError> {
        let attempt = self.attempt(scenario, id)?;
        Ok(self.told(scenario, attempt.into_iter().collect())?.pop())
    }

    fn told(&self, scenario: &ScenarioName, attempts: Vec<Attempt>) -> Result<Vec<AttemptStory>, StoreError> {
        let mut failures = self.failures_of(scenario, &attempts)?;
        attempts
            .into_iter()
            .map(|attempt| {
                let (asked, session) = self.asked(scenario, &attempt)?;
                let mut failures = failures.remove(&attempt.id).unwrap_or_default();
                let failures_total = failures.len();
                failures.truncate(FAILURES);
                Ok(AttemptStory {
                    attempt,
                    asked,
                    session,
                    failures,
                    failures_total,
                })
            })
            .collect()
    }

    fn asked(
        &self,
        scenario: &ScenarioName,
        attempt: &Attempt,
    ) -> Result<(Option<String>, Option<String>), StoreError> {
        let Some(request) = &attempt.request else {
            return Ok((None, None));
        };
        match attempt.source.as_str() {
            "proposal" => Ok(self
                .proposal(request)?
                .map_or((None, None), |proposal| (Some(proposal.reason), Some(proposal.session)))),
            "instruction" => {
                let id = RecordId::new(request.as_str()).map_err(StoreError::damaged)?;
                let record = self.record(Some(scenario), &id)?;
                Ok(record.map_or((None, None), |record| words(&record)))
            }
            _ => Ok((None, None)),
        }
    }

    /// What the batches of these attempts were sealed on, worst first.
    fn failures_of(
        &self,
        scenario: &ScenarioName,
        attempts: &[Attempt],
    ) -> Result<HashMap<String, Vec<Failure>>, StoreError> {
        let ids: Vec<&str> = attempts.iter().map(|attempt| attempt.id.as_str()).collect();
        let mut found = HashMap::with_capacity(ids.len());
        if ids.is_empty() {
            return Ok(found);
        }
        self.read(|conn| {
            let doing = "reading what led to an attempt";
            let Some(scenario_id) = scenario_id(conn, scenario)? else {
                return Ok(());
            };
            let mut statement = conn
                .prepare_cached(
                    "SELECT batch_id, manifest FROM job
                     WHERE scenario_id = ?1 AND batch_id IN (SELECT value FROM json_each(?2)) ORDER BY job_id",
                )
                .doing(doing)?;
            let rows = statement
                .query_map(params![scenario_id, json!(ids).to_string()], |row| {
                    Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
                })
                .doing(doing)?;
            for row in rows {
                let (batch, manifest) = row.doing(doing)?;
                let sealed: Sealed = serde_json::from_str(&manifest).map_err(StoreError::damaged)?;
                let mut failures: Vec<Failure> = sealed.train.into_iter().map(Sample::told).collect();
                let score = |failure: &Failure| failure.score.unwrap_or(f64::INFINITY);
                failures.sort_by(|a, b| score(a).total_cmp(&score(b)));
                found.insert(batch, failures);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The newest instructions of a scenario and what became of them, newest first.
    pub fn request_stories(&self, scenario: &ScenarioName, limit: u32) -> Result<Vec<RequestStory>, StoreError> {
        let records = self.full_records(&RecordQuery {
            scenario: Some(scenario.clone()),
            kind: Some(RequestType::Train),
            order: Order::NewestFirst,
            limit: limit as usize,
            ..RecordQuery::default()
        })?;
        records
            .iter()
            .map(|record| self.request_story(scenario, record))
            .collect()
    }

    fn request_story(&self, scenario: &ScenarioName, record: &Record) -> Result<RequestStory, StoreError> {
        let id = record.row.id.clone();
        let attempt = self.attempt_of(scenario, id.as_str())?;
        let query = StepQuery {
            using: vec![id.clone()],
            ..StepQuery::default()
        };
        let step = self.steps(scenario, &query)?.pop();
        let state = match (&step, &attempt) {
            (Some(step), _) => step.outcome.clone(),
            (None, Some(attempt)) => attempt.state.as_str().to_owned(),
            (None, None) => "queued".to_owned(),
        };
        let (text, session) = words(record);
        Ok(RequestStory {
            id,
            at_us: record.row.created_us,
            text,
            session,
            state,
            step: step.as_ref().map(|step| step.step),
            outcome: step
                .and_then(|step| step.reason)
                .or_else(|| attempt.as_ref().and_then(|attempt| attempt.outcome.clone())),
            attempt: attempt.map(|attempt| attempt.id),
        })
    }
}

/// The text and the session of an instruction.
fn words(record: &Record) -> (Option<String>, Option<String>) {
    let bodies = record.bodies.as_ref();
    let payload: Value = bodies
        .and_then(|bodies| crate::sys::json::read(&bodies.request).ok())
        .unwrap_or(Value::Null);
    let word = |key: &str| payload[key].as_str().map(str::to_owned);
    (word("text"), word("session"))
}

impl AttemptStory {
    /// The document sent and shown.
    pub fn to_json(&self) -> Value {
        let attempt = &self.attempt;
        let mut notes = attempt.notes.clone();
        // Told apart, as the other documents do.
        let (verdict, failing) = (notes.remove("verdict"), notes.remove("failing"));
        json!({
            "attempt_id": attempt.id,
            "state": attempt.state.as_str(),
            "source": attempt.source,
            "request_id": attempt.request,
            "asked": self.asked,
            "session": self.session,
            "base_release_id": attempt.base,
            "step": attempt.step,
            "release_id": attempt.release,
            "reason": attempt.reason,
            "outcome": attempt.outcome,
            "mutations": attempt.mutations,
            "digest": attempt.digest,
            "verdict": verdict,
            "worse_on": failing,
            "notes": notes,
            "failures": self.failures,
            "failures_total": self.failures_total,
            "began_at": clock::seconds(attempt.begun_us),
            "changed_at": clock::seconds(attempt.changed_us),
        })
    }

    /// The same with what it did, oldest first.
    pub fn to_json_with(&self, events: &[AttemptEvent]) -> Value {
        let mut document = self.to_json();
        document["activity"] = json!(events);
        document
    }
}

impl Proposal {
    /// The document sent and shown.
    pub fn to_json(&self) -> Value {
        json!({
            "proposal_id": self.id,
            "state": self.state.as_str(),
            "reason": self.reason,
            "session": self.session,
            "release_id": self.head,
            "client_release_id": self.client_release,
            "mutations": self.mutations,
            "outcome": self.outcome,
            "received_at": clock::seconds(self.received_us),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_read_back_as_it_was() {
        let story = RequestStory {
            id: RecordId::new("r-1").unwrap(),
            text: Some("shorter".to_owned()),
            session: None,
            state: "queued".to_owned(),
            attempt: None,
            step: Some(3),
            outcome: None,
            at_us: 1_700_000_000_300_001,
        };
        let sent = json!(story);
        assert_eq!(sent["request_id"], "r-1");
        assert_eq!((&sent["attempt_id"], &sent["session"]), (&Value::Null, &Value::Null));
        assert_eq!(serde_json::from_value::<RequestStory>(sent).unwrap(), story);
        let event = AttemptEvent {
            at_us: 300_000,
            kind: "model".to_owned(),
            text: "asked".to_owned(),
            failed: false,
        };
        let sent = json!(event);
        assert_eq!(sent, json!({"at": 0.3, "kind": "model", "text": "asked"}));
        assert_eq!(serde_json::from_value::<AttemptEvent>(sent).unwrap(), event);
    }
}
