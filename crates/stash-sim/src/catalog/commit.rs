//! The fenced commit that resolves an offer, and reading back what a commit did.
//!
//! The head row is the fence: a commit writes only if it stands where the decision saw it. In order: what
//! contradicts itself is refused; the incarnation's last commit, sent again, is answered as before; what the
//! state does not allow is refused; then all of it is written.

use stash_catalog::{
    BatchRow, Cas, CatalogError, CommitRequest, Committed, DeletionReason, HeadRow, HeadStatus,
    IncarnationState, NewBatch, OutcomeKind, Resolution, ResolvedOffer,
};
use stash_types::fault::{Mutant, broken};
use stash_types::{BatchId, CommitId, Frontier, RunFacts, SinkId, Timestamp};

use super::Result;
use super::state::{Batch, Kind, Sink, State, inconsistent};

impl State {
    /// Resolves an offer, if the head is as expected.
    pub(super) fn commit(&mut self, now: Timestamp, request: &CommitRequest) -> Result<Cas<Committed>> {
        check(request)?;
        let sink = request.sink;
        let held = self.sink(sink)?;
        let offerer = held.known(request.incarnation)?;
        if let Some(committed) = offerer.answered(request.commit) {
            return Ok(Cas::Done(committed));
        }
        if held.head.status == HeadStatus::Dropped {
            return Err(CatalogError::SinkDropped { sink });
        }
        // Broken, whatever an older epoch had decided takes effect: the upper moves back, times are delivered twice.
        let fenced = !broken(Mutant::NoFence);
        if let IncarnationState::Closed { reason } = &offerer.row.state
            && fenced
        {
            let (incarnation, reason) = (request.incarnation, reason.clone());
            return Err(CatalogError::IncarnationClosed { sink, incarnation, reason });
        }
        if (held.head.upper, held.head.fence) != (request.expected_upper, request.expected_fence) && fenced {
            return Ok(Cas::Conflict(held.head.clone()));
        }
        if held.head.status != HeadStatus::Open && request.resolution.moved_upper().is_some() {
            let HeadRow { status, upper, .. } = &held.head;
            return inconsistent(format!("the chain is {status:?} at {upper}: it accepts nothing"));
        }
        if request.description.upper() <= offerer.row.resolved {
            return Ok(Cas::Conflict(held.head.clone()));
        }
        self.check_resolution(held, request)?;
        self.write_resolution(now, request).map(Cas::Done)
    }

    /// Refuses what the rows do not allow: a batch or part that is in the chain already, a part that is queued, a
    /// drop that changes the status.
    fn check_resolution(&self, sink: &Sink, request: &CommitRequest) -> Result<()> {
        match &request.resolution {
            Resolution::Accept { batch, .. } => self.check_new(sink, batch),
            Resolution::Extend { .. } => Ok(()),
            Resolution::Drop { .. } if sink.head.status == request.status => Ok(()),
            Resolution::Drop { .. } => inconsistent(format!(
                "a drop cannot change the chain's status from {:?} to {:?}",
                sink.head.status, request.status
            )),
        }
    }

    fn check_new(&self, sink: &Sink, batch: &NewBatch) -> Result<()> {
        let mut batches = self.sinks.values().flat_map(|sink| sink.batches.values());
        if batches.any(|known| known.row.id == batch.id) {
            return inconsistent(format!("batch {} is in the chain already", batch.id));
        }
        let keys: Vec<_> = batch.parts.iter().map(|part| part.name.under(sink.row.shard)).collect();
        // Broken, the sender's early delete is not noticed here either.
        let heeds_queue = !broken(Mutant::HandOverDeletes);
        if let Some(key) = keys.iter().find(|key| heeds_queue && self.queue.contains_key(key)) {
            return inconsistent(format!("part {key} is queued for deletion: it cannot be linked"));
        }
        let twice =
            |(place, key)| sink.reference(key).is_some() || keys.iter().take(place).any(|one| one == key);
        match keys.iter().enumerate().find(|(place, key)| twice((*place, *key))) {
            Some((_, key)) => inconsistent(format!("part {key} is in the chain already")),
            None => Ok(()),
        }
    }

    /// Writes all of it: head, batch, deletion queue, history, resolved upper.
    fn write_resolution(&mut self, now: Timestamp, request: &CommitRequest) -> Result<Committed> {
        let sink = request.sink;
        self.move_head(request)?;
        let seq = match &request.resolution {
            Resolution::Accept { batch, .. } => Some(self.insert(now, request, batch.clone())?),
            Resolution::Extend { upper, .. } => self.extend(now, request, *upper)?,
            Resolution::Drop { .. } => None,
        };
        let reason = match request.outcome {
            OutcomeKind::Dropped => DeletionReason::Dropped,
            OutcomeKind::Accepted | OutcomeKind::Trimmed { .. } => DeletionReason::Trimmed,
        };
        let shard = self.shard(sink);
        let unlink: Vec<_> =
            request.resolution.unlinked().iter().map(|name| (name.under(shard), None)).collect();
        self.queue_keys(now, sink, &unlink, reason)?;
        self.record_commit(now, request, seq);
        let revision = self.stamp(sink)?;
        let held = self.sink_mut(sink)?;
        let committed = Committed { revision, seq, upper: held.head.upper, fence: held.head.fence };
        // I8: the resolved upper moves with the outcome.
        let offerer = held.known_mut(request.incarnation)?;
        // Broken, an offer made again after a lost reply is decided again: what was accepted is reported as dropped,
        // what was dropped is never garbage, and the inputs keep the history of the as-of for ever.
        if !broken(Mutant::ResolvedForgotten) {
            offerer.row.resolved = request.description.upper();
            offerer.row.last =
                Some(ResolvedOffer { description: request.description, outcome: request.outcome });
        }
        offerer.commit = Some((request.commit, committed));
        Ok(committed)
    }

    fn move_head(&mut self, request: &CommitRequest) -> Result<()> {
        let Some(upper) = request.resolution.moved_upper() else { return Ok(()) };
        let head = &mut self.sink_mut(request.sink)?.head;
        head.upper = upper;
        head.status = request.status.clone();
        // A poison at U moves no upper: only the fence tells who decided against the same U.
        head.fence += u64::from(upper == request.expected_upper);
        Ok(())
    }

    /// Inserts a batch as the next row; returns its `seq`.
    fn insert(&mut self, now: Timestamp, request: &CommitRequest, batch: NewBatch) -> Result<u64> {
        let NewBatch { id, lower, upper, parts, inline, facts } = batch;
        let sink = self.sink_mut(request.sink)?;
        let seq = sink.head.next_seq;
        sink.head.next_seq += 1;
        let kind = if parts.is_empty() && inline.is_empty() { Kind::Empty } else { Kind::Updates };
        let row = BatchRow {
            id,
            seq,
            lower,
            upper,
            extent: upper,
            offered: request.description,
            incarnation: request.incarnation,
            facts,
            parts,
            inline,
            accepted: now,
        };
        sink.batches.insert(seq, Batch { row, kind, linked: true });
        Ok(seq)
    }

    /// Moves the extent of the last row up to `upper`, or inserts an empty row when there is none that ends
    /// here; returns its `seq` then.
    fn extend(&mut self, now: Timestamp, request: &CommitRequest, upper: Frontier) -> Result<Option<u64>> {
        let lower = request.expected_upper;
        if upper == lower {
            return Ok(None);
        }
        let mut rows = self.sink_mut(request.sink)?.batches.values_mut();
        if let Some(last) = rows.find(|batch| batch.linked && batch.row.extent == lower) {
            last.row.extent = upper;
            return Ok(None);
        }
        let id = BatchId::from_uuid(self.ids.random());
        let (parts, inline, facts) = (Vec::new(), Vec::new(), RunFacts::default());
        self.insert(now, request, NewBatch { id, lower, upper, parts, inline, facts }).map(Some)
    }

    fn record_commit(&mut self, now: Timestamp, request: &CommitRequest, seq: Option<u64>) {
        let (sink, incarnation) = (request.sink, Some(request.incarnation));
        let event = match request.outcome {
            OutcomeKind::Accepted => "accepted",
            OutcomeKind::Trimmed { .. } => "trimmed",
            OutcomeKind::Dropped => "dropped",
        };
        let detail = match (&request.resolution, seq) {
            (Resolution::Accept { batch, .. }, Some(seq)) => format!(
                "{} as #{seq} from {}: parts {}, inline runs {}, updates {}",
                request.description,
                batch.lower,
                batch.parts.len(),
                batch.inline.len(),
                batch.facts.update_count
            ),
            (Resolution::Extend { upper, .. }, _) => {
                format!("{} is empty up to {upper}", request.description)
            }
            _ => format!("{} below {}", request.description, request.expected_upper),
        };
        self.record(now, sink, incarnation, event, detail);
        match (&request.status, request.resolution.moved_upper()) {
            (HeadStatus::Poisoned(error), Some(_)) => {
                let detail = format!("at {}: {}", error.at, error.message);
                self.record(now, sink, incarnation, "poisoned", detail);
            }
            (HeadStatus::Complete, Some(upper)) => {
                self.record(now, sink, incarnation, "completed", format!("at {upper}"));
            }
            _ => {}
        }
    }

    /// What a commit did. It stands on the row of the incarnation that made it, so that another's commit on top
    /// of it does not hide it.
    pub(super) fn read_back(&self, sink: SinkId, commit: CommitId) -> Result<Option<Committed>> {
        Ok(self.sink(sink)?.incarnations.iter().find_map(|incarnation| incarnation.answered(commit)))
    }
}

/// Refuses what contradicts itself. The wrong decisions of these three would be noticed here: broken, they are not.
fn check(request: &CommitRequest) -> Result<()> {
    let unnoticed =
        [Mutant::OutOfOrder, Mutant::DescriptionSkipped, Mutant::QueueKept].map(broken).contains(&true);
    if unnoticed { Ok(()) } else { request.check() }
}
