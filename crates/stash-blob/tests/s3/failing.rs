//! What is wrong with a bucket or its keys is told at once, by type, and with what to do.

use bytes::Bytes;
use futures::TryStreamExt;
use stash_blob::{
    BlobError, BlobStore, PutOutcome, RequestOp,
    s3::{S3Keys, S3Refusal},
};
use stash_testkit::servers;
use stash_types::BlobPrefix;

use crate::{at, config, counted, part};

fn refusal(error: &BlobError) -> &S3Refusal {
    S3Refusal::of(error).unwrap_or_else(|| panic!("no refusal: {error:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_is_denied_at_once() {
    let Some(server) = servers::radosgw().await else { return };
    let mut config = config(server, "secret").await;
    config.keys = Some(S3Keys::new(server.access_key(), "hunter2"));
    let (store, counted) = counted(config).await;
    let put = store.put_new(&part(1), vec![Bytes::from_static(b"x")]).await.expect_err("denied");
    let get = store.get(&part(1), 10).await.expect_err("denied");
    let head = store.head(&part(1)).await.expect_err("denied");
    let list = store.list(BlobPrefix::All).try_collect::<Vec<_>>().await.expect_err("denied");
    let delete = store.delete(&[part(1), part(2)]).await.remove(0).outcome.expect_err("denied");
    for error in [&put, &get, &head, &list, &delete] {
        assert!(matches!(error, BlobError::Denied { .. }), "{error:?}");
        let told = format!("{error} {error:?}");
        assert!(!told.contains("hunter2") && !told.contains(server.access_key()), "{told}");
    }
    assert_eq!(refusal(&put).code, "SignatureDoesNotMatch");
    assert!(put.to_string().contains("secret key"), "{put}");
    // A refused HEAD has no reason, and may have been signed by a clock that was wrong: it is asked twice.
    let (asked, head) = (counted.take(), RequestOp::Head);
    assert_eq!(asked, [RequestOp::Put, RequestOp::Get, head, head, RequestOp::BulkDelete], "one try each");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_told_at_once_and_apart_from_a_missing_object() {
    for server in [servers::radosgw().await, servers::ministack().await].into_iter().flatten() {
        let (store, counted) = counted(at(server, "no-such-bucket")).await;
        let put = store.put_new(&part(1), vec![Bytes::from_static(b"x")]).await.expect_err("no bucket");
        let get = store.get(&part(1), 10).await.expect_err("no bucket");
        let delete = store.delete(&[part(1), part(2)]).await.remove(0).outcome.expect_err("no bucket");
        for error in [&put, &get, &delete] {
            assert!(matches!(error, BlobError::Determinate { retry: false, .. }), "{error:?}");
            assert!(error.to_string().contains("there is no bucket \"no-such-bucket\""), "{error}");
            assert_eq!(refusal(error).tries, 1);
        }
        assert_eq!(counted.take(), [RequestOp::Put, RequestOp::Get, RequestOp::BulkDelete]);
        let list = store.list(BlobPrefix::All).try_collect::<Vec<_>>().await.expect_err("no bucket");
        assert!(matches!(list, BlobError::Determinate { retry: false, .. }), "{list:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_puts_are_not_create_only_the_key_is_looked_at_first() {
    let Some(server) = servers::ministack().await else { return };
    let mut config = config(server, "looking").await;
    config.create_only = false;
    let (store, counted) = counted(config).await;
    let key = part(1);
    let put = |bytes: &'static [u8]| store.put_new(&key, vec![Bytes::from_static(bytes)]);
    assert_eq!(put(b"first").await.expect("a PUT"), PutOutcome::Created);
    assert_eq!(put(b"second").await.expect("a PUT"), PutOutcome::Exists);
    assert_eq!(counted.take(), [RequestOp::Head, RequestOp::Put, RequestOp::Head]);
    assert_eq!(store.get(&part(1), 10).await.expect("a GET"), "first");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_who_answers_is_told_within_the_time_given() {
    let mut config = stash_blob::s3::S3Config::new("b", "p");
    config.endpoint = Some("http://127.0.0.1:9".to_owned());
    config.path_style = true;
    config.keys = Some(S3Keys::new("ak", "sk"));
    config.retry_timeout = std::time::Duration::from_millis(300);
    let (store, counted) = counted(config).await;
    let put = store.put_new(&part(1), vec![Bytes::from_static(b"x")]).await.expect_err("nobody there");
    assert!(matches!(put, BlobError::Determinate { retry: true, .. }), "surely not done: {put:?}");
    assert!(put.to_string().contains("check the endpoint"), "{put}");
    let tries = counted.take().len();
    assert!((2..=4).contains(&tries), "{tries} tries");
}
