//! Unlinking: what all consumers have acknowledged leaves the chain, and its keys enter the deletion queue.
//!
//! A batch is released when its `upper` is acknowledged, although the chain may be proven empty beyond it: its
//! extent. Whatever of that is not acknowledged stays as an empty row, the *rest*, so that the linked rows
//! remain gapless from the released frontier to the head's upper.

use stash_catalog::{Acknowledged, DeletionReason};
use stash_types::fault::{Mutant, broken};
use stash_types::{Frontier, PartKey, RunFacts, SinkId, Timestamp};

use super::Result;
use super::sinks::count;
use super::state::{Batch, Kind, State};

impl State {
    /// Releases what every consumer has acknowledged. Without consumers nothing is released: their absence is a
    /// state, not a frontier.
    pub(super) fn release(&mut self, now: Timestamp, sink: SinkId) -> Result<Acknowledged> {
        let held = self.sink(sink)?;
        let acked = held.consumers.values().map(|consumer| consumer.acked).min();
        let Some(acked) = acked.filter(|acked| *acked > held.head.released) else {
            return Ok(Acknowledged { released: 0, queued: 0 });
        };
        let done = self.unlink_below(now, sink, acked, DeletionReason::Released)?;
        self.sink_mut(sink)?.head.released = acked;
        // Only here: an acknowledgement that releases nothing must not cost every writer a retry.
        self.raise_fence(sink)?;
        let detail = format!("below {acked}: batches {}, objects {}", done.released, done.queued);
        self.record(now, sink, None, "released", detail);
        Ok(done)
    }

    /// Unlinks every batch whose updates lie below `upper`, and queues its keys.
    pub(super) fn unlink_below(
        &mut self,
        now: Timestamp,
        sink: SinkId,
        upper: Frontier,
        reason: DeletionReason,
    ) -> Result<Acknowledged> {
        let released = count(self.sink(sink)?.linked().filter(|batch| is_released(batch, upper)));
        let mut keys = self.unlink_parts(sink, upper)?;
        // Broken, nobody knows any more of what everybody has read.
        if reason == DeletionReason::Released && broken(Mutant::AckKeepsBlobs) {
            keys.clear();
        }
        let queued = self.queue_keys(now, sink, &keys, reason)?;
        for batch in self.sink_mut(sink)?.batches.values_mut().filter(|batch| batch.linked) {
            let Batch { row, kind, linked } = batch;
            if row.extent <= upper {
                *linked = false;
            } else if row.lower < upper && (row.upper <= upper || *kind != Kind::Updates) {
                (row.lower, row.upper, row.facts) = (upper, row.extent, RunFacts::default());
                *kind = Kind::Rest;
            }
        }
        self.forget(sink)?;
        Ok(Acknowledged { released, queued })
    }

    /// Removes the references, so that the keys may be queued (I15), and the inline runs.
    fn unlink_parts(&mut self, sink: SinkId, upper: Frontier) -> Result<Vec<(PartKey, Option<u64>)>> {
        let sink = self.sink_mut(sink)?;
        let shard = sink.row.shard;
        let mut keys = Vec::new();
        for batch in sink.batches.values_mut().filter(|batch| batch.linked && batch.row.upper <= upper) {
            let seq = batch.row.seq;
            keys.extend(batch.row.parts.drain(..).map(|part| (part.name.under(shard), Some(seq))));
            batch.row.inline.clear();
        }
        Ok(keys)
    }

    /// Forgets the rows of released batches none of whose keys is queued any longer.
    pub(super) fn forget(&mut self, sink: SinkId) -> Result<()> {
        let queue = &self.queue;
        let waits = |seq: u64| queue.values().any(|key| key.row.sink == sink && key.seq == Some(seq));
        let Some(found) = self.sinks.get_mut(&sink) else { return Ok(()) };
        found.batches.retain(|seq, batch| batch.linked || waits(*seq));
        Ok(())
    }
}

/// Whether a batch counts as released: one with updates when its upper is passed, an empty one when its extent
/// is. A rest was counted when it was a batch.
pub(super) fn is_released(batch: &Batch, upper: Frontier) -> bool {
    match batch.kind {
        Kind::Updates => batch.row.upper <= upper,
        Kind::Empty => batch.row.extent <= upper,
        Kind::Rest => false,
    }
}
