//! Faults that tests ask for: places to die at, and rules to break.
//!
//! Without the feature `faults` a place is nothing and no rule is ever broken: both functions are constant, and
//! nothing of them is left in a program. With it, a test chooses at run time:
//!
//! - A **place** is named where a process may die ([`place`]); a crash test installs what happens there.
//! - A **mutant** is one rule of the protocol that is broken on purpose ([`broken`]), on the thread that armed
//!   it. Tests that cannot tell a mutant from the real thing test nothing.

/// A rule of the protocol that can be broken; each is named for what goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// Only a batch that begins exactly at the upper is taken: a survivor that cuts elsewhere stalls (I12).
    StrictLower,
    /// A straddling batch is taken whole (I6).
    NoTrim,
    /// A batch of an incarnation is decided whatever came before it (I8).
    OutOfOrder,
    /// A replica renders beyond the upper (I9).
    RehydrateBeyond,
    /// A replica renders at the upper: its snapshot counts twice (I9).
    RehydrateAt,
    /// A replica renders below the original as-of (I9).
    RehydrateBelow,
    /// What was queued before a reconnect is offered by the new incarnation (I1).
    QueueKept,
    /// A dropped batch keeps its blobs (I16).
    DropKeepsBlobs,
    /// An acknowledged batch keeps its blobs (I16).
    AckKeepsBlobs,
    /// The sweep takes what is queued or unqueued alike: it ignores the queue (I18).
    SweepIgnoresQueue,
    /// The sweep reads the references before it lists (I18).
    SweepReadsFirst,
    /// A replica that restarts before the first accept renders without its snapshot (I11).
    NoSnapshot,
    /// A trim deletes a part that is kept (I15).
    TrimDeletesKept,
    /// A description is skipped (I1, I4).
    DescriptionSkipped,
    /// The inputs are compacted past a rendering that is still to come (I10).
    CompactedPast,
    /// An offer is accepted without regard to the fence (I20).
    NoFence,
    /// The resolved upper is not kept (I8).
    ResolvedForgotten,
    /// A sender deletes what it handed over with unknown outcome (I21).
    HandOverDeletes,
    /// The merge takes a second share of a worker (I2).
    MergeTakesDuplicate,
    /// A failed share counts as an empty one (I12).
    ErrorAsEmpty,
    /// An empty frontier completes a chain that may not complete (I12).
    EmptyCompletes,
    /// The floor may stand above the upper (I4).
    FloorAbove,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 22] = [
        Mutant::StrictLower,
        Mutant::NoTrim,
        Mutant::OutOfOrder,
        Mutant::RehydrateBeyond,
        Mutant::RehydrateAt,
        Mutant::RehydrateBelow,
        Mutant::QueueKept,
        Mutant::DropKeepsBlobs,
        Mutant::AckKeepsBlobs,
        Mutant::SweepIgnoresQueue,
        Mutant::SweepReadsFirst,
        Mutant::NoSnapshot,
        Mutant::TrimDeletesKept,
        Mutant::DescriptionSkipped,
        Mutant::CompactedPast,
        Mutant::NoFence,
        Mutant::ResolvedForgotten,
        Mutant::HandOverDeletes,
        Mutant::MergeTakesDuplicate,
        Mutant::ErrorAsEmpty,
        Mutant::EmptyCompletes,
        Mutant::FloorAbove,
    ];
}

#[cfg(feature = "faults")]
mod armed {
    use std::cell::Cell;
    use std::sync::OnceLock;

    use super::Mutant;

    type Hook = Box<dyn Fn(&'static str) + Send + Sync>;

    static HOOK: OnceLock<Hook> = OnceLock::new();

    thread_local! {
        static MUTANT: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Says what happens at every place from now on; once per process.
    pub fn install(hook: impl Fn(&'static str) + Send + Sync + 'static) -> bool {
        HOOK.set(Box::new(hook)).is_ok()
    }

    /// Arms a mutant on this thread until the answer is dropped.
    #[must_use = "the rule holds again as soon as this is dropped"]
    pub fn arm(mutant: Mutant) -> Armed {
        Armed { before: MUTANT.replace(Some(mutant)) }
    }

    /// A rule that is broken on this thread.
    #[derive(Debug)]
    pub struct Armed {
        before: Option<Mutant>,
    }

    impl Drop for Armed {
        fn drop(&mut self) {
            MUTANT.set(self.before);
        }
    }

    pub(super) fn place(name: &'static str) {
        if let Some(hook) = HOOK.get() {
            hook(name);
        }
    }

    pub(super) fn broken(mutant: Mutant) -> bool {
        MUTANT.get() == Some(mutant)
    }
}

#[cfg(feature = "faults")]
pub use armed::{Armed, arm, install};

/// Marks a place where a process may die. The name says what was done last, `crate.step`.
#[inline(always)]
pub fn place(name: &'static str) {
    #[cfg(feature = "faults")]
    armed::place(name);
    #[cfg(not(feature = "faults"))]
    let _ = name;
}

/// Whether this rule is to be broken here.
#[inline(always)]
#[must_use]
pub fn broken(mutant: Mutant) -> bool {
    #[cfg(feature = "faults")]
    return armed::broken(mutant);
    #[cfg(not(feature = "faults"))]
    {
        let _ = mutant;
        false
    }
}
