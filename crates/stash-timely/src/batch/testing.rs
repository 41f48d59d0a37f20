//! Batches out of plain updates, for tests.

use differential_dataflow::trace::implementations::ord_neu::{VecOrdKeyBuilder, VecOrdValBuilder};
use differential_dataflow::trace::{Builder, Description, Span};
use timely::progress::Antichain;

use super::{KeyBatch, ValBatch};

/// An update of a `(key, value)`.
pub(crate) type Update = ((u64, u64), u64, i64);

/// A batch of these updates, `None` where they sum to nothing.
pub(crate) fn val_batch(mut updates: Vec<Update>) -> Option<ValBatch<u64, u64, i64>> {
    updates.sort_unstable();
    let mut builder = VecOrdValBuilder::default();
    builder.push(&mut consolidated(updates));
    builder.done().map(ValBatch::from)
}

/// The same, of the keys alone.
pub(crate) fn key_batch<K: Ord + Clone + 'static>(updates: Vec<(K, u64, i64)>) -> Option<KeyBatch<K, i64>> {
    let updates = updates.into_iter().map(|(key, time, diff)| ((key, ()), time, diff)).collect();
    let mut builder = VecOrdKeyBuilder::default();
    builder.push(&mut consolidated(updates));
    builder.done().map(KeyBatch::from)
}

/// The frontier at this time; u64::MAX is the empty one.
pub(crate) fn frontier(time: u64) -> Antichain<u64> {
    if time == u64::MAX { Antichain::new() } else { Antichain::from_elem(time) }
}

/// A span over `[lower, upper)` at the minimal compaction.
pub(crate) fn span<B>(lower: u64, upper: u64, batch: Option<B>) -> Span<u64, B> {
    Span::new(Description::new(frontier(lower), frontier(upper), frontier(0)), batch)
}

fn consolidated<D: Ord + Clone>(mut updates: Vec<(D, u64, i64)>) -> Vec<(D, u64, i64)> {
    differential_dataflow::consolidation::consolidate_updates(&mut updates);
    updates
}
