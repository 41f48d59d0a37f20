//! Incarnations are registered before their first byte, and fenced by being closed.

use super::Setup;
use super::world::{World, at, span};
use crate::rows::{IncarnationState, OpenIncarnation, Opened};
use crate::{Cas, CatalogError, Misuse};

async fn opened(world: &World, request: OpenIncarnation) -> Opened {
    match world.catalog().open_incarnation(request).await.expect("answered") {
        Cas::Done(opened) => opened,
        Cas::Conflict(head) => panic!("a conflict with {head:?}"),
    }
}

pub(super) async fn an_opening_registers_and_fences(setup: Setup) {
    let world = World::new(&setup).await;
    let before = setup.catalog.head(world.sink).await.expect("a head");
    let request = world.opening("a").await;
    let opened = opened(&world, request.clone()).await;
    assert!(opened.created && opened.closed.is_empty());
    assert_eq!((opened.incarnation.id, opened.incarnation.as_of), (request.id, 0));
    assert_eq!(opened.incarnation.resolved, at(0));
    assert_eq!(opened.incarnation.lease_until, opened.incarnation.opened.plus_millis(10_000));
    let view = setup.other.view(world.sink, request.id).await.expect("a view");
    assert_eq!(view.incarnation, opened.incarnation);
    assert_eq!(view.head.fence, before.fence + 1);
    assert_eq!(setup.other.incarnations(world.sink, true).await.expect("listed"), [opened.incarnation]);
}

pub(super) async fn the_processes_of_a_launch_share_one_incarnation(setup: Setup) {
    let world = World::new(&setup).await;
    let first = world.opening("a").await;
    let second = OpenIncarnation { id: world.opening("a").await.id, ..first.clone() };
    let created = opened(&world, first).await;
    world.accept(created.incarnation.id, span(0, 5), &[1]).await;
    let head = setup.catalog.head(world.sink).await.expect("a head");
    // The head moved long ago; the launch reads its grant all the same.
    let read = opened(&world.through_the_other(), second.clone()).await;
    assert!(!read.created && read.closed.is_empty());
    assert_eq!(read.incarnation.id, created.incarnation.id);
    assert_eq!(setup.catalog.head(world.sink).await.expect("a head"), head, "reading a grant fences nobody");
    let launched = setup.other.launched(world.sink, second.launch).await.expect("answered");
    assert_eq!(launched.map(|row| row.id), Some(created.incarnation.id));
    let none = setup.other.launched(world.sink, world.opening("a").await.launch).await.expect("answered");
    assert_eq!(none, None, "a launch that opened nothing");
    let other_replica = OpenIncarnation { replica: "b".parse().expect("a name"), ..second };
    let refused = setup.catalog.open_incarnation(other_replica).await;
    assert!(matches!(refused, Err(CatalogError::InvalidUsage(Misuse::Inconsistent { .. }))), "{refused:?}");
}

pub(super) async fn a_launch_whose_incarnation_is_closed_is_used_up(setup: Setup) {
    let world = World::new(&setup).await;
    let request = world.opening("a").await;
    let id = opened(&world, request.clone()).await.incarnation.id;
    assert!(setup.catalog.close_incarnation(world.sink, id, "test").await.expect("closed"));
    let launch = setup.catalog.launched(world.sink, request.launch).await.expect("answered").expect("known");
    assert_eq!(launch.state, IncarnationState::Closed { reason: "test".to_owned() });
    match setup.catalog.open_incarnation(request).await {
        Err(CatalogError::InvalidUsage(Misuse::LaunchUsed { incarnation, .. })) => {
            assert_eq!(incarnation, id)
        }
        other => panic!("not refused: {other:?}"),
    }
}

pub(super) async fn an_opening_closes_the_older_ones_of_its_replica_only(setup: Setup) {
    let world = World::new(&setup).await;
    let (old, other) = (world.open("a").await, world.open("b").await);
    let request = world.opening("a").await;
    let opened = opened(&world, request).await;
    assert_eq!(opened.closed, [old.id]);
    let states: Vec<_> = setup.catalog.incarnations(world.sink, true).await.expect("listed");
    let ids = |rows: &[crate::IncarnationRow]| rows.iter().map(|row| row.id).collect::<Vec<_>>();
    assert_eq!(ids(&states), [old.id, other.id, opened.incarnation.id], "oldest first");
    let open = setup.other.incarnations(world.sink, false).await.expect("listed");
    assert_eq!(ids(&open), [other.id, opened.incarnation.id], "oldest first, without the closed one");
}

pub(super) async fn an_opening_against_an_old_head_conflicts(setup: Setup) {
    let world = World::new(&setup).await;
    let late = world.opening("b").await;
    let a = world.open("a").await;
    let head = setup.catalog.head(world.sink).await.expect("a head");
    assert_eq!(
        setup.catalog.open_incarnation(late.clone()).await.expect("answered"),
        Cas::Conflict(head.clone())
    );
    let late = OpenIncarnation { expected_fence: head.fence, ..late };
    world.accept(a.id, span(0, 5), &[]).await;
    let head = setup.catalog.head(world.sink).await.expect("a head");
    assert_eq!(setup.catalog.open_incarnation(late).await.expect("answered"), Cas::Conflict(head));
    assert_eq!(setup.catalog.incarnations(world.sink, true).await.expect("listed").len(), 1);
}

pub(super) async fn an_id_is_never_given_twice(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await;
    let again = OpenIncarnation { id: a.id, ..world.opening("b").await };
    let refused = setup.catalog.open_incarnation(again).await;
    assert!(matches!(refused, Err(CatalogError::InvalidUsage(Misuse::Inconsistent { .. }))), "{refused:?}");
    let never = OpenIncarnation { as_of: u64::MAX, ..world.opening("b").await };
    let refused = setup.catalog.open_incarnation(never).await;
    assert!(matches!(refused, Err(CatalogError::InvalidUsage(Misuse::Inconsistent { .. }))), "{refused:?}");
}

pub(super) async fn closing_is_final_and_happens_once(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let before = setup.catalog.head(world.sink).await.expect("a head");
    assert!(setup.catalog.close_incarnation(world.sink, a, "no disk").await.expect("closed"));
    assert!(!setup.other.close_incarnation(world.sink, a, "again").await.expect("closed before"));
    let view = setup.other.view(world.sink, a).await.expect("a view");
    assert_eq!(view.incarnation.state, IncarnationState::Closed { reason: "no disk".to_owned() });
    assert_eq!(view.head.fence, before.fence + 1);
    let unknown = world.opening("b").await.id;
    let refused = setup.catalog.close_incarnation(world.sink, unknown, "?").await;
    assert!(
        matches!(refused, Err(CatalogError::InvalidUsage(Misuse::NoSuchIncarnation { .. }))),
        "{refused:?}"
    );
}

pub(super) async fn a_lease_that_ran_out_is_closed_and_a_renewed_one_is_not(setup: Setup) {
    let world = World::new(&setup).await;
    let (a, b) = (world.open("a").await.id, world.open("b").await.id);
    setup.clock.advance(9_999);
    assert_eq!(setup.catalog.expire(world.sink, true).await.expect("looked").closed, []);
    setup.catalog.renew_lease(world.sink, b, 10_000).await.expect("renewed");
    setup.clock.advance(1);
    assert_eq!(setup.other.expire(world.sink, true).await.expect("closed").closed, [a]);
    let refused = setup.catalog.renew_lease(world.sink, a, 10_000).await;
    assert!(matches!(refused, Err(CatalogError::IncarnationClosed { incarnation, .. }) if incarnation == a));
    let until = setup.catalog.view(world.sink, b).await.expect("a view").incarnation.lease_until;
    setup.clock.advance(9_998);
    assert_eq!(setup.catalog.expire(world.sink, true).await.expect("looked").closed, []);
    assert_eq!(until.0, stash_types::Clock::now(&*setup.clock).0 + 1);
}
