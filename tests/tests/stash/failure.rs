//! Workers and stores that fail: the incarnation is closed, nothing leaks, nothing doubles, others go on.

use stash::{BatchError, Error, ErrorKind, Frontier, IncarnationState, Outcome, Share};
use stash_testkit::{Fault, FaultPlan, Op};
use stash_tests::{World, assert_same, content_of, delivered_until, in_time, small, updates};

use crate::{many, mint, open, write, write_all};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workers_failure_fails_the_description_and_closes_only_its_own_incarnation() {
    // Before its first row, after some, and after a part of it stands in the store.
    for rows in [0, 10, 6000] {
        let mut config = small(0);
        config.batch.part_bytes = 100_000;
        config.batch.chunk_bytes = 50_000;
        let world = World::files(config).await;
        let sink = world.sink().await;
        let (one, mut one_chain) = open(&sink, "one", 3).await;
        let (other, mut other_chain) = open(&sink, "other", 1).await;
        write(&one, &mut one_chain, 1, &many(0, 20, 0)).await;

        // Of an earlier description one share is not reported yet; the merge holds another that carries a part.
        let early = mint(&mut one_chain, 5);
        let minted = mint(&mut one_chain, 9);
        let mut late = None;
        for worker in 0..3 {
            let mine = (worker == 0).then(|| updates(&sink, &many(0, 50, 3)));
            let share = one.worker(worker).expect("local").write(early, mine).await.expect("written");
            match worker {
                1 => late = Some(share),
                _ => drop(one_chain.report(share).await.expect("taken")),
            }
        }
        assert_eq!(world.listed().await.len(), 2);
        let mut failing = one.worker(1).expect("local").share(minted).expect("opens");
        for piece in many(0, rows, 6).chunks(500) {
            failing.push(updates(&sink, piece)).await.expect("taken");
        }
        let mut good = one.worker(0).expect("local").share(minted).expect("opens");
        good.push(updates(&sink, &many(90_000, 10, 6))).await.expect("taken");
        let failed = failing.fail("out of luck");
        assert!(matches!(failed.share, Share::Failed { .. }));
        // The others of this process hear of it: none of them says that all is well.
        let others = good.push(updates(&sink, &many(91_000, 10, 6))).await;
        assert!(others.is_err(), "{rows} rows");
        let good = good.finish().await;
        assert!(matches!(good.share, Share::Failed { .. }), "{rows} rows: {}", good.share.kind());
        let error = one_chain.report(good).await.expect_err("failed");
        assert_eq!(error.kind(), ErrorKind::Reopen, "{error}");
        drop(failed);
        let error = one_chain.report(late.expect("kept")).await;
        assert_eq!(error.expect_err("it ended").kind(), ErrorKind::Reopen);
        let rows_of = sink.incarnations().await.expect("rows");
        let state = |id| rows_of.iter().find(|row| row.id == id).map(|row| row.state.clone()).expect("known");
        assert!(matches!(state(one.id()), IncarnationState::Closed { .. }));
        assert_eq!(state(other.id()), IncarnationState::Open, "the other replica goes on");

        assert_eq!(write(&other, &mut other_chain, 1, &many(0, 20, 0)).await.outcome, Some(Outcome::Dropped));
        let rest = [many(0, 50, 3), many(0, 20, 6)].concat();
        assert_eq!(write(&other, &mut other_chain, 9, &rest).await.outcome, Some(Outcome::Accepted));
        let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(9)).await;
        let all = [many(0, 20, 0), rest].concat();
        assert_same!(content.expect("read"), content_of(&all));
        other.close("done").await.expect("closes");
        drop((one, one_chain, other_chain));
        world.at_rest(sink.stash()).await;
        world.close([sink.stash().clone()]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_stash_was_closed_is_told_to_open_it_again() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 2).await;
    let minted = mint(&mut chain, 1);
    let mut begun = incarnation.worker(0).expect("local").share(minted).expect("opens");
    begun.push(updates(&sink, &many(0, 100, 0))).await.expect("taken");
    sink.stash().close().await.expect("closes");

    // Neither call is at fault: in a stash that is open both go through.
    let late = incarnation.worker(1).expect("local").share(minted).expect_err("nothing is begun any more");
    assert!(matches!(late, Error::Batch(BatchError::Closed)), "{late}");
    assert_eq!(late.kind(), ErrorKind::Reopen, "{late}");
    let failed = begun.try_finish().await.expect_err("what it held was given up");
    let (share, error) = *failed;
    let error = Error::from(error);
    assert_eq!(error.kind(), ErrorKind::Reopen, "{error}");
    drop((share, incarnation, chain));
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_workers_flush_finds_wrong_with_the_updates_lasts_for_the_others_too() {
    let mut config = small(0);
    config.batch.part_bytes = 100_000;
    config.batch.chunk_bytes = 50_000;
    let world = World::files(config).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 3).await;
    let minted = mint(&mut chain, 1);
    let share = |worker| incarnation.worker(worker).expect("local").share(minted).expect("opens");
    let (mut first, mut second, third) = (share(0), share(1), share(2));
    // One row of both: no worker's own updates are at fault, and only what is written together shows it.
    let row = |diff| updates(&sink, &[((0, "in both".to_owned()), 0, diff)]);
    first.push(row(i64::MAX)).await.expect("taken");
    second.push(row(1)).await.expect("taken");
    let flushed = async {
        for from in (1..).step_by(200) {
            if let Err(error) = second.push(updates(&sink, &many(from, 200, 0))).await {
                return error;
            }
        }
        unreachable!("there is always more to push")
    };
    let flushed = in_time("filling a part", flushed).await;
    assert!(matches!(flushed, BatchError::Part { .. }), "{flushed}");

    // The first may go on pushing, the second was told already, the third had nothing and finishes.
    let pushed = first.push(row(1)).await.expect_err("the batch failed");
    let (second, again) = *second.try_finish().await.expect_err("the batch failed");
    let (third, finished) = *third.try_finish().await.expect_err("the batch failed");
    for told in [pushed, again, finished] {
        assert!(matches!(told, BatchError::SharedFailed { lasting: true, .. }), "{told:?}");
        assert!(told.to_string().contains("beyond i64"), "{told}: it says what to look for");
        let told = Error::from(told);
        assert_eq!(told.kind(), ErrorKind::FixCall, "{told}: another incarnation runs into it again");
    }
    drop((first, second, third, chain));
    incarnation.close("done").await.expect("closes");
    world.at_rest(sink.stash()).await;
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_worker_was_told_when_it_gives_up_lasts_for_the_others_as_it_does_for_it() {
    let world = World::memory(small(64 << 10)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 2).await;
    for (time, lasting) in [(0, true), (1, false)] {
        let minted = chain.mint(Frontier::at(time + 1)).expect("it mints").minted().expect("a description");
        let share = |worker| incarnation.worker(worker).expect("local").share(minted).expect("opens");
        let (mut first, second) = (share(0), share(1));
        if lasting {
            let row = ((0, "twice".to_owned()), time, i64::MAX);
            first.push(updates(&sink, &[row.clone(), row])).await.expect("taken, and not summed yet");
            let (first, error) = *first.try_finish().await.expect_err("beyond i64");
            assert!(error.lasts(), "{error}");
            drop(first.fail("by what it was told"));
        } else {
            drop(first.fail("for no reason that the updates know"));
        }
        let (second, told) = *second.try_finish().await.expect_err("the batch failed");
        assert_eq!(told.lasts(), lasting, "{told}");
        drop(second);
    }
    drop(chain);
    incarnation.close("done").await.expect("closes");
    world.at_rest(sink.stash()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_goes_wrong_once_in_whatever_way_is_retried_and_nothing_doubles() {
    for fault in [Fault::Refused { retry: true }, Fault::TimedOut, Fault::LostReply] {
        let world = World::files(small(0)).await;
        let sink = world.sink().await;
        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        world.store.set_plan(FaultPlan::none().at(Op::Put, 0, fault));
        world.store.reset_counts();
        let outcome = write(&incarnation, &mut chain, 1, &many(0, 100, 0)).await.outcome;
        assert_eq!(outcome, Some(Outcome::Accepted), "{fault:?}");
        // Also where it landed: that it can be read does not tell whether it is durable.
        assert_eq!(world.store.counts().puts, 2, "{fault:?}");
        let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(1)).await;
        assert_same!(content.expect("read"), content_of(&many(0, 100, 0)));
        incarnation.close("done").await.expect("closes");
        drop(chain);
        world.at_rest(sink.stash()).await;
        assert_eq!(world.listed().await.len(), 1);
        world.close([sink.stash().clone()]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_keeps_failing_fails_the_share_after_bounded_tries_and_leaves_nothing() {
    let faults =
        [Fault::Refused { retry: true }, Fault::Refused { retry: false }, Fault::TimedOut, Fault::LostReply];
    for fault in faults {
        let world = World::files(small(0)).await;
        let sink = world.sink().await;
        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        let minted = mint(&mut chain, 1);
        // What happened cannot even be read back.
        world.store.set_plan(FaultPlan::none().always(Op::Put, fault).always(Op::Get, Fault::TimedOut));
        world.store.reset_counts();
        let all = [many(0, 100, 0)];
        let error = in_time("failing", write_all(&incarnation, &mut chain, minted, &all)).await;
        let error = error.expect_err("failed");
        assert_eq!(error.kind(), ErrorKind::Reopen, "{fault:?}: {error}");
        let puts = world.store.counts().puts;
        let allowed = if fault == (Fault::Refused { retry: false }) { 1 } else { 2 };
        assert!(puts <= allowed, "{fault:?}: {puts} PUTs");
        world.store.heal();
        assert_eq!(sink.upper().await.expect("head"), Frontier::at(0), "the chain did not move");
        world.at_rest(sink.stash()).await;
        assert!(world.listed().await.is_empty(), "{fault:?}: nothing is left");

        drop((incarnation, chain));
        let (second, mut chain) = open(&sink, "a", 1).await;
        write(&second, &mut chain, 1, &many(0, 100, 0)).await;
        let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(1)).await;
        assert_same!(content.expect("read"), content_of(&many(0, 100, 0)));
        second.close("done").await.expect("closes");
        drop(chain);
        world.close([sink.stash().clone()]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_claims_a_put_it_never_made_is_found_out() {
    let world = World::memory(small(0)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    world.store.set_plan(FaultPlan::none().always(Op::Put, Fault::Lie));
    write(&incarnation, &mut chain, 1, &many(0, 100, 0)).await;
    world.store.heal();
    // No system can be right over it, but it must be said, and never read as an empty batch.
    let mut subscription = sink.read().await.expect("readable");
    let delivery = subscription.next().await.expect("its row").expect("a batch");
    let error = stash_tests::delivered(&delivery).await.expect_err("lost");
    assert!(matches!(error, stash::Error::Absent(stash::Absence::Lost { .. })), "{error}");
    assert_eq!(error.kind(), ErrorKind::Repair);
    let report = sink.verify(|_| {}).await.expect("verified");
    assert_eq!(report.violations.iter().map(|v| v.invariant.as_str()).collect::<Vec<_>>(), ["I15"]);
    incarnation.close("done").await.expect("closes");
    drop(chain);
    sink.drop_sink().await.expect("drops");
    world.at_rest(sink.stash()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_that_lies_is_corrupt_and_one_that_fails_is_retried() {
    let world = World::memory(small(0)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    write(&incarnation, &mut chain, 1, &many(0, 100, 0)).await;
    let mut subscription = sink.read().await.expect("readable");
    let delivery = subscription.next().await.expect("its row").expect("a batch");
    world.store.set_plan(FaultPlan::none().always(Op::Get, Fault::Lie));
    let error = stash_tests::delivered(&delivery).await.expect_err("spoiled");
    assert!(matches!(error, stash::Error::Absent(stash::Absence::Corrupt { .. })), "{error}");
    for fault in [Fault::Refused { retry: true }, Fault::TimedOut, Fault::LostReply] {
        world.store.set_plan(FaultPlan::none().at(Op::Get, 0, fault).at(Op::Get, 2, fault));
        let content = stash_tests::delivered(&delivery).await.expect("read");
        assert_same!(content, content_of(&many(0, 100, 0)));
    }
    world.store.set_plan(FaultPlan::none().always(Op::Get, Fault::TimedOut));
    let error = in_time("reading", stash_tests::delivered(&delivery)).await.expect_err("an outage");
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletes_that_fail_stay_queued_and_are_made_later() {
    for fault in [Fault::Refused { retry: true }, Fault::TimedOut, Fault::LostReply] {
        let clock = std::sync::Arc::new(stash_catalog::testing::ManualClock::at(1_000_000));
        let world = World::files_at(small(0), std::sync::Arc::clone(&clock) as _).await;
        let sink = world.sink().await;
        let mut subscription = sink.subscribe("reader", stash::StartAt::Beginning).await.expect("subscribes");
        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        for time in 0..3 {
            write(&incarnation, &mut chain, time + 1, &many(0, 100, time)).await;
        }
        incarnation.close("done").await.expect("closes");
        drop(chain);
        world.store.set_plan(FaultPlan::none().always(Op::Delete, fault));
        for upper in 1..4 {
            delivered_until(&mut subscription, Frontier::at(upper)).await.expect("read");
            subscription.acknowledge(Frontier::at(upper)).await.expect("acknowledged");
        }
        let stash = sink.stash();
        stash.drain_deletions().await.expect("a pass");
        let queued = stash.catalog().deletions_queued(None).await.expect("the queue");
        assert_eq!(queued, 3, "{fault:?}: none is forgotten");
        world.store.heal();
        assert_eq!(stash.drain_deletions().await.expect("a pass").deleted, 0, "not due yet");
        clock.advance(3_600_000);
        world.at_rest(stash).await;
        assert!(world.listed().await.is_empty());
        world.close([stash.clone()]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_that_was_closed_from_outside_gives_up_all_it_had_collected() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 2).await;
    let (first, second) = (mint(&mut chain, 1), mint(&mut chain, 5));
    // One share of the second description stands in the merge, the first batch waits to be offered.
    let share = incarnation.worker(0).expect("local").write(second, [updates(&sink, &many(0, 50, 3))]).await;
    chain.merge(share.expect("written")).await.expect("merged");
    let share = incarnation.worker(1).expect("local").write(second, []).await.expect("written");
    chain.merge(share).await.expect("merged");
    for worker in 0..2 {
        let mine = updates(&sink, &many(u64::from(worker) * 100, 50, 0));
        let share = incarnation.worker(worker).expect("local").write(first, [mine]).await;
        chain.merge(share.expect("written")).await.expect("merged");
    }
    let third = mint(&mut chain, 9);
    let share = incarnation.worker(0).expect("local").share(third).expect("opens");
    assert_eq!(world.listed().await.len(), 2);
    let catalog = sink.stash().catalog();
    catalog.close_incarnation(sink.id(), incarnation.id(), "closed from outside").await.expect("closes");
    let error = chain.offer().await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Reopen, "{error}");
    // Nothing had to be dropped for that, and it says so from now on.
    world.at_rest(sink.stash()).await;
    assert!(world.listed().await.is_empty());
    assert!(chain.offer().await.expect("nothing waits").is_none());
    assert_eq!(chain.report(share.finish().await).await.expect_err("ended").kind(), ErrorKind::Reopen);
    drop((incarnation, chain));
    world.close([sink.stash().clone()]).await;
}
