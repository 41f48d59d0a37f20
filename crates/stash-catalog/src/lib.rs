//! The catalog: the authority on sinks, incarnations, chain, consumers and deletions.
//!
//! The only crate that speaks SQL. It decides nothing about the protocol: callers read a view, run the
//! pure decision of `stash-chain`, and commit by compare-and-set on the head row, which is the fence.
//! [`Catalog`] is the boundary; [`SqliteCatalog`] is the embedded default, on a file or in memory; [`PostgresCatalog`]
//! is for machines that share one. The operations stand once, in `sql`, whichever database runs them.
//! Whatever implements the boundary runs [`suite`].
//!
//! Invariants kept here: I8 (the resolved upper moves in the transaction of each outcome), I13, I14, I15 (no
//! statement enqueues a key that a row references), I16, I20, I21.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::as_conversions))]

// First, so that its macro is in scope below.
#[macro_use]
pub mod suite;

mod catalog;
mod error;
mod expiry;
#[cfg(feature = "postgres")]
mod postgres;
mod request;
mod rows;
mod sql;
mod sqlite;
pub mod testing;

pub use catalog::{Cas, Catalog};
pub use error::{CatalogError, Misuse};
#[cfg(feature = "postgres")]
pub use postgres::{ClockSource, PostgresCatalog, PostgresOptions};
pub use rows::{
    Acknowledged, BatchRow, ChainSlice, CommitRequest, Committed, ConsumerRow, Declared, DeletionReason,
    DeletionRow, Dropped, Expired, HeadRow, HeadStatus, HistoryFilter, HistoryRow, IncarnationRow,
    IncarnationState, KeyState, NewBatch, NewSink, OpenIncarnation, Opened, OutcomeKind, PartRow,
    RegisterConsumer, Resolution, ResolvedOffer, SinkRow, StartAt, View,
};
pub use sqlite::SqliteCatalog;
