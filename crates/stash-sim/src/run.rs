//! A run: sets the world up, lets it go wrong, heals it, lets it come to rest, and looks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use stash::{Error, SinkId, StashConfig};
use stash_chain::invariants::{Invariant, ensure, i12_progress, i17_no_leak, i17_nothing_to_sweep};
use stash_types::DataflowError;
use tokio::task::JoinSet;

use crate::chance::{Chance, Concern};
use crate::consumer::Consumer;
use crate::feed::Feed;
use crate::history::{Event, hash_of};
use crate::housekeeping;
use crate::oracle::Oracle;
use crate::process::{Process, again};
use crate::replica::Replica;
use crate::schedule::{ConsumerShape, Ending, Schedule};
use crate::sink::SinkFacts;
use crate::source::source_name;
use crate::watch::say_parts;
use crate::world::{Phase, Told, World, lock, pause};

/// How often the end of a run looks whether the last lease ran out; then what is open stays, and I17 says so.
const LOOKS_MAX: u32 = 24;

/// Faults of a run that is to count as one.
const FAULTS_MIN: u64 = 50;

/// How many times as long as usual things may go wrong for the sake of these.
const PATIENCE: u64 = 4;

/// After so much virtual time without an end a run has stalled.
const STALL: Duration = Duration::from_secs(600);

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// What kind of run it was, for people.
    pub kind: String,
    /// Faults injected, by kind.
    pub faults: BTreeMap<String, u64>,
    /// What the product did, by name.
    pub counts: BTreeMap<&'static str, u64>,
    /// What happened.
    #[serde(skip)]
    pub history: Vec<Event>,
    /// The hash of the history.
    pub hash: String,
    /// Virtual time it took, in milliseconds.
    pub virtual_ms: u64,
    /// The invariant that was violated first, if one was.
    pub violation: Option<Violated>,
}

/// A violation, for people and machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violated {
    /// The invariant's name, such as `I4`.
    pub invariant: &'static str,
    /// What was found.
    pub what: String,
}

impl Report {
    /// How many faults were injected.
    pub fn faults_total(&self) -> u64 {
        self.faults.values().sum()
    }

    /// How often something happened.
    pub fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }
}

/// Runs one seed. The same seed gives the same report, its history included.
///
/// # Panics
///
/// Never for what a run does: that is reported. Only where the operating system gives no runtime.
pub fn run(seed: u64) -> Report {
    run_schedule(Schedule::of(seed))
}

/// Runs a schedule that was chosen, perhaps changed.
pub fn run_schedule(schedule: Schedule) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    match runtime {
        // The product logs what goes wrong, and here much does; the history says it.
        Ok(runtime) => tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), || {
            runtime.block_on(simulate(schedule))
        }),
        Err(error) => unreachable!("a runtime on this thread: {error}"),
    }
}

/// Runs seeds one after another; `progress` is told of each, and says whether to go on.
pub fn run_many(seeds: impl IntoIterator<Item = u64>, mut progress: impl FnMut(&Report) -> bool) {
    for seed in seeds {
        if !progress(&run(seed)) {
            return;
        }
    }
}

/// The sinks of a schedule.
pub(crate) fn sinks(schedule: &Schedule) -> Vec<SinkFacts> {
    let mut chance = Chance::of(schedule.seed, Concern::Feed);
    let feed = Feed::drawn(&mut chance, schedule.feed);
    let middle = feed.ticks.get(feed.ticks.len() / 2).copied().unwrap_or(feed.as_of + 1);
    let somewhere = chance.between(middle, feed.end());
    let (up_to, seals) =
        ((schedule.ending == Ending::UpTo).then_some(somewhere), schedule.ending == Ending::Sealing);
    let poison = (schedule.ending == Ending::Poisoned)
        .then(|| DataflowError { at: somewhere.min(feed.end() - 1), message: "division by zero".to_owned() });
    let below = poison.as_ref().map(|error| error.at).or(up_to).unwrap_or(u64::MAX);
    let oracle = Arc::new(Oracle::new(&feed.updates, feed.as_of, below));
    let closes = schedule.ending == Ending::InputsClose;
    let expiry = schedule.expiry;
    let first = SinkFacts {
        name: "a",
        feed: Arc::new(feed),
        up_to,
        seals,
        closes,
        poison,
        expiry,
        fed_by: None,
        oracle,
    };
    let fed =
        schedule.chained.then(|| SinkFacts { name: "b", fed_by: Some(0), closes: false, ..first.clone() });
    [Some(first), fed].into_iter().flatten().collect()
}

async fn simulate(schedule: Schedule) -> Report {
    let sinks = sinks(&schedule);
    let kind = format!(
        "{:?}{}{}, {} replicas {:?}, {} ticks of {} ms",
        schedule.ending,
        if schedule.orderly { ", orderly" } else { "" },
        match (schedule.chained, schedule.expiry) {
            (true, _) => ", chained",
            (false, Some(_)) => ", expiring",
            (false, None) => "",
        },
        schedule.replicas.len(),
        schedule.replicas.iter().map(|replica| replica.processes.clone()).collect::<Vec<_>>(),
        schedule.feed.ticks,
        schedule.period_ms,
    );
    let world = Arc::new(World::new(schedule, sinks));
    world.say("world", kind.clone());
    let mut actors = JoinSet::new();
    tokio::select! { biased;
        () = world.violated() => {}
        () = Box::pin(play(&world, &mut actors)) => {}
        () = tokio::time::sleep(STALL) => {
            world.check("world", ensure(false, Invariant::I12, || "the run does not come to its end".to_owned()));
        }
    }
    actors.shutdown().await;
    world.end();
    let virtual_ms = world.now_ms();
    let Told { history, faults, counts, violation } = world.take();
    let violation = violation.map(|found| Violated { invariant: found.invariant.name(), what: found.what });
    let seed = world.schedule.seed;
    Report { seed, kind, faults, counts, hash: hash_of(&history), history, virtual_ms, violation }
}

/// Whoever sets up, and looks at the end: nothing goes wrong for it.
struct Operator {
    world: Arc<World>,
    process: Process,
}

async fn play(world: &Arc<World>, actors: &mut JoinSet<()>) {
    let config =
        world.schedule.replicas.first().map_or_else(StashConfig::default, |shape| shape.config.clone());
    let Some(process) = Process::start(world, "operator", config.clone()).await else { return };
    let operator = Operator { world: Arc::clone(world), process };
    if let Err(error) = operator.declare().await {
        let what = || format!("the sinks were not declared: {error}");
        return world.check("operator", ensure(false, Invariant::I24, what));
    }
    let consumers = consumers(world, &config);
    // Those of the first hour are there before anything is written, so that they hold it.
    operator.register(&consumers).await;
    world.unleash();
    for consumer in consumers.clone() {
        actors.spawn(consumer.live());
    }
    for sink in 0..world.sinks.len() {
        for (place, shape) in world.schedule.replicas.iter().enumerate() {
            let (world, shape) = (Arc::clone(world), shape.clone());
            actors.spawn(Replica { world, sink, place, shape }.live());
        }
    }
    actors.spawn(housekeeping::compact(Arc::clone(world), config.clone()));
    if !world.schedule.orderly {
        actors.spawn(housekeeping::sweep(Arc::clone(world), config.clone()));
    }
    if world.schedule.outages {
        actors.spawn(housekeeping::outages(Arc::clone(world)));
    }
    if world.schedule.clock_jumps {
        actors.spawn(housekeeping::jump(Arc::clone(world)));
    }
    operator.end_the_sink().await;
    let chaos = ms(world.schedule.chaos());
    pause(chaos.saturating_sub(world.now_ms())).await;
    // Of a small dataflow little is asked, and little of it fails: it goes on until enough has.
    while world.faults() < FAULTS_MIN && world.now_ms() < chaos.saturating_mul(PATIENCE) {
        pause(world.schedule.period_ms).await;
    }
    world.heal();
    world.enter(Phase::Healed);
    world.wake_all();
    operator.progress(&consumers).await;
    world.enter(Phase::Stopping);
    operator.rest(actors, &consumers).await;
    world.enter(Phase::Releasing);
    operator.release(&consumers).await;
    world.enter(Phase::Over);
    while let Some(joined) = actors.join_next().await {
        if let Err(error) = joined {
            world.panicked("an actor", error.is_panic());
        }
    }
    consumers.iter().for_each(Consumer::compare);
    operator.process.close(world).await;
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn consumers(world: &Arc<World>, config: &StashConfig) -> Vec<Consumer> {
    let consumer = |sink: usize, (place, shape): (usize, &ConsumerShape)| Consumer {
        world: Arc::clone(world),
        sink,
        name: format!("{}{place}", if sink == 0 { "consumer-" } else { "consumer-b" }),
        shape: *shape,
        config: config.clone(),
        kept: Arc::default(),
        tried: Arc::default(),
    };
    let of =
        |sink: usize| world.schedule.consumers.iter().enumerate().map(move |shape| consumer(sink, shape));
    (0..world.sinks.len()).flat_map(of).collect()
}

impl Operator {
    async fn declare(&self) -> Result<(), Error> {
        for (place, facts) in self.world.sinks.iter().enumerate() {
            let sink = self.process.stash.declare_sink(facts.spec()?).await?;
            self.world.watch.declared(sink.shard(), sink.id(), place);
        }
        Ok(())
    }

    async fn register(&self, consumers: &[Consumer]) {
        let early = consumers.iter().filter(|consumer| consumer.shape.comes_ms == 0);
        let named = early.map(|consumer| (consumer.sink, consumer.name.clone()));
        let sources = self.world.sinks.iter().filter_map(|facts| facts.fed_by).flat_map(|feeder| {
            (0..self.world.schedule.replicas.len())
                .map(move |place| (feeder, source_name(&format!("br{place}"))))
        });
        for (sink, name) in named.chain(sources) {
            let Some(facts) = self.world.sinks.get(sink) else { continue };
            let Some(sink) = self.process.sink(facts.name).await else { continue };
            let registered = again(|| sink.subscribe(&name, stash::StartAt::Beginning)).await;
            if let Err(error) = registered {
                self.world.say("operator", format!("{name}: {error}"));
            }
        }
    }

    /// Drops the sink while everybody is at work, where the run wants that.
    async fn end_the_sink(&self) {
        let ending = self.world.schedule.ending;
        if !matches!(ending, Ending::GoingAway | Ending::Dropped) {
            return;
        }
        let chaos = ms(self.world.schedule.chaos());
        let wait = self.world.chance(Concern::Housekeeping).between(chaos / 2, chaos);
        pause(wait).await;
        if ending == Ending::GoingAway {
            self.world.go_away(0);
            self.world.fault("operator", "going away", "the dataflow drops the sink");
            let wait = self.world.chance(Concern::Housekeeping).between(0, 3000);
            pause(wait).await;
        }
        let Some(sink) = self.process.sink("a").await else { return };
        self.world.fault("operator", "drop", "the sink is dropped");
        let dropped = again(|| sink.drop_sink()).await;
        self.world.count("sink dropped");
        self.world.say("operator", format!("dropped: {dropped:?}"));
    }

    fn is_dropped(&self) -> bool {
        matches!(self.world.schedule.ending, Ending::GoingAway | Ending::Dropped)
    }

    /// With a live replica and everything healed, the chain comes to its end, and consumers read all of it (I12).
    async fn progress(&self, consumers: &[Consumer]) {
        /// What it may take, in milliseconds: leases to run out, deletes that were put off.
        const BOUND_MS: u64 = 120_000;
        let begun = self.world.now_ms();
        let mut chains = Vec::new();
        loop {
            chains.clear();
            let mut done = true;
            for (sink, place) in self.world.watch.sinks() {
                let (Some(facts), Ok(head)) =
                    (self.world.sinks.get(place), self.world.truth.head(sink).await)
                else {
                    continue;
                };
                let poisoned = matches!(head.status, stash::HeadStatus::Poisoned(_));
                done &= head.upper >= facts.end() && (facts.poison.is_none() || poisoned);
                let mut read = consumers.iter().filter(|consumer| consumer.sink == place);
                done &= read.all(|consumer| lock(&consumer.kept).position.0 >= head.upper);
                chains.push((head.upper, facts.end(), poisoned));
            }
            if done || self.is_dropped() {
                return;
            }
            if self.world.now_ms().saturating_sub(begun) > BOUND_MS {
                break;
            }
            pause(100).await;
        }
        for (upper, end, poisoned) in chains {
            self.world.check("operator", i12_progress(upper, end, poisoned && upper == end));
        }
        let behind = consumers.iter().map(|consumer| (&consumer.name, lock(&consumer.kept).position.0));
        let what = behind.map(|(name, at)| format!("{name} stands at {at}")).collect::<Vec<_>>().join(", ");
        self.world
            .check("operator", ensure(false, Invariant::I12, || format!("consumers do not follow: {what}")));
    }

    /// Writers have ended: sweeps and drains until nothing changes, then what is listed is what is referenced (I17).
    async fn rest(&self, actors: &mut JoinSet<()>, consumers: &[Consumer]) {
        let staying = consumers.len();
        while actors.len() > staying {
            if let Some(Err(error)) = actors.join_next().await {
                self.world.panicked("an actor", error.is_panic());
            }
        }
        // What is on its way lands; leases run out.
        pause(15_000).await;
        for (sink, _) in self.world.watch.sinks() {
            self.close_what_ran_out(sink).await;
        }
        let swept = self.sweep_until_nothing().await;
        if self.world.schedule.orderly {
            self.world.check("operator", i17_nothing_to_sweep(swept));
        }
        self.look().await;
        for (sink, _) in self.world.watch.sinks() {
            self.world.watch.rows(&self.world, "operator", sink).await;
        }
    }

    /// Nobody renews any more. Where the clock stepped back, leases take as much longer to run out.
    async fn close_what_ran_out(&self, sink: SinkId) {
        let catalog = self.process.stash.catalog();
        for _ in 0..LOOKS_MAX {
            let expired = catalog.expire(sink, true).await;
            self.world.say("operator", format!("closes what ran out: {expired:?}"));
            if catalog.incarnations(sink, false).await.is_ok_and(|open| open.is_empty()) {
                return;
            }
            pause(5_000).await;
        }
    }

    async fn sweep_until_nothing(&self) -> Vec<String> {
        let mut found = Vec::new();
        for _ in 0..50 {
            let mut busy = false;
            for facts in &self.world.sinks {
                let Ok(sink) = self.process.stash.sink_or_dropped(facts.name).await else { continue };
                if let Ok(report) = again(|| sink.sweep()).await {
                    let n = report.garbage + report.uploads_removed;
                    busy |= n > 0;
                    self.world.count_many("swept at rest", n);
                    if n > 0 {
                        found.push(format!("{report:?}"));
                    }
                    let foreign = || format!("foreign objects: {:?}", report.foreign);
                    self.world.check("operator", ensure(report.foreign.is_empty(), Invariant::I23, foreign));
                }
            }
            let _ = again(|| self.process.stash.drain_deletions()).await;
            let queued = self.world.truth.deletions_queued(None).await.unwrap_or(0);
            if !busy && queued == 0 {
                break;
            }
            pause(10_000).await;
        }
        found
    }

    /// What is listed is what is referenced, nothing is queued, no upload is left.
    async fn look(&self) {
        let listed: BTreeSet<_> = self.world.store.parts().into_keys().collect();
        let mut referenced = BTreeSet::new();
        for (sink, _) in self.world.watch.sinks() {
            let (keys, queued) = self.world.watch.owners(&self.world, sink).await;
            referenced.extend(keys);
            let left = || format!("{queued} keys are queued at rest");
            self.world.check("operator", ensure(queued == 0, Invariant::I17, left));
        }
        let (more, less) = (listed.difference(&referenced).copied(), referenced.difference(&listed).copied());
        self.world.say("operator", format!("stored {}, referenced {}", listed.len(), referenced.len()));
        self.world.say("operator", format!("leaked: {}; missing: {}", say_parts(more), say_parts(less)));
        self.world.check("operator", i17_no_leak(&listed, &referenced));
        let uploads = self.world.store.uploads();
        self.world.check(
            "operator",
            ensure(uploads.is_empty(), Invariant::I17, || format!("uploads: {uploads:?}")),
        );
    }

    /// Everything is acknowledged: the store is empty, but for the object that names the catalog.
    async fn release(&self, consumers: &[Consumer]) {
        for facts in self.world.sinks.iter().filter(|facts| facts.fed_by.is_some()) {
            let Some(feeder) = facts.fed_by.and_then(|place| self.world.sinks.get(place)) else { continue };
            let Some(sink) = self.process.sink(feeder.name).await else { continue };
            for place in 0..self.world.schedule.replicas.len() {
                let name = source_name(&format!("br{place}"));
                let _ = again(|| sink.unregister_consumer(&name)).await;
            }
        }
        for _ in 0..2000 {
            let mut done = true;
            for (sink, place) in self.world.watch.sinks() {
                let Ok(head) = self.world.truth.head(sink).await else { continue };
                let mut read = consumers.iter().filter(|consumer| consumer.sink == place);
                done &= read.all(|consumer| lock(&consumer.kept).acked.0 >= head.upper) || self.is_dropped();
            }
            if done {
                break;
            }
            pause(100).await;
        }
        self.sweep_until_nothing().await;
        let left: Vec<_> = self.world.store.parts().into_keys().collect();
        let what = || format!("all is acknowledged, and stored is {}", say_parts(left.clone()));
        self.world.check("operator", ensure(left.is_empty(), Invariant::I17, what));
        let others = self.world.store.others();
        let own = others.iter().map(String::as_str).eq(["stash.json"]);
        self.world.check("operator", ensure(own, Invariant::I17, || format!("besides parts: {others:?}")));
        for (sink, _) in self.world.watch.sinks() {
            let head = self.world.truth.head(sink).await;
            let released = head.as_ref().is_ok_and(|head| head.released.max(head.expired) >= head.upper);
            let ok = released || self.is_dropped();
            self.world.check("operator", ensure(ok, Invariant::I13, || format!("not released: {head:?}")));
        }
    }
}
