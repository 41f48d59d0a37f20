//! A store that is made worse on the way: what the probe makes of it.
//!
//! Between the probe and ministack, which checks no signatures, stands a proxy that changes requests or answers. Each test
//! takes one promise away and looks that exactly this is noticed.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, request::Parts};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use stash_blob::s3::{Answer, Check, ProbeReport, Verdict};
use stash_testkit::servers::{self, S3Server};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    config,
    probing::{answer, not_so, nothing_is_left, probed},
};

/// Changes a request, or answers it.
pub type Ask = fn(&mut Parts) -> Option<Response<Bytes>>;
/// Changes the answer to a request.
pub type Reply = fn(&Parts, &mut Response<Bytes>);

/// The proxy. Gone when dropped.
pub struct Twisted {
    pub endpoint: String,
    _serving: JoinSet<()>,
}

impl Twisted {
    pub async fn before(server: &S3Server, ask: Ask, reply: Reply) -> Twisted {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let upstream = server.port();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(async move {
                    let pass = service_fn(move |request| pass(upstream, request, ask, reply));
                    let serve = hyper::server::conn::http1::Builder::new();
                    // A client that goes away is no failure of the proxy.
                    let _ = serve.serve_connection(TokioIo::new(stream), pass).await;
                });
            }
        });
        Twisted { endpoint, _serving: serving }
    }
}

async fn pass(
    upstream: u16,
    request: Request<Incoming>,
    ask: Ask,
    reply: Reply,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (mut parts, body) = request.into_parts();
    let body = body.collect().await.expect("a request comes whole").to_bytes();
    let mut answer = match ask(&mut parts) {
        Some(answer) => answer,
        None => forward(upstream, &parts, body).await,
    };
    reply(&parts, &mut answer);
    // A HEAD tells the length of what it does not send.
    if parts.method != Method::HEAD {
        answer.headers_mut().remove("content-length");
    }
    answer.headers_mut().remove("transfer-encoding");
    Ok(answer.map(Full::new))
}

async fn forward(upstream: u16, parts: &Parts, body: Bytes) -> Response<Bytes> {
    let stream = TcpStream::connect(("127.0.0.1", upstream)).await.expect("the server is there");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("it speaks HTTP");
    let mut driving = JoinSet::new();
    driving.spawn(async move { drop(connection.await) });
    let request = Request::from_parts(parts.clone(), Full::new(body));
    let (answer, body) = sender.send_request(request).await.expect("it answers").into_parts();
    Response::from_parts(answer, body.collect().await.expect("all of it").to_bytes())
}

fn refusal(status: u16, code: &str) -> Response<Bytes> {
    let body = format!("<Error><Code>{code}</Code><Message>twisted</Message></Error>");
    let mut answer = Response::new(Bytes::from(body));
    *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
    answer
}

pub fn query(parts: &Parts) -> &str {
    parts.uri.query().unwrap_or_default()
}

pub fn keep(_: &mut Parts) -> Option<Response<Bytes>> {
    None
}

fn as_it_is(_: &Parts, _: &mut Response<Bytes>) {}

/// What the probe finds of ministack behind the proxy, and what is left. `None` where there is none.
async fn twisted(ask: Ask, reply: Reply) -> Option<ProbeReport> {
    let server = servers::ministack().await?;
    let proxy = Twisted::before(server, ask, reply).await;
    let mut config = config(server, "twisted").await;
    config.endpoint = Some(proxy.endpoint.clone());
    let report = probed(&config).await;
    if report.left.is_empty() {
        nothing_is_left(server, &config, &report).await;
    }
    Some(report)
}

/// What is not so, but for what ministack has not either.
fn worse(report: &ProbeReport) -> Vec<Check> {
    let known = [Check::SseKms, Check::SecretRefused];
    let others = not_so(report).into_iter().map(|(check, _)| check);
    others.filter(|check| !known.contains(check)).collect()
}

fn says(report: &ProbeReport, text: &str) -> bool {
    report.verdict.consequences().iter().any(|one| one.text.contains(text))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_alone_changes_nothing() {
    let Some(report) = twisted(keep, as_it_is).await else { return };
    assert_eq!(worse(&report), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_overlooks_create_only_is_found_out() {
    let ask: Ask = |parts| {
        parts.headers.remove("if-none-match");
        None
    };
    let Some(report) = twisted(ask, as_it_is).await else { return };
    assert_eq!(worse(&report), [Check::CreateTaken, Check::CreateRace, Check::MultipartCreate]);
    assert!(report.verdict.is_fit() && says(&report, "create_only=false"), "{:?}", report.verdict);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_create_only_is_found_out() {
    let ask: Ask = |parts| {
        let asks = parts.headers.contains_key("if-none-match");
        asks.then(|| refusal(501, "NotImplemented"))
    };
    let Some(report) = twisted(ask, as_it_is).await else { return };
    assert_eq!(answer(&report, Check::CreateNew), &Answer::No);
    assert!(report.verdict.is_fit() && says(&report, "create_only=false"), "{:?}", report.verdict);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_right_alone_and_wrong_in_a_race_is_found_out() {
    let ask: Ask = |parts| {
        if parts.uri.path().contains("/race/") {
            parts.headers.remove("if-none-match");
        }
        None
    };
    let Some(report) = twisted(ask, as_it_is).await else { return };
    assert_eq!(worse(&report), [Check::CreateRace]);
    assert!(report.verdict.is_fit() && says(&report, "may both succeed"), "{:?}", report.verdict);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_overlooks_ranges_is_unfit() {
    let ask: Ask = |parts| {
        parts.headers.remove("range");
        None
    };
    let Some(report) = twisted(ask, as_it_is).await else { return };
    for check in [Check::RangeExact, Check::RangeSuffix, Check::RangeBeyond] {
        assert_eq!(answer(&report, check), &Answer::No);
    }
    assert!(!report.verdict.is_fit() && says(&report, Check::RangeExact.words()), "{:?}", report.verdict);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_listings_leave_keys_out_is_unfit() {
    let reply: Reply = |parts, answer| {
        // The second page is the last: what comes then is never shown.
        if query(parts).contains("continuation-token") && query(parts).contains("max-keys=7") {
            let text = String::from_utf8_lossy(answer.body());
            let text = text.replace("<IsTruncated>true</IsTruncated>", "<IsTruncated>false</IsTruncated>");
            *answer.body_mut() = Bytes::from(text);
        }
    };
    let Some(report) = twisted(keep, reply).await else { return };
    assert_eq!(worse(&report), [Check::ListPages]);
    let Verdict::Unfit(because) = &report.verdict else { panic!("{:?}", report.verdict) };
    assert!(because[0].text.contains("14 keys"), "{because:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_bulk_deletes_and_one_that_wants_a_digest_are_told_apart() {
    let without: Ask = |parts| {
        let bulk = parts.method == Method::POST && query(parts).starts_with("delete");
        bulk.then(|| refusal(501, "NotImplemented"))
    };
    let Some(report) = twisted(without, as_it_is).await else { return };
    assert_eq!(answer(&report, Check::BulkDelete), &Answer::No);
    assert!(report.verdict.is_fit() && says(&report, "bulk_delete=false"), "{:?}", report.verdict);

    let wants: Ask = |parts| {
        let bulk = parts.method == Method::POST && query(parts).starts_with("delete");
        (bulk && !parts.headers.contains_key("content-md5")).then(|| refusal(400, "InvalidRequest"))
    };
    let Some(report) = twisted(wants, as_it_is).await else { return };
    assert_eq!(worse(&report), [Check::BulkWithoutMd5]);
    assert!(!says(&report, "bulk_delete=false"), "the store's clients send the digest anyway");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_delete_that_keeps_a_key_to_itself_is_found_out() {
    let reply: Reply = |parts, answer| {
        if parts.method == Method::POST && query(parts).starts_with("delete") {
            let text = String::from_utf8_lossy(answer.body());
            *answer.body_mut() = Bytes::from(text.replacen("bulk/0500", "bulk/x", 1));
        }
    };
    let Some(report) = twisted(keep, reply).await else { return };
    assert_eq!(worse(&report), [Check::BulkPerKey]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_store_does_not_delete_is_named_as_left() {
    let ask: Ask = |parts| {
        let kept = parts.method == Method::DELETE && parts.uri.path().contains("/seen/");
        kept.then(|| {
            let mut answer = Response::new(Bytes::new());
            *answer.status_mut() = StatusCode::NO_CONTENT;
            answer
        })
    };
    let Some(report) = twisted(ask, as_it_is).await else { return };
    assert_eq!(worse(&report), [Check::ReadAfterDelete, Check::ListAfterDelete]);
    assert_eq!(report.left.len(), 8, "{:?}", report.left);
    assert!(
        report.left[0].contains("/seen/0") && report.left[0].contains("still listed"),
        "{:?}",
        report.left
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_fails_at_uploads_leaves_that_unknown() {
    let ask: Ask = |parts| query(parts).contains("upload").then(|| refusal(503, "SlowDown"));
    let Some(report) = twisted(ask, as_it_is).await else { return };
    let Answer::Unknown(why) = answer(&report, Check::Multipart) else { panic!("{report:?}") };
    assert!(why.contains("503 SlowDown"), "{why}");
    assert!(report.verdict.is_fit() && says(&report, "not known whether an object is uploaded in parts"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_lives_in_the_past_and_hides_uploads_is_found_out() {
    let ask: Ask = |parts| {
        let listing = parts.method == Method::GET && query(parts).starts_with("uploads");
        listing.then(|| refusal(501, "NotImplemented"))
    };
    let reply: Reply = |_, answer| {
        let date = HeaderValue::from_static("Sat, 01 Jan 2000 00:00:00 GMT");
        answer.headers_mut().insert("date", date);
    };
    let Some(server) = servers::ministack().await else { return };
    let proxy = Twisted::before(server, ask, reply).await;
    let mut config = config(server, "past").await;
    config.endpoint = Some(proxy.endpoint.clone());
    let report = probed(&config).await;
    assert_eq!(answer(&report, Check::ClockInStep), &Answer::No);
    assert_eq!(answer(&report, Check::MultipartListed), &Answer::No);
    assert!(report.verdict.is_fit() && says(&report, "set the clock") && says(&report, "lifecycle"));
    nothing_is_left(server, &config, &report).await;
}
