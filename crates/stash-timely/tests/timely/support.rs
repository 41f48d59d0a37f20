//! A stash beside timely workers, and an oracle.

use std::{collections::BTreeMap, sync::Arc};

use stash::{Class, Frontier, SinkSpec, Stash, arrow};
use stash_timely::{Background, Row};
use tokio::runtime::Runtime;

/// A stash, a runtime for it, and what a process needs to run sinks.
pub struct World {
    pub runtime: Arc<Runtime>,
    pub background: Background,
    pub stash: Stash,
    _folder: Option<tempfile::TempDir>,
}

/// Consolidated updates: by row and time.
pub type Updates = BTreeMap<(String, u64), i64>;

impl World {
    #[expect(dead_code, reason = "for tests that need no files")]
    pub fn memory(workers: usize) -> World {
        World::open("memory://".to_owned(), workers, None)
    }

    pub fn files(workers: usize) -> World {
        let folder = tempfile::tempdir().expect("a folder");
        World::open(format!("file://{}", folder.path().display()), workers, Some(folder))
    }

    fn open(url: String, workers: usize, folder: Option<tempfile::TempDir>) -> World {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = Arc::new(runtime.expect("a runtime"));
        let stash = runtime.block_on(Stash::open(&url)).expect("a stash");
        let background = Background::new(runtime.handle().clone(), workers);
        World { runtime, background, stash, _folder: folder }
    }

    pub fn sink<R: Row>(&self, name: &str) -> stash::Sink {
        self.declare::<R>(name, |spec| spec)
    }

    pub fn declare<R: Row>(&self, name: &str, with: impl FnOnce(SinkSpec) -> SinkSpec) -> stash::Sink {
        let spec = SinkSpec::new(name, R::schema().expect("columns")).expect("a spec");
        self.runtime.block_on(self.stash.declare_sink(with(spec))).expect("a sink")
    }

    /// All of the chain, by row (as text) and time, and its upper.
    pub fn read(&self, sink: &stash::Sink) -> (Updates, Frontier) {
        self.runtime.block_on(async {
            let mut chain = sink.read().await.expect("readable");
            let mut updates = Updates::new();
            while let stash::TryNext::Delivery(delivery) = chain.try_next().await.expect("a delivery") {
                let mut reader = delivery.read();
                while let Some(batch) = reader.next().await.expect("a batch") {
                    add(&mut updates, &batch);
                }
            }
            (updates, chain.position())
        })
    }

    /// At rest: nothing is in the store that the catalog does not reference, and every promise holds.
    pub fn at_rest(&self, sink: &stash::Sink) {
        self.runtime.block_on(async {
            self.stash.drain_deletions().await.expect("drained");
            let report = sink.verify(|_| {}).await.expect("verified");
            assert!(report.violations.is_empty(), "{:?}", report.violations);
            let audit = self.stash.audit(Some(sink), |_| {}).await.expect("audited");
            let rests = |class: Class| matches!(class, Class::Referenced | Class::Own);
            let left = audit.lines.iter().filter(|line| !rests(line.class)).collect::<Vec<_>>();
            assert!(left.is_empty(), "not at rest (I17): {left:?}");
            assert_eq!(self.stash.counters().ledger_keys, 0, "the process answers for no key");
        });
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
