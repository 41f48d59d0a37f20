//! The sweep of one sink's blobs: list, then ask the catalog about what was listed, then judge, then queue.
//!
//! SUBTLE: the order is the safety. A key that is listed and then found unowned is garbage for good, since
//! being garbage is monotone. The other way round, what was linked between the reading of the references
//! and the listing would be deleted (case 6). Age plays no part (case 7).

use futures::StreamExt;
use serde::Serialize;
use stash_batch::verdict;
use stash_blob::{BlobEntry, BlobEntryKind};
use stash_catalog::DeletionReason;
use stash_chain::Verdict;
use stash_types::{BlobKey, BlobPrefix, PartKey, fault};

use crate::{Result, Sink};

/// Keys that the catalog is asked about at once.
const KEYS_A_QUESTION: usize = 1000;

/// What a sweep found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SweepReport {
    /// Objects listed.
    pub listed: u64,
    /// Objects that nobody owns; queued for deletion.
    pub garbage: u64,
    /// Unpublished uploads that nobody will finish; removed.
    pub uploads_removed: u64,
    /// Objects of open incarnations that may still be linked; left alone.
    pub being_written: u64,
    /// What Stash did not write, or an incarnation this catalog does not know; never deleted.
    pub foreign: Vec<String>,
}

impl Sink {
    /// Finds blobs of this sink that nobody owns and queues them for deletion. Runs at every opening of an
    /// incarnation, so that crashes heal without an operator.
    pub async fn sweep(&self) -> Result<SweepReport> {
        let mut report = SweepReport::default();
        let listing: Vec<_> = self.stash().store().list(BlobPrefix::Shard(self.shard())).collect().await;
        let (mut objects, mut uploads) = (Vec::new(), Vec::new());
        for entry in listing {
            let BlobEntry { kind, len: _ } = entry?;
            match kind {
                BlobEntryKind::Object(key) => match key.part_key() {
                    Some(part) => objects.push(part),
                    None => report.foreign.push(key.to_string()),
                },
                BlobEntryKind::Upload { key, token } => match key.part_key() {
                    Some(part) => uploads.push((part, key, token)),
                    None => report.foreign.push(format!("{key} (upload {token})")),
                },
                BlobEntryKind::Foreign(name) => report.foreign.push(name),
            }
        }
        fault::place("stash.sweep_listed");
        for keys in objects.chunks(KEYS_A_QUESTION) {
            self.sweep_objects(keys, &mut report).await?;
        }
        for (part, key, token) in uploads {
            self.sweep_upload(part, &key, &token, &mut report).await?;
        }
        if report.garbage > 0 {
            tracing::info!(sink = %self.id(), garbage = report.garbage, "swept");
            self.stash().process().wake_deleter();
        }
        Ok(report)
    }

    async fn sweep_objects(&self, keys: &[PartKey], report: &mut SweepReport) -> Result<()> {
        let mut garbage = Vec::new();
        for state in self.stash().catalog().key_states(self.id(), keys).await? {
            report.listed += 1;
            match verdict(&state) {
                Verdict::Garbage(_) => garbage.push(state.key),
                Verdict::BeingWritten => report.being_written += 1,
                Verdict::Foreign => report.foreign.push(state.key.to_string()),
                Verdict::Referenced | Verdict::Queued => {}
            }
        }
        fault::place("stash.sweep_judged");
        report.garbage += self.stash().catalog().enqueue(self.id(), &garbage, DeletionReason::Swept).await?;
        fault::place("stash.sweep_queued");
        Ok(())
    }

    async fn sweep_upload(
        &self,
        part: PartKey,
        key: &BlobKey,
        token: &str,
        report: &mut SweepReport,
    ) -> Result<()> {
        for state in self.stash().catalog().key_states(self.id(), &[part]).await? {
            // An upload is judged like the key it was to become, except that nobody can own it twice: where the
            // object itself is referenced or queued, the upload is a leftover of an earlier try.
            match verdict(&state) {
                Verdict::BeingWritten => report.being_written += 1,
                Verdict::Foreign => report.foreign.push(format!("{key} (upload {token})")),
                Verdict::Garbage(_) | Verdict::Referenced | Verdict::Queued => {
                    self.stash().store().abort_upload(key, token).await?;
                    report.uploads_removed += 1;
                    fault::place("stash.upload_removed");
                }
            }
        }
        Ok(())
    }
}
