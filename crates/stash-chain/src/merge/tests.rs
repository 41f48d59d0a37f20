use bytes::Bytes;
use stash_types::{Digest, RunFacts, SchemaFingerprint};
use uuid::Uuid;

use super::*;

/// Not `Clone`, as an owner of blobs is not: the merge could not duplicate one if it tried.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Payload(u32);

type Merge = ShareMerge<Payload>;

fn at(time: u64) -> Frontier {
    Frontier::at(time)
}

fn sink() -> SinkId {
    SinkId::from_uuid(Uuid::from_u128(1))
}

fn incarnation(n: u128) -> IncarnationId {
    IncarnationId::from_uuid(Uuid::from_u128(n))
}

fn minted(lower: u64, upper: u64) -> Minted {
    let description = Description::new(at(lower), at(upper)).expect("not empty");
    Minted { description, floor: at(2) }
}

/// A merge of two workers with [0, 1), [1, 5) and [5, 9) open.
fn merge() -> Merge {
    let mut merge = Merge::new(sink(), incarnation(7), 0, NonZeroU32::new(2).expect("not zero"));
    for minted in [minted(0, 1), minted(1, 5), minted(5, 9)] {
        merge.open(minted).expect("contiguous");
    }
    merge
}

fn message(of: Minted, worker: u32, share: Share<Payload>) -> ShareMessage<Payload> {
    ShareMessage {
        sink: sink(),
        incarnation: incarnation(7),
        description: of.description,
        floor: of.floor,
        worker: WorkerIndex(worker),
        share,
        poisoned: None,
    }
}

fn stashed(of: Minted, worker: u32, n: u32) -> ShareMessage<Payload> {
    message(of, worker, Share::Stashed(Payload(n)))
}

fn poisoned(of: Minted, worker: u32, at: u64) -> ShareMessage<Payload> {
    let message_text = format!("error of {worker}");
    let poisoned = Some(DataflowError { at, message: message_text });
    ShareMessage { poisoned, ..message(of, worker, Share::Empty) }
}

fn failed(of: Minted, worker: u32) -> ShareMessage<Payload> {
    message(of, worker, Share::Failed { reason: "disk is full".to_owned() })
}

fn run(n: u8) -> InlineRun {
    let payload = Bytes::copy_from_slice(&[n]);
    let digest = Digest::of(&payload);
    InlineRun { group: 0, payload, digest, facts: RunFacts::default(), schema: SchemaFingerprint(digest) }
}

/// Takes a share that must be taken and must not end the merge; returns the batches that left.
fn take(merge: &mut Merge, message: ShareMessage<Payload>) -> Vec<Batch<Payload>> {
    let reported = merge.report(message).expect("is taken");
    assert_eq!((reported.returned, reported.ended), (vec![], None));
    reported.batches
}

#[track_caller]
fn refused(merge: &mut Merge, message: ShareMessage<Payload>, error: ChainError) {
    let payload = match &message.share {
        Share::Stashed(Payload(n)) => Some(Payload(*n)),
        _ => None,
    };
    let held = format!("{merge:?}");
    assert_eq!(merge.report(message), Err(Refused { error: Box::new(error), payload }));
    assert_eq!(format!("{merge:?}"), held, "a refused message changes nothing");
}

#[test]
fn a_batch_leaves_when_each_worker_reported_once_empty_shares_included() {
    let mut merge = merge();
    assert!(take(&mut merge, message(minted(0, 1), 1, Share::Empty)).is_empty());
    let batches = take(&mut merge, stashed(minted(0, 1), 0, 1));
    let [batch] = &batches[..] else { panic!("one batch: {batches:?}") };
    assert_eq!((batch.sink, batch.incarnation), (sink(), incarnation(7)));
    assert_eq!((batch.description, batch.floor), (minted(0, 1).description, at(2)));
    assert_eq!(batch.stashed, [Payload(1)]);
    assert!(batch.has_updates());
}

#[test]
fn all_empty_shares_make_a_batch_without_updates() {
    let mut merge = merge();
    take(&mut merge, message(minted(0, 1), 0, Share::Empty));
    let batches = take(&mut merge, message(minted(0, 1), 1, Share::Empty));
    assert!(batches.iter().all(|batch| !batch.has_updates()) && batches.len() == 1);
}

#[test]
fn a_batch_is_the_same_whatever_order_its_shares_came_in() {
    let of = minted(0, 1);
    let shares = |n: u32| message(of, n, if n == 0 { Share::Inline(run(9)) } else { Share::Inline(run(8)) });
    let (mut one, mut other) = (merge(), merge());
    take(&mut one, shares(0));
    take(&mut other, shares(1));
    let (one, other) = (take(&mut one, shares(1)), take(&mut other, shares(0)));
    assert_eq!(one, other);
    assert_eq!(one[0].inline, [run(9), run(8)]);
}

#[test]
fn shares_of_several_descriptions_interleave_and_batches_leave_in_order() {
    let mut merge = merge();
    for (of, worker) in [((5, 9), 0), ((1, 5), 1), ((5, 9), 1), ((0, 1), 0), ((1, 5), 0)] {
        assert!(take(&mut merge, message(minted(of.0, of.1), worker, Share::Empty)).is_empty());
    }
    let batches = take(&mut merge, message(minted(0, 1), 1, Share::Empty));
    let left: Vec<_> = batches.iter().map(|batch| batch.description.to_string()).collect();
    assert_eq!(left, ["[0, 1)", "[1, 5)", "[5, 9)"]);
    assert_eq!(merge.open.len(), 0);
}

#[test]
fn a_duplicate_share_is_refused_and_does_not_complete_the_batch() {
    let mut merge = merge();
    take(&mut merge, stashed(minted(0, 1), 0, 1));
    let error = ChainError::DuplicateShare { worker: WorkerIndex(0), description: minted(0, 1).description };
    refused(&mut merge, stashed(minted(0, 1), 0, 2), error.clone());
    refused(&mut merge, failed(minted(0, 1), 0), error);
    assert_eq!(take(&mut merge, stashed(minted(0, 1), 1, 3))[0].stashed, [Payload(1), Payload(3)]);
}

#[test]
fn an_unknown_worker_is_refused() {
    let error = ChainError::UnknownWorker { worker: WorkerIndex(2), workers: NonZeroU32::new(2).expect("2") };
    refused(&mut merge(), stashed(minted(0, 1), 2, 1), error);
}

#[test]
fn a_share_of_another_sink_or_of_a_zombie_incarnation_is_refused() {
    let mut merge = merge();
    let other = SinkId::from_uuid(Uuid::from_u128(2));
    let message = ShareMessage { sink: other, ..stashed(minted(0, 1), 0, 1) };
    refused(&mut merge, message, ChainError::OtherSink { expected: sink(), found: other });
    let zombie = ShareMessage { incarnation: incarnation(6), ..stashed(minted(0, 1), 0, 1) };
    let error = ChainError::OtherIncarnation { expected: incarnation(7), found: incarnation(6) };
    refused(&mut merge, zombie, error);
    let zombie = ShareMessage { incarnation: incarnation(6), ..failed(minted(0, 1), 0) };
    let error = ChainError::OtherIncarnation { expected: incarnation(7), found: incarnation(6) };
    refused(&mut merge, zombie, error);
}

#[test]
fn a_share_of_other_bounds_or_floor_or_of_a_batch_that_left_is_refused() {
    let mut merge = merge();
    let not_open = |of: Minted| ChainError::ShareNotOpen { description: of.description };
    refused(&mut merge, stashed(minted(0, 5), 0, 1), not_open(minted(0, 5)));
    refused(&mut merge, stashed(minted(9, 12), 0, 1), not_open(minted(9, 12)));
    let description = minted(0, 1).description;
    let other_floor = ShareMessage { floor: at(3), ..stashed(minted(0, 1), 0, 1) };
    refused(&mut merge, other_floor, ChainError::OtherFloor { description, expected: at(2), found: at(3) });
    take(&mut merge, message(minted(0, 1), 0, Share::Empty));
    assert_eq!(take(&mut merge, message(minted(0, 1), 1, Share::Empty)).len(), 1);
    refused(&mut merge, stashed(minted(0, 1), 1, 1), not_open(minted(0, 1)));
}

#[test]
fn descriptions_are_opened_contiguously_from_the_as_of() {
    let mut fresh = Merge::new(sink(), incarnation(7), 3, NonZeroU32::MIN);
    let error =
        |due, of: Minted| ChainError::NotContiguous { expected: at(due), description: of.description };
    assert_eq!(fresh.open(minted(0, 4)), Err(error(3, minted(0, 4))));
    assert_eq!(fresh.open(minted(3, 4)), Ok(()));
    assert_eq!(fresh.open(minted(5, 6)), Err(error(4, minted(5, 6))));
    assert_eq!(fresh.open(minted(3, 4)), Err(error(4, minted(3, 4))));
}

#[test]
fn a_failed_share_gives_back_the_payloads_of_all_others_and_of_all_that_come_later() {
    let mut merge = merge();
    take(&mut merge, stashed(minted(0, 1), 0, 1));
    take(&mut merge, stashed(minted(5, 9), 0, 2));
    take(&mut merge, stashed(minted(5, 9), 1, 3));
    let Reported { batches, returned, ended } = merge.report(failed(minted(1, 5), 1)).expect("is taken");
    assert!(batches.is_empty(), "even the complete [5, 9) has a hole before it");
    assert_eq!(returned, [Payload(1), Payload(2), Payload(3)]);
    let description = minted(1, 5).description;
    let reason = "disk is full".to_owned();
    assert_eq!(ended, Some(Ended::Failed { worker: WorkerIndex(1), description, reason }));
    let late = minted(0, 1);
    refused(&mut merge, stashed(late, 1, 4), ChainError::MergeEnded { description: late.description });
    assert_eq!(merge.open(minted(9, 10)).map_err(|error| error.remedy()), Err(crate::Remedy::Reopen));
    assert_eq!(merge.close(), []);
}

#[test]
fn a_failure_is_never_counted_as_an_empty_share() {
    let mut merge = Merge::new(sink(), incarnation(7), 0, NonZeroU32::MIN);
    merge.open(minted(0, 1)).expect("contiguous");
    let reported = merge.report(failed(minted(0, 1), 0)).expect("is taken");
    assert!(reported.batches.is_empty() && reported.ended.is_some());
}

#[test]
fn a_drop_is_told_once_and_no_batch_follows() {
    let mut merge = merge();
    take(&mut merge, stashed(minted(0, 1), 0, 1));
    let reported = merge.report(message(minted(0, 1), 1, Share::Dropped)).expect("is taken");
    let expected = Reported { batches: vec![], returned: vec![Payload(1)], ended: Some(Ended::Dropped) };
    assert_eq!(reported, expected);
    let ended = |of: Minted| ChainError::MergeEnded { description: of.description };
    refused(&mut merge, message(minted(0, 1), 0, Share::Dropped), ended(minted(0, 1)));
    refused(&mut merge, stashed(minted(1, 5), 0, 2), ended(minted(1, 5)));
}

#[test]
fn the_earliest_error_wins_and_what_the_others_hold_still_travels() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0]] {
        let mut merge = Merge::new(sink(), incarnation(7), 0, NonZeroU32::new(4).expect("not zero"));
        merge.open(minted(0, 9)).expect("contiguous");
        let mut batches = Vec::new();
        for worker in order {
            let of = minted(0, 9);
            batches = take(
                &mut merge,
                match worker {
                    0 => poisoned(of, 0, 6),
                    1 => poisoned(of, 1, 4),
                    2 => poisoned(of, 2, 4),
                    _ => stashed(of, worker, 1),
                },
            );
        }
        let [batch] = &batches[..] else { panic!("one batch: {batches:?}") };
        let earliest = DataflowError { at: 4, message: "error of 1".to_owned() };
        assert_eq!((&batch.poisoned, &batch.stashed), (&Some(earliest), &vec![Payload(1)]));
    }
}

#[test]
fn an_error_outside_its_description_is_refused_and_counts_for_nothing() {
    let mut merge = merge();
    for at in [0, 5] {
        let error = ChainError::ErrorOutside { at, description: minted(1, 5).description };
        refused(&mut merge, poisoned(minted(1, 5), 0, at), error);
    }
    assert!(take(&mut merge, poisoned(minted(1, 5), 0, 1)).is_empty());
}

#[test]
fn closing_gives_back_everything_that_is_held() {
    let mut merge = merge();
    take(&mut merge, stashed(minted(5, 9), 1, 1));
    take(&mut merge, message(minted(1, 5), 1, Share::Inline(run(1))));
    take(&mut merge, stashed(minted(0, 1), 0, 2));
    assert_eq!(merge.close(), [Payload(2), Payload(1)]);
}
