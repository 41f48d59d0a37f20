use std::sync::Mutex;

use aws_credential_types::{Credentials, provider::SharedCredentialsProvider};

use super::*;
use crate::Request;

/// How the network behaves at one request.
enum Does {
    Answer(u16, &'static str),
    Fail(HttpErrorKind),
    Stall,
}

/// A network that does as it is told, request by request, and then answers 200.
struct Script {
    does: Mutex<Vec<Does>>,
    seen: Mutex<Vec<HeaderMap>>,
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Script")
    }
}

#[derive(Debug)]
struct Network(Arc<Script>);

#[async_trait]
impl HttpService for Network {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.0.seen.lock().expect("a lock").push(request.headers().clone());
        let next = {
            let mut does = self.0.does.lock().expect("a lock");
            if does.is_empty() { Does::Answer(200, "") } else { does.remove(0) }
        };
        match next {
            Does::Answer(status, body) => {
                let answer = http::Response::builder().status(status);
                Ok(answer
                    .body(HttpResponseBody::from(Bytes::from_static(body.as_bytes())))
                    .expect("an answer"))
            }
            Does::Fail(kind) => Err(HttpError::new(kind, std::io::Error::other("as told"))),
            Does::Stall => std::future::pending().await,
        }
    }
}

#[derive(Debug, Default)]
struct Seen(Mutex<Vec<(RequestOp, String, u32, RequestEnd)>>);

impl RequestObserver for Seen {
    fn ended(&self, request: &Request<'_>) {
        let seen = (request.op, request.key.to_owned(), request.attempt, request.end);
        self.0.lock().expect("a lock").push(seen);
    }
}

struct Rig {
    service: Service,
    script: Arc<Script>,
    seen: Arc<Seen>,
}

fn rig(does: Vec<Does>) -> Rig {
    let script = Arc::new(Script { does: Mutex::new(does), seen: Mutex::default() });
    let seen = Arc::new(Seen::default());
    let keys = Credentials::builder()
        .access_key_id("AKID")
        .secret_access_key("hunter2")
        .provider_name("test")
        .build();
    let credentials = CredentialCache::new(
        Some(SharedCredentialsProvider::new(keys)),
        Arc::new(|| std::time::UNIX_EPOCH),
        Duration::from_secs(1),
    );
    let requests = Requests {
        bucket: "b".to_owned(),
        region: "us-east-1".to_owned(),
        segments_before_keys: 2,
        credentials: Arc::new(credentials),
        observer: Arc::<Seen>::clone(&seen),
        stall_timeout: Duration::from_secs(30),
        retry_timeout: Duration::from_secs(60),
        complete_only_new: Arc::new(AtomicBool::new(true)),
        publishing: HeaderMap::new(),
    };
    let inner = HttpClient::new(Network(Arc::clone(&script)));
    Rig { service: Service { requests, inner }, script, seen }
}

fn request(method: Method, path: &str) -> HttpRequest {
    let body = if method == Method::PUT { "body" } else { "" };
    let mut request = http::Request::builder()
        .method(method)
        .uri(format!("http://h/b/p/{path}"))
        .body(Bytes::from_static(body.as_bytes()).into())
        .expect("a request");
    let digest = http::HeaderValue::from_static("00ff");
    request.headers_mut().insert("x-amz-content-sha256", digest);
    request
}

fn verdict(error: &HttpError) -> Verdict {
    Verdict::of(error).expect("a verdict").clone()
}

impl Rig {
    async fn ask(&self, method: Method, path: &str) -> Result<u16, Verdict> {
        let answer = self.service.call(request(method, path)).await;
        answer.map(|answer| answer.status().as_u16()).map_err(|error| verdict(&error))
    }

    fn asked(&self) -> usize {
        self.script.seen.lock().expect("a lock").len()
    }
}

#[tokio::test(start_paused = true)]
async fn what_passes_by_itself_is_asked_again_and_counted() {
    let rig = rig(vec![
        Does::Answer(503, "<Error><Code>SlowDown</Code></Error>"),
        Does::Fail(HttpErrorKind::Connect),
        Does::Fail(HttpErrorKind::Interrupted),
        Does::Stall,
    ]);
    assert_eq!(rig.ask(Method::PUT, "k/x").await.expect("at last"), 200);
    let put = |attempt, end| (RequestOp::Put, "k/x".to_owned(), attempt, end);
    let expected = [
        put(1, RequestEnd::Status(503)),
        put(2, RequestEnd::Unsent),
        put(3, RequestEnd::Broken),
        put(4, RequestEnd::TimedOut),
        put(5, RequestEnd::Status(200)),
    ];
    assert_eq!(*rig.seen.0.lock().expect("a lock"), expected);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_at_once() {
    for (status, body) in [
        (403, "<Error><Code>AccessDenied</Code></Error>"),
        (403, "<Error><Code>SignatureDoesNotMatch</Code></Error>"),
        (404, "<Error><Code>NoSuchBucket</Code></Error>"),
        (400, "<Error><Code>InvalidRequest</Code></Error>"),
    ] {
        let rig = rig(vec![Does::Answer(status, body)]);
        let verdict = rig.ask(Method::PUT, "k").await.expect_err("refused");
        assert!(matches!(verdict.means, Means::Denied | Means::Refused), "{verdict:?}");
        assert_eq!(rig.asked(), 1, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn trying_ends_with_its_time() {
    let rig = rig((0..100).map(|_| Does::Answer(500, "")).collect());
    let started = Instant::now();
    let verdict = rig.ask(Method::GET, "k").await.expect_err("it never passes");
    assert_eq!(verdict.means, Means::Unsure, "{verdict:?}");
    assert!(started.elapsed() <= Duration::from_secs(60));
    assert!((5..=16).contains(&rig.asked()), "{} tries", rig.asked());
}

#[tokio::test(start_paused = true)]
async fn a_write_that_may_have_landed_stays_unsure_whatever_is_said_later() {
    let rig = rig(vec![Does::Answer(500, ""), Does::Answer(403, "<Error><Code>AccessDenied</Code></Error>")]);
    let verdict = rig.ask(Method::PUT, "k").await.expect_err("refused in the end");
    assert_eq!(verdict.means, Means::Unsure, "the first try may have landed: {verdict:?}");
    let rig = self::rig(vec![
        Does::Fail(HttpErrorKind::Connect),
        Does::Answer(403, "<Error><Code>AccessDenied</Code></Error>"),
    ]);
    let verdict = rig.ask(Method::PUT, "k").await.expect_err("refused");
    assert_eq!(verdict.means, Means::Denied, "nothing was sent before: {verdict:?}");
}

#[tokio::test(start_paused = true)]
async fn an_absent_object_is_an_answer_and_an_absent_bucket_a_refusal() {
    let rig = rig(vec![Does::Answer(404, "<Error><Code>NoSuchKey</Code></Error>"), Does::Answer(404, "")]);
    assert_eq!(rig.ask(Method::GET, "k").await.expect("an answer"), 404);
    assert_eq!(rig.ask(Method::HEAD, "k").await.expect("an answer"), 404);
    let rig = self::rig(vec![Does::Answer(404, "<Error><Code>NoSuchBucket</Code></Error>")]);
    assert!(rig.ask(Method::GET, "k").await.expect_err("a refusal").what.contains("no bucket"));
}

#[tokio::test(start_paused = true)]
async fn overlapping_puts_are_tried_again_and_a_taken_key_is_not() {
    let rig = rig(vec![Does::Answer(409, ""), Does::Answer(412, "")]);
    assert_eq!(rig.ask(Method::PUT, "k").await.expect("an answer"), 412);
    assert_eq!(rig.asked(), 2);
    let rig = self::rig((0..100).map(|_| Does::Answer(409, "")).collect());
    assert_eq!(rig.ask(Method::PUT, "k").await.expect("what object_store understands"), 409);
    assert!(rig.asked() <= 16);
}

#[tokio::test(start_paused = true)]
async fn each_try_after_a_pause_is_signed_anew() {
    let rig = rig(vec![Does::Answer(503, "")]);
    rig.ask(Method::PUT, "k").await.expect("at last");
    let seen = rig.script.seen.lock().expect("a lock");
    assert!(!seen[0].contains_key("authorization"), "signed by whoever made the request");
    let signature = seen[1]["authorization"].to_str().expect("text");
    assert!(signature.contains("Credential=AKID/") && !signature.contains("hunter2"), "{signature}");
    assert_eq!(seen[1]["x-amz-content-sha256"], "00ff", "of the same body");
}

#[tokio::test(start_paused = true)]
async fn a_skewed_clock_is_asked_about_once() {
    let skewed = || Does::Answer(403, "<Error><Code>RequestTimeTooSkewed</Code></Error>");
    let rig = rig(vec![skewed()]);
    assert_eq!(rig.ask(Method::PUT, "k").await.expect("signed anew"), 200);
    let rig = self::rig(vec![skewed(), skewed(), skewed()]);
    let verdict = rig.ask(Method::PUT, "k").await.expect_err("the clock is wrong");
    assert!(verdict.what.contains("clock") && verdict.means == Means::Later, "{verdict:?}");
    assert_eq!(rig.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn keys_that_cannot_be_renewed_are_tried_once_more() {
    let expired = || Does::Answer(400, "<Error><Code>ExpiredToken</Code></Error>");
    let rig = rig(vec![expired(), expired(), expired()]);
    let verdict = rig.ask(Method::PUT, "k").await.expect_err("expired");
    assert!(verdict.what.contains("expired") && verdict.means == Means::Later, "{verdict:?}");
    assert_eq!(rig.asked(), 2);
    let rig = self::rig(vec![Does::Answer(403, "<Error><Code>InvalidAccessKeyId</Code></Error>")]);
    assert_eq!(rig.ask(Method::PUT, "k").await.expect_err("unknown").means, Means::Denied);
    assert_eq!(rig.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_upload_is_published_only_under_a_free_key_where_the_store_can() {
    let cannot = Does::Answer(501, "<Error><Code>NotImplemented</Code></Error>");
    let rig = rig(vec![cannot]);
    assert_eq!(rig.ask(Method::POST, "k?uploadId=u").await.expect("without"), 200);
    assert_eq!(rig.ask(Method::POST, "k?uploadId=v").await.expect("without"), 200);
    let seen = rig.script.seen.lock().expect("a lock");
    let asked: Vec<bool> = seen.iter().map(|headers| headers.contains_key("if-none-match")).collect();
    assert_eq!(asked, [true, false, false]);
    let signed = seen[0]["authorization"].to_str().expect("text");
    assert!(signed.contains("if-none-match"), "{signed}");
}

#[tokio::test(start_paused = true)]
async fn the_time_a_body_takes_to_send_counts_with_its_length() {
    let mut rig = rig(vec![Does::Stall]);
    rig.service.requests.retry_timeout = Duration::from_secs(600);
    let mut large = request(Method::PUT, "k");
    *large.body_mut() = Bytes::from(vec![0; 128 << 17]).into();
    let started = Instant::now();
    rig.service.call(large).await.expect("the second try");
    assert!(started.elapsed() >= Duration::from_secs(30 + 128), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_is_read_slowly_is_no_stall_and_what_does_not_come_is_one() {
    let seen = Arc::new(Seen::default());
    let watch = || Watch {
        observer: Arc::<Seen>::clone(&seen),
        op: RequestOp::Get,
        key: "k".into(),
        attempt: 1,
        end: RequestEnd::Cancelled,
        sent: 0,
        received: 0,
        started: Instant::now(),
    };
    let stall = Duration::from_secs(30);
    let body = WatchedBody::new(HttpResponseBody::from(Bytes::from_static(b"all")), watch(), 200, stall);
    let mut pieces = HttpResponseBody::new(body).bytes_stream();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(pieces.next().await.expect("a piece").expect("no stall"), "all");
    assert!(pieces.next().await.is_none());
    drop(pieces);

    let hesitant = HttpResponseBody::new(Hesitant(0));
    let mut pieces = HttpResponseBody::new(WatchedBody::new(hesitant, watch(), 200, stall)).bytes_stream();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(pieces.next().await.expect("a piece").expect("no stall: nobody had asked"), "some");
    }
    drop(pieces);

    let silent = HttpResponseBody::new(Silent);
    let mut pieces = HttpResponseBody::new(WatchedBody::new(silent, watch(), 200, stall)).bytes_stream();
    let error = pieces.next().await.expect("an end").expect_err("a stall");
    assert_eq!(error.kind(), HttpErrorKind::Timeout);
    drop(pieces);
    let ends: Vec<_> = seen.0.lock().expect("a lock").iter().map(|seen| seen.3).collect();
    assert_eq!(ends, [RequestEnd::Status(200), RequestEnd::Cancelled, RequestEnd::TimedOut]);
}

/// A body whose bytes come when it is asked a second time.
struct Hesitant(u8);

impl hyper::body::Body for Hesitant {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, HttpError>>> {
        self.0 ^= 1;
        if self.0 == 1 {
            cx.waker().wake_by_ref();
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data(Bytes::from_static(b"some")))))
    }
}

/// A body whose bytes never come.
struct Silent;

impl hyper::body::Body for Silent {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, HttpError>>> {
        std::task::Poll::Pending
    }
}

#[test]
fn a_request_is_told_by_its_url() {
    for (method, path, op, key) in [
        (Method::PUT, "s/i/k", RequestOp::Put, "s/i/k"),
        (Method::PUT, "k?partNumber=1&uploadId=u", RequestOp::UploadPart, "k"),
        (Method::POST, "k?uploads=", RequestOp::CreateUpload, "k"),
        (Method::POST, "k?uploadId=u", RequestOp::CompleteUpload, "k"),
        (Method::DELETE, "k?uploadId=u", RequestOp::AbortUpload, "k"),
        (Method::DELETE, "k", RequestOp::Delete, "k"),
        (Method::POST, "?delete", RequestOp::BulkDelete, ""),
        (Method::GET, "?list-type=2&prefix=p", RequestOp::List, ""),
        (Method::GET, "k", RequestOp::Get, "k"),
        (Method::HEAD, "k", RequestOp::Head, "k"),
    ] {
        let asked = Asked::of(&request(method, path), 2);
        assert_eq!((asked.op, &*asked.key), (op, key), "{path}");
    }
}
