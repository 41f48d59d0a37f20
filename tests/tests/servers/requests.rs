//! What is asked of the store where nothing goes wrong: the promises of cost, counted at the wire.

use stash::{Frontier, Launch, StartAt, Subscription};
use stash_testkit::proxy::{Call, Request};
use stash_tests::{Row, delivered, small, updates};

use crate::world::World;

type Update = (Row, u64, i64);

fn rows(from: u64, count: u64, time: u64) -> Vec<Update> {
    (from..from + count).map(|key| ((key, format!("{key:020}")), time, 1)).collect()
}

fn of(requests: &[Request], call: Call) -> Vec<&Request> {
    requests.iter().filter(|request| request.call == call).collect()
}

async fn read_all(subscription: &mut Subscription, upper: Frontier) {
    while subscription.position() < upper {
        let delivery = subscription.next().await.expect("readable").expect("the chain goes on");
        delivered(&delivery).await.expect("readable");
        subscription.acknowledge(delivery.upper()).await.expect("acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_is_one_put_and_nothing_lists_or_looks_on_the_write_or_the_read_path() {
    let Some(world) = World::new(small(0)).await else { return };
    let sink = world.sink().await;
    let mut subscription = sink.subscribe("consumer", StartAt::Beginning).await.expect("registered");
    let launch = Launch::single("replica", 2).expect("a sound launch");
    let incarnation = sink.open_incarnation(launch).await.expect("opens").render().expect("to write");
    let mut chain = incarnation.chain().expect("the chain is free");
    // What opens may list; what follows may not.
    world.proxy.take_requests();
    const BATCHES: u64 = 12;
    for time in 0..BATCHES {
        let minted = chain.mint(Frontier::at(time + 1)).expect("mints").minted().expect("a description");
        for worker in 0..2_u32 {
            let mine = updates(&sink, &rows(u64::from(worker) * 100, 50, time));
            let share =
                incarnation.worker(worker).expect("a worker").write(minted, [mine]).await.expect("written");
            chain.report(share).await.expect("reported");
        }
    }
    assert_eq!(sink.upper().await.expect("the head"), Frontier::at(BATCHES));
    let written = world.proxy.take_requests();
    let puts = of(&written, Call::PutObject);
    assert_eq!(
        puts.len() as u64,
        BATCHES,
        "two workers' small runs are one part, and a part is one PUT: {puts:?}"
    );
    assert_eq!(written.len(), puts.len(), "nothing else is asked: {written:?}");
    assert!(puts.iter().all(|put| put.create_only && put.status == Some(200)), "{puts:?}");

    read_all(&mut subscription, Frontier::at(BATCHES)).await;
    sink.stash().drain_deletions().await.expect("the deleter works");
    let read = world.proxy.take_requests();
    let gets = of(&read, Call::GetObject).len();
    let (single, bulk) = (of(&read, Call::DeleteObject).len(), of(&read, Call::DeleteObjects).len());
    assert_eq!(gets + single + bulk, read.len(), "no HEAD, no LIST: {read:?}");
    assert!(gets as u64 <= 2 * BATCHES, "the tail and the row group: {gets} GETs for {BATCHES} parts");
    assert!((single + bulk) as u64 <= BATCHES, "a delete is one request at most: {single} and {bulk}");
    eprintln!("{BATCHES} parts: {} PUT, {gets} GET, {single} DELETE, {bulk} bulk deletes", puts.len());

    drop((chain, subscription));
    incarnation.close("the test ends").await.expect("closes");
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_dropped_and_owns_no_blob_writes_nothing() {
    let Some(world) = World::new(small(0)).await else { return };
    let sink = world.sink().await;
    let other = world.open().await;
    let late = other.sink("rows").await.expect("it is declared");
    let open = async |sink: &stash::Sink, replica: &str| {
        let launch = Launch::single(replica, 1).expect("a sound launch");
        sink.open_incarnation(launch).await.expect("opens").render().expect("to write")
    };
    let (first, second) = (open(&sink, "first").await, open(&late, "second").await);
    let (mut ahead, mut behind) = (first.chain().expect("free"), second.chain().expect("free"));
    for time in 0..3 {
        let minted = ahead.mint(Frontier::at(time + 1)).expect("mints").minted().expect("a description");
        let share =
            first.worker(0).expect("a worker").write(minted, [updates(&sink, &rows(0, 5, time))]).await;
        ahead.report(share.expect("written")).await.expect("reported");
    }
    // The snapshot of the second is decided against a chain that has gone past it. It learns of that, so what it mints from
    // then on is covered from birth.
    let minted = behind.mint(Frontier::at(1)).expect("mints").minted().expect("a description");
    let share = second.worker(0).expect("a worker").write(minted, []).await.expect("written");
    behind.report(share).await.expect("reported");
    world.proxy.take_requests();
    let revision = world.catalog().revision().await.expect("the catalog works");
    for time in 1..3 {
        let minted = behind.mint(Frontier::at(time + 1)).expect("mints").minted().expect("a description");
        let mine = updates(&late, &rows(0, 5, time));
        let share = second.worker(0).expect("a worker").write(minted, [mine]).await.expect("written");
        let resolved = behind.report(share).await.expect("reported");
        eprintln!("{resolved:?}");
    }
    assert_eq!(world.proxy.take_requests(), [], "nothing is asked of the store");
    assert_eq!(world.catalog().revision().await.expect("the catalog works"), revision, "nothing is written");
    drop((ahead, behind));
    for incarnation in [first, second] {
        incarnation.close("the test ends").await.expect("closes");
    }
    world.close([sink.stash().clone(), other]).await;
}
