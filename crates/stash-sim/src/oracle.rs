//! What consumers must be given, computed from the feed alone. Nothing here calls the product: rows are plain tuples,
//! times plain numbers.

use std::collections::BTreeMap;

use crate::feed::{Row, Update};

/// How often each row is there at each time. A zero is never kept.
pub type Content = BTreeMap<(Row, u64), i64>;

/// The content of one sink, from its as-of on.
#[derive(Clone, Debug)]
pub struct Oracle {
    by_time: BTreeMap<u64, BTreeMap<Row, i64>>,
}

impl Oracle {
    /// Accumulates everything up to the as-of there, and each later time by itself; `below` is the first time that is
    /// not wanted any more.
    pub fn new(updates: &[Update], as_of: u64, below: u64) -> Oracle {
        let mut by_time: BTreeMap<u64, BTreeMap<Row, i64>> = BTreeMap::new();
        for (row, time, diff) in updates {
            let time = if *time < as_of { as_of } else { *time };
            if time < below {
                *by_time.entry(time).or_default().entry(row.clone()).or_default() += *diff;
            }
        }
        for rows in by_time.values_mut() {
            rows.retain(|_, diff| *diff != 0);
        }
        Oracle { by_time }
    }

    /// What must be delivered of the times in `[lower, upper)`; `u64::MAX` is beyond every time.
    pub fn between(&self, lower: u64, upper: u64) -> Content {
        let mut content = Content::new();
        if lower < upper {
            for (time, rows) in self.by_time.range(lower..upper) {
                content.extend(rows.iter().map(|(row, diff)| ((row.clone(), *time), *diff)));
            }
        }
        content
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_snapshot_is_accumulated_and_what_cancels_is_not_there() {
        let row = |key: u64| (key, None);
        let updates = [
            (row(1), 2, 1),
            (row(1), 3, 2),
            (row(2), 4, 1),
            (row(2), 4, -1),
            (row(1), 6, -3),
            (row(3), 9, 1),
        ];
        let oracle = Oracle::new(&updates, 4, 9);
        assert_eq!(oracle.between(0, u64::MAX), [((row(1), 4), 3), ((row(1), 6), -3)].into());
        assert_eq!(oracle.between(5, 7), [((row(1), 6), -3)].into());
        assert_eq!(oracle.between(5, 6), Content::new());
    }
}
