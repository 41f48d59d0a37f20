//! The chain as it is read: its linked batches, and the keys they reference.

use stash_catalog::{BatchRow, ChainSlice};
use stash_types::{Frontier, PartKey, SinkId};

use super::Result;
use super::state::{Sink, State, damaged};

impl State {
    /// The linked batches whose extent is above `from`, at most `limit`, with the head.
    pub(super) fn slice(&self, sink: SinkId, from: Frontier, limit: u32) -> Result<ChainSlice> {
        let sink = self.sink(sink)?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let above = sink.linked().filter(|batch| batch.row.extent > from);
        let batches: Vec<_> = above.take(limit).map(|batch| batch.row.clone()).collect();
        gapless(sink, &batches)?;
        Ok(ChainSlice { head: sink.head.clone(), batches })
    }

    /// Every key that a row of the sink references, with its `seq`.
    pub(super) fn referenced(&self, sink: SinkId) -> Result<Vec<(PartKey, u64)>> {
        let sink = self.sink(sink)?;
        let shard = sink.row.shard;
        let keys = |row: &BatchRow| {
            let seq = row.seq;
            row.parts.iter().map(move |part| (part.name.under(shard), seq)).collect::<Vec<_>>()
        };
        Ok(sink.batches.values().flat_map(|batch| keys(&batch.row)).collect())
    }
}

/// Proves, of what was read, that no time is missing between two rows.
fn gapless(sink: &Sink, batches: &[BatchRow]) -> Result<()> {
    let head = &sink.head;
    for (before, after) in batches.iter().zip(batches.iter().skip(1)) {
        if before.extent != after.lower {
            return Err(damaged(format!(
                "batch {} of {} extends to {}, the next begins at {}",
                before.seq, head.sink, before.extent, after.lower
            )));
        }
    }
    match batches.last() {
        Some(last) if last.extent > head.upper => Err(damaged(format!(
            "batch {} of {} extends to {}, beyond the chain's upper {}",
            last.seq, head.sink, last.extent, head.upper
        ))),
        _ => Ok(()),
    }
}
