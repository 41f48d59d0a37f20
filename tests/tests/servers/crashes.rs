//! The catalog's server is killed, and connections to it break, at each request that an offer makes, and at any other.

use std::{sync::Arc, time::Duration};

use stash::{Chain, Frontier, Incarnation, Launch, Outcome, Resolved, Sink, StartAt, Subscription};
use stash_testkit::{At, Point, servers::PostgresServer};
use stash_tests::{Chance, Feed, Replica, Step, assert_same, delivered_until, small, updates};

use crate::world::World;

/// After this long a test is taken to hang: starting a server again takes its time on a busy machine.
const HANG: Duration = Duration::from_secs(300);

async fn in_time(what: &str, work: impl Future<Output = ()>) {
    assert!(tokio::time::timeout(HANG, work).await.is_ok(), "{what}: hangs");
}

/// Between a failure and the next try.
const PAUSE: Duration = Duration::from_millis(50);

/// Times of the feed.
const END: u64 = 400;

/// A replica that goes on whatever fails: it renders anew.
struct Runner {
    replica: Replica,
    sink: Sink,
    chance: Chance,
    failures: u64,
}

impl Runner {
    fn new(sink: &Sink, feed: &Arc<Feed>, name: &str) -> Runner {
        let replica = Replica::new(name, 2, feed, END);
        Runner { replica, sink: sink.clone(), chance: Chance::new(7), failures: 0 }
    }

    /// Goes on by a step; `true` when everything was offered.
    async fn step(&mut self) -> bool {
        let went = match self.replica.is_running() {
            true => self.replica.step(&mut self.chance).await,
            false => self.replica.open(&self.sink).await.map(|_| Step::Went),
        };
        match went {
            Ok(step) => matches!(step, Step::Finished),
            Err(error) => {
                assert!(
                    matches!(error.kind(), stash::ErrorKind::Retry | stash::ErrorKind::Reopen),
                    "{error:?}"
                );
                self.failures += 1;
                self.replica.die();
                tokio::time::sleep(PAUSE).await;
                false
            }
        }
    }

    /// Goes on until `upper` is accepted.
    async fn until(&mut self, upper: u64) {
        loop {
            match self.sink.upper().await {
                Ok(there) if there >= Frontier::at(upper) => return,
                _ => drop(self.step().await),
            }
        }
    }
}

async fn finish(world: World, mut runner: Runner, feed: &Feed) {
    world.heal();
    runner.until(END).await;
    let sink = runner.sink.clone();
    let mut subscription = registered(&sink).await;
    let content = delivered_until(&mut subscription, Frontier::at(END)).await.expect("readable");
    assert_same!(content, feed.content(0, END), "nothing lost, nothing doubled (I11)");
    subscription.acknowledge(Frontier::at(END)).await.expect("acknowledged");
    runner.replica.close().await.expect("closes");
    eprintln!("{} renderings failed", runner.failures);
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_break_at_any_request_before_it_and_after_its_effect() {
    let Some(world) = World::new(small(0)).await else { return };
    let feed = Arc::new(Feed::seeded(3, END, 3, 40, 20));
    let sink = world.sink().await;
    let mut runner = Runner::new(&sink, &feed, "replica");
    in_time("breaking", async {
        runner.until(1).await;
        let mut upper = 1;
        for point in [Point::After, Point::Before] {
            for nth in 0..12 {
                world.tcp.cut_at(At::Request(nth), point);
                while !world.tcp.sprung() {
                    assert!(!runner.step().await, "the feed is long enough");
                }
                // What was acknowledged is never taken back (I13).
                let now = world.upper(&sink).await;
                assert!(now >= Frontier::at(upper), "{now} after {upper}");
                upper = now.as_u64();
            }
        }
    })
    .await;
    finish(world, runner, &feed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_is_killed_at_any_request_and_started_again() {
    let Some(server) = PostgresServer::start_private().await else { return };
    let Some(world) = World::over(&server, small(0)).await else { return };
    let feed = Arc::new(Feed::seeded(4, END, 3, 40, 20));
    let sink = world.sink().await;
    let mut runner = Runner::new(&sink, &feed, "replica");
    in_time("killing", async {
        runner.until(1).await;
        for point in [Point::After, Point::Before] {
            for nth in 0..5 {
                let gate = world.tcp.hold_at(At::Request(nth), point);
                // Everybody may be the one who is held: the replica, its renewals, the deleter.
                let stepping = async {
                    while !world.tcp.sprung() {
                        assert!(!runner.step().await, "the feed is long enough");
                    }
                };
                let killing = async {
                    gate.wait_held(1).await;
                    server.kill().await;
                    server.restart().await;
                    gate.release();
                };
                tokio::join!(stepping, killing);
            }
        }
    })
    .await;
    finish(world, runner, &feed).await;
}

/// An incarnation that offers one update at a time.
struct Offering {
    incarnation: Incarnation,
    chain: Chain,
    time: u64,
}

impl Offering {
    async fn new(sink: &Sink) -> Offering {
        let launch = Launch::single("replica", 1).expect("a sound launch");
        let incarnation = sink.open_incarnation(launch).await.expect("opens").render().expect("to write");
        let chain = incarnation.chain().expect("the chain is free");
        Offering { incarnation, chain, time: 0 }
    }

    /// Writes what is next, then has `before` arm a trap, and offers; again, where it is said that this may help.
    async fn offer(&mut self, before: impl FnOnce()) -> Resolved {
        let minted =
            self.chain.mint(Frontier::at(self.time + 1)).expect("mints").minted().expect("a description");
        let row = [((self.time, "row".to_owned()), self.time, 1)];
        let mine = updates(self.incarnation.sink(), &row);
        let share =
            self.incarnation.worker(0).expect("a worker").write(minted, [mine]).await.expect("written");
        self.time += 1;
        before();
        let mut offered = self.chain.report(share).await.map(|resolved| resolved.last().copied());
        for _ in 0..1000 {
            match offered {
                Ok(Some(resolved)) => return resolved,
                Ok(None) => panic!("one worker makes a batch"),
                Err(error) => {
                    assert_eq!(error.kind(), stash::ErrorKind::Retry, "{error:?}");
                    tokio::time::sleep(PAUSE).await;
                    offered = self.chain.offer().await;
                }
            }
        }
        panic!("it was offered for ever: {offered:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offer_is_accepted_once_wherever_its_connection_breaks() {
    let Some(world) = World::new(small(0)).await else { return };
    let sink = world.sink().await;
    let mut offering = Offering::new(&sink).await;
    let mut broken = 0;
    in_time("breaking", async {
        offering.offer(|| {}).await;
        for point in [Point::After, Point::Before] {
            for nth in 0.. {
                let resolved = offering.offer(|| world.tcp.cut_at(At::Request(nth), point)).await;
                assert_eq!(resolved.outcome, Some(Outcome::Accepted), "request {nth}, {point:?}");
                if !world.tcp.sprung() {
                    break;
                }
                broken += 1;
            }
        }
    })
    .await;
    eprintln!("{broken} offers were broken");
    assert!(broken >= 4, "reading the head and committing are a request each at least");
    offered_once(world, offering, &sink).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offer_is_accepted_once_wherever_the_server_is_killed() {
    let Some(server) = PostgresServer::start_private().await else { return };
    let Some(world) = World::over(&server, small(0)).await else { return };
    let sink = world.sink().await;
    let mut offering = Offering::new(&sink).await;
    let mut killed = 0;
    in_time("killing", async {
        offering.offer(|| {}).await;
        for point in [Point::After, Point::Before] {
            // More than an offer makes; what comes after are others' requests, of which there is no end.
            for nth in 0..8 {
                let mut gate = None;
                let resolved = {
                    let (world, gate) = (&world, &mut gate);
                    let (armed, is_armed) = tokio::sync::oneshot::channel();
                    let offer = offering.offer(|| {
                        drop(armed.send(world.tcp.hold_at(At::Request(nth), point)));
                    });
                    tokio::pin!(offer);
                    let kills = std::cell::Cell::new(false);
                    let held = async {
                        let held = is_armed.await.expect("it is armed");
                        held.wait_held(1).await;
                        kills.set(true);
                        server.kill().await;
                        server.restart().await;
                        held.release();
                    };
                    tokio::pin!(held);
                    tokio::select! {
                        resolved = &mut offer => {
                            // Somebody else's request was held, and the offer done without it: a server that is being killed
                            // is to be started again all the same.
                            if kills.get() {
                                held.await;
                            }
                            resolved
                        }
                        () = &mut held => {
                            *gate = Some(());
                            offer.await
                        }
                    }
                };
                assert_eq!(resolved.outcome, Some(Outcome::Accepted), "request {nth}, {point:?}");
                if gate.is_none() {
                    break;
                }
                killed += 1;
            }
        }
    })
    .await;
    eprintln!("the server was killed {killed} times");
    assert!(killed >= 4, "reading the head and committing are a request each at least");
    offered_once(world, offering, &sink).await;
}

/// Whoever holds a connection from before the server was killed hears of that first.
async fn registered(sink: &Sink) -> Subscription {
    loop {
        match sink.subscribe("consumer", StartAt::Beginning).await {
            Ok(subscription) => return subscription,
            Err(error) => assert_eq!(error.kind(), stash::ErrorKind::Retry, "{error:?}"),
        }
    }
}

async fn offered_once(world: World, offering: Offering, sink: &Sink) {
    world.heal();
    let Offering { incarnation, chain, time } = offering;
    let registering = tokio::time::timeout(HANG, registered(sink)).await;
    let mut subscription = registering.expect("registering: hangs");
    let content = delivered_until(&mut subscription, Frontier::at(time)).await.expect("readable");
    let wanted = (0..time).map(|time| (((time, "row".to_owned()), time), 1)).collect();
    assert_same!(content, wanted, "nothing lost, nothing doubled (I11)");
    subscription.acknowledge(Frontier::at(time)).await.expect("acknowledged");
    drop(chain);
    incarnation.close("the test ends").await.expect("closes");
    world.close([sink.stash().clone()]).await;
}
