//! Shares: what one worker contributes to one description.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Description, Digest, Frontier, IncarnationId, PartDescriptor, RunFacts, SchemaFingerprint, SinkId,
};

/// A worker of a replica, from 0 to W − 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerIndex(pub u32);

impl fmt::Display for WorkerIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An update of the error collection: the dataflow's result is undefined from `at` on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DataflowError {
    /// The time of the error.
    pub at: u64,
    /// What the dataflow says of it.
    pub message: String,
}

/// A small sorted run that travels by itself: Arrow IPC without the schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlineRun {
    /// The group of runs that must be merged with one another.
    pub group: u32,
    /// The encoded updates.
    pub payload: Bytes,
    /// Digest of the payload.
    pub digest: Digest,
    /// What it holds.
    pub facts: RunFacts,
    /// The row schema it was written with.
    pub schema: SchemaFingerprint,
}

/// What one worker contributes to one description; never absent, since the merge counts shares.
///
/// `P` is what stands for parts: handles that own blobs within a process, descriptors on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Share<P> {
    /// The worker had nothing, or its run went into a part that another worker reports.
    Empty,
    /// A small run, carried in the message.
    Inline(InlineRun),
    /// Parts in the store.
    Stashed(P),
    /// The store, memory, a panic or a cancel took the share: the incarnation must be rendered anew.
    Failed {
        /// What happened, for people.
        reason: String,
    },
    /// The sink is going away.
    Dropped,
}

impl<P> Share<P> {
    /// The same share with its parts replaced by what `f` makes of them.
    pub fn map<Q>(self, f: impl FnOnce(P) -> Q) -> Share<Q> {
        match self {
            Share::Empty => Share::Empty,
            Share::Inline(run) => Share::Inline(run),
            Share::Stashed(parts) => Share::Stashed(f(parts)),
            Share::Failed { reason } => Share::Failed { reason },
            Share::Dropped => Share::Dropped,
        }
    }

    /// One word for people and metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Share::Empty => "empty",
            Share::Inline(_) => "inline",
            Share::Stashed(_) => "stashed",
            Share::Failed { .. } => "failed",
            Share::Dropped => "dropped",
        }
    }
}

/// A share with its address: what a worker sends to the merging worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareMessage<P> {
    /// The sink.
    pub sink: SinkId,
    /// The rendering.
    pub incarnation: IncarnationId,
    /// The description it contributes to.
    pub description: Description,
    /// The floor the description was minted with: times below it were left out.
    pub floor: Frontier,
    /// Who contributes.
    pub worker: WorkerIndex,
    /// What.
    pub share: Share<P>,
    /// The earliest error of the dataflow itself that the worker knows of within the description. It stands
    /// beside the share: updates before the error's time still count, and a worker may hold some.
    pub poisoned: Option<DataflowError>,
}

impl<P> ShareMessage<P> {
    /// The same message with the share's parts replaced by what `f` makes of them.
    pub fn map<Q>(self, f: impl FnOnce(P) -> Q) -> ShareMessage<Q> {
        let ShareMessage { sink, incarnation, description, floor, worker, share, poisoned } = self;
        ShareMessage { sink, incarnation, description, floor, worker, share: share.map(f), poisoned }
    }
}

/// A share whose parts are only described: what crosses a process border.
pub type DisarmedShare = ShareMessage<Vec<PartDescriptor>>;
