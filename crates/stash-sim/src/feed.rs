//! The changefeed of a run, a pure function of its seed: what every replica of a deterministic dataflow computes.
//!
//! - Updates insert and retract rows of few keys, so that much cancels; some stretches are empty.
//! - A *tick* is a frontier the feed's input reaches; the n-th is reached after so many periods of virtual time, and a
//!   replica may cut at any of them.
//! - Some feeds begin near the end of the times there are.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema};
use stash::{Error, Sink};

use crate::chance::Chance;

/// A row: a key, and a text that may be missing.
pub type Row = (u64, Option<String>);

/// A row, its time, its diff.
pub type Update = (Row, u64, i64);

/// How a feed looks.
#[derive(Clone, Copy, Debug)]
pub struct FeedShape {
    /// Ticks.
    pub ticks: u64,
    /// Updates before the sink's as-of.
    pub snapshot: u64,
    /// Updates a tick, at most.
    pub per_tick: u64,
    /// Keys.
    pub keys: u64,
    /// Bytes of a text, at most.
    pub text: u64,
    /// The first time.
    pub base: u64,
}

/// All updates of a dataflow.
#[derive(Clone, Debug)]
pub struct Feed {
    /// The updates, by time.
    pub updates: Vec<Update>,
    /// The as-of of its sink: a time after some of the updates.
    pub as_of: u64,
    /// The frontiers it reaches one after another, all above the as-of.
    pub ticks: Vec<u64>,
}

impl Feed {
    /// The feed of this stream of choices.
    pub fn drawn(chance: &mut Chance, shape: FeedShape) -> Feed {
        let FeedShape { ticks, snapshot, per_tick, keys, text, base } = shape;
        let mut updates = Vec::new();
        let before = chance.between(0, 5);
        for _ in 0..snapshot {
            let time = base.saturating_add(chance.below(before.saturating_add(1)));
            updates.push(update(chance, time, keys, text));
        }
        let as_of = base.saturating_add(before);
        let mut frontier = as_of;
        let mut reached = Vec::new();
        for _ in 0..ticks {
            let next = frontier.saturating_add(chance.pick(1, &[1, 1, 2, 3, 10]));
            if !chance.per_mille(250) {
                // What lies at the as-of itself belongs to the snapshot.
                for _ in 0..chance.below(per_tick.saturating_add(1)) {
                    let time = chance.between(frontier, next.saturating_sub(1));
                    updates.push(update(chance, time, keys, text));
                }
            }
            frontier = next;
            reached.push(frontier);
        }
        updates.sort_by_key(|(_, time, _)| *time);
        Feed { updates, as_of, ticks: reached }
    }

    /// Where it ends: the last tick.
    pub fn end(&self) -> u64 {
        self.ticks.last().copied().unwrap_or(self.as_of)
    }
}

fn update(chance: &mut Chance, time: u64, keys: u64, text: u64) -> Update {
    let key = chance.below(keys);
    let text = match chance.below(4) {
        0 => None,
        which => {
            let len = usize::try_from(text.saturating_mul(which) / 3).unwrap_or(0);
            Some(format!("{key:x}").repeat(len.max(1)))
        }
    };
    ((key, text), time, chance.pick(1, &[1, 1, 2, -1, -1, -3]))
}

/// What a worker of a rendering at `as_of` holds for `[lower, upper)`: the snapshot accumulated at the as-of, later
/// updates as they are. Which worker holds an update is told by `of`, which need not be the same for equal rows.
pub(crate) fn held(
    updates: &[Update],
    as_of: u64,
    lower: u64,
    upper: u64,
    of: impl Fn(usize, &Update) -> bool,
) -> Vec<Update> {
    let begin = if lower <= as_of { 0 } else { updates.partition_point(|(_, time, _)| *time < lower) };
    let mut mine = Vec::new();
    for (place, update) in updates.iter().enumerate().skip(begin) {
        let (row, time, diff) = update;
        let time = (*time).max(as_of);
        if time >= upper {
            break;
        }
        if time >= lower && of(place, update) {
            mine.push((row.clone(), time, *diff));
        }
    }
    mine
}

/// The columns of a feed's rows.
pub fn schema() -> Schema {
    Schema::new(vec![Field::new("key", DataType::UInt64, false), Field::new("text", DataType::Utf8, true)])
}

/// Updates as a sink takes them.
pub(crate) fn columns(sink: &Sink, updates: &[Update]) -> Result<RecordBatch, Error> {
    let keys: UInt64Array = updates.iter().map(|((key, _), _, _)| *key).collect::<Vec<_>>().into();
    let texts: StringArray = updates.iter().map(|((_, text), _, _)| text.as_deref()).collect();
    let rows: Vec<ArrayRef> = vec![Arc::new(keys), Arc::new(texts)];
    let times = updates.iter().map(|(_, time, _)| *time).collect();
    let diffs = updates.iter().map(|(_, _, diff)| *diff).collect();
    sink.updates(rows, times, diffs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Concern;

    fn feed(seed: u64, base: u64) -> Feed {
        let shape = FeedShape { ticks: 30, snapshot: 20, per_tick: 8, keys: 5, text: 9, base };
        Feed::drawn(&mut Chance::of(seed, Concern::Feed), shape)
    }

    #[test]
    fn a_feed_is_sorted_by_time_below_its_end_and_its_ticks_ascend() {
        for base in [0, 7, u64::MAX - 10_000] {
            let feed = feed(3, base);
            assert!(feed.updates.is_sorted_by_key(|(_, time, _)| *time));
            assert!(feed.updates.iter().all(|(_, time, _)| (base..feed.end()).contains(time)));
            assert!(feed.ticks.is_sorted() && feed.ticks.len() == 30);
            assert!(feed.as_of < feed.ticks[0] && feed.end() == feed.ticks[29]);
        }
    }

    #[test]
    fn a_rendering_accumulates_at_its_as_of_and_leaves_later_times_alone() {
        let feed = feed(5, 0);
        let as_of = feed.ticks[10] - 1;
        let all = |_: usize, _: &Update| true;
        let snapshot = held(&feed.updates, as_of, as_of, as_of + 1, all);
        let expected = feed.updates.iter().filter(|(_, time, _)| *time <= as_of).count();
        assert_eq!(snapshot.len(), expected);
        assert!(snapshot.iter().all(|(_, time, _)| *time == as_of));
        let later = held(&feed.updates, as_of, as_of + 1, feed.end(), all);
        assert_eq!(later.len() + snapshot.len(), feed.updates.len());
    }
}
