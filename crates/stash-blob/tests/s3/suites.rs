//! The conformance suite, on each server.

use std::sync::Arc;

use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use stash_blob::{
    s3::S3Config,
    suite::{self, LeaveUpload, Subject, uploads_are_checked},
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
        on! { @all $server, $change;
            a_second_put_of_a_key_changes_nothing
            of_many_racing_puts_exactly_one_creates
            ranges_are_exact
            ranges_past_the_end_are_errors
            an_absent_key_is_not_found
            an_empty_object_is_an_object
            chunks_are_joined_in_order
            whole_reads_are_refused_above_their_limit
            heads_tell_length_and_absence
            deletes_are_idempotent_and_answer_per_key
            a_deleted_key_is_gone_from_every_view
            listings_show_their_prefix_and_nothing_else
            keys_keep_all_their_characters
            large_objects_come_back_whole
            a_listing_of_many_objects_leaves_none_out
            unpublished_uploads_are_listed_and_abortable
        }
    };
    (@all $server:ident, $change:expr; $($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let Some(server) = servers::$server().await else { return };
                suite::$name(&subject(server, $change).await).await;
            }
        )*

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn no_behaviour_is_left_out_and_uploads_are_checked() {
            let Some(server) = servers::$server().await else { return };
            assert_eq!(suite::BEHAVIOURS.len(), [$(stringify!($name)),*].len());
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
