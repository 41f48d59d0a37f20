//! A bucket and a database, each behind a proxy, and the sessions over them.

use std::{collections::BTreeSet, fmt::Write as _, str::FromStr, sync::Arc, time::Duration};

use stash::{
    BlobKey, BlobStore, Catalog, Frontier, IdSource, OpenOptions, Sink, SinkSpec, Stash, StashConfig,
    SystemIds, invariants,
};
use stash_blob::s3::{S3Config, S3Keys, S3Store};
use stash_catalog::{ClockSource, PostgresCatalog, PostgresOptions};
use stash_testkit::{
    FaultProxy, TcpProxy,
    servers::{PostgresServer, S3Server, postgres, radosgw},
};
use stash_tests::schema;

/// After this long a world is taken not to come to rest: longer than a delete that failed is put off twice.
const REST: Duration = Duration::from_secs(15);

/// One bucket and one database.
pub struct World {
    pub proxy: FaultProxy,
    pub tcp: TcpProxy,
    pub bucket: String,
    store: &'static S3Server,
    config: StashConfig,
    /// Past the proxies, for looking.
    direct: Arc<dyn Catalog>,
    url: String,
}

impl World {
    /// Over the servers of this process.
    pub async fn new(config: StashConfig) -> Option<World> {
        World::over(postgres().await?, config).await
    }

    /// Over this PostgreSQL.
    pub async fn over(postgres: &PostgresServer, config: StashConfig) -> Option<World> {
        let store = radosgw().await?;
        let proxy = FaultProxy::start(store).expect("a proxy before the store");
        let tcp = TcpProxy::start(postgres.port()).expect("a proxy before the catalog");
        let database = postgres.new_database_name("world").await;
        let direct = catalog(&postgres.url_of(&database, postgres.port())).await.expect("a new catalog");
        let url = postgres.url_of(&database, tcp.port());
        let bucket = store.new_bucket("world").await;
        Some(World { proxy, tcp, bucket, store, config, direct, url })
    }

    /// A session, as another process would have it.
    pub async fn open(&self) -> Stash {
        let catalog = catalog(&self.url).await.expect("the catalog answers");
        let keys = S3Keys::new(self.store.access_key(), self.store.secret_key());
        let config = S3Config {
            endpoint: Some(self.proxy.endpoint()),
            region: Some(self.store.region().to_owned()),
            path_style: true,
            keys: Some(keys),
            retry_timeout: Duration::from_secs(5),
            ..S3Config::new(&self.bucket, "stash")
        };
        let store: Arc<dyn BlobStore> = Arc::new(S3Store::open(config).await.expect("a store"));
        let open = OpenOptions::new("s3://world").config(self.config.clone());
        open.open_with(store, catalog).await.expect("a stash over the world")
    }

    /// A session and a sink `rows` of the tests' schema in it.
    pub async fn sink(&self) -> Sink {
        let spec = SinkSpec::new("rows", schema()).expect("a sound spec");
        self.open().await.declare_sink(spec).await.expect("a new sink")
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        self.proxy.heal();
        self.tcp.heal();
    }

    /// The catalog, past the proxy.
    pub fn catalog(&self) -> &Arc<dyn Catalog> {
        &self.direct
    }

    /// Where the chain of a sink stands, past the proxy.
    pub async fn upper(&self, sink: &Sink) -> Frontier {
        self.direct.head(sink.id()).await.expect("the catalog works").upper
    }

    /// Closes all sessions in order, and checks that nothing is left but what the catalog references, and that a sweep
    /// finds nothing (I17).
    pub async fn close(&self, sessions: impl IntoIterator<Item = Stash>) {
        self.heal();
        for stash in sessions {
            stash.close().await.expect("a session closes");
        }
        let stash = self.open().await;
        let resting = async {
            loop {
                let seen = self.direct.revision().await.expect("the catalog works");
                stash.drain_deletions().await.expect("the deleter works once the store is healed");
                if self.left().await.is_empty() {
                    return;
                }
                self.direct.changed(seen, Duration::from_millis(50)).await.expect("the catalog works");
            }
        };
        let rested = tokio::time::timeout(REST, resting).await.is_ok();
        let left = self.left().await;
        assert!(rested && left.is_empty(), "not at rest (I17):\n{left}");
        let sink = stash.sink("rows").await.expect("it is declared");
        let report = sink.sweep().await.expect("a sweep");
        assert_eq!((report.garbage, report.uploads_removed), (0, 0), "a sweep finds nothing");
        assert_eq!(report.foreign, Vec::<String>::new());
        let report = sink.verify(|_| {}).await.expect("verified");
        assert_eq!(report.violations, [], "healthy");
        stash.close().await.expect("a session closes");
    }

    /// What the bucket, the references and the queue differ in, a line each. Past the proxies and past the store under test.
    async fn left(&self) -> String {
        let mut left = String::new();
        let (keys, uploads) = self.store.contents(&self.bucket).await;
        for upload in uploads {
            let _ = writeln!(left, "  an upload of {upload} was not ended");
        }
        let marker = BlobKey::stash_json().to_string();
        let mut listed = BTreeSet::new();
        for key in keys {
            match key.strip_prefix("stash/") {
                Some(key) if key == marker => {}
                Some(key) => drop(listed.insert(key.to_owned())),
                None => drop(writeln!(left, "  {key} lies outside the prefix")),
            }
        }
        let mut referenced = BTreeSet::new();
        for sink in self.direct.sinks(true).await.expect("sinks") {
            let of_sink = self.direct.referenced(sink.spec.id).await.expect("references");
            referenced.extend(of_sink.into_iter().map(|(key, _)| key.to_string()));
        }
        if let Err(violation) = invariants::i17_no_leak(&listed, &referenced) {
            let _ = writeln!(left, "  {violation}");
        }
        for key in listed.symmetric_difference(&referenced) {
            let (there, named) = (listed.contains(key), referenced.contains(key));
            let _ = writeln!(left, "  {key}: in the bucket {there}, referenced {named}");
        }
        let queued = self.direct.deletions_queued(None).await.expect("the queue");
        if queued > 0 {
            let _ = writeln!(left, "  {queued} keys are queued for deletion");
        }
        left
    }
}

/// A handle on the catalog at a URL.
async fn catalog(url: &str) -> Result<Arc<dyn Catalog>, stash::CatalogError> {
    let options = PostgresOptions::from_str(url).expect("a URL of the tests");
    let ids: Arc<dyn IdSource> = Arc::new(SystemIds);
    Ok(Arc::new(PostgresCatalog::open(options, ClockSource::Database, ids).await?))
}
