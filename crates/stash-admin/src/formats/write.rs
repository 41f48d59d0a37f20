//! What `read` prints: batches of updates, each closed by its progress.
//!
//! - *ndjson*: an object a line, every column a key, nulls explicit; integers exact whatever their size; a float
//!   that JSON has no number for is `"NaN"`, `"inf"` or `"-inf"`; bytes are hex; a moment of a time zone has the
//!   zone's offset. Progress is `{"_progress": 42}`, and `{"_progress": "end"}` when complete.
//! - *csv*: a header, then one record an update; null is an empty field and the empty string is `""`. The last
//!   column is `_progress`: empty in updates. In a progress record it is a time or `end`, and all else is
//!   empty. Nested values are JSON text.
//!
//!   Neither has a text for a moment beyond the calendar, or in a zone nobody knows: an error says so.
//! - *parquet*: one file, whole once finished. The last progress is the footer's key `stash.progress`.
//!
//! After progress `t` every update with a time below `t` was printed. An error of the output is returned as it
//! came, so that a caller can tell a broken pipe from a full disk.

mod csv;
mod ndjson;
pub(super) mod parquet;

use std::io::{self, Write};

use arrow::{array::RecordBatch, datatypes::SchemaRef, error::ArrowError};

use super::changes::Format;

pub use csv::CsvWriter;
pub use ndjson::NdjsonWriter;
pub use parquet::ParquetWriter;

/// Prints batches. Call `begin` once, then `batch` and `progress` in turn, `finish` at the end.
pub trait BatchWriter: Send {
    /// Says which columns come: the row's, then `_time` and `_diff`.
    fn begin(&mut self, schema: &SchemaRef) -> io::Result<()>;

    /// Prints updates, of the columns that `begin` said.
    fn batch(&mut self, batch: &RecordBatch) -> io::Result<()>;

    /// Closes a delivered batch: updates below `upper` are all printed; `None` is the end.
    fn progress(&mut self, upper: Option<u64>) -> io::Result<()>;

    /// Hands everything printed so far to the output. Parquet keeps the row group it is filling.
    fn flush(&mut self) -> io::Result<()>;

    /// Completes the output. Nothing may follow.
    fn finish(&mut self) -> io::Result<()>;
}

/// The writer of `format` onto `output`.
pub fn batch_writer<W: Write + Send + 'static>(format: Format, output: W) -> Box<dyn BatchWriter> {
    match format {
        Format::Csv => Box::new(CsvWriter::new(output)),
        Format::Ndjson => Box::new(NdjsonWriter::new(output)),
        Format::Parquet => Box::new(ParquetWriter::new(output)),
    }
}

/// A progress as the formats spell it within text.
fn progress_text(upper: Option<u64>) -> String {
    upper.map_or_else(|| "end".to_owned(), |upper| upper.to_string())
}

/// An encoding error: an error of the output as it was, anything else as invalid data.
fn io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => invalid(other),
    }
}

/// What is to be printed cannot be.
fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Why a value of a column has no text, and what writes it.
fn unprintable(column: &str, error: &ArrowError) -> String {
    format!(
        "column {column:?} holds a value without a text ({error}): `--format parquet` writes every value as it is"
    )
}

/// Refuses a batch of other columns than announced.
fn check_schema(begun: &SchemaRef, batch: &RecordBatch) -> io::Result<()> {
    if begun.fields() == batch.schema_ref().fields() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "the batch has other columns than were announced"))
}
