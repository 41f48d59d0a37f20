//! The chain hop: mint, merge, offer. The decision is `stash-chain`'s; here it is committed.
//!
//! An offer reads head and incarnation in one snapshot, decides, and commits by compare-and-set on the head
//! row. Who loses a race decides again against the new head. A commit whose outcome is unknown is read back
//! by its id (I21). What the decision does not keep is in the deletion queue by the same transaction (I16).

use std::{collections::VecDeque, num::NonZeroU32, sync::Arc, time::Instant};

use stash_batch::{OwnedParts, WriterHandle};
use stash_catalog::{
    Cas, CatalogError, CommitRequest, Committed, HeadRow, HeadStatus, IncarnationRow, IncarnationState,
    NewBatch, OutcomeKind, PartRow, Resolution, View,
};
use stash_chain::{
    Batch, ChainError, ChainRules, Decision, Ended, Head, Minter, Offer, Outcome, Rendering, ShareMerge,
    Status, Take,
};
pub use stash_chain::{Mint, Minted};
use stash_types::{
    CommitId, DataflowError, Description, Frontier, IncarnationId, InlineRun, PartName, RunFacts,
    ShareMessage,
    fault::{self, Mutant, broken},
};
use tracing::Instrument;

use crate::{Error, ErrorKind, Result, Sink, rules};

/// Lost races and unknown outcomes in a row before an offer gives up; each lost race is another's progress.
const ATTEMPTS_MAX: u32 = 10_000;
/// Unknown outcomes in a row before an offer gives up.
const UNKNOWN_MAX: u32 = 5;

/// What became of an offered batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// What was offered.
    pub description: Description,
    /// What became of it. `None`: it was resolved before, and how is no longer known.
    pub outcome: Option<Outcome>,
    /// The chain's upper as it is known after this.
    pub upper: Frontier,
    /// What was offered, before any trim.
    pub facts: RunFacts,
    /// Parts that were offered.
    pub parts: usize,
    /// Inline runs that were offered.
    pub inline: usize,
    /// The place in the chain, when a row was written.
    pub seq: Option<u64>,
}

/// Mints the descriptions of one incarnation, merges its shares and offers its batches, in order.
///
/// One worker of the replica minds it. When a call fails with [`crate::ErrorKind::Reopen`], the incarnation is
/// closed, everything that was collected is given up for deletion, and a new one is to be opened.
#[derive(Debug)]
pub struct Chain {
    sink: Sink,
    incarnation: IncarnationId,
    rules: ChainRules,
    minter: Minter,
    /// `None` once everything was given up.
    merge: Option<ShareMerge<OwnedParts>>,
    /// What waits for its outcome, the next one first; it stays until it has one.
    queue: VecDeque<Offered>,
    upper: Frontier,
    writer: Arc<WriterHandle>,
    open: OpenDescriptions,
}

pub(crate) fn head_of(row: &HeadRow) -> Head {
    let status = match &row.status {
        HeadStatus::Open => Status::Open,
        HeadStatus::Complete => Status::Complete,
        HeadStatus::Poisoned(error) => Status::Poisoned(error.clone()),
        HeadStatus::Dropped => Status::Dropped,
    };
    Head { upper: row.upper, status }
}

fn row_status(status: &Status) -> HeadStatus {
    match status {
        Status::Open => HeadStatus::Open,
        Status::Complete => HeadStatus::Complete,
        Status::Poisoned(error) => HeadStatus::Poisoned(error.clone()),
        Status::Dropped => HeadStatus::Dropped,
    }
}

fn row_outcome(outcome: Outcome) -> OutcomeKind {
    match outcome {
        Outcome::Accepted => OutcomeKind::Accepted,
        Outcome::Trimmed { from } => OutcomeKind::Trimmed { from },
        Outcome::Dropped => OutcomeKind::Dropped,
    }
}

fn rendering_of(row: &IncarnationRow) -> Rendering {
    let last = row.last.map(|last| {
        let outcome = match last.outcome {
            OutcomeKind::Accepted => Outcome::Accepted,
            OutcomeKind::Trimmed { from } => Outcome::Trimmed { from },
            OutcomeKind::Dropped => Outcome::Dropped,
        };
        (last.description, outcome)
    });
    Rendering { as_of: row.as_of, resolved: row.resolved, open: row.state == IncarnationState::Open, last }
}

impl Chain {
    pub(crate) fn new(
        sink: &Sink,
        row: &IncarnationRow,
        floor: Frontier,
        writer: Arc<WriterHandle>,
        workers: NonZeroU32,
    ) -> Chain {
        let (mut rules, in_flight_max) = (sink.rules(), sink.stash().config().descriptions_in_flight_max);
        // Broken, a dataflow that merely stops completes the chain: who renders later is told that all is there.
        rules.seals |= broken(Mutant::EmptyCompletes);
        Chain {
            sink: sink.clone(),
            incarnation: row.id,
            rules,
            minter: Minter::new(rules, row.as_of, in_flight_max),
            merge: Some(ShareMerge::new(sink.id(), row.id, row.as_of, workers)),
            #[cfg(feature = "faults")]
            queue: sink.stash().kept().take(sink.id()),
            #[cfg(not(feature = "faults"))]
            queue: VecDeque::new(),
            upper: floor,
            writer,
            open: OpenDescriptions { sink: sink.clone(), minted: VecDeque::new() },
        }
    }

    /// `U` as it is known here; it may have risen since.
    pub fn known_upper(&self) -> Frontier {
        self.upper
    }

    /// Where the next description will begin.
    pub fn next_lower(&self) -> Frontier {
        self.minter.next()
    }

    /// Chooses the next description, up to `frontier`: all updates below it have been produced by every
    /// worker. The description is to be told to all workers, and each reports a share of it.
    pub fn mint(&mut self, frontier: Frontier) -> Result<Mint> {
        // Broken, workers leave out times that nobody has accepted yet.
        let beyond = if broken(Mutant::FloorAbove) { 3 } else { 0 };
        let floor = Frontier::at(self.upper.as_u64().saturating_add(beyond));
        let minted = self.minter.mint(frontier, floor).map_err(self.sink.chain_error())?;
        if let Mint::Minted(minted) = minted {
            let description = minted.description;
            let merge = self.merge.as_mut().ok_or(ChainError::MergeEnded { description });
            merge.and_then(|merge| merge.open(minted)).map_err(self.sink.chain_error())?;
            self.open.minted(description);
            tracing::debug!(sink = %self.sink.name(), incarnation = %self.incarnation, %description, %floor, "minted");
        }
        Ok(minted)
    }

    /// Closes the incarnation and gives up for deletion what was collected and not offered. Nothing is taken after it.
    pub async fn close(&mut self, reason: &str) {
        if self.merge.is_some() {
            self.give_up(reason).await;
        }
    }

    /// Takes a worker's share and offers every batch that became complete, in order.
    pub async fn report(&mut self, share: ShareMessage<OwnedParts>) -> Result<Vec<Resolved>> {
        self.merge(share).await?;
        let mut resolved = Vec::new();
        while let Some(offered) = self.offer().await? {
            resolved.push(offered);
        }
        Ok(resolved)
    }

    /// Takes a worker's share; batches that became complete wait for [`Chain::offer`].
    pub async fn merge(&mut self, share: ShareMessage<OwnedParts>) -> Result<()> {
        let Some(merge) = &mut self.merge else {
            let source = ChainError::MergeEnded { description: share.description };
            // Who reports to a chain that gave up gives up the share.
            drop(share);
            return Err(Error::Chain { sink: self.sink.id(), source });
        };
        let reported = match rules::report(merge, share) {
            Ok(reported) => reported,
            Err(refused) => {
                // SUBTLE: a duplicate names parts its first copy owns. To give these up deletes nothing while the
                // description is unresolved, and afterwards only what no row references.
                drop(refused.payload);
                return Err(Error::Chain { sink: self.sink.id(), source: *refused.error });
            }
        };
        reported.returned.into_iter().for_each(OwnedParts::discard);
        for batch in reported.batches {
            // Broken, what was collected of some descriptions is not offered, and the next one comes in its place.
            if broken(Mutant::DescriptionSkipped) && batch.description.lower().as_u64() % 4 == 1 {
                self.minter.resolved(batch.description).map_err(self.sink.chain_error())?;
                continue;
            }
            self.queue.push_back(Offered::new(batch));
        }
        fault::place("stash.share_merged");
        match reported.ended {
            None => Ok(()),
            Some(Ended::Dropped) => {
                self.give_up("the sink is going away").await;
                Err(Error::GoingAway { sink: self.sink.id() })
            }
            Some(Ended::Failed { worker, description, reason }) => {
                let reason = format!("worker {worker}: {reason}");
                self.give_up(&reason).await;
                Err(Error::Ended { sink: self.sink.id(), incarnation: self.incarnation, description, reason })
            }
        }
    }

    /// Closes the incarnation and gives up all that was collected. Where the catalog cannot be written, the next
    /// opening of the replica closes it, or its lease runs out: why it ended is what the caller has to learn.
    async fn give_up(&mut self, reason: &str) {
        self.sink.meters().incarnations_ended.increment(1);
        // No warning: the caller is told by the error.
        tracing::info!(sink = %self.sink.name(), incarnation = %self.incarnation, reason, "the incarnation is given up");
        self.let_go();
        let catalog = self.sink.stash().catalog();
        if let Err(error) = catalog.close_incarnation(self.sink.id(), self.incarnation, reason).await {
            tracing::warn!(sink = %self.sink.name(), incarnation = %self.incarnation, %error, "not closed yet");
        }
        self.sink.stash().process().wake_deleter();
    }

    /// Gives up all that was collected; nothing is taken any more.
    fn let_go(&mut self) {
        self.writer.abandon();
        self.merge.take().map_or_else(Vec::new, ShareMerge::close).into_iter().for_each(OwnedParts::discard);
        #[cfg(feature = "faults")]
        self.sink.stash().kept().keep(self.sink.id(), &mut self.queue);
        self.queue.clear();
        self.open.clear();
    }

    /// Offers the next complete batch; `None` when none is waiting. A call that was cancelled, or failed with
    /// [`ErrorKind::Retry`], is made again for the same batch by the next one.
    pub async fn offer(&mut self) -> Result<Option<Resolved>> {
        // Broken, the newest comes first: what it covers passes for covered before it was offered.
        let place = if broken(Mutant::OutOfOrder) { self.queue.len().saturating_sub(1) } else { 0 };
        let Some(offered) = self.queue.get(place) else { return Ok(None) };
        let description = offered.description;
        // SUBTLE: the batch stays in its place until its outcome is known. Taken out first, it would be lost with a
        // cancelled call, and the next one would leave a gap. If a commit landed unseen, its outcome is recorded.
        let span = tracing::debug_span!("offer", sink = %self.sink.name(), incarnation = %self.incarnation, %description);
        match self.resolve(offered).instrument(span).await {
            Ok(resolved) => {
                self.measure(&resolved);
                fault::place("stash.offer_resolved");
                if let Some(offered) = self.queue.remove(place) {
                    offered.settle();
                }
                fault::place("stash.offer_settled");
                self.sink.stash().process().wake_deleter();
                self.upper = self.upper.max(resolved.upper);
                match self.minter.resolved(description) {
                    // Broken, it may be another incarnation's.
                    Err(_) if broken(Mutant::QueueKept) => {}
                    known => known.map_err(self.sink.chain_error())?,
                }
                Ok(Some(resolved))
            }
            Err(error) => {
                self.sink.meters().failed.increment(1);
                match error.kind() {
                    ErrorKind::Retry => {}
                    ErrorKind::Absent => self.let_go(),
                    // What is refused for good leaves a gap behind it that no later batch can close.
                    _ => self.give_up(&error.to_string()).await,
                }
                Err(error)
            }
        }
    }

    fn measure(&mut self, resolved: &Resolved) {
        let Resolved { description, outcome, upper, facts, parts, inline, seq } = resolved;
        let meters = self.sink.meters();
        let (counter, word) = match outcome {
            Some(Outcome::Accepted) => (&meters.accepted, "accepted"),
            Some(Outcome::Trimmed { .. }) => (&meters.trimmed, "trimmed"),
            Some(Outcome::Dropped) => (&meters.dropped, "dropped"),
            None => (&meters.recorded, "recorded"),
        };
        counter.increment(1);
        meters.offered_updates.increment(facts.update_count);
        meters.description_parts.record(u32::try_from(*parts).unwrap_or(u32::MAX));
        self.open.resolved(*description);
        tracing::debug!(
            sink = %self.sink.name(),
            incarnation = %self.incarnation,
            %description,
            outcome = word,
            %upper,
            seq,
            updates = facts.update_count,
            parts,
            inline,
            "offer resolved"
        );
    }

    async fn resolve(&self, offered: &Offered) -> Result<Resolved> {
        let commit = self.sink.stash().draw_commit();
        let catalog = self.sink.stash().catalog();
        let mut unknown = 0;
        for _ in 0..ATTEMPTS_MAX {
            let view = catalog.view(self.sink.id(), self.incarnation).await?;
            let (head, rendering) = (head_of(&view.head), rendering_of(&view.incarnation));
            let decision = rules::decide(self.rules, &head, &rendering, &offered.offer())
                .map_err(self.sink.chain_error())?;
            let Some(request) = self.request(commit, offered, &view, &decision) else {
                return Ok(offered.resolved(decision.outcome(), view.head.upper, None));
            };
            fault::place("stash.offer_decided");
            match catalog.commit(request).await {
                Ok(Cas::Done(committed)) => return Ok(offered.written(&decision, committed)),
                Ok(Cas::Conflict(head)) => {
                    self.sink.meters().offer_conflicts.increment(1);
                    tracing::debug!(upper = %head.upper, "lost a race, deciding again");
                }
                Err(error @ CatalogError::Indeterminate { .. }) => {
                    tracing::warn!(%error, "a commit's outcome is unknown, reading it back");
                    // SUBTLE: while it is unknown whether the rows reference the parts, they must not be given
                    // up; the read back waits for the head row's lock, so its answer is final (I21).
                    match catalog.read_back(self.sink.id(), commit).await {
                        Ok(Some(committed)) => return Ok(offered.written(&decision, committed)),
                        Ok(None) if unknown < UNKNOWN_MAX => unknown += 1,
                        Ok(None) | Err(_) => return Err(error.into()),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::InvalidUsage {
            what: format!(
                "sink {}: {ATTEMPTS_MAX} offers of {} lost their race",
                self.sink.id(),
                offered.description
            ),
        })
    }

    /// The transaction that a decision asks for, or `None` where nothing need be written
    /// ([`Decision::must_commit`]).
    fn request(
        &self,
        commit: CommitId,
        offered: &Offered,
        view: &View,
        decision: &Decision,
    ) -> Option<CommitRequest> {
        let head = &view.head;
        if !decision.must_commit(&rendering_of(&view.incarnation), !offered.parts.is_empty()) {
            return None;
        }
        let (outcome, resolution, status) = match decision {
            Decision::Recorded(_) => return None,
            Decision::Drop { .. } => {
                // Broken, the covered parts stay in the store, and nobody knows them any more.
                let unlink = if broken(Mutant::DropKeepsBlobs) { vec![] } else { offered.names() };
                (Outcome::Dropped, Resolution::Drop { unlink }, head.status.clone())
            }
            Decision::Poison { error, .. } => (
                Outcome::Dropped,
                Resolution::Extend { upper: head.upper, unlink: offered.names() },
                HeadStatus::Poisoned(error.clone()),
            ),
            Decision::Take(take) => (take.outcome, self.take(offered, take), row_status(&take.status)),
        };
        Some(CommitRequest {
            commit,
            sink: self.sink.id(),
            incarnation: self.incarnation,
            expected_upper: head.upper,
            expected_fence: head.fence,
            description: offered.description,
            outcome: row_outcome(outcome),
            resolution,
            status,
        })
    }

    fn take(&self, offered: &Offered, take: &Take) -> Resolution {
        let (kept, unlink): (Vec<&PartRow>, Vec<&PartRow>) =
            offered.parts.iter().partition(|part| rules::keeps(&part.descriptor.facts, &take.piece));
        let unlink: Vec<PartName> = unlink.into_iter().map(|part| part.name).collect();
        let inline: Vec<InlineRun> =
            offered.inline.iter().filter(|run| rules::keeps(&run.facts, &take.piece)).cloned().collect();
        if kept.is_empty() && inline.is_empty() {
            return Resolution::Extend { upper: take.upper, unlink };
        }
        let facts = kept.iter().map(|part| part.descriptor.facts).chain(inline.iter().map(|run| run.facts));
        Resolution::Accept {
            batch: NewBatch {
                id: self.sink.stash().draw_batch(),
                lower: take.piece.lower(),
                upper: take.piece.upper(),
                facts: facts.fold(RunFacts::default(), RunFacts::and),
                parts: kept.into_iter().cloned().collect(),
                inline,
            },
            unlink,
        }
    }
}

/// Descriptions that were minted and have no outcome, oldest first: only to be measured.
#[derive(Debug)]
struct OpenDescriptions {
    sink: Sink,
    minted: VecDeque<(Description, Instant)>,
}

impl OpenDescriptions {
    fn minted(&mut self, description: Description) {
        self.minted.push_back((description, Instant::now()));
        self.sink.meters().description_opened();
    }

    fn resolved(&mut self, description: Description) {
        let Some(place) = self.minted.iter().position(|(of, _)| *of == description) else { return };
        if let Some((_, at)) = self.minted.remove(place) {
            self.sink.meters().description_ended();
            self.sink.meters().description_duration.record(at.elapsed());
        }
    }

    fn clear(&mut self) {
        for _ in self.minted.drain(..) {
            self.sink.meters().description_ended();
        }
    }
}

impl Drop for OpenDescriptions {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(feature = "faults")]
impl Drop for Chain {
    fn drop(&mut self) {
        self.sink.stash().kept().keep(self.sink.id(), &mut self.queue);
    }
}

/// A batch on its way into the catalog. Dropped half-way, its parts are given up; those that a row references by
/// then are the chain's.
#[derive(Debug)]
pub(crate) struct Offered {
    description: Description,
    floor: Frontier,
    poisoned: Option<DataflowError>,
    inline: Vec<InlineRun>,
    parts: Vec<PartRow>,
    owned: Vec<OwnedParts>,
}

impl Offered {
    fn new(batch: Batch<OwnedParts>) -> Offered {
        let Batch { sink: _, incarnation: _, description, floor, inline, stashed, poisoned } = batch;
        let parts = stashed.iter().flat_map(OwnedParts::named_parts).collect();
        Offered { description, floor, poisoned, inline, parts, owned: stashed }
    }

    fn offer(&self) -> Offer {
        Offer {
            description: self.description,
            floor: self.floor,
            poisoned: self.poisoned.clone(),
            has_updates: !self.inline.is_empty() || !self.parts.is_empty(),
        }
    }

    fn names(&self) -> Vec<PartName> {
        self.parts.iter().map(|part| part.name).collect()
    }

    fn resolved(&self, outcome: Option<Outcome>, upper: Frontier, seq: Option<u64>) -> Resolved {
        let of_parts = self.parts.iter().map(|part| part.descriptor.facts);
        let facts = of_parts.chain(self.inline.iter().map(|run| run.facts));
        Resolved {
            description: self.description,
            outcome,
            upper,
            facts: facts.fold(RunFacts::default(), RunFacts::and),
            parts: self.parts.len(),
            inline: self.inline.len(),
            seq,
        }
    }

    fn written(&self, decision: &Decision, committed: Committed) -> Resolved {
        self.resolved(decision.outcome(), committed.upper, committed.seq)
    }

    /// The catalog owns every part now, as a reference or in the deletion queue; or it is no longer known how the
    /// batch was resolved, and they are left to the sweep.
    fn settle(self) {
        self.owned.into_iter().for_each(OwnedParts::settle);
    }
}
