//! A clock and an id source that repeat, what tests and simulations give a catalog; and [`RowProbe`], which tries
//! what a catalog makes of damaged rows.

use std::sync::atomic::{AtomicU64, Ordering};

use stash_types::{Clock, Digest, IdSource, Timestamp};
use uuid::{Builder, Uuid};

pub use crate::sqlite::probe::{Cell, Probed, RowProbe, Table};

/// A clock that stands until it is moved, on or back.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that stands at `millis`.
    pub fn at(millis: u64) -> ManualClock {
        ManualClock(AtomicU64::new(millis))
    }

    /// Moves it on by `millis`.
    pub fn advance(&self, millis: u64) {
        self.0.fetch_add(millis, Ordering::AcqRel);
    }

    /// Moves it back by `millis`, as a clock that is corrected is.
    pub fn go_back(&self, millis: u64) {
        self.0.fetch_sub(millis, Ordering::AcqRel);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Acquire))
    }
}

/// Ids that follow from a seed: the same seed draws the same ids in the same order.
#[derive(Debug)]
pub struct SeededIds {
    seed: u64,
    drawn: AtomicU64,
}

impl SeededIds {
    /// The source with this seed.
    pub fn new(seed: u64) -> SeededIds {
        SeededIds { seed, drawn: AtomicU64::new(0) }
    }

    fn draw(&self) -> (u64, [u8; 32]) {
        let n = self.drawn.fetch_add(1, Ordering::AcqRel);
        let mut input = self.seed.to_be_bytes().to_vec();
        input.extend(n.to_be_bytes());
        (n, Digest::of(&input).0)
    }
}

impl IdSource for SeededIds {
    fn random(&self) -> Uuid {
        let (_, [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..]) = self.draw();
        Builder::from_random_bytes([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]).into_uuid()
    }

    fn ordered(&self) -> Uuid {
        let (n, [a, b, c, d, e, f, g, h, i, j, ..]) = self.draw();
        // The count stands where the milliseconds would, so that later ids sort after earlier ones.
        Builder::from_unix_timestamp_millis(n, &[a, b, c, d, e, f, g, h, i, j]).into_uuid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_ids_and_ordered_ones_ascend() {
        let (a, b, c) = (SeededIds::new(7), SeededIds::new(7), SeededIds::new(8));
        assert_eq!(a.random(), b.random());
        assert_ne!(a.random(), c.random());
        let ordered: Vec<_> = (0..100).map(|_| a.ordered()).collect();
        assert!(ordered.is_sorted());
        assert_eq!(ordered.first().map(Uuid::get_version_num), Some(7));
    }
}
