//! A stash beside timely workers, stories that dataflows tell, and an oracle.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use stash::{
    BlobStore, Class, Frontier, Launch, OpenOptions, Sink, SinkSpec, StartAt, Stash, StashConfig,
    Subscription, TryNext, arrow,
};
use stash_testkit::FaultStore;
use stash_timely::{Background, Connected, Connection, Row, SinkConfig};
use tokio::runtime::Runtime;

/// A store of a world that can be made to fail.
pub type Faults = FaultStore<Arc<dyn BlobStore>>;

/// What an OS process has: a stash, a runtime for it, and what its workers need to run sinks.
pub struct World {
    pub runtime: Arc<Runtime>,
    pub background: Background,
    pub stash: Stash,
    faults: Arc<Faults>,
    folder: Option<Arc<tempfile::TempDir>>,
}

/// Consolidated updates: by row (as text) and time.
pub type Updates = BTreeMap<(String, u64), i64>;

impl World {
    /// In memory, for this process alone.
    pub fn memory(workers: usize) -> World {
        World::open("memory://".to_owned(), StashConfig::default(), workers, None)
    }

    /// In a folder of its own.
    pub fn files(workers: usize) -> World {
        World::with_config(workers, StashConfig::default())
    }

    /// In a folder of its own, where every update travels in a part, however small.
    pub fn parts(workers: usize) -> World {
        World::with_config(workers, all_parts())
    }

    pub fn with_config(workers: usize, config: StashConfig) -> World {
        let folder = tempfile::tempdir().expect("a folder");
        World::open(url(folder.path()), config, workers, Some(Arc::new(folder)))
    }

    /// The same in a folder that others have.
    pub fn at_parts(folder: &std::path::Path, workers: usize) -> World {
        World::open(url(&folder.canonicalize().expect("a folder")), all_parts(), workers, None)
    }

    /// The same stash as another process has it.
    pub fn again(&self, workers: usize) -> World {
        let folder = self.folder.clone();
        World::open(self.stash.url().to_owned(), self.stash.config().clone(), workers, folder)
    }

    /// Where it lies.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.as_ref().expect("it has a folder").path()
    }

    fn open(
        url: String,
        config: StashConfig,
        workers: usize,
        folder: Option<Arc<tempfile::TempDir>>,
    ) -> World {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = Arc::new(runtime.expect("a runtime"));
        let slot = Arc::new(OnceLock::new());
        let given = Arc::clone(&slot);
        let options = OpenOptions::new(url).config(config).wrap_store(move |store| {
            let faulty = given.get_or_init(|| Arc::new(FaultStore::new(store)));
            Arc::clone(faulty) as Arc<dyn BlobStore>
        });
        let stash = runtime.block_on(options.open()).expect("a stash");
        let background = Background::new(runtime.handle().clone(), workers);
        let faults = Arc::clone(slot.get().expect("the store was wrapped"));
        World { runtime, background, stash, faults, folder }
    }

    /// Its store, to let it fail.
    pub fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    pub fn sink<R: Row>(&self, name: &str) -> Sink {
        self.declare::<R>(name, |spec| spec)
    }

    pub fn declare<R: Row>(&self, name: &str, with: impl FnOnce(SinkSpec) -> SinkSpec) -> Sink {
        let spec = SinkSpec::new(name, R::schema().expect("columns")).expect("a spec");
        self.runtime.block_on(self.stash.declare_sink(with(spec))).expect("a sink")
    }

    /// A rendering of the sink on a replica of this process alone.
    pub fn connect(&self, sink: &stash::Sink, workers: u32) -> Connection {
        let launch = Launch::single("replica", workers).expect("a launch");
        let opened = Connection::open(sink, launch, &self.background, SinkConfig::default());
        match self.runtime.block_on(opened).expect("opened") {
            Connected::Render(connection) => connection,
            other => panic!("{other:?}"),
        }
    }

    /// All of the chain, by row (as text) and time, and its upper.
    pub fn read(&self, sink: &Sink) -> (Updates, Frontier) {
        let (updates, upper, error) = self.read_to_error(sink);
        assert_eq!(error, None);
        (updates, upper)
    }

    /// All of the chain, how far it goes, and what it ends with if it is poisoned.
    pub fn read_to_error(&self, sink: &Sink) -> (Updates, Frontier, Option<String>) {
        self.runtime.block_on(async {
            let mut chain = sink.read().await.expect("readable");
            deliveries(&mut chain).await
        })
    }

    /// At rest: nothing is in the store that the catalog does not reference, and every promise holds.
    pub fn at_rest(&self, sink: &Sink) {
        self.runtime.block_on(async {
            self.stash.drain_deletions().await.expect("drained");
            let report = sink.verify(|_| {}).await.expect("verified");
            assert!(report.violations.is_empty(), "{:?}", report.violations);
            self.listed(sink, |class| matches!(class, Class::Referenced | Class::Own)).await;
            assert_eq!(self.stash.counters().ledger_keys, 0, "the process answers for no key");
        });
    }

    /// A consumer reads and acknowledges everything; then the store is empty, and the stash closes without finding
    /// anything to delete.
    pub fn leaves_nothing(&self, sink: &Sink) {
        self.runtime.block_on(async {
            let mut reader = sink.subscribe("reader", StartAt::Beginning).await.expect("subscribed");
            let (_, upper, _) = deliveries(&mut reader).await;
            if upper > Frontier::at(sink.row().spec.as_of) {
                reader.acknowledge(upper).await.expect("acknowledged");
            }
            self.stash.drain_deletions().await.expect("drained");
            self.listed(sink, |class| matches!(class, Class::Own)).await;
            let drained = self.stash.close().await.expect("closed");
            assert_eq!(drained.deleted, 0, "closing deletes only what was forgotten before (I17)");
        });
    }

    async fn listed(&self, sink: &Sink, rests: impl Fn(Class) -> bool) {
        let audit = self.stash.audit(Some(sink), |_| {}).await.expect("audited");
        let left = audit.lines.iter().filter(|line| !rests(line.class)).collect::<Vec<_>>();
        assert!(left.is_empty(), "not at rest (I17): {left:?}");
    }
}

fn all_parts() -> StashConfig {
    let mut config = StashConfig::default();
    config.batch.inline_batch_bytes_max = 0;
    config
}

fn url(folder: &std::path::Path) -> String {
    format!("file://{}", folder.display())
}

async fn deliveries(chain: &mut Subscription) -> (Updates, Frontier, Option<String>) {
    let mut updates = Updates::new();
    loop {
        match chain.try_next().await {
            Ok(TryNext::Delivery(delivery)) => {
                let mut reader = delivery.read();
                while let Some(batch) = reader.next().await.expect("a batch") {
                    add(&mut updates, &batch);
                }
            }
            Ok(TryNext::Pending | TryNext::End) => return (updates, chain.position(), None),
            Err(error) => return (updates, chain.position(), Some(error.to_string())),
        }
    }
}

fn add(updates: &mut Updates, batch: &arrow::array::RecordBatch) {
    use arrow::{
        array::AsArray,
        datatypes::{Int64Type, UInt64Type},
        util::display::array_value_to_string,
    };
    let columns = batch.num_columns() - 2;
    let times = batch.column(columns).as_primitive::<UInt64Type>();
    let diffs = batch.column(columns + 1).as_primitive::<Int64Type>();
    for row in 0..batch.num_rows() {
        let shown =
            (0..columns).map(|column| array_value_to_string(batch.column(column), row).expect("a value"));
        let key = (shown.collect::<Vec<_>>().join("|"), times.value(row));
        let before = updates.insert(key.clone(), diffs.value(row));
        assert_eq!(before, None, "{key:?} is delivered once");
    }
}
