//! What each broken rule does to the world: a small story for each mutant, told by hand with the real code over the
//! model catalog. It ends well when the rule holds, and in harm, an update that is missing or doubled, a part that is
//! lost or left, a chain that stands still, when it is broken. So no mutant is harmless, whatever the simulator finds.
//!
//! The changefeed has one row of key `t` at each time `t`; a rendering at an as-of holds the earlier rows there.
//! `NoSnapshot` is an act of the rendering engine, which is the simulator's.
#![cfg(feature = "faults")]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, UInt64Type};
use futures::StreamExt;
use stash::{
    BatchConfig, BlobEntryKind, BlobPrefix, BlobStore, Catalog, Chain, DeletionReason, Frontier, HeadStatus,
    Incarnation, Launch, Mint, Minted, OpenOptions, Opened, OwnedParts, PartKey, Resolved, ShareMessage,
    Sink, SinkSpec, Stash, StashConfig, TryNext, disarm,
};
use stash_blob::ObjectBlobs;
use stash_catalog::testing::{ManualClock, SeededIds};
use stash_catalog::{Cas, CommitRequest, OutcomeKind, Resolution};
use stash_sim::catalog::ModelCatalog;
use stash_testkit::{FaultStore, Op, Point};
use stash_types::fault::{Mutant, arm};
use stash_types::{CommitId, IdSource};
use tokio::task::JoinSet;

/// The original as-of of the sink.
const AS_OF: u64 = 5;

type Told<T = ()> = Result<T, Box<dyn Error>>;

/// Harm, unless it holds.
fn expect(holds: bool, what: impl Into<String>) -> Told {
    if holds { Ok(()) } else { Err(what.into().into()) }
}

struct World {
    store: Arc<FaultStore<ObjectBlobs>>,
    catalog: ModelCatalog,
    clock: Arc<ManualClock>,
    ids: Arc<SeededIds>,
    inline: u64,
}

impl World {
    fn new(inline: u64) -> World {
        let (clock, ids) = (Arc::new(ManualClock::at(1_000_000)), Arc::new(SeededIds::new(7)));
        let catalog = ModelCatalog::new(Arc::clone(&clock) as _, Arc::clone(&ids) as _);
        World { store: Arc::new(FaultStore::new(ObjectBlobs::memory())), catalog, clock, ids, inline }
    }

    /// Small runs travel inline.
    fn inline() -> World {
        World::new(64 << 10)
    }

    /// Every run is a part.
    fn parts() -> World {
        World::new(0)
    }

    /// A session of another process.
    async fn open(&self) -> Told<Stash> {
        let batch = BatchConfig {
            inline_batch_bytes_max: self.inline,
            memory_bytes: BatchConfig::MEMORY_BYTES_MIN,
            ..BatchConfig::default()
        };
        let options = OpenOptions::new("memory://harm")
            .config(StashConfig { batch, ..StashConfig::default() })
            .sources(Arc::clone(&self.clock) as _, Arc::clone(&self.ids) as _);
        Ok(options.open_with(Arc::clone(&self.store) as _, Arc::new(self.catalog.clone())).await?)
    }

    /// The sink in a session of another process.
    async fn sink(&self) -> Told<Sink> {
        let schema = Schema::new(vec![Field::new("key", DataType::UInt64, false)]);
        Ok(self.open().await?.declare_sink(SinkSpec::new("rows", schema)?.as_of(AS_OF)).await?)
    }

    async fn listed(&self) -> Told<BTreeSet<PartKey>> {
        let mut keys = BTreeSet::new();
        let mut entries = self.store.inner().list(BlobPrefix::All);
        while let Some(entry) = entries.next().await {
            if let BlobEntryKind::Object(key) = entry?.kind {
                keys.extend(key.part_key());
            }
        }
        Ok(keys)
    }

    /// All is delivered, each update once, and nothing is left that no row references.
    async fn ends_well(&self, sink: &Sink, upper: u64) -> Told {
        expect(
            sink.upper().await? == Frontier::at(upper),
            format!("the chain stands at {}", sink.upper().await?),
        )?;
        let found = delivered(sink).await?;
        let wanted: BTreeMap<_, _> = held(AS_OF, AS_OF, upper).map(|(key, time)| ((key, time), 1)).collect();
        expect(found == wanted, format!("delivered {found:?}"))?;
        sink.stash().drain_deletions().await?;
        let referenced = self.catalog.referenced(sink.id()).await?.into_iter().map(|(key, _)| key).collect();
        let listed = self.listed().await?;
        expect(listed == referenced, format!("stored {listed:?}, referenced {referenced:?}"))
    }
}

/// What a rendering at `as_of` holds of `[lower, upper)`: key and time.
fn held(as_of: u64, lower: u64, upper: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..upper).map(move |key| (key, key.max(as_of))).filter(move |(_, time)| (lower..upper).contains(time))
}

async fn delivered(sink: &Sink) -> Told<BTreeMap<(u64, u64), i64>> {
    let mut all = BTreeMap::new();
    let mut subscription = sink.read_from(Frontier::at(AS_OF));
    while let TryNext::Delivery(delivery) = subscription.try_next().await? {
        let mut reader = delivery.read();
        while let Some(batch) = reader.next().await? {
            let (keys, times) = (batch.column(0).as_primitive::<UInt64Type>(), batch.column(1));
            let (times, diffs) =
                (times.as_primitive::<UInt64Type>(), batch.column(2).as_primitive::<Int64Type>());
            for row in 0..batch.num_rows() {
                *all.entry((keys.value(row), times.value(row))).or_default() += diffs.value(row);
            }
        }
    }
    Ok(all)
}

/// One rendering of one process with all workers.
struct Replica {
    incarnation: Incarnation,
    chain: Chain,
    workers: u32,
}

impl Replica {
    async fn open(sink: &Sink, name: &str, workers: u32) -> Told<Replica> {
        match sink.open_incarnation(Launch::single(name, workers)?).await? {
            Opened::Render(incarnation) => {
                let chain = incarnation.chain()?;
                Ok(Replica { incarnation: *incarnation, chain, workers })
            }
            other => Err(format!("nothing to render: {other:?}").into()),
        }
    }

    fn mint(&mut self, frontier: u64) -> Told<Option<Minted>> {
        Ok(self.chain.mint(Frontier::at(frontier))?.minted())
    }

    fn rows(&self, minted: Minted, worker: u32) -> Told<RecordBatch> {
        let (lower, upper) = (minted.description.lower().as_u64(), minted.description.upper().as_u64());
        let of_worker = |(key, _): &(u64, u64)| key % u64::from(self.workers) == u64::from(worker);
        let rows: Vec<_> = held(self.incarnation.as_of(), lower, upper.min(100)).filter(of_worker).collect();
        let keys: UInt64Array = rows.iter().map(|(key, _)| *key).collect::<Vec<_>>().into();
        let (times, diffs) = (rows.iter().map(|(_, time)| *time).collect(), vec![1; rows.len()]);
        Ok(self.incarnation.sink().updates(vec![Arc::new(keys)], times, diffs)?)
    }

    async fn share(&self, minted: Minted, worker: u32) -> Told<ShareMessage<OwnedParts>> {
        Ok(self.incarnation.worker(worker)?.write(minted, [self.rows(minted, worker)?]).await?)
    }

    /// Mints and writes up to `frontier`; the shares wait to be reported.
    async fn write_to(&mut self, frontier: u64) -> Told<Vec<ShareMessage<OwnedParts>>> {
        let mut shares = Vec::new();
        while let Some(minted) = self.mint(frontier)? {
            for worker in 0..self.workers {
                shares.push(self.share(minted, worker).await?);
            }
        }
        Ok(shares)
    }

    async fn report(&mut self, shares: Vec<ShareMessage<OwnedParts>>) -> Told<Vec<Resolved>> {
        let mut resolved = Vec::new();
        for share in shares {
            resolved.extend(self.chain.report(share).await?);
        }
        Ok(resolved)
    }

    /// All of it, up to `frontier`.
    async fn run_to(&mut self, frontier: u64) -> Told {
        let shares = self.write_to(frontier).await?;
        self.report(shares).await?;
        Ok(())
    }

    async fn close(self) -> Told {
        drop(self.chain);
        Ok(self.incarnation.close("the story ends").await?)
    }
}

/// A replica dies at 10; another one, which cuts at 7 and 12, goes on.
async fn a_survivor_straddles(world: World) -> Told {
    let sink = world.sink().await?;
    let mut survivor = Replica::open(&sink, "survivor", 1).await?;
    let other = world.sink().await?;
    let mut dying = Replica::open(&other, "dying", 1).await?;
    let mut shares = survivor.write_to(7).await?;
    shares.extend(survivor.write_to(12).await?);
    shares.extend(survivor.write_to(15).await?);
    dying.run_to(10).await?;
    dying.close().await?;
    survivor.report(shares).await?;
    survivor.close().await?;
    world.ends_well(&sink, 15).await
}

/// Shares of three descriptions arrive together.
async fn batches_wait_in_a_queue(world: World) -> Told {
    let sink = world.sink().await?;
    let mut replica = Replica::open(&sink, "a", 1).await?;
    let mut shares = replica.write_to(7).await?;
    shares.extend(replica.write_to(9).await?);
    shares.reverse();
    replica.report(shares).await?;
    replica.close().await?;
    world.ends_well(&sink, 9).await
}

/// A replica begins, and after some batches another one is rendered.
async fn a_second_rendering_goes_on(world: World) -> Told {
    let sink = world.sink().await?;
    let mut first = Replica::open(&sink, "a", 2).await?;
    first.run_to(10).await?;
    first.close().await?;
    let mut second = Replica::open(&sink, "b", 2).await?;
    second.run_to(15).await?;
    second.close().await?;
    world.ends_well(&sink, 15).await
}

/// An incarnation is closed while a batch of it waits; its replica renders anew in the same process.
async fn a_reconnect_with_a_queue(world: World) -> Told {
    let sink = world.sink().await?;
    let mut first = Replica::open(&sink, "a", 1).await?;
    first.run_to(6).await?;
    let shares = first.write_to(9).await?;
    world.catalog.close_incarnation(sink.id(), first.incarnation.id(), "its lease ran out").await?;
    expect(first.report(shares).await.is_err(), "a closed incarnation was heard")?;
    drop(first);
    let mut second = Replica::open(&sink, "a", 1).await?;
    second.run_to(12).await?;
    second.close().await?;
    world.ends_well(&sink, 12).await
}

/// A consumer acknowledges all there is.
async fn all_is_acknowledged(world: World) -> Told {
    let sink = world.sink().await?;
    let mut replica = Replica::open(&sink, "a", 1).await?;
    replica.run_to(9).await?;
    replica.close().await?;
    let mut subscription = sink.subscribe("reader", stash::StartAt::Beginning).await?;
    while let TryNext::Delivery(_) = subscription.try_next().await? {}
    subscription.acknowledge(Frontier::at(9)).await?;
    sink.stash().drain_deletions().await?;
    let left = world.listed().await?;
    expect(left.is_empty(), format!("left behind: {left:?}"))
}

/// The sweep meets a key that waits in the queue.
async fn a_sweep_meets_the_queue(world: World) -> Told {
    let sink = world.sink().await?;
    let mut replica = Replica::open(&sink, "a", 1).await?;
    let shares = replica.write_to(6).await?;
    // A dead process gives nothing up.
    std::mem::forget(shares);
    let keys: Vec<_> = world.listed().await?.into_iter().collect();
    world.catalog.close_incarnation(sink.id(), replica.incarnation.id(), "dead").await?;
    world.catalog.enqueue(sink.id(), &keys, DeletionReason::Surrendered).await?;
    let report = sink.sweep().await?;
    expect(report.garbage == 0, format!("{} keys have two owners", report.garbage))
}

/// A batch is accepted while a sweep begins to list.
async fn a_sweep_begins_while_a_batch_is_accepted(world: World) -> Told {
    let sink = world.sink().await?;
    let mut replica = Replica::open(&sink, "a", 1).await?;
    let shares = replica.write_to(6).await?;
    let gate = world.store.hold(Op::List, Point::Before);
    let mut sweeping = JoinSet::new();
    let swept = world.sink().await?;
    sweeping.spawn(async move { swept.sweep().await.map(drop) });
    gate.wait_held(1).await;
    replica.report(shares).await?;
    gate.release();
    for done in sweeping.join_all().await {
        done?;
    }
    replica.close().await?;
    sink.stash().drain_deletions().await?;
    world.ends_well(&sink, 6).await
}

/// A replica is granted an as-of, and another one moves the chain on before it begins.
async fn a_rendering_is_still_to_come(world: World) -> Told {
    let sink = world.sink().await?;
    let mut first = Replica::open(&sink, "a", 1).await?;
    first.run_to(10).await?;
    let pending = Replica::open(&sink, "b", 1).await?;
    first.run_to(20).await?;
    let (hold, as_of) = (sink.read_hold().await?, pending.incarnation.as_of());
    expect(
        hold <= Frontier::at(as_of),
        format!("inputs may forget below {hold}, a rendering begins at {as_of}"),
    )?;
    pending.close().await?;
    let hold = sink.read_hold().await?;
    expect(hold == Frontier::at(19), format!("inputs are held at {hold} for nobody"))
}

/// An offer decided long ago arrives.
async fn an_old_decision_arrives(world: World) -> Told {
    let sink = world.sink().await?;
    let old = Replica::open(&sink, "old", 1).await?;
    let head = sink.head().await?;
    let mut other = Replica::open(&sink, "other", 1).await?;
    other.run_to(12).await?;
    let description = stash::Description::new(head.upper, Frontier::at(8)).ok_or("covers no time")?;
    let request = CommitRequest {
        commit: CommitId::from_uuid(world.ids.random()),
        sink: sink.id(),
        incarnation: old.incarnation.id(),
        expected_upper: head.upper,
        expected_fence: head.fence,
        description,
        outcome: OutcomeKind::Accepted,
        resolution: Resolution::Extend { upper: description.upper(), unlink: vec![] },
        status: HeadStatus::Open,
    };
    let answer = world.catalog.commit(request).await?;
    expect(matches!(answer, Cas::Conflict(_)), format!("it took effect: {answer:?}"))?;
    old.close().await?;
    other.close().await?;
    world.ends_well(&sink, 12).await
}

/// A process hands a part over and looks after what it gave up, before the receiver offers.
async fn a_part_is_handed_over(world: World) -> Told {
    let (sink, far) = (world.sink().await?, world.sink().await?);
    let token = sink.stash().draw_launch();
    let mut near = match sink.open_incarnation(Launch::process("a", token, 0, 2, 0, 1)?).await? {
        Opened::Render(incarnation) => {
            let chain = incarnation.chain()?;
            Replica { incarnation: *incarnation, chain, workers: 2 }
        }
        other => return Err(format!("nothing to render: {other:?}").into()),
    };
    let remote = far.open_incarnation(Launch::process("a", token, 1, 2, 1, 1)?).await?.render()?;
    let minted = near.mint(9)?.ok_or("nothing minted")?;
    let sent = remote.worker(1)?.write(minted, [near.rows(minted, 1)?]).await?;
    let frame = disarm(sent)?;
    far.stash().drain_deletions().await?;
    let received = near.incarnation.arm(&frame)?;
    let own = near.share(minted, 0).await?;
    near.report(vec![received, own]).await?;
    far.stash().drain_deletions().await?;
    remote.close("done").await?;
    near.close().await?;
    world.ends_well(&sink, 6).await
}

/// The network brings a share twice.
async fn a_share_arrives_twice(world: World) -> Told {
    let sink = world.sink().await?;
    let mut replica = Replica::open(&sink, "a", 2).await?;
    let minted = replica.mint(6)?.ok_or("nothing minted")?;
    let frame = disarm(replica.share(minted, 0).await?)?;
    for _ in 0..2 {
        let copy = replica.incarnation.arm(&frame)?;
        // The second one is refused.
        let _ = replica.chain.report(copy).await;
    }
    let other = replica.share(minted, 1).await?;
    let _ = replica.chain.report(other).await;
    replica.close().await?;
    world.ends_well(&sink, 6).await
}

/// A worker fails, and the replica renders anew.
async fn a_worker_fails(world: World) -> Told {
    let sink = world.sink().await?;
    let mut replica = Replica::open(&sink, "a", 2).await?;
    let minted = replica.mint(6)?.ok_or("nothing minted")?;
    let good = replica.share(minted, 0).await?;
    let mut share = replica.incarnation.worker(1)?.share(minted)?;
    share.push(replica.rows(minted, 1)?).await?;
    let failed = share.fail("no memory");
    replica.chain.report(good).await?;
    let _ = replica.chain.report(failed).await;
    drop(replica);
    let mut again = Replica::open(&sink, "a", 2).await?;
    again.run_to(9).await?;
    again.close().await?;
    world.ends_well(&sink, 9).await
}

/// The dataflow stops, and goes on in another rendering.
async fn a_dataflow_stops(world: World) -> Told {
    let sink = world.sink().await?;
    let mut replica = Replica::open(&sink, "a", 1).await?;
    replica.run_to(8).await?;
    if let Mint::Minted(minted) = replica.chain.mint(Frontier::EMPTY)? {
        let share = replica.share(minted, 0).await?;
        replica.report(vec![share]).await?;
    }
    replica.close().await?;
    let mut next = Replica::open(&sink, "a", 1).await?;
    next.run_to(12).await?;
    next.close().await?;
    world.ends_well(&sink, 12).await
}

/// The story in which a mutant does its harm; `None` for the one that is the engine's.
async fn story(mutant: Mutant) -> Option<Told> {
    Some(match mutant {
        Mutant::StrictLower | Mutant::NoTrim => a_survivor_straddles(World::inline()).await,
        Mutant::TrimDeletesKept | Mutant::DropKeepsBlobs => a_survivor_straddles(World::parts()).await,
        Mutant::OutOfOrder | Mutant::DescriptionSkipped => batches_wait_in_a_queue(World::inline()).await,
        Mutant::RehydrateBeyond | Mutant::RehydrateAt | Mutant::RehydrateBelow | Mutant::FloorAbove => {
            a_second_rendering_goes_on(World::inline()).await
        }
        Mutant::QueueKept => a_reconnect_with_a_queue(World::inline()).await,
        Mutant::AckKeepsBlobs => all_is_acknowledged(World::parts()).await,
        Mutant::SweepIgnoresQueue => a_sweep_meets_the_queue(World::parts()).await,
        Mutant::SweepReadsFirst => a_sweep_begins_while_a_batch_is_accepted(World::parts()).await,
        Mutant::CompactedPast | Mutant::ResolvedForgotten => {
            a_rendering_is_still_to_come(World::inline()).await
        }
        Mutant::NoFence => an_old_decision_arrives(World::inline()).await,
        Mutant::HandOverDeletes => a_part_is_handed_over(World::parts()).await,
        Mutant::MergeTakesDuplicate => a_share_arrives_twice(World::inline()).await,
        Mutant::ErrorAsEmpty => a_worker_fails(World::inline()).await,
        Mutant::EmptyCompletes => a_dataflow_stops(World::inline()).await,
        Mutant::NoSnapshot => return None,
    })
}

#[tokio::test]
async fn every_story_ends_well_while_all_rules_hold() {
    for mutant in Mutant::ALL {
        if let Some(Err(harm)) = story(mutant).await {
            panic!("the story of {mutant:?} goes wrong although nothing is broken: {harm}");
        }
    }
    for story in [a_survivor_straddles(World::parts()).await, a_reconnect_with_a_queue(World::parts()).await]
    {
        story.expect("it ends well with parts too");
    }
}

#[tokio::test]
async fn every_mutant_does_harm() {
    let mut harmless = Vec::new();
    for mutant in Mutant::ALL {
        let armed = arm(mutant);
        match story(mutant).await {
            Some(Ok(())) => harmless.push(mutant),
            Some(Err(harm)) => println!("{mutant:?}: {harm}"),
            None => {}
        }
        drop(armed);
    }
    assert_eq!(harmless, [], "these break a rule, and nobody is the worse for it");
}
