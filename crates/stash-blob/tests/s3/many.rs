//! More than a page or a request holds.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use stash_blob::{BlobEntryKind, BlobStore, PutOutcome, RequestOp};
use stash_testkit::servers::{self, S3Server};
use stash_types::{BlobKey, BlobPrefix};

use crate::{config, counted, open, part};

async fn put(store: &dyn BlobStore, keys: &[BlobKey]) {
    let puts = stream::iter(keys).map(|key| store.put_new(key, vec![Bytes::from_static(b"x")]));
    let outcomes: Vec<PutOutcome> = puts.buffer_unordered(16).try_collect().await.expect("PUTs");
    assert!(outcomes.iter().all(|outcome| *outcome == PutOutcome::Created));
}

async fn thousand_and_one(server: &'static S3Server) {
    let (store, counted) = counted(config(server, "many").await).await;
    let keys: Vec<BlobKey> = (0..1001).map(part).collect();
    put(&store, &keys).await;
    assert_eq!(counted.take(), [RequestOp::Put; 1001], "one PUT each, and no HEAD");
    // One of them is absent: that is no error.
    store.delete(&keys[7..8]).await;
    assert_eq!(counted.take(), [RequestOp::Delete]);
    let deleted = store.delete(&keys).await;
    assert!(deleted.iter().map(|one| &one.key).eq(&keys), "one answer a key, in order");
    for one in deleted {
        one.outcome.expect("a delete");
    }
    assert_eq!(counted.take(), [RequestOp::BulkDelete, RequestOp::BulkDelete], "and no HEAD");
    let left: Vec<_> = store.list(BlobPrefix::All).try_collect().await.expect("a listing");
    assert_eq!(left, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_and_one_keys_are_two_deletes_of_radosgw() {
    let Some(server) = servers::radosgw().await else { return };
    thousand_and_one(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_and_one_keys_are_two_deletes_of_ministack() {
    let Some(server) = servers::ministack().await else { return };
    thousand_and_one(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_bulk_deletes_keys_go_one_by_one() {
    let Some(server) = servers::ministack().await else { return };
    let mut config = config(server, "singly").await;
    config.bulk_delete = false;
    let (store, counted) = counted(config).await;
    let keys: Vec<BlobKey> = (0..30).map(part).collect();
    put(&store, &keys[..20]).await;
    counted.take();
    for one in store.delete(&keys).await {
        one.outcome.expect("a delete");
    }
    assert_eq!(counted.take(), [RequestOp::Delete; 30]);
    assert_eq!(store.list(BlobPrefix::All).count().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_of_more_than_a_page_of_uploads_leaves_none_out() {
    let Some(server) = servers::radosgw().await else { return };
    let config = config(server, "uploads").await;
    let (bucket, prefix) = (config.bucket.clone(), config.prefix.clone());
    let store = Arc::new(open(config).await);
    let client = server.client();
    let keys: Vec<BlobKey> = (0..1005).map(part).collect();
    stream::iter(&keys)
        .for_each_concurrent(16, |key| {
            let begun = client.create_multipart_upload().bucket(&bucket).key(format!("{prefix}/{key}"));
            async move { drop(begun.send().await.expect("an upload")) }
        })
        .await;
    let listed: Vec<_> = store.list(BlobPrefix::All).try_collect().await.expect("a listing");
    let mut found = BTreeSet::new();
    let mut aborts = Vec::new();
    for entry in listed {
        let BlobEntryKind::Upload { key, token } = entry.kind else { panic!("{entry:?}") };
        assert!(found.insert(key.clone()), "{key} is listed twice");
        aborts.push((key, token));
    }
    assert!(found.iter().eq(keys.iter().collect::<BTreeSet<_>>()));
    stream::iter(aborts)
        .for_each_concurrent(16, |(key, token)| {
            let store = Arc::clone(&store);
            async move { store.abort_upload(&key, &token).await.expect("an abort") }
        })
        .await;
    assert_eq!(store.list(BlobPrefix::All).count().await, 0);
}
