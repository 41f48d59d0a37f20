//! A world while it lives: starts its processes, carries what they say to one another, restarts what died.
//!
//! - The input of all replicas advances in rounds: the next one begins when every replica has brought all of this
//!   one to the chain. So each of them mints and writes in every round, and all race for the chain.
//! - When a process of a replica dies, its whole launch is over, as in any dataflow: the others are told to begin
//!   anew with it.
//! - A death is counted only if it was the planned one, by SIGKILL. Everything else that ends a process early
//!   fails the world.

use std::{
    collections::{BTreeMap, VecDeque},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use rustix::process::Signal;
use stash::{IdSource, LaunchToken, SystemIds};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    At,
    child::{Child, Ears, Heard},
    message::{Event, Order},
    role,
    setup::{Setup, Who},
};

/// Launches of one replica before its world counts as going round in circles.
const LAUNCHES_MAX: u64 = 200;

/// Something that happened, after the world reacted to it.
#[derive(Debug)]
pub struct Happening {
    /// To whom.
    pub who: Who,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Debug)]
pub enum What {
    /// It told this.
    Told(Event),
    /// It died as planned, and was started again.
    Died(At),
    /// It was killed by the harness, and started again.
    Killed,
    /// It ended with an error, which this world allows, and was started again.
    Failed(String),
    /// It ended, as it was told to.
    Ended,
}

#[derive(Debug, Default)]
struct Slot {
    child: Option<Child>,
    starts: u64,
    ready: bool,
    done: bool,
}

#[derive(Debug, Default)]
struct Replica {
    launch: u64,
    launches: u64,
    minting: Option<Who>,
    reached: u64,
    complete: bool,
}

/// What came of a world.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Who died where, in the order it happened.
    pub deaths: Vec<(Who, At)>,
    /// Planned deaths that did not happen: the place was passed less often.
    pub missed: Vec<(Who, At)>,
    /// How often processes that ended in peace had passed each place.
    pub hits: BTreeMap<String, u64>,
    /// Deliveries that came again.
    pub redelivered: u64,
    /// Outcomes of offers.
    pub outcomes: BTreeMap<String, u64>,
}

/// A world.
#[derive(Debug)]
pub struct World {
    /// What it is made of.
    pub setup: Setup,
    folder: TempDir,
    ears: Ears,
    slots: BTreeMap<Who, Slot>,
    replicas: Vec<Replica>,
    next_launch: u64,
    target: u64,
    /// The input does not advance beyond this.
    pub target_max: u64,
    consumed: bool,
    stopping: bool,
    /// Replicas whose launch ended are launched again only when this is lifted, and who is stuck stays stuck.
    pub holding: bool,
    held: Vec<Who>,
    /// What happened last, for people.
    recent: VecDeque<String>,
    /// What came of it so far.
    pub outcome: Outcome,
}

/// Where worlds lie: in memory, where the machine has a file system for it. A SIGKILL cannot tell the difference,
/// and a sync then costs nothing.
fn place_of_worlds() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

impl World {
    /// Starts everybody.
    pub async fn start(setup: Setup) -> anyhow::Result<World> {
        let folder = tempfile::Builder::new().prefix("stash-crash-").tempdir_in(place_of_worlds())?;
        let everybody = setup.everybody();
        let replicas = setup.replicas.iter().map(|_| Replica::default()).collect();
        let mut world = World {
            target: setup.round.min(setup.end),
            target_max: setup.end,
            setup,
            folder,
            ears: Ears::new(),
            slots: everybody.iter().map(|who| (*who, Slot::default())).collect(),
            replicas,
            next_launch: 1,
            consumed: false,
            stopping: false,
            holding: false,
            held: Vec::new(),
            recent: VecDeque::new(),
            outcome: Outcome::default(),
        };
        std::fs::create_dir_all(world.stash())?;
        if world.setup.expires {
            role::hold(&world.stash(), world.setup.end, world.setup.lease_secs).await?;
        }
        if let Some(first) = world.setup.first {
            world.spawn(first)?;
            while world.slots.get(&first).is_some_and(|slot| !slot.ready) {
                world.step().await?;
            }
        }
        for who in everybody {
            if world.slots.get(&who).is_some_and(|slot| slot.child.is_none()) {
                world.spawn(who)?;
            }
        }
        Ok(world)
    }

    /// The stash's folder.
    pub fn stash(&self) -> PathBuf {
        self.setup.stash.clone().unwrap_or_else(|| self.folder.path().join("stash"))
    }

    /// Where the consumer records.
    pub fn results(&self) -> PathBuf {
        self.folder.path().join("results")
    }

    /// A file of the world's own, beside the stash.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, who: Who, first_start: bool, armed: Option<&At>) -> Command {
        let setup = &self.setup;
        let mut words: Vec<String> = Vec::new();
        if first_start && let Some(wrap) = setup.wraps.get(&who) {
            words.extend(wrap.iter().cloned());
        }
        words.push(setup.binary.display().to_string());
        words.push("role".to_owned());
        let kind = match who {
            Who::Replica(..) => "replica",
            Who::Consumer => "consumer",
            Who::Sweeper => "sweeper",
            Who::Expirer => "expirer",
            Who::Dropper => "dropper",
        };
        words.push(kind.to_owned());
        let mut option = |name: &str, value: String| words.extend([format!("--{name}"), value]);
        option("stash", self.stash().display().to_string());
        option("results", self.results().display().to_string());
        option("seed", setup.seed.to_string());
        option("end", setup.end.to_string());
        option("weight", setup.weight.to_string());
        option("lease-secs", setup.lease_secs.to_string());
        if let Some(at) = armed {
            option("die-at", at.to_string());
        }
        if first_start && let Some(at) = setup.stops.get(&who) {
            option("stop-at", at.to_string());
        }
        if let Who::Replica(replica, process) = who
            && let Some(of) = setup.replicas.get(replica)
        {
            option("replica", format!("replica-{replica}"));
            option("process", process.to_string());
            option("processes", of.processes.to_string());
            option("workers", of.workers.to_string());
            option("cuts", of.cuts.iter().map(u64::to_string).collect::<Vec<_>>().join(","));
        }
        for (flag, is_set) in [("--keeper", setup.keeper), ("--expires", setup.expires)] {
            words.extend(is_set.then(|| flag.to_owned()));
        }
        let mut command = Command::new(words.remove(0));
        command.args(words).env("RUST_BACKTRACE", "0").env("NO_COLOR", "1");
        command
    }

    fn spawn(&mut self, who: Who) -> anyhow::Result<()> {
        let first_start = self.slots.get(&who).is_none_or(|slot| slot.starts == 0);
        let next = self.setup.deaths.iter().position(|death| death.who == who);
        let armed = next.map(|next| self.setup.deaths.remove(next).at);
        let command = self.command(who, first_start, armed.as_ref());
        let slot = self.slots.entry(who).or_default();
        slot.starts += 1;
        let log = self.folder.path().join(format!("{who}-{}.log", slot.starts));
        slot.child = Some(Child::start(who, slot.starts, command, armed, &log, &mut self.ears)?);
        slot.ready = false;
        slot.done = false;
        Ok(())
    }

    async fn order(&mut self, who: Who, order: &Order) -> anyhow::Result<()> {
        match self.slots.get_mut(&who).and_then(|slot| slot.child.as_mut()) {
            Some(child) => child.order(order).await,
            None => Ok(()),
        }
    }

    fn processes(&self, replica: usize) -> Vec<Who> {
        let processes = self.setup.replicas.get(replica).map_or(0, |setup| setup.processes);
        (0..processes).map(|process| Who::Replica(replica, process)).collect()
    }

    /// Kills a process where it is; it is started again when its end is noticed.
    pub fn kill(&mut self, who: Who) -> anyhow::Result<()> {
        self.signal(who, Signal::KILL)
    }

    /// Sends a process a signal.
    pub fn signal(&mut self, who: Who, signal: Signal) -> anyhow::Result<()> {
        let child = self.slots.get_mut(&who).and_then(|slot| slot.child.as_mut());
        child.with_context(|| format!("{who} does not run"))?.signal(signal)
    }

    /// Kills everybody at once and waits until all are gone; nobody is started again.
    pub async fn kill_all(&mut self) -> anyhow::Result<()> {
        let mut children: Vec<Child> = self.slots.values_mut().filter_map(|slot| slot.child.take()).collect();
        for child in &mut children {
            child.signal(Signal::KILL)?;
        }
        for mut child in children {
            child.wait().await?;
        }
        Ok(())
    }

    /// Waits for the next thing to happen, reacts to it, and says what it was.
    pub async fn step(&mut self) -> anyhow::Result<Happening> {
        loop {
            let (who, start, heard) = self.ears.next().await;
            if self.slots.get(&who).is_none_or(|slot| slot.starts != start || slot.child.is_none()) {
                continue;
            }
            let what = match heard {
                Heard::Event(event) => {
                    self.remember(who, &event);
                    self.react(who, &event).await.with_context(|| format!("{who}: {event:?}"))?;
                    What::Told(event)
                }
                Heard::Garbage(line) => bail!("{who} wrote a line that cannot be read: {line}"),
                Heard::Silent => self.gone(who).await?,
            };
            return Ok(Happening { who, what });
        }
    }

    /// Keeps the last few events, without what is long.
    fn remember(&mut self, who: Who, event: &Event) {
        const KEPT: usize = 40;
        if self.recent.len() >= KEPT {
            self.recent.pop_front();
        }
        let line = match event {
            Event::Share { launch, frame } => {
                format!("{who}: a share of {} bytes, launch {launch}", frame.len())
            }
            Event::Done { .. } => format!("{who}: done"),
            event => format!("{who}: {event:?}"),
        };
        self.recent.push_back(line);
    }

    async fn react(&mut self, who: Who, event: &Event) -> anyhow::Result<()> {
        match event {
            Event::Ready => {
                if let Some(slot) = self.slots.get_mut(&who) {
                    slot.ready = true;
                }
                match who {
                    Who::Replica(replica, _) => self.launch_if_ready(replica).await?,
                    Who::Sweeper if self.stopping => self.order(who, &Order::Stop).await?,
                    _ => {}
                }
            }
            Event::Opened { launch, minting: true, .. } => {
                if let Some(replica) = self.current(who, *launch) {
                    replica.minting = Some(who);
                    let to = self.target;
                    self.order(who, &Order::Advance { to }).await?;
                }
            }
            Event::Minted { launch, lower, upper, floor } => {
                let others = self.peers(who, *launch);
                let (launch, lower, upper, floor) = (*launch, *lower, *upper, *floor);
                for other in others {
                    self.order(other, &Order::Minted { launch, lower, upper, floor }).await?;
                }
            }
            Event::Share { launch, frame } => {
                if let Some(minting) = self.current(who, *launch).and_then(|replica| replica.minting) {
                    self.order(minting, &Order::Share { launch: *launch, frame: frame.clone() }).await?;
                }
            }
            Event::Reached { launch, to } => {
                if let Some(replica) = self.current(who, *launch) {
                    replica.reached = replica.reached.max(*to);
                    self.advance().await?;
                }
            }
            Event::Complete { launch } => {
                if let Some(replica) = self.current(who, *launch) {
                    replica.complete = true;
                    self.advance().await?;
                    if self.stopping {
                        self.order(who, &Order::Stop).await?;
                    }
                }
            }
            Event::Ended { launch, .. } => {
                if let Who::Replica(of, _) = who
                    && self.current(who, *launch).is_some()
                {
                    if self.holding {
                        self.held.push(who);
                    } else {
                        self.launch_if_ready(of).await?;
                    }
                }
            }
            Event::Stuck { .. } => {
                if self.holding {
                    self.held.push(who);
                } else {
                    self.order(who, &Order::GoOn).await?;
                }
            }
            Event::End => {
                if who == Who::Consumer {
                    self.consumed = true;
                    if self.stopping {
                        self.order(who, &Order::Stop).await?;
                    }
                }
            }
            Event::Done { hits } => {
                if let Some(slot) = self.slots.get_mut(&who) {
                    slot.done = true;
                }
                for (place, hits) in hits {
                    *self.outcome.hits.entry(place.clone()).or_default() += hits;
                }
            }
            Event::Violation { what } => bail!("a promise does not hold: {what}"),
            Event::Resolved { outcome, .. } => {
                *self.outcome.outcomes.entry(outcome.clone()).or_default() += 1;
            }
            Event::Delivered { again, .. } => self.outcome.redelivered += u64::from(*again),
            Event::Opened { minting: false, .. } | Event::Stopping { .. } => {}
        }
        Ok(())
    }

    fn current(&mut self, who: Who, launch: u64) -> Option<&mut Replica> {
        let Who::Replica(replica, _) = who else { return None };
        self.replicas.get_mut(replica).filter(|replica| replica.launch == launch)
    }

    fn peers(&mut self, who: Who, launch: u64) -> Vec<Who> {
        let (Who::Replica(replica, _), Some(_)) = (who, self.current(who, launch)) else { return Vec::new() };
        self.processes(replica).into_iter().filter(|other| *other != who).collect()
    }

    /// Launches a replica once all of its processes are there; those that ended in peace are not missed.
    async fn launch_if_ready(&mut self, replica: usize) -> anyhow::Result<()> {
        let processes = self.processes(replica);
        let there = |who: &Who| self.slots.get(who).is_some_and(|slot| slot.ready || slot.done);
        if !processes.iter().all(there) {
            return Ok(());
        }
        let Some(of) = self.replicas.get_mut(replica) else { return Ok(()) };
        of.launch = self.next_launch;
        of.launches += 1;
        if of.launches > LAUNCHES_MAX {
            bail!("replica {replica} was launched {LAUNCHES_MAX} times and does not come to an end");
        }
        (of.minting, of.complete, of.reached) = (None, false, 0);
        self.next_launch += 1;
        let token = LaunchToken::from_uuid(SystemIds.random()).to_string();
        let launch = self.next_launch - 1;
        for who in processes {
            self.order(who, &Order::Launch { launch, token: token.clone() }).await?;
        }
        Ok(())
    }

    async fn advance(&mut self) -> anyhow::Result<()> {
        let target = self.target;
        if target >= self.target_max
            || !self.replicas.iter().all(|replica| replica.complete || replica.reached >= target)
        {
            return Ok(());
        }
        self.target = (target + self.setup.round).min(self.target_max);
        let minting: Vec<Who> = self.replicas.iter().filter_map(|replica| replica.minting).collect();
        for who in minting {
            let to = self.target;
            self.order(who, &Order::Advance { to }).await?;
        }
        Ok(())
    }

    /// Lets the input advance up to `to`.
    pub async fn advance_to(&mut self, to: u64) -> anyhow::Result<()> {
        self.target_max = to.min(self.setup.end);
        self.advance().await
    }

    /// Lets everybody who was held go on.
    pub async fn release(&mut self) -> anyhow::Result<()> {
        self.holding = false;
        for who in std::mem::take(&mut self.held) {
            self.order(who, &Order::GoOn).await?;
            if let Who::Replica(replica, _) = who {
                self.launch_if_ready(replica).await?;
            }
        }
        Ok(())
    }

    /// Whether nobody writes any more until the world is released: somebody is held, and all others wait for that.
    pub fn is_held_up(&self) -> bool {
        let held =
            |replica: usize| self.held.iter().any(|who| matches!(who, Who::Replica(of, _) if *of == replica));
        let replicas = 0..self.replicas.len();
        replicas.clone().any(held) && replicas.clone().all(|of| held(of) || self.is_at_target(of))
    }

    /// How far all replicas are told to go.
    pub fn target(&self) -> u64 {
        self.target
    }

    /// Whether replica `replica` brought all below the target to the chain.
    pub fn is_at_target(&self, replica: usize) -> bool {
        self.replicas.get(replica).is_some_and(|of| of.complete || of.reached >= self.target)
    }

    async fn gone(&mut self, who: Who) -> anyhow::Result<What> {
        let slot = self.slots.get_mut(&who).context("somebody who was never started is gone")?;
        let mut child = slot.child.take().context("somebody is gone twice")?;
        let status = child.wait().await?;
        slot.ready = false;
        let by_kill = status.signal() == Some(Signal::KILL.as_raw());
        let what = match (&child.armed, by_kill) {
            (_, true) if child.killed => What::Killed,
            (Some(at), true) => {
                self.outcome.deaths.push((who, at.clone()));
                What::Died(at.clone())
            }
            (_, false) if status.success() && slot.done => {
                if let Some(at) = child.armed.take() {
                    self.outcome.missed.push((who, at));
                }
                return Ok(What::Ended);
            }
            (_, false) if self.setup.errors_allowed && status.code() == Some(1) => {
                What::Failed(child.last_words())
            }
            _ => bail!(
                "{who} ended with {status}, armed with {:?}:{}\nbefore that:{}",
                child.armed,
                child.last_words(),
                self.recent.iter().map(|line| format!("\n  {line}")).collect::<String>()
            ),
        };
        slot.done = false;
        match who {
            Who::Replica(replica, _) => {
                if let Some(of) = self.replicas.get_mut(replica) {
                    (of.minting, of.complete, of.reached, of.launch) = (None, false, 0, 0);
                }
            }
            Who::Consumer => self.consumed = false,
            Who::Sweeper | Who::Expirer | Who::Dropper => {}
        }
        self.spawn(who)?;
        Ok(what)
    }

    /// Whether the chain is complete, and everything was delivered and acknowledged.
    pub fn is_over(&self) -> bool {
        self.consumed && self.replicas.iter().all(|replica| replica.complete)
    }

    /// Goes on until the chain is complete and all was delivered.
    pub async fn run_to_the_end(&mut self) -> anyhow::Result<()> {
        while !self.is_over() {
            self.step().await?;
        }
        Ok(())
    }

    /// Tells everybody to close what they have, until all have ended in peace.
    pub async fn stop_all(&mut self) -> anyhow::Result<()> {
        self.stopping = true;
        let all: Vec<Who> = self.slots.keys().copied().collect();
        for who in all {
            self.order(who, &Order::Stop).await?;
        }
        while self.slots.values().any(|slot| slot.child.is_some()) {
            self.step().await?;
        }
        let is_later = |who| matches!(who, Who::Expirer | Who::Dropper);
        let missed: Vec<_> = self.setup.deaths.extract_if(.., |death| !is_later(death.who)).collect();
        self.outcome.missed.extend(missed.into_iter().map(|death| (death.who, death.at)));
        Ok(())
    }

    /// Has the sink's batches expire, now that nobody holds them any more.
    pub async fn expire(&mut self) -> anyhow::Result<()> {
        role::let_go(&self.stash(), self.setup.lease_secs).await?;
        self.play_alone(Who::Expirer).await
    }

    async fn play_alone(&mut self, who: Who) -> anyhow::Result<()> {
        self.spawn(who)?;
        while self.slots.get(&who).is_some_and(|slot| slot.child.is_some()) {
            self.step().await?;
        }
        Ok(())
    }

    /// Has the sink dropped.
    pub async fn drop_sink(&mut self) -> anyhow::Result<()> {
        self.play_alone(Who::Dropper).await?;
        let missed = std::mem::take(&mut self.setup.deaths);
        self.outcome.missed.extend(missed.into_iter().map(|death| (death.who, death.at)));
        Ok(())
    }
}
