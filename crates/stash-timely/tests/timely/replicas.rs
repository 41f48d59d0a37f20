//! Replicas that race, and renderings that begin in the middle.

use stash::Frontier;
use stash_timely::{Connection, Outcome, SinkStatus, Stop};
use timely::Config;

use crate::{
    story::{Feed, Split, Story, Words, play},
    support::World,
};

#[test]
fn two_replicas_with_differing_cuts_race_and_the_chain_is_the_oracles() {
    for (seed, world) in [(1, World::files(3)), (2, World::parts(3)), (3, World::memory(3))] {
        let feed = Feed::seeded(seed, 120, 6);
        let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
        let story = Story::of(&feed);
        let coarse = Story { stride: 7, split: Split::Even, ..story.clone() };
        let uneven = Story { stride: 3, slow: Some((0, 4)), ..story.clone() };
        std::thread::scope(|threads| {
            let stories = [("fine", 2, &story), ("coarse", 3, &coarse), ("uneven", 1, &uneven)];
            let replicas = stories.map(|(name, workers, story)| {
                let (world, sink) = (&world, &sink);
                threads.spawn(move || play(world, sink, name, workers, story))
            });
            for replica in replicas {
                assert_eq!(replica.join().expect("played").0, Outcome::Complete, "seed {seed}");
            }
        });
        let (updates, upper) = world.read(&sink);
        assert_eq!(upper, Frontier::EMPTY);
        assert_eq!(updates, feed.oracle(0, Frontier::EMPTY), "seed {seed}");
        world.at_rest(&sink);
        world.leaves_nothing(&sink);
    }
}

#[test]
fn a_rendering_is_granted_every_as_of_in_turn_and_goes_on_from_it() {
    let feed = Feed::seeded(7, 14, 5);
    let original = 3;
    for world in [World::files(2), World::parts(2)] {
        let sink = world.declare::<Words>("words", |spec| spec.as_of(original).up_to(feed.end));
        let begun = world.connect(&sink, 2);
        assert_eq!((begun.as_of(), begun.floor()), (original, Frontier::at(original)));
        render_up_to(&world, &begun, &feed, original + 1);
        for upper in original + 2..=feed.end {
            let begun = world.connect(&sink, 2);
            let expected = (upper - 2, Frontier::at(upper - 1));
            assert_eq!((begun.as_of(), begun.floor()), expected, "strictly below the upper (I9)");
            render_up_to(&world, &begun, &feed, upper);
            let (updates, reached) = world.read(&sink);
            assert_eq!(updates, feed.oracle(original, reached));
            world.at_rest(&sink);
        }
        assert_eq!(world.runtime.block_on(sink.upper()).expect("an upper"), Frontier::EMPTY);
        world.leaves_nothing(&sink);
    }
}

/// Renders what happens below `upper`, and takes the sink down once the chain has it.
fn render_up_to(world: &World, connection: &Connection, feed: &Feed, upper: u64) {
    let story = Story { closes: false, ..Story::of(&Feed { end: upper, ..feed.clone() }) };
    let (given, whole) = (connection.clone(), feed.end);
    let workers = timely::execute(Config::process(2), move |worker| {
        let (token, mut drive) = story.render(worker, &given).expect("rendered");
        let mut token = Some(token);
        let state = token.as_ref().expect("a token").connection().clone();
        while state.stop().is_none() {
            drive(worker);
            worker.step_or_park(Some(std::time::Duration::from_millis(1)));
            if token.as_ref().is_some_and(|token| token.upper() >= Frontier::at(upper))
                && matches!(token.as_ref().map(stash_timely::SinkToken::status), Some(SinkStatus::Running))
            {
                token = None;
            }
        }
        if let Some(token) = token {
            token.detach();
        }
        upper == whole
    });
    for ended in workers.expect("workers").join() {
        let last = ended.expect("no panic");
        let stop = connection.stop().expect("stopped").clone();
        let legal = stop == Stop::GoingAway || (last && stop == Stop::Complete);
        assert!(legal, "{stop:?}");
    }
    world.runtime.block_on(connection.idle());
}
