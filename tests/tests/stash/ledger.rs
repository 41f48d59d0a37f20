//! Shares that cross a process border: disarmed, armed again, merged there, or given up by whoever still
//! answers for them.

use stash::{
    DisarmedShare, ErrorKind, Frontier, Incarnation, Launch, Outcome, Share, Sink, SinkSpec, Stash,
    WorkerIndex, disarm, wire::Wire,
};
use stash_tests::{World, assert_same, content_of, delivered_until, schema, small, updates};

use crate::{Update, many, mint, open};

/// Two processes of two workers each, of one launch.
struct Team {
    stashes: [Stash; 2],
    sinks: [Sink; 2],
    incarnations: [Incarnation; 2],
}

impl Team {
    async fn open(world: &World, replica: &str) -> Team {
        let first = world.sink().await;
        let second = world.open().await.sink("rows").await.expect("declared");
        let sinks = [first, second];
        let token = sinks[0].stash().draw_launch();
        let mut incarnations = Vec::new();
        for (process, sink) in (0..).zip(&sinks) {
            let launch = Launch::process(replica, token, process, 4, process * 2, 2).expect("sound");
            incarnations.push(sink.open_incarnation(launch).await.expect("opens").render().expect("render"));
        }
        let stashes = sinks.each_ref().map(|sink| sink.stash().clone());
        let incarnations = incarnations.try_into().expect("two");
        Team { stashes, sinks, incarnations }
    }

    /// The shares of both workers of a process.
    async fn shares(
        &self,
        process: usize,
        minted: stash::Minted,
        all: &[Vec<Update>],
    ) -> Vec<stash::ShareMessage<stash::OwnedParts>> {
        let mut shares = Vec::new();
        for worker in self.incarnations[process].local_workers() {
            let mine = updates(&self.sinks[process], &all[worker as usize]);
            let writer = self.incarnations[process].worker(worker).expect("local");
            shares.push(writer.write(minted, [mine]).await.expect("written"));
        }
        shares
    }
}

fn all_of(time: u64) -> Vec<Vec<Update>> {
    (0..4).map(|worker| many(worker * 1000, 150, time)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_of_two_processes_merge_into_one_batch_and_cost_a_put_each() {
    let world = World::files(small(8 << 10)).await;
    let team = Team::open(&world, "a").await;
    let mut chain = team.incarnations[0].chain().expect("free");
    for time in 0..4 {
        let minted = mint(&mut chain, time + 1);
        world.store.reset_counts();
        let mut frames = Vec::new();
        for share in team.shares(1, minted, &all_of(time)).await {
            frames.push(disarm(share).expect("a frame"));
        }
        team.stashes[1].drain_deletions().await.expect("a pass");
        assert_eq!(team.stashes[1].counters().ledger_keys, 1, "it answers for what is on its way");
        let mut resolved = Vec::new();
        for frame in &frames {
            let share = team.incarnations[0].arm(frame).expect("armed");
            resolved.extend(chain.report(share).await.expect("taken"));
        }
        for share in team.shares(0, minted, &all_of(time)).await {
            resolved.extend(chain.report(share).await.expect("taken"));
        }
        assert_eq!(resolved[0].outcome, Some(Outcome::Accepted));
        assert_eq!((resolved[0].parts, world.store.counts().puts), (2, 2), "one a process");
        assert_eq!(team.stashes[0].counters().ledger_keys, 0, "the chain owns them");
        team.stashes[1].drain_deletions().await.expect("a pass");
        assert_eq!(team.stashes[1].counters().ledger_keys, 0, "and the sender knows it");
    }
    let mut subscription = team.sinks[1].read().await.expect("readable");
    let content = delivered_until(&mut subscription, Frontier::at(4)).await.expect("read");
    let all: Vec<Update> = (0..4).flat_map(all_of).flatten().collect();
    assert_same!(content, content_of(&all));
    let Team { stashes, sinks, incarnations } = team;
    drop((chain, incarnations));
    // The sender closes: it gives up what it sent, and the catalog knows better.
    stashes[1].close().await.expect("closes");
    world.at_rest(&stashes[0]).await;
    let mut subscription = sinks[0].read().await.expect("readable");
    assert_same!(delivered_until(&mut subscription, Frontier::at(4)).await.expect("read"), content_of(&all));
    world.close([stashes[0].clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_never_arrive_are_deleted_when_their_sender_closes_or_the_replica_opens_anew() {
    for closes in [true, false] {
        let world = World::files(small(0)).await;
        let team = Team::open(&world, "a").await;
        let mut chain = team.incarnations[0].chain().expect("free");
        let minted = mint(&mut chain, 1);
        for share in team.shares(1, minted, &all_of(0)).await {
            drop(disarm(share).expect("a frame"));
        }
        assert_eq!(world.listed().await.len(), 1);
        let Team { stashes: [first, second], sinks, incarnations: [one, other] } = team;
        drop((other, chain));
        if closes {
            second.drain_deletions().await.expect("a pass");
            assert_eq!(world.listed().await.len(), 1, "its frame may still arrive");
            second.close().await.expect("closes");
            assert!(world.listed().await.is_empty(), "its close deletes them");
            drop(one);
        } else {
            // The process is gone without a word; the other opens a new incarnation.
            let [sink, lost] = sinks;
            drop((lost, second, one));
            assert_eq!(world.listed().await.len(), 1);
            let (again, _chain) = open(&sink, "a", 1).await;
            world.at_rest(&first).await;
            assert!(world.listed().await.is_empty(), "the opening finds them");
            again.close("done").await.expect("closes");
        }
        world.close([first]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn armed_shares_that_are_never_offered_are_deleted_by_the_receiver() {
    let world = World::files(small(0)).await;
    let team = Team::open(&world, "a").await;
    let mut chain = team.incarnations[0].chain().expect("free");
    let minted = mint(&mut chain, 1);
    for share in team.shares(1, minted, &all_of(0)).await {
        let share = team.incarnations[0].arm(&disarm(share).expect("a frame")).expect("armed");
        chain.report(share).await.expect("taken");
    }
    assert_eq!(world.listed().await.len(), 1);
    let Team { stashes, incarnations: [one, other], sinks: _ } = team;
    // The merge gives up what it collected.
    drop((chain, other));
    one.close("done").await.expect("closes");
    world.at_rest(&stashes[0]).await;
    assert!(world.listed().await.is_empty());
    world.close(stashes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_arrives_twice_is_refused_and_loses_nothing() {
    // The copy comes before the batch left, and after it.
    for early in [true, false] {
        let world = World::files(small(0)).await;
        let team = Team::open(&world, "a").await;
        let mut chain = team.incarnations[0].chain().expect("free");
        let minted = mint(&mut chain, 1);
        let mut frames = Vec::new();
        for share in team.shares(1, minted, &all_of(0)).await {
            frames.push(disarm(share).expect("a frame"));
        }
        let mut refused = 0;
        for frame in frames.iter().chain(if early { frames.as_slice() } else { &[] }) {
            let share = team.incarnations[0].arm(frame).expect("armed");
            refused += usize::from(chain.report(share).await.is_err());
        }
        let mut outcome = Ok(Vec::new());
        for share in team.shares(0, minted, &all_of(0)).await {
            outcome = chain.report(share).await;
        }
        if !early {
            for frame in &frames {
                let share = team.incarnations[0].arm(frame).expect("armed");
                refused += usize::from(chain.report(share).await.is_err());
            }
        }
        assert_eq!(refused, 2, "early {early}");
        team.stashes[0].drain_deletions().await.expect("a pass");
        let sink = &team.sinks[0];
        match outcome {
            Ok(resolved) => {
                assert_eq!(resolved.len(), 1);
                assert_eq!(resolved[0].outcome, Some(Outcome::Accepted));
                let mut subscription = sink.read().await.expect("readable");
                let content = delivered_until(&mut subscription, Frontier::at(1)).await.expect("read");
                assert_same!(content, content_of(all_of(0).iter().flatten()), "early {early}");
            }
            // The parts may have been given up by then; that must be said in time.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Reopen, "early {early}: {error}");
                assert_eq!(sink.upper().await.expect("head"), Frontier::at(0));
            }
        }
        let Team { stashes, sinks: _, incarnations: [one, other] } = team;
        drop((chain, other));
        one.close("done").await.expect("closes");
        stashes[1].close().await.expect("closes");
        world.at_rest(&stashes[0]).await;
        world.close([stashes[0].clone()]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_frames_reach_no_other_sink() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let spec = SinkSpec::new("victim", schema()).expect("sound");
    let victim = sink.stash().declare_sink(spec).await.expect("declared");
    let (theirs, mut their_chain) = open(&victim, "a", 1).await;
    let minted = mint(&mut their_chain, 1);
    let share = theirs.worker(0).expect("local").write(minted, [updates(&victim, &many(0, 50, 0))]).await;
    let frame = disarm(share.expect("written")).expect("a frame");
    let (mine, mut my_chain) = open(&sink, "a", 1).await;
    let my_minted = mint(&mut my_chain, 1);

    // As it is, and with the names of this sink written over it.
    let error = mine.arm(&frame).expect_err("another sink's");
    assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
    let genuine = DisarmedShare::from_wire(&frame).expect("a share");
    let half = DisarmedShare { sink: sink.id(), ..genuine.clone() };
    assert!(mine.arm(&half.to_wire().expect("a frame")).is_err(), "another incarnation");
    let half = DisarmedShare { incarnation: mine.id(), ..genuine.clone() };
    assert!(mine.arm(&half.to_wire().expect("a frame")).is_err(), "another sink");
    assert!(mine.arm(&frame[..frame.len() - 1]).is_err(), "cut short");

    let forged = DisarmedShare { sink: sink.id(), incarnation: mine.id(), ..genuine.clone() };
    let armed = mine.arm(&forged.to_wire().expect("a frame")).expect("well-formed");
    let Share::Stashed(parts) = &armed.share else { panic!("stashed") };
    assert!(parts.keys().all(|key| key.shard == sink.shard()), "under the receiver's own shard");
    let stranger = DisarmedShare { worker: WorkerIndex(9), ..forged };
    let stranger = mine.arm(&stranger.to_wire().expect("a frame")).expect("well-formed");
    assert_eq!(my_chain.report(stranger).await.expect_err("no such worker").kind(), ErrorKind::FixCall);
    assert_eq!(my_minted.description, minted.description);
    // To give it up deletes nothing of the other sink.
    drop(armed);
    drop(my_chain);
    mine.close("done").await.expect("closes");
    sink.drop_sink().await.expect("drops");
    assert_eq!(world.listed().await.len(), 1);

    let share = theirs.arm(&frame).expect("its own");
    let resolved = their_chain.report(share).await.expect("taken");
    assert_eq!(resolved[0].outcome, Some(Outcome::Accepted));
    let content = delivered_until(&mut victim.read().await.expect("readable"), Frontier::at(1)).await;
    assert_same!(content.expect("read"), content_of(&many(0, 50, 0)));
    theirs.close("done").await.expect("closes");
    drop(their_chain);
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_that_closes_with_frames_on_their_way_never_makes_a_batch_that_lacks_them() {
    let world = World::files(small(0)).await;
    let team = Team::open(&world, "a").await;
    let mut chain = team.incarnations[0].chain().expect("free");
    let minted = mint(&mut chain, 1);
    let mut frames = Vec::new();
    for share in team.shares(1, minted, &all_of(0)).await {
        frames.push(disarm(share).expect("a frame"));
    }
    team.stashes[1].close().await.expect("closes");
    assert!(world.listed().await.is_empty(), "its close deletes what it sent");
    let mut outcome = Ok(Vec::new());
    for frame in &frames {
        let share = team.incarnations[0].arm(frame).expect("armed");
        outcome = chain.report(share).await;
    }
    for share in team.shares(0, minted, &all_of(0)).await {
        if outcome.is_ok() {
            outcome = chain.report(share).await;
        }
    }
    let error = outcome.expect_err("the batch would lack what was deleted");
    assert_eq!(error.kind(), ErrorKind::Reopen, "{error}");
    assert_eq!(team.sinks[0].upper().await.expect("head"), Frontier::at(0));
    let Team { stashes, sinks: _, incarnations } = team;
    drop((chain, incarnations));
    world.at_rest(&stashes[0]).await;
    world.close([stashes[0].clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_was_given_up_and_arrives_again_loses_nothing() {
    let world = World::files(small(0)).await;
    let team = Team::open(&world, "a").await;
    let mut chain = team.incarnations[0].chain().expect("free");
    let minted = mint(&mut chain, 1);
    let mut frames = Vec::new();
    for share in team.shares(1, minted, &all_of(0)).await {
        frames.push(disarm(share).expect("a frame"));
    }
    for frame in &frames {
        drop(team.incarnations[0].arm(frame).expect("armed"));
        team.stashes[0].drain_deletions().await.expect("a pass");
        chain.report(team.incarnations[0].arm(frame).expect("armed again")).await.expect("taken");
    }
    for share in team.shares(0, minted, &all_of(0)).await {
        chain.report(share).await.expect("taken");
    }
    let mut subscription = team.sinks[0].read().await.expect("readable");
    let content = delivered_until(&mut subscription, Frontier::at(1)).await.expect("read");
    assert_same!(content, content_of(all_of(0).iter().flatten()));
    let Team { stashes, sinks: _, incarnations: [one, other] } = team;
    drop((chain, other));
    one.close("done").await.expect("closes");
    world.close(stashes).await;
}
