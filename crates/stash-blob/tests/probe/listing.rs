//! Uploads under way: listed page by page, below the prefix alone, and aborted.

use bytes::Bytes;
use futures::TryStreamExt;
use stash_blob::{
    BlobError,
    s3::{S3Admin, S3Config, Upload},
};
use stash_testkit::servers::{self, S3Server};

use crate::{
    config,
    twisted::{Reply, Twisted, keep, query},
};

async fn begin(server: &S3Server, config: &S3Config, key: &str) -> String {
    let client = server.client();
    let begun = client.create_multipart_upload().bucket(&config.bucket).key(key).send().await;
    begun.expect("begun").upload_id().expect("an id").to_owned()
}

async fn listed(admin: &S3Admin, prefix: &str) -> Result<Vec<Upload>, BlobError> {
    admin.list_uploads(prefix).try_collect().await
}

async fn are_listed_and_aborted(server: &S3Server) {
    let config = config(server, "uploads").await;
    let wanted = [
        ("x/1".to_owned(), begin(server, &config, "a/b/x/1").await),
        ("x/1".to_owned(), begin(server, &config, "a/b/x/1").await),
        ("y".to_owned(), begin(server, &config, "a/b/y").await),
    ];
    begin(server, &config, "a/bc").await;
    begin(server, &config, "elsewhere").await;
    let admin = S3Admin::new(&config).await;
    let mut found: Vec<_> =
        listed(&admin, "").await.expect("listed").into_iter().map(|one| (one.key, one.id)).collect();
    found.sort();
    let mut all = wanted.to_vec();
    all.sort();
    assert_eq!(found, all);
    let below = listed(&admin, "x/").await.expect("listed");
    assert_eq!(below.len(), 2);
    assert!(below.iter().all(|upload| upload.initiated.is_some()), "{below:?}");
    for (key, id) in &wanted {
        admin.abort_upload(key, id).await.expect("aborted");
        admin.abort_upload(key, id).await.expect("one that is gone is no error");
    }
    assert_eq!(listed(&admin, "").await.expect("listed"), []);
    assert_eq!(server.contents(&config.bucket).await.1.len(), 2, "what lies elsewhere is not touched");
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_of_radosgw_are_listed_below_the_prefix_and_aborted() {
    let Some(server) = servers::radosgw().await else { return };
    are_listed_and_aborted(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_of_ministack_are_listed_below_the_prefix_and_aborted() {
    let Some(server) = servers::ministack().await else { return };
    are_listed_and_aborted(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_that_never_ends_is_an_error() {
    let Some(server) = servers::ministack().await else { return };
    let reply: Reply = |parts, answer| {
        if query(parts).starts_with("uploads") {
            let text = String::from_utf8_lossy(answer.body());
            let text = text.replace("<IsTruncated>false</IsTruncated>", "<IsTruncated>true</IsTruncated>");
            *answer.body_mut() = Bytes::from(text);
        }
    };
    let mut config = config(server, "endless").await;
    begin(server, &config, "a/b/x").await;
    let proxy = Twisted::before(server, keep, reply).await;
    config.endpoint = Some(proxy.endpoint.clone());
    let error = listed(&S3Admin::new(&config).await, "").await.expect_err("no end");
    assert!(matches!(error, BlobError::Determinate { retry: false, .. }), "{error}");
    assert!(error.to_string().contains("from where on"), "{error}");
}
