//! The store's handle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::append::{Appended, NewInstruction, Prepared};
use super::consumption::{self, Consumed, Consumption};
use super::error::{Doing, StoreError};
use super::health::{Gauges, Health, StoreMetrics};
use super::interruptions::Interruption;
use super::naming::{self, Named};
use super::pool::{Access, ReadPool};
use super::records::{self, Record, RecordQuery, RecordRow};
use super::scenarios::{self, Scenario, ScenarioCreated};
use super::schema::{self, Create};
use super::tally::{self, Stats};
use super::writer::{self, Care, Queue, QueueLimits, WriteTx};
use crate::domain::{FrozenRelease, NewExchange, NewReport, RecordId, ScenarioName, TrainingMode};
use crate::sys::durable;
use crate::sys::task::{self, Thread};

/// From this size on, hashing and compressing leave the asynchronous threads.
const PREPARE_APART: usize = 64 * 1024;

/// Limits of a store. The default suits one server on one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreOptions {
    /// Writes that may wait.
    pub queue_writes: usize,
    /// Bytes that may wait.
    pub queue_bytes: usize,
    /// How long a caller waits for room in the queue or for a read connection.
    pub patience: Duration,
    /// How long the writer waits for another process that is writing.
    pub busy_timeout: Duration,
    /// Read connections.
    pub readers: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            queue_writes: 4096,
            queue_bytes: 128 * 1024 * 1024,
            patience: Duration::from_secs(5),
            busy_timeout: Duration::from_secs(10),
            readers: 4,
        }
    }
}

/// A handle to the experience store; clones share one writer thread and one set of read connections. The last one to
/// go waits until everything queued is on disk.
#[derive(Clone)]
pub struct Experience {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    queue: Option<Queue>,
    thread: Option<Thread<()>>,
    readers: ReadPool,
    gauges: Arc<Gauges>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Ends the queue, so that the thread writes what is left and returns.
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // It cannot be its own last owner, and a panic in it was told when it happened.
            let _ended = thread.join();
        }
    }
}

impl std::fmt::Debug for Experience {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Experience")
            .field("path", &self.inner.path)
            .finish_non_exhaustive()
    }
}

impl Experience {
    /// Opens the file, creating it (and its directory) or bringing it to the newest format, and starts the writer.
    pub fn open(path: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let failed = |source: std::io::Error| StoreError::Open {
            path: path.to_owned(),
            source: Arc::new(source),
        };
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists()) {
            std::fs::create_dir_all(dir).map_err(failed)?;
            // SQLite makes the entries in the directory durable, but not the directory's own.
            let above = dir.parent().filter(|above| !above.as_os_str().is_empty());
            durable::sync_dir(above.unwrap_or(Path::new("."))).map_err(failed)?;
        }
        let mut conn = schema::connect(path, Create::Yes, options.busy_timeout)?;
        schema::prepare(&mut conn, path).map_err(|error| error.while_opening(path))?;
        let gauges = Arc::new(Gauges::default());
        let limits = QueueLimits {
            writes: options.queue_writes,
            bytes: options.queue_bytes,
            patience: options.patience,
        };
        let (queue, thread) =
            writer::start(conn, path.to_owned(), options.busy_timeout, limits, Arc::clone(&gauges)).map_err(failed)?;
        Ok(Self {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                queue: Some(queue),
                thread: Some(thread),
                readers: ReadPool::new(path.to_owned(), options.readers, options.patience, Access::BesideWriter),
                gauges,
            }),
        })
    }

    /// Opens an existing file for reading alone: nothing is created, migrated or locked against writers, and every write
    /// through this handle is refused as closed.
    pub fn open_read_only(path: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let readers = ReadPool::new(path.to_owned(), options.readers, options.patience, Access::ReadOnly);
        // A file that cannot be read should say so now.
        readers.read(|_| Ok(()))?;
        Ok(Self {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                queue: None,
                thread: None,
                readers,
                gauges: Arc::new(Gauges::default()),
            }),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Stores a finished exchange. When this returns, the record is on disk and every reader sees it.
    pub async fn append_exchange(&self, exchange: NewExchange) -> Result<Appended, StoreError> {
        let size = exchange.request.len() + exchange.response.len();
        self.append(prepare(size, move || Prepared::exchange(&exchange, None)).await?)
            .await
    }

    /// Stores a report. Its references must be finished exchanges of the same scenario; an identical retry succeeds
    /// whatever has become of them.
    pub async fn append_report(&self, report: NewReport) -> Result<Appended, StoreError> {
        self.append(Prepared::report(&report, None)?).await
    }

    /// Stores an instruction to train.
    pub async fn append_instruction(&self, instruction: NewInstruction) -> Result<Appended, StoreError> {
        self.append(Prepared::instruction(instruction, None)).await
    }

    /// Counts an exchange that never finished and keeps its details for a while.
    pub async fn note_interruption(&self, interruption: Interruption) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, interruption.detail.len(), move |tx| {
            interruption.apply(tx)
        })
        .await
    }

    /// Marks records as used by a batch; returns how many were not marked before. Repeating it for the same batch changes
    /// nothing, a record of another batch refuses the whole.
    pub async fn consume(&self, consumption: Consumption) -> Result<usize, StoreError> {
        self.write(Care::ChecksFirst, 64 * consumption.records.len(), move |tx| {
            consumption::consume(tx, &consumption)
        })
        .await
    }

    /// Creates a scenario, or returns the one that has the name.
    pub async fn scenario_create(
        &self,
        name: ScenarioName,
        mode: TrainingMode,
        settings: Map<String, Value>,
    ) -> Result<ScenarioCreated, StoreError> {
        self.write(Care::ChecksFirst, 0, move |tx| {
            scenarios::create(tx, &name, mode, &settings)
        })
        .await
    }

    /// Changes what may start a training step.
    pub async fn scenario_set_mode(&self, name: ScenarioName, mode: TrainingMode) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, 0, move |tx| scenarios::set_mode(tx, &name, mode))
            .await
    }

    /// Replaces a scenario's settings.
    pub async fn scenario_set_settings(
        &self,
        name: ScenarioName,
        settings: Map<String, Value>,
    ) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, 0, move |tx| {
            scenarios::set_settings(tx, &name, &settings)
        })
        .await
    }

    /// Notes the release a scenario serves.
    pub async fn scenario_set_served(&self, name: ScenarioName, release: FrozenRelease) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, 0, move |tx| {
            scenarios::set_served(tx, &name, &release)
        })
        .await
    }

    /// Archives the scenario of that name that was created at that moment: its records stay in the file, unseen, and its
    /// name is free.
    pub async fn scenario_archive(&self, name: ScenarioName, created_us: i64) -> Result<(), StoreError> {
        self.write(Care::ChecksFirst, 0, move |tx| {
            scenarios::archive(tx, &name, created_us)
        })
        .await
    }

    /// An active scenario.
    pub fn scenario(&self, name: &ScenarioName) -> Result<Option<Scenario>, StoreError> {
        self.inner.readers.read(|conn| scenarios::get(conn, name))
    }

    /// The active scenarios by name, or all ever made.
    pub fn scenarios(&self, with_archived: bool) -> Result<Vec<Scenario>, StoreError> {
        self.inner.readers.read(|conn| scenarios::list(conn, with_archived))
    }

    /// A number that grows with every scenario that is made, in whatever process.
    pub fn newest_scenario(&self) -> Result<Option<i64>, StoreError> {
        self.inner.readers.read(scenarios::newest)
    }

    /// A page of records, without bodies.
    pub fn records(&self, query: &RecordQuery) -> Result<Vec<RecordRow>, StoreError> {
        self.inner.readers.read(|conn| records::page(conn, query))
    }

    /// A page of records with their bodies, from one state of the store.
    pub fn full_records(&self, query: &RecordQuery) -> Result<Vec<Record>, StoreError> {
        self.inner.readers.read(|conn| {
            let rows = records::page(conn, query)?;
            rows.into_iter().map(|row| records::with_bodies(conn, row)).collect()
        })
    }

    /// The record that a text names by its id or a part of it; in any scenario when none is named.
    pub fn record_named(&self, scenario: Option<&ScenarioName>, text: &str) -> Result<Named, StoreError> {
        self.inner.readers.read(|conn| naming::named(conn, scenario, text))
    }

    /// One record; in any scenario when none is named.
    pub fn record(&self, scenario: Option<&ScenarioName>, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.inner.readers.read(|conn| records::one(conn, scenario, id))
    }

    /// The reports on an exchange, oldest first.
    pub fn reports_on(&self, scenario: &ScenarioName, id: &RecordId) -> Result<Vec<Record>, StoreError> {
        self.inner.readers.read(|conn| records::reports_on(conn, scenario, id))
    }

    /// The batches that used a record.
    pub fn consumed_by(&self, scenario: &ScenarioName, id: &RecordId) -> Result<Vec<Consumed>, StoreError> {
        self.inner
            .readers
            .read(|conn| consumption::of_record(conn, scenario, id))
    }

    /// Counts of each active scenario, or of one.
    pub fn stats(&self, scenario: Option<&ScenarioName>) -> Result<BTreeMap<ScenarioName, Stats>, StoreError> {
        self.inner.readers.read(|conn| tally::read(conn, scenario))
    }

    /// A number that differs from the last one when another connection has committed in between. It says so only to a
    /// handle with one reader.
    pub fn change_stamp(&self) -> Result<i64, StoreError> {
        self.inner.readers.read(|conn| {
            conn.pragma_query_value(None, "data_version", |row| row.get(0))
                .doing("looking for changes")
        })
    }

    /// Looks through the whole file for damage; gives what it found. Takes as long as reading the file does.
    pub fn damage(&self) -> Result<Vec<String>, StoreError> {
        self.inner.readers.read(schema::damage)
    }

    /// Whether the last write worked.
    pub fn health(&self) -> Health {
        self.inner.gauges.health()
    }

    /// Counters since this handle was opened.
    pub fn metrics(&self) -> StoreMetrics {
        let (depth, capacity) = self.inner.queue.as_ref().map_or((0, 0), |q| (q.depth(), q.capacity()));
        self.inner.gauges.read(depth, capacity)
    }

    async fn append(&self, prepared: Prepared) -> Result<Appended, StoreError> {
        let bytes = prepared.bytes();
        self.write(Care::ChecksFirst, bytes, move |tx| prepared.apply(tx)).await
    }

    /// Runs `work` in a transaction of the writer and returns once it is on disk. It may run more than once, each time
    /// from the same state.
    pub(super) async fn write<T, F>(&self, care: Care, bytes: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut WriteTx<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        match &self.inner.queue {
            Some(queue) => queue.write(care, bytes, work).await,
            None => Err(StoreError::Closed),
        }
    }

    /// Reads in one transaction, for the other files of this room.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&rusqlite::Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.inner.readers.read(work)
    }
}

async fn prepare(
    size: usize,
    work: impl FnOnce() -> Result<Prepared, StoreError> + Send + 'static,
) -> Result<Prepared, StoreError> {
    if size < PREPARE_APART {
        return work();
    }
    task::blocking("preparing a record", work).await?
}
