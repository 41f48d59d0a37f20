//! A changefeed from a user's own change file, held in memory.
//!
//! The earliest time of the file is its snapshot. The row with index i of the file falls to worker
//! i mod W. The file need not be sorted nor consolidated: several updates of one (row, time) are kept as they are,
//! since their sum is what counts.

use arrow::{
    array::{BooleanArray, RecordBatch},
    compute::filter_record_batch,
    datatypes::SchemaRef,
};

use super::feed::{self, BATCH_ROWS, Feed, Table, Updates};

/// Why a change file cannot be a feed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// There is nothing in it.
    #[error("input {name:?} holds no updates: there is nothing to show")]
    Empty {
        /// The feed's name.
        name: String,
    },
    /// A batch does not have the columns it must have.
    #[error("input {name:?}: {why}")]
    Shape {
        /// The feed's name.
        name: String,
        /// What is wrong, and what was wanted.
        why: String,
    },
    /// A time that stands for the end.
    #[error("input {name:?} has an update at time {time}, which means \"complete\": use a smaller time", time = u64::MAX)]
    TimeMax {
        /// The feed's name.
        name: String,
    },
}

/// Rows of the file, and where they stand in it.
#[derive(Debug)]
struct Chunk {
    batch: RecordBatch,
    /// The index in the file of its first row.
    first: usize,
    time_min: u64,
    time_max: u64,
}

/// A change file as a feed of one table.
///
/// - `chunks` is not empty, none of its batches is, and each has at most [`BATCH_ROWS`] rows.
#[derive(Debug)]
pub struct FileFeed {
    table: Table,
    chunks: Vec<Chunk>,
    as_of: u64,
    end: u64,
}

impl FileFeed {
    /// A feed of the table `name` with the row columns `schema`, from batches that hold these columns, then
    /// `_time` and `_diff`.
    pub fn new(
        name: impl Into<String>,
        schema: SchemaRef,
        batches: Vec<RecordBatch>,
    ) -> Result<FileFeed, InputError> {
        let table = Table { name: name.into(), schema };
        let expected = table.update_schema();
        let mut chunks = Vec::new();
        let (mut first, mut as_of, mut time_last) = (0, u64::MAX, 0);
        for whole in batches {
            let shape = |why| InputError::Shape { name: table.name.clone(), why };
            // The times' and diffs' nullability is the file format's affair; that none is null is checked.
            let whole = RecordBatch::try_new(SchemaRef::clone(&expected), whole.columns().to_vec())
                .map_err(|error| shape(format!("a batch differs from the schema: {error}")))?;
            for at in (0..whole.num_rows()).step_by(BATCH_ROWS) {
                let batch = whole.slice(at, BATCH_ROWS.min(whole.num_rows() - at));
                let times = feed::part(&batch).map_err(shape)?.times;
                let time_min = times.iter().copied().min().unwrap_or(u64::MAX);
                let time_max = times.iter().copied().max().unwrap_or(0);
                (as_of, time_last) = (as_of.min(time_min), time_last.max(time_max));
                let rows = batch.num_rows();
                chunks.push(Chunk { batch, first, time_min, time_max });
                first += rows;
            }
        }
        let name = || table.name.clone();
        if chunks.is_empty() {
            return Err(InputError::Empty { name: name() });
        }
        let end = match time_last.checked_add(1) {
            Some(end) => end,
            None => return Err(InputError::TimeMax { name: name() }),
        };
        Ok(FileFeed { table, chunks, as_of, end })
    }
}

impl Chunk {
    /// The rows with `lower ≤ time < upper` whose index in the file is `worker` mod `workers`, if there are any.
    fn share(
        &self,
        lower: u64,
        upper: u64,
        worker: u32,
        workers: u32,
    ) -> anyhow::Result<Option<RecordBatch>> {
        if self.time_max < lower || self.time_min >= upper {
            return Ok(None);
        }
        let times = feed::part(&self.batch).map_err(anyhow::Error::msg)?.times;
        let mine = |index: usize| index as u64 % u64::from(workers) == u64::from(worker);
        let kept: BooleanArray = times
            .iter()
            .enumerate()
            .map(|(at, time)| Some(lower <= *time && *time < upper && mine(self.first + at)))
            .collect();
        Ok(if kept.has_true() { Some(filter_record_batch(&self.batch, &kept)?) } else { None })
    }
}

impl Feed for FileFeed {
    fn tables(&self) -> Vec<Table> {
        vec![self.table.clone()]
    }

    fn as_of(&self) -> u64 {
        self.as_of
    }

    fn end(&self) -> u64 {
        self.end
    }

    fn updates(&self, table: usize, lower: u64, upper: u64, worker: u32, workers: u32) -> Updates<'_> {
        if let Some(error) = feed::misuse(table, 1, worker, workers) {
            return Box::new(std::iter::once(Err(error)));
        }
        let share = move |chunk: &Chunk| chunk.share(lower, upper, worker, workers).transpose();
        Box::new(self.chunks.iter().filter_map(share))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::{
        array::{ArrayRef, Int64Array, StringArray, UInt64Array},
        datatypes::{DataType, Field, Schema},
    };

    use super::*;
    use crate::demo::tally::{Tally, compare};

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("word", DataType::Utf8, true)]))
    }

    fn batch(updates: &[(Option<&str>, u64, i64)]) -> RecordBatch {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from_iter(updates.iter().map(|u| u.0))),
            Arc::new(UInt64Array::from_iter_values(updates.iter().map(|u| u.1))),
            Arc::new(Int64Array::from_iter_values(updates.iter().map(|u| u.2))),
        ];
        let table = Table { name: String::new(), schema: schema() };
        RecordBatch::try_new(table.update_schema(), columns).unwrap()
    }

    #[test]
    fn any_cut_among_any_workers_gives_the_files_updates_once() {
        // Longer than one chunk, times unsorted, rows and updates repeated.
        let many: Vec<_> = (0..20_000u64)
            .map(|i| (i.is_multiple_of(3).then_some("x"), 5 + i * 7 % 40, 1 - 2 * (i as i64 % 2)))
            .collect();
        let feed =
            FileFeed::new("words", schema(), vec![batch(&many), batch(&[(Some("y"), 90, 3)])]).unwrap();
        assert_eq!((feed.as_of(), feed.end()), (5, 91));
        let whole = Tally::of_feed(&feed).unwrap();
        assert_eq!(whole.update_count(), 20_001);
        for workers in [1, 2, 7] {
            let mut cut = Tally::new(&feed.tables());
            for bounds in [[0, 6], [6, 30], [30, 30], [30, 91]] {
                for worker in 0..workers {
                    for batch in feed.updates(0, bounds[0], bounds[1], worker, workers) {
                        let batch = batch.unwrap();
                        assert!(batch.num_rows() <= BATCH_ROWS);
                        cut.add(0, &batch).unwrap();
                    }
                }
            }
            assert_eq!(cut.update_count(), 20_001);
            assert_eq!(compare(&whole, &cut), vec![]);
        }
    }

    #[test]
    fn a_worker_gets_every_wth_row_of_the_file_across_its_batches() {
        let many: Vec<_> = (0..20_000).map(|i| (Some("x"), i, 1)).collect();
        let feed = FileFeed::new("words", schema(), vec![batch(&many[..5]), batch(&many[5..])]).unwrap();
        let batches: Vec<_> = feed.updates(0, 0, feed.end(), 3, 7).map(Result::unwrap).collect();
        let times = batches.iter().flat_map(|batch| feed::part(batch).unwrap().times).copied();
        assert!(times.eq((3..20_000).step_by(7)));
    }

    #[test]
    fn an_input_that_cannot_be_a_feed_is_refused_with_the_reason() {
        let refusal = |batches| FileFeed::new("f", schema(), batches).unwrap_err().to_string();
        assert!(refusal(vec![]).contains("no updates"));
        assert!(refusal(vec![batch(&[])]).contains("no updates"));
        assert!(refusal(vec![batch(&[(None, u64::MAX, 1)])]).contains("smaller time"));
        let stray = batch(&[(None, 1, 1)]).project(&[0, 2, 1]).unwrap();
        assert!(refusal(vec![stray]).contains("differs from the schema"));
    }

    #[test]
    fn a_worker_or_table_that_does_not_exist_is_an_error() {
        let feed = FileFeed::new("f", schema(), vec![batch(&[(None, 1, 1)])]).unwrap();
        for (table, worker, workers) in [(1, 0, 1), (0, 1, 1), (0, 0, 0)] {
            let items: Vec<_> = feed.updates(table, 0, 9, worker, workers).collect();
            assert!(matches!(items.as_slice(), [Err(_)]), "{table} {worker} {workers}");
        }
    }
}
