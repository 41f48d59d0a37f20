//! Reading runs: parts of a run one after another, row groups with one ahead, k runs merged.
//!
//! A part's tail is read and checked first, then only the row groups that hold wanted times, each checked
//! before it is decoded (I22). A run holds at most two row groups: one in the merge, one on its way.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    ops::Range,
    os::unix::fs::FileExt,
    sync::Arc,
};

use crate::{
    Absence, BatchError, Process, SinkMeters, absence, meters::BlobOp, process::compute, sync::JoinSet,
    upload::retrying,
};
use bytes::Bytes;
use stash_blob::{BlobError, BlobStore};
use stash_catalog::{Catalog, PartRow};
use stash_part::{MergeStep, OutputLimits, PartError, PartLayout, RowSchema, RunMerge, Sorted};
use stash_types::{BlobKey, Description, InlineRun, PartDescriptor, PartKey, ShardId, SinkId};

/// A sorted run as it lies somewhere.
#[derive(Clone, Debug)]
pub(crate) enum Run {
    /// Parts in the store, in row order.
    Parts(Vec<PartRow>),
    /// Updates that came with the batch.
    Inline(InlineRun),
    /// What an earlier pass merged, in a local file that has no name.
    Scratch(Vec<StoredPart>),
}

/// A part and where its bytes lie.
#[derive(Clone, Debug)]
pub(crate) struct StoredPart {
    /// Its key; in a scratch file, that of the batch's part it was merged from first.
    pub(crate) key: PartKey,
    /// What is said of its bytes.
    pub(crate) descriptor: PartDescriptor,
    /// Where they lie.
    pub(crate) origin: Origin,
}

/// Where a part's bytes lie.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// In the store, under the part's key.
    Store,
    /// In a local file, from this offset on.
    Scratch(Arc<File>, u64),
}

impl Run {
    /// The runs these parts form, in the order they were begun.
    pub(crate) fn of_parts(parts: Vec<PartRow>) -> Vec<Run> {
        let mut runs: BTreeMap<(u32, u32), Vec<PartRow>> = BTreeMap::new();
        for part in parts {
            runs.entry((part.descriptor.process, part.descriptor.run)).or_default().push(part);
        }
        runs.into_values()
            .map(|mut parts| {
                parts.sort_by_key(|part| part.descriptor.ordinal);
                Run::Parts(parts)
            })
            .collect()
    }

    /// The numbers of its parts.
    pub(crate) fn numbers(&self) -> Vec<(u32, u64)> {
        match self {
            Run::Parts(parts) => parts.iter().map(|part| (part.name.process, part.name.n)).collect(),
            Run::Inline(_) | Run::Scratch(_) => Vec::new(),
        }
    }

    /// The bytes it has where it lies.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let sum = |lens: &mut dyn Iterator<Item = u64>| lens.fold(0, u64::saturating_add);
        match self {
            Run::Parts(parts) => sum(&mut parts.iter().map(|part| part.descriptor.len)),
            Run::Scratch(parts) => sum(&mut parts.iter().map(|part| part.descriptor.len)),
            Run::Inline(run) => u64::try_from(run.payload.len()).unwrap_or(u64::MAX),
        }
    }

    /// The largest piece of it that is decoded at once, in bytes.
    fn piece_bytes(&self) -> u64 {
        let largest = |pieces: &mut dyn Iterator<Item = u64>| pieces.max().unwrap_or(0);
        match self {
            Run::Parts(parts) => largest(&mut parts.iter().map(|part| part.descriptor.piece_bytes)),
            Run::Scratch(parts) => largest(&mut parts.iter().map(|part| part.descriptor.piece_bytes)),
            Run::Inline(run) => run.facts.uncompressed_bytes,
        }
    }
}

/// The most of the first runs, two or more and at most `most`, whose merge needs no more than `largest` bytes.
pub(crate) fn fan_in(
    runs: &[Run],
    most: usize,
    needed: impl Fn(&[Run]) -> u64,
    largest: u64,
) -> Option<usize> {
    (2..=most).rev().find(|n| runs.get(..*n).is_some_and(|runs| needed(runs) <= largest))
}

/// Where the parts of a run are read.
#[derive(Clone, Debug)]
struct Place {
    store: Arc<dyn BlobStore>,
    catalog: Arc<dyn Catalog>,
    sink: SinkId,
    schema: RowSchema,
    piece: Description,
    attempts_max: u32,
    meters: Arc<SinkMeters>,
}

/// A run being read, with its next piece on the way.
#[derive(Debug)]
pub(crate) struct RunStream {
    ahead: JoinSet<(Cursor, Result<Option<Sorted>, BatchError>)>,
    idle: Option<Cursor>,
}

#[derive(Debug)]
struct Cursor {
    place: Place,
    parts: VecDeque<StoredPart>,
    open: Option<OpenPart>,
    inline: Option<InlineRun>,
}

#[derive(Debug)]
struct OpenPart {
    part: StoredPart,
    layout: Arc<PartLayout>,
    row_groups: VecDeque<usize>,
}

impl RunStream {
    /// Opens a run for the updates of `piece`; nothing is read yet.
    pub(crate) fn open(
        process: &Process,
        sink: SinkId,
        shard: ShardId,
        schema: &RowSchema,
        run: Run,
        piece: Description,
    ) -> RunStream {
        let place = Place {
            store: Arc::clone(process.store()),
            catalog: Arc::clone(process.catalog()),
            sink,
            schema: schema.clone(),
            piece,
            attempts_max: process.config().attempts_max,
            meters: process.meters().of(shard),
        };
        let stored = |row: PartRow| StoredPart {
            key: row.name.under(shard),
            descriptor: row.descriptor,
            origin: Origin::Store,
        };
        let (parts, inline) = match run {
            Run::Parts(rows) => (rows.into_iter().map(stored).collect(), None),
            Run::Scratch(parts) => (parts.into(), None),
            Run::Inline(run) => (VecDeque::new(), Some(run)),
        };
        let cursor = Cursor { place, parts, open: None, inline };
        RunStream { ahead: JoinSet::new(), idle: Some(cursor) }
    }

    /// Starts to read the next piece.
    fn prefetch(&mut self) {
        if let Some(mut cursor) = self.idle.take() {
            self.ahead.spawn(async move {
                let piece = cursor.next().await;
                (cursor, piece)
            });
        }
    }

    /// The next piece of the run, in row order; `None` at its end. Reading goes on with the one after.
    async fn next(&mut self) -> Result<Option<Sorted>, BatchError> {
        self.prefetch();
        let lost = || BatchError::Ended { what: "reading ahead" };
        let joined = self.ahead.join_next().await.ok_or_else(lost)?;
        let (cursor, piece) = joined.map_err(|_| lost())?;
        // SUBTLE: the cursor comes back whatever happened. It stands before what could not be read, so that the next
        // call tries that again; without it the run would seem to have ended, and its rows were silently missing.
        self.idle = Some(cursor);
        if matches!(piece, Ok(Some(_))) {
            self.prefetch();
        }
        piece
    }
}

impl Cursor {
    /// The next piece. What fails stays where it is, to be tried again.
    async fn next(&mut self) -> Result<Option<Sorted>, BatchError> {
        if let Some(run) = &self.inline {
            let sorted = self.place.decode_inline(run.clone()).await?;
            self.inline = None;
            return Ok(Some(sorted));
        }
        loop {
            if let Some(open) = &mut self.open
                && let Some(index) = open.row_groups.front()
            {
                let sorted = self.place.row_group(&open.part, &open.layout, *index).await?;
                open.row_groups.pop_front();
                return Ok(Some(sorted));
            }
            let Some(part) = self.parts.front() else { return Ok(None) };
            self.open = Some(self.place.open_part(part.clone()).await?);
            self.parts.pop_front();
        }
    }
}

impl Place {
    async fn decode_inline(&self, run: InlineRun) -> Result<Sorted, BatchError> {
        let (schema, piece) = (self.schema.clone(), self.piece);
        let bytes = run.facts.uncompressed_bytes;
        compute(bytes, move || {
            stash_part::decode_inline(&schema, &run)?.between(piece.lower(), piece.upper())
        })
        .await?
        .map_err(BatchError::part(format!("inline run of sink {}, piece {}", self.sink, self.piece)))
    }

    async fn open_part(&self, part: StoredPart) -> Result<OpenPart, BatchError> {
        let (key, descriptor) = (part.key, &part.descriptor);
        let start = descriptor.len.checked_sub(descriptor.tail_len).ok_or_else(|| Absence::Corrupt {
            key,
            what: "its descriptor has a tail longer than the object".to_owned(),
        })?;
        let tail = self.fetch(&part, start..descriptor.len).await?;
        let layout = PartLayout::parse(&self.schema, descriptor, tail).map_err(|error| bad(key, error))?;
        let row_groups = layout.prune(self.piece.lower(), self.piece.upper()).into();
        Ok(OpenPart { part, layout: Arc::new(layout), row_groups })
    }

    async fn row_group(
        &self,
        part: &StoredPart,
        layout: &Arc<PartLayout>,
        index: usize,
    ) -> Result<Sorted, BatchError> {
        let span = layout.row_groups().get(index).ok_or(BatchError::Ended { what: "a row group's span" })?;
        let bytes = self.fetch(part, span.range.clone()).await?;
        let (layout, piece) = (Arc::clone(layout), self.piece);
        let uncompressed = span.uncompressed_bytes;
        compute(uncompressed, move || layout.decode_row_group(index, bytes, piece.lower(), piece.upper()))
            .await?
            .map_err(|error| bad(part.key, error))
    }

    async fn fetch(&self, part: &StoredPart, range: Range<u64>) -> Result<Bytes, BatchError> {
        let key = part.key;
        if let Origin::Scratch(file, offset) = &part.origin {
            return read_scratch(Arc::clone(file), *offset, range).await;
        }
        let blob = BlobKey::from(key);
        let get = || self.store.get_range(&blob, range.clone());
        match retrying(BlobOp::Get, &self.meters, key, self.attempts_max, get).await {
            Ok(bytes) => Ok(bytes),
            Err(BlobError::NotFound { .. }) => {
                Err(absence::of_part(&self.catalog, self.sink, key, self.piece.upper()).await?.into())
            }
            // SUBTLE: a store says "denied" of what is not there, too, to whom it does not let list. The catalog tells the
            // two apart where it can; a part that it still references may be there or not.
            Err(error @ BlobError::Denied { .. }) => {
                match absence::of_part(&self.catalog, self.sink, key, self.piece.upper()).await? {
                    Absence::Lost { .. } => Err(error.into()),
                    absence => Err(absence.into()),
                }
            }
            Err(error) => self.short_or(key, &blob, range, error).await,
        }
    }

    /// An object that ends too early is damaged, not unavailable (case 16).
    async fn short_or(
        &self,
        key: PartKey,
        blob: &BlobKey,
        range: Range<u64>,
        error: BlobError,
    ) -> Result<Bytes, BatchError> {
        match self.store.head(blob).await {
            Ok(Some(len)) if len < range.end => Err(Absence::Corrupt {
                key,
                what: format!(
                    "the object has {len} bytes, {} were to be read up to {}",
                    range.end - range.start,
                    range.end
                ),
            }
            .into()),
            _ => Err(error.into()),
        }
    }
}

fn bad(key: PartKey, error: PartError) -> BatchError {
    if error.is_corrupt() {
        Absence::Corrupt { key, what: error.to_string() }.into()
    } else {
        BatchError::part(key)(error)
    }
}

async fn read_scratch(file: Arc<File>, offset: u64, range: Range<u64>) -> Result<Bytes, BatchError> {
    let scratch = |what: String| BatchError::Scratch { what };
    let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
    let read = move || {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, offset.saturating_add(range.start)).map(|()| Bytes::from(bytes))
    };
    compute(u64::MAX, read).await?.map_err(|error| scratch(format!("read: {error}")))
}

/// Less than this is not given out at once because of its size. Where pieces are smaller, it is not reserved either.
const OUTPUT_BYTES_MIN: usize = 64 << 10;

/// A consolidating merge of runs.
///
/// - What a run fails to give is asked for again by the next call. What the merge itself refuses stays refused:
///   its updates cannot be put back.
pub(crate) struct SortedMerge {
    merge: RunMerge,
    streams: Vec<RunStream>,
    refused: Option<PartError>,
}

impl SortedMerge {
    /// Merges `runs`, each opened by `open`.
    pub(crate) fn new(schema: &RowSchema, runs: Vec<Run>, open: impl Fn(Run) -> RunStream) -> SortedMerge {
        let limits = Self::limits(Self::largest_piece(&runs));
        let mut streams: Vec<RunStream> = runs.into_iter().map(open).collect();
        streams.iter_mut().for_each(RunStream::prefetch);
        SortedMerge { merge: RunMerge::new(schema, streams.len(), limits), streams, refused: None }
    }

    /// What merging these runs needs at once: a piece of each, the one that is read ahead, and what is given out with the
    /// pieces it is made of.
    pub(crate) fn memory_bytes(runs: &[Run]) -> u64 {
        let pieces: u64 = runs.iter().map(Run::piece_bytes).sum();
        pieces.saturating_add(Self::largest_piece(runs)).saturating_mul(2)
    }

    /// As much is given out at once as [`SortedMerge::memory_bytes`] has room for.
    fn limits(largest_piece: u64) -> OutputLimits {
        let bytes = usize::try_from(largest_piece).unwrap_or(usize::MAX).max(OUTPUT_BYTES_MIN);
        OutputLimits { bytes, held_bytes: bytes.saturating_mul(2), ..OutputLimits::default() }
    }

    /// The largest piece that any of them gives.
    pub(crate) fn largest_piece(runs: &[Run]) -> u64 {
        runs.iter().map(Run::piece_bytes).max().unwrap_or(0)
    }

    /// The next consolidated updates in row order; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Sorted>, BatchError> {
        loop {
            let step = self.merging(RunMerge::step)?;
            match step {
                MergeStep::Ready(sorted) => return Ok(Some(sorted)),
                MergeStep::Done => return Ok(None),
                MergeStep::Need(run) => {
                    let stream = self.streams.get_mut(run).ok_or(BatchError::Ended { what: "a run" })?;
                    match stream.next().await? {
                        Some(sorted) => self.merging(|merge| merge.push(run, sorted))?,
                        None => self.merging(|merge| merge.finish(run))?,
                    }
                }
            }
        }
    }

    fn merging<T>(
        &mut self,
        work: impl FnOnce(&mut RunMerge) -> Result<T, PartError>,
    ) -> Result<T, BatchError> {
        let done = match &self.refused {
            Some(error) => Err(error.clone()),
            None => work(&mut self.merge),
        };
        done.map_err(|error| {
            self.refused = Some(error.clone());
            BatchError::part("merging runs")(error)
        })
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) mod tests {
    use stash_types::{PartName, RunFacts, SchemaFingerprint};

    use super::*;
    use crate::{
        owned::tests::part,
        process::tests::{description, incarnation},
    };

    /// A part of `piece_bytes` a piece.
    fn row(n: u64, piece_bytes: u64) -> PartRow {
        let incarnation = incarnation().incarnation;
        let description = description(3, 9);
        let name = PartName { incarnation, description, process: 0, n };
        PartRow { name, descriptor: PartDescriptor { piece_bytes, ..part(n) } }
    }

    /// Runs of one part each, of so many bytes a piece.
    pub(crate) fn runs_of_pieces<const N: usize>(bytes: [u64; N]) -> [Run; N] {
        bytes.map(|bytes| Run::Parts(vec![row(0, bytes)]))
    }

    #[test]
    fn parts_of_a_run_come_together_in_their_order_however_they_are_given() {
        let of = |process, run, ordinal| {
            let mut row = row(u64::from(run * 10 + ordinal), 1);
            (row.name.process, row.descriptor.process) = (process, process);
            (row.descriptor.run, row.descriptor.ordinal) = (run, ordinal);
            row
        };
        let parts = vec![of(1, 0, 0), of(0, 2, 1), of(0, 1, 0), of(0, 2, 2), of(0, 2, 0)];
        let numbers: Vec<_> = Run::of_parts(parts).iter().map(Run::numbers).collect();
        assert_eq!(numbers, [vec![(0, 10)], vec![(0, 20), (0, 21), (0, 22)], vec![(1, 0)]]);
        assert_eq!(Run::of_parts(Vec::new()).len(), 0);
    }

    #[test]
    fn a_run_tells_its_bytes_wherever_it_lies() {
        let rows = [row(1, 30), row(2, 50), row(3, 40)];
        let parts = Run::Parts(rows.to_vec());
        assert_eq!((parts.stored_bytes(), parts.piece_bytes()), (210, 50));
        let shard = incarnation().shard;
        let file = Arc::new(tempfile::tempfile().expect("a file"));
        let stored = |row: PartRow| StoredPart {
            key: row.name.under(shard),
            descriptor: row.descriptor,
            origin: Origin::Scratch(Arc::clone(&file), 0),
        };
        let scratch = Run::Scratch(rows.map(stored).to_vec());
        assert_eq!((scratch.stored_bytes(), scratch.piece_bytes()), (210, 50));
        assert_eq!(scratch.numbers(), [], "no part of its own");
        let payload = Bytes::from_static(b"twelve bytes");
        let digest = stash_types::Digest::of(&payload);
        let facts = RunFacts { uncompressed_bytes: 60, ..part(1).facts };
        let inline =
            Run::Inline(InlineRun { group: 0, payload, digest, facts, schema: SchemaFingerprint(digest) });
        assert_eq!((inline.stored_bytes(), inline.piece_bytes()), (12, 60));
        assert_eq!(inline.numbers(), []);
    }

    #[test]
    fn a_merge_needs_two_pieces_of_each_run_and_of_what_it_gives() {
        let needs = |runs: &[Run]| (SortedMerge::memory_bytes(runs), SortedMerge::largest_piece(runs));
        assert_eq!(needs(&runs_of_pieces([10, 40, 20])), (220, 40));
        assert_eq!(needs(&[]), (0, 0));
        assert_eq!(needs(&runs_of_pieces([u64::MAX])), (u64::MAX, u64::MAX), "no overflow");
    }
}
