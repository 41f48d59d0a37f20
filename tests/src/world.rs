//! A store that fails by plan, a catalog, the sessions over them, and the look at what is left.

use std::{collections::BTreeSet, fmt::Write as _, future::Future, sync::Arc, time::Duration};

use futures::StreamExt;
use stash::{
    BatchConfig, BlobEntryKind, BlobKey, BlobPrefix, BlobStore, Catalog, Clock, IdSource, OpenOptions,
    PartKey, Sink, SinkSpec, Stash, StashConfig, SystemClock, SystemIds, invariants,
};
use stash_blob::{LocalStore, ObjectBlobs};
use stash_catalog::SqliteCatalog;
use stash_testkit::{FaultStore, YieldingCatalog, YieldingStore};
use tempfile::TempDir;

use crate::schema;

/// After this long a test is taken to hang. Nothing is decided by it.
pub const HANG: Duration = Duration::from_secs(60);

/// After this long a world is taken not to come to rest: longer than a delete that failed is put off twice.
const REST: Duration = Duration::from_secs(10);

/// The store of the tests.
pub type Store = FaultStore<Arc<dyn BlobStore>>;

/// Ends a hang: whatever takes longer than [`HANG`] fails by name.
pub async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(HANG, work).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: hangs"),
    }
}

/// Knobs for small tests: inline up to `inline` bytes, the smallest memory, two tries.
pub fn small(inline: u64) -> StashConfig {
    let batch = BatchConfig {
        inline_batch_bytes_max: inline,
        memory_bytes: BatchConfig::MEMORY_BYTES_MIN,
        attempts_max: 2,
        ..BatchConfig::default()
    };
    StashConfig { batch, ..StashConfig::default() }
}

/// One place for blobs and catalog, in memory or in a folder.
pub struct World {
    /// The store, to be made to fail and to count.
    pub store: Arc<Store>,
    folder: Option<TempDir>,
    catalog: Arc<dyn Catalog>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    config: StashConfig,
    yields: bool,
}

impl World {
    /// Blobs and catalog in memory.
    pub async fn memory(config: StashConfig) -> World {
        let (clock, ids) = (Arc::new(SystemClock), Arc::new(SystemIds));
        let catalog = SqliteCatalog::in_memory(Arc::clone(&clock) as _, Arc::clone(&ids) as _);
        let catalog = Arc::new(catalog.await.expect("a catalog in memory"));
        let store: Arc<dyn BlobStore> = Arc::new(ObjectBlobs::memory());
        World {
            store: Arc::new(FaultStore::new(store)),
            folder: None,
            catalog,
            clock,
            ids,
            config,
            yields: false,
        }
    }

    /// Local files and SQLite in a folder that goes with the world.
    pub async fn files(config: StashConfig) -> World {
        World::files_at(config, Arc::new(SystemClock)).await
    }

    /// The same under another clock.
    pub async fn files_at(config: StashConfig, clock: Arc<dyn Clock>) -> World {
        let folder = TempDir::new().expect("a temporary folder");
        let ids: Arc<dyn IdSource> = Arc::new(SystemIds);
        let file = folder.path().join("catalog.sqlite");
        let catalog = SqliteCatalog::open(&file, Arc::clone(&clock), Arc::clone(&ids));
        let catalog = Arc::new(catalog.await.expect("a catalog in the folder"));
        let store: Arc<dyn BlobStore> =
            Arc::new(LocalStore::open(&folder.path().join("blobs")).expect("a store in the folder"));
        World {
            store: Arc::new(FaultStore::new(store)),
            folder: Some(folder),
            catalog,
            clock,
            ids,
            config,
            yields: false,
        }
    }

    /// The same world whose store and catalog yield before and after each operation of the sessions opened from now
    /// on: places at which calls can be cancelled.
    pub fn yielding(mut self) -> World {
        self.yields = true;
        self
    }

    /// The folder of blobs, where there is one.
    pub fn blobs(&self) -> std::path::PathBuf {
        self.folder.as_ref().expect("a world of files").path().join("blobs")
    }

    /// The file of a part, where there are files.
    pub fn file_of(&self, key: PartKey) -> std::path::PathBuf {
        self.blobs().join(key.to_string())
    }

    /// A session over the store that fails by plan. In a folder it has its own catalog handle, as another
    /// process would; in memory all share the one that is there.
    pub async fn open(&self) -> Stash {
        self.open_with(self.config.clone()).await
    }

    /// The same with other knobs.
    pub async fn open_with(&self, config: StashConfig) -> Stash {
        let mut catalog: Arc<dyn Catalog> = match &self.folder {
            None => Arc::clone(&self.catalog),
            Some(folder) => {
                let file = folder.path().join("catalog.sqlite");
                let open = SqliteCatalog::open(&file, Arc::clone(&self.clock), Arc::clone(&self.ids));
                Arc::new(open.await.expect("another handle on the catalog"))
            }
        };
        let mut store: Arc<dyn BlobStore> = Arc::clone(&self.store) as _;
        if self.yields {
            catalog = Arc::new(YieldingCatalog(catalog));
            store = Arc::new(YieldingStore(store));
        }
        OpenOptions::new("memory://test")
            .config(config)
            .sources(Arc::clone(&self.clock), Arc::clone(&self.ids))
            .open_with(store, catalog)
            .await
            .expect("a stash over the world")
    }

    /// A session and a sink `rows` of the tests' schema in it.
    pub async fn sink(&self) -> Sink {
        let spec = SinkSpec::new("rows", schema()).expect("a sound spec");
        self.open().await.declare_sink(spec).await.expect("a new sink")
    }

    /// Everything is closed or given up by now: checks that nothing is left but what the catalog references.
    ///
    /// What a cancelled call left to a background task may still be on its way, so the store is looked at until
    /// it is at rest; that it comes to rest is the promise, and [`HANG`] ends the wait.
    pub async fn at_rest(&self, stash: &Stash) {
        self.rests(stash, true).await;
    }

    /// The same where a test forgot a share on purpose: the session answers for its keys until it closes.
    pub async fn at_rest_but_for_the_ledger(&self, stash: &Stash) {
        self.rests(stash, false).await;
    }

    async fn rests(&self, stash: &Stash, with_ledger: bool) {
        self.store.heal();
        let catalog = stash.catalog();
        let waiting = async {
            loop {
                let seen = catalog.revision().await.expect("the catalog works");
                stash.drain_deletions().await.expect("the deleter works once the store is healed");
                let keys = if with_ledger { stash.counters().ledger_keys } else { 0 };
                if self.left().await.is_empty() && keys == 0 {
                    return;
                }
                catalog.changed(seen, Duration::from_millis(20)).await.expect("the catalog works");
            }
        };
        let rested = tokio::time::timeout(REST, waiting).await.is_ok();
        let left = self.left().await;
        assert!(left.is_empty(), "not at rest (I17):\n{left}");
        assert!(rested, "not at rest: the process still answers for {} keys", stash.counters().ledger_keys);
    }

    /// Closes all sessions in order, then checks that nothing is left and that a sweep finds nothing.
    pub async fn close(self, sessions: impl IntoIterator<Item = Stash>) {
        self.store.heal();
        for stash in sessions {
            stash.close().await.expect("a session closes");
        }
        if self.folder.is_some() {
            let stash = self.open().await;
            self.at_rest(&stash).await;
            for sink in stash.sinks(true).await.expect("sinks") {
                if sink.dropped.is_none() {
                    let sink = stash.sink(sink.spec.name.as_str()).await.expect("a sink");
                    let report = sink.sweep().await.expect("a sweep");
                    assert_eq!((report.garbage, report.uploads_removed), (0, 0), "a sweep finds nothing");
                    assert_eq!(report.foreign, Vec::<String>::new());
                }
            }
            stash.close().await.expect("a session closes");
        }
    }

    /// What the store holds of parts.
    pub async fn listed(&self) -> BTreeSet<PartKey> {
        let mut keys = BTreeSet::new();
        let mut entries = self.store.inner().list(BlobPrefix::All);
        while let Some(entry) = entries.next().await {
            if let BlobEntryKind::Object(key) = entry.expect("a listing").kind {
                keys.extend(key.part_key());
            }
        }
        keys
    }

    /// What the store, the references and the queue differ in, a line each.
    async fn left(&self) -> String {
        let mut left = String::new();
        let mut entries = self.store.inner().list(BlobPrefix::All);
        let mut listed = BTreeSet::new();
        while let Some(entry) = entries.next().await {
            match entry.expect("a listing").kind {
                BlobEntryKind::Object(key) if key == BlobKey::stash_json() => {}
                BlobEntryKind::Object(key) => drop(listed.insert(key.to_string())),
                other => drop(writeln!(left, "  {other:?}")),
            }
        }
        let mut referenced = BTreeSet::new();
        for sink in self.catalog.sinks(true).await.expect("sinks") {
            let of_sink = self.catalog.referenced(sink.spec.id).await.expect("references");
            referenced.extend(of_sink.into_iter().map(|(key, _)| key.to_string()));
        }
        if let Err(violation) = invariants::i17_no_leak(&listed, &referenced) {
            let _ = writeln!(left, "  {violation}");
        }
        for key in listed.difference(&referenced) {
            let _ = writeln!(left, "  {key} is in the store and not referenced");
        }
        for key in referenced.difference(&listed) {
            let _ = writeln!(left, "  {key} is referenced and not in the store");
        }
        let queued = self.catalog.deletions_queued(None).await.expect("the queue");
        if queued > 0 {
            let _ = writeln!(left, "  {queued} keys are queued for deletion");
        }
        left
    }
}
