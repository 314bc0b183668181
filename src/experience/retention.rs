//! Retention: drops bodies, oldest arrivals first, by age and by the size of all bodies together. Rows, ids, hashes and
//! references stay for ever, so a retry or a late report is answered as before.

use std::time::Duration;

use rusqlite::params;
use tokio_util::sync::CancellationToken;

use super::error::{Doing, StoreError};
use super::store::Experience;
use super::tally::name;
use super::writer::{Care, WriteTx};
use crate::sys::clock;

/// One transaction drops at most so many bodies …
const BATCH_ROWS: usize = 256;
/// … and about so many bytes, so that writers wait for milliseconds only.
const BATCH_BYTES: i64 = 8 * 1024 * 1024;

/// What to keep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// All bodies together, as stored, at most so many bytes.
    pub max_bytes: Option<u64>,
    /// Bodies no longer than this after they entered the store.
    pub max_age: Option<Duration>,
}

/// What a sweep dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Records that lost their bodies.
    pub records: u64,
    /// Their size as stored.
    pub bytes: u64,
}

impl Experience {
    /// Drops what `retention` does not keep, a small transaction at a time.
    pub async fn prune(&self, retention: Retention) -> Result<Pruned, StoreError> {
        let mut total = Pruned::default();
        if retention == Retention::default() {
            return Ok(total);
        }
        loop {
            let (batch, more) = self.write(Care::Undo, 0, move |tx| sweep(tx, retention)).await?;
            total.records += batch.records;
            total.bytes += batch.bytes;
            if !more {
                break;
            }
        }
        if total.records > 0 {
            tracing::info!(records = total.records, bytes = total.bytes, "retention dropped bodies");
        }
        Ok(total)
    }

    /// Sweeps now and then every `every` until `stop`. A sweep that fails is logged and tried again at the next.
    pub async fn keep_pruned(self, retention: Retention, every: Duration, stop: CancellationToken) {
        loop {
            let swept = tokio::select! {
                () = stop.cancelled() => return,
                swept = self.prune(retention) => swept,
            };
            if let Err(error) = swept {
                tracing::warn!(%error, "retention could not sweep");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
        }
    }
}

/// One batch; whether there may be more to do.
fn sweep(tx: &mut WriteTx<'_>, retention: Retention) -> Result<(Pruned, bool), StoreError> {
    let doing = "dropping old bodies";
    let now = clock::now_us();
    let oldest_kept = retention.max_age.map_or(i64::MIN, |age| {
        now.saturating_sub(i64::try_from(age.as_micros()).unwrap_or(i64::MAX))
    });
    let stored: f64 = tx
        .conn
        .prepare_cached("SELECT coalesce(sum(value), 0.0) FROM tally WHERE name = ?1")
        .and_then(|mut statement| statement.query_row([name::STORED_BYTES], |row| row.get(0)))
        .doing(doing)?;
    let mut excess = match retention.max_bytes {
        Some(limit) => (stored as i64).saturating_sub(i64::try_from(limit).unwrap_or(i64::MAX)),
        None => 0,
    };
    let mut oldest = tx
        .conn
        .prepare_cached(
            "SELECT r.sequence, r.scenario_id, r.stored_us, r.stored_bytes, r.body_bytes
             FROM body b JOIN record r ON r.sequence = b.sequence ORDER BY b.sequence LIMIT ?1",
        )
        .doing(doing)?;
    let rows: Vec<(i64, i64, i64, i64, i64)> = oldest
        .query_map([BATCH_ROWS as i64], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })
        .and_then(Iterator::collect)
        .doing(doing)?;
    let mut pruned = Pruned::default();
    let mut freed = 0;
    for (sequence, scenario_id, stored_us, stored_bytes, body_bytes) in rows {
        if excess <= 0 && stored_us >= oldest_kept {
            return Ok((pruned, false));
        }
        if freed >= BATCH_BYTES {
            return Ok((pruned, true));
        }
        tx.conn
            .prepare_cached("DELETE FROM body WHERE sequence = ?1")
            .and_then(|mut statement| statement.execute([sequence]))
            .doing(doing)?;
        tx.conn
            .prepare_cached("UPDATE record SET pruned_us = ?2, stored_bytes = 0 WHERE sequence = ?1")
            .and_then(|mut statement| statement.execute(params![sequence, now]))
            .doing(doing)?;
        tx.tallies.add(scenario_id, name::BODY_BYTES, -(body_bytes as f64));
        tx.tallies.add(scenario_id, name::STORED_BYTES, -(stored_bytes as f64));
        tx.tallies.add(scenario_id, name::PRUNED_RECORDS, 1.0);
        tx.tallies.add(scenario_id, name::PRUNED_BYTES, stored_bytes as f64);
        excess -= stored_bytes;
        freed += stored_bytes;
        pruned.records += 1;
        pruned.bytes += u64::try_from(stored_bytes).unwrap_or(0);
    }
    // All of a full batch went: the next may go too. A batch that was not full was the last.
    Ok((pruned, pruned.records == BATCH_ROWS as u64))
}
