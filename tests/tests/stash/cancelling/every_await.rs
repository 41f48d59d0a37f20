//! Each call of the API, cut off at every place where it waits: before and after each operation of store and
//! catalog, and wherever it waits for work of its own. Afterwards the world is driven to its end: everything is
//! delivered, once, and nothing is left but what the catalog references.

use stash::{
    BatchReader, Chain, Delivery, Frontier, Incarnation, Launch, Minted, OwnedParts, ShareMessage, Sink,
    StartAt, Stash, Subscription,
};
use stash_tests::{
    Polled, World, assert_same, cancel_at_every_poll, content_of, delivered, delivered_until, in_time, small,
    updates,
};

use crate::{Update, many, mint, open, write};

/// Rows of a batch: enough that a share is written in several runs while it grows.
const ROWS: u64 = 600;

/// A world that yields, whose pushes sort and flush early, in memory.
async fn yielding() -> World {
    let mut config = small(0);
    config.batch.chunk_bytes = 4_000;
    config.batch.part_bytes = 8_000;
    World::memory(config).await.yielding()
}

/// The rows of a batch at `time`.
fn rows(time: u64) -> Vec<Update> {
    many(time * 10_000, ROWS, time)
}

/// The rows of the first `batches` batches.
fn all_rows(batches: u64) -> Vec<Update> {
    (0..batches).flat_map(rows).collect()
}

/// A writer with a minted description.
struct Writing {
    world: World,
    sink: Sink,
    incarnation: Incarnation,
    chain: Chain,
    minted: Minted,
    share: Option<ShareMessage<OwnedParts>>,
}

impl Writing {
    async fn begin() -> Writing {
        let world = yielding().await;
        let sink = world.sink().await;
        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        let minted = mint(&mut chain, 1);
        Writing { world, sink, incarnation, chain, minted, share: None }
    }

    async fn written() -> Writing {
        let mut writing = Writing::begin().await;
        writing.share = Some(writing.write().await);
        writing
    }

    async fn write(&self) -> ShareMessage<OwnedParts> {
        let pieces: Vec<_> = rows(0).chunks(100).map(|piece| updates(&self.sink, piece)).collect();
        self.incarnation.worker(0).expect("local").write(self.minted, pieces).await.expect("written")
    }

    /// The replica goes, and a later one brings the world to its end.
    async fn end(self) {
        let Writing { world, sink, incarnation, chain, minted: _, share } = self;
        drop((incarnation, chain, share));
        heal(&world, &sink).await;
    }
}

/// Another session of the replica writes what is missing, reads all, and leaves nothing.
async fn heal(world: &World, sink: &Sink) {
    in_time("healing", async {
        let stash = world.open().await;
        let again = stash.sink(sink.name().as_str()).await.expect("declared");
        let (incarnation, mut chain) = open(&again, "a", 1).await;
        if again.upper().await.expect("head") == Frontier::at(0) {
            write(&incarnation, &mut chain, 1, &rows(0)).await;
        }
        let content = delivered_until(&mut again.read().await.expect("readable"), Frontier::at(1)).await;
        assert_same!(content.expect("read"), content_of(&all_rows(1)));
        incarnation.close("healed").await.expect("closes");
        drop(chain);
        world.at_rest(sink.stash()).await;
        world.at_rest(&stash).await;
    })
    .await;
}

#[tokio::test]
async fn a_share_whose_writing_is_cancelled_anywhere_is_whole_or_not_there() {
    let check = async |mut writing: Writing, written: Polled<ShareMessage<OwnedParts>>| {
        if let Polled::Ready(share) = written {
            let resolved = writing.chain.report(share).await.expect("it is taken");
            assert_eq!(resolved.len(), 1, "the only share completes the batch");
        }
        writing.end().await;
    };
    let polls = cancel_at_every_poll(Writing::begin, async |writing| writing.write().await, check).await;
    assert!(polls > 4, "{polls} polls: there were many places to cancel at");
}

#[tokio::test]
async fn a_report_that_is_cancelled_anywhere_accepts_the_batch_or_lets_it_be_offered_again() {
    let call = async |writing: &mut Writing| {
        let share = writing.share.take().expect("written");
        writing.chain.report(share).await.expect("it is taken").len()
    };
    let check = async |mut writing: Writing, reported: Polled<usize>| {
        if let Polled::Ready(resolved) = reported {
            assert_eq!(resolved, 1);
        }
        // Whoever goes on with the same chain offers what was merged.
        writing.chain.offer().await.expect("it is offered");
        assert!(writing.chain.offer().await.expect("nothing waits").is_none());
        writing.end().await;
    };
    let polls = cancel_at_every_poll(Writing::written, call, check).await;
    assert!(polls > 4, "{polls} polls: there were many places to cancel at");
}

#[tokio::test]
async fn a_merge_and_an_offer_that_are_cancelled_anywhere_are_ended_by_the_next_replica() {
    let call = async |writing: &mut Writing| {
        let share = writing.share.take().expect("written");
        writing.chain.merge(share).await.expect("it is merged");
        writing.chain.offer().await.expect("it is offered").is_some()
    };
    let check = async |writing: Writing, offered: Polled<bool>| {
        if let Polled::Ready(offered) = offered {
            assert!(offered, "the batch was complete");
        }
        writing.end().await;
    };
    let polls = cancel_at_every_poll(Writing::written, call, check).await;
    assert!(polls > 4, "{polls} polls: there were many places to cancel at");
}

#[tokio::test]
async fn an_opening_that_is_cancelled_anywhere_is_made_again_by_the_next_one() {
    // The incarnation before this one died with a share in hand: the opening sweeps what it left.
    let make = async || {
        let writing = Writing::written().await;
        let Writing { world, sink, incarnation, chain, minted: _, share } = writing;
        std::mem::forget((chain, share));
        drop(incarnation);
        (world, sink)
    };
    let call = async |(_, sink): &mut (World, Sink)| {
        let opened = sink.open_incarnation(Launch::single("a", 1).expect("a sound launch")).await;
        opened.expect("it opens").render().expect("there is to write").as_of()
    };
    let check = async |(world, sink): (World, Sink), opened: Polled<u64>| {
        assert!(opened.ready().is_none_or(|as_of| as_of == 0));
        let stash = world.open().await;
        let again = stash.sink("rows").await.expect("declared");
        let (incarnation, mut chain) = open(&again, "a", 1).await;
        write(&incarnation, &mut chain, 1, &rows(0)).await;
        incarnation.close("done").await.expect("closes");
        drop(chain);
        let content = delivered_until(&mut again.read().await.expect("readable"), Frontier::at(1)).await;
        assert_same!(content.expect("read"), content_of(&all_rows(1)));
        // What was forgotten on purpose stands in the old session's ledger.
        world.at_rest_but_for_the_ledger(sink.stash()).await;
        world.at_rest(&stash).await;
    };
    let polls = cancel_at_every_poll(make, call, check).await;
    assert!(polls > 10, "{polls} polls: there were many places to cancel at");
}

/// A chain of three batches, with a subscription of a consumer.
struct Reading {
    world: World,
    sink: Sink,
    subscription: Option<Subscription>,
    delivery: Option<Delivery>,
    reader: Option<BatchReader>,
}

const BATCHES: u64 = 3;

impl Reading {
    async fn begin() -> Reading {
        let world = yielding().await;
        let sink = world.sink().await;
        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        for time in 0..BATCHES {
            write(&incarnation, &mut chain, time + 1, &rows(time)).await;
        }
        incarnation.close("done").await.expect("closes");
        drop(chain);
        Reading { world, sink, subscription: None, delivery: None, reader: None }
    }

    async fn subscribed() -> Reading {
        let mut reading = Reading::begin().await;
        reading.subscription = Some(reading.subscribe().await);
        reading
    }

    async fn delivered() -> Reading {
        let mut reading = Reading::subscribed().await;
        let next = reading.subscription().next().await.expect("read").expect("a batch");
        reading.reader = Some(next.read());
        reading.delivery = Some(next);
        reading
    }

    async fn subscribe(&self) -> Subscription {
        self.sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes")
    }

    fn subscription(&mut self) -> &mut Subscription {
        self.subscription.as_mut().expect("subscribed")
    }

    /// Reads what the subscription still gives, which begins at batch `from`, acknowledges all of it, and leaves nothing.
    async fn end(mut self, from: u64) {
        let upper = Frontier::at(BATCHES);
        let content = delivered_until(self.subscription(), upper).await.expect("read");
        assert_same!(content, content_of((from..BATCHES).flat_map(rows).collect::<Vec<_>>().iter()));
        self.subscription().acknowledge(upper).await.expect("acknowledged");
        let Reading { world, sink, subscription, delivery, reader } = self;
        drop((subscription, delivery, reader));
        world.at_rest(sink.stash()).await;
        assert!(world.listed().await.is_empty(), "all was acknowledged");
    }
}

#[tokio::test]
async fn a_subscribing_that_is_cancelled_anywhere_loses_nothing() {
    let check = async |mut reading: Reading, _: Polled<Subscription>| {
        reading.subscription = Some(reading.subscribe().await);
        in_time("reading", reading.end(0)).await;
    };
    let polls = cancel_at_every_poll(Reading::begin, async |reading| reading.subscribe().await, check).await;
    assert!(polls > 2, "{polls} polls");
}

#[tokio::test]
async fn a_next_that_is_cancelled_anywhere_loses_no_delivery() {
    let call = async |reading: &mut Reading| {
        let next = reading.subscription().next().await;
        next.expect("read").expect("a batch")
    };
    let check = async |reading: Reading, next: Polled<Delivery>| {
        let mut from = 0;
        if let Polled::Ready(delivery) = next {
            let content = delivered(&delivery).await.expect("read");
            assert_same!(content, content_of(&rows(0)));
            from = 1;
        }
        in_time("reading", reading.end(from)).await;
    };
    let polls = cancel_at_every_poll(Reading::subscribed, call, check).await;
    assert!(polls > 2, "{polls} polls");
}

#[tokio::test]
async fn a_read_that_is_cancelled_anywhere_gives_the_same_rows_to_the_next_one() {
    let call = async |reading: &mut Reading| {
        reading.reader.as_mut().expect("reading").next().await.expect("read").expect("rows")
    };
    let check = async |mut reading: Reading, batch: Polled<_>| {
        let mut content = stash_tests::Content::new();
        let mut reader = reading.reader.take().expect("reading");
        content.extend(batch.ready().iter().flat_map(stash_tests::rows_in));
        while let Some(batch) = reader.next().await.expect("read") {
            for (update, diff) in stash_tests::rows_in(&batch) {
                assert!(content.insert(update, diff).is_none(), "a row comes twice");
            }
        }
        assert_same!(content, content_of(&rows(0)));
        drop(reader);
        in_time("reading", reading.end(1)).await;
    };
    let polls = cancel_at_every_poll(Reading::delivered, call, check).await;
    assert!(polls > 2, "{polls} polls");
}

#[tokio::test]
async fn an_acknowledgement_that_is_cancelled_anywhere_is_said_again() {
    let call = async |reading: &mut Reading| {
        let upper = reading.delivery.as_ref().expect("delivered").upper();
        reading.subscription().acknowledge(upper).await.expect("acknowledged");
    };
    let check = async |mut reading: Reading, _: Polled<()>| {
        call(&mut reading).await;
        in_time("reading", reading.end(1)).await;
    };
    let polls = cancel_at_every_poll(Reading::delivered, call, check).await;
    assert!(polls > 2, "{polls} polls");
}

/// A chain of one batch, and beside it what a dead incarnation left.
async fn littered() -> (World, Sink) {
    let world = yielding().await;
    let sink = world.sink().await;
    let (first, mut chain) = open(&sink, "a", 1).await;
    write(&first, &mut chain, 1, &rows(0)).await;
    let (second, mut killed) = open(&sink, "b", 1).await;
    let minted = mint(&mut killed, 2);
    let shares = [0, 1].map(|time| updates(&sink, &rows(time)));
    // The first description is covered from birth.
    let share = second.worker(0).expect("local").write(minted, shares.into_iter().take(1)).await;
    std::mem::forget((share.expect("written"), killed));
    let minted = mint(&mut chain, 2);
    let share = first.worker(0).expect("local").write(minted, [updates(&sink, &rows(1))]).await;
    std::mem::forget((share.expect("written"), chain));
    for incarnation in [first, second] {
        incarnation.close("killed").await.expect("closes");
    }
    (world, sink)
}

#[tokio::test]
async fn a_sweep_that_is_cancelled_anywhere_takes_the_garbage_in_the_end_and_nothing_else() {
    let call = async |(_, sink): &mut (World, Sink)| sink.sweep().await.expect("it sweeps").garbage;
    let check = async |(world, sink): (World, Sink), swept: Polled<u64>| {
        assert!(swept.ready().is_none_or(|garbage| garbage > 0), "there was garbage");
        sink.sweep().await.expect("it sweeps");
        world.at_rest_but_for_the_ledger(sink.stash()).await;
        let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(1)).await;
        assert_same!(content.expect("read"), content_of(&all_rows(1)));
    };
    let polls = cancel_at_every_poll(littered, call, check).await;
    assert!(polls > 4, "{polls} polls");
}

#[tokio::test]
async fn a_drop_of_a_sink_that_is_cancelled_anywhere_leaves_nothing_once_it_is_done_again() {
    let make = async || {
        let writing = Writing::written().await;
        let (incarnation, mut chain) = open(&writing.sink, "b", 1).await;
        write(&incarnation, &mut chain, 1, &rows(0)).await;
        incarnation.close("done").await.expect("closes");
        writing
    };
    let call = async |writing: &mut Writing| writing.sink.drop_sink().await.expect("it is dropped").batches;
    let check = async |writing: Writing, _: Polled<u64>| {
        writing.sink.drop_sink().await.expect("it is dropped");
        let Writing { world, sink, incarnation, chain, minted: _, share } = writing;
        drop((incarnation, chain, share));
        in_time("resting", world.at_rest(sink.stash())).await;
        assert!(world.listed().await.is_empty(), "the sink is gone");
    };
    let polls = cancel_at_every_poll(make, call, check).await;
    assert!(polls > 2, "{polls} polls");
}

#[tokio::test]
async fn a_close_that_is_cancelled_anywhere_is_ended_by_another_one_or_by_the_next_session() {
    let make = async || {
        let world = World::files(small(0)).await.yielding();
        let sink = world.sink().await;
        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        write(&incarnation, &mut chain, 1, &rows(0)).await;
        let minted = mint(&mut chain, 2);
        let share = incarnation.worker(0).expect("local").write(minted, [updates(&sink, &rows(1))]).await;
        (world, sink.stash().clone(), Some((incarnation, chain, share.expect("written"))))
    };
    for close_again in [true, false] {
        let call = async |world: &mut (World, Stash, Option<_>)| {
            world.1.close().await.expect("it closes");
        };
        let check = async |(world, stash, left): (World, Stash, Option<_>), _: Polled<()>| {
            if close_again {
                stash.close().await.expect("it closes");
            }
            drop((left, stash));
            let stash = world.open().await;
            let sink = stash.sink("rows").await.expect("declared");
            let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(1)).await;
            assert_same!(content.expect("read"), content_of(&all_rows(1)));
            if !close_again {
                // What a session left that never closed, the next opening of its replica takes.
                let (incarnation, chain) = open(&sink, "a", 1).await;
                incarnation.close("healed").await.expect("closes");
                drop(chain);
            }
            in_time("closing", world.close([stash])).await;
        };
        let polls = cancel_at_every_poll(make, call, check).await;
        assert!(polls > 4, "{polls} polls");
    }
}
