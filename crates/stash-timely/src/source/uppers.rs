//! The uppers of deliveries that were given out and not acknowledged yet.
//!
//! There may be a thousand a second, for as long as a hold stands still. So no more than some thousands are
//! kept: beyond, every other one is forgotten, and from then on only every second one is kept, then every
//! fourth. What is acknowledged gets coarser, evenly over all that waits; it never gets wrong, and the last
//! upper is always known.

use stash::Frontier;

/// How many are kept beside the last.
const KEPT_MAX: usize = 4096;

/// Uppers in order, evenly thinned.
#[derive(Debug, Default)]
pub(super) struct Uppers {
    kept: Vec<Frontier>,
    last: Option<Frontier>,
    /// One of this many is kept, as a power of two.
    thinned: u32,
    passed: u64,
}

impl Uppers {
    /// Adds the upper of the newest delivery.
    pub(super) fn push(&mut self, upper: Frontier) {
        let Some(earlier) = self.last.replace(upper) else { return };
        self.passed += 1;
        if self.passed < 1 << self.thinned {
            return;
        }
        self.passed = 0;
        self.kept.push(earlier);
        if self.kept.len() > KEPT_MAX {
            let mut keeps = true;
            self.kept.retain(|_| {
                keeps = !keeps;
                !keeps
            });
            self.thinned += 1;
        }
    }

    /// The largest that is not above `allowed`; it and all below are forgotten.
    pub(super) fn take(&mut self, allowed: Frontier) -> Option<Frontier> {
        if self.last.is_some_and(|last| last <= allowed) {
            return std::mem::take(self).last;
        }
        let covered = self.kept.partition_point(|upper| *upper <= allowed);
        let taken = self.kept.drain(..covered).next_back();
        if self.kept.is_empty() {
            self.thinned = 0;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(uppers: impl IntoIterator<Item = u64>) -> Uppers {
        let mut all = Uppers::default();
        uppers.into_iter().for_each(|upper| all.push(Frontier::at(upper)));
        all
    }

    #[test]
    fn the_largest_upper_that_is_allowed_is_taken_once() {
        let mut uppers = after([3, 5, 9]);
        assert_eq!(uppers.take(Frontier::at(2)), None);
        assert_eq!(uppers.take(Frontier::at(8)), Some(Frontier::at(5)));
        assert_eq!(uppers.take(Frontier::at(8)), None);
        assert_eq!(uppers.take(Frontier::EMPTY), Some(Frontier::at(9)));
        assert_eq!(uppers.take(Frontier::EMPTY), None);
    }

    #[test]
    fn what_nobody_acknowledges_stays_bounded_and_evenly_known() {
        const ALL: u64 = 1_000_000;
        let mut uppers = after(1..=ALL);
        assert!(uppers.kept.len() <= KEPT_MAX);
        let widest = uppers.kept.windows(2).map(|pair| pair[1].as_u64() - pair[0].as_u64()).max();
        assert!(widest < Some(1_000), "{widest:?}");
        let taken = uppers.take(Frontier::at(ALL / 2)).expect("one is known");
        assert!(taken <= Frontier::at(ALL / 2) && taken > Frontier::at(ALL / 2 - 1_000), "{taken}");
        assert_eq!(uppers.take(Frontier::EMPTY), Some(Frontier::at(ALL)), "the last is always known");
        let mut uppers = after([1, 2, 3]);
        assert_eq!((uppers.take(Frontier::at(2)), uppers.thinned), (Some(Frontier::at(2)), 0));
    }
}
