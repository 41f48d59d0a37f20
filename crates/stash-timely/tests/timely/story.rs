//! What a dataflow is fed, by whom and how fast; who plays it; and what a chain of it must hold.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use differential_dataflow::input::{Input, InputSession};
use stash::{Frontier, LaunchToken, Sink};
use stash_timely::{Connection, Outcome, Place, Replica, SinkConfig, SinkError, SinkToken, stash_sink};
use timely::{CommunicationConfig, Config, WorkerConfig, worker::Worker};

use crate::support::{Updates, World};

/// The rows of all stories.
pub type Words = (String, i64);

/// Updates by time, the same for everyone who plays them.
#[derive(Clone, Debug)]
pub struct Feed {
    pub updates: Arc<BTreeMap<u64, Vec<(Words, isize)>>>,
    /// Nothing happens from here on.
    pub end: u64,
}

/// Which worker feeds an update.
#[derive(Clone, Copy, Debug)]
pub enum Split {
    /// In turns.
    Even,
    /// One of them all.
    All(usize),
    /// An update is fed by the worker that its row hashes to, and a retraction by the next one: what is summed comes
    /// from several workers.
    Apart,
}

/// A dataflow's run.
#[derive(Clone, Debug)]
pub struct Story {
    pub feed: Feed,
    pub split: Split,
    /// Times that are fed between two steps: another number makes other cuts.
    pub stride: u64,
    /// A worker that feeds only at one of so many steps.
    pub slow: Option<(usize, u64)>,
    /// Errors of the dataflow: what, when, how often; each is fed by another worker.
    pub errors: Vec<(&'static str, u64, isize)>,
    /// Whether the inputs are closed after the last time; else they stay open.
    pub closes: bool,
    /// How the sink's operators work.
    pub config: SinkConfig,
}

impl Feed {
    /// `rows` updates at each time: words come, come again, and go. The same seed gives the same.
    pub fn seeded(seed: u64, end: u64, rows: u64) -> Feed {
        let mut state = seed;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below.max(1)
        };
        let mut live: Vec<Words> = Vec::new();
        let mut updates = BTreeMap::<u64, Vec<(Words, isize)>>::new();
        for time in 0..end {
            let here = updates.entry(time).or_default();
            for _ in 0..rows {
                if draw(3) == 0 && !live.is_empty() {
                    let gone =
                        usize::try_from(draw(u64::try_from(live.len()).expect("it fits"))).expect("it fits");
                    here.push((live.swap_remove(gone), -1));
                } else {
                    let row = (format!("word {}", draw(50)), i64::try_from(draw(4)).expect("it fits"));
                    live.push(row.clone());
                    here.push((row, 1));
                }
            }
        }
        Feed { updates: Arc::new(updates), end }
    }

    /// What a chain must hold whose original as-of is `as_of`, below `upper`.
    pub fn oracle(&self, as_of: u64, upper: Frontier) -> Updates {
        let mut updates = Updates::new();
        for (time, rows) in &*self.updates {
            let time = (*time).max(as_of);
            for ((word, number), diff) in rows.iter().filter(|_| Frontier::at(time) < upper) {
                *updates.entry((format!("{word}|{number}"), time)).or_default() +=
                    i64::try_from(*diff).expect("it fits");
            }
        }
        updates.retain(|_, diff| *diff != 0);
        updates
    }

    /// What happens at `time`.
    pub fn at(&self, time: u64) -> impl Iterator<Item = &(Words, isize)> {
        self.updates.get(&time).into_iter().flatten()
    }

    fn share(
        &self,
        time: u64,
        worker: usize,
        workers: usize,
        split: Split,
    ) -> impl Iterator<Item = &(Words, isize)> {
        self.at(time)
            .enumerate()
            .filter(move |(index, ((word, _), diff))| {
                let whose = match split {
                    Split::Even => index % workers,
                    Split::All(whose) => whose,
                    Split::Apart => {
                        (word.bytes().map(usize::from).sum::<usize>() + usize::from(*diff < 0)) % workers
                    }
                };
                whose == worker
            })
            .map(|(_, row)| row)
    }
}

impl Story {
    pub fn of(feed: &Feed) -> Story {
        Story {
            feed: feed.clone(),
            split: Split::Apart,
            stride: 1,
            slow: None,
            errors: Vec::new(),
            closes: false,
            config: SinkConfig::default(),
        }
    }

    /// Renders it; what is returned feeds this worker's part, to be called between the worker's steps.
    pub fn render(
        &self,
        worker: &mut Worker,
        connection: &Connection,
    ) -> Result<(SinkToken, impl FnMut(&mut Worker) + use<>), SinkError> {
        let (inputs, token) = worker.dataflow(|scope| {
            let (rows, collection) = scope.new_collection::<Words, isize>();
            let (errors, faults) = scope.new_collection::<String, isize>();
            Ok::<_, SinkError>(((rows, errors), stash_sink(collection, faults, connection)?))
        })?;
        let mut feeding = Feeding { story: self.clone(), inputs: Some(inputs), next: 0, steps: 0 };
        Ok((token, move |worker: &mut Worker| feeding.step(worker)))
    }

    /// Keeps it rendered until it ends; how often it was rendered is added to `renderings`, by each worker.
    pub fn keep(
        &self,
        worker: &mut Worker,
        replica: &Replica,
        sink: &Sink,
        renderings: &AtomicUsize,
    ) -> Result<Outcome, Arc<SinkError>> {
        replica.keep(worker, sink, |worker, connection| {
            renderings.fetch_add(1, Ordering::Relaxed);
            self.render(worker, connection)
        })
    }
}

/// A worker's inputs: words, and errors.
type Inputs = (InputSession<u64, Words, isize>, InputSession<u64, String, isize>);

/// A worker's part of a story.
struct Feeding {
    story: Story,
    inputs: Option<Inputs>,
    next: u64,
    steps: u64,
}

impl Feeding {
    fn step(&mut self, worker: &Worker) {
        let Story { feed, split, stride, slow, errors, closes, .. } = &self.story;
        let (index, peers) = (worker.index(), worker.peers());
        self.steps += 1;
        if slow.is_some_and(|(slow, every)| slow == index && !self.steps.is_multiple_of(every)) {
            return;
        }
        let Some((rows, faults)) = &mut self.inputs else { return };
        let upper = feed.end.min(self.next + stride);
        for time in self.next..upper {
            for (row, diff) in feed.share(time, index, peers, *split) {
                rows.update_at(row.clone(), time, *diff);
            }
            for (fed_by, (message, _, diff)) in errors.iter().enumerate().filter(|(_, error)| error.1 == time)
            {
                if fed_by % peers == index {
                    faults.update_at((*message).to_owned(), time, *diff);
                }
            }
        }
        self.next = upper;
        rows.advance_to(upper);
        faults.advance_to(upper);
        rows.flush();
        faults.flush();
        if *closes && upper == feed.end {
            self.inputs = None;
        }
    }
}

/// Plays a story on a replica of one process, and says how it ended and how often it was rendered.
pub fn play(world: &World, sink: &Sink, name: &str, workers: usize, story: &Story) -> (Outcome, usize) {
    let token = world.stash.draw_launch();
    try_play(world, sink, name, token, workers, story).expect("an outcome")
}

/// The same, with an end that may be an error.
pub fn try_play(
    world: &World,
    sink: &Sink,
    name: &str,
    token: LaunchToken,
    workers: usize,
    story: &Story,
) -> Result<(Outcome, usize), Arc<SinkError>> {
    let place = Place::alone(u32::try_from(workers).expect("it fits"));
    play_process(world, sink, name, token, place, Config::process(workers), story)
}

/// Plays a story on a replica of several processes, which here are threads that are connected over TCP; each has
/// its own stash.
pub fn play_cluster(
    worlds: &[World],
    sink: &str,
    name: &str,
    workers: usize,
    story: &Story,
) -> Vec<Result<(Outcome, usize), Arc<SinkError>>> {
    let token = worlds[0].stash.draw_launch();
    let addresses = free_addresses(worlds.len());
    let place = |process: usize| Place {
        process: u32::try_from(process).expect("it fits"),
        processes: u32::try_from(worlds.len()).expect("it fits"),
        workers: u32::try_from(workers).expect("it fits"),
    };
    std::thread::scope(|threads| {
        let processes = worlds.iter().enumerate().map(|(process, world)| {
            let config = cluster(process, workers, addresses.clone());
            threads.spawn(move || {
                let sink = world.runtime.block_on(world.stash.sink(sink)).expect("the sink");
                play_process(world, &sink, name, token, place(process), config, story)
            })
        });
        let processes = processes.collect::<Vec<_>>();
        processes.into_iter().map(|process| process.join().expect("a process")).collect()
    })
}

/// Plays one process's part of a story.
pub fn play_process(
    world: &World,
    sink: &Sink,
    name: &str,
    token: LaunchToken,
    place: Place,
    config: Config,
    story: &Story,
) -> Result<(Outcome, usize), Arc<SinkError>> {
    let replica = Replica::with_config(name, token, place, &world.background, story.config);
    let (story, kept, renderings) = (story.clone(), sink.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&renderings);
    let workers = timely::execute(config, move |worker| story.keep(worker, &replica, &kept, &counted));
    let ended = workers.expect("workers").join().into_iter().map(|ended| ended.expect("no panic"));
    let mut ended = ended.collect::<Vec<_>>();
    let last = ended.pop().expect("a worker");
    for other in ended {
        match (&other, &last) {
            (Ok(one), Ok(two)) => assert_eq!(one, two, "alike on all workers"),
            (Err(_), Err(_)) => {}
            (one, two) => panic!("not alike on all workers: {one:?}, {two:?}"),
        }
    }
    Ok((last?, renderings.load(Ordering::Relaxed) / usize::try_from(place.workers).expect("it fits")))
}

/// The configuration of one of several processes.
pub fn cluster(process: usize, threads: usize, addresses: Vec<String>) -> Config {
    let communication =
        CommunicationConfig::Cluster { threads, process, addresses, report: false, zerocopy: false };
    Config { communication, worker: WorkerConfig::default() }
}

/// Addresses of this machine that nobody listens at.
pub fn free_addresses(count: usize) -> Vec<String> {
    let listeners = (0..count).map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let listeners = listeners.collect::<Vec<_>>();
    listeners.iter().map(|listener| listener.local_addr().expect("its address").to_string()).collect()
}
