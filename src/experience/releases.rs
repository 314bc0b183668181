//! The index of chains: releases and the steps that made them, for listings that never open git.

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::{Map, Value};

use super::error::{Doing, StoreError};
use super::store::Experience;
use super::writer::Care;
use crate::domain::{BatchId, ContentId, Operation, RecordId, ReleaseId, ScenarioName, Verdict};
use crate::sys::clock;

/// What became of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleaseState {
    /// It is or was in service.
    Released,
    /// It waits for a person.
    Held,
    /// It was held, and a person put it in service.
    Promoted,
    /// It was held, and a person refused it.
    Rejected,
}

impl ReleaseState {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Held => "held",
            Self::Promoted => "promoted",
            Self::Rejected => "rejected",
        }
    }

    fn parse(text: &str) -> Result<Self, StoreError> {
        match text {
            "released" => Ok(Self::Released),
            "held" => Ok(Self::Held),
            "promoted" => Ok(Self::Promoted),
            "rejected" => Ok(Self::Rejected),
            other => Err(StoreError::damaged(format!("release state {other:?}"))),
        }
    }
}

/// What a release is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseRow {
    /// The release.
    pub release_id: ReleaseId,
    /// The release before it.
    pub parent: Option<ReleaseId>,
    /// Its bytes.
    pub content_id: ContentId,
    /// `lora-adapter`, `harness-tree`, …
    pub kind: String,
    /// The size of its files.
    pub bytes: u64,
    /// Why it was appended.
    pub operation: Operation,
    /// Its place in the chain; of a held one, the place it would have taken.
    pub sequence: u64,
    /// The release whose content it republishes.
    pub target: Option<ReleaseId>,
    /// What became of it.
    pub state: ReleaseState,
    /// Whether its content can be brought back.
    pub restorable: bool,
    /// When, in microseconds since the Unix epoch.
    pub at_us: i64,
    /// What a person said when deciding on it.
    pub note: Option<String>,
}

/// One decision of a scenario, with the release it made or kept.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRow {
    /// Its number; 0 is the creation.
    pub step: u64,
    /// The release it made, or the one that stayed in service.
    pub release: ReleaseRow,
    /// Why.
    pub operation: Operation,
    /// `released`, `held`, `rejected` or `skipped`.
    pub outcome: String,
    /// The batch it used.
    pub batch_id: Option<BatchId>,
    /// The head it was judged against.
    pub base_release_id: Option<ReleaseId>,
    /// The newest record sequence used so far.
    pub high_water: i64,
    /// The verdict in a sentence.
    pub reason: Option<String>,
    /// Figures.
    pub metrics: Map<String, Value>,
    /// When, in microseconds since the Unix epoch.
    pub at_us: i64,
}

/// Where a chain begins and ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainEnds {
    /// The scenario.
    pub scenario: ScenarioName,
    /// Its first release.
    pub creation: ReleaseId,
    /// The release it was forked from.
    pub base: Option<ReleaseId>,
    /// Its newest release, as this store knows it.
    pub head: ReleaseId,
}

/// Which steps to read.
#[derive(Debug, Clone, Default)]
pub struct StepQuery {
    /// Only steps below this one.
    pub before: Option<u64>,
    /// Only steps above this one.
    pub after: Option<u64>,
    /// Oldest first instead of newest first.
    pub oldest_first: bool,
    /// At most so many.
    pub limit: Option<u32>,
    /// Only steps that used one of these records.
    pub using: Vec<RecordId>,
}

const RELEASE_COLUMNS: &str = "r.release_id, r.parent, r.content_id, r.kind, r.bytes, r.operation, r.sequence, \
                               r.target, r.state, r.restorable, r.at_us, r.note";

impl Experience {
    /// Steps of a scenario.
    pub fn steps(&self, scenario: &ScenarioName, query: &StepQuery) -> Result<Vec<StepRow>, StoreError> {
        self.read(|conn| steps(conn, scenario, query))
    }

    /// The step that made a release, held ones included.
    pub fn step_of(&self, scenario: &ScenarioName, release: &ReleaseId) -> Result<Option<u64>, StoreError> {
        self.read(|conn| {
            conn.prepare_cached(
                "SELECT min(p.step) FROM step p JOIN scenario s USING (scenario_id)
                 WHERE s.name = ?1 AND s.archived_us IS NULL AND p.release_id = ?2 AND p.outcome IN ('released', 'held')",
            )
            .and_then(|mut s| s.query_row(params![scenario.as_str(), release.as_str()], |row| row.get(0)))
            .doing("reading the step of a release")
        })
    }

    /// The evidence of a step.
    pub fn step_verdict(&self, scenario: &ScenarioName, step: u64) -> Result<Option<Verdict>, StoreError> {
        self.read(|conn| {
            let text: Option<Option<String>> = conn
                .prepare_cached(
                    "SELECT p.verdict FROM step p JOIN scenario s USING (scenario_id)
                     WHERE s.name = ?1 AND s.archived_us IS NULL AND p.step = ?2",
                )
                .and_then(|mut s| {
                    s.query_row(params![scenario.as_str(), step], |row| row.get(0))
                        .optional()
                })
                .doing("reading a verdict")?;
            text.flatten()
                .map(|text| serde_json::from_str(&text).map_err(StoreError::damaged))
                .transpose()
        })
    }

    /// The records a batch used, in the order they arrived.
    pub fn batch_records(&self, batch: &BatchId) -> Result<Vec<RecordId>, StoreError> {
        self.read(|conn| {
            let doing = "reading the records of a batch";
            let mut statement = conn
                .prepare_cached(
                    "SELECT r.record_id FROM consumption c JOIN record r ON r.sequence = c.record_sequence
                     WHERE c.batch_id = ?1 ORDER BY r.sequence",
                )
                .doing(doing)?;
            let rows = statement
                .query_map([batch.as_str()], |row| row.get::<_, String>(0))
                .doing(doing)?;
            rows.map(|id| RecordId::new(id.doing(doing)?).map_err(StoreError::damaged))
                .collect()
        })
    }

    /// One release of a scenario.
    pub fn release(&self, scenario: &ScenarioName, id: &ReleaseId) -> Result<Option<ReleaseRow>, StoreError> {
        self.read(|conn| {
            conn.prepare_cached(&format!(
                "SELECT {RELEASE_COLUMNS} FROM release r JOIN scenario s USING (scenario_id)
                 WHERE s.name = ?1 AND s.archived_us IS NULL AND r.release_id = ?2"
            ))
            .and_then(|mut s| {
                s.query_row(params![scenario.as_str(), id.as_str()], |row| raw_release(row, 0))
                    .optional()
            })
            .doing("reading a release")?
            .map(RawRelease::checked)
            .transpose()
        })
    }

    /// Releases of a scenario that begin with these digits, at most two: enough to tell one from several.
    pub fn releases_by_prefix(&self, scenario: &ScenarioName, prefix: &str) -> Result<Vec<ReleaseId>, StoreError> {
        self.read(|conn| {
            let doing = "looking up a release";
            let mut statement = conn
                .prepare_cached(
                    "SELECT r.release_id FROM release r JOIN scenario s USING (scenario_id)
                     WHERE s.name = ?1 AND s.archived_us IS NULL
                       AND r.release_id >= ?2 AND r.release_id < ?2 || 'g' LIMIT 2",
                )
                .doing(doing)?;
            let rows = statement
                .query_map(params![scenario.as_str(), prefix], |row| row.get::<_, String>(0))
                .doing(doing)?;
            rows.map(|id| ReleaseId::new(id.doing(doing)?).map_err(StoreError::damaged))
                .collect()
        })
    }

    /// The newest release of the chain as this store knows it.
    pub fn indexed_head(&self, scenario: &ScenarioName) -> Result<Option<ReleaseId>, StoreError> {
        self.read(|conn| head_of(conn, scenario))
    }

    /// Both ends of every active scenario's chain, or of one.
    pub fn chain_ends(&self, scenario: Option<&ScenarioName>) -> Result<Vec<ChainEnds>, StoreError> {
        self.read(|conn| {
            let doing = "reading the ends of chains";
            let mut statement = conn
                .prepare_cached(
                    "SELECT s.name, c.release_id, r.parent,
                            (SELECT p.release_id FROM step p WHERE p.scenario_id = s.scenario_id
                             AND p.outcome = 'released' ORDER BY p.step DESC LIMIT 1)
                     FROM scenario s JOIN step c ON c.scenario_id = s.scenario_id AND c.step = 0
                     JOIN release r ON r.scenario_id = c.scenario_id AND r.release_id = c.release_id
                     WHERE s.archived_us IS NULL AND (?1 IS NULL OR s.name = ?1)",
                )
                .doing(doing)?;
            let rows = statement
                .query_map([scenario.map(ScenarioName::as_str)], |row| {
                    Ok((
                        row.get::<_, String>(0)?,
                        row.get::<_, String>(1)?,
                        row.get::<_, Option<String>>(2)?,
                        row.get::<_, String>(3)?,
                    ))
                })
                .doing(doing)?;
            rows.map(|row| {
                let (name, creation, base, head) = row.doing(doing)?;
                let id = |text: String| ReleaseId::new(text).map_err(StoreError::damaged);
                Ok(ChainEnds {
                    scenario: ScenarioName::new(name).map_err(StoreError::damaged)?,
                    creation: id(creation)?,
                    base: base.map(id).transpose()?,
                    head: id(head)?,
                })
            })
            .collect()
        })
    }

    /// Records a person's decision on a held release; false when it is not held.
    pub async fn decide_held(
        &self,
        scenario: ScenarioName,
        release: ReleaseId,
        state: ReleaseState,
        note: Option<String>,
    ) -> Result<bool, StoreError> {
        self.write(Care::ChecksFirst, 0, move |tx| {
            let scenario_id = tx.scenario_id(&scenario)?;
            decide(tx.conn, scenario_id, &release, state, note.as_deref())
        })
        .await
    }

    /// Notes whether the content of releases can be brought back, in every scenario that has them: false before it is
    /// taken away, true once it is there again.
    pub async fn mark_restorable(&self, releases: Vec<ReleaseId>, restorable: bool) -> Result<(), StoreError> {
        self.write(Care::Undo, 0, move |tx| {
            let mut statement = tx
                .conn
                .prepare_cached("UPDATE release SET restorable = ?2 WHERE release_id = ?1")
                .doing("marking releases")?;
            for release in &releases {
                statement
                    .execute(params![release.as_str(), restorable])
                    .doing("marking releases")?;
            }
            Ok(())
        })
        .await
    }

    /// Releases of all scenarios, archived ones too, in a state, or that cannot be restored.
    pub fn releases_where(&self, wanted: ReleasesWhere) -> Result<Vec<ReleaseId>, StoreError> {
        self.read(|conn| {
            let doing = "reading releases";
            let sql = match wanted {
                ReleasesWhere::Any => "SELECT DISTINCT release_id FROM release",
                ReleasesWhere::Decided => "SELECT release_id FROM release WHERE state IN ('promoted', 'rejected')",
                ReleasesWhere::Unrestorable => "SELECT release_id FROM release WHERE restorable = 0",
                ReleasesWhere::InProgress => "SELECT base FROM job WHERE ended_us IS NULL",
                ReleasesWhere::Rejected => "SELECT release_id FROM release WHERE state = 'rejected'",
                ReleasesWhere::WasHeld => "SELECT release_id FROM step WHERE outcome = 'held'",
                ReleasesWhere::Promoted => {
                    "SELECT target FROM release WHERE operation = 'promote' AND target IS NOT NULL"
                }
            };
            let mut statement = conn.prepare_cached(sql).doing(doing)?;
            let rows = statement.query_map([], |row| row.get::<_, String>(0)).doing(doing)?;
            rows.map(|id| ReleaseId::new(id.doing(doing)?).map_err(StoreError::damaged))
                .collect()
        })
    }
}

pub(super) fn head_of(conn: &Connection, scenario: &ScenarioName) -> Result<Option<ReleaseId>, StoreError> {
    conn.prepare_cached(
        "SELECT p.release_id FROM step p JOIN scenario s USING (scenario_id)
         WHERE s.name = ?1 AND s.archived_us IS NULL AND p.outcome = 'released' ORDER BY p.step DESC LIMIT 1",
    )
    .and_then(|mut s| {
        s.query_row([scenario.as_str()], |row| row.get::<_, String>(0))
            .optional()
    })
    .doing("reading the head of a chain")?
    .map(|id| ReleaseId::new(id).map_err(StoreError::damaged))
    .transpose()
}

/// Which releases to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleasesWhere {
    /// All of them.
    Any,
    /// Held ones a person has decided on.
    Decided,
    /// Those whose content is gone.
    Unrestorable,
    /// Those that a step in progress builds on.
    InProgress,
    /// Those that a promote put in service.
    Promoted,
    /// Held ones a person has refused.
    Rejected,
    /// Those that were published to wait for a person, whatever became of them.
    WasHeld,
}

fn steps(conn: &Connection, scenario: &ScenarioName, query: &StepQuery) -> Result<Vec<StepRow>, StoreError> {
    let doing = "reading steps";
    let order = if query.oldest_first { "ASC" } else { "DESC" };
    let using = if query.using.is_empty() {
        ""
    } else {
        "AND p.batch_id IN (SELECT c.batch_id FROM consumption c JOIN record q ON q.sequence = c.record_sequence
                            WHERE q.scenario_id = p.scenario_id
                              AND q.record_id IN (SELECT value FROM json_each(?5)))"
    };
    let sql = format!(
        "SELECT p.step, p.operation, p.outcome, p.batch_id, p.base_release_id, p.high_water, p.metrics, p.at_us, p.reason,
                {RELEASE_COLUMNS}
         FROM step p JOIN scenario s USING (scenario_id)
         JOIN release r ON r.scenario_id = p.scenario_id AND r.release_id = p.release_id
         WHERE s.name = ?1 AND s.archived_us IS NULL AND p.step < ?2 AND p.step > ?3 {using}
         ORDER BY p.step {order} LIMIT ?4"
    );
    let mut statement = conn.prepare_cached(&sql).doing(doing)?;
    let before = query.before.map_or(i64::MAX, |n| i64::try_from(n).unwrap_or(i64::MAX));
    let after = query.after.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
    let limit = query.limit.map_or(-1, i64::from);
    let using = serde_json::to_string(&query.using).map_err(StoreError::damaged)?;
    let mut rows = if query.using.is_empty() {
        statement.query(params![scenario.as_str(), before, after, limit])
    } else {
        statement.query(params![scenario.as_str(), before, after, limit, using])
    }
    .doing(doing)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().doing(doing)? {
        let text = |at: usize| row.get::<_, Option<String>>(at).doing(doing);
        let needed = |at: usize| row.get::<_, String>(at).doing(doing);
        let metrics = needed(6)?;
        found.push(StepRow {
            step: row.get(0).doing(doing)?,
            operation: operation(&needed(1)?)?,
            outcome: needed(2)?,
            batch_id: text(3)?.map(BatchId::new).transpose().map_err(StoreError::damaged)?,
            base_release_id: text(4)?.map(ReleaseId::new).transpose().map_err(StoreError::damaged)?,
            high_water: row.get(5).doing(doing)?,
            metrics: if metrics == "{}" {
                Map::new()
            } else {
                serde_json::from_str(&metrics).map_err(StoreError::damaged)?
            },
            at_us: row.get(7).doing(doing)?,
            reason: text(8)?,
            release: raw_release(row, 9).doing(doing)?.checked()?,
        });
    }
    Ok(found)
}

/// A row before its words are checked.
struct RawRelease {
    release_id: String,
    parent: Option<String>,
    content_id: String,
    kind: String,
    bytes: u64,
    operation: String,
    sequence: u64,
    target: Option<String>,
    state: String,
    restorable: bool,
    at_us: i64,
    note: Option<String>,
}

fn raw_release(row: &Row<'_>, from: usize) -> rusqlite::Result<RawRelease> {
    Ok(RawRelease {
        release_id: row.get(from)?,
        parent: row.get(from + 1)?,
        content_id: row.get(from + 2)?,
        kind: row.get(from + 3)?,
        bytes: row.get(from + 4)?,
        operation: row.get(from + 5)?,
        sequence: row.get(from + 6)?,
        target: row.get(from + 7)?,
        state: row.get(from + 8)?,
        restorable: row.get(from + 9)?,
        at_us: row.get(from + 10)?,
        note: row.get(from + 11)?,
    })
}

impl RawRelease {
    fn checked(self) -> Result<ReleaseRow, StoreError> {
        let id = |text: String| ReleaseId::new(text).map_err(StoreError::damaged);
        Ok(ReleaseRow {
            release_id: id(self.release_id)?,
            parent: self.parent.map(id).transpose()?,
            content_id: ContentId::new(self.content_id).map_err(StoreError::damaged)?,
            kind: self.kind,
            bytes: self.bytes,
            operation: operation(&self.operation)?,
            sequence: self.sequence,
            target: self.target.map(id).transpose()?,
            state: ReleaseState::parse(&self.state)?,
            restorable: self.restorable,
            at_us: self.at_us,
            note: self.note,
        })
    }
}

fn operation(text: &str) -> Result<Operation, StoreError> {
    serde_json::from_value(Value::String(text.to_owned())).map_err(StoreError::damaged)
}

/// Adds a release; a known one stays as it is.
pub(super) fn insert(
    conn: &Connection,
    scenario_id: i64,
    release: &ReleaseRow,
    note: Option<&str>,
) -> Result<(), StoreError> {
    conn.prepare_cached(
        "INSERT INTO release (scenario_id, release_id, parent, content_id, kind, bytes, operation, sequence, target,
                              state, restorable, at_us, note)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
         ON CONFLICT (scenario_id, release_id) DO NOTHING",
    )
    .and_then(|mut s| {
        s.execute(params![
            scenario_id,
            release.release_id.as_str(),
            release.parent.as_ref().map(ReleaseId::as_str),
            release.content_id.as_str(),
            release.kind,
            release.bytes,
            release.operation.as_str(),
            release.sequence,
            release.target.as_ref().map(ReleaseId::as_str),
            release.state.as_str(),
            release.restorable,
            release.at_us,
            release.note.as_deref().or(note)
        ])
    })
    .doing("indexing a release")?;
    Ok(())
}

/// Moves a held release on; false when it is not held.
pub(super) fn decide(
    conn: &Connection,
    scenario_id: i64,
    release: &ReleaseId,
    state: ReleaseState,
    note: Option<&str>,
) -> Result<bool, StoreError> {
    let changed = conn
        .prepare_cached(
            "UPDATE release SET state = ?3, note = coalesce(?4, note), decided_us = ?5
             WHERE scenario_id = ?1 AND release_id = ?2 AND state = 'held'",
        )
        .and_then(|mut s| {
            s.execute(params![
                scenario_id,
                release.as_str(),
                state.as_str(),
                note,
                clock::now_us()
            ])
        })
        .doing("deciding on a held release")?;
    Ok(changed == 1)
}
