//! Sources over chains in memory, read by real workers.

use std::{
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use arrow::datatypes::{DataType, Field, Schema};
use proptest::prelude::*;
use stash::{Absence, CatalogError, Error, Frontier, StartAt};

use super::{support::*, *};
use crate::hold::Hold;

fn at(time: u64) -> Frontier {
    Frontier::at(time)
}

fn word(word: &str, time: u64, diff: i64) -> Update {
    (word.to_owned(), time, diff)
}

/// Five times of a word each, in batches with uppers 1, 3 and 5.
fn five(spec: impl FnOnce(stash::SinkSpec) -> stash::SinkSpec) -> World {
    let mut world = World::new(spec);
    let words: Vec<Update> = (0..5).map(|time| word("tick", time, 1)).collect();
    [1, 3, 5].into_iter().for_each(|upper| world.commit(at(upper), &words));
    world
}

fn absence(error: &SourceError) -> &Absence {
    match error {
        SourceError::Stash(Error::Absent(absence)) => absence,
        other => panic!("{other:?}"),
    }
}

#[derive(Clone, Debug)]
struct Feed {
    updates: Vec<Update>,
    uppers: Vec<u64>,
}

fn feeds() -> impl Strategy<Value = Feed> {
    let updates = proptest::collection::vec(("[a-e]", 5..17_u64, -2..3_i64), 0..60);
    let uppers = proptest::collection::btree_set(6..17_u64, 0..6);
    (updates, uppers).prop_map(|(updates, uppers)| Feed { updates, uppers: uppers.into_iter().collect() })
}

/// A complete chain from 5 to 17 with the feed in it.
fn filled(feed: &Feed) -> World {
    let mut world = World::new(|spec| spec.as_of(5).up_to(17));
    feed.uppers.iter().for_each(|upper| world.commit(at(*upper), &feed.updates));
    world.commit(Frontier::EMPTY, &feed.updates);
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn oracle_of_snapshots_at_every_as_of(feed in feeds(), workers in 1..4_usize) {
        let world = filled(&feed);
        for as_of in [5, 6, 11, 16, 17, 40] {
            let portion = NonZeroUsize::new(7).expect("7");
            let options = world.options(Start::Snapshot { as_of }).updates_an_activation(portion);
            let read = run_to_completion(workers, &options);
            let statuses: Vec<_> = read.iter().map(|(_, status)| status.clone()).collect();
            let reader = reading_worker(world.sink.id(), workers);
            for (index, status) in statuses.iter().enumerate() {
                prop_assert!(matches!(status, SourceStatus::Complete), "{:?}", status);
                prop_assert!(index == reader || read[index].0.is_empty());
            }
            let wanted = sums(feed.updates.iter().cloned().map(|(row, time, diff)| (row, time.max(as_of), diff)));
            prop_assert_eq!(sums(read.into_iter().flat_map(|(updates, _)| updates)), wanted);
        }
        world.at_rest();
    }

    #[test]
    fn oracle_of_changes_since_every_frontier(feed in feeds()) {
        let world = filled(&feed);
        for since in [at(0), at(5), at(6), at(12), at(17), at(99), Frontier::EMPTY] {
            let read = run_to_completion(1, &world.options(Start::ChangesSince(since)));
            let wanted = sums(feed.updates.iter().filter(|update| since.admits(update.1)).cloned());
            prop_assert_eq!(sums(read.into_iter().flat_map(|(updates, _)| updates)), wanted);
        }
        world.at_rest();
    }
}

#[test]
fn the_frontier_goes_from_upper_to_upper_and_begins_at_the_as_of() {
    let mut world = five(|spec| spec);
    let options = world.options(Start::Snapshot { as_of: 2 });
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        running.until_at(worker, at(5));
        let told =
            running.seen.frontiers.iter().all(|frontier| [0, 2, 3, 5].map(Frontier::at).contains(frontier));
        assert!(told, "{:?}", running.seen.frontiers);
        assert!(matches!(running.token().status(), SourceStatus::Running { frontier } if frontier == at(5)));
        // The worker is woken by what comes later, also where nothing but time has passed.
        world.commit(at(6), &[word("late", 5, 1)]);
        running.until_at(worker, at(6));
        world.commit(at(9), &[]);
        running.until_at(worker, at(9));
        let wanted = vec![word("tick", 2, 3), word("tick", 3, 1), word("tick", 4, 1), word("late", 5, 1)];
        assert_eq!(sums(running.end(worker)), sums(wanted));
        world.at_rest();
    });
}

#[test]
fn a_sink_that_was_declared_with_a_dictionary_is_read_as_its_values() {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let schema = Schema::new(vec![Field::new("c0", dictionary, false)]);
    let mut world = World::of(schema, |spec| spec.up_to(2));
    let words = [word("a", 0, 1), word("b", 0, 2), word("a", 1, -1)];
    world.commit(Frontier::EMPTY, &words);
    let mut read = run_to_completion(1, &world.options(Start::Snapshot { as_of: 0 }));
    assert_eq!(sums(read.remove(0).0), sums(words));
    world.at_rest();
}

#[test]
fn changes_since_a_frontier_the_chain_has_not_reached_are_waited_for() {
    let mut world = five(|spec| spec);
    let options = world.options(Start::ChangesSince(at(7)));
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        running.until_at(worker, at(7));
        world.commit(at(6), &[word("early", 5, 1)]);
        world.commit(at(9), &[word("early", 6, 1), word("wanted", 7, 1)]);
        running.until_at(worker, at(9));
        assert_eq!(running.end(worker), [word("wanted", 7, 1)]);
        world.at_rest();
    });
}

#[test]
fn a_beginning_that_was_acknowledged_is_told_and_the_collection_stays_open() {
    let world = five(|spec| spec);
    world.released(at(3));
    let snapshot = Start::Snapshot { as_of: 4 };
    for options in [world.options(snapshot), world.options(snapshot).consumer("new", Acknowledge::ByToken)] {
        timely::execute_directly(move |worker| {
            let mut running = Running::start(worker, options);
            let error = running.failure(worker, at(4));
            assert!(
                matches!(absence(&error), Absence::Acknowledged { released, .. } if *released == at(3)),
                "{error}"
            );
            assert_eq!(running.end(worker), []);
        });
    }
    assert_eq!(world.acked("new"), None, "who failed to begin holds nothing");
    // The changes from there on are still there.
    let options = world.options(Start::ChangesSince(at(3)));
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        running.until_at(worker, at(5));
        assert_eq!(running.end(worker), [word("tick", 3, 1), word("tick", 4, 1)]);
    });
    world.at_rest();
}

#[test]
fn a_beginning_that_expired_is_told() {
    let mut world = five(|spec| spec.retention(std::time::Duration::from_millis(50)));
    world.clock.advance(100);
    world.commit(at(7), &[word("fresh", 6, 1)]);
    world.runtime.block_on(world.sink.expire(true)).expect("it expires");
    let options = world.options(Start::Snapshot { as_of: 0 });
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        let error = running.failure(worker, at(0));
        assert!(matches!(absence(&error), Absence::Expired { .. }), "{error}");
        running.end(worker);
    });
    world.at_rest();
}

#[test]
fn a_poisoned_chain_gives_what_lies_before_and_then_its_error() {
    let mut world = five(|spec| spec);
    world.poison(5);
    let options = world.options(Start::Snapshot { as_of: 0 });
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        let error = running.failure(worker, at(5));
        assert!(matches!(absence(&error), Absence::Poisoned { error, .. } if error.at == 5), "{error}");
        assert_eq!(running.end(worker).len(), 5);
    });
    world.at_rest();
}

#[test]
fn every_worker_is_told_of_a_failure_and_can_drop_the_dataflow() {
    let mut world = five(|spec| spec);
    world.poison(5);
    let (options, reader) = (world.options(Start::Snapshot { as_of: 0 }), reading_worker(world.sink.id(), 3));
    let guards = timely::execute(timely::Config::process(3), move |worker| {
        let mut running = Running::start(worker, options.clone());
        let (index, before) = (worker.index(), running.token().status());
        assert_eq!(index != reader, matches!(before, SourceStatus::Elsewhere { worker } if worker == reader));
        running.until(worker, |running| running.token().status().is_over());
        let SourceStatus::Failed(error) = running.token().status() else { panic!("{:?}", running.token()) };
        match &*error {
            SourceError::Elsewhere { worker, what } => {
                assert!(
                    index != reader && *worker == reader && what.contains("is poisoned at time 5"),
                    "{what}"
                );
            }
            own => assert!(index == reader && matches!(absence(own), Absence::Poisoned { .. }), "{own}"),
        }
        assert!(!running.probe.done());
        running.end(worker).len()
    });
    let given = guards.expect("workers").join().into_iter().map(|result| result.expect("a worker"));
    assert_eq!(given.sum::<usize>(), 5);
    world.at_rest();
}

#[test]
fn a_dropped_sink_is_told_and_leaves_the_collection_open() {
    let world = five(|spec| spec);
    let options = world.options(Start::Snapshot { as_of: 0 });
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        running.until_at(worker, at(5));
        world.runtime.block_on(world.sink.drop_sink()).expect("it drops");
        let error = running.failure(worker, at(5));
        assert!(matches!(absence(&error), Absence::Dropped { .. }), "{error}");
        running.end(worker);
    });
}

#[test]
fn a_dropped_token_stops_the_source_and_completes_nothing() {
    let mut world = five(|spec| spec.up_to(9));
    let options = world.options(Start::Snapshot { as_of: 0 });
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        running.until_at(worker, at(5));
        drop(running.token.take());
        // The chain's own completion comes too late.
        world.commit(Frontier::EMPTY, &[word("late", 7, 1)]);
        for _ in 0..100 {
            worker.step();
        }
        running.seen.look();
        assert_eq!((running.seen.frontier(), running.probe.done()), (at(5), false));
        assert_eq!(running.end(worker).len(), 5);
        world.at_rest();
    });
}

#[test]
fn a_dropped_dataflow_stops_the_source() {
    let world = five(|spec| spec);
    let options = world.options(Start::Snapshot { as_of: 0 });
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        running.until_at(worker, at(5));
        let token = running.token.take().expect("the token is kept");
        running.end(worker);
        assert!(matches!(token.status(), SourceStatus::Stopped));
        world.at_rest();
    });
}

#[test]
fn a_runtime_that_ends_first_is_a_failure_and_no_completion() {
    let World { runtime, sink, .. } = five(|spec| spec);
    let other =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("one");
    let options = SourceOptions::new(sink, other.handle().clone(), Start::Snapshot { as_of: 0 });
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        running.until_at(worker, at(5));
        other.shutdown_background();
        let error = running.failure(worker, at(5));
        assert!(matches!(&*error, SourceError::Ended { sink } if sink == "words"), "{error}");
        running.end(worker);
        drop(runtime);
    });
}

#[test]
fn options_that_do_not_fit_are_told_by_the_token() {
    let world = World::new(|spec| spec.as_of(5));
    let holds = Acknowledge::Holds(Vec::new());
    for (options, told) in [
        (world.options(Start::Snapshot { as_of: 4 }), "its chain begins at 5"),
        (world.options(Start::Snapshot { as_of: u64::MAX }), "is no time"),
        (world.options(Start::ChangesSince(at(0))).consumer("c", holds), "a source without a hold"),
    ] {
        timely::execute_directly(move |worker| {
            let first = at(options.start.first());
            let mut running = Running::start(worker, options);
            let error = running.failure(worker, first).to_string();
            assert!(error.contains(told), "{error}");
            running.end(worker);
        });
    }
    let options = world.options(Start::Snapshot { as_of: 5 });
    timely::execute_directly(move |worker| {
        let dataflow = worker.next_dataflow_index();
        let token = worker.dataflow(|scope| stash_source::<(u64, String)>(scope, "wrong", options).1);
        while !token.status().is_over() {
            worker.step_or_park(None);
        }
        let SourceStatus::Failed(error) = token.status() else { panic!("{token:?}") };
        assert!(error.to_string().contains("column \"c0\" of UInt64 where the sink has"), "{error}");
        worker.drop_dataflow(dataflow);
    });
    world.at_rest();
}

#[test]
fn the_token_acknowledges_the_largest_upper_given_out_that_is_allowed() {
    let mut world = five(|spec| spec);
    let options = world.options(Start::Snapshot { as_of: 0 }).consumer("c", Acknowledge::ByToken);
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        running.until_at(worker, at(5));
        running.token().acknowledge(at(4));
        assert!(world.runtime.block_on(running.token().wait_acknowledged(at(3))));
        assert_eq!(world.acked("c"), Some(at(3)), "4 cuts a batch in two");
        // What is said early counts for what comes later.
        running.token().acknowledge(at(8));
        assert!(world.runtime.block_on(running.token().wait_acknowledged(at(5))));
        world.commit(at(8), &[word("late", 7, 1)]);
        running.until_at(worker, at(8));
        assert!(world.runtime.block_on(running.token().wait_acknowledged(at(8))));
        assert_eq!((world.acked("c"), running.token().acknowledged()), (Some(at(8)), at(8)));
        drop(running.token.take());
        running.end(worker);
        // Who comes back goes on there, and is not told anew what was acknowledged.
        let options = world.options(Start::ChangesSince(at(8))).consumer("c", Acknowledge::ByToken);
        let mut running = Running::start(worker, options);
        running.token().acknowledge(Frontier::EMPTY);
        world.commit(at(10), &[word("later", 9, 1)]);
        running.until_at(worker, at(10));
        assert!(world.runtime.block_on(running.token().wait_acknowledged(at(10))));
        assert_eq!(running.end(worker), [word("later", 9, 1)]);
        world.at_rest();
    });
}

#[test]
fn a_consumer_that_begins_anew_is_not_told_what_it_acknowledged_before() {
    let mut world = five(|spec| spec);
    // Another one still holds the beginning.
    world.released(at(0));
    let mut earlier =
        world.runtime.block_on(world.sink.subscribe("c", StartAt::Beginning)).expect("a session");
    world.runtime.block_on(earlier.acknowledge(at(3))).expect("it is acknowledged");
    drop(earlier);
    let options = world.options(Start::Snapshot { as_of: 0 }).consumer("c", Acknowledge::ByToken);
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        // All that is given out is acknowledged one by one: 1 and 3 would be refused.
        running.token().acknowledge(at(1));
        running.until_at(worker, at(5));
        assert!(
            world.runtime.block_on(running.token().wait_acknowledged(at(3))),
            "that is known from before"
        );
        running.token().acknowledge(at(5));
        assert!(
            world.runtime.block_on(running.token().wait_acknowledged(at(5))),
            "{:?}",
            running.token().status()
        );
        world.commit(at(6), &[]);
        running.until_at(worker, at(6));
        assert!(matches!(running.token().status(), SourceStatus::Running { .. }));
        assert_eq!((running.end(worker).len(), world.acked("c")), (5, Some(at(5))));
        world.at_rest();
    });
}

#[test]
fn holds_bound_what_is_acknowledged_and_the_end_is_acknowledged_after_the_dataflow() {
    let mut world = five(|spec| spec.up_to(7));
    let (slow, fast) = (Hold::new(), Hold::new());
    let holds = Acknowledge::Holds(vec![slow.clone(), fast.clone()]);
    let options = world.options(Start::Snapshot { as_of: 0 }).consumer("c", holds);
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        fast.raise(Frontier::EMPTY);
        running.until_at(worker, at(5));
        assert_eq!(world.acked("c"), Some(at(0)), "the slow one holds everything");
        slow.raise(at(3));
        assert!(world.runtime.block_on(running.token().wait_acknowledged(at(3))));
        assert_eq!(world.acked("c"), Some(at(3)));
        world.commit(Frontier::EMPTY, &[word("last", 6, 1)]);
        running.until_at(worker, Frontier::EMPTY);
        assert!(matches!(running.token().status(), SourceStatus::Complete));
        assert_eq!(world.acked("c"), Some(at(3)), "complete is not acknowledged by itself");
        slow.raise(Frontier::EMPTY);
        assert!(world.runtime.block_on(running.token().wait_acknowledged(Frontier::EMPTY)));
        assert_eq!(world.acked("c"), Some(Frontier::EMPTY));
        assert_eq!(running.end(worker).len(), 6);
        world.at_rest();
    });
}

#[test]
fn a_consumer_without_acknowledgements_holds_the_chain_while_the_source_lives() {
    let world = five(|spec| spec);
    let options = world.options(Start::Snapshot { as_of: 0 }).consumer("c", Acknowledge::Never);
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        running.until_at(worker, at(5));
        world.released(at(5));
        assert_eq!(world.acked("c"), Some(at(0)));
        let again = Running::start(worker, world.options(Start::Snapshot { as_of: 4 }));
        let mut again = again;
        again.until_at(worker, at(5));
        assert_eq!(sums(again.end(worker)), sums([word("tick", 4, 5)]));
        running.end(worker);
        world.at_rest();
    });
}

#[test]
fn a_fenced_consumer_is_told_at_its_next_acknowledgement_and_completes_nothing() {
    let world = five(|spec| spec);
    let options = world.options(Start::Snapshot { as_of: 0 }).consumer("c", Acknowledge::ByToken);
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        running.until_at(worker, at(5));
        let newer =
            world.runtime.block_on(world.sink.subscribe("c", StartAt::Beginning)).expect("a newer session");
        running.token().acknowledge(at(5));
        assert!(!world.runtime.block_on(running.token().wait_acknowledged(at(5))), "it will never be");
        let error = running.failure(worker, at(5));
        let SourceError::Stash(Error::Catalog(CatalogError::SessionFenced { consumer, .. })) = &*error else {
            panic!("{error:?}")
        };
        assert_eq!(consumer.as_str(), "c");
        assert_eq!(world.acked("c"), Some(at(0)));
        running.end(worker);
        drop(newer);
        world.at_rest();
    });
}

#[test]
fn a_large_batch_comes_in_portions_and_the_worker_turns_between_them() {
    const UPDATES: usize = 50_000;
    const PORTION: usize = 1_000;
    let mut world = World::new(|spec| spec);
    let words: Vec<Update> = (0..UPDATES).map(|n| word(&format!("word {n:06}"), 0, 1)).collect();
    world.commit(at(1), &words);
    let options = world.options(Start::Snapshot { as_of: 0 });
    let options = options.updates_an_activation(NonZeroUsize::new(PORTION).expect("some")).buffer_bytes(1);
    timely::execute_directly(move |worker| {
        let mut running = Running::start(worker, options);
        let (mut given, mut largest, mut steps) = (0, 0, 0);
        running.until(worker, |running| {
            let now = running.seen.updates.len();
            (largest, steps) = (largest.max(now - given), steps + usize::from(now > given));
            given = now;
            running.seen.frontier() >= at(1)
        });
        assert!(largest <= PORTION, "{largest} in one step");
        assert!(steps >= UPDATES / PORTION, "{steps} steps");
        assert!(running.seen.frontiers.iter().all(|frontier| [at(0), at(1)].contains(frontier)));
        assert_eq!(sums(running.end(worker)), sums(words));
        world.at_rest();
    });
}

#[test]
fn the_reading_worker_is_the_one_that_would_mint() {
    for _ in 0..3 {
        let (world, workers) = (World::new(|spec| spec), 7);
        let launch = stash::Launch::single("another", workers).expect("a launch");
        let opened = world.runtime.block_on(world.sink.open_incarnation(launch)).expect("it opens");
        let minting = opened.render().expect("it renders").minting_worker();
        let reading = reading_worker(world.sink.id(), usize::try_from(workers).expect("it fits"));
        assert_eq!(u32::try_from(reading).expect("it fits"), minting.0);
    }
}

/// `cargo test -p stash-timely --release -- --ignored --nocapture throughput_of_a_source`
#[test]
#[ignore = "measures; prints nanoseconds an update"]
fn throughput_of_a_source() {
    const UPDATES: u32 = 1_000_000;
    let mut world = World::new(|spec| spec);
    let words: Vec<Update> = (0..UPDATES).map(|n| word(&format!("word {n:07}"), 0, 1)).collect();
    world.commit(at(1), &words);
    drop(words);
    let options = world.options(Start::Snapshot { as_of: 0 });
    let (seconds, steps, longest) = timely::execute_directly(move |worker| {
        let start = Instant::now();
        let (token, probe) = worker.dataflow(|scope| {
            let (collection, token) = stash_source::<String>(scope, "words", options);
            (token, collection.probe().0)
        });
        let (mut steps, mut longest) = (0_u32, Duration::ZERO);
        while probe.less_than(&1) {
            let turn = Instant::now();
            worker.step();
            (steps, longest) = (steps + 1, longest.max(turn.elapsed()));
        }
        let seconds = start.elapsed().as_secs_f64();
        drop(token);
        worker.drop_dataflow(0);
        (seconds, steps, longest)
    });
    let nanos = seconds * 1e9 / f64::from(UPDATES);
    println!("{nanos:.0} ns an update, {steps} steps, the longest {longest:?}");
    world.at_rest();
}
