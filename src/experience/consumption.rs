//! Which batch used which record. A record feeds at most one batch of each consumer, for ever.

use rusqlite::{Connection, OptionalExtension, params};

use super::error::{Doing, StoreError};
use super::tally::name;
use super::writer::WriteTx;
use crate::domain::{BatchId, RecordId, ScenarioName};
use crate::sys::clock;

/// Records used up by one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumption {
    /// The scenario.
    pub scenario: ScenarioName,
    /// Whose batch: the trainer of one component. Each consumes by itself.
    pub consumer: String,
    /// The batch.
    pub batch: BatchId,
    /// The step it became, if one.
    pub step: Option<u64>,
    /// What became of it (`committed`, `rejected`, `stale`, …).
    pub outcome: String,
    /// The records, in any number.
    pub records: Vec<RecordId>,
}

/// One use of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumed {
    /// Whose batch.
    pub consumer: String,
    /// The batch.
    pub batch: BatchId,
    /// The step it became, if one.
    pub step: Option<u64>,
    /// What became of it.
    pub outcome: String,
    /// When, microseconds since the Unix epoch.
    pub at_us: i64,
}

impl Consumed {
    /// As the HTTP interface and the command line show it.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "consumer": self.consumer,
            "batch_id": self.batch,
            "step": self.step,
            "outcome": self.outcome,
            "at": clock::seconds(self.at_us),
        })
    }
}

pub(super) fn consume(tx: &mut WriteTx<'_>, consumption: &Consumption) -> Result<usize, StoreError> {
    let scenario_id = tx.scenario_id(&consumption.scenario)?;
    let marks = Marks {
        consumer: &consumption.consumer,
        batch: &consumption.batch,
        step: consumption.step,
        outcome: &consumption.outcome,
        records: &consumption.records,
    };
    mark(tx, scenario_id, &marks)
}

/// What marks records as consumed.
pub(super) struct Marks<'a> {
    pub consumer: &'a str,
    pub batch: &'a BatchId,
    pub step: Option<u64>,
    pub outcome: &'a str,
    pub records: &'a [RecordId],
}

/// Marks the records; returns how many were not marked before. Repeating it for the same batch changes nothing; a record
/// of another batch, or none at all, refuses the whole before anything is marked.
pub(super) fn mark(tx: &mut WriteTx<'_>, scenario_id: i64, marks: &Marks<'_>) -> Result<usize, StoreError> {
    let doing = "marking records as consumed";
    let sequences = unmarked(tx.conn, scenario_id, marks)?;
    let mut insert = tx
        .conn
        .prepare_cached(
            "INSERT INTO consumption (record_sequence, consumer, batch_id, step, outcome, at_us)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING",
        )
        .doing(doing)?;
    let now = clock::now_us();
    let step = marks.step.map(|step| i64::try_from(step).unwrap_or(i64::MAX));
    let mut marked = 0;
    for sequence in sequences {
        marked += insert
            .execute(params![
                sequence,
                marks.consumer,
                marks.batch.as_str(),
                step,
                marks.outcome,
                now
            ])
            .doing(doing)?;
    }
    tx.tallies.add(scenario_id, name::CONSUMED, marked as f64);
    Ok(marked)
}

/// The records of a batch that are not marked yet; refuses a record of another batch, or none at all.
pub(super) fn unmarked(conn: &Connection, scenario_id: i64, marks: &Marks<'_>) -> Result<Vec<i64>, StoreError> {
    let doing = "looking up the records of a batch";
    let mut sequences = Vec::with_capacity(marks.records.len());
    // Statement by statement: a list of any length, and no limit on variables.
    let mut lookup = conn
        .prepare_cached(
            "SELECT r.sequence, c.batch_id FROM record r
             LEFT JOIN consumption c ON c.record_sequence = r.sequence AND c.consumer = ?3
             WHERE r.record_id = ?1 AND r.scenario_id = ?2",
        )
        .doing(doing)?;
    for id in marks.records {
        let found: Option<(i64, Option<String>)> = lookup
            .query_row(params![id.as_str(), scenario_id, marks.consumer], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()
            .doing(doing)?;
        match found {
            None => {
                return Err(StoreError::invalid(format_args!(
                    "record {id} is not in the scenario of batch {}, which names it",
                    marks.batch
                )));
            }
            Some((_, Some(batch))) if batch != marks.batch.as_str() => {
                return Err(StoreError::Consumed {
                    id: id.clone(),
                    batch: BatchId::new(batch).map_err(StoreError::damaged)?,
                });
            }
            Some((_, Some(_))) => {}
            Some((sequence, None)) => sequences.push(sequence),
        }
    }
    Ok(sequences)
}

/// The batches that used a record.
pub(super) fn of_record(
    conn: &Connection,
    scenario: &ScenarioName,
    id: &RecordId,
) -> Result<Vec<Consumed>, StoreError> {
    let doing = "reading a record's batches";
    let mut statement = conn
        .prepare_cached(
            "SELECT c.consumer, c.batch_id, c.step, c.outcome, c.at_us FROM record r
             JOIN scenario s ON s.scenario_id = r.scenario_id AND s.archived_us IS NULL
             JOIN consumption c ON c.record_sequence = r.sequence
             WHERE r.record_id = ?1 AND s.name = ?2 ORDER BY c.at_us, c.consumer",
        )
        .doing(doing)?;
    let rows = statement
        .query_map(params![id.as_str(), scenario.as_str()], |row| {
            Ok((
                row.get::<_, String>(0)?,
                row.get::<_, String>(1)?,
                row.get::<_, Option<i64>>(2)?,
                row.get::<_, String>(3)?,
                row.get::<_, i64>(4)?,
            ))
        })
        .doing(doing)?;
    rows.map(|row| {
        let (consumer, batch, step, outcome, at_us) = row.doing(doing)?;
        Ok(Consumed {
            consumer,
            batch: BatchId::new(batch).map_err(StoreError::damaged)?,
            step: step.and_then(|step| u64::try_from(step).ok()),
            outcome,
            at_us,
        })
    })
    .collect()
}
