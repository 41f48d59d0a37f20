//! The boundary every catalog implements.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use stash_types::{
    CatalogId, CommitId, ConsumerName, Frontier, IncarnationId, LaunchToken, PartKey, SessionId, SinkId,
    SinkName,
};

use crate::CatalogError;
use crate::rows::{
    Acknowledged, ChainSlice, CommitRequest, Committed, ConsumerRow, Declared, DeletionReason, DeletionRow,
    Dropped, Expired, HeadRow, HistoryFilter, HistoryRow, IncarnationRow, KeyState, NewSink, OpenIncarnation,
    Opened, RegisterConsumer, SinkRow, View,
};

/// The answer of a compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cas<T> {
    /// It was written.
    Done(T),
    /// The head or the offerer is not as expected; nothing was written. Look and decide again; this is the head.
    Conflict(HeadRow),
}

type Result<T> = std::result::Result<T, CatalogError>;

/// The authority on sinks, incarnations, chain, consumers and deletions.
///
/// - Every write takes the head row of its sink first, raises the revision, and is durable when it
///   returns `Ok`. Writes to a closed incarnation, a fenced session or a dropped sink change nothing (I20).
/// - Reads that return several rows read them in one snapshot.
/// - Every event is recorded in the history, in the transaction that makes it true.
#[async_trait]
pub trait Catalog: Send + Sync + fmt::Debug {
    /// The catalog's identity.
    fn id(&self) -> CatalogId;
    /// Where it is, for people, without secrets.
    fn location(&self) -> String;

    /// The present revision; refused with `CatalogBehind` when it is below one seen before (I7).
    async fn revision(&self) -> Result<u64>;
    /// Returns the revision once it is above `seen`, or what it is after `patience`. Wakes promptly for
    /// writes of this process, and soon (some milliseconds) for those of others.
    async fn changed(&self, seen: u64, patience: Duration) -> Result<u64>;

    /// Declares a sink, or finds an equal one under that name.
    async fn declare_sink(&self, sink: NewSink) -> Result<Declared>;
    /// All sinks by name, dropped ones last and only when asked for.
    async fn sinks(&self, with_dropped: bool) -> Result<Vec<SinkRow>>;
    /// The sink of that name that is not dropped; `NoSuchSink` when there is none.
    async fn sink_named(&self, name: &SinkName) -> Result<SinkRow>;
    /// The sink with that id, dropped or not.
    async fn sink(&self, sink: SinkId) -> Result<SinkRow>;
    /// Drops the sink, or says what that would do: closes its incarnations, unlinks its chain, queues its
    /// keys. Dropping again changes nothing.
    async fn drop_sink(&self, sink: SinkId, commit: bool) -> Result<Dropped>;

    /// Takes what its time has come for, by the catalog's clock and by the sink's declaration, or says what that
    /// would be: leases that ran out are closed; what only consumers still hold that were not heard for the
    /// absent hold is let go of; and where nobody is left who holds anything, what outlived the retention goes.
    ///
    /// - Batches go as a prefix, oldest first, unlinked and queued as `Expired` in this one transaction (I4,
    ///   I15); `expired` rises to where they end, `released` stays.
    /// - Where a consumer is present nothing goes that it has not acknowledged, however old it is.
    /// - The fence rises when anything was closed or taken (I20). Expiring again changes nothing, and neither
    ///   does a clock that went back. A dropped sink is refused.
    async fn expire(&self, sink: SinkId, commit: bool) -> Result<Expired>;

    /// The head of the sink's chain.
    async fn head(&self, sink: SinkId) -> Result<HeadRow>;
    /// Head and incarnation in one snapshot.
    async fn view(&self, sink: SinkId, incarnation: IncarnationId) -> Result<View>;
    /// Opens an incarnation if the head is as expected, closing the replica's older ones (register before
    /// PUT). A launch that opened one already reads it, whatever is expected.
    async fn open_incarnation(&self, request: OpenIncarnation) -> Result<Cas<Opened>>;
    /// Extends the lease; `IncarnationClosed` when it is too late.
    async fn renew_lease(&self, sink: SinkId, incarnation: IncarnationId, lease_ms: u64) -> Result<()>;
    /// Closes an incarnation; `false` when it was closed already.
    async fn close_incarnation(&self, sink: SinkId, incarnation: IncarnationId, reason: &str)
    -> Result<bool>;
    /// The incarnation that a launch opened, closed or not. `None`: it opened none yet.
    async fn launched(&self, sink: SinkId, launch: LaunchToken) -> Result<Option<IncarnationRow>>;
    /// The incarnations of the sink, oldest first: those that are open, or all that ever were.
    async fn incarnations(&self, sink: SinkId, with_closed: bool) -> Result<Vec<IncarnationRow>>;

    /// Resolves an offer in one transaction, if the head is as expected. Refuses to link a key that is
    /// queued for deletion, and a batch that does not begin at the head's upper (I4). The incarnation's last
    /// commit, sent again, is answered as it was the first time.
    async fn commit(&self, request: CommitRequest) -> Result<Cas<Committed>>;
    /// What `commit` did, read under the head row's lock: what to ask after `Indeterminate`. `None`: it was
    /// not made, and never will be: where it might still be on its way, the head's fence was raised. It is known until
    /// its incarnation's next commit, whoever commits in between.
    async fn read_back(&self, sink: SinkId, commit: CommitId) -> Result<Option<Committed>>;
    /// The linked batches whose extent is above `from`, at most `limit`, with the head, in one snapshot.
    ///
    /// The first begins at or before `from`, or, where `from` lies below what was released or expired, at the
    /// later of both frontiers; each next one begins where the one before extends to. None: `from` is the head's
    /// upper, or nothing is left above it. A released batch whose extent is not acknowledged leaves an empty row
    /// from the released frontier on.
    async fn chain(&self, sink: SinkId, from: Frontier, limit: u32) -> Result<ChainSlice>;

    /// Registers a consumer, or opens a new session of a known one. It is heard by this.
    async fn register_consumer(&self, request: RegisterConsumer) -> Result<ConsumerRow>;
    /// The consumer is heard: it waits, or is busy with a batch. `SessionFenced` when a newer session took over,
    /// `NoSuchConsumer` when it was forgotten: neither is ever heard again.
    async fn renew_session(&self, sink: SinkId, consumer: &ConsumerName, session: SessionId) -> Result<()>;
    /// The sink's consumers by name.
    async fn consumers(&self, sink: SinkId) -> Result<Vec<ConsumerRow>>;
    /// Forgets a consumer: it holds nothing any longer. `false` when there was none.
    async fn unregister_consumer(&self, sink: SinkId, consumer: &ConsumerName) -> Result<bool>;
    /// Acknowledges everything below `upper`: unlinks and queues what all consumers have acknowledged, in
    /// one transaction; the consumer is heard. Acknowledging the same upper again changes nothing.
    ///
    /// `upper` is where the chain can be cut: the upper of a batch, or anywhere in a stretch proven empty. Below
    /// what expired no batch is left to be cut, so anything is taken there: a consumer that was let go of while
    /// it dealt with a batch can still say so, and learns of the gap, if there is one, from its next read.
    async fn acknowledge(
        &self,
        sink: SinkId,
        consumer: &ConsumerName,
        session: SessionId,
        upper: Frontier,
    ) -> Result<Acknowledged>;

    /// Queues the keys for deletion; keys that a row references or that are queued already are passed over
    /// (I15). With `Swept`, only keys whose incarnation is closed or has resolved their description.
    /// Returns how many were queued.
    async fn enqueue(&self, sink: SinkId, keys: &[PartKey], reason: DeletionReason) -> Result<u64>;
    /// The oldest keys due for deletion, of all sinks; failed ones wait longer each time.
    async fn deletions_due(&self, limit: u32) -> Result<Vec<DeletionRow>>;
    /// How many keys are queued, of one sink or of all, due or not.
    async fn deletions_queued(&self, sink: Option<SinkId>) -> Result<u64>;
    /// The store says these are gone: forget them, and the rows of released batches that waited for them.
    async fn dequeue(&self, keys: &[PartKey]) -> Result<()>;
    /// The store could not delete these now: they are due again later.
    async fn defer(&self, keys: &[PartKey]) -> Result<()>;

    /// What is known of each key, in one snapshot, in the order given. All keys are of the sink's shard.
    async fn key_states(&self, sink: SinkId, keys: &[PartKey]) -> Result<Vec<KeyState>>;
    /// Every key that a row of the sink references, with its `seq`.
    async fn referenced(&self, sink: SinkId) -> Result<Vec<(PartKey, u64)>>;
    /// What was recorded, oldest first.
    async fn history(&self, filter: HistoryFilter) -> Result<Vec<HistoryRow>>;

    /// Waits for writes under way and closes the connections.
    async fn close(&self);
}
