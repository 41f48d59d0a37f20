//! How sinks end: complete when it is said, and never because a dataflow, its source or its token went away.

use std::time::Duration;

use differential_dataflow::{input::Input, trace::TraceReader};
use stash::{Frontier, Launch};
use stash_testkit::{Op, Point};
use stash_timely::{
    Connected, Connection, Outcome, SinkConfig, SinkError, SinkStatus, SinkToken, Stop, batch::arrange_vals,
    stash_arranged,
};
use timely::{Config, progress::Antichain, worker::Worker};

use crate::{
    story::{Feed, Story, Words, play},
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
