//! The real decisions, each behind a wrapper that may break one rule on purpose.
//!
//! Everything the model does goes through here, so that a mutant is the same world with one wrapper that lies.

use stash_chain::invariants::Invariant;
use stash_chain::{
    ChainError, ChainRules, Decision, Grant, Head, KeyFacts, Mint, Minted, Minter, Offer, Rendering, Take,
    Verdict, decide, grant, judge, read_hold, writes,
};
use stash_types::fault::Mutant;
use stash_types::{DataflowError, Description, Frontier, RunFacts};

use crate::config::{Config, Scenario};
use crate::state::{Batch, Incarnation, Process, Request, State};

/// A world, and the rule that is broken in it.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// How large it is.
    pub config: Config,
    /// What is broken, if anything is.
    pub mutant: Option<Mutant>,
    /// The one invariant that is asked, where not all properties are.
    pub asked: Option<Invariant>,
}

/// The frontier one time later.
pub fn later(frontier: Frontier) -> Frontier {
    Frontier::at(frontier.as_u64().saturating_add(1))
}

/// The frontier one time earlier.
pub fn earlier(frontier: Frontier) -> Frontier {
    Frontier::at(frontier.as_u64().saturating_sub(1))
}

impl Protocol {
    /// Whether this rule is broken.
    pub fn broken(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// The sink of a state.
    pub fn scenario(&self, state: &State) -> Scenario {
        self.config.scenarios.get(state.scenario).copied().unwrap_or_else(|| {
            self.config.scenarios.first().copied().unwrap_or(Scenario {
                rules: ChainRules { as_of: 0, up_to: Frontier::EMPTY, seals: false },
                error: None,
            })
        })
    }

    /// The sink's rules as whoever mints and decides reads them.
    pub fn rules(&self, state: &State) -> ChainRules {
        let rules = self.scenario(state).rules;
        ChainRules { seals: rules.seals || self.broken(Mutant::EmptyCompletes), ..rules }
    }

    /// Where a replica may render.
    pub fn grant(&self, state: &State) -> Grant {
        let granted = grant(self.scenario(state).rules, &state.head);
        match granted {
            Grant::Render { as_of, floor } => {
                let as_of = match self.mutant {
                    Some(Mutant::RehydrateBeyond) => state.head.upper.as_u64() + 1,
                    Some(Mutant::RehydrateAt) => state.head.upper.as_u64(),
                    Some(Mutant::RehydrateBelow) => self.scenario(state).rules.as_of - 1,
                    _ => as_of,
                };
                Grant::Render { as_of, floor }
            }
            other => other,
        }
    }

    /// The sink's hold on its inputs.
    pub fn read_hold(&self, state: &State) -> Frontier {
        let pending = state.incarnations.iter().filter(|one| one.row.open && one.row.awaits_first());
        let pending = pending.map(|one| one.row.as_of).filter(|_| !self.broken(Mutant::CompactedPast));
        read_hold(self.scenario(state).rules, &state.head, pending)
    }

    /// What the minter of an incarnation answers at `frontier`.
    ///
    /// A minter's state follows from where its incarnation stands, so it is made anew and led to there.
    pub fn mint(
        &self,
        state: &State,
        row: &Rendering,
        process: &Process,
        frontier: Frontier,
    ) -> Result<Option<Minted>, ChainError> {
        let rules = self.rules(state);
        let as_of = Frontier::at(row.as_of);
        let mut minter = Minter::new(rules, row.as_of, self.config.in_flight);
        let mut ends = vec![later(as_of).min(process.next()), process.position];
        ends.extend(process.queue.iter().map(|batch| batch.description.upper()));
        for end in ends {
            if end > minter.next()
                && let Mint::Minted(minted) = minter.mint(end, Frontier::MIN)?
                && minted.description.upper() <= process.position
            {
                minter.resolved(minted.description)?;
            }
        }
        let floor = if self.broken(Mutant::FloorAbove) { later(process.known) } else { process.known };
        let minted = minter.mint(frontier, floor)?.minted();
        if self.broken(Mutant::DescriptionSkipped) {
            return Ok(minted.map(|minted| skipping(minted).unwrap_or(minted)));
        }
        Ok(minted)
    }

    /// The times a batch of this incarnation really holds, each with the updates that stand there.
    pub fn cells(&self, state: &State, one: &Incarnation, batch: &Batch) -> Vec<(u64, Vec<u64>)> {
        let minted = Minted { description: batch.description, floor: batch.floor };
        let Some(written) = writes(minted, self.rules(state)) else { return Vec::new() };
        let mut cells: Vec<(u64, Vec<u64>)> = Vec::new();
        for own in self.config.updates.iter().copied() {
            let at = own.max(one.row.as_of);
            let there = one.snapshot || own > one.row.as_of;
            if !written.contains(at) || !there {
                continue;
            }
            match cells.iter_mut().find(|(time, _)| *time == at) {
                Some((_, updates)) => updates.push(own),
                None => cells.push((at, vec![own])),
            }
        }
        cells
    }

    /// The times of a batch whose updates travel in parts.
    pub fn part_times(&self, state: &State, one: &Incarnation, batch: &Batch) -> Vec<u64> {
        let cells = self.cells(state, one, batch);
        cells.into_iter().map(|(time, _)| time).filter(|time| self.config.parts.contains(time)).collect()
    }

    /// A batch as it is offered.
    pub fn offer(&self, state: &State, one: &Incarnation, batch: &Batch) -> Offer {
        let minted = Minted { description: batch.description, floor: batch.floor };
        let error = self.scenario(state).error.map(|at| at.max(one.row.as_of));
        let written = writes(minted, self.rules(state));
        let error = error.filter(|at| written.is_some_and(|written| written.contains(*at)));
        Offer {
            description: batch.description,
            floor: batch.floor,
            poisoned: error.map(|at| DataflowError { at, message: String::new() }),
            has_updates: !self.cells(state, one, batch).is_empty(),
        }
    }

    /// What becomes of an offer.
    pub fn decide(
        &self,
        state: &State,
        head: &Head,
        row: &Rendering,
        offer: &Offer,
    ) -> Result<Decision, ChainError> {
        let rules = self.rules(state);
        let (description, resolved) = (offer.description, offer.description.upper());
        match self.mutant {
            Some(Mutant::OutOfOrder) => {
                let anywhere = Rendering { resolved: description.lower(), ..*row };
                decide(rules, head, &anywhere, offer)
            }
            Some(Mutant::FloorAbove) => {
                let unseen = Offer { floor: offer.floor.min(head.upper), ..offer.clone() };
                decide(rules, head, row, &unseen)
            }
            Some(Mutant::StrictLower) => Ok(match decide(rules, head, row, offer)? {
                Decision::Take(take) if description.lower() != head.upper => {
                    drop(take);
                    Decision::Drop { resolved }
                }
                other => other,
            }),
            Some(Mutant::NoTrim) => Ok(match decide(rules, head, row, offer)? {
                Decision::Take(take) if description.lower() < head.upper => {
                    let whole = Description::new(description.lower(), take.piece.upper());
                    Decision::Take(Take { piece: whole.unwrap_or(take.piece), ..take })
                }
                other => other,
            }),
            _ => decide(rules, head, row, offer),
        }
    }

    /// Makes of the two rows what was decided.
    pub fn apply(&self, decision: &Decision, description: Description, head: &mut Head, row: &mut Rendering) {
        let before = *row;
        decision.apply(description, head, row);
        if self.broken(Mutant::ResolvedForgotten) {
            *row = before;
        }
    }

    /// Whether a commit takes effect: the head stands where its decision saw it.
    pub fn fence_holds(&self, state: &State, request: &Request) -> bool {
        self.broken(Mutant::NoFence) || (request.head.upper == state.head.upper && !request.fence_moved)
    }

    /// What a sweep or a ledger may do with a key.
    pub fn judge(&self, facts: KeyFacts) -> Verdict {
        judge(KeyFacts { queued: facts.queued && !self.broken(Mutant::SweepIgnoresQueue), ..facts })
    }
}

/// The facts of a part that holds one update at `time`.
pub fn facts_at(time: u64) -> RunFacts {
    RunFacts { update_count: 1, diff_sum: 1, min_time: time, max_time: time, uncompressed_bytes: 1 }
}

/// The description without its first time, if it has more.
fn skipping(minted: Minted) -> Option<Minted> {
    let description = minted.description.from(later(minted.description.lower()))?;
    Some(Minted { description, ..minted })
}
