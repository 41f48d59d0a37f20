//! Random histories against a model: what is acknowledged, linked and queued is always accounted for.

use std::collections::{BTreeMap, BTreeSet};

use stash_types::{ConsumerName, Frontier, IdSource, IncarnationId, PartKey, SessionId};

use super::Setup;
use super::world::{World, at, span};
use crate::rows::{DeletionReason, Resolution, StartAt};
use crate::testing::SeededIds;

const HISTORIES: u64 = 4;
const STEPS: u64 = 50;

fn count(len: usize) -> u64 {
    u64::try_from(len).expect("a count")
}

struct Model {
    world: World,
    draws: SeededIds,
    writer: IncarnationId,
    parts: u64,
    consumers: BTreeMap<String, (u64, SessionId)>,
    /// Every key that was ever linked or queued and is not deleted.
    alive: BTreeSet<PartKey>,
}

impl Model {
    fn draw(&self, below: u64) -> u64 {
        let (high, _) = self.draws.random().as_u64_pair();
        high % below
    }

    async fn step(&mut self) {
        let upper = self.world.upper().await.as_u64();
        let description = span(upper, upper + 1 + self.draw(3));
        match self.draw(8) {
            0 | 1 => {
                let (kept, unlinked) = (self.next_part(), self.next_part());
                let batch = self.world.batch(self.writer, description, &[kept]).await;
                let unlink = vec![self.world.name(self.writer, description, unlinked)];
                self.alive.insert(self.world.key(self.writer, description, kept));
                self.alive.insert(self.world.key(self.writer, description, unlinked));
                let resolution = Resolution::Accept { batch, unlink };
                self.world.done(self.world.request(self.writer, description, resolution).await).await;
            }
            2 => {
                self.world.extend(self.writer, description).await;
            }
            3 => self.register().await,
            4 | 5 => self.acknowledge(upper).await,
            6 => self.unregister().await,
            _ => self.delete().await,
        }
    }

    fn next_part(&mut self) -> u64 {
        self.parts += 1;
        self.parts
    }

    async fn register(&mut self) {
        let name = format!("c{}", self.draw(3));
        let start = [StartAt::Earliest, StartAt::Now][usize::from(self.draw(2) == 0)];
        let (acked, session) = self.world.register(&name, start).await.expect("registered");
        let known = self.consumers.insert(name, (acked.as_u64(), session));
        assert!(known.is_none_or(|(before, _)| before == acked.as_u64()), "a session moved a consumer");
    }

    /// One of the consumers acknowledges something that was delivered to it, or the upper.
    async fn acknowledge(&mut self, upper: u64) {
        let place = self.draw(3);
        let Some(name) = self.consumers.keys().nth(usize::from(place == 0)).cloned() else { return };
        let (acked, session) = self.consumers[&name];
        let rows = self.world.spans(acked).await;
        let target = match rows.first() {
            Some((_, batch_upper, extent)) if place == 1 => {
                (*batch_upper).max(acked) + self.draw(1 + extent - batch_upper.max(&acked))
            }
            _ => upper,
        };
        self.world.acknowledge(&name, session, target).await.expect("acknowledged");
        self.consumers.insert(name, (target, session));
    }

    async fn unregister(&mut self) {
        let Some(name) = self.consumers.keys().next().cloned() else { return };
        let consumer: ConsumerName = name.parse().expect("a name");
        assert!(
            self.world.catalog().unregister_consumer(self.world.sink, &consumer).await.expect("forgotten")
        );
        self.consumers.remove(&name);
    }

    /// The sweep tries to take everything, and the deleter takes what is due.
    async fn delete(&mut self) {
        let all: Vec<_> = self.alive.iter().copied().collect();
        let swept = self.world.catalog().enqueue(self.world.sink, &all, DeletionReason::Swept).await;
        assert_eq!(swept.expect("swept"), 0, "the sweep found an unowned key");
        let due = self.world.catalog().deletions_due(2).await.expect("due");
        let due: Vec<_> = due.iter().map(|row| row.key).collect();
        self.world.catalog().dequeue(&due).await.expect("dequeued");
        for key in due {
            assert!(self.alive.remove(&key), "{key} was deleted twice");
        }
    }

    async fn check(&self, at_most_released: &mut Frontier) {
        let slice = self.world.catalog().chain(self.world.sink, Frontier::MIN, 1000).await.expect("a chain");
        let head = &slice.head;
        let mut reached = head.released;
        for batch in &slice.batches {
            assert_eq!(batch.lower, reached, "a gap in {:?}", slice.batches);
            reached = batch.extent;
        }
        assert_eq!(reached, head.upper);
        let held = self.consumers.values().map(|(acked, _)| at(*acked)).min();
        assert!(held.is_none_or(|held| head.released <= held), "released what a consumer holds");
        assert!(head.released >= *at_most_released, "the released frontier moved back");
        *at_most_released = head.released;
        for batch in &slice.batches {
            let content = !(batch.parts.is_empty() && batch.inline.is_empty());
            assert!(!content || batch.upper > head.released, "a released batch is still linked");
        }
        let keys: Vec<_> = self.alive.iter().copied().collect();
        let states = self.world.catalog().key_states(self.world.sink, &keys).await.expect("states");
        for state in &states {
            assert_ne!(state.referenced_by.is_some(), state.queued.is_some(), "{state:?}");
        }
        let referenced = self.world.catalog().referenced(self.world.sink).await.expect("keys").len();
        assert_eq!(count(referenced) + self.world.queued().await, count(keys.len()));
    }
}

pub(super) async fn whatever_happens_the_chain_is_gapless_and_every_key_has_one_owner(setup: Setup) {
    for seed in 0..HISTORIES {
        let spec = super::world::declaration(&setup, &format!("history-{seed}"));
        let sink = setup.catalog.declare_sink(spec).await.expect("declared").sink;
        let world = World { setup: setup.clone(), sink: sink.spec.id, shard: sink.shard };
        let writer = world.open("a").await.id;
        let (draws, consumers, alive) = (SeededIds::new(100 + seed), BTreeMap::new(), BTreeSet::new());
        let mut model = Model { world, draws, writer, parts: 0, consumers, alive };
        let mut released = Frontier::MIN;
        for _ in 0..STEPS {
            model.step().await;
            model.check(&mut released).await;
        }
        model.world.setup.catalog.drop_sink(model.world.sink, true).await.expect("dropped");
        assert_eq!(model.world.queued().await, count(model.alive.len()), "seed {seed}");
        let left: Vec<_> = model.alive.iter().copied().collect();
        model.world.catalog().dequeue(&left).await.expect("dequeued");
        assert_eq!(model.world.queued().await, 0);
    }
}
