//! One part, one PUT: create-only, tried a bounded number of times, its unknown outcomes read back (I21).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use stash_blob::{BlobError, BlobStore, PutOutcome};
use stash_part::EncodedPart;
use stash_types::{BlobKey, Digest, PartKey};

use crate::{BatchError, sync};

/// Uploads `part` under `key`, which its owner has entered in the ledger before.
pub(crate) async fn put_part(
    store: &Arc<dyn BlobStore>,
    key: PartKey,
    part: &EncodedPart,
    attempts_max: u32,
) -> Result<(), BatchError> {
    let blob = BlobKey::from(key);
    retrying("put", key, attempts_max, || try_put(store, &blob, &part.chunks, part.len, part.digest)).await?;
    Ok(())
}

/// Tries an operation on `key` up to `attempts_max` times, as long as the type of its error allows once more.
pub(crate) async fn retrying<T, F>(
    op: &'static str,
    key: PartKey,
    attempts_max: u32,
    mut work: impl FnMut() -> F,
) -> Result<T, BlobError>
where
    F: Future<Output = Result<T, BlobError>>,
{
    let mut attempt = 1;
    loop {
        match work().await {
            Err(error) if attempt < attempts_max && worth_another_try(&error) => {
                tracing::warn!(%key, attempt, %error, "{op} failed, trying again");
                sync::sleep(pause(attempt)).await;
                attempt += 1;
            }
            done => return done,
        }
    }
}

async fn try_put(
    store: &Arc<dyn BlobStore>,
    key: &BlobKey,
    chunks: &[Bytes],
    len: u64,
    digest: Digest,
) -> Result<(), BlobError> {
    match store.put_new(key, chunks.to_vec()).await {
        Ok(PutOutcome::Created) => Ok(()),
        // SUBTLE: keys are fresh (I19), so what stands there is this part's own earlier try, whose answer was
        // lost. Whoever is of another opinion has other bytes, and is told apart by them.
        Ok(PutOutcome::Exists) => match holds(store, key, len, digest).await? {
            true => Ok(()),
            false => Err(BlobError::Determinate {
                op: "put",
                key: key.to_string(),
                what: "another object stands under this key: keys are written once, so someone else writes \
                       into this stash's prefix"
                    .to_owned(),
                retry: false,
                source: None,
            }),
        },
        Err(error @ BlobError::Indeterminate { .. }) => match holds(store, key, len, digest).await {
            Ok(true) => Ok(()),
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
}

async fn holds(
    store: &Arc<dyn BlobStore>,
    key: &BlobKey,
    len: u64,
    digest: Digest,
) -> Result<bool, BlobError> {
    match store.get(key, len).await {
        Ok(bytes) => Ok(Digest::of(&bytes) == digest),
        Err(BlobError::NotFound { .. }) => Ok(false),
        Err(BlobError::Determinate { retry: false, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the error's type allows the same create-only PUT, or the same read, once more.
fn worth_another_try(error: &BlobError) -> bool {
    match error {
        BlobError::NotFound { .. } => false,
        BlobError::Determinate { retry, .. } => *retry,
        BlobError::Indeterminate { .. } => true,
    }
}

/// How long to wait before the next try: 50 ms, doubling, at most 3.2 s.
fn pause(attempt: u32) -> Duration {
    Duration::from_millis(50 << attempt.saturating_sub(1).min(6))
}
