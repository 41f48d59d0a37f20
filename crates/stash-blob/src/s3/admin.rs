//! What `object_store` cannot do in a bucket.
//!
//! [`S3Admin`] speaks to one bucket, below one prefix, through the SDK: it lists and aborts multipart uploads that nobody
//! published. The same connection is what the probe and the bucket's checks are made with. Keys are given and taken
//! *below* the prefix; nothing outside of it is touched (I23).

use aws_sdk_s3::{Client, config::Builder};
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use stash_types::Timestamp;

use super::{S3Config, credentials, failed::Failed, quiet::Quietly};
use crate::BlobError;

/// A multipart upload that was begun and neither completed nor aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// The key below the prefix that it was to become.
    pub key: String,
    /// What tells it from other uploads of that key.
    pub id: String,
    /// When it was begun, by the store's clock.
    pub initiated: Option<Timestamp>,
}

/// One bucket and prefix, through the SDK.
///
/// Requests are tried a bounded number of times within a bounded time, as the configuration says.
#[derive(Clone, Debug)]
pub struct S3Admin {
    client: Client,
    bucket: String,
    /// The prefix with a slash at its end, or nothing.
    root: String,
}

/// Where a listing of uploads goes on.
#[derive(Debug, Default, PartialEq, Eq)]
struct Markers {
    key: Option<String>,
    id: Option<String>,
}

impl S3Admin {
    /// With the credentials that the configuration leads to. No request is made yet.
    pub async fn new(config: &S3Config) -> S3Admin {
        let sdk = credentials::load(config).await;
        S3Admin::from_builder(&credentials::addressed(config.clone(), &sdk), Builder::from(&sdk))
    }

    /// With a client of one's own making, but for how the bucket is addressed.
    pub(crate) fn from_builder(config: &S3Config, builder: Builder) -> S3Admin {
        let root = if config.prefix.is_empty() { String::new() } else { format!("{}/", config.prefix) };
        let client = Client::from_conf(builder.force_path_style(config.path_style).build());
        S3Admin { client, bucket: config.bucket.clone(), root }
    }

    /// The client.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The bucket.
    pub(crate) fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The prefix with a slash at its end, or nothing.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// The uploads that are under way below `prefix`, which stands below the configured one; in the store's order.
    pub fn list_uploads(&self, prefix: &str) -> BoxStream<'_, Result<Upload, BlobError>> {
        let below = format!("{}{prefix}", self.root);
        let pages = stream::try_unfold(Some(Markers::default()), move |at| {
            let below = below.clone();
            async move {
                let Some(at) = at else { return Ok(None) };
                let (uploads, next) = self.page_of_uploads(&below, at).await?;
                Ok(Some((stream::iter(uploads.into_iter().map(Ok)), next)))
            }
        });
        pages.try_flatten().boxed()
    }

    /// One page, and where the next one begins.
    async fn page_of_uploads(
        &self,
        below: &str,
        at: Markers,
    ) -> Result<(Vec<Upload>, Option<Markers>), BlobError> {
        let op = "list uploads";
        let request = self.client.list_multipart_uploads().bucket(&self.bucket).prefix(below);
        let request = request.set_key_marker(at.key.clone()).set_upload_id_marker(at.id.clone());
        let page = request.send().quietly().await.map_err(|error| Failed::from(error).reading(op, below))?;
        let uploads = page.uploads().iter().filter_map(|upload| self.upload(upload)).collect();
        if page.is_truncated() != Some(true) {
            return Ok((uploads, None));
        }
        let owned = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        let next = Markers { key: owned(page.next_key_marker()), id: owned(page.next_upload_id_marker()) };
        if next.key.is_none() || next == at {
            // Asking the same again would never end.
            let what = "the store says that there is more, and not from where on".to_owned();
            return Err(BlobError::Determinate {
                op,
                key: below.to_owned(),
                what,
                retry: false,
                source: None,
            });
        }
        Ok((uploads, Some(next)))
    }

    /// What lies below the prefix; a store that lists more than was asked for is not followed.
    fn upload(&self, upload: &aws_sdk_s3::types::MultipartUpload) -> Option<Upload> {
        let key = upload.key()?.strip_prefix(&self.root)?.to_owned();
        let initiated = upload.initiated().and_then(|at| at.to_millis().ok());
        let initiated = initiated.and_then(|ms| u64::try_from(ms).ok()).map(Timestamp);
        Some(Upload { key, id: upload.upload_id()?.to_owned(), initiated })
    }

    /// Aborts the upload `id` of `key`, and deletes what it holds. One that is not there is no error.
    pub async fn abort_upload(&self, key: &str, id: &str) -> Result<(), BlobError> {
        let request = self.client.abort_multipart_upload().bucket(&self.bucket);
        let answer = request.key(format!("{}{key}", self.root)).upload_id(id).send().quietly().await;
        match answer.map_err(Failed::from) {
            Ok(_) => Ok(()),
            Err(failed) if failed.code() == "NoSuchUpload" => Ok(()),
            Err(failed) => Err(failed.writing("abort upload", key)),
        }
    }
}
