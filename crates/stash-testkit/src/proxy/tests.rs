//! The proxy before radosgw: what passes unchanged, and each way to go wrong.

use aws_sdk_s3::{
    Client,
    error::{ProvideErrorMetadata, SdkError},
    primitives::ByteStream,
    types::{Delete, ObjectIdentifier},
};

use super::*;
use crate::servers::radosgw;

/// A proxy, a client that goes through it, and a bucket.
struct World {
    server: &'static S3Server,
    proxy: FaultProxy,
    client: Client,
    bucket: String,
}

impl World {
    async fn new() -> Option<World> {
        let server = radosgw().await?;
        let proxy = FaultProxy::start(server).expect("a proxy");
        let client = server.client_at(&proxy.endpoint());
        Some(World { server, client, bucket: server.new_bucket("proxy").await, proxy })
    }

    async fn put(&self, key: &str, body: &[u8]) -> Result<(), String> {
        let body = ByteStream::from(body.to_vec());
        let put = self.client.put_object().bucket(&self.bucket).key(key).if_none_match("*").body(body);
        put.send().await.map(drop).map_err(outcome)
    }

    async fn get(&self, key: &str) -> Result<Vec<u8>, String> {
        let object = self.client.get_object().bucket(&self.bucket).key(key).send().await.map_err(outcome)?;
        let body = object.body.collect().await.map_err(|_| "cut".to_owned())?;
        Ok(body.to_vec())
    }

    async fn keys(&self) -> Vec<String> {
        self.server.contents(&self.bucket).await.0
    }

    /// What was recorded of the last request.
    fn last(&self) -> Request {
        self.proxy.requests().pop().expect("something was asked")
    }
}

/// An error's code, or what became of the connection.
fn outcome<E: ProvideErrorMetadata, R>(error: SdkError<E, R>) -> String {
    match error {
        SdkError::ServiceError(error) => error.err().code().unwrap_or("no code").to_owned(),
        SdkError::DispatchFailure(_) => "reset".to_owned(),
        SdkError::ResponseError(_) => "cut".to_owned(),
        _ => "other".to_owned(),
    }
}

fn noise(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| splitmix(n as u64)).collect()
}

fn splitmix(n: u64) -> u8 {
    crate::plan::splitmix64(n).to_le_bytes()[0]
}

#[tokio::test]
async fn what_passes_is_unchanged_and_recorded() {
    let Some(world) = World::new().await else { return };
    let bytes = noise(3 << 20);
    world.put("a b/ü+c", &bytes).await.expect("it is put");
    assert_eq!(world.get("a b/ü+c").await.expect("it is there"), bytes);
    let range =
        world.client.get_object().bucket(&world.bucket).key("a b/ü+c").range("bytes=5-9").send().await;
    assert_eq!(range.expect("a range").body.collect().await.expect("it comes").to_vec(), bytes[5..10]);
    let again = world.put("a b/ü+c", b"other").await.expect_err("it is there");
    assert_eq!(again, "PreconditionFailed");
    let head = world
        .client
        .head_object()
        .bucket(&world.bucket)
        .key("none")
        .send()
        .await
        .expect_err("it is not there");
    assert_eq!(head.raw_response().map(|response| response.status().as_u16()), Some(404));

    let requests = world.proxy.take_requests();
    let told: Vec<(Call, Option<u16>, u32)> =
        requests.iter().map(|request| (request.call, request.status, request.attempt)).collect();
    assert_eq!(
        told,
        [
            (Call::PutObject, Some(200), 1),
            (Call::GetObject, Some(200), 1),
            (Call::GetObject, Some(206), 1),
            (Call::PutObject, Some(412), 2),
            (Call::HeadObject, Some(404), 1),
        ]
    );
    assert!(requests.iter().all(|request| request.bucket == world.bucket && request.fault.is_none()));
    assert!(requests[..4].iter().all(|request| request.key == "a b/ü+c"), "{requests:?}");
    assert!(requests[0].create_only && requests[0].bytes_in >= bytes.len() as u64);
    assert_eq!((requests[1].bytes_out, requests[2].bytes_out), (bytes.len() as u64, 5));
    assert_eq!(requests[2].range.as_deref(), Some("bytes=5-9"));
    assert_eq!(world.proxy.tally(Call::PutObject), Tally::default(), "they were taken");
}

#[tokio::test]
async fn signatures_are_checked_through_the_proxy() {
    let Some(world) = World::new().await else { return };
    let forged =
        aws_credential_types::Credentials::new(world.server.access_key(), "wrong", None, None, "test");
    let config = world.client.config().to_builder().credentials_provider(forged).build();
    let refused =
        Client::from_conf(config).list_buckets().send().await.map_err(outcome).expect_err("a wrong secret");
    assert_eq!(refused, "SignatureDoesNotMatch");
}

#[tokio::test]
async fn what_is_refused_or_reset_before_has_no_effect() {
    let Some(world) = World::new().await else { return };
    for (scenario, told) in [
        (Scenario::SlowDown { percent: 100 }, "SlowDown"),
        (Scenario::ResetBefore { percent: 100 }, "reset"),
        (Scenario::ClockSkew { percent: 100 }, "RequestTimeTooSkewed"),
        (Scenario::CreateConflict { percent: 100 }, "ConditionalRequestConflict"),
        (Scenario::ExpiredToken, "ExpiredToken"),
    ] {
        world.proxy.set(scenario, 1);
        assert_eq!(world.put("a", &noise(100_000)).await, Err(told.to_owned()), "{scenario}");
        let last = world.last();
        assert!(last.fault.is_some() && last.answered.is_none() && !last.succeeded(), "{last:?}");
        world.proxy.heal();
        assert!(world.keys().await.is_empty(), "{scenario}");
    }
    world.put("a", b"1").await.expect("healed");
}

#[tokio::test]
async fn what_is_lost_or_refused_after_has_its_effect() {
    let Some(world) = World::new().await else { return };
    let lost = [
        (Scenario::ResetAfter { percent: 100 }, "reset"),
        (Scenario::LatePrecondition { percent: 100 }, "PreconditionFailed"),
    ];
    for (n, (scenario, told)) in lost.into_iter().enumerate() {
        world.proxy.set(scenario, 1);
        assert_eq!(world.put(&format!("{n}"), &noise(100_000)).await, Err(told.to_owned()), "{scenario}");
        assert_eq!(world.last().answered, Some(200));
        world.proxy.heal();
        assert_eq!(world.get(&format!("{n}")).await, Ok(noise(100_000)), "{scenario}");
    }
}

#[tokio::test]
async fn internal_errors_come_before_and_after_the_effect() {
    let Some(world) = World::new().await else { return };
    world.proxy.set(Scenario::InternalError { percent: 100 }, 1);
    for n in 0..20 {
        assert_eq!(world.put(&format!("{n}"), b"1").await, Err("InternalError".to_owned()));
    }
    let there = world.keys().await.len();
    assert!((1..20).contains(&there), "{there} of 20");
}

#[tokio::test]
async fn a_request_that_is_cut_leaves_nothing_and_a_response_that_is_cut_is_an_error() {
    let Some(world) = World::new().await else { return };
    world.put("whole", &noise(1 << 20)).await.expect("it is put");
    world.proxy.set(Scenario::CutBodies { percent: 100 }, 1);
    world.put("cut", &noise(1 << 20)).await.expect_err("half of it");
    assert!((1..1 << 20).contains(&world.last().bytes_in), "{:?}", world.last());
    assert_eq!(world.get("whole").await, Err("cut".to_owned()));
    assert_eq!(world.last().bytes_out, 1 << 19);
    assert!(!world.last().succeeded());
    world.proxy.heal();
    assert_eq!(world.keys().await, ["whole"]);
}

#[tokio::test]
async fn slow_bodies_arrive_whole() {
    let Some(world) = World::new().await else { return };
    world.proxy.set(Scenario::SlowBodies { percent: 100 }, 1);
    world.put("a", &noise(2 << 20)).await.expect("it is put");
    assert_eq!(world.get("a").await, Ok(noise(2 << 20)));
    assert_eq!(world.proxy.tally(Call::GetObject).faults, 1);
}

#[tokio::test]
async fn a_bulk_delete_succeeds_in_part_and_says_so() {
    let Some(world) = World::new().await else { return };
    let names: Vec<String> = (0..40).map(|n| format!("k&{n}")).collect();
    for name in &names {
        world.put(name, b"1").await.expect("it is put");
    }
    world.proxy.set(Scenario::PartialDeletes { percent: 100 }, 1);
    let objects = names.iter().map(|name| ObjectIdentifier::builder().key(name).build().expect("a key"));
    let delete = Delete::builder().set_objects(Some(objects.collect())).build().expect("a delete");
    let answer =
        world.client.delete_objects().bucket(&world.bucket).delete(delete).send().await.expect("status 200");
    let left = world.keys().await;
    let deleted: Vec<&str> = answer.deleted().iter().filter_map(|deleted| deleted.key()).collect();
    assert_eq!(deleted.len() + answer.errors().len(), names.len());
    assert!(deleted.iter().all(|key| !left.iter().any(|left| left == key)), "what was reported is gone");
    let failed = answer.errors().len();
    assert!(!left.is_empty() && left.len() < failed, "{} left, {failed} failed", left.len());
}

#[tokio::test]
async fn requests_stand_at_gates() {
    let Some(world) = World::new().await else { return };
    for (point, there) in [(Point::Before, false), (Point::After, true)] {
        let key = format!("{point:?}");
        let gate = world.proxy.hold_key(Call::PutObject, point, &key);
        let (put, ()) = tokio::join!(world.put(&key, b"1"), async {
            world.put(&format!("other {key}"), b"1").await.expect("nobody holds it");
            gate.wait_held(1).await;
            assert_eq!(world.keys().await.contains(&key), there, "{point:?}");
            gate.release();
        });
        put.expect("it is put");
    }
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_request_along() {
    let Some(world) = World::new().await else { return };
    let gate = world.proxy.hold(Call::PutObject, Point::Before);
    tokio::select! {
        biased;
        put = world.put("a", b"1") => panic!("it was held: {put:?}"),
        () = gate.wait_held(1) => {}
    }
    while gate.held() > 0 {
        tokio::task::yield_now().await;
    }
    gate.release();
    world.put("b", b"1").await.expect("the proxy lives");
    assert_eq!(world.keys().await, ["b"]);
}
