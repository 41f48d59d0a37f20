//! Buckets are looked at and set up.

use aws_sdk_s3::types::{
    BucketLifecycleConfiguration, BucketVersioningStatus, ExpirationStatus, LifecycleExpiration,
    LifecycleRule, LifecycleRuleFilter, VersioningConfiguration,
};
use stash_blob::s3::{
    Aspect, BucketPlan, BucketReport, S3Config, S3Keys, Standing, StepOutcome, check_bucket, init_bucket,
};
use stash_testkit::servers::{self, S3Server};

use crate::config;

fn standings(report: &BucketReport) -> Vec<(Aspect, Standing)> {
    report.items.iter().map(|item| (item.what, item.standing)).collect()
}

fn standing(report: &BucketReport, what: Aspect) -> Standing {
    let item = report.items.iter().find(|item| item.what == what);
    item.unwrap_or_else(|| panic!("{what:?} is not in {report:?}")).standing
}

fn outcomes(plan: &BucketPlan) -> Vec<StepOutcome> {
    plan.steps.iter().map(|step| step.outcome).collect()
}

/// Rules of somebody else, of which one expires what is below `prefix`.
async fn set_rules(server: &S3Server, config: &S3Config, prefixes: &[&str]) {
    let rules = prefixes.iter().map(|prefix| {
        let filter = LifecycleRuleFilter::builder().prefix(*prefix).build();
        let expiration = LifecycleExpiration::builder().days(3).build();
        let rule = LifecycleRule::builder().id(format!("of {prefix}")).status(ExpirationStatus::Enabled);
        rule.filter(filter).expiration(expiration).build().expect("a rule")
    });
    let rules = BucketLifecycleConfiguration::builder().set_rules(Some(rules.collect())).build();
    let client = server.client();
    let put = client.put_bucket_lifecycle_configuration().bucket(&config.bucket);
    put.lifecycle_configuration(rules.expect("rules")).send().await.expect("rules are set");
}

async fn rules(server: &S3Server, config: &S3Config) -> Vec<String> {
    let client = server.client();
    let get = client.get_bucket_lifecycle_configuration().bucket(&config.bucket).send().await;
    let rules = get.map(|got| got.rules.unwrap_or_default()).unwrap_or_default();
    let mut rules: Vec<String> = rules.iter().map(|rule| rule.id().unwrap_or_default().to_owned()).collect();
    rules.sort();
    rules
}

/// A dry run says what a real run does; a real run adds, once, and leaves the rules of others.
async fn is_set_up(server: &S3Server, wanted: [StepOutcome; 3]) -> BucketReport {
    let config = config(server, "init").await;
    set_rules(server, &config, &["tmp/", "a/c/"]).await;
    let before = check_bucket(&config).await;
    assert_eq!(standing(&before, Aspect::AbortsUploads), Standing::Warn);
    let dry = init_bucket(&config, false).await.expect("a plan");
    assert_eq!(rules(server, &config).await, ["of a/c/", "of tmp/"], "a dry run changes nothing");
    assert_eq!(check_bucket(&config).await, before, "a dry run changes nothing");
    let done = init_bucket(&config, true).await.expect("done");
    assert!(done.committed && done.is_done() && !dry.committed, "{done:?}");
    assert_eq!(outcomes(&done), wanted, "{done:?}");
    let would = wanted.map(|outcome| if outcome == StepOutcome::Done { StepOutcome::Would } else { outcome });
    assert_eq!(outcomes(&dry), would, "{dry:?}");
    assert_eq!(rules(server, &config).await, ["of a/c/", "of tmp/", "stash-abort-uploads:a/b/"]);
    let again = init_bucket(&config, true).await.expect("done");
    let so =
        wanted.map(|outcome| if outcome == StepOutcome::Done { StepOutcome::AlreadySo } else { outcome });
    assert_eq!(outcomes(&again), so, "{again:?}");
    let after = check_bucket(&config).await;
    assert_eq!(standing(&after, Aspect::AbortsUploads), Standing::Good);
    assert!(after.is_sound(), "{after:?}");
    after
}

#[tokio::test(flavor = "multi_thread")]
async fn radosgw_is_set_up_but_for_what_it_has_not() {
    let Some(server) = servers::radosgw().await else { return };
    // It has no encryption by default, and tells of its block of public access in a form of its own.
    let after =
        is_set_up(server, [StepOutcome::Done, StepOutcome::NotOffered, StepOutcome::NotOffered]).await;
    assert_eq!(standing(&after, Aspect::Encryption), Standing::NotOffered);
}

#[tokio::test(flavor = "multi_thread")]
async fn ministack_is_set_up_and_encrypts_by_itself() {
    let Some(server) = servers::ministack().await else { return };
    let after = is_set_up(server, [StepOutcome::Done, StepOutcome::Done, StepOutcome::AlreadySo]).await;
    assert_eq!(standing(&after, Aspect::Encryption), Standing::Good);
    assert_eq!(standing(&after, Aspect::PublicAccess), Standing::Good);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_expires_parts_makes_a_bucket_unsound() {
    let Some(server) = servers::radosgw().await else { return };
    let config = config(server, "expiring").await;
    set_rules(server, &config, &["a/b/s1"]).await;
    let report = check_bucket(&config).await;
    assert_eq!(standing(&report, Aspect::KeepsObjects), Standing::Bad);
    assert!(!report.is_sound());
    // The same rule beside the prefix is nobody's business.
    set_rules(server, &config, &["a/c"]).await;
    assert!(check_bucket(&config).await.is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_and_plain_connections_are_warned_of() {
    let Some(server) = servers::radosgw().await else { return };
    let config = config(server, "versions").await;
    let fresh = check_bucket(&config).await;
    let wanted = [
        (Aspect::Access, Standing::Good),
        (Aspect::AbortsUploads, Standing::Warn),
        (Aspect::KeepsObjects, Standing::Good),
        (Aspect::PublicAccess, Standing::NotOffered),
        (Aspect::Encryption, Standing::NotOffered),
        (Aspect::Versions, Standing::Good),
        (Aspect::ObjectLock, Standing::Good),
        (Aspect::TlsOnly, Standing::Warn),
    ];
    assert_eq!(standings(&fresh), wanted, "{fresh:?}");
    let on = VersioningConfiguration::builder().status(BucketVersioningStatus::Enabled).build();
    let client = server.client();
    let put = client.put_bucket_versioning().bucket(&config.bucket).versioning_configuration(on);
    put.send().await.expect("versions are kept");
    assert_eq!(standing(&check_bucket(&config).await, Aspect::Versions), Standing::Warn);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_and_a_wrong_secret_are_said_and_nothing_is_set() {
    let Some(server) = servers::radosgw().await else { return };
    let mut missing = config(server, "there").await;
    let mut wrong = missing.clone();
    missing.bucket = "not-there".to_owned();
    let report = check_bucket(&missing).await;
    assert_eq!(standings(&report), [(Aspect::Access, Standing::Bad)]);
    assert!(report.items[0].detail.contains("no such bucket"), "{report:?}");
    let error = init_bucket(&missing, true).await.expect_err("no bucket").to_string();
    assert!(error.contains("not-there") && error.contains("create it"), "{error}");
    wrong.keys = Some(S3Keys::new(server.access_key(), "canary-of-a-secret"));
    let error = init_bucket(&wrong, true).await.expect_err("no access").to_string();
    assert!(error.contains("denied") && !error.contains("canary"), "{error}");
}
