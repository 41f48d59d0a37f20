//! The world as a model: where it starts, what can happen, and what comes of it.

use stash_chain::{Grant, Head, Status};
use stash_types::Frontier;
use stateright::{Model, Property};

use crate::action::Action;
use crate::properties;
use crate::protocol::{Protocol, later};
use crate::state::{Broken, Consumer, Holder, Incarnation, Stage, State, Sweep};

impl Protocol {
    /// The start of each scenario.
    pub fn start(&self) -> Vec<State> {
        let scenarios = self.config.scenarios.iter().enumerate();
        let starts = scenarios.map(|(scenario, sink)| {
            let (head, start) = (Head::new(sink.rules), sink.rules.start());
            State {
                scenario,
                head,
                rows: Vec::new(),
                released: start,
                delivered: vec![0; self.config.updates.len()],
                compacted: start,
                incarnations: Vec::new(),
                opens_left: self.config.opens,
                consumers: vec![Consumer { acked: start, present: true }; self.config.consumers],
                sweep: Sweep::Idle,
                broken: Broken::default(),
            }
        });
        starts.collect()
    }

    /// Everything that can happen next.
    pub fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        self.openings(state, actions);
        for (by, one) in state.incarnations.iter().enumerate() {
            self.of_process(state, by, one, actions);
            if one.flying.is_some() {
                actions.push(Action::Arrive { by });
            }
            if self.config.closings && one.row.open {
                actions.push(Action::Close { of: by });
            }
            for part in &one.parts {
                let time = part.time;
                if part.landing {
                    actions.push(Action::Land { by, time });
                }
                if part.holder == Holder::Ledger {
                    actions.push(Action::Ledger { by, time });
                }
                if part.queued && part.stored {
                    actions.push(Action::Delete { by, time });
                }
                if part.queued && !part.stored {
                    actions.push(Action::Dequeue { by, time });
                }
            }
        }
        if self.config.drops && state.head.status != Status::Dropped {
            actions.push(Action::DropSink);
        }
        if self.config.cleaning {
            self.cleaning(state, actions);
        }
    }

    fn openings(&self, state: &State, actions: &mut Vec<Action>) {
        let grants = matches!(self.grant(state), Grant::Render { .. });
        for replica in 0..self.config.replicas {
            let mine = || state.incarnations.iter().filter(|one| one.replica == replica);
            if mine().any(|one| one.process.is_some() || holds(one)) {
                actions.push(Action::Crash { replica });
            }
            if grants && state.opens_left > 0 {
                actions.push(Action::Open { replica, lets_go: true });
                if self.config.zombies && mine().any(|one| one.process.is_some()) {
                    actions.push(Action::Open { replica, lets_go: false });
                }
            }
        }
    }

    fn of_process(&self, state: &State, by: usize, one: &Incarnation, actions: &mut Vec<Action>) {
        let Some(process) = &one.process else { return };
        let mut minted = Vec::new();
        let ends = (process.next().as_u64()..self.config.horizon).map(|time| later(Frontier::at(time)));
        for frontier in ends.chain([Frontier::EMPTY]) {
            if let Ok(Some(next)) = self.mint(state, &one.row, process, frontier)
                && !minted.contains(&next)
            {
                minted.push(next);
                actions.push(Action::Mint { by, frontier });
            }
        }
        let waits = |stage| process.queue.iter().any(|batch| batch.stage == stage);
        if waits(Stage::Minted) {
            actions.push(Action::Put { by });
        }
        if waits(Stage::Sent) {
            actions.push(Action::Merge { by });
        }
        if self.config.cleaning {
            actions.push(Action::Fail { by });
        }
        if process.saw.is_some() {
            actions.extend([Action::Commit { by, heard: true }, Action::Commit { by, heard: false }]);
            if self.config.doubts {
                actions.push(Action::Doubt { by });
            }
            return;
        }
        let places =
            if self.broken(stash_types::fault::Mutant::OutOfOrder) { process.queue.len() } else { 1 };
        for (place, batch) in process.queue.iter().take(places).enumerate() {
            if batch.stage == Stage::Merged {
                actions.push(Action::Look { by, place });
            }
        }
    }

    fn cleaning(&self, state: &State, actions: &mut Vec<Action>) {
        let mut ends: Vec<Frontier> = state.rows.iter().flat_map(|row| [row.upper, row.extent]).collect();
        ends.dedup();
        for (consumer, one) in state.consumers.iter().enumerate().filter(|(_, one)| one.present) {
            let further = ends.iter().copied().filter(|end| *end > one.acked);
            actions.extend(further.map(|upper| Action::Acknowledge { consumer, upper }));
            if self.config.expiry {
                actions.push(Action::GoAway { consumer });
            }
        }
        if self.config.expiry {
            actions.extend(state.rows.iter().map(|row| Action::Expire { upper: row.extent }));
        }
        let early = self.broken(stash_types::fault::Mutant::SweepReadsFirst);
        let stored = state.incarnations.iter().flat_map(|one| &one.parts).any(|part| part.stored);
        match state.sweep {
            // A sweep that finds nothing does nothing.
            Sweep::Idle if !stored && !early => {}
            Sweep::Idle | Sweep::ReadFirst => actions.push(Action::SweepLists),
            Sweep::Listed => actions.push(Action::SweepJudges),
            Sweep::Judged => actions.push(Action::SweepQueues),
        }
    }

    /// Does it. `false` if nothing came of it.
    pub fn perform(&self, state: &mut State, action: Action) -> bool {
        match action {
            Action::Open { replica, lets_go } => {
                state.opens_left = state.opens_left.saturating_sub(1);
                self.render(state, replica, lets_go)
            }
            Action::Mint { by, frontier } => self.mint_next(state, by, frontier),
            Action::Put { by } => self.put(state, by),
            Action::Land { by, time } => self.land(state, by, time),
            Action::Merge { by } => self.merge(state, by),
            Action::Fail { by } => self.let_go(state, by),
            Action::Look { by, place } => self.look(state, by, place),
            Action::Commit { by, heard } => self.commit_seen(state, by, heard),
            Action::Doubt { by } => self.doubt(state, by),
            Action::Arrive { by } => self.arrive(state, by),
            Action::Close { of } => self.close(state, of),
            Action::Crash { replica } => self.crash(state, replica),
            Action::DropSink => self.drop_sink(state),
            Action::Acknowledge { consumer, upper } => self.acknowledge(state, consumer, upper),
            Action::GoAway { consumer } => {
                let one = state.consumers.get_mut(consumer);
                one.map(|one| one.present = false).is_some()
            }
            Action::Expire { upper } => self.expire(state, upper),
            Action::Ledger { by, time } => self.ledger(state, by, time),
            Action::SweepLists => self.sweep_lists(state),
            Action::SweepJudges => self.sweep_judges(state),
            Action::SweepQueues => self.sweep_queues(state),
            Action::Delete { by, time } => self.delete(state, by, time),
            Action::Dequeue { by, time } => self.dequeue(state, by, time),
        }
    }

    /// What follows of itself: the inputs forget what they may, and what cannot matter any longer goes.
    fn settle_down(&self, state: &mut State) {
        let hold = self.read_hold(state);
        state.check(stash_chain::invariants::i10_read_hold_rises(state.compacted, hold));
        state.compacted = hold;
        let unfenced = self.broken(stash_types::fault::Mutant::NoFence);
        let upper = state.head.upper;
        for one in &mut state.incarnations {
            // U and the fence only rise: what was decided against others can never take effect.
            one.flying.take_if(|late| !unfenced && (late.fence_moved || late.head.upper != upper));
            one.parts.retain(|part| part.matters());
            if one.process.is_none() && one.flying.is_none() {
                (one.answered, one.row.last) = (None, None);
            }
        }
    }
}

fn holds(one: &Incarnation) -> bool {
    one.parts.iter().any(|part| part.holder != Holder::Nobody)
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        self.start()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.possible(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        if !self.perform(&mut next, action) {
            return None;
        }
        self.settle_down(&mut next);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        match self.asked {
            Some(invariant) => properties::only(invariant),
            None => properties::all(&self.config),
        }
    }
}
