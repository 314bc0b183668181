//! Exchanges that never finished: counted and visible, never records.

use rusqlite::params;
use serde::{Deserialize, Serialize};

use super::error::{Doing, StoreError};
use super::store::Experience;
use super::writer::WriteTx;
use crate::domain::{RecordId, Route, ScenarioName};

/// Details kept of each; the counts of older ones stay.
const KEPT: i64 = 10_000;

/// An exchange that never finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interruption {
    /// The id it would have had, if one was chosen.
    pub id: Option<RecordId>,
    /// The scenario.
    pub scenario: ScenarioName,
    /// The route.
    pub route: Route,
    /// What ended it.
    pub reason: InterruptionReason,
    /// More about it, for people; no secrets.
    pub detail: String,
    /// When, microseconds since the Unix epoch.
    pub at_us: i64,
    /// Response bytes that had reached the client.
    pub bytes: u64,
}

/// What ended an exchange early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterruptionReason {
    /// The client closed its connection.
    ClientGone,
    /// The upstream refused the credential (401, 403).
    UpstreamDenied,
    /// The upstream wants fewer requests (429).
    UpstreamLimited,
    /// The upstream answered with another error of the 400 class.
    UpstreamRefused,
    /// The upstream answered with an error of its own, or with something that is no answer.
    UpstreamFailed,
    /// The upstream could not be reached, or did not begin to answer in time.
    UpstreamUnavailable,
    /// The upstream closed without a terminal event.
    UpstreamClosed,
    /// The upstream reported a failure inside a success, in a stream or whole.
    UpstreamErrorEvent,
    /// The upstream sent a success without an answer: nothing, a page, JSON cut short or of another shape.
    UpstreamNoAnswer,
    /// Nothing came for too long.
    IdleTimeout,
    /// The server was stopping.
    Shutdown,
    /// The exchange finished but could not be stored.
    StoreFailed,
}

impl InterruptionReason {
    /// Every reason.
    pub const ALL: [Self; 12] = [
        Self::ClientGone,
        Self::UpstreamDenied,
        Self::UpstreamLimited,
        Self::UpstreamRefused,
        Self::UpstreamFailed,
        Self::UpstreamUnavailable,
        Self::UpstreamClosed,
        Self::UpstreamErrorEvent,
        Self::UpstreamNoAnswer,
        Self::IdleTimeout,
        Self::Shutdown,
        Self::StoreFailed,
    ];

    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClientGone => "client_gone",
            Self::UpstreamDenied => "upstream_denied",
            Self::UpstreamLimited => "upstream_limited",
            Self::UpstreamRefused => "upstream_refused",
            Self::UpstreamFailed => "upstream_failed",
            Self::UpstreamUnavailable => "upstream_unavailable",
            Self::UpstreamClosed => "upstream_closed",
            Self::UpstreamErrorEvent => "upstream_error_event",
            Self::UpstreamNoAnswer => "upstream_no_answer",
            Self::IdleTimeout => "idle_timeout",
            Self::Shutdown => "shutdown",
            Self::StoreFailed => "store_failed",
        }
    }

    /// Whether something went wrong, other than by the wish of the client or of who runs the service.
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::ClientGone | Self::UpstreamRefused | Self::Shutdown)
    }

    /// The reason for an error status of the upstream.
    pub fn of_status(status: u16) -> Self {
        match status {
            401 | 403 => Self::UpstreamDenied,
            429 => Self::UpstreamLimited,
            400..500 => Self::UpstreamRefused,
            _ => Self::UpstreamFailed,
        }
    }

    fn counter(self) -> &'static str {
        match self {
            Self::ClientGone => "interrupted.client_gone",
            Self::UpstreamDenied => "interrupted.upstream_denied",
            Self::UpstreamLimited => "interrupted.upstream_limited",
            Self::UpstreamRefused => "interrupted.upstream_refused",
            Self::UpstreamFailed => "interrupted.upstream_failed",
            Self::UpstreamUnavailable => "interrupted.upstream_unavailable",
            Self::UpstreamClosed => "interrupted.upstream_closed",
            Self::UpstreamErrorEvent => "interrupted.upstream_error_event",
            Self::UpstreamNoAnswer => "interrupted.upstream_no_answer",
            Self::IdleTimeout => "interrupted.idle_timeout",
            Self::Shutdown => "interrupted.shutdown",
            Self::StoreFailed => "interrupted.store_failed",
        }
    }
}

impl Interruption {
    pub(super) fn apply(&self, tx: &mut WriteTx<'_>) -> Result<(), StoreError> {
        let scenario_id = tx.scenario_id(&self.scenario)?;
        tx.conn
            .prepare_cached(
                "INSERT INTO interruption (scenario_id, record_id, route, reason, detail, at_us, bytes)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )
            .and_then(|mut statement| {
                statement.execute(params![
                    scenario_id,
                    self.id.as_ref().map(RecordId::as_str),
                    self.route.path(),
                    self.reason.as_str(),
                    self.detail,
                    self.at_us,
                    i64::try_from(self.bytes).unwrap_or(i64::MAX),
                ])
            })
            .doing("noting an interruption")?;
        let oldest_kept = tx.conn.last_insert_rowid() - KEPT;
        tx.conn
            .prepare_cached("DELETE FROM interruption WHERE interruption_id <= ?1")
            .and_then(|mut statement| statement.execute([oldest_kept]))
            .doing("noting an interruption")?;
        tx.tallies.add(scenario_id, self.reason.counter(), 1.0);
        Ok(())
    }
}

impl Experience {
    /// How often providers refused or limited requests since they last answered one: the reason of the newest, how
    /// many, and when. `None` where an answer came since, or none was refused.
    pub fn refusals_since_the_last_answer(&self) -> Result<Option<(InterruptionReason, u64, i64)>, StoreError> {
        self.read(|conn| {
            let found = conn.query_row(
                "WITH answered(at_us) AS (
                     SELECT coalesce(max(created_us), 0) FROM record WHERE kind = 0 AND frozen_id IS NOT NULL),
                 refused AS (
                     SELECT reason, at_us FROM interruption
                     WHERE reason IN ('upstream_denied', 'upstream_limited') AND at_us > (SELECT at_us FROM answered))
                 SELECT (SELECT reason FROM refused ORDER BY at_us DESC LIMIT 1), count(*), max(at_us) FROM refused",
                [],
                |row| Ok((row.get::<_, Option<String>>(0)?, row.get(1)?, row.get(2)?)),
            );
            let (reason, times, at_us) = found.doing("reading interruptions")?;
            let (Some(reason), Some(at_us)) = (reason, at_us) else {
                return Ok(None);
            };
            let known = InterruptionReason::ALL
                .into_iter()
                .find(|known| known.as_str() == reason);
            Ok(known.map(|known| (known, times, at_us)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_carry_the_reasons_word() {
        for reason in InterruptionReason::ALL {
            assert_eq!(reason.counter().strip_prefix("interrupted."), Some(reason.as_str()));
        }
    }
}
