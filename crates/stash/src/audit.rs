//! The audit: accounts for every byte below the prefix, and for every key that the catalog references.
//!
//! The store is listed first and judged as it comes, see `classify`; then the chains are read, a page in one snapshot at
//! a time, and compared with what was listed. What changed in between is looked at once more: an object that is gone since
//! has a class of its own, and a key counts as lost only if it is still referenced and not there.
//!
//! - The entries and bytes of all classes sum up to those that were listed; else the audit itself is an error.
//! - Of a listing it holds 24 bytes for each object that a batch references, and a chunk of entries.
//! - It describes: nothing is changed, and foreign objects are no fault of Stash. Lost ones are, and so is an object of
//!   another length under a key that is referenced.

use std::collections::BTreeMap;

use serde::Serialize;
use stash_blob::BlobEntryKind;
use stash_catalog::{BatchRow, PartRow};
use stash_types::{BlobKey, BlobPrefix, Digest, Frontier, PartKey, SinkId, SinkName};

use crate::{
    Class, Error, Names, Result, Sink, Stash, Stranger, Tally,
    classify::{ENTRIES_A_CHUNK, Walk},
};

/// Batches that are read from the catalog at once.
const ROWS_A_READ: u32 = 200;

/// What one sink has of one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    /// The sink; `None` for what lies in no sink's folder.
    pub sink: Option<AuditedSink>,
    /// The class.
    pub class: Class,
    /// How much of it there is.
    pub tally: Tally,
}

/// A sink that an audit met.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct AuditedSink {
    /// Its label.
    pub name: SinkName,
    /// Its id.
    pub id: SinkId,
    /// Whether it was dropped.
    pub dropped: bool,
}

/// A part that a batch references and the store does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// The batch's place in the chain of its sink.
    pub seq: u64,
}

/// What an audit found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditReport {
    /// What the listing showed.
    pub listed: Tally,
    /// What it is, by sink and class.
    pub lines: Vec<AuditLine>,
    /// What this catalog cannot own, by name.
    pub foreign: Names<Stranger>,
    /// What batches reference and the store does not have, by key.
    pub lost: Names<Lost>,
}

impl AuditReport {
    /// The sum of all classes: what was listed.
    pub fn accounted(&self) -> Tally {
        self.lines.iter().fold(Tally::default(), |sum, line| sum.and(line.tally))
    }

    /// All of one class, of all sinks.
    pub fn of(&self, wanted: impl Fn(Class) -> bool) -> Tally {
        let lines = self.lines.iter().filter(|line| wanted(line.class));
        lines.fold(Tally::default(), |sum, line| sum.and(line.tally))
    }

    /// Whether data that was accepted is gone or was exchanged: what needs an operator.
    pub fn is_damaged(&self) -> bool {
        !self.lost.is_empty() || self.of(|class| class == Class::Foreign(Stranger::OtherLength)).entries > 0
    }
}

impl Stash {
    /// Accounts for every byte of one sink's folder, or of the whole prefix. `progress` is told what was listed so far.
    pub async fn audit(
        &self,
        sink: Option<&Sink>,
        mut progress: impl FnMut(Tally) + Send,
    ) -> Result<AuditReport> {
        let prefix = sink.map_or(BlobPrefix::All, |sink| BlobPrefix::Shard(sink.shard()));
        let mut accounts = Accounts::default();
        let mut walk = Walk::open(self, prefix).looking_twice();
        while let Some(chunk) = walk.next().await? {
            for judged in chunk {
                accounts.listed.add(judged.entry.len);
                accounts.classes.entry((judged.sink, judged.class)).or_default().add(judged.entry.len);
                match (judged.class, judged.part) {
                    (Class::Foreign(why), _) => {
                        accounts.foreign.push(judged.name(), judged.entry.len, why);
                    }
                    (Class::Referenced, Some(key)) => {
                        accounts.seen.push((short(&key.to_string()), judged.entry.len))
                    }
                    _ => {}
                }
            }
            progress(accounts.listed);
        }
        accounts.seen.sort_unstable();
        let rows = self.sinks(true).await?;
        for row in rows.iter().filter(|row| sink.is_none_or(|sink| sink.id() == row.spec.id)) {
            accounts.compare(&Sink::of_row(self, row.clone())?).await?;
        }
        let named = rows.into_iter().map(|row| {
            let (id, name, dropped) = (row.spec.id, row.spec.name, row.dropped.is_some());
            (id, AuditedSink { name, id, dropped })
        });
        accounts.report(&named.collect())
    }
}

/// A key, or what else names an entry, in sixteen bytes. Two of ten million that share them would be chance of one in
/// 10^24.
pub(crate) fn short(name: &str) -> [u8; 16] {
    let Digest(digest) = Digest::of(name.as_bytes());
    let mut short = [0; 16];
    short.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    short
}

#[derive(Default)]
struct Accounts {
    listed: Tally,
    classes: BTreeMap<(Option<SinkId>, Class), Tally>,
    foreign: Names<Stranger>,
    lost: Names<Lost>,
    /// Objects that were listed and are referenced, with their lengths; sorted once the listing has ended.
    seen: Vec<([u8; 16], u64)>,
}

impl Accounts {
    /// Compares what a sink's chain references with what was listed.
    async fn compare(&mut self, sink: &Sink) -> Result<()> {
        let mut from = Frontier::MIN;
        loop {
            let slice = sink.stash().catalog().chain(sink.id(), from, ROWS_A_READ).await?;
            for batch in &slice.batches {
                self.compare_batch(sink, batch).await?;
            }
            match slice.batches.last().map(|batch| batch.extent) {
                Some(extent) if extent > from && extent < slice.head.upper => from = extent,
                _ => return Ok(()),
            }
        }
    }

    async fn compare_batch(&mut self, sink: &Sink, batch: &BatchRow) -> Result<()> {
        let mut missing = Vec::new();
        for PartRow { name, descriptor } in &batch.parts {
            let key = name.under(sink.shard());
            match self.seen.binary_search_by_key(&short(&key.to_string()), |(short, _)| *short) {
                Ok(at) => {
                    let len = self.seen.get(at).map_or(descriptor.len, |(_, len)| *len);
                    if len != descriptor.len {
                        self.exchanged(sink.id(), key, len);
                    }
                }
                Err(_) => missing.push((key, descriptor.len)),
            }
        }
        for missing in missing.chunks(ENTRIES_A_CHUNK) {
            self.look_again(sink, batch.seq, missing).await?;
        }
        Ok(())
    }

    /// Moves an object from the referenced ones to the foreign ones.
    fn exchanged(&mut self, sink: SinkId, key: PartKey, len: u64) {
        let why = Stranger::OtherLength;
        if let Some(tally) = self.classes.get_mut(&(Some(sink), Class::Referenced)) {
            tally.entries = tally.entries.saturating_sub(1);
            tally.bytes = tally.bytes.saturating_sub(len);
        }
        self.classes.entry((Some(sink), Class::Foreign(why))).or_default().add(len);
        self.foreign.push(key.to_string(), len, why);
    }

    /// What was not listed may have been written since, or acknowledged and deleted: only what is still referenced and
    /// still not there is lost.
    async fn look_again(&mut self, sink: &Sink, seq: u64, missing: &[(PartKey, u64)]) -> Result<()> {
        let objects: Vec<_> =
            missing.iter().map(|(key, _)| BlobEntryKind::Object(BlobKey::from(*key))).collect();
        let lens = sink.stash().store().look_again(&objects).await?;
        let absent = missing.iter().zip(lens).filter(|(_, len)| len.is_none());
        let absent: Vec<_> = absent.map(|(missing, _)| missing).collect();
        // SUBTLE: the store is asked first. A part is unlinked before it is deleted, so one that is still referenced
        // after it was found absent was not deleted by Stash.
        let keys: Vec<PartKey> = absent.iter().map(|(key, _)| *key).collect();
        let states = sink.stash().catalog().key_states(sink.id(), &keys).await?;
        for ((key, len), state) in absent.iter().zip(states) {
            if state.referenced_by.is_some() {
                self.lost.push(key.to_string(), *len, Lost { seq });
            }
        }
        Ok(())
    }

    fn report(self, sinks: &BTreeMap<SinkId, AuditedSink>) -> Result<AuditReport> {
        let Accounts { listed, classes, foreign, lost, seen: _ } = self;
        let lines =
            classes.into_iter().filter(|(_, tally)| tally.entries > 0).map(|((sink, class), tally)| {
                AuditLine { sink: sink.and_then(|id| sinks.get(&id).cloned()), class, tally }
            });
        let mut lines: Vec<AuditLine> = lines.collect();
        lines.sort_by(|a, b| {
            let place = |line: &AuditLine| (line.sink.is_none(), line.sink.clone(), line.class);
            place(a).cmp(&place(b))
        });
        let report = AuditReport { listed, lines, foreign, lost };
        let classed = report.accounted();
        if classed != listed {
            return Err(Error::Unaccounted { listed, classed });
        }
        Ok(report)
    }
}
