//! The way between a process and the catalog: delays, lost replies, outages, and the death of the caller.
//!
//! - A transaction takes effect at one moment, after a delay and before another, so transactions of different processes
//!   interleave in every order.
//! - What is reported as unknown has happened by then, or never will: a transaction holds the head row from its first
//!   statement on, so whoever reads back waits for it. Only the transaction of a caller that died may come later.
//! - Around each effect the invariants are checked ([`crate::watch`]).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stash_catalog::{
    Acknowledged, Cas, Catalog, CatalogError, ChainSlice, CommitRequest, Committed, ConsumerRow, Declared,
    DeletionReason, DeletionRow, Dropped, Expired, HeadRow, HistoryFilter, HistoryRow, IncarnationRow,
    KeyState, NewSink, OpenIncarnation, Opened, RegisterConsumer, SinkRow, View,
};
use stash_types::{
    CatalogId, CommitId, ConsumerName, Frontier, IncarnationId, LaunchToken, PartKey, SessionId, SinkId,
    SinkName,
};

use crate::chance::count;
use crate::life::Life;
use crate::world::{Call, Carried, World};

type Result<T> = std::result::Result<T, CatalogError>;

/// The way of one process to the catalog.
#[derive(Debug)]
pub(crate) struct CatalogLink {
    world: Arc<World>,
    life: Arc<Life>,
}

impl CatalogLink {
    /// The way of this process.
    pub(crate) fn new(world: &Arc<World>, life: &Arc<Life>) -> CatalogLink {
        CatalogLink { world: Arc::clone(world), life: Arc::clone(life) }
    }

    async fn pass<T: Send + 'static>(
        &self,
        call: Call,
        effect: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (op, write) = match call {
            Call::Write(op) => (op, true),
            Call::Read(op) | Call::Store(op) => (op, false),
            Call::Put => ("put", true),
        };
        let location = self.location();
        match self.world.carry(&self.life, call, "", effect).await {
            Carried::Done(answer) => answer,
            Carried::Unknown | Carried::Late if write => {
                let what = "the simulated catalog did not answer".to_owned();
                Err(CatalogError::Indeterminate { location, op, what, source: None })
            }
            Carried::Refused | Carried::Unknown | Carried::Late => {
                let what = "the simulated catalog refused".to_owned();
                Err(CatalogError::Determinate { location, op, what, retry: true, source: None })
            }
        }
    }

    /// A write whose effect is looked at from before and behind.
    async fn write<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        op: &'static str,
        sink: SinkId,
        effect: impl FnOnce(Arc<dyn Catalog>) -> F + Send + 'static,
    ) -> Result<T> {
        let (world, who) = (Arc::clone(&self.world), self.life.name().to_owned());
        let watched = async move {
            let before = world.watch.before(&world, sink).await;
            let answer = effect(Arc::clone(&world.truth)).await;
            world.watch.after(&world, &who, op, sink, before).await;
            answer
        };
        self.pass(Call::Write(op), watched).await
    }

    fn truth(&self) -> Arc<dyn Catalog> {
        Arc::clone(&self.world.truth)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Catalog for CatalogLink {
    fn id(&self) -> CatalogId {
        self.world.truth.id()
    }

    fn location(&self) -> String {
        "sim://catalog".to_owned()
    }

    async fn revision(&self) -> Result<u64> {
        let truth = self.truth();
        self.pass(Call::Read("revision"), async move { truth.revision().await }).await
    }

    async fn changed(&self, seen: u64, patience: Duration) -> Result<u64> {
        self.life.gate().await;
        let changed = self.world.truth.changed(seen, patience).await;
        self.life.gate().await;
        changed
    }

    async fn declare_sink(&self, sink: NewSink) -> Result<Declared> {
        let truth = self.truth();
        self.pass(Call::Write("declare sink"), async move { truth.declare_sink(sink).await }).await
    }

    async fn sinks(&self, with_dropped: bool) -> Result<Vec<SinkRow>> {
        let truth = self.truth();
        self.pass(Call::Read("sinks"), async move { truth.sinks(with_dropped).await }).await
    }

    async fn sink_named(&self, name: &SinkName) -> Result<SinkRow> {
        let (truth, name) = (self.truth(), name.clone());
        self.pass(Call::Read("sink named"), async move { truth.sink_named(&name).await }).await
    }

    async fn sink(&self, sink: SinkId) -> Result<SinkRow> {
        let truth = self.truth();
        self.pass(Call::Read("sink"), async move { truth.sink(sink).await }).await
    }

    async fn drop_sink(&self, sink: SinkId, commit: bool) -> Result<Dropped> {
        self.write("drop sink", sink, move |truth| async move { truth.drop_sink(sink, commit).await }).await
    }

    async fn head(&self, sink: SinkId) -> Result<HeadRow> {
        let truth = self.truth();
        self.pass(Call::Read("head"), async move { truth.head(sink).await }).await
    }

    async fn view(&self, sink: SinkId, incarnation: IncarnationId) -> Result<View> {
        let truth = self.truth();
        self.pass(Call::Read("view"), async move { truth.view(sink, incarnation).await }).await
    }

    async fn open_incarnation(&self, request: OpenIncarnation) -> Result<Cas<Opened>> {
        let (world, who) = (Arc::clone(&self.world), self.life.name().to_owned());
        self.write("open incarnation", request.sink, move |truth| async move {
            let asked = request.clone();
            let answer = truth.open_incarnation(request).await;
            world.watch.opened(&world, &who, &asked, &answer).await;
            answer
        })
        .await
    }

    async fn renew_lease(&self, sink: SinkId, incarnation: IncarnationId, lease_ms: u64) -> Result<()> {
        let truth = self.truth();
        let renew = async move { truth.renew_lease(sink, incarnation, lease_ms).await };
        self.pass(Call::Write("renew lease"), renew).await
    }

    async fn close_incarnation(
        &self,
        sink: SinkId,
        incarnation: IncarnationId,
        reason: &str,
    ) -> Result<bool> {
        let (world, who, reason) = (Arc::clone(&self.world), self.life.name().to_owned(), reason.to_owned());
        self.write("close incarnation", sink, move |truth| async move {
            let closed = truth.close_incarnation(sink, incarnation, &reason).await;
            if matches!(closed, Ok(true)) {
                world.say(&who, format!("closed {}: {reason}", crate::store::short_id(incarnation)));
            }
            closed
        })
        .await
    }

    async fn expire(&self, sink: SinkId, commit: bool) -> Result<Expired> {
        let (world, who) = (Arc::clone(&self.world), self.life.name().to_owned());
        self.write("expire", sink, move |truth| async move {
            let answer = truth.expire(sink, commit).await;
            if let (Ok(expired), true) = (&answer, commit) {
                world.count_many("expired lease", count(expired.closed.len()));
                world.count_many("expired batch", expired.batches);
                for incarnation in &expired.closed {
                    world.say(&who, format!("the lease of {} ran out", crate::store::short_id(incarnation)));
                }
                if expired.batches > 0 {
                    let Expired { absent, batches, keys, earliest, .. } = expired;
                    let what = format!(
                        "expired {batches} batches, {keys} keys, below {earliest}, absent {absent:?}"
                    );
                    world.say(&who, what);
                }
            }
            answer
        })
        .await
    }

    async fn launched(&self, sink: SinkId, launch: LaunchToken) -> Result<Option<IncarnationRow>> {
        let (truth, world, who) = (self.truth(), Arc::clone(&self.world), self.life.name().to_owned());
        let read = async move {
            let answer = truth.launched(sink, launch).await;
            if let Ok(Some(row)) = &answer {
                world.watch.joined(&who, row);
            }
            answer
        };
        self.pass(Call::Read("launched"), read).await
    }

    async fn incarnations(&self, sink: SinkId, with_closed: bool) -> Result<Vec<IncarnationRow>> {
        let truth = self.truth();
        let read = async move { truth.incarnations(sink, with_closed).await };
        self.pass(Call::Read("incarnations"), read).await
    }

    async fn commit(&self, request: CommitRequest) -> Result<Cas<Committed>> {
        let (world, who) = (Arc::clone(&self.world), self.life.name().to_owned());
        self.write("commit", request.sink, move |truth| async move {
            let view = truth.view(request.sink, request.incarnation).await;
            let asked = request.clone();
            let answer = truth.commit(request).await;
            world.watch.committed(&world, &who, &asked, view, &answer).await;
            answer
        })
        .await
    }

    async fn read_back(&self, sink: SinkId, commit: CommitId) -> Result<Option<Committed>> {
        let (truth, world, who) = (self.truth(), Arc::clone(&self.world), self.life.name().to_owned());
        let read = async move {
            let found = truth.read_back(sink, commit).await;
            world.say(&who, format!("read back a commit: {}", matches!(found, Ok(Some(_)))));
            if matches!(found, Ok(Some(_))) {
                world.count("lost reply read back");
            }
            found
        };
        self.pass(Call::Read("read back"), read).await
    }

    async fn chain(&self, sink: SinkId, from: Frontier, limit: u32) -> Result<ChainSlice> {
        let truth = self.truth();
        self.pass(Call::Read("chain"), async move { truth.chain(sink, from, limit).await }).await
    }

    async fn register_consumer(&self, request: RegisterConsumer) -> Result<ConsumerRow> {
        self.write("register consumer", request.sink, move |truth| async move {
            truth.register_consumer(request).await
        })
        .await
    }

    async fn renew_session(&self, sink: SinkId, consumer: &ConsumerName, session: SessionId) -> Result<()> {
        let consumer = consumer.clone();
        self.write("renew session", sink, move |truth| async move {
            truth.renew_session(sink, &consumer, session).await
        })
        .await
    }

    async fn consumers(&self, sink: SinkId) -> Result<Vec<ConsumerRow>> {
        let truth = self.truth();
        self.pass(Call::Read("consumers"), async move { truth.consumers(sink).await }).await
    }

    async fn unregister_consumer(&self, sink: SinkId, consumer: &ConsumerName) -> Result<bool> {
        let consumer = consumer.clone();
        self.write("unregister consumer", sink, move |truth| async move {
            truth.unregister_consumer(sink, &consumer).await
        })
        .await
    }

    async fn acknowledge(
        &self,
        sink: SinkId,
        consumer: &ConsumerName,
        session: SessionId,
        upper: Frontier,
    ) -> Result<Acknowledged> {
        let (world, who) = (Arc::clone(&self.world), self.life.name().to_owned());
        let consumer = consumer.clone();
        self.write("acknowledge", sink, move |truth| async move {
            let before = truth.consumers(sink).await;
            let answer = truth.acknowledge(sink, &consumer, session, upper).await;
            world.watch.acknowledged(&world, &who, &consumer, session, upper, before, &answer);
            answer
        })
        .await
    }

    async fn enqueue(&self, sink: SinkId, keys: &[PartKey], reason: DeletionReason) -> Result<u64> {
        let (world, who) = (Arc::clone(&self.world), self.life.name().to_owned());
        let keys = keys.to_vec();
        self.write("enqueue", sink, move |truth| async move {
            if reason == DeletionReason::Swept {
                world.watch.swept(&world, &who, &keys);
            }
            let queued = truth.enqueue(sink, &keys, reason).await;
            if let Ok(queued @ 1..) = queued {
                world.say(&who, format!("queued {queued} keys: {reason:?}"));
                let what = if reason == DeletionReason::Swept { "swept" } else { "surrendered" };
                world.count_many(what, queued);
            }
            queued
        })
        .await
    }

    async fn deletions_due(&self, limit: u32) -> Result<Vec<DeletionRow>> {
        let truth = self.truth();
        self.pass(Call::Read("deletions due"), async move { truth.deletions_due(limit).await }).await
    }

    async fn deletions_queued(&self, sink: Option<SinkId>) -> Result<u64> {
        let truth = self.truth();
        self.pass(Call::Read("deletions queued"), async move { truth.deletions_queued(sink).await }).await
    }

    async fn dequeue(&self, keys: &[PartKey]) -> Result<()> {
        let (truth, keys) = (self.truth(), keys.to_vec());
        self.pass(Call::Write("dequeue"), async move { truth.dequeue(&keys).await }).await
    }

    async fn defer(&self, keys: &[PartKey]) -> Result<()> {
        let (truth, keys) = (self.truth(), keys.to_vec());
        self.pass(Call::Write("defer"), async move { truth.defer(&keys).await }).await
    }

    async fn key_states(&self, sink: SinkId, keys: &[PartKey]) -> Result<Vec<KeyState>> {
        let (truth, keys) = (self.truth(), keys.to_vec());
        let states =
            self.pass(Call::Read("key states"), async move { truth.key_states(sink, &keys).await }).await?;
        self.world.watch.answered(self.life.name(), &states);
        Ok(states)
    }

    async fn referenced(&self, sink: SinkId) -> Result<Vec<(PartKey, u64)>> {
        let truth = self.truth();
        self.pass(Call::Read("referenced"), async move { truth.referenced(sink).await }).await
    }

    async fn history(&self, filter: HistoryFilter) -> Result<Vec<HistoryRow>> {
        let truth = self.truth();
        self.pass(Call::Read("history"), async move { truth.history(filter).await }).await
    }

    async fn close(&self) {}
}
