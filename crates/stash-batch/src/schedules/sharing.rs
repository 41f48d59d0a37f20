//! Shared batches: whatever the order in which workers push, arrive, fail and are written under pressure, their shares
//! hold everything exactly once, or say that they do not (I14, I25, case 14).

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    sync::{Arc, OnceLock},
};

use arrow::{
    array::{ArrayRef, AsArray, Int64Array, RecordBatch, UInt64Array},
    datatypes::{DataType, Field, Int64Type, Schema, UInt64Type},
};
use shuttle::future::{JoinHandle, block_on, spawn};
use stash_catalog::{BatchRow, PartRow};
use stash_part::{EncodedPart, PartEncoder, PartMeta, RowSchema, Updates};
use stash_testkit::{Polled, poll_times};
use stash_types::{Description, Frontier, RunFacts, Share, ShareMessage, Timestamp, WorkerIndex};

use super::{
    below, explore,
    fake::{Fake, INCARNATION, SHARD, SINK},
    percent,
};
use crate::{
    BatchConfig, BatchReader, BatchSource, IncarnationSpec, Meters, OwnedParts, Process, ShareBuilder,
    Traffic, WriterHandle, budget::Relief, sync::pause,
};

/// Rows of a push; fewer than what [`weight`] has room for.
const ROWS: u64 = 7;
/// Pushes of a worker for one description at most.
const PUSHES: u32 = 2;

/// One column of whole numbers.
pub(super) fn schema() -> &'static RowSchema {
    static SCHEMA: OnceLock<RowSchema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let field = Field::new("key", DataType::UInt64, false);
        RowSchema::new(Arc::new(Schema::new(vec![field]))).expect("a plain schema")
    })
}

/// `[at, at + 1)`.
pub(super) fn description(at: u64) -> Description {
    Description::new(Frontier::at(at), Frontier::at(at + 1)).expect("some time")
}

/// The diff of every row of one push. Sums of several pushes' rows tell which of them are in it and how often, as long
/// as none is in it more than once.
fn weight(worker: u32, push: u32) -> i64 {
    1 << (3 * (worker * PUSHES + push))
}

/// A push: rows of its own, all of one weight.
fn rows(worker: u32, push: u32, time: u64) -> RecordBatch {
    let first = u64::from(worker * PUSHES + push) * ROWS;
    let count = usize::try_from(ROWS).expect("small");
    let keys: ArrayRef = Arc::new(UInt64Array::from_iter_values(first..first + ROWS));
    let times: ArrayRef = Arc::new(UInt64Array::from(vec![time; count]));
    let diffs: ArrayRef = Arc::new(Int64Array::from(vec![weight(worker, push); count]));
    RecordBatch::try_new(Arc::clone(schema().full_schema()), vec![keys, times, diffs]).expect("the columns")
}

/// What the pushes of a worker sum to.
fn pushed(worker: u32, pushes: u32) -> i128 {
    (0..pushes).map(|push| i128::from(ROWS) * i128::from(weight(worker, push))).sum()
}

/// A process over a fake, and what it writes for its one incarnation.
#[derive(Clone)]
pub(super) struct World {
    pub(super) fake: Arc<Fake>,
    pub(super) process: Process,
    pub(super) writer: Arc<WriterHandle>,
}

impl World {
    /// Has `memory_bytes`, and refuses so many PUTs of a hundred.
    pub(super) fn new(workers: u32, memory_bytes: u64, inline: u64, refused_percent: u32) -> World {
        let fake = Fake::new(INCARNATION.parse().expect("an id"), refused_percent);
        let config = BatchConfig {
            memory_bytes,
            part_bytes: memory_bytes / 8,
            chunk_bytes: memory_bytes / 16,
            row_group_bytes_max: memory_bytes / 64,
            inline_batch_bytes_max: inline,
            attempts_max: 1,
            ..BatchConfig::default()
        };
        let process = Process::over(Arc::clone(&fake) as _, Arc::clone(&fake) as _, config, Meters::new());
        let workers = NonZeroU32::new(workers).expect("some");
        let spec = IncarnationSpec {
            sink: SINK.parse().expect("an id"),
            shard: SHARD.parse().expect("an id"),
            schema: schema().clone(),
            up_to: Frontier::EMPTY,
            incarnation: INCARNATION.parse().expect("an id"),
            process: 0,
            workers,
            local_workers: workers,
        };
        let writer = WriterHandle::open(process.clone(), spec).expect("a sound spec");
        World { fake, process, writer }
    }

    /// Closes the process: then the store holds what rows reference, nothing is queued, and nothing follows.
    pub(super) async fn close(&self) {
        self.process.close().await.expect("it closes");
        {
            let mut truth = self.fake.truth();
            truth.ended = true;
            let listed: Vec<_> = truth.objects.keys().collect();
            let referenced: Vec<_> = truth.referenced.iter().collect();
            assert_eq!(listed, referenced, "what is listed is what is referenced (I17)");
            assert!(truth.queued.is_empty(), "nothing is queued any more: {:?}", truth.queued);
        }
        assert_eq!(self.process.counters().ledger_keys, 0, "nobody answers for anything");
    }
}

/// How a worker's share ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finished,
    Failed,
    Dropped,
    PushCancelled,
    FinishCancelled,
}

impl End {
    fn draw(ends_badly_percent: u32) -> End {
        if !percent(ends_badly_percent) {
            return End::Finished;
        }
        match below(4) {
            0 => End::Failed,
            1 => End::Dropped,
            2 => End::PushCancelled,
            _ => End::FinishCancelled,
        }
    }
}

/// What a worker reported, if it lived to report, and what it pushed.
struct Told {
    message: Option<ShareMessage<OwnedParts>>,
    pushed: i128,
    end: End,
}

/// One worker writes one share.
async fn work(world: World, worker: u32, at: u64, ends_badly_percent: u32) -> Told {
    let end = End::draw(ends_badly_percent);
    let mut told = Told { message: None, pushed: 0, end };
    let share = world.writer.share(WorkerIndex(worker), description(at), Frontier::MIN);
    // A process that is closing opens none.
    let Ok(mut share) = share else { return told };
    let pushes = below(PUSHES + 1);
    let polls = usize::try_from(below(4)).expect("small");
    for push in 0..pushes {
        if end == End::PushCancelled && push + 1 == pushes {
            let cancelled = poll_times(share.push(rows(worker, push, at)), polls).await;
            // What was never begun holds nothing. What was cut off half-way may: a good share without it lacks rows.
            if polls == 0 || matches!(cancelled, Polled::Ready(Err(_))) {
                break;
            }
        } else if share.push(rows(worker, push, at)).await.is_err() {
            break;
        }
        told.pushed = pushed(worker, push + 1);
    }
    match end {
        End::Finished => told.message = Some(share.finish().await),
        End::Failed => told.message = Some(share.fail("by the schedule")),
        End::Dropped => drop(share),
        // The caller may not know better than to finish it.
        End::PushCancelled => told.message = Some(share.finish().await),
        End::FinishCancelled => {
            if let Polled::Ready(message) = poll_times(share.finish(), polls).await {
                told.message = Some(message);
            }
        }
    }
    told
}

/// What became of a description.
#[derive(Debug, PartialEq, Eq)]
enum Merged {
    /// Every worker reported a good share.
    Whole,
    /// Somebody did not.
    Failed,
}

/// Merges the shares of a description as the replica hop does, checks what they hold, and has the batch accepted.
async fn merge(world: &World, at: u64, all: Vec<Told>) -> Merged {
    let pushed: i128 = all.iter().map(|told| told.pushed).sum();
    let (mut held, mut carriers) = (RunFacts::default(), Vec::new());
    let mut whole = true;
    for told in all {
        match told.message.map(|message| message.share) {
            Some(Share::Empty) => {}
            Some(Share::Inline(run)) => held = held.and(run.facts),
            Some(Share::Stashed(parts)) => carriers.push(parts),
            Some(Share::Failed { .. } | Share::Dropped) | None => whole = false,
        }
    }
    assert!(carriers.len() <= 1, "two workers carry the parts of one process");
    if !whole {
        carriers.into_iter().for_each(OwnedParts::discard);
        return Merged::Failed;
    }
    let facts = carriers.iter().flat_map(|parts| parts.parts()).map(|part| part.facts);
    let sum = facts.fold(held, RunFacts::and).diff_sum;
    assert_eq!(sum, pushed, "the shares of {at} hold what was pushed, once (I14)");
    for parts in carriers {
        let keys: Vec<_> = parts.keys().collect();
        if world.fake.commit(description(at), &keys).await {
            parts.settle();
        } else {
            parts.discard();
        }
    }
    Merged::Whole
}

async fn all<T>(tasks: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.expect("it ends"));
    }
    done
}

fn workers(world: &World, count: u32, at: u64, ends_badly_percent: u32) -> Vec<JoinHandle<Told>> {
    (0..count).map(|worker| spawn(work(world.clone(), worker, at, ends_badly_percent))).collect()
}

/// Has batches written while they grow, as somebody short of memory does.
fn pressure(world: &World) -> JoinHandle<()> {
    let process = world.process.clone();
    spawn(async move {
        for _ in 0..3 {
            process.slots().relieve().await;
            pause().await;
        }
    })
}

#[test]
fn of_many_workers_exactly_one_carries_the_parts_and_none_is_lost() {
    explore("of_many_workers", 100, || {
        block_on(async {
            let inline = if percent(50) { 4096 } else { 0 };
            let world = World::new(4, 1 << 20, inline, 0);
            let tasks = workers(&world, 4, 0, 0);
            let pressure = pressure(&world);
            let told = all(tasks).await;
            assert_eq!(merge(&world, 0, told).await, Merged::Whole, "nobody failed");
            pressure.await.expect("it ends");
            assert!(world.process.slots().is_empty(), "a slot goes with its last worker (I25)");
            assert_eq!(world.process.budget().usage().write, 0, "its memory goes with it");
            world.close().await;
        });
    });
}

#[test]
fn a_failure_fails_the_batch_for_all_and_leaves_nothing() {
    explore("a_failure_fails_the_batch", 100, || {
        block_on(async {
            let inline = if percent(50) { 4096 } else { 0 };
            let world = World::new(4, 1 << 20, inline, 25);
            let tasks = workers(&world, 4, 0, 30);
            let pressure = pressure(&world);
            let told = all(tasks).await;
            let gave_up = told.iter().any(|told| matches!(told.end, End::Failed | End::Dropped));
            let merged = merge(&world, 0, told).await;
            assert!(!gave_up || merged == Merged::Failed, "a worker that gave up is missed");
            pressure.await.expect("it ends");
            assert!(world.process.slots().is_empty(), "a slot goes with its last worker (I25)");
            world.close().await;
            // What a cancelled worker left to be written was written to its end.
            assert_eq!(world.process.budget().usage().write, 0, "its memory goes with it");
        });
    });
}

#[test]
fn an_incarnation_that_is_given_up_leaves_no_slot_behind() {
    explore("an_incarnation_that_is_given_up", 50, || {
        block_on(async {
            let world = World::new(3, 1 << 20, 0, 0);
            let tasks = workers(&world, 3, 0, 0);
            let pressure = pressure(&world);
            pause().await;
            // The chain learned that another share failed: some workers have not even begun.
            world.writer.abandon();
            let told = all(tasks).await;
            merge(&world, 0, told).await;
            pressure.await.expect("it ends");
            assert!(world.process.slots().is_empty(), "a slot goes with its last worker (I25)");
            assert_eq!(world.process.budget().usage().write, 0, "its memory goes with it");
            world.close().await;
        });
    });
}

#[test]
fn a_process_that_closes_while_its_workers_write_leaves_nothing() {
    explore("a_process_that_closes", 100, || {
        block_on(async {
            let world = World::new(3, 1 << 20, 0, 0);
            let tasks = workers(&world, 3, 0, 10);
            let pressure = pressure(&world);
            pause().await;
            world.process.close().await.expect("it closes");
            {
                let mut truth = world.fake.truth();
                truth.ended = true;
                assert!(truth.objects.is_empty(), "nothing was accepted: {:?}", truth.objects.keys());
            }
            for told in all(tasks).await {
                // What was reported before it closed is refused by the chain now.
                drop(told.message);
            }
            pressure.await.expect("it ends");
            assert!(world.process.slots().is_empty(), "no slot outlives the process (I25)");
        });
    });
}

/// A part of another batch, encoded once, for the readers.
fn accepted() -> &'static EncodedPart {
    static PART: OnceLock<EncodedPart> = OnceLock::new();
    PART.get_or_init(|| {
        let updates = Updates::new(schema(), rows(0, 0, 9)).expect("sound");
        let meta = PartMeta {
            sink: SINK.parse().expect("an id"),
            description: description(9),
            group: 0,
            run: 0,
            ordinal: 0,
        };
        let mut encoder = PartEncoder::new(schema(), meta, Default::default()).expect("an encoder");
        encoder.write(&stash_part::consolidate(updates).expect("sorted")).expect("written");
        encoder.finish().expect("encoded")
    })
}

/// The batch of that part.
fn accepted_batch(world: &World) -> BatchSource {
    let spec = world.writer.spec();
    let descriptor = accepted().descriptor(7, 0);
    let name = stash_types::PartName {
        incarnation: spec.incarnation,
        description: description(9),
        process: 7,
        n: 0,
    };
    {
        let mut truth = world.fake.truth();
        truth.objects.insert(name.under(spec.shard), accepted().chunks.concat().into());
        truth.referenced.insert(name.under(spec.shard));
    }
    batch_of(world, 9, vec![PartRow { name, descriptor }])
}

/// The batch of one description's parts.
fn batch_of(world: &World, at: u64, parts: Vec<PartRow>) -> BatchSource {
    let spec = world.writer.spec();
    let batch = BatchRow {
        id: "b00000000-0000-4000-8000-000000000004".parse().expect("an id"),
        seq: 1,
        lower: Frontier::at(at),
        upper: Frontier::at(at + 1),
        extent: Frontier::at(at + 1),
        offered: description(at),
        incarnation: spec.incarnation,
        facts: parts.iter().map(|part| part.descriptor.facts).fold(RunFacts::default(), RunFacts::and),
        parts,
        inline: Vec::new(),
        accepted: Timestamp(0),
    };
    BatchSource {
        sink: spec.sink,
        shard: spec.shard,
        schema: schema().clone(),
        batch,
        from: Frontier::at(at),
    }
}

/// Keys and diffs of a batch, in the order in which they are read.
async fn read(world: &World, source: BatchSource) -> Vec<(u64, i64)> {
    let mut reader = BatchReader::open(&world.process, source);
    let mut read = Vec::new();
    while let Some(batch) = reader.next().await.expect("it is read") {
        let keys = batch.column(0).as_primitive::<UInt64Type>().values();
        let diffs = batch.column(2).as_primitive::<Int64Type>().values();
        read.extend(keys.iter().copied().zip(diffs.iter().copied()));
    }
    read
}

#[test]
fn of_runs_written_side_by_side_at_most_one_goes_on_with_the_run_before() {
    explore("of_runs_written_side_by_side", 50, || {
        block_on(async {
            let world = World::new(1, 1 << 20, 0, 0);
            let share = world.writer.share(WorkerIndex(0), description(0), Frontier::MIN);
            let mut share = share.expect("it opens");
            let slot = world.process.slots().touch(world.writer.writer(), description(0));
            // In order each run that is written may go on with whichever ended last; two that changed places may not.
            let mut pushes: Vec<_> = (0..5).map(|push| rows(0, push, 0)).collect();
            let (one, other) = (below(5), below(5));
            pushes.swap(usize::try_from(one).expect("small"), usize::try_from(other).expect("small"));
            share.push(pushes[0].clone()).await.expect("taken");
            slot.flush().await.expect("a run that may be gone on with");
            let flushes: Vec<_> = (0..2)
                .map(|_| {
                    let slot = Arc::clone(&slot);
                    spawn(async move {
                        for _ in 0..2 {
                            pause().await;
                            slot.flush().await.expect("it is written");
                        }
                    })
                })
                .collect();
            for push in &pushes[1..] {
                share.push(push.clone()).await.expect("taken");
                pause().await;
            }
            all(flushes).await;
            let Share::Stashed(parts) = share.finish().await.share else { panic!("the parts of all runs") };
            let mut places: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            for part in parts.parts() {
                places.entry(part.run).or_default().push(part.ordinal);
            }
            for (run, mut ordinals) in places {
                ordinals.sort_unstable();
                let all: Vec<u32> = (0..).take(ordinals.len()).collect();
                assert_eq!(ordinals, all, "each part of run {run} has a place of its own");
            }
            let keys: Vec<_> = parts.keys().collect();
            assert!(world.fake.commit(description(0), &keys).await, "it is accepted");
            let source = batch_of(&world, 0, parts.named_parts());
            parts.settle();
            let pushed = (0..5).flat_map(|push| (0..ROWS).map(move |row| (push, row)));
            let pushed = pushed.map(|(push, row)| (u64::from(push) * ROWS + row, weight(0, push)));
            assert_eq!(
                read(&world, source).await,
                pushed.collect::<Vec<_>>(),
                "all of it, once, in order (I14)"
            );
            world.close().await;
        });
    });
}

/// A share of the only worker, with one push.
async fn pushed_share(world: &World, worker: u32, at: u64) -> ShareBuilder {
    let share = world.writer.share(WorkerIndex(worker), description(at), Frontier::MIN);
    let mut share = share.expect("it opens");
    share.push(rows(worker, 0, at)).await.expect("it is taken");
    share
}

async fn finished(share: ShareBuilder, worker: u32) -> Told {
    Told { message: Some(share.finish().await), pushed: pushed(worker, 1), end: End::Finished }
}

#[test]
fn who_waits_for_memory_is_woken_once_what_another_has_written_is_not_enough() {
    explore("who_waits_for_memory", 20, || {
        block_on(async {
            let world = World::new(1, 1 << 20, 0, 0);
            let shares = [pushed_share(&world, 0, 0).await, pushed_share(&world, 0, 1).await];
            let (budget, process) = (world.process.budget(), world.process.clone());
            let held = budget.usage().write;
            let free = budget.largest(Traffic::Write) - held;
            let rest = budget.try_reserve(Traffic::Write, free).expect("it is free");
            let other = spawn(async move { process.slots().relieve().await });
            let waited = budget.reserve_or(Traffic::Write, held, world.process.slots()).await;
            drop((waited.expect("both batches can be written"), rest));
            other.await.expect("it ends");
            for (at, share) in (0..).zip(shares) {
                assert_eq!(merge(&world, at, vec![finished(share, 0).await]).await, Merged::Whole);
            }
            world.close().await;
        });
    });
}

#[test]
fn who_waits_for_memory_is_woken_by_whatever_can_be_written() {
    explore("who_waits_is_woken", 20, || {
        block_on(async {
            // Two pushes fill a chunk, which is taken out and comes back sorted.
            let world = World::new(1, 4 << 10, 0, 0);
            let share = world.writer.share(WorkerIndex(0), description(0), Frontier::MIN);
            let mut share = share.expect("it opens");
            let pushing = spawn(async move {
                for push in 0..2 {
                    share.push(rows(0, push, 0)).await.expect("it is taken");
                }
                share
            });
            let budget = world.process.budget();
            let everything = budget.largest(Traffic::Write);
            let waited = budget.reserve_or(Traffic::Write, everything, world.process.slots()).await;
            drop(waited.expect("all that is held can be written"));
            let share = pushing.await.expect("it ends");
            let message = Some(share.finish().await);
            let told = Told { message, pushed: pushed(0, 2), end: End::Finished };
            assert_eq!(merge(&world, 0, vec![told]).await, Merged::Whole);
            world.close().await;
        });
    });
}

#[test]
fn who_had_a_batch_written_for_memory_and_is_cancelled_takes_nothing_with_it() {
    explore("who_had_a_batch_written", 20, || {
        block_on(async {
            let world = World::new(1, 1 << 20, 0, 0);
            let share = pushed_share(&world, 0, 0).await;
            let polls = usize::try_from(below(4)).expect("small");
            let _cancelled = poll_times(world.process.slots().relieve(), polls).await;
            assert_eq!(merge(&world, 0, vec![finished(share, 0).await]).await, Merged::Whole);
            world.close().await;
        });
    });
}

#[test]
fn nobody_becomes_the_last_of_a_batch_that_lacks_what_another_gave_up() {
    explore("nobody_becomes_the_last", 20, || {
        block_on(async {
            let world = World::new(2, 1 << 20, 0, 0);
            let (first, second) = (pushed_share(&world, 0, 0).await, pushed_share(&world, 1, 0).await);
            let gone = spawn(async move { drop(first) });
            let share = finished(second, 1).await.message.expect("it lived").share;
            gone.await.expect("it ends");
            // It came before the other gave up, or hears of it.
            assert!(matches!(share, Share::Empty | Share::Failed { .. }), "{}", share.kind());
            drop(share);
            world.close().await;
        });
    });
}

#[test]
fn eight_workers_with_three_descriptions_and_two_readers_never_wait_for_one_another_for_ever() {
    explore("eight_workers", 50, || {
        block_on(async {
            // Four pushes fill what writing may have, and each worker makes up to six.
            let world = World::new(8, 4 << 10, 0, 0);
            let source = accepted_batch(&world);
            let mut readers = Vec::new();
            for _ in 0..1 + below(2) {
                let (process, source) = (world.process.clone(), source.clone());
                readers.push(spawn(async move {
                    for _ in 0..2 {
                        let mut reader = BatchReader::open(&process, source.clone());
                        let mut read = 0;
                        while let Some(batch) = reader.next().await.expect("it is read") {
                            read += batch.num_rows();
                        }
                        assert_eq!(u64::try_from(read), Ok(ROWS));
                    }
                }));
            }
            let workers: Vec<_> = (0..8)
                .map(|worker| {
                    let world = world.clone();
                    spawn(async move {
                        let mut told = Vec::new();
                        for at in 0..3 {
                            told.push((at, work(world.clone(), worker, at, 0).await));
                        }
                        told
                    })
                })
                .collect();
            let mut by_description: BTreeMap<u64, Vec<Told>> = BTreeMap::new();
            for (at, told) in all(workers).await.into_iter().flatten() {
                by_description.entry(at).or_default().push(told);
            }
            for (at, told) in by_description {
                assert_eq!(told.len(), 8);
                assert_eq!(merge(&world, at, told).await, Merged::Whole, "nobody failed");
            }
            all(readers).await;
            let usage = world.process.budget().usage();
            assert!(usage.peak <= usage.total, "{usage:?}");
            assert_eq!((usage.write, usage.read), (0, 0), "all memory was given back");
            world.close().await;
        });
    });
}
