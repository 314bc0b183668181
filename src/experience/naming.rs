//! Records by the part of an id that a person types.

use rusqlite::{Connection, params};

use super::error::{Doing, StoreError};
use crate::domain::{RecordId, ScenarioName};

/// The fewest characters that may stand for an id.
const SHORTEST: usize = 4;
/// Ids that are named when several fit.
const NAMED: i64 = 5;

/// What fits the part of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// One record.
    One(RecordId),
    /// None.
    Nothing,
    /// Several; the first of them.
    Several(Vec<RecordId>),
}

impl Named {
    /// The one id, or why it is none: `text` is what was typed.
    pub fn only(self, text: &str) -> Result<RecordId, String> {
        match self {
            Self::One(id) => Ok(id),
            Self::Nothing => Err(format!("there is no record {text}")),
            Self::Several(ids) => {
                let ids: Vec<&str> = ids.iter().map(RecordId::as_str).collect();
                Err(format!(
                    "{text} fits several records: {}; give more of the id",
                    ids.join(", ")
                ))
            }
        }
    }
}

/// The record that a text names: by its whole id; by the first characters of it, four or more; or by the last ones behind
/// `…`, as the dashboard shows ids. A trailing `…` is left out.
pub(super) fn named(conn: &Connection, scenario: Option<&ScenarioName>, text: &str) -> Result<Named, StoreError> {
    let text = text.trim();
    if !exact(conn, scenario, text)?.is_empty() {
        return Ok(RecordId::new(text).map_or(Named::Nothing, Named::One));
    }
    let start = text.trim_end_matches('…').trim_end_matches("...");
    let (part, by_end) = match start.strip_prefix('…') {
        Some(end) => (end, true),
        None => (start, false),
    };
    if part.chars().count() < SHORTEST {
        return Ok(Named::Nothing);
    }
    let mut found = if by_end {
        ids(conn, "substr(r.record_id, -length(?2)) = ?2", scenario, part)?
    } else {
        // A range of the index; nothing that begins with the part sorts behind it and the last character there is.
        ids(
            conn,
            "r.record_id >= ?2 AND r.record_id < ?2 || char(1114111)",
            scenario,
            part,
        )?
    };
    Ok(match found.len() {
        0 => Named::Nothing,
        1 => found.pop().map_or(Named::Nothing, Named::One),
        _ => Named::Several(found),
    })
}

fn exact(conn: &Connection, scenario: Option<&ScenarioName>, text: &str) -> Result<Vec<RecordId>, StoreError> {
    ids(conn, "r.record_id = ?2", scenario, text)
}

fn ids(
    conn: &Connection,
    fits: &str,
    scenario: Option<&ScenarioName>,
    part: &str,
) -> Result<Vec<RecordId>, StoreError> {
    let doing = "looking up a record";
    let mut statement = conn
        .prepare_cached(&format!(
            "SELECT DISTINCT r.record_id FROM record r CROSS JOIN scenario s ON s.scenario_id = r.scenario_id
             WHERE {fits} AND s.archived_us IS NULL AND (?1 IS NULL OR s.name = ?1) ORDER BY r.record_id LIMIT ?3"
        ))
        .doing(doing)?;
    let rows = statement
        .query_map(params![scenario.map(ScenarioName::as_str), part, NAMED], |row| {
            row.get::<_, String>(0)
        })
        .doing(doing)?;
    rows.map(|id| RecordId::new(id.doing(doing)?).map_err(StoreError::damaged))
        .collect()
}
