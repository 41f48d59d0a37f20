//! The corpora of the fuzz targets, replayed without a fuzzer: what was found once stays found, and seeded mutations
//! look a little further. `fuzz/run` does that for as long as it is told, led by coverage.

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
