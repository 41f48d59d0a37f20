//! Reading: merged, consolidated, trimmed exactly, re-delivered identically, and absent only by name.

use std::{collections::BTreeMap, fs, sync::Arc};

use arrow::array::{AsArray, DictionaryArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema};
use stash::{Absence, Delivery, Error, ErrorKind, Frontier, Outcome, SinkSpec, StartAt, TryNext};
use stash_tests::{
    Content, World, assert_same, content_of, delivered, delivered_until, in_time, rows_in, schema, small,
    updates,
};

use crate::{Update, many, mint, noise, open, write, write_all};

async fn batches(delivery: &Delivery) -> Vec<RecordBatch> {
    let mut reader = delivery.read();
    let mut all = Vec::new();
    while let Some(batch) = reader.next().await.expect("readable") {
        all.push(batch);
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_runs_and_parts_of_several_runs_are_merged_and_consolidated() {
    let mut config = small(16 << 10);
    config.batch.part_bytes = 60_000;
    config.batch.chunk_bytes = 20_000;
    config.batch.row_group_bytes_max = 10_000;
    let world = World::memory(config).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 4).await;
    mint_and_skip(&incarnation, &mut chain).await;
    let minted = mint(&mut chain, 9);
    // Every worker holds the same rows at many times; some cancel across workers, some become negative.
    let share = |worker: u64, count: u64| -> Vec<Update> {
        let diffs = [1, -1, 2, -5];
        (0..count)
            .map(|n| (n * 7919 + worker) % count)
            .map(|key| ((key, noise(key, 40)), 1 + key % 8, diffs[(worker as usize + key as usize) % 4]))
            .collect()
    };
    let all = [share(0, 1500), share(1, 1500), share(2, 1500), share(3, 20)];
    let mut shares = Vec::new();
    for (worker, mine) in (0..).zip(&all) {
        let mut share = incarnation.worker(worker).expect("local").share(minted).expect("opens");
        for piece in mine.chunks(97) {
            share.push(updates(&sink, piece)).await.expect("taken");
        }
        shares.push(share);
    }
    // The one with little comes first, so that it travels inline.
    shares.rotate_right(1);
    let mut resolved = Vec::new();
    for share in shares {
        resolved.extend(chain.report(share.finish().await).await.expect("taken"));
    }
    let [resolved] = resolved.as_slice() else { panic!("one batch: {resolved:?}") };
    assert!(resolved.inline == 1 && resolved.parts > 3, "{resolved:?}");
    let row = sink.batches().await.expect("the chain").pop().expect("a row");
    let runs: std::collections::BTreeSet<u32> = row.parts.iter().map(|part| part.descriptor.run).collect();
    assert!(runs.len() > 2, "several runs: {runs:?}");
    let mut subscription = sink.read().await.expect("readable");
    let content = delivered_until(&mut subscription, Frontier::at(9)).await.expect("read");
    assert_same!(content, content_of(all.iter().flatten()));
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}

/// An empty snapshot.
async fn mint_and_skip(incarnation: &stash::Incarnation, chain: &mut stash::Chain) {
    let minted = mint(chain, chain.next_lower().as_u64() + 1);
    write_all(incarnation, chain, minted, &[]).await.expect("written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_straddler_is_cut_exactly_at_the_upper_over_the_whole_range_of_times() {
    const END: u64 = u64::MAX;
    for inline in [0, 64 << 10] {
        for cut in [2, 1 << 40, 1 << 63, (1 << 63) + 1, END - 3, END - 1] {
            let world = World::memory(small(inline)).await;
            let spec = SinkSpec::new("rows", schema()).expect("sound").sealing();
            let sink = world.open().await.declare_sink(spec).await.expect("declared");
            let (one, mut one_chain) = open(&sink, "one", 1).await;
            let (other, mut other_chain) = open(&sink, "other", 1).await;
            let times = [0, 1, 2, 3, (1 << 40) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 63) + 1];
            let times: Vec<u64> = times.into_iter().chain([END - 4, END - 3, END - 2, END - 1]).collect();
            // Rows that recur at all times, with retractions, so that only the time tells what belongs where.
            let all: Vec<Update> = (0..60)
                .flat_map(|key| {
                    times.iter().map(move |time| ((key, noise(key, 30)), *time, 1 - 2 * (key as i64 % 2)))
                })
                .collect();
            let part = |lower: u64, upper: u64| -> Vec<Update> {
                all.iter().filter(|(_, time, _)| (lower..upper).contains(time)).cloned().collect()
            };
            for (incarnation, chain) in [(&one, &mut one_chain), (&other, &mut other_chain)] {
                write(incarnation, chain, 1, &part(0, 1)).await;
            }
            write(&one, &mut one_chain, cut, &part(1, cut)).await;
            let resolved = write(&other, &mut other_chain, END, &part(1, END)).await;
            assert_eq!(resolved.outcome, Some(Outcome::Trimmed { from: Frontier::at(cut) }));
            let mut subscription = sink.read().await.expect("readable");
            let content = delivered_until(&mut subscription, Frontier::EMPTY).await.expect("read");
            assert_same!(content, content_of(&all), "cut at {cut}, inline {inline}");
            assert!(subscription.next().await.expect("the end").is_none());
            one.close("done").await.expect("closes");
            other.close("done").await.expect("closes");
            drop((one_chain, other_chain));
            world.at_rest(sink.stash()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_wholly_below_the_upper_are_deleted_when_their_batch_is_trimmed() {
    let mut config = small(0);
    config.batch.part_bytes = 20_000;
    config.batch.row_group_bytes_max = 8_000;
    let world = World::memory(config).await;
    let sink = world.sink().await;
    let (one, mut one_chain) = open(&sink, "one", 1).await;
    let (other, mut other_chain) = open(&sink, "other", 1).await;
    write(&one, &mut one_chain, 1, &[]).await;
    write(&other, &mut other_chain, 1, &[]).await;
    // The other does not know yet that the chain moves on, or it would not write what is below.
    write(&one, &mut one_chain, 5, &many(0, 10, 3)).await;
    // Rows sort by key, and time follows the key: most parts hold only times below 5.
    let early: Vec<Update> = (0..20_000).map(|key| ((key, noise(key, 40)), 1 + key % 4, 1)).collect();
    let late = many(50_000, 100, 7);
    let resolved = write(&other, &mut other_chain, 9, &[early, late.clone()].concat()).await;
    assert_eq!(resolved.outcome, Some(Outcome::Trimmed { from: Frontier::at(5) }));
    let row = sink.batches().await.expect("the chain").pop().expect("a row");
    assert!(row.parts.len() < resolved.parts, "{} of {} parts are kept", row.parts.len(), resolved.parts);
    let mut subscription = sink.read().await.expect("readable");
    let content = delivered_until(&mut subscription, Frontier::at(9)).await.expect("read");
    assert_same!(content, content_of(&[many(0, 10, 3), late].concat()));
    one.close("done").await.expect("closes");
    other.close("done").await.expect("closes");
    drop((one_chain, other_chain));
    world.at_rest(sink.stash()).await;
    assert_eq!(world.listed().await.len(), 1 + row.parts.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_released_only_when_every_consumer_acknowledged_them() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let mut slow = sink.subscribe("slow", StartAt::Beginning).await.expect("subscribes");
    let mut fast = sink.subscribe("fast", StartAt::Beginning).await.expect("subscribes");
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    for time in 0..5 {
        write(&incarnation, &mut chain, time + 1, &many(0, 50, time)).await;
    }
    incarnation.close("done").await.expect("closes");
    drop(chain);
    for upper in 1..6 {
        delivered_until(&mut fast, Frontier::at(upper)).await.expect("read");
        let acknowledged = fast.acknowledge(Frontier::at(upper)).await.expect("acknowledged");
        assert_eq!((acknowledged.released, acknowledged.queued), (0, 0), "slow still wants it");
    }
    world.at_rest(sink.stash()).await;
    assert_eq!(world.listed().await.len(), 5);
    let content = delivered_until(&mut slow, Frontier::at(3)).await.expect("read");
    let wanted: Vec<Update> = (0..3).flat_map(|time| many(0, 50, time)).collect();
    assert_same!(content, content_of(&wanted));
    slow.acknowledge(Frontier::at(3)).await.expect("acknowledged");
    world.at_rest(sink.stash()).await;
    assert_eq!(world.listed().await.len(), 2);
    assert!(sink.unregister_consumer("slow").await.expect("known"));
    world.at_rest(sink.stash()).await;
    assert_eq!(world.listed().await.len(), 0, "nobody holds them any longer");
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_comes_back_gets_the_identical_batches() {
    let mut config = small(4 << 10);
    config.batch.row_group_bytes_max = 10_000;
    let world = World::files(config).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 2).await;
    for time in 0..4 {
        let minted = mint(&mut chain, time + 1);
        let all = [many(0, 400, time), many(200, 5, time)];
        write_all(&incarnation, &mut chain, minted, &all).await.expect("written");
    }
    let mut first = sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes");
    delivered_until(&mut first, Frontier::at(2)).await.expect("read");
    first.acknowledge(Frontier::at(2)).await.expect("acknowledged");
    let mut before = Vec::new();
    for _ in 0..2 {
        let delivery = first.next().await.expect("read").expect("a batch");
        before.push((delivery.row().id, delivery.piece(), batches(&delivery).await));
    }
    // What was not acknowledged comes again, on another handle too.
    let stash = world.open().await;
    let again = stash.sink("rows").await.expect("declared");
    let mut second = again.subscribe("reader", StartAt::Now).await.expect("subscribes");
    assert_eq!(second.position(), Frontier::at(2), "where it acknowledged, whatever is asked");
    for (id, piece, wanted) in before {
        let delivery = second.next().await.expect("read").expect("a batch");
        assert_eq!((delivery.row().id, delivery.piece()), (id, piece));
        assert_eq!(batches(&delivery).await, wanted);
    }
    // The newer session fences the older.
    let error = first.acknowledge(Frontier::at(3)).await.expect_err("fenced");
    assert_eq!(error.kind(), ErrorKind::Reopen, "{error}");
    second.acknowledge(Frontier::at(4)).await.expect("acknowledged");
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
    world.close([sink.stash().clone(), stash]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_gone_says_why_and_never_reads_as_empty() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let mut subscription = sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes");
    for time in 0..4 {
        write(&incarnation, &mut chain, time + 1, &many(0, 50, time)).await;
    }
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(subscription.next().await.expect("read").expect("a batch"));
    }
    subscription.acknowledge(Frontier::at(2)).await.expect("acknowledged");
    world.at_rest(sink.stash()).await;
    for delivery in &held[..2] {
        let error = delivered(delivery).await.expect_err("acknowledged");
        assert!(matches!(error, Error::Absent(Absence::Acknowledged { .. })), "{error}");
        assert_eq!(error.kind(), ErrorKind::Absent);
    }
    let error = sink.read_from(Frontier::at(0)).next().await.expect_err("acknowledged");
    assert!(matches!(error, Error::Absent(Absence::Acknowledged { .. })), "{error}");
    let error = sink.subscribe("late", StartAt::Beginning).await.expect_err("the beginning is gone");
    assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
    assert_eq!(sink.read().await.expect("readable").position(), Frontier::at(2), "the earliest");
    let error = sink.read_from(Frontier::at(99)).try_next().await.expect_err("never written");
    assert!(matches!(error, Error::Absent(Absence::NeverWritten { upper, .. }) if upper == Frontier::at(4)));

    let key = |delivery: &Delivery| delivery.row().parts[0].name.under(sink.shard());
    let file = world.file_of(key(&held[2]));
    let bytes = fs::read(&file).expect("the part");
    fs::remove_file(&file).expect("removed");
    let error = delivered(&held[2]).await.expect_err("lost");
    assert!(matches!(error, Error::Absent(Absence::Lost { .. })), "{error}");
    assert_eq!(error.kind(), ErrorKind::Repair);
    fs::write(&file, bytes).expect("put back");
    delivered(&held[2]).await.expect("there again");

    incarnation.close("done").await.expect("closes");
    drop(chain);
    sink.drop_sink().await.expect("drops");
    let error = delivered(&held[3]).await.expect_err("dropped");
    assert!(matches!(error, Error::Absent(Absence::Dropped { .. })), "{error}");
    let error = sink.read_from(Frontier::at(2)).next().await.expect_err("dropped");
    assert!(matches!(error, Error::Absent(Absence::Dropped { .. })), "{error}");
    world.at_rest(sink.stash()).await;
    assert!(world.listed().await.is_empty());
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_part_is_corrupt_and_never_read_as_other_rows() {
    let mut config = small(0);
    config.batch.row_group_bytes_max = 8_000;
    let world = World::files(config).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let all: Vec<Update> =
        (0..600).map(|key| ((key, format!("{}", key * key)), 0, 1 + key as i64 % 3)).collect();
    write(&incarnation, &mut chain, 1, &all).await;
    let delivery = sink.read().await.expect("readable").next().await.expect("read").expect("a batch");
    let truth: BTreeMap<_, _> = content_of(&all);
    let file = world.file_of(delivery.row().parts[0].name.under(sink.shard()));
    let bytes = fs::read(&file).expect("the part");
    let check = async |what: String, damaged: &[u8]| {
        fs::write(&file, damaged).expect("damaged");
        let mut reader = delivery.read();
        let mut read = Content::new();
        let error = loop {
            match reader.next().await {
                Ok(Some(batch)) => read.extend(rows_in(&batch)),
                Ok(None) => panic!("{what}: read to its end without an error"),
                Err(error) => break Error::from(error),
            }
        };
        assert!(matches!(error, Error::Absent(Absence::Corrupt { .. })), "{what}: {error}");
        assert_eq!(error.kind(), ErrorKind::Repair);
        // What came before the damage was found is true.
        assert!(read.iter().all(|(update, diff)| truth.get(update) == Some(diff)), "{what}: other rows");
    };
    let step = bytes.len() / 40;
    for place in (0..bytes.len()).step_by(step).chain(bytes.len() - 12..bytes.len()) {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x40;
        check(format!("byte {place} of {}", bytes.len()), &damaged).await;
    }
    check("cut short".to_owned(), &bytes[..bytes.len() - 100]).await;
    check("nothing".to_owned(), &[]).await;
    fs::write(&file, &bytes).expect("put back");
    assert_same!(delivered(&delivery).await.expect("whole again"), truth);
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_stretches_are_closed_by_progress_with_and_without_a_row_before_them() {
    let world = World::memory(small(64 << 10)).await;
    let sink = world.sink().await;
    let mut subscription = sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes");
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    // Nothing was ever written.
    write(&incarnation, &mut chain, 1, &[]).await;
    write(&incarnation, &mut chain, 7, &[]).await;
    let content = delivered_until(&mut subscription, Frontier::at(7)).await.expect("proven empty");
    assert_same!(content, Content::new());
    subscription.acknowledge(Frontier::at(7)).await.expect("acknowledged");
    // Rows, and an empty stretch after them, that come in one look at the chain, and in two.
    for round in 1..4 {
        let from = round * 100;
        write(&incarnation, &mut chain, from + 1, &many(0, 3, from)).await;
        write(&incarnation, &mut chain, from + 20, &[]).await;
        let content = delivered_until(&mut subscription, Frontier::at(from + 20)).await.expect("read");
        assert_same!(content, content_of(&many(0, 3, from)));
        write(&incarnation, &mut chain, from + 30, &[]).await;
        let content =
            delivered_until(&mut subscription, Frontier::at(from + 30)).await.expect("proven empty");
        assert_same!(content, Content::new());
        // All is acknowledged, and the chain goes on empty.
        subscription.acknowledge(Frontier::at(from + 30)).await.expect("acknowledged");
        write(&incarnation, &mut chain, from + 40, &[]).await;
        let content =
            delivered_until(&mut subscription, Frontier::at(from + 40)).await.expect("proven empty");
        assert_same!(content, Content::new());
        subscription.acknowledge(Frontier::at(from + 40)).await.expect("acknowledged");
        // One that comes back there finds it too.
        subscription = sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes");
        assert_eq!(subscription.position(), Frontier::at(from + 40));
        assert!(matches!(subscription.try_next().await.expect("open"), TryNext::Pending));
    }
    let report = sink.verify(|_| {}).await.expect("verified");
    assert_eq!(report.violations, []);
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.at_rest(sink.stash()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_reader_wakes_for_a_batch_accepted_on_another_handle() {
    let world = World::files(small(64 << 10)).await;
    let sink = world.sink().await;
    let reader_stash = world.open().await;
    let reader_sink = reader_stash.sink("rows").await.expect("declared");
    let mut subscription = reader_sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes");
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    for time in 0..10 {
        assert!(matches!(subscription.try_next().await.expect("open"), TryNext::Pending));
        let mut waiting = Box::pin(subscription.next());
        assert!(futures::poll!(&mut waiting).is_pending());
        let writing = write(&incarnation, &mut chain, time + 1, &many(0, 3, time)).await;
        assert_eq!(writing.outcome, Some(Outcome::Accepted));
        let delivery = in_time("waking", waiting).await.expect("read").expect("a batch");
        assert_eq!(delivery.upper(), Frontier::at(time + 1));
        assert_same!(delivered(&delivery).await.expect("read"), content_of(&many(0, 3, time)));
        subscription.acknowledge(delivery.upper()).await.expect("acknowledged");
    }
    incarnation.close("done").await.expect("closes");
    drop((chain, subscription));
    world.close([sink.stash().clone(), reader_stash]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_come_back_in_the_columns_that_were_declared() {
    let word = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let labelled =
        Field::new("word", word, true).with_metadata([("unit".to_owned(), "word".to_owned())].into());
    let declared = Schema::new(vec![labelled.clone()]);
    for inline in [0, 4096] {
        let world = World::memory(small(inline)).await;
        let spec = SinkSpec::new("words", declared.clone()).expect("sound");
        let sink = world.open().await.declare_sink(spec).await.expect("declared");
        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        let minted = mint(&mut chain, 1);
        let words: DictionaryArray<Int32Type> = [Some("b"), None, Some("a"), Some("b")].into_iter().collect();
        let written = sink.updates(vec![Arc::new(words)], vec![0; 4], vec![1; 4]).expect("they fit");
        let share = incarnation.worker(0).expect("local").write(minted, [written]).await.expect("written");
        let resolved = chain.report(share).await.expect("taken");
        assert_eq!(resolved[0].inline, usize::from(inline > 0));
        let mut subscription = sink.read().await.expect("readable");
        let TryNext::Delivery(delivery) = subscription.try_next().await.expect("read") else { panic!("one") };
        let batches = batches(&delivery).await;
        let [batch] = batches.as_slice() else { panic!("one: {batches:?}") };
        assert_eq!(batch.schema().field(0), &labelled, "packed again, and labelled");
        assert_eq!(batch.schema(), delivery.read().schema());
        let words = batch.column(0).as_dictionary::<Int32Type>();
        let words: Vec<_> = words.downcast_dict::<StringArray>().expect("text").into_iter().collect();
        assert_eq!(words, [None, Some("a"), Some("b")]);
        assert_eq!(batch.column(2).as_primitive::<Int64Type>().values(), &[1, 1, 2]);
    }
}
