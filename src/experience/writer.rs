//! The writer thread: takes everything that waits, writes it in one transaction, commits, then answers each caller.
//!
//! The queue is bounded twice, by writes and by bytes. A caller that finds it full waits up to the store's patience and
//! then gets [`StoreError::Busy`]; nothing is ever dropped silently.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::checkpoint::{self, Checkpointer};
use super::error::{Doing, StoreError};
use super::health::Gauges;
use super::schema::{self, Create};
use super::tally::Tallies;
use crate::domain::{FrozenRelease, ScenarioName};
use crate::sys::failpoint;
use crate::sys::task::{self, Lost, Thread};

/// At most so many writes in one transaction …
const MAX_BATCH: usize = 512;
/// … and about so many bytes, so that a small one does not wait for a hundred large ones.
const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Bytes are counted in units of this, so that a semaphore can count them.
const BYTE_UNIT: usize = 1024;
/// The thread, as a panic in it names it.
const WORK: &str = "reef-store";

/// What a write sees: the open transaction and what goes with it.
pub(super) struct WriteTx<'a> {
    pub conn: &'a Connection,
    pub tallies: &'a mut Tallies,
    cache: &'a mut Cache,
}

#[derive(Default)]
struct Cache {
    /// For one transaction only: another process may archive a scenario.
    scenarios: HashMap<ScenarioName, i64>,
    /// Rows that never change; forgotten after a rollback, which may have undone them.
    releases: HashMap<String, i64>,
}

impl WriteTx<'_> {
    /// The row of an active scenario.
    pub(super) fn scenario_id(&mut self, name: &ScenarioName) -> Result<i64, StoreError> {
        if let Some(id) = self.cache.scenarios.get(name) {
            return Ok(*id);
        }
        let id = self
            .conn
            .prepare_cached("SELECT scenario_id FROM scenario WHERE name = ?1 AND archived_us IS NULL")
            .and_then(|mut statement| statement.query_row([name.as_str()], |row| row.get(0)).optional())
            .doing("looking up a scenario")?
            .ok_or_else(|| StoreError::UnknownScenario { name: name.clone() })?;
        self.cache.scenarios.insert(name.clone(), id);
        Ok(id)
    }

    /// Forgets what was read of scenarios, after one changed.
    pub(super) fn scenarios_changed(&mut self) {
        self.cache.scenarios.clear();
    }

    /// The row of a frozen release, made when it is new.
    pub(super) fn frozen_id(&mut self, json: &str) -> Result<i64, StoreError> {
        if let Some(id) = self.cache.releases.get(json) {
            return Ok(*id);
        }
        let doing = "storing a release";
        self.conn
            .prepare_cached("INSERT INTO frozen_release (json) VALUES (?1) ON CONFLICT (json) DO NOTHING")
            .and_then(|mut statement| statement.execute([json]))
            .doing(doing)?;
        let id = self
            .conn
            .prepare_cached("SELECT frozen_id FROM frozen_release WHERE json = ?1")
            .and_then(|mut statement| statement.query_row([json], |row| row.get(0)))
            .doing(doing)?;
        if self.cache.releases.len() >= 4096 {
            self.cache.releases.clear();
        }
        self.cache.releases.insert(json.to_owned(), id);
        Ok(id)
    }
}

/// The text of a frozen release as stored; equal releases have equal texts.
pub(super) fn release_text(release: &FrozenRelease) -> Result<String, StoreError> {
    serde_json::to_string(release).map_err(StoreError::damaged)
}

/// Whether a write that is refused leaves nothing behind by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Care {
    /// It checks everything before it changes anything.
    ChecksFirst,
    /// It may be refused half-way: undo its part alone.
    Undo,
}

/// One write in the queue. It may run again when the transaction it was in has to be repeated without a bad neighbour.
trait Job: Send {
    fn run(&mut self, tx: &mut WriteTx<'_>) -> Result<(), StoreError>;
    fn care(&self) -> Care;
    /// What it holds in memory.
    fn bytes(&self) -> usize;
    /// Answers the caller. With an error, whatever `run` gave is void.
    fn answer(&mut self, result: Result<(), StoreError>);
}

struct Write<T, F> {
    work: F,
    care: Care,
    bytes: usize,
    output: Option<T>,
    caller: Option<oneshot::Sender<Result<T, StoreError>>>,
    _room: Option<OwnedSemaphorePermit>,
}

impl<T, F> Job for Write<T, F>
where
    T: Send,
    F: FnMut(&mut WriteTx<'_>) -> Result<T, StoreError> + Send,
{
    fn run(&mut self, tx: &mut WriteTx<'_>) -> Result<(), StoreError> {
        self.output = Some((self.work)(tx)?);
        Ok(())
    }

    fn care(&self) -> Care {
        self.care
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn answer(&mut self, result: Result<(), StoreError>) {
        let Some(caller) = self.caller.take() else { return };
        let answer = match (result, self.output.take()) {
            (Ok(()), Some(output)) => Ok(output),
            (Ok(()), None) => Err(StoreError::Closed),
            (Err(error), _) => Err(error),
        };
        // A caller that stopped waiting loses the answer, not the write.
        let _not_waiting = caller.send(answer);
    }
}

/// Limits of the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueLimits {
    pub writes: usize,
    pub bytes: usize,
    pub patience: Duration,
}

/// The callers' end of the queue.
pub(super) struct Queue {
    sender: mpsc::Sender<Box<dyn Job>>,
    room: Arc<Semaphore>,
    limits: QueueLimits,
}

impl Queue {
    /// Waits for room, then for the commit. `bytes` is what the write holds in memory.
    pub(super) async fn write<T, F>(&self, care: Care, bytes: usize, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut WriteTx<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let full = || StoreError::Busy {
            what: "the queue of writes was full",
            waited: self.limits.patience,
        };
        let units = (bytes.min(self.limits.bytes) / BYTE_UNIT) as u32;
        let room = match Arc::clone(&self.room).try_acquire_many_owned(units) {
            Ok(permit) => permit,
            Err(_) => tokio::time::timeout(self.limits.patience, Arc::clone(&self.room).acquire_many_owned(units))
                .await
                .map_err(|_| full())?
                .map_err(|_| StoreError::Closed)?,
        };
        let (caller, answer) = oneshot::channel();
        let mut job: Box<dyn Job> = Box::new(Write {
            work,
            care,
            bytes,
            output: None,
            caller: Some(caller),
            _room: Some(room),
        });
        match self.sender.try_send(job) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(StoreError::Closed),
            Err(mpsc::error::TrySendError::Full(back)) => {
                job = back;
                let permit = tokio::time::timeout(self.limits.patience, self.sender.reserve())
                    .await
                    .map_err(|_| full())?
                    .map_err(|_| StoreError::Closed)?;
                permit.send(job);
            }
        }
        // The writer answers every job it takes, each within its own time limits.
        answer.await.map_err(|_| StoreError::Closed)?
    }

    pub(super) fn depth(&self) -> usize {
        self.sender.max_capacity() - self.sender.capacity()
    }

    pub(super) fn capacity(&self) -> usize {
        self.sender.max_capacity()
    }
}

/// Starts the thread. It ends when the queue is dropped and everything in it is written.
pub(super) fn start(
    conn: Connection,
    path: PathBuf,
    busy_timeout: Duration,
    limits: QueueLimits,
    gauges: Arc<Gauges>,
) -> std::io::Result<(Queue, Thread<()>)> {
    let (sender, receiver) = mpsc::channel(limits.writes.max(1));
    let inode = std::fs::metadata(&path)?.ino();
    let checkpointer = Checkpointer::start(path.clone())?;
    let writer = Writer {
        conn: None,
        fresh: Some(conn),
        checkpointer,
        inode,
        path,
        busy_timeout,
        cache: Cache::default(),
        tallies: Tallies::default(),
        gauges,
    };
    let thread = task::thread(WORK, move || writer.run(receiver))?;
    let queue = Queue {
        sender,
        room: Arc::new(Semaphore::new(limits.bytes / BYTE_UNIT)),
        limits,
    };
    Ok((queue, thread))
}

struct Writer {
    /// `None` after a failure: the next transaction opens a new one.
    conn: Option<Connection>,
    /// The connection that opened and migrated the file, not yet used.
    fresh: Option<Connection>,
    checkpointer: Checkpointer,
    /// The file that was opened; another one at its path is not the same store.
    inode: u64,
    path: PathBuf,
    busy_timeout: Duration,
    cache: Cache,
    tallies: Tallies,
    gauges: Arc<Gauges>,
}

/// How a transaction ended that did not commit.
enum Failure {
    /// One write made it fail: repeat without that one.
    Item(usize, StoreError),
    /// The store itself failed: nothing in it can be written now.
    Store(StoreError),
}

impl Writer {
    fn run(mut self, mut receiver: mpsc::Receiver<Box<dyn Job>>) {
        let mut jobs = Vec::with_capacity(MAX_BATCH);
        while receiver.blocking_recv_many(&mut jobs, MAX_BATCH) > 0 {
            loop {
                let n_first = one_transaction(&jobs);
                if n_first == jobs.len() {
                    break;
                }
                let rest = jobs.split_off(n_first);
                self.write(&mut jobs);
                jobs = rest;
            }
            self.write(&mut jobs);
        }
    }

    fn write(&mut self, jobs: &mut Vec<Box<dyn Job>>) {
        while !jobs.is_empty() {
            let started = Instant::now();
            match task::guard(WORK, || self.transaction(jobs)) {
                Err(lost) => self.broke_down(jobs, lost),
                Ok(Ok(refusals)) => {
                    let n_refused = refusals.iter().flatten().count();
                    let n_written = jobs.len() - n_refused;
                    self.gauges
                        .committed(n_written as u64, n_refused as u64, started.elapsed());
                    for (mut job, refusal) in jobs.drain(..).zip(refusals) {
                        job.answer(refusal.map_or(Ok(()), Err));
                    }
                    if let Some(conn) = &self.conn {
                        self.checkpointer.after_commit(conn);
                    }
                }
                Ok(Err(failure)) => {
                    self.cache = Cache::default();
                    self.tallies.clear();
                    match failure {
                        Failure::Item(index, error) => {
                            jobs.remove(index).answer(Err(error));
                        }
                        Failure::Store(error) => {
                            self.gauges.failed(&error);
                            // Whatever state the connection is in, the next transaction starts from the file.
                            self.conn = None;
                            for mut job in jobs.drain(..) {
                                job.answer(Err(error.clone()));
                            }
                        }
                    }
                }
            }
        }
    }

    /// Some write made this thread panic, and its transaction was undone. Each is tried alone, so that only that one fails.
    fn broke_down(&mut self, jobs: &mut Vec<Box<dyn Job>>, lost: Lost) {
        self.cache = Cache::default();
        self.tallies.clear();
        self.conn = None;
        if jobs.len() > 1 {
            for job in std::mem::take(jobs) {
                self.write(&mut vec![job]);
            }
        } else if let Some(mut job) = jobs.pop() {
            job.answer(Err(lost.into()));
        }
    }

    fn connection(&mut self) -> Result<Connection, StoreError> {
        let conn = match self.fresh.take() {
            Some(conn) => conn,
            // Never create: an empty store in the place of a lost one would answer every retry wrongly.
            None => schema::connect(&self.path, Create::No, self.busy_timeout)?,
        };
        conn.pragma_update(None, "wal_autocheckpoint", checkpoint::FALLBACK_PAGES)
            .doing("opening the store for writing")?;
        Ok(conn)
    }

    /// SQLite would go on writing to a file that was deleted or replaced, and every receipt for it would be a lie.
    fn still_there(&self) -> Result<(), StoreError> {
        let lost = match std::fs::metadata(&self.path) {
            Ok(metadata) if metadata.ino() == self.inode => return Ok(()),
            Ok(_) => std::io::Error::other("the file was replaced by another; restart reef"),
            Err(error) => error,
        };
        Err(StoreError::Open {
            path: self.path.clone(),
            source: Arc::new(lost),
        })
    }

    /// One transaction with all jobs; for each, the typed error that refused it, if any.
    fn transaction(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<Vec<Option<StoreError>>, Failure> {
        self.cache.scenarios.clear();
        self.still_there().map_err(Failure::Store)?;
        if self.conn.is_none() {
            self.conn = Some(self.connection().map_err(Failure::Store)?);
        }
        let Some(conn) = self.conn.as_mut() else {
            return Err(Failure::Store(StoreError::Closed));
        };
        let tx = conn
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| Failure::Store(begin_error(error, self.busy_timeout)))?;
        let mut refusals = Vec::with_capacity(jobs.len());
        for (index, job) in jobs.iter_mut().enumerate() {
            let result = run(job.as_mut(), &tx, &mut self.tallies, &mut self.cache);
            match result {
                Ok(()) => refusals.push(None),
                Err(StoreError::Sqlite { doing, source }) if is_about_the_item(&source) => {
                    return Err(Failure::Item(index, StoreError::Sqlite { doing, source }));
                }
                Err(error @ StoreError::Sqlite { .. }) => return Err(Failure::Store(error)),
                Err(refusal) => refusals.push(Some(refusal)),
            }
        }
        self.tallies.flush(&tx).map_err(Failure::Store)?;
        failpoint::hit("experience::before_commit").map_err(|error| Failure::Store(injected(&error)))?;
        tx.commit().doing("committing").map_err(Failure::Store)?;
        // What happens here is after the promise was kept and before the caller knows.
        let _durable_anyway = failpoint::hit("experience::after_commit");
        Ok(refusals)
    }
}

/// How many of the jobs, in order, make one transaction: one at least.
fn one_transaction(jobs: &[Box<dyn Job>]) -> usize {
    let mut bytes = 0_usize;
    let n_fitting = jobs
        .iter()
        .take_while(|job| {
            bytes = bytes.saturating_add(job.bytes());
            bytes <= MAX_BATCH_BYTES
        })
        .count();
    n_fitting.max(1).min(jobs.len())
}

fn run(job: &mut dyn Job, conn: &Connection, tallies: &mut Tallies, cache: &mut Cache) -> Result<(), StoreError> {
    let undo = job.care() == Care::Undo;
    if undo {
        conn.execute_batch("SAVEPOINT job").doing("beginning a write")?;
    }
    let before = undo.then(|| tallies.clone());
    let result = job.run(&mut WriteTx { conn, tallies, cache });
    if let Some(before) = before {
        if result.is_err() {
            *tallies = before;
            *cache = Cache::default();
            conn.execute_batch("ROLLBACK TO job").doing("undoing a write")?;
        }
        conn.execute_batch("RELEASE job").doing("ending a write")?;
    }
    result
}

fn begin_error(error: rusqlite::Error, waited: Duration) -> StoreError {
    if schema::is_busy(&error) {
        StoreError::Busy {
            what: "another process was writing",
            waited,
        }
    } else {
        StoreError::Sqlite {
            doing: "beginning a write",
            source: Arc::new(error),
        }
    }
}

/// Errors that come from the values of one write, not from the state of the disk.
fn is_about_the_item(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode as Code;
    error.sqlite_error_code().is_none_or(|code| {
        matches!(
            code,
            Code::ConstraintViolation | Code::TooBig | Code::TypeMismatch | Code::ParameterOutOfRange
        )
    })
}

fn injected(error: &std::io::Error) -> StoreError {
    StoreError::Sqlite {
        doing: "committing",
        source: Arc::new(rusqlite::Error::ToSqlConversionFailure(error.to_string().into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::TrainingMode;
    use crate::experience::{Experience, StoreOptions};

    #[tokio::test]
    async fn a_write_that_panics_fails_alone_and_the_store_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let store = Experience::open(&dir.path().join("e.db"), StoreOptions::default()).unwrap();
        let name = |n: usize| ScenarioName::new(format!("s{n}")).unwrap();
        for round in 0..20_usize {
            let bad = store.write(Care::Undo, 0, |_| -> Result<(), StoreError> { panic!("on purpose") });
            let good = |n| store.scenario_create(name(2 * round + n), TrainingMode::Auto, serde_json::Map::new());
            let (before, broken, after) = tokio::join!(good(0), bad, good(1));
            assert!(
                matches!(&broken, Err(StoreError::Panicked(lost)) if lost.panicked()),
                "{broken:?}"
            );
            assert!(before.is_ok() && after.is_ok(), "{before:?} {after:?}");
        }
        assert_eq!(store.scenarios(false).unwrap().len(), 40, "nothing of them is lost");
    }
}
