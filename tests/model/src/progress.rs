//! Promises about what *can* still happen, asked of every state by letting it happen.
//!
//! - I12: whichever replica is the only one left, it brings the chain further, by the very steps of the model and
//!   following the remedy of each error. A step that is told to stop is a stall.
//! - I17: whatever is going on, once all processes are gone a sweep and the deleter leave exactly what is referenced;
//!   and where nobody died, the ledgers alone do.

use std::collections::BTreeSet;

use stash_chain::invariants::{Checked, i12_progress, i17_no_leak, i17_nothing_to_sweep};
use stash_chain::{Remedy, Status};
use stash_types::Frontier;

use crate::protocol::{Protocol, later};
use crate::state::{Holder, Stage, State, Sweep};

/// Steps after which a replica that works alone must have moved the chain.
const STEPS_MAX: usize = 32;

impl Protocol {
    /// I12: each replica, as the only one left, brings the chain past where it stands.
    pub fn can_go_on(&self, state: &State) -> Checked {
        if state.head.status != Status::Open {
            return Ok(());
        }
        (0..self.config.replicas).try_for_each(|replica| {
            let mut alone = state.clone();
            for other in (0..self.config.replicas).filter(|other| *other != replica) {
                self.crash(&mut alone, other);
            }
            alone.incarnations.iter_mut().for_each(|one| one.flying = None);
            for _ in 0..STEPS_MAX {
                let moved = alone.head.upper > state.head.upper || alone.head.status != Status::Open;
                if moved || !self.work(&mut alone, replica) {
                    break;
                }
            }
            let poisoned = matches!(alone.head.status, Status::Poisoned(_));
            i12_progress(alone.head.upper, later(state.head.upper), poisoned)
        })
    }

    /// One step of a replica that works alone; `false` if it stops.
    fn work(&self, state: &mut State, replica: u8) -> bool {
        let mine = |one: &crate::state::Incarnation| one.replica == replica && one.process.is_some();
        let Some(by) = state.incarnations.iter().rposition(mine) else {
            return self.render(state, replica, true);
        };
        let Some(one) = state.incarnations.get(by) else { return false };
        let Some(process) = &one.process else { return false };
        if process.saw.is_some() {
            return self.commit_seen(state, by, true);
        }
        let Some(batch) = process.queue.first().copied() else {
            let frontier = later(Frontier::at(self.config.horizon)).max(later(process.next()));
            return self.mint_next(state, by, frontier);
        };
        match batch.stage {
            Stage::Minted => self.put(state, by),
            Stage::Sent => {
                let landing: Vec<u64> =
                    one.parts.iter().filter(|part| part.landing).map(|part| part.time).collect();
                for time in landing {
                    self.land(state, by, time);
                }
                self.merge(state, by)
            }
            Stage::Merged => {
                let offer = self.offer(state, one, &batch);
                match self.decide(state, &state.head, &one.row, &offer) {
                    Err(error) if error.remedy() != Remedy::Reopen => false,
                    _ => self.look(state, by, 0),
                }
            }
        }
    }

    /// I17: once all processes are gone, a sweep and the deleter leave exactly what is referenced.
    pub fn can_be_cleaned(&self, state: &State) -> Checked {
        let mut rest = state.clone();
        for replica in 0..self.config.replicas {
            self.crash(&mut rest, replica);
        }
        self.at_rest(&mut rest);
        // The sweep that was under way ends, and another follows it.
        rest.sweep = Sweep::Idle;
        while !matches!(rest.sweep, Sweep::Listed) && self.sweep_lists(&mut rest) {
            if matches!(rest.sweep, Sweep::Judged) {
                break;
            }
        }
        if matches!(rest.sweep, Sweep::Listed) {
            self.sweep_judges(&mut rest);
        }
        self.sweep_queues(&mut rest);
        self.deleted(&mut rest);
        i17_no_leak(&rest.stored(), &rest.parts(|part| part.linked))
    }

    /// I17: where nobody died, what was given up is deleted without a sweep.
    pub fn ledgers_suffice(&self, state: &State) -> Checked {
        let mut rest = state.clone();
        for by in 0..rest.incarnations.len() {
            self.let_go(&mut rest, by);
        }
        self.at_rest(&mut rest);
        for (by, time) in rest.parts(|part| part.holder == Holder::Ledger) {
            self.ledger(&mut rest, by, time);
        }
        self.deleted(&mut rest);
        let found: BTreeSet<_> = rest.parts(|part| part.stored && !part.linked && !part.lost);
        i17_nothing_to_sweep(found)
    }

    /// Every PUT lands, no commit is under way, everything is closed.
    fn at_rest(&self, state: &mut State) {
        for (by, time) in state.parts(|part| part.landing) {
            self.land(state, by, time);
        }
        for of in 0..state.incarnations.len() {
            self.close(state, of);
        }
        state.incarnations.iter_mut().for_each(|one| one.flying = None);
    }

    fn deleted(&self, state: &mut State) {
        for (by, time) in state.parts(|part| part.queued) {
            self.delete(state, by, time);
            self.dequeue(state, by, time);
        }
    }
}
