//! Invariants that only a whole simulated system can see: predicates with the knowledge of all its processes, named like
//! those of [`stash_chain::invariants`], which says the others.

use std::collections::BTreeMap;

use stash_chain::invariants::{Checked, Invariant, ensure};
use stash_chain::{ChainRules, KeyFacts, Verdict, Why, invariants::i18_safe_sweep};
use stash_types::{Description, Frontier, PartKey};

/// I10: a rendering that is open and has no batch resolved finds its inputs at its as-of; `compacted` is up to where
/// these forgot their history.
pub fn i10_snapshot_there(as_of: u64, compacted: Frontier) -> Checked {
    ensure(Frontier::at(as_of) >= compacted, Invariant::I10, || {
        format!("rendering at {as_of}, but the inputs are compacted up to {compacted}")
    })
}

/// I12: an empty upper was reached because the sink may complete.
pub fn i12_completes_by_rule(rules: ChainRules, upper: Frontier) -> Checked {
    ensure(!upper.is_empty() || rules.may_complete(), Invariant::I12, || {
        "the chain is complete although the sink has no end and does not seal".to_owned()
    })
}

/// I15: no key is deleted that a row references.
pub fn i15_not_deleted(key: &PartKey, referenced_by: Option<u64>) -> Checked {
    ensure(referenced_by.is_none(), Invariant::I15, || {
        format!("{key} was deleted, and batch {} references it", referenced_by.unwrap_or_default())
    })
}

/// I18: a sweep takes a key only after it listed it and was then told that nobody owns it. `told` is what the sweeping
/// process was told of each key after it had seen it in a listing.
pub fn i18_listed_then_judged(key: &PartKey, told: Option<&KeyFacts>) -> Checked {
    match told {
        Some(facts) => i18_safe_sweep(facts, Verdict::Garbage(Why::Closed)),
        None => ensure(false, Invariant::I18, || {
            format!("{key} was swept unasked, or asked before it was listed")
        }),
    }
}

/// I20: what took effect was decided against the head that it met, by an epoch that was open.
pub fn i20_met_its_head(
    open: bool,
    expected: (Frontier, u64),
    found: (Frontier, u64),
    description: Description,
) -> Checked {
    ensure(open, Invariant::I20, || format!("{description} was taken from a closed incarnation"))?;
    ensure(expected == found, Invariant::I20, || {
        format!("{description} was decided against upper and fence {expected:?}, and taken at {found:?}")
    })
}

/// I21: a delivery of the same batch is the same delivery, for whichever consumer and however often. `seen` holds upper
/// and content of what was delivered from each lower.
pub fn i21_same_delivery<C: PartialEq>(
    seen: &mut BTreeMap<Frontier, (Frontier, C)>,
    lower: Frontier,
    upper: Frontier,
    content: C,
) -> Checked {
    match seen.get(&lower) {
        Some((before, rows)) => ensure(*before == upper && *rows == content, Invariant::I21, || {
            format!("[{lower}, {upper}) was delivered before as [{lower}, {before}), or with other rows")
        }),
        None => {
            seen.insert(lower, (upper, content));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use stash_types::{IncarnationId, PartName, ShardId};
    use uuid::Uuid;

    use super::*;

    fn at(time: u64) -> Frontier {
        Frontier::at(time)
    }

    fn key() -> PartKey {
        let description = Description::new(at(3), at(7)).expect("covers times");
        let incarnation = IncarnationId::from_uuid(Uuid::from_u128(2));
        PartName { incarnation, description, process: 0, n: 1 }.under(ShardId::from_uuid(Uuid::from_u128(1)))
    }

    #[track_caller]
    fn violates(checked: Checked, invariant: Invariant) {
        assert_eq!(checked.expect_err("is violated").invariant, invariant);
    }

    #[test]
    fn inputs_that_forgot_an_as_of_and_a_live_delete_are_found() {
        assert_eq!(i10_snapshot_there(5, at(5)), Ok(()));
        violates(i10_snapshot_there(4, at(5)), Invariant::I10);
        assert_eq!(i15_not_deleted(&key(), None), Ok(()));
        violates(i15_not_deleted(&key(), Some(3)), Invariant::I15);
    }

    #[test]
    fn a_completion_that_nobody_declared_is_found() {
        let rules = ChainRules { as_of: 0, up_to: Frontier::EMPTY, seals: false };
        assert_eq!(i12_completes_by_rule(rules, at(9)), Ok(()));
        assert_eq!(i12_completes_by_rule(ChainRules { seals: true, ..rules }, Frontier::EMPTY), Ok(()));
        violates(i12_completes_by_rule(rules, Frontier::EMPTY), Invariant::I12);
    }

    #[test]
    fn a_sweep_that_did_not_ask_or_was_told_no_is_found() {
        let description = key().name.description;
        let facts =
            KeyFacts { description, incarnation: Some((false, at(3))), referenced: false, queued: false };
        assert_eq!(i18_listed_then_judged(&key(), Some(&facts)), Ok(()));
        violates(i18_listed_then_judged(&key(), None), Invariant::I18);
        let queued = KeyFacts { queued: true, ..facts };
        violates(i18_listed_then_judged(&key(), Some(&queued)), Invariant::I18);
    }

    #[test]
    fn a_write_past_its_fence_and_a_batch_that_changed_are_found() {
        let description = key().name.description;
        assert_eq!(i20_met_its_head(true, (at(3), 1), (at(3), 1), description), Ok(()));
        violates(i20_met_its_head(false, (at(3), 1), (at(3), 1), description), Invariant::I20);
        violates(i20_met_its_head(true, (at(3), 1), (at(3), 2), description), Invariant::I20);
        let mut seen = BTreeMap::new();
        assert_eq!(i21_same_delivery(&mut seen, at(3), at(5), "rows"), Ok(()));
        assert_eq!(i21_same_delivery(&mut seen, at(3), at(5), "rows"), Ok(()));
        violates(i21_same_delivery(&mut seen, at(3), at(6), "rows"), Invariant::I21);
        violates(i21_same_delivery(&mut seen, at(3), at(5), "other"), Invariant::I21);
    }
}
