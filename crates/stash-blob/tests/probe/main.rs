//! The probe and the bucket's checks against real servers, whose dialects are known.

mod buckets;
mod listing;
mod probing;
mod twisted;

use stash_blob::s3::{S3Config, S3Keys};
use stash_testkit::servers::S3Server;
use stash_types::IdSource;
use uuid::Uuid;

/// Ids that anybody may know.
#[derive(Debug)]
pub struct Counted(pub u128);

impl IdSource for Counted {
    fn random(&self) -> Uuid {
        Uuid::from_u128(self.0)
    }
    fn ordered(&self) -> Uuid {
        Uuid::from_u128(self.0)
    }
}

/// A new bucket of `server`, with a prefix.
pub async fn config(server: &S3Server, label: &str) -> S3Config {
    let bucket = server.new_bucket(label).await;
    let mut config = S3Config::new(bucket, "a/b");
    config.endpoint = Some(server.endpoint());
    config.region = Some(server.region().to_owned());
    config.path_style = true;
    config.keys = Some(S3Keys::new(server.access_key(), server.secret_key()));
    config
}
