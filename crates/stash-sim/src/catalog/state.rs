//! All rows of the catalog, and what every operation needs of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use stash_catalog::{
    BatchRow, CatalogError, ConsumerRow, DeletionRow, HeadRow, HeadStatus, HistoryRow, Misuse, SinkRow,
};
use stash_types::{CatalogId, ConsumerName, IdSource, IncarnationId, PartKey, ShardId, SinkId, Timestamp};

use super::incarnations::Incarnation;
use super::{LOCATION, Result};

/// The whole catalog.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) id: CatalogId,
    /// Draws the ids of rows that stand for an empty stretch.
    pub(super) ids: Arc<dyn IdSource>,
    /// Rises with every write.
    pub(super) revision: u64,
    /// Dropped ones stay.
    pub(super) sinks: BTreeMap<SinkId, Sink>,
    /// The deletion queue.
    pub(super) queue: BTreeMap<PartKey, Queued>,
    /// Oldest first.
    pub(super) history: VecDeque<HistoryRow>,
}

/// A sink with all that is its own.
#[derive(Clone, Debug)]
pub(super) struct Sink {
    pub(super) row: SinkRow,
    pub(super) head: HeadRow,
    /// In the order they were opened; they stay for ever, so that a key can always be judged.
    pub(super) incarnations: Vec<Incarnation>,
    /// By `seq`. Linked ones are gapless: each begins where the one before it extends to, the last extends to the
    /// head's upper.
    pub(super) batches: BTreeMap<u64, Batch>,
    pub(super) consumers: BTreeMap<ConsumerName, ConsumerRow>,
}

/// What a batch row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It has content.
    Updates,
    /// It never had any.
    Empty,
    /// It is the empty end of a released batch.
    Rest,
}

/// A batch row.
///
/// - Its parts are what keeps their keys alive. One that is not linked has none; it waits for its keys to leave
///   the deletion queue.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) row: BatchRow,
    pub(super) kind: Kind,
    pub(super) linked: bool,
}

/// A key in the deletion queue.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) row: DeletionRow,
    /// The released batch whose row waits for the key.
    pub(super) seq: Option<u64>,
    pub(super) due: Timestamp,
}

impl State {
    pub(super) fn new(id: CatalogId, ids: Arc<dyn IdSource>) -> State {
        let (sinks, queue, history) = Default::default();
        State { id, ids, revision: 0, sinks, queue, history }
    }

    /// The sink, dropped or not.
    pub(super) fn sink(&self, sink: SinkId) -> Result<&Sink> {
        self.sinks.get(&sink).ok_or_else(|| no_such_sink(&sink.to_string()))
    }

    /// The same, to be changed.
    pub(super) fn sink_mut(&mut self, sink: SinkId) -> Result<&mut Sink> {
        self.sinks.get_mut(&sink).ok_or_else(|| no_such_sink(&sink.to_string()))
    }

    /// The sink, refused when it was dropped.
    pub(super) fn live_sink(&self, sink: SinkId) -> Result<&Sink> {
        let found = self.sink(sink)?;
        match found.head.status {
            HeadStatus::Dropped => Err(CatalogError::SinkDropped { sink }),
            _ => Ok(found),
        }
    }

    pub(super) fn shard(&self, sink: SinkId) -> ShardId {
        ShardId::derive(self.id, sink)
    }

    /// Raises the revision and writes it on the head row; once per operation that wrote.
    pub(super) fn stamp(&mut self, sink: SinkId) -> Result<u64> {
        self.revision += 1;
        let revision = self.revision;
        self.sink_mut(sink)?.head.revision = revision;
        Ok(revision)
    }

    /// Makes every decision in flight look again (I20).
    pub(super) fn raise_fence(&mut self, sink: SinkId) -> Result<()> {
        self.sink_mut(sink)?.head.fence += 1;
        Ok(())
    }
}

impl Sink {
    pub(super) fn linked(&self) -> impl Iterator<Item = &Batch> {
        self.batches.values().filter(|batch| batch.linked)
    }

    /// The `seq` of the batch that references the key.
    pub(super) fn reference(&self, key: &PartKey) -> Option<u64> {
        if key.shard != self.row.shard {
            return None;
        }
        let holds = |batch: &&Batch| batch.row.parts.iter().any(|part| part.name == key.name);
        self.batches.values().find(holds).map(|batch| batch.row.seq)
    }

    pub(super) fn incarnation(&self, id: IncarnationId) -> Option<&Incarnation> {
        self.incarnations.iter().find(|incarnation| incarnation.row.id == id)
    }
}

pub(super) fn no_such_sink(sink: &str) -> CatalogError {
    Misuse::NoSuchSink { sink: sink.to_owned() }.into()
}

pub(super) fn inconsistent<T>(what: String) -> Result<T> {
    Err(Misuse::Inconsistent { what }.into())
}

pub(super) fn damaged(what: String) -> CatalogError {
    CatalogError::Damaged { location: LOCATION.to_owned(), what }
}
