//! A replica: starts its processes, renders, and does so again after whatever ended it.
//!
//! What ends a rendering: a worker fails, a message is lost, a process dies (at some moment, or at its n-th call), all
//! of them die, its controller reconnects. And it stands still: for a while, or for so long that another takes its place
//! and it goes on as a *zombie*, whose incarnation was closed meanwhile.

use std::sync::Arc;

use stash::{Incarnation, Launch, Opened};
use stash_types::Frontier;
use tokio::task::JoinSet;

use crate::chance::{Chance, Concern, count};
use crate::input::Input;
use crate::network::Address;
use crate::process::{Process, again};
use crate::rendering::{Ended, Rendering};
use crate::schedule::ReplicaShape;
use crate::source::Source;
use crate::store::short_id;
use crate::world::{Phase, World, pause};

/// A replica of one sink.
pub(crate) struct Replica {
    pub(crate) world: Arc<World>,
    pub(crate) sink: usize,
    pub(crate) place: usize,
    pub(crate) shape: ReplicaShape,
}

/// What happens to a rendering from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    /// One process dies.
    OneDies,
    /// One process dies at its n-th call from now on.
    OneIsDoomed,
    /// All die.
    AllDie,
    /// The handles are dropped, and opened anew.
    Reconnect,
    /// The same, in good order.
    Close,
    /// They stand still for a while.
    StandStill,
    /// They stand still, others take their place, and they go on.
    Zombie,
}

/// A rendering that runs.
struct Running {
    tasks: JoinSet<Ended>,
    incarnations: Vec<Arc<Incarnation>>,
    source: Option<Source>,
}

/// What an attempt to render came to.
enum Rendered {
    Running(Running),
    /// There is nothing to render any more.
    Over(&'static str),
    /// It did not come to be.
    Failed(String),
}

impl Replica {
    fn name(&self) -> String {
        format!("{}r{}", if self.sink == 0 { "" } else { "b" }, self.place)
    }

    /// Lives until the run stops.
    pub(crate) async fn live(self) {
        let mut chance = self.world.chance(Concern::Life).split();
        let mut processes: Vec<Process> = Vec::new();
        let mut renderings = 0u64;
        let over = loop {
            if self.world.phase() >= Phase::Stopping || self.is_done() {
                break false;
            }
            processes = self.with_all(processes).await;
            let rendered = tokio::select! { biased;
                rendered = self.render(&processes, renderings) => rendered,
                () = self.any_died(&processes) => Rendered::Failed("a process died while it was opened".to_owned()),
                () = self.world.reaches(Phase::Stopping) => Rendered::Over("the run stops"),
            };
            let running = match rendered {
                Rendered::Running(running) => running,
                Rendered::Over(why) => {
                    self.world.say(&self.name(), format!("renders no more: {why}"));
                    break true;
                }
                Rendered::Failed(why) => {
                    self.world.say(&self.name(), format!("could not render: {why}"));
                    processes = self.bury_dead(processes);
                    pause(chance.between(20, 400)).await;
                    continue;
                }
            };
            renderings += 1;
            if renderings > 1 {
                self.world.count("reconnect");
            }
            match self.watch_over(running, processes, &mut chance).await {
                (left, Some(Ended::Finished | Ended::Gone)) => {
                    processes = left;
                    break true;
                }
                (left, _) => processes = left,
            }
            pause(chance.between(10, 500)).await;
        };
        if over {
            self.world.reaches(Phase::Stopping).await;
        }
        self.stop(processes, &mut chance).await;
    }

    /// Whether it does not go on, since everything is healed and it is not among those that survive.
    fn is_done(&self) -> bool {
        self.world.phase() >= Phase::Healed && !self.shape.survives
    }

    async fn with_all(&self, mut processes: Vec<Process>) -> Vec<Process> {
        while processes.len() < self.shape.processes.len() {
            let role = format!("{}.{}", self.name(), processes.len());
            if let Some(process) = Process::start(&self.world, &role, self.shape.config.clone()).await {
                processes.push(process);
            }
        }
        processes
    }

    async fn any_died(&self, processes: &[Process]) {
        let dying = processes.iter().map(|process| Box::pin(process.life.died()));
        futures::future::select_all(dying).await;
    }

    fn bury_dead(&self, processes: Vec<Process>) -> Vec<Process> {
        let (dead, alive): (Vec<_>, Vec<_>) =
            processes.into_iter().partition(|process| process.life.is_dead());
        dead.into_iter().for_each(|process| process.kill(&self.world, "at a call"));
        alive
    }

    /// Opens an incarnation on all processes.
    async fn render(&self, processes: &[Process], before: u64) -> Rendered {
        let Some(facts) = self.world.sinks.get(self.sink) else { return Rendered::Over("no such sink") };
        let Some(first) = processes.first() else { return Rendered::Failed("no process".to_owned()) };
        let source = match facts.fed_by.and_then(|place| self.world.sinks.get(place)) {
            None => None,
            Some(feeder) => match Source::open(&self.world, first, feeder, &self.name()).await {
                Some(source) => Some(source),
                None => return Rendered::Failed("its source was not opened".to_owned()),
            },
        };
        let token = first.stash.draw_launch();
        let total: u32 = self.shape.processes.iter().sum();
        let (mut incarnations, mut first_worker) = (Vec::new(), 0);
        let mut lives = Vec::new();
        for (place, (process, workers)) in processes.iter().zip(&self.shape.processes).enumerate() {
            let number = u32::try_from(place).unwrap_or(u32::MAX);
            let launch = Launch::process(&self.name(), token, number, total, first_worker, *workers);
            first_worker += workers;
            let Ok(launch) = launch else { return Rendered::Failed("no such launch".to_owned()) };
            let Some(sink) = process.sink(facts.name).await else {
                return Rendered::Over("the sink is not there");
            };
            match again(|| sink.open_incarnation(launch.clone())).await {
                Ok(Opened::Render(incarnation)) => incarnations.push(Arc::new(*incarnation)),
                Ok(Opened::Complete) => {
                    self.world.count("opened complete");
                    return Rendered::Over("the chain is complete");
                }
                Ok(Opened::Poisoned(_)) => {
                    self.world.count("opened poisoned");
                    return Rendered::Over("the chain is poisoned");
                }
                Err(error) if error.kind() == stash::ErrorKind::Absent => {
                    return Rendered::Over("the sink was dropped");
                }
                Err(error) => return Rendered::Failed(error.to_string()),
            }
            lives.push(Arc::clone(&process.life));
        }
        let mut tasks = JoinSet::new();
        let input = source.as_ref().map_or_else(|| Arc::new(Input::Feed), |source| Arc::clone(&source.input));
        // Where nothing was accepted yet, a rendering anew has to bring the snapshot again.
        let at_start = incarnations
            .first()
            .is_some_and(|incarnation| before > 0 && incarnation.floor() == Frontier::at(facts.feed.as_of));
        for (process, (incarnation, life)) in incarnations.iter().zip(lives).enumerate() {
            let at = Address { sink: self.sink, replica: self.place, process };
            let rendering = Rendering {
                world: Arc::clone(&self.world),
                life,
                at,
                shape: self.shape.clone(),
                input: Arc::clone(&input),
                incarnation: Arc::clone(incarnation),
                restarted_at_start: at_start,
            };
            let packets = self.world.network.listen(at);
            tasks.spawn(rendering.run(packets));
        }
        if let Some(incarnation) = incarnations.first() {
            let id = short_id(incarnation.id());
            self.world.say(&self.name(), format!("renders {id} as of {}", incarnation.as_of()));
        }
        Rendered::Running(Running { tasks, incarnations, source })
    }

    /// Watches over a rendering until it ends; gives back the processes that live.
    async fn watch_over(
        &self,
        mut running: Running,
        processes: Vec<Process>,
        chance: &mut Chance,
    ) -> (Vec<Process>, Option<Ended>) {
        loop {
            let blow_in = match self.world.schedule.death_ms {
                0 => chance.between(700, 3000),
                mean => chance.between(mean / 2, mean * 2),
            };
            let ended = tokio::select! { biased;
                joined = running.tasks.join_next() => match joined {
                    Some(Ok(ended)) => Some(ended),
                    Some(Err(error)) => {
                        self.world.panicked(&self.name(), error.is_panic());
                        Some(Ended::Failed("a task ended".to_owned()))
                    }
                    None => Some(Ended::Failed("no process".to_owned())),
                },
                () = self.any_died(&processes) => Some(Ended::Failed("a process died".to_owned())),
                () = self.world.reaches(Phase::Stopping) => Some(Ended::Failed("the run stops".to_owned())),
                () = pause(blow_in), if self.world.phase() == Phase::Chaos => None,
            };
            if let Some(ended) = ended {
                self.world.say(&self.name(), format!("rendering ended: {ended:?}"));
                let close = ended == Ended::Finished || chance.per_mille(300);
                self.tear_down(running, close).await;
                return (self.bury_dead(processes), Some(ended));
            }
            if self.world.phase() != Phase::Chaos {
                continue;
            }
            match self.blow(chance) {
                Blow::OneDies => {
                    let victim = usize::try_from(chance.below(count(processes.len()))).unwrap_or(0);
                    if let Some(process) = processes.get(victim) {
                        process.life.die();
                    }
                }
                Blow::OneIsDoomed => {
                    let victim = usize::try_from(chance.below(count(processes.len()))).unwrap_or(0);
                    if let Some(process) = processes.get(victim) {
                        process.life.doom(chance.between(1, 30));
                    }
                }
                Blow::AllDie => processes.iter().for_each(|process| process.life.die()),
                Blow::Reconnect => {
                    self.world.fault(&self.name(), "reconnect", "the handles are dropped");
                    self.tear_down(running, false).await;
                    return (self.bury_dead(processes), None);
                }
                Blow::Close => {
                    self.world.fault(&self.name(), "reconnect", "in good order");
                    self.tear_down(running, true).await;
                    return (self.bury_dead(processes), None);
                }
                Blow::StandStill => {
                    let for_ms = chance.between(200, 12_000);
                    self.world.fault(&self.name(), "stands still", format!("{for_ms} ms"));
                    processes.iter().for_each(|process| process.life.stand_still());
                    let lives: Vec<_> = processes.iter().map(|process| Arc::clone(&process.life)).collect();
                    self.world.spawn(async move {
                        pause(for_ms).await;
                        lives.iter().for_each(|life| life.go_on());
                    });
                }
                Blow::Zombie => {
                    self.haunt(running, processes, chance);
                    return (Vec::new(), None);
                }
            }
        }
    }

    fn blow(&self, chance: &mut Chance) -> Blow {
        if self.world.schedule.orderly {
            return chance.pick(Blow::Close, &[Blow::Reconnect]);
        }
        chance.pick(
            Blow::OneDies,
            &[
                Blow::OneDies,
                Blow::OneIsDoomed,
                Blow::OneIsDoomed,
                Blow::AllDie,
                Blow::Reconnect,
                Blow::Close,
                Blow::StandStill,
                Blow::StandStill,
                Blow::Zombie,
            ],
        )
    }

    /// Leaves a rendering that stands still to itself; it goes on later, and dies at last.
    fn haunt(&self, mut running: Running, processes: Vec<Process>, chance: &mut Chance) {
        let for_ms = chance.between(200, 12_000);
        self.world.fault(
            &self.name(),
            "zombie",
            format!("stands still for {for_ms} ms, others take its place"),
        );
        processes.iter().for_each(|process| process.life.stand_still());
        let (world, name) = (Arc::clone(&self.world), self.name());
        self.world.spawn(async move {
            pause(for_ms).await;
            world.say(&name, "the zombie goes on");
            processes.iter().for_each(|process| process.life.go_on());
            tokio::select! { biased;
                ended = running.tasks.join_next() => world.say(&name, format!("the zombie ended: {ended:?}")),
                () = pause(4000) => {}
                () = world.reaches(Phase::Stopping) => {}
            }
            running.tasks.shutdown().await;
            drop(running);
            processes.into_iter().for_each(|process| process.kill(&world, "the zombie dies"));
        });
    }

    async fn tear_down(&self, mut running: Running, close: bool) {
        running.tasks.shutdown().await;
        drop(running.source);
        for incarnation in running.incarnations {
            match Arc::try_unwrap(incarnation) {
                Ok(incarnation) if close => {
                    // It may be that its process is dead, or the catalog out: then its lease runs out.
                    let closing = incarnation.close("the replica ends its rendering");
                    let _ = tokio::time::timeout(std::time::Duration::from_secs(1), closing).await;
                }
                Ok(_) => {}
                Err(_) => self.world.say(&self.name(), "an incarnation is still held"),
            }
        }
    }

    async fn stop(&self, processes: Vec<Process>, chance: &mut Chance) {
        for process in self.bury_dead(processes) {
            if !self.world.schedule.orderly && chance.per_mille(400) {
                process.kill(&self.world, "at the end");
            } else {
                process.close(&self.world).await;
            }
        }
    }
}
