//! Reading records.

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use serde_json::{Value, json};

use super::append::{kind_code, kind_of};
use super::body::{Bodies, EncodedBodies};
use super::error::{Doing, StoreError};
use super::filter::RecordFilter;
use crate::domain::{FrozenRelease, RecordId, RequestType, Route, ScenarioName, Tags, Timings};
use crate::sys::clock;

/// What is known of a record without its bodies.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordRow {
    /// Its place in the store's one order of arrival.
    pub sequence: i64,
    /// Its id; for an exchange, the receipt.
    pub id: RecordId,
    /// Its scenario.
    pub scenario: ScenarioName,
    /// Its kind.
    pub kind: RequestType,
    /// When it happened, microseconds since the Unix epoch.
    pub created_us: i64,
    /// When it entered this store.
    pub stored_us: i64,
    /// The exchanges a report grades, in its order.
    pub references: Vec<RecordId>,
    /// The release frozen at admission.
    pub release: Option<FrozenRelease>,
    /// The route of a served exchange.
    pub route: Option<Route>,
    /// HTTP status of the response.
    pub status: Option<u16>,
    /// Whether the response was an event stream.
    pub streamed: bool,
    /// Request tags.
    pub tags: Tags,
    /// Timings of an exchange.
    pub timings: Timings,
    /// The model that answered.
    pub model: Option<String>,
    /// Why it stopped.
    pub stop_reason: Option<String>,
    /// Tokens of the prompt.
    pub input_tokens: Option<u64>,
    /// Tokens generated.
    pub output_tokens: Option<u64>,
    /// Whether there is (or was) a token capture.
    pub has_capture: bool,
    /// The score of a report.
    pub score: Option<f64>,
    /// False for a report that said `metadata.training.eligible: false`.
    pub eligible: bool,
    /// Size of the bodies as given, bytes.
    pub body_bytes: u64,
    /// When retention dropped the bodies.
    pub pruned_us: Option<i64>,
    /// The identity of its content.
    pub content_sha256: [u8; 32],
}

impl RecordRow {
    /// The row as the HTTP interface and the command line show it.
    pub fn to_json(&self) -> Value {
        json!({
            "sequence": self.sequence,
            "agent_record_id": self.id,
            "scenario": self.scenario,
            "request_type": self.kind,
            "created_at": clock::seconds(self.created_us),
            "references": self.references,
            "artifact_ref": self.release,
            "score": self.score,
            "eligible": self.eligible,
            "route": self.route.map(Route::path),
            "status": self.status,
            "streamed": self.streamed,
            "tags": self.tags,
            "model": self.model,
            "stop_reason": self.stop_reason,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "first_byte_us": self.timings.first_byte_us,
            "total_us": self.timings.total_us,
            "has_capture": self.has_capture,
            "body_bytes": self.body_bytes,
            "pruned_at": self.pruned_us.map(clock::seconds),
            "content_sha256": hex::encode(self.content_sha256),
        })
    }
}

/// A record with its bodies; without them once retention has dropped them.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// What is known without the bodies.
    pub row: RecordRow,
    /// The bodies.
    pub bodies: Option<Bodies>,
}

/// Which way a page goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Upwards from the cursor.
    #[default]
    OldestFirst,
    /// Downwards from the cursor.
    NewestFirst,
}

/// A page of records.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordQuery {
    /// Only this scenario.
    pub scenario: Option<ScenarioName>,
    /// Only this kind.
    pub kind: Option<RequestType>,
    /// Exclusive: after this sequence going up, before it going down.
    pub cursor: Option<i64>,
    /// Which way.
    pub order: Order,
    /// At most so many.
    pub limit: usize,
    /// Only records that no batch of this consumer has used.
    pub not_consumed_by: Option<String>,
    /// What else they must have.
    pub filter: RecordFilter,
}

const COLUMNS: &str = "r.sequence, r.record_id, s.name, r.kind, r.created_us, r.stored_us, f.json, r.route, r.status,
     r.streamed, r.tags, r.first_byte_us, r.total_us, r.model, r.stop_reason, r.input_tokens, r.output_tokens,
     r.has_capture, r.score, r.eligible, r.body_bytes, r.pruned_us, r.content_sha256";
// CROSS JOIN: the records come first, in order; the planner may not begin with the scenarios and sort.
const TABLES: &str = "record r CROSS JOIN scenario s ON s.scenario_id = r.scenario_id
     LEFT JOIN frozen_release f ON f.frozen_id = r.frozen_id";
const DOING: &str = "reading records";

/// The columns that SQLite itself can read; the rest is parsed where our own errors can be returned.
struct Raw {
    id: String,
    scenario: String,
    kind: i64,
    release: Option<String>,
    route: Option<String>,
    tags: Option<String>,
    row: (i64, i64, i64),
    status: Option<u16>,
    streamed: Option<bool>,
    first_byte_us: Option<i64>,
    total_us: Option<i64>,
    model: Option<String>,
    stop_reason: Option<String>,
    tokens: (Option<i64>, Option<i64>),
    has_capture: bool,
    score: Option<f64>,
    eligible: bool,
    body_bytes: i64,
    pruned_us: Option<i64>,
    content_sha256: [u8; 32],
}

impl Raw {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            row: (row.get(0)?, row.get(4)?, row.get(5)?),
            id: row.get(1)?,
            scenario: row.get(2)?,
            kind: row.get(3)?,
            release: row.get(6)?,
            route: row.get(7)?,
            status: row.get(8)?,
            streamed: row.get(9)?,
            tags: row.get(10)?,
            first_byte_us: row.get(11)?,
            total_us: row.get(12)?,
            model: row.get(13)?,
            stop_reason: row.get(14)?,
            tokens: (row.get(15)?, row.get(16)?),
            has_capture: row.get(17)?,
            score: row.get(18)?,
            eligible: row.get(19)?,
            body_bytes: row.get(20)?,
            pruned_us: row.get(21)?,
            content_sha256: row.get(22)?,
        })
    }

    fn parse(self) -> Result<RecordRow, StoreError> {
        let (sequence, created_us, stored_us) = self.row;
        let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
        let kind = kind_of(self.kind)?;
        Ok(RecordRow {
            sequence,
            id: RecordId::new(self.id).map_err(StoreError::damaged)?,
            scenario: ScenarioName::new(self.scenario).map_err(StoreError::damaged)?,
            kind,
            created_us,
            stored_us,
            references: Vec::new(),
            release: self
                .release
                .map(|text| serde_json::from_str(&text))
                .transpose()
                .map_err(StoreError::damaged)?,
            route: self.route.as_deref().and_then(Route::from_path),
            status: self.status,
            streamed: self.streamed.unwrap_or(false),
            tags: self
                .tags
                .map(|text| serde_json::from_str(&text))
                .transpose()
                .map_err(StoreError::damaged)?
                .unwrap_or_default(),
            timings: Timings {
                started_us: if kind == RequestType::Inference { created_us } else { 0 },
                first_byte_us: self.first_byte_us.map_or(0, unsigned),
                total_us: self.total_us.map_or(0, unsigned),
            },
            model: self.model,
            stop_reason: self.stop_reason,
            input_tokens: self.tokens.0.map(unsigned),
            output_tokens: self.tokens.1.map(unsigned),
            has_capture: self.has_capture,
            score: self.score,
            eligible: self.eligible,
            body_bytes: unsigned(self.body_bytes),
            pruned_us: self.pruned_us,
            content_sha256: self.content_sha256,
        })
    }
}

/// One page, without bodies.
pub(super) fn page(conn: &Connection, query: &RecordQuery) -> Result<Vec<RecordRow>, StoreError> {
    let scenario_id = match &query.scenario {
        None => None,
        Some(name) => Some(scenario_id(conn, name)?.ok_or_else(|| StoreError::UnknownScenario { name: name.clone() })?),
    };
    let start = query.cursor.unwrap_or(match query.order {
        Order::OldestFirst => 0,
        Order::NewestFirst => i64::MAX,
    });
    // What only the bodies tell is decided here, row by row, until there are enough.
    let searched = query.filter.reads_bodies();
    let limit = if searched { usize::MAX } else { query.limit };
    let (sql, filtered) = page_sql(query);
    // A parameter the statement does not mention is still there, because a later one is.
    let mut values: Vec<SqlValue> = vec![
        start.into(),
        scenario_id.into(),
        query.kind.map(kind_code).into(),
        query.not_consumed_by.clone().into(),
        i64::try_from(limit).unwrap_or(i64::MAX).into(),
    ];
    values.extend(filtered);
    let mut statement = conn.prepare_cached(&sql).doing(DOING)?;
    let rows = statement.query_map(params_from_iter(values), Raw::read).doing(DOING)?;
    let mut page = Vec::new();
    for row in rows {
        let row = row.doing(DOING)?.parse()?;
        if !searched {
            page.push(row);
            continue;
        }
        let record = with_bodies(conn, row)?;
        if query.filter.holds(&record) {
            page.push(record.row);
        }
        if page.len() >= query.limit {
            break;
        }
    }
    for row in &mut page {
        row.references = references(conn, row)?;
    }
    Ok(page)
}

/// Each combination of filters is its own statement, so that each uses the index made for it.
fn page_sql(query: &RecordQuery) -> (String, Vec<SqlValue>) {
    let (bound, direction) = match query.order {
        Order::OldestFirst => (">", "ASC"),
        Order::NewestFirst => ("<", "DESC"),
    };
    let mut sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE r.sequence {bound} ?1");
    sql.push_str(match (&query.scenario, query.kind) {
        (None, None) => " AND s.archived_us IS NULL",
        (None, Some(_)) => " AND s.archived_us IS NULL AND r.kind = ?3",
        (Some(_), None) => " AND r.scenario_id = ?2",
        (Some(_), Some(_)) => " AND r.scenario_id = ?2 AND r.kind = ?3",
    });
    if query.not_consumed_by.is_some() {
        sql.push_str(
            " AND NOT EXISTS (SELECT 1 FROM consumption c WHERE c.record_sequence = r.sequence AND c.consumer = ?4)",
        );
    }
    let (filter, values) = query.filter.sql(6);
    sql.push_str(&filter);
    sql.push_str(&format!(" ORDER BY r.sequence {direction} LIMIT ?5"));
    (sql, values)
}

/// One record by id; in any scenario when none is named.
pub(super) fn one(
    conn: &Connection,
    scenario: Option<&ScenarioName>,
    id: &RecordId,
) -> Result<Option<Record>, StoreError> {
    let row = conn
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM {TABLES} WHERE r.record_id = ?1 AND s.archived_us IS NULL AND (?2 IS NULL OR s.name = ?2)
             ORDER BY r.sequence LIMIT 1"
        ))
        .and_then(|mut statement| {
            statement
                .query_row(params![id.as_str(), scenario.map(ScenarioName::as_str)], Raw::read)
                .optional()
        })
        .doing(DOING)?;
    row.map(|raw| with_bodies(conn, raw.parse()?)).transpose()
}

/// One record of a scenario by id, without bodies.
pub(super) fn row(conn: &Connection, scenario: &ScenarioName, id: &RecordId) -> Result<Option<RecordRow>, StoreError> {
    conn.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM {TABLES} WHERE r.record_id = ?1 AND s.archived_us IS NULL AND s.name = ?2"
    ))
    .and_then(|mut statement| {
        statement
            .query_row(params![id.as_str(), scenario.as_str()], Raw::read)
            .optional()
    })
    .doing(DOING)?
    .map(Raw::parse)
    .transpose()
}

/// The reports that grade an exchange, oldest first, with their bodies.
pub(super) fn reports_on(conn: &Connection, scenario: &ScenarioName, id: &RecordId) -> Result<Vec<Record>, StoreError> {
    let mut statement = conn
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM record x CROSS JOIN reference l ON l.record_sequence = x.sequence
             CROSS JOIN {TABLES}
             WHERE r.sequence = l.report_sequence AND x.record_id = ?1
               AND x.scenario_id = (SELECT scenario_id FROM scenario WHERE name = ?2 AND archived_us IS NULL)
             ORDER BY r.sequence"
        ))
        .doing(DOING)?;
    let rows = statement
        .query_map(params![id.as_str(), scenario.as_str()], Raw::read)
        .doing(DOING)?;
    rows.map(|raw| with_bodies(conn, raw.doing(DOING)?.parse()?)).collect()
}

/// The bodies of a record, `None` once dropped.
pub(super) fn with_bodies(conn: &Connection, mut row: RecordRow) -> Result<Record, StoreError> {
    row.references = references(conn, &row)?;
    let bodies = conn
        .prepare_cached("SELECT request, response, turn, capture FROM body WHERE sequence = ?1")
        .and_then(|mut statement| {
            statement
                .query_row([row.sequence], |body| {
                    Ok(EncodedBodies {
                        request: body.get(0)?,
                        response: body.get(1)?,
                        turn: body.get(2)?,
                        capture: body.get(3)?,
                    })
                })
                .optional()
        })
        .doing(DOING)?
        .map(|encoded| encoded.decode())
        .transpose()?;
    Ok(Record { row, bodies })
}

fn references(conn: &Connection, row: &RecordRow) -> Result<Vec<RecordId>, StoreError> {
    if row.kind != RequestType::Report {
        return Ok(Vec::new());
    }
    let mut statement = conn
        .prepare_cached(
            "SELECT r.record_id FROM reference l JOIN record r ON r.sequence = l.record_sequence
             WHERE l.report_sequence = ?1 ORDER BY l.position",
        )
        .doing(DOING)?;
    let rows = statement
        .query_map([row.sequence], |row| row.get::<_, String>(0))
        .doing(DOING)?;
    rows.map(|id| RecordId::new(id.doing(DOING)?).map_err(StoreError::damaged))
        .collect()
}

pub(super) fn scenario_id(conn: &Connection, name: &ScenarioName) -> Result<Option<i64>, StoreError> {
    conn.prepare_cached("SELECT scenario_id FROM scenario WHERE name = ?1 AND archived_us IS NULL")
        .and_then(|mut statement| statement.query_row([name.as_str()], |row| row.get(0)).optional())
        .doing(DOING)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::schema::{self, Create};
    use super::*;

    /// A plan that sorts or reads whole tables is fast on the store of a test and slow on a real one.
    #[test]
    fn no_page_sorts_or_scans() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("experience.db");
        let mut conn = schema::connect(&path, Create::Yes, Duration::from_secs(5)).unwrap();
        schema::prepare(&mut conn, &path).unwrap();
        for order in [Order::OldestFirst, Order::NewestFirst] {
            for scenario in [None, Some(ScenarioName::new("a").unwrap())] {
                for kind in [None, Some(RequestType::Report)] {
                    for not_consumed_by in [None, Some("policy".to_owned())] {
                        let query = RecordQuery {
                            scenario: scenario.clone(),
                            kind,
                            order,
                            not_consumed_by,
                            filter: RecordFilter {
                                min_score: Some(0.5),
                                tags: vec![("session".to_owned(), Some("a".to_owned()))],
                                since_us: Some(1),
                                until_us: Some(2),
                                ..RecordFilter::default()
                            },
                            ..RecordQuery::default()
                        };
                        let (sql, filtered) = page_sql(&query);
                        let mut values: Vec<SqlValue> =
                            vec![0.into(), 1.into(), 1.into(), "policy".to_owned().into(), 50.into()];
                        values.extend(filtered);
                        let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
                        let steps: Vec<String> = statement
                            .query_map(params_from_iter(values), |row| row.get(3))
                            .unwrap()
                            .collect::<Result<_, _>>()
                            .unwrap();
                        assert!(
                            steps
                                .iter()
                                // The tags of one record are a table of their own.
                                .filter(|step| !step.contains("VIRTUAL TABLE"))
                                .all(|step| !step.contains("TEMP B-TREE") && !step.starts_with("SCAN")),
                            "{sql}\n{steps:#?}"
                        );
                        let wanted = match (&query.scenario, kind) {
                            (None, _) => "INTEGER PRIMARY KEY",
                            (Some(_), None) => "record_by_scenario (scenario_id=? AND rowid",
                            (Some(_), Some(_)) => "record_by_kind (scenario_id=? AND kind=? AND rowid",
                        };
                        assert!(steps[0].contains(wanted), "{sql}\n{steps:#?}");
                    }
                }
            }
        }
    }
}
