//! The folder in the bucket where a probe works, and the requests it makes there.
//!
//! Every name that may have been written is remembered before it is sent, so that [`Site::clear`] takes away also what no
//! listing shows.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, UNIX_EPOCH},
};

use aws_config::SdkConfig;
use aws_credential_types::{Credentials, provider::ProvideCredentials};
use aws_sdk_s3::{
    Client,
    config::{
        Builder, ConfigBag, Intercept, RequestChecksumCalculation, ResponseChecksumValidation,
        RuntimeComponents, interceptors::BeforeDeserializationInterceptorContextRef, retry::RetryConfig,
        timeout::TimeoutConfig,
    },
    error::BoxError,
    operation::{
        delete_objects::DeleteObjectsOutput,
        put_object::{PutObjectOutput, builders::PutObjectFluentBuilder},
    },
    primitives::{ByteStream, DateTime, DateTimeFormat},
    types::{Delete, ObjectIdentifier},
};
use bytes::Bytes;

use crate::s3::{S3Admin, S3Config, digest::add_content_md5, failed::Failed, quiet::Quietly};

/// How long one try of a request may take, its body aside.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a part of a few MiB may take.
const PART_TIMEOUT: Duration = Duration::from_secs(25);
/// How often what may be repeated is tried.
const TRIES: u32 = 3;
/// More pages than any listing of a probe has, even one key a page.
const PAGES_MAX: usize = 200;

/// Counts answers, and compares clocks.
#[derive(Debug, Default)]
pub(super) struct Seen {
    requests: AtomicU64,
    /// What the store's clock is ahead of ours, in seconds: the smallest difference seen, since answers take time.
    ahead: Mutex<Option<i64>>,
    server: Mutex<Option<String>>,
}

fn locked<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name the SDK has for [`Seen`].
#[derive(Clone, Debug)]
struct Watch(Arc<Seen>);

impl Intercept for Watch {
    fn name(&self) -> &'static str {
        "StashProbe"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        components: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.response().headers();
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(server) = headers.get("server") {
            *locked(&self.0.server) = Some(server.to_owned());
        }
        let theirs =
            headers.get("date").and_then(|date| DateTime::from_str(date, DateTimeFormat::HttpDate).ok());
        let ours = components.time_source().map(|clock| clock.now());
        let ours = ours.and_then(|now| now.duration_since(UNIX_EPOCH).ok());
        let ours = ours.and_then(|since| i64::try_from(since.as_secs()).ok());
        if let (Some(theirs), Some(ours)) = (theirs, ours) {
            let apart = theirs.secs().saturating_sub(ours);
            let mut ahead = locked(&self.0.ahead);
            *ahead =
                Some(ahead.map_or(apart, |before| if apart.abs() < before.abs() { apart } else { before }));
        }
        Ok(())
    }
}

/// A listing, page by page; names below the folder.
pub(super) type Pages = Vec<Vec<String>>;

/// A part of an object, as it came.
#[derive(Debug)]
pub(super) struct Ranged {
    /// Its bytes.
    pub(super) body: Bytes,
    /// `Content-Range`, where it was sent.
    pub(super) range: Option<String>,
}

/// The folder, and who speaks to it.
pub(super) struct Site {
    sdk: SdkConfig,
    config: S3Config,
    /// Tries again what may be repeated.
    steady: S3Admin,
    /// Tries once: what a second try would answer otherwise.
    once: S3Admin,
    /// Below the prefix, with a slash at its end.
    folder: String,
    seen: Arc<Seen>,
    written: Mutex<BTreeSet<String>>,
    uploads: Mutex<BTreeSet<(String, String)>>,
    over: Box<dyn Fn() -> bool + Send + Sync>,
    deadline: Instant,
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Site {
    /// The folder `folder` below the prefix; `over` says when the caller wants no more.
    pub(super) fn new(
        config: &S3Config,
        sdk: SdkConfig,
        folder: String,
        over: impl Fn() -> bool + Send + Sync + 'static,
        deadline: Instant,
    ) -> Site {
        let seen = Arc::new(Seen::default());
        let with = |tries| S3Admin::from_builder(config, builder(&sdk, config, &seen, tries));
        Site {
            steady: with(TRIES),
            once: with(1),
            config: config.clone(),
            sdk,
            folder,
            seen,
            written: Mutex::default(),
            uploads: Mutex::default(),
            over: Box::new(over),
            deadline,
        }
    }

    /// Whether no more is to be begun.
    pub(super) fn is_over(&self) -> bool {
        self.is_stopped() || Instant::now() >= self.deadline
    }

    /// Whether the caller wants no more.
    pub(super) fn is_stopped(&self) -> bool {
        (self.over)()
    }

    /// How many requests were answered.
    pub(super) fn requests(&self) -> u64 {
        self.seen.requests.load(Ordering::Relaxed)
    }

    /// What the store's clock is ahead, in seconds.
    pub(super) fn ahead(&self) -> Option<i64> {
        *locked(&self.seen.ahead)
    }

    /// What the store calls itself.
    pub(super) fn server(&self) -> Option<String> {
        locked(&self.seen.server).clone()
    }

    /// The region and endpoint that are used.
    pub(super) fn sdk(&self) -> &SdkConfig {
        &self.sdk
    }

    /// What the URL says.
    pub(super) fn config(&self) -> &S3Config {
        &self.config
    }

    /// The client that tries again, and the bucket.
    pub(super) fn steady(&self) -> (&Client, &str) {
        (self.steady.client(), self.steady.bucket())
    }

    /// The client that tries once, and the bucket.
    pub(super) fn once(&self) -> (&Client, &str) {
        (self.once.client(), self.once.bucket())
    }

    /// Where it works, below the prefix.
    pub(super) fn folder(&self) -> &str {
        &self.folder
    }

    /// The key of `name` in the bucket.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{}{name}", self.steady.root(), self.folder)
    }

    /// The name of a key, if it lies in the folder.
    fn name<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(self.steady.root())?.strip_prefix(&self.folder)
    }

    /// Remembers that `name` may be there.
    fn writes(&self, name: &str) -> String {
        locked(&self.written).insert(name.to_owned());
        self.key(name)
    }

    /// PUTs, whatever is there.
    pub(super) async fn put(&self, name: &str, body: impl Into<Bytes>) -> Result<(), Failed> {
        let (client, bucket) = self.steady();
        let body = ByteStream::from(body.into());
        client.put_object().bucket(bucket).key(self.writes(name)).body(body).send().quietly().await?;
        Ok(())
    }

    /// PUTs once, with whatever else the request is to say.
    pub(super) async fn put_with(
        &self,
        name: &str,
        body: impl Into<Bytes>,
        more: impl FnOnce(PutObjectFluentBuilder) -> PutObjectFluentBuilder,
    ) -> Result<PutObjectOutput, Failed> {
        let (client, bucket) = self.once();
        let put = client.put_object().bucket(bucket).key(self.writes(name));
        Ok(more(put.body(ByteStream::from(body.into()))).send().quietly().await?)
    }

    /// PUTs once, only if nothing is there.
    pub(super) async fn create(&self, name: &str, body: impl Into<Bytes>) -> Result<(), Failed> {
        self.put_with(name, body, |put| put.if_none_match("*")).await.map(drop)
    }

    /// The whole object, or `None`.
    pub(super) async fn get(&self, name: &str) -> Result<Option<Bytes>, Failed> {
        match self.fetch(name, None).await {
            Ok(got) => Ok(Some(got.body)),
            Err(failed) if failed.code() == "NoSuchKey" => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// What a GET answers, of a range if there is one.
    pub(super) async fn fetch(&self, name: &str, range: Option<&str>) -> Result<Ranged, Failed> {
        let (client, bucket) = self.steady();
        let get = client.get_object().bucket(bucket).key(self.key(name));
        let got = get.set_range(range.map(str::to_owned)).send().quietly().await?;
        let range = got.content_range().map(str::to_owned);
        let body = got.body.collect().await.map_err(|error| Failed::Lost(error.to_string()))?;
        Ok(Ranged { body: body.into_bytes(), range })
    }

    /// Its length, or `None`.
    pub(super) async fn head(&self, name: &str) -> Result<Option<u64>, Failed> {
        let (client, bucket) = self.steady();
        match client
            .head_object()
            .bucket(bucket)
            .key(self.key(name))
            .send()
            .quietly()
            .await
            .map_err(Failed::from)
        {
            Ok(head) => Ok(Some(head.content_length().and_then(|len| u64::try_from(len).ok()).unwrap_or(0))),
            Err(failed) if failed.status() == Some(404) => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// Deletes one object.
    pub(super) async fn delete(&self, name: &str) -> Result<(), Failed> {
        let (client, bucket) = self.steady();
        client.delete_object().bucket(bucket).key(self.key(name)).send().quietly().await?;
        Ok(())
    }

    /// Deletes many by one request, with `Content-MD5` or without.
    pub(super) async fn delete_bulk(
        &self,
        names: &[String],
        md5: bool,
    ) -> Result<DeleteObjectsOutput, Failed> {
        let (client, bucket) = self.steady();
        let wrong = |error: &dyn fmt::Display| Failed::NotSent(error.to_string());
        let mut delete = Delete::builder();
        for name in names {
            let object = ObjectIdentifier::builder().key(self.key(name)).build();
            delete = delete.objects(object.map_err(|error| wrong(&error))?);
        }
        let delete = delete.build().map_err(|error| wrong(&error))?;
        let request = client.delete_objects().bucket(bucket).delete(delete).customize();
        let request = request.mutate_request(move |request| {
            if md5 {
                add_content_md5(request);
            }
        });
        Ok(request.send().quietly().await?)
    }

    /// Lists what begins with `prefix`, `max_keys` a page where that is said.
    pub(super) async fn list(
        &self,
        prefix: &str,
        max_keys: Option<i32>,
        start_after: Option<&str>,
    ) -> Result<Pages, Failed> {
        let (client, bucket) = self.steady();
        let mut pages = Pages::new();
        let mut token: Option<String> = None;
        while pages.len() < PAGES_MAX {
            let list =
                client.list_objects_v2().bucket(bucket).prefix(self.key(prefix)).set_max_keys(max_keys);
            let list = list.set_start_after(start_after.map(|name| self.key(name)));
            let page = list.set_continuation_token(token.clone()).send().quietly().await?;
            let names = page.contents().iter().filter_map(|object| self.name(object.key()?));
            pages.push(names.map(str::to_owned).collect());
            let next = page.next_continuation_token().filter(|_| page.is_truncated() == Some(true));
            if next.is_none() || next == token.as_deref() {
                break;
            }
            token = next.map(str::to_owned);
        }
        Ok(pages)
    }

    /// Begins an upload of `name`, and remembers it.
    pub(super) async fn begin(&self, name: &str) -> Result<String, Failed> {
        let (client, bucket) = self.once();
        let begun =
            client.create_multipart_upload().bucket(bucket).key(self.writes(name)).send().quietly().await?;
        let id = begun.upload_id().map(str::to_owned);
        let id = id.ok_or_else(|| Failed::Lost("the store begins an upload and names no id".to_owned()))?;
        locked(&self.uploads).insert((name.to_owned(), id.clone()));
        Ok(id)
    }

    /// Uploads a part and gives its tag.
    pub(super) async fn part(
        &self,
        name: &str,
        id: &str,
        number: i32,
        body: Bytes,
    ) -> Result<Option<String>, Failed> {
        let (client, bucket) = self.steady();
        let timeouts =
            TimeoutConfig::builder().operation_attempt_timeout(PART_TIMEOUT).operation_timeout(PART_TIMEOUT);
        let part = client.upload_part().bucket(bucket).key(self.key(name)).upload_id(id).part_number(number);
        let part = part.body(ByteStream::from(body)).customize();
        let part = part.config_override(Builder::new().timeout_config(timeouts.build()));
        Ok(part.send().quietly().await?.e_tag().map(str::to_owned))
    }

    /// The ids of the uploads of `name` that are under way.
    pub(super) async fn uploads_of(&self, name: &str) -> Result<Vec<String>, Failed> {
        let (client, bucket) = self.steady();
        let list =
            client.list_multipart_uploads().bucket(bucket).prefix(self.key(name)).send().quietly().await?;
        let key = self.key(name);
        let of_name = list.uploads().iter().filter(|upload| upload.key() == Some(&key));
        Ok(of_name.filter_map(|upload| upload.upload_id().map(str::to_owned)).collect())
    }

    /// Aborts an upload. One that is gone is no error.
    pub(super) async fn abort(&self, name: &str, id: &str) -> Result<(), Failed> {
        let (client, bucket) = self.steady();
        let abort = client.abort_multipart_upload().bucket(bucket).key(self.key(name)).upload_id(id);
        match abort.send().quietly().await.map_err(Failed::from) {
            Ok(_) => Ok(()),
            Err(failed) if failed.code() == "NoSuchUpload" => Ok(()),
            Err(failed) => Err(failed),
        }
    }

    /// Forgets an upload that is completed.
    pub(super) fn completed(&self, name: &str, id: &str) {
        locked(&self.uploads).remove(&(name.to_owned(), id.to_owned()));
    }

    /// What was begun and not completed.
    pub(super) fn open_uploads(&self) -> BTreeSet<(String, String)> {
        locked(&self.uploads).clone()
    }

    /// Names that may be there.
    pub(super) fn written(&self) -> BTreeSet<String> {
        locked(&self.written).clone()
    }

    /// The credentials that sign.
    pub(super) async fn credentials(&self) -> Result<Credentials, Failed> {
        let provider = self.sdk.credentials_provider();
        let provider = provider.ok_or_else(|| Failed::NotSent("there are no credentials".to_owned()))?;
        provider.provide_credentials().await.map_err(|error| Failed::NotSent(error.to_string()))
    }

    /// Somebody else, who tries once.
    pub(super) fn stranger(&self, credentials: Credentials) -> S3Admin {
        let builder = builder(&self.sdk, &self.config, &self.seen, 1);
        S3Admin::from_builder(&self.config, builder.credentials_provider(credentials))
    }
}

/// Sends no checksum that was not asked for, so that what a store says to one is its own answer.
fn builder(sdk: &SdkConfig, config: &S3Config, seen: &Arc<Seen>, tries: u32) -> Builder {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(config.connect_timeout)
        .operation_attempt_timeout(TRY_TIMEOUT)
        .operation_timeout(TRY_TIMEOUT * 2);
    Builder::from(sdk)
        .retry_config(RetryConfig::standard().with_max_attempts(tries))
        .timeout_config(timeouts.build())
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .interceptor(Watch(Arc::clone(seen)))
}
