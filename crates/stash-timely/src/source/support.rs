//! Chains to read, and dataflows that read them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

use arrow::{compute::cast, datatypes::Schema};
use stash::{
    Chain, Clock, DataflowError, Frontier, Incarnation, Launch, OpenOptions, ShareWriter, Sink, SinkSpec,
    Stash, SystemIds, Timestamp,
};
use timely::{
    dataflow::operators::{
        Capture,
        capture::Event,
        probe::{Handle, Probe},
    },
    progress::frontier::MutableAntichain,
    worker::Worker,
};
use tokio::runtime::Runtime;

use super::*;
use crate::rows::RowBuilder;

/// A row, its time, its diff.
pub(super) type Update = (String, u64, i64);
/// What updates sum up to.
pub(super) type Sums = BTreeMap<(String, u64), i64>;

/// A clock that stands until it is moved on.
#[derive(Debug, Default)]
pub(super) struct StandingClock(AtomicU64);

impl StandingClock {
    pub(super) fn advance(&self, millis: u64) {
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for StandingClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

/// A stash in memory with one sink, and what fills its chain.
pub(super) struct World {
    pub(super) runtime: Runtime,
    pub(super) clock: Arc<StandingClock>,
    pub(super) sink: Sink,
    chain: Chain,
    writer: ShareWriter,
    incarnation: Incarnation,
}

impl World {
    pub(super) fn new(spec: impl FnOnce(SinkSpec) -> SinkSpec) -> World {
        World::of(String::schema().expect("a column"), spec)
    }

    /// A sink with one column of texts, declared as it likes.
    pub(super) fn of(schema: Schema, spec: impl FnOnce(SinkSpec) -> SinkSpec) -> World {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let clock = Arc::new(StandingClock(AtomicU64::new(1_000)));
        let spec = spec(SinkSpec::new("words", schema).expect("a spec"));
        let (sink, incarnation) = runtime
            .block_on(async {
                let opening =
                    OpenOptions::new("memory://").sources(Arc::clone(&clock) as _, Arc::new(SystemIds));
                let stash: Stash = opening.open().await?;
                let sink = stash.declare_sink(spec).await?;
                let launch = Launch::single("replica", 1)?;
                let incarnation = sink.open_incarnation(launch).await?.render()?;
                Ok::<_, stash::Error>((sink, incarnation))
            })
            .expect("a sink");
        let (chain, writer) =
            (incarnation.chain().expect("a chain"), incarnation.worker(0).expect("a writer"));
        World { runtime, clock, sink, chain, writer, incarnation }
    }

    /// Brings the chain's upper to `upper`, with those of the updates that lie between.
    pub(super) fn commit(&mut self, upper: Frontier, updates: &[Update]) {
        let World { runtime, sink, chain, writer, .. } = self;
        let committed = runtime.block_on(async {
            while let Some(minted) = chain.mint(upper)?.minted() {
                let mut builder = String::builder().expect("a builder");
                let (mut times, mut diffs) = (Vec::new(), Vec::new());
                for (row, time, diff) in updates.iter().filter(|update| minted.description.contains(update.1))
                {
                    builder.append(row).expect("it fits");
                    times.push(*time);
                    diffs.push(*diff);
                }
                let some = builder.len() > 0;
                let columns = builder.finish().expect("a column").into_iter();
                let declared = sink.schema().declared_schema().field(0).data_type();
                let columns = columns.map(|column| cast(&column, declared).expect("it casts")).collect();
                let batch = sink.updates(columns, times, diffs)?;
                chain.report(writer.write(minted, some.then_some(batch)).await?).await?;
            }
            Ok::<_, stash::Error>(())
        });
        committed.expect("the chain takes it");
    }

    /// Puts the dataflow in error at `at`, which is the chain's upper.
    pub(super) fn poison(&mut self, at: u64) {
        let World { runtime, chain, writer, .. } = self;
        let poisoned = runtime.block_on(async {
            let minted = chain.mint(Frontier::at(at + 1))?.minted().expect("it is minted");
            let error = DataflowError { at, message: "division by zero".to_owned() };
            chain.report(writer.share(minted)?.poison(error).await).await
        });
        poisoned.expect("the chain takes it");
    }

    pub(super) fn options(&self, start: Start) -> SourceOptions {
        SourceOptions::new(self.sink.clone(), self.runtime.handle().clone(), start)
    }

    /// Acknowledges everything up to `upper` in the name of another consumer.
    pub(super) fn released(&self, upper: Frontier) {
        let released = self.runtime.block_on(async {
            let mut other = self.sink.subscribe("another", stash::StartAt::Beginning).await?;
            other.acknowledge(upper).await
        });
        released.expect("it is released");
    }

    /// How far a consumer has acknowledged, as the catalog has it.
    pub(super) fn acked(&self, consumer: &str) -> Option<Frontier> {
        let rows = self.runtime.block_on(self.sink.consumers()).expect("the consumers");
        rows.iter().find(|row| row.name.as_str() == consumer).map(|row| row.acked)
    }

    /// Nothing is left open, and the store has what the catalog says.
    pub(super) fn at_rest(self) {
        let World { runtime, sink, chain, writer, incarnation, .. } = self;
        drop((chain, writer));
        runtime.block_on(async {
            incarnation.close("the test is over").await.expect("it closes");
            sink.stash().drain_deletions().await.expect("deletions");
            let report = sink.verify(|_| {}).await.expect("it verifies");
            assert!(report.violations.is_empty(), "{:?}", report.violations);
            sink.stash().close().await.expect("it closes");
        });
    }
}

/// What a worker saw come out of a source: each update at or above the frontier claimed before it.
pub(super) struct Seen {
    events: mpsc::Receiver<Event<u64, Vec<Update>>>,
    claimed: MutableAntichain<u64>,
    /// Everything given out.
    pub(super) updates: Vec<Update>,
    /// Each frontier claimed, in order.
    pub(super) frontiers: Vec<Frontier>,
}

impl Seen {
    fn new(events: mpsc::Receiver<Event<u64, Vec<Update>>>) -> Seen {
        Seen { events, claimed: MutableAntichain::from_elem(0), updates: Vec::new(), frontiers: Vec::new() }
    }

    /// Takes in what came since.
    pub(super) fn look(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Progress(changes) => {
                    self.claimed.update_iter(changes);
                    let claimed = self.frontier();
                    assert!(self.frontiers.last() <= Some(&claimed), "frontiers only rise");
                    self.frontiers.push(claimed);
                }
                Event::Messages(stamp, updates) => {
                    for (row, time, diff) in updates {
                        assert!(self.claimed.less_equal(&time), "{row} at {time} below {:?}", self.frontiers);
                        assert!(
                            stamp.elements().iter().any(|stamp| *stamp <= time),
                            "{time} below its capability"
                        );
                        self.updates.push((row, time, diff));
                    }
                }
            }
        }
    }

    /// The frontier claimed now.
    pub(super) fn frontier(&self) -> Frontier {
        self.claimed.frontier().first().map_or(Frontier::EMPTY, |time| Frontier::at(*time))
    }
}

/// A source in a dataflow of one worker, stepped by the test.
pub(super) struct Running {
    pub(super) token: Option<SourceToken>,
    pub(super) probe: Handle<u64>,
    pub(super) seen: Seen,
    dataflow: usize,
}

impl Running {
    pub(super) fn start(worker: &mut Worker, options: SourceOptions) -> Running {
        let dataflow = worker.next_dataflow_index();
        worker.dataflow(|scope| {
            let (collection, token) = stash_source::<String>(scope, "words", options);
            let (probe, stream) = collection.inner.probe();
            Running { token: Some(token), probe, seen: Seen::new(stream.capture()), dataflow }
        })
    }

    pub(super) fn token(&self) -> &SourceToken {
        self.token.as_ref().expect("the token is kept")
    }

    /// Steps, woken by the source alone, until something is so.
    pub(super) fn until(&mut self, worker: &mut Worker, mut so: impl FnMut(&mut Running) -> bool) {
        loop {
            self.seen.look();
            if so(self) {
                return;
            }
            worker.step_or_park(None);
        }
    }

    /// Steps until everything below `frontier` was given out, and downstream knows it.
    pub(super) fn until_at(&mut self, worker: &mut Worker, frontier: Frontier) {
        self.until(worker, |running| running.seen.frontier() >= frontier);
    }

    /// Steps until the source ended, and gives its status.
    pub(super) fn until_over(&mut self, worker: &mut Worker) -> SourceStatus {
        self.until(worker, |running| running.token().status().is_over());
        for _ in 0..20 {
            worker.step();
        }
        self.seen.look();
        self.token().status()
    }

    /// The error that ended the source, whose collection must still be open at `frontier`.
    pub(super) fn failure(&mut self, worker: &mut Worker, frontier: Frontier) -> Arc<SourceError> {
        match self.until_over(worker) {
            SourceStatus::Failed(error) => {
                assert_eq!(self.seen.frontier(), frontier, "{error}");
                assert!(!self.probe.done());
                error
            }
            other => panic!("{other:?}"),
        }
    }

    /// Ends the dataflow, as whoever sees a failure does.
    pub(super) fn end(mut self, worker: &mut Worker) -> Vec<Update> {
        worker.drop_dataflow(self.dataflow);
        self.seen.look();
        self.seen.updates
    }
}

/// Sums of updates by row and time, without zeros.
pub(super) fn sums(updates: impl IntoIterator<Item = Update>) -> Sums {
    let mut sums = Sums::new();
    for (row, time, diff) in updates {
        *sums.entry((row, time)).or_default() += diff;
    }
    sums.retain(|_, sum| *sum != 0);
    sums
}

/// A whole run over several workers, until the chain is complete.
pub(super) fn run_to_completion(workers: usize, options: &SourceOptions) -> Vec<(Vec<Update>, SourceStatus)> {
    let options = options.clone();
    let guards = timely::execute(timely::Config::process(workers), move |worker| {
        let mut running = Running::start(worker, options.clone());
        running.until_at(worker, Frontier::EMPTY);
        running.until(worker, |running| running.token().status().is_over());
        assert!(running.probe.done());
        (std::mem::take(&mut running.seen.updates), running.token().status())
    });
    let joined = guards.expect("workers").join();
    joined.into_iter().map(|result| result.expect("a worker")).collect()
}
