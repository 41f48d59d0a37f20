//! Stash carries batches of incremental updates `(row, time, diff)` from the processes that compute them
//! to whoever consumes them, through an object store.
//!
//! Replicas of a dataflow each write the whole changefeed, any of them may die at any moment, and one chain
//! comes of it: gapless, exactly once, consolidated. [`Stash`] opens the store and its catalog. A [`Sink`]
//! is a named output. An [`Incarnation`] is one rendering of it on a replica: its workers write shares
//! ([`ShareWriter`]), its [`Chain`] mints descriptions, merges shares and offers batches. A [`Subscription`]
//! reads accepted batches in order and acknowledges them; what everyone acknowledged is deleted.
//!
//! ```
//! use std::sync::Arc;
//! use stash::arrow::{array::StringArray, datatypes::{DataType, Field, Schema}};
//! use stash::{Frontier, Launch, SinkSpec, StartAt, Stash};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), stash::Error> {
//! let stash = Stash::open("memory://").await?;
//! let schema = Schema::new(vec![Field::new("word", DataType::Utf8, false)]);
//! let sink = stash.declare_sink(SinkSpec::new("words", schema)?).await?;
//! let incarnation = sink.open_incarnation(Launch::single("replica-a", 1)?).await?.render()?;
//! let (mut chain, writer) = (incarnation.chain()?, incarnation.worker(0)?);
//! let minted = chain.mint(Frontier::at(1))?.minted().expect("time 0 is complete");
//! let words = Arc::new(StringArray::from(vec!["hello", "world"]));
//! let rows = sink.updates(vec![words], vec![0, 0], vec![1, 2])?; // columns, times, diffs
//! chain.report(writer.write(minted, [rows]).await?).await?;
//!
//! let mut subscription = sink.subscribe("reader", StartAt::Beginning).await?;
//! let delivery = subscription.next().await?.expect("one batch is there");
//! let mut reader = delivery.read();
//! while let Some(batch) = reader.next().await? {
//!     assert_eq!(batch.num_rows(), 2);
//! }
//! subscription.acknowledge(delivery.upper()).await?;
//! # stash.close().await?; Ok(()) }
//! ```

mod audit;
mod chain;
mod classify;
mod config;
mod cost;
mod error;
mod health;
mod incarnation;
mod inspect;
mod location;
mod metered;
mod open;
mod plan;
mod rules;
mod salvage;
mod sink;
mod subscription;
mod sweep;
mod system;
mod verify;

pub use audit::{AuditLine, AuditReport, AuditedSink, Lost};
pub use chain::{Chain, Mint, Minted, Resolved};
pub use classify::{Class, Named, Names, Stranger, Tally, Unowned};
pub use config::StashConfig;
pub use cost::{Bill, Cost, PriceError, Prices};
pub use error::{Error, ErrorKind, Result};
pub use health::{ConsumerHealth, Health, SinkHealth};
pub use incarnation::{Incarnation, Launch, Opened, ShareWriter, disarm};
pub use inspect::{Explanation, Fate};
pub use metered::{MeteredCatalog, MeteredStore};
pub use open::{OpenOptions, Stash};
pub use plan::{PLAN_FORMAT, PlanError, PlanHeader, PlanReader, PlanTotals, PlanWriter, Planned};
pub use salvage::{Salvage, SalvageReport, SalvagedBatch, SalvagedSink};
pub use sink::{Sink, SinkSpec};
pub use subscription::{Delivery, Subscription, TryNext};
pub use sweep::{ApplyOptions, ApplyReport, Kept, PlanReport, SweepReport};
pub use system::{SystemClock, SystemIds};
pub use verify::{VerifyReport, Violation};

/// The version of Arrow that batches are made of.
pub use arrow;

pub use stash_batch::{
    Absence, BatchConfig, BatchError, BatchReader, BudgetUse, Drained, METRICS, Meters, Metric, MetricKind,
    OwnedParts, ProcessCounters, Requests, ShareBuilder, describe_metrics,
};
#[cfg(feature = "s3")]
pub use stash_blob::s3;
pub use stash_blob::{BlobEntry, BlobEntryKind, BlobError, BlobStore, Deleted, PutOutcome};
pub use stash_catalog::{
    Acknowledged, BatchRow, Catalog, CatalogError, ConsumerRow, DeletionReason, DeletionRow, Dropped,
    Expired, HeadRow, HeadStatus, HistoryRow, IncarnationRow, IncarnationState, KeyState, Misuse,
    OutcomeKind, PartRow, SinkRow, StartAt,
};
pub use stash_chain::{ChainError, Outcome, invariants};
pub use stash_part::{DIFF_COLUMN, PartError, RowSchema, TIME_COLUMN};
pub use stash_types::{
    BatchId, BlobKey, BlobPrefix, CatalogId, Clock, ConsumerName, DataflowError, Description, DisarmedShare,
    Frontier, IdSource, IncarnationId, InlineRun, LaunchToken, PartDescriptor, PartKey, PartName,
    ReplicaName, RunFacts, ShardId, Share, ShareMessage, SinkId, SinkName, Timestamp, WorkerIndex, wire,
};

#[cfg(test)]
mod tests {
    use super::*;

    fn is_send<T: Send>(_: T) {}

    #[expect(dead_code, reason = "only has to compile: engines await these from tasks of their own")]
    #[expect(clippy::too_many_arguments, reason = "one of each handle")]
    fn every_future_can_be_sent_between_threads(
        stash: &'static Stash,
        sink: &'static Sink,
        incarnation: &'static Incarnation,
        chain: &'static mut Chain,
        writer: &'static ShareWriter,
        share: ShareMessage<OwnedParts>,
        mut subscription: Subscription,
        mut reader: BatchReader,
        minted: Minted,
    ) {
        is_send(Stash::open(""));
        is_send(stash.sink(""));
        is_send(async move {
            let _ = sink.open_incarnation(Launch::single("", 1)?).await;
            let _ = incarnation.worker(0)?.write(minted, []).await;
            let _ = writer.write(minted, []).await;
            let _ = chain.report(share).await;
            let _ = subscription.next().await;
            let _ = subscription.acknowledge(Frontier::MIN).await;
            let _ = reader.next().await;
            let _ = sink.verify(|_| {}).await;
            let _ = sink.sweep().await;
            let _ = sink.stash().audit(Some(sink), |_| {}).await;
            let _ = sink.stash().plan_sweep(None, Vec::new(), |_| {}).await;
            let mut plan = PlanReader::new(&b""[..])?;
            let _ = sink.stash().check_plan(&mut plan).await;
            let options = ApplyOptions { commit: true, deletes_max: 1 };
            let _ = sink.stash().apply_plan(&mut plan, options, |_| {}).await;
            let _ = stash.close().await;
            Ok::<(), Error>(())
        });
    }
}
