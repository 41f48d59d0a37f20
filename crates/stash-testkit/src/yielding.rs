//! A store and a catalog that yield before and after each operation, so that whoever calls them can be cancelled
//! there: between deciding and doing, and between what happened and hearing of it.
#![deny(clippy::missing_trait_methods)]

use std::{future::Future, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use stash_blob::{BlobEntry, BlobEntryKind, BlobError, BlobStore, Deleted, PutOutcome};
use stash_catalog::{
    Acknowledged, Cas, Catalog, CatalogError, ChainSlice, CommitRequest, Committed, ConsumerRow, Declared,
    DeletionReason, DeletionRow, Dropped, Expired, HeadRow, HistoryFilter, HistoryRow, IncarnationRow,
    KeyState, NewSink, OpenIncarnation, Opened, RegisterConsumer, SinkRow, View,
};
use stash_types::{
    BlobKey, BlobPrefix, CatalogId, CommitId, ConsumerName, Frontier, IncarnationId, LaunchToken, PartKey,
    SessionId, SinkId, SinkName,
};
use tokio::task::yield_now;

async fn around<T>(work: impl Future<Output = T>) -> T {
    yield_now().await;
    let done = work.await;
    yield_now().await;
    done
}

/// A store that yields; see the module.
#[derive(Debug)]
pub struct YieldingStore<S>(pub S);

#[async_trait]
impl<S: BlobStore> BlobStore for YieldingStore<S> {
    fn location(&self) -> String {
        self.0.location()
    }
    async fn put_new(&self, key: &BlobKey, chunks: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        around(self.0.put_new(key, chunks)).await
    }
    async fn get_range(&self, key: &BlobKey, range: Range<u64>) -> Result<Bytes, BlobError> {
        around(self.0.get_range(key, range)).await
    }
    async fn get(&self, key: &BlobKey, len_max: u64) -> Result<Bytes, BlobError> {
        around(self.0.get(key, len_max)).await
    }
    async fn head(&self, key: &BlobKey) -> Result<Option<u64>, BlobError> {
        around(self.0.head(key)).await
    }
    async fn delete(&self, keys: &[BlobKey]) -> Vec<Deleted> {
        around(self.0.delete(keys)).await
    }
    async fn abort_upload(&self, key: &BlobKey, token: &str) -> Result<(), BlobError> {
        around(self.0.abort_upload(key, token)).await
    }
    fn list(&self, prefix: BlobPrefix) -> BoxStream<'_, Result<BlobEntry, BlobError>> {
        self.0.list(prefix)
    }
    async fn look_again(&self, entries: &[BlobEntryKind]) -> Result<Vec<Option<u64>>, BlobError> {
        around(self.0.look_again(entries)).await
    }
}

type Answer<T> = Result<T, CatalogError>;

/// A catalog that yields; see the module.
#[derive(Debug)]
pub struct YieldingCatalog(pub Arc<dyn Catalog>);

#[async_trait]
impl Catalog for YieldingCatalog {
    fn id(&self) -> CatalogId {
        self.0.id()
    }
    fn location(&self) -> String {
        self.0.location()
    }
    async fn revision(&self) -> Answer<u64> {
        around(self.0.revision()).await
    }
    async fn changed(&self, seen: u64, patience: Duration) -> Answer<u64> {
        around(self.0.changed(seen, patience)).await
    }
    async fn declare_sink(&self, sink: NewSink) -> Answer<Declared> {
        around(self.0.declare_sink(sink)).await
    }
    async fn sinks(&self, with_dropped: bool) -> Answer<Vec<SinkRow>> {
        around(self.0.sinks(with_dropped)).await
    }
    async fn sink_named(&self, name: &SinkName) -> Answer<SinkRow> {
        around(self.0.sink_named(name)).await
    }
    async fn sink(&self, sink: SinkId) -> Answer<SinkRow> {
        around(self.0.sink(sink)).await
    }
    async fn drop_sink(&self, sink: SinkId, commit: bool) -> Answer<Dropped> {
        around(self.0.drop_sink(sink, commit)).await
    }
    async fn head(&self, sink: SinkId) -> Answer<HeadRow> {
        around(self.0.head(sink)).await
    }
    async fn view(&self, sink: SinkId, incarnation: IncarnationId) -> Answer<View> {
        around(self.0.view(sink, incarnation)).await
    }
    async fn open_incarnation(&self, request: OpenIncarnation) -> Answer<Cas<Opened>> {
        around(self.0.open_incarnation(request)).await
    }
    async fn renew_lease(&self, sink: SinkId, incarnation: IncarnationId, lease_ms: u64) -> Answer<()> {
        around(self.0.renew_lease(sink, incarnation, lease_ms)).await
    }
    async fn close_incarnation(
        &self,
        sink: SinkId,
        incarnation: IncarnationId,
        reason: &str,
    ) -> Answer<bool> {
        around(self.0.close_incarnation(sink, incarnation, reason)).await
    }
    async fn launched(&self, sink: SinkId, launch: LaunchToken) -> Answer<Option<IncarnationRow>> {
        around(self.0.launched(sink, launch)).await
    }
    async fn incarnations(&self, sink: SinkId, with_closed: bool) -> Answer<Vec<IncarnationRow>> {
        around(self.0.incarnations(sink, with_closed)).await
    }
    async fn commit(&self, request: CommitRequest) -> Answer<Cas<Committed>> {
        around(self.0.commit(request)).await
    }
    async fn read_back(&self, sink: SinkId, commit: CommitId) -> Answer<Option<Committed>> {
        around(self.0.read_back(sink, commit)).await
    }
    async fn chain(&self, sink: SinkId, from: Frontier, limit: u32) -> Answer<ChainSlice> {
        around(self.0.chain(sink, from, limit)).await
    }
    async fn register_consumer(&self, request: RegisterConsumer) -> Answer<ConsumerRow> {
        around(self.0.register_consumer(request)).await
    }
    async fn consumers(&self, sink: SinkId) -> Answer<Vec<ConsumerRow>> {
        around(self.0.consumers(sink)).await
    }
    async fn unregister_consumer(&self, sink: SinkId, consumer: &ConsumerName) -> Answer<bool> {
        around(self.0.unregister_consumer(sink, consumer)).await
    }
    async fn acknowledge(
        &self,
        sink: SinkId,
        consumer: &ConsumerName,
        session: SessionId,
        upper: Frontier,
    ) -> Answer<Acknowledged> {
        around(self.0.acknowledge(sink, consumer, session, upper)).await
    }
    async fn enqueue(&self, sink: SinkId, keys: &[PartKey], reason: DeletionReason) -> Answer<u64> {
        around(self.0.enqueue(sink, keys, reason)).await
    }
    async fn deletions_due(&self, limit: u32) -> Answer<Vec<DeletionRow>> {
        around(self.0.deletions_due(limit)).await
    }
    async fn deletions_queued(&self, sink: Option<SinkId>) -> Answer<u64> {
        around(self.0.deletions_queued(sink)).await
    }
    async fn dequeue(&self, keys: &[PartKey]) -> Answer<()> {
        around(self.0.dequeue(keys)).await
    }
    async fn defer(&self, keys: &[PartKey]) -> Answer<()> {
        around(self.0.defer(keys)).await
    }
    async fn key_states(&self, sink: SinkId, keys: &[PartKey]) -> Answer<Vec<KeyState>> {
        around(self.0.key_states(sink, keys)).await
    }
    async fn referenced(&self, sink: SinkId) -> Answer<Vec<(PartKey, u64)>> {
        around(self.0.referenced(sink)).await
    }
    async fn history(&self, filter: HistoryFilter) -> Answer<Vec<HistoryRow>> {
        around(self.0.history(filter)).await
    }
    async fn close(&self) {
        around(self.0.close()).await
    }
    async fn expire(&self, sink: SinkId, commit: bool) -> Answer<Expired> {
        around(self.0.expire(sink, commit)).await
    }
    async fn renew_session(&self, sink: SinkId, consumer: &ConsumerName, session: SessionId) -> Answer<()> {
        around(self.0.renew_session(sink, consumer, session)).await
    }
}
