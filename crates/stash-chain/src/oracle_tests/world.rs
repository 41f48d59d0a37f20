//! A whole system in one struct: a catalog's rows, replicas with their workers, and a ledger of parts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;

use bytes::Bytes;
use stash_types::{
    DataflowError, Description, Digest, Frontier, IncarnationId, InlineRun, RunFacts, SchemaFingerprint,
    Share, ShareMessage, SinkId, WorkerIndex,
};
use uuid::Uuid;

use crate::invariants::{
    i1_contiguous, i3_real_times, i4_gapless, i6_trim, i9_rehydrate, i10_read_hold_rises, i11_content,
    i13_monotone, i14_one_owner,
};
use crate::{
    Batch, ChainError, ChainRules, Decision, Ended, Grant, Head, Mint, Minted, Minter, Offer, Outcome,
    Rendering, ShareMerge, Status, check_rendering, decide, grant, keeps, read_hold, ready, writes,
};

/// The last time at which anything changes; after it the input ends.
pub const TIME_LAST: u64 = 12;

/// (time, row, diff).
type Update = (u64, u8, i64);

/// What stands for the parts of one share: their numbers. Not `Clone`, as an owner is not.
#[derive(Debug, PartialEq, Eq)]
struct Parts(Vec<u32>);

/// One random run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub rules: ChainRules,
    pub workers: u32,
    pub replicas: usize,
    pub updates: Vec<Update>,
    /// The dataflow is in error from this time on.
    pub error: Option<u64>,
    pub in_flight_max: usize,
    /// The step at which the sink is dropped.
    pub drop_at: Option<usize>,
    /// (what, which replica, argument).
    pub steps: Vec<(u8, u8, u8)>,
}

impl Plan {
    /// When consumers should see the error, if they should.
    pub fn error_shown(&self) -> Option<u64> {
        let shown = self.error.map(|at| at.max(self.rules.as_of));
        shown.filter(|at| Frontier::at(*at) < self.rules.up_to)
    }

    fn owner(&self, row: u8) -> u32 {
        u32::from(row) % self.workers
    }

    /// What a replica rendered at `as_of` presents at the times of `range`, consolidated; of one worker, or of all.
    fn contents(&self, as_of: u64, worker: Option<u32>, range: Description) -> Vec<Update> {
        let mut sums = BTreeMap::<(u64, u8), i64>::new();
        for (time, row, diff) in self.updates.iter().copied() {
            let time = time.max(as_of);
            if range.contains(time) && worker.is_none_or(|worker| worker == self.owner(row)) {
                *sums.entry((time, row)).or_default() += diff;
            }
        }
        sums.into_iter().filter(|(_, diff)| *diff != 0).map(|((time, row), diff)| (time, row, diff)).collect()
    }
}

#[derive(Debug)]
struct Queued {
    batch: Batch<Parts>,
    offer: Offer,
    /// What was committed, if the reply to it was lost.
    committed: Option<Outcome>,
}

struct Replica {
    incarnation: IncarnationId,
    granted: bool,
    floor: Frontier,
    minter: Minter,
    merge: ShareMerge<Parts>,
    rendering: Rendering,
    frontiers: Vec<Frontier>,
    minted: Vec<(Minted, BTreeSet<u32>)>,
    queue: VecDeque<Queued>,
    /// A decision made against the head of that commit, not yet committed.
    prepared: Option<(u64, Result<Decision, ChainError>)>,
}

pub struct World {
    plan: Plan,
    head: Head,
    commits: u64,
    replicas: Vec<Option<Replica>>,
    incarnations: u128,
    runs: Vec<Vec<Update>>,
    entered: Vec<u32>,
    linked: Vec<u32>,
    deleted: Vec<u32>,
    delivered: BTreeMap<(u64, u8), i64>,
    rows: Vec<(Frontier, Frontier, Frontier)>,
    uppers: Vec<Frontier>,
    hold: Frontier,
    seen: BTreeMap<&'static str, u32>,
}

fn sink() -> SinkId {
    SinkId::from_uuid(Uuid::from_u128(1))
}

impl World {
    pub fn new(plan: Plan) -> World {
        World {
            head: Head::new(plan.rules),
            commits: 0,
            replicas: (0..plan.replicas).map(|_| None).collect(),
            incarnations: 0,
            runs: Vec::new(),
            entered: Vec::new(),
            linked: Vec::new(),
            deleted: Vec::new(),
            delivered: BTreeMap::new(),
            rows: Vec::new(),
            uppers: Vec::new(),
            hold: Frontier::MIN,
            seen: BTreeMap::new(),
            plan,
        }
    }

    pub fn head(&self) -> &Head {
        &self.head
    }

    pub fn seen(&self) -> &BTreeMap<&'static str, u32> {
        &self.seen
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// Runs the plan's steps.
    pub fn run(&mut self) {
        for (number, (what, replica, argument)) in self.plan.steps.clone().into_iter().enumerate() {
            if self.plan.drop_at == Some(number) {
                self.head.status = Status::Dropped;
                self.commits += 1;
            }
            let replica = usize::from(replica) % self.plan.replicas;
            match what {
                _ if self.replicas[replica].is_none() => self.render(replica, argument),
                0..20 => self.advance(replica, argument),
                20..40 => self.mint(replica, argument.is_multiple_of(2)),
                40..65 => {
                    self.write(replica, u32::from(argument) % self.plan.workers, usize::from(argument / 8))
                }
                65..75 => self.prepare(replica),
                75..90 => self.commit(replica, argument.is_multiple_of(5)),
                90..94 => self.misreport(replica, argument),
                94..97 => self.skip(replica),
                97 if argument.is_multiple_of(2) => {
                    self.fail(replica, u32::from(argument / 2) % self.plan.workers)
                }
                97 => self.die(replica),
                _ => self.render_elsewhere(argument),
            }
            self.check_hold();
        }
    }

    /// Lets replica 0 alone bring the chain to its end.
    pub fn drain(&mut self) {
        for other in 1..self.plan.replicas {
            self.die(other);
        }
        for _ in 0..4 {
            if self.head.status != Status::Open {
                return;
            }
            let ended = |replica: &Replica| replica.frontiers.iter().any(|frontier| frontier.is_empty());
            if self.replicas[0]
                .as_ref()
                .is_none_or(|replica| ended(replica) && !self.plan.rules.may_complete())
            {
                self.die(0);
                self.render(0, 0);
            }
            for frontier in [Frontier::at(TIME_LAST + 1), Frontier::EMPTY] {
                self.drain_to(frontier);
            }
        }
    }

    fn drain_to(&mut self, frontier: Frontier) {
        for _ in 0..60 {
            if let Some(replica) = &mut self.replicas[0] {
                replica.frontiers.iter_mut().for_each(|at| *at = frontier.max(*at));
            }
            self.mint(0, false);
            for worker in 0..self.plan.workers {
                self.write(0, worker, 0);
            }
            self.commit(0, false);
            self.check_hold();
        }
    }

    /// Closes everything, and checks what must hold at rest.
    pub fn finish(&mut self) {
        for replica in 0..self.plan.replicas {
            self.die(replica);
        }
        i14_one_owner(self.entered.iter(), self.linked.iter().chain(&self.deleted)).expect("I14 and I16");
        i4_gapless(self.plan.rules.start(), self.rows.iter().copied()).expect("I4");
        i13_monotone("upper", self.uppers.iter().copied()).expect("I13");
        let reached = self.rows.last().map_or(self.plan.rules.start(), |row| row.2);
        assert_eq!(self.head.upper, reached, "the head says what the rows say");
    }

    fn render(&mut self, index: usize, argument: u8) {
        match grant(self.plan.rules, &self.head) {
            Grant::Render { as_of, floor } => {
                i9_rehydrate(self.plan.rules, self.head.upper, as_of).expect("a grant is legal");
                self.open(index, as_of, if argument.is_multiple_of(3) { Frontier::MIN } else { floor }, true);
                self.saw("rendered as granted");
            }
            Grant::Complete | Grant::Poisoned(_) | Grant::Dropped => {
                assert_ne!(self.head.status, Status::Open, "an open chain grants");
            }
        }
    }

    /// Tries an as-of that nobody granted, in a replica that is down.
    fn render_elsewhere(&mut self, argument: u8) {
        let (rules, upper) = (self.plan.rules, self.head.upper);
        let Some(time) = upper.time() else { return };
        if self.head.status != Status::Open {
            return;
        }
        let choices =
            [rules.as_of, rules.as_of + 1, rules.as_of.wrapping_sub(1), time - time.min(1), time, time + 1];
        let Some(as_of) = choices.get(usize::from(argument) % choices.len()).copied() else { return };
        let legal = i9_rehydrate(rules, upper, as_of);
        let checked = check_rendering(rules, &self.head, as_of);
        assert_eq!(checked.is_ok(), legal.is_ok(), "{checked:?}, but {legal:?}");
        if checked.is_err() {
            self.saw("rendering refused");
            let next = Description::new(Frontier::at(as_of), Frontier::at(as_of.saturating_add(1)));
            if let Some(description) = next {
                let offer = Offer { description, floor: Frontier::MIN, poisoned: None, has_updates: true };
                let decision = decide(rules, &self.head, &Rendering::new(as_of), &offer);
                assert!(decision.is_err(), "who renders there all the same is found out: {decision:?}");
            }
        } else {
            let index = usize::from(argument / 8) % self.plan.replicas;
            self.die(index);
            self.open(index, as_of, Frontier::MIN, false);
            self.saw("rendered elsewhere");
        }
    }

    fn open(&mut self, index: usize, as_of: u64, floor: Frontier, granted: bool) {
        self.incarnations += 1;
        let incarnation = IncarnationId::from_uuid(Uuid::from_u128(self.incarnations));
        let workers = NonZeroU32::new(self.plan.workers).expect("plans have workers");
        self.replicas[index] = Some(Replica {
            incarnation,
            granted,
            floor,
            minter: Minter::new(self.plan.rules, as_of, self.plan.in_flight_max),
            merge: ShareMerge::new(sink(), incarnation, as_of, workers),
            rendering: Rendering::new(as_of),
            frontiers: vec![Frontier::at(as_of); self.plan.workers as usize],
            minted: Vec::new(),
            queue: VecDeque::new(),
            prepared: None,
        });
    }

    fn advance(&mut self, index: usize, argument: u8) {
        let Some(replica) = &mut self.replicas[index] else { return };
        let worker = usize::from(argument) % replica.frontiers.len();
        let Some(time) = replica.frontiers[worker].time() else { return };
        let next = time + 1 + u64::from(argument / 64);
        replica.frontiers[worker] = if next > TIME_LAST + 1 { Frontier::EMPTY } else { Frontier::at(next) };
    }

    fn mint(&mut self, index: usize, stale: bool) {
        let fresh = self.head.upper;
        let Some(replica) = &mut self.replicas[index] else { return };
        let floor = if stale || fresh.is_empty() { replica.floor } else { fresh };
        match replica.minter.mint(replica.frontiers[0], floor).expect("frontiers move forth") {
            Mint::Minted(minted) => {
                replica.merge.open(minted).expect("I1: minted contiguously");
                replica.minted.push((minted, BTreeSet::new()));
                let all: Vec<_> = replica.minted.iter().map(|(minted, _)| minted.description).collect();
                i1_contiguous(replica.rendering.as_of, &all).expect("I1");
                assert!(replica.minter.open().count() <= self.plan.in_flight_max);
            }
            Mint::InFlight => self.saw("in flight limit met"),
            Mint::Ended => self.saw("incarnation ended"),
            Mint::NotYet | Mint::Complete => {}
        }
    }

    /// Worker reports one of the descriptions it is ready for, not always the oldest.
    fn write(&mut self, index: usize, worker: u32, pick: usize) {
        let dropped = self.head.status == Status::Dropped;
        let rules = self.plan.rules;
        let Some(replica) = &mut self.replicas[index] else { return };
        let frontier = replica.frontiers[worker as usize];
        let mut due: Vec<_> = replica
            .minted
            .iter_mut()
            .filter(|(minted, reported)| !reported.contains(&worker) && ready(frontier, *minted, rules))
            .collect();
        if due.is_empty() {
            return;
        }
        let pick = pick % due.len();
        let (minted, reported) = &mut due[pick];
        let minted = *minted;
        reported.insert(worker);
        let as_of = replica.rendering.as_of;
        let share =
            if dropped { (Share::Dropped, None) } else { self.share(as_of, worker, minted, frontier) };
        self.report(index, worker, minted, share);
    }

    /// What the worker contributes, having seen what lies before its own frontier.
    fn share(
        &mut self,
        as_of: u64,
        worker: u32,
        minted: Minted,
        frontier: Frontier,
    ) -> (Share<Parts>, Option<DataflowError>) {
        let Some(range) = writes(minted, self.plan.rules) else {
            self.saw("covered from birth");
            return (Share::Empty, None);
        };
        let error = self.plan.error.map(|at| at.max(as_of)).filter(|at| range.contains(*at));
        // A replica that computes otherwise than those before it finds an error below the upper.
        let disagrees = self.plan.error.is_none() && self.incarnations % 8 == 7;
        let below = range.lower().as_u64();
        let found = Some(below).filter(|_| disagrees && range.lower() < self.head().upper);
        let poisoned = error
            .or(found)
            .filter(|_| worker + 1 == self.plan.workers)
            .map(|at| DataflowError { at, message: "the dataflow is in error".to_owned() });
        let mut updates = self.plan.contents(as_of, Some(worker), range);
        updates.retain(|update| !frontier.admits(update.0));
        i3_real_times(range, updates.iter().map(|update| update.0)).expect("I3");
        let share = match updates.len() {
            0 => Share::Empty,
            1 => {
                let (id, facts) = self.run_of(updates);
                let payload = Bytes::copy_from_slice(&id.to_be_bytes());
                let digest = Digest::of(&payload);
                Share::Inline(InlineRun {
                    group: 0,
                    payload,
                    digest,
                    facts,
                    schema: SchemaFingerprint(digest),
                })
            }
            _ => {
                let parts: Vec<_> = updates.chunks(2).map(|chunk| self.run_of(chunk.to_vec()).0).collect();
                self.entered.extend(&parts);
                Share::Stashed(Parts(parts))
            }
        };
        (share, poisoned)
    }

    fn run_of(&mut self, updates: Vec<Update>) -> (u32, RunFacts) {
        let facts = facts(&updates);
        self.runs.push(updates);
        (self.runs.len() as u32 - 1, facts)
    }

    fn report(
        &mut self,
        index: usize,
        worker: u32,
        minted: Minted,
        (share, poisoned): (Share<Parts>, Option<DataflowError>),
    ) {
        let Some(replica) = &mut self.replicas[index] else { return };
        let Minted { description, floor } = minted;
        let (incarnation, worker) = (replica.incarnation, WorkerIndex(worker));
        let message = ShareMessage { sink: sink(), incarnation, description, floor, worker, share, poisoned };
        let reported = replica.merge.report(message).expect("a rightful share is taken");
        for batch in reported.batches {
            assert_eq!((batch.sink, batch.incarnation), (sink(), incarnation));
            let offer = Offer {
                description: batch.description,
                floor: batch.floor,
                poisoned: batch.poisoned.clone(),
                has_updates: batch.has_updates(),
            };
            replica.queue.push_back(Queued { batch, offer, committed: None });
        }
        self.deleted.extend(reported.returned.into_iter().flat_map(|parts| parts.0));
        match reported.ended {
            None => {}
            Some(Ended::Failed { .. }) => {
                self.saw("failed share");
                self.die(index);
            }
            Some(Ended::Dropped) => {
                self.saw("dropped share");
                self.die(index);
            }
        }
    }

    fn fail(&mut self, index: usize, worker: u32) {
        let Some(replica) = &mut self.replicas[index] else { return };
        let due = replica.minted.iter_mut().find(|(_, reported)| !reported.contains(&worker));
        let Some((minted, reported)) = due else { return };
        reported.insert(worker);
        let minted = *minted;
        self.report(index, worker, minted, (Share::Failed { reason: "the disk is full".to_owned() }, None));
    }

    /// A message that must be refused, with a payload that must come back.
    fn misreport(&mut self, index: usize, argument: u8) {
        let part = self.run_of(vec![(0, 0, 1)]).0;
        let workers = self.plan.workers;
        let Some(replica) = &mut self.replicas[index] else { return };
        let Some((minted, reported)) =
            replica.minted.get(usize::from(argument / 8) % replica.minted.len().max(1))
        else {
            return;
        };
        let mut message = ShareMessage {
            sink: sink(),
            incarnation: replica.incarnation,
            description: minted.description,
            floor: minted.floor,
            worker: WorkerIndex(0),
            share: Share::Stashed(Parts(vec![part])),
            poisoned: None,
        };
        match argument % 6 {
            0 => message.incarnation = IncarnationId::from_uuid(Uuid::from_u128(self.incarnations + 1)),
            1 => message.sink = SinkId::from_uuid(Uuid::from_u128(2)),
            2 => message.worker = WorkerIndex(workers),
            3 => message.floor = Frontier::at(77),
            4 => {
                let other = Description::new(message.description.lower(), Frontier::at(99));
                message.description = other.expect("times end before 99");
            }
            _ => match reported.first() {
                Some(worker) => message.worker = WorkerIndex(*worker),
                None => return,
            },
        }
        let refused = replica.merge.report(message).expect_err("must be refused");
        self.entered.push(part);
        self.deleted.extend(refused.payload.into_iter().flat_map(|parts| parts.0));
        self.saw("share refused");
    }

    fn prepare(&mut self, index: usize) {
        let Some(replica) = &mut self.replicas[index] else { return };
        let Some(queued) = replica.queue.front() else { return };
        let decision = decide(self.plan.rules, &self.head, &replica.rendering, &queued.offer);
        replica.prepared = Some((self.commits, decision));
    }

    /// Offers the batch behind the first before its turn.
    fn skip(&mut self, index: usize) {
        let Some(replica) = &self.replicas[index] else { return };
        let (Some(first), Some(second)) = (replica.queue.front(), replica.queue.get(1)) else { return };
        if self.head.status == Status::Open && first.offer.description.upper() > self.head.upper {
            let decision = decide(self.plan.rules, &self.head, &replica.rendering, &second.offer);
            assert!(matches!(decision, Err(ChainError::CatalogBehind { .. })), "{decision:?}");
            self.saw("skipping offer refused");
        }
    }

    /// Commits the prepared decision if the head is still the same, else decides again.
    fn commit(&mut self, index: usize, lose_reply: bool) {
        let stale = match &self.replicas[index] {
            Some(Replica { prepared: Some((commits, _)), .. }) => *commits != self.commits,
            _ => true,
        };
        if stale {
            if self.replicas[index].as_ref().is_some_and(|replica| replica.prepared.is_some()) {
                self.saw("race lost");
            }
            self.prepare(index);
        }
        let Some(replica) = &mut self.replicas[index] else { return };
        let (Some((_, decision)), Some(mut queued)) = (replica.prepared.take(), replica.queue.pop_front())
        else {
            return;
        };
        let decision = match decision {
            Ok(decision) => decision,
            Err(error) => {
                replica.queue.push_front(queued);
                match error {
                    ChainError::ErrorBelowUpper { .. } => self.saw("error below the upper"),
                    ChainError::SinkDropped => {}
                    other => panic!("a rightful offer was refused: {other}"),
                }
                return self.die(index);
            }
        };
        if let Decision::Recorded(outcome) = &decision {
            assert!(outcome.is_some() && *outcome == queued.committed, "{outcome:?}, {:?}", queued.committed);
            replica.minter.resolved(queued.offer.description).expect("was open");
            return self.saw("reply lost, outcome recorded");
        }
        assert_eq!(queued.committed, None, "decided a second time: {decision:?}");
        let parts: Vec<u32> = queued.batch.stashed.drain(..).flat_map(|parts| parts.0).collect();
        if decision.must_commit(&replica.rendering, !parts.is_empty()) {
            let (before, resolved) = (self.head.upper, replica.rendering.resolved);
            decision.apply(queued.offer.description, &mut self.head, &mut replica.rendering);
            i13_monotone("resolved", [resolved, replica.rendering.resolved]).expect("I13");
            self.commits += 1;
            self.uppers.push(self.head.upper);
            queued.committed = decision.outcome();
            self.carry_out(&decision, before, &queued, parts);
        } else {
            assert!(parts.is_empty());
            self.saw("dropped without a write");
        }
        let Some(replica) = &mut self.replicas[index] else { return };
        if lose_reply {
            replica.queue.push_front(queued);
        } else {
            replica.minter.resolved(queued.offer.description).expect("was open");
        }
    }

    fn carry_out(&mut self, decision: &Decision, before: Frontier, queued: &Queued, parts: Vec<u32>) {
        let Decision::Take(take) = decision else {
            self.deleted.extend(parts);
            let poison = matches!(decision, Decision::Poison { .. });
            return self.saw(if poison { "poisoned at the upper" } else { "dropped" });
        };
        i6_trim(before, queued.offer.description, take.piece).expect("I5 and I6");
        match take.status {
            Status::Poisoned(_) => self.saw("poisoned with a piece"),
            Status::Complete => self.saw("complete"),
            Status::Open | Status::Dropped => {}
        }
        self.saw(if take.outcome == Outcome::Accepted { "accepted" } else { "trimmed" });
        let inline = queued.batch.inline.iter().map(|run| {
            u32::from_be_bytes(run.payload[..].try_into().expect("inline payloads are four bytes"))
        });
        let mut kept: Vec<u32> = inline.collect();
        for part in parts {
            if keeps(&facts(&self.runs[part as usize]), &take.piece) {
                kept.push(part);
                self.linked.push(part);
            } else {
                self.deleted.push(part);
                self.saw("part unlinked by a trim");
            }
        }
        for run in kept {
            for (time, row, diff) in self.runs[run as usize].iter().copied() {
                if take.piece.contains(time) {
                    *self.delivered.entry((time, row)).or_default() += diff;
                }
            }
        }
        match self.rows.last_mut() {
            Some(last) if take.empty => {
                last.2 = take.upper;
                self.saw("empty batch extended a row");
            }
            _ => self.rows.push((take.piece.lower(), take.piece.upper(), take.upper)),
        }
        self.check_content();
    }

    /// I11, up to the present upper.
    fn check_content(&self) {
        let rules = self.plan.rules;
        let all = Description::new(Frontier::MIN, self.head.upper.min(rules.up_to));
        let expected = all.map_or_else(Vec::new, |all| self.plan.contents(rules.as_of, None, all));
        let expected = expected.into_iter().map(|(time, row, diff)| ((time, row), diff)).collect();
        i11_content(&expected, &self.delivered).expect("I11");
    }

    /// I10. Only grants count: who renders elsewhere must find the inputs still there by itself.
    fn check_hold(&mut self) {
        let pending = |replica: &Replica| replica.granted && replica.rendering.awaits_first();
        let pending = self.replicas.iter().flatten().filter(|replica| pending(replica));
        let hold = read_hold(self.plan.rules, &self.head, pending.map(|replica| replica.rendering.as_of));
        i10_read_hold_rises(self.hold, hold).expect("I10");
        self.hold = hold;
    }

    /// The replica dies: its incarnation is closed, and what it still holds goes.
    fn die(&mut self, index: usize) {
        let Some(mut replica) = self.replicas[index].take() else { return };
        self.saw("died");
        self.deleted.extend(replica.merge.close().into_iter().flat_map(|parts| parts.0));
        replica.rendering.open = false;
        for queued in replica.queue {
            match decide(self.plan.rules, &self.head, &replica.rendering, &queued.offer) {
                Ok(Decision::Recorded(outcome)) => assert_eq!(outcome, queued.committed),
                Err(ChainError::IncarnationClosed { .. } | ChainError::SinkDropped) => {
                    assert_eq!(queued.committed, None, "what was committed is not refused");
                    self.saw("zombie offer refused");
                }
                other => panic!("a zombie was heard: {other:?}"),
            }
            self.deleted.extend(queued.batch.stashed.into_iter().flat_map(|parts| parts.0));
        }
    }
}

fn facts(updates: &[Update]) -> RunFacts {
    let times = || updates.iter().map(|update| update.0);
    RunFacts {
        update_count: updates.len() as u64,
        diff_sum: updates.iter().map(|update| i128::from(update.2)).sum(),
        min_time: times().min().unwrap_or_default(),
        max_time: times().max().unwrap_or_default(),
        uncompressed_bytes: 0,
    }
}
