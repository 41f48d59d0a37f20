//! Workers that are not alike: slow ones, one with all the data, many descriptions; and all configurations of timely.

use stash::Frontier;
use stash_timely::{Outcome, Place, SinkConfig};
use timely::{CommunicationConfig, Config, WorkerConfig};

use crate::{
    story::{Feed, Split, Story, Words, play, play_process},
    support::World,
};

/// Plays a story on several workers and compares with the oracle.
fn told(world: &World, workers: usize, story: &Story) {
    let end = story.feed.end;
    let sink = world.declare::<Words>("words", |spec| spec.up_to(end));
    assert_eq!(play(world, &sink, "replica", workers, story), (Outcome::Complete, 1));
    let (updates, upper) = world.read(&sink);
    assert_eq!(upper, Frontier::EMPTY);
    assert_eq!(updates, story.feed.oracle(0, Frontier::EMPTY));
    world.at_rest(&sink);
    world.leaves_nothing(&sink);
}

#[test]
fn a_slow_worker_delays_the_chain_and_loses_nothing() {
    let feed = Feed::seeded(11, 150, 8);
    let story = Story { slow: Some((1, 8)), ..Story::of(&feed) };
    told(&World::files(3), 3, &story);
    told(&World::parts(3), 3, &story);
}

#[test]
fn one_worker_has_all_the_data_and_the_others_report_nothing() {
    let feed = Feed::seeded(12, 60, 40);
    for whose in 0..3 {
        told(&World::parts(3), 3, &Story { split: Split::All(whose), ..Story::of(&feed) });
    }
}

#[test]
fn workers_without_any_data_move_the_chain_without_a_put() {
    let world = World::parts(4);
    let feed = Feed::seeded(13, 500, 0);
    let before = world.faults().counts().puts;
    told(&world, 4, &Story::of(&feed));
    assert_eq!(world.faults().counts().puts, before);
}

#[test]
fn ten_thousand_tiny_descriptions_are_the_oracles() {
    let feed = Feed::seeded(14, 10_000, 3);
    told(&World::memory(2), 2, &Story { split: Split::Even, ..Story::of(&feed) });
}

#[test]
fn long_scans_in_small_chunks_go_on_in_the_background_and_give_the_same() {
    let config = SinkConfig { scan_positions_max: 3, merge_updates_max: 10, chunk_rows: 7, chunk_bytes: 100 };
    let feed = Feed::seeded(15, 30, 200);
    told(&World::files(2), 2, &Story { config, stride: 5, ..Story::of(&feed) });
    told(&World::parts(2), 2, &Story { config, stride: 5, ..Story::of(&feed) });
}

#[test]
fn a_thread_a_process_and_a_process_that_serializes_do_the_same() {
    let feed = Feed::seeded(16, 50, 6);
    let story = Story::of(&feed);
    let configurations = [
        (1, CommunicationConfig::Thread),
        (1, CommunicationConfig::Process(1)),
        (3, CommunicationConfig::Process(3)),
        (3, CommunicationConfig::ProcessBinary(3)),
    ];
    for (workers, communication) in configurations {
        let shown = format!("{communication:?}");
        let world = World::memory(3);
        let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
        let place = Place::alone(workers);
        let config = Config { communication, worker: WorkerConfig::default() };
        let token = world.stash.draw_launch();
        let ended = play_process(&world, &sink, "replica", token, place, config, &story);
        assert_eq!(ended.expect("an outcome"), (Outcome::Complete, 1), "{shown}");
        assert_eq!(world.read(&sink).0, feed.oracle(0, Frontier::EMPTY), "{shown}");
        world.at_rest(&sink);
    }
}
