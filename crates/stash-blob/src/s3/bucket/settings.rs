//! A bucket's settings, as the store tells them.

use aws_sdk_s3::types::{
    BucketVersioningStatus, LifecycleRule, ObjectLockEnabled, PublicAccessBlockConfiguration,
    ServerSideEncryptionByDefault, TransitionDefaultMinimumObjectSize,
};

use crate::s3::{S3Admin, failed::Failed, quiet::Quietly};

/// One setting.
#[derive(Debug)]
pub(super) enum Setting<T> {
    /// It is set to this.
    Is(T),
    /// The store has it, and nothing is set.
    Unset,
    /// The store has no such setting; what it answered.
    NotOffered(String),
    /// That could not be found out, and why.
    Unknown(String),
}

impl<T> Setting<T> {
    /// What a request answered; `unset` are the codes by which stores say that nothing is set.
    fn of(answer: Result<T, Failed>, unset: &[&str]) -> Setting<T> {
        match answer {
            Ok(value) => Setting::Is(value),
            Err(failed) if unset.contains(&failed.code()) => Setting::Unset,
            Err(failed) => Setting::failed(&failed),
        }
    }

    /// A store that does not know a request refuses it, or takes it for another: the listing of the bucket, mostly. A store
    /// may also know it and answer in a form of its own, which cannot be told from that.
    fn failed(failed: &Failed) -> Setting<T> {
        match failed {
            _ if failed.is_denied() => {
                Setting::Unknown(format!("these credentials may not look: {}", failed.short()))
            }
            _ if failed.is_no_bucket() => Setting::Unknown(failed.short()),
            Failed::Refused { status: 400 | 404 | 405 | 501, .. } | Failed::Strange(_) => {
                Setting::NotOffered(failed.short())
            }
            _ => Setting::Unknown(failed.short()),
        }
    }

    /// What it is set to, by another name.
    fn filter_map<U>(self, is: impl FnOnce(T) -> Option<U>) -> Setting<U> {
        match self {
            Setting::Is(value) => is(value).map_or(Setting::Unset, Setting::Is),
            Setting::Unset => Setting::Unset,
            Setting::NotOffered(what) => Setting::NotOffered(what),
            Setting::Unknown(why) => Setting::Unknown(why),
        }
    }
}

/// The lifecycle, with what goes with its rules.
#[derive(Debug, Default)]
pub(super) struct Lifecycle {
    pub(super) rules: Vec<LifecycleRule>,
    pub(super) smallest: Option<TransitionDefaultMinimumObjectSize>,
}

/// The rules; none is an empty list.
pub(super) async fn lifecycle(admin: &S3Admin) -> Setting<Lifecycle> {
    let answer =
        admin.client().get_bucket_lifecycle_configuration().bucket(admin.bucket()).send().quietly().await;
    let setting = Setting::of(answer.map_err(Failed::from), &["NoSuchLifecycleConfiguration"]);
    match setting {
        Setting::Is(got) => {
            let smallest = got.transition_default_minimum_object_size().cloned();
            Setting::Is(Lifecycle { rules: got.rules.unwrap_or_default(), smallest })
        }
        Setting::Unset => Setting::Is(Lifecycle::default()),
        Setting::NotOffered(what) => Setting::NotOffered(what),
        Setting::Unknown(why) => Setting::Unknown(why),
    }
}

/// Whether all four ways to make objects public are blocked; unset where none is.
pub(super) async fn public_access(admin: &S3Admin) -> Setting<PublicAccessBlockConfiguration> {
    let answer = admin.client().get_public_access_block().bucket(admin.bucket()).send().quietly().await;
    let unset = ["NoSuchPublicAccessBlockConfiguration"];
    let setting = Setting::of(answer.map_err(Failed::from), &unset);
    setting.filter_map(|got| got.public_access_block_configuration)
}

/// Whether the policy lets everybody in.
pub(super) async fn is_public(admin: &S3Admin) -> Setting<bool> {
    let answer = admin.client().get_bucket_policy_status().bucket(admin.bucket()).send().quietly().await;
    let setting = Setting::of(answer.map_err(Failed::from), &["NoSuchBucketPolicy"]);
    setting.filter_map(|got| got.policy_status.and_then(|status| status.is_public()))
}

/// How objects are encrypted that do not say how.
pub(super) async fn encryption(admin: &S3Admin) -> Setting<ServerSideEncryptionByDefault> {
    let answer = admin.client().get_bucket_encryption().bucket(admin.bucket()).send().quietly().await;
    let unset = ["ServerSideEncryptionConfigurationNotFoundError", "NoSuchEncryptionConfiguration"];
    let setting = Setting::of(answer.map_err(Failed::from), &unset);
    setting.filter_map(|got| {
        let rules = got.server_side_encryption_configuration?.rules;
        rules.into_iter().find_map(|rule| rule.apply_server_side_encryption_by_default)
    })
}

/// Whether old versions are kept.
pub(super) async fn versions(admin: &S3Admin) -> Setting<BucketVersioningStatus> {
    let answer = admin.client().get_bucket_versioning().bucket(admin.bucket()).send().quietly().await;
    Setting::of(answer.map_err(Failed::from), &[]).filter_map(|got| got.status)
}

/// Whether objects can be locked, and for how long they are by default, in words.
pub(super) async fn object_lock(admin: &S3Admin) -> Setting<String> {
    let answer = admin.client().get_object_lock_configuration().bucket(admin.bucket()).send().quietly().await;
    let unset = ["ObjectLockConfigurationNotFoundError", "NoSuchObjectLockConfiguration"];
    Setting::of(answer.map_err(Failed::from), &unset).filter_map(|got| {
        let lock = got.object_lock_configuration?;
        (lock.object_lock_enabled() == Some(&ObjectLockEnabled::Enabled)).then(|| {
            match lock.rule().and_then(|rule| rule.default_retention()) {
                None => "on, with no retention by default".to_owned(),
                Some(keep) => {
                    let mode = keep.mode().map_or("some", |mode| mode.as_str());
                    let long = match (keep.days(), keep.years()) {
                        (Some(days), _) => format!("{days} days"),
                        (_, Some(years)) => format!("{years} years"),
                        _ => "a time".to_owned(),
                    };
                    format!("on, and new objects are kept for {long} ({mode})")
                }
            }
        })
    })
}

/// The policy's JSON.
pub(super) async fn policy(admin: &S3Admin) -> Setting<String> {
    let answer = admin.client().get_bucket_policy().bucket(admin.bucket()).send().quietly().await;
    Setting::of(answer.map_err(Failed::from), &["NoSuchBucketPolicy"]).filter_map(|got| got.policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_without_a_setting_is_told_from_one_where_nothing_is_set() {
        let of = |status, code: &str| {
            let failed = Failed::Refused { status, code: code.to_owned(), message: String::new() };
            Setting::<()>::of(Err(failed), &["NoSuchThing"])
        };
        assert!(matches!(of(404, "NoSuchThing"), Setting::Unset));
        assert!(matches!(of(501, "NotImplemented"), Setting::NotOffered(_)));
        assert!(matches!(of(405, "MethodNotAllowed"), Setting::NotOffered(_)));
        assert!(matches!(of(404, "NoSuchBucket"), Setting::Unknown(_)));
        assert!(matches!(of(503, "SlowDown"), Setting::Unknown(_)));
        let Setting::Unknown(why) = of(403, "AccessDenied") else { panic!("denied") };
        assert!(why.contains("may not look"), "{why}");
        let strange = Setting::<()>::of(Err(Failed::Strange("a listing".to_owned())), &[]);
        assert!(matches!(strange, Setting::NotOffered(_)));
    }
}
