//! Everything on the list moves when what it measures happens, and nothing else is told to the recorder.

use std::{collections::BTreeSet, time::Duration};

use metrics_util::MetricKind as Kind;
use stash::{
    BlobKey, Frontier, METRICS, Meters, MetricKind, Mint, PartKey, Requests, StartAt, describe_metrics,
};
use stash_batch::{Budget, Traffic};
use stash_blob::{Request, RequestEnd, RequestObserver, RequestOp};
use stash_testkit::{Fault, FaultPlan, Op};

use crate::scene::{Measured, Scene, measured, offer, render, share, spec, updates};

/// Enough rows for a part of its own.
const STASHED: u32 = 1_000;

/// Lets everything happen that is measured.
async fn everything() {
    describe_metrics();
    let scene = Scene::new().await;
    let stash = scene.open().await;
    let words = stash.declare_sink(spec("words")).await.expect("it is declared");

    // Inline, and stashed after a retry.
    let incarnation = render(&words, "a").await;
    offer(&incarnation, &[1, 2], 1).await;
    drop(incarnation);
    scene.store.set_plan(FaultPlan::none().at(Op::Put, 0, Fault::Refused { retry: true }));
    let incarnation = render(&words, "a").await;
    offer(&incarnation, &[2, 3], STASHED).await;
    scene.store.heal();
    let incarnation = render(&words, "a").await;
    offer(&incarnation, &[3, 4], STASHED).await;

    // A lease that is renewed while somebody watches.
    let leased = words.incarnations().await.expect("they are listed").last().expect("one").lease_until;
    scene.clock.advance(1);
    let mut seen = 0;
    while words.incarnations().await.expect("they are listed").last().expect("one").lease_until == leased {
        seen = stash.catalog().changed(seen, Duration::from_secs(5)).await.expect("it is asked");
    }

    // Read, acknowledged, and deleted at the second try.
    let mut subscription = words.subscribe("reader", StartAt::Beginning).await.expect("it subscribes");
    scene.store.set_plan(FaultPlan::none().always(Op::Delete, Fault::Refused { retry: true }));
    let mut read = 0;
    while subscription.position() < Frontier::at(4) {
        let delivery = subscription.next().await.expect("it is there").expect("not the end");
        let mut reader = delivery.read();
        while let Some(batch) = reader.next().await.expect("it is read") {
            read += batch.num_rows();
        }
        subscription.acknowledge(delivery.upper()).await.expect("it is acknowledged");
    }
    assert!(read > 0);
    stash.drain_deletions().await.expect("what is refused is deferred");
    scene.store.heal();
    stash.publish().await.expect("it is looked at");
    scene.clock.advance(10_000);
    // By this pass, or by the one of the background before it.
    stash.drain_deletions().await.expect("it is deleted");
    assert_eq!(stash.catalog().deletions_queued(None).await.expect("it is counted"), 0);

    race(&scene).await;
    left_behind(&scene).await;
    expiry(&scene).await;
    waits().await;
    requests();

    // A listing of everything is about several sinks.
    stash.audit(None, |_| {}).await.expect("it is listed");

    // A worker that fails ends its incarnation.
    let incarnation = render(&words, "a").await;
    let mut chain = incarnation.chain().expect("the chain");
    let minted = chain.mint(Frontier::at(9)).expect("it mints").minted().expect("a description");
    let failed = incarnation.worker(0).expect("the worker").share(minted).expect("it opens").fail("no more");
    chain.report(failed).await.expect_err("it ends");

    stash.publish().await.expect("it is looked at");
    stash.close().await.expect("it closes");
    stash.publish().await.expect_err("the catalog is closed");
}

/// Two replicas offer the same times at once, until one loses a race for the head.
async fn race(scene: &Scene) {
    let (one, other) = (scene.open().await, scene.open().await);
    let sink = one.declare_sink(spec("raced")).await.expect("it is declared");
    let same = other.sink("raced").await.expect("it is there");
    let (a, b) = (render(&sink, "a").await, render(&same, "b").await);
    let (mut first, mut second) = (a.chain().expect("the chain"), b.chain().expect("the chain"));
    for upper in 1..=40 {
        let mut shares = Vec::new();
        for (incarnation, chain) in [(&a, &mut first), (&b, &mut second)] {
            let Mint::Minted(minted) = chain.mint(Frontier::at(upper)).expect("it mints") else { continue };
            chain.merge(share(incarnation, minted, 1).await).await.expect("it is merged");
            shares.push(minted);
        }
        assert_eq!(shares.len(), 2);
        let (one, other) = tokio::join!(first.offer(), second.offer());
        one.expect("it has an outcome");
        other.expect("it has an outcome");
    }
}

/// A process dies with a part and half an upload, and the next one sweeps both.
async fn left_behind(scene: &Scene) {
    let dead = scene.open().await;
    let sink = dead.declare_sink(spec("swept")).await.expect("it is declared");
    let incarnation = render(&sink, "a").await;
    let mut chain = incarnation.chain().expect("the chain");
    let minted = chain.mint(Frontier::at(1)).expect("it mints").minted().expect("a description");
    let share = share(&incarnation, minted, STASHED).await;
    let stash::Share::Stashed(parts) = &share.share else { panic!("it is stashed") };
    let key: PartKey = parts.keys().next().expect("a part");
    let left = BlobKey::from(key).to_string().replace("-0.parquet", "-7.parquet");
    let (folder, file) = left.rsplit_once('/').expect("a folder");
    let upload = scene.folder.path().join(folder).join(format!(".{file}.999999-0.tmp"));
    std::fs::write(upload, b"half").expect("it is written");
    std::mem::forget(share);

    let next = scene.open().await;
    let sink = next.sink("swept").await.expect("it is there");
    let (uploads, keys) = {
        let incarnation = render(&sink, "a").await;
        let report = sink.sweep().await.expect("it is swept again");
        drop(incarnation);
        (report.uploads_removed, report.garbage)
    };
    assert_eq!((uploads, keys), (0, 0), "the opening found all of it");
}

/// What outlives a retention, and a consumer that will be let go of.
async fn expiry(scene: &Scene) {
    let stash = scene.open().await;
    let short = Duration::from_secs(60);
    let kept = stash.declare_sink(spec("kept").retention(short)).await.expect("it is declared");
    offer(&render(&kept, "a").await, &[1], 1).await;
    let held = stash.declare_sink(spec("held").absent_hold(short)).await.expect("it is declared");
    let _subscription = held.subscribe("reader", StartAt::Beginning).await.expect("it subscribes");
    stash.publish().await.expect("it is looked at");
    scene.clock.advance(61_000);
    assert_eq!(kept.expire(true).await.expect("it expires").batches, 1);
}

/// Memory that is free only once somebody else gives it back.
async fn waits() {
    for traffic in [Traffic::Write, Traffic::Read] {
        let budget = Budget::new(80);
        let held = budget.try_reserve(traffic, 40).expect("it is free");
        let (granted, ()) = tokio::join!(budget.reserve(traffic, 45), async { drop(held) });
        assert_eq!(granted.expect("it is granted").bytes(), 45);
    }
}

/// What a store that speaks HTTP tells.
fn requests() {
    let request = Request {
        op: RequestOp::Put,
        key: "stash.json",
        attempt: 2,
        end: RequestEnd::Status(200),
        sent: 10,
        received: 1,
        elapsed: Duration::from_millis(3),
    };
    let meters = Meters::new();
    meters.ended(&request);
    meters.ended(&Request { op: RequestOp::List, key: "", end: RequestEnd::TimedOut, ..request.clone() });
    meters.ended(&Request { end: RequestEnd::Unsent, ..request });
    let paid = Requests { puts: 1, lists: 1, put_bytes: 10, ..Requests::default() };
    assert_eq!(meters.requests().into_values().collect::<Vec<_>>(), [paid], "what was never sent is free");
}

fn kind(kind: Kind) -> MetricKind {
    match kind {
        Kind::Counter => MetricKind::Counter,
        Kind::Gauge => MetricKind::Gauge,
        Kind::Histogram => MetricKind::Histogram,
    }
}

#[test]
fn every_metric_on_the_list_moves_and_no_other_is_emitted() {
    let measured = measured(everything);
    for (name, outcome) in [
        ("stash_lease_renewals_total", "renewed"),
        ("stash_deletions_total", "deleted"),
        ("stash_deletions_total", "deferred"),
    ] {
        let count = measured.number(name, &[("outcome", outcome), ("sink", "words")]);
        assert!(count > 0.0, "{name} {outcome}");
    }
    for outcome in ["accepted", "dropped"] {
        assert!(
            measured.number("stash_offers_total", &[("outcome", outcome), ("sink", "raced")]) > 0.0,
            "{outcome}"
        );
    }
    let Measured(all) = measured;
    for (name, series) in &all {
        let metric = METRICS.iter().find(|metric| metric.name == name);
        let metric = metric.unwrap_or_else(|| panic!("{name} is emitted and not on the list"));
        assert_eq!(metric.kind, kind(series.kind), "{name}");
        let labels: Vec<&str> = series.labels.keys().map(String::as_str).collect();
        assert_eq!(labels, metric.labels, "{name}: the list has them in their order");
    }
    let moved: BTreeSet<&str> =
        all.iter().filter(|(_, series)| series.moved()).map(|(name, _)| name.as_str()).collect();
    let still: Vec<&str> =
        METRICS.iter().map(|metric| metric.name).filter(|name| !moved.contains(name)).collect();
    assert_eq!(still, [""; 0], "these never moved");
}

#[test]
fn labels_are_names_that_people_chose_and_words_of_the_code() {
    let Measured(all) = measured(everything);
    let words: BTreeSet<&str> = all
        .iter()
        .flat_map(|(_, series)| &series.labels)
        .filter(|(label, _)| !["statement", "op", "status", "outcome"].contains(&label.as_str()))
        .map(|(_, value)| value.as_str())
        .collect();
    let known = [
        "(none)",
        "(several)",
        "(unknown)",
        "dropped",
        "empty",
        "failed",
        "held",
        "inline",
        "kept",
        "raced",
        "read",
        "reader",
        "stashed",
        "swept",
        "words",
        "write",
    ];
    let strange: Vec<&&str> = words.iter().filter(|word| !known.contains(word)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    assert!(["words", "reader", "(none)", "stashed"].iter().all(|word| words.contains(word)), "{words:?}");
    assert!(all.len() < 2_000, "{} series for four sinks and a consumer", all.len());
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    let mut names = BTreeSet::new();
    for metric in METRICS {
        let name = metric.name;
        assert!(names.insert(name), "{name} stands twice");
        assert!(name.starts_with("stash_") && metric.help.ends_with('.'), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
        let base = name.trim_end_matches("_total");
        match metric.unit {
            metrics::Unit::Seconds => assert!(base.ends_with("_seconds"), "{name}"),
            metrics::Unit::Bytes => assert!(base.ends_with("_bytes"), "{name}"),
            _ => assert!(!base.ends_with("_seconds") && !base.ends_with("_bytes"), "{name}"),
        }
        assert!(metric.labels.is_sorted(), "{name}");
        for label in metric.labels {
            assert!(!["key", "incarnation", "id", "shard", "time"].contains(label), "{name} by {label}");
        }
    }
}

#[test]
fn operations_are_counted_by_sink_with_their_outcomes_and_bytes() {
    let measured = measured(async || {
        let scene = Scene::new().await;
        let stash = scene.open().await;
        let sink = stash.declare_sink(spec("counted")).await.expect("it is declared");
        scene.store.reset_counts();
        scene.store.set_plan(FaultPlan::none().at(Op::Put, 0, Fault::Refused { retry: true }).at(
            Op::Put,
            1,
            Fault::LostReply,
        ));
        let incarnation = render(&sink, "a").await;
        offer(&incarnation, &[1], STASHED).await;
        let requests = stash.requests().remove("counted").expect("it asked for something");
        let asked = scene.store.counts();
        assert_eq!((requests.puts, requests.gets), (asked.puts, asked.gets), "{requests:?}");
        assert_eq!(requests.lists, asked.lists);
        drop(incarnation);
        stash.close().await.expect("it closes");
    });
    let puts = |outcome| {
        measured
            .number("stash_blob_requests_total", &[("op", "put"), ("outcome", outcome), ("sink", "counted")])
    };
    assert_eq!((puts("failed"), puts("unknown"), puts("exists")), (1.0, 1.0, 1.0));
    assert_eq!(measured.number("stash_blob_retries_total", &[("op", "put"), ("sink", "counted")]), 2.0);
    assert_eq!(measured.number("stash_offers_total", &[("outcome", "accepted"), ("sink", "counted")]), 1.0);
}

#[test]
fn without_a_recorder_everything_works_and_requests_are_still_known() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let scene = Scene::new().await;
        let stash = scene.open().await;
        let sink = stash.declare_sink(spec("quiet")).await.expect("it is declared");
        let incarnation = render(&sink, "a").await;
        let writer = incarnation.worker(0).expect("the worker");
        let mut chain = incarnation.chain().expect("the chain");
        let minted = chain.mint(Frontier::at(1)).expect("it mints").minted().expect("a description");
        let written = writer.write(minted, [updates(&sink, 0, STASHED)]).await.expect("it is written");
        chain.report(written).await.expect("it is offered");
        let quiet = stash.requests().remove("quiet").expect("it asked for something");
        assert_eq!(quiet.puts, 1);
        assert_eq!(quiet.put_bytes, stash.counters().put_bytes);
    });
}
