//! A store whose operations are measured by sink.
#![deny(clippy::missing_trait_methods)]

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use stash_batch::{BlobOp, BlobOutcome, Meters, SinkMeters};
use stash_blob::{BlobEntry, BlobEntryKind, BlobError, BlobStore, Deleted, PutOutcome};
use stash_types::{BlobKey, BlobPrefix};

/// Entries that stores list with one request.
const ENTRIES_A_PAGE: u64 = 1000;

/// Measures what is asked of a store.
#[derive(Debug)]
pub struct MeteredStore {
    inner: Arc<dyn BlobStore>,
    meters: Meters,
}

impl MeteredStore {
    /// Measures `inner` from now on.
    pub fn new(inner: Arc<dyn BlobStore>, meters: Meters) -> MeteredStore {
        MeteredStore { inner, meters }
    }
}

fn outcome<T>(answer: &Result<T, BlobError>) -> BlobOutcome {
    answer.as_ref().map_or_else(BlobOutcome::of, |_| BlobOutcome::Ok)
}

fn len(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

#[async_trait]
impl BlobStore for MeteredStore {
    fn location(&self) -> String {
        self.inner.location()
    }

    async fn put_new(&self, key: &BlobKey, chunks: Vec<Bytes>) -> Result<PutOutcome, BlobError> {
        let (meters, bytes) = (self.meters.of_key(key), chunks.iter().map(len).sum());
        let begun = Instant::now();
        let answer = self.inner.put_new(key, chunks).await;
        let outcome = match &answer {
            Ok(PutOutcome::Created) => BlobOutcome::Ok,
            Ok(PutOutcome::Exists) => BlobOutcome::Exists,
            Err(error) => BlobOutcome::of(error),
        };
        meters.request(BlobOp::Put, outcome, 1, begun.elapsed());
        if outcome == BlobOutcome::Ok {
            meters.moved(BlobOp::Put, bytes);
        }
        answer
    }

    async fn get_range(&self, key: &BlobKey, range: Range<u64>) -> Result<Bytes, BlobError> {
        let begun = Instant::now();
        let answer = self.inner.get_range(key, range).await;
        got(&self.meters.of_key(key), &answer, begun.elapsed());
        answer
    }

    async fn get(&self, key: &BlobKey, len_max: u64) -> Result<Bytes, BlobError> {
        let begun = Instant::now();
        let answer = self.inner.get(key, len_max).await;
        got(&self.meters.of_key(key), &answer, begun.elapsed());
        answer
    }

    async fn head(&self, key: &BlobKey) -> Result<Option<u64>, BlobError> {
        let begun = Instant::now();
        let answer = self.inner.head(key).await;
        let outcome = match &answer {
            Ok(None) => BlobOutcome::NotFound,
            answered => outcome(answered),
        };
        self.meters.of_key(key).request(BlobOp::Head, outcome, 1, begun.elapsed());
        answer
    }

    async fn delete(&self, keys: &[BlobKey]) -> Vec<Deleted> {
        let begun = Instant::now();
        let deleted = self.inner.delete(keys).await;
        // One that failed tells more of the call than those that did not.
        let failed = deleted.iter().find_map(|deleted| deleted.outcome.as_ref().err());
        let outcome = failed.map_or(BlobOutcome::Ok, BlobOutcome::of);
        self.meters.of_keys(keys).request(BlobOp::Delete, outcome, 1, begun.elapsed());
        deleted
    }

    async fn abort_upload(&self, key: &BlobKey, token: &str) -> Result<(), BlobError> {
        let begun = Instant::now();
        let answer = self.inner.abort_upload(key, token).await;
        self.meters.of_key(key).request(BlobOp::Abort, outcome(&answer), 1, begun.elapsed());
        answer
    }

    fn list(&self, prefix: BlobPrefix) -> BoxStream<'_, Result<BlobEntry, BlobError>> {
        let listing = Listing::new(self.meters.of_prefix(prefix));
        let entries = self.inner.list(prefix);
        futures::stream::unfold(Some((entries, listing)), |state| async move {
            let (mut entries, mut listing) = state?;
            match entries.next().await {
                Some(entry) => {
                    listing.saw(&entry);
                    Some((entry, Some((entries, listing))))
                }
                None => None,
            }
        })
        .boxed()
    }

    async fn look_again(&self, entries: &[BlobEntryKind]) -> Result<Vec<Option<u64>>, BlobError> {
        let begun = Instant::now();
        let answer = self.inner.look_again(entries).await;
        // About: a store may need fewer, or more.
        let pages = u64::try_from(entries.len()).unwrap_or(u64::MAX).div_ceil(ENTRIES_A_PAGE);
        if pages > 0 {
            let meters = self.meters.of_keys(entries.iter().filter_map(BlobEntryKind::key));
            meters.request(BlobOp::List, outcome(&answer), pages, begun.elapsed());
        }
        answer
    }
}

fn got(meters: &SinkMeters, answer: &Result<Bytes, BlobError>, took: Duration) {
    meters.request(BlobOp::Get, outcome(answer), 1, took);
    if let Ok(bytes) = answer {
        meters.moved(BlobOp::Get, len(bytes));
    }
}

/// A listing under way; counted when it ends or nobody wants more of it.
struct Listing {
    meters: Arc<SinkMeters>,
    begun: Instant,
    entries: u64,
    outcome: BlobOutcome,
}

impl Listing {
    fn new(meters: Arc<SinkMeters>) -> Listing {
        Listing { meters, begun: Instant::now(), entries: 0, outcome: BlobOutcome::Ok }
    }

    fn saw(&mut self, entry: &Result<BlobEntry, BlobError>) {
        match entry {
            Ok(_) => self.entries += 1,
            Err(error) => self.outcome = BlobOutcome::of(error),
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let pages = self.entries.div_ceil(ENTRIES_A_PAGE).max(1);
        self.meters.request(BlobOp::List, self.outcome, pages, self.begun.elapsed());
    }
}
