//! The invariants as predicates over plain data, for tests, `verify` and the simulator.
//!
//! They are written against what they promise, not in terms of the code that keeps it: a predicate that called
//! the decision it checks could never disagree with it. Each returns the first violation it finds.

use std::collections::BTreeMap;
use std::fmt::Debug;

use stash_types::{Description, Frontier, WorkerIndex};

use crate::{ChainRules, KeyFacts, Verdict};

/// A promise that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant} is violated: {what}")]
pub struct Violation {
    /// The name of the invariant, such as `I4`.
    pub invariant: &'static str,
    /// What was found.
    pub what: String,
}

fn ensure(holds: bool, invariant: &'static str, what: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { invariant, what: what() }) }
}

/// I1: the descriptions of an incarnation follow one another from its as-of on.
pub fn i1_contiguous(as_of: u64, descriptions: &[Description]) -> Result<(), Violation> {
    let mut due = Frontier::at(as_of);
    for description in descriptions {
        ensure(description.lower() == due, "I1", || format!("{description} should begin at {due}"))?;
        due = description.upper();
    }
    Ok(())
}

/// I2: a merged batch has exactly one share of each worker.
pub fn i2_complete(workers: u32, reported: &[WorkerIndex]) -> Result<(), Violation> {
    let mut sorted: Vec<u32> = reported.iter().map(|worker| worker.0).collect();
    sorted.sort_unstable();
    ensure(sorted.iter().copied().eq(0..workers), "I2", || format!("{workers} workers, shares of {sorted:?}"))
}

/// I3: every update lies within its description.
pub fn i3_real_times(
    description: Description,
    times: impl IntoIterator<Item = u64>,
) -> Result<(), Violation> {
    times.into_iter().try_for_each(|time| {
        ensure(description.contains(time), "I3", || format!("time {time} in a batch of {description}"))
    })
}

/// I4: the rows of a chain, in order, leave no gap and no overlap. Each is (lower, upper, extent): empty batches
/// that were accepted afterwards extend a row from its upper to its extent, where the next row begins. `start` is
/// the as-of, or the lower of the first row that was kept.
pub fn i4_gapless(
    start: Frontier,
    rows: impl IntoIterator<Item = (Frontier, Frontier, Frontier)>,
) -> Result<(), Violation> {
    let mut due = start;
    for (lower, upper, extent) in rows {
        let row = || format!("row [{lower}, {upper}) with extent {extent}, due at {due}");
        ensure(lower == due && lower < upper && upper <= extent, "I4", row)?;
        due = extent;
    }
    Ok(())
}

/// I5 and I6: an accepted piece is what its batch holds from the old upper on, and nothing else.
pub fn i6_trim(upper_before: Frontier, batch: Description, piece: Description) -> Result<(), Violation> {
    ensure(batch.upper() > upper_before, "I5", || {
        format!("{batch} is covered by {upper_before}, but {piece} was taken")
    })?;
    let fits =
        batch.lower() <= upper_before && piece.lower() == upper_before && piece.upper() <= batch.upper();
    ensure(fits, "I6", || format!("{piece} taken of {batch} at upper {upper_before}"))
}

/// I9: a rendering starts at the original as-of while nothing is accepted, else at or after it and strictly below
/// the upper.
pub fn i9_rehydrate(rules: ChainRules, upper: Frontier, as_of: u64) -> Result<(), Violation> {
    ensure(as_of >= rules.as_of, "I9", || format!("rendered at {as_of}, original as-of {}", rules.as_of))?;
    let nothing_accepted = upper == Frontier::at(rules.as_of);
    let holds = if nothing_accepted { as_of == rules.as_of } else { Frontier::at(as_of) < upper };
    ensure(holds, "I9", || format!("rendered at {as_of}, upper {upper}"))
}

/// I10: the hold on the inputs never moves back.
pub fn i10_read_hold_rises(before: Frontier, after: Frontier) -> Result<(), Violation> {
    ensure(before <= after, "I10", || format!("read hold moved back from {before} to {after}"))
}

/// I11: what was delivered is what the oracle accumulated, multiplicities exact. Zero diffs are as good as absent.
pub fn i11_content<K: Ord + Debug>(
    expected: &BTreeMap<K, i64>,
    delivered: &BTreeMap<K, i64>,
) -> Result<(), Violation> {
    let keys = expected.keys().chain(delivered.keys());
    keys.into_iter().try_for_each(|key| {
        let diff = |of: &BTreeMap<K, i64>| of.get(key).copied().unwrap_or(0);
        let (wanted, found) = (diff(expected), diff(delivered));
        ensure(wanted == found, "I11", || format!("{key:?} delivered {found} times, wanted {wanted}"))
    })
}

/// I13: an upper, a resolved upper or an acknowledged frontier never moves back. `values` in order of time.
pub fn i13_monotone(name: &str, values: impl IntoIterator<Item = Frontier>) -> Result<(), Violation> {
    let mut highest = Frontier::MIN;
    for value in values {
        ensure(highest <= value, "I13", || format!("{name} moved back from {highest} to {value}"))?;
        highest = value;
    }
    Ok(())
}

/// I14 and I16: what went in came out exactly once, nothing is missing and nothing was made up.
pub fn i14_one_owner<K: Ord + Debug>(
    entered: impl IntoIterator<Item = K>,
    left: impl IntoIterator<Item = K>,
) -> Result<(), Violation> {
    let mut balance = BTreeMap::<K, i64>::new();
    entered.into_iter().for_each(|key| *balance.entry(key).or_default() += 1);
    left.into_iter().for_each(|key| *balance.entry(key).or_default() -= 1);
    balance.iter().try_for_each(|(key, owners)| {
        ensure(*owners >= 0, "I14", || format!("{key:?} has {} owners too many", -owners))?;
        ensure(*owners == 0, "I16", || format!("{key:?} was forgotten"))
    })
}

/// I18: a sweep takes only what no row references, and what no open incarnation may still link.
pub fn i18_safe_sweep(facts: &KeyFacts, verdict: Verdict) -> Result<(), Violation> {
    let unowned = match facts.incarnation {
        None => false,
        Some((open, resolved)) => !open || resolved >= facts.description.upper(),
    };
    let safe = !matches!(verdict, Verdict::Garbage(_)) || (unowned && !facts.referenced && !facts.queued);
    ensure(safe, "I18", || format!("{verdict:?} of {facts:?}"))
}

#[cfg(test)]
mod tests;
