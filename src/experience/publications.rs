//! Publications: the intent before, the settlement after. Settling marks the batch consumed, records the verdict and
//! indexes the release in one transaction.

use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::consumption::{self, Marks};
use super::error::{Doing, StoreError};
use super::releases::{self, ReleaseRow, ReleaseState};
use super::store::Experience;
use super::writer::{Care, WriteTx, release_text};
use crate::domain::{BatchId, ContentKind, FrozenRelease, Operation, RecordId, ReleaseId, ScenarioName, Verdict};
use crate::sys::clock;

/// The records a step used, all marked when it is settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchUse {
    /// The batch.
    pub batch_id: BatchId,
    /// Who used it: the trainer of a component.
    pub consumer: String,
    /// Its records and reports.
    pub records: Vec<RecordId>,
}

/// What settling a publication does to the store. It is kept with the intent, so that recovery can do it as well.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settlement {
    /// Why the release is appended.
    pub operation: Operation,
    /// The release is held for review.
    #[serde(default)]
    pub held: bool,
    /// The head it builds on; none for a creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<ReleaseId>,
    /// The head its candidate was judged against, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_release_id: Option<ReleaseId>,
    /// The held release that a promote puts in service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotes: Option<ReleaseId>,
    /// The batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchUse>,
    /// Figures of the step.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metrics: Map<String, Value>,
    /// The gate's decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// What the person who published it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A step that released nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct UnreleasedStep {
    /// `rejected` by the gate, or `skipped` for a reason that the metrics tell.
    pub rejected: bool,
    /// The release that stays in service.
    pub head: ReleaseId,
    /// The batch.
    pub batch: Option<BatchUse>,
    /// Figures of the step.
    pub metrics: Map<String, Value>,
    /// The gate's decision.
    pub verdict: Option<Verdict>,
}

/// A publication that has begun and not ended.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenIntent {
    /// Its id, which the commit carries.
    pub intent_id: String,
    /// The scenario.
    pub scenario: ScenarioName,
    /// The process that began it.
    pub owner: String,
    /// What settling it does.
    pub settlement: Settlement,
    /// When it began.
    pub begun_us: i64,
}

/// What the store knows of a chain, from one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct ChainState {
    /// When its scenario was made; none where there is no active one of the name. A name may be made anew, a moment not.
    pub created_us: Option<i64>,
    /// Its newest release.
    pub head: Option<ReleaseId>,
    /// Publications that have begun and not ended, those of archived scenarios of the name as well.
    pub intents: Vec<OpenIntent>,
}

/// A release that came into the repository without this store.
#[derive(Debug, Clone, PartialEq)]
pub struct Adopted {
    /// The release.
    pub release: ReleaseRow,
    /// What is done to the store, by its manifest.
    pub settlement: Settlement,
    /// The publication it comes from, by its commit. One that this store began is settled as it was meant.
    pub intent: Option<String>,
}

impl Experience {
    /// What the store knows of a scenario's chain.
    pub fn chain_state(&self, scenario: &ScenarioName) -> Result<ChainState, StoreError> {
        self.read(|conn| {
            Ok(ChainState {
                created_us: super::scenarios::get(conn, scenario)?.map(|found| found.created_us),
                head: releases::head_of(conn, scenario)?,
                intents: open_intents(conn, Some(scenario))?,
            })
        })
    }

    /// Notes that a publication begins. Nothing of it is in the repository before this returns.
    pub async fn intent_begin(
        &self,
        scenario: ScenarioName,
        intent_id: String,
        owner: String,
        settlement: &Settlement,
    ) -> Result<(), StoreError> {
        let text = serde_json::to_string(settlement).map_err(StoreError::damaged)?;
        let batch = settlement.batch.clone();
        self.write(Care::ChecksFirst, text.len(), move |tx| {
            let scenario_id = tx.scenario_id(&scenario)?;
            // Once the head has moved it is too late to refuse.
            if let Some(batch) = &batch {
                consumption::unmarked(tx.conn, scenario_id, &marks(batch, None, ""))?;
                refuse_second_user(tx.conn, scenario_id, batch)?;
                // It was dropped, or recorded by another process, since its publisher looked.
                if let Some(step) = step_of_batch(tx, scenario_id, &batch.batch_id)? {
                    return Err(StoreError::Invalid {
                        what: format!("batch {} has ended already, in step {step}", batch.batch_id),
                    });
                }
            }
            tx.conn
                .prepare_cached(
                    "INSERT INTO intent (intent_id, scenario_id, owner, settlement, state, begun_us)
                     VALUES (?1, ?2, ?3, ?4, 'open', ?5)",
                )
                .and_then(|mut s| s.execute(params![intent_id, scenario_id, owner, text, clock::now_us()]))
                .doing("beginning a publication")?;
            Ok(())
        })
        .await
    }

    /// Ends a publication whose release is in the repository: indexes the release, marks the batch consumed, records
    /// the verdict, all or nothing. Doing it twice changes nothing; gives the step.
    pub async fn intent_settle(&self, intent_id: String, release: ReleaseRow) -> Result<u64, StoreError> {
        self.write(Care::Undo, 0, move |tx| settle(tx, &intent_id, &release))
            .await
    }

    /// Ends a publication that came to nothing; its batch stays as it was.
    pub async fn intent_abandon(&self, intent_id: String, reason: String) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, reason.len(), move |tx| {
            tx.conn
                .prepare_cached(
                    "UPDATE intent SET state = 'abandoned', reason = ?2, ended_us = ?3
                     WHERE intent_id = ?1 AND state = 'open'",
                )
                .and_then(|mut s| s.execute(params![intent_id, reason, clock::now_us()]))
                .doing("abandoning a publication")?;
            Ok(())
        })
        .await
    }

    /// The release that a batch became, and its step.
    pub fn release_of_batch(
        &self,
        scenario: &ScenarioName,
        batch: &BatchId,
    ) -> Result<Option<(u64, ReleaseId)>, StoreError> {
        self.read(|conn| {
            conn.prepare_cached(
                "SELECT p.step, p.release_id FROM step p JOIN scenario s USING (scenario_id)
                 WHERE s.name = ?1 AND s.archived_us IS NULL AND p.batch_id = ?2 AND p.outcome IN ('released', 'held')
                 ORDER BY p.step LIMIT 1",
            )
            .and_then(|mut s| {
                s.query_row(params![scenario.as_str(), batch.as_str()], |row| {
                    Ok((row.get(0)?, row.get::<_, String>(1)?))
                })
                .optional()
            })
            .doing("looking up the release of a batch")?
            .map(|(step, id)| Ok((step, ReleaseId::new(id).map_err(StoreError::damaged)?)))
            .transpose()
        })
    }

    /// Whether this store ever began a publication of this id.
    pub fn intent_exists(&self, intent_id: &str) -> Result<bool, StoreError> {
        self.read(|conn| {
            conn.prepare_cached("SELECT count(*) FROM intent WHERE intent_id = ?1")
                .and_then(|mut s| s.query_row([intent_id], |row| row.get::<_, i64>(0)))
                .map(|n| n > 0)
                .doing("looking up a publication")
        })
    }

    /// Publications that have begun and not ended, oldest first.
    pub fn open_intents(&self, scenario: Option<&ScenarioName>) -> Result<Vec<OpenIntent>, StoreError> {
        self.read(|conn| open_intents(conn, scenario))
    }

    /// Indexes releases that came into the repository without this store: from a remote, or by another one's hand.
    /// Oldest first; those already known are passed over. `created_us` says which scenario of the name is meant.
    pub async fn adopt_releases(
        &self,
        scenario: ScenarioName,
        created_us: i64,
        releases: Vec<Adopted>,
    ) -> Result<(), StoreError> {
        self.write(Care::Undo, 0, move |tx| {
            let scenario_id = tx.scenario_id(&scenario)?;
            if super::scenarios::get(tx.conn, &scenario)?.is_none_or(|found| found.created_us != created_us) {
                return Err(StoreError::UnknownScenario { name: scenario.clone() });
            }
            for adopted in &releases {
                match &adopted.intent {
                    Some(intent) if began(tx, scenario_id, intent)? => {
                        settle(tx, intent, &adopted.release)?;
                    }
                    _ => {
                        append(tx, scenario_id, &adopted.release, &adopted.settlement)?;
                    }
                }
            }
            Ok(())
        })
        .await
    }

    /// Records a step that released nothing, and marks its batch consumed. Gives the step.
    pub async fn record_step(&self, scenario: ScenarioName, step: UnreleasedStep) -> Result<u64, StoreError> {
        self.write(Care::Undo, 0, move |tx| {
            let scenario_id = tx.scenario_id(&scenario)?;
            if let Some(batch) = &step.batch
                && let Some(done) = step_of_batch(tx, scenario_id, &batch.batch_id)?
            {
                return Ok(done);
            }
            if let Some(batch) = &step.batch {
                refuse_second_user(tx.conn, scenario_id, batch)?;
            }
            let next = next_step(tx, scenario_id)?;
            consume(
                tx,
                scenario_id,
                next,
                step.batch.as_ref(),
                if step.rejected { "rejected" } else { "skipped" },
            )?;
            insert_step(
                tx,
                scenario_id,
                &NewStep {
                    step: next,
                    release_id: &step.head,
                    operation: Operation::Training,
                    outcome: if step.rejected { "rejected" } else { "skipped" },
                    batch_id: step.batch.as_ref().map(|b| &b.batch_id),
                    base_release_id: Some(&step.head),
                    metrics: &step.metrics,
                    verdict: step.verdict.as_ref(),
                    at_us: clock::now_us(),
                },
            )?;
            Ok(next)
        })
        .await
    }
}

/// Whether a publication of this id was begun for a scenario.
fn began(tx: &WriteTx<'_>, scenario_id: i64, intent_id: &str) -> Result<bool, StoreError> {
    tx.conn
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM intent WHERE intent_id = ?1 AND scenario_id = ?2)")
        .and_then(|mut s| s.query_row(params![intent_id, scenario_id], |row| row.get(0)))
        .doing("looking up a publication")
}

fn open_intents(conn: &Connection, scenario: Option<&ScenarioName>) -> Result<Vec<OpenIntent>, StoreError> {
    let doing = "reading publications in progress";
    let mut statement = conn
        .prepare_cached(
            "SELECT i.intent_id, s.name, i.owner, i.settlement, i.begun_us
             FROM intent i JOIN scenario s USING (scenario_id)
             WHERE i.state = 'open' AND (?1 IS NULL OR s.name = ?1) ORDER BY i.begun_us, i.intent_id",
        )
        .doing(doing)?;
    let rows = statement
        .query_map([scenario.map(ScenarioName::as_str)], |row| {
            Ok((
                row.get::<_, String>(0)?,
                row.get::<_, String>(1)?,
                row.get::<_, String>(2)?,
                row.get::<_, String>(3)?,
                row.get::<_, i64>(4)?,
            ))
        })
        .doing(doing)?;
    rows.map(|row| {
        let (intent_id, name, owner, settlement, begun_us) = row.doing(doing)?;
        Ok(OpenIntent {
            intent_id,
            scenario: ScenarioName::new(name).map_err(StoreError::damaged)?,
            owner,
            settlement: serde_json::from_str(&settlement).map_err(StoreError::damaged)?,
            begun_us,
        })
    })
    .collect()
}

fn settle(tx: &mut WriteTx<'_>, intent_id: &str, release: &ReleaseRow) -> Result<u64, StoreError> {
    let doing = "settling a publication";
    let (scenario_id, text): (i64, String) = tx
        .conn
        .prepare_cached("SELECT scenario_id, settlement FROM intent WHERE intent_id = ?1")
        .and_then(|mut s| {
            s.query_row([intent_id], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()
        })
        .doing(doing)?
        .ok_or_else(|| StoreError::Invalid {
            what: format!("there is no publication {intent_id} to settle"),
        })?;
    let settlement: Settlement = serde_json::from_str(&text).map_err(StoreError::damaged)?;
    let step = append(tx, scenario_id, release, &settlement)?;
    tx.conn
        .prepare_cached(
            "UPDATE intent SET state = 'settled', ended_us = ?2 WHERE intent_id = ?1 AND state <> 'settled'",
        )
        .and_then(|mut s| s.execute(params![intent_id, clock::now_us()]))
        .doing(doing)?;
    Ok(step)
}

/// Indexes a release and its step; gives the step it already has when it is known.
fn append(
    tx: &mut WriteTx<'_>,
    scenario_id: i64,
    release: &ReleaseRow,
    settlement: &Settlement,
) -> Result<u64, StoreError> {
    let known: Option<u64> = tx
        .conn
        .prepare_cached(
            "SELECT min(step) FROM step WHERE scenario_id = ?1 AND release_id = ?2 AND outcome IN ('released', 'held')",
        )
        .and_then(|mut s| s.query_row(params![scenario_id, release.release_id.as_str()], |row| row.get(0)))
        .doing("looking up a step")?;
    if let Some(step) = known {
        return Ok(step);
    }
    releases::insert(tx.conn, scenario_id, release, settlement.note.as_deref())?;
    let step = next_step(tx, scenario_id)?;
    let outcome = if settlement.held { "held" } else { "released" };
    consume(tx, scenario_id, step, settlement.batch.as_ref(), outcome)?;
    insert_step(
        tx,
        scenario_id,
        &NewStep {
            step,
            release_id: &release.release_id,
            operation: settlement.operation,
            outcome,
            batch_id: settlement.batch.as_ref().map(|b| &b.batch_id),
            base_release_id: settlement.base_release_id.as_ref(),
            metrics: &settlement.metrics,
            verdict: settlement.verdict.as_ref(),
            at_us: release.at_us,
        },
    )?;
    if let Some(promoted) = &settlement.promotes {
        releases::decide(tx.conn, scenario_id, promoted, ReleaseState::Promoted, None)?;
    }
    if !settlement.held {
        let served = FrozenRelease {
            kind: ContentKind::Artifact,
            release_id: release.release_id.clone(),
            content_id: release.content_id.clone(),
            parent_release_id: release.parent.clone(),
            runtime_load_id: None,
        };
        let text = release_text(&served)?;
        tx.conn
            .prepare_cached("UPDATE scenario SET served = ?2 WHERE scenario_id = ?1")
            .and_then(|mut s| s.execute(params![scenario_id, text]))
            .doing("noting the served release")?;
    }
    Ok(step)
}

fn next_step(tx: &WriteTx<'_>, scenario_id: i64) -> Result<u64, StoreError> {
    tx.conn
        .prepare_cached("SELECT coalesce(max(step) + 1, 0) FROM step WHERE scenario_id = ?1")
        .and_then(|mut s| s.query_row([scenario_id], |row| row.get(0)))
        .doing("numbering a step")
}

fn step_of_batch(tx: &WriteTx<'_>, scenario_id: i64, batch: &BatchId) -> Result<Option<u64>, StoreError> {
    tx.conn
        .prepare_cached("SELECT min(step) FROM step WHERE scenario_id = ?1 AND batch_id = ?2")
        .and_then(|mut s| s.query_row(params![scenario_id, batch.as_str()], |row| row.get(0)))
        .doing("looking up a step")
}

struct NewStep<'a> {
    step: u64,
    release_id: &'a ReleaseId,
    operation: Operation,
    outcome: &'static str,
    batch_id: Option<&'a BatchId>,
    base_release_id: Option<&'a ReleaseId>,
    metrics: &'a Map<String, Value>,
    verdict: Option<&'a Verdict>,
    at_us: i64,
}

fn insert_step(tx: &WriteTx<'_>, scenario_id: i64, step: &NewStep<'_>) -> Result<(), StoreError> {
    let metrics = serde_json::to_string(step.metrics).map_err(StoreError::damaged)?;
    let verdict = step
        .verdict
        .map(serde_json::to_string)
        .transpose()
        .map_err(StoreError::damaged)?;
    tx.conn
        .prepare_cached(
            "INSERT INTO step (scenario_id, step, release_id, operation, outcome, batch_id, base_release_id,
                               high_water, metrics, reason, verdict, at_us)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7,
                     max(coalesce((SELECT high_water FROM step WHERE scenario_id = ?1 AND step = ?2 - 1), 0),
                         coalesce((SELECT max(record_sequence) FROM consumption WHERE batch_id = ?6), 0)),
                     ?8, ?9, ?10, ?11)",
        )
        .and_then(|mut s| {
            s.execute(params![
                scenario_id,
                step.step,
                step.release_id.as_str(),
                step.operation.as_str(),
                step.outcome,
                step.batch_id.map(BatchId::as_str),
                step.base_release_id.map(ReleaseId::as_str),
                metrics,
                step.verdict.map(|v| &v.reason),
                verdict,
                step.at_us
            ])
        })
        .doing("recording a step")?;
    Ok(())
}

/// Marks every record of a batch. A record used by another batch of the same consumer fails the whole settlement: no
/// record is trained twice.
fn consume(
    tx: &mut WriteTx<'_>,
    scenario_id: i64,
    step: u64,
    batch: Option<&BatchUse>,
    outcome: &str,
) -> Result<(), StoreError> {
    let Some(batch) = batch else { return Ok(()) };
    match consumption::mark(tx, scenario_id, &marks(batch, Some(step), outcome)) {
        Ok(_) => Ok(()),
        // It was checked when the publication began. The release is out; refusing to record it would stop its scenario
        // for ever, and nothing is marked twice.
        Err(error @ (StoreError::Consumed { .. } | StoreError::Invalid { .. })) => {
            tracing::error!(%error, batch = %batch.batch_id, "a batch was not marked consumed");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn marks<'a>(batch: &'a BatchUse, step: Option<u64>, outcome: &'a str) -> Marks<'a> {
    Marks {
        consumer: &batch.consumer,
        batch: &batch.batch_id,
        step,
        outcome,
        records: &batch.records,
    }
}

/// One publication of a consumer's batch at a time: two that share a record could both be held, and neither refused.
fn refuse_second_user(conn: &Connection, scenario_id: i64, batch: &BatchUse) -> Result<(), StoreError> {
    let doing = "reading publications in progress";
    let mut statement = conn
        .prepare_cached("SELECT settlement FROM intent WHERE state = 'open' AND scenario_id = ?1")
        .doing(doing)?;
    let rows = statement
        .query_map([scenario_id], |row| row.get::<_, String>(0))
        .doing(doing)?;
    for text in rows {
        let other: Settlement = serde_json::from_str(&text.doing(doing)?).map_err(StoreError::damaged)?;
        if let Some(other) = other.batch
            && other.consumer == batch.consumer
            && (other.batch_id == batch.batch_id || other.records.iter().any(|id| batch.records.contains(id)))
        {
            return Err(StoreError::Invalid {
                what: format!(
                    "batch {} of {} is being published by another process; wait for it",
                    other.batch_id, other.consumer
                ),
            });
        }
    }
    Ok(())
}
