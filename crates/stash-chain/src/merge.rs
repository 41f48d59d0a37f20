//! The share merge: the shares of all workers of a replica become one batch.
//!
//! - **I2**: a batch leaves when each of the W workers has reported exactly once for its description. The
//!   merge counts shares, so an empty share is a message too, and silence is never taken for one.
//! - **I1**: several descriptions may be open and their shares may interleave; batches leave strictly in order
//!   of their descriptions.
//! - **I14, I16**: a payload that goes in comes out exactly once: in a [`Batch`], in [`Reported::returned`],
//!   in [`Refused::payload`], or from [`ShareMerge::close`]. One worker's failure returns the payloads of all
//!   the others; there is no path on which a payload is only forgotten.
//! - A refused message changes nothing.
//!
//! A *failed* share ends the merge, since the incarnation must be rendered anew. A *dropped* one ends it too,
//! and is told once. A share that is *poisoned* is data all the same: the batch leaves, with the earliest error,
//! and all updates below the error's time are still wanted, those of the worker in error too.
//!
//! The merge does not know what a payload `P` is, never looks into it, and never clones it.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

use stash_types::{
    DataflowError, Description, Frontier, IncarnationId, InlineRun, Share, ShareMessage, SinkId, WorkerIndex,
};

use crate::{ChainError, Minted};

/// All shares of one description of one incarnation.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a batch owns payloads: offer it, or give them back for deletion"]
pub struct Batch<P> {
    /// The sink.
    pub sink: SinkId,
    /// The rendering.
    pub incarnation: IncarnationId,
    /// Which times it covers.
    pub description: Description,
    /// The floor it was minted with: times below it were left out.
    pub floor: Frontier,
    /// The small runs, by worker.
    pub inline: Vec<InlineRun>,
    /// The payloads of stashed shares, by worker.
    pub stashed: Vec<P>,
    /// The earliest dataflow error any worker reported; of equal ones, the lowest worker's.
    pub poisoned: Option<DataflowError>,
}

impl<P> Batch<P> {
    /// Whether any share carried updates, inline or stashed.
    pub fn has_updates(&self) -> bool {
        !self.inline.is_empty() || !self.stashed.is_empty()
    }
}

/// Why a merge ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A worker failed: close the incarnation and render anew.
    Failed {
        /// The worker.
        worker: WorkerIndex,
        /// The description it failed in.
        description: Description,
        /// What happened, for people.
        reason: String,
    },
    /// The sink is going away: pass this on, once.
    Dropped,
}

/// What a share that was taken has led to.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "batches must be offered, and returned payloads deleted"]
pub struct Reported<P> {
    /// Batches that are now complete, in order of their descriptions.
    pub batches: Vec<Batch<P>>,
    /// Payloads given back because the merge ended.
    pub returned: Vec<P>,
    /// Set on the one report that ended the merge.
    pub ended: Option<Ended>,
}

/// A share that was refused, with its payload. The merge is as it was.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
#[must_use = "the payload must be deleted"]
pub struct Refused<P> {
    /// Why. Boxed, to keep the good path small.
    pub error: Box<ChainError>,
    /// The payload of a stashed share. SUBTLE: that of a duplicate may name the very parts that the first
    /// one named; who deletes it must hold them as an owner, not merely know their names.
    pub payload: Option<P>,
}

/// The content of a share that counts towards its batch.
#[derive(Debug)]
enum Content<P> {
    Empty,
    Inline(InlineRun),
    Stashed(P),
}

#[derive(Debug)]
struct Open<P> {
    minted: Minted,
    shares: BTreeMap<WorkerIndex, (Content<P>, Option<DataflowError>)>,
}

/// Merges the shares of one incarnation.
///
/// ```
/// use std::num::NonZeroU32;
/// use stash_chain::{Minted, ShareMerge};
/// use stash_types::{Description, Frontier, IncarnationId, Share, ShareMessage, SinkId, WorkerIndex};
/// use uuid::Uuid;
///
/// let (sink, incarnation) = (SinkId::from_uuid(Uuid::nil()), IncarnationId::from_uuid(Uuid::nil()));
/// let description = Description::new(Frontier::at(0), Frontier::at(1)).ok_or("covers no time")?;
/// let minted = Minted { description, floor: Frontier::at(0) };
///
/// let mut merge = ShareMerge::new(sink, incarnation, 0, NonZeroU32::MIN.saturating_add(1));
/// merge.open(minted)?;
/// let share = |worker, share| {
///     let worker = WorkerIndex(worker);
///     ShareMessage { sink, incarnation, description, floor: minted.floor, worker, share, poisoned: None }
/// };
/// assert!(merge.report(share(0, Share::Empty))?.batches.is_empty());
/// let reported = merge.report(share(1, Share::Stashed("some parts")))?;
/// assert_eq!(reported.batches[0].stashed, ["some parts"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// - `open` is contiguous, in order, and ends at `next`.
/// - Once `ended`, nothing is open and nothing is taken.
#[derive(Debug)]
pub struct ShareMerge<P> {
    sink: SinkId,
    incarnation: IncarnationId,
    workers: NonZeroU32,
    next: Frontier,
    open: VecDeque<Open<P>>,
    ended: bool,
}

impl<P> ShareMerge<P> {
    /// A merge for an incarnation of `sink` granted `as_of`, with that many workers.
    pub fn new(sink: SinkId, incarnation: IncarnationId, as_of: u64, workers: NonZeroU32) -> ShareMerge<P> {
        let next = Frontier::at(as_of);
        ShareMerge { sink, incarnation, workers, next, open: VecDeque::new(), ended: false }
    }

    /// Opens a minted description for shares. Call it before the description is broadcast.
    pub fn open(&mut self, minted: Minted) -> Result<(), ChainError> {
        let description = minted.description;
        if self.ended {
            return Err(ChainError::MergeEnded { description });
        }
        if description.lower() != self.next {
            return Err(ChainError::NotContiguous { expected: self.next, description });
        }
        self.next = description.upper();
        self.open.push_back(Open { minted, shares: BTreeMap::new() });
        Ok(())
    }

    /// Takes a worker's share, or refuses it and gives its payload back.
    pub fn report(&mut self, message: ShareMessage<P>) -> Result<Reported<P>, Refused<P>> {
        let index = match self.admit(&message) {
            Ok(index) => index,
            Err(error) => {
                let payload = match message.share {
                    Share::Stashed(payload) => Some(payload),
                    Share::Empty | Share::Inline(_) | Share::Failed { .. } | Share::Dropped => None,
                };
                return Err(Refused { error: Box::new(error), payload });
            }
        };
        let ShareMessage { sink: _, incarnation: _, description, floor: _, worker, share, poisoned } =
            message;
        let content = match share {
            Share::Empty => Content::Empty,
            Share::Inline(run) => Content::Inline(run),
            Share::Stashed(payload) => Content::Stashed(payload),
            Share::Failed { reason } => return Ok(self.end(Ended::Failed { worker, description, reason })),
            Share::Dropped => return Ok(self.end(Ended::Dropped)),
        };
        if let Some(open) = self.open.get_mut(index) {
            open.shares.insert(worker, (content, poisoned));
        }
        Ok(Reported { batches: self.leave(), returned: Vec::new(), ended: None })
    }

    /// Gives up: returns every payload that is held, to be deleted.
    #[must_use = "the payloads must be deleted"]
    pub fn close(mut self) -> Vec<P> {
        self.drain()
    }

    /// The place of the open description this message belongs to.
    fn admit(&self, message: &ShareMessage<P>) -> Result<usize, ChainError> {
        let ShareMessage { sink, incarnation, description, floor, worker, share: _, poisoned } = message;
        let (description, worker) = (*description, *worker);
        if *sink != self.sink {
            return Err(ChainError::OtherSink { expected: self.sink, found: *sink });
        }
        if *incarnation != self.incarnation {
            return Err(ChainError::OtherIncarnation { expected: self.incarnation, found: *incarnation });
        }
        if self.ended {
            return Err(ChainError::MergeEnded { description });
        }
        if worker.0 >= self.workers.get() {
            return Err(ChainError::UnknownWorker { worker, workers: self.workers });
        }
        let found = self.open.iter().enumerate().find(|(_, open)| open.minted.description == description);
        let Some((index, open)) = found else { return Err(ChainError::ShareNotOpen { description }) };
        if open.minted.floor != *floor {
            return Err(ChainError::OtherFloor { description, expected: open.minted.floor, found: *floor });
        }
        if open.shares.contains_key(&worker) {
            return Err(ChainError::DuplicateShare { worker, description });
        }
        match poisoned {
            Some(error) if !description.contains(error.at) => {
                Err(ChainError::ErrorOutside { at: error.at, description })
            }
            _ => Ok(index),
        }
    }

    fn end(&mut self, ended: Ended) -> Reported<P> {
        self.ended = true;
        Reported { batches: Vec::new(), returned: self.drain(), ended: Some(ended) }
    }

    fn drain(&mut self) -> Vec<P> {
        let contents = self.open.drain(..).flat_map(|open| open.shares.into_values());
        contents
            .filter_map(|(content, _)| match content {
                Content::Stashed(payload) => Some(payload),
                Content::Empty | Content::Inline(_) => None,
            })
            .collect()
    }

    /// Takes off the front what is complete, and nothing behind what is not.
    fn leave(&mut self) -> Vec<Batch<P>> {
        let mut batches = Vec::new();
        while let Some(open) = self.open.pop_front() {
            if u32::try_from(open.shares.len()) != Ok(self.workers.get()) {
                self.open.push_front(open);
                break;
            }
            batches.push(self.batch(open));
        }
        batches
    }

    fn batch(&self, open: Open<P>) -> Batch<P> {
        let Minted { description, floor } = open.minted;
        let (sink, incarnation) = (self.sink, self.incarnation);
        let (mut inline, mut stashed, mut poisoned) = (Vec::new(), Vec::new(), None::<DataflowError>);
        for (content, error) in open.shares.into_values() {
            match content {
                Content::Empty => {}
                Content::Inline(run) => inline.push(run),
                Content::Stashed(payload) => stashed.push(payload),
            }
            if let Some(error) = error
                && poisoned.as_ref().is_none_or(|earliest| error.at < earliest.at)
            {
                poisoned = Some(error);
            }
        }
        Batch { sink, incarnation, description, floor, inline, stashed, poisoned }
    }
}

#[cfg(test)]
mod tests;
