//! What a command leaves alone that only looks, and what none makes that was lost.

use std::fs;

use stash::{DeletionReason, OpenOptions, PartKey, StartAt, Stash};

use crate::{
    keeping::{all_files, orphans, world},
    world::World,
};

/// Runs `work` on the world's stash, opened only to look.
fn looking<T>(world: &World, work: impl AsyncFnOnce(&Stash) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let stash = OpenOptions::new(world.url()).look().open().await.expect("it opens");
        let done = work(&stash).await;
        stash.close().await.expect("it closes");
        done
    })
}

fn queued(world: &World) -> u64 {
    looking(world, async |stash| stash.catalog().deletions_queued(None).await.expect("counted"))
}

#[test]
fn who_looks_leaves_what_is_queued_for_deletion_and_who_changes_something_deletes_it() {
    let (world, key) = world();
    let garbage: Vec<PartKey> =
        orphans(&world, &key, 3).iter().map(|key| key.parse().expect("a key")).collect();
    let enqueued = looking(&world, async |stash| {
        let sink = stash.sink("s").await.expect("declared");
        sink.subscribe("me", StartAt::Beginning).await.expect("registered");
        stash.catalog().enqueue(sink.id(), &garbage, DeletionReason::Swept).await.expect("queued")
    });
    assert_eq!(enqueued, 3);
    let blobs = all_files(&world.path("stash/blobs"));
    for words in [
        "sinks".to_owned(),
        "health".to_owned(),
        "chain s".to_owned(),
        "parts s".to_owned(),
        "history s".to_owned(),
        "consumers s".to_owned(),
        format!("explain {key}"),
        format!("cat {key}"),
        "audit".to_owned(),
        "verify".to_owned(),
        "read --sink s".to_owned(),
        "sweep".to_owned(),
        "sweep --plan s.plan".to_owned(),
        "sweep --plan s.plan".to_owned(),
        "drop s".to_owned(),
        "expire s".to_owned(),
        "consumers s --forget me".to_owned(),
    ] {
        world.run(&words).ok();
        assert!(all_files(&world.path("stash/blobs")) == blobs, "{words} changed the store");
        assert_eq!(queued(&world), 3, "{words} changed the queue");
    }
    world.run("consumers s --forget me --commit").ok();
    assert_eq!((queued(&world), world.blobs()), (0, vec![key]));
}

#[test]
fn a_catalog_that_was_lost_is_not_made_anew_and_its_backup_fits() {
    let (world, key) = world();
    let before = world.chain("s");
    let (file, backup) = (world.path("stash/catalog.sqlite"), world.path("backup.sqlite"));
    fs::rename(&file, &backup).expect("moved");
    for end in ["-wal", "-shm"] {
        drop(fs::remove_file(world.path(&format!("stash/catalog.sqlite{end}"))));
    }
    for _ in 0..3 {
        world
            .load("changes.csv", "s", "")
            .fails(1, &["belongs to catalog", "restore its backup", "catalog.sqlite"]);
        assert!(!file.exists(), "nothing stands in the way of its backup");
    }
    fs::rename(&backup, &file).expect("restored");
    assert_eq!(world.chain("s"), before);
    assert_eq!(world.blobs(), [key]);
    world.at_rest();
}

#[test]
fn who_looks_claims_nothing() {
    let (world, _) = world();
    let marker = world.path("stash/blobs/stash.json");
    let claim = fs::read(&marker).expect("claimed");
    fs::remove_file(&marker).expect("removed");
    for words in ["sinks", "chain s", "audit", "verify s", "drop s", "read --sink s"] {
        world.run(words).ok();
        assert!(!marker.exists(), "{words}");
    }
    world.run("expire s --commit").ok();
    assert!(
        fs::read(&marker).expect("claimed") == claim,
        "who changes something claims it for the same catalog"
    );
}
