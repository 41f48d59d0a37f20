//! Consumers hold what they have not acknowledged.

use stash_types::{ConsumerName, SessionId};

use super::Setup;
use super::world::{World, at, span};
use crate::rows::{DeletionReason, Resolution, StartAt};
use crate::{CatalogError, Misuse};

/// A world with batches `[0, 5)`, `[5, 6)`, `[6, 9)` of one part each.
async fn three_batches(setup: &Setup) -> World {
    let world = World::new(setup).await;
    let a = world.open("a").await.id;
    for (n, (lower, upper)) in (1..).zip([(0, 5), (5, 6), (6, 9)]) {
        world.accept(a, span(lower, upper), &[n]).await;
    }
    world
}

async fn acked(world: &World, consumer: &str) -> Option<stash_types::Frontier> {
    let rows = world.catalog().consumers(world.sink).await.expect("listed");
    rows.iter().find(|row| row.name.as_str() == consumer).map(|row| row.acked)
}

pub(super) async fn a_consumer_starts_where_it_asks(setup: Setup) {
    let world = three_batches(&setup).await;
    let before = setup.catalog.head(world.sink).await.expect("a head");
    assert_eq!(world.register("first", StartAt::Beginning).await.expect("registered").0, at(0));
    assert_eq!(world.register("now", StartAt::Now).await.expect("registered").0, at(9));
    assert_eq!(world.register("early", StartAt::Earliest).await.expect("registered").0, at(0));
    assert_eq!(setup.other.head(world.sink).await.expect("a head").fence, before.fence + 3);
    let names: Vec<_> = setup.other.consumers(world.sink).await.expect("listed");
    let names: Vec<_> = names.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["early", "first", "now"]);
}

pub(super) async fn a_newer_session_fences_the_older(setup: Setup) {
    let world = three_batches(&setup).await;
    let (_, old) = world.register("c", StartAt::Beginning).await.expect("registered");
    world.acknowledge("c", old, 5).await.expect("acknowledged");
    let (acked, new) = world.through_the_other().register("c", StartAt::Now).await.expect("registered again");
    assert_eq!(acked, at(5), "a known consumer goes on where it acknowledged");
    let refused = world.acknowledge("c", old, 6).await;
    assert!(matches!(refused, Err(CatalogError::SessionFenced { .. })), "{refused:?}");
    world.acknowledge("c", new, 6).await.expect("acknowledged");
}

pub(super) async fn only_batch_uppers_are_acknowledged(setup: Setup) {
    let world = three_batches(&setup).await;
    let (_, session) = world.register("c", StartAt::Beginning).await.expect("registered");
    world.acknowledge("c", session, 5).await.expect("acknowledged");
    for upper in [0, 4, 7, 8, 10, u64::MAX] {
        match world.acknowledge("c", session, upper).await {
            Err(CatalogError::InvalidUsage(Misuse::NotABatchUpper { acked, chain_upper, .. })) => {
                assert_eq!((acked, chain_upper), (at(5), at(9)));
            }
            other => panic!("{upper} was not refused: {other:?}"),
        }
    }
    assert_eq!(acked(&world, "c").await, Some(at(5)));
    world.acknowledge("c", session, 9).await.expect("acknowledged past a batch at once");
}

pub(super) async fn within_a_batch_nothing_is_acknowledged_wherever_its_updates_lie(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let (_, session) = world.register("c", StartAt::Beginning).await.expect("registered");
    for (lower, has_parts) in [(0, true), (5, false)] {
        let mut request = world.accepting(a, span(lower, lower + 5), &[lower]).await;
        let Resolution::Accept { batch, .. } = &mut request.resolution else { unreachable!("it accepts") };
        if has_parts {
            batch.inline.clear();
        } else {
            batch.parts.clear();
        }
        world.done(request).await;
        let within = world.acknowledge("c", session, lower + 3).await;
        let refused = matches!(within, Err(CatalogError::InvalidUsage(Misuse::NotABatchUpper { .. })));
        assert!(refused, "has parts: {has_parts}: {within:?}");
    }
    world.acknowledge("c", session, 10).await.expect("acknowledged");
}

pub(super) async fn anywhere_in_a_proven_empty_stretch_is_acknowledged(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let (_, session) = world.register("c", StartAt::Beginning).await.expect("registered");
    let (_, holds) = world.register("holds", StartAt::Beginning).await.expect("registered");
    world.extend(a, span(0, 4)).await;
    world.accept(a, span(4, 6), &[1]).await;
    world.extend(a, span(6, 10)).await;
    world.accept(a, span(10, 12), &[2]).await;
    for upper in [2, 4, 6, 8, 10, 12] {
        world.acknowledge("c", session, upper).await.expect("acknowledged");
    }
    // The chain keeps beginning where it was released up to, inside an empty row too.
    for upper in [2, 4, 6, 8, 10, 12] {
        world.acknowledge("holds", holds, upper).await.expect("acknowledged");
        let first = world.spans(0).await.first().map_or(12, |(lower, _, _)| *lower);
        assert_eq!(first, upper);
    }
}

pub(super) async fn the_slowest_consumer_holds(setup: Setup) {
    let world = three_batches(&setup).await;
    let (_, fast) = world.register("fast", StartAt::Beginning).await.expect("registered");
    let (_, slow) = world.register("slow", StartAt::Beginning).await.expect("registered");
    let before = setup.catalog.head(world.sink).await.expect("a head");
    assert_eq!(world.acknowledge("fast", fast, 9).await.expect("acknowledged"), (0, 0));
    let held = setup.catalog.head(world.sink).await.expect("a head");
    assert_eq!((held.released, held.fence), (at(0), before.fence), "nothing released, nobody fenced");
    assert_eq!(world.acknowledge("slow", slow, 6).await.expect("acknowledged"), (2, 2));
    let after = setup.other.head(world.sink).await.expect("a head");
    assert_eq!((after.released, after.fence), (at(6), before.fence + 1));
    assert_eq!(world.spans(0).await, [(6, 9, 9)]);
    let due = setup.other.deletions_due(9).await.expect("due");
    assert_eq!(due.len(), 2);
    assert!(due.iter().all(|row| row.reason == DeletionReason::Released));
}

pub(super) async fn a_batch_whose_extent_grew_leaves_an_empty_rest(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let (_, fast) = world.register("fast", StartAt::Beginning).await.expect("registered");
    let (_, slow) = world.register("slow", StartAt::Beginning).await.expect("registered");
    world.accept(a, span(0, 5), &[1]).await;
    world.extend(a, span(5, 8)).await;
    world.acknowledge("fast", fast, 8).await.expect("acknowledged");
    assert_eq!(world.acknowledge("slow", slow, 5).await.expect("acknowledged"), (1, 1));
    assert_eq!(world.spans(5).await, [(5, 8, 8)], "what is not acknowledged is still there, and empty");
    let rest = &world.chain(5).await[0];
    assert_eq!((rest.facts, rest.parts.len(), rest.inline.len()), (Default::default(), 0, 0));
    world.extend(a, span(8, 12)).await;
    assert_eq!(world.spans(5).await, [(5, 8, 12)]);
    // It was told 8 while the rest still ended there.
    assert_eq!(world.acknowledge("slow", slow, 8).await.expect("acknowledged"), (0, 0));
    assert_eq!(world.spans(8).await, [(8, 12, 12)]);
    world.accept(a, span(12, 13), &[2]).await;
    world.acknowledge("slow", slow, 12).await.expect("acknowledged");
    world.acknowledge("fast", fast, 12).await.expect("acknowledged");
    assert_eq!(world.spans(0).await, [(12, 13, 13)]);
    assert_eq!(setup.other.head(world.sink).await.expect("a head").released, at(12));
}

pub(super) async fn an_acknowledgement_again_changes_nothing(setup: Setup) {
    let world = three_batches(&setup).await;
    let (_, session) = world.register("c", StartAt::Beginning).await.expect("registered");
    assert_eq!(world.acknowledge("c", session, 6).await.expect("acknowledged"), (2, 2));
    let revision = setup.catalog.revision().await.expect("a revision");
    assert_eq!(world.acknowledge("c", session, 6).await.expect("acknowledged"), (0, 0));
    assert_eq!(setup.catalog.revision().await.expect("a revision"), revision);
}

pub(super) async fn without_consumers_nothing_is_released(setup: Setup) {
    let world = three_batches(&setup).await;
    let (_, session) = world.register("c", StartAt::Beginning).await.expect("registered");
    world.acknowledge("c", session, 5).await.expect("acknowledged");
    let name: ConsumerName = "c".parse().expect("a name");
    assert!(setup.other.unregister_consumer(world.sink, &name).await.expect("forgotten"));
    assert!(!setup.other.unregister_consumer(world.sink, &name).await.expect("forgotten before"));
    assert_eq!(world.spans(0).await, [(5, 6, 6), (6, 9, 9)]);
    assert_eq!(setup.catalog.head(world.sink).await.expect("a head").released, at(5));
    assert_eq!(world.queued().await, 1);
}

pub(super) async fn a_consumer_that_leaves_lets_go_of_what_only_it_held(setup: Setup) {
    let world = three_batches(&setup).await;
    let (_, fast) = world.register("fast", StartAt::Beginning).await.expect("registered");
    world.register("gone", StartAt::Beginning).await.expect("registered");
    world.acknowledge("fast", fast, 6).await.expect("acknowledged");
    assert_eq!(world.queued().await, 0);
    let gone: ConsumerName = "gone".parse().expect("a name");
    assert!(setup.other.unregister_consumer(world.sink, &gone).await.expect("forgotten"));
    assert_eq!(world.queued().await, 2);
    assert_eq!(world.spans(0).await, [(6, 9, 9)]);
}

pub(super) async fn the_beginning_is_refused_once_it_is_gone(setup: Setup) {
    let world = three_batches(&setup).await;
    let (_, session) = world.register("c", StartAt::Beginning).await.expect("registered");
    world.acknowledge("c", session, 5).await.expect("acknowledged");
    match world.register("late", StartAt::Beginning).await {
        Err(CatalogError::InvalidUsage(Misuse::BeginningGone { earliest, .. })) => {
            assert_eq!(earliest, at(5))
        }
        other => panic!("not refused: {other:?}"),
    }
    let (from, late) = world.register("late", StartAt::Earliest).await.expect("registered");
    assert_eq!(from, at(5));
    assert_eq!(world.spans(5).await.first(), Some(&(5, 6, 6)));
    world.acknowledge("c", session, 9).await.expect("acknowledged");
    assert_eq!(world.spans(5).await.first(), Some(&(5, 6, 6)), "the late one holds it");
    assert_eq!(world.acknowledge("late", late, 9).await.expect("acknowledged"), (2, 2));
}

pub(super) async fn an_unknown_consumer_is_refused(setup: Setup) {
    let world = three_batches(&setup).await;
    let session = SessionId::from_uuid(uuid::Uuid::from_u128(3));
    let refused = world.acknowledge("nobody", session, 5).await;
    assert!(matches!(refused, Err(CatalogError::InvalidUsage(Misuse::NoSuchConsumer { .. }))), "{refused:?}");
}
