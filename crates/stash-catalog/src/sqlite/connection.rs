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

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Sqlite, Transaction};
use stash_types::{SinkId, Timestamp, fault};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use super::decode::{Fields, int};
use super::turn::{Turn, Turns};
use super::{Result, SqliteCatalog};
use crate::{CatalogError, HeadRow, Misuse};

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

/// A connection while it is held.
pub(super) type Held<'a> = MappedMutexGuard<'a, SqliteConnection>;

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

impl SqliteCatalog {
    /// Waits for the writing connection.
    pub(super) async fn writer(&self, op: &'static str) -> Result<Held<'_>> {
        let mut guard = self.connections.writer.lock().await;
        self.connections.renew(&mut guard).await.map_err(|error| self.failed(op, error))?;
        MutexGuard::try_map(guard, Option::as_mut).map_err(|_| self.was_closed(op))
    }

    /// Waits for a reading connection.
    pub(super) async fn reader(&self, op: &'static str) -> Result<Held<'_>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(self.was_closed(op));
        }
        let guard = match self.connections.reader().await {
            Ok(guard) => guard,
            Err(error) => return Err(self.failed(op, error)),
        };
        MutexGuard::try_map(guard, Option::as_mut).map_err(|_| self.was_closed(op))
    }

    /// Begins a transaction that reads one snapshot; it ends when it is dropped.
    pub(super) async fn read<'c>(&self, op: &'static str, held: &'c mut Held<'_>) -> Result<Snapshot<'c>> {
        held.begin().await.map_err(|error| self.failed(op, error))
    }

    /// Begins a transaction that writes; nothing of it remains unless it is committed.
    pub(super) async fn write<'c>(&'c self, op: &'static str, held: &'c mut Held<'_>) -> Result<Write<'c>> {
        // Read before the lock is taken: whoever committed in between can only have raised it.
        let saw = self.seen.load(Ordering::Acquire);
        let Connections { path, busy, turns, .. } = &self.connections;
        let turn = turns.take(path.as_deref(), *busy).await;
        let tx = held.begin_with("BEGIN IMMEDIATE").await.map_err(|error| {
            self.connections.doubt(&error);
            self.failed(op, error)
        })?;
        fault::place("catalog.begun");
        Ok(Write { catalog: self, tx, op, now: self.clock.now(), saw, _turn: turn })
    }

    fn was_closed(&self, op: &'static str) -> CatalogError {
        CatalogError::Determinate {
            location: self.location.clone(),
            op,
            what: "this handle was closed: open the catalog again".to_owned(),
            retry: false,
            source: None,
        }
    }

    /// What a failure before a commit means: nothing was written.
    pub(super) fn failed(&self, op: &'static str, error: sqlx::Error) -> CatalogError {
        failure(&self.location, op, error)
    }
}

/// A transaction that only reads.
pub(super) type Snapshot<'c> = Transaction<'c, Sqlite>;

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

/// Where a process may die in the transaction of an operation: all is written and nothing durable; it is durable
/// and nobody was told.
fn places(op: &str) -> (&'static str, &'static str) {
    match op {
        "declare sink" => ("catalog.declare_ready", "catalog.declare_done"),
        "drop sink" => ("catalog.drop_ready", "catalog.drop_done"),
        "open incarnation" => ("catalog.open_ready", "catalog.open_done"),
        "close incarnation" => ("catalog.close_ready", "catalog.close_done"),
        "commit" => ("catalog.commit_ready", "catalog.commit_done"),
        "register consumer" => ("catalog.register_ready", "catalog.register_done"),
        "acknowledge" => ("catalog.acknowledge_ready", "catalog.acknowledge_done"),
        "enqueue deletions" => ("catalog.enqueue_ready", "catalog.enqueue_done"),
        "dequeue deletions" => ("catalog.dequeue_ready", "catalog.dequeue_done"),
        _ => ("catalog.other_ready", "catalog.other_done"),
    }
}

/// A transaction that writes. Its first statement takes the head row of the sink it writes to.
#[derive(Debug)]
pub(super) struct Write<'c> {
    pub(super) catalog: &'c SqliteCatalog,
    pub(super) tx: Transaction<'c, Sqlite>,
    op: &'static str,
    /// The moment of everything this transaction writes.
    pub(super) now: Timestamp,
    saw: u64,
    /// Ends after the transaction: fields are dropped in order.
    _turn: Turn<'c>,
}

impl Write<'_> {
    /// Turns a failed statement into this operation's error.
    pub(super) fn failed(&self, error: sqlx::Error) -> CatalogError {
        self.catalog.connections.doubt(&error);
        self.catalog.failed(self.op, error)
    }

    /// The moment of this transaction as it is stored.
    pub(super) fn at(&self) -> i64 {
        int(self.now.0)
    }

    /// Takes the head row: every other write to the sink waits or has happened. Raises the fence by
    /// `bump`, 1 for what a decision in flight must notice and 0 for the rest.
    pub(super) async fn take_head(&mut self, sink: SinkId, bump: i64) -> Result<HeadRow> {
        let taken = sqlx::query(concat!(
            "UPDATE chains SET fence = fence + ? WHERE sink = ? RETURNING ",
            super::head_columns!()
        ))
        .bind(bump)
        .bind(sink.to_string())
        .fetch_optional(&mut *self.tx)
        .await
        .map_err(|error| self.failed(error))?;
        fault::place("catalog.head_taken");
        match taken {
            Some(row) => Fields::new(&self.catalog.location, "chains", &row).head(),
            None => Err(Misuse::NoSuchSink { sink: sink.to_string() }.into()),
        }
    }

    /// The same, refusing a sink that was dropped.
    pub(super) async fn take_live_head(&mut self, sink: SinkId, bump: i64) -> Result<HeadRow> {
        let head = self.take_head(sink, bump).await?;
        match head.status {
            crate::HeadStatus::Dropped => Err(CatalogError::SinkDropped { sink }),
            _ => Ok(head),
        }
    }

    /// Raises the catalog's revision; once per transaction.
    pub(super) async fn revise(&mut self) -> Result<u64> {
        let row = sqlx::query("UPDATE catalog SET revision = revision + 1 WHERE one = 1 RETURNING revision")
            .fetch_one(&mut *self.tx)
            .await
            .map_err(|error| self.failed(error))?;
        let revision = Fields::new(&self.catalog.location, "catalog", &row).u64("revision")?;
        if revision <= self.saw {
            // I7: the file was swapped for an older one under our feet; writing would fork history.
            return Err(self.catalog.behind(self.saw, revision.saturating_sub(1)));
        }
        Ok(revision)
    }

    /// Raises the revision and writes it on the head row.
    pub(super) async fn stamp(&mut self, sink: SinkId) -> Result<u64> {
        let revision = self.revise().await?;
        sqlx::query("UPDATE chains SET revision = ? WHERE sink = ?")
            .bind(int(revision))
            .bind(sink.to_string())
            .execute(&mut *self.tx)
            .await
            .map_err(|error| self.failed(error))?;
        Ok(revision)
    }

    /// Makes everything durable, as `revision`, and wakes who waits for it.
    pub(super) async fn commit(self, revision: u64) -> Result<()> {
        let Write { catalog, tx, op, _turn, .. } = self;
        let (ready, done) = places(op);
        fault::place(ready);
        let committed = tx.commit().await;
        if let Err(error) = &committed {
            catalog.connections.doubt(error);
        }
        match committed {
            Ok(()) => {
                fault::place(done);
                catalog.saw(revision);
                Ok(())
            }
            // The lock was not to be had, so nothing reached the log.
            Err(error) if primary_code(&error) == Some(5) => Err(catalog.failed(op, error)),
            Err(error) => Err(CatalogError::Indeterminate {
                location: catalog.location.clone(),
                op,
                what: "the commit failed on its way to the disk".to_owned(),
                source: Some(Arc::new(error)),
            }),
        }
    }
}
