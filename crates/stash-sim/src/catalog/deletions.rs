//! The deletion queue, and judging keys.
//!
//! Keys enter it in the operation that unlinks them and leave it when the store says they are gone. Nothing puts
//! a key in that a row references (I15), and nothing links a key that is in it.

use std::collections::BTreeSet;

use stash_catalog::{DeletionReason, DeletionRow, IncarnationState, KeyState};
use stash_types::fault::{Mutant, broken};
use stash_types::{PartKey, SinkId, Timestamp};

use super::Result;
use super::sinks::count;
use super::state::{Queued, Sink, State, inconsistent};

/// The first wait after a delete that failed; each further one doubles it.
const DEFER_MS: u64 = 1000;
/// The longest wait after a delete that failed.
const DEFER_MS_MAX: u64 = 300_000;

/// How a deletion reason is spelled.
fn word(reason: DeletionReason) -> &'static str {
    match reason {
        DeletionReason::Dropped => "dropped",
        DeletionReason::Trimmed => "trimmed",
        DeletionReason::Released => "released",
        DeletionReason::Expired => "expired",
        DeletionReason::SinkDropped => "sink-dropped",
        DeletionReason::Surrendered => "surrendered",
        DeletionReason::Swept => "swept",
    }
}

impl State {
    /// Queues keys of a sink, each with the `seq` of the batch that waits for it; passes over those that a row
    /// references or that are queued. Returns how many were queued.
    pub(super) fn queue_keys(
        &mut self,
        now: Timestamp,
        sink: SinkId,
        keys: &[(PartKey, Option<u64>)],
        reason: DeletionReason,
    ) -> Result<u64> {
        let swept = reason == DeletionReason::Swept;
        // Broken, a sweep that judged too early, or did not heed the queue, is not stopped here either: what was
        // linked since is deleted; what is queued waits anew, and no released row waits for it any longer.
        let heeds_rows = !(swept && broken(Mutant::SweepReadsFirst));
        let heeds_queue = !(swept && broken(Mutant::SweepIgnoresQueue));
        let mut queued = Vec::new();
        for (key, seq) in keys {
            let referenced = heeds_rows && self.sink(sink)?.reference(key).is_some();
            if referenced || (heeds_queue && self.queue.contains_key(key)) {
                continue;
            }
            let row = DeletionRow { key: *key, sink, reason, queued: now, attempts: 0 };
            self.queue.insert(*key, Queued { row, seq: *seq, due: now });
            queued.push(*key);
        }
        self.record_keys(now, sink, &queued, "queued", word(reason));
        Ok(count(queued.iter()))
    }

    /// Queues keys that nobody links.
    pub(super) fn enqueue(
        &mut self,
        now: Timestamp,
        sink: SinkId,
        keys: &[PartKey],
        reason: DeletionReason,
    ) -> Result<u64> {
        self.check_shard(sink, keys)?;
        // A dropped sink is no reason to keep its blobs.
        let held = self.sink(sink)?;
        let swept = reason == DeletionReason::Swept;
        let judged = keys.iter().filter(|key| !swept || is_settled(held, key));
        let judged: Vec<_> = judged.map(|key| (*key, None)).collect();
        let queued = self.queue_keys(now, sink, &judged, reason)?;
        if queued > 0 {
            self.stamp(sink)?;
        }
        Ok(queued)
    }

    /// Refuses keys of another shard (I23).
    fn check_shard(&self, sink: SinkId, keys: &[PartKey]) -> Result<()> {
        let shard = self.shard(sink);
        match keys.iter().find(|key| key.shard != shard) {
            Some(key) => inconsistent(format!("key {key} is not of sink {sink}, whose shard is {shard}")),
            None => Ok(()),
        }
    }

    /// The keys due for deletion, those due longest first.
    pub(super) fn deletions_due(&self, now: Timestamp, limit: u32) -> Vec<DeletionRow> {
        let mut due: Vec<_> = self.queue.values().filter(|queued| queued.due <= now).collect();
        due.sort_by_cached_key(|queued| (queued.due, queued.row.queued, queued.row.key.to_string()));
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        due.into_iter().take(limit).map(|queued| queued.row.clone()).collect()
    }

    /// How many keys are queued, due or not.
    pub(super) fn deletions_queued(&self, sink: Option<SinkId>) -> u64 {
        count(self.queue.values().filter(|queued| sink.is_none_or(|sink| queued.row.sink == sink)))
    }

    /// Forgets keys that are gone from the store, and the rows of released batches that waited for them.
    pub(super) fn dequeue(&mut self, now: Timestamp, keys: &[PartKey]) -> Result<()> {
        let mut gone: Vec<_> = keys.iter().filter_map(|key| self.queue.remove(key)).collect();
        gone.sort_by_key(|queued| queued.row.sink);
        for queued in &gone {
            self.record_keys(now, queued.row.sink, &[queued.row.key], "deleted", "");
        }
        let sinks: BTreeSet<_> = gone.iter().map(|queued| queued.row.sink).collect();
        for sink in &sinks {
            self.forget(*sink)?;
        }
        self.stamp_all(&sinks)
    }

    /// Makes keys due again later.
    pub(super) fn defer(&mut self, now: Timestamp, keys: &[PartKey]) -> Result<()> {
        let mut sinks = BTreeSet::new();
        for key in keys.iter().collect::<BTreeSet<_>>() {
            let Some(queued) = self.queue.get_mut(key) else { continue };
            queued.due = now.plus_millis(DEFER_MS_MAX.min(DEFER_MS << queued.row.attempts.min(20)));
            queued.row.attempts += 1;
            sinks.insert(queued.row.sink);
        }
        self.stamp_all(&sinks)
    }

    /// One revision for the heads of all these sinks.
    fn stamp_all(&mut self, sinks: &BTreeSet<SinkId>) -> Result<()> {
        if sinks.is_empty() {
            return Ok(());
        }
        self.revision += 1;
        let revision = self.revision;
        for sink in sinks {
            self.sink_mut(*sink)?.head.revision = revision;
        }
        Ok(())
    }

    /// What is known of each key, in the order given.
    pub(super) fn key_states(&self, sink: SinkId, keys: &[PartKey]) -> Result<Vec<KeyState>> {
        self.check_shard(sink, keys)?;
        let sink = self.sink(sink)?;
        let known = |key: &PartKey| KeyState {
            key: *key,
            referenced_by: sink.reference(key),
            queued: self.queue.get(key).map(|queued| queued.row.reason),
            incarnation: sink
                .incarnation(key.name.incarnation)
                .map(|writer| (writer.row.state.clone(), writer.row.resolved)),
        };
        Ok(keys.iter().map(known).collect())
    }
}

/// Whether the writer of a key can no longer bring it into the chain: it is closed, or has resolved the
/// description. Both stay so, and that is why a plan made before may be carried out later.
fn is_settled(sink: &Sink, key: &PartKey) -> bool {
    sink.incarnation(key.name.incarnation).is_some_and(|writer| {
        matches!(writer.row.state, IncarnationState::Closed { .. })
            || writer.row.resolved >= key.name.description.upper()
    })
}
