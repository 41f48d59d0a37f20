//! What a source is told: what to read, from where, and what it may let go of.

use std::num::NonZeroUsize;

use stash::{Frontier, Sink};
use tokio::runtime::Handle;

use crate::hold::Hold;

/// How many updates an activation gives out: some milliseconds of rows, well below what a worker's other operators
/// notice.
const UPDATES_AN_ACTIVATION: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not zero");
/// How many bytes wait for the worker: enough that the store is asked ahead, little beside a reader's own memory.
const BUFFER_BYTES: usize = 16 << 20;

/// Which updates of a chain a source gives out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The whole collection as of a time, and every change after it. The chain is read from its beginning, the
    /// sink's own as-of, and times below `as_of` stand at it. A chain that does not hold its beginning any
    /// longer gives [`stash::Absence::Acknowledged`] or [`stash::Absence::Expired`].
    Snapshot {
        /// The time; not below the sink's own as-of, before which nothing is known.
        as_of: u64,
    },
    /// Only updates at or after a frontier, each at its time: for dataflows that keep no state. One above the
    /// chain's upper is waited for; what the chain does not hold any longer is absent as above.
    ChangesSince(Frontier),
}

impl Start {
    /// Where the capability stands first. The empty frontier has no time: the last one there is keeps its place.
    pub(super) fn first(self) -> u64 {
        match self {
            Start::Snapshot { as_of } => as_of.min(u64::MAX - 1),
            Start::ChangesSince(frontier) => frontier.as_u64().min(u64::MAX - 1),
        }
    }

    /// The time at which an update is given out, if it is.
    pub(super) fn place(self, time: u64) -> Option<u64> {
        match self {
            Start::Snapshot { as_of } => Some(time.max(as_of)),
            Start::ChangesSince(frontier) => frontier.admits(time).then_some(time),
        }
    }
}

/// What a source acknowledges for its consumer. Always uppers of deliveries that were given out entirely.
#[derive(Clone, Debug, Default)]
pub enum Acknowledge {
    /// Nothing. A named consumer then holds the chain.
    #[default]
    Never,
    /// What [`SourceToken::acknowledge`](super::SourceToken::acknowledge) says, on the worker that reads.
    ByToken,
    /// Whatever lies below all of these, as they rise: a source that feeds sinks is given theirs. At least one;
    /// those given on the worker that reads count.
    Holds(Vec<Hold>),
}

/// What a source reads, and how. The same on every worker; cheap to clone.
#[derive(Clone, Debug)]
pub struct SourceOptions {
    pub(super) sink: Sink,
    pub(super) runtime: Handle,
    pub(super) start: Start,
    pub(super) consumer: Option<String>,
    pub(super) acknowledge: Acknowledge,
    pub(super) updates_an_activation: NonZeroUsize,
    pub(super) buffer_bytes: usize,
}

impl SourceOptions {
    /// Reads the chain of `sink` in tasks of `runtime`, without holding it.
    pub fn new(sink: Sink, runtime: Handle, start: Start) -> SourceOptions {
        SourceOptions {
            sink,
            runtime,
            start,
            consumer: None,
            acknowledge: Acknowledge::Never,
            updates_an_activation: UPDATES_AN_ACTIVATION,
            buffer_bytes: BUFFER_BYTES,
        }
    }

    /// Reads in the name of a consumer, which holds the chain from what it acknowledged on. A new one is
    /// registered, at the beginning for a snapshot, else at the earliest batch there is; a session it has
    /// elsewhere is fenced.
    #[must_use]
    pub fn consumer(mut self, name: &str, acknowledge: Acknowledge) -> SourceOptions {
        self.consumer = Some(name.to_owned());
        self.acknowledge = acknowledge;
        self
    }

    /// How many updates are given out an activation, about. Default: 4096. More are less interruptions for the
    /// source, and longer ones for all other operators of the worker.
    #[must_use]
    pub fn updates_an_activation(mut self, updates: NonZeroUsize) -> SourceOptions {
        self.updates_an_activation = updates;
        self
    }

    /// How many bytes of batches wait for the worker at most, that which is given out included, beside what the
    /// reader of the stash holds. Default: 16 MiB. A batch above it waits alone.
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: usize) -> SourceOptions {
        self.buffer_bytes = bytes;
        self
    }
}
