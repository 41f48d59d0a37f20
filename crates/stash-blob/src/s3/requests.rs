//! Every request of the data path passes here: it is timed, tried again where that is safe, judged and counted.
//!
//! `object_store` makes and signs the requests and reads the answers; this stands between it and the network.
//!
//! - A request has `stall_timeout` to be answered, and its body a second more for each 128 KiB. An answer's body may take
//!   as long as it likes as long as its next bytes come within `stall_timeout`.
//! - What passes by itself (5xx, 429, no connection, no answer, a conflict of PUTs) is tried again, with growing pauses,
//!   for `retry_timeout` in all. Each try is signed anew. Refusals end at once.
//! - A refusal is told as a [`Verdict`]. What may have had its effect stays unsure whatever the later tries say.
//! - Only what `object_store` has a name for reaches it as an answer: success, 304, 404 of an object, 409 and 412.
//! - A bulk delete's answer is read here: a key counts as deleted if the answer says so by name.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use object_store::{
    ClientOptions,
    aws::{AwsAuthorizer, AwsCredential},
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
        HttpService, ReqwestConnector,
    },
};
use tokio::time::Instant;

use super::{
    body::{Watch, WatchedBody},
    bulk,
    credential_cache::CredentialCache,
    refusal::{Again, Answer, Refused},
};
use crate::{
    RequestEnd, RequestObserver, RequestOp,
    verdict::{Means, PartlyDone, Verdict},
};

/// How fast a body is sent at least, in bytes a second.
const SENT_PER_SECOND: u64 = 128 << 10;

/// How often a request is tried at most, whatever the time.
const TRIES_MAX: u32 = 16;

/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The longest answer of a refusal, or of a bulk delete, that is read, in bytes.
const ANSWER_MAX: usize = 4 << 20;

/// What requests are made by.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    pub(crate) bucket: String,
    pub(crate) region: String,
    /// How many segments of a URL's path stand before a key.
    pub(crate) segments_before_keys: usize,
    pub(crate) credentials: Arc<CredentialCache>,
    pub(crate) observer: Arc<dyn RequestObserver>,
    pub(crate) stall_timeout: Duration,
    pub(crate) retry_timeout: Duration,
    /// Whether uploads are published only under a free key; cleared once the store says that it cannot.
    pub(crate) complete_only_new: Arc<AtomicBool>,
    /// What requests that publish an upload say besides.
    pub(crate) publishing: HeaderMap,
}

impl HttpConnector for Requests {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Service { requests: self.clone(), inner }))
    }
}

#[derive(Debug)]
struct Service {
    requests: Requests,
    inner: HttpClient,
}

/// What a request asks for, as its URL says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    op: RequestOp,
    key: Arc<str>,
}

impl Asked {
    fn of(request: &HttpRequest, segments_before_keys: usize) -> Asked {
        let query = request.uri().query().unwrap_or_default();
        let has = |name: &str| query.split('&').any(|pair| pair.split('=').next() == Some(name));
        let op = match *request.method() {
            Method::GET if has("uploads") => RequestOp::ListUploads,
            Method::GET if has("list-type") => RequestOp::List,
            Method::GET => RequestOp::Get,
            Method::HEAD => RequestOp::Head,
            Method::PUT if has("uploadId") => RequestOp::UploadPart,
            Method::PUT => RequestOp::Put,
            Method::POST if has("uploads") => RequestOp::CreateUpload,
            Method::POST if has("uploadId") => RequestOp::CompleteUpload,
            Method::POST if has("delete") => RequestOp::BulkDelete,
            Method::DELETE if has("uploadId") => RequestOp::AbortUpload,
            Method::DELETE => RequestOp::Delete,
            _ => RequestOp::Other,
        };
        let path = request.uri().path().trim_start_matches('/');
        let key = match op {
            RequestOp::List | RequestOp::ListUploads | RequestOp::BulkDelete => "",
            _ => path.splitn(segments_before_keys + 1, '/').nth(segments_before_keys).unwrap_or_default(),
        };
        Asked { op, key: key.into() }
    }
}

/// What became of one try.
enum Tried {
    Answered(HttpResponse),
    /// An answer that `object_store` understands, unless it is tried again.
    Conflict(Refused, HttpResponse),
    Refused(Refused),
    /// Some keys of a bulk delete failed.
    Partly(PartlyDone, Refused),
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let asked = Asked::of(&request, self.requests.segments_before_keys);
        let conditional =
            asked.op == RequestOp::CompleteUpload && self.requests.complete_only_new.load(Ordering::Relaxed);
        if conditional {
            request.headers_mut().insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        if asked.op == RequestOp::CompleteUpload {
            request.headers_mut().extend(self.requests.publishing.clone());
            self.sign(&mut request).await;
        }
        let started = Instant::now();
        let mut sure = true;
        let mut once = true;
        let mut attempt = 1;
        loop {
            let tried = self.attempt(request.clone(), &asked, attempt).await;
            let (refused, instead) = match tried {
                Tried::Answered(answer) => return Ok(answer),
                Tried::Conflict(refused, answer) => (refused, Ok(answer)),
                Tried::Refused(refused) => (refused, Err(None)),
                Tried::Partly(partly, worst) => (worst, Err(Some(partly))),
            };
            sure &= refused.means != Means::Unsure;
            let pause = match refused.again {
                Again::Pausing(asked_for) => Some(asked_for.unwrap_or_else(|| pause(&asked.key, attempt))),
                Again::SignedAnew if once => self.sign(&mut request).await.then_some(Duration::ZERO),
                Again::WithNewKeys if once => match self.other_keys(&mut request).await {
                    true => Some(Duration::ZERO),
                    // Whoever gives them may know better: they are tried once more.
                    false => (refused.means == Means::Later).then(|| pause(&asked.key, attempt)),
                },
                Again::Unconditional if conditional && once => {
                    self.requests.complete_only_new.store(false, Ordering::Relaxed);
                    request.headers_mut().remove(header::IF_NONE_MATCH);
                    self.sign(&mut request).await;
                    Some(Duration::ZERO)
                }
                _ => None,
            };
            once &= matches!(refused.again, Again::Pausing(_));
            let in_time = |pause: &Duration| {
                attempt < TRIES_MAX && started.elapsed() + *pause < self.requests.retry_timeout
            };
            let Some(pause) = pause.filter(in_time) else {
                return match instead {
                    Ok(answer) => Ok(answer),
                    Err(Some(partly)) => Err(HttpError::new(HttpErrorKind::Unknown, partly)),
                    Err(None) => Err(told(refused.verdict(attempt, sure))),
                };
            };
            tracing::debug!(op = %asked.op, key = %asked.key, attempt, refusal = %refused.refusal, "asked again");
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
                self.sign(&mut request).await;
            }
            attempt += 1;
        }
    }
}

impl Service {
    /// Sends a request once.
    async fn attempt(&self, request: HttpRequest, asked: &Asked, attempt: u32) -> Tried {
        let Asked { op, key } = asked.clone();
        let sent = request.body().content_length() as u64;
        let mut watch = Watch {
            observer: Arc::clone(&self.requests.observer),
            op,
            key,
            attempt,
            end: RequestEnd::Cancelled,
            sent,
            received: 0,
            started: Instant::now(),
        };
        let asked_for = (op == RequestOp::BulkDelete).then(|| request.body().as_bytes().cloned()).flatten();
        let limit = self.requests.stall_timeout + Duration::from_secs(sent / SENT_PER_SECOND);
        let answer = match tokio::time::timeout(limit, self.inner.execute(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                let unsent = error.kind() == HttpErrorKind::Connect;
                watch.end = match error.kind() {
                    _ if unsent => RequestEnd::Unsent,
                    HttpErrorKind::Timeout => RequestEnd::TimedOut,
                    _ => RequestEnd::Broken,
                };
                return Tried::Refused(Refused::unanswered(
                    op,
                    format!("not answered: {}", chain(&error)),
                    !unsent,
                ));
            }
            Err(_) => {
                watch.end = RequestEnd::TimedOut;
                let how = format!("not answered in {} s", limit.as_secs());
                return Tried::Refused(Refused::unanswered(op, how, true));
            }
        };
        let (parts, body) = answer.into_parts();
        let status = parts.status;
        let body = WatchedBody::new(
            HttpResponseBody::new(body),
            watch,
            status.as_u16(),
            self.requests.stall_timeout,
        );
        match (status, asked_for) {
            (StatusCode::NOT_MODIFIED, _) => {
                Tried::Answered(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
            }
            (status, Some(asked_for)) if status.is_success() => {
                let body = match read(body).await {
                    Ok(body) => body,
                    Err(error) => {
                        return Tried::Refused(Refused::unanswered(
                            op,
                            format!("answered in part: {error}"),
                            true,
                        ));
                    }
                };
                match bulk::judged(&asked_for, &String::from_utf8_lossy(&body), &self.requests.bucket) {
                    None => Tried::Answered(HttpResponse::from_parts(parts, body.into())),
                    Some((partly, worst)) => Tried::Partly(partly, worst),
                }
            }
            (status, None) if status.is_success() => {
                Tried::Answered(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
            }
            _ => {
                let text = read(body).await.unwrap_or_default();
                let answer = answer_of(status, &parts.headers, &String::from_utf8_lossy(&text));
                let refused = Refused::by(op, &self.requests.bucket, &answer);
                // The text is not passed on: it may hold what was signed.
                let understood = HttpResponse::from_parts(parts, HttpResponseBody::from(Bytes::new()));
                match status.as_u16() {
                    404 if !matches!(answer.code.as_str(), "NoSuchBucket" | "NoSuchUpload") => {
                        Tried::Answered(understood)
                    }
                    404 if answer.code == "NoSuchUpload" && op == RequestOp::AbortUpload => {
                        Tried::Answered(understood)
                    }
                    412 => Tried::Answered(understood),
                    409 if op == RequestOp::Put => Tried::Conflict(refused, understood),
                    _ => Tried::Refused(refused),
                }
            }
        }
    }

    /// Signs the request by the present time; false where there is nothing to sign with.
    async fn sign(&self, request: &mut HttpRequest) -> bool {
        match self.requests.credentials.keys().await {
            Ok(keys) => self.sign_with(request, &keys),
            Err(_) => false,
        }
    }

    /// Signs the request with other keys than those it was signed with, if there are.
    async fn other_keys(&self, request: &mut HttpRequest) -> bool {
        let text = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let (key_id, token) = (text("authorization").and_then(key_id), text("x-amz-security-token"));
        let Some(key_id) = key_id else { return false };
        match self.requests.credentials.other_than(key_id, token).await {
            Some(keys) => self.sign_with(request, &keys),
            None => false,
        }
    }

    fn sign_with(&self, request: &mut HttpRequest, keys: &AwsCredential) -> bool {
        let digest = request.headers().get("x-amz-content-sha256").and_then(|value| value.to_str().ok());
        let digest = digest.and_then(unhex);
        request.headers_mut().remove("x-amz-security-token");
        let signer =
            AwsAuthorizer::new(keys, "s3", &self.requests.region).with_sign_payload(digest.is_some());
        signer.try_authorize(request, digest.as_deref()).is_ok()
    }
}

/// The key's id in what a request was signed with.
fn key_id(authorization: &str) -> Option<&str> {
    authorization.split_once("Credential=")?.1.split('/').next()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.chars().map(|c| c.to_digit(16)).collect::<Option<Vec<u32>>>()?;
    digits
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => u8::try_from(high * 16 + low).ok(),
            _ => None,
        })
        .collect()
}

/// How long to wait before the next try: 100 ms, doubling, at most 10 s; up to a half is taken off, so that many do
/// not come back at the same moment.
fn pause(key: &str, attempt: u32) -> Duration {
    let whole = Duration::from_millis(100 << attempt.saturating_sub(1).min(7)).min(PAUSE_MAX);
    let half = whole / 2;
    let share = RandomState::new().hash_one((key, attempt)) % 1000;
    half + half * u32::try_from(share).unwrap_or(0) / 1000
}

fn told(verdict: Verdict) -> HttpError {
    // This kind is not tried again by anyone.
    HttpError::new(HttpErrorKind::Unknown, verdict)
}

/// The texts of an error and its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The whole of a short body.
async fn read(body: WatchedBody) -> Result<Bytes, HttpError> {
    let mut whole = bytes::BytesMut::new();
    let mut pieces = HttpResponseBody::new(body).bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        let room = ANSWER_MAX.saturating_sub(whole.len());
        whole.extend_from_slice(&piece[..piece.len().min(room)]);
        if room < piece.len() {
            break;
        }
    }
    Ok(whole.freeze())
}

fn answer_of(status: StatusCode, headers: &HeaderMap, text: &str) -> Answer {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let mut answer = Answer::new(status.as_u16(), text);
    answer.region = header("x-amz-bucket-region").map(str::to_owned).or(answer.region);
    let seconds = header("retry-after").and_then(|text| text.parse().ok());
    answer.retry_after = seconds.map(Duration::from_secs).map(|pause| pause.min(PAUSE_MAX));
    answer
}

#[cfg(test)]
mod tests;
