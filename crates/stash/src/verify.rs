//! Verifying a sink against its store by the named invariants.
//!
//! The store is listed first and the catalog read afterwards, so what changes in between can only look like being written
//! or gone since; a violation is reported only after a second look. The chain is read a page at a time, each page with its
//! head in one snapshot: where the first row begins and the last one ends is checked in the snapshot it was read in.
//!
//! Of the objects that batches reference every byte is read, once: segment by segment, each checked against its digest and
//! decoded, and all of them together against the digest of the whole. What is held is a row group, and the one ahead.
//!
//! Not all of I1 to I25 can be seen from outside: [`VerifyReport::CHECKED`] can, the others speak of what happened while
//! it happened, and are checked by tests.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::StreamExt;
use serde::Serialize;
use stash_batch::BatchError;
use stash_blob::{BlobError, BlobStore};
use stash_catalog::{BatchRow, ChainSlice, PartRow};
use stash_chain::invariants::{self, Invariant};
use stash_part::{
    MergeStep, OutputLimits, PartError, PartLayout, RunMerge, Sorted, decode_inline, tail_range,
};
use stash_types::{BlobKey, BlobPrefix, Description, Frontier, InlineRun, PartKey};

use crate::{
    Class, Error, Result, Sink, Stranger,
    classify::{ENTRIES_A_CHUNK, Walk},
};

/// Batches that are read from the catalog at once.
const ROWS_A_READ: u32 = 200;
/// Row groups that are fetched ahead.
const FETCH_AHEAD: usize = 2;
/// One promise that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The invariant's name, such as `I4`.
    pub invariant: String,
    /// What was found.
    pub what: String,
}

impl Violation {
    pub(crate) fn of(invariant: Invariant, what: impl Into<String>) -> Violation {
        Violation { invariant: invariant.name().to_owned(), what: what.into() }
    }
}

/// What a verification looked at and found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// Batches of the chain.
    pub batches: u64,
    /// Parts that were read and compared with their digests.
    pub parts: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Objects in the store that an open incarnation may still offer.
    pub being_written: u64,
    /// Objects in the store that the deletion queue owns.
    pub queued: u64,
    /// What does not hold.
    pub violations: Vec<Violation>,
}

impl VerifyReport {
    /// The invariants that a verification checks.
    pub const CHECKED: [Invariant; 11] = [
        Invariant::I3,
        Invariant::I4,
        Invariant::I5,
        Invariant::I6,
        Invariant::I7,
        Invariant::I9,
        Invariant::I13,
        Invariant::I14,
        Invariant::I15,
        Invariant::I17,
        Invariant::I22,
    ];

    /// The invariants that cannot be seen from outside.
    pub fn unseen() -> impl Iterator<Item = Invariant> {
        Invariant::ALL.into_iter().filter(|invariant| !Self::CHECKED.contains(invariant))
    }

    fn broken(&mut self, invariant: Invariant, what: impl Into<String>) {
        self.violations.push(Violation::of(invariant, what));
    }

    fn check(&mut self, checked: invariants::Checked) {
        if let Err(violation) = checked {
            self.broken(violation.invariant, violation.what);
        }
    }
}

impl Sink {
    /// Checks the chain (I4 to I7, I13), renderings (I9), ownership (I14, I17), that every referenced part is there as it
    /// was accepted (I15), and that every batch decodes into what was written (I3, I22). Reads every byte of the sink.
    pub async fn verify(&self, mut progress: impl FnMut(&VerifyReport)) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        let (revision, before) = (self.stash().catalog().revision().await?, self.head().await?);
        self.verify_owners(&mut report).await?;
        self.verify_chain(&mut report, &mut progress).await?;
        self.verify_renderings(&mut report).await?;
        let after = self.head().await?;
        report.check(invariants::i13_monotone("the upper", [before.upper, after.upper]));
        report.check(invariants::i13_monotone("what was released", [before.released, after.released]));
        let revisions = [revision, self.stash().catalog().revision().await?];
        report.check(invariants::i7_no_lost_history(revisions));
        Ok(report)
    }

    async fn verify_owners(&self, report: &mut VerifyReport) -> Result<()> {
        let mut walk = Walk::open(self.stash(), BlobPrefix::Shard(self.shard())).looking_twice();
        while let Some(chunk) = walk.next().await? {
            for judged in chunk {
                let name = judged.name();
                match judged.class {
                    Class::Referenced | Class::Gone | Class::Own => {}
                    Class::BeingWritten | Class::Uploading => report.being_written += 1,
                    Class::Queued(_) => report.queued += 1,
                    Class::Garbage(_) => {
                        report.broken(Invariant::I17, format!("{name} is in the store and nobody owns it"));
                    }
                    Class::LeftOver(_) => report.broken(Invariant::I17, format!("{name} was left over")),
                    Class::Foreign(Stranger::UnknownIncarnation) => {
                        report.broken(Invariant::I17, format!("{name} is of an incarnation nobody knows"));
                    }
                    Class::Foreign(_) => {
                        report.broken(Invariant::I17, format!("{name} was not written by Stash"));
                    }
                }
            }
        }
        Ok(())
    }

    async fn verify_chain(
        &self,
        report: &mut VerifyReport,
        progress: &mut impl FnMut(&VerifyReport),
    ) -> Result<()> {
        let mut from = Frontier::MIN;
        loop {
            let slice = self.stash().catalog().chain(self.id(), from, ROWS_A_READ).await?;
            let begins = slice.head.released.max(slice.head.expired).max(self.rules().start());
            // SUBTLE: what follows the page before may have been released since. Then the chain begins later now. A row
            // that others follow is not extended any more, so nothing begins before the page.
            self.verify_page(&slice, from.max(begins), report);
            for batch in &slice.batches {
                report.batches += 1;
                self.verify_batch(batch, report).await?;
                progress(report);
            }
            match slice.batches.last().map(|batch| batch.extent) {
                Some(extent) if extent > from && extent < slice.head.upper => from = extent,
                _ => return Ok(()),
            }
        }
    }

    /// The rows of one snapshot: they begin where they must, follow one another, and the last of them end at the upper.
    fn verify_page(&self, slice: &ChainSlice, due: Frontier, report: &mut VerifyReport) {
        let rows = slice.batches.iter().map(|batch| (batch.lower, batch.upper, batch.extent));
        report.check(invariants::i4_gapless(due, rows));
        let end = slice.batches.last().map_or(due, |last| last.extent);
        let full = u32::try_from(slice.batches.len()).is_ok_and(|rows| rows >= ROWS_A_READ);
        let ends = if full { end <= slice.head.upper } else { end == slice.head.upper };
        let told = || format!("the rows end at {end}, the head at {}", slice.head.upper);
        report.check(invariants::ensure(ends, Invariant::I4, told));
        for batch in &slice.batches {
            // What is left of a released batch holds nothing, and covers times behind its own.
            let holds = !(batch.parts.is_empty() && batch.inline.is_empty());
            if holds && let Some(piece) = Description::new(batch.lower, batch.upper) {
                report.check(invariants::i6_trim(batch.lower, batch.offered, piece));
            }
        }
    }

    async fn verify_renderings(&self, report: &mut VerifyReport) -> Result<()> {
        // Before the head: the upper only rises, so what held at a grant holds at every later head.
        let incarnations = self.incarnations().await?;
        let upper = self.head().await?.upper;
        for row in incarnations {
            if let Err(violation) = invariants::i9_rehydrate(self.rules(), upper, row.as_of) {
                report.broken(violation.invariant, format!("incarnation {}: {}", row.id, violation.what));
            }
        }
        Ok(())
    }

    /// Reads all of a batch. Its runs are read one after another, each byte once.
    async fn verify_batch(&self, batch: &BatchRow, report: &mut VerifyReport) -> Result<()> {
        let mut runs: BTreeMap<(u32, u32), Vec<&PartRow>> = BTreeMap::new();
        for part in &batch.parts {
            runs.entry((part.descriptor.process, part.descriptor.run)).or_default().push(part);
        }
        let (mut sums, before) = (Vec::new(), report.violations.len());
        for mut parts in runs.into_values() {
            parts.sort_by_key(|part| part.descriptor.ordinal);
            sums.push(self.verify_run(batch, &parts, report).await?);
        }
        for run in &batch.inline {
            sums.push(self.verify_inline(batch, run, report));
        }
        // Only where the runs' largest diffs could sum to more than a diff holds is the merge itself to be tried.
        let largest = sums.iter().fold(0u64, |sum, largest| sum.saturating_add(*largest));
        if sums.len() > 1 && i64::try_from(largest).is_err() && report.violations.len() == before {
            self.verify_merged(batch, report).await?;
        }
        Ok(())
    }

    /// Reads the parts of a run, and gives the largest diff in it, without its sign.
    async fn verify_run(
        &self,
        batch: &BatchRow,
        parts: &[&PartRow],
        report: &mut VerifyReport,
    ) -> Result<u64> {
        let mut order = RunMerge::new(self.schema(), 1, OutputLimits::default());
        let mut largest = 0;
        for parts in parts.chunks(ENTRIES_A_CHUNK) {
            let keys: Vec<PartKey> = parts.iter().map(|part| part.name.under(self.shard())).collect();
            let states = self.stash().catalog().key_states(self.id(), &keys).await?;
            for state in states.iter().filter(|state| state.referenced_by.is_some() && state.queued.is_some())
            {
                let what = format!("{} is referenced and queued for deletion", state.key);
                report.broken(Invariant::I14, what);
            }
            for (part, key) in parts.iter().zip(keys) {
                match self.verify_part(batch, part, key, &mut order, report).await? {
                    Some(diff) => largest = largest.max(diff),
                    // The order across a gap means nothing.
                    None => order = RunMerge::new(self.schema(), 1, OutputLimits::default()),
                }
            }
        }
        Ok(largest)
    }

    /// Reads one part; `None` if it is not as it was accepted, which is reported, or was released meanwhile.
    async fn verify_part(
        &self,
        batch: &BatchRow,
        part: &PartRow,
        key: PartKey,
        order: &mut RunMerge,
        report: &mut VerifyReport,
    ) -> Result<Option<u64>> {
        let stored = match self.stash().store().head(&BlobKey::from(key)).await {
            Ok(stored) => stored,
            Err(error @ BlobError::Determinate { retry: false, .. }) => {
                report.broken(Invariant::I15, error.to_string());
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        if stored != Some(part.descriptor.len) {
            if self.is_referenced(key).await? {
                let accepted = part.descriptor.len;
                let what = match stored {
                    None => "the store does not have it: it was deleted from outside".to_owned(),
                    Some(len) => format!("the store has {len} bytes under it: it was exchanged from outside"),
                };
                report
                    .broken(Invariant::I15, format!("{key} is referenced with {accepted} bytes, and {what}"));
            }
            return Ok(None);
        }
        let error = match self.read_whole(batch, part, key, order, report).await? {
            Ok(largest) => {
                report.parts += 1;
                report.bytes += part.descriptor.len;
                return Ok(Some(largest));
            }
            Err(error) => error,
        };
        match error {
            Unread::Store(BlobError::NotFound { .. }) => {
                if self.is_referenced(key).await? {
                    report
                        .broken(Invariant::I15, format!("{key} is referenced and was deleted from outside"));
                }
            }
            Unread::Store(error @ BlobError::Determinate { retry: false, .. }) => {
                report.broken(Invariant::I22, error.to_string());
            }
            Unread::Store(error) => return Err(error.into()),
            Unread::Part(error) => report.broken(Invariant::I22, format!("{key}: {error}")),
        }
        Ok(None)
    }

    async fn is_referenced(&self, key: PartKey) -> Result<bool> {
        let states = self.stash().catalog().key_states(self.id(), &[key]).await?;
        Ok(states.first().is_some_and(|state| state.referenced_by.is_some()))
    }

    /// Reads the tail, then each row group, checks and decodes each, and compares all with the digest of the whole.
    async fn read_whole(
        &self,
        batch: &BatchRow,
        part: &PartRow,
        key: PartKey,
        order: &mut RunMerge,
        report: &mut VerifyReport,
    ) -> Result<std::result::Result<u64, Unread>> {
        let (blob, store) = (BlobKey::from(key), self.stash().store());
        let tail = match store.get_range(&blob, tail_range(&part.descriptor)).await {
            Ok(tail) => tail,
            Err(error) => return Ok(Err(error.into())),
        };
        let layout = match PartLayout::parse(self.schema(), &part.descriptor, tail.clone()) {
            Ok(layout) => layout,
            Err(error) => return Ok(Err(error.into())),
        };
        let ranges: Vec<_> = layout.row_groups().iter().map(|span| span.range.clone()).collect();
        let mut fetched =
            futures::stream::iter(ranges).map(|range| store.get_range(&blob, range)).buffered(FETCH_AHEAD);
        let (mut whole, mut largest, mut at) = (stash_part::WholeDigest::default(), 0u64, 0);
        while let Some(bytes) = fetched.next().await {
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(error) => return Ok(Err(error.into())),
            };
            let decoded = decode(&layout, at, bytes, whole).await?;
            let (sorted, hashed) = match decoded {
                Ok(decoded) => decoded,
                Err(error) => return Ok(Err(error.into())),
            };
            (whole, at) = (hashed, at + 1);
            report.check(invariants::i3_real_times(batch.offered, sorted.times().iter().copied()));
            largest = sorted.diffs().iter().map(|diff| diff.unsigned_abs()).fold(largest, u64::max);
            if let Err(error) = follow(order, sorted) {
                return Ok(Err(error.into()));
            }
        }
        Ok(match whole.and(&tail) == part.descriptor.digest {
            true => Ok(largest),
            false => {
                Err(PartError::Corrupt { what: "it differs from the digest of the whole".to_owned() }.into())
            }
        })
    }

    fn verify_inline(&self, batch: &BatchRow, run: &InlineRun, report: &mut VerifyReport) -> u64 {
        match decode_inline(self.schema(), run) {
            Ok(sorted) => {
                report.check(invariants::i3_real_times(batch.offered, sorted.times().iter().copied()));
                sorted.diffs().iter().map(|diff| diff.unsigned_abs()).max().unwrap_or(0)
            }
            Err(error) => {
                report.broken(Invariant::I22, format!("an inline run of batch {}: {error}", batch.seq));
                0
            }
        }
    }

    async fn verify_merged(&self, batch: &BatchRow, report: &mut VerifyReport) -> Result<()> {
        let mut reader = self.reader(batch.clone(), batch.lower);
        loop {
            match reader.next().await.map_err(Error::from) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                // What is missing now was released since it was read.
                Err(Error::Absent(_)) => return Ok(()),
                Err(Error::Batch(error @ BatchError::Part { .. })) => {
                    report.broken(Invariant::I22, format!("batch {}: {error}", batch.seq));
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Why a part was not read.
enum Unread {
    Store(BlobError),
    Part(PartError),
}

impl From<BlobError> for Unread {
    fn from(error: BlobError) -> Unread {
        Unread::Store(error)
    }
}

impl From<PartError> for Unread {
    fn from(error: PartError) -> Unread {
        Unread::Part(error)
    }
}

/// Checks, decodes and hashes a row group off the threads that wait.
async fn decode(
    layout: &PartLayout,
    at: usize,
    bytes: Bytes,
    mut whole: stash_part::WholeDigest,
) -> Result<std::result::Result<(Sorted, stash_part::WholeDigest), PartError>> {
    let layout = layout.clone();
    let work = move || {
        whole.update(&bytes);
        let sorted = layout.decode_row_group(at, bytes, Frontier::MIN, Frontier::EMPTY)?;
        Ok((sorted, whole))
    };
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|_| Error::Batch(BatchError::Ended { what: "decoding a row group" }))
}

/// Checks that `sorted` follows what came before it in its run.
fn follow(order: &mut RunMerge, sorted: Sorted) -> std::result::Result<(), PartError> {
    while let MergeStep::Ready(_) = order.step()? {}
    order.push(0, sorted)
}
