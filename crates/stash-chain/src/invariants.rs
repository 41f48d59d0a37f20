//! The invariants I1 to I25: their names, and their predicates over plain data.
//!
//! Tests, the simulator, the model, the crash tests, the demo and `verify` all ask these, and no other. They are written
//! against what they promise, not in terms of the code that keeps it: a predicate that called the decision it checks
//! could never disagree with it. Each returns the first violation it finds.
//!
//! - cutover: I1 to I13, how the pieces of many replicas become one chain.
//! - ownership: I14 to I19, who answers for a blob.
//! - system: I20 to I25, what holds whatever fails.

mod cutover;
mod ownership;
mod system;

use std::fmt;

pub use cutover::{
    i1_contiguous, i2_complete, i3_real_times, i4_gapless, i5_drop, i6_trim, i7_no_gap, i7_no_lost_history,
    i8_in_order, i9_rehydrate, i10_read_hold_rises, i11_content, i12_progress, i13_monotone,
};
pub use ownership::{
    i14_one_owner, i15_no_live_delete, i16_delete_at_drop, i17_no_leak, i17_nothing_to_sweep, i18_safe_sweep,
    i19_fresh_keys,
};
pub use system::{Slot, i20_fenced, i21_idempotent, i22_integrity, i23_isolated, i24_bounded, i25_registry};

/// A promise of Stash, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// I1: an incarnation's descriptions follow one another from its as-of on.
    I1,
    /// I2: a batch leaves the merge when exactly one share of each worker arrived.
    I2,
    /// I3: every update keeps its own time and sign, within its description.
    I3,
    /// I4: an accepted piece begins exactly at the chain's upper.
    I4,
    /// I5: a wholly covered batch is never delivered, and its blobs are deleted.
    I5,
    /// I6: of a straddling batch exactly the updates from the upper on are delivered.
    I6,
    /// I7: no batch begins above the upper, and no session sees history go back.
    I7,
    /// I8: the offers of an incarnation are resolved in order, each once.
    I8,
    /// I9: a replica renders at the original as-of, or strictly below the upper.
    I9,
    /// I10: what the sink holds on its inputs only rises.
    I10,
    /// I11: what was delivered equals a single-replica oracle, multiplicities exact.
    I11,
    /// I12: with a live replica and a healed store the upper goes on.
    I12,
    /// I13: the upper and every acknowledged frontier never move back.
    I13,
    /// I14: every blob has exactly one owner.
    I14,
    /// I15: every referenced key exists with its digest, and none is queued.
    I15,
    /// I16: the hop that does not pass a batch on deletes its blobs.
    I16,
    /// I17: at rest the store's listing equals the catalog's references.
    I17,
    /// I18: a sweep takes only what the catalog proves unowned.
    I18,
    /// I19: a key is never written twice.
    I19,
    /// I20: after a closing is durable, nothing of what was closed takes effect.
    I20,
    /// I21: a retry and a reading back give what the first try gave.
    I21,
    /// I22: altered bytes are reported, never returned as rows.
    I22,
    /// I23: nothing touches a key outside its sink's shard.
    I23,
    /// I24: any input stays within the memory, or is refused by name.
    I24,
    /// I25: a shared slot is made by its first touch, filled in place, and goes with its last user.
    I25,
}

impl Invariant {
    /// All of them, in order.
    pub const ALL: [Invariant; 25] = [
        Invariant::I1,
        Invariant::I2,
        Invariant::I3,
        Invariant::I4,
        Invariant::I5,
        Invariant::I6,
        Invariant::I7,
        Invariant::I8,
        Invariant::I9,
        Invariant::I10,
        Invariant::I11,
        Invariant::I12,
        Invariant::I13,
        Invariant::I14,
        Invariant::I15,
        Invariant::I16,
        Invariant::I17,
        Invariant::I18,
        Invariant::I19,
        Invariant::I20,
        Invariant::I21,
        Invariant::I22,
        Invariant::I23,
        Invariant::I24,
        Invariant::I25,
    ];

    /// Its name and the word for it, such as `I4` and `Gapless`.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Invariant::I1 => ("I1", "Contiguous"),
            Invariant::I2 => ("I2", "Complete"),
            Invariant::I3 => ("I3", "RealTimes"),
            Invariant::I4 => ("I4", "Gapless"),
            Invariant::I5 => ("I5", "Drop"),
            Invariant::I6 => ("I6", "Trim"),
            Invariant::I7 => ("I7", "NoGap"),
            Invariant::I8 => ("I8", "InOrder"),
            Invariant::I9 => ("I9", "Rehydrate"),
            Invariant::I10 => ("I10", "ReadHold"),
            Invariant::I11 => ("I11", "Content"),
            Invariant::I12 => ("I12", "Progress"),
            Invariant::I13 => ("I13", "Monotone"),
            Invariant::I14 => ("I14", "OneOwner"),
            Invariant::I15 => ("I15", "NoLiveDelete"),
            Invariant::I16 => ("I16", "DeleteAtDrop"),
            Invariant::I17 => ("I17", "NoLeak"),
            Invariant::I18 => ("I18", "SafeSweep"),
            Invariant::I19 => ("I19", "FreshKeys"),
            Invariant::I20 => ("I20", "Fenced"),
            Invariant::I21 => ("I21", "Idempotent"),
            Invariant::I22 => ("I22", "Integrity"),
            Invariant::I23 => ("I23", "Isolated"),
            Invariant::I24 => ("I24", "Bounded"),
            Invariant::I25 => ("I25", "Registry"),
        }
    }

    /// Its name, such as `I4`.
    pub const fn name(self) -> &'static str {
        self.words().0
    }

    /// The word for it, such as `Gapless`.
    pub const fn title(self) -> &'static str {
        self.words().1
    }

    /// What it promises, in one sentence.
    pub const fn promise(self) -> &'static str {
        match self {
            Invariant::I1 => "an incarnation's descriptions follow one another from its as-of on",
            Invariant::I2 => "a batch leaves the merge when exactly one share of each worker arrived",
            Invariant::I3 => "every update keeps its own time and sign, within its description",
            Invariant::I4 => "an accepted piece begins exactly at the chain's upper",
            Invariant::I5 => "a wholly covered batch is never delivered, and its blobs are deleted",
            Invariant::I6 => "of a straddling batch exactly the updates from the upper on are delivered",
            Invariant::I7 => "no batch begins above the upper, and no session sees history go back",
            Invariant::I8 => "the offers of an incarnation are resolved in order, each once",
            Invariant::I9 => "a replica renders at the original as-of, or strictly below the upper",
            Invariant::I10 => "what the sink holds on its inputs only rises",
            Invariant::I11 => "what was delivered equals a single-replica oracle, multiplicities exact",
            Invariant::I12 => "with a live replica and a healed store the upper goes on",
            Invariant::I13 => "the upper and every acknowledged frontier never move back",
            Invariant::I14 => "every blob has exactly one owner",
            Invariant::I15 => "every referenced key exists with its digest, and none is queued",
            Invariant::I16 => "the hop that does not pass a batch on deletes its blobs",
            Invariant::I17 => "at rest the store's listing equals the catalog's references",
            Invariant::I18 => "a sweep takes only what the catalog proves unowned",
            Invariant::I19 => "a key is never written twice",
            Invariant::I20 => "after a closing is durable, nothing of what was closed takes effect",
            Invariant::I21 => "a retry and a reading back give what the first try gave",
            Invariant::I22 => "altered bytes are reported, never returned as rows",
            Invariant::I23 => "nothing touches a key outside its sink's shard",
            Invariant::I24 => "any input stays within the memory, or is refused by name",
            Invariant::I25 => {
                "a shared slot is made by its first touch, filled in place, and goes with its last user"
            }
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A promise that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant} ({}) is violated: {what}", invariant.title())]
pub struct Violation {
    /// Which one.
    pub invariant: Invariant,
    /// What was found.
    pub what: String,
}

/// The answer of a predicate.
pub type Checked = Result<(), Violation>;

/// Holds, or is a violation of `invariant`: what every predicate is made of, also those of whoever knows more of a
/// system than this crate does.
pub fn ensure(holds: bool, invariant: Invariant, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Violation { invariant, what: what() }) }
}

#[cfg(test)]
mod tests;
