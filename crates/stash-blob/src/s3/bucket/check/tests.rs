//! What settings mean, without a store.

use aws_sdk_s3::types::{
    AbortIncompleteMultipartUpload, ExpirationStatus, LifecycleExpiration, LifecycleRule,
    LifecycleRuleFilter, NoncurrentVersionExpiration,
};

use super::*;

const ROOT: &str = "a/b/";

fn rules(rules: Vec<LifecycleRule>) -> Setting<Lifecycle> {
    Setting::Is(Lifecycle { rules, smallest: None })
}

fn rule() -> aws_sdk_s3::types::builders::LifecycleRuleBuilder {
    let filter = LifecycleRuleFilter::builder().prefix("a/").build();
    LifecycleRule::builder().id("x").status(ExpirationStatus::Enabled).filter(filter)
}

fn missing<T>() -> Setting<T> {
    Setting::NotOffered("501 NotImplemented".to_owned())
}

#[test]
fn a_bucket_whose_uploads_nobody_aborts_is_warned_of() {
    let found = aborts_uploads(&rules(Vec::new()), ROOT);
    assert_eq!(found.standing, Standing::Warn);
    assert!(found.advice.is_some_and(|advice| advice.contains("bucket init")));
    let abort = AbortIncompleteMultipartUpload::builder().days_after_initiation(3).build();
    let with = rule().abort_incomplete_multipart_upload(abort).build().expect("a rule");
    let found = aborts_uploads(&rules(vec![with]), ROOT);
    assert_eq!((found.standing, found.detail.as_str()), (Standing::Good, "after 3 days"));
    assert_eq!(aborts_uploads(&missing(), ROOT).standing, Standing::NotOffered);
}

#[test]
fn a_rule_that_expires_parts_is_bad() {
    let expiring =
        rule().expiration(LifecycleExpiration::builder().days(30).build()).build().expect("a rule");
    let found = keeps_objects(&rules(vec![expiring]), ROOT);
    assert_eq!(found.standing, Standing::Bad);
    assert!(found.detail.contains("\"x\"") && found.detail.contains("30 days"), "{}", found.detail);
    assert_eq!(keeps_objects(&rules(Vec::new()), ROOT).standing, Standing::Good);
}

#[test]
fn versions_keep_deleted_bytes_and_the_rule_that_removes_them_is_named() {
    let on = || Setting::Is(BucketVersioningStatus::Enabled);
    let found = versions(on(), &rules(Vec::new()), ROOT);
    assert_eq!(found.standing, Standing::Warn);
    assert!(found.detail.contains("for ever"), "{}", found.detail);
    let advice = found.advice.expect("what to do");
    let json = advice.split_once(": ").map(|(_, json)| json).expect("a rule");
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    assert_eq!(
        (&json["Filter"]["Prefix"], &json["NoncurrentVersionExpiration"]["NoncurrentDays"]),
        (&ROOT.into(), &1.into())
    );
    let forget = NoncurrentVersionExpiration::builder().noncurrent_days(2).build();
    let with = rule().noncurrent_version_expiration(forget).build().expect("a rule");
    let found = versions(on(), &rules(vec![with]), ROOT);
    assert!(found.detail.contains("2 days more") && found.advice.is_none(), "{found:?}");
    assert_eq!(versions(Setting::Unset, &missing(), ROOT).standing, Standing::Good);
    let suspended = Setting::Is(BucketVersioningStatus::Suspended);
    assert_eq!(versions(suspended, &missing(), ROOT).standing, Standing::Warn);
}

#[test]
fn a_lock_and_plain_connections_are_warned_of() {
    assert_eq!(object_lock(Setting::Is("on".to_owned())).standing, Standing::Warn);
    assert_eq!(object_lock(Setting::Unset).standing, Standing::Good);
    let mut config = S3Config::new("b", "a/b");
    assert_eq!(tls_only(Setting::Unset, &config).standing, Standing::Warn);
    config.endpoint = Some("http://h:1".to_owned());
    let found = tls_only(Setting::Unset, &config);
    assert!(found.detail.contains("in the clear"), "{}", found.detail);
    assert_eq!(tls_only(missing(), &config).standing, Standing::NotOffered);
}

#[test]
fn a_block_is_whole_only_with_all_four() {
    let three = PublicAccessBlockConfiguration::builder()
        .block_public_acls(true)
        .ignore_public_acls(true)
        .block_public_policy(true)
        .restrict_public_buckets(false)
        .build();
    assert_eq!(blocks(&three), 3);
}

#[test]
fn a_report_is_sound_unless_something_is_bad() {
    let of = |standing| BucketReport {
        location: String::new(),
        endpoint: None,
        items: vec![item(Aspect::Access, standing, "")],
    };
    for standing in [Standing::Good, Standing::Warn, Standing::NotOffered, Standing::Unknown] {
        assert!(of(standing).is_sound());
    }
    assert!(!of(Standing::Bad).is_sound());
}
