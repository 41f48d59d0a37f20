//! Opening a stash: the store, the catalog, and the mark that ties them to one another.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use stash_batch::{BudgetUse, Drained, Meters, Process, ProcessCounters, Requests};
use stash_blob::{BlobStore, LocalStore, ObjectBlobs, StashMarker};
use stash_catalog::{Catalog, CatalogError, Misuse, NewSink, SinkRow, SqliteCatalog};
use stash_types::{
    BlobKey, CatalogId, Clock, CommitId, Frontier, IdSource, IncarnationId, LaunchToken, SessionId, SinkId,
    SinkName, Timestamp, fault,
};
use url::Url;

use crate::{
    Error, MeteredCatalog, MeteredStore, Result, Sink, SinkSpec, StashConfig, SystemClock, SystemIds,
};

/// The file of the embedded catalog, beside the folder of blobs.
const CATALOG_FILE: &str = "catalog.sqlite";
/// The folder of blobs: the prefix of a local stash.
const BLOBS_FOLDER: &str = "blobs";

/// How to open a stash.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    url: String,
    create: bool,
    config: StashConfig,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    wrap: Option<WrapStore>,
    meters: Option<Meters>,
}

type Wrap = dyn Fn(Arc<dyn BlobStore>) -> Arc<dyn BlobStore> + Send + Sync;

/// Puts a decorator round a store.
#[derive(Clone)]
struct WrapStore(Arc<Wrap>);

impl fmt::Debug for WrapStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WrapStore")
    }
}

impl OpenOptions {
    /// For the stash at `url`: `file:///folder` (blobs and an SQLite catalog in that folder) or `memory://`.
    pub fn new(url: impl Into<String>) -> OpenOptions {
        OpenOptions {
            url: url.into(),
            create: true,
            config: StashConfig::default(),
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            wrap: None,
            meters: None,
        }
    }

    /// Whether a stash that is not there is created. Default: yes.
    #[must_use]
    pub fn create(mut self, create: bool) -> OpenOptions {
        self.create = create;
        self
    }

    /// The knobs.
    #[must_use]
    pub fn config(mut self, config: StashConfig) -> OpenOptions {
        self.config = config;
        self
    }

    /// Another clock and another source of ids; the catalog uses them too.
    #[must_use]
    pub fn sources(mut self, clock: Arc<dyn Clock>, ids: Arc<dyn IdSource>) -> OpenOptions {
        (self.clock, self.ids) = (clock, ids);
        self
    }

    /// Puts a decorator round the store: to count, to inject faults, to watch.
    #[must_use]
    pub fn wrap_store(
        mut self,
        wrap: impl Fn(Arc<dyn BlobStore>) -> Arc<dyn BlobStore> + Send + Sync + 'static,
    ) -> OpenOptions {
        self.wrap = Some(WrapStore(Arc::new(wrap)));
        self
    }

    /// Measures with these handles: for a store that was told of them, and tells of its requests
    /// ([`stash_blob::RequestObserver`]).
    #[must_use]
    pub fn meters(mut self, meters: Meters) -> OpenOptions {
        self.meters = Some(meters);
        self
    }

    /// Whether the URL names a place that this build can open. Touches nothing there.
    pub fn check(&self) -> Result<()> {
        Location::parse(&self.url).map(drop)
    }

    /// Opens it. Must be called on a tokio runtime, and after a recorder of metrics was installed, if one is.
    pub async fn open(self) -> Result<Stash> {
        let (store, catalog): (Arc<dyn BlobStore>, Arc<dyn Catalog>) = match Location::parse(&self.url)? {
            Location::Memory => (
                Arc::new(ObjectBlobs::memory()),
                Arc::new(SqliteCatalog::in_memory(Arc::clone(&self.clock), Arc::clone(&self.ids)).await?),
            ),
            Location::Folder(folder) => self.open_folder(&folder).await?,
        };
        self.open_with(store, catalog).await
    }

    async fn open_folder(&self, folder: &Path) -> Result<(Arc<dyn BlobStore>, Arc<dyn Catalog>)> {
        let file = folder.join(CATALOG_FILE);
        if !self.create {
            let (url, file) = (&self.url, file.display());
            let what = match folder.join(CATALOG_FILE).try_exists() {
                Ok(true) => None,
                Ok(false) => Some(format!("there is no stash at {url}: {file} does not exist")),
                Err(error) => Some(format!("the stash at {url} cannot be looked at: {file}: {error}")),
            };
            if let Some(what) = what {
                return Err(Error::InvalidUsage { what });
            }
        }
        let blobs = folder.join(BLOBS_FOLDER);
        if !self.create && !blobs.is_dir() {
            return Err(Error::InvalidUsage {
                what: format!(
                    "the stash at {} has lost its blobs: {} does not exist",
                    self.url,
                    blobs.display()
                ),
            });
        }
        let store = LocalStore::open(&blobs)?;
        let catalog = SqliteCatalog::open(&file, Arc::clone(&self.clock), Arc::clone(&self.ids)).await?;
        Ok((Arc::new(store), Arc::new(catalog)))
    }

    /// Opens a stash over this store and catalog; the URL only names it. The store's prefix is claimed for the
    /// catalog, and one that belongs to another catalog is refused.
    pub async fn open_with(self, store: Arc<dyn BlobStore>, catalog: Arc<dyn Catalog>) -> Result<Stash> {
        let store = match &self.wrap {
            Some(WrapStore(wrap)) => wrap(store),
            None => store,
        };
        let meters = self.meters.unwrap_or_default();
        let store: Arc<dyn BlobStore> = Arc::new(MeteredStore::new(store, meters.clone()));
        let catalog: Arc<dyn Catalog> = Arc::new(MeteredCatalog::new(catalog));
        let marker = StashMarker { format: stash_blob::FORMAT, catalog: catalog.id() };
        stash_blob::claim(store.as_ref(), &marker).await?;
        fault::place("stash.claimed");
        let process = Process::metered(store, catalog, self.config.batch.clone(), meters)?;
        let OpenOptions { url, config, clock, ids, create: _, wrap: _, meters: _ } = self;
        Ok(Stash {
            shared: Arc::new(Shared {
                url,
                config,
                process,
                clock,
                ids,
                #[cfg(feature = "faults")]
                kept: Default::default(),
            }),
        })
    }
}

enum Location {
    Memory,
    Folder(PathBuf),
}

impl Location {
    fn parse(text: &str) -> Result<Location> {
        let refuse = |why: &str| {
            Err(Error::InvalidUsage {
                what: format!("{text:?} is not a stash URL: {why}; use file:///folder or memory://"),
            })
        };
        let url = match Url::parse(text) {
            Ok(url) => url,
            Err(error) => return refuse(&error.to_string()),
        };
        match url.scheme() {
            "memory" => Ok(Location::Memory),
            "file" => match url.to_file_path() {
                Ok(folder) => Ok(Location::Folder(folder)),
                Err(()) => refuse("it names no local folder (three slashes, then an absolute path)"),
            },
            "s3" => refuse("this build has no S3 backend"),
            scheme => refuse(&format!("scheme {scheme:?} is unknown")),
        }
    }
}

/// An open stash: the store, the catalog, and what the workers of this process share. Clones share it.
#[derive(Clone)]
pub struct Stash {
    shared: Arc<Shared>,
}

struct Shared {
    url: String,
    config: StashConfig,
    process: Process,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    #[cfg(feature = "faults")]
    kept: crate::rules::Kept,
}

impl Stash {
    /// Opens the stash at `url` with the defaults, creating it if it is not there.
    pub async fn open(url: &str) -> Result<Stash> {
        OpenOptions::new(url).open().await
    }

    /// The URL it was opened with.
    pub fn url(&self) -> &str {
        &self.shared.url
    }

    /// The knobs it was opened with.
    pub fn config(&self) -> &StashConfig {
        &self.shared.config
    }

    /// The catalog.
    pub fn catalog(&self) -> &Arc<dyn Catalog> {
        self.shared.process.catalog()
    }

    /// The catalog's identity.
    pub fn catalog_id(&self) -> CatalogId {
        self.catalog().id()
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn BlobStore> {
        self.shared.process.store()
    }

    pub(crate) fn process(&self) -> &Process {
        &self.shared.process
    }

    #[cfg(feature = "faults")]
    pub(crate) fn kept(&self) -> &crate::rules::Kept {
        &self.shared.kept
    }

    /// What this process asked of the store so far, by sink: what it is paid for ([`crate::Prices`]).
    pub fn requests(&self) -> BTreeMap<String, Requests> {
        self.shared.process.meters().requests()
    }

    /// What this process has PUT so far.
    pub fn counters(&self) -> ProcessCounters {
        self.shared.process.counters()
    }

    /// How this process's memory for batches is used.
    pub fn budget(&self) -> BudgetUse {
        self.shared.process.budget().usage()
    }

    /// The present moment by this session's clock.
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Draws a launch token for a replica of several processes; one process draws it, all use it.
    pub fn draw_launch(&self) -> LaunchToken {
        LaunchToken::from_uuid(self.shared.ids.random())
    }

    pub(crate) fn draw_incarnation(&self) -> IncarnationId {
        IncarnationId::from_uuid(self.shared.ids.ordered())
    }

    pub(crate) fn draw_session(&self) -> SessionId {
        SessionId::from_uuid(self.shared.ids.random())
    }

    pub(crate) fn draw_commit(&self) -> CommitId {
        CommitId::from_uuid(self.shared.ids.random())
    }

    pub(crate) fn draw_batch(&self) -> stash_types::BatchId {
        stash_types::BatchId::from_uuid(self.shared.ids.ordered())
    }

    /// Declares a sink, or finds the equal one that stands under its name.
    pub async fn declare_sink(&self, spec: SinkSpec) -> Result<Sink> {
        let declared = self
            .catalog()
            .declare_sink(NewSink {
                id: SinkId::from_uuid(self.shared.ids.random()),
                name: spec.name,
                schema: spec.schema.to_bytes().into(),
                fingerprint: spec.schema.fingerprint(),
                as_of: spec.as_of,
                up_to: spec.up_to.map_or(Frontier::EMPTY, Frontier::at),
                seals: spec.seals,
                retention_ms: spec.retention_ms,
                absent_hold_ms: spec.absent_hold_ms,
            })
            .await?;
        Sink::of_row(self, declared.sink)
    }

    /// The sink of that name.
    pub async fn sink(&self, name: &str) -> Result<Sink> {
        let name: SinkName = name.parse()?;
        Sink::of_row(self, self.catalog().sink_named(&name).await?)
    }

    /// The sink of that name, or the one of that name that was dropped last: to look at what was recorded of it.
    pub async fn sink_or_dropped(&self, name: &str) -> Result<Sink> {
        match self.sink(name).await {
            Err(Error::Catalog(CatalogError::InvalidUsage(Misuse::NoSuchSink { sink }))) => {
                let of_that_name =
                    self.sinks(true).await?.into_iter().filter(|row| row.spec.name.as_str() == name);
                match of_that_name.max_by_key(|row| row.dropped) {
                    Some(row) => Sink::of_row(self, row),
                    None => Err(CatalogError::from(Misuse::NoSuchSink { sink }).into()),
                }
            }
            found => found,
        }
    }

    /// The sinks by name; dropped ones too if asked.
    pub async fn sinks(&self, with_dropped: bool) -> Result<Vec<SinkRow>> {
        Ok(self.catalog().sinks(with_dropped).await?)
    }

    /// Deletes all that is due in the deletion queue, whoever queued it.
    pub async fn drain_deletions(&self) -> Result<Drained> {
        Ok(self.shared.process.drain().await?)
    }

    /// Whether `key` is an object of the stash itself rather than of a sink.
    pub fn is_own_object(key: &BlobKey) -> bool {
        *key == BlobKey::stash_json()
    }

    /// Ends this process's work: deletes what it wrote and nobody references, and closes the catalog. Without
    /// it the next opening of an incarnation finds what is left.
    pub async fn close(&self) -> Result<Drained> {
        let drained = self.shared.process.close().await?;
        self.catalog().close().await;
        Ok(drained)
    }
}

impl fmt::Debug for Stash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stash").field("url", &self.shared.url).finish_non_exhaustive()
    }
}
