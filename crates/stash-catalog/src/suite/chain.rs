//! The chain is gapless, and its head is the fence.

use std::sync::Arc;

use stash_types::{Frontier, IncarnationId};

use super::Setup;
use super::world::{World, at, span};
use crate::rows::{CommitRequest, DeletionReason, HeadStatus, OutcomeKind, Resolution, ResolvedOffer};
use crate::{Cas, CatalogError, Misuse};

async fn refused(world: &World, request: CommitRequest) -> String {
    match world.catalog().commit(request).await {
        Err(CatalogError::InvalidUsage(Misuse::Inconsistent { what })) => what,
        other => panic!("not refused: {other:?}"),
    }
}

pub(super) async fn an_accepted_batch_reads_as_it_was_written(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let request = world.accepting(a, span(0, 5), &[1, 2, 7]).await;
    let committed = world.done(request.clone()).await;
    assert_eq!(committed.fence, request.expected_fence, "the upper moves, so nobody need be fenced");
    let Resolution::Accept { batch, .. } = request.resolution else { unreachable!("it accepts") };
    let slice = setup.other.chain(world.sink, Frontier::MIN, 10).await.expect("a chain");
    let [row] = slice.batches.as_slice() else { panic!("one batch, not {:?}", slice.batches) };
    assert_eq!((row.id, row.seq, row.incarnation), (batch.id, 1, a));
    assert_eq!((row.lower, row.upper, row.extent), (at(0), at(5), at(5)));
    assert_eq!((row.offered, row.facts), (span(0, 5), batch.facts));
    assert_eq!((&row.parts, &row.inline), (&batch.parts, &batch.inline));
    assert_eq!((slice.head.upper, slice.head.next_seq), (at(5), 2));
    assert_eq!((committed.upper, committed.seq), (at(5), Some(1)));
    assert_eq!((committed.revision, committed.fence), (slice.head.revision, slice.head.fence));
    let referenced = setup.other.referenced(world.sink).await.expect("keys");
    assert_eq!(referenced, [1, 2, 7].map(|n| (world.key(a, span(0, 5), n), 1)));
}

pub(super) async fn a_commit_against_an_old_head_conflicts_and_writes_nothing(setup: Setup) {
    let world = World::new(&setup).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    let late = world.accepting(b, span(0, 7), &[1]).await;
    world.accept(a, span(0, 5), &[1]).await;
    let head = setup.catalog.head(world.sink).await.expect("a head");
    assert_eq!(setup.other.commit(late.clone()).await.expect("answered"), Cas::Conflict(head.clone()));
    let wrong_fence =
        CommitRequest { expected_fence: head.fence + 1, ..world.accepting(b, span(0, 7), &[1]).await };
    assert_eq!(setup.other.commit(wrong_fence).await.expect("answered"), Cas::Conflict(head.clone()));
    assert_eq!(setup.catalog.head(world.sink).await.expect("a head"), head);
    assert_eq!(setup.catalog.view(world.sink, b).await.expect("a view").incarnation.resolved, at(0));
    assert_eq!(setup.catalog.read_back(world.sink, late.commit).await.expect("read"), None);
}

pub(super) async fn the_offer_moves_the_resolved_upper_and_is_recorded(setup: Setup) {
    let world = World::new(&setup).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    let last = |id: IncarnationId| {
        let (catalog, sink) = (Arc::clone(&setup.catalog), world.sink);
        async move { catalog.view(sink, id).await.expect("a view").incarnation }
    };
    assert_eq!(last(a).await.last, None);
    world.accept(a, span(0, 5), &[1]).await;
    world.accept(b, span(0, 7), &[1]).await;
    let row = last(a).await;
    assert_eq!(row.resolved, at(5));
    assert_eq!(row.last, Some(ResolvedOffer { description: span(0, 5), outcome: OutcomeKind::Accepted }));
    let trimmed = OutcomeKind::Trimmed { from: at(5) };
    assert_eq!(last(b).await.last, Some(ResolvedOffer { description: span(0, 7), outcome: trimmed }));
    world.done(world.request(a, span(5, 7), Resolution::Drop { unlink: vec![] }).await).await;
    let row = last(a).await;
    assert_eq!(row.resolved, at(7));
    assert_eq!(row.last, Some(ResolvedOffer { description: span(5, 7), outcome: OutcomeKind::Dropped }));
}

pub(super) async fn a_request_that_contradicts_itself_is_refused(setup: Setup) {
    let world = World::new(&setup).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    let fine = world.accepting(a, span(0, 5), &[1]).await;
    let with = |change: &dyn Fn(&mut CommitRequest)| {
        let mut request = fine.clone();
        change(&mut request);
        request
    };
    let batch = |change: &dyn Fn(&mut crate::NewBatch)| {
        with(&|request| {
            if let Resolution::Accept { batch, .. } = &mut request.resolution {
                change(batch);
            }
        })
    };
    let cases = [
        ("it begins elsewhere", batch(&|batch| batch.lower = at(1))),
        ("it covers nothing", batch(&|batch| batch.upper = at(0))),
        ("it is more than was offered", batch(&|batch| batch.upper = at(6))),
        ("the part is another's", batch(&|batch| batch.parts[0].name.incarnation = b)),
        ("the part is described as another", batch(&|batch| batch.parts[0].descriptor.n = 9)),
        (
            "the inline run was altered",
            batch(&|batch| batch.inline[0].payload = bytes::Bytes::from_static(b"x")),
        ),
        ("it says it was dropped", with(&|request| request.outcome = OutcomeKind::Dropped)),
        ("it drops the sink", with(&|request| request.status = HeadStatus::Dropped)),
        (
            "it extends to where it is",
            with(&|request| {
                request.resolution = Resolution::Extend { upper: at(0), unlink: vec![] };
                request.outcome = OutcomeKind::Dropped;
            }),
        ),
        (
            "it unlinks another's part",
            with(&|request| {
                request.resolution =
                    Resolution::Extend { upper: at(5), unlink: vec![world.name(b, span(0, 5), 1)] };
            }),
        ),
    ];
    for (what, request) in cases {
        let answer = setup.catalog.commit(request).await;
        assert!(
            matches!(answer, Err(CatalogError::InvalidUsage(Misuse::Inconsistent { .. }))),
            "{what}: {answer:?}"
        );
    }
    assert_eq!((world.upper().await, world.queued().await), (at(0), 0));
    world.done(fine).await;
}

pub(super) async fn a_resolved_upper_does_not_move_back(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    world.accept(a, span(0, 5), &[1]).await;
    let again = world.request(a, span(0, 5), Resolution::Drop { unlink: vec![] }).await;
    let head = world.catalog().head(world.sink).await.expect("a head");
    assert_eq!(world.catalog().commit(again).await.expect("answered"), Cas::Conflict(head.clone()));
    assert_eq!(world.catalog().head(world.sink).await.expect("a head"), head);
}

pub(super) async fn a_drop_that_landed_unseen_lets_the_next_try_look_again(setup: Setup) {
    let world = World::new(&setup).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    world.accept(a, span(0, 5), &[1]).await;
    let landed = world.request(b, span(0, 5), Resolution::Drop { unlink: vec![] }).await;
    let decided_again = world.request(b, span(0, 5), Resolution::Drop { unlink: vec![] }).await;
    world.done(landed).await;
    let answer = setup.other.commit(decided_again).await.expect("answered");
    assert_eq!(answer, Cas::Conflict(world.catalog().head(world.sink).await.expect("a head")));
    let view = setup.other.view(world.sink, b).await.expect("a view");
    assert_eq!(view.incarnation.resolved, at(5));
    // Whatever was decided: the head is shown as it stands, not as it would have been.
    let decided_again = [world.accepting(b, span(0, 7), &[1]).await, world.poisoning(b, span(5, 7)).await];
    world.done(world.request(b, span(5, 7), Resolution::Drop { unlink: vec![] }).await).await;
    for request in decided_again {
        let answer = setup.other.commit(request).await.expect("answered");
        assert_eq!(answer, Cas::Conflict(world.catalog().head(world.sink).await.expect("a head")));
    }
}

pub(super) async fn a_closed_incarnation_commits_nothing(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let early = world.accepting(a, span(0, 5), &[1]).await;
    setup.other.close_incarnation(world.sink, a, "gone").await.expect("closed");
    let late = world.accepting(a, span(0, 5), &[1]).await;
    for request in [early, late] {
        match setup.catalog.commit(request).await {
            Err(CatalogError::IncarnationClosed { incarnation, reason, .. }) => {
                assert_eq!((incarnation, reason.as_str()), (a, "gone"));
            }
            other => panic!("not refused: {other:?}"),
        }
    }
    assert_eq!(world.chain(0).await, []);
}

pub(super) async fn a_queued_key_is_not_linked(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let key = world.key(a, span(0, 5), 2);
    assert_eq!(
        setup.other.enqueue(world.sink, &[key], DeletionReason::Surrendered).await.expect("queued"),
        1
    );
    let request = world.accepting(a, span(0, 5), &[1, 2]).await;
    assert!(refused(&world, request).await.contains(&key.to_string()));
    assert_eq!(
        (world.upper().await, setup.catalog.referenced(world.sink).await.expect("keys")),
        (at(0), vec![])
    );
}

pub(super) async fn a_key_is_linked_once(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    world.accept(a, span(0, 5), &[1]).await;
    let mut request = world.accepting(a, span(5, 9), &[2]).await;
    if let Resolution::Accept { batch, .. } = &mut request.resolution {
        batch.parts.push(world.part(world.name(a, span(0, 5), 1)));
    }
    assert!(refused(&world, request).await.contains("already"));
    assert_eq!(world.upper().await, at(5));
}

pub(super) async fn what_is_not_kept_is_queued_in_the_same_transaction(setup: Setup) {
    let world = World::new(&setup).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    world.accept(a, span(0, 5), &[1]).await;
    let batch = world.batch(b, span(0, 7), &[2]).await;
    let unlink = vec![world.name(b, span(0, 7), 1), world.name(b, span(0, 7), 3)];
    world.done(world.request(b, span(0, 7), Resolution::Accept { batch, unlink }).await).await;
    let unlink = vec![world.name(a, span(5, 7), 2)];
    world.done(world.request(a, span(5, 7), Resolution::Drop { unlink }).await).await;
    let due = setup.other.deletions_due(10).await.expect("due");
    let mut due: Vec<_> = due.iter().map(|row| (row.key, row.reason)).collect();
    due.sort();
    let mut expected = vec![
        (world.key(b, span(0, 7), 1), DeletionReason::Trimmed),
        (world.key(b, span(0, 7), 3), DeletionReason::Trimmed),
        (world.key(a, span(5, 7), 2), DeletionReason::Dropped),
    ];
    expected.sort();
    assert_eq!(due, expected);
}

pub(super) async fn what_is_kept_is_not_queued_although_it_is_given_as_not_kept_too(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let batch = world.batch(a, span(0, 5), &[1]).await;
    let unlink = vec![world.name(a, span(0, 5), 1), world.name(a, span(0, 5), 2)];
    world.done(world.request(a, span(0, 5), Resolution::Accept { batch, unlink }).await).await;
    let keys = [1, 2].map(|n| world.key(a, span(0, 5), n));
    let states = setup.other.key_states(world.sink, &keys).await.expect("states");
    let owned: Vec<_> =
        states.iter().map(|state| (state.referenced_by.is_some(), state.queued.is_some())).collect();
    assert_eq!(owned, [(true, false), (false, true)]);
}

pub(super) async fn an_empty_batch_extends_the_last_row(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    world.accept(a, span(0, 5), &[1]).await;
    let committed = world.extend(a, span(5, 9)).await;
    assert_eq!((committed.seq, committed.upper), (None, at(9)));
    assert_eq!(world.spans(0).await, [(0, 5, 9)]);
    world.accept(a, span(9, 10), &[2]).await;
    assert_eq!(world.spans(0).await, [(0, 5, 9), (9, 10, 10)]);
    assert_eq!(world.chain(9).await.len(), 1, "the first extends to 9, so it is below");
    assert_eq!(world.chain(8).await.len(), 2);
}

pub(super) async fn an_empty_batch_without_a_row_before_it_is_a_row(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    assert_eq!(world.extend(a, span(0, 5)).await.seq, Some(1));
    assert_eq!(world.spans(0).await, [(0, 5, 5)]);
    assert_eq!(world.extend(a, span(5, 6)).await.seq, None);
    assert_eq!(world.spans(0).await, [(0, 5, 6)]);
    assert_eq!(world.accept(a, span(6, 7), &[1]).await.seq, Some(2), "seq has no gaps");
}

pub(super) async fn a_drop_writes_no_row_and_moves_no_upper(setup: Setup) {
    let world = World::new(&setup).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    world.accept(a, span(0, 5), &[1]).await;
    let before = setup.catalog.head(world.sink).await.expect("a head");
    let dropped = world.done(world.request(b, span(0, 3), Resolution::Drop { unlink: vec![] }).await).await;
    let after = setup.catalog.head(world.sink).await.expect("a head");
    assert_eq!((dropped.seq, dropped.upper), (None, at(5)));
    assert_eq!((after.upper, after.fence, after.next_seq), (before.upper, before.fence, before.next_seq));
    assert_eq!(world.spans(0).await, [(0, 5, 5)]);
}

pub(super) async fn a_poison_at_the_upper_moves_nothing_and_fences(setup: Setup) {
    let world = World::new(&setup).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    world.accept(a, span(0, 5), &[1]).await;
    let decided = world.accepting(b, span(0, 7), &[1]).await;
    let poison = world.poisoning(a, span(5, 9)).await;
    let committed = world.done(poison.clone()).await;
    assert_eq!((committed.upper, committed.seq), (at(5), None));
    let head = setup.other.head(world.sink).await.expect("a head");
    assert_eq!(head.status, poison.status);
    assert_eq!(setup.other.commit(decided).await.expect("answered"), Cas::Conflict(head));
    assert_eq!(world.spans(0).await, [(0, 5, 5)]);
}

pub(super) async fn a_chain_that_ended_accepts_nothing_but_drops(setup: Setup) {
    let world = World::new(&setup).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    let mut last = world.accepting(a, span(0, u64::MAX), &[1]).await;
    last.status = HeadStatus::Complete;
    world.done(last).await;
    let head = setup.other.head(world.sink).await.expect("a head");
    assert_eq!((head.upper, &head.status), (Frontier::EMPTY, &HeadStatus::Complete));
    let last = async || {
        let rows = setup.other.history(Default::default()).await.expect("history");
        rows.last().map(|row| row.event.clone())
    };
    assert_eq!(last().await.as_deref(), Some("completed"), "how it ended is recorded");
    let unlink = vec![world.name(b, span(0, u64::MAX), 1)];
    let resolution = Resolution::Drop { unlink };
    let reopening = CommitRequest {
        status: HeadStatus::Open,
        ..world.request(b, span(0, u64::MAX), resolution.clone()).await
    };
    assert!(refused(&world, reopening).await.contains("status"));
    world.done(world.request(b, span(0, u64::MAX), resolution).await).await;
    assert_eq!(world.queued().await, 1);

    let poisoned = World { sink: poisoned_sink(&setup).await, ..world };
    let c = poisoned.open("c").await.id;
    poisoned.done(poisoned.poisoning(c, span(0, 5)).await).await;
    assert_eq!(last().await.as_deref(), Some("poisoned"));
    let d = poisoned.open("d").await.id;
    let over = poisoned.request(d, span(0, 5), Resolution::Extend { upper: at(5), unlink: vec![] }).await;
    for status in [over.status.clone(), HeadStatus::Open] {
        let over = CommitRequest { status, ..over.clone() };
        assert!(refused(&poisoned, over).await.contains("accepts nothing"));
    }
}

async fn poisoned_sink(setup: &Setup) -> stash_types::SinkId {
    let declared = setup.catalog.declare_sink(super::world::declaration(setup, "errors")).await;
    declared.expect("declared").sink.spec.id
}

pub(super) async fn the_same_commit_twice_is_made_once(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let accept = world.accepting(a, span(0, 5), &[1]).await;
    let first = world.done(accept.clone()).await;
    assert_eq!(setup.other.commit(accept).await.expect("answered"), Cas::Done(first));
    let drop = world.request(a, span(3, 7), Resolution::Drop { unlink: vec![] }).await;
    let first = world.done(drop.clone()).await;
    assert_eq!(setup.other.commit(drop).await.expect("answered"), Cas::Done(first));
    assert_eq!(setup.catalog.head(world.sink).await.expect("a head").next_seq, 2);
}

pub(super) async fn a_commit_is_read_back_although_another_came_after_it(setup: Setup) {
    let world = World::new(&setup).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    let never = world.accepting(a, span(0, 5), &[1]).await;
    assert_eq!(setup.other.read_back(world.sink, never.commit).await.expect("read"), None);
    // Who is told so decides again: what was not made may have been fenced, lest it is made later.
    let first = world.accepting(a, span(0, 5), &[1]).await;
    let committed = world.done(first.clone()).await;
    assert_eq!(setup.other.read_back(world.sink, first.commit).await.expect("read"), Some(committed));
    world.accept(b, span(0, 7), &[1]).await;
    assert_eq!(setup.other.read_back(world.sink, first.commit).await.expect("read"), Some(committed));
    world.accept(a, span(5, 9), &[2]).await;
    assert_eq!(setup.other.read_back(world.sink, first.commit).await.expect("read"), None);
}

pub(super) async fn the_chain_is_read_in_pages_from_any_frontier(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    for time in 0..6 {
        world.accept(a, span(time * 10, time * 10 + 10), &[time]).await;
    }
    let mut from = at(0);
    let mut seqs = Vec::new();
    loop {
        let slice = setup.other.chain(world.sink, from, 4).await.expect("a page");
        let Some(last) = slice.batches.last() else { break };
        from = last.extent;
        assert!(slice.batches.iter().all(|batch| batch.parts.len() == 1 && batch.inline.len() == 1));
        seqs.extend(slice.batches.iter().map(|batch| batch.seq));
    }
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);
    assert_eq!(from, at(60));
    assert_eq!(world.spans(25).await.first(), Some(&(20, 30, 30)));
}
