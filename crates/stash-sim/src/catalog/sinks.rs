//! Sinks: declared once, immutable, dropped for good.

use std::collections::BTreeMap;

use stash_catalog::{Declared, DeletionReason, Dropped, HeadRow, HeadStatus, Misuse, NewSink, SinkRow};
use stash_types::{Frontier, SinkId, SinkName, Timestamp};

use super::Result;
use super::incarnations::Which;
use super::state::{Sink, State, inconsistent, no_such_sink};

const NOTHING: Dropped = Dropped { incarnations: 0, batches: 0, keys: 0, consumers_behind: 0 };

impl State {
    /// Declares a sink, or finds an equal one under its name.
    pub(super) fn declare(&mut self, now: Timestamp, sink: NewSink) -> Result<Declared> {
        sink.check()?;
        if let Some(standing) = self.live_named(&sink.name) {
            return match standing.row.spec.difference(&sink) {
                Some(field) => Err(Misuse::SinkDiffers { name: sink.name, field }.into()),
                None => Ok(Declared { sink: standing.row.clone(), created: false }),
            };
        }
        if self.sinks.contains_key(&sink.id) {
            return inconsistent(format!("sink id {} was used before: draw a new one", sink.id));
        }
        let (id, as_of) = (sink.id, Frontier::at(sink.as_of));
        let detail = format!("{} from {}", sink.name, sink.as_of);
        let row = SinkRow { spec: sink, shard: self.shard(id), declared: now, dropped: None };
        let head = HeadRow {
            sink: id,
            upper: as_of,
            fence: 0,
            next_seq: 1,
            status: HeadStatus::Open,
            released: as_of,
            expired: as_of,
            revision: 0,
        };
        let (batches, consumers) = (BTreeMap::new(), BTreeMap::new());
        self.sinks.insert(id, Sink { row: row.clone(), head, incarnations: Vec::new(), batches, consumers });
        self.record(now, id, None, "declared", detail);
        self.stamp(id)?;
        Ok(Declared { sink: row, created: true })
    }

    fn live_named(&self, name: &SinkName) -> Option<&Sink> {
        self.sinks.values().find(|sink| sink.row.spec.name == *name && sink.row.dropped.is_none())
    }

    /// All sinks by name, dropped ones last.
    pub(super) fn all_sinks(&self, with_dropped: bool) -> Vec<SinkRow> {
        let wanted = |row: &&SinkRow| with_dropped || row.dropped.is_none();
        let mut rows: Vec<_> = self.sinks.values().map(|sink| &sink.row).filter(wanted).cloned().collect();
        rows.sort_by(|a, b| {
            let place =
                |row: &SinkRow| (row.dropped.is_some(), row.spec.name.clone(), row.declared, row.spec.id);
            place(a).cmp(&place(b))
        });
        rows
    }

    /// The sink of that name that is not dropped.
    pub(super) fn sink_named(&self, name: &SinkName) -> Result<SinkRow> {
        let found = self.live_named(name).map(|sink| sink.row.clone());
        found.ok_or_else(|| no_such_sink(&name.to_string()))
    }

    /// Closes the sink's incarnations, unlinks its chain, queues its keys. Again, it changes nothing.
    pub(super) fn drop_sink(&mut self, now: Timestamp, sink: SinkId) -> Result<Dropped> {
        let dropped = self.would_drop(sink)?;
        if self.sink(sink)?.head.status == HeadStatus::Dropped {
            return Ok(NOTHING);
        }
        self.raise_fence(sink)?;
        self.close_where(now, sink, "the sink was dropped", Which::Open)?;
        self.unlink_below(now, sink, Frontier::EMPTY, DeletionReason::SinkDropped)?;
        let gone = self.sink_mut(sink)?;
        gone.consumers.clear();
        gone.head.status = HeadStatus::Dropped;
        gone.row.dropped = Some(now);
        let upper = gone.head.upper;
        let detail = format!("at {upper}: batches {}, objects {}", dropped.batches, dropped.keys);
        self.record(now, sink, None, "sink-dropped", detail);
        self.stamp(sink)?;
        Ok(dropped)
    }

    /// What a drop at this moment would do.
    pub(super) fn would_drop(&self, sink: SinkId) -> Result<Dropped> {
        let sink = self.sink(sink)?;
        if sink.head.status == HeadStatus::Dropped {
            return Ok(NOTHING);
        }
        let open = sink.incarnations.iter().filter(|incarnation| incarnation.is_open());
        let behind = sink.consumers.values().filter(|consumer| consumer.acked < sink.head.upper);
        Ok(Dropped {
            incarnations: count(open),
            batches: count(sink.linked()),
            keys: count(sink.batches.values().flat_map(|batch| &batch.row.parts)),
            consumers_behind: count(behind),
        })
    }
}

/// How many there are, as the rows say it.
pub(super) fn count<T>(things: impl Iterator<Item = T>) -> u64 {
    things.fold(0, |count, _| count + 1)
}
