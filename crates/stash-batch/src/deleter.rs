//! The deleter: what was given up is queued in the catalog first, then deleted from the store, then
//! forgotten. The queue is durable, so a crash anywhere resumes (cases 12, 13).
//!
//! SUBTLE: a part that was given up is queued only once no row can come to reference it: its incarnation is
//! closed, or its description resolved. Before that a copy of its descriptor may still be on its way (a frame
//! that was sent twice, or sent and then given up), and a batch that is accepted with it would reference what the
//! deleter has forgotten long since (I15). What has to wait stays in the ledger.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use stash_blob::BlobStore;
use stash_catalog::{Catalog, DeletionReason, IncarnationState, KeyState};
use stash_chain::{KeyFacts, Verdict, judge};
use stash_types::{
    BlobKey, PartKey, SinkId,
    fault::{self, Mutant, broken},
};
use tracing::Instrument;

use crate::{
    BatchError, Meters,
    ledger::Ledger,
    sync::{self, AsyncMutex},
};

/// Keys a request takes at most: what the common stores allow in one bulk delete.
const KEYS_A_REQUEST: u32 = 1000;
/// Keys that the catalog is asked about at once.
const KEYS_A_QUESTION: usize = 1000;

/// What a pass of the deleter did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Objects deleted, or found gone.
    pub deleted: u64,
    /// Deletes the store refused for now; they are due again later.
    pub deferred: u64,
}

/// Deletes what is queued, one pass at a time.
#[derive(Debug)]
pub(crate) struct Deleter {
    store: Arc<dyn BlobStore>,
    catalog: Arc<dyn Catalog>,
    ledger: Arc<Ledger>,
    meters: Meters,
    pass: AsyncMutex<()>,
}

impl Deleter {
    pub(crate) fn new(
        store: Arc<dyn BlobStore>,
        catalog: Arc<dyn Catalog>,
        ledger: Arc<Ledger>,
        meters: Meters,
    ) -> Deleter {
        Deleter { store, catalog, ledger, meters, pass: AsyncMutex::new(()) }
    }

    /// Queues what was given up, then deletes until nothing is due.
    pub(crate) async fn drain(&self) -> Result<Drained, BatchError> {
        let _pass = self.pass.lock().await;
        self.queue_given_up().await?;
        let mut drained = Drained::default();
        loop {
            let due = self.catalog.deletions_due(KEYS_A_REQUEST).await?;
            if due.is_empty() {
                return Ok(drained);
            }
            fault::place("batch.due_fetched");
            let keys: Vec<PartKey> = due.iter().map(|row| row.key).collect();
            let blobs: Vec<BlobKey> = keys.iter().map(|key| BlobKey::from(*key)).collect();
            let mut gone = Vec::with_capacity(keys.len());
            let mut stays = Vec::new();
            let span = tracing::debug_span!("delete", keys = keys.len());
            for (key, deleted) in keys.iter().zip(self.store.delete(&blobs).instrument(span).await) {
                let meters = self.meters.of(key.shard);
                meters.deleted(deleted.outcome.is_ok());
                match deleted.outcome {
                    Ok(_) => gone.push(*key),
                    Err(error) => {
                        tracing::warn!(sink = meters.name(), %key, %error, "delete failed, it is due again later");
                        stays.push(*key);
                    }
                }
            }
            fault::place("batch.deleted");
            if !stays.is_empty() {
                self.catalog.defer(&stays).await?;
            }
            self.catalog.dequeue(&gone).await?;
            fault::place("batch.dequeued");
            drained.deleted = drained.deleted.saturating_add(u64::try_from(gone.len()).unwrap_or(u64::MAX));
            drained.deferred =
                drained.deferred.saturating_add(u64::try_from(stays.len()).unwrap_or(u64::MAX));
        }
    }

    /// Queues what was given up and is garbage for good.
    pub(crate) async fn queue_given_up(&self) -> Result<(), BatchError> {
        for (sink, keys) in self.ledger.given_up() {
            for keys in keys.chunks(KEYS_A_QUESTION) {
                self.queue_proven(sink, keys).await?;
            }
        }
        Ok(())
    }

    /// Queues those of the keys that are garbage for good; of the others, only what may still be offered stays in
    /// the ledger.
    async fn queue_proven(&self, sink: SinkId, keys: &[PartKey]) -> Result<(), BatchError> {
        let (mut garbage, mut settled) = (Vec::new(), Vec::new());
        for state in self.catalog.key_states(sink, keys).await? {
            match verdict(&state) {
                // Broken, what was handed over is deleted although its receiver may have offered it by then: a row
                // comes to reference what is gone.
                Verdict::BeingWritten if !broken(Mutant::HandOverDeletes) => continue,
                Verdict::BeingWritten | Verdict::Garbage(_) => garbage.push(state.key),
                Verdict::Referenced | Verdict::Queued | Verdict::Foreign => {}
            }
            settled.push(state.key);
        }
        if !garbage.is_empty() {
            self.catalog.enqueue(sink, &garbage, DeletionReason::Surrendered).await?;
            fault::place("batch.given_up_queued");
        }
        self.ledger.settle(&settled);
        Ok(())
    }

    /// Closes the incarnations that could still offer what was given up, so that it can be deleted now.
    pub(crate) async fn close_incarnations(&self, reason: &str) -> Result<(), BatchError> {
        self.queue_given_up().await?;
        for (sink, keys) in self.ledger.given_up() {
            let incarnations: BTreeSet<_> = keys.iter().map(|key| key.name.incarnation).collect();
            for incarnation in incarnations {
                self.catalog.close_incarnation(sink, incarnation, reason).await?;
            }
        }
        Ok(())
    }

    /// Drains whenever something was given up, and now and then for what failed or another process queued.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            if let Err(error) = self.drain().await {
                tracing::warn!(%error, "deleter: pass failed, the queue is kept");
            }
            // The timer only bounds how long a failed delete waits; nothing is decided by it.
            let _ = sync::timeout(Duration::from_secs(1), self.ledger.wait()).await;
        }
    }
}

/// What is to be made of a key by what the catalog knows of it.
pub fn verdict(state: &KeyState) -> Verdict {
    let incarnation = state.incarnation.as_ref();
    judge(KeyFacts {
        description: state.key.name.description,
        incarnation: incarnation.map(|(state, resolved)| (*state == IncarnationState::Open, *resolved)),
        referenced: state.referenced_by.is_some(),
        queued: state.queued.is_some(),
    })
}
