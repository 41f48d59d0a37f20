//! The world of a run: what all actors share.
//!
//! - The *truth* is the catalog itself, without a process in between. Only checks and the final look read it; actors
//!   go through [`crate::link::CatalogLink`].
//! - A call to store or catalog has a *fate* that is drawn when it is made: how long it takes, whether it happens, what
//!   its caller is told. Errors are honest: what happened is never reported as surely not done.
//! - [`World::carry`] plays the fate. What is on its way when its process dies may still arrive.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use stash_catalog::testing::SeededIds;
use stash_catalog::{Catalog, IncarnationState};
use stash_chain::invariants::{Checked, Invariant, Violation, ensure};
use stash_types::{Clock, Frontier, IncarnationId};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use crate::catalog::ModelCatalog;
use crate::chance::{Chance, Concern};
use crate::clock::SimClock;
use crate::history::Event;
use crate::life::Life;
use crate::network::Network;
use crate::schedule::{Rates, Schedule};
use crate::signal::Signal;
use crate::sink::SinkFacts;
use crate::store::StoreState;
use crate::watch::Watch;

/// Locks what is shared; there is one thread only, so nobody else holds it.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The streams of choices of a run.
#[derive(Debug)]
struct Chances {
    store: Mutex<Chance>,
    catalog: Mutex<Chance>,
    network: Mutex<Chance>,
    life: Mutex<Chance>,
    replica: Mutex<Chance>,
    consumer: Mutex<Chance>,
    housekeeping: Mutex<Chance>,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    /// How long it takes until it happens, or would.
    before_ms: u64,
    /// How long its answer takes.
    after_ms: u64,
    /// Whether it arrives although its process died meanwhile.
    survives: bool,
    kind: FateKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FateKind {
    Done,
    Refused,
    LostRequest,
    LostReply,
    Late(u64),
}

/// What a caller is told.
#[derive(Debug)]
pub(crate) enum Carried<T> {
    /// It happened.
    Done(T),
    /// It surely did not.
    Refused,
    /// Nobody knows.
    Unknown,
    /// Nobody knows, and it is still on its way.
    Late,
}

/// What kind of call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// To the store.
    Store(&'static str),
    /// A create-only PUT: the only call that may arrive long after its caller gave up waiting.
    Put,
    /// Reads the catalog.
    Read(&'static str),
    /// Writes the catalog.
    Write(&'static str),
}

/// What all actors share.
pub(crate) struct World {
    pub(crate) schedule: Schedule,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) ids: Arc<SeededIds>,
    pub(crate) truth: Arc<dyn Catalog>,
    pub(crate) store: StoreState,
    pub(crate) network: Network,
    pub(crate) sinks: Vec<SinkFacts>,
    pub(crate) watch: Watch,
    chances: Chances,
    faulty: AtomicBool,
    store_out: AtomicBool,
    catalog_out: AtomicBool,
    history: Mutex<Vec<Event>>,
    faults: Mutex<BTreeMap<String, u64>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    violation: Mutex<Option<Violation>>,
    ended: Notify,
    tasks: Mutex<JoinSet<()>>,
    processes: AtomicU64,
    phase: Signal<Phase>,
    lives: Mutex<Vec<Weak<Life>>>,
    inputs: Mutex<BTreeMap<usize, Inputs>>,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Things go wrong.
    Chaos,
    /// Nothing goes wrong any more; the chain comes to its end.
    Healed,
    /// Writers end; consumers have read all.
    Stopping,
    /// Consumers acknowledge all.
    Releasing,
    /// All end.
    Over,
}

/// What a run tells at its end.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) history: Vec<Event>,
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) violation: Option<Violation>,
}

/// What became of the inputs of a sink.
#[derive(Clone, Copy, Debug, Default)]
struct Inputs {
    /// Below this they forgot their history.
    compacted: u64,
    going_away: bool,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("seed", &self.schedule.seed).finish_non_exhaustive()
    }
}

impl World {
    /// A world in which nothing has happened yet.
    pub(crate) fn new(schedule: Schedule, sinks: Vec<SinkFacts>) -> World {
        let seed = schedule.seed;
        let stream = |concern| Mutex::new(Chance::of(seed, concern));
        let clock = Arc::new(SimClock::begin());
        let ids = Arc::new(SeededIds::new(Chance::of(seed, Concern::Ids).draw()));
        let truth = ModelCatalog::new(Arc::clone(&clock) as Arc<dyn Clock>, Arc::clone(&ids) as _);
        World {
            schedule,
            clock,
            ids,
            truth: Arc::new(truth),
            store: StoreState::default(),
            network: Network::default(),
            sinks,
            watch: Watch::default(),
            chances: Chances {
                store: stream(Concern::Store),
                catalog: stream(Concern::Catalog),
                network: stream(Concern::Network),
                life: stream(Concern::Life),
                replica: stream(Concern::Replica),
                consumer: stream(Concern::Consumer),
                housekeeping: stream(Concern::Housekeeping),
            },
            faulty: AtomicBool::new(false),
            store_out: AtomicBool::new(false),
            catalog_out: AtomicBool::new(false),
            history: Mutex::default(),
            faults: Mutex::default(),
            counts: Mutex::default(),
            violation: Mutex::default(),
            ended: Notify::new(),
            tasks: Mutex::default(),
            processes: AtomicU64::new(0),
            phase: Signal::new(Phase::Chaos),
            lives: Mutex::default(),
            inputs: Mutex::default(),
        }
    }

    /// How far the run is.
    pub(crate) fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Goes on to the next phase.
    pub(crate) fn enter(&self, phase: Phase) {
        self.say("world", format!("{phase:?}"));
        self.phase.turn(|_| phase);
    }

    /// Returns once the run is that far.
    pub(crate) async fn reaches(&self, phase: Phase) {
        self.phase.until(|now| now >= phase).await;
    }

    /// A process lives.
    pub(crate) fn born(&self, life: &Arc<Life>) {
        lock(&self.lives).push(Arc::downgrade(life));
    }

    /// Whoever stands still goes on.
    pub(crate) fn wake_all(&self) {
        let lives: Vec<_> = lock(&self.lives).iter().filter_map(Weak::upgrade).collect();
        lives.iter().for_each(|life| life.go_on());
    }

    /// Below which time the inputs of a sink forgot their history.
    pub(crate) fn compacted(&self, sink: usize) -> Frontier {
        Frontier::at(lock(&self.inputs).get(&sink).map_or(0, |inputs| inputs.compacted))
    }

    /// The inputs of a sink forget what lies below the hold.
    pub(crate) fn compact(&self, sink: usize, hold: Frontier) {
        lock(&self.inputs).entry(sink).or_default().compacted = hold.as_u64();
    }

    /// Whether the dataflow said that the sink is going away.
    pub(crate) fn is_going_away(&self, sink: usize) -> bool {
        lock(&self.inputs).get(&sink).is_some_and(|inputs| inputs.going_away)
    }

    /// The dataflow says that the sink is going away.
    pub(crate) fn go_away(&self, sink: usize) {
        lock(&self.inputs).entry(sink).or_default().going_away = true;
    }

    /// Whether an incarnation is open and none of its batches is resolved.
    pub(crate) async fn is_pending(&self, sink: usize, incarnation: IncarnationId) -> bool {
        let Some((id, _)) = self.watch.sinks().into_iter().find(|(_, place)| *place == sink) else {
            return false;
        };
        let Ok(view) = self.truth.view(id, incarnation).await else { return false };
        let row = view.incarnation;
        row.state == IncarnationState::Open && row.resolved == Frontier::at(row.as_of)
    }

    /// A stream of choices.
    pub(crate) fn chance(&self, concern: Concern) -> MutexGuard<'_, Chance> {
        lock(match concern {
            Concern::Store => &self.chances.store,
            Concern::Catalog => &self.chances.catalog,
            Concern::Network => &self.chances.network,
            Concern::Life => &self.chances.life,
            Concern::Replica => &self.chances.replica,
            Concern::Consumer => &self.chances.consumer,
            Concern::Housekeeping | Concern::Schedule | Concern::Feed | Concern::Ids => {
                &self.chances.housekeeping
            }
        })
    }

    /// Milliseconds of virtual time since the beginning.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.virtual_ms()
    }

    /// Whether things go wrong now.
    pub(crate) fn is_faulty(&self) -> bool {
        self.faulty.load(Ordering::Acquire)
    }

    /// Lets things go wrong from now on.
    pub(crate) fn unleash(&self) {
        self.faulty.store(true, Ordering::Release);
    }

    /// Nothing goes wrong from now on.
    pub(crate) fn heal(&self) {
        self.faulty.store(false, Ordering::Release);
        self.store_out.store(false, Ordering::Release);
        self.catalog_out.store(false, Ordering::Release);
        self.clock.heal();
    }

    /// Puts store or catalog out, or in again.
    pub(crate) fn set_out(&self, store: bool, out: bool) {
        let which = if store { &self.store_out } else { &self.catalog_out };
        which.store(out && self.is_faulty(), Ordering::Release);
    }

    /// A name for the next process.
    pub(crate) fn name_process(&self, role: &str) -> String {
        format!("{role}#{}", self.processes.fetch_add(1, Ordering::AcqRel))
    }

    /// Records an event.
    pub(crate) fn say(&self, actor: &str, what: impl Into<String>) {
        let event = Event { at_ms: self.now_ms(), actor: actor.to_owned(), what: what.into() };
        lock(&self.history).push(event);
    }

    /// Records a fault of this kind.
    pub(crate) fn fault(&self, actor: &str, kind: &str, what: impl fmt::Display) {
        *lock(&self.faults).entry(kind.to_owned()).or_default() += 1;
        self.say(actor, format!("! {kind}: {what}"));
    }

    /// How many faults there were so far.
    pub(crate) fn faults(&self) -> u64 {
        lock(&self.faults).values().sum()
    }

    /// Counts something of the product that happened.
    pub(crate) fn count(&self, what: &'static str) {
        self.count_many(what, 1);
    }

    /// Counts several.
    pub(crate) fn count_many(&self, what: &'static str, n: u64) {
        *lock(&self.counts).entry(what).or_default() += n;
    }

    /// Notes the first violation, which ends the run.
    pub(crate) fn check(&self, actor: &str, checked: Checked) {
        if let Err(violation) = checked {
            self.say(actor, format!("VIOLATION {violation}"));
            lock(&self.violation).get_or_insert(violation);
            self.ended.notify_waiters();
        }
    }

    /// A task ended otherwise than by itself.
    pub(crate) fn panicked(&self, actor: &str, panicked: bool) {
        let checked = ensure(!panicked, Invariant::I24, || "a panic escaped".to_owned());
        self.check(actor, checked);
    }

    /// Whether something was violated.
    pub(crate) fn is_violated(&self) -> bool {
        lock(&self.violation).is_some()
    }

    /// Returns once something was violated.
    pub(crate) async fn violated(&self) {
        let ended = self.ended.notified();
        tokio::pin!(ended);
        ended.as_mut().enable();
        if !self.is_violated() {
            ended.await;
        }
    }

    /// What the run tells.
    pub(crate) fn take(&self) -> Told {
        Told {
            history: std::mem::take(&mut *lock(&self.history)),
            faults: std::mem::take(&mut *lock(&self.faults)),
            counts: std::mem::take(&mut *lock(&self.counts)),
            violation: lock(&self.violation).take(),
        }
    }

    /// Runs something that nobody waits for: what is on its way.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }

    /// Ends everything that is still on its way.
    pub(crate) fn end(&self) {
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        drop(tasks);
    }

    fn fate(&self, call: Call) -> Fate {
        let concern = match call {
            Call::Store(_) | Call::Put => Concern::Store,
            Call::Read(_) | Call::Write(_) => Concern::Catalog,
        };
        let mut chance = self.chance(concern);
        let usual = self.schedule.call_ms;
        if !self.is_faulty() {
            return Fate { before_ms: 1, after_ms: 1, survives: false, kind: FateKind::Done };
        }
        let mut takes =
            || if chance.per_mille(30) { chance.between(50, 900) } else { chance.between(0, usual) };
        let (before_ms, after_ms) = (takes(), takes());
        let survives = chance.per_mille(500);
        let Rates { refused, lost_request, lost_reply, late, .. } = self.schedule.rates;
        let out = match concern {
            Concern::Store => self.store_out.load(Ordering::Acquire),
            _ => self.catalog_out.load(Ordering::Acquire),
        };
        if out {
            let kind = if chance.per_mille(700) { FateKind::Refused } else { FateKind::LostRequest };
            return Fate { before_ms, after_ms, survives, kind };
        }
        let draw = chance.below(1000);
        let kind = if draw < refused {
            FateKind::Refused
        } else if draw < refused + lost_request {
            FateKind::LostRequest
        } else if draw < refused + lost_request + lost_reply {
            FateKind::LostReply
        } else if call == Call::Put && draw < refused + lost_request + lost_reply + late {
            FateKind::Late(chance.between(100, 8000))
        } else {
            FateKind::Done
        };
        Fate { before_ms, after_ms, survives, kind }
    }

    /// Plays the fate of a call of `life`: `effect` is what it does when it arrives.
    pub(crate) async fn carry<T: Send + 'static>(
        &self,
        life: &Life,
        call: Call,
        about: impl fmt::Display,
        effect: impl Future<Output = T> + Send + 'static,
    ) -> Carried<T> {
        life.gate().await;
        life.count_call();
        let Fate { before_ms, after_ms, survives, kind } = self.fate(call);
        let name = match call {
            Call::Store(name) => format!("store {name}"),
            Call::Put => "store put".to_owned(),
            Call::Read(name) | Call::Write(name) => format!("catalog {name}"),
        };
        match kind {
            FateKind::Done => {}
            FateKind::Refused => self.fault(life.name(), "refused", format_args!("{name} {about}")),
            FateKind::LostRequest => self.fault(life.name(), "lost request", format_args!("{name} {about}")),
            FateKind::LostReply => self.fault(life.name(), "lost reply", format_args!("{name} {about}")),
            FateKind::Late(ms) => {
                self.fault(life.name(), "late", format_args!("{name} {about} lands {ms} ms late"));
            }
        }
        let answer = match kind {
            FateKind::Refused => {
                pause(before_ms).await;
                Carried::Refused
            }
            FateKind::LostRequest => {
                pause(before_ms + after_ms).await;
                Carried::Unknown
            }
            FateKind::Late(ms) => {
                self.spawn(async move {
                    pause(before_ms + ms).await;
                    effect.await;
                });
                pause(before_ms + after_ms).await;
                Carried::Late
            }
            FateKind::Done | FateKind::LostReply => {
                let done = if survives {
                    let (answer, receiver) = oneshot::channel();
                    self.spawn(async move {
                        pause(before_ms).await;
                        let _ = answer.send(effect.await);
                    });
                    receiver.await.ok()
                } else {
                    pause(before_ms).await;
                    if life.is_dead() {
                        std::future::pending::<()>().await;
                    }
                    Some(effect.await)
                };
                pause(after_ms).await;
                match (done, kind) {
                    (Some(done), FateKind::Done) => Carried::Done(done),
                    _ => Carried::Unknown,
                }
            }
        };
        life.gate().await;
        answer
    }
}

/// Lets so much virtual time pass.
pub(crate) async fn pause(ms: u64) {
    if ms > 0 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}
