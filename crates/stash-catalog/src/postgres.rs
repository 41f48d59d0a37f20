//! The catalog that machines share: PostgreSQL, 13 or newer.
//!
//! The operations are those of `sql`. Here is what PostgreSQL brings: a pool of connections whose sessions are set up for
//! it, the commit of an offer as one statement (`commit`), waking by `LISTEN`/`NOTIFY` (`listen`), migrating under an
//! advisory lock (`migrate`), and what its errors mean (`failure`).
//!
//! - Transactions that write are READ COMMITTED and take the head row of their sink before they read. What is read in one
//!   snapshot is read REPEATABLE READ, READ ONLY.
//! - A catalog lives in a schema of its own, `stash` unless the URL says another; several share a database. Sessions have
//!   that schema, and nothing else, as their search path.
//! - Every session runs with `synchronous_commit` on: what was answered with `Ok` is on the server's disk.
//! - Sessions are set up by startup options. A pooler between must pass them on and keep a session with its client:
//!   pgbouncer with `pool_mode = session` and no `ignore_startup_parameters = options`, or none at all. One that does not is
//!   noticed when the catalog is opened, and refused.
//! - Prepared statements are kept by each connection, and planned once.

mod commit;
mod connection;
mod failure;
mod listen;
mod migrate;
mod options;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use async_trait::async_trait;
use sqlx::PgPool;
use stash_types::{Clock, IdSource};
use tokio::time::Instant;

pub use options::PostgresOptions;

use crate::rows::{CommitRequest, Committed};
use crate::sql::link::Held;
use crate::sql::schema::determinate;
use crate::sql::watch::Watch;
use crate::sql::{Database, Dialect, Result, Sql, catalog_over_sql};
use crate::{Cas, CatalogError};
use listen::Listener;
use migrate::Missing;

/// The clock by which a shared catalog judges leases, retention and absence.
#[derive(Clone, Debug, Default)]
pub enum ClockSource {
    /// The database's own: all processes agree, whatever their machines say. It costs writes other than commits one
    /// round trip.
    #[default]
    Database,
    /// This one, for tests and simulations.
    Given(Arc<dyn Clock>),
}

/// The catalog in a PostgreSQL database.
///
/// - A write whose future is dropped is rolled back or committed, never left open.
/// - Handles on the same schema, in this process or another, see one another's writes.
/// - A commit whose answer was lost is `Indeterminate`; reading it back waits for it, and fences what never began.
#[derive(Debug)]
pub struct PostgresCatalog {
    sql: Sql,
}

catalog_over_sql!(PostgresCatalog);

impl PostgresCatalog {
    /// Opens the catalog in the schema that the options name. The first opening makes the schema and draws the
    /// catalog's id; every opening brings it to this build's version, or refuses a newer one.
    ///
    /// Refused by name: a server below version 13, one that is read-only (a standby), one whose sessions do not get
    /// what they ask for.
    pub async fn open(
        options: PostgresOptions,
        clock: ClockSource,
        ids: Arc<dyn IdSource>,
    ) -> Result<PostgresCatalog> {
        let location = options.location();
        let opened = PostgresCatalog::open_or(options, clock, ids, Missing::Make).await?;
        opened.ok_or_else(|| determinate(&location, "its making left nothing behind".to_owned(), None))
    }

    /// The same, but where there is no catalog none is made.
    pub async fn open_existing(
        options: PostgresOptions,
        clock: ClockSource,
        ids: Arc<dyn IdSource>,
    ) -> Result<Option<PostgresCatalog>> {
        PostgresCatalog::open_or(options, clock, ids, Missing::Tell).await
    }

    async fn open_or(
        options: PostgresOptions,
        clock: ClockSource,
        ids: Arc<dyn IdSource>,
        missing: Missing,
    ) -> Result<Option<PostgresCatalog>> {
        let location = options.location();
        let clock = match clock {
            ClockSource::Database => None,
            ClockSource::Given(clock) => Some(clock),
        };
        let found = migrate::open(&options, &location, clock.as_deref(), &*ids, missing).await?;
        let Some((id, revision)) = found else { return Ok(None) };
        let watch = Arc::new(Watch::new(revision));
        let pool = options.pool();
        let listener = Listener::start(&options, id);
        let database = Box::new(Server { pool, listener });
        let (seen, closed) = (AtomicU64::new(revision), AtomicBool::new(false));
        Ok(Some(PostgresCatalog { sql: Sql { location, id, clock, ids, database, seen, watch, closed } }))
    }
}

/// The database on a server.
#[derive(Debug)]
struct Server {
    pool: PgPool,
    listener: Listener,
}

#[async_trait]
impl Database for Server {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }
    async fn writer(&self) -> sqlx::Result<Option<Box<dyn Held + '_>>> {
        connection::held(&self.pool).await
    }
    async fn reader(&self) -> sqlx::Result<Option<Box<dyn Held + '_>>> {
        connection::held(&self.pool).await
    }
    fn failure(&self, location: &str, op: &'static str, error: sqlx::Error) -> CatalogError {
        failure::failure(location, op, error)
    }
    fn is_transient(&self, error: &CatalogError) -> bool {
        failure::is_transient(error)
    }
    async fn commit(&self, catalog: &Sql, request: &CommitRequest) -> Result<Cas<Committed>> {
        commit::commit(&self.pool, catalog, request).await
    }
    /// What was sent may lie before the server, or wait there for a lock, long after the sender is gone.
    fn outlives_its_sender(&self) -> bool {
        true
    }
    async fn wait(&self, catalog: &Sql, seen: u64, deadline: Instant) -> Result<()> {
        self.listener.wait(&catalog.watch, seen, deadline).await;
        Ok(())
    }
    async fn close(&self) {
        self.listener.close().await;
        self.pool.close().await;
    }
}
