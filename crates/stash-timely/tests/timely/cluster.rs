//! Several processes over TCP: as threads of this one, which tells what each of them sees; and as real ones, which can
//! be killed.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use stash::{Frontier, LaunchToken, Sink, StartAt, TryNext};
use stash_timely::{Outcome, Place};

use crate::{
    story::{Feed, Story, Words, cluster, free_addresses, play_cluster, play_process},
    support::World,
};

#[test]
fn a_cluster_of_two_processes_is_one_replica_and_two_of_them_race() {
    let feed = Feed::seeded(51, 80, 6);
    let world = World::parts(2);
    let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
    let replicas = [("one", Story::of(&feed)), ("two", Story { stride: 5, ..Story::of(&feed) })];
    std::thread::scope(|threads| {
        for (name, story) in &replicas {
            let world = &world;
            threads.spawn(move || {
                let processes = [world.again(2), world.again(2)];
                for ended in play_cluster(&processes, "words", name, 2, story) {
                    assert_eq!(ended.expect("an outcome"), (Outcome::Complete, 1), "alike in all processes");
                }
                for process in &processes {
                    let drained = process.runtime.block_on(process.stash.close()).expect("closed");
                    assert_eq!(drained.deferred, 0);
                }
            });
        }
    });
    assert_eq!(world.read(&sink).0, feed.oracle(0, Frontier::EMPTY));
    world.at_rest(&sink);
    world.leaves_nothing(&sink);
}

#[test]
fn a_store_that_fails_for_one_process_makes_all_render_again() {
    let feed = Feed::seeded(52, 40, 6);
    let world = World::parts(2);
    let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
    let processes = [world.again(2), world.again(2)];
    let refused = stash_testkit::Fault::Refused { retry: false };
    let plan = stash_testkit::FaultPlan::none().at(stash_testkit::Op::Put, 0, refused);
    processes[1].faults().set_plan(plan);
    for ended in play_cluster(&processes, "words", "replica", 2, &Story::of(&feed)) {
        assert_eq!(ended.expect("an outcome"), (Outcome::Complete, 2), "alike in all processes");
    }
    assert_eq!(world.read(&sink).0, feed.oracle(0, Frontier::EMPTY));
    world.at_rest(&sink);
    world.leaves_nothing(&sink);
}

#[test]
fn a_killed_process_ends_its_replica_and_a_new_launch_goes_on() {
    let feed = killed_feed();
    for killed in 0..2 {
        let world = World::parts(2);
        let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
        let mut processes = start(&world, 20);
        wait_for(&world, &sink, Frontier::at(25));
        processes[killed].kill().expect("killed");
        for process in &mut processes {
            let status = process.wait().expect("ended");
            assert!(!status.success(), "a lost peer ends the others: {status}");
        }
        let upper = world.runtime.block_on(sink.upper()).expect("an upper");
        assert!(upper < Frontier::at(feed.end), "killed in the middle");
        for mut process in start(&world, 1) {
            assert!(process.wait().expect("ended").success());
        }
        let (updates, upper) = world.read(&sink);
        assert_eq!(upper, Frontier::EMPTY);
        assert_eq!(updates, feed.oracle(0, Frontier::EMPTY), "process {killed} was killed");
        world.at_rest(&sink);
        world.leaves_nothing(&sink);
    }
}

fn killed_feed() -> Feed {
    Feed::seeded(53, 1000, 6)
}

/// Starts the two processes of a replica anew, the last worker at one of so many steps.
fn start(world: &World, slow: u64) -> Vec<Child> {
    let (token, addresses) = (world.stash.draw_launch(), free_addresses(2));
    let processes = (0..2).map(|process| {
        let inside = world.folder().join(format!("process-{process}"));
        std::fs::create_dir_all(&inside).expect("made");
        let spec = json!({
            "process": process, "token": token.uuid().to_string(), "addresses": addresses, "slow": slow,
        });
        std::fs::write(inside.join("spec.json"), spec.to_string()).expect("written");
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "cluster::child_that_plays_a_process", "--ignored", "--nocapture"])
            .current_dir(inside)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("started")
    });
    processes.collect()
}

#[test]
#[ignore = "runs as a child of a_killed_process_ends_its_replica_and_a_new_launch_goes_on"]
fn child_that_plays_a_process() {
    let Ok(spec) = std::fs::read_to_string("spec.json") else { return };
    let spec: Value = serde_json::from_str(&spec).expect("a spec");
    let process = u32::try_from(spec["process"].as_u64().expect("a process")).unwrap();
    let token = spec["token"].as_str().and_then(|token| token.parse().ok()).expect("a token");
    let addresses = spec["addresses"].as_array().expect("addresses").iter();
    let addresses = addresses.map(|address| address.as_str().expect("an address").to_owned()).collect();
    let world = World::at_parts(Path::new(".."), 2);
    let sink = world.runtime.block_on(world.stash.sink("words")).expect("the sink");
    let place = Place { process, processes: 2, workers: 2 };
    let story = Story { slow: Some((3, spec["slow"].as_u64().unwrap())), ..Story::of(&killed_feed()) };
    let config = cluster(usize::try_from(process).unwrap(), 2, addresses);
    let token = LaunchToken::from_uuid(token);
    let ended = play_process(&world, &sink, "replica", token, place, config, &story);
    assert_eq!(ended.expect("an outcome").0, Outcome::Complete);
    world.runtime.block_on(world.stash.close()).expect("closed");
}

/// Waits until the chain has reached `upper`.
fn wait_for(world: &World, sink: &Sink, upper: Frontier) {
    world.runtime.block_on(async {
        let mut reader = sink.subscribe("waits", StartAt::Beginning).await.expect("subscribed");
        while reader.position() < upper {
            reader.next().await.expect("a delivery");
        }
        assert!(matches!(reader.try_next().await, Ok(TryNext::Delivery(_) | TryNext::Pending)));
        sink.unregister_consumer("waits").await.expect("forgotten");
    });
}
