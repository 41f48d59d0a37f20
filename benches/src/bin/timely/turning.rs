//! How long a worker keeps an operator waiting while the sink writes a snapshot.
//!
//! A ticker is activated again whenever it was; measured are the times between, from the sealed batch on until the
//! snapshot is accepted and the batch is freed. Differential seals a batch in one call of its arrangement, which is told beside: when it
//! ended is taken from the worker's own log. On a machine with others on it the worker also waits for a core; so the
//! times are told both as they were and without that waiting (Linux: `/proc/thread-self/schedstat`).

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fs::File,
    os::unix::fs::FileExt,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use stash_benches::{Intervals, Results, load, peak_memory};
use timely::{
    container::CapacityContainerBuilder,
    dataflow::operators::generic::{OutputBuilder, builder_rc::OperatorBuilder},
    logging::{StartStop, TimelyEvent, TimelyEventBuilder},
    worker::Worker,
};

use stash_timely::Connection;

use crate::dataflow::{ROW_BYTES, Rendered, World, feed};

/// What p99.9 must be below.
const MUST: Duration = Duration::from_millis(50);
/// Shorter ones are counted; longer ones are kept with their moment.
const LONG: Duration = Duration::from_millis(1);

#[derive(clap::Args)]
pub struct Arguments {
    /// Size of the snapshot, in 10^9 bytes of rows. About half as much again is taken in memory, and twice that while the
    /// batch is sealed.
    #[arg(long, default_value_t = 4.0)]
    gigabytes: f64,
}

pub fn measure(arguments: &Arguments) -> Result<Results> {
    let rows = (arguments.gigabytes * 1e9 / ROW_BYTES as f64) as u64;
    let world = World::open()?;
    let sink = world.sink("turning")?;
    let connection = world.connect(&sink, 1)?;
    let (given, load_before) = (connection.clone(), load());
    let guards = timely::execute(timely::Config::process(1), move |worker| one(worker, &given, rows));
    let told = guards.map_err(anyhow::Error::msg)?.join().into_iter().next();
    let told = told.context("a worker")?.map_err(anyhow::Error::msg)??;
    let counters = world.stash.counters();
    world.close(&connection)?;

    let mut results = Results::default();
    results.add("rows", rows as f64);
    results.add("gigabytes", arguments.gigabytes);
    results.add("feeding_s", told.feeding.as_secs_f64());
    results.add("seal_s", told.seal.as_secs_f64());
    results.add("writing_s", told.writing.as_secs_f64());
    results.add("freeing_after_s", told.freeing.as_secs_f64());
    results.add("rows_per_s", rows as f64 / told.writing.as_secs_f64());
    results.add("activations", told.wall.count() as f64);
    let millis = |duration: Duration| duration.as_secs_f64() * 1000.0;
    for (kind, intervals) in [("", &told.wall), ("without_waiting_", &told.own)] {
        for (name, permille) in [("p50", 500), ("p99", 990), ("p99.9", 999)] {
            results.add(format!("{kind}{name}_ms"), millis(intervals.permille(permille)));
        }
        results.add(format!("{kind}p99.9_of_time_ms"), millis(intervals.permille_of_time(999)));
        results.add(format!("{kind}max_ms"), millis(intervals.longest()));
    }
    results.add("must_p99.9_ms", millis(MUST));
    results.add("sink_activation_max_ms", millis(told.sink_longest));
    results.add("puts", counters.puts as f64);
    results.add("load_before", load_before);
    results.add("load_after", load());
    results.add("peak_memory_mib", peak_memory().unwrap_or_default() as f64 / f64::from(1 << 20));
    Ok(results)
}

struct Told {
    feeding: Duration,
    seal: Duration,
    writing: Duration,
    freeing: Duration,
    /// Between activations, from the sealed batch on.
    wall: Intervals,
    /// The same without what the thread waited for a core.
    own: Intervals,
    /// The longest activation of the sink's write operator.
    sink_longest: Duration,
}

fn one(worker: &mut Worker, connection: &Connection, rows: u64) -> Result<Told> {
    let activations = Activations::log(worker)?;
    let began = Instant::now();
    let mut rendered = Rendered::new(worker, connection)?;
    let ticks = Rc::new(RefCell::new(Ticks::new()?));
    let running = Rc::new(Cell::new(true));
    tick(worker, &ticks, &running);
    feed(worker, &mut rendered.rows, 0..rows);
    rendered.rows.advance_to(1);
    rendered.rows.flush();
    let feeding = began.elapsed();
    while !rendered.is_sealed() {
        worker.step();
    }
    ticks.borrow_mut().sealed = true;
    while !rendered.is_accepted(1)? {
        worker.step();
    }
    let accepted = Instant::now();
    while rendered.is_sealed() {
        worker.step();
    }
    let freed = Instant::now();
    running.set(false);
    rendered.end(worker);

    let (seal, sealed) = activations.longest("StashArrange").context("a seal")?;
    let (sink_longest, _) = activations.longest("StashWrite").context("an activation of the sink")?;
    let Ticks { mut wall, mut own, long, .. } = ticks.take();
    // A long one that the seal lies in counts from the sealed batch on.
    for (from, to, waited) in long.into_iter().filter(|(from, to, _)| *to > sealed && *from < freed) {
        let length = to.min(freed).saturating_duration_since(from.max(sealed));
        wall.add(length);
        own.add(length.saturating_sub(waited));
    }
    let (writing, freeing) = (accepted.duration_since(sealed), freed.duration_since(accepted));
    Ok(Told { feeding, seal, writing, freeing, wall, own, sink_longest })
}

/// What the ticker takes down.
#[derive(Default)]
struct Ticks {
    /// Nanoseconds on a core, nanoseconds of waiting for one.
    schedule: Option<File>,
    last: Option<(Instant, Duration)>,
    sealed: bool,
    wall: Intervals,
    own: Intervals,
    /// From, to, and what of it was waited for a core.
    long: Vec<(Instant, Instant, Duration)>,
}

impl Ticks {
    /// To be made on the worker's thread.
    fn new() -> Result<Ticks> {
        Ok(Ticks { schedule: File::open("/proc/thread-self/schedstat").ok(), ..Ticks::default() })
    }

    fn tick(&mut self) {
        let (now, waited) = (Instant::now(), self.waited());
        let Some((last, waited_before)) = self.last.replace((now, waited)) else { return };
        let (length, waited) = (now - last, waited.saturating_sub(waited_before));
        if length >= LONG {
            self.long.push((last, now, waited));
        } else if self.sealed {
            self.wall.add(length);
            self.own.add(length.saturating_sub(waited));
        }
    }

    /// How long this thread has waited for a core in all.
    fn waited(&self) -> Duration {
        let mut bytes = [0; 64];
        let read = self.schedule.as_ref().and_then(|file| file.read_at(&mut bytes, 0).ok()).unwrap_or(0);
        let told = bytes.get(..read).and_then(|told| str::from_utf8(told).ok()).unwrap_or_default();
        let nanos = told.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok());
        Duration::from_nanos(nanos.unwrap_or_default())
    }
}

/// An operator that is always active, while `running`.
fn tick(worker: &mut Worker, ticks: &Rc<RefCell<Ticks>>, running: &Rc<Cell<bool>>) {
    let (ticks, running) = (Rc::clone(ticks), Rc::clone(running));
    worker.dataflow::<u64, _, _>(|scope| {
        let mut builder = OperatorBuilder::new("Ticker".to_owned(), scope);
        let activator = scope.activator_for(Rc::clone(&builder.operator_info().address));
        let (output, _) = builder.new_output::<Vec<()>>();
        let mut output = OutputBuilder::<_, CapacityContainerBuilder<Vec<()>>>::from(output);
        builder.build(move |mut capabilities| {
            let mut capability = capabilities.pop();
            move |_| {
                drop(output.activate());
                if running.get() {
                    ticks.borrow_mut().tick();
                    activator.activate();
                } else {
                    drop(capability.take());
                }
            }
        });
    });
}

/// The longest activation of each operator, and when it ended: from the worker's log.
#[derive(Clone, Default)]
struct Activations(Rc<RefCell<Logged>>);

#[derive(Default)]
struct Logged {
    /// What the log's times count from.
    origin: Option<Instant>,
    names: BTreeMap<usize, String>,
    started: BTreeMap<usize, Duration>,
    longest: BTreeMap<usize, (Duration, Duration)>,
}

impl Activations {
    fn log(worker: &Worker) -> Result<Activations> {
        let activations = Activations::default();
        activations.0.borrow_mut().origin = worker.timer();
        let logged = activations.clone();
        let mut registry = worker.log_register().context("a worker that can log")?;
        registry.insert::<TimelyEventBuilder, _>("timely", move |_, events| {
            let mut logged = logged.0.borrow_mut();
            events.iter_mut().flatten().for_each(|(time, event)| logged.add(*time, event));
        });
        Ok(activations)
    }

    /// Of the operator with this name: how long, and when it ended.
    fn longest(&self, name: &str) -> Option<(Duration, Instant)> {
        let logged = self.0.borrow();
        let id = logged.names.iter().find_map(|(id, named)| (named == name).then_some(id))?;
        let (length, ended) = *logged.longest.get(id)?;
        Some((length, logged.origin? + ended))
    }
}

impl Logged {
    fn add(&mut self, time: Duration, event: &TimelyEvent) {
        match event {
            TimelyEvent::Operates(operator) => {
                self.names.insert(operator.id, operator.name.clone());
            }
            TimelyEvent::Schedule(schedule) => match schedule.start_stop {
                StartStop::Start => {
                    self.started.insert(schedule.id, time);
                }
                StartStop::Stop => {
                    let started = self.started.get(&schedule.id).copied().unwrap_or(time);
                    let length = time.saturating_sub(started);
                    let longest = self.longest.entry(schedule.id).or_default();
                    *longest = (*longest).max((length, time));
                }
            },
            _ => {}
        }
    }
}
