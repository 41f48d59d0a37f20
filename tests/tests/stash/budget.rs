//! One byte budget: whatever goes in stays within it, or is refused by name; nothing deadlocks.

use std::collections::BTreeSet;

use stash::{BatchConfig, BatchError, BatchRow, Frontier, StashConfig};
use stash_tests::{Chance, World, assert_same, content_of, delivered_until, in_time, updates};

use crate::{Update, mint, noise, open, write};

/// The smallest memory there is.
const MEMORY: u64 = BatchConfig::MEMORY_BYTES_MIN;

fn tight() -> StashConfig {
    StashConfig {
        batch: BatchConfig { memory_bytes: MEMORY, ..BatchConfig::default() },
        ..StashConfig::default()
    }
}

/// Small parts, and no more than three runs of them.
fn few_runs() -> StashConfig {
    let mut config = tight();
    config.batch.runs_max = 3;
    config.batch.part_bytes = 50_000;
    config.batch.chunk_bytes = 20_000;
    config
}

/// Rows in no order whose texts have 32 bytes each.
fn noisy(seed: u64, count: u64, time: u64) -> Vec<Update> {
    wide(seed, count, 32, time)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_open_descriptions_of_four_workers_on_one_task_fit_into_the_smallest_memory() {
    let world = World::files(tight()).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 4).await;
    write(&incarnation, &mut chain, 1, &noisy(99, 40_000, 0)).await;
    // A reader that was begun holds its memory all the time.
    let held = sink.read().await.expect("readable").next().await.expect("read").expect("a batch");
    let mut reader = held.read();
    let first = reader.next().await.expect("readable").expect("rows");

    let work = async {
        let mut all: Vec<Vec<Update>> = Vec::new();
        let mut shares = Vec::new();
        for time in 1..4 {
            let minted = mint(&mut chain, time + 1);
            for worker in 0..4 {
                shares.push(incarnation.worker(worker).expect("local").share(minted).expect("opens"));
                all.push(noisy(time * 10 + u64::from(worker), 25_000, time));
            }
        }
        for round in 0..25 {
            for (share, mine) in shares.iter_mut().zip(&all) {
                share.push(updates(&sink, &mine[round * 1000..(round + 1) * 1000])).await.expect("taken");
            }
        }
        for share in shares {
            chain.report(share.finish().await).await.expect("taken");
        }
        all.concat()
    };
    let all = in_time("pushing", work).await;
    let usage = sink.stash().budget();
    assert!(usage.peak <= usage.total, "{usage:?}");
    assert_eq!(usage.total, MEMORY);
    assert!(usage.peak > MEMORY / 4, "{usage:?}: the test is about memory pressure");

    let mut rows = first.num_rows();
    while let Some(batch) = in_time("reading on", reader.next()).await.expect("readable") {
        rows += batch.num_rows();
    }
    assert_eq!(rows, 40_000);
    drop(reader);
    let mut subscription = sink.read_from(Frontier::at(1));
    let content =
        in_time("reading", delivered_until(&mut subscription, Frontier::at(4))).await.expect("read");
    assert_same!(content, content_of(&all));
    let usage = sink.stash().budget();
    assert!(usage.peak <= usage.total && usage.write == 0 && usage.read == 0, "{usage:?}: all is given back");
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.close([sink.stash().clone()]).await;
}

/// Rows in no order whose texts have `bytes` bytes each.
fn wide(seed: u64, count: u64, bytes: usize, time: u64) -> Vec<Update> {
    let mut chance = Chance::new(seed);
    (0..count).map(|_| ((chance.draw(), noise(chance.draw(), bytes)), time, 1)).collect()
}

fn runs_of(row: &BatchRow) -> usize {
    row.parts.iter().map(|part| (part.descriptor.process, part.descriptor.run)).collect::<BTreeSet<_>>().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_runs_than_a_reader_can_hold_are_merged_through_scratch_files() {
    let mut config = tight();
    config.batch.runs_max = 1000;
    config.batch.part_bytes = 400_000;
    config.batch.chunk_bytes = 100_000;
    let world = World::memory(config).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let minted = mint(&mut chain, 1);
    // Every row comes twice, far apart, and some of them cancel.
    let mut all = wide(7, 12_000, 1000, 0);
    let again: Vec<Update> = (all.iter().enumerate())
        .map(|(n, (row, time, _))| (row.clone(), *time, if n % 3 == 0 { -1 } else { 1 }))
        .collect();
    all.extend(again);
    let mut share = incarnation.worker(0).expect("local").share(minted).expect("opens");
    for piece in all.chunks(100) {
        share.push(updates(&sink, piece)).await.expect("taken");
    }
    chain.report(share.finish().await).await.expect("taken");
    let row = sink.batches().await.expect("the chain").pop().expect("a row");
    // Each run is read at least a row group of 256 KiB at a time.
    assert!(
        runs_of(&row) as u64 * (256 << 10) > sink.stash().budget().total * 5 / 8,
        "{} runs",
        runs_of(&row)
    );
    let mut subscription = sink.read().await.expect("readable");
    let content =
        in_time("reading", delivered_until(&mut subscription, Frontier::at(1))).await.expect("read");
    assert_same!(content, content_of(&all));
    let usage = sink.stash().budget();
    assert!(usage.peak <= usage.total && usage.read == 0, "{usage:?}");
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_runs_than_allowed_are_merged_again_and_their_parts_deleted() {
    let world = World::files(few_runs()).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 2).await;
    let minted = mint(&mut chain, 1);
    let all = noisy(3, 8000, 0);
    let mut shares: Vec<_> = (0..2)
        .map(|worker| incarnation.worker(worker).expect("local").share(minted).expect("opens"))
        .collect();
    for (n, piece) in all.chunks(200).enumerate() {
        shares[n % 2].push(updates(&sink, piece)).await.expect("taken");
    }
    for share in shares {
        chain.report(share.finish().await).await.expect("taken");
    }
    let row = sink.batches().await.expect("the chain").pop().expect("a row");
    assert!(runs_of(&row) <= 3, "{} runs", runs_of(&row));
    let puts = sink.stash().counters().puts as usize;
    assert!(puts > row.parts.len() + 3, "{puts} PUTs, {} parts kept: some were merged", row.parts.len());
    let mut subscription = sink.read().await.expect("readable");
    let content = delivered_until(&mut subscription, Frontier::at(1)).await.expect("read");
    assert_same!(content, content_of(&all));
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
    assert_eq!(world.listed().await.len(), row.parts.len(), "the inputs are deleted");
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_in_order_is_one_run_however_large_and_is_never_merged_again() {
    let world = World::files(few_runs()).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let mut all = noisy(3, 8000, 0);
    all.sort_unstable();
    let (late, ordered) = all.split_at(200);
    for (time, late) in [(1, &[][..]), (2, late)] {
        let minted = mint(&mut chain, time);
        let at = |rows: &[Update]| -> Vec<Update> {
            rows.iter().map(|(row, _, diff)| (row.clone(), time - 1, *diff)).collect()
        };
        let mut share = incarnation.worker(0).expect("local").share(minted).expect("opens");
        for piece in ordered.chunks(200).chain([late].into_iter().filter(|late| !late.is_empty())) {
            share.push(updates(&sink, &at(piece))).await.expect("taken");
        }
        chain.report(share.finish().await).await.expect("taken");
        let row = sink.batches().await.expect("the chain").pop().expect("a row");
        assert!(row.parts.len() > 6, "{} parts", row.parts.len());
        assert_eq!(runs_of(&row), if late.is_empty() { 1 } else { 2 }, "what comes late is another run");
        let mut subscription = sink.read_from(Frontier::at(time - 1));
        let content = delivered_until(&mut subscription, Frontier::at(time)).await.expect("read");
        assert_same!(content, content_of(&at(&[late, ordered].concat())));
    }
    let rows = sink.batches().await.expect("the chain");
    let parts = rows.iter().map(|row| row.parts.len()).sum::<usize>();
    assert_eq!(sink.stash().counters().puts as usize, parts, "nothing was written twice");
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_run_in_order_stays_as_it_stands_where_more_small_ones_came_late_than_are_allowed() {
    let world = World::files(few_runs()).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let minted = mint(&mut chain, 1);
    let mut all = noisy(3, 12_000, 0);
    all.sort_unstable();
    // Every fourth row comes late, in no order.
    let is_late = |n: usize| n % 4 == 3;
    let (ordered, mut late) = (0..all.len()).partition::<Vec<usize>, _>(|n| !is_late(*n));
    late.sort_by_key(|n| n.wrapping_mul(7919) % 12_011);
    let mut share = incarnation.worker(0).expect("local").share(minted).expect("opens");
    let mut standing = BTreeSet::new();
    for pieces in [&ordered, &late] {
        for piece in pieces.chunks(200) {
            let piece: Vec<Update> = piece.iter().map(|n| all[*n].clone()).collect();
            share.push(updates(&sink, &piece)).await.expect("taken");
        }
        if standing.is_empty() {
            standing = world.listed().await;
        }
    }
    assert!(standing.len() > 6, "{} parts of the run in order", standing.len());
    let written = sink.stash().counters().puts as usize;
    assert!(written > standing.len() + 3, "{written} parts: the late ones are more runs than allowed");
    chain.report(share.finish().await).await.expect("taken");
    let row = sink.batches().await.expect("the chain").pop().expect("a row");
    assert!(runs_of(&row) <= 3, "{} runs", runs_of(&row));
    let puts = sink.stash().counters().puts as usize;
    assert!(puts > row.parts.len(), "{puts} PUTs, {} parts kept: some were merged", row.parts.len());
    let mut subscription = sink.read().await.expect("readable");
    let content = delivered_until(&mut subscription, Frontier::at(1)).await.expect("read");
    assert_same!(content, content_of(&all));
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
    let kept = world.listed().await;
    assert!(standing.is_subset(&kept), "the same keys stand: {:?} are gone", standing.difference(&kept));
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_batch_larger_than_the_memory_is_taken_at_once() {
    let world = World::memory(tight()).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let all = wide(5, 24_000, 1000, 0);
    assert!(all.len() as u64 * 1000 > MEMORY);
    let minted = mint(&mut chain, 1);
    let mut share = incarnation.worker(0).expect("local").share(minted).expect("opens");
    in_time("pushing", share.push(updates(&sink, &all))).await.expect("taken");
    chain.report(in_time("finishing", share.finish()).await).await.expect("taken");
    let mut subscription = sink.read().await.expect("readable");
    let content =
        in_time("reading", delivered_until(&mut subscription, Frontier::at(1))).await.expect("read");
    assert_same!(content, content_of(&all));
    let usage = sink.stash().budget();
    assert!(usage.peak <= usage.total, "{usage:?}");
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_above_a_sixteenth_of_the_memory_is_refused_by_name_and_many_below_come_back() {
    let world = World::memory(tight()).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let minted = mint(&mut chain, 1);
    let most = usize::try_from(MEMORY / 16).expect("small");
    let row = |key, bytes| -> Update { ((key, "x".repeat(bytes)), 0, 1) };
    let mut share = incarnation.worker(0).expect("local").share(minted).expect("opens");
    share.push(updates(&sink, &[row(1, 10)])).await.expect("taken");
    let error = share.push(updates(&sink, &[row(2, 5), row(3, most + 1), row(4, 5)])).await;
    let error = error.expect_err("too large");
    assert!(matches!(error, BatchError::RowTooLarge { .. }), "{error}");
    assert!(error.to_string().contains(&sink.id().to_string()), "{error}: it names the sink");
    // Nothing of that piece was taken, and the share goes on.
    let largest: Vec<Update> = (0..60_u64).map(|n| row(5 + n * 37 % 60, most - 100)).collect();
    for row in &largest {
        in_time("pushing", share.push(updates(&sink, std::slice::from_ref(row)))).await.expect("taken");
    }
    chain.report(in_time("finishing", share.finish()).await).await.expect("taken");
    let mut subscription = sink.read().await.expect("readable");
    let content =
        in_time("reading", delivered_until(&mut subscription, Frontier::at(1))).await.expect("read");
    let all: Vec<Update> = std::iter::once(row(1, 10)).chain(largest).collect();
    assert_eq!(content.len(), 61);
    assert!(content == content_of(&all), "the large rows come back");
    let usage = sink.stash().budget();
    assert!(usage.peak <= usage.total, "{usage:?}");
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_full_runs_than_allowed_are_merged_again_within_the_smallest_memory() {
    let world = World::memory(tight()).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let minted = mint(&mut chain, 1);
    // Wide slices of one long noise, each from another place, so that parts fill quickly; the later ones come before.
    let pool = noise(1, 4 << 20);
    let mut chance = Chance::new(2);
    let mut expected = 0;
    let mut share = incarnation.worker(0).expect("local").share(minted).expect("opens");
    for piece in 0..120_u64 {
        let rows: Vec<Update> = (0..10)
            .map(|n| {
                let from = chance.index(pool.len() - 40_000);
                (((119 - piece) * 10 + n, pool[from..from + 40_000].to_owned()), 0, 1)
            })
            .collect();
        expected += rows.len();
        in_time("pushing", share.push(updates(&sink, &rows))).await.expect("taken");
    }
    let resolved = chain.report(in_time("finishing", share.finish()).await).await.expect("taken");
    let puts = sink.stash().counters().puts as usize;
    assert!(puts > resolved[0].parts, "{puts} PUTs, {} parts: some were merged again", resolved[0].parts);
    let row = sink.batches().await.expect("the chain").pop().expect("a row");
    assert!(runs_of(&row) <= 16, "{} runs", runs_of(&row));
    let usage = sink.stash().budget();
    assert!(usage.peak <= usage.total, "{usage:?}");
    let mut reader =
        sink.read().await.expect("readable").next().await.expect("read").expect("a batch").read();
    let mut keys = BTreeSet::new();
    while let Some(batch) = in_time("reading", reader.next()).await.expect("readable") {
        keys.extend(stash_tests::rows_in(&batch).into_iter().map(|(((key, _), _), diff)| (key, diff)));
    }
    assert_eq!(keys.len(), expected);
    drop(reader);
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_readers_than_the_memory_can_serve_at_once_take_turns() {
    let mut config = tight();
    config.batch.part_bytes = 400_000;
    config.batch.chunk_bytes = 100_000;
    let world = World::memory(config).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let minted = mint(&mut chain, 1);
    let all = wide(7, 5_000, 1000, 0);
    let mut share = incarnation.worker(0).expect("local").share(minted).expect("opens");
    for piece in all.chunks(100) {
        share.push(updates(&sink, piece)).await.expect("taken");
    }
    chain.report(share.finish().await).await.expect("taken");
    let delivery = sink.read().await.expect("readable").next().await.expect("read").expect("a batch");
    assert!(runs_of(delivery.row()) > 8, "{} runs", runs_of(delivery.row()));
    // One has begun, and goes on only when another waits for it.
    let mut first = delivery.read();
    let mut first_rows = first.next().await.expect("readable").expect("rows").num_rows();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let mut reader = delivery.read();
        tasks.spawn(async move {
            let mut rows = 0;
            while let Some(batch) = reader.next().await.expect("readable") {
                rows += batch.num_rows();
            }
            rows
        });
    }
    let waiting = async {
        while sink.stash().budget().waits == 0 {
            tokio::task::yield_now().await;
        }
    };
    in_time("waiting for memory", waiting).await;
    while let Some(batch) = in_time("reading on", first.next()).await.expect("readable") {
        first_rows += batch.num_rows();
    }
    assert_eq!(first_rows, all.len());
    let rows = in_time("reading in turns", tasks.join_all()).await;
    assert_eq!(rows, [all.len(); 4]);
    let usage = sink.stash().budget();
    assert!(usage.peak <= usage.total && usage.read == 0, "{usage:?}");
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}
