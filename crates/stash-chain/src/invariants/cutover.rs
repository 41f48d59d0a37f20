//! I1 to I13: how the pieces of many replicas become one chain.

use std::{collections::BTreeMap, fmt::Debug};

use stash_types::{Description, Frontier, WorkerIndex};

use super::{
    Checked,
    Invariant::{I1, I2, I3, I4, I5, I6, I7, I8, I9, I10, I11, I12, I13},
    ensure,
};
use crate::ChainRules;

/// I1: the descriptions of an incarnation follow one another from its as-of on.
pub fn i1_contiguous(as_of: u64, descriptions: &[Description]) -> Checked {
    let mut due = Frontier::at(as_of);
    for description in descriptions {
        ensure(description.lower() == due, I1, || format!("{description} should begin at {due}"))?;
        due = description.upper();
    }
    Ok(())
}

/// I2: a merged batch has exactly one share of each worker.
pub fn i2_complete(workers: u32, reported: &[WorkerIndex]) -> Checked {
    let mut sorted: Vec<u32> = reported.iter().map(|worker| worker.0).collect();
    sorted.sort_unstable();
    ensure(sorted.iter().copied().eq(0..workers), I2, || format!("{workers} workers, shares of {sorted:?}"))
}

/// I3: every update lies within its description.
pub fn i3_real_times(description: Description, times: impl IntoIterator<Item = u64>) -> Checked {
    times.into_iter().try_for_each(|time| {
        ensure(description.contains(time), I3, || format!("time {time} in a batch of {description}"))
    })
}

/// I4: the rows of a chain, in order, leave no gap and no overlap. Each is (lower, upper, extent): empty batches
/// that were accepted afterwards extend a row from its upper to its extent, where the next row begins. `start` is
/// the as-of, or the lower of the first row that was kept.
pub fn i4_gapless(
    start: Frontier,
    rows: impl IntoIterator<Item = (Frontier, Frontier, Frontier)>,
) -> Checked {
    let mut due = start;
    for (lower, upper, extent) in rows {
        let row = || format!("row [{lower}, {upper}) with extent {extent}, due at {due}");
        ensure(lower == due && lower < upper && upper <= extent, I4, row)?;
        due = extent;
    }
    Ok(())
}

/// I5: of a batch that `upper` covers, nothing was taken.
pub fn i5_drop(upper_before: Frontier, batch: Description, taken: Option<Description>) -> Checked {
    ensure(batch.upper() > upper_before || taken.is_none(), I5, || {
        format!("{batch} is covered by {upper_before}, but {taken:?} was taken")
    })
}

/// I5 and I6: an accepted piece is what its batch holds from the old upper on, and nothing else.
pub fn i6_trim(upper_before: Frontier, batch: Description, piece: Description) -> Checked {
    i5_drop(upper_before, batch, Some(piece))?;
    let fits =
        batch.lower() <= upper_before && piece.lower() == upper_before && piece.upper() <= batch.upper();
    ensure(fits, I6, || format!("{piece} taken of {batch} at upper {upper_before}"))
}

/// I7: an offer begins at or below the upper.
pub fn i7_no_gap(upper: Frontier, lower: Frontier) -> Checked {
    ensure(lower <= upper, I7, || format!("an offer begins at {lower}, the chain ends at {upper}"))
}

/// I7: a session never sees a revision of the catalog below one it saw. `revisions` in the order they were seen.
pub fn i7_no_lost_history(revisions: impl IntoIterator<Item = u64>) -> Checked {
    let mut highest = 0;
    revisions.into_iter().try_for_each(|revision| {
        let before = highest;
        highest = highest.max(revision);
        ensure(revision >= before, I7, || format!("revision {revision} was seen after {before}"))
    })
}

/// I8: what one incarnation was answered, in the order of the answers. Each offer begins at or after the end of those
/// resolved before; one that was made again got the outcome it had.
pub fn i8_in_order<O: PartialEq + Debug>(answers: impl IntoIterator<Item = (Description, O)>) -> Checked {
    let mut resolved = Frontier::MIN;
    let mut known: Vec<(Description, O)> = Vec::new();
    for (offer, outcome) in answers {
        if let Some((_, first)) = known.iter().find(|(before, _)| *before == offer) {
            ensure(*first == outcome, I8, || format!("{offer} was {first:?}, made again {outcome:?}"))?;
            continue;
        }
        ensure(offer.lower() >= resolved, I8, || format!("{offer} was resolved after {resolved}"))?;
        resolved = offer.upper();
        known.push((offer, outcome));
    }
    Ok(())
}

/// I9: a rendering starts at the original as-of while nothing is accepted, else at or after it and strictly below
/// the upper.
pub fn i9_rehydrate(rules: ChainRules, upper: Frontier, as_of: u64) -> Checked {
    ensure(as_of >= rules.as_of, I9, || format!("rendered at {as_of}, original as-of {}", rules.as_of))?;
    let nothing_accepted = upper == Frontier::at(rules.as_of);
    let holds = if nothing_accepted { as_of == rules.as_of } else { Frontier::at(as_of) < upper };
    ensure(holds, I9, || format!("rendered at {as_of}, upper {upper}"))
}

/// I10: the hold on the inputs never moves back.
pub fn i10_read_hold_rises(before: Frontier, after: Frontier) -> Checked {
    ensure(before <= after, I10, || format!("read hold moved back from {before} to {after}"))
}

/// I11: what was delivered is what the oracle accumulated, multiplicities exact. Zero diffs are as good as absent.
pub fn i11_content<K: Ord + Debug>(expected: &BTreeMap<K, i64>, delivered: &BTreeMap<K, i64>) -> Checked {
    let keys = expected.keys().chain(delivered.keys());
    keys.into_iter().try_for_each(|key| {
        let diff = |of: &BTreeMap<K, i64>| of.get(key).copied().unwrap_or(0);
        let (wanted, found) = (diff(expected), diff(delivered));
        ensure(wanted == found, I11, || format!("{key:?} delivered {found} times, wanted {wanted}"))
    })
}

/// I12: with a live replica past `wanted` and a healed store, the chain came to there. A poisoned one is excused.
pub fn i12_progress(upper: Frontier, wanted: Frontier, poisoned: bool) -> Checked {
    ensure(poisoned || upper >= wanted, I12, || format!("the chain stands at {upper}, not at {wanted}"))
}

/// I13: an upper, a resolved upper or an acknowledged frontier never moves back. `values` in order of time.
pub fn i13_monotone(name: &str, values: impl IntoIterator<Item = Frontier>) -> Checked {
    let mut highest = Frontier::MIN;
    for value in values {
        ensure(highest <= value, I13, || format!("{name} moved back from {highest} to {value}"))?;
        highest = value;
    }
    Ok(())
}
