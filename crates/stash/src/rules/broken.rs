//! The same rules, each of which answers wrongly while its mutant is armed.
//!
//! Some are kept twice: where a second check would turn the wrong answer into an honest error, that check is taken
//! away with the rule, so that what goes wrong in the world is what the rule is there for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use stash_batch::OwnedParts;
use stash_chain::{ChainError, ChainRules, Decision, Grant, Head, Offer, Rendering, ShareMerge};
use stash_types::fault::{Mutant, broken};
use stash_types::{
    DataflowError, Description, Frontier, PartKey, RunFacts, Share, ShareMessage, SinkId, WorkerIndex,
};

use super::Merged;
use crate::chain::Offered;
use crate::classify::Judged;
use crate::{Class, Stash, Unowned};

/// What becomes of an offer.
///
/// - [`Mutant::StrictLower`]: a straddler is dropped as if it were covered. What it alone held from the upper on is
///   given up, the incarnation next begins above the upper, and is stopped for good as if history were lost.
/// - [`Mutant::OutOfOrder`], [`Mutant::DescriptionSkipped`]: an offer that begins above the upper is taken as if it
///   began there. The times in between pass for covered, and their updates, which come later or never, are lost.
/// - [`Mutant::RehydrateAt`], [`Mutant::RehydrateBelow`]: the as-of is believed. The accumulation at the upper is
///   delivered on top of what was delivered before; from below the original as-of, it is dropped and never comes.
/// - [`Mutant::FloorAbove`]: the floor is believed. What every worker left out below it is accepted as nothing.
pub(crate) fn decide(
    rules: ChainRules,
    head: &Head,
    rendering: &Rendering,
    offer: &Offer,
) -> Result<Decision, ChainError> {
    let (mut rendering, mut offer) = (*rendering, offer.clone());
    let description = offer.description;
    if broken(Mutant::RehydrateAt) || broken(Mutant::RehydrateBelow) {
        rendering.as_of = rules.as_of;
    }
    if broken(Mutant::FloorAbove) {
        offer.floor = offer.floor.min(head.upper);
    }
    if (broken(Mutant::OutOfOrder) || broken(Mutant::DescriptionSkipped))
        && description.lower() > head.upper
        && let Some(as_if) = Description::new(head.upper, description.upper())
    {
        offer.description = as_if;
    }
    match stash_chain::decide(rules, head, &rendering, &offer)? {
        Decision::Take(take) if broken(Mutant::StrictLower) && description.lower() < head.upper => {
            Ok(Decision::Drop { resolved: take.resolved })
        }
        decision => Ok(decision),
    }
}

/// Whether a part holds anything of the piece.
///
/// [`Mutant::TrimDeletesKept`]: a part that begins below the trim passes for one that lies wholly below. It is
/// deleted with the updates it holds above, which nobody else has.
pub(crate) fn keeps(facts: &RunFacts, piece: &Description) -> bool {
    let begins_below = Frontier::at(facts.min_time) < piece.lower();
    stash_chain::keeps(facts, piece) && !(broken(Mutant::TrimDeletesKept) && begins_below)
}

/// What a replica is granted.
///
/// - [`Mutant::RehydrateBeyond`]: an as-of above the upper. Its first batch begins where the chain has not come to;
///   with no other replica the chain never does.
/// - [`Mutant::RehydrateAt`]: the upper itself. The snapshot lies at a time that is still to be delivered.
/// - [`Mutant::RehydrateBelow`]: a time before the original as-of, which the inputs need not have any more.
pub(crate) fn grant(rules: ChainRules, head: &Head) -> Grant {
    match stash_chain::grant(rules, head) {
        Grant::Render { as_of, floor } => {
            let upper = floor.as_u64();
            let accepted = floor > rules.start();
            let as_of = match accepted {
                _ if broken(Mutant::RehydrateBeyond) => upper.saturating_add(1).min(u64::MAX - 1),
                true if broken(Mutant::RehydrateAt) => upper,
                false if broken(Mutant::RehydrateBelow) => as_of.saturating_sub(1),
                _ => as_of,
            };
            Grant::Render { as_of, floor }
        }
        other => other,
    }
}

/// What the inputs must keep.
///
/// [`Mutant::CompactedPast`]: the renderings that were granted and have not begun are not asked. The inputs compact
/// past their as-of, and they render a snapshot that is no longer there.
pub(crate) fn read_hold(
    rules: ChainRules,
    head: &Head,
    pending_as_ofs: impl IntoIterator<Item = u64>,
) -> Frontier {
    match broken(Mutant::CompactedPast) {
        true => stash_chain::read_hold(rules, head, None),
        false => stash_chain::read_hold(rules, head, pending_as_ofs),
    }
}

/// Gives a share to the merge.
///
/// - [`Mutant::ErrorAsEmpty`]: the share of a worker that failed counts as one that holds nothing. Its updates are
///   missing from a batch that looks whole.
/// - [`Mutant::MergeTakesDuplicate`]: shares are counted, not workers. One that the network brought twice stands for
///   that of a worker who has not reported: the batch leaves with its inline run twice, and without the other's.
pub(crate) fn report(merge: &mut ShareMerge<OwnedParts>, mut share: ShareMessage<OwnedParts>) -> Merged {
    if broken(Mutant::ErrorAsEmpty) && matches!(share.share, Share::Failed { .. }) {
        share.share = Share::Empty;
    }
    if !broken(Mutant::MergeTakesDuplicate) {
        return merge.report(share);
    }
    let copy = |worker: u32| ShareMessage {
        sink: share.sink,
        incarnation: share.incarnation,
        description: share.description,
        floor: share.floor,
        worker: WorkerIndex(worker),
        share: match &share.share {
            Share::Inline(run) => Share::Inline(run.clone()),
            _ => Share::Empty,
        },
        poisoned: None::<DataflowError>,
    };
    let copies: Vec<_> = (0..MOST_WORKERS).map(copy).collect();
    let refused = match merge.report(share) {
        Err(refused) if matches!(*refused.error, ChainError::DuplicateShare { .. }) => refused,
        reported => return reported,
    };
    for copy in copies {
        if let Ok(reported) = merge.report(copy) {
            return Ok(reported);
        }
    }
    Err(refused)
}

/// What rows reference before a sweep lists; nothing unless [`Mutant::SweepReadsFirst`] is armed.
///
/// Broken, a part that is put and linked between this and the listing is listed and judged by what was referenced
/// before it was there: the sweep deletes what the chain has just accepted.
pub(crate) async fn read_before(stash: &Stash) -> crate::Result<Option<BTreeSet<PartKey>>> {
    if !broken(Mutant::SweepReadsFirst) {
        return Ok(None);
    }
    let mut referenced = BTreeSet::new();
    for row in stash.sinks(true).await? {
        let keys = stash.catalog().referenced(row.spec.id).await?;
        referenced.extend(keys.into_iter().map(|(key, _)| key));
    }
    Ok(Some(referenced))
}

/// Judges objects by what was referenced before they were listed.
pub(crate) fn believe(before: Option<BTreeSet<PartKey>>, judged: &mut [Judged]) {
    let Some(before) = before else { return };
    for one in judged {
        if one.class == Class::Referenced && one.part.is_some_and(|part| !before.contains(&part)) {
            one.class = Class::Garbage(Unowned::DescriptionResolved);
        }
    }
}

/// More than any simulated replica has.
const MOST_WORKERS: u32 = 16;

/// What chains that ended had queued, by sink; nothing unless [`Mutant::QueueKept`] is armed.
///
/// Broken, the next incarnation of this process offers it as its own. Its batches were cut for another as-of and in
/// another order than what the new one mints, and the sweep may have deleted their parts, since the incarnation in
/// their keys is closed.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<BTreeMap<SinkId, VecDeque<Offered>>>);

impl Kept {
    /// Keeps what an incarnation of the sink leaves behind.
    pub(crate) fn keep(&self, sink: SinkId, queue: &mut VecDeque<Offered>) {
        if broken(Mutant::QueueKept) && !queue.is_empty() {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.entry(sink).or_default().append(queue);
        }
    }

    /// Takes what was kept.
    pub(crate) fn take(&self, sink: SinkId) -> VecDeque<Offered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&sink).unwrap_or_default()
    }
}
