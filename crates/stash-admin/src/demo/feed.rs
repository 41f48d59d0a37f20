//! A changefeed: tables whose content changes over time, as a dataflow would produce them.
//!
//! A feed is a pure function of (table, times, worker, workers). Whoever asks for
//! `[lower, upper)` in whatever pieces, from however many workers, gets the same updates in all, each
//! exactly once; so replicas that cut at different bounds tell the same story, and an oracle can be
//! computed from the feed alone.
//!
//! - The snapshot is at [`Feed::as_of`]: no update is earlier.
//! - Every time is below [`Feed::end`].
//! - Batches hold the row's columns, then `_time` (UInt64) and `_diff` (Int64), and at most
//!   [`BATCH_ROWS`] rows. Within one table all batches have one schema, [`Table::update_schema`].
//! - The order of updates within an answer is not part of the contract.

use std::sync::Arc;

use arrow::{
    array::{Array, AsArray, RecordBatch},
    datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, UInt64Type},
};

/// The most rows of one batch.
pub const BATCH_ROWS: usize = 8192;

/// The column that holds the time of an update.
pub const TIME: &str = "_time";

/// The column that holds the diff of an update.
pub const DIFF: &str = "_diff";

/// Updates of one table, batch by batch.
pub type Updates<'a> = Box<dyn Iterator<Item = anyhow::Result<RecordBatch>> + Send + 'a>;

/// One table of a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// The columns of its rows, without time and diff.
    pub schema: SchemaRef,
}

impl Table {
    /// The columns of its updates: the row's, then `_time` and `_diff`.
    pub fn update_schema(&self) -> SchemaRef {
        let mut fields: Vec<_> = self.schema.fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new(TIME, DataType::UInt64, false)));
        fields.push(Arc::new(Field::new(DIFF, DataType::Int64, false)));
        Arc::new(Schema::new(fields))
    }
}

/// A changefeed over one or more tables. See the module for what it promises.
pub trait Feed: Send + Sync {
    /// The tables; `updates` names them by their place here.
    fn tables(&self) -> Vec<Table>;

    /// The time of the snapshot, which is the earliest of all.
    fn as_of(&self) -> u64;

    /// The first time of which it is certain that nothing happens at it or later.
    fn end(&self) -> u64;

    /// The updates of `table` with `lower ≤ time < upper` that fall to `worker` of `workers`.
    ///
    /// A table or a worker that does not exist is an error, given as the only item.
    fn updates(&self, table: usize, lower: u64, upper: u64, worker: u32, workers: u32) -> Updates<'_>;
}

/// Why `worker` of `workers` cannot be asked for `table` of `tables`, if so.
pub(super) fn misuse(table: usize, tables: usize, worker: u32, workers: u32) -> Option<anyhow::Error> {
    if table >= tables {
        return Some(anyhow::anyhow!("table {table} does not exist: the feed has {tables}"));
    }
    (worker >= workers).then(|| anyhow::anyhow!("worker {worker} does not exist: there are {workers}"))
}

/// An update batch taken apart: the row's columns, the times and the diffs.
pub(super) struct Parted<'a> {
    /// The row's columns.
    pub columns: &'a [arrow::array::ArrayRef],
    /// The times.
    pub times: &'a [u64],
    /// The diffs.
    pub diffs: &'a [i64],
}

/// Takes an update batch apart, or says why it is none.
pub(super) fn part(batch: &RecordBatch) -> Result<Parted<'_>, String> {
    let schema = batch.schema_ref();
    let [row @ .., time, diff] = schema.fields().as_ref() else {
        return Err(format!("a batch of updates ends with {TIME} and {DIFF}, this one has no such columns"));
    };
    if time.name() != TIME || diff.name() != DIFF {
        return Err(format!(
            "a batch of updates ends with {TIME} and {DIFF}, this one with {} and {}",
            time.name(),
            diff.name()
        ));
    }
    let columns = batch.columns();
    let (times, diffs) = (&columns[row.len()], &columns[row.len() + 1]);
    let times_typed = times
        .as_primitive_opt::<UInt64Type>()
        .ok_or_else(|| format!("{TIME} has type {}, not UInt64", times.data_type()))?;
    let diffs_typed = diffs
        .as_primitive_opt::<Int64Type>()
        .ok_or_else(|| format!("{DIFF} has type {}, not Int64", diffs.data_type()))?;
    if times.null_count() + diffs.null_count() > 0 {
        return Err(format!("{TIME} and {DIFF} must not be null"));
    }
    Ok(Parted { columns: &columns[..row.len()], times: times_typed.values(), diffs: diffs_typed.values() })
}
