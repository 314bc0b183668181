//! Counters kept in the transaction that changes them.

use std::collections::BTreeMap;

use rusqlite::{Connection, params};

use super::error::{Doing, StoreError};
use crate::domain::{RequestType, ScenarioName, mean_score};

/// Names of counters as stored.
pub(super) mod name {
    pub(crate) const INFERENCE: &str = "records.inference";
    pub(crate) const REPORT: &str = "records.report";
    pub(crate) const TRAIN: &str = "records.train";
    pub(crate) const BODY_BYTES: &str = "bytes.body";
    pub(crate) const STORED_BYTES: &str = "bytes.stored";
    pub(crate) const PRUNED_RECORDS: &str = "pruned.records";
    pub(crate) const PRUNED_BYTES: &str = "pruned.bytes";
    pub(crate) const INPUT_TOKENS: &str = "tokens.input";
    pub(crate) const OUTPUT_TOKENS: &str = "tokens.output";
    pub(crate) const SCORES: &str = "score.count";
    pub(crate) const SCORE_SUM: &str = "score.sum";
    pub(crate) const CONSUMED: &str = "consumed";
    pub(crate) const INTERRUPTED: &str = "interrupted.";
}

/// What one transaction adds to the counters of each scenario.
#[derive(Debug, Default, Clone)]
pub(super) struct Tallies(BTreeMap<(i64, &'static str), f64>);

impl Tallies {
    pub(super) fn add(&mut self, scenario_id: i64, name: &'static str, value: f64) {
        *self.0.entry((scenario_id, name)).or_default() += value;
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Writes the sums; part of the same transaction.
    pub(super) fn flush(&mut self, conn: &Connection) -> Result<(), StoreError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut statement = conn
            .prepare_cached(
                "INSERT INTO tally (scenario_id, name, value) VALUES (?1, ?2, ?3)
                 ON CONFLICT (scenario_id, name) DO UPDATE SET value = value + excluded.value",
            )
            .doing("counting")?;
        for ((scenario_id, name), value) in std::mem::take(&mut self.0) {
            if value != 0.0 {
                statement.execute(params![scenario_id, name, value]).doing("counting")?;
            }
        }
        Ok(())
    }
}

pub(super) fn of_kind(kind: RequestType) -> &'static str {
    match kind {
        RequestType::Inference => name::INFERENCE,
        RequestType::Report => name::REPORT,
        RequestType::Train => name::TRAIN,
    }
}

/// Counts of one scenario, or of all together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    /// Finished exchanges.
    pub exchanges: u64,
    /// Reports.
    pub reports: u64,
    /// Instructions.
    pub instructions: u64,
    /// Exchanges that never finished, by reason; none of them is a record.
    pub interrupted: BTreeMap<String, u64>,
    /// Bodies present, as given, in bytes.
    pub body_bytes: u64,
    /// Bodies present, as stored, in bytes.
    pub stored_bytes: u64,
    /// Records whose bodies retention dropped.
    pub pruned_records: u64,
    /// What that freed, as stored, in bytes.
    pub pruned_bytes: u64,
    /// Prompt tokens, where the engine counted them.
    pub input_tokens: u64,
    /// Generated tokens, where the engine counted them.
    pub output_tokens: u64,
    /// Reports with a score.
    pub scores: u64,
    /// Their sum.
    pub score_sum: f64,
    /// Records consumed by batches.
    pub consumed: u64,
    /// The last sequence given, 0 when there is none.
    pub last_sequence: i64,
    /// When the newest record happened, microseconds since the Unix epoch.
    pub last_us: Option<i64>,
}

/// Counts of each active scenario, or of one.
pub(super) fn read(
    conn: &Connection,
    scenario: Option<&ScenarioName>,
) -> Result<BTreeMap<ScenarioName, Stats>, StoreError> {
    let mut all = BTreeMap::new();
    let mut scenarios = conn
        .prepare_cached(
            "SELECT s.scenario_id, s.name, r.sequence, r.created_us FROM scenario s
             LEFT JOIN record r ON r.sequence = (SELECT max(sequence) FROM record WHERE scenario_id = s.scenario_id)
             WHERE s.archived_us IS NULL AND (?1 IS NULL OR s.name = ?1)",
        )
        .doing("reading counts")?;
    let mut counts = conn
        .prepare_cached("SELECT name, value FROM tally WHERE scenario_id = ?1")
        .doing("reading counts")?;
    let mut rows = scenarios
        .query([scenario.map(ScenarioName::as_str)])
        .doing("reading counts")?;
    while let Some(row) = rows.next().doing("reading counts")? {
        let scenario_id: i64 = row.get(0).doing("reading counts")?;
        let name: String = row.get(1).doing("reading counts")?;
        let mut stats = Stats {
            last_sequence: row.get::<_, Option<i64>>(2).doing("reading counts")?.unwrap_or(0),
            last_us: row.get(3).doing("reading counts")?,
            ..Stats::default()
        };
        let mut tallies = counts.query([scenario_id]).doing("reading counts")?;
        while let Some(tally) = tallies.next().doing("reading counts")? {
            let name: String = tally.get(0).doing("reading counts")?;
            stats.set(&name, tally.get(1).doing("reading counts")?);
        }
        all.insert(ScenarioName::new(name).map_err(StoreError::damaged)?, stats);
    }
    Ok(all)
}

impl Stats {
    fn set(&mut self, counter: &str, value: f64) {
        let whole = value.max(0.0) as u64;
        match counter {
            name::INFERENCE => self.exchanges = whole,
            name::REPORT => self.reports = whole,
            name::TRAIN => self.instructions = whole,
            name::BODY_BYTES => self.body_bytes = whole,
            name::STORED_BYTES => self.stored_bytes = whole,
            name::PRUNED_RECORDS => self.pruned_records = whole,
            name::PRUNED_BYTES => self.pruned_bytes = whole,
            name::INPUT_TOKENS => self.input_tokens = whole,
            name::OUTPUT_TOKENS => self.output_tokens = whole,
            name::SCORES => self.scores = whole,
            name::SCORE_SUM => self.score_sum = value,
            name::CONSUMED => self.consumed = whole,
            other => {
                if let Some(reason) = other.strip_prefix(name::INTERRUPTED) {
                    self.interrupted.insert(reason.to_owned(), whole);
                }
            }
        }
    }

    /// The mean score. Absent is not zero: without scores there is none.
    pub fn mean_score(&self) -> Option<f64> {
        mean_score(self.score_sum, self.scores)
    }

    /// Adds another scenario's counts.
    pub fn add(&mut self, other: &Self) {
        self.exchanges += other.exchanges;
        self.reports += other.reports;
        self.instructions += other.instructions;
        for (reason, count) in &other.interrupted {
            *self.interrupted.entry(reason.clone()).or_default() += count;
        }
        self.body_bytes += other.body_bytes;
        self.stored_bytes += other.stored_bytes;
        self.pruned_records += other.pruned_records;
        self.pruned_bytes += other.pruned_bytes;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.scores += other.scores;
        self.score_sum += other.score_sum;
        self.consumed += other.consumed;
        self.last_sequence = self.last_sequence.max(other.last_sequence);
        self.last_us = self.last_us.max(other.last_us);
    }
}
