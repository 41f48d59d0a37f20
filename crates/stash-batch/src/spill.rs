//! From updates in memory to parts in the store: sort, merge, encode, PUT.
//!
//! A run is written by one task: the merge and the encoder move to the blocking pool for one part at a time,
//! the part is PUT, and the next one begins. Its memory was reserved when the updates were admitted and is
//! given back when the run stands.

use std::{collections::BTreeSet, sync::Arc};

use stash_part::{
    EncodeOptions, EncodedPart, OutputLimits, PartEncoder, PartError, PartMeta, RowSchema, Sorted, Updates,
};
use stash_types::{Description, fault};

use crate::{
    BatchConfig, BatchError, OwnedParts, Traffic,
    budget::Reservation,
    process::{IncarnationWriter, compute},
    run::{self, Run, RunStream, SortedMerge},
};

/// Memory that is reserved for each byte of updates: themselves, and what they become: sorted, then encoded.
pub(crate) const HELD_FACTOR: u64 = 2;

/// The group of runs that may hold equal rows. One for all, until projections can declare disjoint ones.
pub(crate) const GROUP: u32 = 0;

/// Updates in memory with the memory they were admitted to.
#[derive(Debug, Default)]
pub(crate) struct Held {
    unsorted: Vec<Updates>,
    sorted: Vec<Sorted>,
    unsorted_bytes: u64,
    sorted_bytes: u64,
    unsorted_memory: Option<Reservation>,
    sorted_memory: Option<Reservation>,
}

fn absorb(into: &mut Option<Reservation>, more: Option<Reservation>) {
    match (into.as_mut(), more) {
        (Some(all), Some(more)) => all.absorb(more),
        (None, more) => *into = more,
        (Some(_), None) => {}
    }
}

pub(crate) fn bytes_of(updates: &Updates) -> u64 {
    u64::try_from(updates.memory_bytes()).unwrap_or(u64::MAX)
}

impl Held {
    pub(crate) fn add(&mut self, updates: Updates, memory: Reservation) {
        self.unsorted_bytes = self.unsorted_bytes.saturating_add(bytes_of(&updates));
        self.unsorted.push(updates);
        absorb(&mut self.unsorted_memory, Some(memory));
    }

    pub(crate) fn add_sorted(&mut self, sorted: Sorted, memory: Reservation) {
        self.sorted_bytes = self.sorted_bytes.saturating_add(bytes_of(sorted.updates()));
        self.sorted.push(sorted);
        absorb(&mut self.sorted_memory, Some(memory));
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.unsorted_bytes.saturating_add(self.sorted_bytes)
    }

    pub(crate) fn unsorted_bytes(&self) -> u64 {
        self.unsorted_bytes
    }

    pub(crate) fn take_unsorted(&mut self) -> Option<Held> {
        (!self.unsorted.is_empty()).then(|| Held {
            unsorted: std::mem::take(&mut self.unsorted),
            unsorted_bytes: std::mem::take(&mut self.unsorted_bytes),
            unsorted_memory: self.unsorted_memory.take(),
            ..Held::default()
        })
    }

    pub(crate) fn join(all: impl Iterator<Item = Held>) -> Held {
        let mut joined = Held::default();
        for held in all {
            let Held { unsorted, sorted, unsorted_bytes, sorted_bytes, unsorted_memory, sorted_memory } =
                held;
            joined.unsorted.extend(unsorted);
            joined.sorted.extend(sorted);
            joined.unsorted_bytes = joined.unsorted_bytes.saturating_add(unsorted_bytes);
            joined.sorted_bytes = joined.sorted_bytes.saturating_add(sorted_bytes);
            absorb(&mut joined.unsorted_memory, unsorted_memory);
            absorb(&mut joined.sorted_memory, sorted_memory);
        }
        joined
    }

    /// All of it sorted and consolidated as one, with its memory. For what is small, or one chunk.
    pub(crate) fn consolidate(self, schema: &RowSchema) -> Result<(Sorted, Option<Reservation>), PartError> {
        let Held { mut unsorted, sorted, unsorted_memory, mut sorted_memory, .. } = self;
        unsorted.extend(sorted.into_iter().map(Sorted::into_updates));
        let sorted = stash_part::consolidate(Updates::concat(schema, &unsorted)?)?;
        absorb(&mut sorted_memory, unsorted_memory);
        if let Some(memory) = &mut sorted_memory {
            memory.shrink_to(bytes_of(sorted.updates()).saturating_mul(HELD_FACTOR));
        }
        Ok((sorted, sorted_memory))
    }

    /// All of it as sorted chunks of about `chunk_bytes`, with its memory.
    fn into_chunks(
        self,
        schema: &RowSchema,
        chunk_bytes: u64,
    ) -> Result<(Vec<Sorted>, Option<Reservation>), PartError> {
        let Held { unsorted, mut sorted, unsorted_memory, mut sorted_memory, .. } = self;
        let (mut pending, mut pending_bytes) = (Vec::new(), 0u64);
        for updates in unsorted {
            pending_bytes = pending_bytes.saturating_add(bytes_of(&updates));
            pending.push(updates);
            if pending_bytes >= chunk_bytes {
                sorted.push(stash_part::consolidate(Updates::concat(schema, &pending)?)?);
                pending.clear();
                pending_bytes = 0;
            }
        }
        if !pending.is_empty() {
            sorted.push(stash_part::consolidate(Updates::concat(schema, &pending)?)?);
        }
        absorb(&mut sorted_memory, unsorted_memory);
        Ok((sorted, sorted_memory))
    }
}

/// A run that ends in a larger row is not gone on with.
const END_BYTES_MAX: u64 = 64 << 10;

/// Where a run ended: what comes after all of it may become more of its parts.
#[derive(Debug)]
pub(crate) struct RunEnd {
    run: u32,
    /// Of the part that would be next.
    ordinal: u32,
    last: Sorted,
}

/// What became of updates that were written.
#[derive(Debug)]
pub(crate) struct WrittenRun {
    /// `None` when nothing was left after consolidation.
    pub(crate) parts: Option<OwnedParts>,
    pub(crate) end: Option<RunEnd>,
}

/// Encodes sorted updates into parts of one run, closing a part when it is full.
struct RunEncoder {
    schema: RowSchema,
    meta: PartMeta,
    options: EncodeOptions,
    part_bytes: u64,
    open: Option<PartEncoder>,
    /// Whether the run may be gone on with.
    goes_on: bool,
    last: Option<Sorted>,
}

impl RunEncoder {
    /// For a run that ends with what is written to it.
    fn new(writer: &IncarnationWriter, description: Description, run: u32) -> RunEncoder {
        let (spec, config) = (writer.spec(), writer.process().config());
        RunEncoder {
            schema: spec.schema.clone(),
            meta: PartMeta { sink: spec.sink, description, group: GROUP, run, ordinal: 0 },
            options: encode_options(config),
            part_bytes: config.part_bytes,
            open: None,
            goes_on: false,
            last: None,
        }
    }

    /// For a run that may be gone on with, or the rest of the one that ended there.
    fn going_on(mut self, end: Option<RunEnd>) -> RunEncoder {
        self.goes_on = true;
        if let Some(RunEnd { run, ordinal, last }) = end {
            (self.meta.run, self.meta.ordinal, self.last) = (run, ordinal, Some(last));
        }
        self
    }

    /// Where the run ends, once the last part is finished.
    fn end(self) -> Option<RunEnd> {
        let PartMeta { run, ordinal, .. } = self.meta;
        self.last.map(|last| RunEnd { run, ordinal, last })
    }

    /// Takes the next updates; gives a part that they filled.
    fn write(&mut self, sorted: &Sorted) -> Result<Option<EncodedPart>, PartError> {
        if sorted.updates().is_empty() {
            return Ok(None);
        }
        let open = match self.open.take() {
            Some(open) => self.open.insert(open),
            None => self.open.insert(PartEncoder::new(&self.schema, self.meta, self.options)?),
        };
        open.write(sorted)?;
        if self.goes_on {
            // SUBTLE: its last row alone, copied. A clone would keep all that the merge gave out last, beside what it gives
            // out next and what memory was reserved for. What is kept until the next run counts for no budget either.
            self.last = sorted.last()?.filter(|last| bytes_of(last.updates()) <= END_BYTES_MAX);
        }
        let full = u64::try_from(open.encoded_bytes()).unwrap_or(u64::MAX) >= self.part_bytes;
        if full { self.finish() } else { Ok(None) }
    }

    fn finish(&mut self) -> Result<Option<EncodedPart>, PartError> {
        let Some(open) = self.open.take() else { return Ok(None) };
        self.meta.ordinal = self.meta.ordinal.saturating_add(1);
        open.finish().map(Some)
    }
}

/// The encoder's options under these knobs.
pub(crate) fn encode_options(config: &BatchConfig) -> EncodeOptions {
    EncodeOptions {
        row_group_bytes_max: usize::try_from(config.row_group_bytes_max).unwrap_or(usize::MAX),
        row_group_rows_max: config.row_group_rows_max,
        row_bytes_max: usize::try_from(config.row_bytes_max()).unwrap_or(usize::MAX),
        ..EncodeOptions::default()
    }
}

/// Writes what is held: as more of the run that ended at `after` where all of it follows, else as a run of its own.
///
/// So what comes in order is one run however large it is, and is never read again to be merged.
pub(crate) async fn write_run(
    writer: &Arc<IncarnationWriter>,
    description: Description,
    held: Held,
    after: Option<RunEnd>,
) -> Result<WrittenRun, BatchError> {
    let bytes = held.bytes();
    let schema = writer.spec().schema.clone();
    let chunk_bytes = writer.process().config().chunk_bytes;
    let named = || BatchError::part(format!("description {description} of sink {}", writer.spec().sink));
    let (chunks, memory, after) = compute(bytes, {
        let schema = schema.clone();
        move || {
            let (chunks, memory) = held.into_chunks(&schema, chunk_bytes)?;
            let follow = |end: &RunEnd| {
                chunks.iter().try_fold(true, |all, chunk| Ok(all && chunk.follows(&end.last)?))
            };
            let follow = after.as_ref().map(follow).transpose()?.unwrap_or(false);
            Ok((chunks, memory, after.filter(|_| follow)))
        }
    })
    .await?
    .map_err(named())?;
    let run = after.as_ref().map_or_else(|| writer.next_run(), |end| end.run);
    let encoder = RunEncoder::new(writer, description, run).going_on(after);
    let runs: Vec<Vec<Sorted>> = chunks.into_iter().map(|chunk| vec![chunk]).collect();
    // The chunks are there in any case, whatever is kept of them; what is given out becomes a row group.
    let row_group = encoder.options.row_group_bytes_max;
    let limits = OutputLimits { bytes: row_group, ..OutputLimits::default() };
    let mut work = (stash_part::merge_chunks(&schema, runs, limits), encoder);
    let mut written: Option<OwnedParts> = None;
    loop {
        let (back, part) = compute(bytes, move || {
            let part = fill_part(&mut work.0, &mut work.1);
            (work, part)
        })
        .await?;
        work = back;
        let Some(part) = part.map_err(named())? else { break };
        let owned = writer.put(description, &part).await?;
        match &mut written {
            Some(all) => all.absorb(owned),
            None => written = Some(owned),
        }
    }
    let end = work.1.end();
    drop(memory);
    fault::place("batch.run_written");
    Ok(WrittenRun { parts: written, end })
}

fn fill_part(
    merge: &mut impl Iterator<Item = Result<Sorted, PartError>>,
    encoder: &mut RunEncoder,
) -> Result<Option<EncodedPart>, PartError> {
    for sorted in merge {
        if let Some(part) = encoder.write(&sorted?)? {
            return Ok(Some(part));
        }
    }
    encoder.finish()
}

/// Merges the smallest runs into longer ones until a reader can afford their number, as many at once as the memory
/// can hold; the inputs are given up (case 9).
///
/// So the run of all that came in order, however large, is left as it stands: what came late is what is read again.
pub(crate) async fn bound_runs(
    writer: &Arc<IncarnationWriter>,
    description: Description,
    mut owned: OwnedParts,
) -> Result<OwnedParts, BatchError> {
    let config = writer.process().config();
    loop {
        let mut runs = Run::of_parts(owned.named_parts());
        if runs.len() <= config.runs_max {
            return Ok(owned);
        }
        runs.sort_by_cached_key(Run::stored_bytes);
        let budget = writer.process().budget();
        let fan_in = merge_fan_in(&runs, config, budget.largest(Traffic::Write));
        runs.truncate(fan_in);
        let spec = writer.spec();
        let run = writer.next_run();
        let memory = merge_bytes(&runs, config.part_bytes);
        let _memory = budget.reserve_or(Traffic::Write, memory, writer.process().slots()).await?;
        let inputs: BTreeSet<(u32, u64)> = runs.iter().flat_map(Run::numbers).collect();
        let mut merge = SortedMerge::new(&spec.schema, runs, |run| {
            RunStream::open(writer.process(), spec.sink, spec.shard, &spec.schema, run, description)
        });
        let mut encoder = RunEncoder::new(writer, description, run);
        let named = || BatchError::part(format!("description {description} of sink {}", spec.sink));
        let mut merged = writer.owned(description, Vec::new());
        while let Some(sorted) = merge.next().await? {
            let bytes = bytes_of(sorted.updates());
            let (back, part) = compute(bytes, move || {
                let part = encoder.write(&sorted);
                (encoder, part)
            })
            .await?;
            encoder = back;
            if let Some(part) = part.map_err(named())? {
                merged.absorb(writer.put(description, &part).await?);
            }
        }
        if let Some(part) = encoder.finish().map_err(named())? {
            merged.absorb(writer.put(description, &part).await?);
        }
        let (used, kept) = owned.split(|part| inputs.contains(&(part.process, part.n)));
        fault::place("batch.runs_merged");
        used.discard();
        owned = kept;
        owned.absorb(merged);
    }
}

/// What merging these runs into parts needs at once: the merge, and a part on its way out.
fn merge_bytes(runs: &[Run], part_bytes: u64) -> u64 {
    SortedMerge::memory_bytes(runs).saturating_add(part_bytes)
}

/// How many of the first runs are merged at once: as many as `largest` bytes of memory can hold, and two at the least: what
/// those need, no smaller merge can avoid.
fn merge_fan_in(runs: &[Run], config: &BatchConfig, largest: u64) -> usize {
    run::fan_in(runs, config.runs_max, |runs| merge_bytes(runs, config.part_bytes), largest).unwrap_or(2)
}

#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) mod tests {
    use arrow::{
        array::{Int64Array, StringArray},
        datatypes::{DataType, Field, Schema},
    };

    use super::*;
    use crate::{
        process::tests::{description, incarnation, process},
        run::tests::runs_of_pieces,
    };

    #[test]
    fn as_many_runs_are_merged_at_once_as_memory_can_hold_and_two_at_the_least() {
        let config = BatchConfig { runs_max: 4, part_bytes: 7, ..BatchConfig::default() };
        let runs = runs_of_pieces([10, 10, 10, 40, 50]);
        assert_eq!(merge_bytes(&runs[..3], 7), 2 * (30 + 10) + 7);
        let fan_in = |largest| merge_fan_in(&runs, &config, largest);
        assert_eq!(fan_in(u64::MAX), 4, "as many as a reader is to be expected to afford");
        assert_eq!(fan_in(2 * (70 + 40) + 7), 4);
        assert_eq!(fan_in(2 * (70 + 40) + 6), 3);
        assert_eq!(fan_in(87), 3);
        assert_eq!(fan_in(86), 2);
        assert_eq!(fan_in(0), 2, "it waits for what it cannot do without");
    }

    /// Updates of these keys, each once at time 3.
    pub(crate) fn rows(keys: impl IntoIterator<Item = i64>) -> Updates {
        updates(keys.into_iter().map(|key| (key, 3)))
    }

    /// An update at each of these times.
    pub(crate) fn rows_at(times: &[u64]) -> Updates {
        updates((0..).zip(times.iter().copied()))
    }

    fn updates(rows: impl Iterator<Item = (i64, u64)>) -> Updates {
        let (keys, times): (Vec<i64>, Vec<u64>) = rows.unzip();
        let ones = vec![1; keys.len()];
        let columns: Vec<arrow::array::ArrayRef> = vec![Arc::new(Int64Array::from(keys))];
        Updates::from_columns(&incarnation().schema, columns, times.into(), ones.into()).expect("sound")
    }

    /// Where a run of this number ended.
    pub(crate) fn run_end(run: u32) -> RunEnd {
        RunEnd { run, ordinal: 1, last: sorted([9]) }
    }

    /// The number of the run that ended there.
    pub(crate) fn run_of(end: &RunEnd) -> u32 {
        end.run
    }

    fn sorted(keys: impl IntoIterator<Item = i64>) -> Sorted {
        stash_part::consolidate(rows(keys)).expect("sorted")
    }

    #[tokio::test]
    async fn what_is_held_is_counted_with_its_memory() {
        let process = process(BatchConfig::default()).await;
        let reserve = |bytes| process.budget().reserve(Traffic::Write, bytes);
        let used = || process.budget().usage().write;
        let (four, six) = (rows(0..4), sorted(0..6));
        let (of_four, of_six) = (bytes_of(&four), bytes_of(six.updates()));
        assert!(0 < of_four && of_four < of_six);

        let mut held = Held::default();
        assert_eq!((held.bytes(), held.unsorted_bytes()), (0, 0));
        assert!(held.take_unsorted().is_none(), "there is nothing");
        held.add(four.clone(), reserve(1000).await.expect("there is memory"));
        held.add(four.clone(), reserve(1000).await.expect("there is memory"));
        held.add_sorted(six.clone(), reserve(1000).await.expect("there is memory"));
        assert_eq!((held.bytes(), held.unsorted_bytes()), (2 * of_four + of_six, 2 * of_four));
        assert_eq!(used(), 3000);

        let taken = held.take_unsorted().expect("eight rows");
        assert_eq!((taken.bytes(), taken.unsorted_bytes()), (2 * of_four, 2 * of_four));
        assert_eq!((held.bytes(), held.unsorted_bytes()), (of_six, 0));
        assert!(held.take_unsorted().is_none(), "it was taken");

        let joined = Held::join([held, taken].into_iter());
        assert_eq!((joined.bytes(), joined.unsorted_bytes()), (2 * of_four + of_six, 2 * of_four));
        let (all, memory) = joined.consolidate(&incarnation().schema).expect("sound");
        assert_eq!(all.updates().num_rows(), 6, "equal rows become one");
        assert_eq!(all.updates().diffs().to_vec(), [3, 3, 3, 3, 1, 1]);
        assert_eq!(used(), HELD_FACTOR * bytes_of(all.updates()), "what consolidating saved is given back");
        drop(memory);
        assert_eq!(used(), 0);
    }

    #[tokio::test]
    async fn what_is_written_is_sorted_in_chunks_of_a_size() {
        let process = process(BatchConfig::default()).await;
        let memory = |bytes| process.budget().reserve(Traffic::Write, bytes);
        let piece = bytes_of(&rows(0..4));
        let mut held = Held::default();
        for n in 0..5 {
            held.add(rows(n * 4..n * 4 + 4), memory(10).await.expect("there is memory"));
        }
        held.add_sorted(sorted(100..103), memory(10).await.expect("there is memory"));
        let (chunks, reserved) = held.into_chunks(&incarnation().schema, 2 * piece).expect("sorted");
        let chunks: Vec<usize> = chunks.iter().map(|chunk| chunk.updates().num_rows()).collect();
        assert_eq!(chunks, [3, 8, 8, 4], "what was sorted already, two pieces each, and the last");
        assert_eq!(process.budget().usage().write, 60);
        drop(reserved);
    }

    #[test]
    fn parts_are_encoded_under_the_limits_of_the_process() {
        let config = BatchConfig {
            memory_bytes: BatchConfig::MEMORY_BYTES_MIN,
            row_group_bytes_max: 11,
            row_group_rows_max: 12,
            ..BatchConfig::default()
        };
        let options = encode_options(&config);
        assert_eq!((options.row_group_bytes_max, options.row_group_rows_max), (11, 12));
        assert_eq!(u64::try_from(options.row_bytes_max), Ok(config.row_bytes_max()));
        assert_ne!(options.row_bytes_max, EncodeOptions::default().row_bytes_max);
    }

    #[tokio::test]
    async fn a_run_that_ends_in_a_large_row_is_not_gone_on_with() {
        let schema = Schema::new(vec![Field::new("text", DataType::Utf8, false)]);
        let schema = RowSchema::new(Arc::new(schema)).expect("a schema");
        let spec = crate::IncarnationSpec { schema: schema.clone(), ..incarnation() };
        let writer = crate::WriterHandle::open(process(BatchConfig::default()).await, spec).expect("sound");
        let description = description(3, 9);
        let end_after = |lengths: &[usize]| {
            let mut run = RunEncoder::new(writer.writer(), description, 7).going_on(None);
            for length in lengths {
                let column: arrow::array::ArrayRef = Arc::new(StringArray::from(vec!["z".repeat(*length)]));
                let row = Updates::from_columns(&schema, vec![column], vec![3].into(), vec![1].into());
                let sorted = stash_part::consolidate(row.expect("sound")).expect("sorted");
                run.write(&sorted).expect("written");
            }
            run.end().map(|end| end.run)
        };
        let large = usize::try_from(END_BYTES_MAX).expect("small");
        assert_eq!(end_after(&[large / 2]), Some(7));
        assert_eq!(end_after(&[large / 2, large]), None, "nor is a smaller row before it its end");
    }
}
