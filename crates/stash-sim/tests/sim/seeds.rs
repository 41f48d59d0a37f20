//! Seeds that failed once, each by its name. They stay.

use crate::holds;
use stash_sim::run;

/// The hold was read after the incarnations: one that was opened in between was not seen, and the chain moved on, so the
/// inputs forgot the as-of at which it was still to render (I10).
#[test]
fn seeds_that_failed_because_the_read_hold_looked_at_the_incarnations_before_the_head() {
    for seed in [0, 34, 43, 46, 50] {
        holds(&run(seed));
    }
}

/// The last run of a description came to nothing, its updates having cancelled; it took the place of the parts that had
/// been written before it, and the worker's share said that there was nothing (I11).
#[test]
fn a_seed_that_failed_because_a_run_of_nothing_took_the_place_of_parts() {
    holds(&run(52));
}

/// The clock stepped back, and the run did not wait for the lease of a zombie: its parts were being written, as far as
/// anybody could tell, and counted as left (I17). The fault was the run's own.
#[test]
fn a_seed_that_failed_because_the_end_did_not_wait_for_the_last_lease() {
    holds(&run(25_299));
}
