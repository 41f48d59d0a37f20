//! Reading an accepted batch: consolidated, times kept, within the budget.
//!
//! - Within a group all runs are merged, inline ones too, and equal (row, time) are summed. Groups are
//!   disjoint by row and follow one another unmerged.
//! - Only times of the accepted piece are given out; what lies wholly outside is not even fetched (I6).
//! - Memory is reserved for all runs of a group at once. Where the budget cannot hold them, sets of runs are
//!   merged into local files without a name first, as often as it takes.
//! - What is not there is a typed [`Absence`](crate::Absence), never an empty batch.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io::Write,
    sync::Arc,
};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Schema, SchemaRef};
use futures::Stream;
use stash_catalog::BatchRow;
use stash_part::{EncodedPart, PartEncoder, PartError, PartMeta, RowSchema, Sorted};
use stash_types::{Description, Frontier, IncarnationId, PartKey, PartName, ShardId, SinkId, fault};

use crate::{
    BatchError, Process, SinkMeters, Traffic,
    budget::Reservation,
    process::compute,
    run::{self, Origin, Run, RunStream, SortedMerge, StoredPart},
    spill::{GROUP, encode_options},
};

/// What is to be read.
#[derive(Clone, Debug)]
pub struct BatchSource {
    /// The sink.
    pub sink: SinkId,
    /// Its blob namespace.
    pub shard: ShardId,
    /// Its row schema.
    pub schema: RowSchema,
    /// The accepted batch.
    pub batch: BatchRow,
    /// Only updates at or after this are given out; the batch's own lower, or later.
    pub from: Frontier,
}

/// The updates of a batch, a piece at a time.
pub struct BatchReader {
    process: Process,
    source: Origins,
    groups: VecDeque<Vec<Run>>,
    open: Option<(SortedMerge, Reservation)>,
    output: Option<SchemaRef>,
    refused: bool,
    meters: Arc<SinkMeters>,
}

/// What every run of a batch has in common.
#[derive(Clone, Debug)]
struct Origins {
    sink: SinkId,
    shard: ShardId,
    schema: RowSchema,
    incarnation: IncarnationId,
    piece: Description,
}

impl BatchReader {
    /// Opens a batch; nothing is read and no memory reserved before the first [`BatchReader::next`].
    pub fn open(process: &Process, source: BatchSource) -> BatchReader {
        let BatchSource { sink, shard, schema, batch, from } = source;
        let mut groups: BTreeMap<u32, Vec<Run>> = BTreeMap::new();
        let piece = Description::new(batch.lower.max(from), batch.upper);
        if piece.is_some() {
            let mut parts: BTreeMap<u32, Vec<_>> = BTreeMap::new();
            for part in batch.parts {
                parts.entry(part.descriptor.group).or_default().push(part);
            }
            for (group, parts) in parts {
                groups.entry(group).or_default().extend(Run::of_parts(parts));
            }
            for run in batch.inline {
                groups.entry(run.group).or_default().push(Run::Inline(run));
            }
        }
        let output = declared_output(&schema);
        // A piece that covers no time has no groups either, so what stands for it is never asked.
        let piece = piece.unwrap_or(batch.offered);
        let source = Origins { sink, shard, schema, incarnation: batch.incarnation, piece };
        BatchReader {
            meters: process.meters().of(source.shard),
            process: process.clone(),
            source,
            groups: groups.into_values().collect(),
            open: None,
            output,
            refused: false,
        }
    }

    /// The columns that are given out: the sink's as declared, then `_time` (UInt64) and `_diff` (Int64).
    pub fn schema(&self) -> SchemaRef {
        self.output.clone().unwrap_or_else(|| Arc::clone(self.source.schema.full_schema()))
    }

    /// The next updates, sorted by (row, time) within their group; `None` at the end of the batch, and only there:
    /// after an error, or when a call was cancelled, the next one tries the same again or fails again.
    ///
    /// Memory is held from the first call until the end of the batch, or until the reader is dropped; where there is
    /// none, this waits for other readers to end. So a task that begins a second reader before its first one ended
    /// may wait for itself: read one to its end, drop it, or read them in tasks of their own.
    #[tracing::instrument(name = "read", level = "debug", skip_all, fields(
        sink = self.meters.name(),
        incarnation = %self.source.incarnation,
        piece = %self.source.piece,
    ))]
    pub async fn next(&mut self) -> Result<Option<RecordBatch>, BatchError> {
        if self.refused {
            return Err(BatchError::Ended { what: "a reader whose rows did not fit their columns" });
        }
        loop {
            let Some((merge, _)) = &mut self.open else {
                // SUBTLE: the group stays in its place until it is open. Taken out first, a call that fails or is
                // cancelled while it waits for memory would lose it, and the next one would go on without its rows.
                let Some(runs) = self.groups.front() else { return Ok(None) };
                self.open = Some(self.source.merge(&self.process, runs.clone()).await?);
                self.groups.pop_front();
                continue;
            };
            match merge.next().await? {
                Some(sorted) => {
                    let batch = self.declared(sorted);
                    self.refused = batch.is_err();
                    if let Ok(batch) = &batch {
                        let rows = u64::try_from(batch.num_rows()).unwrap_or(u64::MAX);
                        self.meters.read_updates.increment(rows);
                    }
                    fault::place("batch.piece_read");
                    return batch.map(Some);
                }
                None => self.open = None,
            }
        }
    }

    /// The same as a stream, which ends after its first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<RecordBatch, BatchError>> {
        futures::stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            match reader.next().await {
                Ok(Some(batch)) => Some((Ok(batch), Some(reader))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    /// Packs stored columns back into the declared types, where they differ.
    fn declared(&self, sorted: Sorted) -> Result<RecordBatch, BatchError> {
        let stored = sorted.into_updates().into_batch();
        let Some(output) = &self.output else { return Ok(stored) };
        let named = BatchError::part(format!("rows of sink {}", self.source.sink));
        let rows = self.source.schema.restore(&stored).map_err(named)?;
        let mut columns: Vec<ArrayRef> = rows.columns().to_vec();
        columns.extend(stored.columns().iter().skip(rows.num_columns()).cloned());
        RecordBatch::try_new(Arc::clone(output), columns).map_err(|error| BatchError::Part {
            context: format!("rows of sink {}", self.source.sink),
            source: PartError::SchemaMismatch(error.to_string()),
        })
    }
}

/// The full schema with the declared types, or `None` where the stored ones are the same.
fn declared_output(schema: &RowSchema) -> Option<SchemaRef> {
    let (declared, row) = (schema.declared_schema(), schema.row_schema());
    if declared.fields() == row.fields() {
        return None;
    }
    let fields =
        declared.fields().iter().chain(schema.full_schema().fields().iter().skip(row.fields().len()));
    Some(Arc::new(Schema::new(fields.cloned().collect::<Vec<_>>())))
}

impl Origins {
    /// Opens the merge of a group, with the memory it needs.
    async fn merge(
        &self,
        process: &Process,
        mut runs: Vec<Run>,
    ) -> Result<(SortedMerge, Reservation), BatchError> {
        let largest = process.budget().largest(Traffic::Read);
        let row_group = process.config().row_group_bytes_max;
        while let Some(fan_in) = scratch_fan_in(&runs, row_group, largest)? {
            let rest = runs.split_off(fan_in);
            tracing::info!(sink = %self.sink, runs = fan_in, left = rest.len(), "merging runs into a scratch file");
            let merged = self.scratch(process, runs).await?;
            // The merged run goes last, so that every run is merged about equally often.
            runs = rest;
            runs.push(merged);
        }
        let memory = SortedMerge::memory_bytes(&runs);
        let reservation = process.budget().reserve(Traffic::Read, memory).await?;
        Ok((self.open(process, runs), reservation))
    }

    fn open(&self, process: &Process, runs: Vec<Run>) -> SortedMerge {
        SortedMerge::new(&self.schema, runs, |run| {
            RunStream::open(process, self.sink, self.shard, &self.schema, run, self.piece)
        })
    }

    /// Merges runs into one, in a local file that has no name and goes with its last reader.
    async fn scratch(&self, process: &Process, runs: Vec<Run>) -> Result<Run, BatchError> {
        let config = process.config();
        let failed = |what: std::io::Error| BatchError::Scratch { what: what.to_string() };
        let memory = scratch_bytes(&runs, config.row_group_bytes_max);
        let _memory = process.budget().reserve(Traffic::Read, memory).await?;
        let mut file = ScratchWriter {
            file: Arc::new(tempfile::tempfile().map_err(failed)?),
            written: 0,
            parts: Vec::new(),
            key: self.scratch_key(),
        };
        let mut merge = self.open(process, runs);
        let mut encoder: Option<PartEncoder> = None;
        let named = || BatchError::part(format!("scratch run of sink {}", self.sink));
        while let Some(sorted) = merge.next().await? {
            let mut open = match encoder.take() {
                Some(open) => open,
                None => {
                    let meta = PartMeta {
                        sink: self.sink,
                        description: self.piece,
                        group: GROUP,
                        run: 0,
                        ordinal: 0,
                    };
                    PartEncoder::new(&self.schema, meta, encode_options(config)).map_err(named())?
                }
            };
            let open =
                compute(u64::MAX, move || open.write(&sorted).map(|()| open)).await?.map_err(named())?;
            // One row group a part: what the encoder holds is what was reserved.
            let full =
                u64::try_from(open.encoded_bytes()).unwrap_or(u64::MAX) >= config.row_group_bytes_max / 2;
            if full {
                file = file.append(open.finish().map_err(named())?).await?;
            } else {
                encoder = Some(open);
            }
        }
        if let Some(open) = encoder {
            file = file.append(open.finish().map_err(named())?).await?;
        }
        Ok(Run::Scratch(file.parts))
    }

    fn scratch_key(&self) -> PartKey {
        PartName { incarnation: self.incarnation, description: self.piece, process: 0, n: 0 }
            .under(self.shard)
    }
}

/// What merging these runs into a scratch file needs at once: the merge, and a row group on its way out.
fn scratch_bytes(runs: &[Run], row_group_bytes_max: u64) -> u64 {
    SortedMerge::memory_bytes(runs).saturating_add(row_group_bytes_max.max(SortedMerge::largest_piece(runs)))
}

/// How many of the first runs are to be merged into a scratch file before all can be merged at once within `largest`
/// bytes; `None` once they can.
fn scratch_fan_in(runs: &[Run], row_group_bytes_max: u64, largest: u64) -> Result<Option<usize>, BatchError> {
    if SortedMerge::memory_bytes(runs) <= largest {
        return Ok(None);
    }
    let needed = |runs: &[Run]| scratch_bytes(runs, row_group_bytes_max);
    let over = || BatchError::OverBudget { wanted: needed(runs.get(..2).unwrap_or(runs)), largest };
    run::fan_in(runs, runs.len(), needed, largest).map(Some).ok_or_else(over)
}

struct ScratchWriter {
    file: Arc<File>,
    written: u64,
    parts: Vec<StoredPart>,
    key: PartKey,
}

impl ScratchWriter {
    async fn append(mut self, part: EncodedPart) -> Result<ScratchWriter, BatchError> {
        let ordinal = u32::try_from(self.parts.len()).unwrap_or(u32::MAX);
        self.parts.push(StoredPart {
            key: self.key,
            descriptor: part.descriptor(0, u64::from(ordinal)),
            origin: Origin::Scratch(Arc::clone(&self.file), self.written),
        });
        self.written = self.written.saturating_add(part.len);
        compute(u64::MAX, move || {
            let mut file: &File = &self.file;
            part.chunks.iter().try_for_each(|chunk| file.write_all(chunk)).map(|()| self)
        })
        .await?
        .map_err(|error| BatchError::Scratch { what: format!("write: {error}") })
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::Arc;

    use arrow::array::Int64Array;
    use stash_part::{Updates, consolidate, encode_inline};

    use super::*;
    use crate::{
        BatchConfig, IncarnationSpec,
        process::tests::{description, incarnation, process},
        run::tests::runs_of_pieces,
    };

    /// A run of `rows` random rows.
    fn random_run(schema: &RowSchema, rows: u64, seed: u64) -> Run {
        // Other numbers for other `seed` and `n`, in no order.
        let noise = |n: u64| {
            let mixed = ((seed << 32) | n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9) as i64
        };
        let keys = Int64Array::from_iter_values((0..rows).map(noise));
        let ones = vec![1; rows as usize];
        let times = vec![1; rows as usize];
        let updates = Updates::from_columns(schema, vec![Arc::new(keys)], times.into(), ones.into());
        let sorted = consolidate(updates.expect("sound")).expect("sorted");
        Run::Inline(encode_inline(&sorted, GROUP).expect("encoded"))
    }

    #[test]
    fn as_many_runs_go_through_a_scratch_file_as_its_merge_can_hold() {
        let runs = runs_of_pieces([10, 10, 10, 40]);
        // Two pieces of each run and of the output, and a row group, which is as large as the largest piece at least.
        assert_eq!(scratch_bytes(&runs, 7), 2 * (70 + 40) + 40);
        assert_eq!(scratch_bytes(&runs, 70), 2 * (70 + 40) + 70);
        let fan_in = |row_group, largest| scratch_fan_in(&runs, row_group, largest);
        assert_eq!(fan_in(7, 220).expect("fits"), None, "all can be merged at once");
        assert_eq!(fan_in(7, 219).expect("fits"), Some(3), "all but the large one");
        assert_eq!(fan_in(7, 90).expect("fits"), Some(3));
        assert_eq!(fan_in(7, 89).expect("fits"), Some(2));
        let over = fan_in(7, 69).expect_err("not even two");
        assert!(matches!(over, BatchError::OverBudget { wanted: 70, largest: 69 }), "{over:?}");
    }

    #[tokio::test]
    async fn a_scratch_file_has_parts_of_half_a_row_group_or_a_little_more() {
        let row_group = 1 << 20;
        let process = process(BatchConfig { row_group_bytes_max: row_group, ..BatchConfig::default() }).await;
        let spec = incarnation();
        let piece = description(0, 9);
        let IncarnationSpec { sink, shard, schema, incarnation, .. } = spec;
        let runs = [1, 2].map(|seed| random_run(&schema, 100_000, seed)).to_vec();
        let origins = Origins { sink, shard, schema, incarnation, piece };
        let Run::Scratch(parts) = origins.scratch(&process, runs).await.expect("merged") else {
            panic!("a scratch run")
        };
        let rows: u64 = parts.iter().map(|part| part.descriptor.facts.update_count).sum();
        assert_eq!(rows, 200_000);
        let lens: Vec<u64> = parts.iter().map(|part| part.descriptor.len).collect();
        let (last, full) = lens.split_last().expect("some");
        assert!(full.len() >= 2 && *last < row_group, "{lens:?}");
        for len in full {
            assert!((row_group * 2 / 5..row_group * 4 / 5).contains(len), "{lens:?}");
        }
        // Each lies behind the one before.
        let mut end = 0;
        for StoredPart { descriptor, origin, .. } in &parts {
            let Origin::Scratch(_, offset) = origin else { panic!("in the file") };
            assert_eq!(*offset, end);
            end += descriptor.len;
        }
        assert_eq!(process.budget().usage().read, 0, "its memory is free");
    }
}
