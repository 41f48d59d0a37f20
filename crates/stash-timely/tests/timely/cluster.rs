//! Several processes over TCP: as threads of this one, which tells what each of them sees; and as real ones, which can
//! be killed.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use stash::{Frontier, Launch, LaunchToken, Sink, StartAt, TryNext};
use stash_timely::{Connected, Connection, Outcome, Place, SinkConfig, SinkStatus, Stop};

use crate::{
    story::{Feed, Story, Words, cluster, free_addresses, play, play_cluster, play_process},
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

/// Between the openings of two processes another replica completes the chain: would the second find nothing to render, the
/// first would wait for it for ever.
#[test]
fn a_process_that_opens_after_the_chain_was_completed_joins_the_launch_that_one_opened_before() {
    let feed = Feed::seeded(54, 40, 6);
    let world = World::parts(2);
    let sink = world.declare::<Words>("words", |spec| spec.up_to(feed.end));
    let processes = [world.again(1), world.again(1)];
    let token = world.stash.draw_launch();
    let open = |process: u32| {
        let world = &processes[usize::try_from(process).unwrap()];
        let launch = Launch::process("late", token, process, 2, process, 1).expect("a launch");
        world.runtime.block_on(async {
            let sink = world.stash.sink("words").await.expect("the sink");
            let opened = Connection::open(&sink, launch, &world.background, SinkConfig::default()).await;
            match opened.expect("opened") {
                Connected::Render(connection) => connection,
                other => panic!("process {process} would render nothing: {other:?}"),
            }
        })
    };
    let first = open(0);
    assert_eq!(play(&world, &sink, "early", 2, &Story::of(&feed)), (Outcome::Complete, 1));
    let second = open(1);
    assert_eq!((first.incarnation(), first.as_of()), (second.incarnation(), second.as_of()));
    let addresses = free_addresses(2);
    std::thread::scope(|threads| {
        for (process, connection) in [first, second].into_iter().enumerate() {
            let (config, story) = (cluster(process, 1, addresses.clone()), Story::of(&feed));
            let runtime = &processes[process].runtime;
            threads.spawn(move || {
                let given = connection.clone();
                let workers = timely::execute(config, move |worker| {
                    let (token, mut drive) = story.render(worker, &given).expect("rendered");
                    while token.status() == SinkStatus::Running {
                        drive(worker);
                        worker.step_or_park(Some(std::time::Duration::from_millis(1)));
                    }
                    let status = token.status();
                    token.detach();
                    worker
                        .installed_dataflows()
                        .into_iter()
                        .for_each(|dataflow| worker.drop_dataflow(dataflow));
                    status
                });
                for status in workers.expect("workers").join() {
                    assert_eq!(status.expect("no panic"), SinkStatus::Stopped(Stop::Complete));
                }
                runtime.block_on(connection.idle());
            });
        }
    });
    for process in &processes {
        process.runtime.block_on(process.stash.close()).expect("closed");
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
