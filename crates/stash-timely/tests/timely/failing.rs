//! A store that fails: a replica renders again, and the chain is the oracle's. What no rendering mends ends it at once.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use stash::{Frontier, StashConfig};
use stash_testkit::{Fault, FaultPlan, Op};
use stash_timely::{Outcome, Place, RENDERINGS_MAX, Replica, SinkError};
use timely::Config;

use crate::{
    story::{Feed, Split, Story, Words, play, try_play},
    support::World,
};

/// Every update in a part; a PUT is tried once.
fn impatient() -> World {
    let mut config = StashConfig::default();
    config.batch.inline_batch_bytes_max = 0;
    config.batch.attempts_max = 1;
    World::with_config(2, config)
}

#[test]
fn a_put_that_fails_makes_the_replica_render_again_and_nothing_is_lost() {
    let feed = Feed::seeded(31, 40, 5);
    for fault in [Fault::Refused { retry: false }, Fault::TimedOut, Fault::LostReply] {
        let world = impatient();
        let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
        let plan =
            [0, 1, 7, 12, 20].iter().fold(FaultPlan::none(), |plan, nth| plan.at(Op::Put, *nth, fault));
        world.faults().set_plan(plan);
        let (outcome, renderings) = play(&world, &sink, "replica", 2, &Story::of(&feed));
        assert_eq!(outcome, Outcome::Complete, "{fault:?}");
        assert!(renderings > 1, "{fault:?}: rendered {renderings} times");
        world.faults().heal();
        assert_eq!(world.read(&sink).0, feed.oracle(0, Frontier::EMPTY), "{fault:?}");
        world.at_rest(&sink);
        world.leaves_nothing(&sink);
    }
}

#[test]
fn a_store_that_is_gone_ends_the_replica_after_some_renderings_and_the_next_start_goes_on() {
    let feed = Feed::seeded(32, 30, 5);
    let world = impatient();
    let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
    world.faults().set_plan(FaultPlan::none().always(Op::Put, Fault::Refused { retry: false }));
    let token = world.stash.draw_launch();
    let error = try_play(&world, &sink, "replica", token, 2, &Story::of(&feed)).expect_err("no store");
    let SinkError::NoProgress { renderings, .. } = &*error else { panic!("{error}") };
    assert_eq!(*renderings, RENDERINGS_MAX);
    assert_eq!(world.read(&sink).0, [].into(), "a failure is never an empty share (I12)");
    world.faults().heal();
    assert_eq!(play(&world, &sink, "replica", 2, &Story::of(&feed)), (Outcome::Complete, 1));
    assert_eq!(world.read(&sink).0, feed.oracle(0, Frontier::EMPTY));
    world.at_rest(&sink);
    world.leaves_nothing(&sink);
}

/// Named for what was found: it was rendered ten times, each time with all the work that comes before the row, and then
/// passed for a want of progress.
#[test]
fn a_row_that_no_part_can_take_ends_the_replica_by_name_after_one_rendering() {
    for whose in 0..2 {
        let mut config = StashConfig::default();
        config.batch.memory_bytes = 16 << 20;
        config.batch.inline_batch_bytes_max = 0;
        let world = World::with_config(2, config);
        let sink = world.declare::<Words>("words", |spec| spec.up_to(20));
        let row = |time: u64, worker: usize| {
            let large = time == 5 && worker == whose;
            ((if large { "x".repeat(2 << 20) } else { format!("word {worker}") }, 1), 1)
        };
        let updates = (0..20).map(|time| (time, vec![row(time, 0), row(time, 1)])).collect();
        let feed = Feed { updates: Arc::new(updates), end: 20 };
        let story = Story { split: Split::Even, ..Story::of(&feed) };
        let replica = Replica::new("replica", world.stash.draw_launch(), Place::alone(2), &world.background);
        let (kept, renderings) = (sink.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&renderings);
        let workers =
            timely::execute(Config::process(2), move |worker| story.keep(worker, &replica, &kept, &counted));
        for ended in workers.expect("workers").join() {
            let error = ended.expect("no panic").expect_err("no part takes it");
            let SinkError::Failed { sink, reason } = &*error else { panic!("{error}") };
            assert_eq!(sink, "words");
            let told = reason.starts_with("its updates of [") && reason.contains("raise memory_bytes");
            assert!(told, "{reason}");
        }
        assert_eq!(renderings.load(Ordering::Relaxed), 2, "once on each worker");
        let (updates, upper) = world.read(&sink);
        assert!(upper <= Frontier::at(5), "{upper}");
        assert_eq!(updates, feed.oracle(0, upper));
        world.at_rest(&sink);
    }
}
