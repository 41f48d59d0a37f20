//! Fixed seeds: all hold, each meets enough faults, and together they reach every path and every fault.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::holds;
use stash_sim::{Report, run};

/// How many fixed seeds.
const SEEDS: u64 = 60;
/// Threads: runs are independent.
const THREADS: u64 = 2;

/// What must occur at least so often over all of them, by the name it is counted under.
const AT_LEAST: [(&str, u64); 42] = [
    ("accepted", 200),
    ("accepted empty", 50),
    ("trimmed", 20),
    ("dropped", 100),
    ("resolved dropped", 200),
    ("refused", 5),
    ("poisoned", 3),
    ("completed", 5),
    ("opened", 300),
    ("opened complete", 2),
    ("opened poisoned", 2),
    ("reconnect", 200),
    ("expired lease", 10),
    ("fenced session", 20),
    ("zombie share", 3),
    ("stale message", 10),
    ("duplicate refused", 20),
    ("worker failed", 10),
    ("going away", 1),
    ("sink dropped", 2),
    ("share inline", 100),
    ("coalesced part", 100),
    ("several parts", 50),
    ("several runs", 50),
    ("a run of several parts", 2),
    ("lost race", 20),
    ("lost reply read back", 10),
    ("offer made again", 50),
    ("surrendered", 100),
    ("sweep found garbage", 30),
    ("sweep found uploads", 5),
    ("source delivery", 50),
    ("consumer died", 50),
    ("! late", 20),
    ("! lost reply", 500),
    ("! lost request", 500),
    ("! delete fails", 20),
    ("! message lost", 5),
    ("! message doubled", 50),
    ("! zombie", 10),
    ("! stands still", 20),
    ("! clock jumps", 10),
];

/// How many faults a run meets at least.
const FAULTS_MIN: u64 = 40;

fn all() -> Vec<Report> {
    let reports = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for first in 0..THREADS {
            let reports = &reports;
            scope.spawn(move || {
                for seed in (first..SEEDS).step_by(usize::try_from(THREADS).expect("few")) {
                    let report = run(seed);
                    reports.lock().expect("not poisoned").push(report);
                }
            });
        }
    });
    let mut reports = reports.into_inner().expect("not poisoned");
    reports.sort_by_key(|report| report.seed);
    reports
}

#[test]
fn fixed_seeds_hold_every_promise_and_reach_every_path() {
    let reports = all();
    reports.iter().for_each(holds);
    let mut totals: BTreeMap<String, u64> = BTreeMap::new();
    for report in &reports {
        let faults = report.faults_total();
        assert!(faults >= FAULTS_MIN, "seed {} meets {faults} faults only", report.seed);
        for (what, n) in &report.counts {
            *totals.entry((*what).to_owned()).or_default() += n;
        }
        for (kind, n) in &report.faults {
            *totals.entry(format!("! {kind}")).or_default() += n;
        }
    }
    let rare: Vec<_> = AT_LEAST
        .iter()
        .filter(|(what, least)| totals.get(*what).copied().unwrap_or(0) < *least)
        .map(|(what, least)| (what, least, totals.get(*what)))
        .collect();
    assert!(rare.is_empty(), "too rare: {rare:?}\nof {totals:#?}");
}
