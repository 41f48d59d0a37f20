//! Durations by the million: how many fell into which class, and the longest.
//!
//! Classes are a sixteenth of an octave wide, so a percentile is at most 1/16 above the true one. Taking one down
//! costs some nanoseconds and no memory.

use std::time::Duration;

/// Classes of each octave.
const WIDTH: u32 = 16;

/// Durations, counted by their class.
#[derive(Clone, Debug)]
pub struct Intervals {
    /// How many, and the sum of their lengths, by class.
    classes: Vec<(u64, Duration)>,
    longest: Duration,
}

impl Default for Intervals {
    fn default() -> Intervals {
        Intervals { classes: vec![(0, Duration::ZERO); (65 * WIDTH) as usize], longest: Duration::ZERO }
    }
}

impl Intervals {
    /// Takes one down.
    pub fn add(&mut self, interval: Duration) {
        let class = class_of(interval);
        if let Some((count, sum)) = self.classes.get_mut(class as usize) {
            *count += 1;
            *sum += interval;
        }
        self.longest = self.longest.max(interval);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.classes.iter().map(|(count, _)| count).sum()
    }

    /// The longest; zero of none.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// The duration that so many of a thousand do not exceed; zero of none.
    pub fn permille(&self, permille: u64) -> Duration {
        let wanted = (u128::from(self.count()) * u128::from(permille)).div_ceil(1000);
        self.upto(wanted, |(count, _)| u128::from(*count))
    }

    /// The duration of the interval that a moment lies in, exceeded at so few moments that all others are `permille` of
    /// a thousand: a second in one piece counts as a second here, not as one of a million.
    pub fn permille_of_time(&self, permille: u64) -> Duration {
        let all: Duration = self.classes.iter().map(|(_, sum)| *sum).sum();
        self.upto((all.as_nanos() * u128::from(permille)).div_ceil(1000), |(_, sum)| sum.as_nanos())
    }

    fn upto(&self, wanted: u128, weight: impl Fn(&(u64, Duration)) -> u128) -> Duration {
        let mut sum = 0;
        let found = self.classes.iter().position(|class| {
            sum += weight(class);
            sum > 0 && sum >= wanted
        });
        found.map_or(Duration::ZERO, |class| upper_of(class as u32).min(self.longest))
    }
}

/// The octave, and the sixteenth of it.
fn class_of(interval: Duration) -> u32 {
    let nanos = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
    let octave = nanos.ilog2();
    let within = (u128::from(nanos - (1 << octave)) * u128::from(WIDTH)) >> octave;
    octave * WIDTH + within as u32
}

/// The end of a class.
fn upper_of(class: u32) -> Duration {
    let (octave, within) = (class / WIDTH, class % WIDTH);
    let start = 1_u128 << octave;
    let nanos = start + (start * u128::from(within + 1)).div_ceil(u128::from(WIDTH));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_end_of_its_class_and_no_more_than_the_longest() {
        let mut intervals = Intervals::default();
        assert_eq!(intervals.permille(999), Duration::ZERO);
        (1..=1000).for_each(|micros| intervals.add(Duration::from_micros(micros)));
        assert_eq!(intervals.count(), 1000);
        assert_eq!(intervals.longest(), Duration::from_millis(1));
        let half = intervals.permille(500);
        assert!((Duration::from_micros(500)..Duration::from_micros(532)).contains(&half), "{half:?}");
        assert_eq!(intervals.permille(1000), Duration::from_millis(1));
    }

    #[test]
    fn a_long_one_is_rare_by_count_and_not_by_time() {
        let mut intervals = Intervals::default();
        (0..1_000_000).for_each(|_| intervals.add(Duration::from_micros(1)));
        intervals.add(Duration::from_secs(1));
        assert!(intervals.permille(999) < Duration::from_micros(2));
        assert_eq!(intervals.permille_of_time(999), Duration::from_secs(1));
    }

    #[test]
    fn every_duration_lies_in_its_class() {
        for nanos in [0, 1, 2, 3, 15, 16, 17, 1000, 123_456_789, u64::MAX] {
            let interval = Duration::from_nanos(nanos);
            assert!(upper_of(class_of(interval)) >= interval, "{nanos}");
        }
    }
}
