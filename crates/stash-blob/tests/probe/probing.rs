//! What the probe finds out of each server, and that it leaves nothing.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use aws_sdk_s3::types::{BucketVersioningStatus, VersioningConfiguration};
use stash_blob::s3::{Answer, Check, Finding, Probe, ProbeReport, S3Config, S3Keys, Verdict, probe};
use stash_testkit::servers::{self, S3Server};

use crate::{Counted, config};

pub async fn probed(config: &S3Config) -> ProbeReport {
    let mut told = Vec::new();
    let report = probe(config, &Counted(7), &mut |finding: &Finding| told.push(finding.what)).await;
    assert_eq!(told.len(), Check::ALL.len(), "each finding is told once");
    assert_eq!(report.findings.iter().map(|finding| finding.what).collect::<Vec<_>>(), Check::ALL);
    report
}

pub fn answer(report: &ProbeReport, check: Check) -> &Answer {
    let finding = report.findings.iter().find(|finding| finding.what == check);
    &finding.expect("every question has a finding").result
}

/// The questions that are not answered with yes.
pub fn not_so(report: &ProbeReport) -> Vec<(Check, Answer)> {
    let others = report.findings.iter().filter(|finding| finding.result != Answer::Yes);
    others.map(|finding| (finding.what, finding.result.clone())).collect()
}

pub async fn nothing_is_left(server: &S3Server, config: &S3Config, report: &ProbeReport) {
    assert_eq!(report.left, Vec::<String>::new());
    assert_eq!(server.contents(&config.bucket).await, (Vec::new(), Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn radosgw_creates_right_in_a_race_and_accepts_a_wrong_checksum() {
    let Some(server) = servers::radosgw().await else { return };
    let config = config(server, "probe").await;
    let report = probed(&config).await;
    nothing_is_left(server, &config, &report).await;
    assert_eq!(
        not_so(&report),
        [
            (Check::MultipartCreate, Answer::No),
            (Check::ChecksumVerified, Answer::No),
            (Check::SseS3, Answer::No),
            (Check::SseKms, Answer::No),
        ]
    );
    let Verdict::FitWith(fallbacks) = &report.verdict else { panic!("{:?}", report.verdict) };
    assert_eq!(fallbacks.iter().map(|one| one.check).collect::<Vec<_>>(), [Check::ChecksumVerified]);
    assert!(report.put.is_some() && report.get.is_some() && !report.stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn ministack_does_everything_and_lets_everybody_in() {
    let Some(server) = servers::ministack().await else { return };
    let config = config(server, "probe").await;
    let report = probed(&config).await;
    nothing_is_left(server, &config, &report).await;
    assert_eq!(not_so(&report), [(Check::SseKms, Answer::No), (Check::SecretRefused, Answer::No)]);
    let Verdict::FitWith(fallbacks) = &report.verdict else { panic!("{:?}", report.verdict) };
    assert_eq!(fallbacks.iter().map(|one| one.check).collect::<Vec<_>>(), [Check::SecretRefused]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_url_asks_for_and_the_store_has_not_makes_it_unfit() {
    let Some(server) = servers::radosgw().await else { return };
    let mut config = config(server, "probe-sse").await;
    config.sse = stash_blob::s3::Sse::S3;
    let report = probed(&config).await;
    let Verdict::Unfit(because) = &report.verdict else { panic!("{:?}", report.verdict) };
    assert_eq!(because.iter().map(|one| one.check).collect::<Vec<_>>(), [Check::SseAsked]);
    nothing_is_left(server, &config, &report).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_bucket_with_versions_none_of_the_probe_is_left() {
    let Some(server) = servers::radosgw().await else { return };
    let config = config(server, "probe-versions").await;
    let client = server.client();
    let on = VersioningConfiguration::builder().status(BucketVersioningStatus::Enabled).build();
    let put = client.put_bucket_versioning().bucket(&config.bucket).versioning_configuration(on);
    put.send().await.expect("versions are kept");
    let report = probed(&config).await;
    assert_eq!(answer(&report, Check::Unversioned), &Answer::No);
    assert!(report.verdict.consequences().iter().any(|one| one.check == Check::Unversioned));
    nothing_is_left(server, &config, &report).await;
    let versions = client.list_object_versions().bucket(&config.bucket).send().await.expect("listed");
    assert_eq!((versions.versions().len(), versions.delete_markers().len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_is_stopped_leaves_nothing() {
    let Some(server) = servers::radosgw().await else { return };
    let config = config(server, "probe-stopped").await;
    // After the twelfth finding objects of the create-only PUTs are there.
    let told = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&told);
    let stop = move || seen.load(Ordering::SeqCst) >= 12;
    let probe = Probe::new(&config, &Counted(8));
    assert!(probe.place().starts_with(&format!("s3://{}/a/b/.stash-probe-", config.bucket)));
    let mut tell = |_: &Finding| {
        told.fetch_add(1, Ordering::SeqCst);
    };
    let report = probe.run(stop, &mut tell).await;
    assert!(report.stopped);
    let stopped = Answer::Unknown("the probe was stopped".to_owned());
    assert_eq!(answer(&report, Check::CreateNew), &Answer::Yes);
    assert_eq!(answer(&report, Check::Multipart), &stopped);
    assert!(!report.verdict.is_fit(), "what was not asked is not known");
    nothing_is_left(server, &config, &report).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_a_missing_bucket_and_a_silent_store_are_told_apart() {
    let Some(server) = servers::radosgw().await else { return };
    let good = config(server, "probe-reach").await;
    let because = async |config: &S3Config| {
        let report = probed(config).await;
        let Verdict::Unfit(because) = report.verdict else { panic!("{:?}", report.verdict) };
        because.first().expect("a reason").text.clone()
    };
    let mut wrong = good.clone();
    wrong.keys = Some(S3Keys::new(server.access_key(), "canary-of-a-secret"));
    let text = because(&wrong).await;
    assert!(text.contains("403") && !text.contains("canary"), "{text}");
    let mut wrong = good.clone();
    wrong.bucket = "no-such-bucket".to_owned();
    assert!(because(&wrong).await.contains("there is no bucket no-such-bucket"));
    let mut wrong = good.clone();
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number");
    wrong.endpoint = Some(format!("http://{port}"));
    assert!(because(&wrong).await.contains("not known"));
}
