//! The embedded catalog: SQLite, on a file of a local disk or in memory.
//!
//! Several processes may share one file: the write-ahead log lets them read while one writes, and the write
//! lock of the file makes their transactions happen one after the other. `synchronous=FULL`: what was
//! answered with `Ok` is on the disk. A network file system does not keep these promises; do not put a
//! catalog there.
//!
//! The operations are those of `sql`; here are the connections, migrations, and how one notices another process.

mod connection;
mod migrate;
pub(crate) mod probe;
#[cfg(test)]
mod tests;
mod turn;
mod watch;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use stash_types::{CatalogId, Clock, IdSource};
use tokio::time::Instant;

use crate::rows::{CommitRequest, Committed};
use crate::sql::link::Held;
use crate::sql::watch::Watch;
use crate::sql::{Database, Dialect, Result, Sql, catalog_over_sql, commit};
use crate::{Cas, CatalogError};
use connection::Connections;
use watch::Polls;

/// How long a write waits for another process's write before it is refused as busy.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);

/// The embedded catalog.
///
/// - A write whose future is dropped is rolled back or committed, never left open.
/// - Handles on the same file, in this process or another, see one another's writes.
#[derive(Debug)]
pub struct SqliteCatalog {
    sql: Sql,
}

catalog_over_sql!(SqliteCatalog);

/// The database in this process.
#[derive(Debug)]
struct Embedded {
    connections: Connections,
    polls: Polls,
}

#[async_trait]
impl Database for Embedded {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }
    async fn writer(&self) -> sqlx::Result<Option<Box<dyn Held + '_>>> {
        self.connections.for_writing().await
    }
    async fn reader(&self) -> sqlx::Result<Option<Box<dyn Held + '_>>> {
        self.connections.for_reading().await
    }
    fn failure(&self, location: &str, op: &'static str, error: sqlx::Error) -> CatalogError {
        connection::failure(location, op, error)
    }
    /// BUSY was waited out before it is an error.
    fn is_transient(&self, _: &CatalogError) -> bool {
        false
    }
    async fn commit(&self, catalog: &Sql, request: &CommitRequest) -> Result<Cas<Committed>> {
        commit::stepwise(catalog, request).await
    }
    /// What was sent runs before anything that is sent later, on the one connection that writes.
    fn outlives_its_sender(&self) -> bool {
        false
    }
    async fn wait(&self, catalog: &Sql, seen: u64, deadline: Instant) -> Result<()> {
        watch::wait(self, catalog, seen, deadline).await
    }
    async fn close(&self) {
        self.connections.close().await;
        self.polls.close().await;
    }
}

impl SqliteCatalog {
    /// Opens the catalog in the file at `path`, whose folder must exist. The first opening creates the file
    /// and draws the catalog's id; every opening brings it to this build's version, or refuses a newer one.
    pub async fn open(path: &Path, clock: Arc<dyn Clock>, ids: Arc<dyn IdSource>) -> Result<SqliteCatalog> {
        SqliteCatalog::open_with(path, clock, ids, BUSY_PATIENCE).await
    }

    async fn open_with(
        path: &Path,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
        busy: Duration,
    ) -> Result<SqliteCatalog> {
        let location = format!("sqlite:{}", path.display());
        let (writer, id, revision) = migrate::open_file(path, &location, busy, clock.now(), &*ids).await?;
        let connections = Connections::new(Some(path.to_owned()), busy, writer);
        Ok(SqliteCatalog::over(location, id, revision, clock, ids, connections))
    }

    /// A new catalog in memory. It is gone with the handle.
    pub async fn in_memory(clock: Arc<dyn Clock>, ids: Arc<dyn IdSource>) -> Result<SqliteCatalog> {
        let location = "sqlite::memory:".to_owned();
        let mut writer = SqliteConnectOptions::new()
            .in_memory(true)
            .foreign_keys(true)
            .disable_statement_logging()
            .connect()
            .await
            .map_err(|error| connection::failure(&location, "open", error))?;
        let (id, revision) = migrate::migrate(&mut writer, &location, clock.now(), &*ids).await?;
        let connections = Connections::new(None, BUSY_PATIENCE, writer);
        Ok(SqliteCatalog::over(location, id, revision, clock, ids, connections))
    }

    fn over(
        location: String,
        id: CatalogId,
        revision: u64,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
        connections: Connections,
    ) -> SqliteCatalog {
        let database = Box::new(Embedded { connections, polls: Polls::default() });
        SqliteCatalog {
            sql: Sql {
                location,
                id,
                clock: Some(clock),
                ids,
                database,
                seen: AtomicU64::new(revision),
                watch: Arc::new(Watch::new(revision)),
                closed: AtomicBool::new(false),
            },
        }
    }
}
