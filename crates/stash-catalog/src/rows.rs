//! The rows of the catalog as values, and the requests that write them.

use bytes::Bytes;
use serde::Serialize;
use stash_types::{
    BatchId, CommitId, ConsumerName, DataflowError, Description, Frontier, IncarnationId, InlineRun,
    LaunchToken, PartDescriptor, PartKey, PartName, ReplicaName, RunFacts, SchemaFingerprint, SessionId,
    ShardId, SinkId, SinkName, Timestamp,
};

/// What a sink is declared with; immutable from then on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSink {
    /// The id drawn for it, used only if the name is new.
    pub id: SinkId,
    /// Its label, unique among the sinks that are not dropped.
    pub name: SinkName,
    /// The row schema, encoded; opaque here.
    pub schema: Bytes,
    /// Names the row schema by content.
    pub fingerprint: SchemaFingerprint,
    /// The original as-of: the time of the snapshot, and the first time of the chain.
    pub as_of: u64,
    /// The chain is complete at this frontier; empty for no bound.
    pub up_to: Frontier,
    /// Whether an empty input frontier completes the chain.
    pub seals: bool,
    /// Without consumers, how long batches are kept after they were accepted; `None` for ever, never zero.
    pub retention_ms: Option<u64>,
    /// How long a consumer that is not heard holds batches; `None` for ever, never zero.
    pub absent_hold_ms: Option<u64>,
}

/// A declared sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkRow {
    /// What it was declared with.
    pub spec: NewSink,
    /// Its blob namespace, derived from the catalog's id and its own.
    pub shard: ShardId,
    /// When it was declared, by the catalog's clock.
    pub declared: Timestamp,
    /// When it was dropped, if it was.
    pub dropped: Option<Timestamp>,
}

/// The answer to a declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The sink as it stands.
    pub sink: SinkRow,
    /// Whether this call created it; `false` when an equal one stood already.
    pub created: bool,
}

/// What a chain can still do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum HeadStatus {
    /// Batches are accepted.
    Open,
    /// The upper is empty: nothing is to come.
    Complete,
    /// The dataflow is in error from a time on; ended only by a drop.
    Poisoned(DataflowError),
    /// The sink is gone.
    Dropped,
}

/// The head row of a chain: the fence of every write to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeadRow {
    /// The sink.
    pub sink: SinkId,
    /// `U`: everything below is accepted. The original as-of while nothing is.
    pub upper: Frontier,
    /// Rises with every opening, closing, drop, registration, release and expiry.
    pub fence: u64,
    /// The `seq` of the next batch; gap-free from 1.
    pub next_seq: u64,
    /// What the chain can still do.
    pub status: HeadStatus,
    /// Everything below was acknowledged by all consumers and unlinked. The original as-of while nothing was.
    pub released: Frontier,
    /// Everything below was taken by retention, or let go of although a consumer that stayed away had not
    /// acknowledged it. The original as-of while nothing was. The chain begins at the later of this and
    /// `released`.
    pub expired: Frontier,
    /// The catalog revision that last wrote the row.
    pub revision: u64,
}

/// Whether an incarnation may still write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum IncarnationState {
    /// It may.
    Open,
    /// It may not, ever again.
    Closed {
        /// Why, for people.
        reason: String,
    },
}

/// The outcome of an offer as it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum OutcomeKind {
    /// Taken whole.
    Accepted,
    /// Taken from a frontier on.
    Trimmed {
        /// `U` at the time.
        from: Frontier,
    },
    /// Wholly covered: not taken.
    Dropped,
}

/// The last offer an incarnation had resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ResolvedOffer {
    /// What was offered.
    pub description: Description,
    /// What became of it.
    pub outcome: OutcomeKind,
}

/// One rendering of one sink on a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IncarnationRow {
    /// Its id, in every key it writes.
    pub id: IncarnationId,
    /// The sink.
    pub sink: SinkId,
    /// The replica.
    pub replica: ReplicaName,
    /// The launch whose processes share it.
    pub launch: LaunchToken,
    /// The granted as-of: where its first description begins.
    pub as_of: u64,
    /// Its resolved upper: every offer below has its outcome. The as-of at first.
    pub resolved: Frontier,
    /// Whether it may still write.
    pub state: IncarnationState,
    /// The last offer that was resolved by a write.
    pub last: Option<ResolvedOffer>,
    /// When it was opened, by the catalog's clock.
    pub opened: Timestamp,
    /// Until when it holds without renewal, by the catalog's clock.
    pub lease_until: Timestamp,
}

/// Head and incarnation, read in one snapshot: all a decision needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct View {
    /// The chain's head.
    pub head: HeadRow,
    /// The incarnation.
    pub incarnation: IncarnationRow,
}

/// Opens an incarnation, if the head is still as expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenIncarnation {
    /// The sink.
    pub sink: SinkId,
    /// The replica; its older incarnations of this sink are closed.
    pub replica: ReplicaName,
    /// The launch; the first call creates the incarnation, later ones read it.
    pub launch: LaunchToken,
    /// The id drawn for it, used only by the first call.
    pub id: IncarnationId,
    /// The as-of granted, decided against the expected head.
    pub as_of: u64,
    /// The head's upper that was decided against.
    pub expected_upper: Frontier,
    /// The head's fence that was decided against.
    pub expected_fence: u64,
    /// How long the lease holds without renewal.
    pub lease_ms: u64,
}

/// An opened incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its row.
    pub incarnation: IncarnationRow,
    /// Whether this call created it.
    pub created: bool,
    /// The incarnations this call closed.
    pub closed: Vec<IncarnationId>,
}

/// A part that a batch references.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartRow {
    /// Its name; the shard is the sink's.
    pub name: PartName,
    /// What is said of its bytes.
    pub descriptor: PartDescriptor,
}

/// A batch to be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBatch {
    /// Its id.
    pub id: BatchId,
    /// Where the accepted piece begins: exactly `U`.
    pub lower: Frontier,
    /// Where it ends; the chain's new upper.
    pub upper: Frontier,
    /// The parts that are kept.
    pub parts: Vec<PartRow>,
    /// The inline runs that are kept.
    pub inline: Vec<InlineRun>,
    /// What the kept parts and runs hold, before the trim.
    pub facts: RunFacts,
}

/// What a decision makes of one offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Take it, as one row.
    Accept {
        /// The row.
        batch: NewBatch,
        /// Parts it does not keep: wholly below the trim, or at and above the time of an error.
        unlink: Vec<PartName>,
    },
    /// It holds nothing: move the chain's upper and the extent of its last row.
    Extend {
        /// The chain's new upper.
        upper: Frontier,
        /// Parts it does not keep.
        unlink: Vec<PartName>,
    },
    /// Wholly covered: queue its parts for deletion.
    Drop {
        /// Its parts.
        unlink: Vec<PartName>,
    },
}

/// One fenced transaction that resolves an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitRequest {
    /// Drawn for this try and kept over its retries, so that a lost reply is read back.
    pub commit: CommitId,
    /// The sink.
    pub sink: SinkId,
    /// The incarnation that offers; must be open.
    pub incarnation: IncarnationId,
    /// The head's upper that was decided against.
    pub expected_upper: Frontier,
    /// The head's fence that was decided against.
    pub expected_fence: u64,
    /// What was offered; its upper becomes the incarnation's resolved upper.
    pub description: Description,
    /// The recorded outcome.
    pub outcome: OutcomeKind,
    /// What is written.
    pub resolution: Resolution,
    /// The chain's status afterwards.
    pub status: HeadStatus,
}

/// A committed resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The catalog revision that made it durable.
    pub revision: u64,
    /// The `seq` of the batch, when one was inserted.
    pub seq: Option<u64>,
    /// The head's upper afterwards.
    pub upper: Frontier,
    /// The head's fence afterwards.
    pub fence: u64,
}

/// An accepted batch that is still linked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BatchRow {
    /// Its id.
    pub id: BatchId,
    /// Its place in the chain, from 1.
    pub seq: u64,
    /// Where it begins: updates with earlier times in its parts do not belong to it.
    pub lower: Frontier,
    /// Where its updates end.
    pub upper: Frontier,
    /// Up to where the chain is proven empty after `upper`; the next row's lower. At least `upper`.
    pub extent: Frontier,
    /// The description as it was offered.
    pub offered: Description,
    /// Who offered it.
    pub incarnation: IncarnationId,
    /// What its parts and runs hold, before the trim.
    pub facts: RunFacts,
    /// Its parts.
    pub parts: Vec<PartRow>,
    /// Its inline runs.
    #[serde(skip)]
    pub inline: Vec<InlineRun>,
    /// When it was accepted, by the catalog's clock.
    pub accepted: Timestamp,
}

/// A piece of the chain, read in one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSlice {
    /// The head.
    pub head: HeadRow,
    /// The linked batches whose extent lies above the asked frontier, in order, up to the asked limit.
    pub batches: Vec<BatchRow>,
}

/// Where a new consumer starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum StartAt {
    /// At the original as-of; refused once anything was released.
    Beginning,
    /// At the earliest batch that is still linked.
    Earliest,
    /// At the chain's upper.
    Now,
    /// Like `Earliest`, and a known consumer that stands below what expired goes on where that ends: it takes
    /// the gap upon itself. With any other start it keeps standing there, and reads that it expired.
    SkipExpired,
}

/// Registers a consumer or opens a new session of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterConsumer {
    /// The sink.
    pub sink: SinkId,
    /// The consumer.
    pub consumer: ConsumerName,
    /// The new session; it fences the older one.
    pub session: SessionId,
    /// Where it starts if it is new; else it goes on where it acknowledged.
    pub start: StartAt,
}

/// What the passing of time took, or would take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Expired {
    /// Incarnations closed because their lease ran out.
    pub closed: Vec<IncarnationId>,
    /// Consumers that were not heard for the absent hold, by name: they hold nothing, now as before.
    pub absent: Vec<ConsumerName>,
    /// Batches unlinked.
    pub batches: u64,
    /// Keys queued for deletion.
    pub keys: u64,
    /// Where the chain begins afterwards.
    pub earliest: Frontier,
}

/// A registered consumer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConsumerRow {
    /// Its label.
    pub name: ConsumerName,
    /// Everything below is acknowledged.
    pub acked: Frontier,
    /// The session that may acknowledge.
    pub session: SessionId,
    /// When it was last heard, by the catalog's clock; never moves back.
    pub seen: Timestamp,
}

/// What an acknowledgement released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Batches unlinked.
    pub released: u64,
    /// Keys queued for deletion.
    pub queued: u64,
}

/// Why a key is to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum DeletionReason {
    /// Its batch was wholly covered.
    Dropped,
    /// It was wholly trimmed away.
    Trimmed,
    /// Its batch was acknowledged by all consumers.
    Released,
    /// Its batch outlived the retention, or only consumers that stayed away still held it.
    Expired,
    /// Its sink was dropped.
    SinkDropped,
    /// Its writer gave it up: failed, cancelled, refused or merged into another.
    Surrendered,
    /// The sweep found it unowned.
    Swept,
}

/// A key in the deletion queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeletionRow {
    /// The key.
    pub key: PartKey,
    /// The sink.
    pub sink: SinkId,
    /// Why.
    pub reason: DeletionReason,
    /// When it was queued, by the catalog's clock.
    pub queued: Timestamp,
    /// Deletes that failed so far.
    pub attempts: u64,
}

/// What the drop of a sink did, or would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// Incarnations closed.
    pub incarnations: u64,
    /// Batches unlinked.
    pub batches: u64,
    /// Keys queued for deletion.
    pub keys: u64,
    /// Consumers that had not acknowledged everything.
    pub consumers_behind: u64,
}

/// What the catalog knows of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyState {
    /// The key.
    pub key: PartKey,
    /// The batch that references it.
    pub referenced_by: Option<u64>,
    /// Why it is queued for deletion, if it is.
    pub queued: Option<DeletionReason>,
    /// The incarnation that wrote it, if this catalog knows it: whether open, and its resolved upper.
    pub incarnation: Option<(IncarnationState, Frontier)>,
}

/// Selects history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryFilter {
    /// Only of this sink.
    pub sink: Option<SinkId>,
    /// Only of this key.
    pub key: Option<PartKey>,
    /// Only of this incarnation.
    pub incarnation: Option<IncarnationId>,
    /// At most this many, the newest; 0 for all.
    pub limit: u32,
}

/// One event that was recorded; bounded, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HistoryRow {
    /// When, by the catalog's clock.
    pub at: Timestamp,
    /// The sink.
    pub sink: SinkId,
    /// The incarnation, where one took part.
    pub incarnation: Option<IncarnationId>,
    /// The key, where one is concerned.
    pub key: Option<PartKey>,
    /// What happened, in one word: `declared`, `opened`, `closed`, `accepted`, `trimmed`, `dropped`,
    /// `queued`, `deleted`, `registered`, `unregistered`, `released`, `expired`, `sink-dropped`, `poisoned`,
    /// `completed`.
    pub event: String,
    /// The details, for people.
    pub detail: String,
}
