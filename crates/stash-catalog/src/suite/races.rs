//! What happens at once happens in some order, and no order loses anything.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::Setup;
use super::world::{World, at, declaration, span};
use crate::rows::{CommitRequest, DeletionReason, StartAt};
use crate::{Cas, CatalogError, Misuse};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn of_eight_commits_against_one_head_exactly_one_is_done(setup: Setup) {
    let world = World::new(&setup).await;
    let mut incarnations = Vec::new();
    for replica in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        incarnations.push(world.open(replica).await.id);
    }
    for round in 0..3 {
        let mut requests = Vec::new();
        for incarnation in &incarnations {
            requests.push(world.accepting(*incarnation, span(round * 10, round * 10 + 10), &[round]).await);
        }
        let mut tasks = JoinSet::new();
        for (place, request) in requests.into_iter().enumerate() {
            let through = Arc::clone(if place % 2 == 0 { &setup.catalog } else { &setup.other });
            tasks.spawn(async move { through.commit(request).await.expect("answered") });
        }
        let answers = tasks.join_all().await;
        let done = answers.iter().filter(|answer| matches!(answer, Cas::Done(_))).count();
        assert_eq!(done, 1, "{answers:?}");
        assert_eq!(world.chain(round * 10).await.len(), 1);
    }
    assert_eq!(world.spans(0).await, [(0, 10, 10), (10, 20, 20), (20, 30, 30)]);
}

pub(super) async fn an_opening_fences_a_commit_that_was_decided_before(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let decided = world.accepting(a, span(0, 5), &[1]).await;
    // Another replica's opening makes it decide again; its own replica's closes it.
    world.through_the_other().open("b").await;
    let head = setup.other.head(world.sink).await.expect("a head");
    assert_eq!(setup.catalog.commit(decided.clone()).await.expect("answered"), Cas::Conflict(head.clone()));
    world.through_the_other().open("a").await;
    let again = CommitRequest { expected_fence: head.fence, ..decided };
    let refused = setup.catalog.commit(again).await;
    assert!(matches!(refused, Err(CatalogError::IncarnationClosed { .. })), "{refused:?}");
}

pub(super) async fn a_registration_and_an_acknowledgement_never_lose_a_batch(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let (_, session) = world.register("first", StartAt::Beginning).await.expect("registered");
    for round in 0..4u64 {
        world.accept(a, span(round * 2, round * 2 + 2), &[round]).await;
        let (ours, theirs) = (world.clone(), world.through_the_other());
        let name = format!("late-{round}");
        let (acknowledged, registered) = tokio::join!(
            async move { ours.acknowledge("first", session, round * 2 + 2).await },
            async move { theirs.register(&name, StartAt::Earliest).await },
        );
        acknowledged.expect("acknowledged");
        let (from, _) = registered.expect("registered");
        // Wherever it starts, all from there to the upper is there for it.
        let chain = world.chain(from.as_u64()).await;
        let start = chain.first().map_or(world.upper().await, |batch| batch.lower);
        assert_eq!(start, from);
    }
}

pub(super) async fn a_key_is_either_linked_or_queued(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let mut lower = 0;
    for n in 0..8 {
        let description = span(lower, lower + 3);
        let key = world.key(a, description, n);
        let request = world.accepting(a, description, &[n]).await;
        let (ours, theirs, sink) = (Arc::clone(&setup.catalog), Arc::clone(&setup.other), world.sink);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { theirs.enqueue(sink, &[key], DeletionReason::Surrendered).await.map(drop) });
        tasks.spawn(async move { ours.commit(request).await.map(drop) });
        let answers = tasks.join_all().await;
        for answer in answers {
            let refused = matches!(&answer, Err(CatalogError::InvalidUsage(Misuse::Inconsistent { .. })));
            assert!(answer.is_ok() || refused, "{answer:?}");
        }
        let state = &setup.catalog.key_states(world.sink, &[key]).await.expect("states")[0];
        assert_ne!(state.referenced_by.is_some(), state.queued.is_some(), "{state:?}");
        lower = world.upper().await.as_u64();
    }
}

pub(super) async fn equal_declarations_at_once_make_one_sink(setup: Setup) {
    let mut tasks = JoinSet::new();
    for place in 0..8 {
        let spec = declaration(&setup, "orders");
        let through = Arc::clone(if place % 2 == 0 { &setup.catalog } else { &setup.other });
        tasks.spawn(async move { through.declare_sink(spec).await.expect("declared") });
    }
    let declared = tasks.join_all().await;
    assert_eq!(declared.iter().filter(|declared| declared.created).count(), 1);
    assert!(declared.iter().all(|one| one.sink == declared[0].sink));
}

pub(super) async fn a_write_wakes_who_waits_on_the_other_handle(setup: Setup) {
    let world = World::new(&setup).await;
    let mut seen = setup.other.revision().await.expect("a revision");
    for (writer, waiter) in [(&setup.catalog, &setup.other), (&setup.other, &setup.catalog)] {
        let mut waiting = JoinSet::new();
        for _ in 0..3 {
            let waiter = Arc::clone(waiter);
            // Woken, or it waits for an hour: patience that ran out would find the write too.
            let changed = async move { waiter.changed(seen, Duration::from_secs(3600)).await };
            waiting.spawn(async move { tokio::time::timeout(PATIENCE, changed).await });
        }
        let spec = declaration(&setup, &format!("sink-{seen}"));
        writer.declare_sink(spec).await.expect("declared");
        for found in waiting.join_all().await {
            assert_eq!(found.expect("woken").expect("changed"), seen + 1);
        }
        seen += 1;
    }
    drop(world);
}

pub(super) async fn waiting_ends_when_patience_does(setup: Setup) {
    let seen = setup.catalog.revision().await.expect("a revision");
    assert_eq!(setup.catalog.changed(seen, Duration::from_millis(20)).await.expect("patience"), seen);
    assert_eq!(setup.catalog.changed(seen, Duration::ZERO).await.expect("no patience"), seen);
    World::new(&setup).await;
    assert_eq!(setup.catalog.changed(seen, PATIENCE).await.expect("at once"), seen + 1);
}

pub(super) async fn a_write_that_is_given_up_leaves_nothing_open(setup: Setup) {
    let world = World::new(&setup).await;
    let a = world.open("a").await.id;
    let mut lower = 0;
    for polls in 0..24u32 {
        let description = span(lower, lower + 1);
        let request = world.accepting(a, description, &[]).await;
        let commit = request.commit;
        {
            // Polled so often and then dropped, wherever it is.
            let mut write = setup.catalog.commit(request);
            for _ in 0..polls {
                if futures::poll!(&mut write).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        // Another handle gets the write lock at once, and the answer about the first is final.
        let committed = setup.other.read_back(world.sink, commit).await.expect("read back");
        let upper = world.upper().await;
        assert_eq!(committed.is_some(), upper == description.upper(), "after {polls} polls");
        lower = upper.as_u64();
    }
    world.accept(a, span(lower, lower + 1), &[]).await;
    assert_eq!(world.upper().await, at(lower + 1));
}

pub(super) async fn the_revision_rises_with_every_write(setup: Setup) {
    let world = World::new(&setup).await;
    let mut last = setup.catalog.revision().await.expect("a revision");
    let a = world.open("a").await.id;
    let (_, session) = world.register("c", StartAt::Beginning).await.expect("registered");
    assert_eq!(setup.other.revision().await.expect("a revision"), last + 2);
    last += 2;
    let committed = world.accept(a, span(0, 5), &[1]).await;
    assert_eq!(committed.revision, last + 1);
    world.acknowledge("c", session, 5).await.expect("acknowledged");
    setup.catalog.renew_lease(world.sink, a, 1).await.expect("renewed");
    assert_eq!(setup.other.revision().await.expect("a revision"), last + 3);
    let head = setup.other.head(world.sink).await.expect("a head");
    assert_eq!(head.revision, last + 3, "the head says which revision wrote it");

    // The queue too; and what changes nothing wakes nobody.
    let revision = || async { setup.other.revision().await.expect("a revision") };
    let key = world.key(a, span(0, 5), 2);
    last = revision().await;
    for (queued, written) in [(1, 1), (0, 0)] {
        let done = setup.catalog.enqueue(world.sink, &[key], DeletionReason::Surrendered).await;
        assert_eq!(done.expect("queued"), queued);
        last += written;
        assert_eq!(revision().await, last);
    }
    setup.catalog.defer(&[key]).await.expect("deferred");
    assert_eq!(revision().await, last + 1);
    setup.catalog.dequeue(&[key]).await.expect("dequeued");
    assert_eq!(revision().await, last + 2);
    let head = setup.other.head(world.sink).await.expect("a head");
    assert_eq!(head.revision, last + 2, "the sink's own, too");
    setup.catalog.dequeue(&[key]).await.expect("nothing is there");
    assert_eq!(revision().await, last + 2);
}
