//! How sinks begin and end: declared once, complete when it is said, dropped without a trace.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use futures::StreamExt;
use stash::{
    BlobEntryKind, BlobKey, BlobPrefix, Error, ErrorKind, Frontier, HeadStatus, IncarnationState, Launch,
    Mint, OpenOptions, Opened, Outcome, SinkSpec, StartAt, SystemClock, SystemIds,
};
use stash_catalog::{SqliteCatalog, testing::ManualClock};
use stash_tests::{World, assert_same, content_of, delivered_until, in_time, schema, small, updates};

use crate::{Update, many, mint, noise, open, write, write_all};

fn spec() -> SinkSpec {
    SinkSpec::new("rows", schema()).expect("sound")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_completes_at_up_to_and_its_readers_end() {
    // The frontier stands at up_to, has passed it, or is empty.
    for frontier in [10, 50, u64::MAX] {
        let world = World::files(small(0)).await;
        let sink = world.open().await.declare_sink(spec().as_of(3).up_to(10)).await.expect("declared");
        let mut subscription = sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes");
        let (incarnation, mut chain) = open(&sink, "a", 2).await;
        assert_eq!(incarnation.as_of(), 3);
        write(&incarnation, &mut chain, 4, &many(0, 20, 3)).await;
        write(&incarnation, &mut chain, 7, &many(0, 20, 5)).await;
        let minted = mint(&mut chain, frontier);
        assert_eq!(minted.description.upper(), Frontier::EMPTY);
        // A worker need not know up_to: what is at and after it is left out.
        let all = [many(0, 20, 9), many(0, 20, 10), many(0, 20, 40)].concat();
        let resolved = write_all(&incarnation, &mut chain, minted, &[all]).await.expect("written");
        assert_eq!(resolved[0].upper, Frontier::EMPTY);
        assert_eq!(chain.mint(Frontier::at(frontier)).expect("answers"), Mint::Complete);
        assert_eq!(sink.head().await.expect("head").status, HeadStatus::Complete);

        let content = delivered_until(&mut subscription, Frontier::EMPTY).await.expect("read");
        assert_same!(content, content_of(&[many(0, 20, 3), many(0, 20, 5), many(0, 20, 9)].concat()));
        for _ in 0..2 {
            assert!(in_time("the end", subscription.next()).await.expect("ends").is_none());
        }
        // It can still be read, and nobody can render it.
        let opened = sink.open_incarnation(Launch::single("b", 1).expect("sound")).await.expect("answers");
        assert!(matches!(opened, Opened::Complete));
        incarnation.close("done").await.expect("closes");
        drop(chain);
        world.at_rest(sink.stash()).await;
        assert_eq!(world.listed().await.len(), 3);
        subscription.acknowledge(Frontier::EMPTY).await.expect("acknowledged");
        world.at_rest(sink.stash()).await;
        assert!(world.listed().await.is_empty(), "all was read: nothing is left");
        assert!(subscription.next().await.expect("ends").is_none(), "still the end");
        world.close([sink.stash().clone()]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peek_is_a_sink_of_one_time() {
    let world = World::memory(small(0)).await;
    let sink = world.open().await.declare_sink(spec().as_of(7).up_to(8)).await.expect("declared");
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    assert_eq!(chain.mint(Frontier::at(7)).expect("answers"), Mint::NotYet);
    write(&incarnation, &mut chain, 8, &many(0, 20, 7)).await;
    let mut subscription = sink.read().await.expect("readable");
    let content = delivered_until(&mut subscription, Frontier::EMPTY).await.expect("read");
    assert_same!(content, content_of(&many(0, 20, 7)));
    assert!(subscription.next().await.expect("ends").is_none());
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_sealing_sink_completes_when_its_input_ends() {
    let world = World::files(small(0)).await;
    let stash = world.open().await;
    let sealing = stash.declare_sink(spec().sealing()).await.expect("declared");
    let other = SinkSpec::new("open", schema()).expect("sound");
    let open_sink = stash.declare_sink(other).await.expect("declared");

    let (incarnation, mut chain) = open(&sealing, "a", 1).await;
    write(&incarnation, &mut chain, 1, &many(0, 5, 0)).await;
    write(&incarnation, &mut chain, u64::MAX, &many(0, 5, u64::MAX - 1)).await;
    assert_eq!(sealing.head().await.expect("head").status, HeadStatus::Complete);
    let mut subscription = sealing.read().await.expect("readable");
    let content = delivered_until(&mut subscription, Frontier::EMPTY).await.expect("read");
    assert_same!(content, content_of(&[many(0, 5, 0), many(0, 5, u64::MAX - 1)].concat()));
    incarnation.close("done").await.expect("closes");
    drop(chain);

    let (incarnation, mut chain) = open(&open_sink, "a", 1).await;
    write(&incarnation, &mut chain, 4, &many(0, 5, 0)).await;
    write(&incarnation, &mut chain, 4, &many(0, 5, 3)).await;
    assert_eq!(chain.mint(Frontier::EMPTY).expect("answers"), Mint::Ended);
    incarnation.close("its input ended").await.expect("closes");
    drop(chain);
    assert_eq!(open_sink.head().await.expect("head").status, HeadStatus::Open);
    assert_eq!(open_sink.upper().await.expect("head"), Frontier::at(4));
    // A restart goes on.
    let (incarnation, mut chain) = open(&open_sink, "a", 1).await;
    assert_eq!(write(&incarnation, &mut chain, 4, &[]).await.outcome, Some(Outcome::Dropped));
    assert_eq!(write(&incarnation, &mut chain, 9, &many(0, 5, 6)).await.outcome, Some(Outcome::Accepted));
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(&stash).await;
    world.close([stash]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_stands_for_one_declaration() {
    let world = World::files(small(0)).await;
    let stash = world.open().await;
    let other_handle = world.open().await;
    let sink = stash.declare_sink(spec()).await.expect("declared");
    assert_eq!(other_handle.declare_sink(spec()).await.expect("the same").id(), sink.id());
    let wider = Schema::new(vec![Field::new("key", DataType::UInt64, false)]);
    let others =
        [SinkSpec::new("rows", wider).expect("sound"), spec().as_of(1), spec().up_to(9), spec().sealing()];
    for other in others {
        let error = other_handle.declare_sink(other).await.expect_err("another");
        assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
    }
    sink.drop_sink().await.expect("drops");
    let again = other_handle.declare_sink(spec().as_of(1)).await.expect("the name is free");
    assert_ne!((again.id(), again.shard()), (sink.id(), sink.shard()));
    world.close([stash, other_handle]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_that_belongs_to_another_catalog_is_refused() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let clock = Arc::new(SystemClock);
    let other = SqliteCatalog::in_memory(clock, Arc::new(SystemIds)).await.expect("a catalog");
    let opened =
        OpenOptions::new("memory://other").open_with(Arc::clone(&world.store) as _, Arc::new(other)).await;
    let error = opened.expect_err("another catalog's");
    assert!(matches!(error, Error::Claim(_)), "{error}");
    assert_eq!(error.kind(), ErrorKind::FixCall);
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_dropped_in_mid_flight_leaves_nothing() {
    let mut config = small(0);
    config.batch.part_bytes = 60_000;
    config.batch.chunk_bytes = 20_000;
    let world = World::files(config).await;
    let sink = world.sink().await;
    let mut subscription = sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes");
    let (incarnation, mut chain) = open(&sink, "a", 2).await;
    write(&incarnation, &mut chain, 1, &many(0, 300, 0)).await;
    let delivery = subscription.next().await.expect("read").expect("a batch");
    // One batch merged and not offered, one share written and not reported, one share half written.
    let waiting = mint(&mut chain, 4);
    for worker in 0..2 {
        let writer = incarnation.worker(worker).expect("local");
        let share = writer.write(waiting, [updates(&sink, &many(u64::from(worker) * 1000, 300, 2))]).await;
        chain.merge(share.expect("written")).await.expect("merged");
    }
    let written = mint(&mut chain, 6);
    for worker in 0..2 {
        let writer = incarnation.worker(worker).expect("local");
        let mine: Vec<Update> = many(u64::from(worker) * 1000, 300, 5);
        let share = writer.write(written, [updates(&sink, &mine)]).await.expect("written");
        // The second carries the part; neither is reported.
        std::mem::forget(share);
    }
    let half = mint(&mut chain, 9);
    let mut share = incarnation.worker(0).expect("local").share(half).expect("opens");
    for piece in many(0, 3000, 8).chunks(200) {
        share.push(updates(&sink, piece)).await.expect("taken");
    }
    assert!(world.listed().await.len() >= 4);

    // Another process drops it.
    let other = world.open().await;
    let dropped = other.sink("rows").await.expect("declared").drop_sink().await.expect("drops");
    assert_eq!((dropped.incarnations, dropped.batches, dropped.consumers_behind), (1, 1, 1));
    assert!(world.listed().await.is_empty(), "nothing is left at once");
    // Who still writes hears of it, and what it put in between goes too.
    for piece in many(0, 3000, 7).chunks(200) {
        share.push(updates(&sink, piece)).await.expect("the store takes it still");
    }
    assert!(!world.listed().await.is_empty());
    drop(share.finish().await);
    let error = chain.offer().await.expect_err("dropped");
    assert!(matches!(error.kind(), ErrorKind::Absent | ErrorKind::Reopen), "{error}");
    assert!(stash_tests::delivered(&delivery).await.is_err());
    assert!(subscription.next().await.is_err());
    assert!(subscription.acknowledge(Frontier::at(1)).await.is_err());
    drop((chain, incarnation));
    // The forgotten share is still in this process's ledger; closing it gives it up.
    sink.stash().close().await.expect("closes");
    world.at_rest(&other).await;
    assert!(world.listed().await.is_empty());
    world.close([other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_replicas_incarnation_is_closed_once_its_lease_ran_out() {
    let clock = Arc::new(ManualClock::at(1_000_000));
    let world = World::files_at(small(0), Arc::clone(&clock) as _).await;
    let sink = world.sink().await;
    let (dead, mut dead_chain) = open(&sink, "dead", 1).await;
    write(&dead, &mut dead_chain, 1, &many(0, 50, 0)).await;
    let minted = mint(&mut dead_chain, 5);
    let share = dead.worker(0).expect("local").write(minted, [updates(&sink, &many(0, 50, 3))]).await;
    let id = dead.id();
    // Its process stops: no renewal comes any more.
    drop(dead);
    let other = world.open().await;
    let others_sink = other.sink("rows").await.expect("declared");
    let state = async || {
        let rows = others_sink.incarnations().await.expect("rows");
        rows.into_iter().find(|row| row.id == id).expect("known").state
    };
    clock.advance(59_000);
    let (early, early_chain) = open(&others_sink, "b", 1).await;
    assert_eq!(state().await, IncarnationState::Open, "it may still come back");
    early.close("done").await.expect("closes");
    drop(early_chain);
    clock.advance(2_000);
    let (heir, mut heir_chain) = open(&others_sink, "b", 1).await;
    assert!(matches!(state().await, IncarnationState::Closed { .. }));
    other.drain_deletions().await.expect("a pass");
    assert_eq!(world.listed().await.len(), 1, "what it wrote and did not offer is swept");
    // It was only slow: its offer is refused, and changes nothing.
    let error = dead_chain.report(share.expect("written")).await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Reopen, "{error}");
    write(&heir, &mut heir_chain, 1, &[]).await;
    write(&heir, &mut heir_chain, 5, &many(0, 50, 3)).await;
    let mut subscription = others_sink.read().await.expect("readable");
    let content = delivered_until(&mut subscription, Frontier::at(5)).await.expect("read");
    assert_same!(content, content_of(&[many(0, 50, 0), many(0, 50, 3)].concat()));
    heir.close("done").await.expect("closes");
    drop((heir_chain, dead_chain));
    world.at_rest(sink.stash()).await;
    world.close([sink.stash().clone(), other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_says_the_sink_is_going_away_ends_the_incarnation_once_and_nothing_is_left() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 3).await;
    write(&incarnation, &mut chain, 1, &many(0, 50, 0)).await;
    let (minted, later) = (mint(&mut chain, 4), mint(&mut chain, 8));
    let shares = [(0, later, many(0, 50, 6)), (0, minted, many(0, 50, 2))];
    for (worker, minted, mine) in shares {
        let writer = incarnation.worker(worker).expect("local");
        let share = writer.write(minted, [updates(&sink, &mine)]).await.expect("written");
        chain.report(share).await.expect("taken");
    }
    let going = incarnation.worker(1).expect("local").share(minted).expect("opens").drop_sink();
    let error = chain.report(going).await.expect_err("going away");
    assert!(matches!(error, Error::GoingAway { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Absent);
    let rows = sink.incarnations().await.expect("rows");
    assert!(matches!(rows[0].state, IncarnationState::Closed { .. }));
    // It is told once; what follows is refused.
    let again = incarnation.worker(2).expect("local").share(minted).expect("opens").drop_sink();
    let error = chain.report(again).await.expect_err("ended");
    assert!(!matches!(error, Error::GoingAway { .. }), "{error}");
    assert_eq!(sink.head().await.expect("head").status, HeadStatus::Open, "dropping it is the owner's");
    world.at_rest(sink.stash()).await;
    assert_eq!(world.listed().await.len(), 1, "the accepted batch only");
    drop((incarnation, chain));
    sink.drop_sink().await.expect("drops");
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_can_report_any_more_gives_back_its_memory_and_the_store() {
    let world = World::memory(small(0)).await;
    let kept = Arc::strong_count(&world.store);
    let sink = world.sink().await;
    let stash = sink.stash().clone();
    let (incarnation, mut chain) = open(&sink, "a", 2).await;
    let minted = mint(&mut chain, 1);
    // The other worker never opens its share, so this one's updates stay with the process.
    let writer = incarnation.worker(0).expect("local");
    let share = writer.write(minted, [updates(&sink, &many(0, 200, 0))]).await.expect("written");
    drop((incarnation, chain, share));
    assert_ne!(stash.budget().write, 0, "a writer is left: the other worker may still come");
    drop(writer);
    assert_eq!(stash.budget().write, 0, "nobody is left to report it");
    // Nothing was closed: with its last handle all of the session goes, and the store with it.
    drop((sink, stash));
    let gone = async {
        while Arc::strong_count(&world.store) > kept {
            tokio::task::yield_now().await;
        }
    };
    in_time("the session's end", gone).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_released_is_deleted_though_nobody_asks_for_it() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    write(&incarnation, &mut chain, 1, &many(0, 100, 0)).await;
    assert_eq!(world.listed().await.len(), 1);
    let mut consumer = sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes");
    delivered_until(&mut consumer, Frontier::at(1)).await.expect("read");
    consumer.acknowledge(Frontier::at(1)).await.expect("acknowledged");
    let gone = async {
        while !world.listed().await.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    in_time("the process's own deleter", gone).await;
    incarnation.close("done").await.expect("closes");
    drop((chain, consumer));
    world.close([sink.stash().clone()]).await;
}

#[tokio::test]
async fn what_a_session_that_looks_writes_and_gives_up_is_queued_for_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("file://{}", folder.path().display());
    let options = || OpenOptions::new(url.as_str()).config(small(0));
    let stash = options().open().await.expect("made");
    stash.declare_sink(spec()).await.expect("declared");
    stash.close().await.expect("it closes");

    let looking = options().look().open().await.expect("it opens");
    let sink = looking.sink("rows").await.expect("declared");
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let minted = mint(&mut chain, 1);
    let mut share = incarnation.worker(0).expect("local").share(minted).expect("it opens");
    share.push(updates(&sink, &[((1, noise(1, 100)), 0, 1)])).await.expect("taken");
    drop(share.finish().await);
    drop((incarnation, chain, sink));
    let drained = looking.close().await.expect("it closes");
    assert_eq!(drained.deleted, 0);

    let parts = || async {
        let looking = options().look().open().await.expect("it opens");
        let queued = looking.catalog().deletions_queued(None).await.expect("counted");
        let mut listing = looking.store().list(BlobPrefix::All);
        let mut parts = 0;
        while let Some(entry) = listing.next().await {
            parts += u64::from(entry.expect("listed").kind != BlobEntryKind::Object(BlobKey::stash_json()));
        }
        drop(listing);
        looking.close().await.expect("it closes");
        (queued, parts)
    };
    assert_eq!(parts().await, (1, 1), "queued, and not deleted");
    options().open().await.expect("it opens").close().await.expect("it closes");
    assert_eq!(parts().await, (0, 0), "whoever may delete does");
}
