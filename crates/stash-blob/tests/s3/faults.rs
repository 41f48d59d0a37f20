//! Every way to go wrong, between the store and a real server: nothing is lost, nothing doubled, nothing left.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use stash_blob::{BlobEntryKind, BlobError, BlobStore, PutOutcome};
use stash_testkit::{
    proxy::{FaultProxy, Scenario},
    servers::{self, S3Server},
};
use stash_types::{BlobKey, BlobPrefix};
use tokio::task::JoinSet;

use crate::{config, open, part};

/// How often an operation is called, as the crates above do.
const CALLS_MAX: usize = 12;

/// Calls again where the type of the error allows it.
async fn again<T, F>(mut work: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, BlobError>>,
{
    let mut calls = 1;
    loop {
        match work().await {
            Ok(done) => return done,
            Err(BlobError::Determinate { retry: true, .. } | BlobError::Indeterminate { .. })
                if calls < CALLS_MAX =>
            {
                calls += 1;
            }
            Err(error) => panic!("after {calls} calls: {error:?}"),
        }
    }
}

fn bytes(n: usize) -> Bytes {
    Bytes::from(vec![u8::try_from(n).expect("a small number"); 1 + n * 20_000])
}

async fn survives(server: &'static S3Server, scenario: Scenario) {
    let proxy = FaultProxy::start(server).expect("a proxy");
    let mut config = config(server, "faults").await;
    let bucket = config.bucket.clone();
    config.endpoint = Some(proxy.endpoint());
    let store = open(config).await;
    let store: &dyn BlobStore = &store;
    proxy.set(scenario, 7);
    let keys: Vec<BlobKey> = (0..8).map(part).collect();
    stream::iter(keys.iter().enumerate())
        .for_each_concurrent(4, |(n, key)| async move {
            // "Exists" is this call's own earlier try, and the bytes say so.
            let put: PutOutcome = again(|| store.put_new(key, vec![bytes(n)])).await;
            let read = again(|| store.get(key, 1 << 20)).await;
            assert!(read == bytes(n), "{scenario:?}: {key} was {put:?} and differs");
            assert_eq!(again(|| store.head(key)).await, Some(bytes(n).len() as u64), "{scenario:?}");
            assert_eq!(again(|| store.get_range(key, 0..1)).await, bytes(n).slice(0..1), "{scenario:?}");
        })
        .await;
    let listed = again(|| store.list(BlobPrefix::All).try_collect::<Vec<_>>()).await;
    assert_eq!(listed.len(), keys.len(), "{scenario:?}");
    let mut left = keys.clone();
    for _ in 0..CALLS_MAX {
        let deleted = store.delete(&left).await;
        left = deleted.into_iter().filter(|one| one.outcome.is_err()).map(|one| one.key).collect();
    }
    assert_eq!(left, [], "{scenario:?}");
    proxy.heal();
    let kinds: Vec<BlobEntryKind> =
        store.list(BlobPrefix::All).map_ok(|entry| entry.kind).try_collect().await.expect("a listing");
    assert_eq!(kinds, [], "{scenario:?}");
    assert_eq!(server.contents(&bucket).await, (vec![], vec![]), "{scenario:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_go_wrong_is_survived() {
    let Some(server) = servers::radosgw().await else { return };
    let mut all = JoinSet::new();
    for scenario in Scenario::ALL {
        all.spawn(survives(server, scenario));
    }
    all.join_all().await;
}
