//! Read connections, opened when needed and kept. At most `limit` exist; one more reader waits, then gets
//! [`StoreError::Busy`].

use std::path::PathBuf;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;

use super::error::{Doing, StoreError};
use super::schema::{self, Create};

pub(super) struct ReadPool {
    path: PathBuf,
    limit: usize,
    patience: Duration,
    access: Access,
    state: Mutex<State>,
    freed: Condvar,
}

/// What the process may do to the file besides reading it here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Its writer owns the file's format.
    BesideWriter,
    /// Nothing at all.
    ReadOnly,
}

struct State {
    idle: Vec<Connection>,
    open: usize,
}

/// One of the `limit` places. Dropping it gives the place back; with a connection, the next reader starts at once.
struct Place<'a> {
    pool: &'a ReadPool,
    conn: Option<Connection>,
}

impl ReadPool {
    pub(super) fn new(path: PathBuf, limit: usize, patience: Duration, access: Access) -> Self {
        Self {
            path,
            limit: limit.max(1),
            patience,
            access,
            state: Mutex::new(State {
                idle: Vec::new(),
                open: 0,
            }),
            freed: Condvar::new(),
        }
    }

    /// Runs `work` in one read transaction: it sees one state of the store throughout.
    pub(super) fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut place = self.place()?;
        let conn = match place.conn.take() {
            Some(conn) => conn,
            None => self.open()?,
        };
        let tx = conn.unchecked_transaction().doing("beginning to read")?;
        let result = work(&tx);
        // Nothing was written, so ending the transaction either way loses nothing.
        drop(tx);
        if result.is_ok() {
            place.conn = Some(conn);
        }
        result
    }

    fn place(&self) -> Result<Place<'_>, StoreError> {
        let deadline = Instant::now() + self.patience;
        let mut state = self.state.lock();
        loop {
            if let Some(conn) = state.idle.pop() {
                return Ok(Place {
                    pool: self,
                    conn: Some(conn),
                });
            }
            if state.open < self.limit {
                state.open += 1;
                return Ok(Place { pool: self, conn: None });
            }
            if self.freed.wait_until(&mut state, deadline).timed_out() {
                return Err(StoreError::Busy {
                    what: "all read connections were in use",
                    waited: self.patience,
                });
            }
        }
    }

    fn open(&self) -> Result<Connection, StoreError> {
        if self.access == Access::ReadOnly {
            return schema::connect_read_only(&self.path, self.patience);
        }
        let conn = schema::connect(&self.path, Create::No, self.patience)?;
        conn.execute_batch("PRAGMA query_only = ON; PRAGMA mmap_size = 268435456;")
            .doing("opening a read connection")?;
        Ok(conn)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        match self.conn.take() {
            Some(conn) => state.idle.push(conn),
            None => state.open -= 1,
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}
