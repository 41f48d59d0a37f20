//! The boundary every store implements.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{TryStreamExt, stream::BoxStream};
use stash_types::{BlobKey, BlobPrefix};

/// What became of a create-only PUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is durable, and this call created it.
    Created,
    /// The key was taken; the object there was not touched. It may be this caller's own earlier try:
    /// compare length and digest.
    Exists,
}

/// What became of one key of a delete.
#[derive(Debug)]
pub struct Deleted {
    /// The key.
    pub key: BlobKey,
    /// `Ok(true)`: it was there and is durably gone. `Ok(false)`: nothing was there (stores that cannot
    /// tell say `true`). `Err`: it may still be there; try again.
    pub outcome: Result<bool, BlobError>,
}

/// What a listing found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlobEntryKind {
    /// An object under a well-formed key.
    Object(BlobKey),
    /// An upload of this key that has not been published: a temp file or a multipart upload. `token` is
    /// the temp file's own name or the upload's id.
    Upload {
        /// The key it was to become.
        key: BlobKey,
        /// What tells it from other uploads of that key.
        token: String,
    },
    /// Something Stash did not write; the name below the prefix, for people.
    Foreign(String),
}

impl BlobEntryKind {
    /// The key that it has, or was to become.
    pub fn key(&self) -> Option<&BlobKey> {
        match self {
            BlobEntryKind::Object(key) | BlobEntryKind::Upload { key, .. } => Some(key),
            BlobEntryKind::Foreign(_) => None,
        }
    }

    /// The smallest folder to list that shows it.
    pub(crate) fn folder(&self) -> BlobPrefix {
        let part = self.key().and_then(BlobKey::part_key);
        part.map_or(BlobPrefix::All, |part| BlobPrefix::Incarnation(part.shard, part.name.incarnation))
    }
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobEntry {
    /// What it is.
    pub kind: BlobEntryKind,
    /// Its bytes.
    pub len: u64,
}

/// What went wrong, by what the caller may do next. Every error names the operation and the key.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BlobError {
    /// There is no object under the key.
    #[error("{op} {key}: no such object")]
    NotFound {
        /// The operation.
        op: &'static str,
        /// The key.
        key: String,
    },
    /// The store refuses this caller the operation, which surely had no effect. The same call fails until somebody
    /// grants it.
    ///
    /// A store that does not let a caller list may say this of an object that is not there, too: whether there is one
    /// is not for that caller to know.
    #[error("{op} {key}: denied: {what}")]
    Denied {
        /// The operation.
        op: &'static str,
        /// The key or folder.
        key: String,
        /// What to do about it.
        what: String,
        /// The store's own error.
        #[source]
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
    /// The operation surely had no effect.
    #[error("{op} {key}: {what}")]
    Determinate {
        /// The operation.
        op: &'static str,
        /// The key or folder.
        key: String,
        /// What happened and what to do about it.
        what: String,
        /// Whether the same call may succeed later without anybody's help.
        retry: bool,
        /// The store's own error.
        #[source]
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
    /// The operation may have had its effect: read back before deciding.
    #[error("{op} {key}: the outcome is unknown: {what}")]
    Indeterminate {
        /// The operation.
        op: &'static str,
        /// The key or folder.
        key: String,
        /// What happened.
        what: String,
        /// The store's own error.
        #[source]
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
}

/// A store of immutable objects below one prefix.
///
/// - A key is written at most once: PUTs are create-only.
/// - After `Ok` an effect is durable and seen by every later call of any process.
/// - Cancelling a call leaves its effect unknown, and never a torn object under a key.
#[async_trait]
pub trait BlobStore: Send + Sync + fmt::Debug {
    /// Where the store is, for people, without secrets.
    fn location(&self) -> String;

    /// Creates the object `key` from `chunks`, in order.
    async fn put_new(&self, key: &BlobKey, chunks: Vec<Bytes>) -> Result<PutOutcome, BlobError>;

    /// Reads exactly `range` of the object, in bytes. A shorter answer is an error, never a short read:
    /// `Determinate` if the object itself ends before `range.end`.
    async fn get_range(&self, key: &BlobKey, range: Range<u64>) -> Result<Bytes, BlobError>;

    /// The whole object, refused when longer than `len_max`.
    async fn get(&self, key: &BlobKey, len_max: u64) -> Result<Bytes, BlobError>;

    /// The object's length in bytes, or `None` when there is none.
    async fn head(&self, key: &BlobKey) -> Result<Option<u64>, BlobError>;

    /// Deletes each key, durably. An absent key is no error. One result per key, in the order given.
    async fn delete(&self, keys: &[BlobKey]) -> Vec<Deleted>;

    /// Abandons an unpublished upload that a listing showed.
    async fn abort_upload(&self, key: &BlobKey, token: &str) -> Result<(), BlobError>;

    /// Everything below `prefix`, in no order, unpublished uploads included. No entry that existed during
    /// the whole call is left out.
    fn list(&self, prefix: BlobPrefix) -> BoxStream<'_, Result<BlobEntry, BlobError>>;

    /// The lengths in bytes of some entries that listings showed, in the order given; `None` where one is gone. Needs no
    /// right but to list.
    ///
    /// As it stands here it lists their folders, all of them. A store that finds a few among many for less does.
    async fn look_again(&self, entries: &[BlobEntryKind]) -> Result<Vec<Option<u64>>, BlobError> {
        look_by_listing(|folder| self.list(folder), entries).await
    }
}

/// [`BlobStore::look_again`] by nothing but `list`, which is asked for every folder that holds one of `entries`, once.
pub async fn look_by_listing<'a>(
    list: impl Fn(BlobPrefix) -> BoxStream<'a, Result<BlobEntry, BlobError>>,
    entries: &[BlobEntryKind],
) -> Result<Vec<Option<u64>>, BlobError> {
    let mut lens: BTreeMap<&BlobEntryKind, Option<u64>> = entries.iter().map(|kind| (kind, None)).collect();
    let mut folders: BTreeSet<BlobPrefix> = entries.iter().map(BlobEntryKind::folder).collect();
    if folders.contains(&BlobPrefix::All) {
        folders = BTreeSet::from([BlobPrefix::All]);
    }
    for folder in folders {
        let mut listing = list(folder);
        while let Some(entry) = listing.try_next().await? {
            if let Some(len) = lens.get_mut(&entry.kind) {
                *len = Some(entry.len);
            }
        }
    }
    Ok(entries.iter().map(|kind| lens.get(kind).copied().flatten()).collect())
}

#[async_trait]
impl<S: BlobStore + ?Sized> BlobStore for Arc<S> {
    fn location(&self) -> String {
        S::location(self)
    }
    async fn put_new(&self, key: &BlobKey, chunks: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        S::put_new(self, key, chunks).await
    }
    async fn get_range(&self, key: &BlobKey, range: Range<u64>) -> Result<Bytes, BlobError> {
        S::get_range(self, key, range).await
    }
    async fn get(&self, key: &BlobKey, len_max: u64) -> Result<Bytes, BlobError> {
        S::get(self, key, len_max).await
    }
    async fn head(&self, key: &BlobKey) -> Result<Option<u64>, BlobError> {
        S::head(self, key).await
    }
    async fn delete(&self, keys: &[BlobKey]) -> Vec<Deleted> {
        S::delete(self, keys).await
    }
    async fn abort_upload(&self, key: &BlobKey, token: &str) -> Result<(), BlobError> {
        S::abort_upload(self, key, token).await
    }
    fn list(&self, prefix: BlobPrefix) -> BoxStream<'_, Result<BlobEntry, BlobError>> {
        S::list(self, prefix)
    }
    async fn look_again(&self, entries: &[BlobEntryKind]) -> Result<Vec<Option<u64>>, BlobError> {
        S::look_again(self, entries).await
    }
}
