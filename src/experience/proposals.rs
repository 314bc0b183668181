//! Changes to a harness tree that agents and people propose. They wait here until a step takes them up.

use rusqlite::{OptionalExtension, Row, params};
use serde_json::Value;

use super::error::{Doing, StoreError};
use super::moves::ProposalState;
use super::records::scenario_id;
use super::store::Experience;
use super::writer::Care;
use crate::domain::{ReleaseId, ScenarioName};
use crate::sys::clock;

/// A proposal as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// Its id.
    pub id: String,
    /// Where it is.
    pub state: ProposalState,
    /// The mutations.
    pub mutations: Value,
    /// Why, in the proposer's words.
    pub reason: String,
    /// The session it came from.
    pub session: String,
    /// The release the proposer says it ran on.
    pub client_release: String,
    /// The release it was admitted against.
    pub head: ReleaseId,
    /// What became of it.
    pub outcome: Option<String>,
    /// When it came, microseconds since the Unix epoch.
    pub received_us: i64,
}

/// A proposal to keep.
#[derive(Debug, Clone, PartialEq)]
pub struct NewProposal {
    /// Its id.
    pub id: String,
    /// The scenario.
    pub scenario: ScenarioName,
    /// The mutations.
    pub mutations: Value,
    /// Why.
    pub reason: String,
    /// The session it came from.
    pub session: String,
    /// The release the proposer says it ran on.
    pub client_release: String,
    /// The release it was admitted against.
    pub head: ReleaseId,
    /// Why it is refused, if it is; it is kept all the same.
    pub refused: Option<String>,
    /// How many may wait.
    pub most_waiting: u32,
}

const COLUMNS: &str = "proposal_id, state, mutations, reason, session, client_release, head, outcome, received_us";

type Columns = (
    String,
    String,
    String,
    String,
    String,
    String,
    String,
    Option<String>,
    i64,
);

fn columns(row: &Row<'_>) -> rusqlite::Result<Columns> {
    Ok((
        row.get(0)?,
        row.get(1)?,
        row.get(2)?,
        row.get(3)?,
        row.get(4)?,
        row.get(5)?,
        row.get(6)?,
        row.get(7)?,
        row.get(8)?,
    ))
}

fn proposal(columns: Columns) -> Result<Proposal, StoreError> {
    let (id, state, mutations, reason, session, client_release, head, outcome, received_us) = columns;
    Ok(Proposal {
        id,
        state: ProposalState::parse(&state)?,
        mutations: serde_json::from_str(&mutations).map_err(StoreError::damaged)?,
        reason,
        session,
        client_release,
        head: ReleaseId::new(head).map_err(StoreError::damaged)?,
        outcome,
        received_us,
    })
}

impl Experience {
    /// Keeps a proposal. False when too many wait already; then nothing is kept.
    pub async fn proposal_add(&self, new: NewProposal) -> Result<bool, StoreError> {
        let text = new.mutations.to_string();
        self.write(Care::ChecksFirst, text.len(), move |tx| {
            let doing = "keeping a proposal";
            let scenario_id = tx.scenario_id(&new.scenario)?;
            let waiting: u32 = tx
                .conn
                .prepare_cached(
                    "SELECT count(*) FROM proposal WHERE scenario_id = ?1 AND state IN ('waiting', 'claimed')",
                )
                .and_then(|mut s| s.query_row([scenario_id], |row| row.get(0)))
                .doing(doing)?;
            if new.refused.is_none() && waiting >= new.most_waiting {
                return Ok(false);
            }
            let state = if new.refused.is_some() {
                ProposalState::Refused
            } else {
                ProposalState::Waiting
            };
            tx.conn
                .prepare_cached(
                    "INSERT INTO proposal (proposal_id, scenario_id, state, mutations, reason, session, client_release,
                         head, outcome, received_us, changed_us)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10)",
                )
                .and_then(|mut s| {
                    s.execute(params![
                        new.id,
                        scenario_id,
                        state.as_str(),
                        text,
                        new.reason,
                        new.session,
                        new.client_release,
                        new.head.as_str(),
                        new.refused,
                        clock::now_us()
                    ])
                })
                .doing(doing)?;
            Ok(true)
        })
        .await
    }

    /// The oldest proposal that waits. One that was claimed by a step that is gone waits again: only the driver of a
    /// scenario asks, and it asks when no step is in progress.
    pub fn proposal_next(&self, scenario: &ScenarioName) -> Result<Option<Proposal>, StoreError> {
        self.read(|conn| {
            let Some(scenario_id) = scenario_id(conn, scenario)? else {
                return Ok(None);
            };
            conn.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM proposal WHERE scenario_id = ?1 AND state IN ('waiting', 'claimed')
                 ORDER BY received_us, proposal_id LIMIT 1"
            ))
            .and_then(|mut s| s.query_row([scenario_id], columns).optional())
            .doing("reading proposals")?
            .map(proposal)
            .transpose()
        })
    }

    /// One proposal.
    pub fn proposal(&self, id: &str) -> Result<Option<Proposal>, StoreError> {
        self.read(|conn| {
            conn.prepare_cached(&format!("SELECT {COLUMNS} FROM proposal WHERE proposal_id = ?1"))
                .and_then(|mut s| s.query_row([id], columns).optional())
                .doing("reading a proposal")?
                .map(proposal)
                .transpose()
        })
    }

    /// Proposals of a scenario, newest first.
    pub fn proposals(&self, scenario: &ScenarioName, limit: u32) -> Result<Vec<Proposal>, StoreError> {
        self.read(|conn| {
            let doing = "reading proposals";
            let Some(scenario_id) = scenario_id(conn, scenario)? else {
                return Ok(Vec::new());
            };
            let mut statement = conn
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM proposal WHERE scenario_id = ?1 ORDER BY received_us DESC LIMIT ?2"
                ))
                .doing(doing)?;
            let rows = statement.query_map(params![scenario_id, limit], columns).doing(doing)?;
            rows.map(|row| proposal(row.doing(doing)?)).collect()
        })
    }

    /// Moves a proposal on. An unknown one is nothing to move; one that is there already stays as it is.
    pub async fn proposal_set(
        &self,
        id: String,
        state: ProposalState,
        outcome: Option<String>,
    ) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, 0, move |tx| {
            let doing = "moving a proposal on";
            let before: Option<String> = tx
                .conn
                .prepare_cached("SELECT state FROM proposal WHERE proposal_id = ?1")
                .and_then(|mut s| s.query_row([&id], |row| row.get(0)).optional())
                .doing(doing)?;
            let Some(before) = before.as_deref().map(ProposalState::parse).transpose()? else {
                return Ok(());
            };
            before.check_move(state, &id)?;
            if before == state {
                return Ok(());
            }
            tx.conn
                .prepare_cached(
                    "UPDATE proposal SET state = ?2, outcome = coalesce(?3, outcome), changed_us = ?4
                     WHERE proposal_id = ?1",
                )
                .and_then(|mut s| s.execute(params![id, state.as_str(), outcome, clock::now_us()]))
                .doing(doing)?;
            Ok(())
        })
        .await
    }
}
