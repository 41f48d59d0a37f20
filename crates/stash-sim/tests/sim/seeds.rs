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
