//! The audit accounts for every byte; a plan deletes what nobody owns, and nothing else, whatever happened since.

use std::{fs, mem, path::Path};

use stash::{
    ApplyOptions, ApplyReport, AuditReport, Class, DeletionReason, Error, HistoryRow, Kept, PartKey,
    PlanError, PlanHeader, PlanReader, PlanWriter, Planned, ShardId, Share, Sink, Stash, Stranger, Tally,
    Unowned,
};
use stash_testkit::{Fault, FaultPlan, Op};
use stash_tests::{World, small, updates};

use crate::{many, mint, open, write};

async fn keys(sink: &Sink) -> Vec<PartKey> {
    let batches = sink.batches().await.expect("the chain");
    batches.iter().flat_map(|row| &row.parts).map(|part| part.name.under(sink.shard())).collect()
}

/// Entries of a class of one sink, or of none.
fn entries(report: &AuditReport, sink: Option<&Sink>, class: Class) -> u64 {
    let of = report.lines.iter().filter(|line| line.class == class);
    of.filter(|line| line.sink.as_ref().map(|sink| sink.id) == sink.map(Sink::id))
        .map(|line| line.tally.entries)
        .sum()
}

/// Entries and bytes below a folder, counted by other means.
fn on_disk(folder: &Path) -> Tally {
    let mut sum = Tally::default();
    for entry in fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let metadata = entry.metadata().expect("there");
        sum = sum.and(if metadata.is_dir() {
            on_disk(&entry.path())
        } else {
            Tally { entries: 1, bytes: metadata.len() }
        });
    }
    sum
}

/// A part at `time` that nobody offers: its incarnation is closed afterwards, as if its process had died.
async fn orphan(sink: &Sink, replica: &str, time: u64) -> PartKey {
    let (incarnation, mut chain) = open(sink, replica, 1).await;
    let minted = loop {
        let minted = mint(&mut chain, time + 1);
        if minted.description.contains(time) {
            break minted;
        }
        let share = incarnation.worker(0).expect("local").write(minted, []).await.expect("written");
        chain.report(share).await.expect("taken");
    };
    let writer = incarnation.worker(0).expect("local");
    let share = writer.write(minted, [updates(sink, &many(0, 100, time))]).await.expect("written");
    let Share::Stashed(parts) = &share.share else { panic!("stashed") };
    let key = parts.keys().next().expect("a part");
    mem::forget((share, chain));
    let catalog = sink.stash().catalog();
    assert!(catalog.close_incarnation(sink.id(), incarnation.id(), "died").await.expect("closes"));
    mem::forget(incarnation);
    key
}

fn put(world: &World, name: &str, content: &[u8]) {
    let path = world.blobs().join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, content).expect("written");
}

async fn plan(stash: &Stash) -> Vec<u8> {
    stash.plan_sweep(None, Vec::new(), |_| {}).await.expect("a plan").0
}

async fn apply(stash: &Stash, plan: &[u8], commit: bool, deletes_max: u64) -> Result<ApplyReport, Error> {
    stash.check_plan(&mut PlanReader::new(plan)?).await?;
    let options = ApplyOptions { commit, deletes_max };
    stash.apply_plan(&mut PlanReader::new(plan)?, options, |_| {}).await
}

fn planned(plan: &[u8]) -> Vec<Planned> {
    let mut reader = PlanReader::new(plan).expect("a plan");
    std::iter::from_fn(|| reader.next_planned().expect("in order")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_earlier_try_of_the_stashs_own_object_is_left_over_until_somebody_opens_it() {
    let world = World::files(small(0)).await;
    let stash = world.open().await;
    let name = ".stash.json.1-1.tmp";
    put(&world, name, b"{}");
    let report = stash.audit(None, |_| {}).await.expect("an audit");
    assert_eq!(entries(&report, None, Class::LeftOver(Unowned::KeySettled)), 1, "{:?}", report.lines);
    assert!(report.foreign.is_empty(), "{:?}", report.foreign);
    drop(stash_blob::LocalStore::open(&world.blobs()).expect("opened"));
    assert!(!world.blobs().join(name).exists(), "it goes at the next opening");
    world.close([stash]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_has_one_class_and_the_classes_sum_up_to_the_listing() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let stash = sink.stash().clone();
    let other = stash::SinkSpec::new("gone", stash_tests::schema()).expect("a sound spec");
    let gone = stash.declare_sink(other).await.expect("declared");
    let dead = orphan(&sink, "dead", 0).await;
    let late = orphan(&gone, "late", 0).await;
    let late_bytes = fs::read(world.file_of(late)).expect("there");
    gone.drop_sink().await.expect("dropped");

    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    for time in 0..3 {
        write(&incarnation, &mut chain, time + 1, &many(0, 100, time)).await;
    }
    // The orphan was swept when the incarnation opened; it lands once more, late. So does one of the dropped sink.
    stash.drain_deletions().await.expect("a pass");
    put(&world, &dead.to_string(), b"late");
    put(&world, &late.to_string(), &late_bytes);
    let written = keys(&sink).await;
    // Left by an open incarnation in a resolved description, and one that is on its way.
    let mut left = written[2];
    left.name.n = 70;
    put(&world, &left.to_string(), b"left");
    let minted = mint(&mut chain, 9);
    let writer = incarnation.worker(0).expect("local");
    let share = writer.write(minted, [updates(&sink, &many(0, 9, 5))]).await.expect("written");
    // One that waits for its deletion: the store refuses deletes for now.
    world.store.set_plan(FaultPlan::none().always(Op::Delete, Fault::Refused { retry: true }));
    let mut queued = written[2];
    queued.name.n = 71;
    put(&world, &queued.to_string(), b"queued");
    let enqueued = stash.catalog().enqueue(sink.id(), &[queued], DeletionReason::Surrendered).await;
    assert_eq!(enqueued.expect("queued"), 1);
    // Temps: of a description that is on its way, of a part that stands, of a dead incarnation.
    let temp = |key: PartKey| {
        let (folder, file) = (key.to_string(), key.to_string());
        let (folder, file) =
            (folder.rsplit_once('/').expect("folders").0, file.rsplit_once('/').expect("a file").1);
        format!("{folder}/.{file}.1-1.tmp")
    };
    let mut coming = written[2];
    (coming.name.description, coming.name.n) = (minted.description, 90);
    put(&world, &temp(coming), b"coming");
    put(&world, &temp(written[0]), b"tried before");
    put(&world, &temp(dead), b"dead");
    // Foreign: no key, no sink, no incarnation, not the bytes that were accepted. And one is lost.
    put(&world, "notes.txt", b"not of Stash");
    put(&world, &format!("{}/notes.txt", sink.shard()), b"not of Stash either");
    let mut stranger = written[0];
    stranger.shard = ShardId::from_uuid(sink.id().uuid());
    put(&world, &stranger.to_string(), b"another stash");
    let mut unknown = written[0];
    unknown.name.incarnation = stash::IncarnationId::from_uuid(sink.id().uuid());
    put(&world, &unknown.to_string(), b"unknown");
    let whole = fs::read(world.file_of(written[1])).expect("there");
    fs::write(world.file_of(written[1]), b"exchanged").expect("written");
    let first = fs::read(world.file_of(written[0])).expect("there");
    fs::remove_file(world.file_of(written[0])).expect("removed");

    let report = stash.audit(None, |_| {}).await.expect("an audit");
    assert_eq!(report.listed, on_disk(&world.blobs()), "it lists what is there");
    assert_eq!(report.accounted(), report.listed, "and accounts for all of it");
    for (of, class, wanted) in [
        (Some(&sink), Class::Referenced, 1),
        (Some(&sink), Class::BeingWritten, 1),
        (Some(&sink), Class::Queued(DeletionReason::Surrendered), 1),
        (Some(&sink), Class::Garbage(Unowned::IncarnationClosed), 1),
        (Some(&sink), Class::Garbage(Unowned::DescriptionResolved), 1),
        (Some(&gone), Class::Garbage(Unowned::SinkDropped), 1),
        (Some(&sink), Class::Uploading, 1),
        (Some(&sink), Class::LeftOver(Unowned::KeySettled), 1),
        (Some(&sink), Class::LeftOver(Unowned::IncarnationClosed), 1),
        (None, Class::Own, 1),
        (None, Class::Foreign(Stranger::NotOfStash), 1),
        (Some(&sink), Class::Foreign(Stranger::NotOfStash), 1),
        (None, Class::Foreign(Stranger::UnknownShard), 1),
        (Some(&sink), Class::Foreign(Stranger::UnknownIncarnation), 1),
        (Some(&sink), Class::Foreign(Stranger::OtherLength), 1),
    ] {
        assert_eq!(entries(&report, of, class), wanted, "{class:?} in {:?}", report.lines);
    }
    assert_eq!(report.lines.len(), 15, "and nothing else: {:?}", report.lines);
    assert_eq!(report.foreign.all.entries, 5);
    let mut foreign: Vec<_> = report.foreign.first.iter().map(|one| (one.name.clone(), one.why)).collect();
    foreign.sort();
    let mut wanted = [
        ("notes.txt".to_owned(), Stranger::NotOfStash),
        (format!("{}/notes.txt", sink.shard()), Stranger::NotOfStash),
        (stranger.to_string(), Stranger::UnknownShard),
        (unknown.to_string(), Stranger::UnknownIncarnation),
        (written[1].to_string(), Stranger::OtherLength),
    ];
    wanted.sort();
    assert_eq!(foreign, wanted, "each by its name");
    let lost: Vec<_> = report.lost.first.iter().map(|lost| (lost.name.clone(), lost.why.seq)).collect();
    assert_eq!(lost, [(written[0].to_string(), 1)]);
    assert!(report.is_damaged());
    let of_sink = stash.audit(Some(&sink), |_| {}).await.expect("an audit");
    assert_eq!(of_sink.listed, on_disk(&world.blobs().join(sink.shard().to_string())));
    assert_eq!(of_sink.lost, report.lost);

    // The plan names what is garbage, and a sweep by it leaves all else.
    fs::write(world.file_of(written[0]), first).expect("put back");
    fs::write(world.file_of(written[1]), whole).expect("put back");
    let plan = plan(&stash).await;
    let mut reasons: Vec<_> =
        planned(&plan).into_iter().map(|one| (one.token.is_some(), one.reason)).collect();
    reasons.sort();
    let wanted = [
        (false, Unowned::IncarnationClosed),
        (false, Unowned::DescriptionResolved),
        (false, Unowned::SinkDropped),
        (true, Unowned::IncarnationClosed),
        (true, Unowned::KeySettled),
    ];
    assert_eq!(reasons, wanted);
    world.store.heal();
    let before = on_disk(&world.blobs());
    let mut told = Vec::new();
    let options = ApplyOptions { commit: false, deletes_max: 100 };
    let looked = stash
        .apply_plan(&mut PlanReader::new(plan.as_slice()).expect("a plan"), options, |all| {
            told.push(all.entries)
        })
        .await;
    let dry = looked.expect("looked at");
    assert_eq!((dry.queued.entries, dry.aborted.entries), (3, 2));
    assert_eq!((told.len(), told.last()), (2, Some(&5)), "those of a sink together: {told:?}");
    assert_eq!(on_disk(&world.blobs()), before, "a dry run changes nothing");
    let applied = apply(&stash, &plan, true, 100).await.expect("applied");
    assert_eq!(applied, dry, "it did what it said");
    stash.drain_deletions().await.expect("a pass");
    let report = stash.audit(None, |_| {}).await.expect("an audit");
    assert_eq!(report.of(Class::is_unowned), Tally::default());
    assert_eq!(entries(&report, Some(&sink), Class::Referenced), 3);
    assert_eq!(entries(&report, Some(&sink), Class::Uploading), 1);
    assert_eq!(report.foreign.all.entries, 4, "what is foreign stays: {:?}", report.foreign);
    assert!(!report.is_damaged());

    for name in [
        "notes.txt".to_owned(),
        format!("{}/notes.txt", sink.shard()),
        stranger.to_string(),
        unknown.to_string(),
        temp(coming),
    ] {
        fs::remove_file(world.blobs().join(name)).expect("removed");
    }
    chain.report(share).await.expect("taken");
    drop((incarnation, chain));
    world.close([stash]).await;
}

/// A sink with `count` orphans of a dead incarnation beside what the chain references, and a plan that names them.
async fn orphans(world: &World, count: u64) -> (Sink, Vec<PartKey>, Vec<u8>) {
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    write(&incarnation, &mut chain, 1, &many(0, 100, 0)).await;
    incarnation.close("done").await.expect("closed");
    drop(chain);
    let written = keys(&sink).await[0];
    let orphans: Vec<PartKey> = (0..count)
        .map(|n| {
            let mut orphan = written;
            orphan.name.n = 100 + n;
            put(world, &orphan.to_string(), b"an orphan");
            orphan
        })
        .collect();
    let plan = plan(sink.stash()).await;
    assert_eq!(planned(&plan).len() as u64, count);
    (sink, orphans, plan)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applying_stops_at_its_limit_and_a_second_call_goes_on() {
    let world = World::files(small(0)).await;
    let (sink, orphans, plan) = orphans(&world, 5).await;
    let stash = sink.stash();
    let tally = |entries| Tally { entries, bytes: entries * 9 };
    let there = || orphans.iter().filter(|key| world.file_of(**key).exists()).count();
    for (queued, done, left, there_after) in [(2, 0, 3, 3), (2, 2, 1, 1), (1, 4, 0, 0), (0, 5, 0, 0)] {
        let report = apply(stash, &plan, true, 2).await.expect("applied");
        assert_eq!((report.queued, report.done, report.left), (tally(queued), tally(done), tally(left)));
        stash.drain_deletions().await.expect("a pass");
        assert_eq!(there(), there_after);
    }
    // History has a row for each key and step, and the chain is whole.
    for key in orphans {
        let history: Vec<HistoryRow> = stash.explain(key).await.expect("explained").history;
        let events: Vec<_> = history.iter().map(|row| (row.event.as_str(), row.detail.as_str())).collect();
        assert_eq!(events, [("queued", "swept"), ("deleted", "")]);
    }
    assert_eq!(sink.verify(|_| {}).await.expect("verified").violations, []);
    world.close([stash.clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_garbage_when_a_plan_is_applied_is_kept_and_reported() {
    let world = World::files(small(0)).await;
    let (sink, orphans, plan) = orphans(&world, 2).await;
    let stash = sink.stash();
    let referenced = keys(&sink).await[0];
    let (incarnation, mut chain) = open(&sink, "b", 1).await;
    let minted = loop {
        let minted = mint(&mut chain, 5);
        if minted.description.contains(3) {
            break minted;
        }
        let share = incarnation.worker(0).expect("local").write(minted, []).await.expect("written");
        chain.report(share).await.expect("taken");
    };
    let writer = incarnation.worker(0).expect("local");
    let share = writer.write(minted, [updates(&sink, &many(0, 9, 3))]).await.expect("written");
    let Share::Stashed(parts) = &share.share else { panic!("stashed") };
    let coming = parts.keys().next().expect("a part");
    // Both orphans were swept by the opening; one stands again, with other bytes.
    stash.drain_deletions().await.expect("a pass");
    put(&world, &orphans[0].to_string(), b"other bytes, of another length");
    let mut stranger = referenced;
    stranger.name.incarnation = stash::IncarnationId::from_uuid(sink.id().uuid());
    put(&world, &stranger.to_string(), b"x");

    // Being garbage is monotone, so no plan of ours ever names these: this one is forged.
    let header = PlanReader::new(&plan[..]).expect("a plan").header().clone();
    let mut writer = PlanWriter::new(Vec::new(), &header).expect("begun");
    for (key, token) in [
        (referenced, None),
        (coming, None),
        (coming, Some("1-1")),
        (stranger, None),
        (stranger, Some("1-1")),
        (orphans[0], None),
        (orphans[1], None),
    ] {
        let (token, reason) = (token.map(str::to_owned), Unowned::IncarnationClosed);
        writer.add(&Planned { key, token, reason, bytes: 9 }).expect("added");
    }
    let forged = writer.finish().expect("finished").0;
    let report = apply(stash, &forged, true, 100).await.expect("applied");
    let kept: Vec<_> = report.kept.first.iter().map(|kept| (kept.name.clone(), kept.why)).collect();
    let wanted = [
        (referenced.to_string(), Kept::Referenced),
        (coming.to_string(), Kept::BeingWritten),
        (format!("{coming} (upload 1-1)"), Kept::BeingWritten),
        (stranger.to_string(), Kept::Foreign),
        (format!("{stranger} (upload 1-1)"), Kept::Foreign),
        (orphans[0].to_string(), Kept::OtherLength),
    ];
    assert_eq!(kept, wanted);
    let none = Tally::default();
    assert_eq!((report.queued, report.aborted, report.left), (none, none, none));
    assert_eq!(report.done.entries, 1, "the other orphan is gone already");
    stash.drain_deletions().await.expect("a pass");
    for key in [referenced, coming, stranger, orphans[0]] {
        assert!(world.file_of(key).exists(), "{key} is kept");
    }
    fs::remove_file(world.file_of(stranger)).expect("removed");
    sink.sweep().await.expect("swept");
    chain.report(share).await.expect("taken");
    drop((incarnation, chain));
    world.close([stash.clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_of_another_catalog_or_of_an_unknown_shard_is_refused_before_anything_is_touched() {
    let world = World::files(small(0)).await;
    let (sink, orphans, plan) = orphans(&world, 1).await;
    let stash = sink.stash();
    let elsewhere = World::files(small(0)).await;
    let (theirs, _, _) = self::orphans(&elsewhere, 0).await;
    let error = apply(theirs.stash(), &plan, true, 100).await.expect_err("another catalog");
    assert!(matches!(&error, Error::Plan(PlanError::OtherCatalog { .. })), "{error}");
    let straight = ApplyOptions { commit: true, deletes_max: 100 };
    let mut reader = PlanReader::new(&plan[..]).expect("a plan");
    let error = theirs.stash().apply_plan(&mut reader, straight, |_| {}).await.expect_err("unchecked");
    assert!(matches!(&error, Error::Plan(PlanError::OtherCatalog { .. })), "{error}");

    let header: PlanHeader = PlanReader::new(&plan[..]).expect("a plan").header().clone();
    let mut writer = PlanWriter::new(Vec::new(), &header).expect("begun");
    let mut stranger = orphans[0];
    stranger.shard = ShardId::from_uuid(sink.id().uuid());
    for key in [orphans[0], stranger] {
        let planned = Planned { key, token: None, reason: Unowned::IncarnationClosed, bytes: 9 };
        writer.add(&planned).expect("added");
    }
    let forged = writer.finish().expect("finished").0;
    let error = apply(stash, &forged, true, 100).await.expect_err("an unknown shard");
    assert!(matches!(&error, Error::Plan(PlanError::UnknownShard { key }) if *key == stranger), "{error}");
    let queued = stash.catalog().deletions_queued(None).await.expect("the queue");
    assert_eq!(queued, 0, "nothing of it was touched");
    assert!(world.file_of(orphans[0]).exists());
    sink.sweep().await.expect("swept");
    elsewhere.close([theirs.stash().clone()]).await;
    world.close([stash.clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_deleted_while_it_is_audited_is_gone_and_no_garbage() {
    let world = World::files(small(0)).await;
    let (sink, _, _) = orphans(&world, 3).await;
    // The store lists them and shows them no more: others deleted them in between.
    world.store.set_plan(FaultPlan::none().at(Op::List, 1, Fault::Lie));
    let report = sink.stash().audit(None, |_| {}).await.expect("an audit");
    world.store.heal();
    assert_eq!(report.of(|class| class == Class::Gone).entries, 3);
    assert_eq!(report.of(Class::is_unowned), Tally::default());
    assert_eq!(report.accounted(), report.listed);
    sink.sweep().await.expect("swept");
    world.close([sink.stash().clone()]).await;
}
