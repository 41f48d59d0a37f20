//! Futures that are dropped while they wait: nothing doubles, nothing is lost unsaid, nothing is left.

mod every_await;

use std::collections::BTreeSet;

use stash::{ErrorKind, Frontier, Share, Sink};
use stash_testkit::{Op, Point};
use stash_tests::{
    Polled, World, assert_same, content_of, delivered_until, in_time, poll_times, small, updates,
};

use crate::{Update, many, mint, open, write, write_all};

/// A world whose pushes sort in the background and flush early.
async fn busy_world() -> World {
    let mut config = small(0);
    config.batch.chunk_bytes = 70_000;
    config.batch.part_bytes = 200_000;
    World::memory(config).await
}

/// What all rows are in these tests.
fn snapshot() -> Vec<Update> {
    many(0, 6000, 0)
}

/// Renders anew on a new session, and checks content and rest.
async fn heals(world: &World, sink: &Sink) {
    let stash = world.open().await;
    let sink = stash.sink(sink.name().as_str()).await.expect("declared");
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let upper = sink.upper().await.expect("head");
    if upper == Frontier::at(0) {
        write(&incarnation, &mut chain, 1, &snapshot()).await;
    }
    let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(1)).await;
    assert_same!(content.expect("read"), content_of(&snapshot()));
    incarnation.close("healed").await.expect("closes");
    drop(chain);
    world.at_rest(&stash).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_push_is_never_a_share_that_lacks_rows() {
    let mut cancelled = 0;
    for polls in 1..6 {
        let world = busy_world().await;
        let sink = world.sink().await;
        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        let minted = mint(&mut chain, 1);
        let all = snapshot();
        let mut share = incarnation.worker(0).expect("local").share(minted).expect("opens");
        let mut taken: Vec<Update> = Vec::new();
        for piece in all.chunks(300) {
            // A flush under way makes a push wait.
            match poll_times(share.push(updates(&sink, piece)), polls).await {
                Polled::Ready(result) => result.expect("taken"),
                Polled::Cancelled => {
                    cancelled += 1;
                    break;
                }
            }
            taken.extend_from_slice(piece);
        }
        // The caller may not know better than to finish it.
        let message = share.finish().await;
        let failed = matches!(message.share, Share::Failed { .. });
        let reported = chain.report(message).await;
        if failed {
            assert_eq!(reported.expect_err("failed").kind(), ErrorKind::Reopen);
        } else {
            let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(1)).await;
            assert_same!(
                content.expect("read"),
                content_of(&all),
                "polls {polls}: a good share holds everything"
            );
            assert_eq!(taken.len(), all.len());
        }
        drop((incarnation, chain));
        in_time("healing", heals(&world, &sink)).await;
    }
    assert!(cancelled > 0, "some push was cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_finish_or_dropped_builder_leaves_nothing() {
    for polls in 0..8 {
        let world = busy_world().await;
        let sink = world.sink().await;
        let (incarnation, mut chain) = open(&sink, "a", 2).await;
        let minted = mint(&mut chain, 1);
        let all = snapshot();
        let mut share = incarnation.worker(0).expect("local").share(minted).expect("opens");
        for piece in all.chunks(300) {
            share.push(updates(&sink, piece)).await.expect("taken");
        }
        drop(incarnation.worker(1).expect("local").write(minted, []).await.expect("written"));
        drop(poll_times(share.finish(), polls).await.ready());
        drop((incarnation, chain));
        in_time("healing", heals(&world, &sink)).await;
        world.at_rest(sink.stash()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_builder_dropped_while_its_part_is_on_its_way_into_the_store_leaves_nothing() {
    for point in [Point::Before, Point::After] {
        let world = World::files(small(0)).await;
        let sink = world.sink().await;
        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        let minted = mint(&mut chain, 1);
        let gate = world.store.hold(Op::Put, point);
        let mut share = incarnation.worker(0).expect("local").share(minted).expect("opens");
        share.push(updates(&sink, &snapshot())).await.expect("taken");
        {
            let finish = share.finish();
            tokio::pin!(finish);
            tokio::select! {
                _ = &mut finish => panic!("it stands at the gate"),
                () = in_time("the gate", gate.wait_held(1)) => {}
            }
        }
        // The incarnation is closed, and another opened, while the PUT is still under way.
        drop((incarnation, chain));
        let (second, mut chain) = open(&sink, "a", 1).await;
        gate.release();
        write(&second, &mut chain, 1, &snapshot()).await;
        second.close("done").await.expect("closes");
        drop(chain);
        world.at_rest(sink.stash()).await;
        assert_eq!(world.listed().await.len(), 1);
        world.close([sink.stash().clone()]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_offer_is_accepted_whole_or_not_at_all() {
    let mut outcomes = BTreeSet::new();
    for inline in [0, 64 << 10] {
        for polls in 0..14 {
            let world = World::files(small(inline)).await;
            let sink = world.sink().await;
            let (incarnation, mut chain) = open(&sink, "a", 1).await;
            let minted = mint(&mut chain, 1);
            let all = many(0, 50, 0);
            let share = incarnation.worker(0).expect("local").write(minted, [updates(&sink, &all)]).await;
            chain.merge(share.expect("written")).await.expect("merged");
            let ready = poll_times(chain.offer(), polls).await.ready();
            drop((incarnation, chain));

            // Another session decides what happened, and renders anew.
            let stash = world.open().await;
            let again = stash.sink("rows").await.expect("declared");
            let (second, mut chain) = open(&again, "a", 1).await;
            let accepted = second.as_of() == 0 && again.upper().await.expect("head") == Frontier::at(1);
            outcomes.insert((ready.is_some(), accepted));
            assert!(ready.is_none() || accepted, "what was said to be accepted is");
            let minted = mint(&mut chain, 1);
            write_all(&second, &mut chain, minted, std::slice::from_ref(&all)).await.expect("written");
            let mut subscription = again.read().await.expect("readable");
            let content = delivered_until(&mut subscription, Frontier::at(1)).await.expect("read");
            assert_same!(content, content_of(&all), "inline {inline}, polls {polls}");
            second.close("done").await.expect("closes");
            drop(chain);
            world.close([sink.stash().clone(), stash]).await;
        }
    }
    assert!(outcomes.contains(&(true, true)), "some offer went through: {outcomes:?}");
    assert!(outcomes.contains(&(false, false)), "some offer was cancelled: {outcomes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_next_read_and_acknowledge_lose_no_delivery() {
    let mut config = small(0);
    config.batch.row_group_bytes_max = 20_000;
    let world = World::files(config).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let mut all = Vec::new();
    for time in 0..8 {
        let batch = many(time * 10_000, 600, time);
        write(&incarnation, &mut chain, time + 1, &batch).await;
        all.extend(batch);
    }
    let mut subscription = sink.subscribe("reader", stash::StartAt::Beginning).await.expect("subscribes");
    let mut content = stash_tests::Content::new();
    let mut polls = 0;
    let mut cancelled = 0;
    while subscription.position() < Frontier::at(8) {
        polls += 1;
        let delivery = match poll_times(subscription.next(), polls % 4).await {
            Polled::Ready(next) => next.expect("read").expect("a batch"),
            Polled::Cancelled => {
                cancelled += 1;
                continue;
            }
        };
        let reader = &mut delivery.read();
        // A reader given up half-way holds no memory and takes nothing from the next one.
        drop(poll_times(reader.next(), polls % 5).await);
        content.extend(stash_tests::delivered(&delivery).await.expect("read"));
        let upper = delivery.upper();
        let acknowledged = poll_times(subscription.acknowledge(upper), polls % 6).await;
        if let Polled::Cancelled = acknowledged {
            cancelled += 1;
            // It may have been acknowledged; to say it again changes nothing.
            subscription.acknowledge(upper).await.expect("acknowledged");
        }
    }
    assert!(cancelled > 3, "{cancelled} calls were cancelled");
    assert_same!(content, content_of(&all));
    incarnation.close("done").await.expect("closes");
    drop((chain, subscription));
    world.at_rest(sink.stash()).await;
    assert!(world.listed().await.is_empty(), "all was acknowledged");
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offer_that_was_cancelled_is_made_again_by_the_next_one() {
    let mut cancelled = 0;
    for inline in [0, 64 << 10] {
        let world = World::files(small(inline)).await;
        let sink = world.sink().await;
        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        for time in 0..12 {
            let minted = mint(&mut chain, time + 1);
            let writer = incarnation.worker(0).expect("local");
            let share = writer.write(minted, [updates(&sink, &many(0, 50, time))]).await;
            chain.merge(share.expect("written")).await.expect("merged");
            let polls = usize::try_from(time).expect("small");
            if let Polled::Cancelled = poll_times(chain.offer(), polls).await {
                cancelled += 1;
                let resolved = chain.offer().await.expect("it is offered again").expect("the same batch");
                assert_eq!(resolved.description, minted.description);
                assert_eq!(resolved.outcome, Some(stash::Outcome::Accepted), "inline {inline}, time {time}");
            }
            assert!(chain.offer().await.expect("nothing waits").is_none());
            assert_eq!(chain.known_upper(), Frontier::at(time + 1));
        }
        let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(12)).await;
        let all: Vec<Update> = (0..12).flat_map(|time| many(0, 50, time)).collect();
        assert_same!(content.expect("read"), content_of(&all));
        incarnation.close("done").await.expect("closes");
        drop(chain);
        world.close([sink.stash().clone()]).await;
    }
    assert!(cancelled > 4, "{cancelled} offers were cancelled");
}
