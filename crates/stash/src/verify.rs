//! Verifying a sink against its store, invariant by invariant.
//!
//! The store is listed first and the catalog read afterwards, so what changes in between can only look
//! like being written or gone since; a violation is reported only after a second look.

use std::collections::BTreeMap;

use futures::StreamExt;
use serde::Serialize;
use stash_batch::{BatchError, verdict};
use stash_blob::{BlobEntryKind, BlobError};
use stash_catalog::{BatchRow, PartRow};
use stash_chain::{Verdict, invariants};
use stash_types::{BlobKey, BlobPrefix, Digest, PartKey};

use crate::{Error, Result, Sink};

/// One promise that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The invariant's name, such as `I4`.
    pub invariant: String,
    /// What was found.
    pub what: String,
}

impl Violation {
    pub(crate) fn of(invariant: invariants::Invariant, what: impl Into<String>) -> Violation {
        Violation { invariant: invariant.name().to_owned(), what: what.into() }
    }
}

/// What a verification looked at and found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// Batches of the chain.
    pub batches: u64,
    /// Parts that were read and compared with their digests.
    pub parts: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Objects in the store that an open incarnation may still offer.
    pub being_written: u64,
    /// Objects in the store that the deletion queue owns.
    pub queued: u64,
    /// What does not hold.
    pub violations: Vec<Violation>,
}

impl VerifyReport {
    fn broken(&mut self, invariant: &str, what: impl Into<String>) {
        self.violations.push(Violation { invariant: invariant.to_owned(), what: what.into() });
    }
}

impl Sink {
    /// Checks the chain (I4), ownership (I14, I17), that every referenced part is there with its digest (I15), and
    /// that every batch decodes into what was written (I22). Reads every byte of the sink.
    pub async fn verify(&self, mut progress: impl FnMut(&VerifyReport)) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        let listed = self.listed(&mut report).await?;
        let batches = self.batches().await?;
        self.verify_chain(&batches, &mut report).await?;
        self.verify_owners(&listed, &mut report).await?;
        for batch in &batches {
            report.batches += 1;
            for part in &batch.parts {
                self.verify_part(part, &mut report).await?;
            }
            self.verify_rows(batch, &mut report).await?;
            progress(&report);
        }
        Ok(report)
    }

    async fn listed(&self, report: &mut VerifyReport) -> Result<BTreeMap<PartKey, u64>> {
        let mut listed = BTreeMap::new();
        let entries: Vec<_> = self.stash().store().list(BlobPrefix::Shard(self.shard())).collect().await;
        for entry in entries {
            let entry = entry?;
            match entry.kind {
                BlobEntryKind::Object(key) => match key.part_key() {
                    Some(key) => drop(listed.insert(key, entry.len)),
                    None => report.broken("I17", format!("{key} is no part of this sink")),
                },
                BlobEntryKind::Upload { key, token } => {
                    let states = match key.part_key() {
                        Some(part) => self.stash().catalog().key_states(self.id(), &[part]).await?,
                        None => Vec::new(),
                    };
                    match states.first().map(verdict) {
                        Some(Verdict::BeingWritten) => report.being_written += 1,
                        _ => report.broken("I17", format!("upload {token} of {key} was left over")),
                    }
                }
                BlobEntryKind::Foreign(name) => {
                    report.broken("I17", format!("{name} was not written by Stash"))
                }
            }
        }
        Ok(listed)
    }

    async fn verify_chain(&self, batches: &[BatchRow], report: &mut VerifyReport) -> Result<()> {
        let head = self.head().await?;
        if let Some(first) = batches.first() {
            let rows = batches.iter().map(|batch| (batch.lower, batch.upper, batch.extent));
            if let Err(violation) = invariants::i4_gapless(first.lower, rows) {
                report.broken(violation.invariant.name(), violation.what);
            }
        }
        let end = batches
            .last()
            .map_or(head.released.max(head.expired).max(self.rules().start()), |last| last.extent);
        if end > head.upper
            || (end < head.upper && self.batches().await?.last().map(|b| b.extent) == Some(end))
        {
            report.broken("I4", format!("the rows end at {end}, the head at {}", head.upper));
        }
        Ok(())
    }

    async fn verify_owners(&self, listed: &BTreeMap<PartKey, u64>, report: &mut VerifyReport) -> Result<()> {
        let keys: Vec<PartKey> = listed.keys().copied().collect();
        for keys in keys.chunks(1000) {
            for state in self.stash().catalog().key_states(self.id(), keys).await? {
                if state.referenced_by.is_some() && state.queued.is_some() {
                    report.broken("I14", format!("{} is referenced and queued for deletion", state.key));
                }
                match verdict(&state) {
                    Verdict::Referenced => {}
                    Verdict::Queued => report.queued += 1,
                    Verdict::BeingWritten => report.being_written += 1,
                    Verdict::Foreign => {
                        report.broken("I17", format!("{} is of an incarnation nobody knows", state.key));
                    }
                    // SUBTLE: the deleter forgets a key after the store did, so a key listed just before may be
                    // neither queued nor there any more. Only what is still there is a leak.
                    Verdict::Garbage(_) => {
                        if self.stash().store().head(&BlobKey::from(state.key)).await?.is_some() {
                            report.broken("I17", format!("{} is in the store and nobody owns it", state.key));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    async fn verify_part(&self, part: &PartRow, report: &mut VerifyReport) -> Result<()> {
        let key = part.name.under(self.shard());
        let bytes = match self.stash().store().get(&BlobKey::from(key), part.descriptor.len).await {
            Ok(bytes) => bytes,
            Err(BlobError::NotFound { .. }) => {
                let still = self.stash().catalog().key_states(self.id(), &[key]).await?;
                if still.first().is_some_and(|state| state.referenced_by.is_some()) {
                    report.broken("I15", format!("{key} is referenced but not in the store"));
                }
                return Ok(());
            }
            Err(error @ BlobError::Determinate { retry: false, .. }) => {
                report.broken("I15", error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        report.parts += 1;
        report.bytes += part.descriptor.len;
        if Digest::of(&bytes) != part.descriptor.digest {
            report.broken("I22", format!("{key} does not have the digest that was accepted"));
        }
        Ok(())
    }

    async fn verify_rows(&self, batch: &BatchRow, report: &mut VerifyReport) -> Result<()> {
        let mut reader = self.reader(batch.clone(), batch.lower);
        loop {
            match reader.next().await.map_err(Error::from) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                // What is missing or has the wrong digest was said above already.
                // What was released or expired meanwhile is not there to be checked.
                Err(Error::Absent(
                    crate::Absence::Lost { .. }
                    | crate::Absence::Acknowledged { .. }
                    | crate::Absence::Expired { .. },
                )) => return Ok(()),
                Err(Error::Absent(absence)) => {
                    report.broken("I22", absence.to_string());
                    return Ok(());
                }
                // Something that is no file stands under the key: a link, a folder.
                Err(Error::Blob(error @ BlobError::Determinate { retry: false, .. })) => {
                    report.broken("I22", error.to_string());
                    return Ok(());
                }
                Err(Error::Batch(error @ BatchError::Part { .. })) => {
                    report.broken("I22", error.to_string());
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }
}
