//! A consumer: reads a sink at its own pace, acknowledges, dies and comes back.
//!
//! Each delivery is compared with the oracle when it is read (I11), with its times (I3), and with what anybody was ever
//! given from the same place (I21). What was delivered up to what is acknowledged is kept, as a consumer would keep it
//! durably, and compared as a whole at the end. A session that was replaced goes on for a while, to be fenced.

use std::sync::{Arc, Mutex};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, UInt64Type};
use stash::{
    Absence, CatalogError, Delivery, Error, ErrorKind, Sink, StartAt, StashConfig, Subscription, TryNext,
};
use stash_chain::invariants::{Invariant, ensure, i3_real_times, i11_content, i13_monotone};
use stash_types::Frontier;

use crate::chance::{Chance, Concern};
use crate::oracle::Content;
use crate::process::{Process, again};
use crate::schedule::ConsumerShape;
use crate::sink::SinkFacts;
use crate::world::{Phase, World, lock, pause};

/// A consumer of one sink.
#[derive(Clone)]
pub(crate) struct Consumer {
    pub(crate) world: Arc<World>,
    pub(crate) sink: usize,
    pub(crate) name: String,
    pub(crate) shape: ConsumerShape,
    pub(crate) config: StashConfig,
    pub(crate) kept: Arc<Mutex<Kept>>,
    /// What any session of it tried to acknowledge.
    pub(crate) tried: Arc<Mutex<Frontier0>>,
}

/// What a consumer keeps over its deaths.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Where it began.
    pub(crate) begun: Option<Frontier>,
    /// What it acknowledged for certain.
    pub(crate) acked: Frontier0,
    /// What was delivered up to what it acknowledged.
    content: Content,
    /// Where it stands.
    pub(crate) position: Frontier0,
    /// Whether it was told that nothing follows.
    pub(crate) ended: bool,
    /// Whether it was told that what it stands before has expired.
    expired: bool,
}

/// A frontier that begins at the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frontier0(pub(crate) Frontier);

impl Default for Frontier0 {
    fn default() -> Frontier0 {
        Frontier0(Frontier::MIN)
    }
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Session {
    /// Another session, or an error: subscribe again.
    Again,
    /// Nothing follows, or the sink is gone.
    Over,
}

impl Consumer {
    /// Lives until the run is over.
    pub(crate) async fn live(self) {
        let mut chance = self.world.chance(Concern::Consumer).split();
        pause(self.shape.comes_ms).await;
        loop {
            let Some(process) = Process::start(&self.world, &self.name, self.config.clone()).await else {
                continue;
            };
            if self.world.phase() == Phase::Chaos && !self.world.schedule.orderly && chance.per_mille(300) {
                process.life.doom(chance.between(5, 150));
            }
            let die_in = match self.world.schedule.death_ms {
                0 => u64::MAX / 2,
                mean => chance.between(mean, mean * 4),
            };
            let may_die = self.world.phase() == Phase::Chaos && !self.world.schedule.orderly;
            let replace = may_die && chance.per_mille(200);
            let session = Session::Again;
            let mut reading = chance.split();
            let session = tokio::select! { biased;
                () = process.life.died() => session,
                () = self.world.reaches(Phase::Over) => Session::Over,
                () = pause(die_in.min(1 << 40)), if may_die && !replace => {
                    process.life.die();
                    session
                }
                () = pause(die_in.min(1 << 40)), if replace => session,
                ended = self.session(&process, &mut reading) => ended,
            };
            if session == Session::Over {
                self.world.reaches(Phase::Over).await;
                process.close(&self.world).await;
                return;
            }
            if replace && !process.life.is_dead() && self.world.phase() == Phase::Chaos {
                self.haunt(process, &mut chance);
            } else if process.life.is_dead() {
                self.world.count("consumer died");
                process.kill(&self.world, "a consumer");
            } else {
                process.close(&self.world).await;
            }
            pause(chance.between(20, 600)).await;
        }
    }

    /// A session that does not know that another takes its place.
    fn haunt(&self, process: Process, chance: &mut Chance) {
        self.world.fault(&self.name, "two sessions", "an older one goes on beside the new one");
        let ghost = Consumer { kept: Arc::default(), ..self.clone() };
        let mut reading = chance.split();
        let world = Arc::clone(&self.world);
        self.world.spawn(async move {
            tokio::select! { biased;
                _ = ghost.session(&process, &mut reading) => {}
                () = pause(5000) => {}
                () = world.reaches(Phase::Stopping) => {}
            }
            process.kill(&world, "a replaced consumer");
        });
    }

    async fn session(&self, process: &Process, chance: &mut Chance) -> Session {
        let Some(facts) = self.world.sinks.get(self.sink) else { return Session::Over };
        let Some(sink) = process.sink(facts.name).await else { return Session::Over };
        match self.read(process, facts, &sink, chance).await {
            Ok(session) => session,
            Err(error) => self.failed(process.life.name(), &error),
        }
    }

    fn failed(&self, who: &str, error: &Error) -> Session {
        self.world.say(who, format!("{}: {error}", self.name));
        match error {
            Error::Catalog(CatalogError::SessionFenced { .. }) => self.world.count("fenced session"),
            Error::Absent(Absence::Dropped { .. }) | Error::Catalog(CatalogError::SinkDropped { .. }) => {
                return Session::Over;
            }
            Error::Catalog(CatalogError::InvalidUsage(stash::Misuse::NoSuchConsumer { .. })) => {}
            // A replaced session may look for what its successor acknowledged meanwhile.
            Error::Absent(Absence::Acknowledged { .. }) => self.world.count("read what was acknowledged"),
            Error::Absent(Absence::Expired { .. }) if self.world.schedule.expiry.is_some() => {
                self.world.count("read what expired");
                lock(&self.kept).expired = true;
            }
            _ if error.kind() == ErrorKind::Retry => {}
            Error::Absent(Absence::Lost { .. } | Absence::NeverWritten { .. }) => {
                self.world.check(who, ensure(false, Invariant::I15, || error.to_string()));
            }
            Error::Absent(_) | Error::Batch(_) => {
                self.world.check(who, ensure(false, Invariant::I22, || error.to_string()));
            }
            _ => self.world.check(who, ensure(false, Invariant::I4, || error.to_string())),
        }
        Session::Again
    }

    /// Where it begins, if it is new: who comes late takes what is there.
    fn start(&self, chance: &mut Chance) -> StartAt {
        match self.shape.comes_ms {
            _ if lock(&self.kept).expired => StartAt::SkipExpired,
            0 => StartAt::Beginning,
            _ => chance.pick(StartAt::Earliest, &[StartAt::Now]),
        }
    }

    async fn read(
        &self,
        process: &Process,
        facts: &SinkFacts,
        sink: &Sink,
        chance: &mut Chance,
    ) -> Result<Session, Error> {
        let who = process.life.name();
        let start = self.start(chance);
        let mut subscription = again(|| sink.subscribe(&self.name, start)).await?;
        let begun = subscription.position();
        self.world.say(who, format!("{} goes on at {begun}", self.name));
        let expired = self.world.truth.head(sink.id()).await.map_or(Frontier::MIN, |head| head.expired);
        {
            let mut kept = lock(&self.kept);
            // What expired is gone for it: it takes the gap upon itself, and begins behind it.
            if kept.expired && begun > kept.acked.0 && expired > kept.acked.0 {
                self.world.count("skipped what expired");
                *kept = Kept::default();
            }
            kept.expired = false;
            if kept.begun.is_none() {
                (kept.begun, kept.acked.0, kept.position.0) = (Some(begun), begun, begun);
                let mut tried = lock(&self.tried);
                tried.0 = tried.0.max(begun);
            }
            // A ghost keeps nothing of what others acknowledged.
            self.world.check(who, i13_monotone("where a consumer goes on", [kept.acked.0, begun]));
            let tried = lock(&self.tried).0.max(kept.acked.0);
            self.world.check(
                who,
                ensure(begun <= tried, Invariant::I13, || {
                    format!("{} goes on at {begun}, and acknowledged at most {tried}", self.name)
                }),
            );
            self.keep(&mut kept, facts, begun);
        }
        self.follow(who, facts, &mut subscription, chance).await
    }

    /// What is acknowledged is kept with its content. The deliveries up to there were each compared before.
    fn keep(&self, kept: &mut Kept, facts: &SinkFacts, acked: Frontier) {
        if acked > kept.acked.0 {
            // It was acknowledged by a call whose answer was lost: what it was given was checked when it was read.
            let missing = facts.oracle.between(kept.acked.0.as_u64(), acked.as_u64());
            kept.content.extend(missing);
            kept.acked.0 = acked;
        }
    }

    async fn follow(
        &self,
        who: &str,
        facts: &SinkFacts,
        subscription: &mut Subscription,
        chance: &mut Chance,
    ) -> Result<Session, Error> {
        let mut pending: Vec<(Frontier, Content)> = Vec::new();
        let (mut batches, mut hold_back) =
            (chance.between(1, self.shape.batches_an_ack), chance.per_mille(500));
        loop {
            lock(&self.kept).position.0 = subscription.position();
            let from = subscription.position();
            match subscription.try_next().await {
                Ok(TryNext::Delivery(delivery)) => {
                    let follows = delivery.lower() == from;
                    let what = || {
                        format!("a delivery begins at {}, the one before ended at {from}", delivery.lower())
                    };
                    self.world.check(who, ensure(follows, Invariant::I4, what));
                    let content = self.take(who, facts, &delivery, chance).await?;
                    pending.push((delivery.upper(), content));
                }
                Ok(TryNext::Pending) => {
                    let catalog = Arc::clone(subscription.sink().stash().catalog());
                    let seen = catalog.revision().await.unwrap_or(0);
                    let _ = catalog.changed(seen, std::time::Duration::from_millis(500)).await;
                }
                Ok(TryNext::End) => lock(&self.kept).ended = true,
                Err(Error::Absent(Absence::Poisoned { error, .. })) => {
                    let told = facts.poison.as_ref().is_some_and(|poison| *poison == error);
                    let there = from == Frontier::at(error.at);
                    self.world.check(
                        who,
                        ensure(told && there, Invariant::I11, || {
                            format!("told of an error at {} while standing at {from}", error.at)
                        }),
                    );
                    lock(&self.kept).ended = true;
                }
                Err(error) if error.kind() == ErrorKind::Retry => {
                    pause(chance.between(10, 60)).await;
                    continue;
                }
                Err(error) => return Err(error),
            }
            lock(&self.kept).position.0 = subscription.position();
            let phase = self.world.phase();
            let all = phase >= Phase::Releasing;
            hold_back = hold_back && !all;
            let at_end = lock(&self.kept).ended;
            let due = all || (batches == 0 && !(hold_back && phase >= Phase::Healed));
            batches = batches.saturating_sub(1);
            if due && let Some((upper, _)) = pending.last() {
                let upper = *upper;
                self.acknowledge(who, subscription, upper, &mut pending).await?;
                batches = chance.between(0, self.shape.batches_an_ack);
            }
            if at_end || pending.is_empty() {
                pause(if all { 20 } else { 100 }).await;
            }
        }
    }

    /// Reads a delivery in full and compares it.
    async fn take(
        &self,
        who: &str,
        facts: &SinkFacts,
        delivery: &Delivery,
        chance: &mut Chance,
    ) -> Result<Content, Error> {
        pause(chance.between(0, self.shape.pace_ms)).await;
        let content = again(|| rows_of(delivery)).await?;
        self.world.count("delivered");
        let times = content.keys().map(|(_, time)| *time);
        self.world.check(who, i3_real_times(delivery.piece(), times));
        let expected = facts.oracle.between(delivery.lower().as_u64(), delivery.upper().as_u64());
        let named = |content: &Content| content.iter().map(|(key, diff)| (key.clone(), *diff)).collect();
        self.world.check(who, i11_content(&named(&expected), &named(&content)));
        if !delivery.is_empty() {
            let (lower, upper) = (delivery.lower(), delivery.upper());
            self.world.check(who, self.world.watch.delivered(self.sink, lower, upper, content.clone()));
        }
        Ok(content)
    }

    async fn acknowledge(
        &self,
        who: &str,
        subscription: &mut Subscription,
        upper: Frontier,
        pending: &mut Vec<(Frontier, Content)>,
    ) -> Result<(), Error> {
        {
            let mut tried = lock(&self.tried);
            tried.0 = tried.0.max(upper);
        }
        match subscription.acknowledge(upper).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Retry => {
                self.world.say(who, format!("acknowledging {upper}: {error}"));
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let mut kept = lock(&self.kept);
        if upper > kept.acked.0 {
            for (_, content) in pending.drain(..) {
                kept.content.extend(content);
            }
            kept.acked.0 = upper;
        }
        pending.clear();
        Ok(())
    }

    /// Compares all that it was given with the oracle.
    pub(crate) fn compare(&self) {
        let Some(facts) = self.world.sinks.get(self.sink) else { return };
        let kept = lock(&self.kept);
        let Some(begun) = kept.begun else { return };
        let expected = facts.oracle.between(begun.as_u64(), kept.acked.0.as_u64());
        self.world.check(&self.name, i11_content(&expected, &kept.content));
    }
}

/// The rows of a delivery.
pub(crate) async fn rows_of(delivery: &Delivery) -> Result<Content, Error> {
    let mut reader = delivery.read();
    let mut content = Content::new();
    while let Some(batch) = reader.next().await? {
        add_rows(&batch, &mut content);
    }
    Ok(content)
}

/// Adds the rows of a batch. An update that comes twice counts twice: the comparison finds it.
fn add_rows(batch: &RecordBatch, content: &mut Content) {
    let [keys, texts, times, diffs] = batch.columns() else { return };
    let (keys, texts) = (keys.as_primitive::<UInt64Type>(), texts.as_string::<i32>());
    let (times, diffs) = (times.as_primitive::<UInt64Type>(), diffs.as_primitive::<Int64Type>());
    for row in 0..batch.num_rows() {
        let text = (!texts.is_null(row)).then(|| texts.value(row).to_owned());
        *content.entry(((keys.value(row), text), times.value(row))).or_default() += diffs.value(row);
    }
}
