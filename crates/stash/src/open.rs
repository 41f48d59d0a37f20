//! Opening a stash: the store, the catalog, and the mark that ties them to one another.

use std::{collections::BTreeMap, fmt, path::Path, sync::Arc};

use stash_batch::{BudgetUse, Drained, Meters, Process, ProcessCounters, Requests};
use stash_blob::{BlobError, BlobStore, ClaimError, LocalStore, ObjectBlobs, StashMarker};
use stash_catalog::{Catalog, CatalogError, Misuse, NewSink, SinkRow, SqliteCatalog};
#[cfg(feature = "postgres")]
use stash_catalog::{ClockSource, PostgresCatalog};
use stash_types::{
    BlobKey, CatalogId, Clock, CommitId, Frontier, IdSource, IncarnationId, LaunchToken, SessionId, SinkId,
    SinkName, Timestamp, fault,
};

use crate::{
    Error, MeteredCatalog, MeteredStore, Result, Sink, SinkSpec, StashConfig, SystemClock, SystemIds,
    location::{BlobPlace, CatalogPlace, Location, Shown},
};

/// The folder of blobs within the folder of a local stash: its prefix.
pub(crate) const BLOBS_FOLDER: &str = "blobs";

/// How to open a stash.
#[derive(Clone)]
pub struct OpenOptions {
    url: String,
    catalog_url: Option<String>,
    create: bool,
    looks: bool,
    config: StashConfig,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    wrap: Option<WrapStore>,
    meters: Option<Meters>,
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("url", &Shown(&self.url))
            .field("catalog", &self.catalog_url.as_deref().map(Shown))
            .field("create", &self.create)
            .field("looks", &self.looks)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
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
    /// For the stash whose blobs are at `url`: `file:///folder` (with an SQLite catalog in that folder, unless another is
    /// named), `s3://bucket/prefix` (see `s3::S3Config::from_url`), or `memory://`.
    pub fn new(url: impl Into<String>) -> OpenOptions {
        OpenOptions {
            url: url.into(),
            catalog_url: None,
            create: true,
            looks: false,
            config: StashConfig::default(),
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            wrap: None,
            meters: None,
        }
    }

    /// Where the catalog is: `postgres://user@host/database` or `sqlite:///file`. Blobs in a bucket need one.
    #[must_use]
    pub fn catalog(mut self, url: impl Into<String>) -> OpenOptions {
        self.catalog_url = Some(url.into());
        self
    }

    /// Whether a stash that is not there is created. Default: yes.
    #[must_use]
    pub fn create(mut self, create: bool) -> OpenOptions {
        self.create = create;
        self
    }

    /// Opens only to look: nothing is created or claimed, and what is queued for deletion stays, unless a call asks for
    /// it ([`Stash::drain_deletions`], [`Sink::drop_sink`]). What a session that looks writes all the same and gives up is queued
    /// when it closes, for others to delete.
    #[must_use]
    pub fn look(mut self) -> OpenOptions {
        (self.create, self.looks) = (false, true);
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

    /// Whether the URLs name places that this build can open. Touches nothing there.
    pub fn check(&self) -> Result<()> {
        self.location().map(drop)
    }

    fn location(&self) -> Result<Location> {
        Location::parse(&self.url, self.catalog_url.as_deref())
    }

    /// Opens it. Must be called on a tokio runtime, and after a recorder of metrics was installed, if one is.
    pub async fn open(mut self) -> Result<Stash> {
        let meters = self.meters.get_or_insert_default().clone();
        let Location { blobs, catalog } = self.location()?;
        if let (false, CatalogPlace::File(file)) = (self.create, &catalog) {
            self.look_for(file)?;
        }
        // The folder is made by the store, durably; the embedded catalog's file lies in it.
        let store = self.open_blobs(blobs, meters).await?;
        let catalog = self.open_catalog(catalog, store.as_ref()).await?;
        let opened = self.open_with(store, Arc::clone(&catalog)).await;
        if opened.is_err() {
            // Left open, it would write its log into the file that somebody puts in its place.
            catalog.close().await;
        }
        opened
    }

    fn look_for(&self, file: &Path) -> Result<()> {
        let (url, shown) = (Shown(&self.url), file.display());
        match file.try_exists() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::no_stash(url, format!("{shown} does not exist"))),
            Err(error) => Err(Error::InvalidUsage {
                what: format!("the stash at {url} cannot be looked at: {shown}: {error}"),
            }),
        }
    }

    /// Opens the catalog, or makes one, though not for blobs that belong to another: an empty catalog in the place of one that
    /// was lost helps nobody, and stands in the way of its backup.
    async fn open_catalog(&self, place: CatalogPlace, store: &dyn BlobStore) -> Result<Arc<dyn Catalog>> {
        let (clock, ids) = (Arc::clone(&self.clock), Arc::clone(&self.ids));
        Ok(match place {
            CatalogPlace::Memory => Arc::new(SqliteCatalog::in_memory(clock, ids).await?),
            CatalogPlace::File(file) => {
                // SUBTLE: looked for again once the claim was seen. Who makes a stash makes its catalog first, then claims.
                if !exists(&file)
                    && let Some(lost) = claimed_by(store).await?
                    && !exists(&file)
                {
                    return Err(Error::lost_catalog(store.location(), lost, file.display()));
                }
                Arc::new(SqliteCatalog::open(&file, clock, ids).await?)
            }
            #[cfg(feature = "postgres")]
            CatalogPlace::Postgres(options) => {
                let location = options.location();
                // Its own clock is read: machines that share a catalog need not agree on the time.
                let clock = ClockSource::Database;
                let existing = async || {
                    PostgresCatalog::open_existing((*options).clone(), clock.clone(), Arc::clone(&ids)).await
                };
                let opened = match existing().await? {
                    None if self.create => match claimed_by(store).await? {
                        Some(lost) => match existing().await? {
                            Some(made_meanwhile) => made_meanwhile,
                            None => return Err(Error::lost_catalog(store.location(), lost, location)),
                        },
                        None => PostgresCatalog::open(*options, clock, ids).await?,
                    },
                    None => {
                        return Err(Error::no_stash(
                            Shown(&self.url),
                            format!("{location} holds no catalog"),
                        ));
                    }
                    Some(opened) => opened,
                };
                Arc::new(opened)
            }
        })
    }

    #[cfg_attr(
        not(feature = "s3"),
        expect(unused_variables, reason = "only a store behind a network tells of its requests")
    )]
    async fn open_blobs(&self, place: BlobPlace, meters: Meters) -> Result<Arc<dyn BlobStore>> {
        Ok(match place {
            BlobPlace::Memory => Arc::new(ObjectBlobs::memory()),
            BlobPlace::Folder(folder) => {
                let blobs = folder.join(BLOBS_FOLDER);
                if !self.create && !blobs.is_dir() {
                    let (url, blobs) = (Shown(&self.url), blobs.display());
                    let what = format!("the stash at {url} has lost its blobs: {blobs} does not exist");
                    return Err(Error::InvalidUsage { what });
                }
                Arc::new(LocalStore::open(&blobs)?)
            }
            #[cfg(feature = "s3")]
            BlobPlace::S3(config) => {
                Arc::new(stash_blob::s3::S3Store::open_observed(*config, Arc::new(meters)).await?)
            }
        })
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
        let start = match self.looks {
            true => {
                stash_blob::check_claim(store.as_ref(), &marker).await?;
                Process::looking
            }
            false => {
                stash_blob::claim(store.as_ref(), &marker).await?;
                Process::metered
            }
        };
        fault::place("stash.claimed");
        let process = start(store, catalog, self.config.batch.clone(), meters)?;
        let OpenOptions { url, catalog_url, config, clock, ids, create: _, looks: _, wrap: _, meters: _ } =
            self;
        Ok(Stash {
            shared: Arc::new(Shared {
                url,
                catalog_url,
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

fn exists(file: &Path) -> bool {
    file.try_exists().unwrap_or(true)
}

/// The catalog that the blobs belong to, where that can be told.
async fn claimed_by(store: &dyn BlobStore) -> Result<Option<CatalogId>> {
    match stash_blob::read_marker(store, stash_blob::FORMAT).await {
        Ok(marker) => Ok(marker.map(|marker| marker.catalog)),
        Err(ClaimError::Store { source: BlobError::Denied { .. }, .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// An open stash: the store, the catalog, and what the workers of this process share. Clones share it.
#[derive(Clone)]
pub struct Stash {
    shared: Arc<Shared>,
}

struct Shared {
    url: String,
    catalog_url: Option<String>,
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

    /// The URL its catalog was opened with, where one was named; it may hold a password.
    pub fn catalog_url(&self) -> Option<&str> {
        self.shared.catalog_url.as_deref()
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
        f.debug_struct("Stash").field("url", &Shown(&self.shared.url)).finish_non_exhaustive()
    }
}
