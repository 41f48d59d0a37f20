//! Replicas that cut differently, interleave, die and come back feed one chain: what it delivers equals the
//! oracle at every upper (I11), gapless (I4), each update exactly once, and nothing is left (I17).

use std::sync::Arc;

use proptest::prelude::*;
use stash::{ErrorKind, Frontier, Sink};
use stash_tests::{Chance, Content, Feed, Replica, Step, World, assert_same, delivered, in_time, small};

/// Times of the feed.
const END: u64 = 30;

/// Reads on from a position, and compares each delivery with the feed.
struct Reader {
    subscription: stash::Subscription,
    feed: Arc<Feed>,
    seen: Content,
}

impl Reader {
    async fn new(sink: &Sink, feed: &Arc<Feed>) -> Reader {
        let subscription = sink.read_from(Frontier::MIN);
        Reader { subscription, feed: Arc::clone(feed), seen: Content::new() }
    }

    async fn catch_up(&mut self) {
        let upper = self.subscription.sink().upper().await.expect("head");
        while self.subscription.position() < upper {
            let from = self.subscription.position();
            let next = self.subscription.try_next().await.expect("readable");
            let stash::TryNext::Delivery(delivery) = next else { continue };
            assert_eq!(delivery.lower(), from, "gapless (I4)");
            let content = delivered(&delivery).await.expect("readable");
            let wanted = self.feed.content(from.as_u64(), delivery.upper().as_u64());
            assert_same!(content, wanted, "{} (I11)", delivery.piece());
            self.seen.extend(content);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Scenario {
    seed: u64,
    replicas: usize,
    inline: u64,
    deaths_percent: u64,
    kills: bool,
}

async fn run(Scenario { seed, replicas, inline, deaths_percent, kills }: Scenario) {
    println!("seed {seed}");
    let mut chance = Chance::new(seed);
    let feed = Arc::new(Feed::seeded(seed, END, 6, 40, 20));
    let world = World::memory(small(inline)).await;
    let sink = world.sink().await;
    let mut team: Vec<Replica> = (0..replicas)
        .map(|n| Replica::new(&format!("replica-{n}"), 1 + u32::try_from(n).unwrap_or(0) * 2, &feed, END))
        .collect();
    let mut sessions = Vec::new();
    let mut reader = Reader::new(&sink, &feed).await;
    let mut deaths_left = 12;
    while sink.upper().await.expect("head") < Frontier::at(END) {
        let place = chance.index(team.len());
        let replica = &mut team[place];
        if !replica.is_running() {
            // A new process: its ledger knows nothing of what an older one left.
            let stash = world.open().await;
            assert!(replica.open(&stash.sink("rows").await.expect("declared")).await.expect("opens"));
            sessions.push(stash);
        } else if deaths_left > 0 && chance.percent(deaths_percent) {
            deaths_left -= 1;
            if kills && chance.percent(50) { replica.kill() } else { replica.die() }
        } else {
            match replica.step(&mut chance).await {
                Ok(Step::Resolved(resolved)) => {
                    assert!(resolved.upper <= Frontier::at(END));
                    reader.catch_up().await;
                }
                Ok(Step::Went | Step::Finished) => {}
                Err(error) => panic!("no fault was planned: {error}"),
            }
        }
    }
    reader.catch_up().await;
    assert_same!(reader.seen, feed.content(0, END));
    // The chain read again from the beginning is the same.
    let mut again = Reader::new(&sink, &feed).await;
    again.catch_up().await;
    assert_same!(again.seen, reader.seen);
    for replica in &mut team {
        replica.die();
        replica.open(&sink).await.expect("opens");
        replica.close().await.expect("closes");
    }
    for stash in sessions {
        stash.drain_deletions().await.expect("the deleter works");
    }
    let report = sink.verify(|_| {}).await.expect("verified");
    assert_eq!(report.violations, [], "healthy");
    world.at_rest(sink.stash()).await;
}

fn block_on(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(in_time("replicas", work));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn replicas_that_cut_differently_and_interleave_make_one_chain(
        seed in any::<u64>(), replicas in 2..4_usize, inline in prop::sample::select(vec![0, 2000, 65536])
    ) {
        block_on(run(Scenario { seed, replicas, inline, deaths_percent: 0, kills: false }));
    }

    #[test]
    fn replicas_that_die_at_any_point_and_come_back_heal(
        seed in any::<u64>(), replicas in 1..4_usize, inline in prop::sample::select(vec![0, 2000])
    ) {
        block_on(run(Scenario { seed, replicas, inline, deaths_percent: 4, kills: false }));
    }

    #[test]
    fn replicas_that_are_killed_leave_nothing_after_their_next_opening(
        seed in any::<u64>(), replicas in 1..3_usize
    ) {
        block_on(run(Scenario { seed, replicas, inline: 0, deaths_percent: 5, kills: true }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_in_processes_of_their_own_race_for_one_chain() {
    let feed = Arc::new(Feed::seeded(11, END, 6, 40, 20));
    let world = World::files(small(2000)).await;
    let sink = world.sink().await;
    let mut tasks = tokio::task::JoinSet::new();
    let mut sessions = vec![sink.stash().clone()];
    for n in 0..3 {
        let stash = world.open().await;
        sessions.push(stash.clone());
        let mut replica = Replica::new(&format!("replica-{n}"), 1 + n, &feed, END);
        tasks.spawn(async move {
            let sink = stash.sink("rows").await.expect("declared");
            let mut chance = Chance::new(u64::from(n));
            assert!(replica.open(&sink).await.expect("opens"));
            replica.finish(&mut chance).await.expect("no fault was planned");
            replica.close().await.expect("closes");
        });
    }
    in_time("racing", tasks.join_all()).await;
    assert_eq!(sink.upper().await.expect("head"), Frontier::at(END));
    let mut reader = Reader::new(&sink, &feed).await;
    reader.catch_up().await;
    assert_same!(reader.seen, feed.content(0, END));
    world.close(sessions).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_store_that_fails_honestly_replicas_render_anew_until_the_chain_is_whole() {
    let seed = 5;
    println!("seed {seed}");
    let feed = Arc::new(Feed::seeded(seed, END, 6, 40, 20));
    let world = World::memory(small(0)).await;
    let sink = world.sink().await;
    let plan = stash_testkit::FaultPlan::seeded(seed, stash_testkit::FaultRates::honest(60));
    // Waits between tries are real, so only writes and deletes fail.
    let quiet = stash_testkit::FaultRates::default();
    world
        .store
        .set_plan(plan.with_rates(stash_testkit::Op::List, quiet).with_rates(stash_testkit::Op::Head, quiet));
    let mut chance = Chance::new(seed);
    let mut team = [Replica::new("a", 2, &feed, END), Replica::new("b", 3, &feed, END)];
    let mut failures = 0;
    while sink.upper().await.expect("head") < Frontier::at(END) {
        let place = chance.index(team.len());
        let replica = &mut team[place];
        if !replica.is_running() {
            replica.open(&sink).await.expect("opens");
        }
        if let Err(error) = replica.step(&mut chance).await {
            assert_eq!(error.kind(), ErrorKind::Reopen, "{error}");
            failures += 1;
            replica.die();
        }
    }
    println!("{failures} renderings failed");
    world.store.heal();
    let mut reader = Reader::new(&sink, &feed).await;
    reader.catch_up().await;
    assert_same!(reader.seen, feed.content(0, END), "nothing doubled, nothing lost");
    for replica in &mut team {
        replica.close().await.expect("closes");
    }
    world.at_rest(sink.stash()).await;
}
