//! [`S3Store`]: a stash's objects in a bucket.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use aws_config::SdkConfig;
use bytes::Bytes;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use object_store::{
    BackoffConfig, ClientOptions, Error, ObjectStore, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, Checksum, S3ConditionalPut},
    multipart::MultipartStore,
    path::Path,
};
use stash_types::{BlobKey, BlobPrefix};
use tokio::{sync::oneshot, task::JoinSet};

use super::{
    S3Admin, S3Config, S3Refusal, UploadChecksum,
    credential_cache::{CredentialCache, WallClock},
    credentials,
    failed::Failed,
    requests::Requests,
    sse::Encryption,
    upload::{self, Upload},
};
use crate::{
    BlobEntry, BlobEntryKind, BlobError, BlobStore, Deleted, NoObserver, ObjectBlobs, PutOutcome,
    RequestObserver, look_by_listing, object::write_error,
};

/// How often a body that was cut short is asked for anew, from where it broke.
const RESUMED_MAX: usize = 5;

/// How long a connection is kept for the next request: less than stores keep theirs.
const POOLED_FOR: Duration = Duration::from_secs(15);

/// Objects below a prefix of a bucket.
///
/// - An object is one create-only PUT up to `put_bytes_max`. Where the store has no such PUT, a HEAD comes first: that
///   finds this process's earlier try and foreign objects, but two writers at once both pass it. Keys are fresh (I19).
/// - A larger object is an upload in pieces: a HEAD first, and published only under a free key where the store can.
/// - No operation lists, except [`BlobStore::list`]. No delete looks first.
/// - Neither its `Debug` nor its errors hold anything secret.
pub struct S3Store {
    objects: ObjectBlobs,
    /// The same, which deletes one by one.
    singly: ObjectBlobs,
    s3: Arc<AmazonS3>,
    admin: S3Admin,
    put_bytes_max: u64,
    create_only: AtomicBool,
    bulk_delete: AtomicBool,
    lists_uploads: AtomicBool,
    /// Uploads that are under way, or being abandoned.
    uploads: Mutex<JoinSet<()>>,
}

impl S3Store {
    /// A bucket, as `config` says. No request is made, so a bucket that is not there shows with the first.
    pub async fn open(config: S3Config) -> Result<S3Store, BlobError> {
        S3Store::open_observed(config, Arc::new(NoObserver)).await
    }

    /// The same, whose requests `observer` is told of.
    pub async fn open_observed(
        config: S3Config,
        observer: Arc<dyn RequestObserver>,
    ) -> Result<S3Store, BlobError> {
        let sdk = credentials::load(&config).await;
        let config = credentials::addressed(config, &sdk);
        let wrong = |what: String, source| BlobError::Determinate {
            op: "open",
            key: config.location(),
            what,
            retry: false,
            source,
        };
        let region = sdk.region().map(ToString::to_string).ok_or_else(|| {
            wrong(
                "no region is known: set ?region= in the URL, AWS_REGION or a profile's region".to_owned(),
                None,
            )
        })?;
        let encryption = Encryption::of(&config.sse).await;
        let encryption = encryption.map_err(|error| {
            let what = error.to_string();
            wrong(what, Some(Arc::new(error) as Arc<dyn std::error::Error + Send + Sync>))
        })?;
        let requests = Requests {
            bucket: config.bucket.clone(),
            region: region.clone(),
            segments_before_keys: segments_before_keys(&config),
            credentials: Arc::new(cache(&config, &sdk)),
            observer,
            stall_timeout: config.stall_timeout,
            retry_timeout: config.retry_timeout,
            complete_only_new: Arc::new(AtomicBool::new(config.create_only)),
            publishing: encryption.publishing(),
        };
        let builder = encryption.applied(builder(&config, &sdk, &region, requests));
        let built = |builder: AmazonS3Builder| {
            builder.build().map_err(|error| wrong(format!("it cannot be reached so: {error}"), None))
        };
        let singly = built(builder.clone().with_disable_bulk_delete(true))?;
        let s3 = Arc::new(built(builder)?);
        let prefix = Path::parse(&config.prefix);
        let prefix = prefix.map_err(|error| wrong(format!("its prefix cannot be used: {error}"), None))?;
        let objects =
            |store: Arc<dyn ObjectStore>| ObjectBlobs::new(store, prefix.clone(), config.location());
        Ok(S3Store {
            objects: objects(Arc::<AmazonS3>::clone(&s3)),
            singly: objects(Arc::new(singly)),
            s3,
            admin: S3Admin::from_builder(&config, aws_sdk_s3::config::Builder::from(&sdk)),
            put_bytes_max: config.put_bytes_max,
            create_only: AtomicBool::new(config.create_only),
            bulk_delete: AtomicBool::new(config.bulk_delete),
            lists_uploads: AtomicBool::new(true),
            uploads: Mutex::default(),
        })
    }

    /// Waits until no upload is under way or being abandoned, also of calls that were dropped.
    pub async fn settle(&self) {
        loop {
            let uploads = std::mem::take(&mut *self.uploads.lock().unwrap_or_else(PoisonError::into_inner));
            if uploads.is_empty() {
                return;
            }
            uploads.join_all().await;
        }
    }

    async fn put_whole(&self, key: &BlobKey, chunks: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        if self.create_only.load(Ordering::Relaxed) {
            match self.objects.put_new(key, chunks.clone()).await {
                Err(error) if cannot(&error) => {
                    tracing::warn!(
                        store = %self.location(),
                        "the store has no create-only PUTs: it is asked before each whether the key is free"
                    );
                    self.create_only.store(false, Ordering::Relaxed);
                }
                done => return done,
            }
        }
        self.objects.put_looking_first(key, chunks).await
    }

    async fn put_in_pieces(
        &self,
        key: &BlobKey,
        chunks: Vec<Bytes>,
        len: u64,
    ) -> Result<PutOutcome, BlobError> {
        match self.objects.head(key).await {
            Ok(None) => {}
            Ok(Some(_)) => return Ok(PutOutcome::Exists),
            // SUBTLE: who may not list is denied a look at what is not there, and may look at what is. Where the store has
            // create-only requests the publication asks once more for a free key.
            Err(BlobError::Denied { .. }) if self.create_only.load(Ordering::Relaxed) => {}
            Err(error) => return Err(error),
        }
        let path = self.objects.path("put", key)?;
        let pieces = upload::cut(chunks, upload::piece_bytes(len, self.put_bytes_max));
        let upload = Upload { store: Arc::clone(&self.s3), path: path.clone(), pieces };
        let (done, outcome) = oneshot::channel();
        {
            let mut uploads = self.uploads.lock().unwrap_or_else(PoisonError::into_inner);
            while uploads.try_join_next().is_some() {}
            uploads.spawn(upload.run(done));
        }
        match outcome.await {
            Ok(Ok(())) => Ok(PutOutcome::Created),
            Ok(Err(error @ (Error::AlreadyExists { .. } | Error::Precondition { .. }))) => {
                self.objects.taken(key, &path, error).await
            }
            Ok(Err(error)) => Err(write_error("put", key.as_str(), error)),
            Err(_) => Err(BlobError::Indeterminate {
                op: "put",
                key: key.to_string(),
                what: "the upload's task ended early: is the runtime shutting down?".to_owned(),
                source: None,
            }),
        }
    }

    /// The uploads below `prefix`; none where the store does not tell.
    fn uploads(&self, prefix: BlobPrefix) -> BoxStream<'_, Result<BlobEntry, BlobError>> {
        if !self.lists_uploads.load(Ordering::Relaxed) {
            return stream::empty().boxed();
        }
        let entries = self.admin.list_uploads(&prefix.to_string()).map_ok(|upload| {
            let kind = match ObjectBlobs::kind(&upload.key) {
                BlobEntryKind::Object(key) => BlobEntryKind::Upload { key, token: upload.id },
                foreign => foreign,
            };
            BlobEntry { kind, len: 0 }
        });
        let told = entries.filter_map(|entry| {
            let told = match entry {
                Err(error) if cannot(&error) => {
                    tracing::warn!(store = %self.location(), "the store lists no uploads: what is left of one is not found");
                    self.lists_uploads.store(false, Ordering::Relaxed);
                    None
                }
                told => Some(told),
            };
            std::future::ready(told)
        });
        told.boxed()
    }
}

impl Drop for S3Store {
    fn drop(&mut self) {
        // An upload whose caller is gone is being abandoned. That ends by itself, in bounded time, and to cut it short
        // would leave the upload.
        self.uploads.get_mut().unwrap_or_else(PoisonError::into_inner).detach_all();
    }
}

impl fmt::Debug for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("S3Store").field(&self.location()).finish()
    }
}

#[async_trait]
impl BlobStore for S3Store {
    fn location(&self) -> String {
        self.objects.location()
    }

    async fn put_new(&self, key: &BlobKey, chunks: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        let len = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        match len > self.put_bytes_max {
            true => self.put_in_pieces(key, chunks, len).await,
            false => self.put_whole(key, chunks).await,
        }
    }

    async fn get_range(&self, key: &BlobKey, range: Range<u64>) -> Result<Bytes, BlobError> {
        self.objects.get_range(key, range).await
    }

    async fn get(&self, key: &BlobKey, len_max: u64) -> Result<Bytes, BlobError> {
        self.objects.get(key, len_max).await
    }

    async fn head(&self, key: &BlobKey) -> Result<Option<u64>, BlobError> {
        self.objects.head(key).await
    }

    async fn delete(&self, keys: &[BlobKey]) -> Vec<Deleted> {
        if keys.len() == 1 || !self.bulk_delete.load(Ordering::Relaxed) {
            return self.singly.delete(keys).await;
        }
        let deleted = self.objects.delete(keys).await;
        let unknown = |deleted: &Deleted| deleted.outcome.as_ref().is_err_and(cannot);
        if !deleted.is_empty() && deleted.iter().all(unknown) {
            tracing::warn!(store = %self.location(), "the store deletes one key at a time");
            self.bulk_delete.store(false, Ordering::Relaxed);
            return self.singly.delete(keys).await;
        }
        deleted
    }

    async fn abort_upload(&self, key: &BlobKey, token: &str) -> Result<(), BlobError> {
        let path = self.objects.path("abort upload", key)?;
        match self.s3.abort_multipart(&path, &token.to_owned()).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(write_error("abort upload", key.as_str(), error)),
        }
    }

    fn list(&self, prefix: BlobPrefix) -> BoxStream<'_, Result<BlobEntry, BlobError>> {
        // SUBTLE: uploads first. One that is published in between is then listed twice; the other way round it would not
        // be listed at all.
        self.uploads(prefix).chain(self.objects.list(prefix)).boxed()
    }

    async fn look_again(&self, entries: &[BlobEntryKind]) -> Result<Vec<Option<u64>>, BlobError> {
        let (uploads, others): (Vec<_>, Vec<_>) =
            entries.iter().cloned().partition(|kind| matches!(kind, BlobEntryKind::Upload { .. }));
        let uploads_there = look_by_listing(|folder| self.uploads(folder), &uploads).await?;
        let others_there = self.objects.look_again(&others).await?;
        let lens: BTreeMap<_, _> =
            uploads.into_iter().zip(uploads_there).chain(others.into_iter().zip(others_there)).collect();
        Ok(entries.iter().map(|kind| lens.get(kind).copied().flatten()).collect())
    }
}

/// Whether the store has said that it has no such request.
fn cannot(error: &BlobError) -> bool {
    let BlobError::Determinate { source: Some(source), .. } = error else { return false };
    let unsupported = |status, code: &str| matches!(status, Some(405 | 501)) || code == "NotImplemented";
    match (source.downcast_ref::<S3Refusal>(), source.downcast_ref::<Failed>()) {
        (Some(refusal), _) => unsupported(refusal.status, &refusal.code),
        (_, Some(failed)) => unsupported(failed.status(), failed.code()),
        (None, None) => false,
    }
}

fn segments_before_keys(config: &S3Config) -> usize {
    let prefix = config.prefix.split('/').filter(|segment| !segment.is_empty()).count();
    prefix + usize::from(config.path_style)
}

fn cache(config: &S3Config, sdk: &SdkConfig) -> CredentialCache {
    #[expect(
        clippy::disallowed_methods,
        reason = "credentials expire by the time of day, as do their signatures"
    )]
    let clock: WallClock = Arc::new(SystemTime::now);
    CredentialCache::new(sdk.credentials_provider(), clock, config.retry_timeout)
}

fn builder(config: &S3Config, sdk: &SdkConfig, region: &str, requests: Requests) -> AmazonS3Builder {
    let endpoint = sdk.endpoint_url();
    let encrypted = endpoint.is_none_or(|endpoint| endpoint.starts_with("https:"));
    // Timeouts are kept by `Requests`: these would count the whole of a body.
    let client = ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(config.connect_timeout)
        .with_pool_idle_timeout(POOLED_FOR)
        .with_allow_http(!encrypted);
    // Requests are tried again by `Requests`; this is for bodies that broke off.
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: RESUMED_MAX,
        retry_timeout: config.retry_timeout,
    };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&config.bucket)
        .with_region(region)
        .with_credentials(Arc::<CredentialCache>::clone(&requests.credentials))
        .with_virtual_hosted_style_request(!config.path_style)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_client_options(client)
        .with_retry(retry)
        .with_http_connector(requests);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(bucket_endpoint(config, endpoint));
    }
    match config.checksum {
        UploadChecksum::Sha256 => builder.with_checksum_algorithm(Checksum::SHA256),
        // The channel is encrypted, so that the checksum guards against accidents, and these are all that is left.
        UploadChecksum::Crc64Nvme => {
            builder.with_checksum_algorithm(Checksum::CRC64NVME).with_unsigned_payload(encrypted)
        }
        UploadChecksum::Off => builder,
    }
}

/// The endpoint as `object_store` wants it: with the bucket in the host's name, where it does not stand in the path.
fn bucket_endpoint(config: &S3Config, endpoint: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, host)) if !config.path_style => format!("{scheme}://{}.{host}", config.bucket),
        _ => endpoint.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_stands_in_the_path_or_in_the_host() {
        let mut config = S3Config::new("b", "p/q");
        assert_eq!(bucket_endpoint(&config, "https://h:1"), "https://b.h:1");
        assert_eq!(segments_before_keys(&config), 2);
        config.path_style = true;
        assert_eq!(bucket_endpoint(&config, "https://h:1"), "https://h:1");
        assert_eq!(segments_before_keys(&config), 3);
    }
}
