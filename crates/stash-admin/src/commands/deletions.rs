//! What became of the deletions that a command asked for: done, or refused by the store for now.

use stash::Sink;

use crate::output;

/// Deletions of one sink, as a command that queued them ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deletions {
    /// Objects that are gone, or would be.
    pub(super) deleted: u64,
    /// Objects that stay in the deletion queue, since the store refused to delete them.
    pub(super) deferred: u64,
}

impl Deletions {
    /// What a dry run says of `queued` objects: nothing was refused yet.
    pub(super) fn planned(queued: u64) -> Deletions {
        Deletions { deleted: queued, deferred: 0 }
    }

    /// Deletes what is due, and says what became of `queued` objects of `sink`: those that waited before, and those
    /// that came since.
    ///
    /// The queue is asked, not the pass: the deleter in the background may have tried, and been refused, before it.
    pub(super) async fn settle(sink: &Sink, queued: u64) -> stash::Result<Deletions> {
        sink.stash().drain_deletions().await?;
        let deferred = sink.deletions_queued().await?;
        Ok(Deletions { deleted: queued.saturating_sub(deferred), deferred })
    }
}

/// That the store refused to delete something, if it did.
pub(super) fn refused(deferred: u64) -> Option<String> {
    (deferred > 0).then(|| {
        format!(
            "{} refused for now; the deletion queue keeps them, and whoever opens the stash to change something goes on",
            output::counted(deferred, "delete was", "deletes were")
        )
    })
}
