//! Errors of the dataflow itself: they have a time, and what is below it is still delivered.

use stash::{Absence, DataflowError, Error, ErrorKind, Frontier, HeadStatus, IncarnationState, Opened};
use stash_tests::{World, assert_same, content_of, delivered, delivered_until, small, updates};

use crate::{Update, many, mint, open, write};

fn error_at(at: u64) -> DataflowError {
    DataflowError { at, message: "division by zero".to_owned() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_below_the_error_is_delivered_and_then_the_error_again_and_again() {
    for inline in [0, 64 << 10] {
        let world = World::files(small(inline)).await;
        let sink = world.sink().await;
        let (incarnation, mut chain) = open(&sink, "a", 2).await;
        write(&incarnation, &mut chain, 1, &many(0, 20, 0)).await;
        let mut subscription = sink.subscribe("reader", stash::StartAt::Beginning).await.expect("subscribes");

        let minted = mint(&mut chain, 10);
        let good: Vec<Update> = (1..7).flat_map(|time| many(time * 100, 10, time)).collect();
        let bad: Vec<Update> = (7..10).flat_map(|time| many(time * 100, 10, time)).collect();
        let all: Vec<Update> = good.iter().chain(&bad).cloned().collect();
        let (mine, others) = all.split_at(45);
        // The worker in error has updates below and above the error's time.
        let mut share = incarnation.worker(0).expect("local").share(minted).expect("opens");
        share.push(updates(&sink, mine)).await.expect("taken");
        chain.report(share.poison(error_at(7)).await).await.expect("taken");
        let share = incarnation.worker(1).expect("local").write(minted, [updates(&sink, others)]).await;
        chain.report(share.expect("written")).await.expect("taken");

        assert_eq!(sink.upper().await.expect("head"), Frontier::at(7));
        assert_eq!(sink.head().await.expect("head").status, HeadStatus::Poisoned(error_at(7)));
        let content = delivered_until(&mut subscription, Frontier::at(7)).await.expect("read");
        let wanted: Vec<Update> = many(0, 20, 0).into_iter().chain(good).collect();
        assert_same!(content, content_of(&wanted));
        for _ in 0..3 {
            let error = subscription.next().await.expect_err("poisoned");
            assert!(
                matches!(&error, Error::Absent(Absence::Poisoned { error, .. }) if *error == error_at(7))
            );
            assert_eq!(error.kind(), ErrorKind::Absent);
        }
        subscription.acknowledge(Frontier::at(7)).await.expect("acknowledged");
        let error = subscription.next().await.expect_err("poisoned still");
        assert!(matches!(error, Error::Absent(Absence::Poisoned { .. })), "{error}");
        let late = sink.subscribe("late", stash::StartAt::Earliest).await.expect("subscribes").next().await;
        assert!(matches!(late, Err(Error::Absent(Absence::Poisoned { .. }))));

        // Nobody renders it any more; only a drop ends it.
        drop((incarnation, chain));
        let launch = stash::Launch::single("b", 1).expect("sound");
        let opened = sink.open_incarnation(launch).await.expect("answers");
        assert!(matches!(opened, Opened::Poisoned(error) if error == error_at(7)));
        sink.drop_sink().await.expect("drops");
        world.at_rest(sink.stash()).await;
        assert!(world.listed().await.is_empty(), "nothing is left");
        let error = subscription.next().await.expect_err("dropped");
        assert!(matches!(error, Error::Absent(Absence::Dropped { .. })), "{error}");
        world.close([sink.stash().clone()]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_errors_the_earliest_counts_and_one_at_the_upper_accepts_nothing() {
    let world = World::memory(small(0)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 3).await;
    write(&incarnation, &mut chain, 1, &many(0, 20, 0)).await;
    let minted = mint(&mut chain, 10);
    for (worker, at) in [(0, 5), (1, 1), (2, 9)] {
        let mut share = incarnation.worker(worker).expect("local").share(minted).expect("opens");
        share.push(updates(&sink, &many(u64::from(worker) * 100, 20, 4))).await.expect("taken");
        chain.report(share.poison(error_at(at)).await).await.expect("taken");
    }
    assert_eq!(sink.head().await.expect("head").status, HeadStatus::Poisoned(error_at(1)));
    assert_eq!(sink.upper().await.expect("head"), Frontier::at(1));
    let mut subscription = sink.read().await.expect("readable");
    let first = subscription.next().await.expect("read").expect("a batch");
    assert_same!(delivered(&first).await.expect("read"), content_of(&many(0, 20, 0)));
    assert!(subscription.next().await.is_err());
    // What another replica offers now is dropped without harm to it.
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
    assert_eq!(world.listed().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_below_the_upper_is_the_replicas_failure_and_closes_it() {
    let world = World::memory(small(0)).await;
    let sink = world.sink().await;
    let (odd, mut odd_chain) = open(&sink, "odd", 1).await;
    let (other, mut other_chain) = open(&sink, "other", 1).await;
    write(&odd, &mut odd_chain, 1, &many(0, 20, 0)).await;
    let minted = mint(&mut odd_chain, 10);
    write(&other, &mut other_chain, 1, &many(0, 20, 0)).await;
    write(&other, &mut other_chain, 6, &many(0, 20, 3)).await;

    let mut share = odd.worker(0).expect("local").share(minted).expect("opens");
    share.push(updates(&sink, &many(0, 20, 8))).await.expect("taken");
    let error = odd_chain.report(share.poison(error_at(3)).await).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Reopen, "{error}");
    let rows = sink.incarnations().await.expect("rows");
    let closed = rows.iter().find(|row| row.id == odd.id()).expect("known");
    assert!(matches!(closed.state, IncarnationState::Closed { .. }));
    // The chain is not poisoned, and the other replica goes on.
    write(&other, &mut other_chain, 10, &many(0, 20, 8)).await;
    let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(10)).await;
    let all = [many(0, 20, 0), many(0, 20, 3), many(0, 20, 8)];
    assert_same!(content.expect("read"), content_of(all.iter().flatten()));
    other.close("done").await.expect("closes");
    drop((odd, odd_chain, other_chain));
    world.at_rest(sink.stash()).await;
}
