//! What the benches share: numbers that follow from a seed, percentiles, peak memory, and how results are told.
//!
//! Benches measure the library as a user meets it: local files, an SQLite catalog with `synchronous=FULL`, a
//! folder of its own that goes when they end.

mod intervals;

use std::{fs, time::Duration};

use serde_json::{Map, Value};

pub use intervals::Intervals;
pub use stash_testkit::{peak_memory, resident_memory};

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

/// The time that all threads of this process, the ended ones too, were on a core; zero where the system does not say
/// (Linux: `/proc/self/stat`, in hundredths of a second).
pub fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command's name may hold anything; what follows its closing bracket are numbers. User time is the 12th.
    let numbers = stat.rsplit(')').next().unwrap_or_default();
    let ticks = numbers.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

/// How many threads want a core on this machine, over the last minute: what a measurement was disturbed by.
pub fn load() -> f64 {
    let loads = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    loads.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or_default()
}

/// Results in the order they are to be told: a name with its unit, and a number.
#[derive(Debug, Default)]
pub struct Results(Vec<(String, f64)>);

impl Results {
    /// Adds one.
    pub fn add(&mut self, name: impl Into<String>, value: f64) {
        self.0.push((name.into(), value));
    }

    /// The one of this name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find_map(|(told, value)| (told == name).then_some(*value))
    }

    /// Reads what [`Results::print`] told as JSON.
    pub fn parse(json: &str) -> serde_json::Result<Results> {
        let object: Map<String, Value> = serde_json::from_str(json)?;
        let numbers = object.into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?)));
        Ok(Results(numbers.collect()))
    }

    /// Prints them: a line each, or one JSON object.
    pub fn print(&self, json: bool) {
        if json {
            let object: Map<String, Value> =
                self.0.iter().map(|(name, value)| (name.clone(), Value::from(*value))).collect();
            println!("{}", Value::Object(object));
        } else {
            self.0.iter().for_each(|(name, value)| println!("{name:>32} {value:>14.3}"));
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

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_knows_the_time_it_was_on_a_core() {
        let before = cpu_time();
        let mut numbers = Numbers::new(1);
        while cpu_time() == before {
            std::hint::black_box(numbers.draw());
        }
    }
}
