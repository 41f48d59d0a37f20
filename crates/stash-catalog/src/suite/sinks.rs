//! Sinks are declared once, immutable, and dropped for good.

use stash_types::{Frontier, LaunchToken, SinkId};

use super::Setup;
use super::world::{World, at, declaration, span};
use crate::rows::{DeletionReason, Dropped, HeadStatus, IncarnationState, StartAt};
use crate::{CatalogError, Misuse};

pub(super) async fn a_sink_is_found_by_name_and_by_id(setup: Setup) {
    let spec = declaration(&setup, "orders");
    let declared = setup.catalog.declare_sink(spec.clone()).await.expect("declared");
    assert!(declared.created);
    assert_eq!(declared.sink.spec, spec);
    assert_eq!(declared.sink.shard, stash_types::ShardId::derive(setup.catalog.id(), spec.id));
    assert_eq!(setup.other.sink(spec.id).await.expect("by id"), declared.sink);
    assert_eq!(setup.other.sink_named(&spec.name).await.expect("by name"), declared.sink);
    assert_eq!(setup.other.sinks(false).await.expect("listed"), [declared.sink]);
    let head = setup.other.head(spec.id).await.expect("a head");
    assert_eq!((head.upper, head.next_seq, head.status), (at(0), 1, HeadStatus::Open));
}

pub(super) async fn an_equal_declaration_finds_the_sink_that_stands(setup: Setup) {
    let first = setup.catalog.declare_sink(declaration(&setup, "orders")).await.expect("declared");
    let again = setup.other.declare_sink(declaration(&setup, "orders")).await.expect("found");
    assert!(!again.created);
    assert_eq!(again.sink, first.sink);
}

pub(super) async fn a_declaration_that_differs_is_refused_by_the_property(setup: Setup) {
    let spec = declaration(&setup, "orders");
    setup.catalog.declare_sink(spec.clone()).await.expect("declared");
    let mut others = vec![spec.clone(); 6];
    others[0].as_of = 1;
    others[1].up_to = at(9);
    others[2].seals = true;
    others[3].retention_ms = Some(1);
    others[4].absent_hold_ms = None;
    others[5].schema = bytes::Bytes::from_static(b"other");
    let mut fields = Vec::new();
    for other in others {
        match setup.catalog.declare_sink(other).await {
            Err(CatalogError::InvalidUsage(Misuse::SinkDiffers { field, .. })) => fields.push(field),
            other => panic!("not refused: {other:?}"),
        }
    }
    assert_eq!(fields, ["as-of", "up-to", "sealing", "retention", "absent hold", "schema"]);
}

pub(super) async fn a_sink_that_covers_no_time_is_refused(setup: Setup) {
    let mut never = declaration(&setup, "never");
    never.as_of = u64::MAX;
    let mut nothing = declaration(&setup, "nothing");
    (nothing.as_of, nothing.up_to) = (5, at(5));
    for spec in [never, nothing] {
        let refused = setup.catalog.declare_sink(spec).await;
        assert!(
            matches!(refused, Err(CatalogError::InvalidUsage(Misuse::Inconsistent { .. }))),
            "{refused:?}"
        );
    }
    assert_eq!(setup.catalog.sinks(true).await.expect("listed"), []);
}

pub(super) async fn an_unknown_sink_is_named_in_the_refusal(setup: Setup) {
    let unknown = SinkId::from_uuid(uuid::Uuid::from_u128(9));
    let name = "nobody".parse().expect("a name");
    let answers = [
        setup.catalog.sink(unknown).await.map(drop),
        setup.catalog.head(unknown).await.map(drop),
        setup.catalog.chain(unknown, Frontier::MIN, 1).await.map(drop),
        setup.catalog.drop_sink(unknown, true).await.map(drop),
        setup.catalog.consumers(unknown).await.map(drop),
        setup.catalog.incarnations(unknown, true).await.map(drop),
        setup.catalog.launched(unknown, LaunchToken::from_uuid(uuid::Uuid::from_u128(9))).await.map(drop),
        setup.catalog.referenced(unknown).await.map(drop),
    ];
    for answer in answers {
        match answer {
            Err(CatalogError::InvalidUsage(Misuse::NoSuchSink { sink })) => {
                assert_eq!(sink, unknown.to_string())
            }
            other => panic!("not refused: {other:?}"),
        }
    }
    let by_name = setup.catalog.sink_named(&name).await.expect_err("nobody has that name");
    assert!(by_name.to_string().contains("nobody"), "{by_name}");
}

pub(super) async fn a_dry_drop_tells_and_changes_nothing(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    world.accept(a, span(0, 5), &[1, 2]).await;
    world.register("slow", StartAt::Beginning).await.expect("registered");
    world.register("done", StartAt::Now).await.expect("registered");
    let before = setup.catalog.revision().await.expect("a revision");
    let told = setup.catalog.drop_sink(world.sink, false).await.expect("told");
    assert_eq!(told, Dropped { incarnations: 1, batches: 1, keys: 2, consumers_behind: 1 });
    assert_eq!(setup.catalog.revision().await.expect("a revision"), before);
    assert_eq!(world.chain(0).await.len(), 1);
}

pub(super) async fn a_drop_closes_unlinks_queues_and_frees_the_name(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    world.accept(a, span(0, 5), &[1, 2]).await;
    world.extend(a, span(5, 9)).await;
    let done = setup.catalog.drop_sink(world.sink, true).await.expect("dropped");
    assert_eq!(done, Dropped { incarnations: 1, batches: 1, keys: 2, consumers_behind: 0 });
    assert_eq!(setup.other.head(world.sink).await.expect("a head").status, HeadStatus::Dropped);
    assert_eq!(world.chain(0).await, []);
    let due = setup.other.deletions_due(10).await.expect("due");
    assert_eq!(due.len(), 2);
    assert!(due.iter().all(|row| row.reason == DeletionReason::SinkDropped && row.sink == world.sink));
    let incarnations = setup.other.incarnations(world.sink, true).await.expect("listed");
    assert!(matches!(incarnations[0].state, IncarnationState::Closed { .. }));
    assert!(setup.catalog.sink(world.sink).await.expect("kept").dropped.is_some());
    let again = setup.catalog.drop_sink(world.sink, true).await.expect("dropped before");
    assert_eq!(again, Dropped { incarnations: 0, batches: 0, keys: 0, consumers_behind: 0 });
    let next = World::new(&setup).await;
    assert_ne!(next.sink, world.sink);
    let names: Vec<_> =
        setup.catalog.sinks(true).await.expect("listed").iter().map(|sink| sink.dropped.is_some()).collect();
    assert_eq!(names, [false, true]);
}

pub(super) async fn a_dropped_sink_refuses_writers_and_consumers(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let (_, session) = world.register("c", StartAt::Now).await.expect("registered");
    let request = world.accepting(a, span(0, 5), &[1]).await;
    let opening = world.opening("b").await;
    setup.other.drop_sink(world.sink, true).await.expect("dropped");
    let answers = [
        setup.catalog.commit(request).await.map(drop),
        setup.catalog.open_incarnation(opening).await.map(drop),
        setup.catalog.renew_lease(world.sink, a, 5).await,
        world.register("d", StartAt::Now).await.map(drop),
        world.acknowledge("c", session, 0).await.map(drop),
    ];
    for answer in answers {
        assert!(
            matches!(answer, Err(CatalogError::SinkDropped { sink }) if sink == world.sink),
            "{answer:?}"
        );
    }
    // What its writers give up still has to be deleted.
    let key = world.key(a, span(0, 5), 1);
    assert_eq!(
        setup.catalog.enqueue(world.sink, &[key], DeletionReason::Surrendered).await.expect("queued"),
        1
    );
}
