//! Opening the file: pragmas, identity, migrations.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use super::error::{Doing, StoreError};

/// "Reef" in the file header, so that `file` and we know what it is.
const APPLICATION_ID: i32 = 0x5265_6566;

/// Every migration, in order. Add at the end, never change one that was released. The file's `user_version` is the
/// number of migrations applied.
const MIGRATIONS: [(&str, &str); 5] = [
    ("0001_store", include_str!("migrations/0001_store.sql")),
    ("0002_release", include_str!("migrations/0002_release.sql")),
    ("0003_loop", include_str!("migrations/0003_loop.sql")),
    ("0004_evolution", include_str!("migrations/0004_evolution.sql")),
    ("0005_trials", include_str!("migrations/0005_trials.sql")),
];

/// Tenths of a second that the switch to WAL is tried.
const PATIENCE: u32 = 300;

/// Whether opening may create the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Create {
    Yes,
    No,
}

/// A connection that may write. Does not migrate.
pub(super) fn connect(path: &Path, create: Create, busy_timeout: Duration) -> Result<Connection, StoreError> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if create == Create::Yes {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let failed = |error| StoreError::opening(path, error);
    if create == Create::Yes && !path.exists() {
        // SQLite would leave out the group whatever the umask, and gives the files beside it the mode of this one. Whether
        // it is there or cannot be made, SQLite finds out.
        let _made = OpenOptions::new().write(true).create_new(true).mode(0o666).open(path);
    }
    let conn = Connection::open_with_flags(path, flags).map_err(failed)?;
    conn.busy_timeout(busy_timeout).map_err(failed)?;
    conn.set_prepared_statement_cache_capacity(128);
    // FULL: a commit is on disk before it is acknowledged. Foreign keys hold for every write; they cost one lookup each.
    conn.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -32768;
         PRAGMA journal_size_limit = 67108864;",
    )
    .map_err(failed)?;
    Ok(conn)
}

/// A connection that cannot write, not even the file's format: SQLite itself refuses.
pub(super) fn connect_read_only(path: &Path, busy_timeout: Duration) -> Result<Connection, StoreError> {
    let failed = |error| StoreError::opening(path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags).map_err(failed)?;
    if cannot_be_shared(&conn) && !beside(path, "-wal").exists() {
        // In a directory that nobody here may write to, and beside no writer's log, the file is all there is.
        let uri = format!("file:{}?immutable=1", escaped(path));
        conn = Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI).map_err(failed)?;
    }
    conn.busy_timeout(busy_timeout).map_err(failed)?;
    conn.set_prepared_statement_cache_capacity(128);
    check(&conn, path)?;
    let (found, known) = (version(&conn)?, MIGRATIONS.len() as i64);
    if found < known {
        return Err(StoreError::Older {
            path: path.to_owned(),
            found,
            known,
        });
    }
    Ok(conn)
}

/// Whether the files that connections share cannot be made.
fn cannot_be_shared(conn: &Connection) -> bool {
    let tried = conn.query_row("PRAGMA schema_version", [], |_| Ok(()));
    let unmakeable = [ErrorCode::CannotOpen, ErrorCode::ReadOnly];
    matches!(tried, Err(rusqlite::Error::SqliteFailure(error, _)) if unmakeable.contains(&error.code))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A path as it stands in a URI.
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-~".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Brings the file to the newest format; the first to arrive does it, others wait.
pub(super) fn prepare(conn: &mut Connection, path: &Path) -> Result<(), StoreError> {
    check(conn, path)?;
    enter_wal(conn, path)?;
    let known = MIGRATIONS.len() as i64;
    if version(conn)? == known {
        return Ok(());
    }
    let tx = conn
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .doing("preparing the store")?;
    // Read again under the lock: another process may just have done it.
    let found = version(&tx)?;
    for (index, (_, sql)) in MIGRATIONS.iter().enumerate() {
        if index as i64 >= found {
            tx.execute_batch(sql).doing("migrating the store")?;
        }
    }
    tx.pragma_update(None, "application_id", APPLICATION_ID)
        .doing("migrating the store")?;
    tx.pragma_update(None, "user_version", known.max(found))
        .doing("migrating the store")?;
    tx.commit().doing("migrating the store")?;
    check(conn, path)
}

/// Refuses a file of another program or of a newer Reef, before anything is written to it.
fn check(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let failed = |error| StoreError::opening(path, error);
    let application_id: i32 = conn
        .pragma_query_value(None, "application_id", |row| row.get(0))
        .map_err(failed)?;
    let found: i64 = conn
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(failed)?;
    let tables: i64 = conn
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed)?;
    let fresh = application_id == 0 && found == 0 && tables == 0;
    if application_id != APPLICATION_ID && !fresh {
        return Err(StoreError::NotAStore { path: path.to_owned() });
    }
    let known = MIGRATIONS.len() as i64;
    if found > known {
        return Err(StoreError::Newer {
            path: path.to_owned(),
            found,
            known,
        });
    }
    Ok(())
}

fn version(conn: &Connection) -> Result<i64, StoreError> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0))
        .doing("reading the store's format")
}

/// The switch to WAL needs the file for a moment and SQLite does not call the busy handler for it.
fn enter_wal(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let mut left = PATIENCE;
    loop {
        let result = conn.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0));
        match result {
            Ok(mode) if mode == "wal" => return Ok(()),
            // Nothing that waiting helps.
            Ok(_) if left == PATIENCE && StoreError::reason(path).is_some() => {
                return Err(StoreError::opening(path, read_only()));
            }
            Ok(_) if left == 0 => {
                return Err(StoreError::Invalid {
                    what:
                        "the file system of the experience store does not support write-ahead logging; use a local disk"
                            .to_owned(),
                });
            }
            Err(error) if left == 0 || !is_busy(&error) => {
                return Err(error).doing("switching the store to write-ahead logging");
            }
            Ok(_) | Err(_) => {
                left -= 1;
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// What SQLite says of a file that it may only read.
fn read_only() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY), None)
}

/// Whether SQLite gave up waiting for another connection.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// What is damaged in the file, or in references between its rows.
pub(super) fn damage(conn: &Connection) -> Result<Vec<String>, StoreError> {
    let doing = "checking the file";
    let mut found = Vec::new();
    conn.pragma_query(None, "quick_check", |row| {
        let line: String = row.get(0)?;
        if line != "ok" {
            found.push(line);
        }
        Ok(())
    })
    .doing(doing)?;
    conn.pragma_query(None, "foreign_key_check", |row| {
        let (table, parent): (String, String) = (row.get(0)?, row.get(2)?);
        found.push(format!("a row of {table} refers to a missing row of {parent}"));
        Ok(())
    })
    .doing(doing)?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Result<Connection, StoreError> {
        let mut conn = connect(path, Create::Yes, Duration::from_secs(5))?;
        prepare(&mut conn, path)?;
        Ok(conn)
    }

    #[test]
    fn a_fresh_file_gets_the_newest_format_and_opens_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("experience.db");
        for _ in 0..2 {
            let conn = open(&path).unwrap();
            assert_eq!(version(&conn).unwrap(), MIGRATIONS.len() as i64);
            let mode: String = conn.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
            assert_eq!(mode, "wal");
        }
    }

    #[test]
    fn damage_is_found_and_a_sound_file_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let conn = open(&dir.path().join("experience.db")).unwrap();
        assert_eq!(damage(&conn).unwrap(), Vec::<String>::new());
        conn.pragma_update(None, "foreign_keys", false).unwrap();
        conn.execute("INSERT INTO tally (scenario_id, name, value) VALUES (99, 'x', 1)", [])
            .unwrap();
        assert_eq!(
            damage(&conn).unwrap(),
            ["a row of tally refers to a missing row of scenario"]
        );
    }

    #[test]
    fn a_newer_file_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("experience.db");
        open(&path).unwrap().pragma_update(None, "user_version", 9999).unwrap();
        let error = open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Newer { found: 9999, .. }), "{error}");
        assert!(error.to_string().contains("use the newer reef"), "{error}");
    }

    #[test]
    fn another_programs_file_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("other.db");
        Connection::open(&path)
            .unwrap()
            .execute_batch("CREATE TABLE theirs (x)")
            .unwrap();
        assert!(matches!(open(&path).unwrap_err(), StoreError::NotAStore { .. }));
        let text = dir.path().join("text.db");
        std::fs::write(
            &text,
            "a text file that is long enough to be seen as no database at all".repeat(20),
        )
        .unwrap();
        assert!(matches!(open(&text).unwrap_err(), StoreError::Open { .. }));
        assert!(std::fs::read_to_string(&text).unwrap().starts_with("a text file"));
    }

    #[test]
    fn many_openers_of_a_fresh_file_all_succeed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("experience.db");
        std::thread::scope(|scope| {
            let openers: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&path).map(|_| ()))).collect();
            for opener in openers {
                opener.join().unwrap().unwrap();
            }
        });
    }
}
