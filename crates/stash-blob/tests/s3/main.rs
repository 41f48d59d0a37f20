//! The S3 store against real servers: every behaviour of the suite, and what is particular to S3.

mod failing;
mod faults;
mod large;
mod many;
mod secret;
mod suites;

use std::sync::{Arc, Mutex};

use stash_blob::{
    Request, RequestObserver, RequestOp,
    s3::{S3Config, S3Keys, S3Store},
};
use stash_testkit::servers::S3Server;
use stash_types::BlobKey;

/// A new bucket of `server`, with a prefix.
pub async fn config(server: &S3Server, label: &str) -> S3Config {
    at(server, server.new_bucket(label).await)
}

/// A bucket of `server` that may not be there.
pub fn at(server: &S3Server, bucket: impl Into<String>) -> S3Config {
    let mut config = S3Config::new(bucket, "a/b");
    config.endpoint = Some(server.endpoint());
    config.region = Some(server.region().to_owned());
    config.path_style = true;
    config.keys = Some(S3Keys::new(server.access_key(), server.secret_key()));
    config
}

/// A store of that bucket.
pub async fn open(config: S3Config) -> S3Store {
    S3Store::open(config).await.expect("a store")
}

/// The `n`th part of the first incarnation.
pub fn part(n: usize) -> BlobKey {
    let (shard, incarnation) =
        ("s00000000-0000-5000-8000-000000000001", "i00000000-0000-7000-8000-000000000001");
    format!("{shard}/{incarnation}/{:016x}-{:016x}-0-{n}.parquet", 1, 2).parse().expect("a key")
}

/// Counts what is asked.
#[derive(Debug, Default)]
pub struct Counted(Mutex<Vec<(RequestOp, u32)>>);

impl Counted {
    /// What was asked since it was last taken, in the order in which it ended.
    pub fn take(&self) -> Vec<RequestOp> {
        std::mem::take(&mut *self.0.lock().expect("a lock")).into_iter().map(|(op, _)| op).collect()
    }
}

impl RequestObserver for Counted {
    fn ended(&self, request: &Request<'_>) {
        self.0.lock().expect("a lock").push((request.op, request.attempt));
    }
}

/// A store, and what it asks.
pub async fn counted(config: S3Config) -> (S3Store, Arc<Counted>) {
    let counted = Arc::new(Counted::default());
    let observer = Arc::<Counted>::clone(&counted);
    (S3Store::open_observed(config, observer).await.expect("a store"), counted)
}
