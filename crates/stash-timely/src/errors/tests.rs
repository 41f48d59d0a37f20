use proptest::prelude::*;

use super::*;

fn description(lower: u64, upper: u64) -> Description {
    Description::new(Frontier::at(lower), Frontier::at(upper)).expect("it has times")
}

#[test]
fn an_error_that_was_not_kept_once_is_never_kept_in_part() {
    let mut errors = Errors::default();
    for time in 0..=ERRORS_MAX as u64 {
        errors.add(time, String::new(), 1);
    }
    for time in 0..ERRORS_MAX as u64 {
        assert_eq!(errors.clone().verdict(), Verdict::First(time, String::new()));
        errors.add(time, String::new(), -1);
    }
    // The last one, which was not kept, had 1; with what comes now it has nothing.
    errors.add(ERRORS_MAX as u64, String::new(), -1);
    assert!(errors.kept().is_empty());
    assert_eq!(errors.verdict(), Verdict::Unknown { from: ERRORS_MAX as u64, before: false });
}

#[test]
fn long_messages_are_bounded_by_their_bytes_but_the_first_is_kept_whole() {
    let mut errors = Errors::default();
    let long = "x".repeat(ERROR_BYTES_MAX);
    for time in [7, 5, 9] {
        errors.add(time, long.clone(), 1);
    }
    assert_eq!((errors.len(), errors.bytes()), (1, ERROR_BYTES_MAX));
    assert_eq!(errors.verdict(), Verdict::First(5, long));
}

#[test]
fn errors_that_wait_are_bounded_and_those_of_a_description_are_known_to_be_incomplete() {
    let mut waiting = Errors::default();
    for time in 0..3 * ERRORS_MAX as u64 {
        waiting.add(time / 2, format!("error {time}"), 1);
    }
    assert_eq!(waiting.len(), ERRORS_MAX);
    let half = ERRORS_MAX as u64 / 2;
    let early = waiting.take(Some(description(0, 100)), Frontier::at(100));
    assert_eq!((early.len(), waiting.len()), (200, ERRORS_MAX - 200), "all of them");
    assert_eq!(waiting.take(None, Frontier::at(200)), Errors::default(), "covered from birth");
    let last = waiting.take(Some(description(200, half + 10)), Frontier::at(half + 10));
    assert_eq!((last.len(), waiting.len(), waiting.bytes()), (ERRORS_MAX - 400, 0, 0));
    let mut taken_back = last.clone();
    for ((time, message), diff) in last.kept() {
        taken_back.add(*time, message.clone(), -diff);
    }
    assert_eq!(taken_back.verdict(), Verdict::Unknown { from: half, before: false }, "others may be there");
    let rest = waiting.take(Some(description(half + 10, half + 20)), Frontier::at(half + 20));
    assert_eq!(rest.verdict(), Verdict::Unknown { from: half + 10, before: true }, "none was kept");
}

#[test]
fn what_one_worker_did_not_keep_nobody_knows_of_all() {
    let (mut all, mut other) = (Errors::default(), Errors::default());
    for time in 0..ERRORS_MAX as u64 {
        all.add(time, String::new(), -1);
        other.add(time, String::new(), 1);
    }
    let from = ERRORS_MAX as u64 + 5;
    other.add(from, String::new(), 1);
    all.add(from + 1, String::new(), 1);
    all.merge(other);
    assert_eq!((all.len(), all.bytes()), (0, 0), "what comes after is not the first for certain");
    assert_eq!(all.verdict(), Verdict::Unknown { from, before: false });
}

/// Named for what was found: what was not kept of times that are over kept every later description from being written.
#[test]
fn once_all_times_are_taken_that_some_errors_were_not_kept_of_all_errors_are_known_again() {
    let flood = |errors: &mut Errors| {
        for number in 0..3 * ERRORS_MAX as u64 {
            errors.add(100 + number / 30, format!("error {number}"), 1);
        }
    };
    // The last is of time 199, and was never kept.
    let mut waiting = Errors::default();
    flood(&mut waiting);
    // Another replica passed 200: these are covered.
    assert_eq!(waiting.take(None, Frontier::at(200)), Errors::default());
    assert!(waiting.is_none());
    assert_eq!(waiting.take(Some(description(200, 210)), Frontier::at(210)).verdict(), Verdict::None);
    waiting.add(215, "an error".to_owned(), 1);
    let taken = waiting.take(Some(description(210, 220)), Frontier::at(220));
    assert_eq!(taken.verdict(), Verdict::First(215, "an error".to_owned()));
    // Covered in part: of what is wanted nothing lacks.
    flood(&mut waiting);
    assert_eq!(waiting.take(Some(description(200, 210)), Frontier::at(210)).verdict(), Verdict::None);
    // One of a later time was not kept either.
    flood(&mut waiting);
    waiting.add(205, "an error".to_owned(), 1);
    assert_eq!(waiting.take(None, Frontier::at(200)), Errors::default());
    let taken = waiting.take(Some(description(200, 210)), Frontier::at(210));
    assert_eq!(taken.verdict(), Verdict::Unknown { from: 200, before: true });
    assert!(waiting.is_none(), "and that was the last");
}

#[test]
fn the_last_of_what_was_not_kept_is_that_of_all_workers() {
    let (mut all, mut other) = (Errors::default(), Errors::default());
    all.add(50, "an error".to_owned(), 1);
    for number in 0..=ERRORS_MAX as u64 {
        other.add(20, format!("error {number:06}"), 1);
    }
    all.merge(other);
    assert_eq!(all.take(None, Frontier::at(21)), Errors::default());
    let taken = all.take(Some(description(21, 60)), Frontier::at(60));
    assert_eq!(taken.verdict(), Verdict::Unknown { from: 21, before: true }, "the one at 50 went");
    assert!(all.is_none());
}

#[test]
fn a_sum_that_passes_beyond_i64_is_none() {
    let mut errors = Errors::default();
    for diff in [i64::MAX, i64::MAX, -i64::MAX, -i64::MAX] {
        errors.add(1, "an error".to_owned(), i128::from(diff));
    }
    assert_eq!(errors.verdict(), Verdict::None);
}

proptest! {
    /// However updates are spread over workers, the verdict is that of their sums, or that it is not known.
    #[test]
    fn oracle_the_errors_of_all_workers_together_are_the_sums(
        updates in proptest::collection::vec((0..3_usize, 0..40_u64, 0..3_u8, -2..=2_i64), 0..80),
        flood in proptest::option::of((0..3_usize, 0..60_u64)),
    ) {
        let mut workers = vec![Errors::default(); 3];
        let mut sums = BTreeMap::<(u64, String), i64>::new();
        for (worker, time, message, diff) in updates {
            workers[worker].add(time, message.to_string(), i128::from(diff));
            *sums.entry((time, message.to_string())).or_default() += diff;
        }
        if let Some((worker, time)) = flood {
            for message in 0..ERRORS_MAX + 100 {
                workers[worker].add(time, format!("flood {message}"), 1);
            }
            sums.insert((time, "flood 0".to_owned()), 1);
        }
        sums.retain(|_, diff| *diff != 0);
        let mut all = Errors::default();
        workers.into_iter().for_each(|errors| all.merge(errors));
        prop_assert!(all.len() <= ERRORS_MAX);
        prop_assert_eq!(all.bytes(), all.kept().keys().map(|(_, message)| message.len()).sum::<usize>());
        let first = sums.into_keys().next();
        match all.verdict() {
            Verdict::None => prop_assert_eq!(first, None),
            Verdict::First(time, message) => prop_assert_eq!(first, Some((time, message))),
            Verdict::Unknown { .. } => prop_assert!(flood.is_some()),
        }
    }
}
