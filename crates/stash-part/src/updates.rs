//! Updates in columns: rows, their times and their diffs, as one Arrow batch of the full schema.
//!
//! [`Updates`] are in any order. [`Sorted`] ones are sorted by (row, time), hold each (row, time) once and no
//! zero diff; only consolidating, merging and decoding make them, so whoever holds one need not ask.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, UInt32Array, UInt64Array,
};
use arrow::buffer::{BooleanBuffer, ScalarBuffer};
use arrow::compute::{concat_batches, filter_record_batch, take_record_batch};
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use stash_types::{Frontier, RunFacts};

use crate::error::PartError;
use crate::memory::batch_bytes;
use crate::order::OrderedRows;
use crate::schema::{DIFF_COLUMN, RowSchema, TIME_COLUMN};

/// Updates in any order; cheap to clone and to slice.
///
/// - The batch has the full schema; no time is `u64::MAX`; no time or diff is null.
/// - Diffs may be zero and rows may repeat: consolidation takes care of both.
#[derive(Clone, Debug)]
pub struct Updates {
    schema: RowSchema,
    batch: RecordBatch,
    times: ScalarBuffer<u64>,
    diffs: ScalarBuffer<i64>,
}

impl Updates {
    /// Checks a batch of the full schema. Row columns may have their declared or their stored types;
    /// dictionaries are unpacked.
    pub fn new(schema: &RowSchema, batch: RecordBatch) -> Result<Updates, PartError> {
        let rows = schema.columns();
        let given = batch.schema();
        let names: Vec<&str> = given.fields().iter().skip(rows).map(|field| field.name().as_str()).collect();
        if names != [TIME_COLUMN, DIFF_COLUMN] {
            return Err(PartError::SchemaMismatch(format!(
                "{rows} row columns must be followed by {TIME_COLUMN} and {DIFF_COLUMN}, not by {names:?}"
            )));
        }
        let time = batch.column(rows).as_primitive_opt::<UInt64Type>();
        let time = time.ok_or_else(|| PartError::SchemaMismatch(format!("{TIME_COLUMN} must be UInt64")))?;
        let diff = batch.column(rows + 1).as_primitive_opt::<Int64Type>();
        let diff = diff.ok_or_else(|| PartError::SchemaMismatch(format!("{DIFF_COLUMN} must be Int64")))?;
        let fields = given.fields().iter().take(rows).cloned().collect();
        let columns: Vec<ArrayRef> = batch.columns().iter().take(rows).cloned().collect();
        let columns = schema.store(&fields, &columns)?;
        Self::from_stored(schema, columns, time.clone(), diff.clone())
    }

    /// Updates of these row columns (of declared or stored types), times and diffs, all of one length.
    pub fn from_columns(
        schema: &RowSchema,
        columns: Vec<ArrayRef>,
        time: UInt64Array,
        diff: Int64Array,
    ) -> Result<Updates, PartError> {
        let columns = schema.store(schema.row_schema().fields(), &columns)?;
        Self::from_stored(schema, columns, time, diff)
    }

    /// No updates.
    pub fn empty(schema: &RowSchema) -> Updates {
        Updates {
            schema: schema.clone(),
            batch: RecordBatch::new_empty(Arc::clone(schema.full_schema())),
            times: ScalarBuffer::from(Vec::new()),
            diffs: ScalarBuffer::from(Vec::new()),
        }
    }

    fn from_stored(
        schema: &RowSchema,
        mut columns: Vec<ArrayRef>,
        time: UInt64Array,
        diff: Int64Array,
    ) -> Result<Updates, PartError> {
        if time.null_count() > 0 || diff.null_count() > 0 {
            return Err(PartError::Misuse(format!("{TIME_COLUMN} and {DIFF_COLUMN} must not be null")));
        }
        if time.values().contains(&u64::MAX) {
            return Err(PartError::Misuse(format!(
                "{TIME_COLUMN} holds u64::MAX, which is no time but the empty frontier"
            )));
        }
        let (times, diffs) = (time.values().clone(), diff.values().clone());
        columns.push(Arc::new(UInt64Array::new(times.clone(), None)));
        columns.push(Arc::new(Int64Array::new(diffs.clone(), None)));
        let batch = RecordBatch::try_new(Arc::clone(schema.full_schema()), columns)
            .map_err(|error| PartError::SchemaMismatch(error.to_string()))?;
        Ok(Updates { schema: schema.clone(), batch, times, diffs })
    }

    /// The rows' schema.
    pub fn schema(&self) -> &RowSchema {
        &self.schema
    }

    /// How many updates.
    pub fn num_rows(&self) -> usize {
        self.times.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Their times, in their order.
    pub fn times(&self) -> &[u64] {
        &self.times
    }

    /// Their diffs, in their order.
    pub fn diffs(&self) -> &[i64] {
        &self.diffs
    }

    /// All columns, with the full schema.
    pub fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// All columns, with the full schema.
    pub fn into_batch(self) -> RecordBatch {
        self.batch
    }

    /// The updates `offset..offset + len`, cut to what there is; no copy.
    pub fn slice(&self, offset: usize, len: usize) -> Updates {
        let offset = offset.min(self.num_rows());
        let len = len.min(self.num_rows() - offset);
        Updates {
            schema: self.schema.clone(),
            batch: self.batch.slice(offset, len),
            times: self.times.slice(offset, len),
            diffs: self.diffs.slice(offset, len),
        }
    }

    /// All of them one after the other; no copy for a single piece.
    pub fn concat(schema: &RowSchema, pieces: &[Updates]) -> Result<Updates, PartError> {
        if let Some(odd) = pieces.iter().find(|piece| &piece.schema != schema) {
            return Err(PartError::WrongSchema {
                wanted: schema.fingerprint(),
                found: odd.schema.fingerprint(),
            });
        }
        if let [single] = pieces {
            return Ok(single.clone());
        }
        let batch = concat_batches(schema.full_schema(), pieces.iter().map(|piece| &piece.batch))
            .map_err(PartError::arrow("join batches; make them smaller"))?;
        Self::checked(schema, batch)
    }

    /// Bytes of these updates as Arrow columns: of what this slice shows, not of the buffers behind it.
    pub fn memory_bytes(&self) -> usize {
        batch_bytes(&self.batch)
    }

    /// The updates with `lower ≤ time < upper`; no copy if nothing is cut.
    pub fn between(&self, lower: Frontier, upper: Frontier) -> Result<Updates, PartError> {
        let inside = |time: &u64| lower.as_u64() <= *time && *time < upper.as_u64();
        let kept = self.times.iter().filter(|time| inside(time)).count();
        if kept == self.num_rows() {
            return Ok(self.clone());
        }
        if kept == 0 {
            return Ok(self.slice(0, 0));
        }
        let mask = BooleanBuffer::collect_bool(self.num_rows(), |i| inside(&self.times[i]));
        let batch = filter_record_batch(&self.batch, &BooleanArray::new(mask, None))
            .map_err(PartError::arrow("filter updates by time"))?;
        Self::checked(&self.schema, batch)
    }

    /// One update, copied out of the buffers it lies in.
    pub(crate) fn row(&self, row: usize) -> Result<Updates, PartError> {
        let index = UInt32Array::from(vec![0]);
        let batch = take_record_batch(self.slice(row, 1).batch(), &index)
            .map_err(PartError::arrow("copy a row out of its batch"))?;
        Self::checked(&self.schema, batch)?.compacted()
    }

    /// The same updates, with views that keep no more alive than they show.
    pub(crate) fn compacted(&self) -> Result<Updates, PartError> {
        let columns = self.batch.columns().iter().map(compact).collect();
        let batch = RecordBatch::try_new(self.batch.schema(), columns)
            .map_err(PartError::arrow("compact a batch"))?;
        Ok(Updates { batch, ..self.clone() })
    }

    /// Counts over these updates; exact only as a run's facts once consolidated.
    pub fn facts(&self) -> RunFacts {
        if self.is_empty() {
            return RunFacts::default();
        }
        RunFacts {
            update_count: self.num_rows() as u64,
            diff_sum: self.diffs.iter().map(|diff| i128::from(*diff)).sum(),
            min_time: self.times.iter().copied().min().unwrap_or(0),
            max_time: self.times.iter().copied().max().unwrap_or(0),
            uncompressed_bytes: self.memory_bytes() as u64,
        }
    }

    /// Wraps a batch of the full stored schema that this crate made from checked updates.
    pub(crate) fn checked(schema: &RowSchema, batch: RecordBatch) -> Result<Updates, PartError> {
        Self::new(schema, batch)
    }
}

/// Copies the values that views point at, so that they no longer keep their old buffers alive; other arrays
/// own no more than they show.
pub(crate) fn compact(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Utf8View => Arc::new(array.as_string_view().gc()),
        DataType::BinaryView => Arc::new(array.as_binary_view().gc()),
        _ => Arc::clone(array),
    }
}

/// Updates sorted by (row, time), each (row, time) once, no diff zero.
#[derive(Clone, Debug)]
pub struct Sorted(Updates);

impl Sorted {
    /// No updates.
    pub fn empty(schema: &RowSchema) -> Sorted {
        Sorted(Updates::empty(schema))
    }

    /// Takes updates that are known to be sorted and consolidated.
    pub(crate) fn vouch(updates: Updates) -> Sorted {
        Sorted(updates)
    }

    /// The updates, as any others.
    pub fn updates(&self) -> &Updates {
        &self.0
    }

    /// The updates, as any others.
    pub fn into_updates(self) -> Updates {
        self.0
    }

    /// The updates `offset..offset + len`, cut to what there is; no copy.
    pub fn slice(&self, offset: usize, len: usize) -> Sorted {
        Sorted(self.0.slice(offset, len))
    }

    /// The last update, copied out of the buffers it lies in; `None` where there is none.
    pub fn last(&self) -> Result<Option<Sorted>, PartError> {
        self.num_rows().checked_sub(1).map(|row| self.0.row(row).map(Sorted)).transpose()
    }

    /// Whether all of these come after all of `before`, in (row, time) order; where either has none they do.
    pub fn follows(&self, before: &Sorted) -> Result<bool, PartError> {
        let (Some(last), false) = (before.last()?, self.is_empty()) else { return Ok(true) };
        let (last, first) = (OrderedRows::new(&last)?, OrderedRows::new(&self.0.slice(0, 1))?);
        Ok(last.compare(0, &first, 0).is_lt())
    }

    /// The updates with `lower ≤ time < upper`; no copy if nothing is cut.
    pub fn between(&self, lower: Frontier, upper: Frontier) -> Result<Sorted, PartError> {
        self.0.between(lower, upper).map(Sorted)
    }
}

impl std::ops::Deref for Sorted {
    type Target = Updates;

    fn deref(&self) -> &Updates {
        &self.0
    }
}
