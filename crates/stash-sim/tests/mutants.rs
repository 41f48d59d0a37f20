//! Rules that are broken on purpose: some seed sees each of them, and names an invariant. Without one, none does.
//!
//! Only with the feature `faults`; the rules are broken where the product asks for them (`stash_types::fault`).

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use stash_sim::{Report, run};
use stash_types::fault::{Mutant, arm};

/// A broken rule is seen within so many seeds.
const SEEDS: u64 = 300;
/// Threads: a mutant is armed on one.
const THREADS: usize = 2;

/// The first seed that sees it.
fn killed_by(mutant: Mutant) -> Option<Report> {
    let _armed = arm(mutant);
    (0..SEEDS).map(run).find(|report| report.violation.is_some())
}

#[test]
fn every_broken_rule_is_seen_by_some_seed() {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(mutant) = Mutant::ALL.get(next.fetch_add(1, Ordering::AcqRel)) {
                    let killed = killed_by(*mutant);
                    match &killed {
                        Some(report) => {
                            let violated = report.violation.as_ref().expect("it was found by this");
                            println!(
                                "{mutant:?}: seed {}: {}: {}",
                                report.seed, violated.invariant, violated.what
                            );
                        }
                        None => println!("{mutant:?}: LIVES"),
                    }
                    found.lock().expect("not poisoned").insert(*mutant, killed.is_some());
                }
            });
        }
    });
    let found = found.into_inner().expect("not poisoned");
    assert_eq!(found.len(), Mutant::ALL.len());
    let alive: Vec<_> = found.iter().filter(|(_, killed)| !**killed).map(|(mutant, _)| mutant).collect();
    assert!(alive.is_empty(), "nobody noticed {alive:?}");
}
