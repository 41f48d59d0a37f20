//! The watch: looks at the truth around every effect, and asks the invariants.
//!
//! It runs between the effect and anything else, so what it finds is what the effect made. It keeps what only an
//! outsider can know: who was granted what, what each process was told, which parts each batch was offered with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use stash_blob::{BlobEntry, BlobEntryKind};
use stash_catalog::{
    Acknowledged, Cas, CatalogError, CommitRequest, Committed, ConsumerRow, HeadRow, HeadStatus,
    IncarnationRow, IncarnationState, KeyState, OpenIncarnation, Opened, OutcomeKind, Resolution, View,
};
use stash_chain::KeyFacts;
use stash_chain::invariants::{
    Checked, Invariant, ensure, i4_gapless, i6_trim, i7_no_gap, i8_in_order, i9_rehydrate, i13_monotone,
    i14_one_owner, i15_no_live_delete, i16_delete_at_drop, i18_safe_sweep, i20_fenced, i23_isolated,
};
use stash_types::{
    BlobKey, ConsumerName, Description, Digest, Frontier, IncarnationId, PartKey, SessionId, ShardId, SinkId,
};

use crate::invariants::{
    i12_completes_by_rule, i15_not_deleted, i18_listed_then_judged, i20_met_its_head, i21_same_delivery,
};
use crate::oracle::Content;
use crate::store::{short, short_id, short_part};
use crate::world::{World, lock};

/// Every so many accepted batches the whole chain is looked at.
const ROWS_EVERY: u64 = 16;

/// What the watch knows.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The sinks of the run: shard, id, place.
    sinks: BTreeMap<ShardId, (SinkId, usize)>,
    /// What each process was granted.
    granted: BTreeMap<String, BTreeSet<(ShardId, IncarnationId)>>,
    /// What each process listed, and what it was told of it afterwards.
    seen: BTreeMap<String, BTreeMap<PartKey, Option<KeyFacts>>>,
    /// The parts of the shares that were merged.
    offered: BTreeMap<(IncarnationId, Description), BTreeSet<PartKey>>,
    uppers: BTreeMap<SinkId, Frontier>,
    acked: BTreeMap<(SinkId, ConsumerName), Frontier>,
    answers: BTreeMap<IncarnationId, Vec<(Description, OutcomeKind)>>,
    delivered: BTreeMap<usize, BTreeMap<Frontier, (Frontier, Content)>>,
    accepted: u64,
}

/// What a write met.
#[derive(Debug)]
pub(crate) struct Before {
    head: HeadRow,
    referenced: BTreeSet<PartKey>,
}

fn facts_of(state: &KeyState) -> KeyFacts {
    KeyFacts {
        description: state.key.name.description,
        incarnation: state
            .incarnation
            .as_ref()
            .map(|(state, resolved)| (*state == IncarnationState::Open, *resolved)),
        referenced: state.referenced_by.is_some(),
        queued: state.queued.is_some(),
    }
}

impl Watch {
    /// A sink was declared.
    pub(crate) fn declared(&self, shard: ShardId, sink: SinkId, place: usize) {
        lock(&self.state).sinks.insert(shard, (sink, place));
    }

    /// The ids of the sinks.
    pub(crate) fn sinks(&self) -> Vec<(SinkId, usize)> {
        let mut sinks: Vec<_> = lock(&self.state).sinks.values().copied().collect();
        sinks.sort_by_key(|(_, place)| *place);
        sinks
    }

    /// A process begins to PUT `key` (I23).
    pub(crate) fn put(&self, world: &World, who: &str, key: &BlobKey) {
        let Some(part) = key.part_key() else { return };
        let granted = lock(&self.state).granted.get(who).cloned().unwrap_or_default();
        let own = granted.iter().any(|own| *own == (part.shard, part.name.incarnation));
        let shard = granted.iter().find(|(_, of)| *of == part.name.incarnation).map(|(shard, _)| *shard);
        world.check(who, shard.map_or(Ok(()), |shard| i23_isolated(shard, [&part])));
        world.check(
            who,
            ensure(own, Invariant::I23, || format!("{part} is not of a rendering of this process")),
        );
    }

    /// A key was deleted, or was found gone (I15, I23).
    pub(crate) async fn deleted(&self, world: &World, who: &str, key: &BlobKey) {
        let Some(part) = key.part_key() else {
            let checked = ensure(false, Invariant::I23, || format!("{} was deleted", short(key)));
            return world.check(who, checked);
        };
        let sink = lock(&self.state).sinks.get(&part.shard).copied();
        let Some((sink, _)) = sink else {
            let checked = ensure(false, Invariant::I23, || format!("{part} is of no sink, and was deleted"));
            return world.check(who, checked);
        };
        if let Ok(states) = world.truth.key_states(sink, &[part]).await {
            let referenced_by = states.first().and_then(|state| state.referenced_by);
            world.check(who, i15_not_deleted(&part, referenced_by));
        }
    }

    /// A process got a listing.
    pub(crate) fn listed(&self, who: &str, entries: &[BlobEntry]) {
        let mut state = lock(&self.state);
        let seen = state.seen.entry(who.to_owned()).or_default();
        for entry in entries {
            if let BlobEntryKind::Object(key) = &entry.kind
                && let Some(part) = key.part_key()
            {
                seen.entry(part).or_default();
            }
        }
    }

    /// A process was told of keys. Being garbage is monotone, so what it was told so once stays.
    pub(crate) fn answered(&self, who: &str, states: &[KeyState]) {
        let mut state = lock(&self.state);
        let Some(seen) = state.seen.get_mut(who) else { return };
        for told in states {
            if let Some(facts) = seen.get_mut(&told.key) {
                let now = facts_of(told);
                let garbage = |facts: &KeyFacts| {
                    let verdict = stash_chain::Verdict::Garbage(stash_chain::Why::Closed);
                    i18_safe_sweep(facts, verdict).is_ok()
                };
                if !facts.as_ref().is_some_and(garbage) {
                    *facts = Some(now);
                }
            }
        }
    }

    /// A process queues what it swept (I18).
    pub(crate) fn swept(&self, world: &World, who: &str, keys: &[PartKey]) {
        for key in keys {
            let told = lock(&self.state).seen.get(who).and_then(|seen| seen.get(key).copied()).flatten();
            world.check(who, i18_listed_then_judged(key, told.as_ref()));
        }
    }

    /// The minting worker merged a share with these parts.
    pub(crate) fn merged(&self, incarnation: IncarnationId, description: Description, keys: &[PartKey]) {
        lock(&self.state).offered.entry((incarnation, description)).or_default().extend(keys);
    }

    /// What stands before a write.
    pub(crate) async fn before(&self, world: &World, sink: SinkId) -> Option<Before> {
        let head = world.truth.head(sink).await.ok()?;
        let referenced = world.truth.referenced(sink).await.ok()?;
        Some(Before { head, referenced: referenced.into_iter().map(|(key, _)| key).collect() })
    }

    /// What a write made (I13, I14, I15, I16, I12).
    pub(crate) async fn after(
        &self,
        world: &World,
        who: &str,
        op: &str,
        sink: SinkId,
        before: Option<Before>,
    ) {
        let (Some(before), Some(now)) = (before, self.before(world, sink).await) else { return };
        if now.head.revision == before.head.revision {
            return;
        }
        let place = lock(&self.state).sinks.values().find(|(id, _)| *id == sink).map(|(_, place)| *place);
        let upper = lock(&self.state).uppers.insert(sink, now.head.upper).unwrap_or(Frontier::MIN);
        world.check(who, i13_monotone("the upper", [upper, before.head.upper, now.head.upper]));
        if let Some(facts) = place.and_then(|place| world.sinks.get(place)) {
            world.check(who, i12_completes_by_rule(facts.rules(), now.head.upper));
        }
        if now.head.upper != before.head.upper {
            world.say(who, format!("{op}: upper {} -> {}", before.head.upper, now.head.upper));
        }
        let mut last = lock(&self.state).acked.clone();
        for row in world.truth.consumers(sink).await.unwrap_or_default() {
            let acked = last.insert((sink, row.name.clone()), row.acked).unwrap_or(Frontier::MIN);
            world.check(who, i13_monotone("what a consumer acknowledged", [acked, row.acked]));
        }
        lock(&self.state).acked = last;
        let let_go: Vec<PartKey> = before.referenced.difference(&now.referenced).copied().collect();
        let all: Vec<PartKey> = before.referenced.union(&now.referenced).copied().collect();
        let queued = queued(world, sink, &all).await;
        let stored: BTreeSet<PartKey> = all.iter().filter(|key| is_stored(world, key)).copied().collect();
        world.check(who, i16_delete_at_drop(let_go, &stored, &queued));
        let owners = now.referenced.iter().chain(queued.intersection(&now.referenced));
        world.check(who, i14_one_owner(now.referenced.iter(), owners));
        let there = |keys: &BTreeSet<PartKey>| keys.iter().map(|key| (*key, ())).collect::<BTreeMap<_, _>>();
        world.check(who, i15_no_live_delete(&there(&now.referenced), &there(&stored), &queued));
    }

    /// A process was told which incarnation its launch writes as, and may write as it. The place of its sink.
    pub(crate) fn joined(&self, who: &str, row: &IncarnationRow) -> Option<usize> {
        let mut state = lock(&self.state);
        let (shard, place) = state
            .sinks
            .iter()
            .find(|(_, (id, _))| *id == row.sink)
            .map(|(shard, (_, place))| (*shard, *place))?;
        state.granted.entry(who.to_owned()).or_default().insert((shard, row.id));
        Some(place)
    }

    /// An incarnation was opened, or read by another process of its launch (I9).
    pub(crate) async fn opened(
        &self,
        world: &World,
        who: &str,
        asked: &OpenIncarnation,
        answer: &Result<Cas<Opened>, CatalogError>,
    ) {
        let Ok(Cas::Done(opened)) = answer else { return };
        let row = &opened.incarnation;
        let Some(place) = self.joined(who, row) else { return };
        if !opened.created {
            return;
        }
        if let Some(facts) = world.sinks.get(place) {
            world.check(who, i9_rehydrate(facts.rules(), asked.expected_upper, row.as_of));
        }
        world.count("opened");
        let id = short_id(row.id);
        world.say(
            who,
            format!("{} opened {id} as of {} (upper {})", row.replica, row.as_of, asked.expected_upper),
        );
        for closed in &opened.closed {
            world.say(who, format!("closed {}, replaced", short_id(closed)));
        }
    }

    /// An offer was committed, or not (I4, I5, I6, I7, I8, I15, I16, I20).
    pub(crate) async fn committed(
        &self,
        world: &World,
        who: &str,
        asked: &CommitRequest,
        met: Result<View, CatalogError>,
        answer: &Result<Cas<Committed>, CatalogError>,
    ) {
        let (Ok(View { head, incarnation }), Ok(Cas::Done(done))) = (met, answer) else {
            if matches!(answer, Ok(Cas::Conflict(_))) {
                world.count("lost race");
            }
            return;
        };
        if done.revision <= head.revision {
            world.count("commit answered again");
            return;
        }
        let description = asked.description;
        let open = incarnation.state == IncarnationState::Open;
        let expected = (asked.expected_upper, asked.expected_fence);
        world.check(who, i20_met_its_head(open, expected, (head.upper, head.fence), description));
        let answers = {
            let mut state = lock(&self.state);
            let answers = state.answers.entry(asked.incarnation).or_default();
            answers.push((description, asked.outcome));
            answers.clone()
        };
        world.check(who, i8_in_order(answers));
        let taken = match &asked.resolution {
            Resolution::Accept { batch, .. } => Description::new(batch.lower, batch.upper),
            Resolution::Extend { upper, .. } => Description::new(head.upper, *upper),
            Resolution::Drop { .. } => None,
        };
        if let Some(piece) = taken {
            world.check(who, i7_no_gap(head.upper, description.lower()));
            world.check(who, i6_trim(head.upper, description, piece));
        }
        let (outcome, kept) = match (&asked.resolution, asked.outcome) {
            (Resolution::Accept { batch, .. }, OutcomeKind::Trimmed { .. }) => ("trimmed", batch.parts.len()),
            (Resolution::Accept { batch, .. }, _) => ("accepted", batch.parts.len()),
            (Resolution::Extend { .. }, OutcomeKind::Dropped) => ("poisoned at the upper", 0),
            (Resolution::Extend { .. }, _) => ("accepted empty", 0),
            (Resolution::Drop { .. }, _) => ("dropped", 0),
        };
        world.count(outcome);
        match &asked.status {
            HeadStatus::Poisoned(_) if head.status == HeadStatus::Open => world.count("poisoned"),
            HeadStatus::Complete if head.status == HeadStatus::Open => world.count("completed"),
            _ => {}
        }
        let (Resolution::Accept { unlink, .. }
        | Resolution::Extend { unlink, .. }
        | Resolution::Drop { unlink }) = &asked.resolution;
        let id = short_id(asked.incarnation);
        world.say(who, format!("{outcome} {description} of {id}, {kept} parts, {} let go", unlink.len()));
        self.parts_of(world, who, asked).await;
        let accepted = {
            let mut state = lock(&self.state);
            state.accepted += 1;
            state.accepted
        };
        if accepted.is_multiple_of(ROWS_EVERY) {
            self.rows(world, who, asked.sink).await;
        }
    }

    async fn parts_of(&self, world: &World, who: &str, asked: &CommitRequest) {
        let CommitRequest { sink, incarnation, description, resolution, .. } = asked;
        let Some(shard) = self.shard(*sink) else { return };
        if let Resolution::Accept { batch, .. } = resolution {
            let rows = batch.parts.iter().map(|part| (part.name.under(shard), part.descriptor.digest));
            let said: BTreeMap<PartKey, Digest> = rows.collect();
            let stored =
                said.keys().filter_map(|key| Some((*key, world.store.digest(&BlobKey::from(*key))?)));
            world.check(who, i15_no_live_delete(&said, &stored.collect(), &BTreeSet::new()));
            if batch.parts.len() > 1 {
                world.count("several parts");
            }
            let runs: BTreeSet<_> =
                batch.parts.iter().map(|part| (part.descriptor.process, part.descriptor.run)).collect();
            if batch.parts.iter().any(|part| part.descriptor.ordinal > 0) {
                world.count("a run of several parts");
            }
            if runs.len() > 1 {
                world.count("several runs");
            }
            if !batch.inline.is_empty() {
                world.count("inline");
            }
        }
        let offered = lock(&self.state).offered.remove(&(*incarnation, *description)).unwrap_or_default();
        let keys: Vec<PartKey> = offered.into_iter().collect();
        let states = world.truth.key_states(*sink, &keys).await.unwrap_or_default();
        let let_go = states.iter().filter(|state| state.referenced_by.is_none()).map(|state| state.key);
        let queued = states.iter().filter(|state| state.queued.is_some()).map(|state| state.key).collect();
        let stored = keys.iter().filter(|key| is_stored(world, key)).copied().collect();
        world.check(who, i16_delete_at_drop(let_go, &stored, &queued));
    }

    /// Looks at the rows of a chain (I4).
    pub(crate) async fn rows(&self, world: &World, who: &str, sink: SinkId) {
        let Ok(slice) = world.truth.chain(sink, Frontier::MIN, u32::MAX).await else { return };
        if let (Some(first), Some(last)) = (slice.batches.first(), slice.batches.last()) {
            let rows = slice.batches.iter().map(|row| (row.lower, row.upper, row.extent));
            world.check(who, i4_gapless(first.lower, rows));
            world.check(who, i4_gapless(last.extent, []));
            let ends = last.extent == slice.head.upper;
            world.check(
                who,
                ensure(ends, Invariant::I4, || {
                    format!("the rows end at {}, the head at {}", last.extent, slice.head.upper)
                }),
            );
        }
    }

    fn shard(&self, sink: SinkId) -> Option<ShardId> {
        lock(&self.state).sinks.iter().find(|(_, (id, _))| *id == sink).map(|(shard, _)| *shard)
    }

    /// A consumer acknowledged, or tried to (I20).
    #[expect(clippy::too_many_arguments, reason = "the request and what stood around it")]
    pub(crate) fn acknowledged(
        &self,
        world: &World,
        who: &str,
        consumer: &ConsumerName,
        session: SessionId,
        upper: Frontier,
        before: Result<Vec<ConsumerRow>, CatalogError>,
        answer: &Result<Acknowledged, CatalogError>,
    ) {
        let Ok(done) = answer else {
            if matches!(answer, Err(CatalogError::SessionFenced { .. })) {
                world.count("fenced session");
            }
            return;
        };
        let row = before.into_iter().flatten().find(|row| row.name == *consumer);
        let replaced = row.is_none_or(|row| row.session != session);
        let (closed, wrote) = if replaced { (Some(0), vec![1]) } else { (None, vec![]) };
        world.check(who, i20_fenced("a replaced session", closed, wrote));
        world.count("acknowledged");
        world.count_many("released", done.released);
        world.say(who, format!("{consumer} acknowledged {upper}: {} released", done.released));
    }

    /// A batch was read in full (I21): the same content from the same place, whoever reads it.
    pub(crate) fn delivered(
        &self,
        sink: usize,
        lower: Frontier,
        upper: Frontier,
        content: Content,
    ) -> Checked {
        let mut state = lock(&self.state);
        i21_same_delivery(state.delivered.entry(sink).or_default(), lower, upper, content)
    }

    /// Every key in the truth of one sink: what is referenced, and what is queued.
    pub(crate) async fn owners(&self, world: &World, sink: SinkId) -> (BTreeSet<PartKey>, u64) {
        let referenced = world.truth.referenced(sink).await.unwrap_or_default();
        let queued = world.truth.deletions_queued(Some(sink)).await.unwrap_or_default();
        (referenced.into_iter().map(|(key, _)| key).collect(), queued)
    }
}

fn is_stored(world: &World, key: &PartKey) -> bool {
    world.store.digest(&BlobKey::from(*key)).is_some()
}

async fn queued(world: &World, sink: SinkId, keys: &[PartKey]) -> BTreeSet<PartKey> {
    let states = world.truth.key_states(sink, keys).await.unwrap_or_default();
    states.into_iter().filter(|state| state.queued.is_some()).map(|state| state.key).collect()
}

/// Says a part in a few letters, for violations and the history.
pub(crate) fn say_parts(keys: impl IntoIterator<Item = PartKey>) -> String {
    keys.into_iter().map(|key| short_part(&key)).collect::<Vec<_>>().join(" ")
}
