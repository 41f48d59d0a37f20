//! Parquet files of changes: the columns as they are, times and diffs converted.
//!
//! A damaged file can make the decoder panic; a panic here is an error like another, and ends the reading.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch},
    compute::cast,
    datatypes::{DataType, Int64Type, Schema, SchemaRef, UInt64Type},
};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

use super::{
    cell::{parse_diff, parse_time},
    changes::{BATCH_BYTES_MAX, BATCH_ROWS_MAX, ChangeBatch, ColumnRoles, Progress, with_roles},
    fault::{Fault, InputError},
    input,
};

/// An open Parquet file.
pub(super) struct ParquetChanges {
    path: PathBuf,
    reader: ParquetRecordBatchReader,
    time: (usize, String),
    diff: Option<(usize, String)>,
    row: Vec<usize>,
    row_schema: SchemaRef,
    batch_schema: SchemaRef,
    rows_read: u64,
    rows: u64,
    bytes: u64,
}

impl fmt::Debug for ParquetChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParquetChanges").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Runs the decoder; what it says, or that it panicked, becomes a fault.
fn decode<T, E: fmt::Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, Fault> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| Fault::NotParquet { why: error.to_string() }),
        Err(_) => Err(Fault::NotParquet { why: "the decoder gave up on it".to_owned() }),
    }
}

impl ParquetChanges {
    pub(super) fn open(path: &Path, roles: &ColumnRoles) -> Result<ParquetChanges, InputError> {
        let (file, len) = input::open(path, "a Parquet file has at least a footer")?;
        let bytes = len.ok_or_else(|| InputError::whole(path, Fault::NotSeekable))?;
        let whole = |fault| InputError::whole(path, fault);
        let builder = decode(|| ParquetRecordBatchReaderBuilder::try_new(file)).map_err(whole)?;

        let schema = Arc::clone(builder.schema());
        let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        roles.are_among(&names).map_err(|(name, fault)| whole(fault).of(name))?;
        let mut row = Vec::new();
        for (index, name) in names.iter().enumerate() {
            if names.iter().take(index).any(|before| before == name) {
                return Err(whole(Fault::Duplicate).of(name));
            }
            if roles.is_row(name).map_err(|fault| whole(fault).of(name))? {
                row.push(index);
            }
        }
        let place = |name: &String| {
            let index = names.iter().position(|there| there == name).unwrap_or_default();
            (index, name.clone())
        };
        let (time, diff) = (place(&roles.time), roles.diff.as_ref().map(place));
        let role_columns = [("time", Some(&time)), ("diff", diff.as_ref())];
        for (role, column) in role_columns.into_iter().filter_map(|(role, column)| Some((role, column?))) {
            let found = schema.field(column.0).data_type();
            if !found.is_integer() && !is_text(found) {
                return Err(whole(Fault::RoleType { role, found: found.to_string() }).of(&column.1));
            }
        }
        let row_schema =
            schema.project(&row).map_err(|error| whole(Fault::NotParquet { why: error.to_string() }))?;
        let row_schema = Arc::new(Schema::new(row_schema.fields));

        let metadata = builder.metadata();
        let rows = u64::try_from(metadata.file_metadata().num_rows()).unwrap_or(0);
        let size: u64 = (metadata.row_groups().iter())
            .map(|group| u64::try_from(group.total_byte_size()).unwrap_or(0))
            .fold(0, u64::saturating_add);
        // Wide rows come in smaller batches; the footer's sizes are a guide, not a promise.
        let row_bytes = usize::try_from(size / rows.max(1)).unwrap_or(usize::MAX).max(1);
        let batch_rows = (BATCH_BYTES_MAX / row_bytes).clamp(1, BATCH_ROWS_MAX);
        let reader = decode(|| builder.with_batch_size(batch_rows).build()).map_err(whole)?;
        let (path, batch_schema) = (path.to_owned(), with_roles(&row_schema));
        Ok(ParquetChanges {
            path,
            reader,
            time,
            diff,
            row,
            row_schema,
            batch_schema,
            rows_read: 0,
            rows,
            bytes,
        })
    }

    pub(super) fn row_schema(&self) -> SchemaRef {
        Arc::clone(&self.row_schema)
    }

    /// Rows are what the decoder counts; they stand for their share of the bytes.
    pub(super) fn progress(&self) -> Progress {
        let share = u128::from(self.bytes) * u128::from(self.rows_read) / u128::from(self.rows.max(1));
        let read = if self.rows == 0 { self.bytes } else { u64::try_from(share).unwrap_or(self.bytes) };
        Progress { read: read.min(self.bytes), total: Some(self.bytes) }
    }

    /// The next updates, or `None` at the end of the file.
    pub(super) fn next_batch(&mut self) -> Result<Option<ChangeBatch>, InputError> {
        let next = decode(|| self.reader.next().transpose());
        let first = self.rows_read + 1;
        let Some(batch) = next.map_err(|fault| InputError::row(&self.path, first, fault))? else {
            return Ok(None);
        };
        let count = u64::try_from(batch.num_rows()).unwrap_or(u64::MAX);
        self.rows_read = self.rows_read.saturating_add(count);
        let lines: Vec<u64> = (first..=self.rows_read).collect();

        let times = self.role(&batch, &self.time, first, Fault::NullTime, parse_time, time_of)?;
        let diffs = match &self.diff {
            Some(diff) => self.role(&batch, diff, first, Fault::NullDiff, parse_diff, diff_of)?,
            None => vec![1; batch.num_rows()],
        };
        let columns: Vec<ArrayRef> = self.row.iter().map(|index| Arc::clone(batch.column(*index))).collect();
        ChangeBatch::new(&self.batch_schema, columns, times, diffs, lines, true)
            .map(Some)
            .map_err(|error| InputError::row(&self.path, first, Fault::NotParquet { why: error.to_string() }))
    }

    /// The values of a role column: integers by `whole`, text by `text`.
    fn role<V>(
        &self,
        batch: &RecordBatch,
        (index, name): &(usize, String),
        first: u64,
        null: Fault,
        text: fn(&str) -> Result<V, Fault>,
        whole: fn(i128) -> Result<V, Fault>,
    ) -> Result<Vec<V>, InputError> {
        let refuse = |row: usize, fault| {
            let row = first.saturating_add(u64::try_from(row).unwrap_or(u64::MAX));
            InputError::row(&self.path, row, fault).of(name)
        };
        let array = batch.column(*index);
        if let Some(row) = array.nulls().and_then(|nulls| (0..nulls.len()).find(|row| nulls.is_null(*row))) {
            return Err(refuse(row, null));
        }
        let wider = match array.data_type() {
            DataType::UInt64 => DataType::UInt64,
            found if found.is_integer() => DataType::Int64,
            _ => DataType::Utf8,
        };
        let array =
            cast(array, &wider).map_err(|error| refuse(0, Fault::NotParquet { why: error.to_string() }))?;
        let placed = |(row, value): (usize, Result<V, Fault>)| value.map_err(|fault| refuse(row, fault));
        if let Some(values) = array.as_primitive_opt::<UInt64Type>() {
            return values.values().iter().map(|v| whole(i128::from(*v))).enumerate().map(placed).collect();
        }
        if let Some(values) = array.as_primitive_opt::<Int64Type>() {
            return values.values().iter().map(|v| whole(i128::from(*v))).enumerate().map(placed).collect();
        }
        let values = array.as_string::<i32>();
        (0..values.len()).map(|row| text(values.value(row))).enumerate().map(placed).collect()
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// The integer as a time; what does not fit is judged as its text would be.
fn time_of(value: i128) -> Result<u64, Fault> {
    match u64::try_from(value) {
        Ok(time) if time < u64::MAX => Ok(time),
        _ => parse_time(&value.to_string()),
    }
}

fn diff_of(value: i128) -> Result<i64, Fault> {
    i64::try_from(value).or_else(|_| parse_diff(&value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_decoder_is_an_error_like_another() {
        let fault = decode(|| -> Result<(), String> { panic!("as a damaged file can cause") });
        assert!(matches!(fault, Err(Fault::NotParquet { .. })));
    }
}
