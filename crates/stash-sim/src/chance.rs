//! Choices that follow from a seed: SplitMix64 (Steele, Lea, Flood 2014: a counter through a 64-bit mixing function).
//!
//! - Each [`Concern`] draws from a stream of its own, so that one more draw in one of them leaves the others as they
//!   were: a seed that was found goes on meaning nearly the same while the simulator grows.
//! - The streams are split by mixing the seed with the concern's number. Numbers are never reused.

/// What a stream of choices is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concern {
    /// What kind of run it is.
    Schedule,
    /// The updates.
    Feed,
    /// The store's delays and faults.
    Store,
    /// The catalog's delays and faults.
    Catalog,
    /// The network between the processes of a replica.
    Network,
    /// Who dies, stops and comes back, and when.
    Life,
    /// Where replicas cut, and how their workers go.
    Replica,
    /// How consumers go.
    Consumer,
    /// Sweeps, compaction of inputs, the clock.
    Housekeeping,
    /// Ids.
    Ids,
}

/// A stream of choices.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The stream of `seed` for one concern.
    pub fn of(seed: u64, concern: Concern) -> Chance {
        let number = match concern {
            Concern::Schedule => 1,
            Concern::Feed => 2,
            Concern::Store => 3,
            Concern::Catalog => 4,
            Concern::Network => 5,
            Concern::Life => 6,
            Concern::Replica => 7,
            Concern::Consumer => 8,
            Concern::Housekeeping => 9,
            Concern::Ids => 10,
        };
        Chance(mix(seed ^ mix(number)))
    }

    /// A stream of its own, split off this one.
    #[must_use]
    pub fn split(&mut self) -> Chance {
        Chance(mix(self.draw()))
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw().checked_rem(end).unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low.saturating_add(self.below(high.saturating_sub(low).saturating_add(1)))
    }

    /// True `per_mille` times of a thousand.
    pub fn per_mille(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// One of these; the first if there is one only.
    pub fn pick<T: Copy>(&mut self, first: T, others: &[T]) -> T {
        let place = self.below(count(others.len()).saturating_add(1));
        usize::try_from(place).ok().and_then(|place| others.get(place)).copied().unwrap_or(first)
    }

    /// Brings items into some order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = usize::try_from(self.below(count(last).saturating_add(1))).unwrap_or(0);
            items.swap(last, other);
        }
    }
}

/// A length as a number.
pub(crate) fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_again_and_concerns_differ() {
        let first = |seed, concern| Chance::of(seed, concern).draw();
        assert_eq!(first(7, Concern::Store), first(7, Concern::Store));
        assert_ne!(first(7, Concern::Store), first(7, Concern::Catalog));
        assert_ne!(first(7, Concern::Store), first(8, Concern::Store));
    }

    #[test]
    fn draws_keep_their_bounds_and_reach_them() {
        let mut chance = Chance::of(1, Concern::Schedule);
        let drawn: std::collections::BTreeSet<u64> = (0..200).map(|_| chance.between(3, 6)).collect();
        assert_eq!(drawn, [3, 4, 5, 6].into());
        assert_eq!(chance.below(0), 0);
        let picked: std::collections::BTreeSet<u8> = (0..100).map(|_| chance.pick(1, &[2, 3])).collect();
        assert_eq!(picked, [1, 2, 3].into());
    }
}
