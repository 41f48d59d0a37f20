//! The embedded catalog: SQLite, on a file of a local disk or in memory.
//!
//! Several processes may share one file: the write-ahead log lets them read while one writes, and the write
//! lock of the file makes their transactions happen one after the other. `synchronous=FULL`: what was
//! answered with `Ok` is on the disk. A network file system does not keep these promises; do not put a
//! catalog there.
//!
//! One file per noun below holds the statements; this one holds the handle.

mod chain;
mod commit;
mod connection;
mod consumers;
mod decode;
mod deletions;
mod expire;
mod history;
mod incarnations;
mod migrate;
pub(crate) mod probe;
mod release;
mod sinks;
#[cfg(test)]
mod tests;
mod turn;
mod watch;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use stash_types::{
    CatalogId, Clock, CommitId, ConsumerName, Frontier, IdSource, IncarnationId, PartKey, SessionId, ShardId,
    SinkId, SinkName,
};

use crate::rows::{
    Acknowledged, ChainSlice, CommitRequest, Committed, ConsumerRow, Declared, DeletionReason, DeletionRow,
    Dropped, Expired, HeadRow, HistoryFilter, HistoryRow, IncarnationRow, KeyState, NewSink, OpenIncarnation,
    Opened, RegisterConsumer, SinkRow, View,
};
use crate::{Cas, Catalog, CatalogError};
use connection::Connections;
use watch::Watch;

type Result<T> = std::result::Result<T, CatalogError>;

/// How long a write waits for another process's write before it is refused as busy.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);

/// The columns of `chains` that make a [`HeadRow`].
macro_rules! head_columns {
    () => {
        "sink, upper, fence, next_seq, status, poisoned_at, poison_message, released, expired, revision"
    };
}
use head_columns;

/// The embedded catalog.
///
/// - A write whose future is dropped is rolled back or committed, never left open.
/// - Handles on the same file, in this process or another, see one another's writes.
#[derive(Debug)]
pub struct SqliteCatalog {
    location: String,
    id: CatalogId,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    connections: Connections,
    /// The highest revision this handle saw.
    seen: AtomicU64,
    watch: Watch,
    /// Whether [`Catalog::close`] was called.
    closed: AtomicBool,
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
        SqliteCatalog {
            location,
            id,
            clock,
            ids,
            connections,
            seen: AtomicU64::new(revision),
            watch: Watch::new(revision),
            closed: AtomicBool::new(false),
        }
    }

    fn shard(&self, sink: SinkId) -> ShardId {
        ShardId::derive(self.id, sink)
    }

    /// Notes a revision that is durable, and wakes who waits for it.
    fn saw(&self, revision: u64) {
        self.seen.fetch_max(revision, Ordering::AcqRel);
        self.watch.raise(revision);
    }

    fn behind(&self, saw: u64, found: u64) -> CatalogError {
        CatalogError::CatalogBehind { location: self.location.clone(), saw, found }
    }

    fn damaged(&self, what: String) -> CatalogError {
        CatalogError::Damaged { location: self.location.clone(), what }
    }
}

#[async_trait]
impl Catalog for SqliteCatalog {
    fn id(&self) -> CatalogId {
        self.id
    }
    fn location(&self) -> String {
        self.location.clone()
    }
    async fn revision(&self) -> Result<u64> {
        watch::revision(self).await
    }
    async fn changed(&self, seen: u64, patience: Duration) -> Result<u64> {
        watch::changed(self, seen, patience).await
    }
    async fn declare_sink(&self, sink: NewSink) -> Result<Declared> {
        sinks::declare(self, sink).await
    }
    async fn sinks(&self, with_dropped: bool) -> Result<Vec<SinkRow>> {
        sinks::all(self, with_dropped).await
    }
    async fn sink_named(&self, name: &SinkName) -> Result<SinkRow> {
        sinks::named(self, name).await
    }
    async fn sink(&self, sink: SinkId) -> Result<SinkRow> {
        sinks::one(self, sink).await
    }
    async fn drop_sink(&self, sink: SinkId, commit: bool) -> Result<Dropped> {
        sinks::drop_sink(self, sink, commit).await
    }
    async fn expire(&self, sink: SinkId, commit: bool) -> Result<Expired> {
        expire::expire(self, sink, commit).await
    }
    async fn head(&self, sink: SinkId) -> Result<HeadRow> {
        chain::head(self, sink).await
    }
    async fn view(&self, sink: SinkId, incarnation: IncarnationId) -> Result<View> {
        incarnations::view(self, sink, incarnation).await
    }
    async fn open_incarnation(&self, request: OpenIncarnation) -> Result<Cas<Opened>> {
        incarnations::open(self, request).await
    }
    async fn renew_lease(&self, sink: SinkId, incarnation: IncarnationId, lease_ms: u64) -> Result<()> {
        incarnations::renew(self, sink, incarnation, lease_ms).await
    }
    async fn close_incarnation(
        &self,
        sink: SinkId,
        incarnation: IncarnationId,
        reason: &str,
    ) -> Result<bool> {
        incarnations::close(self, sink, incarnation, reason).await
    }
    async fn incarnations(&self, sink: SinkId) -> Result<Vec<IncarnationRow>> {
        incarnations::all(self, sink).await
    }
    async fn commit(&self, request: CommitRequest) -> Result<Cas<Committed>> {
        commit::commit(self, request).await
    }
    async fn read_back(&self, sink: SinkId, commit: CommitId) -> Result<Option<Committed>> {
        commit::read_back(self, sink, commit).await
    }
    async fn chain(&self, sink: SinkId, from: Frontier, limit: u32) -> Result<ChainSlice> {
        chain::slice(self, sink, from, limit).await
    }
    async fn register_consumer(&self, request: RegisterConsumer) -> Result<ConsumerRow> {
        consumers::register(self, request).await
    }
    async fn renew_session(&self, sink: SinkId, consumer: &ConsumerName, session: SessionId) -> Result<()> {
        consumers::renew(self, sink, consumer, session).await
    }
    async fn consumers(&self, sink: SinkId) -> Result<Vec<ConsumerRow>> {
        consumers::all(self, sink).await
    }
    async fn unregister_consumer(&self, sink: SinkId, consumer: &ConsumerName) -> Result<bool> {
        consumers::unregister(self, sink, consumer).await
    }
    async fn acknowledge(
        &self,
        sink: SinkId,
        consumer: &ConsumerName,
        session: SessionId,
        upper: Frontier,
    ) -> Result<Acknowledged> {
        consumers::acknowledge(self, sink, consumer, session, upper).await
    }
    async fn enqueue(&self, sink: SinkId, keys: &[PartKey], reason: DeletionReason) -> Result<u64> {
        deletions::enqueue(self, sink, keys, reason).await
    }
    async fn deletions_due(&self, limit: u32) -> Result<Vec<DeletionRow>> {
        deletions::due(self, limit).await
    }
    async fn deletions_queued(&self, sink: Option<SinkId>) -> Result<u64> {
        deletions::queued(self, sink).await
    }
    async fn dequeue(&self, keys: &[PartKey]) -> Result<()> {
        deletions::dequeue(self, keys).await
    }
    async fn defer(&self, keys: &[PartKey]) -> Result<()> {
        deletions::defer(self, keys).await
    }
    async fn key_states(&self, sink: SinkId, keys: &[PartKey]) -> Result<Vec<KeyState>> {
        deletions::key_states(self, sink, keys).await
    }
    async fn referenced(&self, sink: SinkId) -> Result<Vec<(PartKey, u64)>> {
        chain::referenced(self, sink).await
    }
    async fn history(&self, filter: HistoryFilter) -> Result<Vec<HistoryRow>> {
        history::select(self, filter).await
    }
    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.connections.close().await;
        self.watch.close().await;
    }
}
