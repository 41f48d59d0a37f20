//! How parts leave: the ledger of those that were given up, the sweep, and the deleter.

use stash_chain::invariants::i18_safe_sweep;
use stash_chain::{KeyFacts, Verdict};
use stash_types::fault::Mutant;

use crate::protocol::Protocol;
use crate::state::{Holder, Incarnation, Part, State, Sweep};

/// What the catalog knows of a part.
pub fn facts(one: &Incarnation, part: &Part) -> KeyFacts {
    KeyFacts {
        description: part.description,
        incarnation: Some((one.row.open, one.row.resolved)),
        referenced: part.linked,
        queued: part.queued,
    }
}

/// Whether no row can come to reference it: its incarnation is closed, or its description is resolved.
pub fn settled(one: &Incarnation, part: &Part) -> bool {
    !one.row.open || part.description.upper() <= one.row.resolved
}

fn part_at(state: &mut State, by: usize, time: u64) -> Option<&mut Part> {
    state.incarnations.get_mut(by)?.parts.iter_mut().find(|part| part.time == time)
}

impl Protocol {
    /// A PUT lands. Where nobody wants it any longer, only the sweep will find it.
    pub fn land(&self, state: &mut State, by: usize, time: u64) -> bool {
        let Some(part) = part_at(state, by, time).filter(|part| part.landing) else { return false };
        part.landing = false;
        part.stored = true;
        part.lost |= part.holder == Holder::Nobody && !part.owned_by_catalog();
        true
    }

    /// What was given up is queued once it is proven garbage, and forgotten once the catalog owns it.
    pub fn ledger(&self, state: &mut State, by: usize, time: u64) -> bool {
        let Some(one) = state.incarnations.get(by) else { return false };
        let found = one.parts.iter().find(|part| part.time == time && part.holder == Holder::Ledger);
        let Some(part) = found else { return false };
        let facts = facts(one, part);
        let verdict = self.judge(facts);
        if verdict == Verdict::BeingWritten {
            return false;
        }
        let garbage = matches!(verdict, Verdict::Garbage(_));
        state.check(i18_safe_sweep(&facts, verdict));
        if let Some(part) = part_at(state, by, time) {
            Protocol::settle(part);
            if garbage {
                Protocol::enqueue(part);
            }
        }
        true
    }

    /// The store is listed; or, the wrong way round, judged by what was read before.
    pub fn sweep_lists(&self, state: &mut State) -> bool {
        match (state.sweep, self.broken(Mutant::SweepReadsFirst)) {
            (Sweep::Idle, true) => {
                each(state, |_, part| part.listed = part.owned_by_catalog());
                state.sweep = Sweep::ReadFirst;
            }
            (Sweep::ReadFirst, _) => self.judge_by_old_references(state),
            (Sweep::Idle, false) => {
                each(state, |_, part| part.listed = part.stored);
                state.sweep = Sweep::Listed;
            }
            _ => return false,
        }
        true
    }

    /// References, queue and incarnations are read in one snapshot, and what was listed is judged.
    pub fn sweep_judges(&self, state: &mut State) -> bool {
        if state.sweep != Sweep::Listed {
            return false;
        }
        let mut judged = Vec::new();
        for one in &mut state.incarnations {
            let known = one.clone();
            for part in one.parts.iter_mut().filter(|part| part.listed) {
                let facts = facts(&known, part);
                let verdict = self.judge(facts);
                part.planned = matches!(verdict, Verdict::Garbage(_));
                judged.push((facts, verdict));
            }
        }
        judged.iter().for_each(|(facts, verdict)| state.check(i18_safe_sweep(facts, *verdict)));
        each(state, |_, part| part.listed = false);
        state.sweep = Sweep::Judged;
        true
    }

    /// The rule that is broken by it: what was not referenced before the listing counts as not referenced.
    fn judge_by_old_references(&self, state: &mut State) {
        let mut judged = Vec::new();
        for one in &mut state.incarnations {
            let known = one.clone();
            for part in one.parts.iter_mut().filter(|part| part.stored) {
                let facts = facts(&known, part);
                let verdict = self.judge(KeyFacts { referenced: part.listed, queued: false, ..facts });
                part.planned = matches!(verdict, Verdict::Garbage(_));
                judged.push((facts, verdict));
            }
        }
        judged.iter().for_each(|(facts, verdict)| state.check(i18_safe_sweep(facts, *verdict)));
        each(state, |_, part| part.listed = false);
        state.sweep = Sweep::Judged;
    }

    /// What was judged garbage is queued. References and queue are looked at once more.
    pub fn sweep_queues(&self, state: &mut State) -> bool {
        if state.sweep != Sweep::Judged {
            return false;
        }
        each(state, |_, part| {
            if part.planned {
                Protocol::enqueue(part);
            }
            part.planned = false;
        });
        state.sweep = Sweep::Idle;
        true
    }

    /// The deleter deletes what is queued.
    pub fn delete(&self, state: &mut State, by: usize, time: u64) -> bool {
        let Some(part) = part_at(state, by, time).filter(|part| part.queued && part.stored) else {
            return false;
        };
        part.stored = false;
        true
    }

    /// The deleter forgets what is gone. A PUT that lands afterwards is for the sweep.
    pub fn dequeue(&self, state: &mut State, by: usize, time: u64) -> bool {
        let Some(part) = part_at(state, by, time).filter(|part| part.queued && !part.stored) else {
            return false;
        };
        part.queued = false;
        true
    }
}

fn each(state: &mut State, mut change: impl FnMut(usize, &mut Part)) {
    for (by, one) in state.incarnations.iter_mut().enumerate() {
        one.parts.iter_mut().for_each(|part| change(by, part));
    }
}
