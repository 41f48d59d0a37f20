//! One rendering on one process: the loop that mints, merges and offers, and the workers that write shares.
//!
//! Everything that matters is done by the product: [`stash::Chain`] mints, merges and offers, [`stash::ShareWriter`]
//! writes, frames cross processes. Here is only what an engine adds: who does it when, on which updates, and what it
//! does about errors ([`stash::ErrorKind`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stash::{
    Chain, DataflowError, Error, ErrorKind, Incarnation, Mint, Minted, OwnedParts, Resolved, ShareMessage,
    ShareWriter, disarm,
};
use stash_chain::invariants::{Invariant, ensure, i1_contiguous, i2_complete, i8_in_order};
use stash_chain::{ChainError, Outcome};
use stash_types::fault::{Mutant, broken};
use stash_types::{Description, Frontier, Share, WorkerIndex};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::chance::{Chance, Concern, count};
use crate::feed::{Update, columns};
use crate::input::Input;
use crate::invariants::i10_snapshot_there;
use crate::life::Life;
use crate::network::{Address, Message, Packet, send};
use crate::schedule::ReplicaShape;
use crate::sink::SinkFacts;
use crate::store::short_id;
use crate::world::{World, pause};

/// Offers that fail for now are made again so often.
const OFFERS_MAX: u32 = 60;

/// How a rendering ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All was offered, and nothing is to come.
    Finished,
    /// The sink is going away, or was dropped.
    Gone,
    /// It is to be rendered anew.
    Failed(String),
}

/// What a worker made of its share.
#[derive(Debug)]
enum Made {
    Share(Box<ShareMessage<OwnedParts>>),
    /// It panicked or was cancelled: it says nothing.
    Vanished(String),
}

/// One process of a rendering.
pub(crate) struct Rendering {
    pub(crate) world: Arc<World>,
    pub(crate) life: Arc<Life>,
    pub(crate) at: Address,
    pub(crate) shape: ReplicaShape,
    pub(crate) input: Arc<Input>,
    pub(crate) incarnation: Arc<Incarnation>,
    /// Whether the replica rendered before, and nothing had been accepted: where a snapshot may be forgotten.
    pub(crate) restarted_at_start: bool,
}

/// What the minting process keeps to check itself.
struct Kept {
    /// The frontier that the minter was told of last.
    told: Frontier,
    minted: Vec<Description>,
    reported: BTreeMap<Description, Vec<WorkerIndex>>,
    resolved: Vec<(Description, Option<Outcome>)>,
}

impl Rendering {
    fn facts(&self) -> &SinkFacts {
        // The address was made from this list.
        self.world.sinks.get(self.at.sink).unwrap_or_else(|| unreachable!("sink {} of the run", self.at.sink))
    }

    fn name(&self) -> &str {
        self.life.name()
    }

    fn total_workers(&self) -> u32 {
        self.shape.processes.iter().sum()
    }

    /// The process that runs this worker.
    fn process_of(&self, worker: WorkerIndex) -> usize {
        let mut first = 0;
        for (process, workers) in self.shape.processes.iter().enumerate() {
            first += workers;
            if worker.0 < first {
                return process;
            }
        }
        0
    }

    /// Runs until it ends.
    pub(crate) async fn run(self, packets: mpsc::UnboundedReceiver<Packet>) -> Ended {
        let minting = self.process_of(self.incarnation.minting_worker());
        let mut jobs = JoinSet::new();
        let ended = if minting == self.at.process {
            match self.incarnation.chain() {
                Ok(chain) => self.mind(chain, packets, &mut jobs).await,
                Err(error) => Ended::Failed(error.to_string()),
            }
        } else {
            self.serve(minting, packets, &mut jobs).await
        };
        jobs.shutdown().await;
        ended
    }

    /// Serves the minting process: writes shares of what it mints, and sends them there.
    async fn serve(
        &self,
        minting: usize,
        mut packets: mpsc::UnboundedReceiver<Packet>,
        jobs: &mut JoinSet<()>,
    ) -> Ended {
        let (made, mut shares) = mpsc::unbounded_channel();
        let to = Address { process: minting, ..self.at };
        loop {
            tokio::select! { biased;
                packet = packets.recv() => {
                    let Some(Packet { incarnation, copy, message }) = packet else {
                        return Ended::Failed("nobody listens here any more".to_owned());
                    };
                    match message {
                        _ if incarnation != self.incarnation.id() || copy => self.world.count("stale message"),
                        Message::Minted(minted) => self.begin(minted, jobs, &made),
                        Message::PeerLost => return Ended::Failed("lost its peer".to_owned()),
                        Message::Share(_) => {}
                    }
                }
                share = shares.recv() => match share {
                    Some(Made::Share(share)) => {
                        self.kind(&share);
                        match disarm(*share) {
                            Ok(frame) => {
                                let id = self.incarnation.id();
                                send(&self.world, &self.life, to, id, Message::Share(frame)).await;
                            }
                            Err(error) => return Ended::Failed(error.to_string()),
                        }
                    }
                    Some(Made::Vanished(why)) => return Ended::Failed(why),
                    None => return Ended::Failed("its workers ended".to_owned()),
                },
            }
        }
    }

    /// Mints, merges and offers.
    async fn mind(
        &self,
        mut chain: Chain,
        mut packets: mpsc::UnboundedReceiver<Packet>,
        jobs: &mut JoinSet<()>,
    ) -> Ended {
        let (made, mut shares) = mpsc::unbounded_channel();
        let (mut failures, mut at_end) = (0, false);
        let mut kept =
            Kept { told: Frontier::MIN, minted: Vec::new(), reported: BTreeMap::new(), resolved: Vec::new() };
        let mut chance = self.world.chance(Concern::Replica).split();
        loop {
            let wait = Duration::from_millis(chance.between(5, self.world.schedule.period_ms));
            let taken = tokio::select! { biased;
                packet = packets.recv() => match packet {
                    Some(packet) => self.take(&mut chain, packet, &mut kept).await,
                    None => Err(Ended::Failed("nobody listens here any more".to_owned())),
                },
                share = shares.recv() => match share {
                    Some(Made::Share(share)) => {
                        self.kind(&share);
                        self.merge(&mut chain, *share, false, &mut kept).await
                    }
                    Some(Made::Vanished(why)) => Err(Ended::Failed(why)),
                    None => Err(Ended::Failed("its workers ended".to_owned())),
                },
                // Once all is minted it goes on all the same: an offer that failed for now is made again.
                () = tokio::time::sleep(wait) => match at_end {
                    true => Ok(()),
                    false => self.mint(&mut chain, &mut chance, &mut kept, jobs, &made).await.map(|end| at_end = end),
                },
            };
            if let Err(ended) = taken {
                return ended;
            }
            match self.offer(&mut chain, &mut kept).await {
                Ok(()) => failures = 0,
                Err(Some(ended)) => return ended,
                Err(None) => {
                    failures += 1;
                    if failures > OFFERS_MAX {
                        return Ended::Failed("its offers keep failing".to_owned());
                    }
                    pause(chance.between(10, 200)).await;
                }
            }
            if at_end && kept.resolved.len() == kept.minted.len() {
                return Ended::Finished;
            }
        }
    }

    /// Chooses descriptions up to one of the frontiers that the input reached; says whether none follows.
    async fn mint(
        &self,
        chain: &mut Chain,
        chance: &mut Chance,
        kept: &mut Kept,
        jobs: &mut JoinSet<()>,
        made: &mpsc::UnboundedSender<Made>,
    ) -> Result<bool, Ended> {
        let (reached, ended) = self.input.reached(&self.world, self.facts(), self.shape.lag_ms);
        // What the minter was told once, it is not told less of: too many may have been in flight for it to be minted.
        let further = |frontier: &u64| {
            let frontier = Frontier::at(*frontier);
            frontier > chain.next_lower() && frontier >= kept.told
        };
        let open: Vec<u64> = reached.into_iter().filter(further).collect();
        let frontier = match (open.last(), ended) {
            (None, true) => Frontier::EMPTY,
            (None, false) => return Ok(false),
            (Some(last), _) if chance.per_mille(500) => Frontier::at(*last),
            (Some(last), _) => {
                let place = usize::try_from(chance.below(count(open.len()))).unwrap_or(0);
                Frontier::at(open.get(place).copied().unwrap_or(*last))
            }
        };
        kept.told = frontier;
        loop {
            let minted = match chain.mint(frontier) {
                Ok(Mint::Minted(minted)) => minted,
                Ok(Mint::NotYet | Mint::InFlight) => return Ok(false),
                Ok(Mint::Ended | Mint::Complete) => return Ok(true),
                Err(error) => return Err(self.failed(&error)),
            };
            kept.minted.push(minted.description);
            self.world.check(self.name(), i1_contiguous(self.incarnation.as_of(), &kept.minted));
            self.world.say(self.name(), format!("mints {} floor {}", minted.description, minted.floor));
            for process in (0..self.shape.processes.len()).filter(|process| *process != self.at.process) {
                let to = Address { process, ..self.at };
                send(&self.world, &self.life, to, self.incarnation.id(), Message::Minted(minted)).await;
            }
            self.begin(minted, jobs, made);
            if chance.per_mille(300) {
                return Ok(false);
            }
        }
    }

    async fn take(&self, chain: &mut Chain, packet: Packet, kept: &mut Kept) -> Result<(), Ended> {
        let Packet { incarnation, copy, message } = packet;
        let foreign = incarnation != self.incarnation.id();
        match message {
            Message::Share(frame) => match self.incarnation.arm(&frame) {
                Ok(share) => {
                    let checked = ensure(!foreign, Invariant::I2, || {
                        format!("a share of {incarnation} was armed by {}", self.incarnation.id())
                    });
                    self.world.check(self.name(), checked);
                    self.merge(chain, share, copy, kept).await
                }
                Err(_) if foreign => {
                    self.world.count("zombie share");
                    Ok(())
                }
                Err(error) => {
                    let what = || format!("a frame that was sent was not armed: {error}");
                    self.world.check(self.name(), ensure(false, Invariant::I2, what));
                    Ok(())
                }
            },
            Message::PeerLost if !foreign => Err(Ended::Failed("lost its peer".to_owned())),
            Message::PeerLost | Message::Minted(_) => Ok(()),
        }
    }

    async fn merge(
        &self,
        chain: &mut Chain,
        share: ShareMessage<OwnedParts>,
        copy: bool,
        kept: &mut Kept,
    ) -> Result<(), Ended> {
        let (worker, description, kind) = (share.worker, share.description, share.share.kind());
        let keys: Vec<_> = match &share.share {
            Share::Stashed(parts) => parts.keys().collect(),
            _ => Vec::new(),
        };
        match chain.merge(share).await {
            Ok(()) => {
                // What failed or was dropped is no share that counts: it must have ended the merge.
                let counts = kind != "failed" && kind != "dropped";
                let checked = ensure(counts, Invariant::I12, || {
                    format!("the {kind} share of worker {worker} of {description} was merged like a good one")
                });
                self.world.check(self.name(), checked);
                self.world.watch.merged(self.incarnation.id(), description, &keys);
                kept.reported.entry(description).or_default().push(worker);
                Ok(())
            }
            Err(Error::Chain {
                source: ChainError::DuplicateShare { .. } | ChainError::ShareNotOpen { .. },
                ..
            }) if copy => {
                self.world.count("duplicate refused");
                Ok(())
            }
            // The copy may have been the first to arrive.
            Err(Error::Chain {
                source: ChainError::DuplicateShare { .. } | ChainError::ShareNotOpen { .. },
                ..
            }) if kept.reported.get(&description).is_some_and(|all| all.contains(&worker)) => {
                self.world.count("duplicate refused");
                Ok(())
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Offers what is complete. `Err(None)`: it failed for now.
    async fn offer(&self, chain: &mut Chain, kept: &mut Kept) -> Result<(), Option<Ended>> {
        loop {
            match chain.offer().await {
                Ok(None) => return Ok(()),
                Ok(Some(resolved)) => self.resolved(resolved, kept),
                Err(error) if error.kind() == ErrorKind::Retry => {
                    self.world.count("offer made again");
                    return Err(None);
                }
                Err(error) => return Err(Some(self.failed(&error))),
            }
        }
    }

    fn resolved(&self, resolved: Resolved, kept: &mut Kept) {
        let Resolved { description, outcome, .. } = resolved;
        let reported = kept.reported.get(&description).map(Vec::as_slice).unwrap_or_default();
        self.world.check(self.name(), i2_complete(self.total_workers(), reported));
        kept.resolved.push((description, outcome));
        self.world.check(self.name(), i8_in_order(kept.resolved.iter().copied()));
        let order: Vec<Description> = kept.resolved.iter().map(|(description, _)| *description).collect();
        self.world.check(self.name(), i1_contiguous(self.incarnation.as_of(), &order));
        match outcome {
            Some(Outcome::Dropped) => self.world.count("resolved dropped"),
            Some(_) => {}
            None => self.world.count("recorded, outcome forgotten"),
        }
    }

    /// What an error means for the rendering.
    fn failed(&self, error: &Error) -> Ended {
        self.world.say(self.name(), format!("error: {error}"));
        match error {
            Error::GoingAway { .. } => {
                self.world.count("going away");
                return Ended::Gone;
            }
            Error::Ended { .. } => self.world.count("worker failed"),
            Error::Chain { source: ChainError::IncarnationClosed { .. }, .. } => self.world.count("refused"),
            Error::Catalog(stash::CatalogError::IncarnationClosed { .. }) => self.world.count("refused"),
            _ => {}
        }
        match error.kind() {
            ErrorKind::Absent => Ended::Gone,
            ErrorKind::Reopen | ErrorKind::Retry => Ended::Failed(error.to_string()),
            // Nothing in a run calls for these: the call was right, and nobody lost anything.
            ErrorKind::Repair => {
                self.world.check(self.name(), ensure(false, Invariant::I7, || error.to_string()));
                Ended::Failed(error.to_string())
            }
            _ => {
                let invariant = match error {
                    Error::Chain { source: ChainError::OutOfOrder { .. }, .. } => Invariant::I8,
                    Error::Chain { source: ChainError::NotContiguous { .. }, .. } => Invariant::I1,
                    Error::Chain { source: ChainError::MayNotComplete { .. }, .. } => Invariant::I12,
                    Error::Chain { .. } => Invariant::I2,
                    Error::Catalog(_) => Invariant::I4,
                    _ => Invariant::I24,
                };
                self.world.check(self.name(), ensure(false, invariant, || format!("unexpected: {error}")));
                Ended::Failed(error.to_string())
            }
        }
    }

    fn kind(&self, share: &ShareMessage<OwnedParts>) {
        self.world.count(match &share.share {
            Share::Empty => "share empty",
            Share::Inline(_) => "share inline",
            Share::Stashed(parts) if parts.len() > 1 => "share of several parts",
            Share::Stashed(_) => "share of one part",
            Share::Failed { .. } => "share failed",
            Share::Dropped => "share dropped",
        });
        let local = self.incarnation.local_workers().len();
        let parts = if let Share::Stashed(parts) = &share.share { parts.len() } else { 0 };
        let (worker, kind, description) = (share.worker, share.share.kind(), share.description);
        self.world.say(self.name(), format!("worker {worker} of {description}: {kind}, {parts} parts"));
        if let Share::Stashed(parts) = &share.share
            && local > 1
            && parts.len() == 1
        {
            self.world.count("coalesced part");
        }
    }

    /// Lets each local worker write its share of what was minted.
    fn begin(&self, minted: Minted, jobs: &mut JoinSet<()>, made: &mpsc::UnboundedSender<Made>) {
        while jobs.try_join_next().is_some() {}
        for worker in self.incarnation.local_workers() {
            let Ok(writer) = self.incarnation.worker(worker) else { continue };
            let job = Job {
                world: Arc::clone(&self.world),
                life: Arc::clone(&self.life),
                sink: self.at.sink,
                incarnation: Arc::clone(&self.incarnation),
                input: Arc::clone(&self.input),
                workers: self.total_workers(),
                by_row: self.shape.by_row,
                lag_ms: self.shape.lag_ms,
                forget_snapshot: self.restarted_at_start && broken(Mutant::NoSnapshot),
                chance: self.world.chance(Concern::Replica).split(),
            };
            let made = made.clone();
            jobs.spawn(async move {
                let share = job.write(writer, minted).await;
                let _ = made.send(share);
            });
        }
    }
}

/// One worker's work on one description.
struct Job {
    world: Arc<World>,
    life: Arc<Life>,
    sink: usize,
    incarnation: Arc<Incarnation>,
    input: Arc<Input>,
    workers: u32,
    by_row: bool,
    lag_ms: u64,
    forget_snapshot: bool,
    chance: Chance,
}

impl Job {
    async fn write(mut self, writer: ShareWriter, minted: Minted) -> Made {
        let worker = writer.worker();
        let Some(facts) = self.world.sinks.get(self.sink).cloned() else {
            return Made::Vanished("no such sink".to_owned());
        };
        pause(self.chance.between(0, 30)).await;
        self.await_input(&facts, minted).await;
        let as_of = self.incarnation.as_of();
        if minted.description.lower() <= Frontier::at(as_of) {
            self.find_snapshot(as_of).await;
        }
        let Ok(mut pieces) = self.pieces(&facts, worker, minted) else {
            return Made::Vanished("its rows do not fit".to_owned());
        };
        let fails = (self.world.is_faulty() && self.chance.per_mille(self.world.schedule.rates.worker_fails))
            .then(|| self.chance.below(count(pieces.len()) + 4));
        let mut share = match writer.share(minted) {
            Ok(share) => share,
            Err(error) => return Made::Vanished(format!("worker {worker}: {error}")),
        };
        if self.world.is_going_away(self.sink) {
            return Made::Share(Box::new(share.drop_sink()));
        }
        let mut step = 0;
        loop {
            if fails == Some(step) {
                self.world.fault(
                    self.life.name(),
                    "worker fails",
                    format!("{worker} in {}", minted.description),
                );
                return match self.chance.below(3) {
                    0 => Made::Share(Box::new(share.fail("it was made to"))),
                    1 => {
                        drop(share);
                        Made::Vanished(format!("worker {worker} panicked"))
                    }
                    _ => {
                        let within = Duration::from_millis(self.chance.between(1, 20));
                        // Whether it was done by then or not, it lacks updates and is never reported.
                        drop(tokio::time::timeout(within, share.finish()).await);
                        Made::Vanished(format!("worker {worker} was cancelled"))
                    }
                };
            }
            step += 1;
            let Some(piece) = pieces.pop() else { break };
            if self.chance.per_mille(200) {
                pause(self.chance.between(1, 25)).await;
            }
            if let Err(error) = share.push(piece).await {
                return Made::Share(Box::new(share.fail(error.to_string())));
            }
        }
        match facts.poison.clone().filter(|error| self.reports(error, &facts, worker, minted)) {
            Some(error) => Made::Share(Box::new(share.poison(error).await)),
            None => Made::Share(Box::new(share.finish().await)),
        }
    }

    /// Whether this worker tells of the dataflow's error.
    fn reports(&self, error: &DataflowError, facts: &SinkFacts, worker: WorkerIndex, minted: Minted) -> bool {
        let writes = stash_chain::writes(minted, facts.rules());
        let mine = error.at % u64::from(self.workers) == u64::from(worker.0);
        mine && writes.is_some_and(|times| times.contains(error.at))
    }

    /// Waits until the worker's own input has all of it: workers are not equally far.
    async fn await_input(&mut self, facts: &SinkFacts, minted: Minted) {
        let lag = self.lag_ms.saturating_add(self.chance.between(0, 40));
        loop {
            let frontier = self.input.frontier(&self.world, facts, lag);
            // An input that ends at its last time holds what is minted up to the end.
            if stash_chain::ready(frontier, minted, facts.rules()) {
                return;
            }
            pause(20).await;
        }
    }

    fn pieces(
        &mut self,
        facts: &SinkFacts,
        worker: WorkerIndex,
        minted: Minted,
    ) -> Result<Vec<arrow::array::RecordBatch>, Error> {
        let (lower, upper) = (minted.description.lower().as_u64(), minted.description.upper().as_u64());
        let as_of = self.incarnation.as_of();
        let (workers, by_row) = (u64::from(self.workers), self.by_row);
        let mine = |place: usize, ((key, _), _, _): &Update| {
            let number = if by_row { *key } else { count(place) };
            number % workers == u64::from(worker.0)
        };
        let mut held = self.input.held(facts, as_of, lower, upper, mine);
        if self.forget_snapshot {
            held.retain(|(_, time, _)| *time > as_of);
        }
        self.chance.shuffle(&mut held);
        let most = self.chance.pick(3, &[10, 1000]).max(count(held.len()) / 6).max(1);
        let sink = self.incarnation.sink();
        held.chunks(usize::try_from(most).unwrap_or(1)).map(|piece| columns(sink, piece)).collect()
    }

    /// The snapshot at the as-of must still be there, unless the rendering was closed meanwhile (I10).
    async fn find_snapshot(&self, as_of: u64) {
        let compacted = self.world.compacted(self.sink);
        let checked = i10_snapshot_there(as_of, compacted);
        if checked.is_err() && self.world.is_pending(self.sink, self.incarnation.id()).await {
            self.world
                .say(self.life.name(), format!("{} finds no snapshot", short_id(self.incarnation.id())));
            self.world.check(self.life.name(), checked);
        }
    }
}
