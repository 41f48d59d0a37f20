//! The replicas: they mint, write, merge, decide, commit, learn what became of it, let go, and die.

use stash_chain::invariants::{Invariant, ensure, i7_no_gap, i8_in_order, i21_idempotent};
use stash_chain::{ChainError, Outcome, Remedy, Status};
use stash_types::fault::Mutant;
use stash_types::{Description, Frontier};

use crate::catalog::Answer;
use crate::protocol::Protocol;
use crate::state::{Batch, Holder, Incarnation, Part, Request, Stage, State};

impl Protocol {
    /// A replica renders anew.
    pub fn render(&self, state: &mut State, replica: u8, lets_go: bool) -> bool {
        if lets_go && !self.broken(Mutant::QueueKept) {
            for by in 0..state.incarnations.len() {
                if state.incarnations.get(by).is_some_and(|one| one.replica == replica) {
                    self.let_go(state, by);
                }
            }
        }
        let opened = self.open(state, replica);
        if opened && self.broken(Mutant::QueueKept) {
            self.take_over(state, replica);
        }
        opened
    }

    /// The rule that is broken by it: what was queued before is the new incarnation's.
    fn take_over(&self, state: &mut State, replica: u8) {
        let last = state.incarnations.len().saturating_sub(1);
        let former = state.incarnations.iter_mut().take(last).filter(|one| one.replica == replica);
        former.for_each(|one| one.process = None);
        let process = state.incarnations.last_mut().and_then(|one| one.process.as_mut());
        if let Some(process) = process
            && let Some(first) = process.queue.first()
        {
            process.position = first.description.lower();
        }
    }

    /// Mints the next description.
    pub fn mint_next(&self, state: &mut State, by: usize, frontier: Frontier) -> bool {
        let Some(one) = state.incarnations.get(by) else { return false };
        let Some(process) = &one.process else { return false };
        let Ok(Some(minted)) = self.mint(state, &one.row, process, frontier) else { return false };
        let mut batch = Batch { description: minted.description, floor: minted.floor, stage: Stage::Minted };
        if self.part_times(state, one, &batch).is_empty() {
            batch.stage = Stage::Merged;
        }
        if let Some(process) = state.incarnations.get_mut(by).and_then(|one| one.process.as_mut()) {
            process.queue.push(batch);
        }
        true
    }

    /// Sends the PUTs of the first batch that still has to.
    pub fn put(&self, state: &mut State, by: usize) -> bool {
        let Some(one) = state.incarnations.get(by) else { return false };
        let Some(process) = &one.process else { return false };
        let Some(place) = process.queue.iter().position(|batch| batch.stage == Stage::Minted) else {
            return false;
        };
        let Some(batch) = process.queue.get(place).copied() else { return false };
        let sent = self.part_times(state, one, &batch);
        let sent: Vec<_> = sent.into_iter().map(|time| Part::sent(time, batch.description)).collect();
        let Some(one) = state.incarnations.get_mut(by) else { return false };
        one.parts.extend(sent);
        set_stage(one, place, Stage::Sent)
    }

    /// Sees that all parts of a batch landed, and merges its shares.
    pub fn merge(&self, state: &mut State, by: usize) -> bool {
        let Some(one) = state.incarnations.get_mut(by) else { return false };
        let Some(process) = &one.process else { return false };
        let Some(place) = process.queue.iter().position(|batch| batch.stage == Stage::Sent) else {
            return false;
        };
        let Some(batch) = process.queue.get(place).copied() else { return false };
        // Landed and seen to: what a sweep made of it since, for a closed incarnation, the writer does not know.
        if parts_of(one, batch.description).any(|part| part.landing) {
            return false;
        }
        parts_of(one, batch.description).for_each(|part| part.holder = Holder::Offer);
        set_stage(one, place, Stage::Merged)
    }

    /// Looks at head and incarnation and decides. What needs no transaction is resolved by that alone.
    pub fn look(&self, state: &mut State, by: usize, place: usize) -> bool {
        let Some(one) = state.incarnations.get(by).cloned() else { return false };
        let Some(batch) = one.process.as_ref().and_then(|process| process.queue.get(place)).copied() else {
            return false;
        };
        let offer = self.offer(state, &one, &batch);
        if one.row.open && state.head.status == Status::Open && batch.description.upper() > one.row.resolved {
            state.check(i7_no_gap(state.head.upper, batch.description.lower()));
        }
        let head = state.head.clone();
        match self.decide(state, &head, &one.row, &offer) {
            Err(error) => {
                self.refused(state, by, &error);
                true
            }
            Ok(decision) => {
                let owns = one.parts.iter().any(|part| part.description == batch.description);
                if decision.must_commit(&one.row, owns) {
                    let request = Request { batch, head, row: one.row, fence_moved: false };
                    set_saw(state, by, Some(request));
                } else {
                    self.learn(state, by, batch.description, decision.outcome());
                }
                true
            }
        }
    }

    /// What an honest offer is refused with tells which promise was broken before.
    fn refused(&self, state: &mut State, by: usize, error: &ChainError) {
        let blamed = match error {
            ChainError::CatalogBehind { .. } | ChainError::FloorAboveUpper { .. } => Some(Invariant::I7),
            ChainError::OutOfOrder { .. } => Some(Invariant::I8),
            ChainError::RenderedTooEarly { .. } | ChainError::RenderedTooLate { .. } => Some(Invariant::I9),
            ChainError::MayNotComplete { .. } | ChainError::BeyondUpTo { .. } => Some(Invariant::I12),
            ChainError::ErrorOutside { .. } | ChainError::ErrorBeyondUpTo { .. } => Some(Invariant::I3),
            ChainError::IncarnationClosed { .. } | ChainError::SinkDropped => None,
            _ => Some(Invariant::I12),
        };
        if let Some(blamed) = blamed {
            state.check(ensure(false, blamed, || error.to_string()));
        }
        self.let_go(state, by);
        if error.remedy() != Remedy::Reopen {
            // Nobody renders anew after such an error: it is told to a person.
            self.close(state, by);
        }
    }

    /// Commits what was decided.
    pub fn commit_seen(&self, state: &mut State, by: usize, heard: bool) -> bool {
        let process = state.incarnations.get_mut(by).and_then(|one| one.process.as_mut());
        let Some(request) = process.and_then(|process| process.saw.take()) else { return false };
        match self.commit(state, by, &request) {
            Answer::Done(outcome) if heard => {
                self.learn(state, by, request.batch.description, Some(outcome));
            }
            Answer::Done(outcome) => {
                if let Some(one) = state.incarnations.get_mut(by) {
                    one.unheard = Some(outcome);
                }
                if self.broken(Mutant::HandOverDeletes) {
                    self.delete_handed_over(state, by, request.batch.description);
                }
            }
            Answer::Conflict => {}
            Answer::Refused | Answer::Gone => drop(self.let_go(state, by)),
        }
        true
    }

    /// The rule that is broken by it: the sender deletes what may be the chain's.
    fn delete_handed_over(&self, state: &mut State, by: usize, description: Description) {
        let before = state.stored();
        if let Some(one) = state.incarnations.get_mut(by) {
            parts_of(one, description).for_each(|part| part.stored = false);
        }
        state.check(i21_idempotent("what was handed over", &before, &state.stored()));
    }

    /// The offerer stops waiting. Its commit may still arrive.
    pub fn doubt(&self, state: &mut State, by: usize) -> bool {
        let Some(one) = state.incarnations.get_mut(by) else { return false };
        let Some(process) = &mut one.process else { return false };
        if one.flying.is_some() || process.saw.is_none() {
            return false;
        }
        one.flying = process.saw.take();
        true
    }

    /// A commit arrives that nobody waits for.
    pub fn arrive(&self, state: &mut State, by: usize) -> bool {
        let Some(request) = state.incarnations.get_mut(by).and_then(|one| one.flying.take()) else {
            return false;
        };
        if let Answer::Done(outcome) = self.commit(state, by, &request)
            && let Some(one) = state.incarnations.get_mut(by)
            && one.process.as_ref().is_some_and(|process| process.queue.contains(&request.batch))
        {
            one.unheard = Some(outcome);
        }
        true
    }

    /// The offerer knows what became of a batch: its parts are the catalog's.
    fn learn(&self, state: &mut State, by: usize, description: Description, outcome: Option<Outcome>) {
        let upper = state.head.upper;
        let Some(one) = state.incarnations.get_mut(by) else { return };
        let unheard = one.unheard.take();
        let answer = (description, outcome);
        let answers: Vec<_> = one.answered.into_iter().chain([answer]).collect();
        if one.answered.is_none_or(|(before, _)| before.upper() < description.upper()) {
            one.answered = Some(answer);
        }
        parts_of(one, description).for_each(Protocol::settle);
        if let Some(process) = &mut one.process {
            process.queue.retain(|batch| batch.description != description);
            process.known = process.known.max(upper);
            process.position = process
                .queue
                .first()
                .map_or_else(|| process.position.max(description.upper()), |batch| batch.description.lower());
            process.saw = None;
        }
        state.check(i8_in_order(answers.into_iter().filter(|(_, outcome)| outcome.is_some())));
        if let (Some(first), Some(again)) = (unheard, outcome) {
            state.check(i21_idempotent("the outcome of an offer", &first, &again));
        }
    }

    /// Gives up all that was collected. A commit that is under way may still arrive.
    pub fn let_go(&self, state: &mut State, by: usize) -> bool {
        let Some(one) = state.incarnations.get_mut(by) else { return false };
        let Some(process) = one.process.take() else { return false };
        one.flying = process.saw.or(one.flying.take());
        one.unheard = None;
        let held = one.parts.iter_mut().filter(|part| part.holder != Holder::Nobody);
        held.for_each(|part| part.holder = Holder::Ledger);
        true
    }

    /// All processes of a replica die, with every handle and ledger they had.
    pub fn crash(&self, state: &mut State, replica: u8) -> bool {
        let mut died = false;
        for one in state.incarnations.iter_mut().filter(|one| one.replica == replica) {
            died |= one.process.is_some();
            if let Some(process) = one.process.take() {
                one.flying = process.saw.or(one.flying.take());
            }
            one.unheard = None;
            for part in one.parts.iter_mut().filter(|part| part.holder != Holder::Nobody) {
                died = true;
                part.holder = Holder::Nobody;
                part.lost |= !part.owned_by_catalog();
            }
        }
        died
    }
}

fn parts_of(one: &mut Incarnation, description: Description) -> impl Iterator<Item = &mut Part> {
    one.parts.iter_mut().filter(move |part| part.description == description)
}

fn set_stage(one: &mut Incarnation, place: usize, stage: Stage) -> bool {
    let batch = one.process.as_mut().and_then(|process| process.queue.get_mut(place));
    batch.map(|batch| batch.stage = stage).is_some()
}

fn set_saw(state: &mut State, by: usize, saw: Option<Request>) {
    if let Some(process) = state.incarnations.get_mut(by).and_then(|one| one.process.as_mut()) {
        process.saw = saw;
    }
}
