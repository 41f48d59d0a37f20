//! Nothing secret in any log, error, panic or metric: planted canaries are searched for in all that was told.
//!
//! This is a binary of its own, since it takes the process's logger, panic hook and metrics recorder. Everything is recorded, whatever
//! crate tells it, at TRACE; every error is told by `Display` and `Debug`, with its sources; what is opened is told by `Debug`. What is
//! searched for is each canary as it is, in Base64, in hexadecimal, percent-encoded and as a list of bytes.

mod telling;

use std::{collections::BTreeSet, path::Path, str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use stash::{
    BlobKey, BlobPrefix, BlobStore, Frontier, IdSource, Launch, OpenOptions, SinkSpec, StartAt, Stash,
    SystemIds,
};
use stash_blob::s3::{S3Config, S3Keys, S3Store, Sse, check_bucket, init_bucket, probe};
use stash_catalog::{ClockSource, PostgresCatalog, PostgresOptions};
use stash_testkit::{
    At, FaultProxy, Point, TcpProxy,
    proxy::Scenario,
    servers::{self, PostgresServer, S3Server},
};
use stash_tests::{delivered, schema, small, updates};
use telling::Telling;

const ACCESS_KEY: &str = "AKCANARYACCESSKEY000";
const SECRET_KEY: &str = "canary/secret+key/0123456789/abcdefghij";
const WRONG_SECRET: &str = "canary/wrong+secret/0123456789/abcdefgh";
const TOKEN: &str = "canary//session+token//0123456789==";
const PASSWORD: &str = "canarypostgrespassword0123456789";
const WRONG_PASSWORD: &str = "canarywrongpassword0123456789";
const CUSTOMER_KEY: &str = "canary-customer-key-0123456789ab";

/// What nobody may be told.
const CANARIES: [&str; 7] =
    [ACCESS_KEY, SECRET_KEY, WRONG_SECRET, TOKEN, PASSWORD, WRONG_PASSWORD, CUSTOMER_KEY];

/// The servers, each behind a proxy.
struct World {
    store: S3Server,
    postgres: PostgresServer,
    proxy: FaultProxy,
    tcp: TcpProxy,
    bucket: String,
    telling: Telling,
}

impl World {
    fn keys() -> S3Keys {
        S3Keys::new(ACCESS_KEY, SECRET_KEY)
    }

    fn config(&self) -> S3Config {
        S3Config {
            endpoint: Some(self.proxy.endpoint()),
            region: Some(self.store.region().to_owned()),
            path_style: true,
            keys: Some(World::keys()),
            retry_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            ..S3Config::new(&self.bucket, "stash")
        }
    }

    async fn store(&self, config: S3Config) -> Option<S3Store> {
        self.telling.debug("config", &config);
        let store = S3Store::open(config).await;
        let store = self.telling.outcome("open", store)?;
        self.telling.debug("store", &store);
        Some(store)
    }

    async fn catalog(&self, url: &str) -> Option<PostgresCatalog> {
        let mut options = self.telling.outcome("options", PostgresOptions::from_str(url))?;
        options.connect_timeout = Duration::from_secs(1);
        self.telling.debug("options", &options);
        let ids: Arc<dyn IdSource> = Arc::new(SystemIds);
        let catalog = PostgresCatalog::open(options, ClockSource::Database, ids).await;
        let catalog = self.telling.outcome("open", catalog)?;
        self.telling.debug("catalog", &catalog);
        Some(catalog)
    }

    fn url(&self, password: &str, database: &str) -> String {
        format!("postgres://stash:{password}@127.0.0.1:{}/{database}", self.tcp.port())
    }

    /// Over a new database, and a prefix of its name.
    async fn stash(&self) -> Option<Stash> {
        let database = self.postgres.new_database_name("canary").await;
        let config = S3Config { prefix: database.clone(), ..self.config() };
        let store = Arc::new(self.store(config).await?);
        let catalog = Arc::new(self.catalog(&self.url(PASSWORD, &database)).await?);
        let options = OpenOptions::new("s3://canary").config(small(0));
        self.telling.debug("open options", &options);
        let stash = self.telling.outcome("stash", options.open_with(store, catalog).await)?;
        self.telling.debug("stash", &stash);
        Some(stash)
    }

    /// Every operation of a store once; what goes wrong is told.
    async fn exercise(&self, store: &S3Store, name: &str) {
        let key = |n: u32| BlobKey::from_str(&format!("canary/{name}-{n}")).expect("a key");
        for n in 0..3 {
            self.telling.outcome("put", store.put_new(&key(n), vec![Bytes::from_static(b"feather")]).await);
        }
        self.telling.outcome("get", store.get(&key(0), 1 << 20).await);
        self.telling.outcome("range", store.get_range(&key(0), 1..3).await);
        self.telling.outcome("head", store.head(&key(1)).await);
        let mut entries = store.list(BlobPrefix::All);
        while let Some(entry) = entries.next().await {
            if self.telling.outcome("list", entry).is_none() {
                break;
            }
        }
        drop(entries);
        for deleted in store.delete(&[key(0), key(1), key(2)]).await {
            self.telling.debug("delete", &deleted);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_is_told() {
    let Some(store) = S3Server::start_radosgw_with(ACCESS_KEY, SECRET_KEY).await else { return };
    let options = servers::PostgresOptions { password: PASSWORD.to_owned(), ..Default::default() };
    let Some(postgres) = PostgresServer::start(options).await else { return };
    let proxy = FaultProxy::start(&store).expect("a proxy");
    let tcp = TcpProxy::start(postgres.port()).expect("a proxy");
    let bucket = store.new_bucket("canary").await;
    // From here on: what the servers' own set-up tells is nobody's secret but the kit's.
    let telling = Telling::start();
    let world = World { store, postgres, proxy, tcp, bucket, telling };

    a_whole_run(&world).await;
    stores_that_fail(&world).await;
    a_look_at_the_bucket(&world).await;
    customers_keys(&world).await;
    catalogs_that_fail(&world).await;
    what_is_written_wrong(&world).await;
    panics(&world).await;

    let World { telling, .. } = world;
    let told = telling.end();
    // Deaf ears find nothing either: each of these must have told something.
    for wanted in ["sqlx", "hyper", "asked again", "SignatureDoesNotMatch", "stash_blob_requests_total"] {
        assert!(told.contains(wanted), "nothing was heard of {wanted}");
    }
    let mut found = Vec::new();
    for canary in CANARIES {
        for form in telling::forms(canary) {
            found.extend(
                told.lines().filter(|line| line.contains(&form)).map(|line| (canary, line.to_owned())),
            );
        }
    }
    eprintln!(
        "{} lines were told, {} bytes; {} of them tell a canary",
        told.lines().count(),
        told.len(),
        found.len()
    );
    let mut shown = BTreeSet::new();
    for (canary, line) in &found {
        // One of a kind.
        if shown.insert((canary, line.chars().take(48).collect::<String>())) {
            eprintln!("{canary}: {}", line.chars().take(600).collect::<String>());
        }
    }
    assert!(found.is_empty(), "{} lines tell a canary", found.len());
}

/// Declares, writes, reads, acknowledges and sweeps.
async fn a_whole_run(world: &World) {
    let stash = world.stash().await.expect("nothing goes wrong");
    let sink = stash.declare_sink(SinkSpec::new("rows", schema()).expect("sound")).await.expect("declared");
    let mut subscription = sink.subscribe("consumer", StartAt::Beginning).await.expect("registered");
    let launch = Launch::single("replica", 1).expect("sound");
    let incarnation = sink.open_incarnation(launch).await.expect("opens").render().expect("to write");
    let mut chain = incarnation.chain().expect("free");
    for time in 0..3 {
        let minted = chain.mint(Frontier::at(time + 1)).expect("mints").minted().expect("a description");
        let rows = updates(&sink, &[((time, "feather".to_owned()), time, 1)]);
        let share = incarnation.worker(0).expect("a worker").write(minted, [rows]).await.expect("written");
        chain.report(share).await.expect("reported");
    }
    while subscription.position() < Frontier::at(3) {
        let delivery = subscription.next().await.expect("readable").expect("there is more");
        delivered(&delivery).await.expect("readable");
        subscription.acknowledge(delivery.upper()).await.expect("acknowledged");
    }
    drop(chain);
    incarnation.close("the test ends").await.expect("closes");
    sink.sweep().await.expect("a sweep");
    stash.drain_deletions().await.expect("deleted");
    stash.close().await.expect("closes");
}

/// Each scenario, then refused signatures, no bucket, and nobody there.
async fn stores_that_fail(world: &World) {
    let store = world.store(world.config()).await.expect("it opens");
    world.exercise(&store, "healthy").await;
    for (n, scenario) in Scenario::ALL.into_iter().enumerate() {
        world.proxy.set(scenario, n as u64);
        world.exercise(&store, &scenario.to_string()).await;
    }
    world.proxy.heal();
    let token = S3Keys { session_token: Some(TOKEN.to_owned()), ..World::keys() };
    for keys in [S3Keys::new(ACCESS_KEY, WRONG_SECRET), token] {
        let config = S3Config { keys: Some(keys), ..world.config() };
        if let Some(store) = world.store(config).await {
            world.exercise(&store, "refused").await;
        }
    }
    for config in [
        S3Config { bucket: "no-such-bucket".to_owned(), ..world.config() },
        // Nobody listens there.
        S3Config { endpoint: Some("http://127.0.0.1:1".to_owned()), ..world.config() },
        S3Config { endpoint: Some("https://127.0.0.1:1".to_owned()), ..world.config() },
    ] {
        if let Some(store) = world.store(config).await {
            world.exercise(&store, "absent").await;
        }
    }
}

/// What a person asks: what the store is good for, how the bucket is set up.
async fn a_look_at_the_bucket(world: &World) {
    let wrong = S3Config { keys: Some(S3Keys::new(ACCESS_KEY, WRONG_SECRET)), ..world.config() };
    for config in [world.config(), wrong] {
        world.telling.debug("bucket", &check_bucket(&config).await);
        world.telling.debug("bucket", &init_bucket(&config, true).await);
        world.telling.debug("probe", &probe(&config, &SystemIds, &mut |_| {}).await);
    }
}

async fn customers_keys(world: &World) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let files = [
        file("right", CUSTOMER_KEY),
        file("long", &format!("{CUSTOMER_KEY}{CUSTOMER_KEY}")),
        file("short", &CUSTOMER_KEY[..31]),
        Path::new("/no/such/key").to_owned(),
    ];
    for path in files {
        let config = S3Config { sse: Sse::CustomerKey(path), ..world.config() };
        if let Some(store) = world.store(config).await {
            world.exercise(&store, "customer").await;
            world.proxy.set(Scenario::SlowDown { percent: 100 }, 1);
            world.exercise(&store, "customer-slow").await;
            world.proxy.heal();
        }
    }
}

/// A wrong password, no database, a connection that breaks, a server that is gone.
async fn catalogs_that_fail(world: &World) {
    let database = world.postgres.new_database_name("canary").await;
    world.catalog(&world.url(WRONG_PASSWORD, &database)).await;
    world.catalog(&world.url(PASSWORD, "no_such_database")).await;
    world.tcp.cut_at(At::Request(0), Point::After);
    world.catalog(&world.url(PASSWORD, &database)).await;
    world.catalog(&format!("postgres://stash:{PASSWORD}@127.0.0.1:1/{database}")).await;
    world.catalog(&format!("{}?sslmode=require", world.url(PASSWORD, &database))).await;
    let stash = world.stash().await.expect("nothing goes wrong");
    let sink = stash.declare_sink(SinkSpec::new("rows", schema()).expect("sound")).await.expect("declared");
    for nth in 0..3 {
        world.tcp.cut_at(At::Request(nth), Point::After);
        world.telling.outcome("upper", sink.upper().await);
        world.telling.outcome("subscribe", sink.subscribe("consumer", StartAt::Beginning).await.map(drop));
    }
    world.tcp.heal();
    world.postgres.kill().await;
    world.telling.outcome("upper", sink.upper().await);
    world.telling.outcome("sinks", stash.sinks(true).await.map(drop));
    world.postgres.restart().await;
    world.telling.outcome("close", stash.close().await);
}

/// Secrets where they do not belong.
async fn what_is_written_wrong(world: &World) {
    let secret = SECRET_KEY.replace('/', "%2F");
    let urls = [
        format!("s3://{ACCESS_KEY}:{secret}@bucket/prefix"),
        format!("s3://bucket/prefix?endpoint=http://{ACCESS_KEY}:{secret}@127.0.0.1:1"),
        format!("s3://bucket/prefix?endpoint=http://{ACCESS_KEY}:{SECRET_KEY}@127.0.0.1:1"),
        format!("s3://{ACCESS_KEY}:{SECRET_KEY}@bucket"),
        format!("s3://bucket/prefix?secret_access_key={secret}"),
        format!("s3://bucket/prefix?session_token={TOKEN}&region=a"),
        format!("s3://bucket/prefix?region=a&region={secret}"),
        format!("http://{ACCESS_KEY}:{secret}@bucket/"),
        format!("ftp://user:{PASSWORD}@host/"),
    ];
    for url in &urls {
        world.telling.outcome("S3 URL", S3Config::from_url(url));
        let options = OpenOptions::new(url.as_str());
        world.telling.debug("open options", &options);
        world.telling.outcome("check", options.check());
        world.telling.outcome("open", options.open().await);
    }
    let host = format!("127.0.0.1:{}", world.tcp.port());
    for url in [
        format!("postgres://stash:{PASSWORD}@{host}/stash?no_such_parameter=1"),
        format!("postgres://stash@{host}/stash?password={PASSWORD}"),
        format!("postgres://stash:{PASSWORD}@{host}/stash?schema=Not+A+Schema"),
        format!("postgres://stash:{PASSWORD}@example.com/stash?sslmode=disable"),
        format!("postgres://stash:{PASSWORD}@{host}:5432:x/stash"),
        format!("postgres://stash:{PASSWORD}@[::bad/stash"),
        format!("mysql://stash:{PASSWORD}@{host}/stash"),
        format!("postgres:stash:{PASSWORD}"),
    ] {
        world.telling.outcome("PostgreSQL URL", PostgresOptions::from_str(&url));
        let options = OpenOptions::new(url.as_str());
        world.telling.debug("open options", &options);
        world.telling.outcome("check", options.check());
        world.telling.outcome("open", options.open().await);
    }
}

/// A panic tells what an error's `Debug` tells.
async fn panics(world: &World) {
    let config = S3Config { keys: Some(S3Keys::new(ACCESS_KEY, WRONG_SECRET)), ..world.config() };
    let store = S3Store::open(config).await.expect("it opens");
    let key = BlobKey::from_str("canary/panic").expect("a key");
    let refused = store.put_new(&key, vec![Bytes::from_static(b"feather")]).await;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| refused.expect("it is refused")));
    panicked.expect_err("it is refused");
    let wrong = world.url(WRONG_PASSWORD, "postgres");
    assert!(world.catalog(&wrong).await.is_none());
}
