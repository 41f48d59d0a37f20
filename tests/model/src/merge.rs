//! The share merge by itself: workers say their share once, and the frames arrive in any order, twice or never.
//!
//! The real [`ShareMerge`] can be neither hashed nor copied, as it owns payloads. What it holds follows from what it has
//! taken, so it is made anew for every step and led to there.

use std::fmt;
use std::num::NonZeroU32;

use stash_chain::invariants::{Invariant, ensure, i1_contiguous, i2_complete, i14_one_owner};
use stash_chain::{Batch, ChainError, Minted, ShareMerge};
use stash_types::fault::Mutant;
use stash_types::{Description, Frontier, IncarnationId, Share, ShareMessage, SinkId, WorkerIndex};
use stateright::{Model, Property};
use uuid::Uuid;

use crate::state::Broken;

/// The merge of one incarnation.
#[derive(Clone, Debug)]
pub struct Merging {
    /// How many workers there are.
    pub workers: u32,
    /// How many descriptions are minted.
    pub descriptions: u32,
    /// What is broken, if anything is.
    pub mutant: Option<Mutant>,
    /// The one invariant that is asked, where not all properties are.
    pub asked: Option<Invariant>,
}

/// What a worker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Says {
    /// Nothing to write.
    Empty,
    /// Parts.
    Stashed,
    /// It failed.
    Failed,
    /// The sink is going away.
    Dropped,
}

/// Parts on their way: of which share, and which copy of its frame brought them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Payload {
    description: u32,
    worker: u32,
    copy: u8,
}

/// A share that a worker said, and how often its frame arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Said {
    description: u32,
    worker: u32,
    says: Says,
    arrived: u8,
}

/// A share that the merge took, under the worker's name it was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Taken {
    description: u32,
    counted_as: u32,
    says: Says,
    payload: Payload,
}

/// A state of the merge and its surroundings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MergeState {
    opened: u32,
    said: Vec<Said>,
    taken: Vec<Taken>,
    ended: Option<Taken>,
    /// What the merge gave back or refused: to be deleted.
    given_back: Vec<Payload>,
    left: u32,
    broken: Broken,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeAction {
    /// The next description is opened and told to all workers.
    Open,
    /// A worker says its share of a description.
    Say {
        /// The place of the description.
        description: u32,
        /// The worker.
        worker: u32,
        /// Its share.
        says: Says,
    },
    /// The frame of a share arrives, perhaps again.
    Arrive {
        /// The place of the description.
        description: u32,
        /// The worker.
        worker: u32,
    },
}

impl fmt::Display for MergeAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MergeAction::Open => f.write_str("the next description is opened"),
            MergeAction::Say { description, worker, says } => {
                write!(f, "worker {worker} says of description {description}: {says:?}")
            }
            MergeAction::Arrive { description, worker } => {
                write!(f, "the share of worker {worker} of description {description} arrives")
            }
        }
    }
}

/// What a merge that was made anew had already done.
struct Led {
    merge: ShareMerge<Payload>,
    batches: Vec<Batch<Payload>>,
    returned: Vec<Payload>,
}

const AS_OF: u64 = 3;

impl Merging {
    /// Two workers and two descriptions.
    pub fn new(mutant: Option<Mutant>, asked: Option<Invariant>) -> Merging {
        Merging { workers: 2, descriptions: 2, mutant, asked }
    }

    fn sink() -> SinkId {
        SinkId::from_uuid(Uuid::from_u128(1))
    }

    fn incarnation() -> IncarnationId {
        IncarnationId::from_uuid(Uuid::from_u128(2))
    }

    fn minted(description: u32) -> Option<Minted> {
        let lower = AS_OF + u64::from(description);
        let description = Description::new(Frontier::at(lower), Frontier::at(lower + 1))?;
        Some(Minted { description, floor: Frontier::at(AS_OF) })
    }

    fn message(&self, taken: &Taken) -> Option<ShareMessage<Payload>> {
        let minted = Merging::minted(taken.description)?;
        let share = match taken.says {
            Says::Empty => Share::Empty,
            Says::Stashed => Share::Stashed(taken.payload),
            Says::Failed if self.mutant == Some(Mutant::ErrorAsEmpty) => Share::Empty,
            Says::Failed => Share::Failed { reason: String::new() },
            Says::Dropped => Share::Dropped,
        };
        Some(ShareMessage {
            sink: Merging::sink(),
            incarnation: Merging::incarnation(),
            description: minted.description,
            floor: minted.floor,
            worker: WorkerIndex(taken.counted_as),
            share,
            poisoned: None,
        })
    }

    /// The merge as it is in this state.
    fn lead(&self, state: &MergeState) -> Led {
        let workers = NonZeroU32::new(self.workers).unwrap_or(NonZeroU32::MIN);
        let merge = ShareMerge::new(Merging::sink(), Merging::incarnation(), AS_OF, workers);
        let mut led = Led { merge, batches: Vec::new(), returned: Vec::new() };
        for minted in (0..state.opened).filter_map(Merging::minted) {
            // After the end nothing is opened; contiguous they are by their making.
            let _ = led.merge.open(minted);
        }
        for taken in state.taken.iter().chain(&state.ended) {
            if let Some(Ok(reported)) = self.message(taken).map(|message| led.merge.report(message)) {
                led.batches.extend(reported.batches);
                led.returned.extend(reported.returned);
            }
        }
        led
    }

    /// A frame arrives at the merge.
    fn report(&self, state: &mut MergeState, said: Said) {
        let payload = Payload { description: said.description, worker: said.worker, copy: said.arrived };
        let mut taken =
            Taken { description: said.description, counted_as: said.worker, says: said.says, payload };
        let Led { mut merge, batches, returned: _ } = self.lead(state);
        let before = batches.len();
        let Some(message) = self.message(&taken) else { return };
        let mut answer = merge.report(message);
        if self.mutant == Some(Mutant::MergeTakesDuplicate)
            && let Err(refused) = &answer
            && matches!(*refused.error, ChainError::DuplicateShare { .. })
        {
            // The rule that is broken by it: shares are counted, whoever they are of.
            let missing = (0..self.workers).find(|worker| {
                !state
                    .taken
                    .iter()
                    .any(|one| (one.description, one.counted_as) == (said.description, *worker))
            });
            taken.counted_as = missing.unwrap_or(taken.counted_as);
            if let Some(message) = self.message(&taken) {
                answer = merge.report(message);
            }
        }
        match answer {
            Ok(reported) => {
                let ends = reported.ended.is_some();
                state.given_back.extend(reported.returned);
                if ends {
                    state.ended = Some(taken);
                } else {
                    state.taken.push(taken);
                    state.taken.sort_unstable();
                }
                let all = batches.iter().chain(&reported.batches);
                let left: Vec<Description> = all.map(|batch| batch.description).collect();
                self.check_left(state, &left, before);
            }
            Err(refused) => state.given_back.extend(refused.payload),
        }
        state.given_back.sort_unstable();
    }

    /// I1, I2 and I12 of the batches that left.
    fn check_left(&self, state: &mut MergeState, left: &[Description], before: usize) {
        let mut note = |checked: stash_chain::invariants::Checked| {
            if let Err(violation) = checked {
                state.broken.add(violation.invariant);
            }
        };
        note(i1_contiguous(AS_OF, left));
        for description in left.iter().skip(before) {
            let of = |one: &&Taken| {
                Merging::minted(one.description).is_some_and(|minted| minted.description == *description)
            };
            let shares: Vec<Taken> = state.taken.iter().filter(of).copied().collect();
            let reported: Vec<_> = shares.iter().map(|one| WorkerIndex(one.payload.worker)).collect();
            note(i2_complete(self.workers, &reported));
            let whole = shares.iter().all(|one| matches!(one.says, Says::Empty | Says::Stashed));
            note(ensure(whole, Invariant::I12, || format!("{description} left although a worker failed")));
        }
        state.left = u32::try_from(left.len()).unwrap_or(u32::MAX);
    }

    /// I14 and I16: what arrived is in a batch, in the merge, or was given back.
    fn owners(&self, state: &MergeState) -> stash_chain::invariants::Checked {
        let arrived = state.said.iter().filter(|said| said.says == Says::Stashed).flat_map(|said| {
            let Said { description, worker, .. } = *said;
            (0..said.arrived).map(move |copy| Payload { description, worker, copy })
        });
        let Led { merge, batches, returned: _ } = self.lead(state);
        let batched = batches.into_iter().flat_map(|batch| batch.stashed);
        i14_one_owner(arrived, batched.chain(merge.close()).chain(state.given_back.iter().copied()))
    }

    fn holds(&self, state: &MergeState, invariant: Invariant) -> bool {
        let owned = || self.owners(state).is_err_and(|violation| violation.invariant == invariant);
        !state.broken.has(invariant) && !owned()
    }
}

impl crate::check::Told for Merging {
    fn tell(&self, state: &MergeState) -> String {
        let MergeState { opened, taken, given_back, left, ended, .. } = state;
        let (taken, given_back, ended) = (taken.len(), given_back.len(), ended.is_some());
        format!(
            "      {opened} opened, {taken} shares taken, {left} batches left, {given_back} given back, ended {ended}"
        )
    }
}

impl Model for Merging {
    type State = MergeState;
    type Action = MergeAction;

    fn init_states(&self) -> Vec<MergeState> {
        vec![MergeState {
            opened: 0,
            said: Vec::new(),
            taken: Vec::new(),
            ended: None,
            given_back: Vec::new(),
            left: 0,
            broken: Broken::default(),
        }]
    }

    fn actions(&self, state: &MergeState, actions: &mut Vec<MergeAction>) {
        if state.opened < self.descriptions && state.ended.is_none() {
            actions.push(MergeAction::Open);
        }
        for description in 0..state.opened {
            for worker in 0..self.workers {
                let said =
                    state.said.iter().find(|one| (one.description, one.worker) == (description, worker));
                match said {
                    None => {
                        let all = [Says::Empty, Says::Stashed, Says::Failed, Says::Dropped];
                        actions.extend(all.map(|says| MergeAction::Say { description, worker, says }));
                    }
                    Some(said) if said.arrived < 2 => {
                        actions.push(MergeAction::Arrive { description, worker });
                    }
                    Some(_) => {}
                }
            }
        }
    }

    fn next_state(&self, state: &MergeState, action: MergeAction) -> Option<MergeState> {
        let mut next = state.clone();
        match action {
            MergeAction::Open => next.opened += 1,
            MergeAction::Say { description, worker, says } => {
                next.said.push(Said { description, worker, says, arrived: 0 });
                next.said.sort_unstable();
            }
            MergeAction::Arrive { description, worker } => {
                let of = |one: &&mut Said| (one.description, one.worker) == (description, worker);
                let said = next.said.iter_mut().find(of)?;
                let arrives = *said;
                said.arrived += 1;
                self.report(&mut next, arrives);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Merging>> {
        let mut all = vec![
            Property::always("I1", |model: &Merging, state| model.holds(state, Invariant::I1)),
            Property::always("I2", |model: &Merging, state| model.holds(state, Invariant::I2)),
            Property::always("I12", |model: &Merging, state| model.holds(state, Invariant::I12)),
            Property::always("I14", |model: &Merging, state| model.holds(state, Invariant::I14)),
            Property::always("I16", |model: &Merging, state| model.holds(state, Invariant::I16)),
        ];
        if let Some(asked) = self.asked {
            all.retain(|property| property.name == asked.name());
            return all;
        }
        let sometimes = Property::<Merging>::sometimes;
        all.push(sometimes("all batches leave", |model, state| state.left == model.descriptions));
        all.push(sometimes("a duplicate is refused, with its parts", |_, state| {
            state.ended.is_none() && !state.given_back.is_empty()
        }));
        all.push(sometimes("a failure gives back what others reported", |_, state| {
            state.ended.is_some_and(|ended| ended.says == Says::Failed) && !state.given_back.is_empty()
        }));
        all.push(sometimes("the sink is going away", |_, state| {
            state.ended.is_some_and(|ended| ended.says == Says::Dropped)
        }));
        all.push(sometimes("a later description is complete first", |_, state| {
            state.left == 0 && state.taken.iter().filter(|one| one.description == 1).count() == 2
        }));
        all
    }
}
