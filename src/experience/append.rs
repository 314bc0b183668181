//! Appending records. Everything that costs time (hashing, compression) happens before the queue; the writer thread only
//! compares, resolves and inserts.

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Map, Value, json};

use super::body::{self, EncodedBodies};
use super::canonical::{self, FieldHash};
use super::error::{Doing, ReferenceFault, StoreError};
use super::records::RecordRow;
use super::tally::{self, name};
use super::writer::{WriteTx, release_text};
use crate::domain::{NewExchange, NewReport, RecordId, RequestType, SCORE_RULE, ScenarioName, Tags, is_score};
use crate::sys::clock;

/// A report may name at most so many exchanges.
const MAX_REFERENCES: usize = 1000;

/// An accepted write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// The record's id.
    pub id: RecordId,
    /// Its place in the store's one order of arrival.
    pub sequence: i64,
    /// Whether it is new.
    pub outcome: Insertion,
}

/// Whether a write added a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insertion {
    /// The record is new.
    Inserted,
    /// The same content was stored under this id before.
    AlreadyStored,
}

/// An instruction to train, on its way into the store.
#[derive(Debug, Clone, PartialEq)]
pub struct NewInstruction {
    /// Its id, the key of a retry.
    pub id: RecordId,
    /// The scenario.
    pub scenario: ScenarioName,
    /// The instruction: `text`, `session`, `release_id`, `requires`, …
    pub payload: Map<String, Value>,
}

/// A record ready to be inserted.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    pub id: RecordId,
    pub scenario: ScenarioName,
    pub kind: RequestType,
    pub content: [u8; 32],
    pub created_us: i64,
    pub references: Vec<RecordId>,
    release: Option<String>,
    meta: Meta,
    /// `None` for a record that comes from an export made after its bodies were dropped.
    bodies: Option<EncodedBodies>,
    body_bytes: usize,
    pruned_us: Option<i64>,
}

#[derive(Debug, Clone, Default)]
struct Meta {
    route: Option<&'static str>,
    status: Option<u16>,
    streamed: Option<bool>,
    tags: Option<String>,
    first_byte_us: Option<u64>,
    total_us: Option<u64>,
    model: Option<String>,
    stop_reason: Option<String>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    score: Option<f64>,
    eligible: bool,
    has_capture: bool,
}

impl Prepared {
    /// What it holds in memory while it waits.
    pub(super) fn bytes(&self) -> usize {
        self.stored_bytes() + 512
    }

    fn stored_bytes(&self) -> usize {
        self.bodies.as_ref().map_or(0, EncodedBodies::stored_bytes)
    }

    /// `created_us`: when it happened, if not at the start its timings name.
    pub(super) fn exchange(exchange: &NewExchange, created_us: Option<i64>) -> Result<Self, StoreError> {
        let release = exchange.release.as_ref().map(release_text).transpose()?;
        let tags = tags_text(&exchange.tags)?;
        let capture = exchange.capture.as_ref().map(body::write_capture);
        let turn = serde_json::to_vec(&exchange.turn).map_err(StoreError::damaged)?;
        let content = exchange_content(exchange, release.as_deref(), tags.as_deref(), capture.as_deref());
        let body_bytes =
            exchange.request.len() + exchange.response.len() + turn.len() + capture.as_ref().map_or(0, Vec::len);
        let usage = exchange.turn.usage.as_ref();
        Ok(Self {
            id: exchange.id.clone(),
            scenario: exchange.scenario.clone(),
            kind: RequestType::Inference,
            content,
            created_us: created_us.unwrap_or(match exchange.timings.started_us {
                0 => clock::now_us(),
                started => started,
            }),
            references: Vec::new(),
            release,
            meta: Meta {
                route: exchange.route.map(crate::domain::Route::path),
                status: Some(exchange.status),
                streamed: Some(exchange.streamed),
                tags,
                first_byte_us: Some(exchange.timings.first_byte_us),
                total_us: Some(exchange.timings.total_us),
                model: exchange.turn.model.clone(),
                stop_reason: exchange.turn.stop_reason.clone(),
                input_tokens: usage.and_then(|u| u.input_tokens),
                output_tokens: usage.and_then(|u| u.output_tokens),
                score: None,
                eligible: true,
                has_capture: capture.is_some(),
            },
            bodies: Some(EncodedBodies {
                request: body::encode(&exchange.request),
                response: Some(body::encode(&exchange.response)),
                turn: Some(body::encode(&turn)),
                capture: capture.as_deref().map(body::encode),
            }),
            body_bytes,
            pruned_us: None,
        })
    }

    pub(super) fn report(report: &NewReport, created_us: Option<i64>) -> Result<Self, StoreError> {
        if let Some(score) = report.score.filter(|score| !is_score(*score)) {
            return Err(StoreError::invalid(format_args!("score {score:e}: {SCORE_RULE}")));
        }
        let mut seen = HashSet::with_capacity(report.references.len());
        for (position, reference) in report.references.iter().enumerate() {
            let fault = if position >= MAX_REFERENCES {
                ReferenceFault::TooMany(MAX_REFERENCES)
            } else if seen.insert(reference) {
                continue;
            } else {
                ReferenceFault::Duplicate
            };
            return Err(reference_error(position, reference, fault));
        }
        let eligible = report
            .metadata
            .get("training")
            .and_then(|training| training.get("eligible"))
            != Some(&Value::Bool(false));
        let payload = report_payload(report);
        let mut prepared = Self::json(
            report.id.clone(),
            report.scenario.clone(),
            RequestType::Report,
            &payload,
            created_us,
        );
        prepared.references = report.references.clone();
        prepared.meta.score = report.score;
        prepared.meta.eligible = eligible;
        Ok(prepared)
    }

    pub(super) fn instruction(instruction: NewInstruction, created_us: Option<i64>) -> Self {
        Self::json(
            instruction.id,
            instruction.scenario,
            RequestType::Train,
            &Value::Object(instruction.payload),
            created_us,
        )
    }

    /// A record whose bodies are gone: its identity is the one it had.
    pub(super) fn without_bodies(row: RecordRow) -> Result<Self, StoreError> {
        let served = row.kind == RequestType::Inference;
        Ok(Self {
            content: row.content_sha256,
            created_us: row.created_us,
            references: row.references,
            release: row.release.as_ref().map(release_text).transpose()?,
            meta: Meta {
                route: row.route.map(crate::domain::Route::path),
                status: row.status,
                streamed: served.then_some(row.streamed),
                tags: tags_text(&row.tags)?,
                first_byte_us: served.then_some(row.timings.first_byte_us),
                total_us: served.then_some(row.timings.total_us),
                model: row.model,
                stop_reason: row.stop_reason,
                input_tokens: row.input_tokens,
                output_tokens: row.output_tokens,
                score: row.score,
                eligible: row.eligible,
                has_capture: row.has_capture,
            },
            bodies: None,
            body_bytes: usize::try_from(row.body_bytes).unwrap_or(usize::MAX),
            pruned_us: Some(row.pruned_us.unwrap_or_else(clock::now_us)),
            id: row.id,
            scenario: row.scenario,
            kind: row.kind,
        })
    }

    fn json(id: RecordId, scenario: ScenarioName, kind: RequestType, payload: &Value, created_us: Option<i64>) -> Self {
        let canonical = canonical::bytes(payload);
        // The body keeps the order of keys the sender chose; only the identity is canonical.
        let text = payload.to_string().into_bytes();
        Self {
            id,
            scenario,
            kind,
            content: FieldHash::new(kind.as_str()).field(&canonical).finish(),
            created_us: created_us.unwrap_or_else(clock::now_us),
            references: Vec::new(),
            release: None,
            meta: Meta {
                eligible: true,
                ..Meta::default()
            },
            body_bytes: text.len(),
            bodies: Some(EncodedBodies {
                request: body::encode(&text),
                ..EncodedBodies::default()
            }),
            pruned_us: None,
        }
    }

    /// The write itself. Checks first, changes last: a refusal leaves nothing.
    pub(super) fn apply(&self, tx: &mut WriteTx<'_>) -> Result<Appended, StoreError> {
        let scenario_id = tx.scenario_id(&self.scenario)?;
        if let Some((sequence, content)) = stored(tx.conn, scenario_id, &self.id)? {
            return if content == self.content {
                Ok(self.appended(sequence, Insertion::AlreadyStored))
            } else {
                Err(StoreError::Conflict {
                    scenario: self.scenario.clone(),
                    id: self.id.clone(),
                })
            };
        }
        let references = self.resolve(tx.conn, scenario_id)?;
        let frozen_id = self.release.as_deref().map(|text| tx.frozen_id(text)).transpose()?;
        let sequence = self.insert(tx.conn, scenario_id, frozen_id)?;
        self.insert_references(tx.conn, sequence, &references)?;
        self.count(tx, scenario_id);
        Ok(self.appended(sequence, Insertion::Inserted))
    }

    fn appended(&self, sequence: i64, outcome: Insertion) -> Appended {
        Appended {
            id: self.id.clone(),
            sequence,
            outcome,
        }
    }

    fn resolve(&self, conn: &Connection, scenario_id: i64) -> Result<Vec<i64>, StoreError> {
        let doing = "looking up references";
        let mut found = Vec::with_capacity(self.references.len());
        if self.references.is_empty() {
            return Ok(found);
        }
        let mut lookup = conn
            .prepare_cached("SELECT sequence, kind FROM record WHERE record_id = ?1 AND scenario_id = ?2")
            .doing(doing)?;
        for (position, reference) in self.references.iter().enumerate() {
            let row: Option<(i64, i64)> = lookup
                .query_row(params![reference.as_str(), scenario_id], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .optional()
                .doing(doing)?;
            let fault = match row {
                Some((sequence, 0)) => {
                    found.push(sequence);
                    continue;
                }
                Some((_, kind)) => ReferenceFault::NotAnExchange(kind_of(kind)?.as_str()),
                None => missing(conn, reference)?,
            };
            return Err(reference_error(position, reference, fault));
        }
        Ok(found)
    }

    fn insert(&self, conn: &Connection, scenario_id: i64, frozen_id: Option<i64>) -> Result<i64, StoreError> {
        let meta = &self.meta;
        conn.prepare_cached(
            "INSERT INTO record (record_id, scenario_id, kind, content_sha256, created_us, stored_us, route, frozen_id,
                 status, streamed, tags, first_byte_us, total_us, model, stop_reason, input_tokens, output_tokens,
                 has_capture, score, eligible, body_bytes, stored_bytes, pruned_us)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,
                 ?23)",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                self.id.as_str(),
                scenario_id,
                kind_code(self.kind),
                self.content,
                self.created_us,
                clock::now_us(),
                meta.route,
                frozen_id,
                meta.status,
                meta.streamed,
                meta.tags,
                meta.first_byte_us.map(clamp),
                meta.total_us.map(clamp),
                meta.model,
                meta.stop_reason,
                meta.input_tokens.map(clamp),
                meta.output_tokens.map(clamp),
                meta.has_capture,
                meta.score,
                meta.eligible,
                self.body_bytes as i64,
                self.stored_bytes() as i64,
                self.pruned_us,
            ])
        })
        .doing("storing a record")?;
        let sequence = conn.last_insert_rowid();
        if let Some(bodies) = &self.bodies {
            conn.prepare_cached(
                "INSERT INTO body (sequence, request, response, turn, capture) VALUES (?1, ?2, ?3, ?4, ?5)",
            )
            .and_then(|mut statement| {
                statement.execute(params![
                    sequence,
                    bodies.request,
                    bodies.response,
                    bodies.turn,
                    bodies.capture
                ])
            })
            .doing("storing a body")?;
        }
        Ok(sequence)
    }

    fn insert_references(&self, conn: &Connection, sequence: i64, references: &[i64]) -> Result<(), StoreError> {
        if references.is_empty() {
            return Ok(());
        }
        let mut statement = conn
            .prepare_cached("INSERT INTO reference (report_sequence, position, record_sequence) VALUES (?1, ?2, ?3)")
            .doing("storing references")?;
        for (position, reference) in references.iter().enumerate() {
            statement
                .execute(params![sequence, position as i64, reference])
                .doing("storing references")?;
        }
        Ok(())
    }

    fn count(&self, tx: &mut WriteTx<'_>, scenario_id: i64) {
        let mut add = |name, value: f64| tx.tallies.add(scenario_id, name, value);
        add(tally::of_kind(self.kind), 1.0);
        if self.bodies.is_some() {
            add(name::BODY_BYTES, self.body_bytes as f64);
            add(name::STORED_BYTES, self.stored_bytes() as f64);
        } else {
            add(name::PRUNED_RECORDS, 1.0);
        }
        add(name::INPUT_TOKENS, self.meta.input_tokens.unwrap_or(0) as f64);
        add(name::OUTPUT_TOKENS, self.meta.output_tokens.unwrap_or(0) as f64);
        if let Some(score) = self.meta.score {
            add(name::SCORES, 1.0);
            add(name::SCORE_SUM, score);
        }
    }
}

/// The four stored fields of a report; an absent one is left out.
pub(super) fn report_payload(report: &NewReport) -> Value {
    let mut payload = Map::new();
    if let Some(score) = report.score {
        payload.insert("score".to_owned(), json!(score));
    }
    if let Some(feedback) = &report.feedback {
        payload.insert("feedback".to_owned(), feedback.clone());
    }
    if !report.references.is_empty() {
        payload.insert("references".to_owned(), json!(report.references));
    }
    if !report.metadata.is_empty() {
        payload.insert("metadata".to_owned(), Value::Object(report.metadata.clone()));
    }
    Value::Object(payload)
}

/// The identity of an exchange. A served one is its exact bytes; an imported one, which has no route, may come again
/// with its JSON written differently, so its JSON bodies count in canonical form. The turn follows from the response;
/// times and the id itself do not count.
fn exchange_content(
    exchange: &NewExchange,
    release: Option<&str>,
    tags: Option<&str>,
    capture: Option<&[u8]>,
) -> [u8; 32] {
    let body = |hash: FieldHash, bytes: &[u8]| {
        let parsed = exchange
            .route
            .is_none()
            .then(|| serde_json::from_slice::<Value>(bytes).ok())
            .flatten();
        match parsed {
            Some(value) => hash.field(&canonical::bytes(&value)),
            None => hash.field(bytes),
        }
    };
    let hash = FieldHash::new("inference")
        .field(exchange.route.map_or("", crate::domain::Route::path).as_bytes())
        .field(release.unwrap_or("").as_bytes())
        .field(&exchange.status.to_le_bytes())
        .field(&[u8::from(exchange.streamed)])
        .field(tags.unwrap_or("").as_bytes());
    let hash = body(hash, &exchange.request);
    body(hash, &exchange.response).field(capture.unwrap_or(&[])).finish()
}

fn tags_text(tags: &Tags) -> Result<Option<String>, StoreError> {
    if tags.is_empty() {
        return Ok(None);
    }
    serde_json::to_string(tags).map(Some).map_err(StoreError::damaged)
}

fn stored(conn: &Connection, scenario_id: i64, id: &RecordId) -> Result<Option<(i64, [u8; 32])>, StoreError> {
    conn.prepare_cached("SELECT sequence, content_sha256 FROM record WHERE record_id = ?1 AND scenario_id = ?2")
        .and_then(|mut statement| {
            statement
                .query_row(params![id.as_str(), scenario_id], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()
        })
        .doing("looking up a record")
}

/// Why an id is no exchange of this scenario: the first that applies of elsewhere, interrupted, nowhere.
fn missing(conn: &Connection, reference: &RecordId) -> Result<ReferenceFault, StoreError> {
    let exists = |sql: &str| -> Result<bool, StoreError> {
        conn.prepare_cached(sql)
            .and_then(|mut statement| statement.exists([reference.as_str()]))
            .doing("looking up references")
    };
    if exists("SELECT 1 FROM record WHERE record_id = ?1 AND kind = 0")? {
        Ok(ReferenceFault::OtherScenario)
    } else if exists("SELECT 1 FROM interruption WHERE record_id = ?1")? {
        Ok(ReferenceFault::Interrupted)
    } else {
        Ok(ReferenceFault::Unknown)
    }
}

fn reference_error(position: usize, reference: &RecordId, fault: ReferenceFault) -> StoreError {
    StoreError::Reference {
        position,
        reference: reference.to_string(),
        fault,
    }
}

pub(super) fn kind_code(kind: RequestType) -> i64 {
    match kind {
        RequestType::Inference => 0,
        RequestType::Report => 1,
        RequestType::Train => 2,
    }
}

pub(super) fn kind_of(code: i64) -> Result<RequestType, StoreError> {
    match code {
        0 => Ok(RequestType::Inference),
        1 => Ok(RequestType::Report),
        2 => Ok(RequestType::Train),
        other => Err(StoreError::damaged(format_args!("a record of unknown kind {other}"))),
    }
}

fn clamp(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
