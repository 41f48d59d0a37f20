//! Two replicas race and a consumer reads while requests to the store go wrong, by each scenario of the fault proxy. Then the store
//! heals, and: nothing was lost, nothing doubled (I11), nothing is left in the bucket (I17), the chain went on meanwhile (I12), and
//! there was no storm of requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use stash::{Error, ErrorKind, Frontier, Sink, StartAt, Subscription};
use stash_testkit::{
    Point,
    proxy::{Call, Request, Scenario},
};
use stash_tests::{Chance, Feed, Replica, Step, assert_same, delivered, in_time, small};
use tokio::{sync::watch, task::JoinSet};

use crate::world::World;

/// Times of the feed for each second a scenario runs: more than it gets to.
const TIMES_PER_SECOND: u64 = 2000;

/// Between a failure and the next try of whoever runs a replica or a consumer: as long as nobody's.
const PAUSE: Duration = Duration::from_millis(20);

#[expect(
    clippy::disallowed_methods,
    reason = "how long is tried is the environment's to say, in tests alone"
)]
fn seconds() -> u64 {
    std::env::var("STASH_FAULT_SECONDS").map_or(5, |text| text.parse().expect("a number of seconds"))
}

/// What a run came to.
#[derive(Debug, Default)]
struct Told {
    renderings: u64,
    failures: BTreeMap<String, u64>,
}

impl Told {
    fn failed(&mut self, who: &str, error: &Error) {
        *self.failures.entry(format!("{who}: {:?}", error.kind())).or_default() += 1;
        assert!(
            !matches!(error.kind(), ErrorKind::Report | ErrorKind::Repair | ErrorKind::FixCall),
            "{who}: {error:?}"
        );
    }
}

/// Computes the feed until told to stop, and renders anew whenever it failed or, by chance, died.
async fn replicate(sink: Sink, feed: Arc<Feed>, n: u32, seed: u64, stop: watch::Receiver<bool>) -> Told {
    let end = TIMES_PER_SECOND * seconds();
    let mut replica = Replica::new(&format!("replica-{n}"), 1 + n, &feed, end);
    let mut chance = Chance::new(seed.wrapping_add(u64::from(n)));
    let mut told = Told::default();
    while !*stop.borrow() {
        let went = match replica.is_running() {
            false => {
                told.renderings += 1;
                replica.open(&sink).await.map(|_| Step::Went)
            }
            true if chance.percent(1) && chance.percent(30) => {
                replica.die();
                continue;
            }
            true => replica.step(&mut chance).await,
        };
        match went {
            Ok(Step::Finished) => break,
            Ok(Step::Went | Step::Resolved(_)) => {}
            Err(error) => {
                told.failed("replica", &error);
                replica.die();
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    replica.close().await.expect("it closes once the store is healed");
    told
}

/// Reads, compares and acknowledges.
struct Consumer {
    sink: Sink,
    feed: Arc<Feed>,
    subscription: Subscription,
    /// Up to here everything was read, and compared.
    done: Frontier,
    told: Told,
}

impl Consumer {
    async fn new(sink: &Sink, feed: &Arc<Feed>) -> Consumer {
        let subscription = subscribe(sink).await.expect("nothing goes wrong yet");
        let (done, told) = (subscription.position(), Told::default());
        Consumer { sink: sink.clone(), feed: Arc::clone(feed), subscription, done, told }
    }

    /// Goes on by one delivery, waiting for it.
    async fn step(&mut self) -> Result<(), Error> {
        let Some(delivery) = self.subscription.next().await? else { return Ok(()) };
        let content = delivered(&delivery).await?;
        // What was read, and whose acknowledgement was lost, may come again.
        assert!(
            delivery.lower() <= self.done,
            "{} leaves out what follows {} (I4)",
            delivery.piece(),
            self.done
        );
        let wanted = self.feed.content(delivery.lower().as_u64(), delivery.upper().as_u64());
        assert_same!(content, wanted, "{} (I11)", delivery.piece());
        self.done = self.done.max(delivery.upper());
        self.subscription.acknowledge(self.done).await?;
        Ok(())
    }

    /// The same; what went wrong is tried again.
    async fn try_step(&mut self) {
        if let Err(error) = self.step().await {
            self.told.failed("consumer", &error);
            tokio::time::sleep(PAUSE).await;
            match subscribe(&self.sink).await {
                Ok(subscription) => self.subscription = subscription,
                Err(error) => self.told.failed("consumer", &error),
            }
        }
    }

    async fn consume(mut self, mut stop: watch::Receiver<bool>) -> Consumer {
        while !*stop.borrow() {
            tokio::select! {
                () = self.try_step() => {}
                _ = stop.changed() => {}
            }
        }
        self
    }

    /// Everything there is, once nothing goes wrong any more.
    async fn finish(&mut self) {
        let upper = self.sink.upper().await.expect("the head");
        self.subscription = subscribe(&self.sink).await.expect("nothing goes wrong any more");
        while self.done < upper {
            self.step().await.expect("nothing goes wrong any more");
        }
        self.subscription.acknowledge(upper).await.expect("nothing goes wrong any more");
    }
}

async fn subscribe(sink: &Sink) -> Result<Subscription, Error> {
    sink.subscribe("consumer", StartAt::Beginning).await
}

/// The keys that were PUT, and how often.
fn puts(requests: &[Request]) -> BTreeMap<&str, u64> {
    let mut puts = BTreeMap::new();
    for request in requests.iter().filter(|request| request.call == Call::PutObject) {
        *puts.entry(request.key.as_str()).or_default() += 1;
    }
    puts
}

async fn run(scenario: Scenario, seed: u64) {
    let Some(world) = World::new(small(0)).await else { return };
    let feed = Arc::new(Feed::seeded(seed, TIMES_PER_SECOND * seconds(), 3, 40, 20));
    let sink = world.sink().await;
    let consumer = Consumer::new(&sink, &feed).await;
    let mut sessions = vec![sink.stash().clone()];
    for _ in 0..2 {
        sessions.push(world.open().await);
    }
    world.proxy.take_requests();
    world.proxy.set(scenario, seed);
    let stop = watch::Sender::new(false);
    let mut replicas = JoinSet::new();
    for (n, stash) in (0..).zip(&sessions[1..]) {
        let sink = stash.sink("rows").await.expect("it is declared");
        replicas.spawn(replicate(sink, Arc::clone(&feed), n, seed, stop.subscribe()));
    }
    let mut consuming = JoinSet::new();
    consuming.spawn(consumer.consume(stop.subscribe()));
    // How long a scenario lasts; nothing is decided by it.
    tokio::time::sleep(Duration::from_secs(seconds())).await;
    let before = world.upper(&sink).await;
    let requests_before = world.proxy.requests().len();
    world.heal();
    in_time("going on", passes(&world, &sink, before)).await;
    stop.send_replace(true);
    let told: Vec<Told> = replicas.join_all().await;
    let mut consumer = consuming.join_all().await.pop().expect("a consumer");
    consumer.finish().await;

    let upper = sink.upper().await.expect("the head");
    let mut requests = world.proxy.take_requests();
    requests.truncate(requests_before);
    world.close(sessions).await;
    eprintln!("{scenario}: upper {before} under faults, {upper} at the end");
    report(scenario, &told, &consumer.told, &requests);
    no_storm(scenario, &told, &requests);
}

/// Once nothing goes wrong any more, the chain passes where it stood (I12).
async fn passes(world: &World, sink: &Sink, before: Frontier) {
    let wanted = Frontier::at((before.as_u64() + 5).min(TIMES_PER_SECOND * seconds()));
    loop {
        let seen = world.catalog().revision().await.expect("the catalog works");
        if world.upper(sink).await >= wanted {
            return;
        }
        world.catalog().changed(seen, Duration::from_millis(50)).await.expect("the catalog works");
    }
}

fn report(scenario: Scenario, replicas: &[Told], consumer: &Told, requests: &[Request]) {
    let renderings: u64 = replicas.iter().map(|told| told.renderings).sum();
    let failures: Vec<_> = replicas.iter().chain([consumer]).map(|told| &told.failures).collect();
    let mut calls = BTreeMap::<Call, (u64, u64)>::new();
    for request in requests {
        let (all, succeeded) = calls.entry(request.call).or_default();
        *all += 1;
        *succeeded += u64::from(request.succeeded());
    }
    let puts = puts(requests);
    let (total, keys) = (puts.values().sum::<u64>(), puts.len());
    eprintln!(
        "{scenario}: {renderings} renderings, {keys} parts by {total} PUTs (at most {} each); \
         (requests, succeeded): {calls:?}; failures: {failures:?}",
        puts.values().max().unwrap_or(&0)
    );
}

/// Requests are bounded by what goes wrong: with `p` of a hundred failing, a success takes `100 / (100 - p)` of them.
fn no_storm(scenario: Scenario, told: &[Told], requests: &[Request]) {
    let puts = puts(requests);
    let (total, keys) = (puts.values().sum::<u64>(), puts.len() as u64);
    let percent = u64::from(scenario.percent());
    // Half as much again, for chance, and one for each rendering that was broken off.
    let renderings: u64 = told.iter().map(|told| told.renderings).sum();
    let bound = keys * 150 / (100 - percent) + renderings + 10;
    assert!(total <= bound, "{scenario}: {keys} parts took {total} PUTs, more than {bound}");
    let lists = requests.iter().filter(|request| request.call.lists() && request.succeeded()).count() as u64;
    // Objects and uploads, at each opening of an incarnation: nothing else lists.
    assert!(lists <= 2 * renderings, "{scenario}: {lists} listings in {renderings} renderings");
    let written: BTreeSet<_> = puts.keys().collect();
    let strange =
        |request: &&Request| request.call == Call::HeadObject && !written.contains(&request.key.as_str());
    assert_eq!(requests.iter().find(strange), None, "only what was written is looked at");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletes_that_fail_through_an_outage_are_not_forgotten() {
    let Some(world) = World::new(small(0)).await else { return };
    const END: u64 = 20;
    let feed = Arc::new(Feed::seeded(20, END, 3, 40, 20));
    let sink = world.sink().await;
    let mut consumer = Consumer::new(&sink, &feed).await;
    let mut replica = Replica::new("replica", 1, &feed, END);
    assert!(replica.open(&sink).await.expect("opens"), "there is to write");
    replica.finish(&mut Chance::new(20)).await.expect("nothing goes wrong");
    replica.close().await.expect("closes");
    // Nothing is deleted but what the gate lets through, and then the store refuses for longer than anybody is patient.
    let gates = [Call::DeleteObject, Call::DeleteObjects].map(|call| world.proxy.hold(call, Point::Before));
    consumer.finish().await;
    world.proxy.set(Scenario::SlowDown { percent: 100 }, 20);
    drop(gates);
    sink.stash().drain_deletions().await.expect("it goes on to the next key");
    world.close([sink.stash().clone()]).await;
}

macro_rules! scenarios {
    ($($name:ident: $scenario:expr, $seed:literal;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                run($scenario, $seed).await;
            }
        )*

        #[test]
        fn every_scenario_is_run() {
            let run = [$($scenario),*];
            let missing: Vec<_> = Scenario::ALL.into_iter().filter(|scenario| !run.contains(scenario)).collect();
            assert_eq!(missing, []);
        }
    };
}

scenarios! {
    under_slow_down_of_10_percent: Scenario::SlowDown { percent: 10 }, 1;
    under_slow_down_of_40_percent: Scenario::SlowDown { percent: 40 }, 2;
    under_slow_down_of_75_percent: Scenario::SlowDown { percent: 75 }, 3;
    under_internal_errors: Scenario::InternalError { percent: 25 }, 4;
    under_resets_before: Scenario::ResetBefore { percent: 25 }, 5;
    under_responses_that_are_lost: Scenario::ResetAfter { percent: 25 }, 6;
    under_slow_bodies: Scenario::SlowBodies { percent: 30 }, 7;
    under_bodies_cut_short: Scenario::CutBodies { percent: 25 }, 8;
    under_bulk_deletes_that_succeed_in_part: Scenario::PartialDeletes { percent: 60 }, 9;
    under_an_expired_token: Scenario::ExpiredToken, 10;
    under_clock_skew: Scenario::ClockSkew { percent: 5 }, 11;
    under_conflicts_on_create: Scenario::CreateConflict { percent: 30 }, 12;
    under_preconditions_that_fail_late: Scenario::LatePrecondition { percent: 30 }, 13;
    under_some_of_everything: Scenario::Mixed { percent: 25 }, 14;
}
