//! Opening: who may write this file, and the way from each version to the next.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use super::{Location, StoreError, rows};

/// How the store in memory is called.
pub(super) const MEMORY: &str = ":memory:";

/// `PRAGMA application_id` of our files: `AFTR`.
const APPLICATION: i64 = 0x4146_5452;

/// Each brings a store from the version that is its index to the next. A release's entry never changes; a new one is
/// added behind it.
const MIGRATIONS: [&str; 3] = [include_str!("v1.sql"), include_str!("v2.sql"), include_str!("v3.sql")];

/// The version that this code writes.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

pub(super) fn open(location: &Location) -> Result<Connection, StoreError> {
    match location {
        Location::Memory => {
            let path = Path::new(MEMORY);
            prepare(Connection::open_in_memory().map_err(|error| refused(path, error))?, path)
        }
        Location::File(path) => open_file(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE),
    }
}

pub(super) fn open_file(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let failed = |problem: String| StoreError::Open { path: path.to_owned(), problem };
    if path.is_dir() {
        return Err(failed("it is a directory".to_owned()));
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty())
        && !folder.is_dir()
    {
        return Err(failed(format!("there is no directory {}", folder.display())));
    }
    // Absolute, since SQLite takes names such as `:memory:` and `file:…` for something else than a file here.
    let absolute = std::path::absolute(path).map_err(|error| failed(error.to_string()))?;
    let connection = Connection::open_with_flags(absolute, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(|error| failed(error.to_string()))?;
    prepare(connection, path)
}

fn prepare(mut connection: Connection, path: &Path) -> Result<Connection, StoreError> {
    let said = |error| refused(path, error);
    // Asked before the first read: SQLite cannot even read a file in WAL mode that it may not write.
    if connection.is_readonly(rusqlite::MAIN_DB).map_err(said)? {
        return Err(StoreError::ReadOnly(path.to_owned()));
    }
    connection.busy_timeout(std::time::Duration::ZERO).map_err(said)?;
    // Held from the first access to the end: nobody else opens the file meanwhile.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(said)?;
    let number = |connection: &Connection, sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let version = number(&connection, "PRAGMA user_version").map_err(said)?;
    let application = number(&connection, "PRAGMA application_id").map_err(said)?;
    let tables = number(&connection, "SELECT count(*) FROM sqlite_schema").map_err(said)?;
    if application != APPLICATION && (tables > 0 || application != 0 || version != 0) {
        return Err(StoreError::Foreign(path.to_owned()));
    }
    if version > VERSION {
        return Err(StoreError::Newer { path: path.to_owned(), found: version, known: VERSION });
    }
    let check: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(said)?;
    if check != "ok" {
        return Err(StoreError::Damaged { path: path.to_owned(), problem: check });
    }
    connection.pragma_update(None, "foreign_keys", true).map_err(said)?;
    // An in-memory database answers `memory`; that is as durable as it gets.
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).map_err(said)?;
    connection.pragma_update(None, "synchronous", "NORMAL").map_err(said)?;
    if (1..VERSION).contains(&version) {
        keep_copy(&connection, path, version)?;
    }
    migrate(&mut connection, version).map_err(said)?;
    rows::end_unfinished(&connection).map_err(said)?;
    Ok(connection)
}

/// A later version cannot be read by an earlier program: whoever has to go back finds the file as it was beside it. A copy
/// that is there already is of an upgrade that was tried before, and stays.
fn keep_copy(connection: &Connection, path: &Path, version: i64) -> Result<(), StoreError> {
    let mut copy = path.as_os_str().to_owned();
    copy.push(format!(".v{version}"));
    let copy = PathBuf::from(copy);
    if copy.exists() {
        return Ok(());
    }
    let absolute = std::path::absolute(&copy)
        .map_err(|error| StoreError::Open { path: copy.clone(), problem: error.to_string() })?;
    let name = absolute.to_str().ok_or_else(|| {
        let problem = format!("the copy for its upgrade from version {version} has a name that is not UTF-8");
        StoreError::Open { path: path.to_owned(), problem }
    })?;
    connection.execute("VACUUM INTO ?1", [name]).map_err(|error| {
        // Half a copy would be taken for a whole one.
        let _ = std::fs::remove_file(&absolute);
        refused(path, error)
    })?;
    tracing::info!(copy = %copy.display(), from = version, to = VERSION, "upgrading the store; the copy is as it was");
    Ok(())
}

fn migrate(connection: &mut Connection, version: i64) -> rusqlite::Result<()> {
    // Takes the write lock even if there is nothing to do, so that a second controller is refused now and not later.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
    for (from, sql) in (0..).zip(MIGRATIONS).filter(|(from, _)| *from >= version) {
        transaction.execute_batch(sql)?;
        transaction.pragma_update(None, "user_version", from + 1)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.commit()
}

/// What an error of SQLite means to the owner of the file.
pub(super) fn refused(path: &Path, error: rusqlite::Error) -> StoreError {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Locked(path),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            StoreError::Damaged { path, problem: error.to_string() }
        }
        Some(ErrorCode::ReadOnly) => StoreError::ReadOnly(path),
        Some(ErrorCode::DiskFull) => StoreError::Full(path),
        _ => StoreError::Sql { path, problem: error },
    }
}
