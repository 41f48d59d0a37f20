//! What is asked of every state, by name, and what must have been reached, so that nothing holds for want of trying.
//!
//! The predicates are those of [`stash_chain::invariants`]. A name that a step broke is kept in the state; the rest is
//! asked of the state itself.

use std::collections::{BTreeMap, BTreeSet};

use stash_chain::invariants::{
    Checked, Invariant, ensure, i1_contiguous, i4_gapless, i9_rehydrate, i10_read_hold_rises, i11_content,
    i14_one_owner, i15_no_live_delete, i19_fresh_keys,
};
use stash_chain::{Outcome, Status};
use stash_types::Frontier;
use stateright::Property;

use crate::cleanup::settled;
use crate::config::Config;
use crate::protocol::Protocol;
use crate::state::{Holder, Part, Process, State};

/// The invariants that this model speaks of. I2 is the merge's; I22 to I25 are about bytes, shards, memory and slots. I3
/// and I19 hold here by construction: an update is known by its time, and no key is drawn twice.
pub const ASKED: [Invariant; 20] = [
    Invariant::I1,
    Invariant::I3,
    Invariant::I4,
    Invariant::I5,
    Invariant::I6,
    Invariant::I7,
    Invariant::I8,
    Invariant::I9,
    Invariant::I10,
    Invariant::I11,
    Invariant::I12,
    Invariant::I13,
    Invariant::I14,
    Invariant::I15,
    Invariant::I16,
    Invariant::I17,
    Invariant::I18,
    Invariant::I19,
    Invariant::I20,
    Invariant::I21,
];

macro_rules! asked {
    ($($place:literal)*) => {
        [$(Property::always(ASKED[$place].name(), |model: &Protocol, state: &State| {
            holds(model, state, ASKED[$place])
        })),*]
    };
}

/// The invariants as properties, in the order of [`ASKED`].
fn invariants() -> [Property<Protocol>; 20] {
    asked!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19)
}

/// This invariant alone.
pub fn only(invariant: Invariant) -> Vec<Property<Protocol>> {
    invariants().into_iter().filter(|property| property.name == invariant.name()).collect()
}

/// All properties of a world of this size.
pub fn all(config: &Config) -> Vec<Property<Protocol>> {
    let mut all: Vec<_> = invariants().into();
    all.extend(reached());
    if config.replicas > 1 {
        all.push(sometimes("two replicas race from the start", |_, state| {
            processes(state).filter(|process| process.saw.is_some()).count() >= 2
        }));
        all.push(sometimes("a race is lost", |_, state| {
            let stale =
                |process: &Process| process.saw.as_ref().is_some_and(|saw| saw.head.upper < state.head.upper);
            processes(state).any(stale)
        }));
    }
    if config.has_straddlers() {
        all.push(sometimes("a straddler is trimmed", |_, state| {
            outcome(state, |last| matches!(last, Outcome::Trimmed { .. }))
        }));
    }
    if !config.scenarios.iter().all(|scenario| scenario.error.is_none()) {
        all.push(sometimes("the chain is poisoned", |_, state| {
            matches!(state.head.status, Status::Poisoned(_))
        }));
    }
    if config.scenarios.iter().any(|scenario| scenario.rules.may_complete()) {
        all.push(sometimes("the chain is complete", |_, state| state.head.status == Status::Complete));
    }
    if config.drops {
        all.push(sometimes("the sink is dropped while somebody offers", |_, state| {
            state.head.status == Status::Dropped && processes(state).any(|process| process.saw.is_some())
        }));
    }
    if config.zombies {
        all.push(sometimes("a zombie is about to commit", |_, state| {
            state
                .incarnations
                .iter()
                .any(|one| !one.row.open && one.process.as_ref().is_some_and(|process| process.saw.is_some()))
        }));
    }
    if config.doubts {
        all.push(sometimes("a late commit can still take effect", |_, state| {
            state.incarnations.iter().any(|one| one.flying.is_some() && one.process.is_some())
        }));
    }
    if config.cleaning && config.has_straddlers() && config.parts.len() > 1 {
        all.push(sometimes("a trim unlinks one part and keeps another", |_, state| {
            state.incarnations.iter().any(|one| {
                let last = one.row.last.filter(|(_, last)| matches!(last, Outcome::Trimmed { .. }));
                let of = |part: &&Part| last.is_some_and(|(of, _)| of == part.description);
                one.parts.iter().filter(of).any(|part| part.linked)
                    && one.parts.iter().filter(of).any(|part| part.queued)
            })
        }));
    }
    if config.cleaning {
        all.extend(cleaned());
    }
    if config.expiry {
        all.push(sometimes("retention took what an absent consumer had not read", |_, state| {
            state.consumers.iter().any(|one| one.acked < state.released)
        }));
    }
    all
}

fn sometimes(name: &'static str, reached: fn(&Protocol, &State) -> bool) -> Property<Protocol> {
    Property::sometimes(name, reached)
}

fn processes(state: &State) -> impl Iterator<Item = &Process> {
    state.incarnations.iter().filter_map(|one| one.process.as_ref())
}

fn outcome(state: &State, of: impl Fn(Outcome) -> bool) -> bool {
    state.incarnations.iter().any(|one| one.row.last.is_some_and(|(_, last)| of(last)))
}

fn reached() -> [Property<Protocol>; 4] {
    [
        sometimes("a batch is dropped", |_, state| outcome(state, |last| last == Outcome::Dropped)),
        sometimes("an offer is repeated after a lost reply", |_, state| {
            state.incarnations.iter().any(|one| one.unheard.is_some())
        }),
        sometimes("a replica renders below the upper", |_, state| {
            let rerendered = |as_of: u64| as_of > crate::config::AS_OF;
            state.incarnations.iter().any(|one| rerendered(one.row.as_of) && one.process.is_some())
        }),
        sometimes("the chain reaches the horizon", |model, state| {
            state.head.upper >= Frontier::at(model.config.horizon)
        }),
    ]
}

fn any_part(state: &State, of: impl Fn(&Part) -> bool) -> bool {
    state.incarnations.iter().flat_map(|one| &one.parts).any(of)
}

fn cleaned() -> [Property<Protocol>; 5] {
    [
        sometimes("the sweep finds garbage", |_, state| any_part(state, |part| part.planned)),
        sometimes("a crash loses a part", |_, state| any_part(state, |part| part.lost)),
        sometimes("a PUT lands when its incarnation is closed", |_, state| {
            state.incarnations.iter().any(|one| !one.row.open && one.parts.iter().any(|part| part.landing))
        }),
        sometimes("a ledger waits for what is not proven yet", |_, state| {
            state
                .incarnations
                .iter()
                .any(|one| one.parts.iter().any(|part| part.holder == Holder::Ledger && !settled(one, part)))
        }),
        sometimes("all is read, deleted and forgotten", |model, state| {
            state.released >= Frontier::at(model.config.horizon)
                && state.incarnations.iter().all(|one| one.parts.is_empty())
        }),
    ]
}

/// Whether an invariant holds of a state, and of the steps that led to it.
pub fn holds(model: &Protocol, state: &State, invariant: Invariant) -> bool {
    !state.broken.has(invariant) && violation(model, state, invariant).is_ok()
}

/// What is wrong with a state itself.
pub fn violation(model: &Protocol, state: &State, invariant: Invariant) -> Checked {
    let rules = model.scenario(state).rules;
    match invariant {
        Invariant::I1 => processes(state).try_for_each(contiguous).and(from_as_of(state)),
        Invariant::I4 if model.config.cleaning => rows(state),
        Invariant::I9 => state.incarnations.iter().try_for_each(|one| {
            // The upper only rises, so what was legal when it was granted stays so.
            let begun = state.head.upper.max(rules.start());
            let first = one.row.as_of == rules.as_of;
            if first { Ok(()) } else { i9_rehydrate(rules, begun, one.row.as_of) }
        }),
        Invariant::I10 => {
            let pending = state.incarnations.iter().filter(|one| one.row.open && one.row.awaits_first());
            pending.map(|one| Frontier::at(one.row.as_of)).try_for_each(|as_of| {
                // What is compacted is what the hold let go: it may not be beyond what is still to be read.
                i10_read_hold_rises(state.compacted, as_of)
            })
        }
        Invariant::I11 => content(model, state),
        Invariant::I12 => {
            ensure(!state.head.upper.is_empty() || rules.may_complete(), Invariant::I12, || {
                "a chain that may not complete is complete".to_owned()
            })?;
            model.can_go_on(state)
        }
        Invariant::I14 | Invariant::I16 => one_owner(state)
            .or_else(|violation| if violation.invariant == invariant { Err(violation) } else { Ok(()) }),
        Invariant::I15 => live(state),
        Invariant::I17 if model.config.cleaning => {
            model.can_be_cleaned(state)?;
            model.ledgers_suffice(state)
        }
        Invariant::I19 => i19_fresh_keys(
            state
                .incarnations
                .iter()
                .enumerate()
                .flat_map(|(by, one)| one.parts.iter().map(move |part| (by, part.time))),
        ),
        _ => Ok(()),
    }
}

/// I1: what is queued follows on what was resolved.
fn contiguous(process: &Process) -> Checked {
    let queued: Vec<_> = process.queue.iter().map(|batch| batch.description).collect();
    i1_contiguous(process.position.as_u64(), &queued)
}

/// I1: an incarnation of which nothing is resolved begins at its as-of.
fn from_as_of(state: &State) -> Checked {
    state.incarnations.iter().filter(|one| one.row.awaits_first()).try_for_each(|one| {
        let first = one.process.iter().flat_map(|process| process.queue.first());
        let first: Vec<_> = first.map(|batch| batch.description).collect();
        i1_contiguous(one.row.as_of, &first)
    })
}

/// I4: the rows leave no gap from what was released to the upper.
fn rows(state: &State) -> Checked {
    if state.head.status == Status::Dropped {
        return Ok(());
    }
    let rows = state.rows.iter().map(|row| (row.lower, row.upper, row.extent));
    i4_gapless(state.released, rows)?;
    let end = state.rows.last().map_or(state.released, |row| row.extent);
    ensure(end == state.head.upper, Invariant::I4, || {
        format!("the rows end at {end}, the chain at {}", state.head.upper)
    })
}

/// I11: what was accepted is what one replica would have computed; and no consumer that counts was passed.
fn content(model: &Protocol, state: &State) -> Checked {
    let rules = model.scenario(state).rules;
    let expected: BTreeMap<u64, i64> = model
        .config
        .updates
        .iter()
        .map(|own| {
            let at = Frontier::at((*own).max(rules.as_of));
            (*own, i64::from(at < state.head.upper && at < rules.up_to))
        })
        .collect();
    let delivered = model.config.updates.iter().copied().zip(state.delivered.iter().copied()).collect();
    i11_content(&expected, &delivered)?;
    state.consumers.iter().filter(|one| one.present).try_for_each(|one| {
        ensure(state.released <= one.acked, Invariant::I11, || {
            format!("released up to {}, a consumer is at {}", state.released, one.acked)
        })
    })
}

/// I14 and I16: whatever is stored has one owner, unless a crash lost it.
fn one_owner(state: &State) -> Checked {
    let (mut entered, mut left) = (Vec::new(), Vec::new());
    for (by, one) in state.incarnations.iter().enumerate() {
        for part in one.parts.iter().filter(|part| part.stored) {
            let key = (by, part.time);
            entered.push(key);
            let held = part.holder != Holder::Nobody;
            // A handle of what is settled is none of an owner: it waits to hear so.
            let counts = held && !(part.owned_by_catalog() && settled(one, part));
            let lost = part.lost && !part.owned_by_catalog() && !held;
            let owners = [part.linked, part.queued, counts, lost];
            left.extend(owners.into_iter().filter(|owns| *owns).map(|_| key));
        }
    }
    i14_one_owner(entered, left)
}

/// I15: what is referenced is stored, and not queued.
fn live(state: &State) -> Checked {
    let said =
        |keys: BTreeSet<(usize, u64)>| keys.into_iter().map(|key| (key, ())).collect::<BTreeMap<_, _>>();
    i15_no_live_delete(&said(state.parts(|part| part.linked)), &said(state.stored()), &state.queued())
}
