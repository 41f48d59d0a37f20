//! What can go wrong in a catalog, in three families: misuse, fences, the world.

use std::sync::Arc;

use stash_types::{ConsumerName, Frontier, IncarnationId, LaunchToken, SinkId, SinkName};

/// A call that does not fit the catalog's state; nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// No such sink.
    #[error("no sink {sink}; `stash-admin sinks` lists what is declared")]
    NoSuchSink {
        /// Its name or id.
        sink: String,
    },
    /// The name stands for a sink that was declared otherwise.
    #[error("sink {name} is declared already with another {field}: a sink is immutable, use another name")]
    SinkDiffers {
        /// The name.
        name: SinkName,
        /// The first property that differs.
        field: &'static str,
    },
    /// No such incarnation of the sink.
    #[error("sink {sink} has no incarnation {incarnation}")]
    NoSuchIncarnation {
        /// The sink.
        sink: SinkId,
        /// The incarnation.
        incarnation: IncarnationId,
    },
    /// The launch's incarnation is closed: a restarted process means a new launch.
    #[error(
        "launch {launch} was used by incarnation {incarnation}, which is closed: draw a new launch token"
    )]
    LaunchUsed {
        /// The launch.
        launch: LaunchToken,
        /// Its incarnation.
        incarnation: IncarnationId,
    },
    /// No such consumer of the sink.
    #[error("sink {sink} has no consumer {consumer}: subscribe first")]
    NoSuchConsumer {
        /// The sink.
        sink: SinkId,
        /// The consumer.
        consumer: ConsumerName,
    },
    /// What was acknowledged is not the upper of a delivered batch.
    #[error(
        "consumer {consumer} cannot acknowledge {upper}: acknowledge the upper of a batch, above {acked} and at most {chain_upper}"
    )]
    NotABatchUpper {
        /// The consumer.
        consumer: ConsumerName,
        /// What it acknowledged.
        upper: Frontier,
        /// What it acknowledged before.
        acked: Frontier,
        /// The chain's upper.
        chain_upper: Frontier,
    },
    /// The beginning is no longer there.
    #[error(
        "consumer {consumer} cannot start at the beginning: everything below {earliest} is gone; start at the earliest"
    )]
    BeginningGone {
        /// The consumer.
        consumer: ConsumerName,
        /// The earliest frontier still linked.
        earliest: Frontier,
    },
    /// The request contradicts itself or the rows.
    #[error("{what}")]
    Inconsistent {
        /// What does not fit.
        what: String,
    },
}

/// What went wrong, by what the caller may do next.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CatalogError {
    /// Fix the call.
    #[error(transparent)]
    InvalidUsage(#[from] Misuse),
    /// The incarnation was closed: render anew.
    #[error("incarnation {incarnation} of sink {sink} is closed ({reason}): open a new one")]
    IncarnationClosed {
        /// The sink.
        sink: SinkId,
        /// The incarnation.
        incarnation: IncarnationId,
        /// Why it was closed.
        reason: String,
    },
    /// A newer session of the consumer took over.
    #[error(
        "this session of consumer {consumer} of sink {sink} was replaced by a newer one: subscribe again"
    )]
    SessionFenced {
        /// The sink.
        sink: SinkId,
        /// The consumer.
        consumer: ConsumerName,
    },
    /// The sink was dropped.
    #[error("sink {sink} was dropped")]
    SinkDropped {
        /// The sink.
        sink: SinkId,
    },
    /// The catalog was written by a newer build.
    #[error("catalog {location} has schema version {found}; this build knows {known}: upgrade it")]
    Newer {
        /// Where the catalog is.
        location: String,
        /// Its version.
        found: i64,
        /// What this build knows.
        known: i64,
    },
    /// The catalog lost history this session has seen: it was restored from an old backup, or swapped.
    #[error(
        "catalog {location} is at revision {found}, but this session saw {saw}: it lost history; stop and restore it"
    )]
    CatalogBehind {
        /// Where the catalog is.
        location: String,
        /// The highest revision seen.
        saw: u64,
        /// The revision found.
        found: u64,
    },
    /// A row cannot be read back as what was written.
    #[error("catalog {location}: {what}")]
    Damaged {
        /// Where the catalog is.
        location: String,
        /// Table, row and fault.
        what: String,
    },
    /// This handle was closed, by whoever has it.
    #[error("catalog {location}: {op}: this handle was closed: open the catalog again")]
    Closed {
        /// Where the catalog is.
        location: String,
        /// The operation.
        op: &'static str,
    },
    /// The operation surely had no effect.
    #[error("catalog {location}: {op}: {what}")]
    Determinate {
        /// Where the catalog is.
        location: String,
        /// The operation.
        op: &'static str,
        /// What happened and what to do about it.
        what: String,
        /// Whether the same call may succeed later without anybody's help.
        retry: bool,
        /// The database's own error.
        #[source]
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
    /// The operation may have had its effect: read back before deciding.
    #[error("catalog {location}: {op}: the outcome is unknown: {what}")]
    Indeterminate {
        /// Where the catalog is.
        location: String,
        /// The operation.
        op: &'static str,
        /// What happened.
        what: String,
        /// The database's own error.
        #[source]
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
}
