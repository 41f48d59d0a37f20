//! Connections and transactions.
//!
//! One connection writes, behind a fair lock; a few read, each opened when it is first needed. A write is
//! `BEGIN IMMEDIATE`, so that it waits for the write lock of other processes before it reads anything and
//! never fails half way. A transaction that is given up, by an error or because its future was dropped, is
//! rolled back by its connection before that does anything else, at once: it must not keep the write lock
//! of the file until somebody comes by.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Row as _, Sqlite, Transaction, TypeInfo, ValueRef};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use super::turn::{Turn, Turns};
use crate::CatalogError;
use crate::sql::decode::{Columns, Found};
use crate::sql::link::{Arg, Held, Link, Row, Uncommitted};

/// How many connections read at the same time.
const READERS: usize = 3;

/// The connections of one catalog.
#[derive(Debug)]
pub(super) struct Connections {
    /// `None` in memory, where one connection does everything.
    path: Option<PathBuf>,
    busy: Duration,
    writer: Mutex<Option<SqliteConnection>>,
    readers: [Mutex<Option<SqliteConnection>>; READERS],
    turn: AtomicUsize,
    turns: Turns,
    /// Whether the writing connection may no longer know where it stands.
    suspect: AtomicBool,
}

/// What every connection to a file is opened with; `busy` bounds the wait for another process.
pub(super) fn options(path: &std::path::Path, busy: Duration) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(busy)
        .foreign_keys(true)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
}

/// What the writer of a file is opened with.
pub(super) fn writer_options(path: &std::path::Path, busy: Duration) -> SqliteConnectOptions {
    options(path, busy).create_if_missing(true).journal_mode(SqliteJournalMode::Wal)
}

impl Connections {
    pub(super) fn new(path: Option<PathBuf>, busy: Duration, writer: SqliteConnection) -> Connections {
        Connections {
            path,
            busy,
            writer: Mutex::new(Some(writer)),
            readers: Default::default(),
            turn: AtomicUsize::new(0),
            turns: Turns::default(),
            suspect: AtomicBool::new(false),
        }
    }

    /// A new connection beside the pool, for watching the file; `None` in memory.
    pub(super) async fn extra(&self) -> Option<sqlx::Result<SqliteConnection>> {
        match &self.path {
            Some(path) => Some(options(path, self.busy).pragma("query_only", "ON").connect().await),
            None => None,
        }
    }

    /// Notes that a write failed. Only when another process held the lock is it certain where the connection
    /// stands.
    fn doubt(&self, error: &sqlx::Error) {
        if primary_code(error) != Some(5) {
            self.suspect.store(true, Ordering::Release);
        }
    }

    async fn reader(&self) -> sqlx::Result<MutexGuard<'_, Option<SqliteConnection>>> {
        let Some(path) = &self.path else { return Ok(self.writer.lock().await) };
        let mut guard = match self.readers.iter().find_map(|slot| slot.try_lock().ok()) {
            Some(guard) => guard,
            None => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed) % READERS;
                match self.readers.get(turn) {
                    Some(slot) => slot.lock().await,
                    None => return Err(sqlx::Error::PoolTimedOut),
                }
            }
        };
        if guard.is_none() {
            *guard = Some(options(path, self.busy).pragma("query_only", "ON").connect().await?);
        }
        Ok(guard)
    }

    /// Opens the writing connection anew where it is suspect.
    ///
    /// SUBTLE: when a commit fails (the disk is full, say), SQLite has ended the transaction by itself, and the
    /// connection still counts it as open: it would refuse every transaction from then on. A new connection
    /// rolls back what is left and begins afresh. In memory there is nothing to go back to.
    async fn renew(&self, writer: &mut Option<SqliteConnection>) -> sqlx::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if writer.is_none() || !self.suspect.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        match writer_options(path, self.busy).connect().await {
            Ok(fresh) => {
                if let Some(old) = writer.replace(fresh) {
                    quietly(old.close_hard().await);
                }
                Ok(())
            }
            Err(error) => {
                self.suspect.store(true, Ordering::Release);
                Err(error)
            }
        }
    }

    /// Waits for whoever holds a connection, and closes them all.
    pub(super) async fn close(&self) {
        // The readers close first: the writer is then the last connection, and checkpoints the log.
        let writer = self.writer.lock().await.take();
        for slot in &self.readers {
            if let Some(reader) = slot.lock().await.take() {
                quietly(reader.close().await);
            }
        }
        if let Some(writer) = writer {
            quietly(writer.close().await);
        }
    }
}

/// Closing loses nothing that was committed, so that a failure is only worth a line.
pub(super) fn quietly(closed: sqlx::Result<()>) {
    if let Err(error) = closed {
        tracing::debug!(%error, "a catalog connection did not close cleanly");
    }
}

type Guard<'a> = MappedMutexGuard<'a, SqliteConnection>;

impl Connections {
    /// Waits for the writing connection; `None` once it is closed.
    pub(super) async fn for_writing(&self) -> sqlx::Result<Option<Box<dyn Held + '_>>> {
        let mut guard = self.writer.lock().await;
        self.renew(&mut guard).await?;
        Ok(self.hold(guard))
    }

    /// Waits for a reading connection.
    pub(super) async fn for_reading(&self) -> sqlx::Result<Option<Box<dyn Held + '_>>> {
        let guard = self.reader().await?;
        Ok(self.hold(guard))
    }

    fn hold<'s>(&'s self, guard: MutexGuard<'s, Option<SqliteConnection>>) -> Option<Box<dyn Held + 's>> {
        let guard = MutexGuard::try_map(guard, Option::as_mut).ok()?;
        Some(Box::new(HeldConnection { connections: self, guard }))
    }
}

/// A connection while it is held.
struct HeldConnection<'s> {
    connections: &'s Connections,
    guard: Guard<'s>,
}

#[async_trait]
impl Held for HeldConnection<'_> {
    fn each(&mut self) -> Box<dyn Link + '_> {
        Box::new(Each(&mut self.guard))
    }

    async fn snapshot(&mut self) -> sqlx::Result<Box<dyn Link + '_>> {
        let tx = self.guard.begin().await?;
        Ok(Box::new(Changes { connections: self.connections, tx, _turn: Turn::none() }))
    }

    async fn begin(&mut self) -> sqlx::Result<Box<dyn Link + '_>> {
        let connections = self.connections;
        let turn = connections.turns.take(connections.path.as_deref(), connections.busy).await;
        match self.guard.begin_with("BEGIN IMMEDIATE").await {
            Ok(tx) => Ok(Box::new(Changes { connections, tx, _turn: turn })),
            Err(error) => {
                connections.doubt(&error);
                Err(error)
            }
        }
    }
}

/// Statements each by itself.
struct Each<'s>(&'s mut SqliteConnection);

#[async_trait]
impl Link for Each<'_> {
    async fn fetch(&mut self, sql: &'static str, args: Vec<Arg>) -> sqlx::Result<Vec<Row>> {
        fetch(self.0, sql, args).await
    }

    async fn commit(self: Box<Self>) -> Result<(), Uncommitted> {
        Ok(())
    }
}

/// A transaction.
struct Changes<'s> {
    connections: &'s Connections,
    tx: Transaction<'s, Sqlite>,
    /// Ends after the transaction: fields are dropped in order.
    _turn: Turn<'s>,
}

#[async_trait]
impl Link for Changes<'_> {
    async fn fetch(&mut self, sql: &'static str, args: Vec<Arg>) -> sqlx::Result<Vec<Row>> {
        let rows = fetch(&mut self.tx, sql, args).await;
        rows.inspect_err(|error| self.connections.doubt(error))
    }

    async fn commit(self: Box<Self>) -> Result<(), Uncommitted> {
        let Changes { connections, tx, _turn } = *self;
        let committed = tx.commit().await.inspect_err(|error| connections.doubt(error));
        committed.map_err(|error| match primary_code(&error) {
            // The lock was not to be had, so nothing reached the log.
            Some(5) => Uncommitted::Surely(error),
            Some(13) => Uncommitted::Perhaps(error, "the disk was full: free some space and try again"),
            _ => Uncommitted::Perhaps(error, "the commit failed on its way to the disk"),
        })
    }
}

async fn fetch(
    connection: &mut SqliteConnection,
    sql: &'static str,
    args: Vec<Arg>,
) -> sqlx::Result<Vec<Row>> {
    let mut query = sqlx::query(sql);
    for arg in args {
        query = match arg {
            Arg::Int(value) => query.bind(value),
            Arg::Text(value) => query.bind(value),
            Arg::Blob(value) => query.bind(value),
        };
    }
    let rows = query.fetch_all(connection).await?;
    Ok(rows.into_iter().map(|row| -> Row { Box::new(row) }).collect())
}

impl Columns for SqliteRow {
    fn column(&self, name: &str) -> Result<Found<'_>, String> {
        found(self, name)
    }

    fn first(&self) -> Result<Found<'_>, String> {
        found(self, 0)
    }
}

/// SUBTLE: the library gives 0 and "" for a null, and the bytes of a text where a blob is asked for. So the type
/// of the value is asked first.
fn found<I: sqlx::ColumnIndex<SqliteRow> + Copy>(row: &SqliteRow, column: I) -> Result<Found<'_>, String> {
    let failed = |error: sqlx::Error| error.to_string();
    let value = row.try_get_raw(column).map_err(failed)?;
    if value.is_null() {
        return Ok(Found::Null);
    }
    match value.type_info().name() {
        "INTEGER" => row.try_get(column).map(Found::Int).map_err(failed),
        "TEXT" => row.try_get(column).map(Found::Text).map_err(failed),
        "BLOB" => row.try_get(column).map(Found::Blob).map_err(failed),
        _ => Ok(Found::Other("a number with a fraction")),
    }
}

/// What a failure before a commit means, at `location`: nothing was written.
pub(super) fn failure(location: &str, op: &'static str, error: sqlx::Error) -> CatalogError {
    let location = location.to_owned();
    let (what, retry) = match primary_code(&error) {
        Some(5 | 6) => ("another process holds the write lock; try again", true),
        Some(8) => ("the file or its folder cannot be written: check its permissions", false),
        Some(11 | 26) => {
            return CatalogError::Damaged {
                location,
                what: format!("{op}: the file is damaged: {error}; restore it from a backup"),
            };
        }
        Some(13) => ("the disk is full: free some space and try again", true),
        Some(14) => ("the file cannot be opened: check that its folder exists", false),
        Some(10) => ("the disk failed to read or write", true),
        _ => ("the database refused it", false),
    };
    CatalogError::Determinate { location, op, what: what.to_owned(), retry, source: Some(Arc::new(error)) }
}

/// SQLite's primary result code, if the error is the database's.
pub(super) fn primary_code(error: &sqlx::Error) -> Option<i64> {
    let code: i64 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}
