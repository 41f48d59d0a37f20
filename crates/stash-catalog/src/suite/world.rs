//! A small world to write cases in: one sink, and whatever incarnations and consumers a case asks for.

use std::sync::Arc;

use bytes::Bytes;
use stash_types::{
    BatchId, CommitId, ConsumerName, DataflowError, Description, Digest, Frontier, IdSource, IncarnationId,
    InlineRun, LaunchToken, PartDescriptor, PartKey, PartName, RunFacts, SchemaFingerprint, SessionId,
    ShardId, SinkId,
};

use super::Setup;
use crate::rows::{
    BatchRow, CommitRequest, Committed, HeadStatus, IncarnationRow, NewBatch, NewSink, OpenIncarnation,
    OutcomeKind, PartRow, RegisterConsumer, Resolution, StartAt,
};
use crate::{Cas, Catalog, CatalogError};

/// The frontier at a time.
pub fn at(time: u64) -> Frontier {
    Frontier::at(time)
}

/// `[lower, upper)`.
pub fn span(lower: u64, upper: u64) -> Description {
    Description::new(at(lower), at(upper)).expect("a description that covers a time")
}

/// A declaration under `name`, from 0 on.
pub fn declaration(setup: &Setup, name: &str) -> NewSink {
    NewSink {
        id: SinkId::from_uuid(setup.ids.random()),
        name: name.parse().expect("a sink name"),
        schema: Bytes::from_static(b"schema"),
        fingerprint: SchemaFingerprint(Digest::of(b"schema")),
        as_of: 0,
        up_to: Frontier::EMPTY,
        seals: false,
        retention_ms: None,
        absent_hold_ms: Some(60_000),
    }
}

/// One declared sink, seen through a handle.
#[derive(Clone, Debug)]
pub struct World {
    /// What the case was given.
    pub setup: Setup,
    /// The sink.
    pub sink: SinkId,
    /// Its namespace.
    pub shard: ShardId,
}

impl World {
    /// Declares the sink.
    pub async fn new(setup: &Setup) -> World {
        World::of(setup, declaration(setup, "orders")).await
    }

    /// Declares this sink.
    pub async fn of(setup: &Setup, spec: NewSink) -> World {
        let declared = setup.catalog.declare_sink(spec).await.expect("declared");
        World { setup: setup.clone(), sink: declared.sink.spec.id, shard: declared.sink.shard }
    }

    /// The handle.
    pub fn catalog(&self) -> &dyn Catalog {
        &*self.setup.catalog
    }

    /// The same world seen through the other handle.
    pub fn through_the_other(&self) -> World {
        let mut world = self.clone();
        world.setup.catalog = Arc::clone(&self.setup.other);
        world
    }

    /// What opening an incarnation of `replica` at this moment asks for.
    pub async fn opening(&self, replica: &str) -> OpenIncarnation {
        let head = self.catalog().head(self.sink).await.expect("a head");
        OpenIncarnation {
            sink: self.sink,
            replica: replica.parse().expect("a replica name"),
            launch: LaunchToken::from_uuid(self.setup.ids.random()),
            id: IncarnationId::from_uuid(self.setup.ids.ordered()),
            as_of: head.upper.as_u64().saturating_sub(1),
            expected_upper: head.upper,
            expected_fence: head.fence,
            lease_ms: 10_000,
        }
    }

    /// Opens an incarnation of `replica`.
    pub async fn open(&self, replica: &str) -> IncarnationRow {
        match self.catalog().open_incarnation(self.opening(replica).await).await.expect("opened") {
            Cas::Done(opened) => opened.incarnation,
            Cas::Conflict(head) => panic!("the head moved meanwhile: {head:?}"),
        }
    }

    /// The name of part `n` that `incarnation` wrote for `description`.
    pub fn name(&self, incarnation: IncarnationId, description: Description, n: u64) -> PartName {
        PartName { incarnation, description, process: 0, n }
    }

    /// The same as a whole key.
    pub fn key(&self, incarnation: IncarnationId, description: Description, n: u64) -> PartKey {
        self.name(incarnation, description, n).under(self.shard)
    }

    /// A part row of that name.
    pub fn part(&self, name: PartName) -> PartRow {
        let digest = Digest::of(&name.n.to_be_bytes());
        let facts = RunFacts {
            update_count: 3,
            diff_sum: -1,
            min_time: name.description.lower().as_u64(),
            max_time: name.description.lower().as_u64(),
            uncompressed_bytes: 96,
        };
        let descriptor = PartDescriptor {
            process: name.process,
            n: name.n,
            group: 0,
            run: 1,
            ordinal: 2,
            len: 4096,
            tail_len: 512,
            tail_digest: digest,
            digest,
            facts,
            piece_bytes: 96,
            schema: SchemaFingerprint(Digest::of(b"schema")),
        };
        PartRow { name, descriptor }
    }

    /// An inline run with this payload.
    pub fn inline(&self, payload: &'static [u8]) -> InlineRun {
        InlineRun {
            group: 1,
            payload: Bytes::from_static(payload),
            digest: Digest::of(payload),
            facts: RunFacts { update_count: 1, diff_sum: i128::MIN, ..RunFacts::default() },
            schema: SchemaFingerprint(Digest::of(b"schema")),
        }
    }

    /// A request of `incarnation` that does `resolution` against the head of this moment.
    pub async fn request(
        &self,
        incarnation: IncarnationId,
        description: Description,
        resolution: Resolution,
    ) -> CommitRequest {
        let head = self.catalog().head(self.sink).await.expect("a head");
        let outcome = match &resolution {
            Resolution::Drop { .. } => OutcomeKind::Dropped,
            Resolution::Extend { upper, .. } if *upper == head.upper => OutcomeKind::Dropped,
            _ if description.lower() < head.upper => OutcomeKind::Trimmed { from: head.upper },
            _ => OutcomeKind::Accepted,
        };
        CommitRequest {
            commit: CommitId::from_uuid(self.setup.ids.random()),
            sink: self.sink,
            incarnation,
            expected_upper: head.upper,
            expected_fence: head.fence,
            description,
            outcome,
            resolution,
            status: head.status,
        }
    }

    /// A batch from the head's upper to the description's, of `parts` and one inline run.
    pub async fn batch(
        &self,
        incarnation: IncarnationId,
        description: Description,
        parts: &[u64],
    ) -> NewBatch {
        let head = self.catalog().head(self.sink).await.expect("a head");
        let parts: Vec<_> =
            parts.iter().map(|n| self.part(self.name(incarnation, description, *n))).collect();
        let facts = parts.iter().map(|part| part.descriptor.facts).fold(RunFacts::default(), RunFacts::and);
        NewBatch {
            id: BatchId::from_uuid(self.setup.ids.random()),
            lower: head.upper,
            upper: description.upper(),
            parts,
            inline: vec![self.inline(b"inline")],
            facts,
        }
    }

    /// A request that accepts such a batch.
    pub async fn accepting(
        &self,
        incarnation: IncarnationId,
        description: Description,
        parts: &[u64],
    ) -> CommitRequest {
        let batch = self.batch(incarnation, description, parts).await;
        self.request(incarnation, description, Resolution::Accept { batch, unlink: vec![] }).await
    }

    /// Commits; a conflict fails the case.
    pub async fn done(&self, request: CommitRequest) -> Committed {
        match self.catalog().commit(request).await.expect("committed") {
            Cas::Done(committed) => committed,
            Cas::Conflict(head) => panic!("the head moved meanwhile: {head:?}"),
        }
    }

    /// Accepts a batch of `parts` up to the description's upper.
    pub async fn accept(
        &self,
        incarnation: IncarnationId,
        description: Description,
        parts: &[u64],
    ) -> Committed {
        self.done(self.accepting(incarnation, description, parts).await).await
    }

    /// Extends the chain to the description's upper.
    pub async fn extend(&self, incarnation: IncarnationId, description: Description) -> Committed {
        let resolution = Resolution::Extend { upper: description.upper(), unlink: vec![] };
        self.done(self.request(incarnation, description, resolution).await).await
    }

    /// The request that poisons the chain at its upper.
    pub async fn poisoning(&self, incarnation: IncarnationId, description: Description) -> CommitRequest {
        let upper = self.upper().await;
        let resolution = Resolution::Extend { upper, unlink: vec![] };
        let error = DataflowError { at: upper.as_u64(), message: "division by zero".to_owned() };
        CommitRequest {
            status: HeadStatus::Poisoned(error),
            ..self.request(incarnation, description, resolution).await
        }
    }

    /// The chain's upper.
    pub async fn upper(&self) -> Frontier {
        self.catalog().head(self.sink).await.expect("a head").upper
    }

    /// The linked batches above `from`.
    pub async fn chain(&self, from: u64) -> Vec<BatchRow> {
        self.catalog().chain(self.sink, at(from), 1000).await.expect("a chain").batches
    }

    /// Lower, upper and extent of the linked batches above `from`.
    pub async fn spans(&self, from: u64) -> Vec<(u64, u64, u64)> {
        let span = |batch: &BatchRow| (batch.lower.as_u64(), batch.upper.as_u64(), batch.extent.as_u64());
        self.chain(from).await.iter().map(span).collect()
    }

    /// Registers a consumer in a new session.
    pub async fn register(
        &self,
        consumer: &str,
        start: StartAt,
    ) -> Result<(Frontier, SessionId), CatalogError> {
        let session = SessionId::from_uuid(self.setup.ids.random());
        let consumer = consumer.parse().expect("a consumer name");
        let request = RegisterConsumer { sink: self.sink, consumer, session, start };
        self.catalog().register_consumer(request).await.map(|row| (row.acked, row.session))
    }

    /// Acknowledges; returns how many batches were released and how many keys queued.
    pub async fn acknowledge(
        &self,
        consumer: &str,
        session: SessionId,
        upper: u64,
    ) -> Result<(u64, u64), CatalogError> {
        let consumer: ConsumerName = consumer.parse().expect("a consumer name");
        let done = self.catalog().acknowledge(self.sink, &consumer, session, at(upper)).await?;
        Ok((done.released, done.queued))
    }

    /// How many keys of the sink are queued.
    pub async fn queued(&self) -> u64 {
        self.catalog().deletions_queued(Some(self.sink)).await.expect("a count")
    }
}
