//! One part, one PUT: create-only, tried a bounded number of times, its unknown outcomes asked for again (I21).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use stash_blob::{BlobError, BlobStore, PutOutcome};
use stash_part::EncodedPart;
use stash_types::{BlobKey, Digest, PartKey};

use crate::{BatchError, SinkMeters, meters::BlobOp, sync};

/// Uploads `part` under `key`, which its owner has entered in the ledger before.
pub(crate) async fn put_part(
    store: &Arc<dyn BlobStore>,
    meters: &SinkMeters,
    key: PartKey,
    part: &EncodedPart,
    attempts_max: u32,
) -> Result<(), BatchError> {
    let blob = BlobKey::from(key);
    let put = || try_put(store, &blob, &part.chunks, part.len, part.digest);
    retrying(BlobOp::Put, meters, key, attempts_max, put).await?;
    Ok(())
}

/// Tries an operation on `key` up to `attempts_max` times, as long as the type of its error allows once more.
pub(crate) async fn retrying<T, F>(
    op: BlobOp,
    meters: &SinkMeters,
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
                meters.retried(op);
                let sink = meters.name();
                tracing::warn!(sink, %key, attempt, %error, "{} failed, trying again", op.word());
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
    // SUBTLE: whether a PUT of unknown outcome landed is not found out by looking: a file whose folder failed to sync can
    // be read, and is gone after a power loss. The next try asks once more: a create-only PUT says "exists" only of
    // what is durable.
    match store.put_new(key, chunks.to_vec()).await? {
        PutOutcome::Created => Ok(()),
        // SUBTLE: keys are fresh (I19), so what stands there is this part's own earlier try, whose answer was
        // lost. Whoever is of another opinion has other bytes, and is told apart by them.
        PutOutcome::Exists => match holds(store, key, len, digest).await? {
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
        BlobError::NotFound { .. } | BlobError::Denied { .. } => false,
        BlobError::Determinate { retry, .. } => *retry,
        BlobError::Indeterminate { .. } => true,
    }
}

/// How long to wait before the next try: 50 ms, doubling, at most 3.2 s.
fn pause(attempt: u32) -> Duration {
    Duration::from_millis(50 << attempt.saturating_sub(1).min(6))
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::{
        ops::Range,
        sync::atomic::{AtomicBool, AtomicU32, Ordering},
    };

    use futures::stream::BoxStream;
    use stash_blob::{BlobEntry, Deleted, ObjectBlobs};
    use stash_types::{BlobPrefix, PartName};

    use super::*;
    use crate::{
        IncarnationSpec, Meters,
        process::tests::{description, incarnation},
    };

    /// A store whose first PUT lands where it can be read, and whose sync then fails.
    #[derive(Debug)]
    struct Unsynced {
        inner: ObjectBlobs,
        puts: AtomicU32,
        durable: AtomicBool,
    }

    #[async_trait::async_trait]
    impl BlobStore for Unsynced {
        fn location(&self) -> String {
            self.inner.location()
        }

        async fn put_new(&self, key: &BlobKey, chunks: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
            let first = self.puts.fetch_add(1, Ordering::Relaxed) == 0;
            let landed = self.inner.put_new(key, chunks).await?;
            if first {
                let what = "the folder failed to sync".to_owned();
                return Err(BlobError::Indeterminate { op: "put", key: key.to_string(), what, source: None });
            }
            self.durable.store(true, Ordering::Relaxed);
            Ok(landed)
        }

        async fn get_range(&self, key: &BlobKey, range: Range<u64>) -> Result<Bytes, BlobError> {
            self.inner.get_range(key, range).await
        }

        async fn get(&self, key: &BlobKey, len_max: u64) -> Result<Bytes, BlobError> {
            self.inner.get(key, len_max).await
        }

        async fn head(&self, key: &BlobKey) -> Result<Option<u64>, BlobError> {
            self.inner.head(key).await
        }

        async fn delete(&self, keys: &[BlobKey]) -> Vec<Deleted> {
            self.inner.delete(keys).await
        }

        async fn abort_upload(&self, key: &BlobKey, token: &str) -> Result<(), BlobError> {
            self.inner.abort_upload(key, token).await
        }

        fn list(&self, prefix: BlobPrefix) -> BoxStream<'_, Result<BlobEntry, BlobError>> {
            self.inner.list(prefix)
        }
    }

    #[tokio::test]
    async fn a_part_that_can_be_read_but_failed_to_sync_is_put_again_before_it_counts() {
        let inner = ObjectBlobs::memory();
        let unsynced = Arc::new(Unsynced { inner, puts: AtomicU32::new(0), durable: AtomicBool::new(false) });
        let store: Arc<dyn BlobStore> = Arc::<Unsynced>::clone(&unsynced);
        let (key, bytes) = (BlobKey::stash_json(), Bytes::from_static(b"part"));
        let digest = Digest::of(&bytes);
        let tried = || try_put(&store, &key, std::slice::from_ref(&bytes), 4, digest);
        assert!(
            matches!(tried().await, Err(BlobError::Indeterminate { .. })),
            "it may be gone after a power loss"
        );
        tried().await.expect("the second PUT is answered");
        assert!(unsynced.durable.load(Ordering::Relaxed));
    }

    fn failed(retry: bool) -> BlobError {
        let what = "the store failed".to_owned();
        BlobError::Determinate { op: "put", key: "k".to_owned(), what, retry, source: None }
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_tried_so_many_times_and_only_where_that_may_help() {
        let IncarnationSpec { shard, incarnation, .. } = incarnation();
        let description = description(3, 9);
        let key = PartName { incarnation, description, process: 0, n: 0 }.under(shard);
        let meters = Meters::new().of(shard);
        // Fails with these errors, then works: how often it was tried, and whether it worked in the end.
        let tried = async |errors: Vec<BlobError>| {
            let (mut errors, mut tries) = (errors.into_iter(), 0);
            let work = || {
                tries += 1;
                std::future::ready(errors.next().map_or(Ok(()), Err))
            };
            let done = retrying(BlobOp::Put, &meters, key, 3, work).await;
            (tries, done.is_ok())
        };
        let unknown = || BlobError::Indeterminate {
            op: "put",
            key: "k".to_owned(),
            what: "no answer".to_owned(),
            source: None,
        };
        assert_eq!(tried(vec![]).await, (1, true));
        let begun = tokio::time::Instant::now();
        assert_eq!(tried(vec![failed(true), unknown()]).await, (3, true));
        assert_eq!(begun.elapsed(), pause(1) + pause(2));
        assert_eq!(tried(vec![failed(true), failed(true), failed(true)]).await, (3, false));
        assert_eq!(tried(vec![failed(false)]).await, (1, false));
        let gone = BlobError::NotFound { op: "get", key: "k".to_owned() };
        assert_eq!(tried(vec![gone]).await, (1, false));
    }

    #[tokio::test]
    async fn what_stands_under_the_key_is_an_earlier_try_only_if_it_is_the_same() {
        let store: Arc<dyn BlobStore> = Arc::new(ObjectBlobs::memory());
        let (key, bytes) = (BlobKey::stash_json(), Bytes::from_static(b"part"));
        let put = async |bytes: Bytes| {
            let (len, digest) = (bytes.len() as u64, Digest::of(&bytes));
            try_put(&store, &key, &[bytes], len, digest).await
        };
        put(bytes.clone()).await.expect("created");
        put(bytes).await.expect("it is its own");
        for other in [&b"trap"[..], b"par", b"longer part"] {
            let error = put(Bytes::copy_from_slice(other)).await.expect_err("another's");
            assert!(
                matches!(&error, BlobError::Determinate { retry: false, what, .. } if what.contains("another object")),
                "{error}"
            );
        }
    }

    #[test]
    fn pauses_double_up_to_a_limit() {
        let pauses = [1, 2, 3, 6, 7, 8, u32::MAX].map(|attempt| pause(attempt).as_millis());
        assert_eq!(pauses, [50, 100, 200, 1600, 3200, 3200, 3200]);
    }
}
