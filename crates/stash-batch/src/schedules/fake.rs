//! A store and a catalog in memory, of one truth, that answer what the process below test asks, and nothing else.
//!
//! They hold the process to what it promises: a key is written once (I19), only what is queued and not referenced is
//! deleted (I15), nothing is written after the process said that it is closed.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use stash_blob::{BlobEntry, BlobError, BlobStore, Deleted, PutOutcome};
use stash_catalog::{
    Acknowledged, Cas, Catalog, CatalogError, ChainSlice, CommitRequest, Committed, ConsumerRow, Declared,
    DeletionReason, DeletionRow, Dropped, Expired, HeadRow, HistoryFilter, HistoryRow, IncarnationRow,
    IncarnationState, KeyState, NewSink, OpenIncarnation, Opened, RegisterConsumer, SinkRow, View,
};
use stash_types::{
    BlobKey, BlobPrefix, CatalogId, CommitId, ConsumerName, Description, Frontier, IncarnationId,
    LaunchToken, PartKey, SessionId, SinkId, SinkName, Timestamp,
};

use super::percent;
use crate::sync::{Mutex, MutexGuard, Notify, PoisonError, pause};

/// What is so.
#[derive(Debug)]
pub(super) struct Truth {
    /// What the store holds.
    pub(super) objects: BTreeMap<PartKey, Bytes>,
    /// Every key that was ever written.
    pub(super) written: BTreeSet<PartKey>,
    /// What a row references.
    pub(super) referenced: BTreeSet<PartKey>,
    /// What is queued for deletion.
    pub(super) queued: BTreeMap<PartKey, DeletionReason>,
    /// Whether the incarnation is closed, and up to where it is resolved.
    pub(super) closed: bool,
    pub(super) resolved: Frontier,
    /// Whether the process said that it ended.
    pub(super) ended: bool,
}

/// Store and catalog of one schedule.
#[derive(Debug)]
pub(super) struct Fake {
    truth: Mutex<Truth>,
    incarnation: IncarnationId,
    refused_percent: u32,
    /// Told whenever nothing is queued any more.
    pub(super) emptied: Notify,
}

impl Fake {
    /// Knows one incarnation, and refuses so many PUTs of a hundred.
    pub(super) fn new(incarnation: IncarnationId, refused_percent: u32) -> Arc<Fake> {
        let truth = Truth {
            objects: BTreeMap::new(),
            written: BTreeSet::new(),
            referenced: BTreeSet::new(),
            queued: BTreeMap::new(),
            closed: false,
            resolved: Frontier::MIN,
            ended: false,
        };
        Arc::new(Fake { truth: Mutex::new(truth), incarnation, refused_percent, emptied: Notify::new() })
    }

    pub(super) fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Links the keys of a batch, as a commit does: refused once the incarnation is closed or the description is
    /// resolved. What it links must be there.
    pub(super) async fn commit(&self, description: Description, keys: &[PartKey]) -> bool {
        pause().await;
        let taken = {
            let mut truth = self.truth();
            let taken = !truth.closed && truth.resolved < description.upper();
            if taken {
                truth.resolved = description.upper();
                for key in keys {
                    assert!(!truth.queued.contains_key(key), "{key} is linked and queued (I15)");
                    assert!(truth.objects.contains_key(key), "{key} is linked and not there (I15)");
                    assert!(truth.referenced.insert(*key), "{key} is linked twice (I14)");
                }
            }
            taken
        };
        pause().await;
        taken
    }
}

fn part(key: &BlobKey) -> PartKey {
    key.part_key().expect("a part's key")
}

/// A boundary's call that nobody below test makes.
fn not_asked() -> ! {
    panic!("the fake is not asked this")
}

#[async_trait]
impl BlobStore for Fake {
    fn location(&self) -> String {
        "schedules".to_owned()
    }

    async fn put_new(&self, key: &BlobKey, chunks: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        pause().await;
        if percent(self.refused_percent) {
            let what = "refused by the schedule".to_owned();
            let key = key.to_string();
            return Err(BlobError::Determinate { op: "put", key, what, retry: false, source: None });
        }
        {
            let mut truth = self.truth();
            assert!(!truth.ended, "{key} is written after the process ended (I17)");
            assert!(truth.written.insert(part(key)), "{key} is written twice (I19)");
            truth.objects.insert(part(key), chunks.concat().into());
        }
        pause().await;
        Ok(PutOutcome::Created)
    }

    async fn get_range(&self, key: &BlobKey, range: Range<u64>) -> Result<Bytes, BlobError> {
        pause().await;
        let place = |offset| usize::try_from(offset).expect("small");
        let object = self.truth().objects.get(&part(key)).cloned();
        let object = object.unwrap_or_else(|| panic!("{key} is read and not there"));
        Ok(object.slice(place(range.start)..place(range.end)))
    }

    async fn delete(&self, keys: &[BlobKey]) -> Vec<Deleted> {
        pause().await;
        let mut outcomes = Vec::new();
        {
            let mut truth = self.truth();
            for key in keys {
                let part = part(key);
                assert!(!truth.referenced.contains(&part), "{key} is deleted and referenced (I15)");
                assert!(truth.queued.contains_key(&part), "{key} is deleted and not queued");
                let there = truth.objects.remove(&part).is_some();
                outcomes.push(Deleted { key: key.clone(), outcome: Ok(there) });
            }
        }
        pause().await;
        outcomes
    }

    async fn get(&self, _: &BlobKey, _: u64) -> Result<Bytes, BlobError> {
        not_asked()
    }
    async fn head(&self, _: &BlobKey) -> Result<Option<u64>, BlobError> {
        not_asked()
    }
    async fn abort_upload(&self, _: &BlobKey, _: &str) -> Result<(), BlobError> {
        not_asked()
    }
    fn list(&self, _: BlobPrefix) -> BoxStream<'_, Result<BlobEntry, BlobError>> {
        not_asked()
    }
}

type Answer<T> = Result<T, CatalogError>;

#[async_trait]
impl Catalog for Fake {
    fn location(&self) -> String {
        "schedules".to_owned()
    }

    async fn key_states(&self, _: SinkId, keys: &[PartKey]) -> Answer<Vec<KeyState>> {
        pause().await;
        let states = {
            let truth = self.truth();
            let state = |key: &PartKey| {
                assert_eq!(key.name.incarnation, self.incarnation, "the schedule has one incarnation");
                let closed = || IncarnationState::Closed { reason: "by the schedule".to_owned() };
                let state = if truth.closed { closed() } else { IncarnationState::Open };
                KeyState {
                    key: *key,
                    referenced_by: truth.referenced.contains(key).then_some(1),
                    queued: truth.queued.get(key).copied(),
                    incarnation: Some((state, truth.resolved)),
                }
            };
            keys.iter().map(state).collect()
        };
        pause().await;
        Ok(states)
    }

    async fn enqueue(&self, _: SinkId, keys: &[PartKey], reason: DeletionReason) -> Answer<u64> {
        pause().await;
        let mut queued = 0;
        {
            let mut truth = self.truth();
            for key in keys {
                if !truth.referenced.contains(key) && !truth.queued.contains_key(key) {
                    truth.queued.insert(*key, reason);
                    queued += 1;
                }
            }
        }
        pause().await;
        Ok(queued)
    }

    async fn deletions_due(&self, limit: u32) -> Answer<Vec<DeletionRow>> {
        pause().await;
        let truth = self.truth();
        let row = |(key, reason): (&PartKey, &DeletionReason)| DeletionRow {
            key: *key,
            sink: SINK.parse().expect("an id"),
            reason: *reason,
            queued: Timestamp(0),
            attempts: 0,
        };
        Ok(truth.queued.iter().take(usize::try_from(limit).expect("small")).map(row).collect())
    }

    async fn dequeue(&self, keys: &[PartKey]) -> Answer<()> {
        pause().await;
        {
            let mut truth = self.truth();
            for key in keys {
                assert!(!truth.objects.contains_key(key), "{key} is dequeued and still there (I16)");
                truth.queued.remove(key);
            }
            if truth.queued.is_empty() {
                self.emptied.notify_one();
            }
        }
        pause().await;
        Ok(())
    }

    async fn close_incarnation(&self, _: SinkId, _: IncarnationId, _: &str) -> Answer<bool> {
        pause().await;
        let open = !std::mem::replace(&mut self.truth().closed, true);
        pause().await;
        Ok(open)
    }

    fn id(&self) -> CatalogId {
        not_asked()
    }
    async fn revision(&self) -> Answer<u64> {
        not_asked()
    }
    async fn changed(&self, _: u64, _: Duration) -> Answer<u64> {
        not_asked()
    }
    async fn declare_sink(&self, _: NewSink) -> Answer<Declared> {
        not_asked()
    }
    async fn sinks(&self, _: bool) -> Answer<Vec<SinkRow>> {
        not_asked()
    }
    async fn sink_named(&self, _: &SinkName) -> Answer<SinkRow> {
        not_asked()
    }
    async fn sink(&self, _: SinkId) -> Answer<SinkRow> {
        not_asked()
    }
    async fn drop_sink(&self, _: SinkId, _: bool) -> Answer<Dropped> {
        not_asked()
    }
    async fn head(&self, _: SinkId) -> Answer<HeadRow> {
        not_asked()
    }
    async fn view(&self, _: SinkId, _: IncarnationId) -> Answer<View> {
        not_asked()
    }
    async fn open_incarnation(&self, _: OpenIncarnation) -> Answer<Cas<Opened>> {
        not_asked()
    }
    async fn renew_lease(&self, _: SinkId, _: IncarnationId, _: u64) -> Answer<()> {
        not_asked()
    }
    async fn launched(&self, _: SinkId, _: LaunchToken) -> Answer<Option<IncarnationRow>> {
        not_asked()
    }
    async fn incarnations(&self, _: SinkId, _: bool) -> Answer<Vec<IncarnationRow>> {
        not_asked()
    }
    async fn commit(&self, _: CommitRequest) -> Answer<Cas<Committed>> {
        not_asked()
    }
    async fn read_back(&self, _: SinkId, _: CommitId) -> Answer<Option<Committed>> {
        not_asked()
    }
    async fn chain(&self, _: SinkId, _: Frontier, _: u32) -> Answer<ChainSlice> {
        not_asked()
    }
    async fn register_consumer(&self, _: RegisterConsumer) -> Answer<ConsumerRow> {
        not_asked()
    }
    async fn consumers(&self, _: SinkId) -> Answer<Vec<ConsumerRow>> {
        not_asked()
    }
    async fn unregister_consumer(&self, _: SinkId, _: &ConsumerName) -> Answer<bool> {
        not_asked()
    }
    async fn acknowledge(
        &self,
        _: SinkId,
        _: &ConsumerName,
        _: SessionId,
        _: Frontier,
    ) -> Answer<Acknowledged> {
        not_asked()
    }
    async fn deletions_queued(&self, _: Option<SinkId>) -> Answer<u64> {
        not_asked()
    }
    async fn defer(&self, _: &[PartKey]) -> Answer<()> {
        not_asked()
    }
    async fn referenced(&self, _: SinkId) -> Answer<Vec<(PartKey, u64)>> {
        not_asked()
    }
    async fn history(&self, _: HistoryFilter) -> Answer<Vec<HistoryRow>> {
        not_asked()
    }
    async fn expire(&self, _: SinkId, _: bool) -> Answer<Expired> {
        not_asked()
    }
    async fn renew_session(&self, _: SinkId, _: &ConsumerName, _: SessionId) -> Answer<()> {
        not_asked()
    }
    async fn close(&self) {
        not_asked()
    }
}

/// The shard of every schedule.
pub(super) const SHARD: &str = "s00000000-0000-5000-8000-000000000002";
/// The incarnation of every schedule.
pub(super) const INCARNATION: &str = "i00000000-0000-7000-8000-000000000003";
/// The sink of every schedule.
pub(super) const SINK: &str = "k00000000-0000-4000-8000-000000000001";
