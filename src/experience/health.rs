//! How the store is doing, for status, metrics and the gateway's choice to serve or refuse.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::error::StoreError;
use crate::sys::clock;

/// Whether the last write worked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It did, or there was none yet.
    Ok,
    /// It did not; the next one that works ends this.
    Degraded {
        /// What failed, with its causes.
        error: String,
        /// The first failure of this spell, microseconds since the Unix epoch.
        since_us: i64,
    },
}

/// Upper bounds of the histogram of rows in one transaction.
pub(super) const BATCH_BOUNDS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Upper bounds of the histogram of commit times, microseconds.
pub(super) const COMMIT_BOUNDS_US: [u64; 8] = [250, 500, 1_000, 2_500, 5_000, 10_000, 100_000, 1_000_000];

/// A copy of the store's counters. Each histogram is a list of (upper bound, observations at or below it), not
/// cumulative beyond its own bucket; its last bound is `u64::MAX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreMetrics {
    /// Writes waiting now.
    pub queue_depth: usize,
    /// Writes that fit the queue in all.
    pub queue_capacity: usize,
    /// Transactions committed.
    pub commits: u64,
    /// Transactions that failed.
    pub failed_commits: u64,
    /// Writes committed.
    pub writes: u64,
    /// Writes refused with a typed error.
    pub refused: u64,
    /// Total time in transactions, microseconds.
    pub commit_us: u64,
    /// Writes in one transaction.
    pub batch_writes: Vec<(u64, u64)>,
    /// Time of one transaction, microseconds.
    pub commit_time_us: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; 9],
}

impl Histogram {
    fn observe(&self, bounds: &[u64; 8], value: u64) {
        let bucket = bounds.iter().position(|bound| value <= *bound).unwrap_or(bounds.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self, bounds: &[u64; 8]) -> Vec<(u64, u64)> {
        bounds
            .iter()
            .copied()
            .chain([u64::MAX])
            .zip(self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)))
            .collect()
    }
}

/// Written by the writer thread, read by anyone.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    trouble: Mutex<Option<(String, i64)>>,
    commits: AtomicU64,
    failed_commits: AtomicU64,
    writes: AtomicU64,
    refused: AtomicU64,
    commit_us: AtomicU64,
    batch_writes: Histogram,
    commit_time_us: Histogram,
}

impl Gauges {
    pub(super) fn committed(&self, writes: u64, refused: u64, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.writes.fetch_add(writes, Ordering::Relaxed);
        self.refused.fetch_add(refused, Ordering::Relaxed);
        self.commit_us.fetch_add(us, Ordering::Relaxed);
        self.batch_writes.observe(&BATCH_BOUNDS, writes);
        self.commit_time_us.observe(&COMMIT_BOUNDS_US, us);
        let mut trouble = self.trouble.lock();
        if let Some((error, _)) = trouble.take() {
            tracing::info!(error, "the experience store works again");
        }
    }

    pub(super) fn failed(&self, error: &StoreError) {
        self.failed_commits.fetch_add(1, Ordering::Relaxed);
        let text = chain(error);
        let mut trouble = self.trouble.lock();
        match trouble.as_mut() {
            Some((last, _)) => *last = text,
            None => {
                tracing::error!(error = text, "the experience store cannot write");
                *trouble = Some((text, clock::now_us()));
            }
        }
    }

    pub(super) fn health(&self) -> Health {
        self.trouble
            .lock()
            .clone()
            .map_or(Health::Ok, |(error, since_us)| Health::Degraded { error, since_us })
    }

    pub(super) fn read(&self, queue_depth: usize, queue_capacity: usize) -> StoreMetrics {
        StoreMetrics {
            queue_depth,
            queue_capacity,
            commits: self.commits.load(Ordering::Relaxed),
            failed_commits: self.failed_commits.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            commit_us: self.commit_us.load(Ordering::Relaxed),
            batch_writes: self.batch_writes.read(&BATCH_BOUNDS),
            commit_time_us: self.commit_time_us.read(&COMMIT_BOUNDS_US),
        }
    }
}

fn chain(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
