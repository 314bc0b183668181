//! Scenarios: their names, modes, settings, and the release each serves.

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::{Map, Value};

use super::error::{Doing, StoreError};
use super::writer::{WriteTx, release_text};
use crate::domain::{FrozenRelease, ScenarioName, TrainingMode};
use crate::sys::clock;

/// A scenario as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Its name.
    pub name: ScenarioName,
    /// What may start a training step.
    pub mode: TrainingMode,
    /// Whatever else is set for it.
    pub settings: Map<String, Value>,
    /// The release it serves, as last noted; the artifact repository decides.
    pub served: Option<FrozenRelease>,
    /// When it was created, microseconds since the Unix epoch.
    pub created_us: i64,
    /// When it was archived; an archived name may be created anew.
    pub archived_us: Option<i64>,
}

/// The result of creating a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct ScenarioCreated {
    /// The scenario, as it is now.
    pub scenario: Scenario,
    /// Whether it is new; an existing one is returned unchanged.
    pub created: bool,
}

const COLUMNS: &str = "name, mode, settings, served, created_us, archived_us";

type Columns = (String, String, String, Option<String>, i64, Option<i64>);

fn columns(row: &Row<'_>) -> rusqlite::Result<Columns> {
    Ok((
        row.get(0)?,
        row.get(1)?,
        row.get(2)?,
        row.get(3)?,
        row.get(4)?,
        row.get(5)?,
    ))
}

fn scenario((name, mode, settings, served, created_us, archived_us): Columns) -> Result<Scenario, StoreError> {
    Ok(Scenario {
        name: ScenarioName::new(name).map_err(StoreError::damaged)?,
        mode: mode.parse().map_err(StoreError::damaged)?,
        settings: serde_json::from_str(&settings).map_err(StoreError::damaged)?,
        served: served
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(StoreError::damaged)?,
        created_us,
        archived_us,
    })
}

pub(super) fn get(conn: &Connection, name: &ScenarioName) -> Result<Option<Scenario>, StoreError> {
    conn.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM scenario WHERE name = ?1 AND archived_us IS NULL"
    ))
    .and_then(|mut statement| statement.query_row([name.as_str()], columns).optional())
    .doing("reading a scenario")?
    .map(scenario)
    .transpose()
}

/// By name; archived ones only on demand.
pub(super) fn list(conn: &Connection, with_archived: bool) -> Result<Vec<Scenario>, StoreError> {
    let doing = "listing scenarios";
    let mut statement = conn
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM scenario WHERE ?1 OR archived_us IS NULL ORDER BY name, scenario_id"
        ))
        .doing(doing)?;
    let rows = statement.query_map([with_archived], columns).doing(doing)?;
    rows.map(|row| scenario(row.doing(doing)?)).collect()
}

/// Grows with every scenario that is made, whoever makes it.
pub(super) fn newest(conn: &Connection) -> Result<Option<i64>, StoreError> {
    conn.prepare_cached("SELECT max(scenario_id) FROM scenario")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .doing("looking for new scenarios")
}

pub(super) fn create(
    tx: &mut WriteTx<'_>,
    name: &ScenarioName,
    mode: TrainingMode,
    settings: &Map<String, Value>,
) -> Result<ScenarioCreated, StoreError> {
    if let Some(scenario) = get(tx.conn, name)? {
        return Ok(ScenarioCreated {
            scenario,
            created: false,
        });
    }
    let scenario = Scenario {
        name: name.clone(),
        mode,
        settings: settings.clone(),
        served: None,
        created_us: clock::now_us(),
        archived_us: None,
    };
    tx.conn
        .prepare_cached("INSERT INTO scenario (name, mode, settings, created_us) VALUES (?1, ?2, ?3, ?4)")
        .and_then(|mut statement| {
            statement.execute(params![
                name.as_str(),
                mode.as_str(),
                Value::Object(settings.clone()).to_string(),
                scenario.created_us
            ])
        })
        .doing("creating a scenario")?;
    tx.scenarios_changed();
    Ok(ScenarioCreated {
        scenario,
        created: true,
    })
}

pub(super) fn set_mode(tx: &mut WriteTx<'_>, name: &ScenarioName, mode: TrainingMode) -> Result<(), StoreError> {
    update(
        tx,
        name,
        "UPDATE scenario SET mode = ?1 WHERE scenario_id = ?2",
        mode.as_str(),
    )
}

pub(super) fn set_settings(
    tx: &mut WriteTx<'_>,
    name: &ScenarioName,
    settings: &Map<String, Value>,
) -> Result<(), StoreError> {
    let text = Value::Object(settings.clone()).to_string();
    update(
        tx,
        name,
        "UPDATE scenario SET settings = ?1 WHERE scenario_id = ?2",
        &text,
    )
}

pub(super) fn set_served(tx: &mut WriteTx<'_>, name: &ScenarioName, release: &FrozenRelease) -> Result<(), StoreError> {
    let text = release_text(release)?;
    update(
        tx,
        name,
        "UPDATE scenario SET served = ?1 WHERE scenario_id = ?2",
        &text,
    )
}

/// Archives the scenario of that name that was made at that moment: another process may have put it away already and
/// made a new one.
pub(super) fn archive(tx: &mut WriteTx<'_>, name: &ScenarioName, created_us: i64) -> Result<(), StoreError> {
    if get(tx.conn, name)?.is_none_or(|found| found.created_us != created_us) {
        return Err(StoreError::UnknownScenario { name: name.clone() });
    }
    update(
        tx,
        name,
        "UPDATE scenario SET archived_us = ?1 WHERE scenario_id = ?2",
        &clock::now_us().to_string(),
    )?;
    tx.scenarios_changed();
    Ok(())
}

fn update(tx: &mut WriteTx<'_>, name: &ScenarioName, sql: &'static str, value: &str) -> Result<(), StoreError> {
    let scenario_id = tx.scenario_id(name)?;
    tx.conn
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute(params![value, scenario_id]))
        .doing("changing a scenario")?;
    Ok(())
}
