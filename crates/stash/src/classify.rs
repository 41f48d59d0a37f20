//! What each entry of a listing is: the one judge of audit, plan, sweep and verification.
//!
//! A [`Walk`] lists, and judges what it listed chunk by chunk; nothing but a chunk is held. Every entry gets exactly one
//! [`Class`], whatever it is.
//!
//! SUBTLE: the order is the safety (I18). What the catalog says of a key is read after the key was listed. A key that is
//! listed and then found unowned is garbage for good, since being garbage is monotone. The other way round, what was
//! linked between the reading of the references and the listing would be deleted (case 6). Age plays no part (case 7).
//! Sinks too are known before their first byte, so a shard that is unknown after a look that followed the listing is
//! none of ours.

use std::collections::{BTreeMap, BTreeSet};

use futures::{
    StreamExt,
    stream::{BoxStream, Fuse},
};
use serde::{Deserialize, Serialize};
use stash_batch::verdict;
use stash_blob::{BlobEntry, BlobEntryKind, BlobError};
use stash_catalog::{DeletionReason, KeyState};
use stash_chain::{Verdict, Why};
use stash_types::{
    BlobKey, BlobPrefix, PartKey, ShardId, SinkId,
    fault::{self, Mutant, broken},
};

#[cfg(feature = "faults")]
use crate::rules;
use crate::{Result, Stash};

/// Entries that are judged at once, and keys that the catalog is asked about at once.
pub(crate) const ENTRIES_A_CHUNK: usize = 1000;

/// What an entry of a listing is; each is exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A linked batch references it.
    Referenced,
    /// An open incarnation wrote it, and its description is not resolved.
    BeingWritten,
    /// The deletion queue owns it.
    Queued(DeletionReason),
    /// Nobody owns it, for good: a sweep deletes it.
    Garbage(Unowned),
    /// It was listed and is gone since.
    Gone,
    /// An unpublished upload, a temp file or a multipart upload, that may still be finished.
    Uploading,
    /// An unpublished upload that nobody will finish: a sweep aborts it.
    LeftOver(Unowned),
    /// The stash's own: `stash.json`.
    Own,
    /// Nothing that this catalog can own; never deleted.
    Foreign(Stranger),
}

/// Why nobody owns something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unowned {
    /// Its incarnation is closed.
    IncarnationClosed,
    /// Its description is resolved, and the outcome did not keep it.
    DescriptionResolved,
    /// Its sink was dropped.
    SinkDropped,
    /// Of an upload: its key is referenced or queued already, so this is an earlier try.
    KeySettled,
}

/// Why this catalog cannot own something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stranger {
    /// Its name is no key of Stash.
    NotOfStash,
    /// No sink of this catalog has its shard.
    UnknownShard,
    /// Its sink has no such incarnation.
    UnknownIncarnation,
    /// It stands under a key that a batch references, and has another length than was accepted: it was put there from
    /// outside.
    OtherLength,
}

impl Class {
    /// The class in one word, for machines.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Referenced => "referenced",
            Class::BeingWritten => "being_written",
            Class::Queued(_) => "queued",
            Class::Garbage(_) => "garbage",
            Class::Gone => "gone",
            Class::Uploading => "uploading",
            Class::LeftOver(_) => "left_over_upload",
            Class::Own => "own",
            Class::Foreign(_) => "foreign",
        }
    }

    /// Why, in one word for machines, where there is more than one reason.
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Class::Queued(reason) => Some(match reason {
                DeletionReason::Dropped => "dropped",
                DeletionReason::Trimmed => "trimmed",
                DeletionReason::Released => "released",
                DeletionReason::Expired => "expired",
                DeletionReason::SinkDropped => "sink_dropped",
                DeletionReason::Surrendered => "surrendered",
                DeletionReason::Swept => "swept",
            }),
            Class::Garbage(why) | Class::LeftOver(why) => Some(why.name()),
            Class::Foreign(why) => Some(why.name()),
            Class::Referenced | Class::BeingWritten | Class::Gone | Class::Uploading | Class::Own => None,
        }
    }

    /// Whether a sweep takes it.
    pub const fn is_unowned(self) -> bool {
        matches!(self, Class::Garbage(_) | Class::LeftOver(_))
    }
}

impl Unowned {
    /// In one word, for machines.
    pub const fn name(self) -> &'static str {
        match self {
            Unowned::IncarnationClosed => "incarnation_closed",
            Unowned::DescriptionResolved => "description_resolved",
            Unowned::SinkDropped => "sink_dropped",
            Unowned::KeySettled => "key_settled",
        }
    }

    fn of(why: Why, sink: &KnownSink) -> Unowned {
        match why {
            _ if sink.dropped => Unowned::SinkDropped,
            Why::Closed => Unowned::IncarnationClosed,
            Why::Resolved => Unowned::DescriptionResolved,
        }
    }
}

impl Stranger {
    /// In one word, for machines.
    pub const fn name(self) -> &'static str {
        match self {
            Stranger::NotOfStash => "not_of_stash",
            Stranger::UnknownShard => "unknown_shard",
            Stranger::UnknownIncarnation => "unknown_incarnation",
            Stranger::OtherLength => "other_length",
        }
    }
}

/// How many there are, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tally {
    /// Entries.
    pub entries: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl Tally {
    /// Counts one more of `bytes` bytes.
    pub(crate) fn add(&mut self, bytes: u64) {
        *self = self.and(Tally { entries: 1, bytes });
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Tally) -> Tally {
        Tally {
            entries: self.entries.saturating_add(other.entries),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// Something by its name, and what is to be said of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Named<W> {
    /// Its name below the prefix; of an upload, the key it was to become and its token.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// What is to be said of it.
    pub why: W,
}

/// The first names of many, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Names<W> {
    /// At most [`Names::KEPT_MAX`] of them.
    pub first: Vec<Named<W>>,
    /// All of them.
    pub all: Tally,
}

impl<W> Default for Names<W> {
    fn default() -> Names<W> {
        Names { first: Vec::new(), all: Tally::default() }
    }
}

impl<W> Names<W> {
    /// Names that are kept; of more only the number is.
    pub const KEPT_MAX: usize = 10_000;

    pub(crate) fn push(&mut self, name: impl Into<String>, bytes: u64, why: W) {
        self.all.add(bytes);
        if self.first.len() < Self::KEPT_MAX {
            self.first.push(Named { name: name.into(), bytes, why });
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.entries == 0
    }
}

/// A sink as a walk knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownSink {
    pub(crate) id: SinkId,
    pub(crate) dropped: bool,
}

/// An entry that was judged.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    pub(crate) entry: BlobEntry,
    /// The sink whose folder it lies in.
    pub(crate) sink: Option<SinkId>,
    /// The part's key that it has, or was to become.
    pub(crate) part: Option<PartKey>,
    pub(crate) class: Class,
}

impl Judged {
    /// Its name below the prefix.
    pub(crate) fn name(&self) -> String {
        match &self.entry.kind {
            BlobEntryKind::Object(key) => key.to_string(),
            BlobEntryKind::Upload { key, token } => format!("{key} (upload {token})"),
            BlobEntryKind::Foreign(name) => name.clone(),
        }
    }
}

/// A listing, judged as it comes.
pub(crate) struct Walk<'a> {
    stash: &'a Stash,
    /// Fused: a listing that ended within a chunk is asked once more for the next.
    listing: Fuse<BoxStream<'a, std::result::Result<BlobEntry, BlobError>>>,
    sinks: BTreeMap<ShardId, KnownSink>,
    twice: bool,
}

impl<'a> Walk<'a> {
    /// Begins to list `prefix`.
    pub(crate) fn open(stash: &'a Stash, prefix: BlobPrefix) -> Walk<'a> {
        Walk { stash, listing: stash.store().list(prefix).fuse(), sinks: BTreeMap::new(), twice: false }
    }

    /// Looks once more at what seems to be nobody's: what others delete or finish meanwhile is gone, and no garbage.
    #[must_use]
    pub(crate) fn looking_twice(mut self) -> Walk<'a> {
        self.twice = true;
        self
    }

    /// The next entries with their classes; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Judged>>> {
        #[cfg(feature = "faults")]
        let before = rules::read_before(self.stash).await?;
        let mut chunk = Vec::new();
        while chunk.len() < ENTRIES_A_CHUNK
            && let Some(entry) = self.listing.next().await
        {
            chunk.push(entry?);
        }
        fault::place("stash.sweep_listed");
        if chunk.is_empty() {
            return Ok(None);
        }
        let mut judged = self.judge(chunk).await?;
        #[cfg(feature = "faults")]
        rules::believe(before, &mut judged);
        if self.twice {
            look_again(self.stash, &mut judged).await?;
        }
        Ok(Some(judged))
    }

    /// The sinks that this walk met so far.
    async fn sink(&mut self, shard: ShardId) -> Result<Option<KnownSink>> {
        if !self.sinks.contains_key(&shard) {
            self.sinks = known_sinks(self.stash).await?;
        }
        Ok(self.sinks.get(&shard).copied())
    }

    async fn judge(&mut self, chunk: Vec<BlobEntry>) -> Result<Vec<Judged>> {
        let mut unknown = BTreeSet::new();
        let mut questions: BTreeMap<SinkId, Vec<PartKey>> = BTreeMap::new();
        for shard in chunk.iter().filter_map(shard_of).collect::<BTreeSet<_>>() {
            if !unknown.contains(&shard) && self.sink(shard).await?.is_none() {
                unknown.insert(shard);
            }
        }
        for part in chunk.iter().filter_map(part_of).collect::<BTreeSet<_>>() {
            if let Some(sink) = self.sinks.get(&part.shard) {
                questions.entry(sink.id).or_default().push(part);
            }
        }
        let mut states: BTreeMap<PartKey, KeyState> = BTreeMap::new();
        for (sink, keys) in questions {
            let answers = self.stash.catalog().key_states(sink, &keys).await?;
            states.extend(answers.into_iter().map(|state| (state.key, state)));
        }
        Ok(chunk.into_iter().map(|entry| self.judged(entry, &states)).collect())
    }

    fn judged(&self, entry: BlobEntry, states: &BTreeMap<PartKey, KeyState>) -> Judged {
        let (part, shard) = (part_of(&entry), shard_of(&entry));
        let sink = shard.and_then(|shard| self.sinks.get(&shard));
        let known = part.and_then(|part| states.get(&part)).zip(sink);
        let class = match &entry.kind {
            BlobEntryKind::Object(key) if Stash::is_own_object(key) => Class::Own,
            // The stash is open, so its own object stands: this is an earlier try, or a rival's.
            BlobEntryKind::Upload { key, .. } if Stash::is_own_object(key) => {
                Class::LeftOver(Unowned::KeySettled)
            }
            BlobEntryKind::Foreign(_) => Class::Foreign(Stranger::NotOfStash),
            BlobEntryKind::Object(_) | BlobEntryKind::Upload { .. } if part.is_none() => {
                Class::Foreign(Stranger::NotOfStash)
            }
            BlobEntryKind::Object(_) => known.map_or(Class::Foreign(Stranger::UnknownShard), class_of),
            BlobEntryKind::Upload { .. } => {
                known.map_or(Class::Foreign(Stranger::UnknownShard), |known| match class_of(known) {
                    Class::BeingWritten => Class::Uploading,
                    Class::Garbage(why) => Class::LeftOver(why),
                    Class::Referenced | Class::Queued(_) => Class::LeftOver(Unowned::KeySettled),
                    other => other,
                })
            }
        };
        Judged { sink: sink.map(|sink| sink.id), part, class, entry }
    }
}

/// The second look; like the first it needs no more than the permission to list.
async fn look_again(stash: &Stash, judged: &mut [Judged]) -> Result<()> {
    let unowned = |one: &&mut Judged| one.class.is_unowned();
    let doubtful: Vec<BlobEntryKind> =
        judged.iter_mut().filter(unowned).map(|one| one.entry.kind.clone()).collect();
    let lens = stash.store().look_again(&doubtful).await?;
    for (one, len) in judged.iter_mut().filter(unowned).zip(lens) {
        if len.is_none() {
            one.class = Class::Gone;
        }
    }
    Ok(())
}

/// All sinks by their shards, dropped ones too.
pub(crate) async fn known_sinks(stash: &Stash) -> Result<BTreeMap<ShardId, KnownSink>> {
    let sinks = stash.sinks(true).await?.into_iter();
    Ok(sinks.map(|row| (row.shard, KnownSink { id: row.spec.id, dropped: row.dropped.is_some() })).collect())
}

/// The class of an object by what the catalog knows of its key.
pub(crate) fn class_of((state, sink): (&KeyState, &KnownSink)) -> Class {
    match (verdict(state), state.queued) {
        (Verdict::Referenced, _) => Class::Referenced,
        // Broken, what the queue owns is owned twice: the sweep takes it too.
        (Verdict::Queued, Some(_)) if broken(Mutant::SweepIgnoresQueue) => {
            Class::Garbage(Unowned::IncarnationClosed)
        }
        (Verdict::Queued, Some(reason)) => Class::Queued(reason),
        (Verdict::BeingWritten, _) => Class::BeingWritten,
        (Verdict::Garbage(why), _) => Class::Garbage(Unowned::of(why, sink)),
        // A judge that says queued of what is not is one more reason to leave it alone.
        (Verdict::Foreign | Verdict::Queued, _) => Class::Foreign(Stranger::UnknownIncarnation),
    }
}

fn part_of(entry: &BlobEntry) -> Option<PartKey> {
    entry.kind.key().and_then(BlobKey::part_key)
}

/// The shard whose folder an entry lies in.
fn shard_of(entry: &BlobEntry) -> Option<ShardId> {
    let name = match &entry.kind {
        BlobEntryKind::Object(key) | BlobEntryKind::Upload { key, .. } => key.as_str(),
        BlobEntryKind::Foreign(name) => name,
    };
    name.split_once('/').and_then(|(folder, _)| folder.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASONS: [DeletionReason; 7] = [
        DeletionReason::Dropped,
        DeletionReason::Trimmed,
        DeletionReason::Released,
        DeletionReason::Expired,
        DeletionReason::SinkDropped,
        DeletionReason::Surrendered,
        DeletionReason::Swept,
    ];
    const UNOWNED: [Unowned; 4] =
        [Unowned::IncarnationClosed, Unowned::DescriptionResolved, Unowned::SinkDropped, Unowned::KeySettled];
    const STRANGERS: [Stranger; 4] =
        [Stranger::NotOfStash, Stranger::UnknownShard, Stranger::UnknownIncarnation, Stranger::OtherLength];

    /// Machines tell the classes apart by their words: none is empty, and no two are the same.
    #[test]
    fn every_class_has_words_of_its_own() {
        let plain = [Class::Referenced, Class::BeingWritten, Class::Gone, Class::Uploading, Class::Own];
        assert!(plain.iter().all(|class| class.reason().is_none()));
        let all = (plain.into_iter())
            .chain(REASONS.map(Class::Queued))
            .chain(UNOWNED.map(Class::Garbage))
            .chain(UNOWNED.map(Class::LeftOver))
            .chain(STRANGERS.map(Class::Foreign));
        let words: Vec<_> = all.map(|class| (class.name(), class.reason())).collect();
        assert!(words.iter().all(|(name, reason)| !name.is_empty() && *reason != Some("")), "{words:?}");
        assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len(), "{words:?}");
    }

    /// A plan's lines and the output of commands use the same words.
    #[test]
    fn a_word_is_the_same_written_by_hand_and_by_serde() {
        for why in UNOWNED {
            assert_eq!(serde_json::to_value(why).expect("a word"), why.name());
        }
        for why in STRANGERS {
            assert_eq!(serde_json::to_value(why).expect("a word"), why.name());
        }
    }

    #[test]
    fn names_are_kept_up_to_a_number_and_counted_beyond() {
        let mut names = Names::default();
        assert!(names.is_empty());
        let many = Names::<Stranger>::KEPT_MAX + 2;
        (0..many).for_each(|n| names.push(n.to_string(), 3, Stranger::NotOfStash));
        assert!(!names.is_empty());
        assert_eq!((names.first.len(), names.all.entries), (Names::<Stranger>::KEPT_MAX, many as u64));
        assert_eq!(names.all.bytes, 3 * many as u64);
    }
}
