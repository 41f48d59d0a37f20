//! The deletion queue never holds a key that a row references, and forgets none.

use std::sync::Arc;

use stash_types::{Frontier, PartKey};

use super::Setup;
use super::world::{World, at, declaration, span};
use crate::rows::{DeletionReason, HistoryFilter, IncarnationState, Resolution, StartAt};
use crate::{CatalogError, Misuse};

async fn enqueue(world: &World, keys: &[PartKey], reason: DeletionReason) -> u64 {
    world.catalog().enqueue(world.sink, keys, reason).await.expect("enqueued")
}

pub(super) async fn referenced_and_queued_keys_are_passed_over(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    world.accept(a, span(0, 5), &[1]).await;
    let keys = [1, 2, 3, 2].map(|n| world.key(a, span(0, 5), n));
    assert_eq!(enqueue(&world, &keys, DeletionReason::Surrendered).await, 2);
    assert_eq!(enqueue(&world.through_the_other(), &keys, DeletionReason::Swept).await, 0);
    assert_eq!(enqueue(&world, &[], DeletionReason::Surrendered).await, 0);
    assert_eq!(world.queued().await, 2);
    let due = setup.other.deletions_due(9).await.expect("due");
    assert!(due.iter().all(|row| row.reason == DeletionReason::Surrendered && row.key != keys[0]));
}

pub(super) async fn the_sweep_queues_only_what_its_writer_cannot_link(setup: Setup) {
    let world = World::new(&setup).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    world.accept(a, span(0, 5), &[1]).await;
    let unknown = world.opening("c").await.id;
    let resolved = world.key(a, span(0, 5), 2);
    let on_its_way = world.key(a, span(5, 9), 3);
    let of_b = world.key(b, span(0, 5), 1);
    let unregistered = world.key(unknown, span(0, 5), 1);
    let keys = [resolved, on_its_way, of_b, unregistered];
    assert_eq!(enqueue(&world, &keys, DeletionReason::Swept).await, 1);
    assert_eq!(setup.other.deletions_due(9).await.expect("due")[0].key, resolved);
    setup.other.close_incarnation(world.sink, b, "gone").await.expect("closed");
    assert_eq!(enqueue(&world, &keys, DeletionReason::Swept).await, 1);
    assert_eq!(world.queued().await, 2);
}

pub(super) async fn keys_of_another_shard_are_refused(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let other = setup.catalog.declare_sink(declaration(&setup, "other")).await.expect("declared").sink;
    let foreign = world.name(a, span(0, 5), 1).under(other.shard);
    let answers = [
        setup.catalog.enqueue(world.sink, &[foreign], DeletionReason::Surrendered).await.map(drop),
        setup.catalog.key_states(world.sink, &[foreign]).await.map(drop),
    ];
    for answer in answers {
        assert!(matches!(answer, Err(CatalogError::InvalidUsage(Misuse::Inconsistent { .. }))), "{answer:?}");
    }
}

pub(super) async fn a_deferred_key_waits_longer_each_time(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let (first, second) = (world.key(a, span(0, 5), 1), world.key(a, span(0, 5), 2));
    enqueue(&world, &[first], DeletionReason::Surrendered).await;
    setup.clock.advance(10);
    enqueue(&world, &[second], DeletionReason::Surrendered).await;
    let due = |limit| {
        let catalog = Arc::clone(&setup.other);
        async move {
            let rows = catalog.deletions_due(limit).await.expect("due");
            rows.iter().map(|row| (row.key, row.attempts)).collect::<Vec<_>>()
        }
    };
    assert_eq!(due(9).await, [(first, 0), (second, 0)], "the oldest first");
    assert_eq!(due(1).await, [(first, 0)]);
    for (attempt, wait) in
        (1..).zip([1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000])
    {
        setup.catalog.defer(&[first]).await.expect("deferred");
        setup.clock.advance(wait - 1);
        assert_eq!(due(9).await, [(second, 0)]);
        setup.clock.advance(1);
        assert_eq!(due(9).await, [(second, 0), (first, attempt)]);
    }
    setup.catalog.dequeue(&[first, second]).await.expect("dequeued");
    assert_eq!((due(9).await, world.queued().await), (vec![], 0));
    setup.catalog.dequeue(&[first]).await.expect("gone before");
    setup.catalog.defer(&[first]).await.expect("gone before");
}

pub(super) async fn rows_of_released_batches_go_with_their_keys(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    world.accept(a, span(0, 5), &[1, 2]).await;
    let (_, session) = world.register("c", StartAt::Beginning).await.expect("registered");
    assert_eq!(world.acknowledge("c", session, 5).await.expect("acknowledged"), (1, 2));
    let keys = [1, 2].map(|n| world.key(a, span(0, 5), n));
    setup.other.dequeue(&keys[..1]).await.expect("dequeued");
    setup.other.dequeue(&keys[1..]).await.expect("dequeued");
    assert_eq!(setup.catalog.deletions_queued(None).await.expect("a count"), 0);
    assert_eq!(world.chain(0).await, []);
    let states = setup.catalog.key_states(world.sink, &keys).await.expect("states");
    assert!(states.iter().all(|state| state.referenced_by.is_none() && state.queued.is_none()));
    // The chain goes on from there.
    assert_eq!(world.extend(a, span(5, 7)).await.seq, Some(2));
    assert_eq!(world.spans(5).await, [(5, 7, 7)]);
}

pub(super) async fn each_key_is_judged_in_the_order_asked(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    world.accept(a, span(0, 5), &[1]).await;
    let stranger = world.opening("b").await.id;
    let keys = [world.key(a, span(5, 9), 3), world.key(stranger, span(0, 5), 1), world.key(a, span(0, 5), 1)];
    enqueue(&world, &keys[..1], DeletionReason::Surrendered).await;
    let states = setup.other.key_states(world.sink, &keys).await.expect("states");
    assert_eq!(states.iter().map(|state| state.key).collect::<Vec<_>>(), keys);
    let known = Some((IncarnationState::Open, at(5)));
    assert_eq!((states[0].referenced_by, states[0].queued), (None, Some(DeletionReason::Surrendered)));
    assert_eq!(states[0].incarnation, known);
    assert_eq!((states[1].referenced_by, states[1].queued, &states[1].incarnation), (None, None, &None));
    assert_eq!((states[2].referenced_by, states[2].queued), (Some(1), None));
    assert_eq!(setup.other.key_states(world.sink, &[]).await.expect("states"), []);
}

pub(super) async fn what_happened_is_recorded_and_found_by_key(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    setup.clock.advance(5);
    let unlink = vec![world.name(a, span(0, 5), 9)];
    let batch = world.batch(a, span(0, 5), &[1]).await;
    world.done(world.request(a, span(0, 5), Resolution::Accept { batch, unlink }).await).await;
    let (_, session) = world.register("c", StartAt::Beginning).await.expect("registered");
    world.acknowledge("c", session, 5).await.expect("acknowledged");
    let key = world.key(a, span(0, 5), 1);
    setup.catalog.dequeue(&[key]).await.expect("dequeued");
    let mut last =
        world.request(a, span(5, 9), Resolution::Extend { upper: Frontier::at(9), unlink: vec![] }).await;
    last.outcome = crate::OutcomeKind::Accepted;
    world.done(last).await;
    world.done(world.poisoning(a, span(9, 11)).await).await;
    setup.catalog.close_incarnation(world.sink, a, "end").await.expect("closed");
    setup.catalog.drop_sink(world.sink, true).await.expect("dropped");
    let events = |filter: HistoryFilter| {
        let catalog = Arc::clone(&setup.other);
        async move {
            let rows = catalog.history(filter).await.expect("history");
            rows.into_iter().map(|row| row.event).collect::<Vec<_>>()
        }
    };
    let all = HistoryFilter { sink: Some(world.sink), ..HistoryFilter::default() };
    assert_eq!(
        events(all.clone()).await,
        [
            "declared",
            "opened",
            "queued",
            "accepted",
            "registered",
            "queued",
            "released",
            "deleted",
            "accepted",
            "dropped",
            "poisoned",
            "closed",
            "sink-dropped"
        ]
    );
    assert_eq!(events(HistoryFilter { limit: 2, ..all }).await, ["closed", "sink-dropped"]);
    let of_key = HistoryFilter { key: Some(key), ..HistoryFilter::default() };
    assert_eq!(events(of_key).await, ["queued", "deleted"]);
    let of_a = HistoryFilter { incarnation: Some(a), limit: 1, ..HistoryFilter::default() };
    assert_eq!(events(of_a).await, ["closed"]);
    let rows = setup.other.history(HistoryFilter::default()).await.expect("history");
    assert!(rows[0].at < rows[3].at && rows[3].detail.contains("[0, 5)"), "{:?}", rows[3]);
}
