//! Moves the write-ahead log back into the file beside the writer, so that no append waits for it.
//!
//! Left to itself, the connection that makes the log long copies it back inside its own commit, and every write in that
//! moment waits. Here a thread copies most of it while the writer goes on. Only the last bit must be done by the writer,
//! between two transactions: the log can start over only when nothing in it is newer than the copy.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rusqlite::Connection;

use super::error::{Doing, StoreError};
use super::schema::{self, Create};
use crate::sys::task::{self, Thread};

/// Pages of log from which copying is worth a sync of the file: 4 MiB.
const COPY_FROM: i64 = 1000;
/// Pages of log from which the writer is asked to finish: 8 MiB.
const FINISH_FROM: i64 = 2000;
/// Pages of log at which the writer copies in its own commit after all, should the thread be stuck: 64 MiB.
pub(super) const FALLBACK_PAGES: i64 = 16_000;
/// The log is looked at no more often than this.
const PAUSE: Duration = Duration::from_millis(20);
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
const WORK: &str = "reef-checkpoint";

/// The writer's end.
pub(super) struct Checkpointer {
    committed: Option<SyncSender<()>>,
    finish: Arc<AtomicBool>,
    thread: Option<Thread<()>>,
}

impl Checkpointer {
    pub(super) fn start(path: PathBuf) -> std::io::Result<Self> {
        // One place: a signal that is still there says all that another would.
        let (committed, signals) = sync_channel(1);
        let finish = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&finish);
        let thread = task::thread(WORK, move || run(&path, &signals, &asked))?;
        Ok(Self {
            committed: Some(committed),
            finish,
            thread: Some(thread),
        })
    }

    /// After each commit: wakes the thread, and does the last bit when it asked for that.
    pub(super) fn after_commit(&self, conn: &Connection) {
        if let Some(committed) = &self.committed {
            let _one_is_enough = committed.try_send(());
        }
        if self.finish.swap(false, Ordering::AcqRel) {
            // What cannot be copied now is copied later; the commit stands either way.
            if let Err(error) = copy(conn) {
                tracing::debug!(%error, "the write-ahead log could not be finished");
            }
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        drop(self.committed.take());
        if let Some(thread) = self.thread.take() {
            // A panic in it was told when it happened.
            let _ended = thread.join();
        }
    }
}

fn run(path: &std::path::Path, signals: &Receiver<()>, finish: &AtomicBool) {
    let mut conn = None;
    while signals.recv().is_ok() {
        let copied = task::guard(WORK, || match &conn {
            Some(conn) => step(conn, finish),
            None => schema::connect(path, Create::No, BUSY_TIMEOUT).and_then(|opened| {
                let result = step(&opened, finish);
                conn = Some(opened);
                result
            }),
        });
        let result = copied.map_err(StoreError::from).flatten();
        if let Err(error) = result {
            tracing::debug!(%error, "the write-ahead log could not be copied");
            conn = None;
        }
        std::thread::sleep(PAUSE);
    }
}

fn step(conn: &Connection, finish: &AtomicBool) -> Result<(), StoreError> {
    let (pages, copied) = log_state(conn, "PRAGMA wal_checkpoint(NOOP)")?;
    if pages - copied < COPY_FROM && pages < FINISH_FROM {
        return Ok(());
    }
    let (pages, _) = copy(conn)?;
    if pages >= FINISH_FROM {
        finish.store(true, Ordering::Release);
    }
    Ok(())
}

/// Copies what no reader still needs in the log, waiting for nobody.
fn copy(conn: &Connection) -> Result<(i64, i64), StoreError> {
    log_state(conn, "PRAGMA wal_checkpoint(PASSIVE)")
}

/// Pages in the log, and how many of them are copied.
fn log_state(conn: &Connection, pragma: &'static str) -> Result<(i64, i64), StoreError> {
    conn.prepare_cached(pragma)
        .and_then(|mut statement| statement.query_row([], |row| Ok((row.get(1)?, row.get(2)?))))
        .doing("copying the write-ahead log")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_starts_over_while_writing_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("experience.db");
        let mut conn = schema::connect(&path, Create::Yes, BUSY_TIMEOUT).unwrap();
        schema::prepare(&mut conn, &path).unwrap();
        conn.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
        conn.execute_batch("CREATE TABLE filler (bytes BLOB)").unwrap();
        let checkpointer = Checkpointer::start(path.clone()).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let mut longest = 0;
        // Far more than the log may hold at once; the writer goes on until it has seen the log start over.
        loop {
            conn.execute("INSERT INTO filler VALUES (zeroblob(100000))", [])
                .unwrap();
            checkpointer.after_commit(&conn);
            let (pages, _) = log_state(&conn, "PRAGMA wal_checkpoint(NOOP)").unwrap();
            if pages < longest {
                break;
            }
            longest = pages;
            assert!(
                std::time::Instant::now() < deadline,
                "the log only grows: {longest} pages"
            );
        }
        assert!(longest >= FINISH_FROM, "{longest}");
    }
}
