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
const AT_LEAST: [(&str, u64); 46] = [
    ("accepted", 250),
    ("accepted empty", 100),
    ("trimmed", 25),
    ("dropped", 200),
    ("resolved dropped", 300),
    ("refused", 8),
    ("poisoned", 3),
    ("completed", 5),
    ("opened", 400),
    ("opened complete", 4),
    ("opened poisoned", 4),
    ("reconnect", 300),
    ("expired lease", 30),
    ("expired batch", 3),
    ("read what expired", 1),
    ("fenced session", 30),
    ("zombie share", 6),
    ("stale message", 20),
    ("duplicate refused", 40),
    ("worker failed", 30),
    ("going away", 2),
    ("sink dropped", 3),
    ("share inline", 250),
    ("coalesced part", 200),
    ("several parts", 80),
    ("several runs", 80),
    ("a run of several parts", 4),
    ("lost race", 40),
    ("lost reply read back", 20),
    ("offer made again", 150),
    ("surrendered", 300),
    ("sweep found garbage", 50),
    ("sweep found uploads", 12),
    ("source delivery", 150),
    ("consumer died", 100),
    ("! late", 25),
    ("! lost reply", 1000),
    ("! lost request", 1000),
    ("! delete fails", 40),
    ("! message lost", 5),
    ("! message doubled", 100),
    ("! zombie", 12),
    ("! stands still", 30),
    ("! clock jumps", 15),
    ("! two sessions", 15),
    ("! outage", 15),
];

/// How many faults a run meets at least.
const FAULTS_MIN: u64 = 50;

/// How often replicas and consumers come back in a run at least.
const BACK_MIN: u64 = 3;

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
        let back = report.count("reconnect") + report.count("consumer died");
        assert!(back >= BACK_MIN, "in seed {} somebody comes back {back} times only", report.seed);
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
