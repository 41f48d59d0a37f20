//! Whether a bucket is set up for a stash, and setting it up.
//!
//! [`check_bucket`] looks, and changes nothing. [`init_bucket`] says what it would set, and sets it when told to: a
//! lifecycle rule that aborts what was left of uploads, a block of public access, encryption by default. It only adds: rules
//! of others stay as they are, which is read back and compared, and what is set already is not touched.
//!
//! - A store without a setting is no failure: *the store has no …*.
//! - Rules are read and written through the SDK. What a store's own extensions say in a rule is not known to it, so where
//!   other rules would come back changed, nothing can be promised but that it is said.
//! - Nothing is ever deleted or switched off here. A store may take a request it does not know for one about the bucket
//!   itself, so that deleting one setting would delete the bucket.

mod check;
mod init;
mod lifecycle;
mod policy;
mod settings;

use serde::{Deserialize, Serialize};

pub use check::check_bucket;
pub use init::init_bucket;

use super::{S3Admin, failed::Failed, quiet::Quietly};

/// What is looked at in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aspect {
    /// It is there, and these credentials may list below the prefix.
    Access,
    /// A lifecycle rule aborts uploads that nobody completed.
    AbortsUploads,
    /// No lifecycle rule takes objects of the stash.
    KeepsObjects,
    /// Nobody can make objects public.
    PublicAccess,
    /// Objects are encrypted that do not say how.
    Encryption,
    /// Old versions of deleted objects are not kept.
    Versions,
    /// Objects cannot be locked.
    ObjectLock,
    /// Requests must come over TLS.
    TlsOnly,
}

impl Aspect {
    /// What is looked at, in words.
    pub fn words(self) -> &'static str {
        match self {
            Aspect::Access => "the bucket can be used",
            Aspect::AbortsUploads => "left uploads are aborted",
            Aspect::KeepsObjects => "no rule takes objects",
            Aspect::PublicAccess => "public access is blocked",
            Aspect::Encryption => "encrypted by default",
            Aspect::Versions => "no versions are kept",
            Aspect::ObjectLock => "objects are not locked",
            Aspect::TlsOnly => "TLS only",
        }
    }
}

/// How an aspect stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// As it should be.
    Good,
    /// A stash works, at a cost or a risk that is named.
    Warn,
    /// A stash loses data here, or does not work.
    Bad,
    /// The store has no such setting.
    NotOffered,
    /// It could not be found out.
    Unknown,
}

/// One aspect of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketItem {
    /// What was looked at.
    pub what: Aspect,
    /// How it stands.
    pub standing: Standing,
    /// What was seen.
    pub detail: String,
    /// What to do, where something is to be done.
    pub advice: Option<String>,
}

/// How a bucket stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketReport {
    /// Where the stash is or will be.
    pub location: String,
    /// The endpoint that was spoken to; `None`: the region's own.
    pub endpoint: Option<String>,
    /// What was looked at, in order.
    pub items: Vec<BucketItem>,
}

impl BucketReport {
    /// Whether a stash can live there: nothing is bad.
    pub fn is_sound(&self) -> bool {
        self.items.iter().all(|item| item.standing != Standing::Bad)
    }
}

/// What became, or would become, of one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepOutcome {
    /// It is so already.
    AlreadySo,
    /// It would be set.
    Would,
    /// It is set now.
    Done,
    /// The store has no such setting.
    NotOffered,
    /// It could not be set.
    Failed,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketStep {
    /// Which.
    pub what: Aspect,
    /// What became of it.
    pub outcome: StepOutcome,
    /// What is, would be or was set, or why not.
    pub detail: String,
}

/// What setting up a bucket did, or would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketPlan {
    /// Where the stash is or will be.
    pub location: String,
    /// The endpoint that was spoken to; `None`: the region's own.
    pub endpoint: Option<String>,
    /// Whether it was done, or only planned.
    pub committed: bool,
    /// The settings, in order.
    pub steps: Vec<BucketStep>,
}

impl BucketPlan {
    /// Whether nothing failed.
    pub fn is_done(&self) -> bool {
        self.steps.iter().all(|step| step.outcome != StepOutcome::Failed)
    }
}

fn item(what: Aspect, standing: Standing, detail: impl Into<String>) -> BucketItem {
    BucketItem { what, standing, detail: detail.into(), advice: None }
}

impl BucketItem {
    fn advising(self, advice: impl Into<String>) -> BucketItem {
        BucketItem { advice: Some(advice.into()), ..self }
    }
}

/// Whether the bucket is there, and may be listed below the prefix. A HEAD of the bucket would tell less of a refusal,
/// since it has no body.
async fn access(admin: &S3Admin) -> Result<(), Failed> {
    admin
        .client()
        .list_objects_v2()
        .bucket(admin.bucket())
        .prefix(admin.root())
        .max_keys(1)
        .send()
        .quietly()
        .await?;
    Ok(())
}
