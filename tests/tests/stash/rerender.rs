//! Rendering anew: what a new incarnation costs, and what becomes of its first batches.

use stash::{Frontier, IncarnationState, Launch, Opened, Outcome, SinkSpec};
use stash_tests::{World, assert_same, content_of, delivered_until, schema, small, updates};

use crate::{many, mint, open, write, write_all};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_first_accept_a_snapshot_is_rendered_without_a_put() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let (first, mut chain) = open(&sink, "a", 2).await;
    write(&first, &mut chain, 1, &many(0, 500, 0)).await;
    write(&first, &mut chain, 10, &many(0, 50, 7)).await;
    drop((first, chain));

    let (second, mut chain) = open(&sink, "a", 2).await;
    assert_eq!(second.as_of(), 9, "granted U - 1");
    assert_eq!(second.floor(), Frontier::at(10));
    let closed = sink.incarnations().await.expect("rows");
    assert!(matches!(closed[0].state, IncarnationState::Closed { .. }), "the older one is closed");
    world.store.reset_counts();
    let minted = mint(&mut chain, 10);
    assert_eq!(minted.description.to_string(), "[9, 10)");
    assert_eq!(sink.writes(minted), None, "covered from birth");
    // Workers that render it all the same, accumulated at the as-of, write nothing of it.
    let snapshot = [many(0, 300, 9), many(300, 200, 9)];
    let revision = sink.stash().catalog().revision().await.expect("revision");
    let resolved = write_all(&second, &mut chain, minted, &snapshot).await.expect("written");
    assert_eq!(resolved[0].outcome, Some(Outcome::Dropped));
    assert_eq!(world.store.counts().puts, 0);
    let once = sink.stash().catalog().revision().await.expect("revision");
    assert_eq!(once, revision + 1, "the first drop is written, since the inputs hold the as-of until then");

    // Another replica takes the chain on; what this one offers below is dropped, now without a write.
    let (other, mut others) = open(&sink, "b", 1).await;
    assert_eq!(write(&other, &mut others, 10, &[]).await.outcome, Some(Outcome::Dropped));
    assert_eq!(write(&other, &mut others, 20, &many(0, 30, 15)).await.outcome, Some(Outcome::Accepted));
    let revision = sink.stash().catalog().revision().await.expect("revision");
    let minted = mint(&mut chain, 14);
    let resolved = write_all(&second, &mut chain, minted, &[]).await.expect("written");
    assert_eq!(resolved[0].outcome, Some(Outcome::Dropped));
    assert_eq!(sink.stash().catalog().revision().await.expect("revision"), revision, "no write");

    // Its next one straddles, and is trimmed.
    let minted = mint(&mut chain, 25);
    let straddler = [many(0, 30, 15), many(100, 40, 22)];
    let resolved = write_all(&second, &mut chain, minted, &straddler).await.expect("written");
    assert_eq!(resolved[0].outcome, Some(Outcome::Trimmed { from: Frontier::at(20) }));
    let mut subscription = sink.read().await.expect("readable");
    let content = delivered_until(&mut subscription, Frontier::at(25)).await.expect("read");
    let all = [many(0, 500, 0), many(0, 50, 7), many(0, 30, 15), many(100, 40, 22)];
    assert_same!(content, content_of(all.iter().flatten()));
    for incarnation in [second, other] {
        incarnation.close("done").await.expect("closes");
    }
    drop((chain, others));
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_the_first_accept_the_snapshot_is_rendered_again_and_the_first_try_is_deleted() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let (first, mut chain) = open(&sink, "a", 2).await;
    let minted = mint(&mut chain, 1);
    let share = first.worker(0).expect("local").write(minted, [updates(&sink, &many(0, 100, 0))]).await;
    chain.report(share.expect("written")).await.expect("taken");
    let share = first.worker(1).expect("local").write(minted, [updates(&sink, &many(100, 100, 0))]).await;
    // Its part stands in the store, and is never reported.
    assert_eq!(world.listed().await.len(), 1);
    drop((share, chain, first));

    let (second, mut chain) = open(&sink, "a", 2).await;
    assert_eq!(second.as_of(), 0, "the original as-of");
    assert_eq!(sink.read_hold().await.expect("hold"), Frontier::at(0));
    let minted = mint(&mut chain, 1);
    let all = [many(0, 100, 0), many(100, 100, 0)];
    let resolved = write_all(&second, &mut chain, minted, &all).await.expect("written");
    assert_eq!(resolved[0].outcome, Some(Outcome::Accepted));
    let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(1)).await;
    assert_same!(content.expect("read"), content_of(all.iter().flatten()));
    second.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
    assert_eq!(world.listed().await.len(), 1, "only the accepted part is left");
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_processes_of_one_launch_share_a_grant_and_a_used_launch_is_refused() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let token = sink.stash().draw_launch();
    let launch = |process| Launch::process("a", token, process, 2, process, 1).expect("sound");
    let one = sink.open_incarnation(launch(0)).await.expect("opens").render().expect("render");
    let other = sink.open_incarnation(launch(1)).await.expect("opens").render().expect("render");
    assert_eq!((one.id(), one.as_of()), (other.id(), other.as_of()));
    assert_eq!(one.minting_worker(), other.minting_worker());
    assert!(one.worker(1).is_err() && other.worker(1).is_ok(), "each has its own workers");
    one.close("done").await.expect("closes");
    let error = sink.open_incarnation(launch(1)).await.expect_err("the launch was used");
    assert_eq!(error.kind(), stash::ErrorKind::FixCall, "{error}");
    drop(other);
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_joins_what_its_launch_renders_though_another_replica_ended_the_chain_meanwhile() {
    let world = World::files(small(0)).await;
    let sink = world
        .open()
        .await
        .declare_sink(SinkSpec::new("rows", schema()).expect("sound").up_to(5))
        .await
        .expect("declared");
    let token = sink.stash().draw_launch();
    let launch = |process| Launch::process("a", token, process, 2, process, 1).expect("sound");
    let one = sink.open_incarnation(launch(0)).await.expect("opens").render().expect("render");
    let (winner, mut chain) = open(&sink, "b", 1).await;
    write(&winner, &mut chain, 1, &many(0, 20, 0)).await;
    assert_eq!(write(&winner, &mut chain, 5, &many(0, 20, 3)).await.outcome, Some(Outcome::Accepted));

    let late = sink.open_incarnation(launch(1)).await.expect("opens").render().expect("joins");
    assert_eq!((late.id(), late.as_of()), (one.id(), one.as_of()));
    let open = sink.open_incarnations().await.expect("listed");
    assert!(open.iter().any(|row| row.id == one.id()), "nobody closed it: {open:?}");
    // Both give their shares, and are told how it ended.
    let mut chain = one.chain().expect("the minting process");
    let minted = mint(&mut chain, 5);
    let mut resolved = write_all(&one, &mut chain, minted, &[]).await.expect("written");
    assert!(resolved.is_empty(), "one share is missing");
    resolved.extend(write_all(&late, &mut chain, minted, &[]).await.expect("written"));
    assert_eq!(resolved.iter().map(|one| one.outcome).collect::<Vec<_>>(), [Some(Outcome::Dropped)]);

    let stranger = Launch::process("a", sink.stash().draw_launch(), 0, 2, 0, 1).expect("sound");
    assert!(
        matches!(sink.open_incarnation(stranger).await, Ok(Opened::Complete)),
        "another launch renders nothing"
    );
    assert!(
        matches!(sink.open_incarnation(launch(1)).await, Ok(Opened::Complete)),
        "and closed what was open"
    );
    drop((one, late, chain));
    winner.close("done").await.expect("closes");
    world.close([sink.stash().clone()]).await;
}
