//! The model catalog: [`Catalog`] over plain maps in memory, for the simulator.
//!
//! It is also a reference of what the SQL of `stash-catalog` does: every operation is a method of `State` that
//! takes the moment and the request, and gives the answer. One file per noun below holds them. Terms are those
//! of the catalog's rows.
//!
//! - One lock, held for one operation and never across an await: an operation happens at once, or not at all.
//!   A method of the state refuses before it changes anything, so that a refusal leaves no trace.
//! - Deterministic: ordered maps only; the moment comes from the clock it was given, ids from its source, and the
//!   same calls get the same answers. [`Catalog::changed`] alone waits, by tokio's clock, which a test may pause.
//! - It answers as the SQL does, down to the words for people: the conformance suite runs over it, and random
//!   sequences of requests are compared with `SqliteCatalog`.
//!
//! What it deliberately does not do: fail, wait or forget by itself. Lost replies and slow answers are what a
//! decorator around it adds.

mod chain;
mod commit;
mod consumers;
mod deletions;
mod expire;
mod history;
mod incarnations;
mod release;
mod sinks;
mod state;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use stash_catalog::{
    Acknowledged, Cas, Catalog, CatalogError, ChainSlice, CommitRequest, Committed, ConsumerRow, Declared,
    DeletionReason, DeletionRow, Dropped, Expired, HeadRow, HistoryFilter, HistoryRow, IncarnationRow,
    KeyState, NewSink, OpenIncarnation, Opened, RegisterConsumer, SinkRow, View,
};
use stash_types::{
    CatalogId, Clock, CommitId, ConsumerName, Frontier, IdSource, IncarnationId, LaunchToken, PartKey,
    SessionId, SinkId, SinkName, Timestamp,
};
use state::State;

use crate::signal::Signal;

type Result<T> = std::result::Result<T, CatalogError>;

/// Where the model is, for people.
const LOCATION: &str = "model";
/// The longest a caller waits at once; who wants more asks again.
const PATIENCE_MAX: Duration = Duration::from_secs(3600);

/// What all handles share.
#[derive(Debug)]
struct Shared {
    id: CatalogId,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// The state's revision, for who waits for it.
    revision: Signal<u64>,
}

/// An in-memory catalog without SQL. A clone is another handle on the same rows.
#[derive(Debug)]
pub struct ModelCatalog {
    shared: Arc<Shared>,
    closed: AtomicBool,
}

impl Clone for ModelCatalog {
    fn clone(&self) -> ModelCatalog {
        ModelCatalog { shared: Arc::clone(&self.shared), closed: AtomicBool::new(false) }
    }
}

impl ModelCatalog {
    /// A new, empty catalog; draws its id.
    pub fn new(clock: Arc<dyn Clock>, ids: Arc<dyn IdSource>) -> ModelCatalog {
        let id = CatalogId::from_uuid(ids.random());
        let shared = Shared { id, clock, state: Mutex::new(State::new(id, ids)), revision: Signal::new(0) };
        ModelCatalog { shared: Arc::new(shared), closed: AtomicBool::new(false) }
    }

    fn state(&self, op: &'static str) -> Result<MutexGuard<'_, State>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(CatalogError::Closed { location: LOCATION.to_owned(), op });
        }
        // A panic under the lock is a fault of the model; what it leaves is still to be looked at.
        Ok(self.shared.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs one operation that may write, and wakes who waits for what it wrote.
    fn write<T>(
        &self,
        op: &'static str,
        operation: impl FnOnce(&mut State, Timestamp) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.state(op)?;
        let answer = operation(&mut state, self.shared.clock.now());
        let revision = state.revision;
        drop(state);
        self.shared.revision.turn(|known| known.max(revision));
        answer
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Catalog for ModelCatalog {
    fn id(&self) -> CatalogId {
        self.shared.id
    }
    fn location(&self) -> String {
        LOCATION.to_owned()
    }
    async fn revision(&self) -> Result<u64> {
        Ok(self.state("revision")?.revision)
    }
    async fn changed(&self, seen: u64, patience: Duration) -> Result<u64> {
        let above = self.shared.revision.until(|revision| revision > seen);
        // Whether it was woken or ran out of patience, the answer is the revision as it is now.
        drop(tokio::time::timeout(patience.min(PATIENCE_MAX), above).await);
        Ok(self.state("changed")?.revision)
    }
    async fn declare_sink(&self, sink: NewSink) -> Result<Declared> {
        self.write("declare sink", |state, now| state.declare(now, sink))
    }
    async fn sinks(&self, with_dropped: bool) -> Result<Vec<SinkRow>> {
        Ok(self.state("sinks")?.all_sinks(with_dropped))
    }
    async fn sink_named(&self, name: &SinkName) -> Result<SinkRow> {
        self.state("sink")?.sink_named(name)
    }
    async fn sink(&self, sink: SinkId) -> Result<SinkRow> {
        Ok(self.state("sink")?.sink(sink)?.row.clone())
    }
    async fn drop_sink(&self, sink: SinkId, commit: bool) -> Result<Dropped> {
        match commit {
            true => self.write("drop sink", |state, now| state.drop_sink(now, sink)),
            false => self.state("drop sink, dry run")?.would_drop(sink),
        }
    }
    async fn expire(&self, sink: SinkId, commit: bool) -> Result<Expired> {
        match commit {
            true => self.write("expire", |state, now| state.expire(now, sink)),
            false => self.state("expire, dry run")?.would_expire(self.shared.clock.now(), sink),
        }
    }
    async fn head(&self, sink: SinkId) -> Result<HeadRow> {
        Ok(self.state("head")?.sink(sink)?.head.clone())
    }
    async fn view(&self, sink: SinkId, incarnation: IncarnationId) -> Result<View> {
        self.state("view")?.view(sink, incarnation)
    }
    async fn open_incarnation(&self, request: OpenIncarnation) -> Result<Cas<Opened>> {
        self.write("open incarnation", |state, now| state.open_incarnation(now, request))
    }
    async fn renew_lease(&self, sink: SinkId, incarnation: IncarnationId, lease_ms: u64) -> Result<()> {
        self.write("renew lease", |state, now| state.renew_lease(now, sink, incarnation, lease_ms))
    }
    async fn close_incarnation(
        &self,
        sink: SinkId,
        incarnation: IncarnationId,
        reason: &str,
    ) -> Result<bool> {
        self.write("close incarnation", |state, now| state.close_incarnation(now, sink, incarnation, reason))
    }
    async fn launched(&self, sink: SinkId, launch: LaunchToken) -> Result<Option<IncarnationRow>> {
        self.state("launched")?.launched(sink, launch)
    }
    async fn incarnations(&self, sink: SinkId, with_closed: bool) -> Result<Vec<IncarnationRow>> {
        self.state("incarnations")?.all_incarnations(sink, with_closed)
    }
    async fn commit(&self, request: CommitRequest) -> Result<Cas<Committed>> {
        self.write("commit", |state, now| state.commit(now, &request))
    }
    async fn read_back(&self, sink: SinkId, commit: CommitId) -> Result<Option<Committed>> {
        self.state("read back")?.read_back(sink, commit)
    }
    async fn chain(&self, sink: SinkId, from: Frontier, limit: u32) -> Result<ChainSlice> {
        self.state("chain")?.slice(sink, from, limit)
    }
    async fn register_consumer(&self, request: RegisterConsumer) -> Result<ConsumerRow> {
        self.write("register consumer", |state, now| state.register(now, request))
    }
    async fn renew_session(&self, sink: SinkId, consumer: &ConsumerName, session: SessionId) -> Result<()> {
        self.write("renew session", |state, now| state.renew_session(now, sink, consumer, session))
    }
    async fn consumers(&self, sink: SinkId) -> Result<Vec<ConsumerRow>> {
        Ok(self.state("consumers")?.sink(sink)?.consumers.values().cloned().collect())
    }
    async fn unregister_consumer(&self, sink: SinkId, consumer: &ConsumerName) -> Result<bool> {
        self.write("unregister consumer", |state, now| state.unregister(now, sink, consumer))
    }
    async fn acknowledge(
        &self,
        sink: SinkId,
        consumer: &ConsumerName,
        session: SessionId,
        upper: Frontier,
    ) -> Result<Acknowledged> {
        self.write("acknowledge", |state, now| state.acknowledge(now, sink, consumer, session, upper))
    }
    async fn enqueue(&self, sink: SinkId, keys: &[PartKey], reason: DeletionReason) -> Result<u64> {
        self.write("enqueue deletions", |state, now| state.enqueue(now, sink, keys, reason))
    }
    async fn deletions_due(&self, limit: u32) -> Result<Vec<DeletionRow>> {
        Ok(self.state("deletions due")?.deletions_due(self.shared.clock.now(), limit))
    }
    async fn deletions_queued(&self, sink: Option<SinkId>) -> Result<u64> {
        Ok(self.state("deletions queued")?.deletions_queued(sink))
    }
    async fn dequeue(&self, keys: &[PartKey]) -> Result<()> {
        self.write("dequeue deletions", |state, now| state.dequeue(now, keys))
    }
    async fn defer(&self, keys: &[PartKey]) -> Result<()> {
        self.write("defer deletions", |state, now| state.defer(now, keys))
    }
    async fn key_states(&self, sink: SinkId, keys: &[PartKey]) -> Result<Vec<KeyState>> {
        self.state("key states")?.key_states(sink, keys)
    }
    async fn referenced(&self, sink: SinkId) -> Result<Vec<(PartKey, u64)>> {
        self.state("referenced keys")?.referenced(sink)
    }
    async fn history(&self, filter: HistoryFilter) -> Result<Vec<HistoryRow>> {
        Ok(self.state("history")?.selected_history(&filter))
    }
    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}
