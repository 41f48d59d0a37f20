//! What is left of batches that are asked for no more: rows to be freed, some at a time, by the worker that made them.
//!
//! Each row is some small pieces of memory. Where another thread frees millions of them, an allocator keeps them for the
//! thread that they came from, and has it collect all of them in one call: for seconds the worker does nothing else. And
//! an allocator gives memory back to the system in stretches, from the last one that it took on, once nothing in them is
//! used any more. Rows are in the order of their keys, which is none for the stretches: nearly all of these have something
//! in them until the very end, and then all would go back in one call, of a second for ten gigabytes.
//!
//! - R1 *Few*: a call frees so many rows at most.
//! - R2 *Stretches*: some rows stay until all others are freed, as *pins*, so many that they lie everywhere. They go in the
//!   order of where they lie, and with one call those of one stretch. Systems give out addresses from above, so that
//!   the lowest stretch is about the last one that was taken.
//! - R3 *Touched*: an allocator reads what stands before a piece that it frees, so rows are touched before ([`Touch`]).
//!
//! None of this is known of an allocator for sure, and no result depends on it: rows that do not say where their memory
//! lies ([`crate::Row::POINTS`]) are freed just as well, with a long call at the end.

use differential_dataflow::trace::implementations::{Vector, ord_neu::OrdKeyBatch};

use crate::{batch::Multiplicity, rows::Encode, scan::Touch};

/// Rows of a batch that are freed some at a time.
pub(crate) trait Remains: Send {
    /// Frees so many rows at most; whether more are left. What is not rows is left.
    fn free(&mut self, rows: usize) -> bool;

    /// Frees the rest, where it may take long.
    fn end(self: Box<Self>);
}

/// How updates lie in a batch.
type Laid<R, D> = Vector<((R, ()), u64, D)>;

/// A batch of keys that only this has, and of which nothing is asked any more.
pub(crate) struct Keys<R: Ord + Clone + 'static, D: Multiplicity, E> {
    batch: OrdKeyBatch<Laid<R, D>>,
    encode: E,
    /// One of so many rows is a pin.
    pinned: usize,
    /// Where they lie, and the rows; from the highest down once all others are freed.
    pins: Vec<(usize, R)>,
}

/// Rows that are touched at once.
const TOUCHED: usize = 64;
/// Pins of a batch, about: few enough to be sorted at once, enough for some to lie in each of hundreds of stretches.
const PINS: usize = 16_384;
/// Fewer rows than so many beside each other have no pin.
const PINNED_MIN: usize = 1024;
/// A stretch has two to the power of this many bytes: the largest that is usual.
const STRETCH_BITS: u32 = 26;
/// Bytes that no allocator has in one of its stretches.
const APART: usize = 64 << 20;
/// Bytes of an empty vector that are given back at once.
const SHRUNK: usize = 64 << 20;

impl<R: Ord + Clone + 'static, D: Multiplicity, E: Encode<R>> Keys<R, D, E> {
    pub(crate) fn new(batch: OrdKeyBatch<Laid<R, D>>, encode: E) -> Self {
        let pinned = (batch.storage.keys.len() / PINS).max(PINNED_MIN);
        Self { batch, encode, pinned, pins: Vec::new() }
    }

    /// Makes room for the pins, as freeing begins: hundreds of batches may be waiting for it.
    fn begin(&mut self) {
        // SUBTLE: not among the rows, where it would itself be a pin to the end: what is as large as this an allocator asks
        // the system for. Of that it gets only as much as is written to.
        if E::POINTS && self.pins.capacity() == 0 && self.batch.storage.keys.len() >= PINNED_MIN {
            self.pins.reserve_exact(APART / size_of::<(usize, R)>());
        }
    }

    /// Where a row's memory lies; `None` where it has none, or does not say.
    fn place(&self, row: &R) -> Option<usize> {
        let mut place = None;
        self.encode.pieces(row, &mut |piece| {
            place = place.or_else(|| (!piece.is_empty()).then(|| piece.as_ptr().addr()));
        });
        place
    }

    /// Frees the rows from `left` on, except for a pin.
    fn truncate(&mut self, left: usize) {
        let keys = &mut self.batch.storage.keys;
        if E::POINTS {
            let mut touch = Touch::default();
            for row in keys.iter().skip(left) {
                self.encode.pieces(row, &mut |piece| touch.read(piece));
            }
            touch.done();
            let pinned = keys.len() / self.pinned > left / self.pinned;
            if pinned
                && let Some(row) = keys.pop()
                && let Some(place) = self.place(&row)
            {
                self.pins.push((place, row));
            }
        }
        self.batch.storage.keys.truncate(left);
    }

    /// Frees pins of one stretch.
    fn unpin(&mut self, rows: usize) {
        let stretch = |pin: Option<&(usize, R)>| pin.map(|(place, _)| place >> STRETCH_BITS);
        let first = stretch(self.pins.last());
        let same = self.pins.iter().rev().take(rows).take_while(|pin| stretch(Some(*pin)) == first).count();
        self.pins.truncate(self.pins.len() - same);
    }
}

impl<R: Ord + Clone + Send + 'static, D: Multiplicity, E: Encode<R>> Remains for Keys<R, D, E> {
    fn free(&mut self, rows: usize) -> bool {
        if self.batch.storage.keys.is_empty() {
            self.unpin(rows);
            return !self.pins.is_empty();
        }
        self.begin();
        let kept = self.batch.storage.keys.len().saturating_sub(rows);
        while self.batch.storage.keys.len() > kept {
            let left = self.batch.storage.keys.len().saturating_sub(TOUCHED).max(kept);
            self.truncate(left);
        }
        if kept == 0 {
            self.pins.sort_unstable_by_key(|(place, _)| std::cmp::Reverse(*place));
        }
        kept > 0 || !self.pins.is_empty()
    }

    fn end(self: Box<Self>) {
        let Self { batch, pins, .. } = *self;
        drop(pins);
        // The system does little else for a process while it takes a large piece back.
        let mut keys = batch.storage.keys;
        while keys.capacity() * size_of::<R>() > SHRUNK {
            keys.shrink_to(keys.capacity() - SHRUNK / size_of::<R>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{batch::testing::key_batch, rows::OfType};

    fn remains<R, D>(batch: crate::batch::KeyBatch<R, D>) -> Keys<R, D, OfType>
    where
        R: crate::Row + Ord + Clone,
        D: Multiplicity,
    {
        Keys::new(batch.into_inner().expect("the only one"), OfType)
    }

    #[test]
    fn rows_are_freed_so_many_at_a_time() {
        let mut last = remains(key_batch((0..10).map(|key| (key, 0, 1)).collect()).expect("updates"));
        assert!(last.free(4) && last.free(4), "two are left");
        assert!(!last.free(4), "all are freed");
    }

    #[test]
    fn pins_go_last_and_by_where_they_lie() {
        let rows = 10 * PINNED_MIN;
        // The last is made first: where they lie is not how they are ordered.
        let updates = (0..rows).rev().map(|row| (format!("{row:08}"), 0, 1)).collect();
        let mut last = remains(key_batch(updates).expect("updates"));
        assert_eq!(last.pins.capacity(), 0, "no room is taken by what waits");
        let mut calls = 1;
        while last.free(PINNED_MIN) && !last.batch.storage.keys.is_empty() {
            calls += 1;
        }
        assert_eq!(calls, 10, "as many rows a call as it was told");
        assert_eq!(last.pins.len(), 10, "one of each {PINNED_MIN} rows stays");
        assert!(last.pins.is_sorted_by(|one, other| one.0 > other.0), "the lowest is the next");
        for (place, row) in &last.pins {
            assert_eq!(*place, row.as_ptr().addr(), "of {row}");
        }
        // As if they lay in two stretches.
        for (n, (place, _)) in last.pins.iter_mut().enumerate() {
            *place = if n < 3 { 5 << STRETCH_BITS } else { (4 << STRETCH_BITS) + n };
        }
        assert!(last.free(rows), "another stretch");
        assert_eq!(last.pins.len(), 3);
        assert!(last.free(2), "so many rows at most");
        assert!(!last.free(2));
        Box::new(last).end();
    }
}
