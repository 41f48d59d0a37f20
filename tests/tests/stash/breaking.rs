//! What broke the library once, each as the history that did it.
//!
//! - Reading: a reader that failed or was cancelled said that the batch had ended.
//! - Writing: shares that were opened twice, damaged on their way, or written after the end.
//! - Ending: what a dead replica, an impossible batch or a full disk left behind for good.

use std::{cell::Cell, collections::BTreeMap, fs, mem, pin::pin, sync::Arc};

use stash::{
    BatchReader, CatalogError, DataflowError, DisarmedShare, Error, ErrorKind, Frontier, IncarnationState,
    InlineRun, Launch, Opened, PartDescriptor, Share, SinkSpec, StartAt, WorkerIndex, disarm, wire::Wire,
};
use stash_catalog::testing::ManualClock;
use stash_testkit::{Fault, FaultPlan, Op, Point};
use stash_tests::{
    Content, Polled, World, assert_same, content_of, delivered_until, in_time, poll_times, rows_in, schema,
    small, updates,
};

use crate::{Update, many, mint, open, write, write_all};

/// Adds what a reader gave to `content`. What is given twice counts twice.
fn take(content: &mut Content, batch: &arrow::array::RecordBatch) {
    for (update, diff) in rows_in(batch) {
        *content.entry(update).or_default() += diff;
    }
}

/// Reads to the end.
async fn rest(reader: &mut BatchReader, content: &mut Content) {
    while let Some(batch) = in_time("the rest", reader.next()).await.expect("read") {
        take(content, &batch);
    }
}

/// A world whose batches of some thousand rows are several parts of several row groups.
async fn many_parts(attempts_max: u32) -> World {
    let mut config = small(0);
    config.batch.row_group_bytes_max = 150_000;
    config.batch.part_bytes = 300_000;
    config.batch.attempts_max = attempts_max;
    World::files(config).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_whose_store_is_out_fails_again_and_again_and_once_healed_gives_exactly_the_rest() {
    let world = many_parts(1).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let all = many(0, 9000, 0);
    write(&incarnation, &mut chain, 1, &all).await;
    let wanted = content_of(&all);
    let delivery = sink.read().await.expect("readable").next().await.expect("read").expect("a batch");
    assert!(delivery.row().parts.len() > 1, "several parts");
    world.store.reset_counts();
    rest(&mut delivery.read(), &mut Content::new()).await;
    let gets = world.store.counts().gets;
    assert!(gets > 6, "several row groups: {gets} GETs");

    let (mut early, mut late) = (0, 0);
    for nth in 0..gets {
        // From this GET on there is an outage.
        let outage = (nth..nth + 1000)
            .fold(FaultPlan::none(), |plan, nth| plan.at(Op::Get, nth, Fault::Refused { retry: true }));
        world.store.set_plan(outage);
        let mut reader = delivery.read();
        let mut content = Content::new();
        let mut errors = 0;
        while errors < 4 {
            match in_time("a reader in an outage", reader.next()).await {
                Ok(Some(batch)) => take(&mut content, &batch),
                Ok(None) => panic!("GET {nth}: the batch ended with {} of {} rows", content.len(), all.len()),
                Err(error) => {
                    let error = Error::from(error);
                    assert_eq!(error.kind(), ErrorKind::Retry, "GET {nth}: {error}");
                    errors += 1;
                }
            }
        }
        if content.is_empty() {
            early += 1
        } else {
            late += 1
        }
        world.store.heal();
        rest(&mut reader, &mut content).await;
        assert_same!(content, wanted, "GET {nth}: what was read before and after the outage");
        assert!(reader.next().await.expect("ended").is_none(), "and it stays at its end");
    }
    assert!(early > 0 && late > 0, "outages before ({early}) and after ({late}) the first rows");
    incarnation.close("done").await.expect("closes");
    drop((chain, delivery));
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_get_that_fails_although_it_was_retried_costs_the_reader_no_row() {
    let world = many_parts(2).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 2).await;
    let minted = mint(&mut chain, 1);
    let shares = [many(0, 3000, 0), many(5000, 3000, 0)];
    write_all(&incarnation, &mut chain, minted, &shares).await.expect("written");
    let delivery = sink.read().await.expect("readable").next().await.expect("read").expect("a batch");
    let mut failed = 0;
    for nth in 0..6 {
        let twice = FaultPlan::none()
            .at(Op::Get, nth, Fault::Refused { retry: true })
            .at(Op::Get, nth + 1, Fault::TimedOut)
            .at(Op::Get, nth + 2, Fault::Refused { retry: true });
        world.store.set_plan(twice);
        let (mut reader, mut content) = (delivery.read(), Content::new());
        loop {
            match in_time("a reader", reader.next()).await {
                Ok(Some(batch)) => take(&mut content, &batch),
                Ok(None) => break,
                Err(_) => failed += 1,
            }
        }
        assert_same!(content, content_of(shares.iter().flatten()), "GET {nth}");
    }
    assert!(failed > 0, "some retries were used up");
    incarnation.close("done").await.expect("closes");
    drop((chain, delivery));
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_next_that_is_cancelled_while_it_waits_for_memory_or_data_loses_no_row() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let all = many(0, 20_000, 0);
    write(&incarnation, &mut chain, 1, &all).await;
    let delivery = sink.read().await.expect("readable").next().await.expect("read").expect("a batch");
    let mut cancelled = 0;
    for polls in 1..4 {
        // Readers that stand amid their batch hold the memory, until one has to wait for it.
        let before = sink.stash().budget().waits;
        let waits = async || {
            while sink.stash().budget().waits == before {
                tokio::task::yield_now().await;
            }
        };
        let mut holders = Vec::new();
        let mut waiting = loop {
            let mut reader = delivery.read();
            let held = tokio::select! {
                batch = reader.next() => Some(batch.expect("read").expect("rows").num_rows()),
                () = waits() => None,
            };
            match held {
                Some(rows) => assert!(rows < all.len(), "it stands amid the batch"),
                None => break reader,
            }
            holders.push(reader);
            assert!(holders.len() < 100, "the memory is bounded");
        };
        // It was cancelled in its wait already; once more, with nobody giving memory back.
        assert!(matches!(poll_times(waiting.next(), 1).await, Polled::Cancelled));
        drop(holders);
        // From here on there is memory, and it is cancelled amid what it does.
        let mut content = Content::new();
        for _ in 0..6 {
            match in_time("a reader", poll_times(waiting.next(), polls)).await {
                Polled::Ready(batch) => match batch.expect("read") {
                    Some(batch) => take(&mut content, &batch),
                    None => break,
                },
                Polled::Cancelled => cancelled += 1,
            }
        }
        rest(&mut waiting, &mut content).await;
        assert_same!(content, content_of(&all), "polls {polls}");
    }
    assert!(cancelled > 0, "some call was cancelled amid its reading");
    assert_eq!(sink.stash().budget().read, 0, "all memory is given back");
    incarnation.close("done").await.expect("closes");
    drop((chain, delivery));
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_opens_its_share_twice_is_refused_and_its_rows_count_once() {
    for inline in [0, 64 << 10] {
        let world = World::files(small(inline)).await;
        let sink = world.sink().await;
        let (incarnation, mut chain) = open(&sink, "a", 2).await;
        let all = many(0, 200, 0);
        let minted = mint(&mut chain, 1);
        let writer = incarnation.worker(0).expect("local");
        // While the first is filled, and again when it is finished.
        let mut first = writer.share(minted).expect("opens");
        first.push(updates(&sink, &all)).await.expect("taken");
        let error = writer.share(minted).map(drop).expect_err("opened already");
        assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
        let first = first.finish().await;
        let error = writer.write(minted, [updates(&sink, &all)]).await.expect_err("opened already");
        assert_eq!(error.kind(), ErrorKind::FixCall, "{error}");
        // Another worker is another share.
        let other = incarnation.worker(1).expect("local").write(minted, []).await.expect("written");
        chain.report(first).await.expect("taken");
        assert_eq!(chain.report(other).await.expect("accepted").len(), 1);

        // The only other way: the batch has left, and somebody reports a share of it once more.
        let late = writer.write(minted, [updates(&sink, &all)]).await;
        if let Ok(late) = late {
            chain.report(late).await.expect_err("the batch has left");
        }
        write(&incarnation, &mut chain, 2, &many(500, 100, 1)).await;
        let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(2)).await;
        let wanted = [all, many(500, 100, 1)].concat();
        assert_same!(content.expect("read"), content_of(&wanted), "inline {inline}");
        incarnation.close("done").await.expect("closes");
        drop(chain);
        world.at_rest(sink.stash()).await;
        world.close([sink.stash().clone()]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_frame_with_any_bit_flipped_is_refused_and_the_true_one_still_counts() {
    for inline in [0, 64 << 10] {
        let world = World::files(small(inline)).await;
        let sink = world.sink().await;
        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        let minted = mint(&mut chain, 1);
        let all = many(0, 5, 0);
        let share = incarnation.worker(0).expect("local").write(minted, [updates(&sink, &all)]).await;
        let frame = disarm(share.expect("written")).expect("a frame");
        for place in 0..frame.len() {
            for bit in 0..8 {
                let mut damaged = frame.to_vec();
                damaged[place] ^= 1 << bit;
                match incarnation.arm(&damaged) {
                    Err(error) => assert_eq!(error.kind(), ErrorKind::FixCall, "{error}"),
                    Ok(share) => panic!("byte {place}, bit {bit}: armed as {}", share.share.kind()),
                }
            }
        }
        for len in 0..frame.len() {
            assert!(incarnation.arm(&frame[..len]).is_err(), "cut to {len} bytes");
        }
        chain.report(incarnation.arm(&frame).expect("the true one")).await.expect("accepted");
        let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(1)).await;
        assert_same!(content.expect("read"), content_of(&all), "inline {inline}");
        incarnation.close("done").await.expect("closes");
        drop(chain);
        world.close([sink.stash().clone()]).await;
    }
}

/// Makes what is said of an inline run a lie.
type InlineForgery = fn(&mut InlineRun);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_says_of_its_inline_run_what_is_not_so_is_refused_when_it_is_armed() {
    let world = World::files(small(64 << 10)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    write(&incarnation, &mut chain, 1, &[]).await;
    let minted = mint(&mut chain, 5);
    let all = [many(0, 5, 2), many(5, 5, 3)].concat();
    let share = incarnation.worker(0).expect("local").write(minted, [updates(&sink, &all)]).await;
    let frame = disarm(share.expect("written")).expect("a frame");
    let forgeries: [(&str, InlineForgery); 6] = [
        ("no updates", |run| run.facts.update_count = 0),
        ("times below", |run| (run.facts.min_time, run.facts.max_time) = (0, 0)),
        ("a time at the upper", |run| run.facts.max_time = 5),
        ("times the wrong way round", |run| (run.facts.min_time, run.facts.max_time) = (3, 2)),
        ("another sum of diffs", |run| run.facts.diff_sum += 1),
        ("another digest", |run| run.digest.0[0] ^= 1),
    ];
    for (what, forge) in forgeries {
        let mut forged = DisarmedShare::from_wire(&frame).expect("a frame");
        let Share::Inline(run) = &mut forged.share else { panic!("an inline run") };
        forge(run);
        assert!(incarnation.arm(&forged.to_wire().expect("a sealed frame")).is_err(), "{what}: armed");
    }
    chain.report(incarnation.arm(&frame).expect("the true one")).await.expect("accepted");
    let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(5)).await;
    assert_same!(content.expect("read"), content_of(&all));
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.close([sink.stash().clone()]).await;
}

/// Makes the descriptions of parts a lie.
type Forgery = fn(&mut Vec<PartDescriptor>);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_describes_an_impossible_part_is_refused_when_it_is_armed() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    write(&incarnation, &mut chain, 1, &[]).await;
    let minted = mint(&mut chain, 5);
    let all = [many(0, 50, 2), many(50, 50, 3)].concat();
    let share = incarnation.worker(0).expect("local").write(minted, [updates(&sink, &all)]).await;
    let frame = disarm(share.expect("written")).expect("a frame");
    let forgeries: [(&str, Forgery); 7] = [
        ("no updates", |parts| parts[0].facts.update_count = 0),
        ("a time below", |parts| parts[0].facts.min_time = 0),
        ("a time at the upper", |parts| parts[0].facts.max_time = 5),
        ("a time that no update has", |parts| parts[0].facts.max_time = u64::MAX),
        ("times the wrong way round", |parts| (parts[0].facts.min_time, parts[0].facts.max_time) = (3, 2)),
        ("a tail longer than the part", |parts| parts[0].tail_len = parts[0].len + 1),
        ("the same part twice", |parts| parts.push(parts[0].clone())),
    ];
    for (what, forge) in forgeries {
        let mut forged = DisarmedShare::from_wire(&frame).expect("a frame");
        let Share::Stashed(parts) = &mut forged.share else { panic!("a part in the store") };
        forge(parts);
        match incarnation.arm(&forged.to_wire().expect("a sealed frame")) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::FixCall, "{what}: {error}"),
            Ok(_) => panic!("{what}: armed"),
        }
    }
    assert_eq!(world.listed().await.len(), 1, "a refused frame gives up no part");
    chain.report(incarnation.arm(&frame).expect("the true one")).await.expect("accepted");
    let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(5)).await;
    assert_same!(content.expect("read"), content_of(&all));
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.close([sink.stash().clone()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_waits_for_a_put_in_flight_whose_caller_is_gone_and_leaves_nothing() {
    for (point, cancelled) in [(Point::Before, false), (Point::After, false), (Point::Before, true)] {
        let world = World::files(small(0)).await;
        let sink = world.sink().await;
        let stash = sink.stash().clone();
        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        let minted = mint(&mut chain, 1);
        let writer = incarnation.worker(0).expect("local");
        let gate = world.store.hold(Op::Put, point);
        {
            let mut writing = pin!(writer.write(minted, [updates(&sink, &many(0, 2000, 0))]));
            tokio::select! {
                _ = &mut writing => panic!("it stands at the gate"),
                () = in_time("the gate", gate.wait_held(1)) => {}
            }
        }
        drop((chain, incarnation));
        if cancelled {
            // Whoever closes may lose patience, and close again.
            assert!(matches!(poll_times(stash.close(), 1).await, Polled::Cancelled));
        }
        let released = Cell::new(cancelled);
        let closing = async {
            in_time("closing", stash.close()).await.expect("closes");
            assert!(released.get(), "it closed while a PUT was under way");
        };
        let releasing = async {
            // A close that does not wait would be done by then: its catalog answers no more.
            for _ in 0..20 {
                let open = sink.incarnations().await.is_ok();
                assert!(open || cancelled, "it closed while a PUT was under way");
            }
            released.set(true);
            gate.release();
        };
        tokio::join!(closing, releasing);
        assert!(world.listed().await.is_empty(), "{point:?}, cancelled {cancelled}: nothing is left");
        assert_eq!(stash.counters().ledger_keys, 0);
        world.close([]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_stash_puts_nothing_more_and_closes_again() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let stash = sink.stash().clone();
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    write(&incarnation, &mut chain, 1, &many(0, 100, 0)).await;
    let (half, next) = (mint(&mut chain, 2), mint(&mut chain, 3));
    let writer = incarnation.worker(0).expect("local");
    let mut share = writer.share(half).expect("opens");
    share.push(updates(&sink, &many(0, 100, 1))).await.expect("taken");
    let before = world.listed().await;
    stash.close().await.expect("closes");

    world.store.reset_counts();
    let error = writer.write(next, [updates(&sink, &many(0, 100, 2))]).await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Reopen, "the call is not at fault: {error}");
    // What was opened before cannot be finished, and says so.
    let share = in_time("finishing", share.finish()).await;
    assert!(matches!(share.share, Share::Failed { .. }), "a {} share", share.share.kind());
    assert!(chain.report(share).await.is_err());
    drop((chain, incarnation));
    for _ in 0..2 {
        in_time("closing again", stash.close()).await.expect("closed already");
    }
    assert_eq!(world.store.counts().puts, 0, "nothing was put");
    assert_eq!(world.listed().await, before, "the accepted batch stands, and nothing else");
    world.close([]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_replica_left_of_a_finished_sink_is_swept_at_the_next_opening() {
    for poisoned in [false, true] {
        let clock = Arc::new(ManualClock::at(1_000_000));
        let world = World::files_at(small(0), Arc::clone(&clock) as _).await;
        let stash = world.open().await;
        let spec = SinkSpec::new("rows", schema()).expect("sound").up_to(5);
        let sink = stash.declare_sink(spec).await.expect("declared");
        // A replica PUTs a part, and is killed before it offers it.
        let dead = world.open().await;
        let deads_sink = dead.sink("rows").await.expect("declared");
        let (killed, mut killed_chain) = open(&deads_sink, "dead", 1).await;
        let minted = mint(&mut killed_chain, 1);
        let rows = [updates(&deads_sink, &many(0, 300, 0))];
        let share = killed.worker(0).expect("local").write(minted, rows).await.expect("written");
        drop(killed);
        mem::forget((share, killed_chain, deads_sink, dead));

        let (incarnation, mut chain) = open(&sink, "a", 1).await;
        write(&incarnation, &mut chain, 1, &many(0, 300, 0)).await;
        if poisoned {
            let minted = mint(&mut chain, 3);
            let error = DataflowError { at: 1, message: "division by zero".to_owned() };
            let share = incarnation.worker(0).expect("local").share(minted).expect("opens");
            chain.report(share.poison(error).await).await.expect("taken");
        } else {
            write(&incarnation, &mut chain, 5, &many(0, 300, 3)).await;
        }
        incarnation.close("done").await.expect("closes");
        drop(chain);
        let accepted = if poisoned { 1 } else { 2 };
        assert_eq!(world.listed().await.len(), accepted + 1, "the dead replica's part lies about");

        clock.advance(61_000);
        let opened = sink.open_incarnation(Launch::single("b", 1).expect("sound")).await.expect("answers");
        assert!(matches!((opened, poisoned), (Opened::Complete, false) | (Opened::Poisoned(_), true)));
        stash.drain_deletions().await.expect("a pass");
        assert_eq!(world.listed().await.len(), accepted, "poisoned {poisoned}: it is swept");
        assert_eq!(sink.verify(|_| {}).await.expect("verified").violations, []);
        world.at_rest(&stash).await;
        world.close([stash]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_refused_for_good_closes_its_incarnation_and_a_new_one_goes_on() {
    let world = World::files(small(0)).await;
    let (here, there) = (world.open().await, world.open().await);
    let spec = SinkSpec::new("rows", schema()).expect("sound");
    let sink = here.declare_sink(spec).await.expect("declared");
    let theirs = there.sink("rows").await.expect("declared");
    let token = here.draw_launch();
    let launch = |process| Launch::process("a", token, process, 2, process, 1).expect("sound");
    let first = sink.open_incarnation(launch(0)).await.expect("opens").render().expect("renders");
    let second = theirs.open_incarnation(launch(1)).await.expect("opens").render().expect("renders");
    let mut chain = first.chain().expect("free");
    let minted = mint(&mut chain, 1);
    let all = many(0, 300, 0);
    // One worker's part comes in the name of both.
    let share = second.worker(1).expect("local").write(minted, [updates(&theirs, &all)]).await;
    let frame = disarm(share.expect("written")).expect("a frame");
    let mut forged = DisarmedShare::from_wire(&frame).expect("a frame");
    forged.worker = WorkerIndex(0);
    let forged = first.arm(&forged.to_wire().expect("a frame")).expect("armed");
    chain.report(forged).await.expect("waits for the other");
    let offered = chain.report(first.arm(&frame).expect("armed")).await;
    let error = offered.expect_err("one part stands twice in the batch");
    assert_ne!(error.kind(), ErrorKind::Retry, "{error}");

    // The gap behind it cannot be closed, so nothing more is taken.
    let state = |rows: Vec<stash::IncarnationRow>| rows.into_iter().next().expect("a row").state;
    let closed = state(sink.incarnations().await.expect("rows"));
    assert!(matches!(closed, IncarnationState::Closed { .. }), "{closed:?}");
    assert_eq!(sink.upper().await.expect("head"), Frontier::at(0));
    chain.mint(Frontier::at(2)).expect_err("it ended");
    drop((first, second, chain));

    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    write(&incarnation, &mut chain, 1, &all).await;
    write(&incarnation, &mut chain, 2, &many(0, 300, 1)).await;
    let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(2)).await;
    let wanted: Vec<Update> = [all, many(0, 300, 1)].concat();
    assert_same!(content.expect("read"), content_of(&wanted));
    incarnation.close("done").await.expect("closes");
    drop(chain);
    world.close([here, there]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_fenced_learns_so_from_next_also_when_its_data_is_gone() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    write(&incarnation, &mut chain, 1, &many(0, 100, 0)).await;
    let mut old = sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes");
    let mut new = sink.subscribe("reader", StartAt::Beginning).await.expect("subscribes");
    let delivery = new.next().await.expect("read").expect("a batch");
    new.acknowledge(delivery.upper()).await.expect("acknowledged");
    for more in [false, true] {
        if more {
            write(&incarnation, &mut chain, 4, &many(0, 100, 3)).await;
        }
        let error = in_time("the old session", old.next()).await.expect_err("fenced");
        assert!(matches!(error, Error::Catalog(CatalogError::SessionFenced { .. })), "{error}");
        assert_eq!(error.kind(), ErrorKind::Reopen);
    }
    let delivery = new.next().await.expect("read").expect("the new session goes on");
    assert_eq!((delivery.lower(), delivery.upper()), (Frontier::at(1), Frontier::at(4)));
    incarnation.close("done").await.expect("closes");
    drop((chain, delivery));
    world.close([sink.stash().clone()]).await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_names_what_is_no_file_under_a_parts_key_and_looks_at_everything_else() {
    let world = World::files(small(0)).await;
    let sink = world.sink().await;
    let other = SinkSpec::new("other", schema()).expect("sound");
    let other = sink.stash().declare_sink(other).await.expect("declared");
    for sink in [&sink, &other] {
        let (incarnation, mut chain) = open(sink, "a", 1).await;
        for time in 0..3 {
            write(&incarnation, &mut chain, time + 1, &many(0, 100, time)).await;
        }
        incarnation.close("done").await.expect("closes");
    }
    let file_of = async |sink: &stash::Sink, batch: usize| {
        let part = sink.batches().await.expect("the chain")[batch].parts[0].name;
        world.file_of(part.under(sink.shard()))
    };
    let file = file_of(&sink, 1).await;
    let aside = world.blobs().with_file_name("aside");
    fs::rename(&file, &aside).expect("moved");
    for what in ["a folder", "a folder that is not empty", "a link to the part", "a link to nowhere"] {
        match what {
            "a link to the part" => std::os::unix::fs::symlink(&aside, &file).expect("linked"),
            "a link to nowhere" => {
                std::os::unix::fs::symlink(aside.with_extension("not"), &file).expect("linked");
            }
            _ => fs::create_dir(&file).expect("made"),
        }
        if what == "a folder that is not empty" {
            fs::write(file.join("file"), "x").expect("written");
        }
        let report = in_time(what, sink.verify(|_| {})).await;
        let report = report.unwrap_or_else(|error| panic!("{what}: it stopped: {error}"));
        let mut names = BTreeMap::new();
        for violation in &report.violations {
            *names.entry(violation.invariant.as_str()).or_insert(0) += 1;
        }
        assert!(names.contains_key("I15") || names.contains_key("I22"), "{what}: {:?}", report.violations);
        assert_eq!((report.batches, report.parts), (3, 2), "{what}: the others are read");
        let report = other.verify(|_| {}).await.expect("verified");
        assert_eq!((report.parts, report.violations), (3, Vec::new()), "{what}");
        if file.is_symlink() {
            fs::remove_file(&file).expect("removed");
        } else {
            fs::remove_dir_all(&file).expect("removed");
        }
    }
    fs::rename(&aside, &file).expect("put back");
    assert_eq!(sink.verify(|_| {}).await.expect("verified").violations, []);
    world.close([sink.stash().clone()]).await;
}

/// A small file system that goes with its owner.
#[cfg(unix)]
struct SmallDisk(tempfile::TempDir);

#[cfg(unix)]
impl SmallDisk {
    /// `None` where this user may not mount one.
    fn mount() -> Option<SmallDisk> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=16m", "tmpfs"]).arg(folder.path());
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| SmallDisk(folder))
    }

    /// Takes all of it but `left` bytes.
    fn fill(&self, left: u64) {
        use std::io::Write;
        let mut ballast = fs::File::create(self.0.path().join("ballast")).expect("created");
        while ballast.write_all(&[1; 4096]).is_ok() {}
        let len = ballast.metadata().expect("metadata").len();
        ballast.set_len(len.saturating_sub(left)).expect("cut");
    }

    fn free(&self) {
        fs::remove_file(self.0.path().join("ballast")).expect("removed");
    }
}

#[cfg(unix)]
impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_that_met_a_full_disk_writes_again_once_there_is_room() {
    use std::io::Write;
    let name = "a_handle_that_met_a_full_disk_writes_again_once_there_is_room";
    let Some(disk) = SmallDisk::mount() else {
        // Past the harness, which keeps what a test prints to itself while it passes.
        let _ = writeln!(std::io::stderr(), "SKIPPED {name}: this user may not mount a file system");
        return;
    };
    let url = format!("file://{}/stash", disk.0.path().display());
    let stash = stash::OpenOptions::new(url).config(small(64 << 10)).open().await.expect("opens");
    let sink = stash.declare_sink(SinkSpec::new("rows", schema()).expect("sound")).await.expect("declared");
    let (incarnation, mut chain) = open(&sink, "a", 1).await;
    let mut wanted: Vec<Update> = Vec::new();
    let (mut failed, mut offered_again) = (0, 0);
    for round in 0..24 {
        disk.fill(round * 8192);
        let rows = many(0, 5, round);
        let minted = mint(&mut chain, round + 1);
        let share = incarnation.worker(0).expect("local").write(minted, [updates(&sink, &rows)]).await;
        let offered = chain.report(share.expect("it travels inline")).await;
        for consumer in 0..40 {
            let full = sink.subscribe(&format!("c{consumer}"), StartAt::Beginning).await;
            failed += u32::from(full.is_err());
        }
        disk.free();
        if round % 2 == 0 {
            let again = sink.subscribe("again", StartAt::Beginning).await;
            again.unwrap_or_else(|error| panic!("round {round}: there is room, and still: {error}"));
        }
        if let Err(error) = offered {
            assert_eq!(error.kind(), ErrorKind::Retry, "round {round}: {error}");
            let again = chain.offer().await;
            again.unwrap_or_else(|error| panic!("round {round}: there is room, and still: {error}"));
            offered_again += 1;
        }
        assert_eq!(sink.upper().await.expect("head"), Frontier::at(round + 1));
        wanted.extend(rows);
    }
    assert!(failed > 0 && offered_again > 0, "the disk was full: {failed} and {offered_again} failed");
    let content = delivered_until(&mut sink.read().await.expect("readable"), Frontier::at(24)).await;
    assert_same!(content.expect("read"), content_of(&wanted));
    assert_eq!(sink.verify(|_| {}).await.expect("verified").violations, []);
    incarnation.close("done").await.expect("closes");
    drop(chain);
    stash.close().await.expect("closes");
}
