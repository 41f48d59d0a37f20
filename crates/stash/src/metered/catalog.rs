//! A catalog whose calls are measured by kind.
#![deny(clippy::missing_trait_methods)]

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use metrics::{Counter, Histogram};
use stash_batch::metric_list::{CATALOG_DURATION, CATALOG_REQUESTS};
use stash_catalog::{
    Acknowledged, Cas, Catalog, CatalogError, ChainSlice, CommitRequest, Committed, ConsumerRow, Declared,
    DeletionReason, DeletionRow, Dropped, Expired, HeadRow, HistoryFilter, HistoryRow, IncarnationRow,
    KeyState, NewSink, OpenIncarnation, Opened, RegisterConsumer, SinkRow, View,
};
use stash_types::{
    CatalogId, CommitId, ConsumerName, Frontier, IncarnationId, LaunchToken, PartKey, SessionId, SinkId,
    SinkName,
};

type Result<T> = std::result::Result<T, CatalogError>;

/// The handles of one kind of call.
struct Statement {
    name: &'static str,
    ok: Counter,
    conflict: Counter,
    refused: Counter,
    failed: Counter,
    unknown: Counter,
    /// Made when it first records: its buckets are most of what a recorder keeps.
    duration: OnceLock<Histogram>,
}

impl Statement {
    fn new(name: &'static str) -> Statement {
        let outcome = |outcome: &str| CATALOG_REQUESTS.counter(&[outcome, name]);
        Statement {
            name,
            ok: outcome("ok"),
            conflict: outcome("conflict"),
            refused: outcome("refused"),
            failed: outcome("failed"),
            unknown: outcome("unknown"),
            duration: OnceLock::new(),
        }
    }

    fn error(&self, error: &CatalogError) -> &Counter {
        match error {
            CatalogError::Indeterminate { .. } => &self.unknown,
            CatalogError::InvalidUsage(_)
            | CatalogError::IncarnationClosed { .. }
            | CatalogError::SinkDropped { .. }
            | CatalogError::SessionFenced { .. } => &self.refused,
            _ => &self.failed,
        }
    }

    /// Measures a call.
    async fn of<T>(&self, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.of_which(call, |_| false).await
    }

    /// Measures a compare-and-set.
    async fn of_cas<T>(&self, call: impl Future<Output = Result<Cas<T>>> + Send) -> Result<Cas<T>> {
        self.of_which(call, |cas| matches!(cas, Cas::Conflict(_))).await
    }

    async fn of_which<T>(
        &self,
        call: impl Future<Output = Result<T>> + Send,
        lost: impl FnOnce(&T) -> bool + Send,
    ) -> Result<T> {
        let begun = Instant::now();
        let answer = call.await;
        let took = begun.elapsed();
        self.duration.get_or_init(|| CATALOG_DURATION.histogram(&[self.name])).record(took);
        match &answer {
            Ok(value) if lost(value) => self.conflict.increment(1),
            Ok(_) => self.ok.increment(1),
            Err(error) => self.error(error).increment(1),
        }
        answer
    }
}

macro_rules! statements {
    ($($field:ident)*) => {
        struct Statements {
            $($field: Statement,)*
        }

        impl Statements {
            fn new() -> Statements {
                Statements { $($field: Statement::new(stringify!($field)),)* }
            }
        }
    };
}

// `changed` waits on purpose, and `close` ends: neither is a measure of the catalog.
statements! {
    revision declare_sink sinks sink drop_sink expire head view open_incarnation renew_lease close_incarnation
    launched incarnations commit read_back chain register_consumer renew_session consumers unregister_consumer acknowledge
    enqueue deletions_due deletions_queued dequeue defer key_states referenced history
}

/// Measures what is asked of a catalog.
pub struct MeteredCatalog {
    inner: Arc<dyn Catalog>,
    of: Statements,
}

impl MeteredCatalog {
    /// Measures `inner` from now on, with handles of the recorder that is installed now.
    pub fn new(inner: Arc<dyn Catalog>) -> MeteredCatalog {
        MeteredCatalog { inner, of: Statements::new() }
    }
}

impl std::fmt::Debug for MeteredCatalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MeteredCatalog").field(&self.inner).finish()
    }
}

#[async_trait]
impl Catalog for MeteredCatalog {
    fn id(&self) -> CatalogId {
        self.inner.id()
    }
    fn location(&self) -> String {
        self.inner.location()
    }
    async fn revision(&self) -> Result<u64> {
        self.of.revision.of(self.inner.revision()).await
    }
    async fn changed(&self, seen: u64, patience: Duration) -> Result<u64> {
        self.inner.changed(seen, patience).await
    }
    async fn declare_sink(&self, sink: NewSink) -> Result<Declared> {
        self.of.declare_sink.of(self.inner.declare_sink(sink)).await
    }
    async fn sinks(&self, with_dropped: bool) -> Result<Vec<SinkRow>> {
        self.of.sinks.of(self.inner.sinks(with_dropped)).await
    }
    async fn sink_named(&self, name: &SinkName) -> Result<SinkRow> {
        self.of.sink.of(self.inner.sink_named(name)).await
    }
    async fn sink(&self, sink: SinkId) -> Result<SinkRow> {
        self.of.sink.of(self.inner.sink(sink)).await
    }
    async fn drop_sink(&self, sink: SinkId, commit: bool) -> Result<Dropped> {
        self.of.drop_sink.of(self.inner.drop_sink(sink, commit)).await
    }
    async fn expire(&self, sink: SinkId, commit: bool) -> Result<Expired> {
        self.of.expire.of(self.inner.expire(sink, commit)).await
    }
    async fn head(&self, sink: SinkId) -> Result<HeadRow> {
        self.of.head.of(self.inner.head(sink)).await
    }
    async fn view(&self, sink: SinkId, incarnation: IncarnationId) -> Result<View> {
        self.of.view.of(self.inner.view(sink, incarnation)).await
    }
    async fn open_incarnation(&self, request: OpenIncarnation) -> Result<Cas<Opened>> {
        self.of.open_incarnation.of_cas(self.inner.open_incarnation(request)).await
    }
    async fn renew_lease(&self, sink: SinkId, incarnation: IncarnationId, lease_ms: u64) -> Result<()> {
        self.of.renew_lease.of(self.inner.renew_lease(sink, incarnation, lease_ms)).await
    }
    async fn close_incarnation(
        &self,
        sink: SinkId,
        incarnation: IncarnationId,
        reason: &str,
    ) -> Result<bool> {
        self.of.close_incarnation.of(self.inner.close_incarnation(sink, incarnation, reason)).await
    }
    async fn launched(&self, sink: SinkId, launch: LaunchToken) -> Result<Option<IncarnationRow>> {
        self.of.launched.of(self.inner.launched(sink, launch)).await
    }
    async fn incarnations(&self, sink: SinkId, with_closed: bool) -> Result<Vec<IncarnationRow>> {
        self.of.incarnations.of(self.inner.incarnations(sink, with_closed)).await
    }
    async fn commit(&self, request: CommitRequest) -> Result<Cas<Committed>> {
        self.of.commit.of_cas(self.inner.commit(request)).await
    }
    async fn read_back(&self, sink: SinkId, commit: CommitId) -> Result<Option<Committed>> {
        self.of.read_back.of(self.inner.read_back(sink, commit)).await
    }
    async fn chain(&self, sink: SinkId, from: Frontier, limit: u32) -> Result<ChainSlice> {
        self.of.chain.of(self.inner.chain(sink, from, limit)).await
    }
    async fn register_consumer(&self, request: RegisterConsumer) -> Result<ConsumerRow> {
        self.of.register_consumer.of(self.inner.register_consumer(request)).await
    }
    async fn renew_session(&self, sink: SinkId, consumer: &ConsumerName, session: SessionId) -> Result<()> {
        self.of.renew_session.of(self.inner.renew_session(sink, consumer, session)).await
    }
    async fn consumers(&self, sink: SinkId) -> Result<Vec<ConsumerRow>> {
        self.of.consumers.of(self.inner.consumers(sink)).await
    }
    async fn unregister_consumer(&self, sink: SinkId, consumer: &ConsumerName) -> Result<bool> {
        self.of.unregister_consumer.of(self.inner.unregister_consumer(sink, consumer)).await
    }
    async fn acknowledge(
        &self,
        sink: SinkId,
        consumer: &ConsumerName,
        session: SessionId,
        upper: Frontier,
    ) -> Result<Acknowledged> {
        self.of.acknowledge.of(self.inner.acknowledge(sink, consumer, session, upper)).await
    }
    async fn enqueue(&self, sink: SinkId, keys: &[PartKey], reason: DeletionReason) -> Result<u64> {
        self.of.enqueue.of(self.inner.enqueue(sink, keys, reason)).await
    }
    async fn deletions_due(&self, limit: u32) -> Result<Vec<DeletionRow>> {
        self.of.deletions_due.of(self.inner.deletions_due(limit)).await
    }
    async fn deletions_queued(&self, sink: Option<SinkId>) -> Result<u64> {
        self.of.deletions_queued.of(self.inner.deletions_queued(sink)).await
    }
    async fn dequeue(&self, keys: &[PartKey]) -> Result<()> {
        self.of.dequeue.of(self.inner.dequeue(keys)).await
    }
    async fn defer(&self, keys: &[PartKey]) -> Result<()> {
        self.of.defer.of(self.inner.defer(keys)).await
    }
    async fn key_states(&self, sink: SinkId, keys: &[PartKey]) -> Result<Vec<KeyState>> {
        self.of.key_states.of(self.inner.key_states(sink, keys)).await
    }
    async fn referenced(&self, sink: SinkId) -> Result<Vec<(PartKey, u64)>> {
        self.of.referenced.of(self.inner.referenced(sink)).await
    }
    async fn history(&self, filter: HistoryFilter) -> Result<Vec<HistoryRow>> {
        self.of.history.of(self.inner.history(filter)).await
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}
