use std::collections::{BTreeMap, BTreeSet};

use stash_types::{Description, Frontier, IncarnationId, PartKey, PartName, ShardId, WorkerIndex};
use uuid::Uuid;

use super::*;
use crate::{ChainRules, KeyFacts, Verdict, Why};

fn at(time: u64) -> Frontier {
    Frontier::at(time)
}

fn description(lower: u64, upper: u64) -> Description {
    Description::new(at(lower), at(upper)).expect("not empty")
}

#[track_caller]
fn violates(result: Checked, invariant: &str) {
    let violation = result.expect_err("is violated");
    assert_eq!(violation.invariant.name(), invariant, "{violation}");
}

#[test]
fn i1_finds_a_skipped_and_a_repeated_description() {
    assert_eq!(i1_contiguous(5, &[description(5, 6), description(6, 9)]), Ok(()));
    violates(i1_contiguous(5, &[description(6, 9)]), "I1");
    violates(i1_contiguous(5, &[description(5, 6), description(7, 9)]), "I1");
    violates(i1_contiguous(5, &[description(5, 6), description(5, 6)]), "I1");
}

#[test]
fn i2_finds_a_missing_a_doubled_and_an_unknown_worker() {
    let workers = |of: &[u32]| of.iter().copied().map(WorkerIndex).collect::<Vec<_>>();
    assert_eq!(i2_complete(3, &workers(&[2, 0, 1])), Ok(()));
    for bad in [&[0, 1][..], &[0, 1, 1], &[0, 1, 3], &[0, 1, 2, 2]] {
        violates(i2_complete(3, &workers(bad)), "I2");
    }
}

#[test]
fn i3_finds_a_time_outside_its_batch() {
    assert_eq!(i3_real_times(description(5, 9), [5, 8]), Ok(()));
    violates(i3_real_times(description(5, 9), [5, 9]), "I3");
    violates(i3_real_times(description(5, 9), [4]), "I3");
}

#[test]
fn i4_finds_gaps_overlaps_and_rows_that_shrink() {
    let row = |lower, upper, extent| (at(lower), at(upper), at(extent));
    assert_eq!(i4_gapless(at(5), [row(5, 6, 9), row(9, 10, 10)]), Ok(()));
    assert_eq!(i4_gapless(at(5), []), Ok(()));
    violates(i4_gapless(at(4), [row(5, 6, 6)]), "I4");
    violates(i4_gapless(at(5), [row(5, 6, 9), row(6, 10, 10)]), "I4");
    violates(i4_gapless(at(5), [row(5, 9, 8)]), "I4");
    violates(i4_gapless(at(5), [row(5, 5, 8)]), "I4");
}

#[test]
fn i6_finds_a_wrong_cut_and_i5_a_covered_batch_that_was_taken() {
    assert_eq!(i6_trim(at(7), description(5, 9), description(7, 9)), Ok(()));
    violates(i6_trim(at(7), description(5, 9), description(5, 9)), "I6");
    violates(i6_trim(at(7), description(8, 9), description(8, 9)), "I6");
    violates(i6_trim(at(9), description(5, 9), description(8, 9)), "I5");
}

#[test]
fn i9_finds_renderings_too_early_and_too_late() {
    let rules = ChainRules { as_of: 5, up_to: Frontier::EMPTY, seals: false };
    for (upper, as_of) in [(5, 5), (6, 5), (9, 5), (9, 8)] {
        assert_eq!(i9_rehydrate(rules, at(upper), as_of), Ok(()));
    }
    for (upper, as_of) in [(5, 4), (5, 6), (9, 4), (9, 9), (9, 10)] {
        violates(i9_rehydrate(rules, at(upper), as_of), "I9");
    }
}

#[test]
fn i10_and_i13_find_what_moves_back() {
    assert_eq!(i10_read_hold_rises(at(5), at(5)), Ok(()));
    violates(i10_read_hold_rises(at(5), at(4)), "I10");
    assert_eq!(i13_monotone("upper", [at(5), at(5), Frontier::EMPTY]), Ok(()));
    violates(i13_monotone("upper", [at(5), at(9), at(8)]), "I13");
}

#[test]
fn i11_finds_a_wrong_multiplicity_and_forgives_a_zero() {
    let content = |rows: &[(u8, i64)]| rows.iter().copied().collect::<BTreeMap<_, _>>();
    assert_eq!(i11_content(&content(&[(1, 2), (2, 0)]), &content(&[(1, 2), (3, 0)])), Ok(()));
    violates(i11_content(&content(&[(1, 2)]), &content(&[(1, 4)])), "I11");
    violates(i11_content(&content(&[(1, 2)]), &content(&[])), "I11");
    violates(i11_content(&content(&[]), &content(&[(1, -1)])), "I11");
}

#[test]
fn i14_finds_two_owners_and_i16_none() {
    assert_eq!(i14_one_owner([1, 2, 3], [3, 1, 2]), Ok(()));
    violates(i14_one_owner([1, 2], [1, 2, 2]), "I14");
    violates(i14_one_owner([1, 2], [1]), "I16");
}

#[test]
fn i18_agrees_with_the_judge_on_all_facts_and_finds_an_eager_sweep() {
    let incarnations = [None, Some((true, at(5))), Some((true, at(9))), Some((false, at(5)))];
    for (incarnation, referenced, queued) in
        incarnations.into_iter().flat_map(|i| [(i, false, false), (i, true, false), (i, false, true)])
    {
        let facts = KeyFacts { description: description(5, 9), incarnation, referenced, queued };
        assert_eq!(i18_safe_sweep(&facts, crate::judge(facts)), Ok(()));
        if crate::judge(facts) != Verdict::Garbage(Why::Closed)
            && crate::judge(facts) != Verdict::Garbage(Why::Resolved)
        {
            violates(i18_safe_sweep(&facts, Verdict::Garbage(Why::Closed)), "I18");
        }
    }
}

#[test]
fn every_invariant_has_its_number_and_says_what_it_promises() {
    for (n, invariant) in Invariant::ALL.into_iter().enumerate() {
        assert_eq!(invariant.to_string(), format!("I{}", n + 1));
        assert!(!invariant.title().is_empty() && !invariant.promise().is_empty());
    }
    let promises = Invariant::ALL.map(Invariant::promise);
    assert_eq!(BTreeSet::from(promises).len(), promises.len(), "no two promise the same");
    let violation = ensure(false, Invariant::I4, || "a gap".to_owned()).expect_err("does not hold");
    assert_eq!(violation.to_string(), "I4 (Gapless) is violated: a gap");
}

#[test]
fn i5_finds_a_covered_batch_that_was_taken() {
    assert_eq!(i5_drop(at(9), description(5, 9), None), Ok(()));
    assert_eq!(i5_drop(at(8), description(5, 9), Some(description(8, 9))), Ok(()));
    violates(i5_drop(at(9), description(5, 9), Some(description(5, 9))), "I5");
}

#[test]
fn i7_finds_a_gap_and_history_that_went_back() {
    assert_eq!(i7_no_gap(at(9), at(9)), Ok(()));
    violates(i7_no_gap(at(9), at(10)), "I7");
    assert_eq!(i7_no_lost_history([1, 1, 4]), Ok(()));
    violates(i7_no_lost_history([1, 4, 3]), "I7");
}

#[test]
fn i8_finds_an_offer_out_of_order_and_a_changed_answer() {
    let (a, b) = (description(5, 9), description(9, 12));
    assert_eq!(i8_in_order([(a, "accepted"), (a, "accepted"), (b, "dropped"), (a, "accepted")]), Ok(()));
    violates(i8_in_order([(b, "dropped"), (a, "accepted")]), "I8");
    violates(i8_in_order([(a, "accepted"), (a, "dropped")]), "I8");
    violates(i8_in_order([(a, "accepted"), (description(8, 12), "accepted")]), "I8");
}

#[test]
fn i12_finds_a_stall_and_excuses_a_poisoned_chain() {
    assert_eq!(i12_progress(at(9), at(9), false), Ok(()));
    violates(i12_progress(at(8), at(9), false), "I12");
    assert_eq!(i12_progress(at(8), at(9), true), Ok(()));
}

#[test]
fn i15_finds_what_is_missing_altered_or_queued() {
    let rows = |of: &[(u8, u8)]| of.iter().copied().collect::<BTreeMap<_, _>>();
    let none = BTreeSet::new();
    assert_eq!(i15_no_live_delete(&rows(&[(1, 7)]), &rows(&[(1, 7), (2, 0)]), &BTreeSet::from([2])), Ok(()));
    violates(i15_no_live_delete(&rows(&[(1, 7)]), &rows(&[]), &none), "I15");
    violates(i15_no_live_delete(&rows(&[(1, 7)]), &rows(&[(1, 8)]), &none), "I15");
    violates(i15_no_live_delete(&rows(&[(1, 7)]), &rows(&[(1, 7)]), &BTreeSet::from([1])), "I15");
}

#[test]
fn i16_finds_what_was_let_go_and_is_still_there() {
    let (stored, queued) = (BTreeSet::from([1, 2]), BTreeSet::from([2]));
    assert_eq!(i16_delete_at_drop([2, 3], &stored, &queued), Ok(()));
    violates(i16_delete_at_drop([1], &stored, &queued), "I16");
}

#[test]
fn i17_finds_a_leak_a_loss_and_a_sweep_that_had_to_work() {
    let keys = |of: &[u8]| of.iter().copied().collect::<BTreeSet<_>>();
    assert_eq!(i17_no_leak(&keys(&[1, 2]), &keys(&[1, 2])), Ok(()));
    violates(i17_no_leak(&keys(&[1, 2]), &keys(&[1])), "I17");
    violates(i17_no_leak(&keys(&[1]), &keys(&[1, 2])), "I17");
    assert_eq!(i17_nothing_to_sweep::<u8>([]), Ok(()));
    violates(i17_nothing_to_sweep([1]), "I17");
}

#[test]
fn i19_finds_a_key_that_was_written_twice() {
    assert_eq!(i19_fresh_keys([1, 2, 3]), Ok(()));
    violates(i19_fresh_keys([1, 2, 1]), "I19");
}

#[test]
fn i20_finds_a_write_after_the_closing() {
    assert_eq!(i20_fenced("i", None, [1, 9]), Ok(()));
    assert_eq!(i20_fenced("i", Some(5), [1, 5]), Ok(()));
    violates(i20_fenced("i", Some(5), [1, 6]), "I20");
}

#[test]
fn i21_and_i22_find_another_answer_and_altered_rows() {
    assert_eq!(i21_idempotent("commit", &1, &1), Ok(()));
    violates(i21_idempotent("commit", &1, &2), "I21");
    assert_eq!(i22_integrity("part", &1, Ok::<_, ()>(&1)), Ok(()));
    assert_eq!(i22_integrity("part", &1, Err("corrupt")), Ok(()));
    violates(i22_integrity("part", &1, Ok::<_, ()>(&2)), "I22");
}

#[test]
fn i23_finds_a_key_of_another_shard() {
    let shard = |n| ShardId::from_uuid(Uuid::from_u128(n));
    let name = PartName {
        incarnation: IncarnationId::from_uuid(Uuid::from_u128(9)),
        description: description(5, 9),
        process: 0,
        n: 0,
    };
    let key: PartKey = name.under(shard(1));
    assert_eq!(i23_isolated(shard(1), [&key]), Ok(()));
    violates(i23_isolated(shard(2), [&key]), "I23");
}

#[test]
fn i24_and_i25_find_too_much_memory_and_a_slot_made_twice_or_left() {
    assert_eq!(i24_bounded("budget", 5, 5), Ok(()));
    violates(i24_bounded("budget", 6, 5), "I24");
    let made = |key: u8| Slot::Made(key);
    assert_eq!(i25_registry([made(1), Slot::Gone(1), made(1), Slot::Gone(1)]), Ok(()));
    violates(i25_registry([made(1), made(1), Slot::Gone(1)]), "I25");
    violates(i25_registry([made(1)]), "I25");
    violates(i25_registry([Slot::Gone(1)]), "I25");
}
