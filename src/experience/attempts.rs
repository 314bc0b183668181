//! Attempts at a better harness tree: their states, what they did, what they cost. An attempt outlives a crash in
//! whatever state it was; the step in progress ([`super::Job`]) says where it goes on.

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::{Doing, StoreError};
use super::moves::AttemptState;
use super::records::scenario_id;
use super::store::Experience;
use super::writer::Care;
use crate::domain::{ReleaseId, ScenarioName};
use crate::sys::clock;

/// Events kept of one attempt.
const KEPT_EVENTS: i64 = 1000;
/// The longest text of an event, in characters.
const LONGEST_EVENT: usize = 2000;
const DAY_US: i64 = 86_400_000_000;

/// One try at a better tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// The batch id of its step.
    pub id: String,
    /// Where it is.
    pub state: AttemptState,
    /// `failures`, `instruction` or `proposal`.
    pub source: String,
    /// The instruction or proposal.
    pub request: Option<String>,
    /// The release it starts from.
    pub base: ReleaseId,
    /// The step that records its end.
    pub step: Option<u64>,
    /// What it made.
    pub release: Option<ReleaseId>,
    /// Of its mutations.
    pub digest: Option<String>,
    /// Its mutations.
    pub mutations: Option<Value>,
    /// Why it was proposed.
    pub reason: Option<String>,
    /// What became of it, in a sentence.
    pub outcome: Option<String>,
    /// Design, usage, failing checks.
    pub notes: Map<String, Value>,
    /// When it began, microseconds since the Unix epoch.
    pub begun_us: i64,
    /// When it changed last.
    pub changed_us: i64,
}

/// An attempt to begin.
#[derive(Debug, Clone, PartialEq)]
pub struct NewAttempt {
    /// The batch id of its step.
    pub id: String,
    /// The scenario.
    pub scenario: ScenarioName,
    /// `failures`, `instruction` or `proposal`.
    pub source: &'static str,
    /// The instruction or proposal.
    pub request: Option<String>,
    /// The release it starts from.
    pub base: ReleaseId,
}

/// A change of an attempt; what is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AttemptChange {
    /// Where it is now.
    pub state: Option<AttemptState>,
    /// The step that records its end.
    pub step: Option<u64>,
    /// What it made.
    pub release: Option<ReleaseId>,
    /// Of its mutations.
    pub digest: Option<String>,
    /// Its mutations.
    pub mutations: Option<Value>,
    /// Why it was proposed.
    pub reason: Option<String>,
    /// What became of it.
    pub outcome: Option<String>,
    /// Merged into the notes.
    pub notes: Map<String, Value>,
}

/// Something an attempt did, as it is stored, sent and shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptEvent {
    /// When, microseconds since the Unix epoch.
    #[serde(rename = "at", with = "clock::wire")]
    pub at_us: i64,
    /// `model`, `agent`, `check`, `trial`, `proposer`.
    pub kind: String,
    /// In a sentence.
    pub text: String,
    /// It went wrong; sent only where it is so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

/// What evolution has cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spend {
    /// Calls of a model.
    pub calls: u64,
    /// Tokens in and out.
    pub tokens: u64,
    /// Episodes run.
    pub episodes: u64,
    /// Money, in the currency of the price table.
    pub cost: f64,
}

const COLUMNS: &str = "attempt_id, state, source, request, base, step, release_id, digest, mutations, reason, outcome,
     notes, begun_us, changed_us";

struct Raw {
    texts: [String; 5],
    options: [Option<String>; 6],
    step: Option<i64>,
    times: (i64, i64),
}

impl Raw {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            texts: [row.get(0)?, row.get(1)?, row.get(2)?, row.get(4)?, row.get(11)?],
            options: [
                row.get(3)?,
                row.get(6)?,
                row.get(7)?,
                row.get(8)?,
                row.get(9)?,
                row.get(10)?,
            ],
            step: row.get(5)?,
            times: (row.get(12)?, row.get(13)?),
        })
    }

    fn parse(self) -> Result<Attempt, StoreError> {
        let [id, state, source, base, notes] = self.texts;
        let [request, release, digest, mutations, reason, outcome] = self.options;
        Ok(Attempt {
            id,
            state: AttemptState::parse(&state)?,
            source,
            request,
            base: ReleaseId::new(base).map_err(StoreError::damaged)?,
            step: self.step.and_then(|step| u64::try_from(step).ok()),
            release: release.map(ReleaseId::new).transpose().map_err(StoreError::damaged)?,
            digest,
            mutations: mutations
                .map(|text| serde_json::from_str(&text))
                .transpose()
                .map_err(StoreError::damaged)?,
            reason,
            outcome,
            notes: serde_json::from_str(&notes).map_err(StoreError::damaged)?,
            begun_us: self.times.0,
            changed_us: self.times.1,
        })
    }
}

impl Experience {
    /// Begins an attempt. One that began before is left as it is.
    pub async fn attempt_begin(&self, attempt: NewAttempt) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, 0, move |tx| {
            let scenario_id = tx.scenario_id(&attempt.scenario)?;
            tx.conn
                .prepare_cached(
                    "INSERT INTO attempt (attempt_id, scenario_id, state, source, request, base, begun_us, changed_us)
                     VALUES (?1, ?2, 'queued', ?3, ?4, ?5, ?6, ?6) ON CONFLICT DO NOTHING",
                )
                .and_then(|mut s| {
                    s.execute(params![
                        attempt.id,
                        scenario_id,
                        attempt.source,
                        attempt.request,
                        attempt.base.as_str(),
                        clock::now_us()
                    ])
                })
                .doing("beginning an attempt")?;
            Ok(())
        })
        .await
    }

    /// Changes an attempt. An unknown one is nothing to change: weight recipes have none. A state it cannot come to from
    /// where it is is refused, and nothing of the change is kept.
    pub async fn attempt_change(&self, id: String, change: AttemptChange) -> Result<(), StoreError> {
        let size = change.mutations.as_ref().map_or(0, |value| value.to_string().len());
        self.write(Care::ChecksFirst, size, move |tx| {
            let doing = "changing an attempt";
            let Some(before) = by_id(tx.conn, &id)? else {
                return Ok(());
            };
            if let Some(state) = change.state {
                before.state.check_move(state, &id)?;
            }
            let mut notes = before.notes;
            notes.extend(change.notes.clone());
            tx.conn
                .prepare_cached(
                    "UPDATE attempt SET state = coalesce(?2, state), step = coalesce(?3, step),
                         release_id = coalesce(?4, release_id), digest = coalesce(?5, digest),
                         mutations = coalesce(?6, mutations), reason = coalesce(?7, reason),
                         outcome = coalesce(?8, outcome), notes = ?9, changed_us = ?10
                     WHERE attempt_id = ?1",
                )
                .and_then(|mut s| {
                    s.execute(params![
                        id,
                        change.state.map(AttemptState::as_str),
                        change.step.and_then(|step| i64::try_from(step).ok()),
                        change.release.as_ref().map(ReleaseId::as_str),
                        change.digest,
                        change.mutations.as_ref().map(Value::to_string),
                        change.reason,
                        change.outcome,
                        Value::Object(notes).to_string(),
                        clock::now_us()
                    ])
                })
                .doing(doing)?;
            Ok(())
        })
        .await
    }

    /// Notes something an attempt did.
    pub async fn attempt_event(
        &self,
        id: String,
        kind: &'static str,
        text: String,
        failed: bool,
    ) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, text.len(), move |tx| {
            let doing = "noting what an attempt did";
            let text: String = text.chars().take(LONGEST_EVENT).collect();
            tx.conn
                .prepare_cached(
                    "INSERT INTO attempt_event (attempt_id, at_us, kind, text, failed)
                     SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS (SELECT 1 FROM attempt WHERE attempt_id = ?1)",
                )
                .and_then(|mut s| s.execute(params![id, clock::now_us(), kind, text, failed]))
                .doing(doing)?;
            tx.conn
                .prepare_cached(
                    "DELETE FROM attempt_event WHERE attempt_id = ?1 AND event_id <=
                         (SELECT event_id FROM attempt_event WHERE attempt_id = ?1
                          ORDER BY event_id DESC LIMIT 1 OFFSET ?2)",
                )
                .and_then(|mut s| s.execute(params![id, KEPT_EVENTS]))
                .doing(doing)?;
            Ok(())
        })
        .await
    }

    /// The newest attempts of a scenario, newest first.
    pub fn attempts(&self, scenario: &ScenarioName, limit: u32) -> Result<Vec<Attempt>, StoreError> {
        self.attempts_where(scenario, "1 = 1", "", limit)
    }

    /// One attempt of a scenario.
    pub fn attempt(&self, scenario: &ScenarioName, id: &str) -> Result<Option<Attempt>, StoreError> {
        Ok(self.attempts_where(scenario, "a.attempt_id = ?2", id, 1)?.pop())
    }

    /// The attempt that serves an instruction or proposal.
    pub fn attempt_of(&self, scenario: &ScenarioName, request: &str) -> Result<Option<Attempt>, StoreError> {
        Ok(self.attempts_where(scenario, "a.request = ?2", request, 1)?.pop())
    }

    /// Settled attempts with the same mutations, newest first.
    pub fn attempts_alike(&self, scenario: &ScenarioName, digest: &str) -> Result<Vec<Attempt>, StoreError> {
        let filter = "a.digest = ?2 AND a.state IN ('rejected', 'held', 'published', 'rolled_back')";
        self.attempts_where(scenario, filter, digest, 25)
    }

    /// The attempt that made a release.
    pub fn attempt_behind(&self, scenario: &ScenarioName, release: &ReleaseId) -> Result<Option<Attempt>, StoreError> {
        Ok(self
            .attempts_where(scenario, "a.release_id = ?2", release.as_str(), 1)?
            .pop())
    }

    fn attempts_where(
        &self,
        scenario: &ScenarioName,
        filter: &str,
        value: &str,
        limit: u32,
    ) -> Result<Vec<Attempt>, StoreError> {
        self.read(|conn| {
            let doing = "reading attempts";
            let Some(scenario_id) = scenario_id(conn, scenario)? else {
                return Ok(Vec::new());
            };
            let mut statement = conn
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM attempt a WHERE a.scenario_id = ?1 AND (?2 = ?2) AND {filter}
                     ORDER BY a.begun_us DESC, a.attempt_id DESC LIMIT ?3"
                ))
                .doing(doing)?;
            let rows = statement
                .query_map(params![scenario_id, value, limit], Raw::read)
                .doing(doing)?;
            rows.map(|row| row.doing(doing)?.parse()).collect()
        })
    }

    /// What an attempt did, oldest first, at most `limit` of the newest.
    pub fn attempt_events(&self, id: &str, limit: u32) -> Result<Vec<AttemptEvent>, StoreError> {
        self.read(|conn| {
            let doing = "reading what an attempt did";
            let mut statement = conn
                .prepare_cached(
                    "SELECT at_us, kind, text, failed FROM attempt_event WHERE attempt_id = ?1
                     ORDER BY event_id DESC LIMIT ?2",
                )
                .doing(doing)?;
            let rows = statement
                .query_map(params![id, limit], |row| {
                    Ok(AttemptEvent {
                        at_us: row.get(0)?,
                        kind: row.get(1)?,
                        text: row.get(2)?,
                        failed: row.get(3)?,
                    })
                })
                .doing(doing)?;
            let mut events: Vec<AttemptEvent> = rows.map(|row| row.doing(doing)).collect::<Result<_, _>>()?;
            events.reverse();
            Ok(events)
        })
    }

    /// Adds to what evolution has cost today.
    pub async fn spend(&self, scenario: ScenarioName, more: Spend) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, 0, move |tx| {
            let scenario_id = tx.scenario_id(&scenario)?;
            tx.conn
                .prepare_cached(
                    "INSERT INTO spend (scenario_id, day, calls, tokens, episodes, cost) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                     ON CONFLICT DO UPDATE SET calls = calls + excluded.calls, tokens = tokens + excluded.tokens,
                         episodes = episodes + excluded.episodes, cost = cost + excluded.cost",
                )
                .and_then(|mut s| {
                    s.execute(params![
                        scenario_id,
                        clock::now_us().div_euclid(DAY_US),
                        more.calls,
                        more.tokens,
                        more.episodes,
                        more.cost
                    ])
                })
                .doing("noting what evolution costs")?;
            Ok(())
        })
        .await
    }

    /// What evolution has cost a scenario today.
    pub fn spent_today(&self, scenario: &ScenarioName) -> Result<Spend, StoreError> {
        self.read(|conn| {
            let Some(scenario_id) = scenario_id(conn, scenario)? else {
                return Ok(Spend::default());
            };
            conn.prepare_cached("SELECT calls, tokens, episodes, cost FROM spend WHERE scenario_id = ?1 AND day = ?2")
                .and_then(|mut s| {
                    s.query_row(params![scenario_id, clock::now_us().div_euclid(DAY_US)], |row| {
                        Ok(Spend {
                            calls: row.get(0)?,
                            tokens: row.get(1)?,
                            episodes: row.get(2)?,
                            cost: row.get(3)?,
                        })
                    })
                    .optional()
                })
                .doing("reading what evolution costs")
                .map(Option::unwrap_or_default)
        })
    }

    /// Scores of a served tree under the same conditions, no older than `since_us`, by task and repetition.
    pub fn baseline(
        &self,
        scenario: &ScenarioName,
        conditions: &str,
        since_us: i64,
    ) -> Result<Vec<(String, u32, f64)>, StoreError> {
        self.read(|conn| {
            let doing = "reading baseline scores";
            let Some(scenario_id) = scenario_id(conn, scenario)? else {
                return Ok(Vec::new());
            };
            let mut statement = conn
                .prepare_cached(
                    "SELECT task, repeat, score FROM baseline
                     WHERE scenario_id = ?1 AND conditions = ?2 AND at_us >= ?3",
                )
                .doing(doing)?;
            let rows = statement
                .query_map(params![scenario_id, conditions, since_us], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })
                .doing(doing)?;
            rows.map(|row| row.doing(doing)).collect()
        })
    }

    /// Keeps scores of a served tree. Those of the same task and repetition are replaced.
    pub async fn keep_baseline(
        &self,
        scenario: ScenarioName,
        conditions: String,
        scores: Vec<(String, u32, f64)>,
    ) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, 64 * scores.len(), move |tx| {
            let doing = "keeping baseline scores";
            let scenario_id = tx.scenario_id(&scenario)?;
            let mut insert = tx
                .conn
                .prepare_cached(
                    "INSERT OR REPLACE INTO baseline (scenario_id, conditions, task, repeat, score, at_us)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )
                .doing(doing)?;
            for (task, repeat, score) in &scores {
                insert
                    .execute(params![scenario_id, conditions, task, repeat, score, clock::now_us()])
                    .doing(doing)?;
            }
            Ok(())
        })
        .await
    }

    /// Forgets the scores of served trees: the conditions changed in a way that nobody could see.
    pub async fn forget_baseline(&self, scenario: ScenarioName) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, 0, move |tx| {
            let scenario_id = tx.scenario_id(&scenario)?;
            tx.conn
                .prepare_cached("DELETE FROM baseline WHERE scenario_id = ?1")
                .and_then(|mut s| s.execute([scenario_id]))
                .doing("forgetting baseline scores")?;
            Ok(())
        })
        .await
    }
}

fn by_id(conn: &Connection, id: &str) -> Result<Option<Attempt>, StoreError> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM attempt WHERE attempt_id = ?1"))
        .and_then(|mut s| s.query_row([id], Raw::read).optional())
        .doing("reading an attempt")?
        .map(Raw::parse)
        .transpose()
}
