//! Verifying names the promise that does not hold; explaining tells the fate of a key at every stage.

use std::{fs, mem};

use stash::{Fate, Frontier, Outcome, PartKey, Share, Sink, StartAt};
use stash_testkit::{Fault, FaultPlan, Op};
use stash_tests::{World, delivered_until, small, updates};

use crate::{many, mint, open, write};

async fn broken(sink: &Sink) -> Vec<String> {
    let report = sink.verify(|_| {}).await.expect("verified");
    let mut names: Vec<String> = report.violations.into_iter().map(|violation| violation.invariant).collect();
    names.dedup();
    names
}

async fn keys(sink: &Sink) -> Vec<PartKey> {
    let batches = sink.batches().await.expect("the chain");
    batches.iter().flat_map(|row| &row.parts).map(|part| part.name.under(sink.shard())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_finds_nothing_on_a_healthy_sink_and_names_each_damage() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    assert_eq!(broken(&sink).await, [""; 0], "just declared");
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    for time in 0..3 {
        write(&incarnation, &mut chain, time + 1, &many(0, 100, time)).await;
    }
    write(&incarnation, &mut chain, 20, &[]).await;
    // One part is on its way.
    let minted = mint(&mut chain, 25);
    let share = incarnation.worker(0).expect("local").write(minted, [updates(&sink, &many(0, 9, 22))]).await;
    let got = world.store.counts().bytes_got;
    let report = sink.verify(|_| {}).await.expect("verified");
    assert_eq!((report.batches, report.parts, report.being_written), (3, 3, 1));
    assert_eq!(world.store.counts().bytes_got - got, report.bytes, "each byte is read once");
    assert_eq!(report.violations, []);

    let referenced = keys(&sink).await;
    let file = world.file_of(referenced[1]);
    let bytes = fs::read(&file).expect("the part");
    fs::remove_file(&file).expect("removed");
    assert_eq!(broken(&sink).await, ["I15"], "a deleted blob");
    for place in [10, bytes.len() / 2, bytes.len() - 3] {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1;
        fs::write(&file, damaged).expect("damaged");
        assert_eq!(broken(&sink).await, ["I22"], "a flipped byte at {place}");
    }
    fs::write(&file, &bytes[..bytes.len() - 1]).expect("cut short");
    assert!(!broken(&sink).await.is_empty(), "a part that was cut short");
    fs::write(&file, &bytes).expect("put back");
    assert_eq!(broken(&sink).await, [""; 0]);

    let foreign = world.blobs().join(sink.shard().to_string()).join("notes.txt");
    fs::write(&foreign, "not of Stash").expect("written");
    assert_eq!(broken(&sink).await, ["I17"], "a foreign file");
    let swept = sink.sweep().await.expect("swept");
    assert_eq!((swept.listed, swept.being_written, swept.garbage), (5, 1, 0), "the foreign one too");
    assert_eq!(swept.foreign, [format!("{}/notes.txt", sink.shard())], "a sweep tells of it");
    assert!(foreign.exists(), "and leaves it");
    fs::remove_file(&foreign).expect("removed");

    // The part on its way becomes an orphan: its incarnation is closed, and nobody gives it up.
    mem::forget(share);
    let reason = "closed by an operator";
    let catalog = sink.stash().catalog();
    assert!(catalog.close_incarnation(sink.id(), incarnation.id(), reason).await.expect("closes"));
    assert_eq!(broken(&sink).await, ["I17"], "an orphan of a closed incarnation");
    assert_eq!(sink.sweep().await.expect("swept").garbage, 1);
    sink.stash().drain_deletions().await.expect("a pass");
    assert_eq!(broken(&sink).await, [""; 0], "the sweep healed it");
    drop((incarnation, chain));
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_tells_the_fate_of_a_key_at_each_stage() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let stash = sink.stash();
    let mut subscription = sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes");
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let minted = mint(&mut chain, 1);
    let share = incarnation.worker(0).expect("local").write(minted, [updates(&sink, &many(0, 100, 0))]).await;
    let share = share.expect("written");
    let Share::Stashed(parts) = &share.share else { panic!("stashed") };
    let key = parts.keys().next().expect("a part");
    let fate = async |key| stash.explain(key).await.expect("explained");

    let told = fate(key).await;
    assert_eq!(told.fate, Fate::BeingWritten);
    assert_eq!((told.lower.as_str(), told.upper.as_str(), told.process, told.n), ("0", "1", 0, 0));
    assert_eq!(told.sink, "rows");
    assert_eq!(told.incarnation.map(|row| row.id), Some(incarnation.id()));
    assert!(told.store_bytes.is_some_and(|bytes| bytes > 0));
    let resolved = chain.report(share).await.expect("taken");
    assert_eq!(resolved[0].outcome, Some(Outcome::Accepted));
    assert_eq!(fate(key).await.fate, Fate::Referenced { seq: 1 });

    // The store cannot delete for now.
    world.store.set_plan(FaultPlan::none().always(Op::Delete, Fault::Refused { retry: true }));
    delivered_until(&mut subscription, Frontier::at(1)).await.expect("read");
    subscription.acknowledge(Frontier::at(1)).await.expect("acknowledged");
    let told = fate(key).await;
    assert!(matches!(&told.fate, Fate::Queued { reason } if reason == "Released"), "{:?}", told.fate);
    assert!(told.store_bytes.is_some());
    world.store.heal();

    // An orphan of a closed incarnation, before a sweep.
    let minted = mint(&mut chain, 5);
    let share = incarnation.worker(0).expect("local").write(minted, [updates(&sink, &many(0, 100, 3))]).await;
    let share = share.expect("written");
    let Share::Stashed(parts) = &share.share else { panic!("stashed") };
    let orphan = parts.keys().next().expect("a part");
    mem::forget(share);
    stash.catalog().close_incarnation(sink.id(), incarnation.id(), "closed").await.expect("closes");
    assert!(matches!(fate(orphan).await.fate, Fate::Garbage { .. }));
    sink.sweep().await.expect("swept");
    drop((incarnation, chain));
    world.at_rest_but_for_the_ledger(stash).await;
    for key in [key, orphan] {
        let told = fate(key).await;
        assert_eq!(told.fate, Fate::Gone);
        assert_eq!(told.store_bytes, None);
        let events: Vec<&str> = told.history.iter().map(|row| row.event.as_str()).collect();
        assert_eq!(events.last(), Some(&"deleted"), "{events:?}");
    }

    // An incarnation nobody knows; a shard nobody knows.
    let mut stranger = key;
    stranger.name.incarnation = stash::IncarnationId::from_uuid(sink.id().uuid());
    fs::create_dir_all(world.file_of(stranger).parent().expect("a folder")).expect("made");
    fs::write(world.file_of(stranger), "x").expect("written");
    assert_eq!(fate(stranger).await.fate, Fate::Foreign);
    fs::remove_file(world.file_of(stranger)).expect("removed");
    stranger.shard = stash::ShardId::from_uuid(sink.id().uuid());
    assert!(stash.explain(stranger).await.is_err());
    world.close([stash.clone()]).await;
}
