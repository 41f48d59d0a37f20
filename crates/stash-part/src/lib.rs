//! Parquet bytes to updates and back: sort, consolidate, merge, encode, decode. Given bytes, returns
//! updates; never asks where they live. Synchronous, no I/O.
//!
//! - [`RowSchema`]: what rows may look like. [`Updates`] and [`Sorted`]: rows, times and diffs in columns.
//! - [`consolidate`] makes a run, [`RunMerge`] and [`merge_chunks`] merge runs.
//! - [`PartEncoder`] writes a run into one Parquet object; [`PartLayout`] checks and reads it back.
//! - [`encode_inline`] and [`decode_inline`]: the same for runs small enough to travel in a message.

mod decode;
mod encode;
mod error;
mod footer;
mod inline;
mod memory;
mod merge;
mod order;
mod schema;
mod sort;
mod thrift;
mod updates;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use decode::{PartLayout, RowGroupSpan, tail_range, verify_whole};
pub use encode::{EncodeOptions, EncodedPart, PartEncoder, PartMeta};
pub use error::PartError;
pub use footer::FORMAT_VERSION;
pub use inline::{decode_inline, encode_inline};
pub use merge::{MergeStep, RunMerge, merge_all, merge_chunks};
pub use order::ORDER_VERSION;
pub use schema::{DIFF_COLUMN, RowSchema, TIME_COLUMN};
pub use sort::consolidate;
pub use updates::{Sorted, Updates};
