//! What happened, for people: written by the operation that makes it true, and bounded.

use stash_catalog::{HistoryFilter, HistoryRow};
use stash_types::{IncarnationId, PartKey, SinkId, Timestamp};

use super::state::State;

/// How many of the newest rows are kept.
const KEPT: usize = 100_000;

impl State {
    /// Records one event without a key.
    pub(super) fn record(
        &mut self,
        at: Timestamp,
        sink: SinkId,
        incarnation: Option<IncarnationId>,
        event: &'static str,
        detail: String,
    ) {
        self.push_history(HistoryRow { at, sink, incarnation, key: None, event: event.to_owned(), detail });
    }

    /// Records one event for each key.
    pub(super) fn record_keys(
        &mut self,
        at: Timestamp,
        sink: SinkId,
        keys: &[PartKey],
        event: &'static str,
        detail: &str,
    ) {
        for key in keys {
            self.push_history(HistoryRow {
                at,
                sink,
                incarnation: Some(key.name.incarnation),
                key: Some(*key),
                event: event.to_owned(),
                detail: detail.to_owned(),
            });
        }
    }

    fn push_history(&mut self, row: HistoryRow) {
        if self.history.len() == KEPT {
            self.history.pop_front();
        }
        self.history.push_back(row);
    }

    /// What was recorded and fits the filter, oldest first; the newest where the filter limits.
    pub(super) fn selected_history(&self, filter: &HistoryFilter) -> Vec<HistoryRow> {
        let HistoryFilter { sink, key, incarnation, limit } = filter;
        let fits = |row: &&HistoryRow| {
            sink.is_none_or(|sink| row.sink == sink)
                && key.is_none_or(|key| row.key == Some(key))
                && incarnation.is_none_or(|id| row.incarnation == Some(id))
        };
        let newest = match limit {
            0 => usize::MAX,
            limit => usize::try_from(*limit).unwrap_or(usize::MAX),
        };
        let mut rows: Vec<_> = self.history.iter().rev().filter(fits).take(newest).cloned().collect();
        rows.reverse();
        rows
    }
}
