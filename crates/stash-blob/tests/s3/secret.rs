//! Encryption, and that nothing secret is printed.

use bytes::Bytes;
use futures::TryStreamExt;
use stash_blob::{
    BlobError, BlobStore, PutOutcome,
    s3::{S3Keys, S3Store, Sse, UploadChecksum},
};
use stash_testkit::servers;
use stash_types::BlobPrefix;

use crate::{config, open, part};

#[tokio::test(flavor = "multi_thread")]
async fn with_a_customers_key_only_its_holder_reads() {
    let Some(server) = servers::ministack().await else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("key");
    std::fs::write(&file, [7_u8; 32]).expect("a key");
    let mut config = config(server, "ssec").await;
    config.put_bytes_max = 5 << 20;
    let plain = open(config.clone()).await;
    config.sse = Sse::CustomerKey(file);
    let store = open(config).await;
    let (small, large) = (Bytes::from_static(b"small"), Bytes::from(vec![9; 6 << 20]));
    for (n, bytes) in [(1, &small), (2, &large)] {
        assert_eq!(store.put_new(&part(n), vec![bytes.clone()]).await.expect("a PUT"), PutOutcome::Created);
        assert_eq!(store.head(&part(n)).await.expect("a HEAD"), Some(bytes.len() as u64));
        assert!(store.get(&part(n), 64 << 20).await.expect("a GET") == *bytes);
        assert!(store.get_range(&part(n), 1..4).await.expect("a range") == bytes.slice(1..4));
    }
    let without = plain.get(&part(1), 64 << 20).await;
    assert!(
        matches!(without, Err(BlobError::Determinate { retry: false, .. } | BlobError::Denied { .. })),
        "{without:?}"
    );
    let deleted = plain.delete(&[part(1), part(2)]).await;
    assert!(deleted.into_iter().all(|one| one.outcome.is_ok()), "deleting needs no key");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stores_own_keys_encrypt() {
    let Some(server) = servers::ministack().await else { return };
    for (sse, told) in [(Sse::S3, "AES256"), (Sse::Kms(Some("k1".to_owned())), "aws:kms")] {
        let mut config = config(server, "sse").await;
        config.sse = sse.clone();
        let (bucket, prefix) = (config.bucket.clone(), config.prefix.clone());
        let store = open(config).await;
        store.put_new(&part(1), vec![Bytes::from_static(b"x")]).await.expect("a PUT");
        let head = server.client().head_object().bucket(bucket).key(format!("{prefix}/{}", part(1)));
        let head = head.send().await.expect("a HEAD");
        let kind = head.server_side_encryption().map(|kind| kind.as_str().to_owned());
        assert_eq!(kind.as_deref(), Some(told), "{sse:?}");
        assert_eq!(store.get(&part(1), 10).await.expect("a GET"), "x");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_checksum_is_taken_or_left_out() {
    for server in [servers::radosgw().await, servers::ministack().await].into_iter().flatten() {
        for checksum in [UploadChecksum::Sha256, UploadChecksum::Crc64Nvme, UploadChecksum::Off] {
            let mut config = config(server, "checksum").await;
            config.checksum = checksum;
            config.put_bytes_max = 5 << 20;
            let store = open(config).await;
            for (n, len) in [(1, 3), (2, 11 << 20)] {
                let bytes = Bytes::from(vec![5; len]);
                let put = store.put_new(&part(n), vec![bytes.clone()]).await;
                assert_eq!(put.expect("a PUT"), PutOutcome::Created, "{checksum:?} on {}", server.name());
                assert!(store.get(&part(n), 64 << 20).await.expect("a GET") == bytes);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_prints_where_it_is_and_nothing_secret() {
    let Some(server) = servers::ministack().await else { return };
    let mut config = config(server, "printed").await;
    config.keys = Some(S3Keys {
        access_key_id: "AKIDcanary".to_owned(),
        secret_access_key: "secretcanary".to_owned(),
        session_token: Some("tokencanary".to_owned()),
    });
    let shown = config.location();
    let store = S3Store::open(config).await.expect("a store");
    store.list(BlobPrefix::All).try_collect::<Vec<_>>().await.expect("a listing");
    assert_eq!(store.location(), shown);
    assert!(!format!("{store:?} {}", store.location()).contains("canary"), "{store:?}");
}
