//! What the catalog's clock lets go of: read as expired, gone from the store, and never under a consumer that is
//! there.

use std::{sync::Arc, time::Duration};

use stash::{Absence, Catalog, Clock, Error, ErrorKind, Frontier, Launch, Sink, SinkSpec, StartAt};
use stash_catalog::testing::ManualClock;
use stash_tests::{World, assert_same, content_of, delivered, delivered_until, in_time, schema, small};

use crate::{Update, many, open, write};

const SECOND: Duration = Duration::from_secs(1);

/// A world whose clock stands, with a sink of these durations in it.
async fn world(
    retention: Option<Duration>,
    absent_hold: Option<Duration>,
) -> (World, Arc<ManualClock>, Sink) {
    let clock = Arc::new(ManualClock::at(1_000_000));
    let mut config = small(0);
    config.lease_secs = 1_000_000;
    let world = World::files_at(config, Arc::clone(&clock) as Arc<dyn Clock>).await;
    let mut spec = SinkSpec::new("rows", schema()).expect("a sound spec");
    if let Some(kept) = retention {
        spec = spec.retention(kept);
    }
    if let Some(held) = absent_hold {
        spec = spec.absent_hold(held);
    }
    let sink = world.open().await.declare_sink(spec).await.expect("a new sink");
    (world, clock, sink)
}

/// A batch of one part at each of `times`, `[time, time + 1)`, 10 s apart.
async fn batches(sink: &Sink, clock: &ManualClock, times: std::ops::Range<u64>) {
    let (incarnation, mut chain) = open(sink, "a", 1).await;
    for time in times {
        write(&incarnation, &mut chain, time + 1, &many(0, 50, time)).await;
        clock.advance(10_000);
    }
    drop(chain);
    incarnation.close("done").await.expect("closes");
}

fn content(times: std::ops::Range<u64>) -> Vec<Update> {
    times.flat_map(|time| many(0, 50, time)).collect()
}

#[track_caller]
fn assert_expired(error: &Error, from: u64) {
    let expired =
        matches!(error, Error::Absent(Absence::Expired { earliest, .. }) if *earliest == Frontier::at(from));
    assert!(expired, "{error}");
    assert_eq!(error.kind(), ErrorKind::Absent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_consumers_what_outlived_the_retention_is_deleted_and_says_so() {
    let (world, clock, sink) = world(Some(100 * SECOND), None).await;
    batches(&sink, &clock, 0..4).await;
    let mut reading = sink.read_from(Frontier::at(0));
    let held = reading.next().await.expect("read").expect("a batch");
    clock.advance(70_000);
    let would = sink.expire(false).await.expect("looked");
    assert_eq!((would.batches, would.keys, would.earliest), (2, 2, Frontier::at(2)));
    world.at_rest(sink.stash()).await;
    assert_eq!(world.listed().await.len(), 4, "a dry run changes nothing");
    assert_eq!(sink.expire(true).await.expect("expired"), would);
    world.at_rest(sink.stash()).await;
    assert_eq!(world.listed().await.len(), 2);

    assert_expired(&sink.read_from(Frontier::at(0)).next().await.expect_err("expired"), 2);
    assert_expired(&delivered(&held).await.expect_err("it went while somebody held it"), 2);
    let error = sink.subscribe("late", StartAt::Beginning).await.expect_err("the beginning is gone");
    assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
    assert!(sink.verify(|_| {}).await.expect("verified").violations.is_empty());

    // Who subscribes at the earliest gets all that is left, and holds it however old it grows.
    let mut subscription = sink.subscribe("reader", StartAt::Earliest).await.expect("subscribes");
    clock.advance(900_000);
    assert_eq!(sink.expire(true).await.expect("expired").batches, 0);
    let read = delivered_until(&mut subscription, Frontier::at(4)).await.expect("read");
    assert_same!(read, content_of(&content(2..4)));
    drop(subscription);

    // An opening takes what its time has come for, and the chain goes on behind it.
    assert!(sink.unregister_consumer("reader").await.expect("known"));
    let (incarnation, mut chain) = open(&sink, "b", 1).await;
    assert_eq!(sink.head().await.expect("a head").expired, Frontier::at(4));
    write(&incarnation, &mut chain, 4, &many(0, 50, 3)).await;
    write(&incarnation, &mut chain, 5, &many(0, 50, 4)).await;
    drop(chain);
    incarnation.close("done").await.expect("closes");
    world.at_rest(sink.stash()).await;
    let mut late = sink.read().await.expect("readable");
    assert_eq!(late.position(), Frontier::at(4));
    let read = delivered_until(&mut late, Frontier::at(5)).await.expect("read");
    assert_same!(read, content_of(&content(4..5)));
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_stayed_away_reads_that_it_expired_until_it_skips() {
    let (world, clock, sink) = world(None, Some(60 * SECOND)).await;
    let mut gone = sink.subscribe("gone", StartAt::Beginning).await.expect("subscribes");
    batches(&sink, &clock, 0..4).await;
    delivered_until(&mut gone, Frontier::at(1)).await.expect("read");
    gone.acknowledge(Frontier::at(1)).await.expect("acknowledged");
    let held = gone.next().await.expect("read").expect("a batch");
    drop(gone);

    clock.advance(59_000);
    let mut here = sink.subscribe("here", StartAt::Earliest).await.expect("subscribes");
    let read = delivered_until(&mut here, Frontier::at(3)).await.expect("read");
    assert_same!(read, content_of(&content(1..3)));
    here.acknowledge(Frontier::at(3)).await.expect("acknowledged");
    assert_eq!(sink.expire(true).await.expect("expired").batches, 0, "the other one was heard 59 s ago");
    clock.advance(1_000);
    let expired = sink.expire(true).await.expect("expired");
    assert_eq!(expired.absent.iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["gone"]);
    assert_eq!((expired.batches, expired.keys, expired.earliest), (2, 2, Frontier::at(3)));
    world.at_rest(sink.stash()).await;
    assert_eq!(world.listed().await.len(), 1);

    // It comes back: never empty, however often, whatever start it names.
    assert_expired(&delivered(&held).await.expect_err("expired"), 3);
    for start in [StartAt::Beginning, StartAt::Earliest, StartAt::Now] {
        let mut back = sink.subscribe("gone", start).await.expect("subscribes");
        assert_eq!(back.position(), Frontier::at(1), "{start:?}");
        for _ in 0..2 {
            assert_expired(&back.next().await.expect_err("expired"), 3);
        }
    }
    let mut back = sink.subscribe("gone", StartAt::SkipExpired).await.expect("subscribes");
    assert_eq!(back.position(), Frontier::at(3));
    // It is there again, so the other one's acknowledgement no longer lets go for it.
    delivered_until(&mut here, Frontier::at(4)).await.expect("read");
    here.acknowledge(Frontier::at(4)).await.expect("acknowledged");
    assert_eq!(sink.expire(true).await.expect("expired").batches, 0);
    let read = delivered_until(&mut back, Frontier::at(4)).await.expect("read");
    assert_same!(read, content_of(&content(3..4)));
    let acknowledged = back.acknowledge(Frontier::at(4)).await.expect("acknowledged");
    assert_eq!(acknowledged.released, 1, "all acknowledged it, so it is released and not expired");
    world.at_rest(sink.stash()).await;
    assert_eq!(world.listed().await.len(), 0);
    world.close([sink.stash().clone()]).await;
}

/// Waits until the catalog satisfies `what`; looks again whenever something was written.
async fn until(sink: &Sink, what: &str, reached: impl AsyncFn(&dyn Catalog) -> bool) {
    let catalog = sink.stash().catalog();
    in_time(what, async {
        loop {
            let seen = catalog.revision().await.expect("the catalog works");
            if reached(&**catalog).await {
                return;
            }
            catalog.changed(seen, SECOND).await.expect("the catalog works");
        }
    })
    .await;
}

async fn is_seen_at(catalog: &dyn Catalog, sink: &Sink, at: u64) -> bool {
    let consumers = catalog.consumers(sink.id()).await.expect("listed");
    consumers.iter().any(|row| row.name.as_str() == "reader" && row.seen.0 == at)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_is_heard_while_it_lives_and_not_afterwards() {
    let (world, clock, sink) = world(Some(Duration::from_millis(1)), Some(Duration::from_millis(80))).await;
    batches(&sink, &clock, 0..2).await;
    let mut subscription = sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes");
    // It reads one batch for five times the hold, and asks for nothing meanwhile.
    let long = subscription.next().await.expect("read").expect("a batch");
    for _ in 0..5 {
        clock.advance(79);
        let now = clock.now().0;
        until(&sink, "the consumer is heard", async |catalog| is_seen_at(catalog, &sink, now).await).await;
        let expired = sink.expire(true).await.expect("expired");
        assert_eq!((expired.absent.len(), expired.batches), (0, 0));
    }
    assert_same!(delivered(&long).await.expect("still there"), content_of(&content(0..1)));
    // A newer session is heard for the consumer; the fenced one ends by itself and is told by its next call.
    let newer = sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes");
    assert_eq!(subscription.acknowledge(long.upper()).await.expect_err("fenced").kind(), ErrorKind::Reopen);
    drop((subscription, newer));
    in_time("the consumer is absent once nobody speaks for it", async {
        loop {
            // One renewal may still be on its way.
            clock.advance(80);
            let expired = sink.expire(true).await.expect("expired");
            if !expired.absent.is_empty() {
                assert_eq!(expired.batches, 2, "and nobody holds what outlived the retention");
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_renewal_of_an_incarnation_takes_what_its_time_has_come_for() {
    let (world, clock, sink) = world(Some(100 * SECOND), None).await;
    let mut config = small(0);
    config.lease_secs = 1;
    let stash = world.open_with(config).await;
    let writing = stash.sink("rows").await.expect("declared");
    // Another one whose lease will have run out: it is closed, and the one that renews is not.
    let other = world.open().await.sink("rows").await.expect("declared");
    let dead = other.open_incarnation(Launch::single("dead", 1).expect("sound")).await.expect("opens");
    let dead = dead.render().expect("to write").id();
    let (incarnation, mut chain) = open(&writing, "a", 1).await;
    write(&incarnation, &mut chain, 1, &many(0, 50, 0)).await;
    clock.advance(2_000_000_000);
    until(&sink, "the renewal expires", async |catalog| {
        catalog.head(sink.id()).await.expect("a head").expired == Frontier::at(1)
    })
    .await;
    let rows = sink.incarnations().await.expect("listed");
    let is_open = |id| rows.iter().any(|row| row.id == id && row.state == stash::IncarnationState::Open);
    assert!(is_open(incarnation.id()) && !is_open(dead));
    // What was decided before is decided again, and goes on.
    write(&incarnation, &mut chain, 2, &many(0, 50, 1)).await;
    drop(chain);
    incarnation.close("done").await.expect("closes");
    world.at_rest(&stash).await;
    assert_eq!(world.listed().await.len(), 1);
    world.close([sink.stash().clone(), stash, other.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_differs_in_a_duration_is_another_sink() {
    let (world, _, sink) = world(Some(100 * SECOND), Some(60 * SECOND)).await;
    let spec = SinkSpec::new("rows", schema()).expect("a sound spec");
    for (spec, field) in [
        (spec.clone(), "retention"),
        (spec.clone().retention(99 * SECOND).absent_hold(60 * SECOND), "retention"),
        (spec.clone().retention(100 * SECOND), "absent hold"),
    ] {
        let error = sink.stash().declare_sink(spec).await.expect_err("another");
        assert!(error.to_string().contains(field), "{error}");
        assert_eq!(error.kind(), ErrorKind::FixCall);
    }
    let error = sink.stash().declare_sink(spec.retention(Duration::ZERO)).await.expect_err("zero");
    assert!(error.to_string().contains("zero"), "{error}");
    let row = &sink.row().spec;
    assert_eq!((row.retention_ms, row.absent_hold_ms), (Some(100_000), Some(60_000)));
    world.close([sink.stash().clone()]).await;
}
