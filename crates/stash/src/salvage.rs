//! Salvage: reading parts from a listing alone, when the catalog is lost.
//!
//! Keys tell of each part which shard, incarnation, times and process it is of; its footer tells the rest ([`Surmise`]).
//! No catalog is asked, and nothing in the store is changed: it is opened only to look.
//!
//! - Nothing is believed before it was checked: the footer for its form and against itself and its key, each row group
//!   against its digest, then decoded. A part that fails is named and left out, and the others are read.
//! - What can be read is the batches as they were *offered*: see [`Salvage::UNKNOWN`] for what the catalog took with it.
//! - Memory is that of a process with its defaults; a part that would need more is left out by name.

use std::{collections::BTreeMap, fmt, ops::Range, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use stash_batch::{BatchConfig, BatchReader, BatchSource, Process};
use stash_blob::{BlobEntry, BlobEntryKind, BlobError, BlobStore, Deleted, LocalStore, PutOutcome};
use stash_catalog::{BatchRow, PartRow, SqliteCatalog};
use stash_part::{PartError, PartLayout, RowSchema, Surmise, TRAILER_BYTES, footer_start};
use stash_types::{
    BatchId, BlobKey, BlobPrefix, CatalogId, Description, Frontier, IncarnationId, PartDescriptor, PartKey,
    RunFacts, SchemaFingerprint, ShardId, SinkId, Timestamp,
};
use uuid::Uuid;

use crate::{
    Error, Names, Result, Stash, Stranger, SystemClock, SystemIds, Tally, location::BlobPlace,
    open::BLOBS_FOLDER,
};

/// A store whose catalog is lost.
pub struct Salvage {
    process: Process,
    catalog: Option<CatalogId>,
    catalog_why: Option<String>,
}

/// What was found in a store.
#[derive(Clone, Debug)]
pub struct SalvageReport {
    /// What the listing showed.
    pub listed: Tally,
    /// The catalog that the prefix belongs to, if its `stash.json` says so.
    pub catalog: Option<CatalogId>,
    /// What is wrong with `stash.json`, if anything.
    pub catalog_why: Option<String>,
    /// The sinks that have parts.
    pub sinks: Vec<SalvagedSink>,
    /// Parts that cannot be read, by key, and why.
    pub damaged: Names<String>,
    /// Unpublished uploads; they hold nothing that was ever offered.
    pub uploads: Tally,
    /// What Stash did not write.
    pub foreign: Names<Stranger>,
}

/// A sink as its parts tell of it.
#[derive(Clone, Debug)]
pub struct SalvagedSink {
    /// Its blob namespace.
    pub shard: ShardId,
    /// Its id.
    pub id: SinkId,
    /// Its rows, as they are stored; which columns were dictionaries is not known.
    pub schema: RowSchema,
    /// What was offered, by times and incarnation.
    pub batches: Vec<SalvagedBatch>,
}

/// What one incarnation wrote for one description.
#[derive(Clone, Debug)]
pub struct SalvagedBatch {
    /// The rendering.
    pub incarnation: IncarnationId,
    /// The times it was written for.
    pub description: Description,
    /// The parts that can be read.
    pub parts: Vec<PartRow>,
    /// Bytes of them.
    pub bytes: u64,
    /// What they hold, before runs are merged.
    pub facts: RunFacts,
    /// Batches of other incarnations that cover some of its times: at most one of them counts for each time.
    pub overlaps: u64,
    /// Parts that its runs must have had and the listing does not show, in words. Those at a run's end cannot be missed.
    pub missing: Vec<String>,
}

/// A part that was checked.
struct Examined {
    sink: SinkId,
    schema: RowSchema,
    descriptor: PartDescriptor,
}

/// Why a part was not taken.
enum Refused {
    /// It cannot be read, in words.
    Damaged(String),
    /// The store failed.
    Store(BlobError),
}

impl From<BlobError> for Refused {
    fn from(error: BlobError) -> Refused {
        match error {
            BlobError::NotFound { .. } => Refused::Damaged("it vanished after it was listed".to_owned()),
            BlobError::Determinate { retry: false, .. } => Refused::Damaged(error.to_string()),
            error => Refused::Store(error),
        }
    }
}

impl From<PartError> for Refused {
    fn from(error: PartError) -> Refused {
        Refused::Damaged(error.to_string())
    }
}

impl Salvage {
    /// What no listing tells, in sentences: the catalog alone knew it.
    pub const UNKNOWN: [&'static str; 4] = [
        "which of these batches were accepted, and how far the chain was: batches of different incarnations overlap, and \
         at most one of them counts for each time",
        "trims: of a batch that straddled the chain's upper, only its times from there on counted",
        "small batches: what travelled inline lay in the catalog and is gone, as a whole or as the rest of a batch",
        "names: of sinks, replicas and consumers; what consumers acknowledged; which columns were dictionaries",
    ];

    /// Opens the blobs at `place` only to look at them: a folder or a `file://` URL, of the blobs themselves or of the
    /// stash they lie in, or an `s3://` URL. Must be called on a tokio runtime.
    pub async fn open(place: &str) -> Result<Salvage> {
        let folder = match BlobPlace::parse(place) {
            Ok(BlobPlace::Folder(folder)) => folder,
            #[cfg(feature = "s3")]
            Ok(BlobPlace::S3(config)) => {
                return Salvage::over(Arc::new(stash_blob::s3::S3Store::open(*config).await?)).await;
            }
            Ok(BlobPlace::Memory) => {
                let what = format!("{place} is gone with its process: nothing can be salvaged from it");
                return Err(Error::InvalidUsage { what });
            }
            Err(error) if place.contains("://") => return Err(error),
            Err(_) => PathBuf::from(place),
        };
        let within = folder.join(BLOBS_FOLDER);
        let has_marker = folder.join(BlobKey::stash_json().as_str()).is_file();
        let folder = if !has_marker && within.is_dir() { within } else { folder };
        Salvage::over(Arc::new(LocalStore::open_to_look(&folder)?)).await
    }

    /// The same over any store.
    pub async fn over(store: Arc<dyn BlobStore>) -> Result<Salvage> {
        let (catalog, catalog_why) = match stash_blob::read_marker(&store, stash_blob::FORMAT).await {
            Ok(marker) => (marker.map(|marker| marker.catalog), None),
            Err(
                error @ (stash_blob::ClaimError::NewerFormat { .. } | stash_blob::ClaimError::Store { .. }),
            ) => {
                return Err(error.into());
            }
            Err(error) => (None, Some(error.to_string())),
        };
        // A catalog in memory that knows nothing: readers ask it only what became of a part they miss.
        let nothing = SqliteCatalog::in_memory(Arc::new(SystemClock), Arc::new(SystemIds)).await?;
        let process = Process::start(Arc::new(LookOnly(store)), Arc::new(nothing), BatchConfig::default())?;
        Ok(Salvage { process, catalog, catalog_why })
    }

    /// Where the store is, without secrets.
    pub fn location(&self) -> String {
        self.process.store().location()
    }

    /// Lists one shard, or everything, and checks every byte of every part. `progress` is told how much of what was listed
    /// was checked.
    pub async fn examine(
        &self,
        shard: Option<ShardId>,
        mut progress: impl FnMut(Tally, Tally) + Send,
    ) -> Result<SalvageReport> {
        let mut report = SalvageReport {
            listed: Tally::default(),
            catalog: self.catalog,
            catalog_why: self.catalog_why.clone(),
            sinks: Vec::new(),
            damaged: Names::default(),
            uploads: Tally::default(),
            foreign: Names::default(),
        };
        let mut parts = self.list(shard, &mut report).await?;
        parts.sort_unstable();
        let mut checked = Tally::default();
        let mut shards: BTreeMap<ShardId, Vec<(PartKey, Examined)>> = BTreeMap::new();
        for (key, len) in parts {
            match self.examine_part(key, len).await {
                Ok(examined) => shards.entry(key.shard).or_default().push((key, examined)),
                Err(Refused::Damaged(why)) => report.damaged.push(key.to_string(), len, why),
                Err(Refused::Store(error)) => return Err(error.into()),
            }
            checked.add(len);
            progress(checked, report.listed);
        }
        for (shard, parts) in shards {
            report.sinks.extend(sink_of(shard, parts, &mut report.damaged));
        }
        Ok(report)
    }

    async fn list(&self, shard: Option<ShardId>, report: &mut SalvageReport) -> Result<Vec<(PartKey, u64)>> {
        let mut parts = Vec::new();
        let mut listing = self.process.store().list(shard.map_or(BlobPrefix::All, BlobPrefix::Shard));
        while let Some(entry) = listing.next().await {
            let BlobEntry { kind, len } = entry?;
            report.listed.add(len);
            match kind {
                BlobEntryKind::Object(key) if Stash::is_own_object(&key) => {}
                BlobEntryKind::Object(key) => match key.part_key() {
                    Some(part) => parts.push((part, len)),
                    None => report.foreign.push(key.to_string(), len, Stranger::NotOfStash),
                },
                BlobEntryKind::Upload { .. } => report.uploads.add(len),
                BlobEntryKind::Foreign(name) => report.foreign.push(name, len, Stranger::NotOfStash),
            }
        }
        Ok(parts)
    }

    /// Checks one part from its end to its last row group.
    async fn examine_part(&self, key: PartKey, len: u64) -> std::result::Result<Examined, Refused> {
        let (blob, store) = (BlobKey::from(key), self.process.store());
        let damaged = |what: &str| Refused::Damaged(what.to_owned());
        let trailer_start =
            len.checked_sub(TRAILER_BYTES).ok_or_else(|| damaged("it is too short to be a part"))?;
        let trailer = store.get_range(&blob, trailer_start..len).await?;
        let start = footer_start(len, &trailer)?;
        let footer = store.get_range(&blob, start..len).await?;
        let surmise = Surmise::of_footer(len, &footer)?;
        let (sink, schema) = (surmise.meta().sink, surmise.schema().clone());
        if surmise.meta().description != key.name.description {
            return Err(damaged("its footer tells of other times than its key"));
        }
        if self.catalog.is_some_and(|catalog| ShardId::derive(catalog, sink) != key.shard) {
            return Err(damaged("its footer names a sink that has another shard"));
        }
        let piece_max = self.process.config().row_bytes_max();
        if surmise.piece_bytes() > piece_max {
            return Err(Refused::Damaged(format!(
                "it claims a row group of {} bytes in memory, more than the {piece_max} that are decoded here",
                surmise.piece_bytes()
            )));
        }
        let tail = if surmise.tail() == (start..len) {
            footer
        } else {
            store.get_range(&blob, surmise.tail()).await?
        };
        let (descriptor, layout) = surmise.into_part(key.name.process, key.name.n, tail)?;
        for at in 0..layout.row_groups().len() {
            let Some(span) = layout.row_groups().get(at) else { continue };
            let bytes = store.get_range(&blob, span.range.clone()).await?;
            decode(layout.clone(), at, bytes).await?;
        }
        Ok(Examined { sink, schema, descriptor })
    }

    /// The updates of a batch, consolidated: its runs merged, as a reader of the chain would have them, untrimmed.
    pub fn read(&self, sink: &SalvagedSink, batch: &SalvagedBatch) -> BatchReader {
        let SalvagedBatch { incarnation, description, parts, facts, .. } = batch;
        let (lower, upper) = (description.lower(), description.upper());
        let row = BatchRow {
            id: BatchId::from_uuid(Uuid::nil()),
            seq: 0,
            lower,
            upper,
            extent: upper,
            offered: *description,
            incarnation: *incarnation,
            facts: *facts,
            parts: parts.clone(),
            inline: Vec::new(),
            accepted: Timestamp(0),
        };
        let (schema, shard, id) = (sink.schema.clone(), sink.shard, sink.id);
        BatchReader::open(&self.process, BatchSource { sink: id, shard, schema, batch: row, from: lower })
    }

    /// Ends the background work.
    pub async fn close(&self) -> Result<()> {
        self.process.close().await?;
        Ok(())
    }
}

impl fmt::Debug for Salvage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Salvage").field("process", &self.process).finish_non_exhaustive()
    }
}

async fn decode(layout: PartLayout, at: usize, bytes: Bytes) -> std::result::Result<(), Refused> {
    let work = move || layout.decode_row_group(at, bytes, Frontier::MIN, Frontier::EMPTY).map(drop);
    match tokio::task::spawn_blocking(work).await {
        Ok(decoded) => Ok(decoded?),
        Err(_) => Err(Refused::Damaged("decoding it was stopped".to_owned())),
    }
}

/// What the most of them say: of bytes that nobody vouches for, the many are believed against the few.
fn majority<T: Ord + Copy>(all: impl Iterator<Item = T>) -> Option<T> {
    let mut counts: BTreeMap<T, u64> = BTreeMap::new();
    all.for_each(|one| *counts.entry(one).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(one, _)| one)
}

/// A shard's parts as one sink; those that say otherwise than the most are left out by name.
fn sink_of(
    shard: ShardId,
    parts: Vec<(PartKey, Examined)>,
    damaged: &mut Names<String>,
) -> Option<SalvagedSink> {
    let said = |examined: &Examined| -> (SinkId, SchemaFingerprint) {
        (examined.sink, examined.schema.fingerprint())
    };
    let common = majority(parts.iter().map(|(_, examined)| said(examined)))?;
    let schema = parts.iter().find(|(_, examined)| said(examined) == common)?.1.schema.clone();
    let mut batches: BTreeMap<(Description, IncarnationId), Vec<PartRow>> = BTreeMap::new();
    for (key, examined) in parts {
        if said(&examined) != common {
            let why = "it has another sink or other columns than the most of its shard".to_owned();
            damaged.push(key.to_string(), examined.descriptor.len, why);
            continue;
        }
        let row = PartRow { name: key.name, descriptor: examined.descriptor };
        batches.entry((key.name.description, key.name.incarnation)).or_default().push(row);
    }
    let batches = batches.into_iter().map(|((description, incarnation), parts)| SalvagedBatch {
        incarnation,
        description,
        bytes: parts.iter().map(|part| part.descriptor.len).fold(0, u64::saturating_add),
        facts: parts.iter().fold(RunFacts::default(), |sum, part| sum.and(part.descriptor.facts)),
        overlaps: 0,
        missing: missing(&parts),
        parts,
    });
    let mut batches: Vec<SalvagedBatch> = batches.collect();
    batches.sort_by_key(|batch| (batch.description.lower(), batch.description.upper(), batch.incarnation));
    count_overlaps(&mut batches);
    Some(SalvagedSink { shard, id: common.0, schema, batches })
}

/// Which ordinals of its runs are not there.
fn missing(parts: &[PartRow]) -> Vec<String> {
    let mut runs: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    for part in parts {
        let run = (part.descriptor.process, part.descriptor.run);
        runs.entry(run).or_default().push(part.descriptor.ordinal);
    }
    let mut missing = Vec::new();
    for ((process, run), mut ordinals) in runs {
        ordinals.sort_unstable();
        let mut gap = |from: u32, to: u32| {
            if from < to {
                missing.push(match to - from {
                    1 => format!("part {from} of run {run} of process {process}"),
                    _ => format!("parts {from} to {} of run {run} of process {process}", to - 1),
                });
            }
        };
        let mut due = 0;
        for ordinal in ordinals {
            gap(due, ordinal);
            due = ordinal.saturating_add(1);
        }
    }
    missing
}

/// Counts, for each batch, those of other incarnations that share a time with it. They are sorted by their lowers.
fn count_overlaps(batches: &mut [SalvagedBatch]) {
    let bounds: Vec<(Range<Frontier>, IncarnationId)> = batches
        .iter()
        .map(|batch| (batch.description.lower()..batch.description.upper(), batch.incarnation))
        .collect();
    let mut counts = vec![0u64; batches.len()];
    for (at, (times, incarnation)) in bounds.iter().enumerate() {
        let later = bounds.iter().enumerate().skip(at + 1);
        for (other, (_, theirs)) in later.take_while(|(_, (theirs, _))| theirs.start < times.end) {
            if theirs != incarnation {
                for counted in [at, other] {
                    if let Some(count) = counts.get_mut(counted) {
                        *count += 1;
                    }
                }
            }
        }
    }
    batches.iter_mut().zip(counts).for_each(|(batch, count)| batch.overlaps = count);
}

/// A store that is only looked at: whatever would change it is refused.
#[derive(Debug)]
struct LookOnly(Arc<dyn BlobStore>);

fn refused(op: &'static str, key: &BlobKey) -> BlobError {
    let what = "the store is only looked at".to_owned();
    BlobError::Determinate { op, key: key.to_string(), what, retry: false, source: None }
}

#[async_trait]
impl BlobStore for LookOnly {
    fn location(&self) -> String {
        self.0.location()
    }
    async fn put_new(
        &self,
        key: &BlobKey,
        _chunks: Vec<Bytes>,
    ) -> std::result::Result<PutOutcome, BlobError> {
        Err(refused("put", key))
    }
    async fn get_range(&self, key: &BlobKey, range: Range<u64>) -> std::result::Result<Bytes, BlobError> {
        self.0.get_range(key, range).await
    }
    async fn get(&self, key: &BlobKey, len_max: u64) -> std::result::Result<Bytes, BlobError> {
        self.0.get(key, len_max).await
    }
    async fn head(&self, key: &BlobKey) -> std::result::Result<Option<u64>, BlobError> {
        self.0.head(key).await
    }
    async fn delete(&self, keys: &[BlobKey]) -> Vec<Deleted> {
        keys.iter().map(|key| Deleted { key: key.clone(), outcome: Err(refused("delete", key)) }).collect()
    }
    async fn abort_upload(&self, key: &BlobKey, _token: &str) -> std::result::Result<(), BlobError> {
        Err(refused("abort upload", key))
    }
    fn list(&self, prefix: BlobPrefix) -> BoxStream<'_, std::result::Result<BlobEntry, BlobError>> {
        self.0.list(prefix)
    }
    async fn look_again(
        &self,
        entries: &[BlobEntryKind],
    ) -> std::result::Result<Vec<Option<u64>>, BlobError> {
        self.0.look_again(entries).await
    }
}
