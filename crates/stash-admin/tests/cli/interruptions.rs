//! Loads that die, are interrupted, or are overtaken: what was accepted stands, and the rest comes later.

use rustix::process::{Pid, Signal, kill_process};

use crate::world::{Running, World, load_words};

/// More batches than are accepted while a test looks.
const TIMES: u64 = 500;

fn begun(world: &World, more: &str) -> Running {
    let mut running = world.spawn(&load_words("changes.csv", "s", &format!("--batch-every 1 -v {more}")));
    running.until_accepted(3);
    running
}

fn upper(world: &World) -> u64 {
    let upper = world.upper("s").as_u64().expect("not complete");
    assert!((3..TIMES).contains(&upper), "{upper}");
    upper
}

#[test]
fn a_killed_load_goes_on_with_resume_and_what_was_accepted_stays() {
    let world = World::new();
    let sums = world.changes("changes.csv", 0..TIMES);
    let mut running = begun(&world, "");
    running.child.kill().expect("killed");
    drop(running);

    let upper = upper(&world);
    let before = world.chain("s")["batches"].clone();
    let accepted = sums.iter().filter(|((_, time), _)| *time < upper);
    assert_eq!(world.sums("s"), accepted.map(|(update, diff)| (update.clone(), *diff)).collect());
    world.load("changes.csv", "s", "").fails(1, &["--resume", &format!("below {upper}")]);

    let summary = world.load("changes.csv", "s", "--resume --json").json().remove(0);
    assert_eq!(summary["upper"], TIMES);
    assert!(summary["refused_below_upper"].as_u64().is_some_and(|refused| refused >= upper * 3), "{summary}");
    let after = world.chain("s")["batches"].clone();
    let kept = before.as_array().expect("a list");
    assert_eq!(after.as_array().expect("a list").get(..kept.len()), Some(&kept[..]));
    assert_eq!(world.sums("s"), sums);
    world.at_rest();
}

#[test]
fn an_interrupted_load_closes_cleanly_and_goes_on_later() {
    let world = World::new();
    let sums = world.changes("changes.csv", 0..TIMES);
    let running = begun(&world, "");
    let pid = Pid::from_child(&running.child);
    kill_process(pid, Signal::INT).expect("sent");
    running.end().fails(130, &["interrupted", "--resume"]);
    upper(&world);
    let chain = world.chain("s");
    assert_eq!(chain["incarnations"][0]["open"], false, "{chain}");
    world.at_rest();
    world.load("changes.csv", "s", "--resume").ok();
    assert_eq!(world.sums("s"), sums);
    world.at_rest();
}

#[test]
fn a_second_load_of_the_same_name_overtakes_the_first() {
    let world = World::new();
    let sums = world.changes("changes.csv", 0..TIMES);
    let first = begun(&world, "");
    world.load("changes.csv", "s", "--resume").ok();
    first.end().fails(1, &["sink s", "replica load", "--resume", "--replica"]);
    assert_eq!(world.sums("s"), sums);
    world.at_rest();
}

#[test]
fn loads_of_two_names_write_beside_one_another() {
    let world = World::new();
    let sums = world.changes("changes.csv", 0..TIMES);
    let first = begun(&world, "");
    world.load("changes.csv", "s", "--resume --replica other --batch-every 7").ok();
    let ran = first.end();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(world.sums("s"), sums);
    world.at_rest();
}

#[test]
fn an_interrupted_follower_ends_between_two_batches() {
    let world = World::new();
    world.changes("changes.csv", 0..2);
    world.load("changes.csv", "s", "").ok();
    let mut running = world.spawn("read --sink s --follow --consumer me --output out.parquet");
    let mut text = world.spawn("read --sink s --follow");
    text.until_progress();
    text.until_progress();
    kill_process(Pid::from_child(&text.child), Signal::TERM).expect("sent");
    let ran = text.end();
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    // The Parquet reader is somewhere in between; what it acknowledges is in a whole file.
    kill_process(Pid::from_child(&running.child), Signal::INT).expect("sent");
    drop(running.out.take());
    let status = running.child.wait().expect("it ends");
    let acknowledged = world.acknowledged("s");
    if acknowledged.iter().any(|(_, upper)| *upper == 2) {
        assert!(status.success());
        world.run("load out.parquet --sink copy --time-column _time --diff-column _diff --sort").ok();
        assert_eq!(world.sums("copy").len(), 5);
    }
    assert!(!world.path("out.parquet.partial").exists() || !status.success());
}
