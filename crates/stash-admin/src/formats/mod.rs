//! Change files in and out: what `load` reads and what `read` prints.
//!
//! A *change file* holds one update a record: the row's columns, a time, and perhaps a diff. [`ChangeFile`]
//! streams it as Arrow batches; a [`BatchWriter`] prints batches in the same formats. Neither knows of
//! stores or sinks.
//!
//! # Reading
//!
//! - The *time column* holds integers, or digits in text, below `u64::MAX`. The *diff column* holds
//!   integers that fit `i64`; without one every diff is +1. Updates with diff 0 are dropped and counted.
//! - Every other column is a *row column*. Names that begin with `_` are reserved, except for the two roles.
//! - CSV: UTF-8, comma, a header, quotes as in RFC 4180 and only there. An empty field is null; a quoted
//!   empty field is the empty string, or null where the column is not text. Blank lines are skipped.
//! - NDJSON: one object a line. A missing key is null. Blank lines are skipped.
//! - Parquet: the columns as they are; a `--schema` is refused, since the file has one.
//! - *Progress* records are skipped: a CSV record with only its `_progress` field, an NDJSON object with only the
//!   key `_progress`, holding a time or `end`. So what `read` prints can be loaded again. Anything else under
//!   that name is an error.
//!
//! # Inference
//!
//! Without a [`SchemaSpec`] the whole of a CSV or NDJSON file is read once before, so that no late line
//! contradicts what the first lines promised. It gives `bool`, `int64`, `uint64`, `float64` or `utf8`, always
//! nullable, and a number type only if no value loses anything by it: integers beyond `u64`, integers beyond
//! 2^53 among fractions, and more than 17 significant digits make a column text. In CSV so do texts that a
//! number would not print again (`007`, `+1`). In NDJSON strings among numbers are an error, since
//! there a kind is meant; `"NaN"`, `"inf"` and `"-inf"` among numbers are floats.
//!
//! # Invariants
//!
//! - **F1 Exact** no value is rounded or cut unless the user named a float type for it; an inferred float gives
//!   back up to 17 digits.
//! - **F2 Placed** every error names the file and, where there is one, the line (row in Parquet) and the column.
//! - **F3 Bounded** a batch has at most 8192 rows and, of text, about 32 MiB and one record; a record has at
//!   most 64 MiB, and at most 10,000 columns.
//!
//! Deliberately absent: guessing of dates, other delimiters, nested types from text.

mod cell;
mod changes;
mod column;
mod csv;
mod discover;
mod fault;
mod infer;
mod input;
mod ndjson;
mod order;
mod parquet;
mod spec;
mod text;
mod write;

pub use changes::{ChangeBatch, ChangeFile, ColumnRoles, Format, Progress};
pub use fault::{InputError, Place};
pub use order::{OutOfOrder, TimesCheck};
pub use spec::{SchemaSpec, SpecError};
pub use write::{BatchWriter, batch_writer};

/// The column of times in every batch.
pub const TIME: &str = "_time";
/// The column of diffs in every batch.
pub const DIFF: &str = "_diff";
/// The key or column that marks a progress record.
pub const PROGRESS: &str = "_progress";

#[cfg(test)]
mod tests;
