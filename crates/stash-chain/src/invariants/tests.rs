use super::*;
use crate::Why;

fn at(time: u64) -> Frontier {
    Frontier::at(time)
}

fn description(lower: u64, upper: u64) -> Description {
    Description::new(at(lower), at(upper)).expect("not empty")
}

#[track_caller]
fn violates(result: Result<(), Violation>, invariant: &str) {
    let violation = result.expect_err("is violated");
    assert_eq!(violation.invariant, invariant, "{violation}");
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
