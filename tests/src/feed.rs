//! A changefeed that follows from a seed, as every replica of a deterministic dataflow computes it.

use crate::{Content, Row, content_of};

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
        self.draw() % end
    }

    /// A place in something of this length, which is not 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a usize")
    }

    /// True `percent` times of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// All updates of a dataflow from time 0 on.
#[derive(Clone, Debug)]
pub struct Feed {
    /// In the order of their times.
    updates: Vec<(Row, u64, i64)>,
}

impl Feed {
    /// The feed of `seed`: about `per_time` updates at each time below `end`, insertions and retractions of
    /// `keys` keys whose rows carry `pad` bytes.
    pub fn seeded(seed: u64, end: u64, per_time: u64, keys: u64, pad: usize) -> Feed {
        let mut chance = Chance::new(seed);
        let mut updates = Vec::new();
        for time in 0..end {
            // Some times are empty, so that stretches without updates are met too.
            if time > 0 && chance.percent(20) {
                continue;
            }
            for _ in 0..per_time {
                let key = chance.below(keys);
                let diff = [1, 1, 2, -1, -3][chance.index(5)];
                updates.push(((key, format!("{:0pad$}", chance.below(3))), time, diff));
            }
        }
        Feed { updates }
    }

    /// What must be delivered for times in `[lower, upper)`.
    pub fn content(&self, lower: u64, upper: u64) -> Content {
        content_of(self.within(lower, upper))
    }

    /// The updates of times in `[lower, upper)`.
    fn within(&self, lower: u64, upper: u64) -> &[(Row, u64, i64)] {
        let until = |end| self.updates.partition_point(|(_, time, _)| *time < end);
        &self.updates[until(lower)..until(upper).max(until(lower))]
    }

    /// What `worker` of `workers` holds for `[lower, upper)` in a rendering at `as_of`: the snapshot is
    /// accumulated at the as-of, all later times are as they are.
    pub fn share(
        &self,
        as_of: u64,
        lower: u64,
        upper: u64,
        worker: u32,
        workers: u32,
    ) -> Vec<(Row, u64, i64)> {
        let mine = |row: &Row| row.0 % u64::from(workers) == u64::from(worker);
        // What came before the as-of counts at the as-of.
        let from = if lower <= as_of { 0 } else { lower };
        (self.within(from, upper).iter())
            .filter(|(row, _, _)| mine(row))
            .map(|(row, time, diff)| (row.clone(), *(time.max(&as_of)), *diff))
            .filter(|(_, time, _)| (lower..upper).contains(time))
            .collect()
    }
}
