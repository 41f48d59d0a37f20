//! What the benches share: numbers that follow from a seed, percentiles, peak memory, and how results are told.
//!
//! Benches measure the library as a user meets it: local files, an SQLite catalog with `synchronous=FULL`, a
//! folder of its own that goes when they end.

use std::{fs, time::Duration};

use serde_json::{Map, Value};

/// Numbers that follow from a seed: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    /// The next one.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The duration below which `percent` of all lie; zero of none. Sorts them.
pub fn percentile(all: &mut [Duration], percent: usize) -> Duration {
    all.sort_unstable();
    let place = (all.len() * percent / 100).min(all.len().saturating_sub(1));
    all.get(place).copied().unwrap_or_default()
}

/// The most memory this process had resident, in bytes, where the system says it (Linux: `VmHWM`).
pub fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Results in the order they are to be told: a name with its unit, and a number.
#[derive(Debug, Default)]
pub struct Results(Vec<(&'static str, f64)>);

impl Results {
    /// Adds one.
    pub fn add(&mut self, name: &'static str, value: f64) {
        self.0.push((name, value));
    }

    /// Prints them: a line each, or one JSON object.
    pub fn print(&self, json: bool) {
        if json {
            let object: Map<String, Value> =
                self.0.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect();
            println!("{}", Value::Object(object));
        } else {
            self.0.iter().for_each(|(name, value)| println!("{name:>24} {value:>14.3}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_durations() {
        let mut all: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut all, 50), Duration::from_millis(51));
        assert_eq!(percentile(&mut all, 99), Duration::from_millis(100));
        assert_eq!(percentile(&mut [], 50), Duration::ZERO);
    }
}
