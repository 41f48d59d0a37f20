//! Objects that are sent in pieces.

use std::time::Duration;

use bytes::Bytes;
use stash_blob::{BlobError, BlobStore, PutOutcome, RequestOp, s3::S3Config};
use stash_testkit::{
    Point,
    proxy::{Call, FaultProxy, Scenario},
    servers::{self, S3Server},
};

use crate::{config, counted, open, part};

/// A bucket whose objects of more than 5 MiB are sent in pieces of as much.
async fn in_pieces(server: &S3Server) -> S3Config {
    let mut config = config(server, "large").await;
    config.put_bytes_max = 5 << 20;
    config
}

/// 12 MiB: two whole pieces and a part of one, in chunks that fit neither.
fn twelve() -> (Vec<Bytes>, Bytes) {
    let whole: Bytes = (0_u32..3 << 20).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let chunks = (0..whole.len()).step_by(1_700_007);
    (chunks.map(|at| whole.slice(at..whole.len().min(at + 1_700_007))).collect(), whole)
}

async fn comes_back_whole(server: &'static S3Server) {
    let config = in_pieces(server).await;
    let bucket = config.bucket.clone();
    let (store, counted) = counted(config).await;
    let (chunks, whole) = twelve();
    assert_eq!(store.put_new(&part(1), chunks.clone()).await.expect("an upload"), PutOutcome::Created);
    let mut asked = counted.take();
    asked.sort();
    let pieces = [RequestOp::UploadPart; 3];
    let expected =
        [&[RequestOp::CreateUpload][..], &pieces, &[RequestOp::CompleteUpload, RequestOp::Head]].concat();
    assert_eq!(asked, expected, "one look, one beginning, three pieces, one end");
    let read = store.get(&part(1), 64 << 20).await.expect("a GET");
    assert!(read == whole, "the object differs");
    assert_eq!(store.put_new(&part(1), chunks).await.expect("an upload"), PutOutcome::Exists);
    assert!(store.get(&part(1), 64 << 20).await.expect("a GET") == whole, "the object was changed");
    for deleted in store.delete(&[part(1)]).await {
        deleted.outcome.expect("a delete");
    }
    assert_eq!(server.contents(&bucket).await, (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_three_pieces_comes_back_whole_from_radosgw() {
    let Some(server) = servers::radosgw().await else { return };
    comes_back_whole(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_three_pieces_comes_back_whole_from_ministack() {
    let Some(server) = servers::ministack().await else { return };
    comes_back_whole(server).await;
}

/// Holds a request at the proxy, drops the call, and looks what is left of the upload.
async fn dropped_at(server: &'static S3Server, call: Call, point: Point) {
    let proxy = FaultProxy::start(server).expect("a proxy");
    let mut config = in_pieces(server).await;
    config.endpoint = Some(proxy.endpoint());
    let bucket = config.bucket.clone();
    let store = open(config).await;
    let gate = proxy.hold(call, point);
    let (key, (chunks, _)) = (part(1), twelve());
    {
        let mut call = std::pin::pin!(store.put_new(&key, chunks));
        tokio::select! {
            outcome = &mut call => panic!("it is held, and yet: {outcome:?}"),
            () = gate.wait_held(1) => {}
        }
    }
    gate.release();
    store.settle().await;
    assert_eq!(server.contents(&bucket).await.1, Vec::<String>::new(), "no upload is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_between_its_pieces_leaves_no_upload() {
    let Some(server) = servers::radosgw().await else { return };
    dropped_at(server, Call::UploadPart, Point::Before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_before_it_knows_its_upload_leaves_none() {
    let Some(server) = servers::radosgw().await else { return };
    dropped_at(server, Call::CreateMultipartUpload, Point::After).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_pieces_fail_is_abandoned() {
    let Some(server) = servers::radosgw().await else { return };
    let proxy = FaultProxy::start(server).expect("a proxy");
    let mut config = in_pieces(server).await;
    config.endpoint = Some(proxy.endpoint());
    config.retry_timeout = Duration::from_secs(1);
    let bucket = config.bucket.clone();
    let store = open(config).await;
    let (pieces, abort) =
        (proxy.hold(Call::UploadPart, Point::Before), proxy.hold(Call::AbortMultipartUpload, Point::Before));
    let failing = async {
        pieces.wait_held(1).await;
        assert_eq!(server.contents(&bucket).await.1.len(), 1, "it is under way");
        proxy.set(Scenario::ResetBefore { percent: 100 }, 1);
        pieces.release();
        abort.wait_held(1).await;
        proxy.heal();
        abort.release();
        std::future::pending::<()>().await;
    };
    let key = part(1);
    let outcome = tokio::select! {
        outcome = store.put_new(&key, twelve().0) => outcome,
        () = failing => return,
    };
    assert!(matches!(outcome, Err(BlobError::Indeterminate { .. })), "{outcome:?}");
    assert_eq!(server.contents(&bucket).await, (vec![], vec![]), "it is abandoned before the call ends");
}
