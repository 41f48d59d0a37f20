//! A stash under a recorder: small things that happen in it, each by one call.

use std::{collections::BTreeMap, sync::Arc};

use metrics_util::{
    MetricKind,
    debugging::{DebugValue, DebuggingRecorder, Snapshotter},
};
use stash::{
    BatchConfig, Catalog, Clock, Frontier, IdSource, Incarnation, Launch, Minted, OpenOptions, OwnedParts,
    ShareMessage, Sink, SinkSpec, Stash, StashConfig,
    arrow::{
        array::{ArrayRef, Int64Array, RecordBatch},
        datatypes::{DataType, Field, Schema},
    },
};
use stash_blob::LocalStore;
use stash_catalog::{
    SqliteCatalog,
    testing::{ManualClock, SeededIds},
};
use stash_testkit::FaultStore;
use tempfile::TempDir;

/// One measured series: its labels and what it holds.
pub struct Series {
    pub kind: MetricKind,
    pub labels: BTreeMap<String, String>,
    pub value: DebugValue,
}

impl Series {
    /// Whether it says anything: a counter that rose, a histogram with a record, any gauge.
    pub fn moved(&self) -> bool {
        match &self.value {
            DebugValue::Counter(count) => *count > 0,
            DebugValue::Gauge(_) => true,
            DebugValue::Histogram(values) => !values.is_empty(),
        }
    }

    /// A counter's count, a gauge's value.
    pub fn number(&self) -> f64 {
        match &self.value {
            DebugValue::Counter(count) => f64::from(u32::try_from(*count).expect("small")),
            DebugValue::Gauge(value) => value.into_inner(),
            DebugValue::Histogram(values) => f64::from(u32::try_from(values.len()).expect("few")),
        }
    }
}

/// What a recorder was told.
pub struct Measured(pub Vec<(String, Series)>);

impl Measured {
    pub fn of(snapshotter: &Snapshotter) -> Measured {
        let all = snapshotter.snapshot().into_vec().into_iter().map(|(key, _, _, value)| {
            let (kind, key) = key.into_parts();
            let labels =
                key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
            (key.name().to_owned(), Series { kind, labels, value })
        });
        Measured(all.collect())
    }

    /// The one series with these labels among its own.
    pub fn number(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let mut found = self.0.iter().filter(|(of, series)| {
            let has = |(label, value): &(&str, &str)| series.labels.get(*label).is_some_and(|of| of == value);
            of == name && labels.iter().all(has)
        });
        let (_, series) = found.next().unwrap_or_else(|| panic!("{name} {labels:?} was not measured"));
        assert!(found.next().is_none(), "{name} {labels:?} is more than one series");
        series.number()
    }
}

/// Runs `work` on this thread under a recorder and says what was measured.
pub fn measured(work: impl AsyncFnOnce()) -> Measured {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    metrics::with_local_recorder(&recorder, || runtime.block_on(work()));
    Measured::of(&snapshotter)
}

/// A store that can fail and a catalog whose clock stands, which several stashes are opened over.
pub struct Scene {
    pub folder: TempDir,
    pub store: Arc<FaultStore<LocalStore>>,
    pub clock: Arc<ManualClock>,
    catalog: Arc<dyn Catalog>,
    ids: Arc<SeededIds>,
}

impl Scene {
    pub async fn new() -> Scene {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Arc::new(FaultStore::new(LocalStore::open(folder.path()).expect("a store")));
        let (clock, ids) = (Arc::new(ManualClock::at(1_000_000)), Arc::new(SeededIds::new(7)));
        let catalog = SqliteCatalog::in_memory(Arc::clone(&clock) as _, Arc::clone(&ids) as _).await;
        Scene { folder, store, clock, catalog: Arc::new(catalog.expect("a catalog")), ids }
    }

    /// A stash over it, as one more process has it. Everything above 2 KiB is stashed.
    pub async fn open(&self) -> Stash {
        let batch = BatchConfig {
            memory_bytes: BatchConfig::MEMORY_BYTES_MIN,
            inline_batch_bytes_max: 2 << 10,
            ..BatchConfig::default()
        };
        let (clock, ids): (Arc<dyn Clock>, Arc<dyn IdSource>) =
            (Arc::clone(&self.clock) as _, Arc::clone(&self.ids) as _);
        OpenOptions::new("test://scene")
            .config(StashConfig { batch, lease_secs: 1, ..StashConfig::default() })
            .sources(clock, ids)
            .open_with(Arc::clone(&self.store) as _, Arc::clone(&self.catalog))
            .await
            .expect("it opens")
    }
}

/// A sink of one column of numbers.
pub fn spec(name: &str) -> SinkSpec {
    let schema = Schema::new(vec![Field::new("n", DataType::Int64, false)]);
    SinkSpec::new(name, schema).expect("a sound spec")
}

pub async fn render(sink: &Sink, replica: &str) -> Incarnation {
    let launch = Launch::single(replica, 1).expect("a launch");
    sink.open_incarnation(launch).await.expect("it opens").render().expect("something to write")
}

/// `rows` updates at `time`, no two of them equal.
pub fn updates(sink: &Sink, time: u64, rows: u32) -> RecordBatch {
    let n: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(|n| i64::from(n.reverse_bits()))));
    let count = usize::try_from(rows).expect("few");
    sink.updates(vec![n], vec![time; count], vec![1; count]).expect("they fit")
}

/// Writes the one share of a description.
pub async fn share(incarnation: &Incarnation, minted: Minted, rows: u32) -> ShareMessage<OwnedParts> {
    let time = minted.description.lower().as_u64();
    let writer = incarnation.worker(0).expect("the worker");
    writer.write(minted, [updates(incarnation.sink(), time, rows)]).await.expect("it is written")
}

/// Offers the times below each of `uppers`, one batch each, of `rows` updates.
pub async fn offer(incarnation: &Incarnation, uppers: &[u64], rows: u32) {
    let mut chain = incarnation.chain().expect("the chain");
    for upper in uppers {
        let minted = chain.mint(Frontier::at(*upper)).expect("it mints").minted().expect("a description");
        let share = share(incarnation, minted, rows).await;
        chain.report(share).await.expect("it is offered");
    }
}
