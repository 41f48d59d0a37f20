//! One shared batch per process and description: how many PUTs shares cost.

use stash::{Frontier, Outcome, Share};
use stash_tests::{World, assert_same, content_of, delivered_until, in_time, small, updates};

use crate::{Update, many, mint, open, write_all};

/// What each of eight workers holds at `time`: 200 rows, too large to travel inside a share of eight.
fn eight(time: u64) -> Vec<Vec<Update>> {
    (0..8).map(|worker| many(worker * 1000, 200, time)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_workers_with_small_runs_cost_exactly_one_put_a_description() {
    let world = World::files(small(64 << 10)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 8).await;
    world.store.reset_counts();
    for time in 0..3 {
        let minted = mint(&mut chain, time + 1);
        let all = eight(time);
        let writers: Vec<_> = (0..8).map(|worker| incarnation.worker(worker).expect("local")).collect();
        let shares =
            writers.iter().zip(&all).map(|(writer, mine)| writer.write(minted, [updates(&sink, mine)]));
        let mut stashed = 0;
        for share in futures::future::join_all(shares).await {
            let share = share.expect("it is written");
            stashed += usize::from(matches!(share.share, Share::Stashed(_)));
            assert!(!matches!(share.share, Share::Inline(_)), "200 rows are above an eighth of 64 KiB");
            chain.report(share).await.expect("it is taken");
        }
        assert_eq!(stashed, 1, "one share carries the coalesced part, the others are empty");
        assert_eq!(world.store.counts().puts, time + 1);
    }
    let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(3)).await;
    let all: Vec<Update> = (0..3).flat_map(eight).flatten().collect();
    assert_same!(content.expect("read"), content_of(&all));
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_runs_travel_inline_beside_one_coalesced_part() {
    let world = World::memory(small(64 << 10)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 4).await;
    let minted = mint(&mut chain, 1);
    let all = [many(0, 3, 0), many(100, 1000, 0), many(5000, 1000, 0), Vec::new()];
    world.store.reset_counts();
    let resolved = write_all(&incarnation, &mut chain, minted, &all).await.expect("written");
    let [resolved] = resolved.as_slice() else { panic!("one batch: {resolved:?}") };
    assert_eq!((resolved.parts, resolved.inline), (1, 1));
    assert_eq!(world.store.counts().puts, 1);
    let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(1)).await;
    assert_same!(content.expect("read"), content_of(all.iter().flatten()));
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}

#[tokio::test]
async fn a_run_whose_updates_cancel_leaves_the_parts_before_it_alone() {
    let mut config = small(0);
    // Whatever is pushed is written at once.
    config.batch.part_bytes = 1;
    let world = World::memory(config).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let minted = mint(&mut chain, 1);
    let kept = many(0, 3, 0);
    let cancels: [Update; 2] = [((7, "gone".to_owned()), 0, 1), ((7, "gone".to_owned()), 0, -1)];
    let mut share = incarnation.worker(0).expect("local").share(minted).expect("opens");
    share.push(updates(&sink, &kept)).await.expect("is written");
    share.push(updates(&sink, &cancels)).await.expect("comes to nothing");
    chain.report(share.finish().await).await.expect("is taken");
    let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(1)).await;
    assert_same!(content.expect("read"), content_of(&kept));
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_runs_cost_at_most_their_parts_and_one_more_a_worker() {
    let mut config = small(0);
    config.batch.part_bytes = 100_000;
    config.batch.chunk_bytes = 30_000;
    let world = World::memory(config).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 4).await;
    let minted = mint(&mut chain, 1);
    // Worker 0 has most of it, worker 3 nothing.
    let all = [many(0, 6000, 0), many(10_000, 2000, 0), many(20_000, 10, 0), Vec::new()];
    let mut bytes = 0;
    world.store.reset_counts();
    let mut shares = Vec::new();
    for (worker, mine) in (0..).zip(&all) {
        let mut share = incarnation.worker(worker).expect("local").share(minted).expect("opens");
        for piece in mine.chunks(150) {
            let batch = updates(&sink, piece);
            bytes += batch.get_array_memory_size() as u64;
            share.push(batch).await.expect("taken");
        }
        shares.push(share);
    }
    for share in shares {
        chain.report(share.finish().await).await.expect("taken");
    }
    let puts = world.store.counts().puts;
    assert!(puts <= bytes.div_ceil(100_000) + 4, "{puts} PUTs for {bytes} bytes");
    assert!(puts >= 2, "{puts} PUTs: the test has large runs");
    let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(1)).await;
    assert_same!(content.expect("read"), content_of(all.iter().flatten()));
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}

/// All orders of four things.
fn orders() -> Vec<[u32; 4]> {
    let three = (0..4).flat_map(|a| (0..4).flat_map(move |b| (0..4).map(move |c| [a, b, c])));
    let distinct = three.filter(|[a, b, c]| a != b && a != c && b != c);
    let orders: Vec<[u32; 4]> = distinct.map(|[a, b, c]| [a, b, c, 6 - a - b - c]).collect();
    assert_eq!(orders.len(), 24);
    orders
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_whatever_order_workers_finish_and_report_the_batch_is_the_same() {
    let world = World::memory(small(8 << 10)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 4).await;
    // Inline, empty, and two that coalesce; all hold one row in common.
    let sizes = [2, 0, 100, 100];
    for (time, order) in (0..).zip(orders()) {
        let minted = mint(&mut chain, time + 1);
        let all: Vec<Vec<Update>> = (0..4)
            .zip(sizes)
            .map(|(worker, size)| if size == 0 { Vec::new() } else { many(worker, size, time) })
            .collect();
        let before = world.store.counts().puts;
        let mut shares = Vec::new();
        for worker in 0..4 {
            let mut share = incarnation.worker(worker).expect("local").share(minted).expect("opens");
            if let Some(mine) = all.get(worker as usize).filter(|mine| !mine.is_empty()) {
                share.push(updates(&sink, mine)).await.expect("taken");
            }
            shares.push(Some(share));
        }
        let mut resolved = Vec::new();
        for worker in order {
            let share = shares[worker as usize].take().expect("each once").finish().await;
            resolved.extend(chain.report(share).await.expect("taken"));
        }
        assert_eq!(world.store.counts().puts - before, 1, "order {order:?}");
        assert_eq!(resolved.len(), 1, "order {order:?}");
        assert_eq!(resolved[0].outcome, Some(Outcome::Accepted));
        let mut subscription = sink.read_from(Frontier::at(time));
        let content = delivered_until(&mut subscription, Frontier::at(time + 1)).await.expect("read");
        assert_same!(content, content_of(all.iter().flatten()), "order {order:?}");
    }
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_inline_limit_is_one_limit_across_workers() {
    for workers in [1, 4, 16, 64] {
        let world = World::memory(small(64 << 10)).await;
        let sink = world.sink().await;
        let (incarnation, mut chain) = open(&sink, "a", workers).await;
        let mut largest = 0;
        // From a few bytes to more than any share may carry.
        for (time, rows) in (0..).zip([1, 4, 10, 25, 60, 150, 400, 1000]) {
            let minted = mint(&mut chain, time + 1);
            let all: Vec<_> = (0..u64::from(workers)).map(|n| many(n * 10_000, rows, time)).collect();
            let resolved = write_all(&incarnation, &mut chain, minted, &all).await.expect("written");
            assert_eq!(resolved.len(), 1);
            let batches = sink.batches().await.expect("the chain");
            let row = batches.last().expect("a row");
            largest = largest.max(row.inline.iter().map(|run| run.payload.len()).sum());
            let content =
                delivered_until(&mut sink.read_from(Frontier::at(time)), Frontier::at(time + 1)).await;
            assert_same!(content.expect("read"), content_of(all.iter().flatten()));
        }
        assert!(largest > 0, "{workers} workers: some batch is inline");
        assert!(largest <= 64 << 10, "{workers} workers: {largest} bytes travel inline in one batch");
        incarnation.close("done").await.expect("closes");
        drop(chain);
        world.at_rest(sink.stash()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_batches_cost_no_put_and_all_empty_ones_no_row() {
    let world = World::files(small(64 << 10)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 2).await;
    world.store.reset_counts();
    let minted = mint(&mut chain, 1);
    let three = [many(0, 2, 0), many(5, 1, 0)];
    write_all(&incarnation, &mut chain, minted, &three).await.expect("written");
    let before = sink.batches().await.expect("the chain");
    assert_eq!(before.len(), 1);
    for upper in [5, 6, 900] {
        let minted = mint(&mut chain, upper);
        let resolved = write_all(&incarnation, &mut chain, minted, &[]).await.expect("written");
        assert_eq!(resolved[0].outcome, Some(Outcome::Accepted));
        assert_eq!(resolved[0].seq, None, "no row is written");
        assert_eq!(sink.upper().await.expect("head"), Frontier::at(upper));
    }
    // Updates that cancel out are as good as none.
    let minted = mint(&mut chain, 1000);
    let cancelling: Vec<Update> = many(0, 200, 950)
        .into_iter()
        .flat_map(|(row, time, _)| [(row.clone(), time, 2), (row, time, -2)])
        .collect();
    write_all(&incarnation, &mut chain, minted, &[cancelling]).await.expect("written");
    assert_eq!(world.store.counts().puts, 0);
    let after = sink.batches().await.expect("the chain");
    assert_eq!(after.len(), 1, "the chain's last row was extended");
    assert_eq!(after[0].extent, Frontier::at(1000));
    assert_eq!(after[0].id, before[0].id);
    let mut subscription = sink.read().await.expect("readable");
    let content =
        in_time("reading", delivered_until(&mut subscription, Frontier::at(1000))).await.expect("read");
    assert_same!(content, content_of(three.iter().flatten()));
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_about_as_large_as_a_share_may_carry_cost_at_most_one_put_whoever_is_faster() {
    let world = World::memory(small(16 << 10)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 8).await;
    for time in 0..60 {
        let minted = mint(&mut chain, time + 1);
        // As columns these have about 2 KiB, which is the limit of each; encoded a little more.
        let rows = 15 + time % 12;
        let before = world.store.counts().puts;
        let mut tasks = tokio::task::JoinSet::new();
        for worker in 0..8 {
            let writer = incarnation.worker(worker).expect("local");
            let mine = updates(&sink, &many(u64::from(worker) * 1000, rows, time));
            tasks.spawn(async move { writer.write(minted, [mine]).await.expect("written") });
        }
        for share in tasks.join_all().await {
            chain.report(share).await.expect("taken");
        }
        let puts = world.store.counts().puts - before;
        assert!(puts <= 1, "{puts} PUTs for eight runs of {rows} rows");
    }
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}
