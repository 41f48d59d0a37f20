//! Setting up a bucket: what is added where it is missing.

use aws_sdk_s3::types::{
    BucketLifecycleConfiguration, LifecycleRule, PublicAccessBlockConfiguration, ServerSideEncryption,
    ServerSideEncryptionByDefault, ServerSideEncryptionConfiguration, ServerSideEncryptionRule,
};

use super::{
    Aspect, BucketPlan, BucketStep, StepOutcome, access,
    check::{blocks, encrypted},
    lifecycle::{self, ABORT_AFTER_DAYS},
    settings::{self, Lifecycle, Setting},
};
use crate::{
    BlobError,
    s3::{S3Admin, S3Config, Sse, digest::add_content_md5, failed::Failed, quiet::Quietly},
};

/// Says how the bucket of `config` would be set up for a stash, and with `commit` does it. The bucket must be there.
pub async fn init_bucket(config: &S3Config, commit: bool) -> Result<BucketPlan, BlobError> {
    let admin = S3Admin::new(config).await;
    access(&admin).await.map_err(|failed| failed.reading("set up", config.location()))?;
    let steps = vec![
        set_lifecycle(&admin, commit).await,
        set_public_access(&admin, commit).await,
        set_encryption(&admin, &config.sse, commit).await,
    ];
    let (location, endpoint) = (config.location(), config.endpoint.clone());
    Ok(BucketPlan { location, endpoint, committed: commit, steps })
}

fn step(what: Aspect, outcome: StepOutcome, detail: impl Into<String>) -> BucketStep {
    BucketStep { what, outcome, detail: detail.into() }
}

/// What cannot be set, because it is missing as such or not to be seen.
fn unset<T>(what: Aspect, setting: &Setting<T>, name: &str) -> BucketStep {
    match setting {
        Setting::NotOffered(said) => {
            step(what, StepOutcome::NotOffered, format!("the store has no {name} ({said})"))
        }
        Setting::Unknown(why) => step(what, StepOutcome::Failed, why.clone()),
        Setting::Is(_) | Setting::Unset => step(what, StepOutcome::Failed, ""),
    }
}

/// What a request that sets something came to. A store may show a setting and not take it.
fn set(what: Aspect, answer: Result<(), Failed>, name: &str, detail: String) -> BucketStep {
    match answer {
        Ok(()) => step(what, StepOutcome::Done, detail),
        Err(failed) if matches!(failed.status(), Some(405 | 501)) => {
            step(what, StepOutcome::NotOffered, format!("the store has no {name} ({})", failed.short()))
        }
        Err(failed) => step(what, StepOutcome::Failed, failed.to_string()),
    }
}

async fn set_lifecycle(admin: &S3Admin, commit: bool) -> BucketStep {
    let (what, name) = (Aspect::AbortsUploads, "lifecycle rules");
    let setting = settings::lifecycle(admin).await;
    let Setting::Is(Lifecycle { rules, smallest }) = setting else { return unset(what, &setting, name) };
    if let Some(days) = lifecycle::aborts_after(&rules, admin.root()) {
        return step(what, StepOutcome::AlreadySo, format!("a rule aborts them after {days} days"));
    }
    let detail = format!(
        "rule {:?} aborts them after {ABORT_AFTER_DAYS} days; {}",
        lifecycle::own_id(admin.root()),
        match rules.len() {
            0 => "there are no other rules".to_owned(),
            1 => "1 other rule stays".to_owned(),
            others => format!("{others} other rules stay"),
        }
    );
    if !commit {
        return step(what, StepOutcome::Would, detail);
    }
    let merged = lifecycle::merged(&rules, admin.root());
    let configuration =
        merged.and_then(|rules| BucketLifecycleConfiguration::builder().set_rules(Some(rules)).build());
    let configuration = match configuration {
        Ok(configuration) => configuration,
        Err(error) => return step(what, StepOutcome::Failed, error.to_string()),
    };
    let request = admin.client().put_bucket_lifecycle_configuration().bucket(admin.bucket());
    let request = request.lifecycle_configuration(configuration);
    let request = request.set_transition_default_minimum_object_size(smallest);
    let answer = request.customize().mutate_request(add_content_md5).send().quietly().await;
    let done = set(what, answer.map(drop).map_err(Failed::from), name, detail);
    if done.outcome == StepOutcome::Done { read_back(admin, &rules, done).await } else { done }
}

/// The rules that were there must be there as they were.
async fn read_back(admin: &S3Admin, before: &[LifecycleRule], done: BucketStep) -> BucketStep {
    let failed = |why: String| step(done.what, StepOutcome::Failed, why);
    let after = match settings::lifecycle(admin).await {
        Setting::Is(lifecycle) => lifecycle.rules,
        Setting::NotOffered(why) | Setting::Unknown(why) => {
            return failed(format!("set, and the rules cannot be read back: {why}"));
        }
        Setting::Unset => Vec::new(),
    };
    let lost = lifecycle::lost(before, &after, admin.root());
    if !lost.is_empty() {
        return failed(format!("set, and the store shows other rules changed: {}", lost.join(", ")));
    }
    if lifecycle::aborts_after(&after, admin.root()).is_none() {
        return failed("the store took the rule and does not show it".to_owned());
    }
    done
}

async fn set_public_access(admin: &S3Admin, commit: bool) -> BucketStep {
    let (what, name) = (Aspect::PublicAccess, "block of public access");
    let setting = settings::public_access(admin).await;
    match &setting {
        Setting::Is(block) if blocks(block) == 4 => {
            return step(what, StepOutcome::AlreadySo, "all four ways are blocked");
        }
        Setting::Is(_) | Setting::Unset => {}
        Setting::NotOffered(_) | Setting::Unknown(_) => return unset(what, &setting, name),
    }
    let detail = "all four ways to make objects public are blocked".to_owned();
    if !commit {
        return step(what, StepOutcome::Would, detail);
    }
    let block = PublicAccessBlockConfiguration::builder()
        .block_public_acls(true)
        .ignore_public_acls(true)
        .block_public_policy(true)
        .restrict_public_buckets(true)
        .build();
    let request = admin.client().put_public_access_block().bucket(admin.bucket());
    let request = request.public_access_block_configuration(block).customize();
    let answer = request.mutate_request(add_content_md5).send().quietly().await;
    set(what, answer.map(drop).map_err(Failed::from), name, detail)
}

async fn set_encryption(admin: &S3Admin, sse: &Sse, commit: bool) -> BucketStep {
    let (what, name) = (Aspect::Encryption, "encryption by default");
    let setting = settings::encryption(admin).await;
    match &setting {
        Setting::Is(how) => return step(what, StepOutcome::AlreadySo, encrypted(how)),
        Setting::Unset => {}
        Setting::NotOffered(_) | Setting::Unknown(_) => return unset(what, &setting, name),
    }
    let by_default = ServerSideEncryptionByDefault::builder();
    let by_default = match sse {
        Sse::Kms(key) => {
            by_default.sse_algorithm(ServerSideEncryption::AwsKms).set_kms_master_key_id(key.clone())
        }
        Sse::Bucket | Sse::S3 | Sse::CustomerKey(_) => by_default.sse_algorithm(ServerSideEncryption::Aes256),
    };
    let by_default = match by_default.build() {
        Ok(by_default) => by_default,
        Err(error) => return step(what, StepOutcome::Failed, error.to_string()),
    };
    let detail = format!("objects are encrypted by {}", encrypted(&by_default));
    if !commit {
        return step(what, StepOutcome::Would, detail);
    }
    let rule =
        ServerSideEncryptionRule::builder().apply_server_side_encryption_by_default(by_default).build();
    let configuration = match ServerSideEncryptionConfiguration::builder().rules(rule).build() {
        Ok(configuration) => configuration,
        Err(error) => return step(what, StepOutcome::Failed, error.to_string()),
    };
    let request = admin.client().put_bucket_encryption().bucket(admin.bucket());
    let request = request.server_side_encryption_configuration(configuration).customize();
    let answer = request.mutate_request(add_content_md5).send().quietly().await;
    set(what, answer.map(drop).map_err(Failed::from), name, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_store_shows_and_does_not_take_is_not_offered() {
        let refused = |status| Failed::Refused { status, code: "Code".to_owned(), message: String::new() };
        let outcome =
            |status| set(Aspect::Encryption, Err(refused(status)), "encryption", String::new()).outcome;
        assert_eq!((outcome(501), outcome(403)), (StepOutcome::NotOffered, StepOutcome::Failed));
    }
}
