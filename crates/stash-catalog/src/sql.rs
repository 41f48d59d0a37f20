//! The catalog in SQL: one set of operations, whichever database runs the statements.
//!
//! What an operation does, in which order, and what it makes of what it reads stands here once, so that two databases
//! cannot come to disagree. The statements are written in what SQLite and PostgreSQL both understand: numbered
//! parameters, `RETURNING`, `ON CONFLICT`. Where they differ a statement has two texts, side by side
//! ([`Tx::pick`]). A database brings connections, transactions, its commit, what its errors mean, and how one
//! learns of the writes of others: [`Database`].
//!
//! Every write takes the head row of its sink before it reads anything, in a statement of its own. Whoever waited
//! for the row then sees what the other wrote: SQLite has one writer at a time, and PostgreSQL at READ COMMITTED
//! gives each statement a fresh snapshot. Locks are taken in one order, heads by their sink, then the catalog's row.
//!
//! One file per noun below holds the statements; this one holds the handle.

pub(crate) mod chain;
pub(crate) mod commit;
pub(crate) mod consumers;
pub(crate) mod decode;
pub(crate) mod deletions;
pub(crate) mod expire;
pub(crate) mod history;
pub(crate) mod incarnations;
pub(crate) mod link;
pub(crate) mod release;
pub(crate) mod schema;
pub(crate) mod sinks;
pub(crate) mod watch;
pub(crate) mod write;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use stash_types::{CatalogId, Clock, IdSource, ShardId, SinkId};
use tokio::time::Instant;

use crate::rows::{CommitRequest, Committed};
use crate::{Cas, CatalogError};
use link::Held;
use watch::Watch;

pub(crate) type Result<T> = std::result::Result<T, CatalogError>;

/// The columns of `chains` that make a [`HeadRow`](crate::HeadRow).
macro_rules! head_columns {
    () => {
        "sink, upper, fence, next_seq, status, poisoned_at, poison_message, released, expired, revision"
    };
}
pub(crate) use head_columns;

/// The columns of `incarnations` that make an [`IncarnationRow`](crate::IncarnationRow) and its recorded commit.
macro_rules! incarnation_columns {
    () => {
        "id, sink, replica, launch, as_of, resolved, closed, last_lower, last_upper, last_outcome, last_from, \
         opened, lease_until, commit_id, commit_revision, commit_seq, commit_upper, commit_fence"
    };
}
pub(crate) use incarnation_columns;

/// Which of two texts a statement has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    #[cfg(feature = "postgres")]
    Postgres,
}

/// What a database brings.
#[async_trait]
pub(crate) trait Database: Send + Sync + fmt::Debug {
    /// Which text of a statement it takes.
    fn dialect(&self) -> Dialect;
    /// Waits for a connection that writes.
    async fn writer(&self) -> sqlx::Result<Option<Box<dyn Held + '_>>>;
    /// Waits for a connection that reads; `None` where the handle was closed, as above.
    async fn reader(&self) -> sqlx::Result<Option<Box<dyn Held + '_>>>;
    /// What a failure before a commit means: nothing was written.
    fn failure(&self, location: &str, op: &'static str, error: sqlx::Error) -> CatalogError;
    /// Whether the operation that failed so may be tried again at once, by itself.
    fn is_transient(&self, error: &CatalogError) -> bool;
    /// Resolves an offer in one transaction, if the head is as expected.
    async fn commit(&self, catalog: &Sql, request: &CommitRequest) -> Result<Cas<Committed>>;
    /// Whether a write that nobody answered may still be on its way, after the connection that sent it is gone.
    fn outlives_its_sender(&self) -> bool;
    /// Waits until the watched revision is above `seen`, another process may have raised it, or `deadline`.
    async fn wait(&self, catalog: &Sql, seen: u64, deadline: Instant) -> Result<()>;
    /// Waits for writes under way and closes the connections.
    async fn close(&self);
}

/// An open catalog in a database.
#[derive(Debug)]
pub(crate) struct Sql {
    pub(crate) location: String,
    pub(crate) id: CatalogId,
    /// The clock of everything that is written; `None` is the database's own.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) ids: Arc<dyn IdSource>,
    pub(crate) database: Box<dyn Database>,
    /// The highest revision this handle saw.
    pub(crate) seen: AtomicU64,
    pub(crate) watch: Arc<Watch>,
    /// Whether it was closed.
    pub(crate) closed: AtomicBool,
}

/// How often an operation that failed by a passing collision is tried again.
const TRIES_MAX: u32 = 4;

impl Sql {
    pub(crate) fn shard(&self, sink: SinkId) -> ShardId {
        ShardId::derive(self.id, sink)
    }

    /// Notes a revision that is durable, and wakes who waits for it.
    pub(crate) fn saw(&self, revision: u64) {
        self.seen.fetch_max(revision, Ordering::AcqRel);
        self.watch.raise(revision);
    }

    pub(crate) fn behind(&self, saw: u64, found: u64) -> CatalogError {
        CatalogError::CatalogBehind { location: self.location.clone(), saw, found }
    }

    pub(crate) fn damaged(&self, what: String) -> CatalogError {
        CatalogError::Damaged { location: self.location.clone(), what }
    }

    /// What a failure before a commit means: nothing was written.
    pub(crate) fn failed(&self, op: &'static str, error: sqlx::Error) -> CatalogError {
        self.database.failure(&self.location, op, error)
    }

    pub(crate) fn was_closed(&self, op: &'static str) -> CatalogError {
        CatalogError::Closed { location: self.location.clone(), op }
    }

    pub(crate) fn may_try_again(&self, tries: u32, error: &CatalogError) -> bool {
        tries < TRIES_MAX && self.database.is_transient(error)
    }

    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.database.close().await;
    }
}

/// Asks once, and again where the database says that another try may fare better by itself.
macro_rules! asked {
    ($sql:expr, $answer:expr) => {{
        let mut tries = 1;
        loop {
            match $answer.await {
                Err(error) if $sql.may_try_again(tries, &error) => tries += 1,
                answer => break answer,
            }
        }
    }};
}
pub(crate) use asked;

/// Implements the boundary for a handle that has its [`Sql`] in the field `sql`.
macro_rules! catalog_over_sql {
    ($handle:ty) => {
        #[async_trait::async_trait]
        impl $crate::Catalog for $handle {
            fn id(&self) -> stash_types::CatalogId {
                self.sql.id
            }
            fn location(&self) -> String {
                self.sql.location.clone()
            }
            async fn revision(&self) -> $crate::sql::Result<u64> {
                $crate::sql::asked!(self.sql, $crate::sql::watch::revision(&self.sql))
            }
            async fn changed(&self, seen: u64, patience: std::time::Duration) -> $crate::sql::Result<u64> {
                $crate::sql::watch::changed(&self.sql, seen, patience).await
            }
            async fn declare_sink(&self, sink: $crate::NewSink) -> $crate::sql::Result<$crate::Declared> {
                $crate::sql::asked!(self.sql, $crate::sql::sinks::declare(&self.sql, &sink))
            }
            async fn sinks(&self, with_dropped: bool) -> $crate::sql::Result<Vec<$crate::SinkRow>> {
                $crate::sql::asked!(self.sql, $crate::sql::sinks::all(&self.sql, with_dropped))
            }
            async fn sink_named(&self, name: &stash_types::SinkName) -> $crate::sql::Result<$crate::SinkRow> {
                $crate::sql::asked!(self.sql, $crate::sql::sinks::named(&self.sql, name))
            }
            async fn sink(&self, sink: stash_types::SinkId) -> $crate::sql::Result<$crate::SinkRow> {
                $crate::sql::asked!(self.sql, $crate::sql::sinks::one(&self.sql, sink))
            }
            async fn drop_sink(
                &self,
                sink: stash_types::SinkId,
                commit: bool,
            ) -> $crate::sql::Result<$crate::Dropped> {
                $crate::sql::asked!(self.sql, $crate::sql::sinks::drop_sink(&self.sql, sink, commit))
            }
            async fn expire(
                &self,
                sink: stash_types::SinkId,
                commit: bool,
            ) -> $crate::sql::Result<$crate::Expired> {
                $crate::sql::asked!(self.sql, $crate::sql::expire::expire(&self.sql, sink, commit))
            }
            async fn head(&self, sink: stash_types::SinkId) -> $crate::sql::Result<$crate::HeadRow> {
                $crate::sql::asked!(self.sql, $crate::sql::chain::head(&self.sql, sink))
            }
            async fn view(
                &self,
                sink: stash_types::SinkId,
                incarnation: stash_types::IncarnationId,
            ) -> $crate::sql::Result<$crate::View> {
                $crate::sql::asked!(self.sql, $crate::sql::incarnations::view(&self.sql, sink, incarnation))
            }
            async fn open_incarnation(
                &self,
                request: $crate::OpenIncarnation,
            ) -> $crate::sql::Result<$crate::Cas<$crate::Opened>> {
                $crate::sql::asked!(self.sql, $crate::sql::incarnations::open(&self.sql, &request))
            }
            async fn renew_lease(
                &self,
                sink: stash_types::SinkId,
                incarnation: stash_types::IncarnationId,
                lease_ms: u64,
            ) -> $crate::sql::Result<()> {
                $crate::sql::asked!(
                    self.sql,
                    $crate::sql::incarnations::renew(&self.sql, sink, incarnation, lease_ms)
                )
            }
            async fn close_incarnation(
                &self,
                sink: stash_types::SinkId,
                incarnation: stash_types::IncarnationId,
                reason: &str,
            ) -> $crate::sql::Result<bool> {
                $crate::sql::asked!(
                    self.sql,
                    $crate::sql::incarnations::close(&self.sql, sink, incarnation, reason)
                )
            }
            async fn launched(
                &self,
                sink: stash_types::SinkId,
                launch: stash_types::LaunchToken,
            ) -> $crate::sql::Result<Option<$crate::IncarnationRow>> {
                $crate::sql::asked!(self.sql, $crate::sql::incarnations::launched(&self.sql, sink, launch))
            }
            async fn incarnations(
                &self,
                sink: stash_types::SinkId,
                with_closed: bool,
            ) -> $crate::sql::Result<Vec<$crate::IncarnationRow>> {
                $crate::sql::asked!(self.sql, $crate::sql::incarnations::all(&self.sql, sink, with_closed))
            }
            async fn commit(
                &self,
                request: $crate::CommitRequest,
            ) -> $crate::sql::Result<$crate::Cas<$crate::Committed>> {
                request.check()?;
                $crate::sql::asked!(self.sql, self.sql.database.commit(&self.sql, &request))
            }
            async fn read_back(
                &self,
                sink: stash_types::SinkId,
                commit: stash_types::CommitId,
            ) -> $crate::sql::Result<Option<$crate::Committed>> {
                $crate::sql::asked!(self.sql, $crate::sql::commit::read_back(&self.sql, sink, commit))
            }
            async fn chain(
                &self,
                sink: stash_types::SinkId,
                from: stash_types::Frontier,
                limit: u32,
            ) -> $crate::sql::Result<$crate::ChainSlice> {
                $crate::sql::asked!(self.sql, $crate::sql::chain::slice(&self.sql, sink, from, limit))
            }
            async fn register_consumer(
                &self,
                request: $crate::RegisterConsumer,
            ) -> $crate::sql::Result<$crate::ConsumerRow> {
                $crate::sql::asked!(self.sql, $crate::sql::consumers::register(&self.sql, &request))
            }
            async fn renew_session(
                &self,
                sink: stash_types::SinkId,
                consumer: &stash_types::ConsumerName,
                session: stash_types::SessionId,
            ) -> $crate::sql::Result<()> {
                $crate::sql::asked!(
                    self.sql,
                    $crate::sql::consumers::renew(&self.sql, sink, consumer, session)
                )
            }
            async fn consumers(
                &self,
                sink: stash_types::SinkId,
            ) -> $crate::sql::Result<Vec<$crate::ConsumerRow>> {
                $crate::sql::asked!(self.sql, $crate::sql::consumers::all(&self.sql, sink))
            }
            async fn unregister_consumer(
                &self,
                sink: stash_types::SinkId,
                consumer: &stash_types::ConsumerName,
            ) -> $crate::sql::Result<bool> {
                $crate::sql::asked!(self.sql, $crate::sql::consumers::unregister(&self.sql, sink, consumer))
            }
            async fn acknowledge(
                &self,
                sink: stash_types::SinkId,
                consumer: &stash_types::ConsumerName,
                session: stash_types::SessionId,
                upper: stash_types::Frontier,
            ) -> $crate::sql::Result<$crate::Acknowledged> {
                $crate::sql::asked!(
                    self.sql,
                    $crate::sql::consumers::acknowledge(&self.sql, sink, consumer, session, upper)
                )
            }
            async fn enqueue(
                &self,
                sink: stash_types::SinkId,
                keys: &[stash_types::PartKey],
                reason: $crate::DeletionReason,
            ) -> $crate::sql::Result<u64> {
                $crate::sql::asked!(self.sql, $crate::sql::deletions::enqueue(&self.sql, sink, keys, reason))
            }
            async fn deletions_due(&self, limit: u32) -> $crate::sql::Result<Vec<$crate::DeletionRow>> {
                $crate::sql::asked!(self.sql, $crate::sql::deletions::due(&self.sql, limit))
            }
            async fn deletions_queued(&self, sink: Option<stash_types::SinkId>) -> $crate::sql::Result<u64> {
                $crate::sql::asked!(self.sql, $crate::sql::deletions::queued(&self.sql, sink))
            }
            async fn dequeue(&self, keys: &[stash_types::PartKey]) -> $crate::sql::Result<()> {
                $crate::sql::asked!(self.sql, $crate::sql::deletions::dequeue(&self.sql, keys))
            }
            async fn defer(&self, keys: &[stash_types::PartKey]) -> $crate::sql::Result<()> {
                $crate::sql::asked!(self.sql, $crate::sql::deletions::defer(&self.sql, keys))
            }
            async fn key_states(
                &self,
                sink: stash_types::SinkId,
                keys: &[stash_types::PartKey],
            ) -> $crate::sql::Result<Vec<$crate::KeyState>> {
                $crate::sql::asked!(self.sql, $crate::sql::deletions::key_states(&self.sql, sink, keys))
            }
            async fn referenced(
                &self,
                sink: stash_types::SinkId,
            ) -> $crate::sql::Result<Vec<(stash_types::PartKey, u64)>> {
                $crate::sql::asked!(self.sql, $crate::sql::chain::referenced(&self.sql, sink))
            }
            async fn history(
                &self,
                filter: $crate::HistoryFilter,
            ) -> $crate::sql::Result<Vec<$crate::HistoryRow>> {
                $crate::sql::asked!(self.sql, $crate::sql::history::select(&self.sql, &filter))
            }
            async fn close(&self) {
                self.sql.close().await;
            }
        }
    };
}
pub(crate) use catalog_over_sql;
