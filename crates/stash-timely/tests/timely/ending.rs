//! How sinks end: complete when it is said, and never because a dataflow, its source or its token went away.

use std::time::Duration;

use differential_dataflow::{input::Input, trace::TraceReader};
use stash::{Frontier, Launch};
use stash_testkit::{Op, Point};
use stash_timely::{
    Connected, Connection, Outcome, SinkConfig, SinkError, SinkStatus, SinkToken, Stop, batch::arrange_vals,
    stash_arranged, stash_sink,
};
use timely::{Config, progress::Antichain, worker::Worker};

use crate::{
    story::{Feed, Story, Words, cluster, free_addresses, play},
    support::World,
};

const STEP: Option<Duration> = Some(Duration::from_millis(1));

#[test]
fn up_to_completes_the_chain_although_the_inputs_stay_open_and_later_updates_are_left_out() {
    let feed = Feed::seeded(41, 60, 4);
    let world = World::files(2);
    let sink = world.declare::<Words>("words", |spec| spec.up_to(45));
    let story = Story { closes: false, stride: 4, ..Story::of(&feed) };
    assert_eq!(play(&world, &sink, "replica", 2, &story), (Outcome::Complete, 1));
    let (updates, upper) = world.read(&sink);
    assert_eq!(upper, Frontier::EMPTY);
    assert_eq!(updates, feed.oracle(0, Frontier::at(45)));
    assert_eq!(play(&world, &sink, "replica", 2, &story), (Outcome::Complete, 0), "nothing to render");
    world.at_rest(&sink);
    world.leaves_nothing(&sink);
}

#[test]
fn a_sealing_sink_completes_with_its_input_and_another_only_ends() {
    let feed = Feed::seeded(42, 30, 4);
    let world = World::files(2);
    let seals = world.declare::<Words>("seals", stash::SinkSpec::sealing);
    let open = world.declare::<Words>("open", |spec| spec);
    let story = Story { closes: true, ..Story::of(&feed) };
    assert_eq!(play(&world, &seals, "replica", 2, &story).0, Outcome::Complete);
    assert_eq!(play(&world, &open, "replica", 2, &story).0, Outcome::Ended);
    assert_eq!(world.read(&seals), (feed.oracle(0, Frontier::EMPTY), Frontier::EMPTY));
    let (updates, upper) = world.read(&open);
    assert!(!upper.is_empty(), "complete is said, never inferred");
    assert_eq!(updates, feed.oracle(0, upper));
    for sink in [&seals, &open] {
        world.at_rest(sink);
    }
}

/// Named for what was found: the empty frontier of an input that stopped passed for one that had reached `up_to`, and the
/// chain was complete without what was still to come.
#[test]
fn an_input_that_stops_below_up_to_does_not_complete_the_chain_and_the_next_start_does() {
    let feed = Feed::seeded(44, 60, 4);
    let world = World::files(2);
    let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
    let stops = Story { closes: true, ..Story::of(&Feed { end: 25, ..feed.clone() }) };
    assert_eq!(play(&world, &sink, "replica", 2, &stops), (Outcome::Ended, 1));
    let (updates, upper) = world.read(&sink);
    assert!(upper <= Frontier::at(25), "{upper}");
    assert_eq!(updates, feed.oracle(0, upper));
    assert_eq!(play(&world, &sink, "replica", 2, &Story::of(&feed)), (Outcome::Complete, 1));
    assert_eq!(world.read(&sink), (feed.oracle(0, Frontier::EMPTY), Frontier::EMPTY));
    world.at_rest(&sink);
    world.leaves_nothing(&sink);
}

/// Named for what was found: nothing is offered while nothing comes, so that only a look finds the incarnation closed; and
/// the drop of a sink passed for a lease that ran out, after which all sinks of the replica are rendered again.
#[test]
fn a_sink_that_is_dropped_while_nothing_comes_goes_away() {
    let feed = Feed::seeded(46, 30, 4);
    let world = World::files(1);
    let sink = world.sink::<Words>("words");
    let connection = world.connect(&sink, 1);
    let (given, end) = (connection.clone(), Frontier::at(feed.end));
    let (story, idle) =
        (Story { closes: false, ..Story::of(&feed) }, std::sync::Arc::new(std::sync::Barrier::new(2)));
    let dropped = std::sync::Arc::clone(&idle);
    let workers = timely::execute(Config::process(1), move |worker| {
        let (token, mut drive) = story.render(worker, &given).expect("rendered");
        while token.upper() < end {
            drive(worker);
            worker.step_or_park(STEP);
        }
        dropped.wait();
        while token.status() == SinkStatus::Running {
            worker.step_or_park(STEP);
        }
        let status = token.status();
        token.detach();
        status
    });
    let workers = workers.expect("workers");
    idle.wait();
    world.runtime.block_on(sink.drop_sink()).expect("dropped");
    let ended = workers.join().pop().expect("a worker").expect("no panic");
    assert_eq!(ended, SinkStatus::Stopped(Stop::GoingAway));
    world.runtime.block_on(connection.idle());
    world.runtime.block_on(world.stash.close()).expect("closed");
}

/// Tells a connection's workers to drop their token at one worker while a PUT stands in the store.
#[test]
fn a_token_that_one_worker_drops_stops_all_and_nothing_is_left_after_close() {
    for (dropped_by, workers) in [(0, 3), (1, 3), (2, 3), (0, 1)] {
        let world = World::parts(workers);
        let sink = world.sink::<Words>("words");
        let connection = world.connect(&sink, u32::try_from(workers).unwrap());
        let story = Story { closes: false, ..Story::of(&Feed::seeded(43, 200, 5)) };
        let gate = world.faults().hold(Op::Put, Point::After);
        let (given, gate) = (connection.clone(), std::sync::Arc::new(std::sync::Mutex::new(Some(gate))));
        let ended = timely::execute(Config::process(workers), move |worker| {
            let (token, mut drive) = story.render(worker, &given).expect("rendered");
            let mut token = Some(token);
            while token.as_ref().is_none_or(|token| token.status() == SinkStatus::Running)
                && (token.is_some() || given.stop().is_none())
            {
                drive(worker);
                worker.step_or_park(STEP);
                let mut gate = gate.lock().expect("a gate");
                let stands = gate.as_ref().is_none_or(|gate| gate.held() > 0);
                if worker.index() == dropped_by && stands && token.is_some() {
                    token = None;
                    *gate = None;
                }
            }
            if let Some(token) = token {
                assert_eq!(token.status(), SinkStatus::Stopped(Stop::GoingAway));
                assert_eq!(token.held().updates, 0, "let go of");
                token.detach();
            }
        });
        for worker in ended.expect("workers").join() {
            worker.expect("no panic");
        }
        world.runtime.block_on(connection.idle());
        assert_eq!(connection.stop(), Some(&Stop::GoingAway));
        drop(connection);
        // What was written and not handed over is the ledger's: closing deletes it.
        world.runtime.block_on(world.stash.close()).expect("closed");
        let looks = world.again(1);
        let sink = looks.runtime.block_on(looks.stash.sink("words")).expect("the sink");
        let (_, upper) = looks.read(&sink);
        assert!(!upper.is_empty());
        looks.at_rest(&sink);
        looks.leaves_nothing(&sink);
    }
}

/// Renders, and drops the token and the dataflow together on the workers that are to; the others go on until they are
/// told of a stop, and then drop theirs.
fn drop_all_of_it(
    worker: &mut Worker,
    connection: &Connection,
    story: &Story,
    drops: bool,
) -> Option<SinkStatus> {
    let (token, mut drive) = story.render(worker, connection).expect("rendered");
    let dataflow = worker.installed_dataflows();
    let mut token = Some(token);
    while token.as_ref().is_some_and(|token| token.status() == SinkStatus::Running) {
        drive(worker);
        worker.step_or_park(STEP);
        if drops && connection.upper() > Frontier::at(5) {
            token = None;
            dataflow.iter().for_each(|dataflow| worker.drop_dataflow(*dataflow));
        }
    }
    let status = token.as_ref().map(SinkToken::status);
    token.into_iter().for_each(SinkToken::detach);
    for dataflow in worker.installed_dataflows() {
        worker.drop_dataflow(dataflow);
    }
    status
}

/// Named for what was found: the other workers went on for ever, for nobody reported the shares of the one that left.
#[test]
fn a_dataflow_that_one_worker_drops_with_its_token_stops_all_workers_of_the_process() {
    for dropped_by in 0..3 {
        let world = World::files(3);
        let sink = world.sink::<Words>("words");
        let connection = world.connect(&sink, 3);
        let story = Story { closes: false, ..Story::of(&Feed::seeded(45, 200, 5)) };
        let given = connection.clone();
        let ended = timely::execute(Config::process(3), move |worker| {
            let drops = worker.index() == dropped_by;
            drop_all_of_it(worker, &given, &story, drops)
        });
        for (index, ended) in ended.expect("workers").join().into_iter().enumerate() {
            let told = (index != dropped_by).then_some(SinkStatus::Stopped(Stop::GoingAway));
            assert_eq!(ended.expect("no panic"), told, "worker {dropped_by} left, {index} was told");
        }
        world.runtime.block_on(connection.idle());
        world.at_rest(&sink);
    }
}

#[test]
fn a_dataflow_that_a_worker_of_another_process_drops_stops_the_one_that_mints() {
    let world = World::parts(2);
    let sink = world.sink::<Words>("words");
    let story = Story { closes: false, ..Story::of(&Feed::seeded(46, 200, 5)) };
    let (token, addresses) = (world.stash.draw_launch(), free_addresses(2));
    let statuses = std::thread::scope(|threads| {
        let processes = [0, 1].map(|process: u32| {
            let (world, story) = (world.again(1), story.clone());
            let config = cluster(usize::try_from(process).unwrap(), 1, addresses.clone());
            threads.spawn(move || {
                let sink = world.runtime.block_on(world.stash.sink("words")).expect("the sink");
                let launch = Launch::process("replica", token, process, 2, process, 1).expect("a launch");
                let opened = Connection::open(&sink, launch, &world.background, SinkConfig::default());
                let Connected::Render(connection) = world.runtime.block_on(opened).expect("opened") else {
                    panic!("it is not complete")
                };
                let given = connection.clone();
                let ended = timely::execute(config, move |worker| {
                    let drops = worker.index() != given.minting_worker();
                    drop_all_of_it(worker, &given, &story, drops)
                });
                let status = ended.expect("workers").join().pop().expect("a worker").expect("no panic");
                world.runtime.block_on(connection.idle());
                world.runtime.block_on(world.stash.close()).expect("closed");
                status
            })
        });
        processes.map(|process| process.join().expect("a process"))
    });
    let told = statuses.into_iter().flatten().collect::<Vec<_>>();
    assert!(matches!(told.as_slice(), [SinkStatus::Stopped(Stop::Reopen(_))]), "{told:?}");
    world.at_rest(&sink);
}

#[test]
fn what_a_worker_holds_when_the_sink_stops_is_freed_by_it_some_at_a_time_and_counted_until_then() {
    const ROWS: usize = 20_000;
    let world = World::files(1);
    let sink = world.sink::<Words>("words");
    let connection = world.connect(&sink, 1);
    let given = connection.clone();
    let seen = timely::execute_directly(move |worker| {
        let (mut rows, mut errors, token) = worker.dataflow(|scope| {
            let (rows, words) = scope.new_collection::<Words, isize>();
            let (errors, faults) = scope.new_collection::<String, isize>();
            (rows, errors, stash_sink(words, faults, &given).expect("rendered"))
        });
        // The errors are not known yet, so it is held.
        for number in 0..ROWS {
            rows.update_at((format!("word {number}"), 1), 3, 1);
        }
        rows.advance_to(10);
        rows.flush();
        errors.flush();
        let mut steps = 0;
        while token.held().updates < ROWS && steps < 10_000 {
            worker.step_or_park(STEP);
            steps += 1;
        }
        let held = token.held();
        token.stop();
        while token.status() == SinkStatus::Running {
            worker.step_or_park(STEP);
        }
        let mut freeing = vec![token.held()];
        while token.held().freeing > 0 && freeing.len() < 1_000 {
            worker.step_or_park(STEP);
            freeing.push(token.held());
        }
        token.detach();
        (held, freeing)
    });
    let (held, freeing) = seen;
    assert_eq!((held.updates, held.freeing), (ROWS, 0));
    assert_eq!((freeing[0].updates, freeing[0].freeing), (0, ROWS), "let go of, and not freed yet");
    assert_eq!(freeing.last().map(|held| held.freeing), Some(0), "freed by the worker");
    world.runtime.block_on(connection.idle());
    world.at_rest(&sink);
}

#[test]
fn an_error_that_waits_for_its_description_is_counted_until_the_sink_stops() {
    let world = World::files(1);
    let sink = world.sink::<Words>("words");
    let connection = world.connect(&sink, 1);
    let given = connection.clone();
    let (held, left) = timely::execute_directly(move |worker| {
        let (_rows, mut errors, token) = worker.dataflow(|scope| {
            let (rows, words) = scope.new_collection::<Words, isize>();
            let (errors, faults) = scope.new_collection::<String, isize>();
            (rows, errors, stash_sink(words, faults, &given).expect("rendered"))
        });
        // The errors are known, and the rows are not yet.
        errors.update_at("it broke".to_owned(), 50, 1);
        errors.advance_to(60);
        errors.flush();
        let mut steps = 0;
        while token.held().errors == 0 && steps < 10_000 {
            worker.step_or_park(STEP);
            steps += 1;
        }
        let held = token.held();
        token.stop();
        while token.status() == SinkStatus::Running {
            worker.step_or_park(STEP);
        }
        let left = token.held();
        token.detach();
        (held, left)
    });
    assert_eq!((held.errors, held.error_bytes), (1, "it broke".len()));
    assert_eq!((left.errors, left.error_bytes), (0, 0));
    world.runtime.block_on(connection.idle());
    world.at_rest(&sink);
}

type Trace =
    differential_dataflow::operators::arrange::TraceAgent<stash_timely::batch::ValSpine<String, i64, isize>>;

/// Puts an imported trace into the sink.
fn import(worker: &mut Worker, trace: &mut Trace, connection: &Connection) -> Result<SinkToken, SinkError> {
    worker.dataflow(|scope| {
        let (_errors, faults) = scope.new_collection::<String, isize>();
        let imported = trace.import(scope);
        let row = |word: &String, number: &i64| Ok((word.clone(), *number));
        stash_arranged::<_, Words, _, _, _>(imported, faults, row, connection)
    })
}

#[test]
fn an_imported_trace_whose_source_ends_does_not_complete_the_chain() {
    for source_is_dropped in [false, true] {
        let world = World::files(2);
        let sink = world.sink::<Words>("words");
        let connection = world.connect(&sink, 2);
        let given = connection.clone();
        let workers = timely::execute(Config::process(2), move |worker| {
            let index = i64::try_from(worker.index()).unwrap();
            let (mut input, mut trace) = worker.dataflow(|scope| {
                let (input, words) = scope.new_collection::<Words, isize>();
                (input, arrange_vals(words).trace)
            });
            let source = worker.installed_dataflows();
            let token = import(worker, &mut trace, &given).expect("rendered");
            for time in 0..20 {
                input.advance_to(time);
                input.insert((format!("word {time}"), index));
            }
            input.advance_to(20);
            input.flush();
            while token.upper() < Frontier::at(20) {
                worker.step_or_park(STEP);
            }
            drop(input);
            if source_is_dropped {
                source.into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
            }
            drop(trace);
            // The source's end reaches the sink, or it stays where it is: then it is taken down.
            let mut token = Some(token);
            let mut steps = 0;
            while given.stop().is_none() {
                worker.step_or_park(STEP);
                steps += 1;
                if steps == 500 {
                    token = None;
                }
            }
            if let Some(token) = token {
                token.detach();
            }
        });
        for worker in workers.expect("workers").join() {
            worker.expect("no panic");
        }
        world.runtime.block_on(connection.idle());
        let stop = connection.stop().expect("stopped").clone();
        assert!(matches!(stop, Stop::Ended | Stop::GoingAway), "{stop:?}");
        let (updates, upper) = world.read(&sink);
        assert_eq!(upper, Frontier::at(20), "not complete, and nothing is missing");
        let expected =
            (0..20_u64).flat_map(|time| (0..2).map(move |index| ((format!("word {time}|{index}"), time), 1)));
        assert_eq!(updates, expected.collect());
        world.at_rest(&sink);
    }
}

#[test]
fn a_trace_that_is_compacted_as_far_as_the_hold_allows_can_be_rendered_from_again() {
    let feed = Feed::seeded(44, 40, 5);
    let world = World::files(1);
    let sink = world.sink::<Words>("words");
    let (given, told) = (sink.clone(), feed.clone());
    let (runtime, background) = (std::sync::Arc::clone(&world.runtime), world.background.clone());
    let seen = timely::execute_directly(move |worker| {
        let (mut input, mut trace) = worker.dataflow(|scope| {
            let (input, words) = scope.new_collection::<Words, isize>();
            (input, arrange_vals(words).trace)
        });
        let mut held = Vec::new();
        for upper in [5, 6, 17, 40] {
            // A rendering anew, from what the trace still tells apart.
            let launch = Launch::single("replica", 1).expect("a launch");
            let connected =
                runtime.block_on(Connection::open(&given, launch, &background, SinkConfig::default()));
            let Connected::Render(connection) = connected.expect("opened") else { panic!("not complete") };
            let token = import(worker, &mut trace, &connection).expect("rendered");
            for time in *input.time()..upper {
                input.advance_to(time);
                told.at(time).for_each(|(row, diff)| input.update(row.clone(), *diff));
            }
            input.advance_to(upper);
            input.flush();
            let reached = |token: &SinkToken| token.hold().frontier() >= Frontier::at(upper - 1);
            while !reached(&token) || token.upper() < Frontier::at(upper) {
                worker.step_or_park(STEP);
            }
            let hold = token.hold().frontier().as_u64();
            held.push(hold);
            trace.set_logical_compaction(Antichain::from_elem(hold).borrow());
            trace.set_physical_compaction(Antichain::from_elem(hold).borrow());
            drop(token);
            while connection.stop().is_none() {
                worker.step_or_park(STEP);
            }
            runtime.block_on(connection.idle());
        }
        held
    });
    assert_eq!(seen, [4, 5, 16, 39], "strictly below the upper: what is granted next (I9, I10)");
    let (updates, upper) = world.read(&sink);
    assert_eq!(upper, Frontier::at(40));
    assert_eq!(updates, feed.oracle(0, upper));
    world.at_rest(&sink);
    world.leaves_nothing(&sink);
}
