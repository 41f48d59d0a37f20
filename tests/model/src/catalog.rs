//! The catalog's transactions. Each is one step: all of it or nothing.
//!
//! What a commit promises of the step itself (I4 to I6, I8, I13, I16, I20) is checked here, by the real predicates, and
//! noted in [`State::broken`]; what must hold of a state is checked in `properties`.

use std::collections::BTreeSet;

use stash_chain::invariants::{
    Checked, Invariant, ensure, i3_real_times, i4_gapless, i5_drop, i6_trim, i8_in_order, i9_rehydrate,
    i13_monotone, i16_delete_at_drop, i20_fenced,
};
use stash_chain::{Decision, Grant, Outcome, Rendering, Status, Take, keeps};
use stash_types::fault::Mutant;
use stash_types::{Description, Frontier};

use crate::protocol::{Protocol, facts_at};
use crate::state::{Holder, Incarnation, Part, Process, Request, Row, State};

/// What a transaction answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is durable.
    Done(Outcome),
    /// The head moved since it was looked at.
    Conflict,
    /// The incarnation is closed, or has resolved this already.
    Refused,
    /// The sink is gone.
    Gone,
}

impl State {
    /// Notes a violation.
    pub fn check(&mut self, checked: Checked) {
        if let Err(violation) = checked {
            self.broken.add(violation.invariant);
        }
    }

    /// Raises the fence: whoever decided before has to look again.
    pub fn raise_fence(&mut self) {
        for one in &mut self.incarnations {
            let saw = one.process.as_mut().and_then(|process| process.saw.as_mut());
            saw.into_iter().chain(one.flying.as_mut()).for_each(|request| request.fence_moved = true);
        }
    }

    /// Everything that stands in the store, by incarnation and time.
    pub fn stored(&self) -> BTreeSet<(usize, u64)> {
        self.parts(|part| part.stored)
    }

    /// Everything in the deletion queue.
    pub fn queued(&self) -> BTreeSet<(usize, u64)> {
        self.parts(|part| part.queued)
    }

    /// The parts of which this is so.
    pub fn parts(&self, of: impl Fn(&Part) -> bool) -> BTreeSet<(usize, u64)> {
        let all = self.incarnations.iter().enumerate();
        let all = all.flat_map(|(by, one)| one.parts.iter().map(move |part| (by, part)));
        all.filter(|(_, part)| of(part)).map(|(by, part)| (by, part.time)).collect()
    }
}

impl Protocol {
    /// Grants an incarnation, and closes the replica's older ones.
    pub fn open(&self, state: &mut State, replica: u8) -> bool {
        let Grant::Render { as_of, floor } = self.grant(state) else { return false };
        let rules = self.scenario(state).rules;
        state.check(i9_rehydrate(rules, state.head.upper, as_of));
        let restarts = state.incarnations.iter().any(|one| one.replica == replica);
        let nothing_accepted = state.head.upper == rules.start();
        let mut inherited = Vec::new();
        for one in state.incarnations.iter_mut().filter(|one| one.replica == replica) {
            one.row.open = false;
            if self.broken(Mutant::QueueKept) {
                inherited.extend(one.process.iter_mut().flat_map(|process| process.queue.drain(..)));
            }
        }
        state.raise_fence();
        let position = Frontier::at(as_of);
        state.incarnations.push(Incarnation {
            replica,
            row: Rendering::new(as_of),
            snapshot: !(self.broken(Mutant::NoSnapshot) && restarts && nothing_accepted),
            process: Some(Process { position, known: floor, queue: inherited, saw: None }),
            flying: None,
            answered: None,
            unheard: None,
            parts: Vec::new(),
        });
        true
    }

    /// Closes an incarnation. Nothing follows for a closed one.
    pub fn close(&self, state: &mut State, of: usize) -> bool {
        let Some(one) = state.incarnations.get_mut(of).filter(|one| one.row.open) else { return false };
        one.row.open = false;
        state.raise_fence();
        true
    }

    /// Resolves an offer, if the head stands where its decision saw it.
    pub fn commit(&self, state: &mut State, by: usize, request: &Request) -> Answer {
        let Some(one) = state.incarnations.get(by).cloned() else { return Answer::Refused };
        let offer = self.offer(state, &one, &request.batch);
        let Ok(decision) = self.decide(state, &request.head, &request.row, &offer) else {
            return Answer::Refused;
        };
        if state.head.status == Status::Dropped {
            return Answer::Gone;
        }
        let moves = matches!(decision, Decision::Take(_) | Decision::Poison { .. });
        let open = state.head.status == Status::Open;
        if !self.fence_holds(state, request) || (moves && !open) {
            return Answer::Conflict;
        }
        let description = request.batch.description;
        let unfenced = self.broken(Mutant::NoFence);
        if !unfenced && (!one.row.open || description.upper() <= one.row.resolved) {
            return Answer::Refused;
        }
        let before = state.head.clone();
        let current = before.upper == request.head.upper && !request.fence_moved;
        let closed = (!one.row.open || !current).then_some(0);
        state.check(i20_fenced("the incarnation, or what it decided on,", closed, [1]));

        let mut row = one.row;
        self.apply(&decision, description, &mut state.head, &mut row);
        let outcome = decision.outcome().unwrap_or(Outcome::Dropped);
        let answered = (description, Some(outcome));
        state.check(i8_in_order(one.answered.into_iter().chain([answered])));
        state.check(ensure(row.resolved == description.upper(), Invariant::I8, || {
            format!("{description} was resolved, but not written as such")
        }));
        state.check(i13_monotone("upper", [before.upper, state.head.upper]));
        state.check(i13_monotone("resolved upper", [one.row.resolved, row.resolved]));
        if let Some(one) = state.incarnations.get_mut(by) {
            one.row = row;
            one.answered = Some(answered);
        }
        match &decision {
            Decision::Take(take) => self.link(state, by, &one, request, before.upper, take),
            Decision::Poison { .. } => {
                // The upper stays, so only the fence tells others to look again.
                state.raise_fence();
                self.unlink_all(state, by, description, true);
            }
            Decision::Drop { .. } => {
                state.check(i5_drop(before.upper, description, None));
                self.unlink_all(state, by, description, !self.broken(Mutant::DropKeepsBlobs));
            }
            Decision::Recorded(_) => {}
        }
        Answer::Done(outcome)
    }

    /// A piece joins the chain: its parts are referenced, what it does not keep is queued.
    fn link(
        &self,
        state: &mut State,
        by: usize,
        one: &Incarnation,
        request: &Request,
        upper: Frontier,
        take: &Take,
    ) {
        let (batch, piece) = (request.batch, take.piece);
        state.check(i6_trim(upper, batch.description, piece));
        // What is below the floor was never written: the piece begins there.
        let begins = piece.lower().max(batch.floor);
        state.check(i4_gapless(upper, [(begins, piece.upper(), piece.upper())]));
        let cells = self.cells(state, one, &batch);
        let taken: Vec<_> = cells.into_iter().filter(|(time, _)| keeps(&facts_at(*time), &piece)).collect();
        state.check(i3_real_times(piece, taken.iter().map(|(time, _)| *time)));
        for own in taken.iter().flat_map(|(_, updates)| updates) {
            let place = self.config.updates.iter().position(|time| time == own);
            if let Some(count) = place.and_then(|place| state.delivered.get_mut(place)) {
                *count += 1;
            }
        }
        if !self.config.cleaning {
            return;
        }
        let trimmed = batch.description.lower() < piece.lower();
        for part in self.parts_of(state, by, batch.description) {
            let kept = keeps(&facts_at(part.time), &piece);
            part.linked = kept;
            part.queued |= !kept || (trimmed && self.broken(Mutant::TrimDeletesKept));
        }
        match state.rows.last_mut() {
            Some(last) if taken.is_empty() => last.extent = piece.upper(),
            _ => state.rows.push(Row { lower: upper, upper: piece.upper(), extent: piece.upper() }),
        }
    }

    fn parts_of<'a>(
        &self,
        state: &'a mut State,
        by: usize,
        description: Description,
    ) -> impl Iterator<Item = &'a mut Part> + use<'a> {
        let parts = state.incarnations.get_mut(by).into_iter().flat_map(|one| one.parts.iter_mut());
        parts.filter(move |part| part.description == description)
    }

    /// Nothing of a batch is kept.
    fn unlink_all(&self, state: &mut State, by: usize, description: Description, queues: bool) {
        let mut let_go = Vec::new();
        for part in self.parts_of(state, by, description).filter(|part| !part.linked) {
            part.queued |= queues;
            let_go.push((by, part.time));
        }
        state.check(i16_delete_at_drop(let_go, &state.stored(), &state.queued()));
    }

    /// Drops the sink: nothing is open, nothing is referenced.
    pub fn drop_sink(&self, state: &mut State) -> bool {
        if state.head.status == Status::Dropped {
            return false;
        }
        state.head.status = Status::Dropped;
        for one in &mut state.incarnations {
            one.row.open = false;
            for part in one.parts.iter_mut().filter(|part| part.linked) {
                (part.linked, part.queued) = (false, true);
            }
        }
        state.rows.clear();
        state.raise_fence();
        true
    }

    /// Moves a consumer, and releases what all that are present are done with.
    pub fn acknowledge(&self, state: &mut State, consumer: usize, upper: Frontier) -> bool {
        let known = state.head.upper;
        let Some(one) = state.consumers.get_mut(consumer) else { return false };
        let before = one.acked;
        if upper <= before || upper > known || !one.present {
            return false;
        }
        one.acked = upper;
        state.check(i13_monotone("acknowledged", [before, upper]));
        let all = state.consumers.iter().map(|one| one.acked).min();
        if let Some(all) = all.filter(|all| *all > state.released) {
            self.unlink_below(state, all, !self.broken(Mutant::AckKeepsBlobs));
        }
        true
    }

    /// Retention, or a consumer that was away too long: what nobody present holds goes, oldest first.
    pub fn expire(&self, state: &mut State, upper: Frontier) -> bool {
        let present = state.consumers.iter().filter(|one| one.present).map(|one| one.acked).min();
        if upper <= state.released || present.is_some_and(|acked| upper > acked) {
            return false;
        }
        self.unlink_below(state, upper, true);
        true
    }

    /// Unlinks every row whose updates lie below `upper`; an empty rest of the last one stays.
    fn unlink_below(&self, state: &mut State, upper: Frontier, queues: bool) {
        let goes: Vec<Row> = state.rows.iter().copied().filter(|row| row.upper <= upper).collect();
        let mut let_go = Vec::new();
        for (by, one) in state.incarnations.iter_mut().enumerate() {
            for part in one.parts.iter_mut().filter(|part| part.linked) {
                let within = |row: &&Row| (row.lower..row.upper).contains(&Frontier::at(part.time));
                if goes.iter().find(within).is_some() {
                    part.linked = false;
                    part.queued |= queues;
                    let_go.push((by, part.time));
                }
            }
        }
        state.rows.retain(|row| row.extent > upper);
        if let Some(rest) = state.rows.first_mut().filter(|row| row.lower < upper) {
            *rest = Row { lower: upper, upper: rest.extent, extent: rest.extent };
        }
        let before = state.released;
        state.released = upper;
        state.check(i13_monotone("released", [before, upper]));
        state.check(i16_delete_at_drop(let_go, &state.stored(), &state.queued()));
        state.raise_fence();
    }

    /// Queues a part, unless a row references it or it is queued already.
    pub fn enqueue(part: &mut Part) -> bool {
        let takes = !part.owned_by_catalog();
        part.queued |= takes;
        takes
    }

    /// A ledger forgets what is its no longer.
    pub fn settle(part: &mut Part) {
        part.holder = Holder::Nobody;
    }
}
