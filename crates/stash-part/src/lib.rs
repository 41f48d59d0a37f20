//! Parquet bytes to updates and back: sort, consolidate, merge, encode, decode. Given bytes, returns
//! updates; never asks where they live. Synchronous, no I/O.
//!
//! - [`RowSchema`]: what rows may look like. [`Updates`] and [`Sorted`]: rows, times and diffs in columns.
//! - [`consolidate`] makes a run, [`RunMerge`] and [`merge_chunks`] merge runs.
//! - [`PartEncoder`] writes a run into one Parquet object; [`PartLayout`] checks and reads it back.
//! - [`encode_inline`] and [`decode_inline`]: the same for runs small enough to travel in a message.
//!
//! ```
//! # use std::sync::Arc;
//! # use arrow::{array::{Int64Array, StringArray, UInt64Array}, datatypes::{DataType, Field, Schema}};
//! # use stash_part::*;
//! # use stash_types::{Description, Frontier};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let schema = RowSchema::new(Arc::new(Schema::new(vec![Field::new("name", DataType::Utf8, false)])))?;
//! let names = Arc::new(StringArray::from(vec!["b", "a", "b"]));
//! let times = UInt64Array::from(vec![7, 8, 7]);
//! let run = consolidate(Updates::from_columns(&schema, vec![names], times, vec![1, 1, 1].into())?)?;
//! assert_eq!((run.times(), run.diffs()), (&[8, 7][..], &[1, 2][..]));
//!
//! let sink = "k00000000-0000-0000-0000-000000000001".parse()?;
//! let description = Description::new(Frontier::at(7), Frontier::at(9)).ok_or("covers no time")?;
//! let meta = PartMeta { sink, description, group: 0, run: 0, ordinal: 0 };
//! let mut encoder = PartEncoder::new(&schema, meta, EncodeOptions::default())?;
//! encoder.write(&run)?;
//! let encoded = encoder.finish()?;
//!
//! // Whoever stores parts fetches ranges: the tail first, then the row groups that may hold the times wanted.
//! let (part, object) = (encoded.descriptor(0, 0), encoded.chunks.concat());
//! let fetch = |range: std::ops::Range<u64>| object[range.start as usize..range.end as usize].to_vec().into();
//! let layout = PartLayout::parse(&schema, &part, fetch(tail_range(&part)))?;
//! let (from, to) = (Frontier::at(8), Frontier::EMPTY);
//! for i in layout.prune(from, to) {
//!     let bytes = fetch(layout.row_groups()[i].range.clone());
//!     assert_eq!(layout.decode_row_group(i, bytes, from, to)?.times(), [8]);
//! }
//! # Ok(())
//! # }
//! ```

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
mod surmise;
mod thrift;
mod updates;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use decode::{PartLayout, RowGroupSpan, WholeDigest, tail_range, verify_whole};
pub use encode::{EncodeOptions, EncodedPart, PartEncoder, PartMeta};
pub use error::PartError;
pub use footer::FORMAT_VERSION;
pub use inline::{decode_inline, encode_inline};
pub use merge::{MergeStep, OutputLimits, RunMerge, merge_all, merge_chunks};
pub use order::ORDER_VERSION;
pub use schema::{DIFF_COLUMN, RowSchema, TIME_COLUMN};
pub use sort::consolidate;
pub use surmise::{Surmise, TRAILER_BYTES, footer_start};
pub use updates::{Sorted, Updates};
