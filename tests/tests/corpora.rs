//! The corpora of the fuzz targets, replayed without a fuzzer: what was found once stays found, and seeded mutations
//! look a little further. `fuzz/run` does that for as long as it is told, led by coverage.

use std::collections::BTreeSet;

use stash_fuzz::{TARGETS, quiet_caught_panics, replay::replay};

/// Mutations of each target's corpus: a few seconds unoptimised.
const MUTATIONS: usize = 3_000;

#[test]
fn every_target_keeps_its_promises_over_its_corpus_and_mutations_of_it() {
    quiet_caught_panics();
    for target in TARGETS {
        let inputs = replay(&target, MUTATIONS, 5).unwrap_or_else(|error| panic!("{}: {error}", target.name));
        assert!(inputs > MUTATIONS + 10, "{}: its corpus is nearly empty", target.name);
    }
}

#[test]
fn the_fuzz_package_is_locked_to_the_versions_of_the_workspace() {
    let packages = |lock: &'static str| -> BTreeSet<(&str, &str)> {
        let lines: Vec<&str> = lock.lines().collect();
        let named = lines
            .windows(2)
            .filter_map(|pair| Some((pair[0].strip_prefix("name = ")?, pair[1].strip_prefix("version = ")?)));
        named.collect()
    };
    let workspace = packages(include_str!("../../Cargo.lock"));
    let fuzz = packages(include_str!("../../fuzz/Cargo.lock"));
    assert!(fuzz.len() > 50, "the lock file is not read right");
    // Only libFuzzer and what it needs are not the workspace's.
    let shared = |(name, _): &&(&str, &str)| workspace.iter().any(|(known, _)| known == name);
    let odd: Vec<_> = fuzz.difference(&workspace).filter(shared).collect();
    let remedy = "copy Cargo.lock to fuzz/Cargo.lock, and build there once";
    assert!(odd.is_empty(), "fuzz/Cargo.lock has other versions; {remedy}: {odd:?}");
}
