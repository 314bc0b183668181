//! What waits for a batch, and what was decided never to be in one.

use std::collections::{BTreeMap, HashMap, HashSet};

use rusqlite::params;

use super::error::{Doing, StoreError};
use super::records;
use super::store::Experience;
use super::writer::Care;
use crate::domain::{RecordId, ScenarioName};
use crate::sys::clock;

/// The batch that excluded records are filed under.
const EXCLUDED: &str = "excluded";

impl Experience {
    /// Marks records that will never train, each with its reason; they are counted by reason. A record that a batch
    /// has used stays with that batch.
    pub async fn exclude(
        &self,
        scenario: ScenarioName,
        consumer: String,
        records: Vec<(RecordId, &'static str)>,
    ) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, 64 * records.len(), move |tx| {
            let scenario_id = tx.scenario_id(&scenario)?;
            let doing = "excluding records";
            let mut insert = tx
                .conn
                .prepare_cached(
                    "INSERT INTO consumption (record_sequence, consumer, batch_id, step, outcome, at_us)
                     SELECT sequence, ?3, ?4, NULL, ?5, ?6 FROM record WHERE record_id = ?1 AND scenario_id = ?2
                     ON CONFLICT (record_sequence, consumer) DO NOTHING",
                )
                .doing(doing)?;
            let mut count = tx
                .conn
                .prepare_cached(
                    "INSERT INTO tally (scenario_id, name, value) VALUES (?1, 'excluded.' || ?2, ?3)
                     ON CONFLICT (scenario_id, name) DO UPDATE SET value = value + excluded.value",
                )
                .doing(doing)?;
            let now = clock::now_us();
            let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
            for (id, reason) in &records {
                let marked = insert
                    .execute(params![id.as_str(), scenario_id, consumer, EXCLUDED, reason, now])
                    .doing(doing)?;
                *counts.entry(*reason).or_default() += marked;
            }
            for (reason, marked) in counts.into_iter().filter(|(_, marked)| *marked > 0) {
                count
                    .execute(params![scenario_id, reason, marked as f64])
                    .doing(doing)?;
            }
            Ok(())
        })
        .await
    }

    /// How many records of a scenario were excluded, by reason.
    pub fn excluded(&self, scenario: &ScenarioName) -> Result<BTreeMap<String, u64>, StoreError> {
        self.read(|conn| {
            let doing = "counting excluded records";
            let mut statement = conn
                .prepare_cached(
                    "SELECT substr(t.name, 10), t.value FROM tally t JOIN scenario s USING (scenario_id)
                     WHERE s.name = ?1 AND s.archived_us IS NULL AND t.name LIKE 'excluded.%'",
                )
                .doing(doing)?;
            let rows = statement
                .query_map([scenario.as_str()], |row| {
                    Ok((row.get::<_, String>(0)?, row.get::<_, f64>(1)? as u64))
                })
                .doing(doing)?;
            rows.map(|row| row.doing(doing)).collect()
        })
    }

    /// The rows of exchanges by id, without bodies.
    pub fn record_rows(
        &self,
        scenario: &ScenarioName,
        ids: &[RecordId],
    ) -> Result<HashMap<RecordId, super::RecordRow>, StoreError> {
        self.read(|conn| {
            let mut rows = HashMap::with_capacity(ids.len());
            for id in ids {
                if let Some(row) = records::row(conn, scenario, id)? {
                    rows.insert(id.clone(), row);
                }
            }
            Ok(rows)
        })
    }

    /// Which of these records a consumer has used.
    pub fn used(
        &self,
        scenario: &ScenarioName,
        consumer: &str,
        ids: &[RecordId],
    ) -> Result<HashSet<RecordId>, StoreError> {
        self.read(|conn| {
            let doing = "looking up used records";
            let mut statement = conn
                .prepare_cached(
                    "SELECT EXISTS (SELECT 1 FROM consumption c JOIN record r ON r.sequence = c.record_sequence
                         JOIN scenario s ON s.scenario_id = r.scenario_id AND s.archived_us IS NULL
                         WHERE r.record_id = ?1 AND s.name = ?2 AND c.consumer = ?3)",
                )
                .doing(doing)?;
            let mut used = HashSet::new();
            for id in ids {
                let found: bool = statement
                    .query_row(params![id.as_str(), scenario.as_str(), consumer], |row| row.get(0))
                    .doing(doing)?;
                if found {
                    used.insert(id.clone());
                }
            }
            Ok(used)
        })
    }

    /// Keeps exchanges for the gate, each with its session.
    pub async fn hold_out(&self, scenario: ScenarioName, exchanges: Vec<(RecordId, String)>) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, 64 * exchanges.len(), move |tx| {
            let scenario_id = tx.scenario_id(&scenario)?;
            let doing = "holding out exchanges";
            let mut insert = tx
                .conn
                .prepare_cached(
                    "INSERT INTO holdout (record_sequence, scenario_id, session)
                     SELECT sequence, scenario_id, ?3 FROM record WHERE record_id = ?1 AND scenario_id = ?2
                     ON CONFLICT DO NOTHING",
                )
                .doing(doing)?;
            for (id, session) in &exchanges {
                insert
                    .execute(params![id.as_str(), scenario_id, session])
                    .doing(doing)?;
            }
            Ok(())
        })
        .await
    }

    /// One exchange of each of the newest sessions kept for the gate, newest first. Exchanges of one session resemble each
    /// other, so that a test that took them all for independent would be too sure. Which one of a session is taken depends
    /// on its place in the store only.
    pub fn held_out(&self, scenario: &ScenarioName, limit: u32) -> Result<Vec<RecordId>, StoreError> {
        self.read(|conn| {
            let doing = "reading held-out exchanges";
            let mut statement = conn
                .prepare_cached(
                    "SELECT record_id FROM (
                         SELECT r.record_id, h.record_sequence,
                                row_number() OVER (PARTITION BY coalesce(h.session, r.record_id)
                                                   ORDER BY (h.record_sequence * 2654435761) % 4294967291) AS place
                         FROM holdout h JOIN record r ON r.sequence = h.record_sequence
                         JOIN scenario s ON s.scenario_id = h.scenario_id AND s.archived_us IS NULL
                         WHERE s.name = ?1 AND r.pruned_us IS NULL)
                     WHERE place = 1 ORDER BY record_sequence DESC LIMIT ?2",
                )
                .doing(doing)?;
            let rows = statement
                .query_map(params![scenario.as_str(), limit], |row| row.get::<_, String>(0))
                .doing(doing)?;
            rows.map(|id| RecordId::new(id.doing(doing)?).map_err(StoreError::damaged))
                .collect()
        })
    }
}

/// What the store knows of a scenario's loop.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopFacts {
    /// The last step.
    pub step: Option<StepFact>,
    /// The step in progress.
    pub open: Option<OpenFact>,
    /// Records excluded from training, by reason.
    pub excluded: BTreeMap<String, u64>,
    /// Instructions nobody has followed yet.
    pub instructions: u64,
}

/// A step that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct StepFact {
    /// Its number.
    pub step: u64,
    /// What became of it.
    pub outcome: String,
    /// When, microseconds since the Unix epoch.
    pub at_us: i64,
    /// Figures.
    pub metrics: serde_json::Value,
    /// The release it was judged against.
    pub base: Option<String>,
    /// The release it is about: the one it made, where it made one.
    pub release: String,
    /// Why it ended so.
    pub reason: Option<String>,
    /// What became of that release since; a person decides on one that was held.
    pub state: Option<String>,
}

/// A step in progress.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenFact {
    /// The number it will have.
    pub step: u64,
    /// Its batch.
    pub batch: String,
    /// How far it has come.
    pub stage: String,
    /// Failed attempts at this stage.
    pub attempts: u32,
    /// Why the last attempt failed.
    pub error: Option<String>,
}

impl Experience {
    /// What the store knows of the loop of every active scenario that has one.
    pub fn loop_facts(&self) -> Result<BTreeMap<ScenarioName, LoopFacts>, StoreError> {
        self.read(|conn| {
            let doing = "reading the state of the loop";
            let mut facts: BTreeMap<String, LoopFacts> = BTreeMap::new();
            let mut steps = conn
                .prepare_cached(
                    "SELECT s.name, p.step, p.outcome, p.at_us, p.metrics, p.base_release_id, p.release_id, p.reason,
                            r.state
                     FROM scenario s JOIN step p ON p.scenario_id = s.scenario_id
                      AND p.step = (SELECT max(step) FROM step WHERE scenario_id = s.scenario_id)
                     LEFT JOIN release r ON r.scenario_id = s.scenario_id AND r.release_id = p.release_id
                     WHERE s.archived_us IS NULL",
                )
                .doing(doing)?;
            let rows = steps
                .query_map([], |row| {
                    let metrics: String = row.get(4)?;
                    let fact = StepFact {
                        step: row.get(1)?,
                        outcome: row.get(2)?,
                        at_us: row.get(3)?,
                        metrics: serde_json::from_str(&metrics).unwrap_or_default(),
                        base: row.get(5)?,
                        release: row.get(6)?,
                        reason: row.get(7)?,
                        state: row.get(8)?,
                    };
                    Ok((row.get::<_, String>(0)?, fact))
                })
                .doing(doing)?;
            for row in rows {
                let (name, step) = row.doing(doing)?;
                facts.entry(name).or_default().step = Some(step);
            }
            let mut open = conn
                .prepare_cached(
                    "SELECT s.name, j.step, j.batch_id, j.stage, j.attempts, j.error
                     FROM job j JOIN scenario s USING (scenario_id) WHERE j.ended_us IS NULL AND s.archived_us IS NULL",
                )
                .doing(doing)?;
            let rows = open
                .query_map([], |row| {
                    let fact = OpenFact {
                        step: row.get(1)?,
                        batch: row.get(2)?,
                        stage: row.get(3)?,
                        attempts: row.get(4)?,
                        error: row.get(5)?,
                    };
                    Ok((row.get::<_, String>(0)?, fact))
                })
                .doing(doing)?;
            for row in rows {
                let (name, job) = row.doing(doing)?;
                facts.entry(name).or_default().open = Some(job);
            }
            counts(
                conn,
                "SELECT s.name, substr(t.name, 10), t.value FROM tally t JOIN scenario s USING (scenario_id)
                 WHERE s.archived_us IS NULL AND t.name LIKE 'excluded.%'",
                |name, reason, count| {
                    facts.entry(name).or_default().excluded.insert(reason, count);
                },
            )?;
            // Kind 2 is an instruction.
            counts(
                conn,
                "SELECT s.name, '', count(*) FROM record r JOIN scenario s USING (scenario_id)
                 WHERE r.kind = 2 AND s.archived_us IS NULL
                   AND NOT EXISTS (SELECT 1 FROM consumption c WHERE c.record_sequence = r.sequence)
                 GROUP BY s.scenario_id",
                |name, _, count| facts.entry(name).or_default().instructions = count,
            )?;
            facts
                .into_iter()
                .map(|(name, facts)| Ok((ScenarioName::new(name).map_err(StoreError::damaged)?, facts)))
                .collect()
        })
    }
}

fn counts(conn: &rusqlite::Connection, sql: &str, mut take: impl FnMut(String, String, u64)) -> Result<(), StoreError> {
    let doing = "counting for status";
    let mut statement = conn.prepare_cached(sql).doing(doing)?;
    let rows = statement
        .query_map([], |row| {
            Ok((
                row.get::<_, String>(0)?,
                row.get::<_, String>(1)?,
                row.get::<_, f64>(2)? as u64,
            ))
        })
        .doing(doing)?;
    for row in rows {
        let (name, key, count) = row.doing(doing)?;
        take(name, key, count);
    }
    Ok(())
}
