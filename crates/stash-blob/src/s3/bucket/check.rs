//! Looking at a bucket: what each setting means for a stash.

use aws_sdk_s3::types::{
    BucketVersioningStatus, PublicAccessBlockConfiguration, ServerSideEncryptionByDefault,
};

use super::{
    Aspect, BucketItem, BucketReport, Standing, access, item, lifecycle, policy,
    settings::{self, Lifecycle, Setting},
};
use crate::s3::{S3Admin, S3Config};

/// Looks how the bucket of `config` stands. Changes nothing.
pub async fn check_bucket(config: &S3Config) -> BucketReport {
    let admin = S3Admin::new(config).await;
    let endpoint = config.endpoint.clone();
    let location = config.location();
    if let Err(failed) = access(&admin).await {
        let detail =
            if failed.is_no_bucket() { "there is no such bucket".to_owned() } else { failed.to_string() };
        let items = vec![item(Aspect::Access, Standing::Bad, detail)];
        return BucketReport { location, endpoint, items };
    }
    let lifecycle = settings::lifecycle(&admin).await;
    let mut items = vec![
        item(Aspect::Access, Standing::Good, "it is there, and may be listed"),
        aborts_uploads(&lifecycle, admin.root()),
        keeps_objects(&lifecycle, admin.root()),
        public_access(&admin).await,
        encryption(&admin).await,
    ];
    items.push(versions(settings::versions(&admin).await, &lifecycle, admin.root()));
    items.push(object_lock(settings::object_lock(&admin).await));
    items.push(tls_only(settings::policy(&admin).await, config));
    BucketReport { location, endpoint, items }
}

/// Where a setting is missing as such, or not to be seen.
fn unseen<T>(what: Aspect, setting: &Setting<T>) -> BucketItem {
    match setting {
        Setting::NotOffered(said) => {
            item(what, Standing::NotOffered, format!("the store has it not ({said})"))
        }
        Setting::Unknown(why) => item(what, Standing::Unknown, why.clone()),
        Setting::Is(_) | Setting::Unset => item(what, Standing::Unknown, ""),
    }
}

fn aborts_uploads(lifecycle: &Setting<Lifecycle>, root: &str) -> BucketItem {
    let what = Aspect::AbortsUploads;
    let Setting::Is(Lifecycle { rules, .. }) = lifecycle else { return unseen(what, lifecycle) };
    match lifecycle::aborts_after(rules, root) {
        Some(days) => item(what, Standing::Good, format!("after {days} days")),
        None => item(what, Standing::Warn, "no rule aborts them").advising(
            "what is left of an upload is stored and paid for: stash-admin bucket init sets a rule",
        ),
    }
}

fn keeps_objects(lifecycle: &Setting<Lifecycle>, root: &str) -> BucketItem {
    let what = Aspect::KeepsObjects;
    let Setting::Is(Lifecycle { rules, .. }) = lifecycle else { return unseen(what, lifecycle) };
    let taken = lifecycle::takes(rules, root);
    if taken.is_empty() {
        return item(what, Standing::Good, counted(rules.len()));
    }
    item(what, Standing::Bad, taken.join("; "))
        .advising("parts live until every consumer has read them: let the rule leave out this prefix")
}

fn counted(rules: usize) -> String {
    match rules {
        0 => "there are no lifecycle rules".to_owned(),
        1 => "1 lifecycle rule looked at".to_owned(),
        rules => format!("{rules} lifecycle rules looked at"),
    }
}

pub(super) fn blocks(block: &PublicAccessBlockConfiguration) -> usize {
    let all = [
        block.block_public_acls(),
        block.ignore_public_acls(),
        block.block_public_policy(),
        block.restrict_public_buckets(),
    ];
    all.into_iter().filter(|&block| block == Some(true)).count()
}

async fn public_access(admin: &S3Admin) -> BucketItem {
    let what = Aspect::PublicAccess;
    let setting = settings::public_access(admin).await;
    let seen = match &setting {
        Setting::Is(block) if blocks(block) == 4 => return item(what, Standing::Good, "all four ways"),
        Setting::Is(block) => format!("{} of four ways are blocked", blocks(block)),
        Setting::Unset => "nothing is blocked".to_owned(),
        Setting::NotOffered(_) | Setting::Unknown(_) => return unseen(what, &setting),
    };
    if let Setting::Is(true) = settings::is_public(admin).await {
        return item(what, Standing::Bad, format!("the policy lets everybody in, and {seen}"))
            .advising("change the policy, then stash-admin bucket init");
    }
    item(what, Standing::Warn, seen).advising("stash-admin bucket init blocks it")
}

async fn encryption(admin: &S3Admin) -> BucketItem {
    let what = Aspect::Encryption;
    match settings::encryption(admin).await {
        Setting::Is(how) => item(what, Standing::Good, encrypted(&how)),
        Setting::Unset => item(what, Standing::Warn, "not encrypted unless a request says so")
            .advising("stash-admin bucket init sets it, or sse=s3 in the URL"),
        setting => unseen(what, &setting),
    }
}

pub(super) fn encrypted(how: &ServerSideEncryptionByDefault) -> String {
    match how.kms_master_key_id() {
        None => how.sse_algorithm().as_str().to_owned(),
        Some(key) => format!("{} with key {key}", how.sse_algorithm().as_str()),
    }
}

fn versions(
    setting: Setting<BucketVersioningStatus>,
    lifecycle: &Setting<Lifecycle>,
    root: &str,
) -> BucketItem {
    let what = Aspect::Versions;
    match setting {
        Setting::Unset => item(what, Standing::Good, "deleted bytes are gone"),
        Setting::Is(BucketVersioningStatus::Suspended) => item(
            what,
            Standing::Warn,
            "suspended: versions from before are still there, and deletions leave markers",
        )
        .advising(forgetting(root)),
        Setting::Is(_) => {
            let days = match lifecycle {
                Setting::Is(lifecycle) => lifecycle::forgets_after(&lifecycle.rules, root),
                _ => None,
            };
            match days {
                Some(days) => item(
                    what,
                    Standing::Warn,
                    format!("on: deleted bytes stay {days} days more, and are paid for"),
                ),
                None => item(what, Standing::Warn, "on: deleted bytes stay for ever, and are paid for")
                    .advising(forgetting(root)),
            }
        }
        Setting::NotOffered(_) => item(what, Standing::Good, "the store has no versions"),
        Setting::Unknown(why) => item(what, Standing::Unknown, why),
    }
}

/// The rule that removes what deletions leave.
fn forgetting(root: &str) -> String {
    let filter = serde_json::json!({ "Prefix": root });
    format!(
        "a lifecycle rule removes them: {{\"Filter\":{filter},\"NoncurrentVersionExpiration\":{{\"NoncurrentDays\":1}},\
         \"Expiration\":{{\"ExpiredObjectDeleteMarker\":true}}}}"
    )
}

fn object_lock(setting: Setting<String>) -> BucketItem {
    let what = Aspect::ObjectLock;
    match setting {
        Setting::Is(how) => item(what, Standing::Warn, how)
            .advising("locked parts cannot be deleted before their time: use a bucket without a lock"),
        Setting::Unset => item(what, Standing::Good, "off"),
        Setting::NotOffered(_) => item(what, Standing::Good, "the store has no object lock"),
        Setting::Unknown(why) => item(what, Standing::Unknown, why),
    }
}

fn tls_only(setting: Setting<String>, config: &S3Config) -> BucketItem {
    let what = Aspect::TlsOnly;
    let plain = config.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http:"));
    let deny = "a policy that denies s3:* to everybody where aws:SecureTransport is false";
    match setting {
        Setting::Is(policy) if policy::denies_plain(&policy) == Some(true) => {
            item(what, Standing::Good, "the policy denies anything else")
        }
        Setting::Is(_) | Setting::Unset if plain => {
            item(what, Standing::Warn, "this endpoint is spoken to in the clear")
                .advising("use an https endpoint")
        }
        Setting::Is(_) => item(what, Standing::Warn, "the policy allows plain connections").advising(deny),
        Setting::Unset => item(what, Standing::Warn, "there is no policy").advising(deny),
        setting => unseen(what, &setting),
    }
}

#[cfg(test)]
mod tests;
