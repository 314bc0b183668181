//! Steps in progress: what survives a crash between a sealed batch and its settlement.

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;

use super::error::{Doing, StoreError};
use super::store::Experience;
use super::writer::{Care, WriteTx};
use crate::domain::{BatchId, RecordId, ReleaseId, ScenarioName, Verdict};
use crate::sys::clock;

/// How far a step has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobStage {
    /// The batch is fixed.
    Sealed,
    /// The candidate is on disk.
    Trained,
    /// The gate has spoken.
    Judged,
}

impl JobStage {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sealed => "sealed",
            Self::Trained => "trained",
            Self::Judged => "judged",
        }
    }

    fn parse(text: &str) -> Result<Self, StoreError> {
        match text {
            "sealed" => Ok(Self::Sealed),
            "trained" => Ok(Self::Trained),
            "judged" => Ok(Self::Judged),
            other => Err(StoreError::damaged(format_args!("job stage {other}"))),
        }
    }
}

/// A step to begin.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    /// The scenario.
    pub scenario: ScenarioName,
    /// The batch.
    pub batch: BatchId,
    /// The recipe's name.
    pub recipe: String,
    /// Samples, split and settings.
    pub manifest: Value,
    /// The instruction that asked for it.
    pub instruction: Option<RecordId>,
    /// The release it builds on.
    pub base: ReleaseId,
}

/// A step in progress, or one that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its row.
    pub id: i64,
    /// The scenario.
    pub scenario: ScenarioName,
    /// The batch.
    pub batch: BatchId,
    /// The number its step will have.
    pub step: u64,
    /// How far it has come.
    pub stage: JobStage,
    /// The recipe's name.
    pub recipe: String,
    /// Samples, split and settings.
    pub manifest: Value,
    /// The instruction that asked for it.
    pub instruction: Option<RecordId>,
    /// The release it builds on.
    pub base: ReleaseId,
    /// Directory and figures of the step.
    pub candidate: Option<Value>,
    /// The gate's decision.
    pub verdict: Option<Verdict>,
    /// Failed attempts at the present stage.
    pub attempts: u32,
    /// Trials of the candidate that ended because the measurement failed.
    pub invalid_trials: u32,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// When the next attempt is due, microseconds since the Unix epoch.
    pub retry_us: Option<i64>,
    /// What became of it, once it ended.
    pub outcome: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// When the batch was sealed.
    pub sealed_us: i64,
    /// When it ended.
    pub ended_us: Option<i64>,
}

/// What a stage adds to a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// The candidate is complete on disk.
    Trained(Value),
    /// The gate has spoken.
    Judged(Box<Verdict>),
    /// The verdict is void: the head moved, or the measurement failed.
    Unjudged,
    /// The candidate is void: it must be trained again, on another release.
    Restarted(ReleaseId),
}

const COLUMNS: &str = "j.job_id, s.name, j.batch_id, j.step, j.stage, j.recipe, j.manifest, j.instruction, j.base,
     j.candidate, j.verdict, j.attempts, j.error, j.retry_us, j.outcome, j.reason, j.sealed_us, j.ended_us,
     j.invalid_trials";

struct Raw {
    texts: [String; 6],
    options: [Option<String>; 6],
    id: i64,
    step: i64,
    attempts: u32,
    invalid_trials: u32,
    times: (Option<i64>, i64, Option<i64>),
}

impl Raw {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            texts: [
                row.get(1)?,
                row.get(2)?,
                row.get(4)?,
                row.get(5)?,
                row.get(6)?,
                row.get(8)?,
            ],
            step: row.get(3)?,
            options: [
                row.get(7)?,
                row.get(9)?,
                row.get(10)?,
                row.get(12)?,
                row.get(14)?,
                row.get(15)?,
            ],
            attempts: row.get(11)?,
            invalid_trials: row.get(18)?,
            times: (row.get(13)?, row.get(16)?, row.get(17)?),
        })
    }

    fn parse(self) -> Result<Job, StoreError> {
        let [scenario, batch, stage, recipe, manifest, base] = self.texts;
        let [instruction, candidate, verdict, error, outcome, reason] = self.options;
        Ok(Job {
            id: self.id,
            scenario: ScenarioName::new(scenario).map_err(StoreError::damaged)?,
            batch: BatchId::new(batch).map_err(StoreError::damaged)?,
            step: u64::try_from(self.step).unwrap_or(0),
            stage: JobStage::parse(&stage)?,
            recipe,
            manifest: json(&manifest)?,
            instruction: instruction
                .map(RecordId::new)
                .transpose()
                .map_err(StoreError::damaged)?,
            base: ReleaseId::new(base).map_err(StoreError::damaged)?,
            candidate: candidate.as_deref().map(json).transpose()?,
            verdict: verdict.as_deref().map(json).transpose()?,
            attempts: self.attempts,
            invalid_trials: self.invalid_trials,
            error,
            retry_us: self.times.0,
            outcome,
            reason,
            sealed_us: self.times.1,
            ended_us: self.times.2,
        })
    }
}

fn json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(StoreError::damaged)
}

impl Experience {
    /// Seals a batch. Fails while another step of the scenario is in progress.
    pub async fn job_begin(&self, job: NewJob) -> Result<Job, StoreError> {
        let text = job.manifest.to_string();
        self.write(Care::ChecksFirst, text.len(), move |tx| {
            let scenario_id = tx.scenario_id(&job.scenario)?;
            if let Some(open) = open_job(tx.conn, scenario_id)? {
                return Err(StoreError::Invalid {
                    what: format!("step {} of scenario {} is still in progress", open.step, job.scenario),
                });
            }
            insert(tx, scenario_id, &job, &text)
        })
        .await
    }

    /// Records that a stage is done; the count of failed attempts starts again.
    pub async fn job_progress(&self, job: i64, progress: Progress) -> Result<Job, StoreError> {
        self.write(Care::ChecksFirst, 0, move |tx| {
            let (stage, candidate, verdict, base) = match &progress {
                Progress::Trained(candidate) => (JobStage::Trained, Some(candidate.to_string()), None, None),
                Progress::Judged(verdict) => {
                    let text = serde_json::to_string(verdict).map_err(StoreError::damaged)?;
                    (JobStage::Judged, None, Some(text), None)
                }
                Progress::Unjudged => (JobStage::Trained, None, None, None),
                Progress::Restarted(base) => (JobStage::Sealed, None, None, Some(base.to_string())),
            };
            // A candidate outlives its judgement and goes only when the step starts again.
            tx.conn
                .prepare_cached(
                    "UPDATE job SET stage = ?2, verdict = ?4, base = coalesce(?5, base), attempts = 0, error = NULL,
                         retry_us = NULL, candidate = CASE WHEN ?2 = 'sealed' THEN NULL ELSE coalesce(?3, candidate) END
                     WHERE job_id = ?1 AND ended_us IS NULL",
                )
                .and_then(|mut s| s.execute(params![job, stage.as_str(), candidate, verdict, base]))
                .doing("recording the progress of a step")?;
            by_id(tx.conn, job)
        })
        .await
    }

    /// Records a failed attempt and when the next one is due.
    pub async fn job_failed(&self, job: i64, error: String, retry_us: i64) -> Result<Job, StoreError> {
        self.write(Care::ChecksFirst, error.len(), move |tx| {
            tx.conn
                .prepare_cached(
                    "UPDATE job SET attempts = attempts + 1, error = ?2, retry_us = ?3
                     WHERE job_id = ?1 AND ended_us IS NULL",
                )
                .and_then(|mut s| s.execute(params![job, error, retry_us]))
                .doing("recording a failed attempt")?;
            by_id(tx.conn, job)
        })
        .await
    }

    /// Counts a trial that ended because the measurement failed.
    pub async fn job_unmeasured(&self, job: i64) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, 0, move |tx| {
            tx.conn
                .prepare_cached(
                    "UPDATE job SET invalid_trials = invalid_trials + 1 WHERE job_id = ?1 AND ended_us IS NULL",
                )
                .and_then(|mut s| s.execute([job]))
                .doing("counting a failed measurement")?;
            Ok(())
        })
        .await
    }

    /// Ends a step. Its records are consumed where the step is recorded, not here.
    pub async fn job_end(&self, job: i64, outcome: &'static str, reason: String) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, reason.len(), move |tx| {
            tx.conn
                .prepare_cached(
                    "UPDATE job SET outcome = ?2, reason = ?3, ended_us = ?4 WHERE job_id = ?1 AND ended_us IS NULL",
                )
                .and_then(|mut s| s.execute(params![job, outcome, reason, clock::now_us()]))
                .doing("ending a step")?;
            Ok(())
        })
        .await
    }

    /// The step in progress of a scenario.
    pub fn open_job(&self, scenario: &ScenarioName) -> Result<Option<Job>, StoreError> {
        self.read(|conn| match super::records::scenario_id(conn, scenario)? {
            Some(scenario_id) => open_job(conn, scenario_id),
            None => Ok(None),
        })
    }

    /// The newest steps of a scenario, ended or not, newest first.
    pub fn jobs(&self, scenario: &ScenarioName, limit: u32) -> Result<Vec<Job>, StoreError> {
        self.read(|conn| {
            let doing = "reading steps";
            let mut statement = conn
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM job j JOIN scenario s USING (scenario_id)
                     WHERE s.name = ?1 AND s.archived_us IS NULL ORDER BY j.job_id DESC LIMIT ?2"
                ))
                .doing(doing)?;
            let rows = statement
                .query_map(params![scenario.as_str(), limit], Raw::read)
                .doing(doing)?;
            rows.map(|row| row.doing(doing)?.parse()).collect()
        })
    }

    /// Whether a batch already has its step.
    pub fn batch_has_step(&self, scenario: &ScenarioName, batch: &BatchId) -> Result<bool, StoreError> {
        self.read(|conn| {
            conn.prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM step p JOIN scenario s USING (scenario_id)
                     WHERE s.name = ?1 AND s.archived_us IS NULL AND p.batch_id = ?2)",
            )
            .and_then(|mut s| s.query_row(params![scenario.as_str(), batch.as_str()], |row| row.get(0)))
            .doing("looking up a batch")
        })
    }

    /// How many trials of a scenario the paired rule has ended, and how many of them released the candidate. A trial whose
    /// measurement failed counts: it was a chance to be released, and the candidate gets another one.
    pub fn paired_decisions(&self, scenario: &ScenarioName) -> Result<(u64, u64), StoreError> {
        self.read(|conn| {
            conn.prepare_cached(
                "SELECT count(*) + (SELECT coalesce(sum(j.invalid_trials), 0) FROM job j JOIN scenario t USING (scenario_id)
                                    WHERE t.name = ?1 AND t.archived_us IS NULL),
                        coalesce(sum(json_extract(p.verdict, '$.outcome') = 'selected'), 0)
                 FROM step p JOIN scenario s USING (scenario_id)
                 WHERE s.name = ?1 AND s.archived_us IS NULL AND p.verdict IS NOT NULL
                   AND json_extract(p.verdict, '$.selector') = 'paired'
                   AND json_extract(p.verdict, '$.outcome') <> 'invalid'",
            )
            .and_then(|mut s| s.query_row([scenario.as_str()], |row| Ok((row.get(0)?, row.get(1)?))))
            .doing("counting verdicts")
        })
    }
}

fn open_job(conn: &Connection, scenario_id: i64) -> Result<Option<Job>, StoreError> {
    conn.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM job j JOIN scenario s USING (scenario_id)
         WHERE j.scenario_id = ?1 AND j.ended_us IS NULL"
    ))
    .and_then(|mut s| s.query_row([scenario_id], Raw::read).optional())
    .doing("reading the step in progress")?
    .map(Raw::parse)
    .transpose()
}

fn by_id(conn: &Connection, job: i64) -> Result<Job, StoreError> {
    conn.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM job j JOIN scenario s USING (scenario_id) WHERE j.job_id = ?1"
    ))
    .and_then(|mut s| s.query_row([job], Raw::read))
    .doing("reading a step")?
    .parse()
}

fn insert(tx: &mut WriteTx<'_>, scenario_id: i64, job: &NewJob, manifest: &str) -> Result<Job, StoreError> {
    tx.conn
        .prepare_cached(
            "INSERT INTO job (scenario_id, batch_id, step, stage, recipe, manifest, instruction, base, sealed_us)
             VALUES (?1, ?2, (SELECT coalesce(max(step) + 1, 0) FROM step WHERE scenario_id = ?1), 'sealed', ?3, ?4, ?5,
                     ?6, ?7)",
        )
        .and_then(|mut s| {
            s.execute(params![
                scenario_id,
                job.batch.as_str(),
                job.recipe,
                manifest,
                job.instruction.as_ref().map(RecordId::as_str),
                job.base.as_str(),
                clock::now_us()
            ])
        })
        .doing("sealing a batch")?;
    by_id(tx.conn, tx.conn.last_insert_rowid())
}
