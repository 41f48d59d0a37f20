use std::collections::BTreeMap;

use differential_dataflow::trace::cursor::{Cursor, Navigable};
use proptest::prelude::*;

use super::*;
use crate::batch::KeyBatch;
use crate::batch::testing::{key_batch, span};

type Batch = KeyBatch<u64, i64>;
/// Diffs by time and key.
type Sums = BTreeMap<(u64, u64), i64>;

fn add(sums: &mut Sums, batch: &Batch) {
    let mut cursor = batch.cursor();
    while let Some(key) = cursor.get_key(batch) {
        cursor.map_times(batch, |time, diff| *sums.entry((*time, *key)).or_insert(0) += diff);
        cursor.step_key(batch);
    }
}

/// What these batches hold together at the times `[lower, upper)`.
fn within(batches: &[Batch], lower: u64, upper: u64) -> Sums {
    let mut sums = Sums::new();
    batches.iter().for_each(|batch| add(&mut sums, batch));
    sums.retain(|(time, _), diff| lower <= *time && *time < upper && *diff != 0);
    sums
}

fn insert(held: &mut Held<Batch>, lower: u64, upper: u64, updates: Vec<(u64, u64, i64)>) {
    held.insert(span(lower, upper, key_batch(updates)));
}

/// Inserts batches of one update for each of these times.
fn held_of(times: std::ops::Range<u64>) -> Held<Batch> {
    let mut held = Held::new();
    for time in times {
        insert(&mut held, time, time + 1, vec![(time, time, 1)]);
    }
    held
}

fn work_off(held: &mut Held<Batch>) -> usize {
    let mut fuel = isize::MAX;
    assert!(!held.work(&mut fuel));
    usize::try_from(isize::MAX - fuel).expect("is positive")
}

#[derive(Clone, Debug)]
enum Op {
    /// Updates `(key, offset, diff)` of the next so many times.
    Insert(u64, Vec<(u64, u64, i64)>),
    /// So many times pass, and are not told.
    Pass(u64),
    Close(Vec<(u64, u64, i64)>),
    Work(isize),
    Reserve(u64),
    Release(u64),
    Overlapping(u64, u64),
}

fn updates() -> impl Strategy<Value = Vec<(u64, u64, i64)>> {
    prop_oneof![
        4 => prop::collection::vec((0..6u64, 0..8u64, -2..=2i64), 0..6),
        1 => prop::collection::vec((0..90u64, 0..8u64, -2..=2i64), 40..120),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1..8u64, updates()).prop_map(|(span, updates)| Op::Insert(span, updates)),
        1 => (1..8u64).prop_map(Op::Pass),
        6 => prop_oneof![0..20isize, Just(isize::MAX)].prop_map(Op::Work),
        2 => (0..30u64).prop_map(Op::Reserve),
        2 => (0..30u64).prop_map(Op::Release),
        3 => (0..60u64, 0..60u64).prop_map(|(back, span)| Op::Overlapping(back, span)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn oracle_nothing_is_lost_moved_or_given_twice(
        ops in prop::collection::vec(op(), 0..60),
        end in prop::option::of(updates()),
    ) {
        let mut held = Held::new();
        let mut oracle = Sums::new();
        let (mut upper, mut reserved, mut released) = (0, 0, 0);
        for op in ops.into_iter().chain(end.map(Op::Close)) {
            match op {
                Op::Insert(..) | Op::Close(_) => {
                    let (length, updates, next) = match op {
                        Op::Insert(length, updates) => (length, updates, upper + length),
                        Op::Close(updates) => (8, updates, u64::MAX),
                        _ => unreachable!("the others insert nothing"),
                    };
                    let updates: Vec<_> =
                        updates.into_iter().map(|(key, at, diff)| (key, upper + at % length, diff)).collect();
                    for (key, time, diff) in &updates {
                        *oracle.entry((*time, *key)).or_insert(0) += diff;
                    }
                    oracle.retain(|_, diff| *diff != 0);
                    insert(&mut held, upper, next, updates);
                    upper = next;
                }
                Op::Pass(times) => upper += times,
                Op::Work(given) => {
                    let mut fuel = given;
                    let more = held.work(&mut fuel);
                    prop_assert!(!more || fuel <= 0, "it ends with fuel where nothing is left to do");
                    prop_assert!(more || is_settled(&held), "what is left is geometric");
                }
                Op::Reserve(times) => {
                    reserved = reserved.max(released + times);
                    held.reserve(reserved);
                }
                Op::Release(times) => {
                    let below = (released + times).min(reserved);
                    released = released.max(below);
                    let before = held.updates();
                    let gone = held.release(below);
                    prop_assert!(within(&gone, below, u64::MAX).is_empty(), "what is gone is below");
                    prop_assert_eq!(before, held.updates() + gone.iter().map(|b| b.len()).sum::<usize>());
                    let stays = held.layers.iter().flat_map(Layer::pieces);
                    prop_assert!(stays.into_iter().all(|piece| piece.upper > below), "what is below is gone");
                }
                Op::Overlapping(back, length) => {
                    let lower = upper.saturating_sub(back).max(released);
                    let to = if length == 0 { u64::MAX } else { lower + length };
                    let expected: Sums = oracle.range((lower, 0)..(to, 0)).map(|(k, v)| (*k, *v)).collect();
                    prop_assert_eq!(within(&held.overlapping(lower, to), lower, to), expected);
                }
            }
            let expected: Sums = oracle.range((released, 0)..).map(|(k, v)| (*k, *v)).collect();
            prop_assert_eq!(within(&held.overlapping(0, u64::MAX), released, u64::MAX), expected);
            prop_assert_eq!(held.overlapping(0, u64::MAX).len(), held.batches());
        }
        let count: usize = held.overlapping(0, u64::MAX).iter().map(|batch| batch.len()).sum();
        prop_assert_eq!(held.updates(), count);
        held.release(u64::MAX);
        prop_assert_eq!((held.batches(), held.updates()), (0, 0));
    }
}

/// No merge is in progress, and each batch that may be merged is more than twice the next (H3).
fn is_settled(held: &Held<Batch>) -> bool {
    let pieces: Vec<_> = held.layers.iter().flat_map(Layer::pieces).collect();
    held.layers.iter().all(|layer| matches!(layer, Layer::Whole(_)))
        && pieces
            .windows(2)
            .all(|pair| pair[0].lower < held.reserved || pair[0].batch.len() > 2 * pair[1].batch.len())
}

#[test]
fn four_thousand_loose_batches_become_few_and_each_update_is_merged_a_few_times() {
    const BATCHES: u64 = 4_000;
    const EACH: u64 = 25;
    let updates = usize::try_from(BATCHES * EACH).expect("is small");
    let batch = |time| (0..EACH).map(|key| (key * BATCHES + time, time, 1)).collect();

    let mut held = Held::new();
    for time in 0..BATCHES {
        insert(&mut held, time, time + 1, batch(time));
    }
    let spent = work_off(&mut held);
    assert!(held.batches() <= 2 && held.updates() == updates);
    assert!(spent <= 13 * updates, "worked off at the end it cost {spent}");

    let (mut held, mut spent) = (Held::new(), 0);
    for time in 0..BATCHES {
        insert(&mut held, time, time + 1, batch(time));
        spent += work_off(&mut held);
        assert!(held.batches() <= 13);
    }
    assert!(spent <= 13 * updates, "worked off as they came it cost {spent}");

    // With little fuel for each, as on a busy worker, what is left to do stays bounded.
    let (mut held, mut most) = (Held::new(), 0);
    for time in 0..BATCHES {
        insert(&mut held, time, time + 1, batch(time));
        held.work(&mut isize::try_from(16 * EACH).expect("is small"));
        most = most.max(held.batches());
    }
    assert!(most <= 13, "{most} batches with sixteen times the fuel of what comes");
}

#[test]
fn small_batches_become_few_while_two_big_ones_are_merging() {
    let mut held = Held::new();
    for time in 0..2 {
        insert(&mut held, time, time + 1, (0..10_000).map(|key| (key, time, 1)).collect());
    }
    assert!(held.work(&mut 100), "the big ones have begun");
    for time in 2..102 {
        insert(&mut held, time, time + 1, vec![(0, time, 1)]);
    }
    held.work(&mut 2_000);
    assert!(
        held.layers.iter().any(|layer| matches!(layer, Layer::Merging(_))),
        "the big ones are still at it"
    );
    assert!(held.batches() < 10, "{} batches", held.batches());
}

#[test]
fn a_merge_spends_its_fuel_and_no_more_and_goes_on_where_it_was() {
    let mut held = Held::new();
    for time in 0..2 {
        insert(&mut held, time, time + 1, (0..50).map(|key| (2 * key + time, time, 1)).collect());
    }
    for _ in 0..10 {
        let mut fuel = 10;
        held.work(&mut fuel);
        assert_eq!((fuel, held.batches()), (0, 2));
        assert_eq!(within(&held.overlapping(0, 1), 0, 9).len(), 50, "a merge in progress is its two inputs");
    }
    // SUBTLE: the fuel ended with the merge, which therefore does not know yet that it is done.
    let mut fuel = 1;
    assert!(!held.work(&mut fuel));
    assert_eq!((fuel, held.batches(), held.updates()), (1, 1, 100));
}

#[test]
fn a_reserved_batch_begins_no_merge_and_what_comes_after_does() {
    let mut held = held_of(0..8);
    assert!(held.reserve(3).is_empty());
    work_off(&mut held);
    assert_eq!(held.batches(), 3 + 1, "three are reserved, the five others are one");
    assert_eq!(held.release(3).len(), 3);
    assert_eq!(within(&held.overlapping(0, 9), 0, 9).len(), 5);
}

#[test]
fn a_merge_in_progress_is_abandoned_where_its_older_batch_is_reserved() {
    let mut held = held_of(0..2);
    assert!(held.work(&mut 1));
    assert_eq!(held.reserve(1).len(), 1);
    assert!(!held.work(&mut 100));
    assert_eq!(held.release(1).len(), 1);
    assert_eq!(within(&held.overlapping(0, 9), 0, 9), Sums::from([((1, 1), 1)]));
}

#[test]
fn a_merge_goes_on_where_its_older_batch_straddles_what_is_reserved() {
    let mut held = Held::new();
    insert(&mut held, 0, 10, vec![(0, 0, 1), (1, 9, 1)]);
    insert(&mut held, 10, 20, vec![(2, 10, 1)]);
    let mut below = 0;
    while held.batches() > 1 {
        below += 1;
        assert!(below < 9, "reserving again and again must not keep it from ending");
        held.work(&mut 1);
        assert!(held.reserve(below).is_empty());
        assert!(held.release(below).is_empty());
    }
}

#[test]
fn a_straddling_batch_is_merged_again_once_what_was_reserved_is_released() {
    let mut held = Held::new();
    insert(&mut held, 0, 10, vec![(0, 0, 1), (1, 9, 1)]);
    held.reserve(5);
    insert(&mut held, 10, 20, vec![(2, 10, 1)]);
    work_off(&mut held);
    assert_eq!(held.batches(), 2, "it is about to be scanned");
    assert!(held.release(5).is_empty());
    work_off(&mut held);
    assert_eq!(held.batches(), 1);
    assert!(held.overlapping(0, 5).is_empty(), "and is asked for no more below");
}

#[test]
fn what_becomes_of_a_merge_that_straddled_what_was_released_is_merged_again() {
    let mut held = Held::new();
    insert(&mut held, 0, 10, vec![(0, 0, 1), (1, 9, 1)]);
    insert(&mut held, 10, 20, vec![(2, 10, 1)]);
    assert!(held.work(&mut 1), "it is merging");
    assert!(held.reserve(5).is_empty() && held.release(5).is_empty());
    assert!(held.overlapping(0, 5).is_empty(), "nothing is asked for below");
    work_off(&mut held);
    assert_eq!(held.batches(), 1);
    insert(&mut held, 20, 30, (0..3).map(|key| (key, 20, 1)).collect());
    work_off(&mut held);
    assert_eq!(held.batches(), 1, "it is not reserved for good");
}

#[test]
fn releasing_without_reserving_splits_a_merge_in_progress() {
    let mut held = held_of(0..2);
    assert!(held.work(&mut 1));
    assert_eq!(held.release(1).len(), 1);
    assert_eq!((held.batches(), held.updates()), (1, 1));
    let mut held = held_of(0..2);
    assert!(held.work(&mut 1));
    assert_eq!(held.release(2).len(), 2);
    assert_eq!(held.batches(), 0);
}

#[test]
fn the_last_span_ends_with_the_empty_frontier_and_times_without_updates_leave_nothing() {
    let mut held = Held::<Batch>::new();
    held.insert(span(0, 5, None));
    held.insert(span(5, 7, key_batch(vec![(1, 5, 1), (1, 5, -1)])));
    assert_eq!(held.batches(), 0);
    insert(&mut held, 9, u64::MAX, vec![(1, 9, 1)]);
    assert_eq!(held.overlapping(0, 9).len(), 0);
    assert_eq!(held.overlapping(u64::MAX - 1, u64::MAX).len(), 1, "it may hold any time from 9 on");
    assert!(held.release(u64::MAX - 1).is_empty());
    assert_eq!(held.release(u64::MAX).len(), 1);
}

#[test]
fn a_span_that_was_released_before_it_came_is_not_held() {
    let mut held = Held::new();
    held.release(5);
    insert(&mut held, 0, 5, vec![(1, 1, 1)]);
    assert_eq!(held.batches(), 0);
    insert(&mut held, 5, 6, vec![(1, 5, 1)]);
    assert_eq!(held.batches(), 1);
}

#[test]
fn the_inputs_of_big_merges_are_given_back_once() {
    let mut held = Held::new();
    let big = SPENT_MIN as u64;
    for time in 0..2 {
        insert(&mut held, time, time + 1, (0..big).map(|key| (key, time, 1)).collect());
    }
    for time in 2..4 {
        insert(&mut held, time, time + 1, vec![(0, time, 1)]);
    }
    work_off(&mut held);
    let lengths = |spent: Vec<Batch>| spent.iter().map(|batch| batch.len()).collect::<Vec<_>>();
    assert_eq!(lengths(held.spent()), [SPENT_MIN; 2]);
    assert!(held.spent().is_empty());

    insert(&mut held, 4, 5, (0..big).map(|key| (key, 4, 1)).collect());
    work_off(&mut held);
    work_off(&mut held);
    assert!(held.spent().is_empty(), "what nobody takes does not pile up");
}

#[test]
fn only_batches_that_may_hold_such_times_are_given_oldest_first() {
    let held = held_of(0..8);
    let times = |lower, upper| -> Vec<_> {
        let batches = held.overlapping(lower, upper);
        batches.iter().flat_map(|batch| within(std::slice::from_ref(batch), 0, 9).into_keys()).collect()
    };
    assert_eq!(times(3, 5), [(3, 3), (4, 4)]);
    assert_eq!(times(3, 3), []);
    assert_eq!(times(8, u64::MAX), []);
}
