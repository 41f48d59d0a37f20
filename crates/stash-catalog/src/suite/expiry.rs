//! What the catalog's clock lets go of: a prefix, and nothing that somebody present holds.

use std::sync::Arc;

use stash_types::{Clock, ConsumerName, Frontier, IncarnationId};

use super::Setup;
use super::world::{World, at, declaration, span};
use crate::rows::{CommitRequest, DeletionReason, Expired, NewSink, StartAt};
use crate::{Cas, CatalogError, Misuse};

/// A retention of 100 s and an absent hold of 60 s.
async fn world(setup: &Setup) -> (World, IncarnationId) {
    let spec = declaration(setup, "orders");
    world_of(setup, NewSink { retention_ms: Some(100_000), absent_hold_ms: Some(60_000), ..spec }).await
}

/// The sink, and an incarnation whose lease outlasts every case.
async fn world_of(setup: &Setup, spec: NewSink) -> (World, IncarnationId) {
    let world = World::of(setup, spec).await;
    let a = world.open("a").await.id;
    setup.catalog.renew_lease(world.sink, a, 1_000_000_000).await.expect("renewed");
    (world, a)
}

/// Batches `[0, 5)`, `[5, 6)`, `[6, 9)` of one part each, 10 s apart; the last one now.
async fn three_batches(world: &World, a: IncarnationId) {
    for (n, (lower, upper)) in (1..).zip([(0, 5), (5, 6), (6, 9)]) {
        if n > 1 {
            world.setup.clock.advance(10_000);
        }
        world.accept(a, span(lower, upper), &[n]).await;
    }
}

async fn expire(world: &World) -> Expired {
    world.setup.catalog.expire(world.sink, true).await.expect("expired")
}

/// Batches, keys and the earliest frontier of what expired.
fn taken(expired: &Expired) -> (u64, u64, Frontier) {
    (expired.batches, expired.keys, expired.earliest)
}

fn names(expired: &Expired) -> Vec<&str> {
    expired.absent.iter().map(ConsumerName::as_str).collect()
}

async fn seen(world: &World, consumer: &str) -> u64 {
    let rows = world.setup.other.consumers(world.sink).await.expect("listed");
    rows.iter().find(|row| row.name.as_str() == consumer).expect("registered").seen.0
}

pub(super) async fn what_outlived_the_retention_goes_as_a_prefix(setup: Setup) {
    let (world, a) = world(&setup).await;
    three_batches(&world, a).await;
    setup.clock.advance(79_999);
    assert_eq!(taken(&expire(&world).await), (0, 0, at(0)), "none is 100 s old");
    setup.clock.advance(1);
    assert_eq!(taken(&expire(&world).await), (1, 1, at(5)));
    assert_eq!(world.spans(0).await, [(5, 6, 6), (6, 9, 9)]);
    let head = setup.other.head(world.sink).await.expect("a head");
    assert_eq!((head.expired, head.released, head.upper), (at(5), at(0), at(9)));
    let due = setup.other.deletions_due(9).await.expect("due");
    let due: Vec<_> = due.iter().map(|row| (row.key, row.reason)).collect();
    assert_eq!(due, [(world.key(a, span(0, 5), 1), DeletionReason::Expired)]);
    // An old batch behind a younger one stays: what is left must be gapless.
    setup.clock.go_back(95_000);
    world.accept(a, span(9, 12), &[4]).await;
    setup.clock.advance(95_000 + 10_000);
    assert_eq!(taken(&expire(&world).await), (1, 1, at(6)));
    setup.clock.advance(9_999);
    assert_eq!(taken(&expire(&world).await), (0, 0, at(6)), "[6, 9) is younger, [9, 12) lies behind it");
    setup.clock.advance(1);
    assert_eq!(taken(&expire(&world).await), (2, 2, at(12)));
    assert_eq!(world.spans(0).await, []);
    let events = setup.other.history(Default::default()).await.expect("history");
    let events: Vec<_> = events.iter().filter(|row| row.event == "expired").collect();
    assert_eq!(events.len(), 4, "one for each batch");
    assert!(events.iter().all(|row| row.incarnation == Some(a)), "{events:?}");
}

pub(super) async fn without_a_retention_nothing_outlives_it(setup: Setup) {
    let spec = declaration(&setup, "orders");
    let (world, a) = world_of(&setup, NewSink { retention_ms: None, ..spec }).await;
    three_batches(&world, a).await;
    setup.clock.advance(900_000_000);
    assert_eq!(taken(&expire(&world).await), (0, 0, at(0)));
    let (_, _) = world.register("c", StartAt::Beginning).await.expect("registered");
    setup.clock.advance(60_000);
    let expired = expire(&world).await;
    assert_eq!((names(&expired), taken(&expired)), (vec!["c"], (0, 0, at(0))));
    assert_eq!(world.spans(0).await.len(), 3);
}

pub(super) async fn while_a_consumer_is_present_nothing_outlives_the_retention(setup: Setup) {
    let (world, a) = world(&setup).await;
    three_batches(&world, a).await;
    let (_, session) = world.register("c", StartAt::Beginning).await.expect("registered");
    for _ in 0..4 {
        setup.clock.advance(59_999);
        assert_eq!(taken(&expire(&world).await), (0, 0, at(0)));
        setup.other.renew_session(world.sink, &"c".parse().expect("a name"), session).await.expect("heard");
    }
    assert_eq!(world.spans(0).await.len(), 3);
    // Who holds nothing is somebody all the same: it was promised what comes.
    world.acknowledge("c", session, 9).await.expect("acknowledged");
    world.accept(a, span(9, 12), &[4]).await;
    assert_eq!(taken(&expire(&world).await), (0, 0, at(9)));
}

pub(super) async fn an_absent_consumer_lets_go_of_what_the_others_acknowledged(setup: Setup) {
    let (world, a) = world(&setup).await;
    three_batches(&world, a).await;
    let (_, gone) = world.register("gone", StartAt::Beginning).await.expect("registered");
    world.acknowledge("gone", gone, 5).await.expect("acknowledged");
    let (_, level) = world.register("level", StartAt::Earliest).await.expect("registered");
    world.acknowledge("level", level, 6).await.expect("acknowledged");
    setup.clock.advance(1);
    let (_, here) = world.register("here", StartAt::Earliest).await.expect("registered");
    assert_eq!(world.acknowledge("here", here, 6).await.expect("acknowledged"), (0, 0), "held by the other");
    setup.clock.advance(59_998);
    assert_eq!(taken(&expire(&world).await), (0, 0, at(5)), "it was heard 59.999 s ago");
    setup.clock.advance(1);
    let expired = expire(&world).await;
    assert_eq!((names(&expired), taken(&expired)), (vec!["gone", "level"], (1, 1, at(6))));
    assert_eq!(world.spans(0).await, [(6, 9, 9)], "what is present holds, old as it may be");
    let head = setup.other.head(world.sink).await.expect("a head");
    assert_eq!((head.expired, head.released), (at(6), at(5)));
    let events = setup.other.history(Default::default()).await.expect("history");
    let about: Vec<_> = events.iter().filter(|row| row.event == "expired").map(|row| &row.detail).collect();
    assert_eq!(about.len(), 2, "the batch and the consumer that did not have it: {about:?}");
    assert!(about[1].contains("gone"), "{about:?}");
    // An acknowledgement still releases only what all acknowledged; the rest is the next expiry's.
    assert_eq!(world.acknowledge("here", here, 9).await.expect("acknowledged"), (0, 0));
    assert_eq!(taken(&expire(&world).await), (1, 1, at(9)));
    // A consumer that is absent and ahead holds nothing back, so nothing goes for its sake.
    world.accept(a, span(9, 12), &[4]).await;
    world.register("ahead", StartAt::Now).await.expect("registered");
    setup.clock.advance(60_000);
    setup.catalog.renew_session(world.sink, &"here".parse().expect("a name"), here).await.expect("heard");
    let expired = expire(&world).await;
    assert_eq!((names(&expired), taken(&expired)), (vec!["ahead", "gone", "level"], (0, 0, at(9))));
}

pub(super) async fn where_all_are_absent_the_retention_decides(setup: Setup) {
    let (world, a) = world(&setup).await;
    three_batches(&world, a).await;
    let (_, slow) = world.register("slow", StartAt::Beginning).await.expect("registered");
    let (_, fast) = world.register("fast", StartAt::Beginning).await.expect("registered");
    world.acknowledge("slow", slow, 5).await.expect("acknowledged");
    world.acknowledge("fast", fast, 9).await.expect("acknowledged");
    setup.clock.advance(60_000);
    let expired = expire(&world).await;
    // Nobody is left whose acknowledgement counts for the other.
    assert_eq!((names(&expired), taken(&expired)), (vec!["fast", "slow"], (0, 0, at(5))));
    setup.clock.advance(30_000);
    assert_eq!(taken(&expire(&world).await), (1, 1, at(6)), "100 s old");
    // One that comes back holds what is left, and lets the other go.
    let (acked, _) = world.register("slow", StartAt::SkipExpired).await.expect("registered");
    assert_eq!(acked, at(6));
    setup.clock.advance(59_999);
    assert_eq!(taken(&expire(&world).await), (0, 0, at(6)));
    setup.clock.advance(1);
    assert_eq!(taken(&expire(&world).await), (1, 1, at(9)), "absent again, and it is old");
}

pub(super) async fn without_an_absent_hold_nobody_is_ever_absent(setup: Setup) {
    let spec = declaration(&setup, "orders");
    let (world, a) = world_of(&setup, NewSink { retention_ms: Some(1), absent_hold_ms: None, ..spec }).await;
    three_batches(&world, a).await;
    world.register("c", StartAt::Beginning).await.expect("registered");
    setup.clock.advance(900_000_000);
    let expired = expire(&world).await;
    assert_eq!((names(&expired), taken(&expired)), (vec![], (0, 0, at(0))));
    assert!(setup.other.unregister_consumer(world.sink, &"c".parse().expect("a name")).await.expect("gone"));
    assert_eq!(taken(&expire(&world).await), (3, 3, at(9)));
}

/// `three_batches`, of which `[0, 5)` was acknowledged by both consumers, and `[5, 6)` expired beyond `gone`,
/// who stands at 5; `here` stands at 6.
async fn let_go(setup: &Setup) -> (World, stash_types::SessionId, stash_types::SessionId) {
    let (world, a) = world(setup).await;
    three_batches(&world, a).await;
    let (_, gone) = world.register("gone", StartAt::Beginning).await.expect("registered");
    let (_, here) = world.register("here", StartAt::Beginning).await.expect("registered");
    world.acknowledge("gone", gone, 5).await.expect("acknowledged");
    setup.clock.advance(60_000);
    world.acknowledge("here", here, 6).await.expect("acknowledged");
    assert_eq!(taken(&expire(&world).await), (1, 1, at(6)));
    (world, gone, here)
}

pub(super) async fn a_consumer_below_what_expired_stands_there_until_it_skips(setup: Setup) {
    let (world, _, here) = let_go(&setup).await;
    for start in [StartAt::Beginning, StartAt::Earliest, StartAt::Now] {
        let (acked, _) = world.register("gone", start).await.expect("registered");
        assert_eq!(acked, at(5), "{start:?} passed over what expired");
    }
    // Where it stands nothing is left: the first row begins later, at what is called the earliest.
    assert_eq!(world.spans(5).await, [(6, 9, 9)]);
    let head = setup.other.head(world.sink).await.expect("a head");
    assert!(at(5) < head.expired && head.released == at(5));
    // It is present again, and holds what is left.
    world.acknowledge("here", here, 9).await.expect("acknowledged");
    assert_eq!(taken(&expire(&world).await), (0, 0, at(6)));
    let (acked, session) = world.register("gone", StartAt::SkipExpired).await.expect("registered");
    assert_eq!(acked, at(6));
    assert_eq!(world.acknowledge("gone", session, 9).await.expect("acknowledged"), (1, 1));
    // Nothing to skip: it goes on where it acknowledged. New ones start where the chain begins.
    let (acked, _) = world.register("gone", StartAt::SkipExpired).await.expect("registered");
    assert_eq!(acked, at(9));
    let (acked, _) = world.register("new", StartAt::SkipExpired).await.expect("registered");
    assert_eq!(acked, at(9));
    match world.register("late", StartAt::Beginning).await {
        Err(CatalogError::InvalidUsage(Misuse::BeginningGone { earliest, .. })) => {
            assert_eq!(earliest, at(9))
        }
        other => panic!("not refused: {other:?}"),
    }
}

pub(super) async fn an_acknowledgement_below_what_expired_is_taken(setup: Setup) {
    let (world, gone, _) = let_go(&setup).await;
    // It dealt with [5, 6) while that was taken: there is no gap for it.
    assert_eq!(world.acknowledge("gone", gone, 6).await.expect("acknowledged"), (0, 0));
    let head = setup.other.head(world.sink).await.expect("a head");
    assert_eq!((head.released, head.expired), (at(6), at(6)));
    for upper in [5, 7, 8] {
        let refused = world.acknowledge("gone", gone, upper).await;
        let why = matches!(refused, Err(CatalogError::InvalidUsage(Misuse::NotABatchUpper { .. })));
        assert!(why, "{upper} was not refused: {refused:?}");
    }
}

pub(super) async fn a_renewed_session_is_present_and_a_fenced_one_stays_fenced(setup: Setup) {
    let (world, a) = world(&setup).await;
    three_batches(&world, a).await;
    let name: ConsumerName = "c".parse().expect("a name");
    let (_, old) = world.register("c", StartAt::Beginning).await.expect("registered");
    let registered = seen(&world, "c").await;
    assert_eq!(registered, setup.clock.now().0);
    setup.clock.advance(10);
    setup.catalog.renew_session(world.sink, &name, old).await.expect("heard");
    assert_eq!(seen(&world, "c").await, registered + 10);
    let revision = setup.catalog.revision().await.expect("a revision");
    setup.catalog.renew_session(world.sink, &name, old).await.expect("heard");
    assert_eq!(setup.catalog.revision().await.expect("a revision"), revision, "heard at that moment already");
    setup.clock.advance(10);
    world.acknowledge("c", old, 5).await.expect("acknowledged");
    assert_eq!(seen(&world, "c").await, registered + 20);
    setup.clock.advance(10);
    let (_, new) = world.through_the_other().register("c", StartAt::Beginning).await.expect("registered");
    assert_eq!(seen(&world, "c").await, registered + 30);
    setup.clock.advance(10);
    let refused = setup.catalog.renew_session(world.sink, &name, old).await;
    assert!(matches!(refused, Err(CatalogError::SessionFenced { .. })), "{refused:?}");
    assert_eq!(seen(&world, "c").await, registered + 30, "a fenced session is not heard");
    // Nor does being absent for a while give the name to the older session.
    setup.clock.advance(60_000);
    assert_eq!(names(&expire(&world).await), ["c"]);
    let refused = setup.catalog.renew_session(world.sink, &name, old).await;
    assert!(matches!(refused, Err(CatalogError::SessionFenced { .. })), "{refused:?}");
    setup.other.renew_session(world.sink, &name, new).await.expect("heard");
    assert_eq!(names(&expire(&world).await), [""; 0]);
    assert!(setup.other.unregister_consumer(world.sink, &name).await.expect("forgotten"));
    let refused = setup.catalog.renew_session(world.sink, &name, new).await;
    assert!(matches!(refused, Err(CatalogError::InvalidUsage(Misuse::NoSuchConsumer { .. }))), "{refused:?}");
    setup.catalog.drop_sink(world.sink, true).await.expect("dropped");
    let refused = setup.catalog.renew_session(world.sink, &name, new).await;
    assert!(matches!(refused, Err(CatalogError::SinkDropped { .. })), "{refused:?}");
    for commit in [false, true] {
        let refused = setup.catalog.expire(world.sink, commit).await;
        assert!(matches!(refused, Err(CatalogError::SinkDropped { .. })), "{refused:?}");
    }
}

pub(super) async fn a_dry_expiry_tells_and_changes_nothing(setup: Setup) {
    let (world, a) = world(&setup).await;
    three_batches(&world, a).await;
    let b = world.open("b").await.id;
    world.extend(a, span(9, 11)).await;
    world.register("c", StartAt::Beginning).await.expect("registered");
    for (moved, batches) in [(0, 0), (60_000, 0), (20_000, 1), (10_000, 1), (10_000, 1)] {
        setup.clock.advance(moved);
        let (revision, head) = (setup.catalog.revision().await, setup.catalog.head(world.sink).await);
        let would = setup.other.expire(world.sink, false).await.expect("looked");
        assert_eq!(setup.catalog.revision().await.expect("a revision"), revision.expect("a revision"));
        assert_eq!(setup.catalog.head(world.sink).await.expect("a head"), head.expect("a head"));
        let done = expire(&world).await;
        assert_eq!(would, done);
        assert_eq!(done.batches, batches, "after {moved} ms more");
        assert_eq!(done.closed, if moved == 60_000 { vec![b] } else { vec![] });
    }
    assert_eq!((world.spans(0).await, world.queued().await), (vec![], 3));
    assert_eq!(setup.catalog.head(world.sink).await.expect("a head").expired, at(11), "with its extent");
}

pub(super) async fn expiring_again_changes_nothing(setup: Setup) {
    let (world, a) = world(&setup).await;
    three_batches(&world, a).await;
    let b = world.open("b").await.id;
    setup.clock.advance(80_000);
    let first = expire(&world).await;
    assert_eq!((first.closed.as_slice(), taken(&first)), ([b].as_slice(), (1, 1, at(5))));
    let (revision, head) = (setup.catalog.revision().await, setup.catalog.head(world.sink).await);
    let again = setup.other.expire(world.sink, true).await.expect("expired");
    assert_eq!(again, Expired { closed: vec![], absent: vec![], batches: 0, keys: 0, earliest: at(5) });
    assert_eq!(setup.catalog.revision().await.expect("a revision"), revision.expect("a revision"));
    assert_eq!(setup.catalog.head(world.sink).await.expect("a head"), head.expect("a head"));
}

pub(super) async fn an_expiry_fences_what_was_decided_before(setup: Setup) {
    let (world, a) = world(&setup).await;
    three_batches(&world, a).await;
    let b = world.open("b").await.id;
    // Batches that go fence a commit that was decided before; and so does a lease that ran out.
    for (moved, closes) in [(9_999, false), (1, true), (70_000, false)] {
        let decided = world.accepting(a, span(9, 12), &[4]).await;
        let of_b = world.accepting(b, span(9, 12), &[5]).await;
        setup.clock.advance(moved);
        let expired = setup.other.expire(world.sink, true).await.expect("expired");
        assert_eq!(!expired.closed.is_empty(), closes);
        let head = setup.other.head(world.sink).await.expect("a head");
        if !closes && expired.batches == 0 {
            assert_eq!(head.fence, decided.expected_fence, "nothing changed, and nobody is fenced");
            continue;
        }
        assert_eq!(head.fence, decided.expected_fence + 1);
        assert_eq!(setup.catalog.commit(decided).await.expect("answered"), Cas::Conflict(head.clone()));
        if closes {
            let again = CommitRequest { expected_fence: head.fence, ..of_b };
            let refused = setup.catalog.commit(again).await;
            assert!(
                matches!(refused, Err(CatalogError::IncarnationClosed { incarnation, .. }) if incarnation == b)
            );
        }
    }
    assert_eq!(setup.catalog.head(world.sink).await.expect("a head").expired, at(5));
    world.accept(a, span(9, 12), &[4]).await;
}

pub(super) async fn a_clock_that_goes_back_lets_go_of_nothing(setup: Setup) {
    let (world, a) = world(&setup).await;
    three_batches(&world, a).await;
    let (_, session) = world.register("c", StartAt::Beginning).await.expect("registered");
    let name: ConsumerName = "c".parse().expect("a name");
    let before = seen(&world, "c").await;
    setup.clock.go_back(500_000);
    assert_eq!(taken(&expire(&world).await), (0, 0, at(0)));
    setup.catalog.renew_session(world.sink, &name, session).await.expect("heard");
    world.acknowledge("c", session, 5).await.expect("acknowledged");
    world.register("c", StartAt::Beginning).await.map(drop).expect("registered");
    assert_eq!(seen(&world, "c").await, before, "it was heard then, whatever the clock says now");
    setup.clock.go_back(setup.clock.now().0);
    assert_eq!(taken(&expire(&world).await), (0, 0, at(5)), "at the beginning of time");
    setup.clock.advance(before + 59_999);
    assert_eq!(names(&expire(&world).await), [""; 0], "and on again");
    assert_eq!(world.spans(0).await.len(), 2);
}

pub(super) async fn the_chain_goes_on_behind_an_end_that_expired(setup: Setup) {
    let (world, a) = world(&setup).await;
    world.accept(a, span(0, 5), &[1]).await;
    world.extend(a, span(5, 8)).await;
    setup.clock.advance(100_000);
    assert_eq!(taken(&expire(&world).await), (1, 1, at(8)));
    assert_eq!(world.spans(0).await, []);
    world.extend(a, span(8, 10)).await;
    world.accept(a, span(10, 12), &[2]).await;
    assert_eq!(world.spans(0).await, [(8, 10, 10), (10, 12, 12)]);
    let (acked, session) = world.register("c", StartAt::Earliest).await.expect("registered");
    assert_eq!(acked, at(8));
    world.acknowledge("c", session, 9).await.expect("acknowledged");
    assert_eq!(world.acknowledge("c", session, 12).await.expect("acknowledged"), (1, 1));
    let head = setup.other.head(world.sink).await.expect("a head");
    assert_eq!((head.released, head.expired), (at(12), at(8)));
    // Empty stretches expire as batches do.
    assert!(setup.other.unregister_consumer(world.sink, &"c".parse().expect("a name")).await.expect("gone"));
    world.extend(a, span(12, 20)).await;
    setup.clock.advance(100_000);
    assert_eq!(taken(&expire(&world).await), (1, 0, at(20)));
    // A released batch waits for its keys, an expired one does too.
    let due: Vec<_> = setup.catalog.deletions_due(9).await.expect("due").iter().map(|row| row.key).collect();
    assert_eq!(due.len(), 2);
    setup.catalog.dequeue(&due).await.expect("dequeued");
    assert_eq!(world.queued().await, 0);
}

pub(super) async fn a_duration_of_zero_is_refused(setup: Setup) {
    let spec = declaration(&setup, "orders");
    for (spec, what) in [
        (NewSink { retention_ms: Some(0), ..spec.clone() }, "retention"),
        (NewSink { absent_hold_ms: Some(0), ..spec.clone() }, "absent hold"),
    ] {
        match setup.catalog.declare_sink(spec).await {
            Err(CatalogError::InvalidUsage(Misuse::Inconsistent { what: said })) => {
                assert!(said.contains(what) && said.contains("zero"), "{said}");
            }
            other => panic!("not refused: {other:?}"),
        }
    }
    assert!(setup.catalog.sinks(true).await.expect("listed").is_empty());
}

/// What a present consumer has not acknowledged is all there, from where it stands on.
async fn all_there(world: &World, from: Frontier) {
    let chain = world.chain(from.as_u64()).await;
    let start = chain.first().map_or(world.upper().await, |batch| batch.lower.max(from));
    assert_eq!(start, from, "{chain:?}");
}

pub(super) async fn an_acknowledgement_and_an_expiry_never_lose_a_batch(setup: Setup) {
    let (world, a) = world(&setup).await;
    let (_, slow) = world.register("slow", StartAt::Beginning).await.expect("registered");
    let (_, fast) = world.register("fast", StartAt::Beginning).await.expect("registered");
    for round in 0..6u64 {
        world.accept(a, span(round * 2, round * 2 + 2), &[round]).await;
        let upper = round * 2 + 2;
        if round % 2 == 0 {
            world.acknowledge("slow", slow, upper).await.expect("acknowledged");
            setup.clock.advance(60_000);
        }
        let (ours, sink, theirs) = (world.clone(), world.sink, Arc::clone(&setup.other));
        let (acknowledged, expired) =
            tokio::join!(async move { ours.acknowledge("fast", fast, upper).await }, async move {
                theirs.expire(sink, true).await
            },);
        acknowledged.expect("acknowledged");
        expired.expect("expired");
        // Whichever was first: fast is present from its acknowledgement on, and holds what comes.
        all_there(&world, at(upper)).await;
        expire(&world).await;
        let states = world.key(a, span(round * 2, upper), round);
        let state = &setup.catalog.key_states(sink, &[states]).await.expect("states")[0];
        assert_ne!(state.referenced_by.is_some(), state.queued.is_some(), "{state:?}");
    }
}

pub(super) async fn a_registration_and_an_expiry_never_lose_a_batch(setup: Setup) {
    let (world, a) = world(&setup).await;
    for round in 0..6u64 {
        world.accept(a, span(round * 2, round * 2 + 2), &[round]).await;
        setup.clock.advance(100_000);
        let (ours, sink, theirs) = (world.clone(), world.sink, Arc::clone(&setup.other));
        let (registered, expired) =
            tokio::join!(async move { ours.register("late", StartAt::SkipExpired).await }, async move {
                theirs.expire(sink, true).await
            },);
        let (from, _) = registered.expect("registered");
        expired.expect("expired");
        let head = setup.catalog.head(sink).await.expect("a head");
        assert!(from >= head.expired, "{from} expired under it, although it was there: {head:?}");
        all_there(&world, from).await;
    }
}

pub(super) async fn a_session_that_is_heard_at_the_same_moment_loses_nothing_or_reads_that_it_expired(
    setup: Setup,
) {
    let (world, a) = world(&setup).await;
    let name: ConsumerName = "c".parse().expect("a name");
    let (mut from, mut session) = world.register("c", StartAt::Beginning).await.expect("registered");
    for round in 0..6u64 {
        world.accept(a, span(round * 2, round * 2 + 2), &[round]).await;
        setup.clock.advance(100_000);
        let (ours, sink, theirs) = (Arc::clone(&setup.catalog), world.sink, Arc::clone(&setup.other));
        let (heard, expired) =
            tokio::join!(ours.renew_session(sink, &name, session), theirs.expire(sink, true));
        heard.expect("heard");
        let expired = expired.expect("expired");
        let head = setup.catalog.head(sink).await.expect("a head");
        assert_eq!(from < head.expired, expired.batches > 0, "what was taken is said: {head:?}");
        all_there(&world, from.max(head.expired)).await;
        (from, session) = world.register("c", StartAt::SkipExpired).await.expect("registered");
    }
}
