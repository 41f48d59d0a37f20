//! The conformance suite, on each server.

use std::sync::Arc;

use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use stash_blob::{
    s3::S3Config,
    suite::{LeaveUpload, Subject, uploads_are_checked},
};
use stash_testkit::servers::{self, S3Server};
use stash_types::BlobKey;

use crate::{config, open};

/// Begins an upload and sends a piece of it, as a process does that dies then.
fn leave(server: &'static S3Server, config: &S3Config) -> LeaveUpload {
    let (bucket, prefix) = (config.bucket.clone(), config.prefix.clone());
    Box::new(move |key: BlobKey, bytes: Bytes| {
        let (bucket, key) = (bucket.clone(), format!("{prefix}/{key}"));
        Box::pin(async move {
            let client = server.client();
            let begun = client.create_multipart_upload().bucket(&bucket).key(&key).send().await;
            let id = begun.expect("an upload").upload_id.expect("its id");
            let piece = client.upload_part().bucket(&bucket).key(&key).upload_id(&id).part_number(1);
            piece.body(ByteStream::from(bytes)).send().await.expect("a piece");
            id
        })
    })
}

/// An empty store of `server`, with what `change` changes.
async fn subject(server: &'static S3Server, change: fn(&mut S3Config)) -> Subject {
    let mut config = config(server, "suite").await;
    change(&mut config);
    let leave = leave(server, &config);
    Subject::new(Arc::new(open(config).await)).with_uploads(leave)
}

/// Runs every behaviour of the suite as a test of its own, where the server is installed.
macro_rules! on {
    ($server:ident, $change:expr) => {
        // A server that is not there was reported: the test ends before it has a subject.
        stash_blob::blob_suite!({
            let Some(server) = servers::$server().await else { return };
            subject(server, $change).await
        });

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn uploads_are_left_to_be_listed_and_aborted() {
            let Some(server) = servers::$server().await else { return };
            assert!(uploads_are_checked(&subject(server, $change).await));
        }
    };
}

mod radosgw {
    use super::*;
    on!(radosgw, |_| {});
}

mod ministack {
    use super::*;
    on!(ministack, |_| {});
}
