//! Owns a batch from its first byte to its last delete.
//!
//! What the workers of one process share is a [`Process`]: the store, the catalog, one byte [`Budget`], the
//! ledger of keys it PUT, and the deleter. Upwards it gives three things:
//!
//! - [`ShareBuilder`]: one worker's updates for one description become a share: empty, inline, put into the
//!   process's coalesced part ([`SharedBatches`]), or parts of its own as they stream.
//! - [`OwnedParts`]: the linear handle of blobs in the store. It is forwarded, split, disarmed for the wire
//!   or discarded; what is merely dropped goes to the deleter.
//! - [`BatchReader`]: the consolidated updates of an accepted batch, times kept, within the budget, or a
//!   typed [`Absence`].
//!
//! Invariants kept here: I3, I14, I16, I19, I21 (hand-over), I22, I24. The protocol is not decided here: see
//! `stash-chain`. Nothing here lists the store.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::as_conversions))]

mod absence;
mod budget;
mod config;
mod deleter;
mod error;
mod handle;
mod ledger;
mod meters;
mod owned;
mod process;
mod reader;
mod run;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod share;
mod shared_batch;
mod spill;
mod sync;
mod upload;

pub use absence::Absence;
pub use budget::{Budget, BudgetUse, Reservation, Traffic};
pub use config::BatchConfig;
pub use deleter::{Drained, verdict};
pub use error::BatchError;
pub use handle::WriterHandle;
pub use meters::{
    BlobOp, BlobOutcome, Meters, NONE, Requests, SEVERAL, SinkMeters, UNKNOWN,
    list::{self as metric_list, METRICS, Metric, MetricKind, describe_metrics},
};
pub use owned::OwnedParts;
pub use process::{IncarnationSpec, IncarnationWriter, Process, ProcessCounters, check_share};
pub use reader::{BatchReader, BatchSource};
pub use share::{ShareBuilder, ShareSpec};
pub use shared_batch::SharedBatches;
