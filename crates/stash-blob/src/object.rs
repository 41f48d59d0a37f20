//! The boundary over any `object_store`: memory and S3 through the same code.
//!
//! - PUTs are create-only (`PutMode::Create`) and hand the chunks over without copying them.
//! - A body that is shorter or longer than what was asked for is an error, whatever the store says.
//! - For writes, only what the store *refused by name* is `Determinate`; timeouts, 5xx and whatever it cannot
//!   classify are `Indeterminate`. Reads have no effect, so theirs are `Determinate`, with `retry` where the
//!   cause may pass. A layer below that knows more says so by a [`Verdict`].
//! - Unpublished multipart uploads are not visible through `object_store`: it lists none and aborts none.
//!   A PUT here is one request, so it leaves none either.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    sync::Arc,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use object_store::{
    Error, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    memory::InMemory, path::Path,
};
use stash_types::{BlobKey, BlobPrefix};

use crate::{
    BlobEntry, BlobEntryKind, BlobError, BlobStore, Deleted, PutOutcome,
    store::look_by_listing,
    verdict::{Means, PartlyDone, Verdict},
};

/// How many keys one request deletes at most, in the stores that delete many at once.
const DELETES_MAX: usize = 1000;

/// Objects below a prefix of an `object_store`.
#[derive(Clone)]
pub struct ObjectBlobs {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    location: String,
}

impl ObjectBlobs {
    /// Drives `store` below `prefix`; `location` is what people are shown, without secrets.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path, location: impl Into<String>) -> ObjectBlobs {
        ObjectBlobs { store, prefix, location: location.into() }
    }

    /// An empty store in this process's memory. Clones share its objects.
    pub fn memory() -> ObjectBlobs {
        ObjectBlobs::new(Arc::new(InMemory::new()), Path::default(), "memory")
    }

    /// What `name`, a location below the prefix, is called and whether it is a key of ours.
    pub(crate) fn kind(name: &str) -> BlobEntryKind {
        match name.parse() {
            Ok(key) => BlobEntryKind::Object(key),
            Err(_) => BlobEntryKind::Foreign(name.to_owned()),
        }
    }

    pub(crate) fn path(&self, op: &'static str, key: &BlobKey) -> Result<Path, BlobError> {
        self.location_of(op, key.as_str())
    }

    fn location_of(&self, op: &'static str, name: &str) -> Result<Path, BlobError> {
        Path::parse(self.below(name)).map_err(|error| read_error(op, name, error.into()))
    }

    fn folder(&self, prefix: BlobPrefix) -> Result<Path, BlobError> {
        let path = Path::parse(self.below(prefix.to_string().trim_end_matches('/')));
        path.map_err(|error| unlisted(prefix, error.into()))
    }

    fn below(&self, name: &str) -> String {
        if self.prefix.as_ref().is_empty() { name.to_owned() } else { format!("{}/{name}", self.prefix) }
    }

    fn entry(&self, location: &Path, len: u64) -> BlobEntry {
        let whole = location.as_ref();
        let name = whole.strip_prefix(self.prefix.as_ref()).unwrap_or(whole).trim_start_matches('/');
        BlobEntry { kind: ObjectBlobs::kind(name), len }
    }

    /// The parts of `entries` that listings show which begin at the first of them in each folder and end behind the last.
    async fn look_along(&self, entries: &[BlobEntryKind]) -> Result<BTreeMap<BlobEntryKind, u64>, BlobError> {
        let mut folders: BTreeMap<BlobPrefix, BTreeSet<&BlobKey>> = BTreeMap::new();
        for kind in entries {
            if let (BlobEntryKind::Object(key), folder @ BlobPrefix::Incarnation(..)) = (kind, kind.folder())
            {
                folders.entry(folder).or_default().insert(key);
            }
        }
        let mut found = BTreeMap::new();
        for (prefix, mut wanted) in folders {
            let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { continue };
            // The name a character shorter stands before the name, and hardly anything stands between.
            let before = first.as_str().split_at(first.as_str().len().saturating_sub(1)).0;
            let (folder, before) = (self.folder(prefix)?, self.location_of("list", before)?);
            let last = self.path("list", last)?;
            let mut listing = self.store.list_with_offset(Some(&folder), &before);
            while !wanted.is_empty()
                && let Some(meta) = listing.try_next().await.map_err(|error| unlisted(prefix, error))?
                && meta.location <= last
            {
                let entry = self.entry(&meta.location, meta.size);
                if let BlobEntryKind::Object(key) = &entry.kind
                    && wanted.remove(key)
                {
                    found.insert(entry.kind, entry.len);
                }
            }
        }
        Ok(found)
    }

    /// What a refusal of a taken key means.
    pub(crate) async fn taken(
        &self,
        key: &BlobKey,
        path: &Path,
        error: Error,
    ) -> Result<PutOutcome, BlobError> {
        // SUBTLE: some stores answer "conflict" when two PUTs merely overlap, and nothing may have landed yet. Only
        // an object that is there proves that the key is taken.
        match self.store.head(path).await {
            Ok(_) => Ok(PutOutcome::Exists),
            Err(_) => Err(BlobError::Indeterminate {
                op: "put",
                key: key.to_string(),
                what: "the store says the key is taken, but shows no object: another PUT of it is under way"
                    .to_owned(),
                source: Some(Arc::new(error)),
            }),
        }
    }

    /// Creates the object where the store has no create-only PUT: a HEAD first, then a PUT that asks nothing.
    ///
    /// Two of these that overlap may both say `Created`, and the later one's bytes stay. Keys are fresh (I19), so
    /// whoever else writes one is no process of this stash.
    #[cfg(feature = "s3")]
    pub(crate) async fn put_looking_first(
        &self,
        key: &BlobKey,
        chunks: Vec<Bytes>,
    ) -> Result<PutOutcome, BlobError> {
        if self.head(key).await?.is_some() {
            return Ok(PutOutcome::Exists);
        }
        let path = self.path("put", key)?;
        let options = PutOptions::from(PutMode::Overwrite);
        let put = self.store.put_opts(&path, chunks.into_iter().collect::<PutPayload>(), options).await;
        put.map(|_| PutOutcome::Created).map_err(|error| write_error("put", key.as_str(), error))
    }

    /// Deletes up to [`DELETES_MAX`] keys.
    async fn delete_some(&self, keys: &[BlobKey]) -> Vec<Deleted> {
        let mut paths = Vec::with_capacity(keys.len());
        for key in keys {
            match self.path("delete", key) {
                Ok(path) => paths.push(path),
                Err(error) => return refuse_all(keys, &error),
            }
        }
        let asked: Vec<_> = paths.iter().cloned().map(Ok).collect();
        let answers: Vec<_> = self.store.delete_stream(stream::iter(asked).boxed()).collect().await;
        // SUBTLE: a bulk delete answers per key, and one failed request may answer once for a thousand keys. So only a
        // key that is named as deleted is deleted; all others may be there. Where every key has an answer they come in
        // the order of the keys, and an error is its key's own.
        let one_each = answers.len() == keys.len();
        let mut gone: BTreeMap<Path, bool> = BTreeMap::new();
        let mut failures: BTreeMap<usize, BlobError> = BTreeMap::new();
        let mut told: BTreeMap<String, Verdict> = BTreeMap::new();
        for (index, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(path) => drop(gone.insert(path, true)),
                Err(Error::NotFound { path, .. }) => drop(gone.insert(Path::from(path), false)),
                Err(error) => {
                    if let Some(partly) = PartlyDone::of(&error) {
                        gone.extend(partly.deleted.iter().map(|path| (Path::from(path.as_str()), true)));
                        told.extend(partly.failed.clone());
                    }
                    failures.insert(index, write_error("delete", "", error));
                }
            }
        }
        let shared = failures.values().next().cloned();
        keys.iter()
            .zip(&paths)
            .enumerate()
            .map(|(index, (key, path))| {
                let own = if one_each { failures.get(&index) } else { None };
                let outcome = gone.get(path).copied().ok_or_else(|| match told.get(path.as_ref()) {
                    Some(verdict) => verdict.writing("delete", key.to_string()),
                    None => unconfirmed(key, own.or(shared.as_ref())),
                });
                Deleted { key: key.clone(), outcome }
            })
            .collect()
    }

    /// Says why a range could not be read: the store's own errors do not tell the end of an object apart.
    async fn range_error(&self, key: &BlobKey, path: &Path, range: &Range<u64>, error: Error) -> BlobError {
        let refused = Verdict::of(&error).is_none_or(|verdict| verdict.means == Means::Refused);
        if !refused {
            return read_error("get", key.as_str(), error);
        }
        match (&error, self.store.head(path).await) {
            (Error::NotFound { .. }, _) => read_error("get", key.as_str(), error),
            (_, Ok(meta)) if meta.size < range.end => past_the_end(key, range, meta.size),
            _ => read_error("get", key.as_str(), error),
        }
    }
}

impl fmt::Debug for ObjectBlobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectBlobs").field(&self.location).finish()
    }
}

#[async_trait]
impl BlobStore for ObjectBlobs {
    fn location(&self) -> String {
        self.location.clone()
    }

    async fn put_new(&self, key: &BlobKey, chunks: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        let path = self.path("put", key)?;
        let options = PutOptions::from(PutMode::Create);
        match self.store.put_opts(&path, chunks.into_iter().collect::<PutPayload>(), options).await {
            Ok(_) => Ok(PutOutcome::Created),
            Err(error @ (Error::AlreadyExists { .. } | Error::Precondition { .. })) => {
                self.taken(key, &path, error).await
            }
            Err(error) => Err(write_error("put", key.as_str(), error)),
        }
    }

    async fn get_range(&self, key: &BlobKey, range: Range<u64>) -> Result<Bytes, BlobError> {
        if range.start >= range.end {
            // Stores refuse empty ranges; the boundary does not.
            let len = self.head(key).await?;
            let len = len.ok_or_else(|| BlobError::NotFound { op: "get", key: key.to_string() })?;
            let fits = range.start == range.end && range.end <= len;
            return if fits { Ok(Bytes::new()) } else { Err(past_the_end(key, &range, len)) };
        }
        let path = self.path("get", key)?;
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let answer = match self.store.get_opts(&path, options).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.range_error(key, &path, &range, error).await),
        };
        if answer.meta.size < range.end {
            return Err(past_the_end(key, &range, answer.meta.size));
        }
        exactly(key, answer, range.end - range.start).await
    }

    async fn get(&self, key: &BlobKey, len_max: u64) -> Result<Bytes, BlobError> {
        let path = self.path("get", key)?;
        let answer = self.store.get(&path).await.map_err(|error| read_error("get", key.as_str(), error))?;
        let len = answer.meta.size;
        if len > len_max {
            return Err(refusal(
                "get",
                key,
                format!("it has {len} bytes, more than the {len_max} allowed"),
                false,
            ));
        }
        exactly(key, answer, len).await
    }

    async fn head(&self, key: &BlobKey) -> Result<Option<u64>, BlobError> {
        let path = self.path("head", key)?;
        match self.store.head(&path).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(read_error("head", key.as_str(), error)),
        }
    }

    async fn delete(&self, keys: &[BlobKey]) -> Vec<Deleted> {
        let mut deleted = Vec::with_capacity(keys.len());
        for some in keys.chunks(DELETES_MAX) {
            deleted.extend(self.delete_some(some).await);
        }
        deleted
    }

    async fn abort_upload(&self, key: &BlobKey, token: &str) -> Result<(), BlobError> {
        let what = format!(
            "this store shows no uploads, so it cannot abort {token:?}: abort it where it was listed"
        );
        Err(refusal("abort upload", key, what, false))
    }

    fn list(&self, prefix: BlobPrefix) -> BoxStream<'_, Result<BlobEntry, BlobError>> {
        let folder = match self.folder(prefix) {
            Ok(folder) => folder,
            Err(error) => return stream::once(async move { Err(error) }).boxed(),
        };
        let below = (!folder.as_ref().is_empty()).then_some(&folder);
        let objects = self.store.list(below);
        objects
            .map_ok(|meta| self.entry(&meta.location, meta.size))
            .map_err(move |error| unlisted(prefix, error))
            .boxed()
    }

    async fn look_again(&self, entries: &[BlobEntryKind]) -> Result<Vec<Option<u64>>, BlobError> {
        let mut found = self.look_along(entries).await?;
        // Who was not found so is looked for in the whole folder: not every store lists in order, or from a name on.
        let rest: Vec<_> = entries.iter().filter(|kind| !found.contains_key(kind)).cloned().collect();
        let lens = look_by_listing(|folder| self.list(folder), &rest).await?;
        found.extend(rest.into_iter().zip(lens).filter_map(|(kind, len)| Some((kind, len?))));
        Ok(entries.iter().map(|kind| found.get(kind).copied()).collect())
    }
}

/// The body, if it has exactly `len` bytes. A body in one piece is not copied.
async fn exactly(key: &BlobKey, answer: GetResult, len: u64) -> Result<Bytes, BlobError> {
    let short = |got: u64| {
        refusal("get", key, format!("the store sent {got} bytes instead of {len}: a cut connection?"), true)
    };
    let mut body = answer.into_stream();
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut got = 0;
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|error| read_error("get", key.as_str(), error))?;
        got += piece.len() as u64;
        if got > len {
            return Err(short(got));
        }
        if first.is_empty() {
            first = piece;
        } else {
            if rest.is_empty() {
                rest.reserve(usize::try_from(len).unwrap_or(0));
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&piece);
        }
    }
    match got == len {
        true if rest.is_empty() => Ok(first),
        true => Ok(rest.freeze()),
        false => Err(short(got)),
    }
}

fn refusal(op: &'static str, key: &BlobKey, what: String, retry: bool) -> BlobError {
    BlobError::Determinate { op, key: key.to_string(), what, retry, source: None }
}

fn past_the_end(key: &BlobKey, range: &Range<u64>, len: u64) -> BlobError {
    refusal("get", key, format!("bytes {}..{} of an object of {len}", range.start, range.end), false)
}

fn unlisted(prefix: BlobPrefix, error: Error) -> BlobError {
    read_error("list", &format!("{prefix}*"), error)
}

fn refuse_all(keys: &[BlobKey], error: &BlobError) -> Vec<Deleted> {
    keys.iter().map(|key| Deleted { key: key.clone(), outcome: Err(error.clone()) }).collect()
}

/// The error of a key whose deletion the store did not confirm, as sure as the store's own error was.
fn unconfirmed(key: &BlobKey, failure: Option<&BlobError>) -> BlobError {
    let op = "delete";
    match failure.cloned() {
        Some(BlobError::Determinate { what, retry, source, .. }) => {
            BlobError::Determinate { op, key: key.to_string(), what, retry, source }
        }
        Some(BlobError::Denied { what, source, .. }) => {
            BlobError::Denied { op, key: key.to_string(), what, source }
        }
        Some(BlobError::Indeterminate { what, source, .. }) => {
            BlobError::Indeterminate { op, key: key.to_string(), what, source }
        }
        Some(BlobError::NotFound { .. }) | None => {
            let what = "the store did not confirm this key".to_owned();
            BlobError::Indeterminate { op, key: key.to_string(), what, source: None }
        }
    }
}

/// What a store refused by name: what to do about it. `None` for all that may pass by itself.
fn refused_by_name(error: &Error) -> Option<&'static str> {
    match error {
        Error::Unauthenticated { .. } => Some("the credentials are refused: renew them"),
        Error::InvalidPath { .. } => Some("the store cannot hold such a key"),
        Error::NotSupported { .. } | Error::NotImplemented { .. } => Some(
            "the store cannot do this: a Stash needs create-only PUTs, ranged GETs, deletes and listings",
        ),
        Error::UnknownConfigurationKey { .. } => Some("the store's configuration is wrong"),
        _ => None,
    }
}

pub(crate) fn read_error(op: &'static str, key: &str, error: Error) -> BlobError {
    let key = key.to_owned();
    if let Some(verdict) = Verdict::of(&error) {
        return verdict.reading(op, key);
    }
    match (refused_by_name(&error), error) {
        (_, Error::NotFound { .. }) => BlobError::NotFound { op, key },
        (_, error @ Error::PermissionDenied { .. }) => denied(op, key, error),
        (Some(what), error) => determinate(op, key, what, false, error),
        (None, error) => determinate(op, key, "the store failed: try again", true, error),
    }
}

pub(crate) fn write_error(op: &'static str, key: &str, error: Error) -> BlobError {
    let key = key.to_owned();
    if let Some(verdict) = Verdict::of(&error) {
        return verdict.writing(op, key);
    }
    match refused_by_name(&error) {
        _ if matches!(error, Error::PermissionDenied { .. }) => denied(op, key, error),
        Some(what) => determinate(op, key, what, false, error),
        None => {
            let what = "the store failed, perhaps after it had done it".to_owned();
            BlobError::Indeterminate { op, key, what, source: Some(Arc::new(error)) }
        }
    }
}

fn denied(op: &'static str, key: String, error: Error) -> BlobError {
    let what = "give these credentials access, see deploy/README.md; of what is not there a store says the same to \
                whom it does not let list";
    BlobError::Denied { op, key, what: what.to_owned(), source: Some(Arc::new(error)) }
}

fn determinate(op: &'static str, key: String, what: &str, retry: bool, error: Error) -> BlobError {
    BlobError::Determinate { op, key, what: what.to_owned(), retry, source: Some(Arc::new(error)) }
}

#[cfg(test)]
mod tests;
