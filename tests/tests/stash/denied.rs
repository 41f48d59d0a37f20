//! What a session may not do, the store denies: who may not list opens and writes all the same, and who may only list
//! audits and sweeps.

use stash::{BlobStore, ErrorKind, SinkSpec, StashConfig};
use stash_blob::{BlobError, StashMarker};
use stash_testkit::{Fault, FaultPlan, Op};
use stash_tests::{World, schema, small};

use crate::{many, mint, open, write, write_all};

/// What a writer's credentials are denied that may not list.
fn no_listing() -> FaultPlan {
    FaultPlan::none().always(Op::List, Fault::Denied)
}

/// What a sweeper's credentials are denied: it lists and deletes, and reads nothing but the marker.
fn no_reading() -> FaultPlan {
    [Op::Put, Op::Get, Op::Head]
        .into_iter()
        .fold(FaultPlan::none(), |plan, op| plan.always(op, Fault::Denied))
}

fn without_sweeps() -> StashConfig {
    StashConfig { sweep_at_open: false, ..small(0) }
}

#[tokio::test]
async fn who_is_denied_to_list_opens_and_writes_all_the_same() {
    let world = World::memory(small(0)).await;
    let sink = world.sink().await;
    world.store.set_plan(no_listing());
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    write(&incarnation, &mut chain, 1, &many(0, 100, 0)).await;
    assert!(world.store.counts().lists > 0, "it was tried, and denied");
    incarnation.close("done").await.expect("it closes");
    let error = sink.sweep().await.expect_err("a sweep that is asked for says so");
    assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
    world.at_rest(sink.stash()).await;
}

#[tokio::test]
async fn a_session_that_is_told_not_to_sweep_lists_nothing_ever() {
    let world = World::memory(without_sweeps()).await;
    let stash = world.open().await;
    let sink = stash.declare_sink(SinkSpec::new("rows", schema()).expect("a spec")).await.expect("a sink");
    for _ in 0..2 {
        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        let minted = mint(&mut chain, chain_end(&incarnation));
        write_all(&incarnation, &mut chain, minted, &[many(0, 100, incarnation.as_of())])
            .await
            .expect("written");
        incarnation.close("done").await.expect("it closes");
    }
    sink.clear_after(&"a".parse().expect("a name")).await.expect("nothing is in the way");
    sink.drop_sink().await.expect("it is dropped");
    assert_eq!(world.store.counts().lists, 0);
    world.at_rest(&stash).await;
}

fn chain_end(incarnation: &stash::Incarnation) -> u64 {
    incarnation.as_of() + 1
}

#[tokio::test]
async fn what_a_writer_left_that_may_not_list_is_found_by_the_next_sweep() {
    let world = World::memory(without_sweeps()).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let minted = mint(&mut chain, 1);
    let rows = stash_tests::updates(&sink, &many(0, 1000, 0));
    let share = incarnation.worker(0).expect("a worker").write(minted, [rows]).await.expect("a share");
    // As by SIGKILL: the share is never reported, and nobody gives it up.
    std::mem::forget((share, chain, incarnation));
    let left = world.listed().await;
    assert!(!left.is_empty());

    let after = world.open().await;
    let again = after.sink("rows").await.expect("the sink");
    let (incarnation, mut chain) = open(&again, "a", 1).await;
    write(&incarnation, &mut chain, 1, &many(0, 10, 0)).await;
    assert!(world.listed().await.is_superset(&left), "whoever may not list cannot find it");

    let sweeper = world.open().await;
    world.store.reset_counts();
    world.store.set_plan(no_reading());
    let report = sweeper.audit(None, |_| {}).await.expect("an audit needs no more than to list");
    assert_eq!(report.of(stash::Class::is_unowned).entries, left.len() as u64);
    let (plan, made) = sweeper.plan_sweep(None, Vec::new(), |_| {}).await.expect("and so does a plan");
    assert_eq!(made.planned.garbage.entries, left.len() as u64);
    let mut reader = stash::PlanReader::new(plan.as_slice()).expect("a plan");
    let options = stash::ApplyOptions { commit: true, deletes_max: 100 };
    let applied = sweeper.apply_plan(&mut reader, options, |_| {}).await.expect("and so does applying it");
    assert_eq!(applied.queued.entries, left.len() as u64, "{applied:?}");
    sweeper.drain_deletions().await.expect("deleted");
    assert!(world.listed().await.is_disjoint(&left));
    let counts = world.store.counts();
    assert_eq!(counts.heads, 0, "no HEAD per delete");
    world.store.heal();
    world.at_rest_but_for_the_ledger(&sweeper).await;
}

#[tokio::test]
async fn a_marker_that_nobody_may_look_at_is_claimed_by_the_put() {
    let store = stash_testkit::FaultStore::new(stash_blob::ObjectBlobs::memory());
    let marker = |n: u32| StashMarker {
        format: stash_blob::FORMAT,
        catalog: format!("c00000000-0000-4000-8000-{n:012}").parse().expect("an id"),
    };
    // The first look is denied, as a store does of what is not there to whom it does not let list.
    store.set_plan(FaultPlan::none().at(Op::Get, 0, Fault::Denied));
    stash_blob::claim(&store, &marker(1)).await.expect("the PUT found out that nobody has it");
    store.set_plan(FaultPlan::none().at(Op::Get, 0, Fault::Denied));
    stash_blob::claim(&store, &marker(2)).await.expect_err("another catalog's");
    store.set_plan(FaultPlan::none().always(Op::Get, Fault::Denied));
    let error = stash_blob::claim(&store, &marker(1)).await.expect_err("nothing can be read at all");
    let stash_blob::ClaimError::Store { source: BlobError::Denied { .. }, .. } = error else {
        panic!("{error}")
    };
    assert!(store.inner().head(&"stash.json".parse().expect("a key")).await.expect("a HEAD").is_some());
}

#[tokio::test]
async fn a_part_that_is_denied_is_an_absence_only_where_the_catalog_says_so() {
    let world = World::memory(small(0)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    write(&incarnation, &mut chain, 1, &many(0, 1000, 0)).await;
    let mut late = sink.read().await.expect("a reader");
    let delivery = late.next().await.expect("a batch").expect("one");
    world.store.set_plan(FaultPlan::none().always(Op::Get, Fault::Denied).always(Op::Head, Fault::Denied));
    let error = delivery.read().next().await.expect_err("denied");
    let error = stash::Error::from(error);
    assert_eq!(error.kind(), ErrorKind::FixCall, "still referenced: {error}");
    assert!(error.to_string().contains("denied"), "{error}");
    // Another consumer reads it and acknowledges: it is deleted, and a store says the same of it to whom it lets not list.
    let mut consumer = sink.subscribe("c", stash::StartAt::Beginning).await.expect("a consumer");
    consumer.next().await.expect("a batch");
    consumer.acknowledge(delivery.upper()).await.expect("acknowledged");
    let error = stash::Error::from(delivery.read().next().await.expect_err("released"));
    assert_eq!(error.kind(), ErrorKind::Absent, "{error}");
    incarnation.close("done").await.expect("it closes");
    world.at_rest(sink.stash()).await;
}
