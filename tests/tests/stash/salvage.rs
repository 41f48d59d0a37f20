//! Salvage reads from a listing what was offered, changes nothing, and believes nothing before it was checked.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use stash::{
    BatchConfig, Frontier, IncarnationId, PartKey, Salvage, SalvagedBatch, SalvagedSink, Sink, StashConfig,
};
use stash_tests::{Content, World, assert_same, content_of, rows_in, small};

use crate::{many, mint, open, write, write_all};

/// Knobs under which a share becomes several parts.
fn many_parts() -> StashConfig {
    let batch = BatchConfig { part_bytes: 32 << 10, row_group_rows_max: 100, runs_max: 2, ..small(0).batch };
    StashConfig { batch, ..small(0) }
}

/// Every file below a folder, with its content.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.display().to_string(), fs::read(path).expect("readable"));
            }
        }
    }
    found
}

async fn content(salvage: &Salvage, sink: &SalvagedSink, batch: &SalvagedBatch) -> Content {
    let mut reader = salvage.read(sink, batch);
    let mut content = Content::new();
    while let Some(rows) = reader.next().await.expect("it was checked") {
        for (update, diff) in rows_in(&rows) {
            assert!(batch.description.contains(update.1), "{update:?} is outside of {}", batch.description);
            assert_eq!(content.insert(update, diff), None, "not consolidated");
        }
    }
    content
}

/// The parts of the run that has most of them, in its order, and which run that is.
async fn longest_run(sink: &Sink) -> (u32, Vec<PartKey>) {
    let batches = sink.batches().await.expect("the chain");
    let mut runs: BTreeMap<u32, BTreeMap<u32, PartKey>> = BTreeMap::new();
    for part in batches.iter().flat_map(|row| &row.parts) {
        let key = part.name.under(sink.shard());
        runs.entry(part.descriptor.run).or_default().insert(part.descriptor.ordinal, key);
    }
    let longest = runs.into_iter().max_by_key(|(_, parts)| parts.len()).expect("a run");
    (longest.0, longest.1.into_values().collect())
}

fn of(sink: &SalvagedSink, incarnation: IncarnationId) -> Vec<&SalvagedBatch> {
    sink.batches.iter().filter(|batch| batch.incarnation == incarnation).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_offered_is_read_from_the_listing_alone_and_nothing_is_changed() {
    let world = World::files(many_parts()).await;
    let sink = world.sink().await;
    let (first, mut chain) = open(&sink, "a", 2).await;
    // Both workers hold some of the same rows: they sum up only when the runs are merged.
    let (left, right) = (many(0, 1500, 0), many(1000, 1500, 0));
    let minted = mint(&mut chain, 1);
    write_all(&first, &mut chain, minted, &[left.clone(), right.clone()]).await.expect("written");
    let (second, mut straddling) = open(&sink, "b", 1).await;
    write(&second, &mut straddling, 1, &[]).await;
    let minted = mint(&mut chain, 5);
    write_all(&first, &mut chain, minted, &[many(0, 300, 2), many(0, 200, 3)]).await.expect("written");
    // The other replica cuts at 9 and is taken from 5 on.
    let straddler: Vec<_> = [many(0, 300, 2), many(0, 200, 3), many(50, 300, 7)].concat();
    write(&second, &mut straddling, 9, &straddler).await;
    let (first_id, second_id) = (first.id(), second.id());
    let listed = world.listed().await;
    drop((first, chain, second, straddling));
    let before = files(&world.blobs());

    let place = world.blobs().display().to_string();
    let salvage = Salvage::open(&place).await.expect("opened");
    let report = salvage.examine(None, |_, _| {}).await.expect("examined");
    assert_eq!(report.catalog, Some(sink.stash().catalog_id()));
    assert!(report.damaged.is_empty(), "{:?}", report.damaged);
    assert_eq!(report.listed.entries as usize, listed.len() + 1);
    let [salvaged] = &report.sinks[..] else { panic!("one sink: {:?}", report.sinks) };
    assert_eq!((salvaged.id, salvaged.shard), (sink.id(), sink.shard()));
    assert_eq!(salvaged.schema, *sink.schema());
    let parts: usize = salvaged.batches.iter().map(|batch| batch.parts.len()).sum();
    assert_eq!(parts, listed.len());
    assert!(salvaged.batches.iter().all(|batch| batch.missing.is_empty()));
    let [snapshot, later] = of(salvaged, first_id)[..] else { panic!("two batches of it") };
    assert!(snapshot.parts.len() > 1, "{} parts", snapshot.parts.len());
    assert_same!(content(&salvage, salvaged, snapshot).await, content_of(left.iter().chain(&right)));
    let later_rows = [many(0, 300, 2), many(0, 200, 3)].concat();
    assert_same!(content(&salvage, salvaged, later).await, content_of(&later_rows));
    let [straddled] = of(salvaged, second_id)[..] else { panic!("one batch of it") };
    // As it was offered, from 1 on: no trim is known.
    assert_eq!(straddled.description.lower(), Frontier::at(1));
    assert_same!(content(&salvage, salvaged, straddled).await, content_of(&straddler));
    assert_eq!((snapshot.overlaps, later.overlaps, straddled.overlaps), (0, 1, 1));

    let none = salvage.examine(Some(stash::ShardId::from_uuid(sink.id().uuid())), |_, _| {}).await;
    assert!(none.expect("examined").sinks.is_empty(), "another shard holds nothing");
    salvage.close().await.expect("closed");
    assert_eq!(files(&world.blobs()), before, "nothing was changed");
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_part_is_named_and_left_out_and_a_missing_one_is_noticed() {
    let world = World::files(many_parts()).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let rows = many(0, 60_000, 0);
    write(&incarnation, &mut chain, 1, &rows).await;
    drop((incarnation, chain));
    sink.stash().drain_deletions().await.expect("what was merged into others is gone");
    let (run, keys) = longest_run(&sink).await;
    assert!(keys.len() > 5, "{} parts", keys.len());
    let parts = world.listed().await.len();
    let whole = files(&world.blobs());
    let place = format!("file://{}", world.blobs().display());
    let damage = |key: PartKey, at: &dyn Fn(usize) -> usize| {
        let mut bytes = fs::read(world.file_of(key)).expect("readable");
        let at = at(bytes.len());
        bytes[at] ^= 1;
        fs::write(world.file_of(key), bytes).expect("written");
    };
    damage(keys[1], &|_| 40);
    damage(keys[2], &|len| len - 6);
    fs::write(world.file_of(keys[3]), b"PAR1").expect("written");
    fs::remove_file(world.file_of(keys[0])).expect("removed");
    // Under another key: other times, and the shard of another sink.
    let mut times = keys[4];
    times.name.description = stash::Description::new(Frontier::at(7), Frontier::at(9)).expect("not empty");
    fs::copy(world.file_of(keys[4]), world.file_of(times)).expect("copied");
    let mut shard = keys[4];
    shard.shard = stash::ShardId::from_uuid(sink.id().uuid());
    fs::create_dir_all(world.file_of(shard).parent().expect("a folder")).expect("made");
    fs::copy(world.file_of(keys[4]), world.file_of(shard)).expect("copied");
    fs::write(world.blobs().join("notes.txt"), b"not of Stash").expect("written");

    let salvage = Salvage::open(&place).await.expect("opened");
    let report = salvage.examine(None, |_, _| {}).await.expect("examined");
    let mut damaged: Vec<String> = report.damaged.first.iter().map(|one| one.name.clone()).collect();
    damaged.sort();
    let mut wanted: Vec<String> = [keys[1], keys[2], keys[3], times, shard].map(|key| key.to_string()).into();
    wanted.sort();
    assert_eq!(damaged, wanted);
    assert_eq!(report.foreign.all.entries, 1);
    let [salvaged] = &report.sinks[..] else { panic!("one sink: {:?}", report.sinks) };
    let [batch] = &salvaged.batches[..] else { panic!("one batch") };
    assert_eq!(batch.missing, [format!("parts 0 to 3 of run {run} of process 0")]);
    assert_eq!(batch.parts.len(), parts - 4);
    let read = content(&salvage, salvaged, batch).await;
    let all = content_of(&rows);
    assert!(!read.is_empty() && read.len() < all.len());
    assert!(read.iter().all(|(row, diff)| all.get(row) == Some(diff)), "what is read was written");
    salvage.close().await.expect("closed");

    for name in [world.file_of(times), world.file_of(shard), world.blobs().join("notes.txt")] {
        fs::remove_file(name).expect("removed");
    }
    fs::remove_dir_all(world.blobs().join(shard.shard.to_string())).expect("removed");
    fs::remove_dir(world.file_of(times).parent().expect("a folder")).unwrap_or_default();
    whole.iter().for_each(|(path, bytes)| fs::write(path, bytes).expect("put back"));
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn salvage_refuses_every_change_and_what_is_no_store() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let missing = world.blobs().join("nothing");
    assert!(Salvage::open(&missing.display().to_string()).await.is_err());
    assert!(!missing.exists(), "looking makes no folder");
    assert!(Salvage::open("s3://bucket/prefix").await.is_err());
    // A temp at the top is left where it is, though its object stands.
    let temp = world.blobs().join(".stash.json.1-1.tmp");
    fs::write(&temp, b"x").expect("written");
    let salvage = Salvage::open(&world.blobs().display().to_string()).await.expect("opened");
    assert_eq!(salvage.examine(None, |_, _| {}).await.expect("examined").uploads.entries, 1);
    salvage.close().await.expect("closed");
    assert!(temp.exists());
    fs::remove_file(temp).expect("removed");
    // Without a marker it is only not known whose the parts are; one that is garbage is said.
    let memory = Salvage::over(Arc::new(stash_blob::ObjectBlobs::memory())).await.expect("opened");
    let report = memory.examine(None, |_, _| {}).await.expect("examined");
    assert_eq!((report.catalog, report.catalog_why, report.sinks.len()), (None, None, 0));
    memory.close().await.expect("closed");
    world.close([sink.stash().clone()]).await;
}
