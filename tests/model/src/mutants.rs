//! The broken rules, each with the invariant that must find it out and the world in which it does.

use stash_chain::invariants::Invariant;
use stash_types::fault::Mutant;

use crate::check::{Report, hunt, hunt_merge};
use crate::config::Config;

/// The name of a mutant on the command line and in reports: as in the code.
pub fn name(mutant: Mutant) -> String {
    format!("{mutant:?}")
}

/// The invariant that is named for a mutant.
pub fn named(mutant: Mutant) -> Invariant {
    match mutant {
        Mutant::QueueKept | Mutant::DescriptionSkipped => Invariant::I1,
        Mutant::MergeTakesDuplicate => Invariant::I2,
        Mutant::FloorAbove => Invariant::I4,
        Mutant::NoTrim => Invariant::I6,
        Mutant::OutOfOrder | Mutant::ResolvedForgotten => Invariant::I8,
        Mutant::RehydrateBeyond | Mutant::RehydrateAt | Mutant::RehydrateBelow => Invariant::I9,
        Mutant::CompactedPast => Invariant::I10,
        Mutant::NoSnapshot => Invariant::I11,
        Mutant::StrictLower | Mutant::ErrorAsEmpty | Mutant::EmptyCompletes => Invariant::I12,
        Mutant::TrimDeletesKept => Invariant::I15,
        Mutant::DropKeepsBlobs | Mutant::AckKeepsBlobs => Invariant::I16,
        Mutant::SweepIgnoresQueue | Mutant::SweepReadsFirst => Invariant::I18,
        Mutant::NoFence => Invariant::I20,
        Mutant::HandOverDeletes => Invariant::I21,
    }
}

/// Whether a mutant is one of the share merge.
fn merges(mutant: Mutant) -> bool {
    matches!(mutant, Mutant::MergeTakesDuplicate | Mutant::ErrorAsEmpty)
}

/// The world in which a mutant is looked for: no larger than it takes.
fn world(mutant: Mutant) -> Config {
    match mutant {
        Mutant::DropKeepsBlobs
        | Mutant::AckKeepsBlobs
        | Mutant::SweepIgnoresQueue
        | Mutant::SweepReadsFirst
        | Mutant::HandOverDeletes => Config::small(),
        Mutant::TrimDeletesKept => Config::least_trim(),
        _ => Config::least_cutover(),
    }
}

/// Looks for the shortest way in which a mutant breaks the invariant named for it.
pub fn pursue(mutant: Mutant) -> Report {
    pursue_to(mutant, named(mutant))
}

/// Looks for the shortest way in which a mutant breaks this invariant.
pub fn pursue_to(mutant: Mutant, invariant: Invariant) -> Report {
    if merges(mutant) {
        hunt_merge(Some(mutant), invariant)
    } else {
        hunt(world(mutant), Some(mutant), invariant)
    }
}

/// The same search where no rule is broken: it must find nothing.
pub fn control(mutant: Mutant) -> Report {
    if merges(mutant) { hunt_merge(None, named(mutant)) } else { hunt(world(mutant), None, named(mutant)) }
}
