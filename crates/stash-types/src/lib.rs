//! The nouns of Stash: ids, frontiers, descriptions, keys, shares and descriptors.
//!
//! Nothing here awaits, reads a clock or does I/O: [`Clock`] and [`IdSource`] are traits whose real
//! implementations live where a program begins. Everything that travels between processes or rests in
//! the catalog has a versioned form in [`wire`].
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::as_conversions))]

mod descriptor;
pub mod fault;
mod frontier;
mod ids;
mod key;
mod name;
mod share;
mod source;
pub mod wire;

pub use descriptor::{Digest, PartDescriptor, RunFacts, SchemaFingerprint};
pub use frontier::{Description, Frontier};
pub use ids::{
    BatchId, CatalogId, CommitId, IdError, IncarnationId, LaunchToken, SessionId, ShardId, SinkId,
};
pub use key::{BlobKey, BlobPrefix, KeyError, PartKey, PartName};
pub use name::{ConsumerName, NameError, ReplicaName, SinkName};
pub use share::{DataflowError, DisarmedShare, InlineRun, Share, ShareMessage, WorkerIndex};
pub use source::{Clock, IdSource, Timestamp};
