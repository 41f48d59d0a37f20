//! The changefeed: a pure function of a seed, a time and nothing else.
//!
//! Times differ in size on purpose: nothing, a few updates that travel inside their shares, some that need a part,
//! and now and then so many that a worker writes several runs and has to merge them. Rows carry noise that does not
//! compress, since sizes are what decides.

use std::collections::BTreeMap;

/// A row: a key, and noise.
pub type Row = (u64, String);

/// Updates by (time, row): multiplicities, none of them 0.
pub type Content = BTreeMap<(u64, Row), i64>;

/// Choices that follow from a seed: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The choices of this seed.
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }

    /// One of them; `None` where there are none.
    pub fn one_of<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(usize::try_from(self.below(of.len() as u64)).unwrap_or(0))
    }

    /// True `percent` times of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// All updates of a dataflow for times below `end`.
#[derive(Clone, Copy, Debug)]
pub struct Feed {
    /// What everything follows from.
    pub seed: u64,
    /// The first time without updates: the sink's up-to.
    pub end: u64,
    /// How many times larger than usual the large times are.
    pub weight: u64,
}

impl Feed {
    /// The updates of one time, not consolidated.
    pub fn at(&self, time: u64) -> Vec<(Row, i64)> {
        let mut chance = Chance::new(self.seed ^ time.wrapping_mul(0x9e6c_63d0_876a_3f6b));
        let (updates, words) = match chance.below(100) {
            0..15 if time > 0 => (0, 0),
            0..55 => (1 + chance.below(5), 1),
            55..85 => (20 + chance.below(20), 8),
            _ => (self.weight * (100 + chance.below(100)), 12),
        };
        let keys = 1 + updates / 2;
        let mut all = Vec::new();
        for _ in 0..updates {
            let key = chance.below(keys);
            // The noise follows from the key and one of two variants, so that equal rows come up again.
            let mut noise = Chance::new(key ^ chance.below(2) << 32);
            let pad: String = (0..words).map(|_| format!("{:016x}", noise.draw())).collect();
            let diff = chance.one_of(&[1, 1, 2, -1, -3]).copied().unwrap_or(1);
            all.push(((key, pad), diff));
        }
        all
    }

    /// What must be delivered for times below `upper`.
    pub fn content(&self, upper: u64) -> Content {
        let mut content = Content::new();
        for time in 0..upper.min(self.end) {
            for (row, diff) in self.at(time) {
                *content.entry((time, row)).or_default() += diff;
            }
        }
        content.retain(|_, diff| *diff != 0);
        content
    }

    /// What `worker` of `workers` holds for `[lower, upper)` in a rendering at `as_of`: the snapshot is accumulated
    /// at the as-of, all later times are as they are.
    pub fn share(
        &self,
        as_of: u64,
        lower: u64,
        upper: u64,
        worker: u32,
        workers: u32,
    ) -> Vec<(Row, u64, i64)> {
        let from = if lower <= as_of { 0 } else { lower };
        let mut share = Vec::new();
        for time in from..upper.min(self.end) {
            let mine =
                self.at(time).into_iter().filter(|(row, _)| row.0 % u64::from(workers) == u64::from(worker));
            share.extend(mine.map(|(row, diff)| (row, time.max(as_of), diff)));
        }
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_all_workers_over_any_cut_are_the_content() {
        let feed = Feed { seed: 5, end: 20, weight: 1 };
        for workers in [1, 3] {
            let mut got = Content::new();
            for bounds in [[0, 1], [1, 7], [7, 20]] {
                for worker in 0..workers {
                    for (row, time, diff) in feed.share(0, bounds[0], bounds[1], worker, workers) {
                        *got.entry((time, row)).or_default() += diff;
                    }
                }
            }
            got.retain(|_, diff| *diff != 0);
            assert_eq!(got, feed.content(20));
        }
    }

    #[test]
    fn a_rendering_accumulates_its_snapshot_at_the_as_of() {
        let feed = Feed { seed: 5, end: 20, weight: 1 };
        let snapshot: i64 = feed.share(9, 9, 10, 0, 1).iter().map(|(_, _, diff)| diff).sum();
        let all: i64 = (0..10).flat_map(|time| feed.at(time)).map(|(_, diff)| diff).sum();
        assert_eq!(snapshot, all);
        assert!(feed.share(9, 9, 10, 0, 1).iter().all(|(_, time, _)| *time == 9));
    }

    #[test]
    fn a_feed_has_times_of_every_size() {
        let feed = Feed { seed: 1, end: 60, weight: 1 };
        let sizes: Vec<usize> = (0..60).map(|time| feed.at(time).len()).collect();
        assert!(sizes.contains(&0) && sizes.iter().any(|n| (1..10).contains(n)), "{sizes:?}");
        assert!(sizes.iter().any(|n| (20..50).contains(n)) && sizes.iter().any(|n| *n >= 100), "{sizes:?}");
    }
}
