//! The three roles at work over radosgw, each through a proxy that records what it asks.

use std::sync::Arc;

use stash::{
    ApplyOptions, BatchConfig, BlobKey, BlobStore, Catalog, Clock, Frontier, IdSource, Incarnation, Launch,
    Minted, PlanReader, SinkSpec, StartAt, Stash, StashConfig, SystemClock, SystemIds,
};
use stash_blob::s3::{S3Config, S3Keys, S3Store};
use stash_catalog::SqliteCatalog;
use stash_testkit::{
    Point,
    proxy::{Call, FaultProxy, Request},
    servers::{S3Server, S3User, radosgw},
};
use stash_tests::{Row, in_time, schema, updates};
use tokio::sync::OnceCell;

use crate::{policy::Ask, text_of};

/// Who does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opens incarnations, writes, offers, closes.
    Writer,
    /// Subscribes, reads, acknowledges.
    Consumer,
    /// Audits, sweeps, drops.
    Sweeper,
}

impl Role {
    /// All of them, in the order in which they play.
    pub const ALL: [Role; 3] = [Role::Writer, Role::Consumer, Role::Sweeper];

    /// The name of its policy.
    pub fn name(self) -> &'static str {
        match self {
            Role::Writer => "writer",
            Role::Consumer => "consumer",
            Role::Sweeper => "sweeper",
        }
    }

    /// The same, as a name begins.
    pub fn title(self) -> &'static str {
        match self {
            Role::Writer => "Writer",
            Role::Consumer => "Consumer",
            Role::Sweeper => "Sweeper",
        }
    }
}

/// What was asked.
#[derive(Debug)]
pub struct Played {
    /// The bucket.
    pub bucket: String,
    /// The prefix.
    pub prefix: String,
    /// The requests of each role, in order.
    pub requests: Vec<(Role, Vec<Request>)>,
}

impl Played {
    /// Whether the server must have denied this although the policy allows it: it says so of what is not there, to whom it
    /// does not let list. A writer asks for the marker before it made it, and for the key of an upload before it begins.
    pub fn is_expected_denial(&self, role: Role, request: &Request) -> bool {
        let marker = request.call == Call::GetObject
            && request.key == format!("{}/stash.json", self.prefix)
            && request.attempt == 1;
        role == Role::Writer && (marker || request.call == Call::HeadObject)
    }
}

/// What a request needs to be allowed.
pub fn asks(request: &Request) -> Vec<Ask> {
    let bucket = format!("arn:aws:s3:::{}", request.bucket);
    let action = request.call.action();
    if request.call.lists() || request.call == Call::HeadBucket {
        let prefix = url::form_urlencoded::parse(request.query.as_bytes()).find(|(name, _)| name == "prefix");
        let ask = Ask::new(action, bucket);
        return match prefix {
            // S3 knows a condition on the prefix for listings of objects alone.
            Some((_, prefix)) if action == "s3:ListBucket" => vec![ask.with("s3:prefix", &prefix)],
            _ => vec![ask],
        };
    }
    let key = match request.call {
        // The keys stand in the body, which is not recorded. The server looks at each; here one stands for all.
        Call::DeleteObjects => format!("{PREFIX}/a-key-of-many"),
        _ => request.key.clone(),
    };
    vec![Ask::new(action, format!("{bucket}/{key}"))]
}

const PREFIX: &str = "some/prefix";

/// Plays all roles, once a process; `None` where there is no radosgw.
pub async fn play() -> Option<&'static Played> {
    static PLAYED: OnceCell<Option<Played>> = OnceCell::const_new();
    PLAYED.get_or_init(|| async { Some(play_on(radosgw().await?).await) }).await.as_ref()
}

/// A role on its place: its user, its proxy.
struct Actor {
    role: Role,
    user: S3User,
    proxy: FaultProxy,
    bucket: String,
    region: &'static str,
}

impl Actor {
    async fn store(&self) -> Arc<S3Store> {
        let config = S3Config {
            endpoint: Some(self.proxy.endpoint()),
            path_style: true,
            region: Some(self.region.to_owned()),
            keys: Some(S3Keys::new(&self.user.access_key, &self.user.secret_key)),
            put_bytes_max: 5 << 20,
            ..S3Config::new(&self.bucket, PREFIX)
        };
        Arc::new(S3Store::open(config).await.expect("a store"))
    }

    async fn open(&self, store: Arc<S3Store>, catalog: &Arc<dyn Catalog>) -> Stash {
        let config = StashConfig {
            batch: BatchConfig {
                memory_bytes: 128 << 20,
                inline_batch_bytes_max: 0,
                ..BatchConfig::default()
            },
            sweep_at_open: self.role == Role::Sweeper,
            ..StashConfig::default()
        };
        let url = format!("s3://{}/{PREFIX}", self.bucket);
        let opening = stash::OpenOptions::new(url).config(config).open_with(store, Arc::clone(catalog));
        opening.await.expect("a stash")
    }
}

async fn play_on(server: &'static S3Server) -> Played {
    let bucket = server.new_bucket("roles").await;
    let mut actors = Vec::new();
    for role in Role::ALL {
        let (user, proxy) =
            (server.new_user(role.name()).await, FaultProxy::start(server).expect("a proxy before radosgw"));
        actors.push(Actor { role, user, proxy, bucket: bucket.clone(), region: server.region() });
    }
    let users: Vec<(Role, &str)> =
        actors.iter().map(|actor| (actor.role, actor.user.name.as_str())).collect();
    let policy = policy_of_bucket(&bucket, PREFIX, &users);
    server.client().put_bucket_policy().bucket(&bucket).policy(policy).send().await.expect("it is taken");
    let (clock, ids): (Arc<dyn Clock>, Arc<dyn IdSource>) = (Arc::new(SystemClock), Arc::new(SystemIds));
    let catalog = SqliteCatalog::in_memory(clock, ids).await.expect("a catalog");
    let catalog: Arc<dyn Catalog> = Arc::new(catalog);
    let [writer, consumer, sweeper] = &actors[..] else { unreachable!("three roles") };
    in_time("the writer", write(writer, server, &catalog)).await;
    in_time("the consumer", consume(consumer, &catalog)).await;
    in_time("the sweeper", sweep(sweeper, &catalog)).await;
    let left = server.contents(&bucket).await;
    assert_eq!(left, (vec![format!("{PREFIX}/stash.json")], Vec::new()), "all is read and swept");
    let requests = actors.iter().map(|actor| (actor.role, actor.proxy.take_requests())).collect();
    Played { bucket, prefix: PREFIX.to_owned(), requests }
}

/// All policies as one of the bucket: this server knows no roles, and its users by name.
pub fn policy_of_bucket(bucket: &str, prefix: &str, users: &[(Role, &str)]) -> String {
    let mut statements = Vec::new();
    for (role, user) in users {
        let text = text_of(*role, bucket, prefix);
        let mut policy: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        for statement in policy["Statement"].as_array_mut().expect("statements") {
            statement["Principal"] = serde_json::json!({ "AWS": [format!("arn:aws:iam:::user/{user}")] });
            statements.push(statement.take());
        }
    }
    serde_json::json!({ "Version": "2012-10-17", "Statement": statements }).to_string()
}

/// `count` rows at `time` which do not compress, of about 1 KiB each.
fn rows(count: u64, time: u64) -> Vec<(Row, u64, i64)> {
    let noise = |key: u64| {
        let mut chance = stash_tests::Chance::new(key);
        let words = (0..60).map(|_| format!("{:016x}", chance.draw()));
        words.collect::<String>()
    };
    (0..count).map(|key| ((key, noise(key ^ (time << 32))), time, 1)).collect()
}

async fn share(
    incarnation: &Incarnation,
    minted: Minted,
    count: u64,
) -> stash::ShareMessage<stash::OwnedParts> {
    let time = minted.description.lower().as_u64();
    let rows = updates(incarnation.sink(), &rows(count, time));
    incarnation.worker(0).expect("a worker").write(minted, [rows]).await.expect("it is written")
}

/// Opens, writes a small part and a large one, gives one up, abandons an upload, dies, and opens again.
async fn write(actor: &Actor, server: &S3Server, catalog: &Arc<dyn Catalog>) {
    let store = actor.store().await;
    let stash = actor.open(Arc::clone(&store), catalog).await;
    let spec = SinkSpec::new("rows", schema()).expect("a spec");
    let sink = stash.declare_sink(spec).await.expect("a sink");
    let launch = || Launch::single("a", 1).expect("a launch");
    let incarnation = sink.open_incarnation(launch()).await.expect("it opens").render().expect("to write");
    let mut chain = incarnation.chain().expect("free");
    for (upper, count) in [(1, 100), (2, 16_000)] {
        let minted = chain.mint(Frontier::at(upper)).expect("minted").minted().expect("a description");
        chain.report(share(&incarnation, minted, count).await).await.expect("accepted");
    }
    assert!(actor.proxy.tally(Call::CompleteMultipartUpload).succeeded > 0, "the large one came in pieces");

    let key: BlobKey = "s0/i0/0000000000000000-0000000000000001-0-0.parquet".parse().expect("a key");
    let gate = actor.proxy.hold(Call::UploadPart, Point::Before);
    {
        let pieces = vec![bytes::Bytes::from(vec![7; 12 << 20])];
        let putting = store.put_new(&key, pieces);
        tokio::select! {
            put = putting => panic!("it is held: {put:?}"),
            () = gate.wait_held(1) => {}
        }
    }
    gate.release();
    store.settle().await;
    assert!(actor.proxy.tally(Call::AbortMultipartUpload).succeeded > 0, "what nobody waits for is aborted");

    let minted = chain.mint(Frontier::at(3)).expect("minted").minted().expect("a description");
    drop(share(&incarnation, minted, 100).await);
    drop(chain);
    incarnation.close("one more try").await.expect("it closes");
    stash.drain_deletions().await.expect("what was given up is deleted");
    assert!(actor.proxy.tally(Call::DeleteObject).succeeded > 0);

    let incarnation = sink.open_incarnation(launch()).await.expect("it opens").render().expect("to write");
    let mut chain = incarnation.chain().expect("free");
    // What is accepted already is covered, so that this share is empty.
    let minted = chain.mint(Frontier::at(2)).expect("minted").minted().expect("the snapshot");
    chain.report(share(&incarnation, minted, 0).await).await.expect("dropped");
    let minted = chain.mint(Frontier::at(3)).expect("minted").minted().expect("a description");
    let dead = share(&incarnation, minted, 100).await;
    // As by SIGKILL: nobody reports it, and nobody gives it up.
    std::mem::forget((dead, chain, incarnation));
    let left = server.contents(&actor.bucket).await.0;
    let last = left.iter().filter(|key| key.ends_with(".parquet")).max().expect("parts");
    server.client().create_multipart_upload().bucket(&actor.bucket).key(last).send().await.expect("begun");
    let again = sink.open_incarnation(launch()).await.expect("it opens").render().expect("to write");
    again.close("done").await.expect("it closes");
    std::mem::forget(stash);
}

/// Reads all there is, acknowledges it, and deletes what that let go.
async fn consume(actor: &Actor, catalog: &Arc<dyn Catalog>) {
    let stash = actor.open(actor.store().await, catalog).await;
    let sink = stash.sink("rows").await.expect("the sink");
    let mut subscription = sink.subscribe("reader", StartAt::Beginning).await.expect("a consumer");
    let mut updates = 0;
    while subscription.position() < Frontier::at(2) {
        let delivery = subscription.next().await.expect("it comes").expect("a batch");
        let mut reader = delivery.read();
        while let Some(batch) = reader.next().await.expect("rows") {
            updates += batch.num_rows();
        }
        subscription.acknowledge(delivery.upper()).await.expect("acknowledged");
    }
    assert_eq!(updates, 16_100);
    stash.drain_deletions().await.expect("what was read is deleted");
    std::mem::forget(stash);
}

/// Audits, plans and applies, and drops the sink.
async fn sweep(actor: &Actor, catalog: &Arc<dyn Catalog>) {
    let stash = actor.open(actor.store().await, catalog).await;
    let audit = stash.audit(None, |_| {}).await.expect("an audit");
    assert!(audit.of(stash::Class::is_unowned).entries > 1, "an object and an upload: {audit:?}");
    let (plan, _) = stash.plan_sweep(None, Vec::new(), |_| {}).await.expect("a plan");
    let mut reader = PlanReader::new(plan.as_slice()).expect("a plan");
    let options = ApplyOptions { commit: true, deletes_max: 100 };
    let applied = stash.apply_plan(&mut reader, options, |_| {}).await.expect("applied");
    assert!(applied.queued.entries > 0 && applied.aborted.entries > 0, "{applied:?}");
    stash.drain_deletions().await.expect("deleted");
    stash.sink("rows").await.expect("the sink").drop_sink().await.expect("dropped");
    stash.close().await.expect("closed");
}
